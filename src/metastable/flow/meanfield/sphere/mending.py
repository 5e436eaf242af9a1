"""Taking edges out of a triangulation: collapse of short ones, swap of those under which a triangle is flat.

A collapse moves vertex b onto its neighbour a; the two triangles at the edge vanish, and what the star of b held is
passed on to the triangles that now cover it. It is refused where it would tear or fold the surface: if a and b have
common neighbours besides the two at their edge, if a new triangle is turned over or too flat, or if a new edge would
be longer than `longest`. A vertex where labels meet only moves along the line between the labels.
"""

import math

from metastable.attention.tree.vectors import inlined, kernel

from .mesh import (
    altitude,
    chord2,
    lay_chart,
    load_old,
    longest_side,
    new_triangle,
    side2,
    slot,
    store_new,
    write,
)
from .remap import DEGREE, remap

FLAT = 0.25
"""A collapse may not leave a triangle flatter than this share of `shortest`, unless the star was so before."""

_GAIN = 1.5
_FEWEST = 20


@inlined
def star(mesh, v, ring):
    """Write the triangles around v, counter-clockwise, and v's corner in each. Their number, or −1 if too many."""
    first = mesh.anchor[v]
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


@inlined
def _turn_to(mesh, ring, degree, spare, a):
    """Turn the ring of b so that its first triangle is (b, a, ·)."""
    shift = 0
    while mesh.corners[ring[shift, 0], (ring[shift, 1] + 1) % 3] != a:
        shift += 1
    for k in range(degree):
        spare[k, 0], spare[k, 1] = ring[k, 0], ring[k, 1]
    for k in range(degree):
        ring[k, 0], ring[k, 1] = spare[(k + shift) % degree, 0], spare[(k + shift) % degree, 1]


@kernel
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
def _surface_allows(mesh, a, ring, degree):
    """The link condition, and at least three triangles left at every vertex."""
    around = 0
    first = mesh.anchor[a]
    t = first
    while True:
        around += 1
        t = mesh.across[t, (slot(mesh.corners, t, a) + 1) % 3]
        if t == first:
            break
    if around + degree < 7 or around + degree - 4 > DEGREE - 2:
        return False
    left = mesh.corners[ring[0, 0], (ring[0, 1] + 2) % 3]
    right = mesh.corners[ring[degree - 1, 0], (ring[degree - 1, 1] + 1) % 3]
    for k in range(1, degree - 1):
        if _linked(mesh, a, mesh.corners[ring[k, 0], (ring[k, 1] + 1) % 3], left, right):
            return False
    return True


@inlined
def _fan(mesh, patch, a, ring, degree, longest):
    """Lay out the star of b before and after. The least altitude before and after; −1 after if it cannot be."""
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


@kernel
def collapse(mesh, patch, a, b, shortest, longest):
    """Move b onto a if that is allowed. Whether it was done."""
    ring = patch.ring
    degree = star(mesh, b, ring)
    if degree < 0 or degree > DEGREE - 2:
        return False
    _turn_to(mesh, ring, degree, patch.spare, a)
    if not _labels_allow(mesh, ring, degree) or not _surface_allows(mesh, a, ring, degree):
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
    u = mesh.across[t, i]
    j = slot(mesh.across, u, t)
    c, p, q = mesh.corners[t, i], mesh.corners[t, (i + 1) % 3], mesh.corners[t, (i + 2) % 3]
    d = mesh.corners[u, j]
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
    beyond_p, beyond_q = mesh.across[t, (i + 1) % 3], mesh.across[t, (i + 2) % 3]
    under_q, under_p = mesh.across[u, (j + 1) % 3], mesh.across[u, (j + 2) % 3]
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
    """Altitude of t over its edge i, signed by which side is out."""
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
                a, b = mesh.corners[t, (i + 1) % 3], mesh.corners[t, (i + 2) % 3]
                if collapse(mesh, patch, a, b, shortest, longest) or collapse(mesh, patch, b, a, shortest, longest):
                    done += 1
                    alive -= 2
        if mesh.corners[t, 0] >= 0:
            i = longest_side(mesh, t)
            if _flatness(mesh, t, i) < FLAT * shortest and swap(mesh, patch, t, i):
                done += 1
    return done
