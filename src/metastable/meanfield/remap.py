"""How mass passes from old triangles to new ones that cover the same ground: conservatively, and without leaks.

The law inside a triangle T with corners v_i is the uniform law on the smaller triangle

    T' = c + s (T − v̄),     c = Σ b_i v_i the centre of mass,   v̄ the centroid,   0 ≤ s ≤ 3 min_i b_i,

so that T' lies in T. A constant density has b = (1/3, 1/3, 1/3), s = 1; a linear one has its exact mass and centre; a
cluster much narrower than its cell has s near 0 and stays where it is. Each T' is cut along the new triangles. A new
triangle gets the sum of the pieces that lie in it, their common centre, and the s that gives their mean squared
distance from it. Mass and centre of mass are conserved, and nothing moves further than the triangle it was in. Pieces
below 1e-10 of a T' are rounding, and are not handed out: the neighbour may be lighter by a factor e^-300.

Triangles that carry different labels exchange nothing.
"""

import math
from typing import NamedTuple

import numpy as np

from metastable.attention.tree.vectors import kernel

DEGREE = 40
"""The most triangles that an operation may touch at once."""

_DUST = 1e-10
_POINT = 1e-6


class Patch(NamedTuple):
    """Workspace: the triangles before and after in one plane chart, and what each old one gives to each new one."""

    old: np.ndarray  # (DEGREE, 3, 2) corners in the chart
    old_mass: np.ndarray  # logarithms
    old_centre: np.ndarray  # (DEGREE, 3) barycentric
    old_spread: np.ndarray
    old_label: np.ndarray
    new: np.ndarray
    new_mass: np.ndarray
    new_centre: np.ndarray
    new_spread: np.ndarray
    new_label: np.ndarray
    share: np.ndarray  # (DEGREE, DEGREE, 4): fraction, centre (2), mean squared distance from it
    polygon: np.ndarray  # (2, 12, 2)
    ring: np.ndarray  # (DEGREE, 2) triangles around a vertex, and which corner of theirs it is
    spare: np.ndarray  # another ring
    chart: np.ndarray  # (3, 3): two tangent vectors and the point of contact


def make_patch() -> Patch:
    n = DEGREE
    side = (np.zeros((n, 3, 2)), np.zeros(n), np.zeros((n, 3)), np.zeros(n), np.zeros(n, dtype=np.int8))
    other = tuple(np.zeros_like(a) for a in side)
    ring = np.zeros((n, 2), dtype=np.int64)
    return Patch(*side, *other, np.zeros((n, n, 4)), np.zeros((2, 12, 2)), ring, np.zeros_like(ring), np.zeros((3, 3)))


@kernel
def area2(t):
    """Twice the signed area of a plane triangle."""
    return (t[1, 0] - t[0, 0]) * (t[2, 1] - t[0, 1]) - (t[2, 0] - t[0, 0]) * (t[1, 1] - t[0, 1])


@kernel
def spread2(t):
    """Mean squared distance from the centroid over a triangle: the sum of the squared sides over 36."""
    total = 0.0
    for i in range(3):
        j = (i + 1) % 3
        total += (t[i, 0] - t[j, 0]) ** 2 + (t[i, 1] - t[j, 1]) ** 2
    return total / 36.0


@kernel
def _barycentric(t, x, y):
    a = area2(t)
    b1 = ((x - t[0, 0]) * (t[2, 1] - t[0, 1]) - (t[2, 0] - t[0, 0]) * (y - t[0, 1])) / a
    b2 = ((t[1, 0] - t[0, 0]) * (y - t[0, 1]) - (x - t[0, 0]) * (t[1, 1] - t[0, 1])) / a
    return 1.0 - b1 - b2, b1, b2


@kernel
def _cut(polygon, size, t):
    """Cut polygon[0] (`size` corners) by the triangle t, counter-clockwise: the number of corners, again in polygon[0].

    One half-plane after the other (Sutherland and Hodgman).
    """
    for side in range(3):
        ax, ay = t[side, 0], t[side, 1]
        dx, dy = t[(side + 1) % 3, 0] - ax, t[(side + 1) % 3, 1] - ay
        left = 0
        for i in range(size):
            px, py = polygon[0, i, 0], polygon[0, i, 1]
            qx, qy = polygon[0, (i + 1) % size, 0], polygon[0, (i + 1) % size, 1]
            fp = dx * (py - ay) - dy * (px - ax)
            fq = dx * (qy - ay) - dy * (qx - ax)
            if fp >= 0.0:
                polygon[1, left, 0], polygon[1, left, 1] = px, py
                left += 1
            if (fp > 0.0 and fq < 0.0) or (fp < 0.0 and fq > 0.0):
                r = fp / (fp - fq)
                polygon[1, left, 0], polygon[1, left, 1] = px + r * (qx - px), py + r * (qy - py)
                left += 1
        size = left
        for i in range(size):
            polygon[0, i, 0], polygon[0, i, 1] = polygon[1, i, 0], polygon[1, i, 1]
        if size < 3:
            return 0
    return size


@kernel
def _moments(polygon, size):
    """Area, centre and mean squared distance from the centre of polygon[0], by triangles from its first corner."""
    ox, oy = polygon[0, 0, 0], polygon[0, 0, 1]
    area = mx = my = square = 0.0
    for i in range(1, size - 1):
        ax, ay = polygon[0, i, 0] - ox, polygon[0, i, 1] - oy
        bx, by = polygon[0, i + 1, 0] - ox, polygon[0, i + 1, 1] - oy
        a = 0.5 * (ax * by - bx * ay)
        area += a
        mx += a * (ax + bx) / 3.0
        my += a * (ay + by) / 3.0
        square += a * (ax * ax + ay * ay + bx * bx + by * by + ax * bx + ay * by) / 6.0
    if area <= 0.0:
        return 0.0, ox, oy, 0.0
    mx, my = mx / area, my / area
    return area, ox + mx, oy + my, max(square / area - mx * mx - my * my, 0.0)


@kernel
def _home(patch, k, new, x, y):
    """The new triangle in which the point (x, y) of old triangle k lies, or lies nearly."""
    best, found = -1e300, -1
    for j in range(new):
        if patch.new_label[j] == patch.old_label[k]:
            b0, b1, b2 = _barycentric(patch.new[j], x, y)
            depth = min(b0, min(b1, b2))
            if depth > best:
                best, found = depth, j
    return found


@kernel
def _blob(patch, k):
    """Write T' of old triangle k into polygon[0], counter-clockwise. Its centre and the spread of T."""
    t, b, s = patch.old[k], patch.old_centre[k], patch.old_spread[k]
    cx = b[0] * t[0, 0] + b[1] * t[1, 0] + b[2] * t[2, 0]
    cy = b[0] * t[0, 1] + b[1] * t[1, 1] + b[2] * t[2, 1]
    mx, my = (t[0, 0] + t[1, 0] + t[2, 0]) / 3.0, (t[0, 1] + t[1, 1] + t[2, 1]) / 3.0
    turned = area2(t) < 0.0
    for i in range(3):
        to = (3 - i) % 3 if turned else i
        patch.polygon[0, to, 0] = cx + s * (t[i, 0] - mx)
        patch.polygon[0, to, 1] = cy + s * (t[i, 1] - my)
    return cx, cy, spread2(t)


@kernel
def _hand_out(patch, k, new):
    """Fill share[k, :new] with fractions that add up to 1. False if no new triangle has the label of k."""
    share = patch.share[k]
    for j in range(new):
        share[j, 0] = 0.0
    cx, cy, wide = _blob(patch, k)
    whole, _, _, _ = _moments(patch.polygon, 3)
    total = 0.0
    if patch.old_spread[k] > _POINT and whole > 0.0:
        for j in range(new):
            if patch.new_label[j] != patch.old_label[k]:
                continue
            _blob(patch, k)
            size = _cut(patch.polygon, 3, patch.new[j])
            if size > 2:
                area, x, y, square = _moments(patch.polygon, size)
                if area > _DUST * whole:
                    share[j, 0], share[j, 1], share[j, 2], share[j, 3] = area, x, y, square
                    total += area
    if total > 1e-3 * whole:
        for j in range(new):
            share[j, 0] /= total
        return True
    j = _home(patch, k, new, cx, cy)
    if j < 0:
        return False
    for i in range(new):
        share[i, 0] = 0.0
    share[j, 0], share[j, 1], share[j, 2] = 1.0, cx, cy
    share[j, 3] = patch.old_spread[k] ** 2 * wide
    return True


@kernel
def _take_in(patch, j, old):
    """Mass, centre and spread of new triangle j from what it was handed."""
    top = -math.inf
    for k in range(old):
        if patch.share[k, j, 0] > 0.0:
            top = max(top, patch.old_mass[k])
    if top == -math.inf:
        patch.new_mass[j], patch.new_spread[j] = -math.inf, 1.0
        for i in range(3):
            patch.new_centre[j, i] = 1.0 / 3.0
        return
    mass = x = y = 0.0
    for k in range(old):
        if patch.share[k, j, 0] > 0.0:
            w = patch.share[k, j, 0] * math.exp(patch.old_mass[k] - top)
            mass += w
            x += w * patch.share[k, j, 1]
            y += w * patch.share[k, j, 2]
    x, y, square = x / mass, y / mass, 0.0
    for k in range(old):
        if patch.share[k, j, 0] > 0.0:
            w = patch.share[k, j, 0] * math.exp(patch.old_mass[k] - top)
            away = (patch.share[k, j, 1] - x) ** 2 + (patch.share[k, j, 2] - y) ** 2
            square += w * (patch.share[k, j, 3] + away)
    b0, b1, b2 = _barycentric(patch.new[j], x, y)
    b0, b1, b2 = max(b0, 0.0), max(b1, 0.0), max(b2, 0.0)
    total = b0 + b1 + b2
    patch.new_mass[j] = top + math.log(mass)
    patch.new_centre[j, 0], patch.new_centre[j, 1], patch.new_centre[j, 2] = b0 / total, b1 / total, b2 / total
    spread = math.sqrt(square / mass / spread2(patch.new[j]))
    patch.new_spread[j] = min(spread, 3.0 * min(b0, min(b1, b2)) / total)


@kernel
def remap(patch, old, new):
    """Pass the mass of `old` triangles on to `new` ones. False, and nothing is to be used, if some has no home."""
    for k in range(old):
        if not _hand_out(patch, k, new):
            return False
    for j in range(new):
        _take_in(patch, j, old)
    return True
