"""The first triangulation: the faces of an icosahedron are cut into f² triangles and projected to the sphere.

The axis through two opposite vertices is rotated onto `pole`. For even f the great circle {⟨pole, x⟩ = 0} is then made
of edges: it joins the midpoints of ten edges of the icosahedron, and no triangle crosses it.
"""

from __future__ import annotations

import math

import numpy as np

from metastable.errors import BadInput
from metastable.flow.meanfield.laws import LogDensity

MOST_CELLS = 20_000_000
OF_ALL, OF_ITSELF, DEEPEST = 1e-12, 1e-2, 5
"""A cell is cut in four, at most DEEPEST times, if the error of its mass exceeds these shares of all and of its own."""
BLOCK = 20_000
"""How many triangles are refined at a time, which bounds the memory for a steep density."""


def _icosahedron() -> tuple[np.ndarray, np.ndarray]:
    """Twelve vertices, the first and last at ±(0, 0, 1), and twenty faces, counter-clockwise from outside."""
    z, r = 1 / math.sqrt(5), 2 / math.sqrt(5)
    turn = 2 * math.pi * np.arange(5) / 5
    upper = np.stack([r * np.cos(turn), r * np.sin(turn), np.full(5, z)], axis=1)
    lower = np.stack([r * np.cos(turn + math.pi / 5), r * np.sin(turn + math.pi / 5), np.full(5, -z)], axis=1)
    vertices = np.concatenate([[[0, 0, 1]], upper, lower, [[0, 0, -1]]])
    i = np.arange(5)
    u, v, x, y = 1 + i, 1 + (i + 1) % 5, 6 + i, 6 + (i + 1) % 5
    faces = [np.stack(f, axis=1) for f in ((0 * i, u, v), (u, x, v), (v, x, y), (x, 11 + 0 * i, y))]
    return vertices, np.concatenate(faces)


def _turned(vertices: np.ndarray, pole: np.ndarray) -> np.ndarray:
    """The vertices after a rotation that takes (0, 0, 1) to the unit vector `pole`."""
    basis = np.linalg.qr(np.column_stack([pole, np.eye(3)]))[0][:, :3]
    basis = basis * np.sign(basis[:, 0] @ pole)
    rotation = basis[:, [1, 2, 0]]
    return vertices @ (rotation * [1, np.sign(np.linalg.det(rotation)), 1]).T


def _cut_faces(vertices: np.ndarray, faces: np.ndarray, f: int) -> tuple[np.ndarray, np.ndarray]:
    """Each face into f² triangles; vertices on common edges are met twice and then joined by number, not by position.

    A lattice point is Σ w_i v_i/f with whole w_i; vertices w_i = 0 drop out, so the sorted pairs (vertex, w) name it.
    """
    a, b = (g.ravel() for g in np.meshgrid(np.arange(f + 1), np.arange(f + 1), indexing="ij"))
    inside = a + b <= f
    weights = np.stack([f - a - b, a, b], axis=1)[inside]
    number = np.full((f + 1, f + 1), -1)
    number.ravel()[inside] = np.arange(len(weights))
    i, j = (g.ravel() for g in np.meshgrid(np.arange(f), np.arange(f), indexing="ij"))
    up, down = i + j < f, i + j < f - 1
    local = np.concatenate(
        [
            np.stack([number[i, j], number[i + 1, j], number[i, j + 1]], axis=1)[up],
            np.stack([number[i + 1, j], number[i + 1, j + 1], number[i, j + 1]], axis=1)[down],
        ]
    )
    names = np.where(weights[None] > 0, faces[:, None, :] * (f + 1) + weights[None], -1).reshape(-1, 3)
    names.sort(axis=1)
    key = (names + 1).astype(np.int64) @ np.array([1, 12 * (f + 1) + 1, (12 * (f + 1) + 1) ** 2])
    _, first, joined = np.unique(key, return_index=True, return_inverse=True)
    points = np.einsum("kw,fwd->fkd", weights / f, vertices[faces]).reshape(-1, 3)[first]
    corners = joined.reshape(len(faces), -1)[:, local].reshape(-1, 3)
    return points / np.linalg.norm(points, axis=1, keepdims=True), corners


def sphere(longest: float, pole: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vertices (n, 3) and triangles (m, 3) of the whole sphere with no edge (chord) longer than `longest`."""
    vertices, faces = _icosahedron()
    vertices = _turned(vertices, pole)
    f = 2
    while True:
        if 20 * f * f > MOST_CELLS:
            raise BadInput(f"longest is {longest:g}: that takes more than {MOST_CELLS:,} triangles; use a larger one")
        points, corners = _cut_faces(vertices, faces, f)
        edge = max(
            float(np.linalg.norm(points[corners[:, i]] - points[corners[:, i - 1]], axis=1).max()) for i in range(3)
        )
        if edge <= longest:
            break
        f = max(f + 2, 2 * math.floor(0.5 * f * edge / longest))
    equator = np.abs(points @ pole) < 1e-9
    points[equator] -= np.outer(points[equator] @ pole, pole)
    return points / np.linalg.norm(points, axis=1, keepdims=True), corners


def neighbours(corners: np.ndarray) -> np.ndarray:
    """across (m, 3): the triangle on the other side of the edge opposite each corner."""
    m = len(corners)
    ends = np.stack([np.roll(corners, -1, axis=1), np.roll(corners, -2, axis=1)], axis=2).reshape(-1, 2)
    order = np.lexsort((ends.max(axis=1), ends.min(axis=1)))
    across = np.empty(3 * m, dtype=np.int64)
    across[order[0::2]], across[order[1::2]] = order[1::2] // 3, order[0::2] // 3
    return across.reshape(m, 3)


# The seven-point rule of degree 5 on a triangle (Radon).
_A, _B = (6 - math.sqrt(15)) / 21, (6 + math.sqrt(15)) / 21
_RULE = np.array([[1 / 3] * 3] + [[1 - 2 * s if i == j else s for j in range(3)] for s in (_A, _B) for i in range(3)])
_WEIGHTS = np.array([9 / 40] + [(155 - math.sqrt(15)) / 1200] * 3 + [(155 + math.sqrt(15)) / 1200] * 3)


def _rule(corners: np.ndarray, log_density: LogDensity) -> tuple[np.ndarray, np.ndarray]:
    """∫ρ over spherical triangles (k, 3, 3), as logarithms (k,), and their centres of mass (k, 3) in space.

    In the plane triangle, y = Σ b_i v_i, the solid angle is dΩ = det(v₀, v₁, v₂) db₁ db₂/|y|³ (Σ b_i = 1).
    """
    y = np.einsum("ri,kid->krd", _RULE, corners)
    norm = np.linalg.norm(y, axis=2)
    y /= norm[:, :, None]
    logs = np.asarray(log_density(y.reshape(-1, 3)), dtype=np.float64).reshape(norm.shape)
    if not (logs < np.inf).all():
        raise BadInput("log_density is infinite or not a number somewhere on the sphere; it must be below infinity")
    top = np.maximum(logs.max(axis=1), -1e300)
    parts = _WEIGHTS * np.exp(logs - top[:, None]) / norm**3
    total = parts.sum(axis=1)
    centres = np.einsum("kr,krd->kd", parts, y) / np.where(total > 0, total, 1)[:, None]
    with np.errstate(divide="ignore"):
        return top + np.log(total) + np.log(0.5 * np.linalg.det(corners)), centres


def _quarters(corners: np.ndarray) -> np.ndarray:
    """Each spherical triangle (k, 3, 3) cut in four at the midpoints of its edges: (4k, 3, 3)."""
    middle = corners + np.roll(corners, -1, axis=1)
    middle /= np.linalg.norm(middle, axis=2, keepdims=True)
    a, b, c = (corners[:, i] for i in range(3))
    ab, bc, ca = (middle[:, i] for i in range(3))
    parts = [(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)]
    return np.stack([np.stack(part, axis=1) for part in parts], axis=1).reshape(-1, 3, 3)


def integrals(corners: np.ndarray, log_density: LogDensity) -> tuple[np.ndarray, np.ndarray]:
    """log ∫ρ and the centre of mass over each spherical triangle (k, 3, 3)."""
    coarse, _ = _rule(corners, log_density)
    return _refined(corners, coarse, log_density, float(np.logaddexp.reduce(coarse)), DEEPEST)


def _refined(
    corners: np.ndarray, coarse: np.ndarray, log_density: LogDensity, whole: float, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """The rule on the quarters of each triangle, and deeper where the quarters and the triangle (`coarse`) disagree.

    For a smooth density the error of the sum over the quarters is about 1/64 of the difference.
    """
    if len(corners) > BLOCK:
        cuts = range(BLOCK, len(corners), BLOCK)
        blocks = zip(np.split(corners, cuts), np.split(coarse, cuts), strict=True)
        done = [_refined(block, logs, log_density, whole, depth) for block, logs in blocks]
        return np.concatenate([logs for logs, _ in done]), np.concatenate([centres for _, centres in done])
    parts = _quarters(corners)
    logs, centres = _rule(parts, log_density)
    logs, centres = logs.reshape(-1, 4), centres.reshape(-1, 4, 3)
    fine = np.logaddexp.reduce(logs, axis=1)
    with np.errstate(invalid="ignore"):
        difference = np.abs(np.expm1(coarse - fine))
        rough = (difference > OF_ITSELF) | (difference * np.exp(fine - whole) > OF_ALL)
    if depth and rough.any():
        inner = parts.reshape(-1, 4, 3, 3)[rough].reshape(-1, 3, 3)
        found, middle = _refined(inner, logs[rough].ravel(), log_density, whole, depth - 1)
        logs[rough], centres[rough] = found.reshape(-1, 4), middle.reshape(-1, 4, 3)
        fine = np.logaddexp.reduce(logs, axis=1)
    shares = np.exp(logs - np.where(fine > -np.inf, fine, 0)[:, None])
    return fine, np.einsum("kq,kqd->kd", shares, centres)
