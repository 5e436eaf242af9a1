"""What holds for every detector, whatever it measures."""

import math

import numpy as np
import pytest
import torch

from metastable.errors import BadInput
from metastable.monitor import detectors
from metastable.monitor.detectors.base import Taught
from tests.monitor.detectors import harness
from tests.monitor.detectors.harness import DETECTORS, Captured

NAMES = tuple(detectors.DETECTORS)
TAUGHT = tuple(name for name, kind in detectors.DETECTORS.items() if issubclass(kind, Taught))
FITTED = tuple(name for name, kind in detectors.DETECTORS.items() if kind.stages or name in TAUGHT)
OF_TOKENS = ("token-mahalanobis", "place-surprise", "unigram-rarity")
MIXED = (
    "Rain.",
    "The committee had read both reports and could not say why the bridge over the river had been closed.",
    "unbelievably, qwxz zzyq",
    "Nobody [SEP] here remembers [MASK] it.",
    "My neighbour will not sell both houses by the river.",
)


def close(name, found, expected):
    """Within 1e-5 of each number, or of a hundredth of its column's largest: differences have no scale of their own.

    Cosines, energies and entropies have one, from 0 to 1; some heads' entropies are 1e-4, with float32's 1e-7 in them.
    """
    least = 0.01 * expected.abs().amax(dim=0, keepdim=True)
    least = torch.ones_like(least) if name in ("concentration", "attention-entropy") else least
    return ((found - expected).abs() <= 1e-5 * torch.maximum(expected.abs(), least)).all()


@pytest.mark.parametrize("name", NAMES)
def test_shapes(name):
    inputs = harness.real_texts(harness.minilm(), MIXED)
    detector = harness.fitted(name)
    values = harness.score(harness.minilm(), detector, inputs)
    assert detector.name == name
    assert values.columns.shape == (len(MIXED), len(detector.columns))
    assert values.columns.dtype == torch.float64
    assert len(set(detector.columns)) == len(detector.columns)
    assert {c.depth for c in detector.columns} <= {None, *range(7)}
    assert (values.tokens is not None) == (name in OF_TOKENS)


def test_names_and_depths():
    everywhere = tuple(range(7))
    expected = {
        "token-mahalanobis": ((0, 2, 4, 6), 8),
        "place-surprise": ((2, 3), 4),
        "pooled-mahalanobis": (everywhere, 7),
        "nearest-texts": ((6,), 1),
        "concentration": (everywhere, 6 * 7 + 6),
        "attention-entropy": ((3,), 2 * 12),
        "spoilt-probe": ((2, 3), 11),
    }
    found = {name: harness.fitted(name) for name in NAMES}
    assert {name: (detector.depths, len(detector.columns)) for name, detector in found.items()} == expected


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_scores_the_same_bit_by_bit(name):
    encoder, detector = harness.minilm(), harness.fitted(name)
    arrays = detector.to_arrays()
    # As if read from a file: other memory, read-only.
    saved = {key: np.frombuffer(a.tobytes(), dtype=a.dtype).reshape(a.shape) for key, a in arrays.items()}
    again = DETECTORS[name](encoder)
    again.restore(saved)
    inputs = harness.real_texts(encoder, MIXED)
    found, expected = (harness.score(encoder, d, inputs) for d in (again, detector))
    assert torch.equal(found.columns, expected.columns)
    assert (found.tokens is None and expected.tokens is None) or torch.equal(found.tokens, expected.tokens)
    assert {key: a.tobytes() for key, a in again.to_arrays().items()} == {k: a.tobytes() for k, a in arrays.items()}


@pytest.mark.parametrize("name", FITTED)
def test_damaged_arrays_are_refused_and_blank_detectors_do_not_score(name):
    encoder, arrays = harness.minilm(), harness.fitted(name).to_arrays()
    first = next(iter(arrays))
    wrong = {
        "holds no": {key: a for key, a in arrays.items() if key != first},
        "shape": arrays | {first: arrays[first][..., :-1]},
        "not finite": arrays | {first: np.full_like(arrays[first], np.nan)},
    }
    for words, damaged in wrong.items():
        with pytest.raises(BadInput, match=words):
            DETECTORS[name](encoder).restore(damaged)
    with pytest.raises(BadInput, match="is not fitted"):
        harness.score(encoder, DETECTORS[name](encoder), harness.real_texts(encoder, MIXED))


@pytest.mark.parametrize("name", NAMES)
def test_scores_do_not_depend_on_the_batch(name):
    """Each text alone, and among others longer or shorter than itself: real passes of the real encoder."""
    encoder, detector = harness.minilm(), harness.fitted(name)
    texts = (*MIXED, *harness.CLEAN[3:120:9])
    together = harness.score(encoder, detector, harness.real_texts(encoder, texts))
    alone = [harness.score(encoder, detector, harness.real_texts(encoder, [text])) for text in texts]
    assert close(name, together.columns, torch.cat([values.columns for values in alone]))
    if together.tokens is not None:
        for row, values in enumerate(alone):
            n = values.tokens.shape[1]
            torch.testing.assert_close(together.tokens[row, :n], values.tokens[0], rtol=1e-4, atol=1e-4)
            assert (together.tokens[row, n:] == 0).all()


@pytest.mark.parametrize("garbage", [0.0, 1e30, math.inf, math.nan])
@pytest.mark.parametrize("name", NAMES)
def test_padding_on_either_side_with_anything_in_it(name, garbage):
    """The same tokens with padding to the right, to the left, on both sides: only their places differ."""
    encoder, detector = harness.minilm(), harness.fitted(name)
    captured = Captured.of(encoder, harness.real_texts(encoder, MIXED))
    expected = captured.score(detector)
    lengths = captured.passage.mask.sum(dim=1).tolist()
    wide = max(lengths) + 5
    for start in (lambda n: 0, lambda n: wide - n, lambda n: (wide - n) // 2):
        columns = torch.full((len(lengths), wide), -1)
        for row, n in enumerate(lengths):
            columns[row, start(n) : start(n) + n] = torch.arange(n)
        found = captured.placed(torch.arange(len(lengths)), columns, garbage).score(detector)
        assert torch.isfinite(found.columns).all()
        assert close(name, found.columns, expected.columns)
        if found.tokens is not None:
            for row, n in enumerate(lengths):
                own = found.tokens[row, start(n) : start(n) + n]
                torch.testing.assert_close(own, expected.tokens[row, :n], rtol=1e-4, atol=1e-4)
            assert (found.tokens[columns < 0] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_tokens_themselves_matter(name):
    """The negative control of the two tests above: another token in a text changes its numbers, and no other text's."""
    encoder, detector = harness.minilm(), harness.fitted(name)
    inputs = harness.real_texts(encoder, MIXED)
    before = harness.score(encoder, detector, inputs)
    inputs["input_ids"][1, 4] = 2000
    inputs["input_ids"][1, 5] = inputs["input_ids"][1, 6] = 101
    after = harness.score(encoder, detector, inputs)
    changed = ~torch.isclose(before.columns, after.columns, rtol=1e-5, atol=0).all(dim=1)
    assert changed.tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("case", ["bert", "albert", "modernbert", "deberta-v2"])
@pytest.mark.parametrize("name", NAMES)
def test_texts_with_few_tokens_or_none_have_finite_columns(name, case):
    encoder, detector = harness.small(case), harness.fitted_small(name, case)
    inputs = harness.random_texts(encoder, (0, 1, 2, 3, 9), seed=50)
    values = harness.score(encoder, detector, inputs)
    assert torch.isfinite(values.columns).all()
    assert (values.columns[0] == 0).all()
    # One token by itself, nothing special around it and nothing after it.
    bare = {"input_ids": torch.tensor([[7]]), "attention_mask": torch.tensor([[1]])}
    assert torch.isfinite(harness.score(encoder, detector, bare).columns).all()
    nothing = {"input_ids": torch.tensor([[harness.CLS, harness.SEP]])}
    assert (harness.score(encoder, detector, nothing).columns == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_no_mode_of_torch_matters(name):
    encoder, detector = harness.minilm(), harness.fitted(name)
    inputs = harness.real_texts(encoder, MIXED)
    expected = harness.score(encoder, detector, inputs)
    for mode in (torch.inference_mode, torch.enable_grad):
        captured = Captured.of(encoder, inputs)
        with mode():
            assert torch.equal(captured.score(detector).columns, expected.columns)


@pytest.mark.parametrize("name", NAMES)
def test_depths_may_be_left_out(name):
    """Their columns are 0, and the others are as they were; statistics of layers need both sides of the layer."""
    encoder, detector = harness.minilm(), harness.fitted(name)
    inputs = harness.real_texts(encoder, MIXED)
    expected = harness.score(encoder, detector, inputs).columns
    if detector.depths:
        assert (harness.score(encoder, detector, inputs, ()).columns == 0).all()
    if name in ("token-mahalanobis", "place-surprise", "pooled-mahalanobis"):
        some = detector.depths[:1]
        found = harness.score(encoder, detector, inputs, some).columns
        inside = torch.tensor([column.depth in some for column in detector.columns])
        assert torch.equal(found[:, inside], expected[:, inside])
        assert (found[:, ~inside] == 0).all()


@pytest.mark.parametrize("name", FITTED)
def test_only_passes_that_come_to_their_end_are_learned_from(name):
    encoder = harness.small()
    batches = [harness.random_texts(encoder, range(1, 12), seed) for seed in range(4)]
    expected = harness.learn(encoder, DETECTORS[name](encoder), batches).to_arrays()
    detector = DETECTORS[name](encoder)
    broken = Captured.of(encoder, harness.random_texts(encoder, (5, 6), seed=99))
    for stage in range(detector.stages) or [0]:
        watch = detector.learn(stage, broken.passage)
        for depth in broken.depths:
            if depth.index in detector.depths:
                watch.visit(depth)
        if name in TAUGHT:
            harness.teach(encoder, detector, batches)
        else:
            harness.learn_stage(encoder, detector, stage, batches)
    found = detector.to_arrays()
    assert all((found[key] == expected[key]).all() for key in expected)


@pytest.mark.parametrize("name", FITTED)
def test_nothing_learned_is_said_in_one_line(name):
    encoder = harness.small()
    with pytest.raises(BadInput, match="learned from"):
        harness.learn(encoder, DETECTORS[name](encoder), [harness.random_texts(encoder, (0, 0), seed=0)])


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(FITTED)))
def test_detectors_without_stages_learn_nothing(name):
    detector = harness.fitted(name)
    assert detector.to_arrays() == {}
    for call in (lambda: detector.learn(0, None), lambda: detector.settle(0)):
        with pytest.raises(RuntimeError, match="nothing to learn"):
            call()
