"""Healing: ridge regression against its closed form by numpy, exact recovery, and nothing where it does not help."""

import numpy as np
import pytest
import torch

from metastable.encoder.compress import build, surgery
from metastable.encoder.compress.build import Builder
from metastable.encoder.compress.healing import Layers, LeastSquares, Targets, heal
from metastable.encoder.compress.importance import usage
from metastable.encoder.compress.recipe import Recipe
from metastable.encoder.compress.surgery import Removal


def test_sums_are_those_of_ridge_regression():
    draw = np.random.default_rng(0)
    a, e = draw.normal(size=(50, 7)) + 1, draw.normal(size=(50, 3)) - 2
    sums = LeastSquares()
    for part in (slice(0, 20), slice(20, 50)):
        sums.add(torch.tensor(a[part], dtype=torch.float32), torch.tensor(e[part], dtype=torch.float32))
    centred = a - a.mean(axis=0)
    penalty = 0.3 * (centred**2).sum(axis=0).mean()
    change = np.linalg.solve(centred.T @ centred + penalty * np.eye(7), centred.T @ (e - e.mean(axis=0))).T
    found, bias = sums.refit(0.3)
    np.testing.assert_allclose(found, change, atol=1e-4)
    np.testing.assert_allclose(bias, e.mean(axis=0) - change @ a.mean(axis=0), atol=1e-4)
    error = ((a @ found.numpy().T + bias.numpy() - e) ** 2).sum()
    assert sums.error(found, bias) == pytest.approx(error, rel=1e-4)


@pytest.mark.parametrize("case", ["bert", "distilbert", "mpnet", "deberta-v2", "modernbert-biased"])
def test_layers_are_those_of_the_model(case, small, dealt):
    """The residual sums that healing reads give the output of the layer: normalised in post-norm, as they are else."""
    encoder, batches = small(case), dealt[0][:1]
    layers = Layers(encoder, batches)
    for place in range(3):
        passed = layers.passed(0)
        total = passed.neurons.total
        with torch.inference_mode():
            expected = total if encoder.anatomy.pre_norm else encoder.anatomy.sites[place + 1].module(total)
        torch.testing.assert_close(passed.hidden[batches[0].mask], expected, rtol=1e-4, atol=1e-5)
        layers.move()
    last = encoder.run(batches[0].inputs).last_hidden_state
    with torch.inference_mode():
        found = encoder.anatomy.last_hidden(layers.hidden[0])
    torch.testing.assert_close(found[batches[0].mask], last[batches[0].mask], rtol=1e-4, atol=1e-5)


def distance(full, smaller, batches):
    pairs = [(full.run(b.inputs).last_hidden_state, smaller.run(b.inputs).last_hidden_state, b.mask) for b in batches]
    return float(sum((x[mask] - y[mask]).square().sum() for x, y, mask in pairs))


@pytest.mark.parametrize("case", ["bert", "modernbert-biased"])
def test_a_spoiled_map_is_recovered(case, small, dealt):
    """Noise on the weights of one map is undone: the full encoder is reachable, so the refit finds it."""
    fit, held = dealt
    full = small(case)
    smaller = full.separate()
    with torch.no_grad():
        weight = smaller.anatomy.blocks[1].outer.weight
        weight += 0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    before = distance(full, smaller, held)
    changed = heal(Targets(full, [*fit, *held]), smaller, Removal(neurons={1: (0,)}), len(fit))
    assert changed == 1
    assert distance(full, smaller, held) < 0.02 * before


def test_an_encoder_that_lost_nothing_is_left_alone(small, dealt):
    """Negative control: with the full encoder itself there is nothing to refit."""
    fit, held = dealt
    full = small()
    smaller = full.separate()
    heal(Targets(full, [*fit, *held]), smaller, Removal(heads={0: (0,)}), len(fit))
    assert distance(full, smaller, held) < 1e-6


@pytest.mark.parametrize("case", ["bert", "deberta-v2", "modernbert"])
def test_healing_after_a_removed_layer_brings_the_output_closer(case, small, dealt):
    fit, held = dealt
    full = small(case)
    plain = surgery.without_layers(full, [1])
    healed = plain.separate()
    assert heal(Targets(full, [*fit, *held]), healed, Removal((1,)), len(fit)) == 1
    assert distance(full, healed, held) < distance(full, plain, held)


def test_shared_layers_are_not_healed(small, dealt):
    full = small("albert")
    smaller = surgery.without_layers(full, [2])
    assert heal(Targets(full, dealt[0]), smaller, Removal((2,)), 1) == 0


def test_a_map_without_a_bias_is_refitted_without_means():
    draw = np.random.default_rng(0)
    a, e = draw.normal(size=(50, 7)) + 1, draw.normal(size=(50, 3)) - 2
    sums = LeastSquares()
    sums.add(torch.tensor(a, dtype=torch.float32), torch.tensor(e, dtype=torch.float32))
    penalty = 0.3 * (a**2).sum(axis=0).mean()
    expected = np.linalg.solve(a.T @ a + penalty * np.eye(7), a.T @ e).T
    change, bias = sums.refit(0.3, biased=False)
    np.testing.assert_allclose(change, expected, atol=1e-4)
    assert not bias.any()


def test_without_biases_healing_brings_the_output_closer(small, dealt):
    """Maps of ModernBERT have no bias: what the sums promise is what the model does."""
    fit, held = dealt
    full = small("modernbert")
    known = usage(full, fit)
    plain = full.separate()
    gone = {layer: tuple(range(20)) for layer in range(3)}
    for layer, cells in gone.items():
        surgery.remove_neurons(plain, layer, cells, known.neuron_mean[layer])
    healed = plain.separate()
    assert heal(Targets(full, [*fit, *held]), healed, Removal(neurons=gone), len(fit)) == 3
    assert distance(full, healed, held) < 0.95 * distance(full, plain, held)


def test_the_layer_before_a_gap_takes_over_the_normalisation(small, dealt):
    fit, held = dealt
    full = small()
    for place, site in enumerate(full.anatomy.sites):
        with torch.no_grad():
            site.module.weight.fill_(1 + 0.1 * place)
            site.module.bias.fill_(0.01 * place)
    healed = surgery.without_layers(full, [1])
    heal(Targets(full, [*fit, *held]), healed, Removal((1,)), len(fit))
    norms = [site.module for site in healed.anatomy.sites]
    assert norms[1].weight.unique().tolist() == pytest.approx([1.2])
    assert norms[1].bias.unique().tolist() == pytest.approx([0.02])
    assert norms[2].weight.unique().tolist() == pytest.approx([1.3])


def test_a_refit_that_loses_on_other_texts_is_undone(small, dealt, monkeypatch):
    """The refit is replaced by one that spoils a map: nothing of it may stay."""

    def spoil(targets, smaller, removal, fitted):
        with torch.no_grad():
            smaller.anatomy.blocks[0].outer.weight.mul_(-3)
        return 1

    monkeypatch.setattr(build, "heal", spoil)
    builder = Builder(small(), *dealt, "mean")
    made = builder.make(Recipe(neurons=0.25))
    assert made.healed == 0
    unhealed = builder.make(Recipe(neurons=0.25, healed=False))
    assert torch.equal(made.even.anatomy.blocks[0].outer.weight, unhealed.even.anatomy.blocks[0].outer.weight)


def test_the_layer_that_goes_is_the_one_that_is_missed_least_with_refits(small, dealt):
    builder = Builder(small(num_hidden_layers=3), *dealt, "mean")
    losses = {layer: builder.loss(builder.removed(Recipe(layers=1), Removal((layer,))).even) for layer in range(3)}
    assert builder.layers(1, "greedy") == [min(losses, key=losses.get)]
