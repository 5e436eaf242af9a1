"""Texts made worse: typing errors, shuffled words, halves of two texts, two texts joined. Each takes its own seed."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence

NEIGHBOURS = {
    letter: row[max(0, place - 1) : place] + row[place + 1 : place + 2]
    for row in ("qwertyuiop", "asdfghjkl", "zxcvbnm")
    for place, letter in enumerate(row)
}
"""The keys beside each key."""


def typos(texts: Sequence[str], share: float, seed: int) -> list[str]:
    """Each letter is hit with probability `share`: left out, doubled, swapped with the next or mistyped by one key."""
    chance = random.Random(seed)
    return [_mistyped(text, share, chance) for text in texts]


def _mistyped(text: str, share: float, chance: random.Random) -> str:
    letters, place = list(text), 0
    written: list[str] = []
    while place < len(letters):
        letter = letters[place]
        if letter not in string.ascii_letters or chance.random() >= share:
            written.append(letter)
        else:
            kind = chance.randrange(4)
            if kind == 1:
                written += [letter, letter]
            elif kind == 2 and place + 1 < len(letters):
                written += [letters[place + 1], letter]
                place += 1
            elif kind >= 2:
                near = chance.choice(NEIGHBOURS[letter.lower()])
                written.append(near.upper() if letter.isupper() else near)
        place += 1
    return "".join(written)


def shuffled(texts: Sequence[str], seed: int) -> list[str]:
    """The words of each text in random order. The final stop stays where it is, so that it gives nothing away."""
    chance = random.Random(seed)
    found = []
    for text in texts:
        words = text.rstrip(".!?").split()
        end = text[len(text.rstrip(".!?")) :]
        chance.shuffle(words)
        found.append(" ".join(words) + end)
    return found


def mixed(texts: Sequence[str], others: Sequence[str], seed: int) -> list[str]:
    """The first half of each text's words, then the second half of another's: as long as the two on average."""
    chance = random.Random(seed)
    found = []
    for text in texts:
        words, other = text.split(), chance.choice(others).split()
        found.append(" ".join(words[: (len(words) + 1) // 2] + other[len(other) // 2 :]))
    return found


def joined(texts: Sequence[str], others: Sequence[str], seed: int) -> list[str]:
    """Each text with another whole one after it."""
    chance = random.Random(seed)
    return [f"{text} {chance.choice(others)}" for text in texts]
