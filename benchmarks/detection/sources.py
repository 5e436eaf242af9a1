"""Readers of the sets that were used while detectors were chosen: texts with their documents, unfiltered."""

from __future__ import annotations

import ast
import csv
import html
import io
import json
import random
import re
import struct
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from packages import PACKAGES


@dataclass(frozen=True)
class Text:
    """A text, the name of its document, and a rating (−4 … 4) where the source has one."""

    text: str
    document: str
    rating: float = 0.0


def vader(file: str) -> Iterator[Text]:
    with PACKAGES["vaderSentiment source"].source() as outer:
        inner = outer.extractfile("vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz")
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as archive:
            member = archive.extractfile(f"hutto_ICWSM_2014/{file}_GroundTruth.txt")
            assert member is not None
            table = member.read().decode("utf-8", errors="replace")
    for number, rating, text in csv.reader(table.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE):
        # Snippets are numbered DOCUMENT_PLACE; tweets and movie snippets have one number only.
        yield Text(text.replace("''", '"'), f"{file} {number.split('_')[0]}", float(rating))


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])[\"')]?\s+(?=[\"'(A-Z0-9])", text)


def news() -> Iterator[Text]:
    with PACKAGES["gensim"].wheel() as wheel:
        stories = wheel.read("gensim/test/test_data/lee_background.cor").decode("utf-8").splitlines()
    for number, story in enumerate(stories):
        yield from (Text(sentence, f"story {number}") for sentence in sentences(story))


def licence() -> Iterator[Text]:
    for name, file in (
        ("gensim", "gensim-4.3.3.dist-info/COPYING"),
        ("scattertext", "scattertext-0.2.2.dist-info/LICENSE"),
        ("Django", "django-5.2.dist-info/LICENSE.python"),
    ):
        with PACKAGES[name].wheel() as wheel:
            found = [entry for entry in wheel.namelist() if entry.lower() == file.lower()]
            text = wheel.read(found[0]).decode("utf-8")
        for part in re.split(r"\n\s*\n", text):
            yield from (Text(sentence, name) for sentence in sentences(" ".join(part.split())))


def speeches() -> Iterator[Text]:
    with PACKAGES["scattertext"].wheel() as wheel:
        parties = json.loads(wheel.read("scattertext/data/political_data.json"))
    for party in parties:
        for number, speech in enumerate(party["speeches"]):
            for line in speech.splitlines():
                yield from (Text(sentence, f"{party['name']} {number}") for sentence in sentences(line))


def interface(language: str) -> Iterator[Text]:
    """Translated interface texts of Django and Wagtail; "en" gives the English that the German ones were made from."""
    folder = "de" if language == "en" else language
    for name in ("Django", "wagtail"):
        with PACKAGES[name].wheel() as wheel:
            for entry in sorted(wheel.namelist()):
                if entry.endswith(f"/locale/{folder}/LC_MESSAGES/django.mo"):
                    for original, translation in catalogue(wheel.read(entry)):
                        text = original if language == "en" else translation
                        yield Text(plain(text), f"{name} {original[:40]}")


def catalogue(mo: bytes) -> Iterator[tuple[str, str]]:
    """(original, translation) in a compiled catalogue of gettext: two tables of (length, offset) after the header."""
    magic, _, count, originals, translations = struct.unpack_from("<5I", mo)
    if magic != 0x950412DE:
        raise SystemExit(f"a catalogue begins with {magic:#x}; it is no little-endian .mo file")
    for place in range(count):
        pair = []
        for table in (originals, translations):
            length, offset = struct.unpack_from("<2I", mo, table + 8 * place)
            # A context stands before \x04, plural forms are separated by \0: the first form is taken.
            pair.append(mo[offset : offset + length].split(b"\x04")[-1].split(b"\0")[0].decode("utf-8"))
        if pair[0]:
            yield pair[0], pair[1]


def plain(text: str) -> str:
    """Without mark-up and placeholders."""
    text = html.unescape(re.sub(r"<[^>]+>", " ", text))
    return " ".join(re.sub(r"%\(\w+\)[a-z]|%[sd]|\{\w*\}", "", text).split())


def examples() -> Iterator[Text]:
    """spaCy's example sentences in all languages but English."""
    with PACKAGES["spacy"].wheel() as wheel:
        for entry in sorted(wheel.namelist()):
            found = re.fullmatch(r"spacy/lang/(\w+)/examples\.py", entry)
            if found and found[1] != "en":
                for node in ast.walk(ast.parse(wheel.read(entry).decode("utf-8"))):
                    if isinstance(node, ast.List):
                        yield from (Text(str(e.value), found[1]) for e in node.elts if isinstance(e, ast.Constant))


def code() -> Iterator[Text]:
    """Two to four lines of Python at a time, without docstrings and comments."""
    chance = random.Random(0)
    with PACKAGES["Django"].wheel() as wheel:
        for entry in sorted(wheel.namelist()):
            if entry.endswith(".py") and entry.startswith("django/db/"):
                code = re.sub(r'"""[\s\S]*?"""', "", wheel.read(entry).decode("utf-8"))
                kept = [line.strip() for line in code.splitlines() if line.strip() and line.strip()[0] != "#"]
                while kept:
                    take = chance.randint(2, 4)
                    yield Text(" ".join(kept[:take]), entry)
                    kept = kept[take:]


def random_characters() -> Iterator[Text]:
    chance = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz" * 3 + "0123456789.,;:!?-"
    for number in range(600):
        words = ("".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(chance.randint(5, 30)))
        yield Text(" ".join(words), str(number))
