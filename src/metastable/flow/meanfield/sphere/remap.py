"""The transfer of mass from old triangles to new ones that cover the same area, which conserves the mass.

Inside a triangle T the mass has a linear density, either on all of T or, if it is much narrower than T (a ridge, a
cluster), on a segment PQ in T, which may be a point. The `law` of T is a 3×3 matrix of barycentric coordinates. Its
first row describes the centre of mass:

- on T: t_i of corner i, between 1/4 and 1/2; the density at corner i is 12 t_i − 3 times the mean;
- on PQ: (t_P, t_Q, 0), between 1/3 and 2/3; the density at P is 6 t_P − 2 times the mean.

The two other rows are P and Q. Each law is cut along the new triangles. A new triangle N gets the pieces that lie in
it, with their mass, their centre c and their covariance C. Let S be the covariance of the uniform law on N. If C ≥ S/5
and the tilt for the centre c is allowed, N gets the law on all of N with that centre. Otherwise it gets one on a
segment through c, along n·(x − c) = 0 where n minimises nᵀCn/nᵀSn, as long as N allows or shorter if C is smaller. So
mass and centre of mass are conserved, a linear density is reproduced, a ridge stays on its line and a cluster
stays in place. Pieces below 1e-10 of a law are rounding and dropped: the neighbour may be lighter by a factor e^-300.

A new triangle that would get nothing takes a tail, which a law on a segment leaves out: a share of 1e-2 of one old law
is spread over its triangle, and the new triangle gets the part in it. The lightest of the overlapping laws is used.

Triangles that carry different labels exchange nothing.
"""

import math
from typing import NamedTuple

import numpy as np

from metastable.attention.tree.vectors import inlined, inner

DEGREE = 40
"""The most triangles that an operation may touch at once."""

# Pieces below this share of a law are rounding.
_DUST = 1e-10
# Share of a law that is spread over its triangle for new triangles that would get nothing.
_TAIL = 1e-2
# A law is narrow if its least variance is below this share of that of the uniform law.
_NARROW = 0.2
_SHORT = 0.05


class Patch(NamedTuple):
    """Workspace: the triangles before and after in one plane chart, and what each old one gives to each new one."""

    old: np.ndarray  # (DEGREE, 3, 2) corners in the chart
    old_mass: np.ndarray  # logarithms
    old_law: np.ndarray  # (DEGREE, 3, 3)
    old_line: np.ndarray  # whether the law is on a segment
    old_label: np.ndarray
    new: np.ndarray
    new_mass: np.ndarray
    new_law: np.ndarray
    new_line: np.ndarray
    new_label: np.ndarray
    share: np.ndarray  # (DEGREE, DEGREE, 6): fraction, centre (2), covariance (xx, xy, yy)
    sizes: np.ndarray  # (2,): how many old and new triangles there are
    polygon: np.ndarray  # (2, 12, 2)
    level: np.ndarray  # (12,) density at the corners of a polygon
    ring: np.ndarray  # (DEGREE, 2) triangles around a vertex, and which corner of theirs it is
    spare: np.ndarray  # another ring
    chart: np.ndarray  # (3, 3): two tangent vectors and the point of contact


def make_patch() -> Patch:
    n = DEGREE
    side = [((n, 3, 2), float), ((n,), float), ((n, 3, 3), float), ((n,), np.int8), ((n,), np.int8)]
    room = [((n, n, 6), float), ((2,), np.int64), ((2, 12, 2), float), ((12,), float)]
    rings = [((n, 2), np.int64), ((n, 2), np.int64), ((3, 3), float)]
    return Patch._make(np.zeros(shape, dtype=kind) for shape, kind in (*side, *side, *room, *rings))


@inner
def area2(t):
    """Twice the signed area of a plane triangle."""
    return (t[1, 0] - t[0, 0]) * (t[2, 1] - t[0, 1]) - (t[2, 0] - t[0, 0]) * (t[1, 1] - t[0, 1])


@inner
def _barycentric(t, x, y):
    a = area2(t)
    b1 = ((x - t[0, 0]) * (t[2, 1] - t[0, 1]) - (t[2, 0] - t[0, 0]) * (y - t[0, 1])) / a
    b2 = ((t[1, 0] - t[0, 0]) * (y - t[0, 1]) - (x - t[0, 0]) * (t[1, 1] - t[0, 1])) / a
    return 1.0 - b1 - b2, b1, b2


@inner
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


@inner
def _moments(polygon, level, size):
    """Mass, centre and covariance of a linear density on polygon[0], `level` at its corners.

    By triangles from the first corner, with ∫λ_i³ = A/10, ∫λ_i²λ_j = A/30, ∫λ₀λ₁λ₂ = A/60 on a triangle of area A.
    """
    ox, oy = polygon[0, 0, 0], polygon[0, 0, 1]
    mass = mx = my = xx = xy = yy = 0.0
    for i in range(1, size - 1):
        ax, ay = polygon[0, i, 0] - ox, polygon[0, i, 1] - oy
        bx, by = polygon[0, i + 1, 0] - ox, polygon[0, i + 1, 1] - oy
        area = 0.5 * (ax * by - bx * ay)
        f, g = level[i], level[i + 1]
        whole = level[0] + f + g
        mass += area * whole / 3.0
        a, b = area * (whole + f) / 12.0, area * (whole + g) / 12.0
        mx += a * ax + b * bx
        my += a * ay + b * by
        a, b, c = area * (whole + 2.0 * f) / 30.0, area * (whole + 2.0 * g) / 30.0, area * (whole + f + g) / 60.0
        xx += a * ax * ax + b * bx * bx + 2.0 * c * ax * bx
        yy += a * ay * ay + b * by * by + 2.0 * c * ay * by
        xy += a * ax * ay + b * bx * by + c * (ax * by + bx * ay)
    if mass <= 0.0:
        return 0.0, ox, oy, 0.0, 0.0, 0.0
    mx, my = mx / mass, my / mass
    return mass, ox + mx, oy + my, xx / mass - mx * mx, xy / mass - mx * my, yy / mass - my * my


@inner
def _lay_out(patch, k):
    """Write old triangle k into polygon[0], counter-clockwise. Its density as a + b x + c y: (a, b, c)."""
    t, tilt = patch.old[k], patch.old_law[k, 0]
    det = area2(t)
    for i in range(3):
        to = (3 - i) % 3 if det < 0.0 else i
        patch.polygon[0, to, 0], patch.polygon[0, to, 1] = t[i, 0], t[i, 1]
        patch.level[to] = 12.0 * tilt[i] - 3.0
    f, g, h = 12.0 * tilt[0] - 3.0, 12.0 * tilt[1] - 3.0, 12.0 * tilt[2] - 3.0
    if f == g == h or det == 0.0:
        return 1.0, 0.0, 0.0
    ax, ay, bx, by = t[1, 0] - t[0, 0], t[1, 1] - t[0, 1], t[2, 0] - t[0, 0], t[2, 1] - t[0, 1]
    sx, sy = ((g - f) * by - (h - f) * ay) / det, ((h - f) * ax - (g - f) * bx) / det
    return f - sx * t[0, 0] - sy * t[0, 1], sx, sy


@inner
def _piece(patch, j, plane):
    """Mass, centre and covariance of what polygon[0], with density `plane`, has in new triangle j."""
    size = _cut(patch.polygon, 3, patch.new[j])
    if size < 3:
        return 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(size):
        level = plane[0] + plane[1] * patch.polygon[0, i, 0] + plane[2] * patch.polygon[0, i, 1]
        patch.level[i] = max(level, 0.0)
    return _moments(patch.polygon, patch.level, size)


@inlined
def _line_piece(patch, k, t):
    """Mass, centre and covariance of what the segment of old triangle k has in the triangle t."""
    old, law = patch.old[k], patch.old_law[k]
    px = law[1, 0] * old[0, 0] + law[1, 1] * old[1, 0] + law[1, 2] * old[2, 0]
    py = law[1, 0] * old[0, 1] + law[1, 1] * old[1, 1] + law[1, 2] * old[2, 1]
    dx = law[2, 0] * old[0, 0] + law[2, 1] * old[1, 0] + law[2, 2] * old[2, 0] - px
    dy = law[2, 0] * old[0, 1] + law[2, 1] * old[1, 1] + law[2, 2] * old[2, 1] - py
    low, high = 0.0, 1.0
    for side in range(3):
        ax, ay = t[side, 0], t[side, 1]
        ex, ey = t[(side + 1) % 3, 0] - ax, t[(side + 1) % 3, 1] - ay
        start, slope = ex * (py - ay) - ey * (px - ax), ex * dy - ey * dx
        if slope > 0.0:
            low = max(low, -start / slope)
        elif slope < 0.0:
            high = min(high, -start / slope)
        elif start < 0.0:
            high = low
    if high <= low:
        return 0.0, px, py, 0.0, 0.0, 0.0
    middle, half, f = 0.5 * (low + high), 0.5 * (high - low), 6.0 * law[0, 0] - 2.0
    level, slope = f + 2.0 * (1.0 - f) * middle, 2.0 * (1.0 - f)
    shift = slope * half * half / (3.0 * level)
    spread = half * half / 3.0 - shift * shift
    middle += shift
    return 2.0 * half * level, px + middle * dx, py + middle * dy, spread * dx * dx, spread * dx * dy, spread * dy * dy


@inner
def _put(share, fraction, x, y, xx, xy, yy):
    share[0], share[1], share[2], share[3], share[4], share[5] = fraction, x, y, xx, xy, yy


@inlined
def _send_home(patch, k, new):
    """Give the whole of old triangle k, as a point, to the new triangle in which its centre lies, or nearly lies."""
    t, law = patch.old[k], patch.old_law[k]
    x = y = 0.0
    for i in range(3):
        b = law[0, 0] * law[1, i] + law[0, 1] * law[2, i] if patch.old_line[k] else law[0, i]
        x += b * t[i, 0]
        y += b * t[i, 1]
    best, home = -1e300, -1
    for j in range(new):
        patch.share[k, j, 0] = 0.0
        if patch.new_label[j] == patch.old_label[k]:
            b0, b1, b2 = _barycentric(patch.new[j], x, y)
            depth = min(b0, min(b1, b2))
            if depth > best:
                best, home = depth, j
    if home >= 0:
        _put(patch.share[k, home], 1.0, x, y, 0.0, 0.0, 0.0)
    return home >= 0


@inlined
def _hand_out(patch, k, new):
    """Fill share[k, :new] with fractions that add up to 1. False if no new triangle has the label of k."""
    share, total = patch.share[k], 0.0
    whole = 1.0 if patch.old_line[k] else 0.5 * abs(area2(patch.old[k]))
    for j in range(new):
        share[j, 0] = 0.0
        if patch.new_label[j] == patch.old_label[k] and whole > 0.0:
            if patch.old_line[k]:
                mass, x, y, xx, xy, yy = _line_piece(patch, k, patch.new[j])
            else:
                mass, x, y, xx, xy, yy = _piece(patch, j, _lay_out(patch, k))
            if mass > _DUST * whole:
                _put(share[j], mass, x, y, xx, xy, yy)
                total += mass
    if total > 1e-3 * whole:
        for j in range(new):
            share[j, 0] /= total
        return True
    return _send_home(patch, k, new)


@inlined
def _fill(patch, j, old, new):
    """If new triangle j was handed nothing, let it take a tail of the lightest law whose triangle it overlaps."""
    lightest, chosen = math.inf, -1
    for k in range(old):
        if patch.share[k, j, 0] > 0.0 and patch.old_mass[k] > -math.inf:
            return
        if patch.new_label[j] == patch.old_label[k] and -math.inf < patch.old_mass[k] < lightest:
            _lay_out(patch, k)
            if _piece(patch, j, (1.0, 0.0, 0.0))[0] > 0.01 * abs(area2(patch.old[k])):
                lightest, chosen = patch.old_mass[k], k
    if chosen >= 0:
        _lay_out(patch, chosen)
        area, x, y, xx, xy, yy = _piece(patch, j, (1.0, 0.0, 0.0))
        fraction = _TAIL * min(2.0 * area / abs(area2(patch.old[chosen])), 1.0)
        for i in range(new):
            patch.share[chosen, i, 0] *= 1.0 - fraction
        _put(patch.share[chosen, j], fraction, x, y, xx, xy, yy)


@inlined
def _draw(t, law, dx, dy, variance):
    """Turn a law that has its centre in row 0 into one on the segment through it along the unit vector (dx, dy)."""
    s0, s1, s2 = _barycentric(t, t[0, 0] + dx, t[0, 1] + dy)
    law[1, 0], law[1, 1], law[1, 2] = s0 - 1.0, s1, s2
    low, high = -1e300, 1e300
    for i in range(3):
        if law[1, i] > 0.0:
            low = max(low, -law[0, i] / law[1, i])
        elif law[1, i] < 0.0:
            high = min(high, -law[0, i] / law[1, i])
    if variance < _SHORT * (high - low) ** 2 / 12.0:
        high = min(math.sqrt(3.0 * variance), min(-low, high))
        low = -high
    low, high = max(low, -2.0 * high), min(high, -2.0 * low)
    at_q = -low / (high - low) if high > low else 0.5
    for i in range(3):
        slope, b = law[1, i], law[0, i]
        law[1, i], law[2, i] = max(b + low * slope, 0.0), max(b + high * slope, 0.0)
    law[0, 0], law[0, 1], law[0, 2] = 1.0 - at_q, at_q, 0.0


@inlined
def _settle(patch, j, x, y, xx, xy, yy):
    """The law of new triangle j from its centre and covariance."""
    t, law = patch.new[j], patch.new_law[j]
    for i in range(3):
        patch.polygon[0, i, 0], patch.polygon[0, i, 1], patch.level[i] = t[i, 0], t[i, 1], 1.0
    _, _, _, sxx, sxy, syy = _moments(patch.polygon, patch.level, 3)
    det = sxx * syy - sxy * sxy
    mean = 0.5 * (sxx * yy + syy * xx - 2.0 * sxy * xy) / det
    least = mean - math.sqrt(max(mean * mean - (xx * yy - xy * xy) / det, 0.0))
    b0, b1, b2 = _barycentric(t, x, y)
    b0, b1, b2 = max(b0, 0.0), max(b1, 0.0), max(b2, 0.0)
    total = b0 + b1 + b2
    law[0, 0], law[0, 1], law[0, 2] = b0 / total, b1 / total, b2 / total
    patch.new_line[j] = least < _NARROW or min(b0, min(b1, b2)) < 0.25
    if patch.new_line[j]:
        dx, dy, ex, ey = xx - least * sxx, xy - least * sxy, xy - least * sxy, yy - least * syy
        if ex * ex + ey * ey > dx * dx + dy * dy:
            dx, dy = ex, ey
        length = math.sqrt(dx * dx + dy * dy)
        dx, dy = (dx / length, dy / length) if length > 1e-14 * (sxx + syy) else (1.0, 0.0)
        _draw(t, law, dx, dy, dx * dx * xx + 2.0 * dx * dy * xy + dy * dy * yy)


@inlined
def _take_in(patch, j, old):
    """Mass and law of new triangle j from what it was handed."""
    top = -math.inf
    for k in range(old):
        if patch.share[k, j, 0] > 0.0:
            top = max(top, patch.old_mass[k])
    patch.new_mass[j] = top
    if top == -math.inf:
        patch.new_line[j] = 0
        for i in range(3):
            patch.new_law[j, 0, i] = 1.0 / 3.0
        return
    mass = x = y = 0.0
    for k in range(old):
        if patch.share[k, j, 0] > 0.0:
            w = patch.share[k, j, 0] * math.exp(patch.old_mass[k] - top)
            mass += w
            x += w * patch.share[k, j, 1]
            y += w * patch.share[k, j, 2]
    x, y, xx, xy, yy = x / mass, y / mass, 0.0, 0.0, 0.0
    for k in range(old):
        if patch.share[k, j, 0] > 0.0:
            w = patch.share[k, j, 0] * math.exp(patch.old_mass[k] - top) / mass
            dx, dy = patch.share[k, j, 1] - x, patch.share[k, j, 2] - y
            xx += w * (patch.share[k, j, 3] + dx * dx)
            xy += w * (patch.share[k, j, 4] + dx * dy)
            yy += w * (patch.share[k, j, 5] + dy * dy)
    patch.new_mass[j] += math.log(mass)
    _settle(patch, j, x, y, xx, xy, yy)


@inner
def remap(patch):
    """Pass the mass of the old triangles on to the new ones. False, and nothing is to be used, if some has no home."""
    old, new = patch.sizes[0], patch.sizes[1]
    for k in range(old):
        if not _hand_out(patch, k, new):
            return False
    for j in range(new):
        _fill(patch, j, old, new)
    for j in range(new):
        _take_in(patch, j, old)
    return True
