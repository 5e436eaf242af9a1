"""Dealing texts to parts: by document, whatever the order, through temporary files that never stay."""

import hashlib
import math
import os
import random
import tempfile
import tracemalloc
from collections import Counter

import pytest
from scipy.stats import binom

from metastable.errors import BadInput
from metastable.monitor.conformal import needed
from metastable.monitor.split import (
    COMMON,
    DOCUMENTS,
    LEAST,
    MANY,
    SHARES,
    Commonest,
    Split,
    enough,
    part_of,
    wanted,
)


def texts(count, seed=0):
    chance = random.Random(seed)
    return [
        " ".join(chance.choices(["ferry", "island", "noon", "rain", "bridge"], k=9)) + f" {i}" for i in range(count)
    ]


def dealt(given, documents=None, seed=0):
    with Split(seed) as split:
        split.take(given, documents)
        return {part: list(split.read(part)) for part in SHARES}, split


def test_the_part_is_the_hash_written_out():
    for seed in (0, 7):
        for document in ("a", "über", "", "x" * 1000):
            first = hashlib.sha256(f"{seed}\n{document}".encode()).hexdigest()[:16]
            place = int(first, 16) / 2**64
            expected = "fit" if place < 0.4 else "adjust" if place < 0.6 else "calibrate"
            assert part_of(document, seed) == expected


def test_every_text_is_in_exactly_one_part_in_about_the_shares():
    given = texts(20_000)
    parts, split = dealt(given)
    assert sorted(t for own in parts.values() for t in own) == sorted(given)
    assert split.texts == 20_000
    for part, share in SHARES.items():
        # Two-sided, at a false failure of 1e-9 each.
        low, high = binom.ppf(5e-10, 20_000, share), binom.isf(5e-10, 20_000, share)
        assert low <= len(parts[part]) == split.counts[part] <= high


def test_the_order_and_the_other_texts_do_not_matter():
    given = texts(500)
    first, _ = dealt(given)
    other = given[::-1] + texts(300, seed=1)
    random.Random(3).shuffle(other)
    second, _ = dealt(other)
    for part in SHARES:
        assert set(first[part]) <= set(second[part])
    third, _ = dealt(given, seed=1)
    assert set(third["fit"]) != set(first["fit"])


def test_equal_texts_are_never_in_two_parts():
    given = texts(300)
    parts, _ = dealt([*given, *given, *(f"  {t.replace(' ', chr(9))}\n" for t in given)])
    seen = Counter()
    for own in parts.values():
        seen.update({" ".join(t.split()) for t in own})
    assert set(seen.values()) == {1}
    assert len(seen) == 300


def test_documents_stay_whole():
    given = texts(1000)
    labels = [f"document {i // 10}" for i in range(1000)]
    of = dict(zip(given, labels, strict=True))
    parts, _ = dealt(given, labels)
    homes = {label: {part for part, own in parts.items() if label in {of[t] for t in own}} for label in set(labels)}
    assert all(len(home) == 1 for home in homes.values())
    # Without labels the texts of a document are dealt singly: the control.
    parts, _ = dealt(given)
    assert any(sum(label in {of[t] for t in own} for own in parts.values()) > 1 for label in set(labels))
    # Labels need not be strings.
    numbered, _ = dealt(given, (i // 10 for i in range(1000)))
    assert sum(map(len, numbered.values())) == 1000


def test_odd_texts_come_back_as_they_were():
    given = [
        "two\nlines",
        "tab\tand\r\n",
        'quotes " and \\ backslash',
        "line separator \u2028 here",
        "𝔘𝔫𝔦 é 漢字",
        "\x1b[0m x",
    ]
    parts, split = dealt(given)
    assert sorted(t for own in parts.values() for t in own) == sorted(given)
    assert not split.left_out


def test_unusable_texts_are_counted():
    given = ["", "  \n", "a\0b", "half \ud800 pair", "fine"]
    parts, split = dealt(given)
    assert [t for own in parts.values() for t in own] == ["fine"]
    assert split.left_out == {
        "blank": 2,
        "holds a NUL character": 1,
        "holds half a surrogate pair, which is no character": 1,
    }


def test_texts_are_consumed_once_and_parts_read_many_times():
    with Split(0) as split:
        split.take(iter(texts(200)))
        assert list(split.read("fit")) == list(split.read("fit"))
        assert len(list(split.read("fit"))) == split.counts["fit"]


def test_nothing_stays_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    with Split(0) as split:
        split.take(texts(100))
        # Without a name even while in use.
        assert list(tmp_path.iterdir()) == []

    def breaking():
        yield "one text"
        raise RuntimeError("the source went away")

    with pytest.raises(RuntimeError, match="went away"), Split(0) as split:
        split.take(breaking())
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("given", "documents", "words"),
    [
        ("one string", None, "texts is one string"),
        (["a", 3], None, "text 1 is of type int"),
        (["a", "b"], ["x"], "there are only 1 documents"),
        (["a"], ["x", "y"], "there are only 1 texts"),
    ],
)
def test_bad_input_is_one_line(given, documents, words):
    with Split(0) as split, pytest.raises(BadInput, match=words) as error:
        split.take(given, documents)
    assert "\n" not in str(error.value)


def test_too_few_texts_says_how_many():
    with Split(0) as split:
        split.take(texts(1000))
        with pytest.raises(BadInput, match=r"1000 clean texts are too few: .* to calibrate \(needs 480\).*about 1400"):
            split.check()
    assert needed(0.01, 0.1) == LEAST["calibrate"] == 480
    with Split(0) as split:
        split.take([" ", ""])
        with pytest.raises(BadInput, match="0 clean texts") as error:
            split.check()
    assert "2 could not be used" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_number_asked_for_is_enough():
    """With 1400 texts a part is short with probability below 1e-4."""
    asked = wanted({})
    short = sum(binom.cdf(least - 1, asked, SHARES[part]) for part, least in LEAST.items())
    assert short < 1e-4
    for seed in range(20):
        with Split(seed) as split:
            split.take(texts(asked))
            split.check()
    # A few large documents gave one part little: what is asked for follows from what was found.
    assert wanted({"fit": 1000, "adjust": 500, "calibrate": 300}) == 100 * math.ceil(1.1 * 1800 * 480 / 300 / 100)
    with pytest.raises(BadInput, match="180 to calibrate"):
        enough({"fit": 1000, "adjust": 500, "calibrate": 180}, Counter())


def test_few_documents_are_refused_however_many_texts():
    given = texts(3000)
    for count, refused in ((25, True), (120, True), (200, False), (3000, False)):
        labels = [f"document {i % count}" for i in range(3000)]
        held = sum(part_of(label, 0) == "calibrate" for label in set(labels))
        assert (held < DOCUMENTS) == refused
        with Split(0) as split:
            split.take(given, labels)
            assert split.documents["calibrate"] == held
            assert sum(split.documents.values()) == count
            if refused:
                with pytest.raises(
                    BadInput, match=rf"few documents: {count}, and {held} of them .*\(needs 60\)"
                ) as error:
                    split.check()
                assert "\n" not in str(error.value)
            else:
                split.check()
    assert binom.cdf(DOCUMENTS - 1, MANY, SHARES["calibrate"]) < 2e-3


def test_texts_without_a_label_are_documents_of_their_own():
    for labels in (None, [None] * 2000):
        with Split(0) as split:
            split.take(texts(2000), labels)
            assert split.documents is None
            split.check()
    with Split(0) as split:
        split.take(texts(2000), ["one", "two", *[None] * 1998])
        assert sum(split.documents.values()) == 2000
        split.check()


def test_the_share_of_the_most_frequent_text():
    """Exact while texts are few; after that, 1/(COMMON + 1) too small at most, and never too large."""
    found = Commonest()
    assert found.share == 0.0
    given = [*texts(COMMON - 1), *["again and again"] * 500]
    random.Random(0).shuffle(given)
    for text in given:
        found.add(text)
    assert found.share == 500 / len(given)
    for count, repeats in ((40_000, 0), (40_000, 400), (39_000, 1600)):
        given = [*texts(count), *["again and again"] * repeats]
        random.Random(1).shuffle(given)
        found = Commonest()
        for text in given:
            found.add(text)
        share = max(repeats, 1) / len(given)
        assert share - 1 / (COMMON + 1) <= found.share <= share
    with Split(0) as split:
        split.take(["one text", " one\ttext ", "another", "", "  "])
        assert split.commonest.share == 2 / 3


def test_texts_are_not_kept_in_memory():
    """4 MB of texts through a split; what is held at any time is a few buffers."""
    given = (f"{i} " + "the ferry to the island leaves at noon " * 15 for i in range(6_000))
    tracemalloc.start()
    try:
        with Split(0) as split:
            split.take(given)
            assert sum(1 for part in SHARES for _ in split.read(part)) == 6_000
            peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20
