"""The ladder against literal loops over tokens, its last rung against the layer itself, and its words."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import metastable as ms
from metastable.encoder.anatomy import Norm
from metastable.encoder.fold import fold
from metastable.encoder.ladder import ONE_HEAD, OTHER, RUNGS, Ladder, ladder, measured
from metastable.encoder.load import load
from metastable.encoder.texts import batches
from tests.conftest import WORDS
from tests.encoder.models import tiny

TEXTS = [" ".join(WORDS[(7 * i) % 60 : (7 * i) % 60 + 5 + i % 6]) for i in range(12)]
CASES = ["bert", "distilbert", "albert", "mpnet", "deberta-v2", "electra-mapped", "modernbert-biased", "roberta"]


def made(case, tokenizer, **changes):
    encoder = load(tiny(case, **changes), tokenizer=tokenizer).private()
    with torch.no_grad():
        # Random weights are small: larger ones make updates that rungs can miss.
        for layer in encoder.anatomy.blocks:
            for linear in layer.maps:
                linear.weight.mul_(6)
    return encoder


@pytest.mark.parametrize("case", CASES)
def test_the_last_rung_is_the_layer(case, tokenizer):
    encoder = made(case, tokenizer)
    for batch in batches(tokenizer, TEXTS, 32, 5):
        for layer in measured(encoder, batch):
            share = layer["share"][:, len(RUNGS) - 1]
            assert share == pytest.approx(np.ones(len(share)), abs=1e-5)
            assert layer["cosine"][:, len(RUNGS) - 1] == pytest.approx(np.ones(len(share)), abs=1e-5)


def unit(x):
    return x / x.norm()


def by_loops(encoder, batch, place, text):
    """Shares of the rungs of the first head, of all heads and of other texts, for one text, token by token."""
    hidden = []
    encoder.model.config.output_hidden_states = True
    with torch.inference_mode():
        found = encoder.model(**batch.inputs, output_hidden_states=True).hidden_states
    hidden = [state.double() for state in found]
    layer = encoder.anatomy.layers[place]
    norms = [Norm.of(site.module) for site in encoder.anatomy.sites]
    heads = [fold(layer, h) for h in range(layer.heads)]
    d = layer.width

    def z_of(depth, t):
        norm = norms[depth]
        return (hidden[depth][t][batch.mask[t]] - norm.offset.double()) / norm.gain.double()

    z, after, other = z_of(place, text), z_of(place + 1, text), z_of(place, (text - 1) % len(batch.mask))
    special = batch.special[text][batch.mask[text]]
    ordinary = [i for i in range(len(z)) if not special[i]]
    sums = {name: [0.0, 0.0] for name in (*RUNGS[:5], OTHER)}
    for i in ordinary:
        x = hidden[place][text][batch.mask[text]][i]
        rho = (x - x.mean()).square().mean().sqrt()
        start, real = unit(z[i]), unit(after[i])
        deltas = {name: torch.zeros(d, dtype=torch.float64) for name in (*RUNGS[:5], OTHER)}
        for h, head in enumerate(heads):
            out = head.output - head.output.mean(dim=0, keepdim=True)
            aim = head.key.T @ (head.query @ z[i])
            scores = head.scale * torch.stack([(head.query @ z[i]) @ (head.key @ z[j]) for j in range(len(z))])
            some = scores[ordinary]
            point = math.sqrt(d) * unit(aim)
            values = torch.stack([head.value @ z[j] for j in range(len(z))])
            elsewhere = head.scale * torch.stack([(head.query @ z[i]) @ (head.key @ y) for y in other])
            if h == 0:
                deltas["sphere"] = out @ (head.value @ point)
                deltas["best token"] = out @ values[ordinary[int(some.argmax())]]
                deltas["temperature"] = out @ (some.softmax(0) @ values[ordinary])
                deltas["special tokens"] = out @ (scores.softmax(0) @ values)
            deltas["all heads"] += out @ (scores.softmax(0) @ values)
            deltas[OTHER] += out @ (elsewhere.softmax(0) @ torch.stack([head.value @ y for y in other]))
        for name, delta in deltas.items():
            guess = unit(math.sqrt(d) * start + delta / rho) - start
            sums[name][0] += float((real - start - guess).square().sum())
            sums[name][1] += float((real - start).square().sum())
    return {name: 1 - missed / whole for name, (missed, whole) in sums.items()}


@pytest.mark.parametrize("case", ["bert", "roberta"])
def test_rungs_against_loops_over_tokens(case, tokenizer):
    encoder = made(case, tokenizer)
    batch = next(batches(tokenizer, TEXTS, 32, 4))
    for place, layer in enumerate(measured(encoder, batch)):
        for text in (0, 3):
            expected = by_loops(encoder, batch, place, text)
            for number, rung in enumerate(RUNGS[:ONE_HEAD]):
                assert layer["head_share"][text, number, 0] == pytest.approx(expected[rung], abs=2e-4), rung
            assert layer["share"][text, RUNGS.index("all heads")] == pytest.approx(expected["all heads"], abs=2e-4)
            assert layer["share"][text, len(RUNGS)] == pytest.approx(expected[OTHER], abs=2e-4)


def test_a_layer_that_is_one_head_and_nothing_else_is_predicted_by_attention(tokenizer):
    """Negative control: without perceptron and biases, and with plain normalisations, all heads predict the layer."""
    encoder = made("bert", tokenizer)
    with torch.no_grad():
        for block in encoder.anatomy.blocks:
            block.outer.weight.zero_()
            block.outer.bias.zero_()
            for linear in (*block.linears, block.output):
                linear.bias.zero_()
        for name, weight in encoder.model.named_parameters():
            if "LayerNorm" in name:
                weight.fill_(1.0 if name.endswith("weight") else 0.0)
    found = ladder(encoder, TEXTS)
    share = found.wide()
    assert (share["all heads"] > 0.999).all()
    assert (share["perceptron"] > 0.999).all()
    assert (share["special tokens"] < 0.9).any()
    assert found.breaks in RUNGS[:ONE_HEAD]


def test_the_half_that_chooses_the_head_is_not_the_half_that_is_told(tokenizer):
    encoder = made("bert", tokenizer)
    found = ladder(encoder, TEXTS, batch_size=12)
    (batch,) = batches(tokenizer, TEXTS, 32, 12)
    for place, layer in enumerate(measured(encoder, batch)):
        shares = layer["head_share"][:, ONE_HEAD - 1]
        head = int(shares[:6].mean(axis=0).argmax())
        rows = found.rungs[found.rungs["layer"] == place].set_index("rung")
        assert rows.loc["special tokens", "head"] == head
        assert rows.loc["special tokens", "share"] == pytest.approx(shares[6:, head].mean())
        assert rows.loc["all heads", "share"] == pytest.approx(layer["share"][6:, ONE_HEAD].mean())


def test_a_text_alone_in_its_batch_has_no_other_text_and_copies_do_not_count(tokenizer):
    encoder = made("bert", tokenizer)
    alone = ladder(encoder, TEXTS, batch_size=1).wide()
    assert alone[OTHER].isna().all()
    assert np.isfinite(alone["all heads"]).all()
    assert ladder(encoder, [TEXTS[0]] * 12) is None


def planted(of_next, share=0.1):
    rows = [
        {"layer": layer, "rung": rung, "head": 0.0, "share": share, "of_next": of_next.get(rung, 0.9), "cosine": 0.5}
        for layer in range(4)
        for rung in (*RUNGS, OTHER)
    ]
    return Ladder(pd.DataFrame(rows), 10)


def test_the_first_rung_that_fails_is_named():
    assert planted({}).breaks is None
    assert "every rung" in planted({}).sentences()[0]
    found = planted({"temperature": 0.2, "all heads": -1.0})
    assert found.breaks == "temperature"
    assert "the step 'temperature' predicts too little first, in 4 of 4 layers: special tokens" in found.sentences()[0]


def test_the_ladder_is_part_of_an_audit(tokenizer, tmp_path):
    texts = [" ".join(WORDS[i : i + 9]) for i in range(40)]
    audit = ms.audit(tiny("bert"), texts, tokenizer=tokenizer)
    assert len(audit.ladder.wide()) == 3
    assert audit.ladder.texts == 8
    assert audit.twin.ladder is not None
    assert ((audit.ladder.rungs["share_low"] <= audit.ladder.rungs["share"]) | audit.ladder.rungs["share"].isna()).all()
    audit.save(tmp_path)
    again = ms.Audit.load(tmp_path)
    pd.testing.assert_frame_equal(again.ladder.rungs, audit.ladder.rungs, check_dtype=False)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "What breaks the theory" in page
    assert ms.audit(tiny("bert"), texts[:2], tokenizer=tokenizer).ladder is None
    assert ms.audit(tiny("bert")).ladder is None
