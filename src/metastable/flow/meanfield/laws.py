"""Starting laws by their log-density, since a mean-field run has no sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import special

from metastable.arrays import real, tensor
from metastable.cloud import Cloud
from metastable.errors import BadInput

LogDensity = Callable[[np.ndarray], np.ndarray]
"""log ρ up to a constant at points (n, d) of norm 1, as (n,)."""
KNOWN = ("uniform", "von_mises_fisher", "mixture")
REMEDY = "give 'uniform', a cloud of ms.uniform, ms.von_mises_fisher or ms.mixture, or a log-density"


def log_density(law: Any, d: int) -> tuple[LogDensity, dict[str, Any]]:
    """The log-density of a starting law on S^(d−1), and the record of it that a run keeps.

    `law` is "uniform", a Cloud or its `.law` (of which only the name and the parameters count, not the sample), or a
    callable that takes points (n, d) as a float64 tensor and returns log ρ, up to a constant, as (n,).

    Examples
    --------
    >>> rho, record = log_density({"law": "von_mises_fisher", "mean": [1.0, 0.0], "kappa": 2.0}, 2)
    >>> float(rho(np.array([[1.0, 0.0]]))[0] - rho(np.array([[-1.0, 0.0]]))[0])
    4.0
    """
    if callable(law):
        return _checked(law), {"law": "log-density", "name": getattr(law, "__name__", type(law).__name__), "d": d}
    record = law.law if isinstance(law, Cloud) else {"law": law, "d": d} if isinstance(law, str) else law
    if not isinstance(record, dict):
        raise BadInput(f"law is a {type(law).__name__}; {REMEDY}")
    name = record.get("law")
    if name not in KNOWN:
        raise BadInput(f"law is {name!r}, which has no density; {REMEDY}")
    kept = {key: value for key, value in record.items() if key not in ("n", "seed")}
    if name == "uniform":
        density, dims = (lambda x: np.zeros(len(x))), kept.setdefault("d", d)
    else:
        density, dims = _components(kept)
    if dims != d:
        raise BadInput(f"the law lives in d = {dims} and the head in d = {d}; they must agree")
    return density, kept


def _components(record: dict[str, Any]) -> tuple[LogDensity, int]:
    """Σ_c p_c vMF(mean_c, κ_c)."""
    one = record["law"] == "von_mises_fisher"
    try:
        means = np.atleast_2d(np.asarray(record["mean" if one else "means"], dtype=float))
        kappas = np.atleast_1d(np.asarray(record["kappa" if one else "kappas"], dtype=float))
        shares = np.ones(1) if one else np.asarray(record["proportions"], dtype=float)
        means = means / np.linalg.norm(means, axis=1, keepdims=True)
        constants = np.array([_log_constant(real(k, "kappa", "0 or more"), means.shape[1]) for k in kappas])
        with np.errstate(divide="ignore"):
            heights = np.log(shares) + constants
        np.broadcast_shapes(heights.shape, (len(means),))
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"law {record['law']!r} is incomplete or misshapen ({error}); {REMEDY}") from None

    def density(x: np.ndarray) -> np.ndarray:
        apart = ((x[:, None, :] - means) ** 2).sum(axis=2)
        return np.asarray(special.logsumexp(heights - 0.5 * kappas * apart, axis=1))

    return density, means.shape[1]


def _log_constant(kappa: float, d: int) -> float:
    """log c with density c·e^{−κ|x − mean|²/2} = c·e^{κ(⟨mean, x⟩ − 1)}."""
    if kappa == 0:
        return math.lgamma(d / 2) - math.log(2) - 0.5 * d * math.log(math.pi)
    order = d / 2 - 1
    return order * math.log(kappa) - 0.5 * d * math.log(2 * math.pi) - math.log(special.ive(order, kappa))


def _checked(law: Callable[[Any], Any]) -> LogDensity:
    def density(x: np.ndarray) -> np.ndarray:
        values = tensor(law(torch.from_numpy(x)), "the log-density", finite=False).cpu().double().numpy()
        if values.shape != (len(x),):
            raise BadInput(f"the log-density returned shape {values.shape} for {len(x)} points; it must be (n,)")
        if np.isnan(values).any() or (values == np.inf).any():
            raise BadInput("the log-density returned NaN or +inf; it must be a number or −inf everywhere")
        return np.asarray(values)

    return density
