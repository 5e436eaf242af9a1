"""Probes against their objectives, written out, and against independent minimisers."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from metastable.encoder.exit.labelled import Target
from metastable.encoder.exit.probes import TIGHT, Probe, fit, logistic, losses, predicted, ridge
from metastable.errors import BadInput

RANDOM = np.random.default_rng(0)


def standard(n, d):
    x = RANDOM.normal(size=(n, d)) @ RANDOM.normal(size=(d, d))
    return (x - x.mean(axis=0)) / x.std(axis=0)


def fitted(probe, z, y, *rest):
    """Weights and biases of `logistic` or `ridge` as arrays."""
    y = torch.from_numpy(y) if probe is ridge else y
    return [(weight.numpy(), bias.numpy()) for weight, bias in probe(torch.from_numpy(z), y, *rest)]


def log_loss(z, y, weight, bias, penalty):
    """1/n Σ (log Σ_c e^{o_c} − o_y) + λ/2 |W|², text by text."""
    total = 0.0
    for row, label in zip(z, y, strict=True):
        outputs = [float(w @ row + b) for w, b in zip(weight, bias, strict=True)]
        total += np.log(sum(np.exp(o) for o in outputs)) - outputs[label]
    return total / len(y) + penalty / 2 * sum(float(w @ w) for w in weight)


@pytest.mark.parametrize("penalty", [3.0, 0.1, 0.003])
def test_logistic_is_the_minimum(penalty):
    z, y = standard(60, 5), RANDOM.integers(0, 3, 60)
    ((weight, bias),) = fitted(logistic, z, y, 3, [penalty], TIGHT)

    def flat(values):
        return log_loss(z, y, values[:15].reshape(3, 5), values[15:], penalty)

    other = minimize(flat, np.zeros(18), method="BFGS", options={"gtol": 1e-6})
    assert log_loss(z, y, weight, bias, penalty) <= other.fun + 1e-9
    np.testing.assert_allclose(weight.ravel(), other.x[:15], atol=1e-4)
    # The gradient is zero: Σ (p − 1_y) zᵀ/n + λW and Σ (p − 1_y)/n.
    outputs = z @ weight.T + bias
    p = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    excess = (p - np.eye(3)[y]) / 60
    np.testing.assert_allclose(excess.T @ z + penalty * weight, 0, atol=1e-6)
    np.testing.assert_allclose(excess.sum(axis=0), 0, atol=1e-6)


def test_a_path_ends_where_single_fits_do():
    z, y = standard(80, 6), RANDOM.integers(0, 4, 80)
    penalties = [1.0, 0.1, 0.01]
    path = fitted(logistic, z, y, 4, penalties, TIGHT)
    for penalty, (weight, bias) in zip(penalties, path, strict=True):
        ((alone, own_bias),) = fitted(logistic, z, y, 4, [penalty], TIGHT)
        np.testing.assert_allclose(weight, alone, atol=1e-5)
        np.testing.assert_allclose(bias, own_bias, atol=1e-5)


def test_logistic_with_more_features_than_texts_and_with_a_class_that_is_missing():
    z, y = standard(30, 50), np.arange(30) % 2
    ((weight, bias),) = fitted(logistic, z, y, 3, [1e-3], TIGHT)
    outputs = z @ weight.T + bias
    assert (outputs.argmax(axis=1) == y).all()
    # The minimum lies in the span of the texts.
    residual = weight - weight @ np.linalg.pinv(z) @ z
    np.testing.assert_allclose(residual, 0, atol=1e-8)


@pytest.mark.parametrize("penalty", [10.0, 0.1])
def test_ridge_is_the_closed_form(penalty):
    z, y = standard(40, 6), RANDOM.normal(size=40) + 3
    ((weight, bias),) = fitted(ridge, z, y, [penalty])
    # Least squares with rows √(nλ) e_j and a column of ones for the bias.
    more = np.hstack([(40 * penalty) ** 0.5 * np.eye(6), np.zeros((6, 1))])
    rows = np.vstack([np.hstack([z, np.ones((40, 1))]), more])
    wanted = np.linalg.lstsq(rows, np.concatenate([y, np.zeros(6)]), rcond=None)[0]
    np.testing.assert_allclose(np.append(weight[0], bias), wanted, atol=1e-10)


def test_a_probe_reads_what_it_was_trained_on():
    x = RANDOM.normal(size=(50, 4)) * [1, 10, 100, 0] + [0, 5, 50, 7]
    target = Target.of(["b" if row[1] > 5 else "a" for row in x])
    (probe,) = fit(x, target, np.arange(40), [0.01], TIGHT)
    assert probe.classes == ("a", "b")
    np.testing.assert_allclose(probe.mean, x[:40].mean(axis=0))
    assert probe.weight[0, 3] == pytest.approx(0, abs=1e-12)
    said = probe.predict(x[40:])
    assert [said[i] == probe.classes[target.numbers[40 + i]] for i in range(10)].count(True) >= 8
    np.testing.assert_allclose(probe.probabilities(x).sum(axis=1), 1)
    again = Probe.from_dict(probe.to_dict())
    np.testing.assert_array_equal(again.outputs(x), probe.outputs(x))
    with pytest.raises(BadInput, match="shape"):
        probe.predict(x[:, :3])


def test_scale_and_offset_of_features_do_not_matter():
    x = RANDOM.normal(size=(60, 5))
    target = Target.of((x[:, 0] + 0.5).tolist())
    (one,) = fit(x, target, np.arange(60), [0.3])
    (two,) = fit(x * 7 + 3, target, np.arange(60), [0.3])
    np.testing.assert_allclose(one.outputs(x), two.outputs(x * 7 + 3))
    with pytest.raises(BadInput, match="numbers"):
        one.probabilities(x)


def test_losses_and_predictions():
    outputs = np.array([[[0.0, np.log(3.0)], [2.0, 2.0]]])
    np.testing.assert_allclose(losses(outputs, np.array([1.0, 0.0]), "classes"), [[np.log(4 / 3), np.log(2)]])
    np.testing.assert_array_equal(predicted(outputs, "classes"), [[1, 0]])
    np.testing.assert_allclose(losses(outputs[..., :1], np.array([1.0, 0.0]), "numbers"), [[1.0, 4.0]])
