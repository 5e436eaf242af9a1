"""Measurements on every family of encoders, against the model's own attentions and hidden states."""

import math
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from metastable.encoder import families
from metastable.encoder import measure as measuring
from metastable.encoder.load import Encoder
from metastable.encoder.measure import Meter, measure
from metastable.encoder.texts import Batch
from metastable.errors import BadInput
from tests.encoder import models
from tests.encoder.measuring_reference import tangent


def small(case):
    """A random encoder of a family and one batch, its first and last tokens special."""
    model = models.tiny(case)
    given, mask = models.inputs(model)
    special = torch.zeros_like(mask)
    special[:, 0] = True
    special[torch.arange(len(mask)), mask.sum(dim=1) - 1] = True
    made = Encoder(case, model, models.tokenizer(), families.anatomy(model))
    return made, Batch(given, mask, special, torch.arange(len(mask)))


@cache
def measured(case):
    """The same, and what was measured on it."""
    made, batch = small(case)
    return made, batch, Meter(made).measure(batch)[:3]


@pytest.mark.parametrize("case", models.CASES)
def test_every_family_against_its_own_attentions(case):
    """Rotary and relative positions, sliding windows, shared layers: what a token sees is what the model says."""
    made, batch, (_, _, heads) = measured(case)
    with torch.no_grad():
        attentions = made.model(**batch.inputs, output_attentions=True).attentions
    for layer, text in product(range(len(made.anatomy.layers)), range(len(batch.mask))):
        n = int(batch.mask[text].sum())
        A = attentions[layer][text].double().numpy()
        for head in range(len(A)):
            rows = [A[head, i, :n][A[head, i, :n] > 0] for i in range(1, n - 1)]
            entropy = np.mean([-(a * np.log(a)).sum() / math.log(len(a)) for a in rows])
            gap = np.mean([(np.log(a).max() - np.log(a).mean()) / math.log(len(a)) for a in rows])
            share = np.mean([A[head, i, 0] + A[head, i, n - 1] for i in range(1, n - 1)])
            assert heads["entropy"][text, layer, head] == pytest.approx(entropy, rel=1e-3, abs=1e-5)
            assert heads["logit_gap"][text, layer, head] == pytest.approx(gap, rel=1e-3)
            assert heads["special_share"][text, layer, head] == pytest.approx(share, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("case", models.CASES)
def test_every_family_at_every_depth(case):
    """x from the model's own modules: what each layer's projections read, and the last hidden state."""
    made, batch, (depths, layers, _) = measured(case)
    with torch.no_grad():
        hidden = made.model(**batch.inputs).last_hidden_state
    final = made.anatomy.final
    z = ((hidden - (0 if final.bias is None else final.bias)) / final.weight).double()
    for text in range(len(batch.mask)):
        n = int(batch.mask[text].sum())
        unit = torch.nn.functional.normalize(z[text, 1 : n - 1], dim=-1).detach()
        total = float((unit @ unit.T).sum()) - (n - 2)
        expected = total / (n - 2) / (n - 3) if n > 3 else math.nan
        assert depths["mean_cosine"][text, -1] == pytest.approx(expected, abs=1e-4, nan_ok=True)
    assert depths["mean_cosine"].shape[1] == len(made.anatomy.layers) + 1
    assert np.isfinite(layers["update_length"]).all()
    assert (layers["update_length"] > 0).all()


def test_updates_in_a_pre_norm_layer_are_relative_to_the_stream():
    made, batch, (_, layers, _) = measured("modernbert-biased")
    model, streams, updates = made.model, [], []
    handles = []
    for block in model.layers:
        handles.append(block.register_forward_pre_hook(lambda _m, a: streams.append(a[0].double())))
        handles.append(block.attn.Wo.register_forward_hook(lambda _m, _i, o: updates.append(o.double())))
    with torch.no_grad():
        model(**batch.inputs)
    for handle in handles:
        handle.remove()
    for layer, text in product(range(3), range(len(batch.mask))):
        n = int(batch.mask[text].sum())
        h = streams[layer][text, 1 : n - 1].numpy()
        r = h - h.mean(axis=1, keepdims=True)
        if layer == 0:
            norm = model.embeddings.norm
            z = ((streams[0][text, 1 : n - 1] - norm.bias) / norm.weight).detach().numpy()
        else:
            z = r
        unit = z / np.linalg.norm(z, axis=1, keepdims=True)
        moved = tangent(updates[layer][text, 1 : n - 1].numpy(), unit)
        expected = (np.linalg.norm(moved, axis=1) / np.linalg.norm(r, axis=1)).mean()
        assert layers["update_length"][text, layer] == pytest.approx(expected, rel=1e-3)
        assert layers["residual"][text, layer] == pytest.approx(math.sqrt((r**2).mean()), rel=1e-4)


def test_a_head_whose_attention_leads_nowhere_has_no_eigenspace():
    made, batch = small("bert")
    layer = made.anatomy.layers[1]
    # With K = Q, V_h = Q and W_o = −Qᵀ, M = −(QᵀQ)²: every eigenvalue is at most 0.
    head, gain = 2, layer.norm.gain
    with torch.no_grad():
        layer.value.weight[head] = layer.query.weight[head]
        layer.output[head] = -(layer.query.weight[head] * gain).T
        layer.key.weight[head] = layer.query.weight[head]
    meter = Meter(made)
    _, _, heads, *_ = meter.measure(batch)
    empty = meter.empty()
    assert empty.dims[1, head] == 0
    assert not empty.applicable[1, head]
    assert np.isnan(empty.random_share[1, head])
    for name in ("share_in_E", "distance_before", "distance_after"):
        assert np.isnan(heads[name][:, 1, head]).all()
    assert np.isfinite(heads["entropy"][:, 1, head]).all()


def test_texts_are_cut_where_scores_come_only_all_at_once(monkeypatch):
    made, _ = small("mpnet")
    assert Meter(made).limit == 64
    monkeypatch.setattr(measuring, "SCORES", 4 * 20**2)
    assert Meter(made).limit == 20
    assert Meter(small("bert")[0]).limit == 64


def test_images_are_not_read_as_texts():
    made = Encoder("vit", models.tiny("vit"), None, families.anatomy(models.tiny("vit")), "it takes images")
    with pytest.raises(BadInput, match="takes images"):
        measure(made, models.TEXTS)
