"""Layers and heads on text, against loops over the model's own attentions, hidden states and raw weights in float64."""

import json
import math
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pandas as pd
import pytest
import scipy.linalg
import torch
from scipy.stats import t as student
from transformers import AutoModel

from metastable.encoder import measure as measuring_heads
from metastable.encoder.anatomy import Norm
from metastable.encoder.fold import fold
from metastable.encoder.hooks import DepthTokens
from metastable.encoder.load import load
from metastable.encoder.measure import HEADS, Measurements, Meter, Prediction, measure
from metastable.encoder.statistics import CLOUD
from metastable.encoder.texts import Batch, batches
from metastable.errors import BadInput
from metastable.head import Head
from tests.encoder import models
from tests.encoder.measuring_reference import tangent, transported

SENTENCES = [
    "The ferry to the island leaves at noon.",
    "Rain.",
    "Although the committee had read both reports, nobody could say why the bridge over the river had been closed.",
    "Dogs bark at night, and the neighbours complain about it every single morning of the week.",
    "本 <b>bold</b> мир, e = mc².",
]
CHOSEN = list(product((0, 4), (1, 5, 8, 10)))
"""The heads, as (layer, head), that are compared with dense eigenvalues of M, which are slow to compute."""


@cache
def minilm(dtype=torch.float32):
    return AutoModel.from_pretrained(models.minilm(), attn_implementation="eager", local_files_only=True).to(dtype)


@cache
def encoder():
    return load(models.minilm())


@cache
def small():
    """An encoder of three layers of four heads, for what does not depend on trained weights."""
    return load(models.tiny("bert", vocab_size=30522), tokenizer=models.tokenizer())


@cache
def meter(special="exclude", of=encoder):
    return Meter(of(), special)


def per_text(texts, special="exclude", of=encoder):
    """{name: (texts, …)} of depths, layers and heads, in the order of the texts."""
    groups, order = [], []
    for batch in batches(models.tokenizer(), texts, 512, 32):
        groups.append(meter(special, of).measure(batch)[:3])
        order += batch.numbers.tolist()
    back = np.argsort(order)
    return [{k: np.concatenate([g[i][k] for g in groups])[back] for k in groups[0][i]} for i in range(3)]


@dataclass
class Slow:
    """One text in the eager model in float64: x, z and x̂ at each depth, attention and update of each layer."""

    text: str

    def __post_init__(self):
        model = minilm(torch.float64).eval()
        blocks = model.encoder.layer
        updates = []
        handles = [
            b.attention.output.dense.register_forward_hook(lambda _m, _i, o: updates.append(o[0])) for b in blocks
        ]
        ids = models.tokenizer()(self.text, return_tensors="pt")
        with torch.no_grad():
            out = model(**ids, output_attentions=True, output_hidden_states=True)
        for handle in handles:
            handle.remove()
        norms = [model.embeddings.LayerNorm, *(b.output.LayerNorm for b in blocks)]
        self.x = [h[0].numpy() for h in out.hidden_states]
        self.z = [(x - n.bias.detach().numpy()) / n.weight.detach().numpy() for x, n in zip(self.x, norms, strict=True)]
        # Three gains of the last normalisation are 1e-9 and less: nobody sees these features.
        for z, norm in zip(self.z, norms, strict=True):
            z[:, abs(norm.weight.detach().numpy()) < 1e-6] = 0.0
        self.unit = [z / np.linalg.norm(z, axis=1, keepdims=True) for z in self.z]
        self.attention = [a[0].numpy() for a in out.attentions]
        self.update = [u.numpy() for u in updates]
        self.n = len(self.x[0])
        # [CLS] first, [SEP] last.
        self.ordinary = list(range(1, self.n - 1))


@cache
def slow(text):
    return Slow(text)


@dataclass
class Dense:
    """One head of MiniLM from its raw weights: B, a, V and the dominant eigenspace of M, all d×d."""

    layer: int
    head: int

    def __post_init__(self):
        model = minilm(torch.float64)
        block = model.encoder.layer[self.layer]
        norm = model.encoder.layer[self.layer - 1].output.LayerNorm if self.layer else model.embeddings.LayerNorm
        rows = slice(32 * self.head, 32 * (self.head + 1))
        raw = {k: v.detach().numpy() for k, v in block.state_dict().items()}
        own = "attention.self."
        Wq, Wk, Wv = (raw[f"{own}{n}.weight"][rows] for n in ("query", "key", "value"))
        self.Wo, bq = raw["attention.output.dense.weight"][:, rows], raw[f"{own}query.bias"][rows]
        gain, offset = norm.weight.detach().numpy(), norm.bias.detach().numpy()
        C = np.eye(384) - 1 / 384
        fold = np.diag(gain) @ C
        K, Q = Wk @ fold, Wq @ fold
        self.Bt = K.T @ Q / math.sqrt(32)
        self.a = K.T @ (Wq @ offset + bq) / math.sqrt(32)
        self.value = lambda x: x @ Wv.T + raw[f"{own}value.bias"][rows]
        self.V = C @ self.Wo @ Wv @ fold
        # The squares of the singular values of KᵀQ are the eigenvalues of (KKᵀ)(QQᵀ).
        self.beta = 384 * math.sqrt(np.linalg.eigvals((K @ K.T) @ (Q @ Q.T)).real.max() / 32)

    def eigenspace(self):
        """Orthonormal basis of E and, for a real λ₁, the left eigenvector scaled so that ΛE = 1."""
        values, left, right = scipy.linalg.eig(self.V @ self.Bt, left=True)
        first = values.real.argmax()
        if abs(values[first].imag) > 1e-9 * abs(values).max():
            return np.linalg.qr(np.stack([right[:, first].real, right[:, first].imag], axis=1))[0], None
        e, co = right[:, first].real, left[:, first].real
        return e[:, None], co / (co @ e)


@cache
def dense(layer, head):
    one = Dense(layer, head)
    return one, *one.eigenspace()


@cache
def median_betas():
    return [np.median([Dense(layer, head).beta for head in range(12)]) for layer in range(6)]


@cache
def measured_sentences():
    return per_text(SENTENCES)


@pytest.mark.parametrize("number", range(len(SENTENCES)))
def test_the_cloud_at_each_depth(number):
    depths, _, _ = measured_sentences()
    text = slow(SENTENCES[number])
    for depth in range(7):
        x, m = text.unit[depth][text.ordinary], len(text.ordinary)
        cosines = [x[i] @ x[j] for i in range(m) for j in range(m) if i != j]
        shares = np.linalg.eigvalsh(sum(np.outer(v, v) for v in x) / m)
        shares = shares[shares > 1e-14]
        beta = median_betas()[min(depth, 5)]
        energy = math.log(np.mean([math.exp(beta * (x[i] @ x[j] - 1)) for i in range(m) for j in range(m)])) / beta
        expected = {
            "mean_cosine": np.mean(cosines),
            "mean_square_cosine": np.mean(np.square(cosines)),
            "effective_rank": math.exp(-(shares * np.log(shares)).sum()),
            "dispersion": 1 - np.linalg.norm(x.mean(axis=0)) ** 2,
            "energy": energy,
        }
        assert set(expected) == set(CLOUD)
        for name, value in expected.items():
            assert depths[name][number, depth] == pytest.approx(value, rel=1e-4, abs=2e-6), (name, depth)


@pytest.mark.parametrize("number", range(len(SENTENCES)))
def test_the_layers_update(number):
    _, layers, _ = measured_sentences()
    text = slow(SENTENCES[number])
    for layer in range(6):
        r = text.x[layer] - text.x[layer].mean(axis=1, keepdims=True)
        moved = tangent(text.update[layer], text.unit[layer])
        lengths = [np.linalg.norm(moved[i]) / np.linalg.norm(r[i]) for i in text.ordinary]
        assert layers["update_length"][number, layer] == pytest.approx(np.mean(lengths), rel=1e-4)
        assert layers["residual"][number, layer] == pytest.approx(math.sqrt((r[text.ordinary] ** 2).mean()), rel=1e-5)


@pytest.mark.parametrize("number", range(len(SENTENCES)))
def test_the_attention_of_every_head(number):
    _, _, heads = measured_sentences()
    text = slow(SENTENCES[number])
    log_n = math.log(text.n)
    for layer, head in product(range(6), range(12)):
        A = text.attention[layer][head]
        entropy = np.mean([-(A[i] * np.log(A[i])).sum() for i in text.ordinary])
        # The log of attention is the scores up to a constant for each query.
        gap = np.mean([np.log(A[i]).max() - np.log(A[i]).mean() for i in text.ordinary])
        special = np.mean([A[i, 0] + A[i, -1] for i in text.ordinary])
        assert heads["entropy"][number, layer, head] == pytest.approx(entropy / log_n, rel=1e-4)
        assert heads["logit_gap"][number, layer, head] == pytest.approx(gap / log_n, rel=1e-4)
        assert heads["special_share"][number, layer, head] == pytest.approx(special, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("number", range(len(SENTENCES)))
def test_each_head_beside_its_theory(number):
    _, _, heads = measured_sentences()
    text = slow(SENTENCES[number])
    for layer, head in CHOSEN:
        one, E, co = dense(layer, head)
        z, unit = text.z[layer], text.unit[layer]
        aims = [one.Bt @ z[i] + one.a for i in text.ordinary]
        angles = [math.degrees(math.acos(max(unit @ u) / np.linalg.norm(u))) for u in aims]
        share = np.mean([np.linalg.norm(E.T @ unit[i]) ** 2 for i in text.ordinary])
        r = text.x[layer] - text.x[layer].mean(axis=1, keepdims=True)
        alone = tangent(text.attention[layer][head] @ one.value(text.x[layer]) @ one.Wo.T, unit)
        lengths = [np.linalg.norm(alone[i]) / np.linalg.norm(r[i]) for i in text.ordinary]
        found = {name: heads[name][number, layer, head] for name in HEADS}
        assert found["maximiser_angle"] == pytest.approx(np.mean(angles), rel=1e-4)
        assert found["share_in_E"] == pytest.approx(share, rel=1e-3, abs=1e-6)
        assert found["update_length"] == pytest.approx(np.mean(lengths), rel=1e-4)
        for name, depth in (("distance_before", layer), ("distance_after", layer + 1)):
            if co is None:
                assert math.isnan(found[name])
            else:
                expected = transported(text.unit[depth][text.ordinary], E[:, 0], unit[text.ordinary] @ co)
                assert found[name] == pytest.approx(expected, rel=1e-5)
        if co is None:
            assert math.isnan(found["approach"])
            assert math.isnan(found["predicted_approach"])
            continue
        assert found["approach"] == pytest.approx(found["distance_before"] - found["distance_after"], abs=1e-9)
        theory = fold(encoder().anatomy.layers[layer], head).theory_head()[0].theory()
        rho = fold(encoder().anatomy.layers[layer], head).residual
        shrink = math.exp(-theory.rate * rho / math.sqrt((r[text.ordinary] ** 2).mean()))
        projector = theory.projector.numpy()
        moved = [projector @ x + shrink * (x - projector @ x) for x in unit[text.ordinary]]
        moved = np.array([x / np.linalg.norm(x) for x in moved])
        expected = found["distance_before"] - transported(moved, E[:, 0], unit[text.ordinary] @ co)
        assert found["predicted_approach"] == pytest.approx(expected, abs=2e-6)


def test_the_chosen_heads_are_of_both_kinds():
    """The test above needs heads that rotate tokens and heads that do not."""
    rotating = [co is None for _, _, co in (dense(*place) for place in CHOSEN)]
    assert 0 < sum(rotating) < len(CHOSEN)
    empty = meter().empty()
    for (layer, head), turns in zip(CHOSEN, rotating, strict=True):
        assert empty.applicable[layer, head] == (not turns)
        assert empty.dims[layer, head] == (2 if turns else 1)
        assert empty.random_share[layer, head] == empty.dims[layer, head] / 383


def test_atoms_and_co_vectors_are_the_limit_map():
    """T(x) = sign⟨Λ, x⟩ e, whatever the signs of the bases are."""
    heads = [
        Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, sign * 0.5], seed=seed) for seed in range(6) for sign in (1, -1)
    ]
    theories = [theory for theory in (head.theory() for head in heads) if not theory.no_limit]
    assert len(theories) > 3
    x = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    made = Prediction.of(theories)
    for place, theory in enumerate(theories):
        expected = torch.sign(x @ made.co_vectors[:, place])[:, None] * made.atoms[:, place]
        torch.testing.assert_close(theory.limit(x), expected)


def test_a_text_alone_is_the_same_text_in_a_batch():
    together, alone = per_text(SENTENCES), [per_text([text]) for text in SENTENCES]
    for group in range(3):
        for name, values in together[group].items():
            for number, one in enumerate(alone):
                np.testing.assert_allclose(values[number], one[group][name][0], rtol=1e-5, atol=1e-5, err_msg=name)


def test_padding_of_any_kind_changes_nothing():
    (batch,) = batches(models.tokenizer(), SENTENCES[:1], 512, 1)
    more = {
        name: torch.cat([t, torch.full((1, 9), 7 * (name == "input_ids"))], dim=1) for name, t in batch.inputs.items()
    }
    wide = [torch.cat([t, torch.zeros(1, 9, dtype=torch.bool)], dim=1) for t in (batch.mask, batch.special)]
    for short, long in zip(
        meter().measure(batch)[:3], meter().measure(Batch(more, *wide, batch.numbers))[:3], strict=True
    ):
        for name, values in short.items():
            np.testing.assert_allclose(values, long[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_features_that_the_last_gain_erases_are_no_part_of_a_token():
    """With them the mean cosine of the output of MiniLM would be lower by more than 0.1."""
    last = encoder().anatomy.final
    norm = Norm.of(last)
    assert int((~norm.seen).sum()) == 3
    h = torch.randn(2, 5, 384, generator=torch.Generator().manual_seed(0))
    tokens = DepthTokens.of(h, norm, torch.ones(2, 5, dtype=torch.bool))
    assert (tokens.unit[..., ~norm.seen] == 0).all()
    torch.testing.assert_close(tokens.unit.norm(dim=-1), torch.ones(2, 5))
    torch.testing.assert_close(tokens.hidden, last(h))
    assert all(layer.norm.seen.all() for layer in encoder().anatomy.layers)


def test_heads_read_features_that_a_gain_nearly_erases_as_the_model_does():
    """z without such a feature does not have mean 0, and centred weights would give scores that the model has not."""
    model = models.tiny("bert", vocab_size=30522)
    with torch.no_grad():
        model.encoder.layer[0].output.LayerNorm.weight[3] = 1e-33
    own = load(model, tokenizer=models.tokenizer())
    (batch,) = batches(own.tokenizer, SENTENCES[:1], 64, 4)
    found = Meter(own).measure(batch)[2]["entropy"][0, 1]
    with torch.no_grad():
        attention = model(**batch.inputs, output_attentions=True).attentions[1][0].double()
    n = attention.shape[-1]
    entropy = -(attention * attention.log()).sum(dim=-1)[:, 1 : n - 1].mean(dim=1) / math.log(n)
    assert found == pytest.approx(entropy.numpy(), rel=1e-4)


def test_special_tokens_are_in_the_cloud_when_asked_for():
    inside, outside = per_text(SENTENCES, "include"), per_text(SENTENCES)
    text, number = slow(SENTENCES[0]), 0
    for depth in range(7):
        x = text.unit[depth]
        total = (x @ x.T).sum() - text.n
        assert inside[0]["mean_cosine"][number, depth] == pytest.approx(total / text.n / (text.n - 1), abs=1e-5)
    A = text.attention[2][3]
    assert inside[2]["special_share"][number, 2, 3] == pytest.approx(A[:, [0, -1]].sum() / text.n, rel=1e-4)
    assert abs(inside[0]["mean_cosine"] - outside[0]["mean_cosine"]).max() > 1e-2
    with pytest.raises(BadInput, match="special is 'no'"):
        measure(small(), SENTENCES, special="no")


def test_a_text_of_one_token_has_no_pairs_and_is_not_counted_there():
    found = measure(small(), ["Rain", "Rain and snow", "Sun"])
    assert found.counts.texts == 3
    assert (found.depths["mean_cosine"].count() == 1).all()
    assert (found.depths["dispersion"].count() == 3).all()
    alone = measure(small(), ["Rain"]).depth_table()
    assert alone["mean_cosine"].isna().all()
    assert alone["effective_rank"].tolist() == pytest.approx([1] * 4, abs=1e-5)


@pytest.mark.parametrize("chunk", [1, 300, 5_000])
def test_scores_in_pieces_are_the_same_scores(chunk, monkeypatch):
    """Pieces of one query, of a few queries, and of a few texts: a text has up to 4·22² scores."""
    whole = per_text(SENTENCES, of=small)[2]
    monkeypatch.setattr(measuring_heads, "CHUNK", chunk)
    for name, values in per_text(SENTENCES, of=small)[2].items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_tables_are_the_means_over_texts():
    texts = SENTENCES * 3 + ["Snow fell on the roofs of the town."]
    found, (depths, layers, heads) = measure(small(), texts), per_text(texts, of=small)
    table, rows = found.depth_table(), found.head_table()
    n = np.array([len(models.tokenizer()(text)["input_ids"]) for text in texts])
    values = depths["dispersion"]
    reach = student.ppf(0.975, len(texts) - 1) * values.std(axis=0, ddof=1) / math.sqrt(len(texts))
    np.testing.assert_allclose(table["dispersion"], values.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(table["dispersion_low"], values.mean(axis=0) - reach, atol=1e-6)
    np.testing.assert_allclose(table["dispersion_high"], values.mean(axis=0) + reach, atol=1e-6)
    np.testing.assert_allclose(table["dispersion_slope"], np.polyfit(np.log2(n), values, 1)[0], atol=1e-6)
    np.testing.assert_allclose(table["update_length"][:3], layers["update_length"].mean(axis=0), atol=1e-6)
    assert math.isnan(table["update_length"][3])
    assert len(rows) == 12
    assert 0 < rows.applicable.sum() < 12
    np.testing.assert_allclose(rows["entropy"], heads["entropy"].mean(axis=0).ravel(), atol=1e-6)
    assert rows.loc[rows.applicable, "distance_after"].notna().all()
    assert rows.loc[~rows.applicable, "distance_after"].isna().all()
    assert found.lengths == {int(k): int((n == k).sum()) for k in n}
    assert found.counts.tokens == n.sum()


def test_parts_of_a_corpus_merge_in_any_order():
    parts = [measure(small(), texts) for texts in (SENTENCES[:2], ["", *SENTENCES[2:4]], SENTENCES[4:])]
    a = parts[0].merge(parts[1]).merge(parts[2])
    b = parts[2].merge(parts[0].merge(parts[1]))
    assert a.to_dict() == b.to_dict()
    assert (a.counts.texts, a.counts.skipped) == (5, 1)
    whole = measure(small(), ["", *SENTENCES])
    np.testing.assert_allclose(a.head_table().to_numpy(float), whole.head_table().to_numpy(float), atol=1e-5)
    assert a.lengths == whole.lengths
    again = Measurements.from_dict(json.loads(json.dumps(a.to_dict())))
    assert again.to_dict() == a.to_dict()
    with pytest.raises(BadInput, match="cannot be merged"):
        a.merge(measure(small(), SENTENCES, special="include"))


def test_progress_counts_texts():
    done = []
    measure(small(), [*SENTENCES, ""], batch_size=2, progress=done.append)
    assert done == [2, 4, 5]


@pytest.mark.parametrize("texts", [[], ["", " \n"], ["\u200b"]])
def test_nothing_to_measure_is_said(texts):
    with pytest.raises(BadInput, match="no text to measure"):
        measure(small(), texts)


def test_a_text_of_a_hundred_thousand_tokens_is_cut():
    found = measure(small(), ["the quick brown fox jumps over the lazy dog " * 12_000, "A short one."])
    assert (found.counts.texts, found.counts.cut) == (2, 1)
    assert found.lengths == {64: 1, 6: 1}


@pytest.mark.parametrize("family", ["bert", "deberta-v2"])
def test_cores_that_share_batches_find_the_same(family):
    """Three batches at a time, in threads with modules of their own; DeBERTa also calls modules in its scores."""
    own = load(models.tiny(family, vocab_size=30522), tokenizer=models.tokenizer())
    texts = [f"{text} {'and so on ' * (number % 4)}" for number, text in enumerate(models.TEXTS * 5)]
    found, told = [], []
    for cores in (1, 3):
        shared, done = Meter(own), []
        shared.cores = cores
        found.append(shared.tally(texts, 2, done.append))
        told.append(done)
    one, many = found
    assert told[0] == told[1]
    assert told[0][-1] == len(texts)
    assert one.lengths == many.lengths
    pd.testing.assert_frame_equal(one.head_table(), many.head_table(), atol=1e-6)
    pd.testing.assert_frame_equal(one.depth_table(), many.depth_table(), atol=1e-6)


def test_a_text_that_cannot_be_read_stops_the_cores():
    shared = Meter(small())
    shared.cores = 2
    with pytest.raises(BadInput, match="text 7"):
        shared.tally([*models.TEXTS[:1] * 7, 5], 2)
