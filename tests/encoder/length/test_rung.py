"""Statistics of a rung against the attention that the model itself returns."""

import math

import numpy as np
import pytest
import torch

from metastable.encoder.length.dilution import MEASURED, WINDOW
from metastable.encoder.length.rung import QUERIES, PlaceInDocument
from tests.encoder.length.conftest import encoder


def inputs(documents):
    rows = torch.tensor([(*documents.before, *ids, *documents.after) for ids in documents.ids])
    return {"input_ids": rows, "attention_mask": torch.ones_like(rows)}


def of_attention(p, query, n):
    """The statistics of one query from its attention (n,); the first and the last token are special."""
    ordinary = np.arange(1, n - 1)
    far = ordinary[np.abs(ordinary - query) > WINDOW * n]
    seen = p > 0
    return {
        "entropy": -(p[seen] * np.log(p[seen])).sum(),
        "log_participation": -np.log((p**2).sum()),
        "top_weight": p.max(),
        "special_share": p[0] + p[-1],
        "score_spread": np.log(p[ordinary][seen[ordinary]]).std(),
        "score_gap": min(30.0, math.log(p.max()) - math.log(max(p[far].mean(), 1e-30))),
    }


@pytest.mark.parametrize("n", [40, 90])
@pytest.mark.parametrize("case", ["bert", "mpnet", "modernbert"])
def test_heads_against_the_attention_of_the_model(case, n, meter, documents):
    some = documents.first(3).prefixes(n)
    rung = meter(case, batch_size=2).measure(some)
    with torch.no_grad():
        attentions = encoder(case)(**inputs(some), output_attentions=True).attentions
    # More ordinary tokens than queries: evenly spaced ones.
    queries = np.linspace(1, n - 2, min(QUERIES, n - 2)).round().astype(int)
    for layer, attention in enumerate(attentions):
        for t, h in np.ndindex(attention.shape[:2]):
            each = [of_attention(attention[t, h, q].double().numpy(), q, n) for q in queries]
            for name in MEASURED:
                expected = np.mean([one[name] for one in each])
                assert rung.heads[name][t, layer, h] == pytest.approx(expected, abs=2e-4, rel=1e-4), name


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("case", ["bert", "modernbert"])
def test_embeddings_and_hidden_states(case, pooling, meter, documents):
    """A rung and `embed` pool the last hidden states of the model; texts of several lengths keep their order."""
    own, some = meter(case, pooling), documents.first(4).prefixes(50)
    uneven = documents.of(ids[: 20 + 7 * (i % 3)] for i, ids in enumerate(documents.ids))

    def expected(chosen):
        with torch.no_grad():
            hidden = encoder(case)(**inputs(chosen)).last_hidden_state[0]
        return (hidden[0] if pooling == "cls" else hidden.mean(dim=0)).numpy()

    for chosen, found in ((some, own.measure(some).pooled), (uneven, own.embed(uneven))):
        for i, ids in enumerate(chosen.ids):
            np.testing.assert_allclose(found[i], expected(chosen.of([ids])), atol=1e-5)


def test_effective_ranks_and_cosines_against_numpy(meter, documents):
    some = documents.first(2).prefixes(40)
    rung = meter("bert").measure(some)
    with torch.no_grad():
        hidden = encoder("bert")(**inputs(some)).last_hidden_state.double().numpy()[:, 1:-1]
    for t, tokens in enumerate(hidden):
        unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
        pairs = unit @ unit.T
        expected = (pairs.sum() - len(unit)) / (len(unit) * (len(unit) - 1))
        assert rung.depths["hidden_cosine"][t, -1] == pytest.approx(expected, abs=1e-5)
    assert (rung.depths["effective_rank"] >= 1).all()
    assert (rung.depths["effective_rank"] <= 32).all()


@pytest.mark.parametrize(("case", "first"), [("bert", 0), ("roberta", 2)])
def test_a_place_is_that_of_position_ids(case, first, meter, documents):
    some, place = documents.first(3).prefixes(32), PlaceInDocument(gap=60, at=10)
    found = meter(case).measure(some, place=place).pooled
    positions = [first + i + (60 if i >= 10 else 0) for i in range(32)]
    with torch.no_grad():
        own = encoder(case)(**inputs(some), position_ids=torch.tensor([positions]).expand(3, -1))
    np.testing.assert_allclose(found, own.last_hidden_state.mean(dim=1), atol=1e-5)
    assert np.abs(found - meter(case).measure(some).pooled).max() > 0.01


def test_nothing_moves_without_a_table_of_positions(meter, documents):
    own, some = meter("modernbert"), documents.first(2).prefixes(32)
    assert own.positions is None
    np.testing.assert_array_equal(own.measure(some, place=PlaceInDocument(60, 10)).pooled, own.measure(some).pooled)


def test_a_rung_does_not_depend_on_the_batches(meter, documents):
    some = documents.prefixes(32)
    whole, parts = (meter("bert", batch_size=size).measure(some, [64]) for size in (12, 5))
    for name, values in whole.heads.items():
        np.testing.assert_allclose(parts.heads[name], values, atol=1e-5)
    for name, values in whole.forecasts.items():
        np.testing.assert_allclose(parts.forecasts[name], values, atol=1e-5)
