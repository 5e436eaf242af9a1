"""The descent over boxes of queries, from large to small."""

import math

from .boxes import first_point
from .leaf import DONE, attend_box
from .search import depth_of
from .vectors import inlined, kernel


@inlined
def _load_box(record, work):
    """u0, half-widths and axes of a node of queries. Half-widths get a floor: the expansion divides by them."""
    u, half, axes = work.small[0], work.small[3], work.axes
    d = u.size
    size, widest = 0.0, 0.0
    for k in range(d):
        u[k] = record[k]
        size += u[k] * u[k]
        widest = max(widest, record[d + k])
    floor = max(1e-6 * widest, 1e-14 * math.sqrt(size), 1e-100)
    for k in range(d):
        half[k] = max(record[d + k] * (1.0 + 1e-12), floor)
        for m in range(d):
            axes[k, m] = record[2 * d + k * d + m]


@inlined
def _load_query(query, work):
    """A box that is one query: size zero, axes of no importance."""
    for k in range(query.size):
        work.small[0, k] = query[k]
        work.small[3, k] = 0.0
        for m in range(query.size):
            work.axes[k, m] = 1.0 if k == m else 0.0


@inlined
def _all_equal(record, d):
    """Whether the queries of a node are one and the same: its box has no width."""
    widest = 0.0
    for k in range(d):
        widest = max(widest, record[d + k])
    return widest == 0.0


@kernel
def descend(tokens, queries, records, depth, nodes, stop, work, tol, means, bounds, stack, later):
    """Answer the queries under the given nodes of the query tree.

    Boxes that still want splitting at level `stop` are not opened but written to `later`; returns how many. A leaf that
    wants splitting is answered query by query (on the stack as −1 − query), stricter and stricter until the bound is
    met: with strict = 0 nothing is skipped and the bound is zero, so this ends. Equal queries are answered once.
    """
    n = queries.shape[0]
    work.covariances[:] = math.nan  # those of another run would mislead
    work.kept_above[:] = math.inf
    work.followed[0] = 0
    work.guess[0] = 0  # so that the answer does not depend on which thread comes first
    size, left, strict = 0, 0, 1.0
    for i in range(nodes.size):
        stack[size] = nodes[nodes.size - 1 - i]
        size += 1
    while size:
        size -= 1
        node = stack[size]
        level = 0 if node < 0 else depth_of(node)
        lo = -1 - node if node < 0 else first_point(node, level, n)
        end = lo + 1 if node < 0 else first_point(node + 1, level, n)
        alone = node < 0 or _all_equal(records[node], queries.shape[1])
        hi = lo + 1 if alone else end
        if alone:
            _load_query(queries[lo], work)
        else:
            _load_box(records[node], work)
        if attend_box(tokens, queries, lo, hi, level, work, tol, strict, not alone, means, bounds) == DONE:
            strict = 1.0
            for i in range(hi, end):
                bounds[i] = bounds[lo]
                for k in range(queries.shape[1]):
                    means[i, k] = means[lo, k]
        elif alone:
            if strict > 0.0:
                size += 1  # the same query again
            strict = 0.0 if strict < 1e-8 or strict == 0.0 else strict * 1e-2
            strict = strict if size and stack[size - 1] == node else 1.0
        elif level == stop:
            later[left] = node
            left += 1
        elif level == depth:
            for i in range(lo, hi):
                stack[size] = -1 - i
                size += 1
        else:
            stack[size], stack[size + 1] = 2 * node + 1, 2 * node
            size += 2
    return left
