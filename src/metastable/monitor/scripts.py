"""The script that words are written in."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable

DIGITS, SYMBOLS, NONE = "digits", "symbols", ""
"""Words with digits and no letters; with neither; no words."""


def script(words: Iterable[str]) -> str:
    """The script of most letters, as the first word of their Unicode names; "digits", "symbols" or "" without letters.

    >>> script(["Москва", "is"]), script(["2024", "%"]), script(["→"]), script([])
    ('Cyrillic', 'digits', 'symbols', '')
    """
    text = "".join(words)
    if not text:
        return NONE
    if text.isascii():
        return "Latin" if any(map(str.isalpha, text)) else DIGITS if any(map(str.isdigit, text)) else SYMBOLS
    letters = Counter(unicodedata.name(c, "unknown").partition(" ")[0] for c in text if c.isalpha())
    if not letters:
        return DIGITS if any(map(str.isdigit, text)) else SYMBOLS
    found = letters.most_common(1)[0][0]
    return "CJK" if found == "CJK" else found.capitalize()
