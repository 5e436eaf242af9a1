"""Records: numbers and words of single texts, and the words that are named in them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from metastable.encoder.hooks import Passage
from metastable.monitor.detectors import DETECTORS
from metastable.monitor.record import Record, Word, records
from metastable.monitor.scoring import Assessment
from metastable.monitor.spoiling import KINDS
from tests.encoder.models import tokenizer

POOLED, PLACE = "pooled-mahalanobis", "place-surprise"


def passage_of(texts, side="right"):
    read = tokenizer()
    read.padding_side = side
    try:
        batch = read(texts, padding=True, return_tensors="pt")
    finally:
        read.padding_side = "right"
    special = torch.tensor(sorted(set(read.all_special_ids) - {read.unk_token_id}))
    return Passage.of(batch["input_ids"], batch["attention_mask"], special)


def assessed(passage, strange=(), p=0.002, least=0.001, by_term=(1.0, 5.0)):
    """Assessed texts in which the tokens at the places `strange` (text, place, value) stand out to `PLACE`."""
    texts, n = passage.ids.shape
    values = torch.zeros(texts, n)
    for text, place, value in strange:
        values[text, place] = value
    counts = passage.counts.numpy()
    usable = counts > 0
    full = np.where(usable, 1.0, np.nan)
    by_depth = np.tile([0.5, p, p / 2], (texts, 1)) * full[:, None]
    return Assessment(
        lengths=counts,
        usable=usable,
        score=3.5 * full,
        p_marginal=p / 2 * full,
        p_value=p * full,
        by_term=np.tile(by_term, (texts, 1)) * full[:, None],
        kinds=None,
        p_by_depth=by_depth,
        depths=(0, 2, 4),
        names=(POOLED, PLACE),
        tokens={PLACE: values},
        least=least,
        usual=(1, 100),
        traits=np.zeros((texts, 5)),
    )


def test_a_strange_text_in_words():
    text = "The colour of zxqzz is unbelievable."
    passage = passage_of([text])
    pieces = tokenizer().convert_ids_to_tokens(passage.ids[0])
    at = {piece: place for place, piece in enumerate(pieces)}
    found = records(assessed(passage, [(0, at["colour"], 2.0), (0, at["unbelievable"], 4.0)]), passage, tokenizer())[0]
    assert found.reason == (
        "p = 0.002: at most 2 in 1000 clean texts are this strange; "
        f"{DETECTORS[PLACE].words}: ‘unbelievable’, ‘colour’; it begins at depth 2"
    )
    assert found.tokens == (Word("unbelievable", 4.0), Word("colour", 2.0))
    assert (found.status, found.detector, found.first_layer, found.n) == ("scored", PLACE, 2, len(pieces) - 2)
    assert found.p_by_depth == {"0": 0.5, "2": 0.002, "4": 0.001}
    assert found.strange
    assert found.cut is None


def test_pieces_are_shown_as_the_whole_word_once():
    text = "He met Zxqzzle today."
    passage = passage_of([text])
    pieces = tokenizer().convert_ids_to_tokens(passage.ids[0])
    inner = [place for place, piece in enumerate(pieces) if piece.startswith("##")]
    assert len(inner) >= 2
    strange = [(0, inner[-1], 5.0), (0, inner[0], 3.0), (0, 1, 1.0)]
    judged = assessed(passage, strange)
    with_text = records(judged, passage, tokenizer(), [text])[0]
    without = records(judged, passage, tokenizer())[0]
    assert [(t.text, t.value) for t in with_text.tokens] == [("Zxqzzle", 5.0), ("He", 1.0)]
    # The tokenizer puts everything into lower case, and without the text that is all there is.
    assert [(t.text, t.value) for t in without.tokens] == [("zxqzzle", 5.0), ("he", 1.0)]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_moves_no_word(side):
    texts = ["Rain.", "Although the committee had read both reports, nobody could say why."]
    passage = passage_of(texts, side)
    pieces = tokenizer().convert_ids_to_tokens(passage.ids[0])
    judged = assessed(passage, [(0, pieces.index("rain"), 2.0)])
    for given in (texts, None):
        first, second = records(judged, passage, tokenizer(), given)
        assert [t.text.lower() for t in first.tokens] == ["rain"]
        assert second.tokens == ()
        assert (first.n, second.n) == (2, passage.counts[1])


def test_at_most_three_words_and_only_strange_ones():
    passage = passage_of(["one two three four five six seven eight nine ten"])
    judged = assessed(passage, [(0, place, place / 10) for place in range(1, 11)])
    assert [t.text for t in records(judged, passage, tokenizer())[0].tokens] == ["ten", "nine", "eight"]
    judged = assessed(passage, [(0, 1, 0.5), (0, 2, -3.0)])
    assert [t.text for t in records(judged, passage, tokenizer())[0].tokens] == ["one"]


def test_a_text_that_the_tokens_do_not_fit_falls_back_to_them():
    passage = passage_of(["The ferry leaves."])
    judged = assessed(passage, [(0, 2, 1.0)])
    assert records(judged, passage, tokenizer(), ["Another text altogether."])[0].tokens[0].text == "ferry"


def test_words_are_left_out_without_a_tokenizer_and_on_request():
    passage = passage_of(["The ferry leaves."])
    judged = assessed(passage, [(0, 2, 1.0)])
    assert records(judged, passage, None)[0].tokens == ()
    found = records(judged, passage, tokenizer(), ["The ferry leaves."])[0]
    assert "ferry" in json.dumps(found.to_dict())
    private = found.to_dict(words=False)
    assert "ferry" not in json.dumps(private)
    assert f"; {DETECTORS[PLACE].words}; " in private["reason"]
    assert private["p_value"] == 0.002


def test_words_of_another_detector_are_not_given_as_its_reason():
    """The pooled detector finds the text strangest, and does not look at single tokens."""
    passage = passage_of(["The ferry leaves."])
    found = records(assessed(passage, [(0, 2, 1.0)], by_term=(9.0, 5.0)), passage, tokenizer())[0]
    assert found.detector == POOLED
    assert f"; {DETECTORS[POOLED].words}; most unusual of its words: ‘ferry’; " in found.reason


def test_ordinary_texts_and_texts_at_no_depth():
    passage = passage_of(["The ferry leaves."])
    found = records(assessed(passage, p=0.404), passage, tokenizer())[0]
    assert found.reason == "ordinary: p = 0.41"
    assert not found.strange
    assert found.first_layer is None
    judged = assessed(passage)
    judged = replace(judged, p_by_depth=np.full_like(judged.p_by_depth, 0.3))
    found = records(judged, passage, tokenizer())[0]
    assert found.first_layer is None
    assert "no single depth" in found.reason


@pytest.mark.parametrize(
    ("p", "alpha", "strange", "words"),
    [
        (0.013, 0.01, False, ("unusual", "larger than 0.01;", "p = 0.013")),
        (0.0100001, 0.01, False, ("unusual", "larger than 0.01;", "p = 0.011")),
        (0.01, 0.01, True, ("p = 0.01:", "1 in 100")),
        (0.05, 0.01, False, ("unusual", "p = 0.05")),
        (0.0501, 0.01, False, ("ordinary", "p = 0.051")),
        (0.03, 0.05, True, ("p = 0.03:",)),
        (0.06, 0.05, False, ("ordinary", "p = 0.06")),
        (0.06, 0.1, True, ("p = 0.06:",)),
        (0.11, 0.1, False, ("ordinary", "p = 0.11")),
        (2e-4, 1e-4, False, ("unusual", "larger than 0.0001;", "p = 0.0002")),
    ],
)
def test_words_fit_the_number_at_every_level(p, alpha, strange, words):
    passage = passage_of(["The ferry leaves."])
    found = records(assessed(passage, p=p), passage, tokenizer(), alpha=alpha)[0]
    assert found.strange == strange
    assert all(word in found.reason for word in words), found.reason
    assert ("unusual," in found.reason) == (words[0] == "unusual")
    assert ("ordinary" in found.reason) == (words[0] == "ordinary")


def test_the_level_decides():
    passage = passage_of(["The ferry leaves."])
    judged = assessed(passage, p=0.03)
    assert records(judged, passage, tokenizer(), alpha=0.01)[0].first_layer is None
    found = records(judged, passage, tokenizer(), alpha=0.05)[0]
    assert (found.first_layer, found.strange) == (2, True)
    # p/2 is reached at depth 4; but the text as a whole is ordinary then, and an ordinary text begins nowhere.
    assert (judged.p_by_depth[0] <= 0.02).any()
    assert records(judged, passage, tokenizer(), alpha=0.02)[0].first_layer is None


def test_the_smallest_p_value_is_called_at_most():
    passage = passage_of(["The ferry leaves."])
    found = records(assessed(passage, p=0.0083, least=0.0083), passage, tokenizer())[0]
    assert found.reason.startswith("p is at most 0.0083: at most 9 in 1000 clean texts")


@pytest.mark.parametrize(
    ("p", "said"),
    [
        (0.002, "p = 0.002: at most 2 in 1000"),
        (0.00201, "p = 0.0021: at most 3 in 1000"),
        (0.01, "p = 0.01: at most 1 in 100"),
        (0.0091, "p = 0.0091: at most 10 in 1000"),
        (3.4e-5, "p = 0.000034: at most 4 in 100000"),
        (0.0999, "p = 0.1: at most 10 in 100"),
    ],
)
def test_p_values_are_rounded_up(p, said):
    passage = passage_of(["The ferry leaves."])
    found = records(assessed(passage, p=p, least=1e-9), passage, tokenizer(), alpha=0.2)[0]
    assert found.reason.startswith(said + " ")


def test_rejected_texts_have_a_record_with_the_reason():
    passage = passage_of(["The ferry leaves.", "", "[SEP] [PAD]"])
    judged = assessed(passage, [(0, 2, 1.0)])
    scored, empty, special = records(judged, passage, tokenizer(), ["The ferry leaves.", "", "[SEP] [PAD]"])
    assert scored.status == "scored"
    for found in (empty, special):
        assert (found.status, found.n, found.p_value) == ("rejected", 0, None)
        assert found.reason == "has no token of its own; give a text with a word in it"
        assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["p_value"] is None
    broken = replace(judged, usable=np.array([False, False, False]))
    assert "not finite" in records(broken, passage, tokenizer())[0].reason
    own = replace(Record.rejected("is not UTF-8"), line=7, id="x")
    assert (own.reason, own.to_dict()["line"], own.to_dict()["id"]) == ("is not UTF-8", 7, "x")


def test_long_and_unprintable_words_are_shown_on_one_line():
    text = "a" * 90 + " \x1b[31mred"
    passage = passage_of([text])
    judged = assessed(passage, [(0, place, 9.0 - place) for place in range(1, 4)])
    shown = [t.text for t in records(judged, passage, tokenizer(), [text])[0].tokens]
    assert max(map(len, shown)) <= 40
    assert all(word.isprintable() for word in shown)


def test_the_classifier_names_a_kind_and_unusual_lengths_are_named():
    passage = passage_of(["The ferry leaves at nine.", "Rain."])
    found = replace(assessed(passage), names=(POOLED, "exposure"), kinds=np.array([3.0, 0.0]), usual=(4, 30), tokens={})
    first, second = records(found, passage, tokenizer())
    kind = list(KINDS)[3]
    assert (first.detector, first.like, second.like) == ("exposure", kind, next(iter(KINDS)))
    assert kind in first.reason
    assert "almost all clean texts have" not in first.reason
    assert f"it has {second.n} token" in second.reason
    assert "almost all clean texts have 4 to 30" in second.reason
    other = records(replace(assessed(passage), usual=(4, 30)), passage, tokenizer())[0]
    assert other.like is None
    # A detector that is sure by itself goes before the classifier.
    sure = replace(found, by_term=np.array([[7.0, 50.0], [6.0, 50.0]]))
    assert [record.detector for record in records(sure, passage, tokenizer())] == [POOLED, "exposure"]


def test_a_word_is_quoted_once_and_unknown_tokens_are_not():
    passage = passage_of(["The zebra, the ZEBRA and a ferry."])
    pieces = tokenizer().convert_ids_to_tokens(passage.ids[0])
    zebras = [place for place, piece in enumerate(pieces) if piece.startswith("zebra")]
    values = [(0, place, 5.0 - i) for i, place in enumerate(zebras)] + [(0, pieces.index("ferry"), 1.0)]
    found = records(assessed(passage, values), passage, tokenizer())[0]
    assert [word.text for word in found.tokens] == ["zebra", "ferry"]
    unknown = passage.ids.clone()
    unknown[0, zebras[0]] = tokenizer().unk_token_id
    changed = replace(passage, ids=unknown)
    found = records(assessed(changed, values), changed, tokenizer())[0]
    assert "[UNK]" not in [word.text for word in found.tokens]
