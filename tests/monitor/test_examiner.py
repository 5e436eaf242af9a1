"""Examining passes of the real encoder: the assessment of a text depends on that text alone."""

import numpy as np
import pytest
import torch

from metastable.encoder.hooks import Reader
from metastable.errors import BadInput
from metastable.monitor.baseline import Baseline
from metastable.monitor.examiner import Examiner
from metastable.monitor.record import records
from tests.monitor.tables import table_of

STRANGE = "der Hund läuft über die Straße und bellt, weil er Hunger hat und niemand zu Hause ist"
NUMBERS = ("score", "p_marginal", "p_value", "by_term", "p_by_depth")


def assess(encoder, baseline, setting, texts, side="right"):
    """The passage of one pass over all texts, and its assessment."""
    own, found = Examiner(baseline, setting, encoder), []

    def open(passage):
        return own.open(passage, lambda *result: found.append(result))

    read = encoder.tokenizer
    before, read.padding_side = read.padding_side, side
    try:
        batch = dict(read(texts, padding=True, return_tensors="pt"))
    finally:
        read.padding_side = before
    # The model counts positions from the left end of the row, padding included, unless it is told them.
    batch["position_ids"] = (batch["attention_mask"].cumsum(dim=1) - 1).clamp_min(0)
    with Reader(encoder.model, encoder.anatomy, baseline.special, own.depths, open):
        encoder.run(batch)
    ((passage, assessment),) = found
    return passage, assessment


@pytest.mark.parametrize(("setting", "depths"), [("light", {0, 2, 3, 4, 6}), ("full", {0, 2, 3, 4, 6})])
def test_only_the_wanted_depths_are_read(encoder, baseline, setting, depths):
    assert Examiner(baseline, setting, encoder).depths == depths


@pytest.mark.parametrize("setting", ["light", "full"])
def test_scores_are_those_of_the_whole_columns(encoder, baseline, held_texts, setting):
    """An examiner visits its own depths only; the columns with all depths visited give the same scores."""
    texts = held_texts[:24]
    _, judged = assess(encoder, baseline, setting, texts)
    scorer = baseline.settings[setting]
    scores = scorer.scale(table_of(encoder, baseline, texts))
    # Other batches, so other rounding.
    np.testing.assert_allclose(judged.score, scores.total, rtol=1e-3, atol=1e-3)
    expected = 1 + (scorer.calibration.scores[:, None] >= judged.score).sum(axis=0)
    np.testing.assert_array_equal(np.rint(judged.p_marginal * (scorer.texts + 1)), expected)


@pytest.mark.parametrize("setting", ["light", "full"])
def test_a_text_is_judged_alone(encoder, baseline, held_texts, setting):
    texts = [held_texts[0], "", *held_texts[1:9], STRANGE]
    _, together = assess(encoder, baseline, setting, texts)
    _, left = assess(encoder, baseline, setting, texts, side="left")
    assert together.usable.tolist() == left.usable.tolist() == [bool(text) for text in texts]
    for i in (0, 2, 10):
        _, alone = assess(encoder, baseline, setting, [texts[i]])
        for name in ("score", "by_term"):
            np.testing.assert_allclose(getattr(together, name)[i], getattr(alone, name)[0], rtol=2e-3, atol=2e-3)
            np.testing.assert_allclose(getattr(left, name)[i], getattr(alone, name)[0], rtol=2e-3, atol=2e-3)
    # The control: another text has another score.
    assert abs(together.score[0] - together.score[2]) > 0.01


@pytest.mark.parametrize("setting", ["light", "full"])
def test_another_language_is_strange_from_the_first_depth(encoder, baseline, setting):
    passage, judged = assess(encoder, baseline, setting, [STRANGE])
    assert judged.p_value[0] == judged.least <= 0.01
    found = records(judged, passage, encoder.tokenizer, [STRANGE])[0]
    assert found.strange
    assert found.first_layer == 0
    assert len(found.tokens) == 3
    assert all(token.text in STRANGE and token.value > 0 for token in found.tokens)
    assert found.detector in baseline.settings[setting].setting.terms


def test_clean_texts_are_ordinary(encoder, baseline, held_texts):
    """Of 100 clean texts at most 2 % and chance are strange at 0.01; p ≤ 0.01 has probability 0.01 at most."""
    strange = 0
    for first in range(0, 96, 32):
        _, judged = assess(encoder, baseline, "light", held_texts[first : first + 32])
        strange += int((judged.p_value <= 0.01).sum())
    # P(Binomial(96, 0.01) > 8) is 4e-7.
    assert strange <= 8


def test_a_saved_baseline_judges_bit_for_bit_alike(encoder, baseline, held_texts, tmp_path):
    baseline.save(tmp_path / "again")
    again = Baseline.load(tmp_path / "again")
    again.check(encoder)
    for setting in ("light", "full"):
        _, first = assess(encoder, baseline, setting, held_texts[:16])
        _, second = assess(encoder, again, setting, held_texts[:16])
        for name in NUMBERS:
            assert np.array_equal(getattr(first, name), getattr(second, name))
        for name in first.tokens:
            assert torch.equal(first.tokens[name], second.tokens[name])


def test_a_baseline_that_has_not_seen_its_encoder_has_no_detectors(encoder, baseline_folder):
    new = Baseline.load(baseline_folder)
    with pytest.raises(BadInput, match="check"):
        new.detectors  # noqa: B018
    with pytest.raises(BadInput, match="setting is 'heavy'; choose one of light, full"):
        Examiner(new, "heavy", encoder)
    Examiner(new, "light", encoder)
    assert "place-surprise" in new.detectors


def test_records_of_texts_leave_no_trace(encoder, baseline, held_texts):
    """Twice the same records, and no hook, mode or tokenizer of the encoder is changed."""
    examiner = Examiner(baseline, "light", encoder)
    encoder.model.train()
    try:
        first = examiner.records(held_texts[:3])
        assert encoder.model.training
    finally:
        encoder.model.eval()
    assert first == examiner.records(held_texts[:3])
    assert {record.log_e for record in first} == {None}
