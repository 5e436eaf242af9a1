"""Importance against literal removals, and fidelity against slow references."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from metastable.encoder.compress import surgery
from metastable.encoder.compress.fidelity import fidelity, percentile, spearman, unit
from metastable.encoder.compress.importance import gradient, magnitude, usage
from metastable.encoder.compress.recipe import RULES, Recipe, plan
from metastable.encoder.pooling import embed, pooled


def mean_pool(hidden, mask):
    return pooled(hidden, mask, "mean")


@pytest.mark.parametrize("case", ["bert", "modernbert-biased", "albert"])
def test_updates_are_mean_squares_of_what_removal_changes(case, small, dealt):
    """E |W_u (a_u − ā_u)|², with a caught by hooks and the products written out."""
    encoder, batches = small(case), dealt[0][:2]
    found = usage(encoder, batches)
    block, layer = encoder.anatomy.blocks[1], encoder.anatomy.layers[1]
    caught = {"output": [], "outer": []}
    for which, kept in caught.items():
        handle = getattr(block, which).register_forward_pre_hook(lambda _, a, kept=kept: kept.append(a[0]))
        for batch in batches:
            before = len(kept)
            encoder.run(batch.inputs)
            # A shared layer is called three times; this is its second call.
            kept[before:] = [kept[before + (1 if case == "albert" else 0)][batch.mask]]
        handle.remove()
    a = torch.cat(caught["output"]).double()
    torch.testing.assert_close(found.head_mean[1].double(), a.mean(dim=0), rtol=1e-4, atol=1e-5)
    width = a.shape[1] // layer.heads
    for head in range(layer.heads):
        own = slice(head * width, (head + 1) * width)
        change = (a[:, own] - a[:, own].mean(dim=0)) @ block.output.weight.double()[:, own].T
        assert float(found.head_update[1][head]) == pytest.approx(
            float(change.detach().square().sum(dim=1).mean()), rel=1e-3
        )
    a = torch.cat(caught["outer"]).double()
    change = (a - a.mean(dim=0)).square().mean(dim=0) * block.outer.weight.double().square().sum(dim=0)
    torch.testing.assert_close(found.neuron_update[1], change, rtol=1e-3, atol=1e-6)


def test_gradients_rank_heads_as_removal_does(small, dealt):
    """The estimate of |∂f/∂ξ| orders heads like the change of the embedding for a small step of ξ, one at a time."""
    encoder, batches = small(), dealt[0][:2]
    known = usage(encoder, batches)
    heads, neurons = gradient(encoder, batches, known, mean_pool)
    full = torch.tensor(embed(encoder, batches, "mean"))
    full = full / full.norm(dim=1, keepdim=True)
    step, exact = 1e-2, []
    for layer, block in enumerate(encoder.anatomy.blocks):
        mean = known.head_mean[layer]
        for head in range(4):

            def less(_, arguments, head=head, mean=mean):
                a = arguments[0].clone()
                own = slice(head * 8, (head + 1) * 8)
                a[..., own] = mean[own] + (1 - step) * (a[..., own] - mean[own])
                return (a,)

            handle = block.output.register_forward_pre_hook(less)
            changed = torch.tensor(embed(encoder, batches, "mean"))
            handle.remove()
            changed = changed / changed.norm(dim=1, keepdim=True)
            exact.append(float(((changed - full) / step).square().sum(dim=1).mean()))
    estimate = torch.cat(heads).numpy()
    assert spearmanr(estimate, exact).statistic > 0.9
    assert estimate.sum() == pytest.approx(sum(exact), rel=0.3)
    assert all((score >= 0).all() for score in neurons)


def test_magnitudes(small):
    encoder = small()
    heads, neurons = magnitude(encoder)
    block = encoder.anatomy.blocks[2]
    value, output = block.linears[2].weight.detach(), block.output.weight.detach()
    expected = [
        float(output[:, 8 * h : 8 * h + 8].square().sum() * value[8 * h : 8 * h + 8].square().sum()) for h in range(4)
    ]
    np.testing.assert_allclose(heads[2], expected, rtol=1e-5)
    inner, outer = block.inner.weight.detach(), block.outer.weight.detach()
    np.testing.assert_allclose(neurons[2][3], inner[3].square().sum() * outer[:, 3].square().sum(), rtol=1e-5)


def test_fidelity_against_a_slow_reference():
    draw = np.random.default_rng(0)
    full, others = draw.normal(size=(30, 5)), draw.normal(size=(25, 5))
    smaller, pool = full + 0.5 * draw.normal(size=(30, 5)), others + 0.5 * draw.normal(size=(25, 5))
    found = fidelity(full, smaller, (others, pool))
    f, g, of, og = (x / np.linalg.norm(x, axis=1)[:, None] for x in (full, smaller, others, pool))
    cosines = [a @ b for a, b in zip(f, g, strict=True)]
    assert found["cosine"] == pytest.approx(np.mean(cosines))
    assert found["cosine_p10"] == pytest.approx(np.quantile(cosines, 0.1))
    shared = []
    for i in range(30):
        near = [sorted(range(25), key=lambda j, x=x, y=y, i=i: -x[i] @ y[j])[:10] for x, y in ((f, of), (g, og))]
        shared.append(len(set(near[0]) & set(near[1])) / 10)
    assert found["nn_overlap"] == pytest.approx(np.mean(shared))
    pairs = [(i, j) for i in range(30) for j in range(i + 1, 30)]
    expected = spearmanr([f[i] @ f[j] for i, j in pairs], [g[i] @ g[j] for i, j in pairs]).statistic
    assert found["spearman"] == pytest.approx(expected)
    for name in ("cosine", "nn_overlap", "spearman"):
        assert found[f"{name}_low"] < found[name] < found[f"{name}_high"]


def sample(draw, count):
    full = draw.normal(size=(count, 8))
    return full, full + draw.exponential(0.5, size=(count, 1)) * draw.normal(size=(count, 8))


@pytest.mark.slow
def test_the_intervals_cover_the_values_of_fresh_texts(monkeypatch):
    """Intervals of 60 texts cover the values of 4 000 with the same pool, in about 95 of 100 samples."""
    monkeypatch.setattr("metastable.encoder.compress.fidelity.RESAMPLES", 2)
    draw = np.random.default_rng(1)
    pool = sample(draw, 80)
    full, smaller = sample(draw, 1500)
    truth = fidelity(full, smaller, pool)
    covered = dict.fromkeys(("cosine", "cosine_p10", "nn_overlap"), 0)
    for _ in range(100):
        found = fidelity(*sample(draw, 60), pool)
        for name in covered:
            covered[name] += found[f"{name}_low"] <= truth[name] <= found[f"{name}_high"]
    assert all(count >= 88 for count in covered.values()), covered
    assert covered["nn_overlap"] < 100


def test_the_percentile_of_few_texts_has_no_lower_end():
    draw = np.random.default_rng(0)
    assert [np.isnan(percentile(draw.uniform(size=n))[1]) for n in (21, 35, 36)] == [True, True, False]
    low = [percentile(draw.uniform(size=40))[1] for _ in range(300)]
    # The true percentile is 0.1: the lower end may lie above it in 2.5 % of the samples.
    assert np.mean(np.array(low) > 0.1) < 0.05
    high = [percentile(draw.uniform(size=40))[2] for _ in range(300)]
    assert np.mean(np.array(high) < 0.1) < 0.05


def test_pairs_of_a_text_with_itself_do_not_count():
    """Without them the rank correlation of unrelated embeddings is about 0 in every resample."""
    draw = np.random.default_rng(0)
    f, g = (unit(draw.normal(size=(25, 40))) for _ in range(2))
    _, low, high = spearman(f @ f.T, g @ g.T)
    assert low < 0 < high
    assert high < 0.25


def test_perfect_fidelity():
    full = np.random.default_rng(0).normal(size=(20, 4))
    found = fidelity(full, 3 * full, (full, 3 * full))
    assert [found[name] for name in ("cosine", "cosine_p10", "nn_overlap", "spearman")] == pytest.approx([1.0] * 4)


def test_the_plan_has_every_kind_and_every_baseline():
    recipes = plan(6)
    assert len({(recipe.name, recipe.method) for recipe in recipes}) == len(recipes)
    for kind in ("layers", "heads", "neurons", "merge", "int8"):
        assert any(getattr(recipe, kind) for recipe in recipes)
    rules = {recipe.rule for recipe in recipes if recipe.baseline and recipe.rule}
    assert rules == {rule for some in RULES.values() for rule in some[1:]}
    assert not any(recipe.layers for recipe in plan(6, layers=False))
    assert all(recipe.layers == 0 and recipe.merge == 0 for recipe in plan(1))
    for recipe in plan(12):
        recipe.check(12)


def test_a_head_without_effect_goes_first(small, dealt):
    """Negative control: a head whose output weights are 0 has score 0, and its removal changes nothing."""
    encoder = small()
    with torch.no_grad():
        encoder.anatomy.blocks[1].output.weight[:, 8:16] = 0.0
    known = usage(encoder, dealt[0][:1])
    heads, _ = gradient(encoder, dealt[0][:1], known, mean_pool)
    assert int(torch.cat(heads).argmin()) == 5
    assert float(known.head_update[1][1]) == 0.0
    even = encoder.separate()
    surgery.remove_heads(even, 1, (1,), known.head_mean[1])
    np.testing.assert_allclose(embed(even, dealt[1], "mean"), embed(encoder, dealt[1], "mean"), atol=1e-6)
    assert Recipe(heads=0.25).method == "gradient"
