"""Copies among the texts of a stream: the rule against counts by hand, its level, and bounded memory."""

import math

import numpy as np
from scipy.stats import binom

from metastable.monitor.copies import LEAST, RECENT, SHARE, WINDOW, Copies
from metastable.monitor.dependence import Dependence, warnings


def found(keys):
    made = Copies()
    made.update(keys)
    return made


def with_copies(share, length, seed):
    """Keys of texts, each of them a copy of an earlier one with probability `share`."""
    rng = np.random.default_rng(seed)
    keys: list[int] = []
    for place in range(length):
        again = keys and rng.random() < share
        keys.append(keys[rng.integers(max(0, place - 1000), place)] if again else place)
    return keys


def test_one_text_over_and_over():
    made = found(["a"] * 10)
    assert made.warned_at == 10
    assert made.to_dict() == {"text": 10, "most": 9, "among": 10, "until": 10}
    assert found(["a"] * 9).warned_at is None
    assert found(["a"] * 3000).to_dict() == {"text": 10, "most": WINDOW, "among": WINDOW, "until": WINDOW + 1}


def test_counts_are_those_of_the_last_texts():
    keys = with_copies(0.3, 4000, seed=1)
    copies = [key in keys[:place] for place, key in enumerate(keys)]
    counts = [sum(copies[max(0, end - WINDOW) : end]) for end in range(1, len(keys) + 1)]
    made = found(keys)
    assert made.most == max(counts)
    assert made.until == 1 + counts.index(max(counts))
    sizes = np.minimum(np.arange(1, len(keys) + 1), WINDOW)
    assert made.warned_at == 1 + int(np.argmax(np.array(counts) >= LEAST + SHARE * sizes))


def test_a_few_texts_in_turn_are_warned_of_and_ordinary_streams_are_not():
    assert found([place % 300 for place in range(2000)]).warned_at == 343
    assert found(range(30_000)).to_dict() == {"text": None, "most": 0, "among": 0, "until": 0}
    for seed in range(20):
        assert found(with_copies(0.05, 3000, seed)).warned_at is None


def test_the_level_that_is_stated():
    theta, share = 1.37, 0.05
    assert share * math.exp(theta) + 1 - share <= math.exp(SHARE * theta)
    assert math.exp(-LEAST * theta) < 2e-5
    assert binom.sf(LEAST + SHARE * WINDOW - 1, WINDOW, share) < 1e-12


def test_texts_without_a_key_are_no_copies():
    assert found([None] * 500).most == 0


def test_memory_does_not_grow():
    made = found(range(3 * RECENT))
    assert len(made._recent) == RECENT
    assert len(made._window) == WINDOW
    # What came more than `RECENT` different texts ago is forgotten.
    made.update([0])
    assert made.most == 0
    made.update([3 * RECENT - 5])
    assert made.most == 1


def test_the_warning_says_its_numbers_and_stays():
    stream = Dependence()
    p = np.full(3000, 0.001)
    assert stream.update(p[:1000], list(range(1000))) is False
    assert stream.update(p[:1000], [5] * 612 + list(range(2000, 2388)))
    words = warnings(stream.to_dict())
    assert list(words) == ["copies"]
    assert "612 of 1000 texts in a row, up to text 1612, are copies of earlier ones" in words["copies"]
    assert "independent texts only" in words["copies"]
    assert stream.update(p, list(range(3000, 6000)))
    assert warnings(stream.to_dict()) == words
    assert stream.warned_at == 1000 + 108
