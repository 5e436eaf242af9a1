"""Spoilt copies: each kind does what its name says, to words or to characters, and depends on its seed alone."""

import random
from collections import Counter

import pytest

from metastable.monitor.spoiling import KINDS, LONG_WORD, Pool, spoilt, units

TEXTS = [f"text {i} speaks of the number {i * i} and of nothing else that matters here" for i in range(40)]
OTHERS = [f"other {i} tells about boats rivers bridges and their builders" for i in range(30)]
VOCABULARY = ["[CLS]", "##ing", "the", "zygote", "quasar", "abacus", "12"]
NAMES = list(KINDS)


def copies_of(kind, texts=TEXTS, seed=0):
    made = spoilt(texts, OTHERS, VOCABULARY, len(KINDS) * len(texts), seed)
    return [(texts[copy.source].split(), copy.text.split()) for copy in made if NAMES[copy.kind] == kind]


@pytest.mark.parametrize("kind", ["all words in a random order", "some words out of place"])
def test_words_change_places_only(kind):
    pairs = copies_of(kind)
    assert len(pairs) == len(TEXTS)
    assert all(Counter(old) == Counter(new) and old != new for old, new in pairs)


def moved(pairs):
    return sum(a != b for old, new in pairs for a, b in zip(old, new, strict=True))


def test_a_random_order_moves_more_words_than_exchanges():
    assert moved(copies_of(NAMES[0])) > 1.3 * moved(copies_of(NAMES[1]))


def test_typing_errors_keep_most_letters():
    for old, new in copies_of("typing errors"):
        assert abs(len("".join(new)) - len("".join(old))) <= 0.3 * len("".join(old))
        same = sum((Counter("".join(old)) & Counter("".join(new))).values())
        assert same >= 0.7 * len("".join(old))


def test_repeated_and_missing_words():
    for old, new in copies_of("repeated words"):
        assert len(new) > len(old)
        assert [word for place, word in enumerate(new) if place == 0 or word != new[place - 1]] == old
    for old, new in copies_of("missing words"):
        assert len(new) < len(old)
        left = iter(old)
        assert all(word in left for word in new), "the words that are left keep their order"


def test_parts_of_other_texts():
    for old, new in copies_of("halves of two texts"):
        half = (len(old) + 1) // 2
        assert new[:half] == old[:half]
        assert set(new[half:]) <= set(" ".join(OTHERS).split())
    for old, new in copies_of("two texts joined"):
        assert new[: len(old)] == old
        assert " ".join(new[len(old) :]) in OTHERS


def test_words_from_elsewhere_come_from_the_vocabulary_and_others_from_clean_texts():
    known = {"zygote", "quasar", "abacus"}
    for old, new in copies_of("words from elsewhere"):
        assert len(new) == len(old)
        assert {b for a, b in zip(old, new, strict=True) if a != b} <= known
    for old, new in copies_of("inserted words"):
        added = Counter(new) - Counter(old)
        assert 1 <= added.total() <= 4
        assert set(added) <= known
    clean = set(" ".join(OTHERS).split())
    for old, new in copies_of("words of other texts"):
        assert {b for a, b in zip(old, new, strict=True) if a != b} <= clean


def test_every_kind_of_every_text_and_the_same_for_the_same_seed():
    made = spoilt(TEXTS, OTHERS, VOCABULARY, len(KINDS) * len(TEXTS), seed=3)
    assert made == spoilt(TEXTS, OTHERS, VOCABULARY, len(KINDS) * len(TEXTS), seed=3)
    assert made != spoilt(TEXTS, OTHERS, VOCABULARY, len(KINDS) * len(TEXTS), seed=4)
    pairs = {(copy.source, copy.kind) for copy in made}
    assert len(pairs) > 0.9 * len(KINDS) * len(TEXTS)
    assert all(copy.text.strip() and copy.text != TEXTS[copy.source] for copy in made)


def test_the_state_of_the_program_s_generator_is_left_alone():
    before = random.getstate()
    spoilt(TEXTS, OTHERS, VOCABULARY, 50, seed=0)
    assert random.getstate() == before


def test_texts_without_spaces_are_spoilt_by_characters():
    chinese = [
        "我们明天早上九点在河边的旧码头见面然后一起坐船去对岸",
        "委员会还没有决定什么时候重新开放那座桥以及费用",
    ] * 20
    assert units(chinese[0]) == (list(chinese[0]), "")
    assert units("a " * LONG_WORD)[1] == " "
    made = spoilt(chinese, chinese, ["桥", "##见"], 200, seed=0)
    assert len({copy.kind for copy in made}) == len(KINDS)
    for copy in made:
        if NAMES[copy.kind] == "all words in a random order":
            assert Counter(copy.text) == Counter(chinese[copy.source])
            assert " " not in copy.text


def test_one_word_and_signs_are_no_trouble():
    odd = ["a", "?", "1234", "!!!", "ok ok"]
    made = spoilt(odd, odd, [], 500, seed=0)
    assert made
    assert all(copy.text.strip() for copy in made)
    assert Pool.of(["1 2 3"], []).letters == "123"
