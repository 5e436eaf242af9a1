"""Linear probes: labels from embeddings, with an L2 penalty.

Features are standardised with the mean m and the deviation s of the training texts: z = (x − m)/s. A probe has the
outputs o = Wz + b. Its weights minimise, over n texts with labels y,

    ridge (numbers):      1/(2n) Σ (y − o)² + λ/2 |W|²,
    logistic (classes):   1/n Σ (log Σ_c e^{o_c} − o_y) + λ/2 |W|²;

b is not penalised. A probe is fitted for a whole path of penalties λ at once, because the best λ is chosen on other
texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from metastable.encoder.exit.labelled import Floats, Ints, Label, Target
from metastable.errors import BadInput

PENALTIES = {
    "classes": (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003),
    "numbers": (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03),
}
"""The penalties λ that are tried, from large to small."""
TOLERANCE = 1e-4
"""The largest entry of the scaled gradient at the end of a logistic fit during cross validation. With a tenth of it,
fits take longer and held-out log-losses change by less than 1 %."""
TIGHT = 1e-7
"""The same for a probe that is kept."""
ITERATIONS = 2000
VARIES = 1e-12
"""Axes with less than this share of the largest variance are noise of rounding."""


@dataclass(frozen=True)
class Probe:
    """A fitted probe.

    mean, deviation : (d,), of the features of the training texts
    weight : (outputs, d); bias : (outputs,); one output for each class, or one if labels are numbers
    classes : empty if labels are numbers
    """

    mean: Floats
    deviation: Floats
    weight: Floats
    bias: Floats
    penalty: float
    classes: tuple[Label, ...] = ()

    def outputs(self, embeddings: Any) -> Floats:
        """o of each embedding, (texts, outputs), from (texts, d)."""
        x = np.asarray(embeddings, dtype=np.float64)
        if x.ndim != 2 or x.shape[1] != len(self.mean):
            raise BadInput(f"embeddings have shape {x.shape}; the probe reads (texts, {len(self.mean)})")
        return np.asarray((x - self.mean) / self.deviation @ self.weight.T + self.bias)

    def probabilities(self, embeddings: Any) -> Floats:
        """The probability of each class, (texts, classes)."""
        if not self.classes:
            raise BadInput("the labels of this probe are numbers, which have no probabilities; use predict")
        return np.asarray(softmax(self.outputs(embeddings), axis=1))

    def predict(self, embeddings: Any) -> list[Label]:
        """The label of each embedding."""
        found = self.outputs(embeddings)
        if not self.classes:
            return [float(value) for value in found[:, 0]]
        return [self.classes[number] for number in found.argmax(axis=1)]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` reads it."""
        arrays = {name: getattr(self, name).tolist() for name in ("mean", "deviation", "weight", "bias")}
        return {"classes": list(self.classes), "penalty": self.penalty, **arrays}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Probe:
        arrays = {name: np.array(saved[name], dtype=np.float64) for name in ("mean", "deviation", "weight", "bias")}
        return cls(**arrays, penalty=float(saved["penalty"]), classes=tuple(saved["classes"]))


def fit(x: Floats, target: Target, rows: Ints, penalties: Sequence[float], tolerance: float = TOLERANCE) -> list[Probe]:
    """The probe of each penalty, trained on some rows of the features x (texts, d)."""
    some = x[rows].astype(np.float64)
    mean, deviation = some.mean(axis=0), some.std(axis=0)
    # A feature that is constant on the training texts has weight 0 whatever it is divided by.
    deviation[deviation <= 1e-12 * np.abs(mean)] = 1.0
    z = (some - mean) / deviation
    if target.classes:
        found = logistic(z, target.numbers[rows], len(target.classes), penalties, tolerance)
    else:
        found = ridge(z, target.values[rows], penalties)
    return [
        Probe(mean, deviation, weight, bias, penalty, target.classes)
        for penalty, (weight, bias) in zip(penalties, found, strict=True)
    ]


def ridge(z: Floats, y: Floats, penalties: Sequence[float]) -> list[tuple[Floats, Floats]]:
    """Weight (1, d) and bias (1,) for each penalty. The columns of z have mean 0: (ZᵀZ/n + λ) w = Zᵀy/n, b = mean y."""
    square, right = z.T @ z / len(z), z.T @ (y - y.mean()) / len(z)
    found = []
    for penalty in penalties:
        weight = cho_solve(cho_factor(square + penalty * np.eye(len(square))), right)
        found.append((weight[None], np.array([y.mean()])))
    return found


def logistic(
    z: Floats, y: Ints, classes: int, penalties: Sequence[float], tolerance: float = TOLERANCE
) -> list[tuple[Floats, Floats]]:
    """Weight (classes, d) and bias (classes,) for each penalty, by L-BFGS. Each fit starts from the one before.

    In the principal axes of z, with variances v, the second derivatives are about v·mean p(1 − p) + λ, with p the
    probabilities at the start. Weights are divided by the root of this, which halves the number of iterations.
    """
    n = len(z)
    variances, axes = np.linalg.eigh(z.T @ z / n)
    # Weights have no part along axes on which no training text varies.
    kept = variances > VARIES * variances[-1]
    variances, axes = variances[kept], axes[:, kept]
    inner, hot = z @ axes, np.eye(classes)[y]
    weight, bias = np.zeros((len(variances), classes)), np.zeros(classes)
    found = []
    for penalty in penalties:
        p = softmax(inner @ weight + bias, axis=1)
        # A class without training texts has p = 0 in the end.
        curvature = np.maximum((p * (1 - p)).mean(axis=0), 1e-3)
        scale = np.vstack([1 / np.sqrt(np.outer(variances, curvature) + penalty), 1 / np.sqrt(curvature)])

        def objective(flat: Floats, scale: Floats = scale, penalty: float = penalty) -> tuple[float, Floats]:
            both = scale * flat.reshape(scale.shape)
            weight, bias = both[:-1], both[-1]
            outputs = inner @ weight + bias
            outputs -= outputs.max(axis=1, keepdims=True)
            powers = np.exp(outputs)
            total = powers.sum(axis=1, keepdims=True)
            value = (np.log(total).sum() - (hot * outputs).sum()) / n + penalty / 2 * (weight**2).sum()
            excess = (powers / total - hot) / n
            slope = np.vstack([inner.T @ excess + penalty * weight, excess.sum(axis=0)])
            return value, (scale * slope).ravel()

        # ftol = 0: only the gradient decides when a fit ends.
        options = {"gtol": tolerance, "ftol": 0.0, "maxiter": ITERATIONS, "maxfun": 2 * ITERATIONS, "maxcor": 20}
        start = (np.vstack([weight, bias]) / scale).ravel()
        end = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
        both = scale * end.x.reshape(scale.shape)
        # Adding a constant to all outputs changes nothing: weights have sum 0 by the penalty, biases by this line.
        weight, bias = both[:-1], both[-1] - both[-1].mean()
        found.append(((axes @ weight).T, bias))
    return found


def losses(outputs: Floats, values: Floats, task: str) -> Floats:
    """The loss of each text: log-loss of classes or squared error of numbers, (…, texts) from (…, texts, outputs)."""
    if task == "numbers":
        return np.asarray((outputs[..., 0] - values) ** 2)
    number = values.astype(np.int64)
    return np.asarray(-log_softmax(outputs, axis=-1)[..., np.arange(len(number)), number])


def predicted(outputs: Floats, task: str) -> Floats:
    """The prediction of each text: the number of its class, or a number, (…, texts) from (…, texts, outputs)."""
    return outputs[..., 0] if task == "numbers" else outputs.argmax(axis=-1).astype(np.float64)
