"""A closed triangulation of the sphere that changes in place: split, collapse and swap of edges.

Triangle t has the corners corners[t] = (p, q, r), counter-clockwise from outside, and across[t, i] is the triangle on
the other side of the edge opposite corner i. anchor[v] is some triangle at vertex v. A dead triangle has corner −1, a
dead vertex anchor −1. Lengths are chords. Each operation works in a gnomonic chart, where great circles are straight
lines, and `remap` transfers the mass.

A collapse moves vertex b onto its neighbour a. The two triangles at the edge vanish, and the mass of the star of b goes
to the triangles that now cover it. A collapse is refused if it would tear or fold the surface: if a and b have common
neighbours besides the two at their edge, if a new triangle is turned over or too flat, or if a new edge would be longer
than `longest`. A vertex where labels meet only moves along the line between the labels.
"""

import math
from typing import NamedTuple

import numpy as np

from metastable.attention.tree.vectors import inlined, inner, kernel

from .remap import DEGREE, area2, remap

# Least height of a point above the chart's plane through the origin.
_IN_CHART = 0.2
# A collapse may not leave a triangle flatter than this share of `shortest`, unless the star was so before.
FLAT = 0.25
# A swap must increase the least altitude by this factor.
_GAIN = 1.5
# A triangulation with this many triangles is not coarsened.
_FEWEST = 20


class Mesh(NamedTuple):
    """Buffers of capacity (N) vertices and (M) triangles, of which used[0] and used[1] are in use."""

    points: np.ndarray  # (N, 3)
    anchor: np.ndarray  # (N,)
    corners: np.ndarray  # (M, 3)
    across: np.ndarray  # (M, 3)
    masses: np.ndarray  # (M,) logarithms
    laws: np.ndarray  # (M, 3, 3), see `remap`
    lines: np.ndarray  # (M,)
    labels: np.ndarray  # (M,)
    used: np.ndarray  # (2,)


@inner
def chord2(mesh, a, b):
    p, q = mesh.points[a], mesh.points[b]
    return (p[0] - q[0]) ** 2 + (p[1] - q[1]) ** 2 + (p[2] - q[2]) ** 2


@inner
def side2(mesh, t, i):
    """Squared length of the edge of t opposite its corner i."""
    return chord2(mesh, mesh.corners[t, (i + 1) % 3], mesh.corners[t, (i + 2) % 3])


@inner
def longest_side(mesh, t):
    best, found = -1.0, 0
    for i in range(3):
        length = side2(mesh, t, i)
        if length > best:
            best, found = length, i
    return found


@inner
def slot(table, t, value):
    """Which of the three entries table[t] is `value`."""
    if table[t, 0] == value:
        return 0
    return 1 if table[t, 1] == value else 2


@inner
def lay_chart(patch, p):
    """The gnomonic chart that touches the sphere at p (which is scaled to length 1)."""
    chart = patch.chart
    length = math.sqrt(p[0] ** 2 + p[1] ** 2 + p[2] ** 2)
    least = 0
    for i in range(3):
        chart[2, i] = p[i] / length
        if abs(p[i]) < abs(p[least]):
            least = i
    n = chart[2]
    scale = 1.0 / math.sqrt(1.0 - n[least] ** 2)
    for i in range(3):
        chart[0, i] = ((1.0 if i == least else 0.0) - n[least] * n[i]) * scale
    e = chart[0]
    chart[1, 0], chart[1, 1] = n[1] * e[2] - n[2] * e[1], n[2] * e[0] - n[0] * e[2]
    chart[1, 2] = n[0] * e[1] - n[1] * e[0]


@inner
def on_chart(patch, x, out):
    """Write the chart's coordinates of x into out. False if x is too far from the point of contact."""
    chart = patch.chart
    height = x[0] * chart[2, 0] + x[1] * chart[2, 1] + x[2] * chart[2, 2]
    if height < _IN_CHART:
        return False
    out[0] = (x[0] * chart[0, 0] + x[1] * chart[0, 1] + x[2] * chart[0, 2]) / height
    out[1] = (x[0] * chart[1, 0] + x[1] * chart[1, 1] + x[2] * chart[1, 2]) / height
    return True


@inner
def load_old(mesh, patch, k, t):
    """Put triangle t into the patch as its old triangle k."""
    for i in range(3):
        if not on_chart(patch, mesh.points[mesh.corners[t, i]], patch.old[k, i]):
            return False
        for j in range(3):
            patch.old_law[k, i, j] = mesh.laws[t, i, j]
    patch.old_mass[k], patch.old_line[k], patch.old_label[k] = mesh.masses[t], mesh.lines[t], mesh.labels[t]
    return True


@inner
def store_new(mesh, patch, j, t):
    mesh.masses[t], mesh.lines[t], mesh.labels[t] = patch.new_mass[j], patch.new_line[j], patch.new_label[j]
    for i in range(3):
        for k in range(3):
            mesh.laws[t, i, k] = patch.new_law[j, i, k]


@inner
def new_triangle(patch, j, label, p, q, r):
    """Make new triangle j from three places in the chart."""
    for i in range(2):
        patch.new[j, 0, i], patch.new[j, 1, i], patch.new[j, 2, i] = p[i], q[i], r[i]
    patch.new_label[j] = label


@inner
def altitude(t):
    """Height of a plane triangle over its longest side, negative if it is turned over."""
    longest = 0.0
    for i in range(3):
        j = (i + 1) % 3
        longest = max(longest, (t[i, 0] - t[j, 0]) ** 2 + (t[i, 1] - t[j, 1]) ** 2)
    return area2(t) / math.sqrt(longest) if longest > 0.0 else 0.0


@inner
def write(mesh, t, a, b, c, opposite_a, opposite_b, opposite_c):
    mesh.corners[t, 0], mesh.corners[t, 1], mesh.corners[t, 2] = a, b, c
    mesh.across[t, 0], mesh.across[t, 1], mesh.across[t, 2] = opposite_a, opposite_b, opposite_c


@inlined
def _around(mesh, t, i):
    """The triangles t = (c, p, q) and u = (d, q, p) at the edge of t opposite corner i, and their other neighbours.

    Returns c, p, q, d, u, the corner of d in u, the neighbours of t opposite p and q, those of u opposite q and p.
    """
    u = mesh.across[t, i]
    j = slot(mesh.across, u, t)
    c, p, q = mesh.corners[t, i], mesh.corners[t, (i + 1) % 3], mesh.corners[t, (i + 2) % 3]
    beyond_p, beyond_q = mesh.across[t, (i + 1) % 3], mesh.across[t, (i + 2) % 3]
    under_q, under_p = mesh.across[u, (j + 1) % 3], mesh.across[u, (j + 2) % 3]
    return c, p, q, mesh.corners[u, j], u, j, beyond_p, beyond_q, under_q, under_p


@inner
def _halve(mesh, patch, t, i, first, second):
    """Divide what t = (c, p, q) holds between (c, p, x) and (c, x, q), with c its corner i and x the midpoint of p, q.

    Done in the plane of t itself: p at the origin, q on the first axis.
    """
    base, right, left = side2(mesh, t, i), side2(mesh, t, (i + 1) % 3), side2(mesh, t, (i + 2) % 3)
    length = math.sqrt(base)
    foot = 0.5 * (left + base - right) / length
    old = patch.old[0]
    # A flat triangle gets a little height, because it could not be cut otherwise. Nothing else depends on it.
    old[0, 0], old[0, 1] = foot, math.sqrt(max(left - foot * foot, 1e-12 * base))
    old[1, 0], old[1, 1], old[2, 0], old[2, 1] = 0.0, 0.0, length, 0.0
    for k in range(3):
        patch.old_law[0, 0, k] = mesh.laws[t, 0, k] if mesh.lines[t] else mesh.laws[t, 0, (i + k) % 3]
        patch.old_law[0, 1, k], patch.old_law[0, 2, k] = mesh.laws[t, 1, (i + k) % 3], mesh.laws[t, 2, (i + k) % 3]
    patch.old_mass[0], patch.old_line[0], patch.old_label[0] = mesh.masses[t], mesh.lines[t], mesh.labels[t]
    middle = patch.polygon[1, 11]
    middle[0], middle[1] = 0.5 * length, 0.0
    new_triangle(patch, 0, mesh.labels[t], old[0], old[1], middle)
    new_triangle(patch, 1, mesh.labels[t], old[0], middle, old[2])
    patch.sizes[0], patch.sizes[1] = 1, 2
    remap(patch)
    store_new(mesh, patch, 0, first)
    store_new(mesh, patch, 1, second)


@inlined
def split(mesh, patch, t, i):
    """Bisect the edge of t opposite corner i, and so both triangles at it. Needs room for a vertex, two triangles.

    (c, p, q) and (d, q, p) become (c, p, x), (c, x, q), (d, q, x), (d, x, p) with x the midpoint of p and q.
    """
    c, p, q, d, u, j, beyond_p, beyond_q, under_q, under_p = _around(mesh, t, i)
    x, t2 = mesh.used[0], mesh.used[1]
    u2 = t2 + 1
    _halve(mesh, patch, t, i, t, t2)
    _halve(mesh, patch, u, j, u, u2)
    norm = 0.0
    for k in range(3):
        mesh.points[x, k] = mesh.points[p, k] + mesh.points[q, k]
        norm += mesh.points[x, k] ** 2
    for k in range(3):
        mesh.points[x, k] /= math.sqrt(norm)
    mesh.used[0] += 1
    mesh.used[1] += 2
    write(mesh, t, c, p, x, u2, t2, beyond_q)
    write(mesh, t2, c, x, q, u, beyond_p, t)
    write(mesh, u, d, q, x, t2, u2, under_p)
    write(mesh, u2, d, x, p, t, under_q, u)
    mesh.across[beyond_p, slot(mesh.across, beyond_p, t)] = t2
    mesh.across[under_q, slot(mesh.across, under_q, u)] = u2
    mesh.anchor[p], mesh.anchor[q], mesh.anchor[x], mesh.anchor[c], mesh.anchor[d] = t, u, t, t, u


@kernel
def refine(mesh, patch, longest, start):
    """Bisect until no edge is longer than `longest`, from triangle `start` on.

    Returns the triangle at which the room ran out, or −1.

    Only an edge that is the longest of both its triangles is cut. The walk from a triangle with a long edge crosses
    longest edges, which grow on the way, until it finds such an edge (Rivara's longest-edge path).
    """
    t = start
    while t < mesh.used[1]:
        while side2(mesh, t, longest_side(mesh, t)) > longest * longest:
            if mesh.used[0] + 1 > len(mesh.points) or mesh.used[1] + 2 > len(mesh.corners):
                return t
            here = t
            i = longest_side(mesh, here)
            while True:
                u = mesh.across[here, i]
                j = longest_side(mesh, u)
                if side2(mesh, u, j) <= side2(mesh, here, i):
                    break
                here, i = u, j
            split(mesh, patch, here, i)
        t += 1
    return -1


@inner
def star(mesh, v, first, ring):
    """Write the triangles around v, counter-clockwise from `first`, and v's corner in each into `ring`.

    Returns their number, or −1 if there are more than DEGREE.
    """
    t, k = first, 0
    while True:
        if k == DEGREE:
            return -1
        i = slot(mesh.corners, t, v)
        ring[k, 0], ring[k, 1] = t, i
        k += 1
        t = mesh.across[t, (i + 1) % 3]
        if t == first:
            return k


@inner
def _linked(mesh, a, v, left, right):
    """Whether a has v as a neighbour besides the two vertices `left` and `right`."""
    if v in (left, right):
        return False
    first = mesh.anchor[a]
    t = first
    while True:
        i = slot(mesh.corners, t, a)
        if mesh.corners[t, (i + 1) % 3] == v:
            return True
        t = mesh.across[t, (i + 1) % 3]
        if t == first:
            return False


@inlined
def _labels_allow(mesh, ring, degree):
    """Whether b may move along its edge to a: off the line between labels, or along it with room on both sides."""
    changes = 0
    for k in range(degree):
        changes += mesh.labels[ring[k, 0]] != mesh.labels[ring[(k + 1) % degree, 0]]
    if changes == 0:
        return True
    first, last = mesh.labels[ring[0, 0]], mesh.labels[ring[degree - 1, 0]]
    room = mesh.labels[ring[1, 0]] == first and mesh.labels[ring[degree - 2, 0]] == last
    return changes == 2 and first != last and room


@inlined
def _surface_allows(mesh, a, ring, degree, spare):
    """The link condition, and at least three triangles left at every vertex."""
    around = star(mesh, a, mesh.anchor[a], spare)
    if around < 0 or around + degree < 7 or around + degree - 4 > DEGREE - 2:
        return False
    left = mesh.corners[ring[0, 0], (ring[0, 1] + 2) % 3]
    right = mesh.corners[ring[degree - 1, 0], (ring[degree - 1, 1] + 1) % 3]
    for k in range(1, degree - 1):
        if _linked(mesh, a, mesh.corners[ring[k, 0], (ring[k, 1] + 1) % 3], left, right):
            return False
    return True


@inlined
def _fan(mesh, patch, a, ring, degree, longest):
    """Lay out the star of b before and after. Returns the least altitude before and after; −1 if it is impossible."""
    lay_chart(patch, mesh.points[a])
    before = math.inf
    for k in range(degree):
        if not load_old(mesh, patch, k, ring[k, 0]):
            return 0.0, -1.0
        before = min(before, altitude(patch.old[k]))
    centre = patch.polygon[1, 11]
    centre[0] = centre[1] = 0.0
    after = math.inf
    for k in range(1, degree - 1):
        t, i = ring[k, 0], ring[k, 1]
        if chord2(mesh, a, mesh.corners[t, (i + 2) % 3]) > longest * longest and k < degree - 2:
            return before, -1.0
        new = patch.new[k - 1]
        for corner in range(3):
            place = centre if corner == i else patch.old[k, corner]
            new[corner, 0], new[corner, 1] = place[0], place[1]
        patch.new_label[k - 1] = mesh.labels[t]
        after = min(after, altitude(new))
    return before, after


@inlined
def _bend(mesh, a, b, ring, degree):
    """Rewrite the triangles around b after its move onto a."""
    first, last = ring[0, 0], ring[degree - 1, 0]
    for k in range(1, degree - 1):
        mesh.corners[ring[k, 0], ring[k, 1]] = a
    for gone, corner, heir, side in (
        (first, ring[0, 1], ring[1, 0], (ring[1, 1] + 2) % 3),
        (last, ring[degree - 1, 1], ring[degree - 2, 0], (ring[degree - 2, 1] + 1) % 3),
    ):
        outside = mesh.across[gone, corner]
        mesh.across[heir, side] = outside
        mesh.across[outside, slot(mesh.across, outside, gone)] = heir
    for k in range(1, degree - 1):
        for corner in range(3):
            mesh.anchor[mesh.corners[ring[k, 0], corner]] = ring[k, 0]
    mesh.corners[first, 0] = mesh.corners[last, 0] = -1
    mesh.anchor[b] = -1


@inner
def collapse(mesh, patch, a, b, first, shortest, longest):
    """Move b onto a if that is allowed; `first` is the triangle (b, a, ·). Returns whether it was done."""
    ring = patch.ring
    degree = star(mesh, b, first, ring)
    if degree < 0 or degree > DEGREE - 2:
        return False
    if not _labels_allow(mesh, ring, degree) or not _surface_allows(mesh, a, ring, degree, patch.spare):
        return False
    before, after = _fan(mesh, patch, a, ring, degree, longest)
    patch.sizes[0], patch.sizes[1] = degree, degree - 2
    if after <= 0.0 or after < min(FLAT * shortest, before) or not remap(patch):
        return False
    for k in range(1, degree - 1):
        store_new(mesh, patch, k - 1, ring[k, 0])
    _bend(mesh, a, b, ring, degree)
    return True


@inlined
def swap(mesh, patch, t, i):
    """Turn the edge of t opposite corner i: (c, p, q), (d, q, p) become (c, p, d), (d, q, c), if less flat."""
    c, p, q, d, u, j, beyond_p, beyond_q, under_q, under_p = _around(mesh, t, i)
    if mesh.labels[t] != mesh.labels[u] or c == d or _linked(mesh, c, d, -1, -1):
        return False
    lay_chart(patch, mesh.points[c])
    if not (load_old(mesh, patch, 0, t) and load_old(mesh, patch, 1, u)):
        return False
    at_c, at_p, at_q, at_d = patch.old[0, i], patch.old[0, (i + 1) % 3], patch.old[0, (i + 2) % 3], patch.old[1, j]
    new_triangle(patch, 0, mesh.labels[t], at_c, at_p, at_d)
    new_triangle(patch, 1, mesh.labels[t], at_d, at_q, at_c)
    before = min(altitude(patch.old[0]), altitude(patch.old[1]))
    after = min(altitude(patch.new[0]), altitude(patch.new[1]))
    patch.sizes[0], patch.sizes[1] = 2, 2
    if after <= 0.0 or after < _GAIN * before or not remap(patch):
        return False
    write(mesh, t, c, p, d, under_q, u, beyond_q)
    write(mesh, u, d, q, c, beyond_p, t, under_p)
    mesh.across[under_q, slot(mesh.across, under_q, u)] = t
    mesh.across[beyond_p, slot(mesh.across, beyond_p, t)] = u
    mesh.anchor[p], mesh.anchor[q], mesh.anchor[c], mesh.anchor[d] = t, u, t, u
    store_new(mesh, patch, 0, t)
    store_new(mesh, patch, 1, u)
    return True


@inlined
def _flatness(mesh, t, i):
    """Altitude of t over its edge i, negative if t is turned over."""
    p, q, r = mesh.points[mesh.corners[t, 0]], mesh.points[mesh.corners[t, 1]], mesh.points[mesh.corners[t, 2]]
    ux, uy, uz = q[0] - p[0], q[1] - p[1], q[2] - p[2]
    vx, vy, vz = r[0] - p[0], r[1] - p[1], r[2] - p[2]
    volume = p[0] * (uy * vz - uz * vy) + p[1] * (uz * vx - ux * vz) + p[2] * (ux * vy - uy * vx)
    return volume / math.sqrt(side2(mesh, t, i))


@kernel
def coarsen(mesh, patch, shortest, longest):
    """One pass: collapse the edges shorter than `shortest`, swap the long edges of flat triangles. How many."""
    done, alive = 0, 0
    for t in range(mesh.used[1]):
        alive += mesh.corners[t, 0] >= 0
    for t in range(mesh.used[1]):
        for i in range(3):
            if mesh.corners[t, 0] >= 0 and alive > _FEWEST and side2(mesh, t, i) < shortest * shortest:
                a, b, u = mesh.corners[t, (i + 1) % 3], mesh.corners[t, (i + 2) % 3], mesh.across[t, i]
                gone = collapse(mesh, patch, a, b, u, shortest, longest)
                if gone or collapse(mesh, patch, b, a, t, shortest, longest):
                    done += 1
                    alive -= 2
        if mesh.corners[t, 0] >= 0:
            i = longest_side(mesh, t)
            if _flatness(mesh, t, i) < FLAT * shortest and swap(mesh, patch, t, i):
                done += 1
    return done
