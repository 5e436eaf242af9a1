"""Distance to the limit law against time on the circle: the mean field at some β, and exactly at zero temperature.

Equal tokens would leave the plateau too early, once none of them is left near {Πx = 0}; so at finite β the continuity
equation itself is solved, and at zero temperature a cloud graded towards {Πx = 0} follows the exact flow.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from metastable.claims.prescribed import circle_head
from metastable.cloud import graded
from metastable.flow.exact import zero_temperature_flow
from metastable.head import Head
from metastable.run.mean_field import refined
from metastable.transport import two_atoms

COLD_TOKENS = 4000
SMALLEST = 1e-14
"""The graded tokens come so close to {Πx = 0}; closer ones would be lost to rounding."""


class Curve(NamedTuple):
    """W₂(μ_t, ν) from the uniform law at each time, and the error of its discretisation at each time."""

    beta: float
    times: np.ndarray
    distance: np.ndarray
    error: np.ndarray


def circle_heads() -> dict[str, Head]:
    """Three heads of the circle whose plateau ends early enough to be seen."""
    return {
        "B turned by 0.3, V by −0.5": circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5)),
        "B turned by 0.5, V by −0.3": circle_head(0.5, (1.5, 0.6), -0.3, (1.0, 0.7)),
        "B turned by 0.2, V by −0.3": circle_head(0.2, (1.4, 0.7), -0.3, (1.2, 0.5)),
    }


def refusal(head: Head) -> str | None:
    """Why there are no such curves for this head: they need the circle and a limit law of two atoms."""
    if head.dim != 2:
        return f"this head has d = {head.dim}; the experiment solves the mean-field equation on the circle, d = 2"
    if head.offset is not None:
        return "this head's scores have an offset, and the theory has none"
    th = head.theory()
    if th.no_limit:
        return th.no_limit
    if th.dim != 1 or not th.attention.semisimple or th.singular:
        return "the experiment needs an invertible B and a limit law of two atoms ±e; this head has other"
    return None


def warm_curve(head: Head, beta: float, times: np.ndarray, tol: float) -> Curve:
    """At inverse temperature β, by the mean-field solver."""
    # A solver that stops short of `tol` says so in its error, which is carried along.
    run = refined(head, "uniform", beta, float(times[-1]), tol, t_eval=times.tolist(), progress=False)
    found = run.distance()
    error = 0.5 * (found["upper"].values - found["lower"].values)
    return Curve(beta, run.times.numpy(), found.values, error)


def cold_curve(head: Head, times: np.ndarray) -> Curve:
    """At zero temperature, by the exact flow of a graded cloud; the error is the change when half as many are taken."""
    fine, coarse = (_cold(head, times, n) for n in (COLD_TOKENS, COLD_TOKENS // 2))
    return Curve(math.inf, times, fine, np.abs(fine - coarse))


def _cold(head: Head, times: np.ndarray, tokens: int) -> np.ndarray:
    e, cloud = head.theory().basis[:, 0].double(), graded(tokens, head, SMALLEST)
    frames = zero_temperature_flow(head, cloud, torch.from_numpy(times))
    up = head.theory().limit(cloud.points) @ e > 0
    # The masses of its own limit: ½ and ½ would be off by a share of one token, which late times would see.
    masses = [float(cloud.weights[side].sum()) for side in (up, ~up)]
    return np.array([two_atoms(x, cloud.weights, torch.stack([e, -e]), masses).value for x in frames])
