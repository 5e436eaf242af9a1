"""Two checkpoints: equal ones do not differ at all, a planted change has its size, a change of basis is none."""

import copy
import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import metastable as ms
from metastable.encoder.anatomy import Anatomy
from metastable.encoder.compare import COLUMNS, matching_distance, noisy_copy
from metastable.encoder.exact_sums import ExactSums
from metastable.encoder.families import anatomy
from metastable.encoder.load import load
from metastable.errors import BadInput
from tests.conftest import WORDS
from tests.encoder import models
from tests.encoder.test_weights import D, K, dense, minilm, tiny  # noqa: F401

CHANGES = ["interaction_change", "value_change", "offset_change", "spectral_movement"]


def changed(model, layer, head, name, by):
    """A copy of the model with `by` added to one head's rows of a projection, or columns of the output."""
    other = copy.deepcopy(model)
    attention, place = other.encoder.layer[layer].attention, slice(head * K, (head + 1) * K)
    with torch.no_grad():
        if name == "output":
            attention.output.dense.weight[:, place] += by
        else:
            getattr(attention.self, name).weight[place] += by
    return other


def compare(before, after, *on_text):
    """The comparison of two models, or anatomies, with the statistics of their heads on text if there are any."""
    measured = [SimpleNamespace(heads=heads) for heads in on_text] or [None, None]
    anatomies = [model if isinstance(model, Anatomy) else anatomy(model) for model in (before, after)]
    return ms.compare(*(SimpleNamespace(anatomy=a, measured=m) for a, m in zip(anatomies, measured, strict=True)))


def noise(*shape):
    return 0.01 * torch.randn(*shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def relative(after, before):
    return np.linalg.norm(after - before) / np.linalg.norm(before)


def test_equal_checkpoints_do_not_differ_at_all(minilm):  # noqa: F811
    found = compare(minilm, copy.deepcopy(minilm))
    assert list(found.heads.columns) == list(COLUMNS)
    assert (found.heads[CHANGES].to_numpy() == 0).all()
    assert (found.heads["beta_before"] == found.heads["beta_after"]).all()
    assert not found.heads[["moved", "prediction_changed"]].any(axis=None)
    assert found.sentences()[0].startswith("no head moved beyond rounding")
    assert set(found.others.values()) == {0.0}
    assert found.heads["rank"].tolist() == list(range(1, 73))


@pytest.mark.parametrize(("name", "shape"), [("query", (K, D)), ("key", (K, D)), ("value", (K, D)), ("output", (D, K))])
def test_a_planted_change_comes_first_with_its_size(name, shape):
    model = tiny()
    other = changed(model, 1, 3, name, noise(*shape))
    found = compare(model, other)
    first = found.heads.iloc[0]
    assert (first["rank"], first["layer"], first["head"], first["moved"]) == (1, 1, 3, True)
    (B, _, V), (B2, _, V2) = dense(model, 1, 3), dense(other, 1, 3)
    assert first["interaction_change"] == pytest.approx(relative(B2, B), rel=1e-9, abs=0)
    assert first["value_change"] == pytest.approx(relative(V2, V), rel=1e-9, abs=0)
    assert first["beta_after"] == pytest.approx(D * np.linalg.norm(B2, 2), rel=1e-9)
    spectra = [np.linalg.eigvals(v @ (b / np.linalg.norm(b, 2)).T) for b, v in ((B, V), (B2, V2))]
    assert first["spectral_movement"] == pytest.approx(matching_distance(*spectra), rel=1e-4)
    assert first["spectral_movement"] > 1e-3
    rest = found.heads.iloc[1:]
    assert (rest[CHANGES].to_numpy() == 0).all()
    pattern, _, counts, first, *_ = found.sentences()
    assert pattern.startswith("B and V changed most in layer 1, by ")
    assert pattern.endswith("and not at all in layer 0")
    assert counts.startswith("1 of 8 heads moved beyond rounding")
    assert first.startswith("layer 1, head 3: B changed by")


def test_a_tiny_change_keeps_its_digits():
    model = tiny()
    by = 1e-12 * noise(K, D)
    found = compare(model, changed(model, 0, 1, "query", by)).heads.iloc[0]
    B, _, _ = dense(model, 0, 1)
    weights = model.encoder.layer[0].attention.self
    # What was stored is the weight and the change together, rounded.
    stored = (weights.query.weight[K : 2 * K] + by - weights.query.weight[K : 2 * K]).detach().numpy()
    C = np.eye(D) - 1 / D
    change = (stored @ C).T @ (weights.key.weight[K : 2 * K].detach().numpy() @ C) / math.sqrt(K)
    assert found["interaction_change"] == pytest.approx(np.linalg.norm(change) / np.linalg.norm(B), rel=1e-3)
    assert (found["layer"], found["head"]) == (0, 1)


def test_a_bias_moves_the_offset_only():
    model = tiny()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.encoder.layer[0].attention.self.query.bias[:K] = 0.3
    first = compare(model, other).heads.iloc[0]
    B, a, _ = dense(other, 0, 0)
    assert (first["layer"], first["head"], first["interaction_change"], first["value_change"]) == (0, 0, 0, 0)
    assert first["offset_change"] == pytest.approx(np.linalg.norm(a) / (math.sqrt(D) * np.linalg.norm(B, 2)))
    assert first["moved"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_another_basis_inside_every_head_is_no_change(dtype):
    model = tiny().to(dtype)
    other = copy.deepcopy(model)
    for layer, head in itertools.product(range(2), range(D // K)):
        R, S = (torch.linalg.qr(torch.randn(K, K, dtype=torch.float64)).Q.to(dtype) for _ in range(2))
        attention, place = other.encoder.layer[layer].attention, slice(head * K, (head + 1) * K)
        with torch.no_grad():
            for name, turn in {"query": R, "key": R, "value": S}.items():
                weight = getattr(attention.self, name).weight
                weight[place] = turn @ weight[place]
            attention.output.dense.weight[:, place] = attention.output.dense.weight[:, place] @ S.T
    found = compare(model, other)
    assert not found.heads["moved"].any()
    assert 0 < found.heads[CHANGES[:2]].to_numpy().max() < (1e-14 if dtype == torch.float64 else 4e-7)
    assert not found.heads["prediction_changed"].any()
    assert found.sentences()[0].startswith("no head moved beyond rounding")
    assert set(found.others.values()) == {0.0}


def test_a_changed_prediction_is_told():
    model = tiny()
    other = copy.deepcopy(model)
    # Values of the opposite sign: what attracted repels.
    with torch.no_grad():
        other.encoder.layer[0].attention.output.dense.weight *= -1
    found = compare(model, other)
    assert found.heads["moved"].tolist() == [True] * 4 + [False] * 4
    assert found.heads["value_change"][0] == pytest.approx(2, rel=1e-12)
    differ = found.heads["prediction_before"] != found.heads["prediction_after"]
    assert (found.heads["prediction_changed"] == differ).all()
    assert found.heads["prediction_changed"].any()
    assert any(f"changed for {differ.sum()}" in words for words in found.sentences())
    assert any("→ rotates" in words or "→ concentrates" in words for words in found.sentences()[1:])


def test_the_matching_is_the_best_of_all():
    draw = np.random.default_rng(1)
    a, b = (draw.normal(size=6) + 1j * draw.normal(size=6) for _ in range(2))
    best = min(np.linalg.norm(a - b[list(order)]) for order in itertools.permutations(range(6)))
    assert matching_distance(a, b) == pytest.approx(best / np.linalg.norm(a), rel=1e-12)
    assert matching_distance(a, draw.permutation(a)) == 0
    assert matching_distance(np.zeros(3), np.zeros(3)) == 0
    assert matching_distance(np.zeros(3), np.ones(3)) == math.inf


def statistics(changes, names=("energy", "entropy"), mean=0.5, error=0.01):
    """Statistics of 2 layers of 4 heads on two texts, with this mean and standard error but for some changes."""
    found = {}
    for name in names:
        means = np.full((2, 4), mean)
        for (layer, head, changed), value in changes.items():
            if changed == name:
                means[layer, head] = value
        found[name] = ExactSums((2, 4))
        found[name].add(np.stack([means - error, means + error]), [8, 8])
    return found


def test_behaviour_on_text_is_joined():
    model = tiny()
    before, after = statistics({}), statistics({(1, 2, "entropy"): 0.3, (0, 0, "energy"): 0.51}, error=0.02)
    found = compare(model, model, before, after)
    first = found.heads.iloc[0]
    assert (first["layer"], first["head"], found.compared) == (1, 2, 16)
    assert first["z_entropy"] == pytest.approx(-0.2 / math.hypot(0.01, 0.02), rel=1e-6)
    assert first["largest_z"] == pytest.approx(0.2 / math.hypot(0.01, 0.02), rel=1e-6)
    assert found.heads.iloc[1]["z_energy"] == pytest.approx(0.01 / math.hypot(0.01, 0.02), rel=1e-6)
    words = found.sentences()
    assert "on text, 1 of 8 heads behave differently" in words[1]
    assert len(words) == 3
    assert "entropy moved most, z = -8.94" in words[2]
    quiet = compare(model, model, before, before)
    assert quiet.sentences()[0].startswith("no head moved beyond rounding")
    assert "on text, no head behaves differently" in quiet.sentences()[-1]


def test_statistics_without_error_or_without_a_value():
    model = tiny()
    before = statistics({(0, 2, "x"): math.nan}, names=["x"], error=0.0)
    after = statistics({(0, 1, "x"): 2.0}, names=["x"], error=0.0)
    found = compare(model, model, before, after)
    z = found.heads.set_index(["layer", "head"])["z_x"]
    assert (z[0, 0], z[0, 1], found.compared) == (0, math.inf, 7)
    assert math.isnan(z[0, 2])
    assert (found.heads["layer"][0], found.heads["head"][0]) == (0, 1)
    assert all(len(words.splitlines()) == 1 for words in found.sentences())


def test_what_cannot_be_compared():
    model = tiny()
    with pytest.raises(BadInput, match="2 layers with 3"):
        compare(model, tiny(layers=3))
    other = anatomy(tiny())
    other = dataclasses.replace(other, family="roberta")
    with pytest.raises(BadInput, match="a bert encoder with a roberta encoder"):
        compare(anatomy(model), other)
    config = copy.deepcopy(model.config)
    config.num_attention_heads = 2
    with pytest.raises(BadInput, match="layer 0: cannot compare 4 heads of 6×24 with 2 heads of 12×24"):
        compare(model, type(model)(config))


@pytest.mark.parametrize(("size", "word"), [(0.004, "tiny"), (0.03, "small"), (0.1, "moderate"), (0.5, "large")])
def test_the_size_of_a_change_in_words(size, word):
    model = tiny()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for layer in other.encoder.layer:
            # B and V are linear in these weights, so both change by `size`.
            layer.attention.self.query.weight *= 1 + size
            layer.attention.self.value.weight *= 1 + size
    (pattern, *_) = compare(model, other).sentences()
    assert f"by {100 * size:.2g} % on average, a {word} change" in pattern


def test_noise_is_as_long_as_the_change_and_behaviour_is_measured_against_it(tokenizer):
    model = models.tiny("bert")
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.encoder.layer[1].attention.self.query.weight *= 30
    a, b = (load(each, tokenizer=tokenizer) for each in (model, other))
    noisy = noisy_copy(a, b)
    before, after, beside = (dict(each.model.state_dict()) for each in (a, b, noisy))
    for name, weight in before.items():
        assert float((beside[name] - weight).norm()) == pytest.approx(float((after[name] - weight).norm()), rel=1e-4)
    texts = [" ".join(WORDS[i : i + 9]) for i in range(30)]
    audits = [ms.audit(each, texts, beside_random=False) for each in (a, b, noisy)]
    found = ms.compare(*audits)
    ratios = []
    for name in audits[0].measured.heads:
        start, end, beside = (each.measured.heads[name].mean() for each in audits)
        ratios.append(math.sqrt(np.nanmean((end - start) ** 2) / np.nanmean((beside - start) ** 2)))
    assert found.against_noise == pytest.approx(np.median(ratios))
    assert 0 < found.against_noise < math.inf
    assert any("random changes of the weights of the same size" in words for words in found.sentences())
    assert ms.compare(*audits[:2]).against_noise is None
    assert ms.compare(audits[0], audits[0], audits[0]).against_noise is None


PARTS = {
    "embeddings": lambda model: [model.embeddings.word_embeddings.weight],
    "perceptrons": lambda model: [layer.intermediate.dense.weight for layer in model.encoder.layer],
    "normalisations": lambda model: [model.encoder.layer[-1].output.LayerNorm.weight],
    "other weights": lambda model: [model.encoder.layer[0].attention.self.value.bias],
}


@pytest.mark.parametrize("group", PARTS)
def test_weights_outside_of_the_heads(group, tokenizer):
    """One group of weights is changed, and the last normalisation enters no B and no V."""
    model = models.tiny("bert")
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in PARTS[group](other):
            weight += 0.5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    names = {
        "embeddings": lambda name: name.startswith("embeddings.") and "LayerNorm" not in name,
        "perceptrons": lambda name: "intermediate" in name or (".output.dense" in name and "attention" not in name),
        "normalisations": lambda name: "LayerNorm" in name,
        "other weights": lambda name: name.endswith(("key.bias", "value.bias", "attention.output.dense.bias")),
    }
    before, after = (
        torch.cat([w.detach().flatten() for name, w in each.named_parameters() if names[group](name)]).double()
        for each in (model, other)
    )
    found = compare(model, other)
    assert found.others[group] == pytest.approx(float((after - before).norm() / before.norm()), rel=1e-6)
    assert {name for name, change in found.others.items() if change} == {group}
    assert not found.heads["moved"].any()
    assert any(f"the {group} changed by" in words for words in found.sentences())
    texts = [" ".join(WORDS[i : i + 9]) for i in range(12)]
    audits = [ms.audit(each, texts, tokenizer=tokenizer, beside_random=False) for each in (model, other)]
    assert any("on text" in words for words in ms.compare(*audits).sentences())


def test_tables_of_other_shapes_are_not_compared():
    model = models.tiny("bert")
    other = copy.deepcopy(model)
    other.resize_token_embeddings(len(model.embeddings.word_embeddings.weight) + 3)
    found = compare(model, other)
    assert math.isnan(found.others["embeddings"])
    assert any("cannot be compared" in words for words in found.sentences())


def test_one_weight_of_a_large_table_is_a_change_and_rounding_is_none():
    model = models.tiny("bert")
    other, rounded = copy.deepcopy(model), copy.deepcopy(model)
    with torch.no_grad():
        other.embeddings.word_embeddings.weight[5, 3] *= 1.001
        for weight in rounded.parameters():
            weight *= 1 + torch.finfo(weight.dtype).eps
    assert compare(model, other).others["embeddings"] > 0
    assert set(compare(model, rounded).others.values()) == {0.0}


def test_weights_that_were_all_zero():
    model = models.tiny("bert")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("key.bias", "value.bias", "attention.output.dense.bias")):
                weight.zero_()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.encoder.layer[0].attention.self.value.bias[0] = 0.01
    found = compare(model, other)
    assert found.others["other weights"] == math.inf
    assert any("the other weights were all 0 and are not any more" in words for words in found.sentences())
