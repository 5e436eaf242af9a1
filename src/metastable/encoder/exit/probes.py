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
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from torch import Tensor

from metastable.encoder.exit.labelled import Floats, Ints, Label, Target
from metastable.encoder.weights import on_one_core
from metastable.errors import BadInput

PENALTIES = {
    "classes": (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003),
    "numbers": (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03),
}
"""The penalties λ that are tried, from large to small."""
TOLERANCE = 1e-3
"""The length of the scaled gradient at the end of a logistic fit during cross validation. Scaled second derivatives are
about 1, so that the objective is about TOLERANCE²/2 above its minimum."""
TIGHT = 1e-6
"""The same for a probe that is kept."""
ITERATIONS = 200
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


@on_one_core
def fit(x: Floats, target: Target, rows: Ints, penalties: Sequence[float], tolerance: float = TOLERANCE) -> list[Probe]:
    """The probe of each penalty, trained on some rows of the features x (texts, d)."""
    return _fit(x, target, rows, penalties, tolerance)


@on_one_core
def held_out(x: Floats, target: Target, rows: Ints, others: Ints, penalties: Sequence[float]) -> Floats:
    """The outputs of these probes for other rows, (penalties, others, outputs)."""
    found = _fit(x, target, rows, penalties, TOLERANCE)
    mean, deviation = torch.from_numpy(found[0].mean), torch.from_numpy(found[0].deviation)
    z = (torch.from_numpy(x[others]).double() - mean) / deviation
    return np.stack([(z @ torch.from_numpy(probe.weight).T).numpy() + probe.bias for probe in found])


def _fit(x: Floats, target: Target, rows: Ints, penalties: Sequence[float], tolerance: float) -> list[Probe]:
    some = torch.from_numpy(x[rows]).double()
    deviation, mean = torch.std_mean(some, dim=0, correction=0)
    # A feature that is constant on the training texts has weight 0 whatever it is divided by.
    deviation = torch.where(deviation > 1e-12 * mean.abs(), deviation, 1.0)
    z = (some - mean) / deviation
    if target.classes:
        found = logistic(z, target.numbers[rows], len(target.classes), penalties, tolerance)
    else:
        found = ridge(z, torch.from_numpy(target.values[rows]), penalties)
    arrays = mean.numpy(), deviation.numpy()
    return [
        Probe(*arrays, weight.numpy(), bias.numpy(), penalty, target.classes)
        for penalty, (weight, bias) in zip(penalties, found, strict=True)
    ]


def ridge(z: Tensor, y: Tensor, penalties: Sequence[float]) -> list[tuple[Tensor, Tensor]]:
    """Weight (1, d) and bias (1,) for each penalty. The columns of z have mean 0: (ZᵀZ/n + λ) w = Zᵀy/n, b = mean y."""
    square, right = z.T @ z / len(z), z.T @ (y - y.mean()) / len(z)
    unit = torch.eye(len(square), dtype=square.dtype)
    solved = [torch.cholesky_solve(right[:, None], torch.linalg.cholesky(square + λ * unit)) for λ in penalties]
    return [(weight.T, y.mean()[None]) for weight in solved]


def logistic(
    z: Tensor, y: Ints, classes: int, penalties: Sequence[float], tolerance: float = TOLERANCE
) -> list[tuple[Tensor, Tensor]]:
    """Weight (classes, d) and bias (classes,) for each penalty, by Newton's method with conjugate gradients.

    Each fit starts from the one before. In the principal axes of z, with variances v, the second derivatives are about
    v·mean p(1 − p) + λ, with p the probabilities at the start. Weights are divided by the root of this.
    """
    variances, axes = torch.linalg.eigh(z.T @ z / len(z))
    # Weights have no part along axes on which no training text varies.
    kept = variances > VARIES * variances[-1]
    variances, axes = variances[kept], axes[:, kept]
    # Half the bytes take half the time, and a loose fit does not need the other half.
    loss = _LogLoss((z @ axes).to(torch.float64 if tolerance < TOLERANCE else torch.float32), y, classes)
    both = torch.zeros(classes, len(variances) + 1, dtype=z.dtype)
    found = []
    for penalty in penalties:
        p = loss.probabilities(both)
        # A class without training texts has p = 0 in the end.
        curvature = (p * (1 - p)).mean(dim=1, keepdim=True).clamp_min(1e-3)
        loss.scale = torch.hstack([curvature * variances + penalty, curvature]).rsqrt()
        loss.penalty = penalty
        start = (both / loss.scale).numpy().ravel()
        options = {"gtol": tolerance, "maxiter": ITERATIONS}
        end = minimize(loss.value, start, jac=loss.slope, hessp=loss.curve, method="trust-ncg", options=options)
        both = loss.both(end.x)
        # Adding a constant to all outputs changes nothing: weights have sum 0 by the penalty, biases by this line.
        both[:, -1] -= both[:, -1].mean()
        found.append((both[:, :-1] @ axes.T, both[:, -1].clone()))
    return found


class _LogLoss:
    """The objective of a logistic probe with its derivatives, as a function of weights and bias divided by `scale`.

    Classes are rows everywhere: BLAS forms the product of a flat and a large matrix faster than that of a large and a
    narrow one. Products are formed in the precision of z, and everything else in float64.

    z : (texts, axes); scale : (classes, axes + 1), the last column for the bias
    """

    scale: Tensor
    penalty: float

    def __init__(self, z: Tensor, y: Ints, classes: int) -> None:
        self._z, self._hot = z, torch.eye(classes, dtype=torch.float64)[:, torch.from_numpy(y)]
        self._at, self._log_p, self._p = np.full(0, np.nan), z, z

    def both(self, flat: Floats) -> Tensor:
        """Weights (classes, axes) and, in the last column, the bias."""
        return self.scale * torch.from_numpy(flat).reshape(self.scale.shape)

    def probabilities(self, both: Tensor) -> Tensor:
        """(classes, texts)"""
        return torch.softmax(self._outputs(both), dim=0)

    def value(self, flat: Floats) -> float:
        both = self._move(flat)
        return float(self.penalty / 2 * both[:, :-1].square().sum() - (self._hot * self._log_p).sum() / len(self._z))

    def slope(self, flat: Floats) -> Floats:
        both = self._move(flat)
        return self._back(self._p - self._hot, both)

    def curve(self, flat: Floats, along: Floats) -> Floats:
        """The matrix of second derivatives times `along`."""
        self._move(flat)
        both = self.both(along)
        change = self._outputs(both)
        return self._back(self._p * (change - (self._p * change).sum(dim=0)), both)

    def _outputs(self, both: Tensor) -> Tensor:
        return (both[:, :-1].to(self._z.dtype) @ self._z.T).double() + both[:, -1:]

    def _move(self, flat: Floats) -> Tensor:
        """Weights and bias; the probabilities there are computed once."""
        both = self.both(flat)
        if not np.array_equal(flat, self._at):
            self._at, self._log_p = flat.copy(), torch.log_softmax(self._outputs(both), dim=0)
            self._p = self._log_p.exp()
        return both

    def _back(self, residual: Tensor, both: Tensor) -> Floats:
        """(residual Z/n + λ weights, Σ residual/n), scaled."""
        weights = (residual.to(self._z.dtype) @ self._z).double() / len(self._z) + self.penalty * both[:, :-1]
        found = self.scale * torch.hstack([weights, residual.mean(dim=1, keepdim=True)])
        return np.asarray(found.numpy().ravel())


def losses(outputs: Floats, values: Floats, task: str) -> Floats:
    """The loss of each text: log-loss of classes or squared error of numbers, (…, texts) from (…, texts, outputs)."""
    if task == "numbers":
        return np.asarray((outputs[..., 0] - values) ** 2)
    number = values.astype(np.int64)
    return np.asarray(-log_softmax(outputs, axis=-1)[..., np.arange(len(number)), number])


def predicted(outputs: Floats, task: str) -> Floats:
    """The prediction of each text: the number of its class, or a number, (…, texts) from (…, texts, outputs)."""
    return outputs[..., 0] if task == "numbers" else outputs.argmax(axis=-1).astype(np.float64)
