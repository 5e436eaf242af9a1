"""Where to ask for the softmax mean: directions û over the sphere, near a jump and near an atom, and the x behind."""

from __future__ import annotations

import math

import numpy as np

from metastable.head import Head


def sources(head: Head, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The x that look in the given directions, Bᵀx ∝ û, and |Bᵀx|."""
    x = np.linalg.solve(head.B.numpy().T, directions.T).T
    sizes = 1 / np.linalg.norm(x, axis=1)
    return x * sizes[:, None], sizes


def all_over(head: Head, n: int) -> np.ndarray:
    """Directions all over the sphere, and the one in which |Bᵀx| is least."""
    weakest = np.linalg.svd(head.B.numpy().T)[0][:, -1]
    d = head.dim
    turn = 2 * np.pi * (np.arange(n) + 0.5) / n
    if d == 2:
        even = np.stack([np.sin(turn), np.cos(turn)], axis=1)
    elif d == 3:
        polar, azimuth = (a.ravel() for a in np.meshgrid(np.pi * (np.arange(n // 2) + 0.5) / (n // 2), turn))
        even = _polar(polar, azimuth)
    else:
        even = np.random.default_rng(0).standard_normal((n, d))
    return np.vstack([even / np.linalg.norm(even, axis=1, keepdims=True), weakest])


def _polar(polar: np.ndarray, azimuth: np.ndarray) -> np.ndarray:
    return np.stack([np.sin(polar) * np.cos(azimuth), np.sin(polar) * np.sin(azimuth), np.cos(polar)], axis=1)


def near_equator(head: Head, beta: float, angles: int, offsets: int, reach: float = 2.0) -> tuple[np.ndarray, float]:
    """Directions up to 2 radii κ^{−½} from the equator, where laws jump, and the least κ on it."""
    angles = 2 if head.dim == 2 else angles
    azimuth = 2 * np.pi * np.arange(angles) / angles
    flat = np.full_like(azimuth, math.pi / 2)
    kappa = beta * sources(head, _flat(_polar(flat, azimuth), head.dim))[1]
    steps = np.linspace(-reach, reach, offsets)
    polar = (flat[:, None] + steps / np.sqrt(kappa)[:, None]).ravel()
    return _flat(_polar(polar, np.repeat(azimuth, len(steps))), head.dim), float(kappa.min())


def _flat(directions: np.ndarray, d: int) -> np.ndarray:
    """For the circle the first and the last coordinate."""
    return directions if d == 3 else directions[:, [0, 2]]


def near_pole(head: Head, beta: float, offsets: int, reach: float = 6.0) -> tuple[np.ndarray, float]:
    """Directions of the circle up to 6 radii κ^{−½} from z = 1, where the atom is, and κ there."""
    kappa = beta * float(sources(head, np.array([[0.0, 1.0]]))[1][0])
    phi = np.linspace(-reach, reach, offsets) / math.sqrt(kappa)
    return np.stack([np.sin(phi), np.cos(phi)], axis=1), kappa
