"""Laws on the sphere as weighted clouds fitted to one query: Gauss–Legendre panels that narrow towards its direction.

A softmax mean at the score κ sees a cap of radius κ^{−1/2} around û. The panels double in length from half of that
radius outwards, stop where e^{−κ(1 − cos)} is below rounding, and break where a density jumps. Densities are functions
of z, the last coordinate; they are taken with respect to the uniform law and need not be normalised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from metastable.cloud import Cloud

NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)
REACH = 8.0
"""Panels start within this many radii of û; beyond, the softmax weight is below e^{−32}."""
JUMP_LOW = 0.2
ATOM = 1.0
SMOOTH_SLOPE = 2.0

Density = Callable[[np.ndarray], np.ndarray]


def uniform(z: np.ndarray) -> np.ndarray:
    """f = 1."""
    return np.ones_like(z)


def smooth(z: np.ndarray) -> np.ndarray:
    """f = e^{2z}: von Mises–Fisher."""
    return np.asarray(np.exp(SMOOTH_SLOPE * z))


def jump(z: np.ndarray) -> np.ndarray:
    """f = 1 above the equator and 0.2 below: bounded below, and not continuous."""
    return np.where(z > 0, 1.0, JUMP_LOW)


def edges(centre: float, radius: float, low: float, high: float, breaks: Sequence[float] = ()) -> np.ndarray:
    """The ends of the panels on [low, high]: centre ± radius·(½, 1, 2, …), and `breaks`."""
    steps = 0.5 * radius * 2.0 ** np.arange(max(2, math.ceil(math.log2(4 * (high - low) / radius))))
    ends = np.concatenate([[centre, low, high], centre + steps, centre - steps, np.asarray(breaks, dtype=float)])
    return np.unique(ends[(ends >= low) & (ends <= high)])


def nodes(ends: np.ndarray, centre: float, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Gauss–Legendre nodes and weights on all panels that come within `reach` of the centre; all if that is above 1."""
    a, b = ends[:-1], ends[1:]
    # Beyond an angle of 1 the cosine is not a parabola any more, and REACH radii are not enough.
    reach = reach if reach < 1 else math.inf
    near = (a < centre + reach) & (b > centre - reach)
    half, middle = 0.5 * (b - a)[near, None], 0.5 * (a + b)[near, None]
    return (middle + half * NODES).ravel(), (half * WEIGHTS).ravel()


def cloud(direction: np.ndarray, kappa: float, density: Density) -> Cloud:
    """The law with this density as seen by a query κû; d = 2 and 3, and for the uniform law every d."""
    if density is uniform and len(direction) > 3:
        return _about_axis(direction, kappa)
    return _on_circle(direction, kappa, density) if len(direction) == 2 else _on_sphere(direction, kappa, density)


def _weighted(points: np.ndarray, weights: np.ndarray) -> Cloud:
    return Cloud(torch.from_numpy(points), weights=torch.from_numpy(weights))


def _circle_nodes(direction: np.ndarray, kappa: float) -> tuple[np.ndarray, np.ndarray]:
    """Angles φ of points (sin φ, cos φ), so that z = cos φ and the equator is at φ = ±π/2, and their weights."""
    centre, radius = math.atan2(direction[0], direction[1]), kappa**-0.5
    equators = [k * math.pi / 2 for k in range(-5, 6, 2)]
    ends = edges(centre, radius, centre - math.pi, centre + math.pi, equators)
    return nodes(ends, centre, REACH * radius)


def _circle_points(phi: np.ndarray) -> np.ndarray:
    return np.stack([np.sin(phi), np.cos(phi)], axis=1)


def _on_circle(direction: np.ndarray, kappa: float, density: Density) -> Cloud:
    phi, w = _circle_nodes(direction, kappa)
    return _weighted(_circle_points(phi), w * density(np.cos(phi)))


def _on_sphere(direction: np.ndarray, kappa: float, density: Density) -> Cloud:
    """Polar angle and azimuth, with z = cos of the polar angle."""
    polar, azimuth = (
        math.atan2(math.hypot(direction[0], direction[1]), direction[2]),
        math.atan2(direction[1], direction[0]),
    )
    radius = kappa**-0.5
    turned = radius / max(math.sin(polar), radius)
    theta, w = nodes(edges(polar, radius, 0.0, math.pi, [math.pi / 2]), polar, REACH * radius)
    # Rows near a pole are short, so all of the azimuth counts unless the cap stays away from both.
    clear = REACH * radius < 0.5 * min(polar, math.pi - polar)
    far = REACH * turned if clear else math.inf
    psi, v = nodes(edges(azimuth, turned, azimuth - math.pi, azimuth + math.pi), azimuth, far)
    z, r = np.cos(theta)[:, None], np.sin(theta)[:, None]
    points = np.stack(np.broadcast_arrays(r * np.cos(psi), r * np.sin(psi), z), axis=-1).reshape(-1, 3)
    return _weighted(points, ((w * np.sin(theta) * density(np.cos(theta)))[:, None] * v).ravel())


def _about_axis(direction: np.ndarray, kappa: float) -> Cloud:
    """The uniform law in any d: at the angle θ from û the density sin^{d−2} θ, at two opposite points of its circle."""
    d = len(direction)
    # sin^{d−2} θ e^{κ cos θ} is largest at this angle and falls off on this scale.
    cosine = 2 * kappa / (d - 2 + math.hypot(d - 2, 2 * kappa))
    centre = math.acos(cosine)
    radius = ((d - 2) / max(math.sin(centre) ** 2, 1e-300) + kappa * cosine) ** -0.5 if d > 2 else kappa**-0.5
    theta, w = nodes(edges(centre, radius, 0.0, math.pi), centre, REACH * radius)
    side = np.linalg.svd(direction[None, :])[2][1]
    along, across = np.cos(theta)[:, None] * direction, np.sin(theta)[:, None] * side
    masses = w * (np.sin(theta) / math.sin(centre)) ** (d - 2)
    return _weighted(np.concatenate([along + across, along - across]), np.concatenate([masses, masses]))


def with_atom(direction: np.ndarray, kappa: float) -> Cloud:
    """On the circle, density 1 for every radian and an atom of mass ATOM at z = 1."""
    phi, w = _circle_nodes(direction, kappa)
    return _weighted(_circle_points(np.append(phi, 0.0)), np.append(w, ATOM))
