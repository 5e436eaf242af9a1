"""A closed triangulation of the sphere that can be cut and mended in place: split, collapse, swap.

Triangle t has the corners corners[t] = (p, q, r), counter-clockwise from outside, and across[t, i] is the triangle on
the other side of the edge opposite corner i. anchor[v] is some triangle at vertex v. A dead triangle has corner −1, a
dead vertex anchor −1. Lengths are chords. Each operation looks at its surroundings in a gnomonic chart, where great
circles are straight, and leaves the passing on of mass to `remap`.
"""

import math
from typing import NamedTuple

import numpy as np

from metastable.attention.tree.vectors import inlined, kernel

from .remap import area2, remap

_IN_CHART = 0.2


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


@kernel
def chord2(mesh, a, b):
    p, q = mesh.points[a], mesh.points[b]
    return (p[0] - q[0]) ** 2 + (p[1] - q[1]) ** 2 + (p[2] - q[2]) ** 2


@kernel
def side2(mesh, t, i):
    """Squared length of the edge of t opposite its corner i."""
    return chord2(mesh, mesh.corners[t, (i + 1) % 3], mesh.corners[t, (i + 2) % 3])


@kernel
def longest_side(mesh, t):
    best, found = -1.0, 0
    for i in range(3):
        length = side2(mesh, t, i)
        if length > best:
            best, found = length, i
    return found


@kernel
def slot(table, t, value):
    """Which of the three entries table[t] is `value`."""
    if table[t, 0] == value:
        return 0
    return 1 if table[t, 1] == value else 2


@kernel
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


@kernel
def on_chart(patch, x, out):
    """Write the chart's coordinates of x into out. False if x is too far from the point of contact."""
    chart = patch.chart
    height = x[0] * chart[2, 0] + x[1] * chart[2, 1] + x[2] * chart[2, 2]
    if height < _IN_CHART:
        return False
    out[0] = (x[0] * chart[0, 0] + x[1] * chart[0, 1] + x[2] * chart[0, 2]) / height
    out[1] = (x[0] * chart[1, 0] + x[1] * chart[1, 1] + x[2] * chart[1, 2]) / height
    return True


@kernel
def load_old(mesh, patch, k, t):
    """Put triangle t into the patch as its old triangle k."""
    for i in range(3):
        if not on_chart(patch, mesh.points[mesh.corners[t, i]], patch.old[k, i]):
            return False
        for j in range(3):
            patch.old_law[k, i, j] = mesh.laws[t, i, j]
    patch.old_mass[k], patch.old_line[k], patch.old_label[k] = mesh.masses[t], mesh.lines[t], mesh.labels[t]
    return True


@kernel
def store_new(mesh, patch, j, t):
    mesh.masses[t], mesh.lines[t], mesh.labels[t] = patch.new_mass[j], patch.new_line[j], patch.new_label[j]
    for i in range(3):
        for k in range(3):
            mesh.laws[t, i, k] = patch.new_law[j, i, k]


@kernel
def new_triangle(patch, j, label, p, q, r):
    """Make new triangle j from three places in the chart."""
    for i in range(2):
        patch.new[j, 0, i], patch.new[j, 1, i], patch.new[j, 2, i] = p[i], q[i], r[i]
    patch.new_label[j] = label


@kernel
def altitude(t):
    """Height of a plane triangle over its longest side, negative if it is turned over."""
    longest = 0.0
    for i in range(3):
        j = (i + 1) % 3
        longest = max(longest, (t[i, 0] - t[j, 0]) ** 2 + (t[i, 1] - t[j, 1]) ** 2)
    return area2(t) / math.sqrt(longest) if longest > 0.0 else 0.0


@kernel
def write(mesh, t, a, b, c, opposite_a, opposite_b, opposite_c):
    mesh.corners[t, 0], mesh.corners[t, 1], mesh.corners[t, 2] = a, b, c
    mesh.across[t, 0], mesh.across[t, 1], mesh.across[t, 2] = opposite_a, opposite_b, opposite_c


@kernel
def _halve(mesh, patch, t, i, first, second):
    """Divide what t = (c, p, q) holds between (c, p, x) and (c, x, q), with c its corner i and x the midpoint of p, q.

    Done in the plane of t itself: p at the origin, q on the first axis.
    """
    base, right, left = side2(mesh, t, i), side2(mesh, t, (i + 1) % 3), side2(mesh, t, (i + 2) % 3)
    length = math.sqrt(base)
    foot = 0.5 * (left + base - right) / length
    old = patch.old[0]
    # A flat triangle is given a little height, without which it could not be cut: nothing else depends on it.
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
    c, p, q = mesh.corners[t, i], mesh.corners[t, (i + 1) % 3], mesh.corners[t, (i + 2) % 3]
    beyond_p, beyond_q = mesh.across[t, (i + 1) % 3], mesh.across[t, (i + 2) % 3]
    u = mesh.across[t, i]
    j = slot(mesh.across, u, t)
    d = mesh.corners[u, j]
    under_q, under_p = mesh.across[u, (j + 1) % 3], mesh.across[u, (j + 2) % 3]
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
    """Bisect until no edge is longer than `longest`, from triangle `start` on. Where room ran out, or −1.

    Only an edge that is the longest of both its triangles is cut: from a triangle with a long edge one walks across
    longest edges, which only grow on the way, until there is such an edge (Rivara's longest-edge path).
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
