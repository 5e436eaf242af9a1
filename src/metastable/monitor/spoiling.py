"""Copies of clean texts that are spoilt in known ways: typing errors, words in a wrong order, parts of other texts.

They are what `exposure` learns from. A text with spaces is spoilt by words. A text without spaces between words, such
as Chinese or Japanese, is spoilt by characters.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

# Longer "words" than this, on average, are sentences without spaces.
LONG_WORD = 20
# Clean texts from which other texts and words are drawn.
POOL = 1000

Units = list[str]


@dataclass(frozen=True)
class Pool:
    """What is put into spoilt texts.

    others : clean texts, as units
    words : the units of these texts, as often as they occur
    letters : the letters of these texts, as often as they occur
    foreign : words that the tokenizer knows, whether or not they occur in clean texts
    """

    others: Sequence[Units]
    words: Units
    letters: str
    foreign: Sequence[str]

    @classmethod
    def of(cls, texts: Sequence[str], vocabulary: Sequence[str]) -> Pool:
        """vocabulary : the tokens of the tokenizer"""
        others = [units(text)[0] for text in texts[:POOL]]
        words = [unit for other in others for unit in other]
        letters = "".join(c for word in words for c in word if c.isalpha())
        long = sorted(word for word in vocabulary if word.isalpha() and len(word) > 3)
        return cls(others, words, letters or "".join(words), long or words)


def units(text: str) -> tuple[Units, str]:
    """The words or characters of a text, and what joins them."""
    words = text.split()
    if sum(map(len, words)) > LONG_WORD * len(words):
        return [c for c in text if not c.isspace()], ""
    return words, " "


def _shuffled(own: Units, pool: Pool, chance: random.Random) -> Units:
    return chance.sample(own, len(own))


def _exchanged(own: Units, pool: Pool, chance: random.Random) -> Units:
    own = list(own)
    for _ in range(max(1, int(len(own) * chance.uniform(0.1, 0.4)))):
        i, j = chance.randrange(len(own)), chance.randrange(len(own))
        own[i], own[j] = own[j], own[i]
    return own


def _mistyped(own: Units, pool: Pool, chance: random.Random) -> Units:
    share = chance.uniform(0.02, 0.2)

    def typed(letter: str) -> str:
        if not letter.isalpha() or chance.random() >= share:
            return letter
        return chance.choice(("", letter + letter, chance.choice(pool.letters)))

    return [word for word in ("".join(map(typed, unit)) for unit in own) if word]


def _repeated(own: Units, pool: Pool, chance: random.Random) -> Units:
    share = chance.uniform(0.05, 0.3)
    return [unit for unit in own for _ in range(1 + (chance.random() < share))]


def _dropped(own: Units, pool: Pool, chance: random.Random) -> Units:
    share = chance.uniform(0.1, 0.35)
    return [unit for unit in own if chance.random() >= share]


def _spliced(own: Units, pool: Pool, chance: random.Random) -> Units:
    other = chance.choice(pool.others)
    return own[: (len(own) + 1) // 2] + other[len(other) // 2 :]


def _joined(own: Units, pool: Pool, chance: random.Random) -> Units:
    return own + chance.choice(pool.others)


def _foreign(own: Units, pool: Pool, chance: random.Random) -> Units:
    return _replaced(own, pool.foreign, chance)


def _inserted(own: Units, pool: Pool, chance: random.Random) -> Units:
    place = chance.randrange(len(own) + 1)
    return own[:place] + [chance.choice(pool.foreign) for _ in range(chance.randrange(1, 5))] + own[place:]


def _substituted(own: Units, pool: Pool, chance: random.Random) -> Units:
    return _replaced(own, pool.words, chance)


def _replaced(own: Units, by: Sequence[str], chance: random.Random) -> Units:
    share = chance.uniform(0.05, 0.3)
    return [chance.choice(by) if chance.random() < share else unit for unit in own]


Spoil = Callable[[Units, Pool, random.Random], Units]

# Each way to spoil a text, by what it leaves in the text.
KINDS: dict[str, Spoil] = {
    "all words in a random order": _shuffled,
    "some words out of place": _exchanged,
    "typing errors": _mistyped,
    "repeated words": _repeated,
    "missing words": _dropped,
    "halves of two texts": _spliced,
    "two texts joined": _joined,
    "words from elsewhere": _foreign,
    "inserted words": _inserted,
    "words of other texts": _substituted,
}


@dataclass(frozen=True)
class Copy:
    """A spoilt copy. source : the place of its text. kind : the number of its kind in `KINDS`."""

    text: str
    source: int
    kind: int


# The kind of a text that is not spoilt.
CLEAN = -1


def with_copies(
    texts: Sequence[str], others: Sequence[str], vocabulary: Sequence[str], copies: int, seed: int
) -> tuple[list[str], np.ndarray]:
    """The texts and then spoilt copies of them, with the number of each one's kind in `KINDS`, `CLEAN` for the texts.

    The parameters are those of `spoilt`.
    """
    made = spoilt(texts, others, vocabulary, copies, seed)
    kinds = np.array([CLEAN] * len(texts) + [copy.kind for copy in made])
    return [*texts, *(copy.text for copy in made)], kinds


def spoilt(
    texts: Sequence[str], others: Sequence[str], vocabulary: Sequence[str], copies: int, seed: int
) -> list[Copy]:
    """Spoilt copies of texts. Copies that are empty or equal to their text are left out.

    others : clean texts that parts and words are taken from
    vocabulary : the tokens of the tokenizer
    copies : how many, in all; kinds take turns, and so do texts, in a random order
    """
    chance = random.Random(seed)
    pool = Pool.of(others, vocabulary)
    kinds = list(KINDS.values())
    order = chance.sample(range(len(texts)), len(texts))
    found = []
    for number in range(copies):
        source = order[number % len(texts)]
        own, between = units(texts[source])
        kind = (number + number // len(texts)) % len(kinds)
        made = between.join(kinds[kind](own, pool, chance))
        if made.strip() and made != between.join(own):
            found.append(Copy(made, source, kind))
    return found
