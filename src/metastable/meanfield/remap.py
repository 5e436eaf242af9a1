"""How mass passes from old triangles to new ones that cover the same ground: conservatively, and without leaks.

The law inside a triangle T has a linear density on a triangle T' inside it. The `shape` A of T says where T' is: its
corners are Σ_j A_ij v_j, A ≥ 0 with rows that add up to 1, v_j the corners of T. The `tilt` holds the barycentric
coordinates, in T', of the centre of mass; t_i between 1/4 and 1/2 belongs to the density 12 t_i − 3 at corner i. Where
the density is smooth T' = T; a cluster or a ridge that is narrower than its cell has a narrow T' and stays where it is.

Each law is cut along the new triangles. A new triangle N gets the pieces that lie in it, with their mass, their
centre c and their covariance C. Let S be the covariance of the uniform law on N, n̄ its centroid, and M symmetric with
M S M = C. If M ≥ 0.7 and the tilt that c asks for is allowed, then T' = N with that tilt. Otherwise

    T' = c + M (N − n̄)   with a constant density,

narrowed across those sides of N beyond which it would reach. So mass and centre of mass are conserved, a linear density
is reproduced, and nothing moves out of the triangle it was in. Pieces below 1e-10 of a law are rounding and are not
handed out: the neighbour may be lighter by a factor e^-300.

A new triangle that would get nothing takes what a share of 1e-2 of one old law, spread over all of its triangle, has
there: the tails that a narrow T' leaves out. It takes it from the lightest of those that it overlaps.

Triangles that carry different labels exchange nothing.
"""

import math
from typing import NamedTuple

import numpy as np

from metastable.attention.tree.vectors import kernel

DEGREE = 40
"""The most triangles that an operation may touch at once."""

_DUST = 1e-10
_TAIL = 1e-2
_SMOOTH = 0.7
_NARROW = 1e-10  # least squared width of T', relative to its triangle: narrower ones cannot be cut for rounding


class Patch(NamedTuple):
    """Workspace: the triangles before and after in one plane chart, and what each old one gives to each new one."""

    old: np.ndarray  # (DEGREE, 3, 2) corners in the chart
    old_mass: np.ndarray  # logarithms
    old_shape: np.ndarray  # (DEGREE, 3, 3)
    old_tilt: np.ndarray  # (DEGREE, 3)
    old_label: np.ndarray
    new: np.ndarray
    new_mass: np.ndarray
    new_shape: np.ndarray
    new_tilt: np.ndarray
    new_label: np.ndarray
    share: np.ndarray  # (DEGREE, DEGREE, 6): fraction, centre (2), covariance (xx, xy, yy)
    count: np.ndarray  # (2,): how many old and new triangles there are
    polygon: np.ndarray  # (2, 12, 2)
    level: np.ndarray  # (12,) density at the corners of a polygon
    ring: np.ndarray  # (DEGREE, 2) triangles around a vertex, and which corner of theirs it is
    spare: np.ndarray  # another ring
    chart: np.ndarray  # (3, 3): two tangent vectors and the point of contact


def make_patch() -> Patch:
    n = DEGREE
    side = (np.zeros((n, 3, 2)), np.zeros(n), np.zeros((n, 3, 3)), np.zeros((n, 3)), np.zeros(n, dtype=np.int8))
    other = tuple(np.zeros_like(a) for a in side)
    ring = np.zeros((n, 2), dtype=np.int64)
    return Patch(
        *side,
        *other,
        np.zeros((n, n, 6)),
        np.zeros(2, dtype=np.int64),
        np.zeros((2, 12, 2)),
        np.zeros(12),
        ring,
        np.zeros_like(ring),
        np.zeros((3, 3)),
    )


@kernel
def area2(t):
    """Twice the signed area of a plane triangle."""
    return (t[1, 0] - t[0, 0]) * (t[2, 1] - t[0, 1]) - (t[2, 0] - t[0, 0]) * (t[1, 1] - t[0, 1])


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
def _lay_out(patch, k):
    """Write T' of old triangle k into polygon[0], counter-clockwise. The density as a + b x + c y: (a, b, c)."""
    t, shape, tilt = patch.old[k], patch.old_shape[k], patch.old_tilt[k]
    turned = area2(t) * _determinant(shape) < 0.0
    for i in range(3):
        to = (3 - i) % 3 if turned else i
        for axis in range(2):
            patch.polygon[0, to, axis] = shape[i, 0] * t[0, axis] + shape[i, 1] * t[1, axis] + shape[i, 2] * t[2, axis]
        patch.level[to] = 12.0 * tilt[i] - 3.0
    f, g, h = patch.level[0], patch.level[1], patch.level[2]
    if f == g == h:
        return f, 0.0, 0.0
    p = patch.polygon[0]
    ax, ay, bx, by = p[1, 0] - p[0, 0], p[1, 1] - p[0, 1], p[2, 0] - p[0, 0], p[2, 1] - p[0, 1]
    det = ax * by - bx * ay
    sx, sy = ((g - f) * by - (h - f) * ay) / det, ((h - f) * ax - (g - f) * bx) / det
    return f - sx * p[0, 0] - sy * p[0, 1], sx, sy


@kernel
def _piece(patch, j, plane):
    """Mass, centre and covariance of what polygon[0], with density `plane`, has in new triangle j."""
    size = _cut(patch.polygon, 3, patch.new[j])
    if size < 3:
        return 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(size):
        level = plane[0] + plane[1] * patch.polygon[0, i, 0] + plane[2] * patch.polygon[0, i, 1]
        patch.level[i] = max(level, 0.0)
    return _moments(patch.polygon, patch.level, size)


@kernel
def _determinant(a):
    """Of a matrix whose rows add up to 1: twice the area of the triangle of its rows, in barycentric coordinates."""
    return (a[1, 1] - a[0, 1]) * (a[2, 2] - a[0, 2]) - (a[2, 1] - a[0, 1]) * (a[1, 2] - a[0, 2])


@kernel
def _hand_out(patch, k, new):
    """Fill share[k, :new] with fractions that add up to 1. False if no new triangle has the label of k."""
    share = patch.share[k]
    for j in range(new):
        share[j, 0] = 0.0
    _lay_out(patch, k)
    whole, cx, cy, cxx, cxy, cyy = _moments(patch.polygon, patch.level, 3)
    total = 0.0
    for j in range(new):
        if patch.new_label[j] == patch.old_label[k] and whole > 0.0:
            plane = _lay_out(patch, k)
            mass, x, y, xx, xy, yy = _piece(patch, j, plane)
            if mass > _DUST * whole:
                _put(share[j], mass, x, y, xx, xy, yy)
                total += mass
    if total > 1e-3 * whole:
        for j in range(new):
            share[j, 0] /= total
        return True
    j = _home(patch, k, new, cx, cy)
    if j < 0:
        return False
    for i in range(new):
        share[i, 0] = 0.0
    _put(share[j], 1.0, cx, cy, cxx, cxy, cyy)
    return True


@kernel
def _put(share, fraction, x, y, xx, xy, yy):
    share[0], share[1], share[2], share[3], share[4], share[5] = fraction, x, y, xx, xy, yy


@kernel
def _fill(patch, j, old, new):
    """If new triangle j was handed nothing, let it take a tail of the lightest law whose triangle it overlaps."""
    lightest, chosen = math.inf, -1
    for k in range(old):
        if patch.share[k, j, 0] > 0.0 and patch.old_mass[k] > -math.inf:
            return
        if patch.new_label[j] == patch.old_label[k] and -math.inf < patch.old_mass[k] < lightest:
            _whole(patch, k)
            if _piece(patch, j, (1.0, 0.0, 0.0))[0] > 0.01 * abs(area2(patch.old[k])):
                lightest, chosen = patch.old_mass[k], k
    if chosen >= 0:
        _whole(patch, chosen)
        area, x, y, xx, xy, yy = _piece(patch, j, (1.0, 0.0, 0.0))
        fraction = _TAIL * min(2.0 * area / abs(area2(patch.old[chosen])), 1.0)
        for i in range(new):
            patch.share[chosen, i, 0] *= 1.0 - fraction
        _put(patch.share[chosen, j], fraction, x, y, xx, xy, yy)


@kernel
def _whole(patch, k):
    """Write old triangle k itself into polygon[0], counter-clockwise."""
    turned = area2(patch.old[k]) < 0.0
    for i in range(3):
        to = (3 - i) % 3 if turned else i
        patch.polygon[0, to, 0], patch.polygon[0, to, 1] = patch.old[k, i, 0], patch.old[k, i, 1]


@kernel
def _root(xx, xy, yy):
    """The square root of a symmetric non-negative 2×2 matrix."""
    root = math.sqrt(max(xx * yy - xy * xy, 0.0))
    trace = math.sqrt(max(xx + yy + 2.0 * root, 1e-300))
    return (xx + root) / trace, xy / trace, (yy + root) / trace


@kernel
def _shape(patch, j, x, y, xx, xy, yy):
    """The shape and tilt in new triangle j with this centre and covariance."""
    t, shape = patch.new[j], patch.new_shape[j]
    for i in range(3):
        patch.polygon[0, i, 0], patch.polygon[0, i, 1], patch.level[i] = t[i, 0], t[i, 1], 1.0
    _, nx, ny, sxx, sxy, syy = _moments(patch.polygon, patch.level, 3)
    least = _NARROW * (sxx + syy)
    xx, yy = xx + least, yy + least
    # M = R⁻¹ (R C R)^{1/2} R⁻¹ with R = S^{1/2}.
    rxx, rxy, ryy = _root(sxx, sxy, syy)
    px, py, qx, qy = rxx * xx + rxy * xy, rxx * xy + rxy * yy, rxy * xx + ryy * xy, rxy * xy + ryy * yy
    mxx, mxy, myy = _root(px * rxx + py * rxy, px * rxy + py * ryy, qx * rxy + qy * ryy)
    det = rxx * ryy - rxy * rxy
    ixx, ixy, iyy = ryy / det, -rxy / det, rxx / det
    px, py, qx, qy = ixx * mxx + ixy * mxy, ixx * mxy + ixy * myy, ixy * mxx + iyy * mxy, ixy * mxy + iyy * myy
    mxx, mxy, myy = px * ixx + py * ixy, px * ixy + py * iyy, qx * ixy + qy * iyy
    b0, b1, b2 = _barycentric(t, x, y)
    b0, b1, b2 = max(b0, 0.0), max(b1, 0.0), max(b2, 0.0)
    total = b0 + b1 + b2
    b0, b1, b2 = b0 / total, b1 / total, b2 / total
    gap = math.sqrt((mxx - myy) ** 2 + 4.0 * mxy * mxy)
    smooth = 0.5 * (mxx + myy - gap) >= _SMOOTH and min(b0, min(b1, b2)) >= 0.25
    _reset(patch, j)
    if smooth:
        patch.new_tilt[j, 0], patch.new_tilt[j, 1], patch.new_tilt[j, 2] = b0, b1, b2
        return
    for i in range(3):
        wx, wy = t[i, 0] - nx, t[i, 1] - ny
        w0, w1, w2 = _barycentric(t, nx + mxx * wx + mxy * wy, ny + mxy * wx + myy * wy)
        shape[i, 0], shape[i, 1], shape[i, 2] = b0 + w0 - 1.0 / 3.0, b1 + w1 - 1.0 / 3.0, b2 + w2 - 1.0 / 3.0
    _narrow(t, shape, b0, b1, b2)


@kernel
def _narrow(t, shape, b0, b1, b2):
    """Move the corners of T' towards its centre b, across each side that they are beyond, then as far as needed."""
    for side in range(3):
        b = b0 if side == 0 else (b1 if side == 1 else b2)
        lowest = min(shape[0, side], min(shape[1, side], shape[2, side]))
        if lowest < 0.0:
            p, q = (side + 1) % 3, (side + 2) % 3
            ex, ey = t[q, 0] - t[p, 0], t[q, 1] - t[p, 1]
            # Along the normal of a side, one unit of its own coordinate takes these shares from the two others.
            foot = ((t[side, 0] - t[p, 0]) * ex + (t[side, 1] - t[p, 1]) * ey) / (ex * ex + ey * ey)
            for i in range(3):
                back = (1.0 - b / (b - lowest)) * (b - shape[i, side])
                shape[i, side] += back
                shape[i, p] -= back * (1.0 - foot)
                shape[i, q] -= back * foot
    scale = 1.0
    for i in range(3):
        for side in range(3):
            b = b0 if side == 0 else (b1 if side == 1 else b2)
            if shape[i, side] < 0.0:
                scale = min(scale, b / (b - shape[i, side]))
    for i in range(3):
        shape[i, 0] = max(b0 + scale * (shape[i, 0] - b0), 0.0)
        shape[i, 1] = max(b1 + scale * (shape[i, 1] - b1), 0.0)
        shape[i, 2] = max(b2 + scale * (shape[i, 2] - b2), 0.0)


@kernel
def _reset(patch, j):
    """Make the law of new triangle j uniform on all of it."""
    for i in range(3):
        patch.new_tilt[j, i] = 1.0 / 3.0
        for side in range(3):
            patch.new_shape[j, i, side] = 1.0 if i == side else 0.0


@kernel
def _take_in(patch, j, old):
    """Mass and shape of new triangle j from what it was handed."""
    top = -math.inf
    for k in range(old):
        if patch.share[k, j, 0] > 0.0:
            top = max(top, patch.old_mass[k])
    patch.new_mass[j] = top
    if top == -math.inf:
        _reset(patch, j)
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
    _shape(patch, j, x, y, xx, xy, yy)


@kernel
def remap(patch):
    """Pass the mass of the old triangles on to the new ones. False, and nothing is to be used, if some has no home."""
    old, new = patch.count[0], patch.count[1]
    for k in range(old):
        if not _hand_out(patch, k, new):
            return False
    for j in range(new):
        _fill(patch, j, old, new)
    for j in range(new):
        _take_in(patch, j, old)
    return True
