"""Walks over the token tree for one point u0 of query space: the exact maximum, and a first mean.

Scores are taken relative to a reference point c near the mean, ⟨u, y − c⟩, so that their rounding is that of
|u| |y − c| and not of |u| |y|: at β = 1e6 the tokens that count are at a distance of 1e-3.
"""

import math

from .boxes import first_point
from .vectors import fast_exp, inlined, inner, loose


@loose
def reach(records, node, u, c):
    """sup ⟨u, y − c⟩ over the box of a node."""
    d = u.size
    s = 0.0
    for i in range(d):
        s += u[i] * (records[node, i] - c[i])
    at = 2 * d
    for k in range(d):
        p = 0.0
        for i in range(d):
            p += u[i] * records[node, at + i]
        at += d
        s += abs(p) * records[node, d + k]
    return s


@inlined
def best_token(points, log_weights, records, depth, u, c, stack, guess):
    """The token with the largest log w + ⟨u, y − c⟩, exactly: branch and bound, never a greedy descent alone.

    `guess` is any token; a good one prunes early. Returns (token, its value).
    """
    n, d = points.shape
    best = guess
    top = log_weights[guess]
    for k in range(d):
        top += u[k] * (points[guess, k] - c[k])
    heaviest = d * d + 2 * d + 2
    stack[0], size = 1, 1
    while size:
        size -= 1
        node = stack[size]
        if reach(records, node, u, c) + records[node, heaviest] <= top:
            continue
        if node >> depth:
            for j in range(first_point(node, depth, n), first_point(node + 1, depth, n)):
                s = log_weights[j]
                for k in range(d):
                    s += u[k] * (points[j, k] - c[k])
                if s > top:
                    best, top = j, s
        else:
            size = push_nearest_last(records, 2 * node, u, c, stack, size)
    return best, top


@inner
def push_nearest_last(records, child, u, c, stack, size):
    """Push two siblings, the more promising one on top of the stack."""
    left, right = 0.0, 0.0
    for i in range(u.size):
        left += u[i] * (records[child, i] - c[i])
        right += u[i] * (records[child + 1, i] - c[i])
    first = left > right
    stack[size] = child + 1 if first else child
    stack[size + 1] = child if first else child + 1
    return size + 2


@inner
def depth_of(node):
    """The level of a node: the root, 1, is at level 0."""
    level = 0
    while node >> (level + 1):
        level += 1
    return level


@inner
def _add_point(log_weight, y, u, c, mean, second):
    """Add one weighted point to the moments about c; returns its weight e^{log_weight + ⟨u, y − c⟩}."""
    d = u.size
    s = log_weight
    for k in range(d):
        s += u[k] * (y[k] - c[k])
    a = fast_exp(s)
    for k in range(d):
        x = a * (y[k] - c[k])
        mean[k] += x
        for m in range(k + 1):
            second[k, m] += x * (y[m] - c[m])
    return a


@inlined
def first_mean(points, log_weights, records, depth, u, c, top, stack, mean, second):
    """Mass, mean and second moments about c of a measure A that carries most of the softmax at u and lies below it.

    A is made of tokens, and of whole nodes put at their weighted mean where ⟨u, y⟩ varies little over the node. For a
    node, w e^{⟨v, mean⟩} ≤ Σ_j w_j e^{⟨v, y_j⟩} at every v (Jensen), so Z_A ≤ Z everywhere whatever A leaves out:
    what it takes (nodes whose tokens can reach a tenth of the average weight so far) is a heuristic and needs no proof.
    `mean` gets Σ a (y − c) / Σ a, `second` gets Σ a (y − c)(y − c)ᵀ / Σ a, with a = e^{log w + ⟨u, y − c⟩ − top}.
    Returns Σ a.
    """
    n, d = points.shape
    at = d * d + 2 * d
    mass, visited = 0.0, 0
    mean[:] = 0.0
    second[:] = 0.0
    stack[0], size = 1, 1
    while size:
        size -= 1
        node = stack[size]
        level = depth_of(node)
        high = reach(records, node, u, c)
        if visited and math.exp(high + records[node, at + 1] - top) * visited < 0.1 * mass * (n >> level):
            continue
        middle = 0.0
        for k in range(d):
            middle += u[k] * (records[node, k] - c[k])
        if high - middle < 4.0:
            mass += _add_point(records[node, at + 1] - top, records[node, at + 3 :], u, c, mean, second)
            visited += n >> level
        elif level < depth:
            size = push_nearest_last(records, 2 * node, u, c, stack, size)
        else:
            for j in range(first_point(node, depth, n), first_point(node + 1, depth, n)):
                mass += _add_point(log_weights[j] - top, points[j], u, c, mean, second)
            visited += n >> depth
    for k in range(d):
        mean[k] /= mass
        for m in range(k + 1):
            second[k, m] /= mass
            second[m, k] = second[k, m]
    return mass
