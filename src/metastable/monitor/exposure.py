"""A classifier that tells clean texts from copies of them that were spoilt: outlier exposure.

Hendrycks, Mazeika, Dietterich, "Deep anomaly detection with outlier exposure", ICLR 2019, train a network on outliers
of one kind to find others. Here the outliers are made from the user's own clean texts (`spoiling`), and the classifier
sees the adjusted columns of the detectors, not the text. It weighs detectors and depths against each other, which a sum
of p-values cannot do: words in a wrong order are ordinary at depth 0 and unusual later.

The classifier is fitted on the "adjust" part and then is a fixed function of a text, so p-values of the "calibrate"
part stay exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from metastable.monitor.length_adjustment import shaped
from metastable.monitor.spoiling import KINDS

# The name of the classifier's score beside the detectors.
EXPOSURE = "exposure"
# What people read instead.
CALLED = "classifier of spoilt texts"
# The strength of the ridge penalty, in texts.
RIDGE = 30.0
# The likelihood is smooth and convex: a few hundred steps reach its maximum to six digits.
PRECISE: Mapping[str, float] = {"maxiter": 1000, "ftol": 1e-12, "gtol": 1e-4}
# Adjusted columns count up to so many standard deviations: beyond, the linear model has seen nothing.
CLIP = 6.0


@dataclass(frozen=True)
class Exposure:
    """Multinomial logistic regression of the kind of a text on its adjusted columns z, with a ridge penalty.

        log P(kind j | z) − log P(clean | z) = ⟨w_j, (clip(z) − centre)/unit⟩ + b_j

    fitted by maximum likelihood, with clean texts and spoilt texts weighted as if there were as many of both, and the
    penalty ½ `RIDGE` Σ|w|².

    centre, unit : (k,), mean and standard deviation of the columns over both sets
    weights : (k + 1, kinds), the rows w and b
    """

    centre: np.ndarray
    unit: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(
        cls,
        clean: np.ndarray,
        spoilt: np.ndarray,
        kinds: np.ndarray,
        options: Mapping[str, float] = PRECISE,
    ) -> Exposure:
        """Fit to clean texts and spoilt copies.

        clean : (texts, k). spoilt : (copies, k). kinds : (copies,), the number of each copy's kind in `KINDS`
        options : of scipy's L-BFGS-B
        """
        z = np.clip(np.concatenate([clean, spoilt]), -CLIP, CLIP)
        centre, unit = z.mean(axis=0), z.std(axis=0) + 1e-9
        x = np.concatenate([(z - centre) / unit, np.ones((len(z), 1))], axis=1)
        weight = np.concatenate([np.ones(len(clean)), np.full(len(spoilt), len(clean) / len(spoilt))])
        target = np.zeros((len(z), len(KINDS)))
        target[len(clean) + np.arange(len(spoilt)), kinds] = 1.0
        shape = (x.shape[1], len(KINDS))

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            w = flat.reshape(shape)
            logits = x @ w
            norm = np.logaddexp(0.0, logsumexp(logits, axis=1))
            value = weight @ (norm - (logits * target).sum(axis=1)) + 0.5 * RIDGE * float((w[:-1] ** 2).sum())
            slope = x.T @ (weight[:, None] * (np.exp(logits - norm[:, None]) - target))
            slope[:-1] += RIDGE * w[:-1]
            return float(value), slope.ravel()

        found = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options=dict(options))
        return cls(centre, unit, found.x.reshape(shape))

    def logits(self, z: np.ndarray) -> np.ndarray:
        """log P(kind | z) − log P(clean | z), (texts, kinds)."""
        x = (np.clip(z, -CLIP, CLIP) - self.centre) / self.unit
        return np.asarray(x @ self.weights[:-1] + self.weights[-1])

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """The log-odds that a text is spoilt in any way, (texts,)."""
        return np.logaddexp.reduce(self.logits(z), axis=1)

    def kinds(self, z: np.ndarray) -> np.ndarray:
        """The number of the most probable kind in `KINDS`, (texts,)."""
        return np.asarray(self.logits(z).argmax(axis=1))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], columns: int) -> Exposure:
        shapes = {"centre": (columns,), "unit": (columns,), "weights": (columns + 1, len(KINDS))}
        return cls(**{name: shaped(arrays, name, shape) for name, shape in shapes.items()})


def called(term: str) -> str:
    """The name of a detector, or of the classifier, for people."""
    return CALLED if term == EXPOSURE else term
