"""The tokens that a box of queries can see, by a walk over the token tree: as ranges, packed where that will do."""

import math

from .boxes import first_point
from .packs import ABOVE, pack_error
from .search import depth_of, reach
from .vectors import ZERO, inlined, inner

# A pack may change this many times what a skipped node may: there are fewer of them.
_EASIER = math.log(20.0)


@inner
def _add_range(ranges, count, lo, hi):
    """Append tokens lo … hi − 1, to the last range if they follow it. Returns the number of ranges."""
    if count and ranges[count - 1, 1] == lo:
        ranges[count - 1, 1] = hi
        return count
    ranges[count, 0], ranges[count, 1] = lo, hi
    return count + 1


@inlined
def _pack_errors(shape, scale, work, shift):
    """What packing changes, per unit of the node's weight: (Σ weight, Σ weight |y − c|) at most."""
    u, c, v = work.small[0], work.small[1], work.small[5]
    top = -shift
    for k in range(u.size):
        v[k] = shape[k] - c[k]
        top += u[k] * v[k]
    e_f, e_g = pack_error(shape, scale, u, work.small[3], work.axes, v, work.ellipses)
    factor = math.exp(min(top, 700.0))
    return factor * e_f, factor * e_g


@inlined
def _extent(record, c, axes, half):
    """(Σ_k half_k |⟨axis_k, y₀ − c⟩|, |y₀ − c|²) for the centre y₀ of a node."""
    d = c.size
    spread, square = 0.0, 0.0
    for k in range(d):
        p = 0.0
        for i in range(d):
            p += axes[k, i] * (record[i] - c[i])
        spread += half[k] * abs(p)
        square += p * p
    return spread, square


@inner
def visible_ranges(tokens, work, shift, slack, per_unit, per_node):
    """The tokens that may matter somewhere in a box of queries, as ranges of the sorted order: into work.ranges.

    For u = u0 + δ with δ in the box (|⟨δ, axis_k⟩| ≤ half_k), a token's weight relative to e^{⟨δ, c⟩} is at most
    e^{log w + ⟨u0, y − c⟩ + T(y) − shift}. A node is left out if that weight, times (|y − c| + slack), has
    a logarithm of at most `per_unit` for each unit of the node's own weight, or of at most `per_node` for the whole
    node. What it could have added is added to work.skipped: (Σ weight, Σ weight |y − c|), both over-estimates.
    By the same rule, a little easier, a packed node is taken as its grid (tokens from number n on).
    Returns the number of ranges.
    """
    n, records, depth, packs = tokens.points.shape[0], tokens.records, tokens.depth, tokens.packs
    u, c, half = work.small[0], work.small[1], work.small[3]
    d = u.size
    weight, count = d * d + 2 * d + 1, ZERO
    nearest, square = math.log(slack), 0.0
    for k in range(d):
        square += half[k] * half[k]
    widest = math.sqrt(square)
    work.stack[0], size = 1, 1
    while size:
        size -= 1
        node = work.stack[size]
        high = reach(records, node, u, c)
        radius = records[node, weight - 1]
        spread, square = _extent(records[node], c, work.axes, half)
        # T(y) ≤ T(centre) + |half| radius and |y − c| ≤ |centre − c| + radius over the node.
        top = high + spread + widest * radius - shift
        limit = max(per_unit, per_node - records[node, weight])
        # log(far + slack) ≥ log(slack): most nodes that are seen need no logarithm of their own.
        if top + nearest <= limit:
            far = math.sqrt(square) + radius
            if top + math.log(far + slack) <= limit:
                mass = math.exp(top + records[node, weight])
                work.skipped[0] += mass
                work.skipped[1] += mass * far
                continue
        pack = packs.slot[node]
        if pack >= 0:
            e_f, e_g = _pack_errors(packs.shape[pack], packs.scale, work, shift)
            if math.log(e_g + slack * e_f) <= max(per_unit, per_node + _EASIER - records[node, weight]):
                mass = math.exp(records[node, weight])
                work.skipped[0] += mass * e_f
                work.skipped[1] += mass * e_g
                count = _add_range(work.ranges, count, n + packs.first[pack], n + packs.first[pack + 1])
                continue
        level = depth_of(node)
        inside = pack != ABOVE and _all_seen(records[node], depth - level, u, c, high, shift, slack, per_unit, per_node)
        if level == depth or inside:
            count = _add_range(work.ranges, count, first_point(node, level, n), first_point(node + 1, level, n))
        else:
            work.stack[size], work.stack[size + 1] = 2 * node + 1, 2 * node
            size += 2
    return count


@inlined
def _all_seen(record, levels, u, c, high, shift, slack, per_unit, per_node):
    """Whether even a leaf made of the node's faintest tokens would be seen: then all of the node is taken at once."""
    d = u.size
    middle = 0.0
    for i in range(d):
        middle += u[i] * (record[i] - c[i])
    share = record[d * d + 2 * d + 1] - levels * math.log(2.0)
    return 2.0 * middle - high - shift + math.log(slack) > max(per_unit, per_node - share)
