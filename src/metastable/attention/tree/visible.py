"""What a box of queries sees: the best token, a first mean, the visible tokens, and their coordinates and weights.

The first part walks over the token tree. Scores are taken relative to a reference point c near the mean, ⟨u, y − c⟩,
so that their rounding is that of |u| |y − c| and not of |u| |y|: at β = 1e6 the tokens that count are at a distance of
1e-3. The second part fills the buffers of `Work` with the visible tokens, drops the faint ones, and sums over the rest.
"""

import math

import numpy as np

from .boxes import depth_of, first_point
from .expansion import BLOCK
from .packs import ABOVE, pack_error
from .vectors import ZERO, dot, fast_exp, inlined, inner, loose, score

# A pack may change this many times what a skipped node may, because there are fewer packs.
_EASIER = math.log(20.0)
# Larger exponents are cut to this one. A token with such a weight is never dropped, so its exact size does not matter.
_CEILING = 700.0
_BINS = 2048


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
def best_token(tokens, work, guess):
    """The token with the largest log w + ⟨u0, y − c⟩. Branch and bound finds it exactly.

    `guess` is any token. A good guess saves work.
    """
    points, log_weights, records, depth = tokens.points, tokens.log_weights, tokens.records, tokens.depth
    u, c, stack = work.u, work.c, work.stack
    n, d = points.shape
    best = guess
    top = score(log_weights[guess], u, points[guess], c)
    heaviest = d * d + 2 * d + 2
    stack[0], size = 1, 1
    while size:
        size -= 1
        node = stack[size]
        if reach(records, node, u, c) + records[node, heaviest] <= top:
            continue
        if node >> depth:
            for j in range(first_point(node, depth, n), first_point(node + 1, depth, n)):
                s = score(log_weights[j], u, points[j], c)
                if s > top:
                    best, top = j, s
        else:
            size = push_nearest_last(records, 2 * node, u, c, stack, size)
    return best


@inner
def push_nearest_last(records, child, u, c, stack, size):
    """Push two siblings, the one with the larger ⟨u, centre⟩ on top of the stack."""
    first = score(0.0, u, records[child], c) > score(0.0, u, records[child + 1], c)
    stack[size] = child + 1 if first else child
    stack[size + 1] = child if first else child + 1
    return size + 2


@inner
def _add_point(log_weight, y, u, c, mean, second):
    """Add one weighted point to the moments about c; returns its weight e^{log_weight + ⟨u, y − c⟩}."""
    a = fast_exp(score(log_weight, u, y, c))
    for k in range(u.size):
        x = a * (y[k] - c[k])
        mean[k] += x
        for m in range(k + 1):
            second[k, m] += x * (y[m] - c[m])
    return a


@inlined
def first_mean(tokens, work, top):
    """Moments about c of a measure A that carries most of the softmax at u = u0, with Z_A ≤ Z everywhere.

    A consists of tokens and of whole nodes. A node is moved to its weighted mean where ⟨u, y⟩ varies little over it.
    For a node, w e^{⟨v, mean⟩} ≤ Σ_j w_j e^{⟨v, y_j⟩} at every v (Jensen), so Z_A ≤ Z holds for every choice of nodes.
    The choice is a heuristic: nodes whose tokens can reach a tenth of the average weight so far.
    work.mean ← Σ a (y − c) / Σ a and work.second ← Σ a (y − c)(y − c)ᵀ / Σ a, with a = e^{log w + ⟨u, y − c⟩ − top}.
    Returns Σ a.
    """
    points, log_weights, records, depth = tokens.points, tokens.log_weights, tokens.records, tokens.depth
    u, c, stack, mean, second = work.u, work.c, work.stack, work.mean, work.second
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
        if high - score(0.0, u, records[node], c) < 4.0:
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
    """Bounds of the change by packing, per unit of the node's weight: of Σ weight and of Σ weight |y − c|."""
    u, c, v = work.u, work.c, work.delta
    for k in range(u.size):
        v[k] = shape[k] - c[k]
    top = score(-shift, u, shape, c)
    e_f, e_g = pack_error(shape, scale, u, work.half, work.axes, v, work.ellipses)
    factor = math.exp(min(top, 700.0))
    return factor * e_f, factor * e_g


@inlined
def _extent(record, c, axes, half):
    """(Σ_k half_k |⟨axis_k, y₀ − c⟩|, |y₀ − c|²) for the centre y₀ of a node."""
    spread, square = 0.0, 0.0
    for k in range(c.size):
        p = score(0.0, axes[k], record, c)
        spread += half[k] * abs(p)
        square += p * p
    return spread, square


@inner
def visible_ranges(tokens, work, shift, slack, per_unit, per_node):
    """The tokens that may matter somewhere in a box of queries, as ranges of the sorted order: into work.ranges.

    For u = u0 + δ with δ in the box (|⟨δ, axis_k⟩| ≤ half_k), a token's weight relative to e^{⟨δ, c⟩} is at most
    e^{log w + ⟨u0, y − c⟩ + T(y) − shift}. A node is skipped if that weight, times (|y − c| + slack), has
    a logarithm of at most `per_unit` for each unit of the node's own weight, or of at most `per_node` for the whole
    node. Upper bounds of its contribution are added to work.skipped: (Σ weight, Σ weight |y − c|).
    A slightly weaker rule decides whether a packed node is replaced by its grid (tokens from number n on).
    Returns the number of ranges.
    """
    n, records, depth, packs = tokens.points.shape[0], tokens.records, tokens.depth, tokens.packs
    u, c, half = work.u, work.c, work.half
    d = u.size
    weight, count = d * d + 2 * d + 1, ZERO
    nearest, widest = math.log(slack), math.sqrt(dot(half, half))
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
        # log(far + slack) ≥ log(slack), so most visible nodes need no logarithm of their own.
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
    """Whether even a leaf with the smallest scores of the node would be visible. Then the whole node is taken."""
    d = u.size
    middle = score(0.0, u, record, c)
    share = record[d * d + 2 * d + 1] - levels * math.log(2.0)
    return 2.0 * middle - high - shift + math.log(slack) > max(per_unit, per_node - share)


@loose
def _axpy(e, x, o, out):
    """out += e (x − o)."""
    for t in range(out.size):
        out[t] += e * (x[t] - o)


@loose
def _add_axis(u, h, x, score, spread, faint):
    """One axis' part of the score, the spread and |z|²."""
    for t in range(x.size):
        score[t] += u * x[t]
        spread[t] += h * abs(x[t])
        faint[t] += x[t] * x[t]


@loose
def _crests(score, spread, slack, crest, faint):
    """crest ← e^{s + T}, faint ← e^{s + T} (|z| + slack), from faint = |z|²."""
    for t in range(crest.size):
        crest[t] = fast_exp(min(score[t] + spread[t], _CEILING))
        faint[t] = crest[t] * (math.sqrt(faint[t]) + slack)


@loose
def _weigh_in_space(x, y, w, logs, u, c, axes, half, shift, slack, z0, z1, z2, score, spread, crest, faint):
    """`_weigh` in three dimensions, in one loop that stays in registers: a range may be short."""
    u0, u1, u2, h0, h1, h2 = u[0], u[1], u[2], half[0], half[1], half[2]
    a, b, c = c[0], c[1], c[2]
    a0, a1, a2, b0, b1, b2 = axes[0, 0], axes[0, 1], axes[0, 2], axes[1, 0], axes[1, 1], axes[1, 2]
    c0, c1, c2 = axes[2, 0], axes[2, 1], axes[2, 2]
    for t in range(x.size):
        p, q, r = x[t] - a, y[t] - b, w[t] - c
        e, f, g = a0 * p + a1 * q + a2 * r, b0 * p + b1 * q + b2 * r, c0 * p + c1 * q + c2 * r
        s = logs[t] - shift + u0 * e + u1 * f + u2 * g
        wide = h0 * abs(e) + h1 * abs(f) + h2 * abs(g)
        top = fast_exp(min(s + wide, _CEILING))
        z0[t], z1[t], z2[t], score[t], spread[t], crest[t] = e, f, g, s, wide, top
        faint[t] = top * (math.sqrt(e * e + f * f + g * g) + slack)


@inlined
def _weigh(tokens, work, lo, hi, at, shift, slack):
    """Coordinates z, score s, spread T, crest e^{s+T} and importance e^{s+T} (|z| + slack) of tokens lo … hi − 1."""
    c, half, u, axes, end = work.c, work.half, work.turned, work.axes, at + hi - lo
    score, spread, crest, faint = work.score[at:end], work.spread[at:end], work.crest[at:end], work.faint[at:end]
    if u.size == 3:
        x, y, w = tokens.columns[0, lo:hi], tokens.columns[1, lo:hi], tokens.columns[2, lo:hi]
        z0, z1, z2 = work.z[0, at:end], work.z[1, at:end], work.z[2, at:end]
        logs = tokens.logs[lo:hi]
        _weigh_in_space(x, y, w, logs, u, c, axes, half, shift, slack, z0, z1, z2, score, spread, crest, faint)
        return
    for t in range(hi - lo):
        score[t] = tokens.logs[lo + t] - shift
    spread[:] = 0.0
    faint[:] = 0.0
    for k in range(u.size):
        out = work.z[k, at:end]
        out[:] = 0.0
        for i in range(u.size):
            _axpy(axes[k, i], tokens.columns[i, lo:hi], c[i], out)
        _add_axis(u[k], half[k], out, score, spread, faint)
    _crests(score, spread, slack, crest, faint)


@inlined
def collect(tokens, work, count, shift, slack):
    """Fill the buffers with the tokens of the first `count` ranges. Returns the number of tokens.

    Everything is relative to c and in the axes of the box; work.turned is u0 in those axes. bins[e] ← Σ importance
    over importances in [2^e, 2^{e+1}), from a sample if there are many tokens. The bins only decide which tokens are
    dropped. The bound of the dropped tokens is a full sum.
    """
    at = ZERO
    work.bins[:] = 0.0
    for i in range(count):
        for lo in range(work.ranges[i, 0], work.ranges[i, 1], BLOCK):
            hi = min(lo + BLOCK, work.ranges[i, 1])
            _weigh(tokens, work, lo, hi, at, shift, slack)
            for t in range(hi - lo):
                work.sign[at + t] = tokens.signs[lo + t]
            at += hi - lo
    every = 1 + at // 4096
    for t in range(0, at, every):
        work.bins[(np.float64(work.faint[t]).view(np.int64) >> 52) & 2047] += every * work.faint[t]
    return at


@inlined
def _cut(bins, budget):
    """The largest power of two such that all smaller importances add up to at most the budget, and about how many."""
    total, count = 0.0, 0.0
    for e in range(_BINS):
        total += bins[e]
        if total > budget:
            return math.ldexp(1.0, e - 1023), count
        if bins[e] > 0.0:
            count += bins[e] / math.ldexp(1.5, e - 1023)
    return math.inf, count


@loose
def _faint_sums(n, cut, slack, faint, crest, skipped):
    """skipped += (Σ crest, Σ crest |z|) over the tokens whose importance crest (|z| + slack) is below the cut."""
    mass = moment = 0.0
    for j in range(n):
        mass += crest[j] if faint[j] < cut else 0.0
        moment += faint[j] if faint[j] < cut else 0.0
    skipped[0] += mass
    skipped[1] += max(moment - slack * mass, 0.0)


@inner
def _gather(place, a):
    """a[t] ← a[place[t]], which lies at t or behind it."""
    for t in range(place.size):
        a[t] = a[place[t]]


@inlined
def trim(work, n, slack, budget):
    """Drop the least important of the n tokens, as many as the budget allows, unless they are fewer than a tenth.

    Bounds of their contribution are added to work.skipped = (Σ crest, Σ crest |z|). Returns the number of tokens kept.
    """
    cut, few = _cut(work.bins, 0.9 * budget)
    if few < 0.1 * n:
        return n
    _faint_sums(n, cut, slack, work.faint[:n], work.crest[:n], work.skipped)
    kept = 0
    for j in range(n):
        work.place[kept] = j
        kept += 0 if work.faint[j] < cut else 1
    place = work.place[:kept]
    for k in range(work.z.shape[0]):
        _gather(place, work.z[k])
    _gather(place, work.sign)
    _gather(place, work.score)
    _gather(place, work.spread)
    _gather(place, work.crest)
    return kept


@loose
def _add_scaled(a, x, out):
    for t in range(out.size):
        out[t] += a * x[t]


@loose
def _exp_sum(x, sign, top):
    """x ← ± e^{x − top}; returns the sum."""
    s = 0.0
    for t in range(x.size):
        x[t] = sign[t] * fast_exp(x[t] - top)
        s += x[t]
    return s


@loose
def _dot(x, y):
    s = 0.0
    for t in range(x.size):
        s += x[t] * y[t]
    return s


@loose
def _direct_in_space(x, y, z, sign, score, delta, top):
    """`direct_sums` in three dimensions, in one loop that stays in registers: three times as fast."""
    a, b, c = delta[0], delta[1], delta[2]
    s = s0 = s1 = s2 = 0.0
    for t in range(score.size):
        e = sign[t] * fast_exp(score[t] + a * x[t] + b * y[t] + c * z[t] - top)
        s += e
        s0 += e * x[t]
        s1 += e * y[t]
        s2 += e * z[t]
    return s, s0, s1, s2


@inlined
def direct_sums(work, n, delta, top, sums):
    """sums ← (Σ e, Σ e z_1, …, Σ e z_d) with e_j = ± e^{s_j + ⟨δ, z_j⟩ − top}, over the first n tokens."""
    z, sign, score, d = work.z, work.sign, work.score, delta.size
    if d == 3:
        x, y, w = z[0, :n], z[1, :n], z[2, :n]
        sums[0], sums[1], sums[2], sums[3] = _direct_in_space(x, y, w, sign[:n], score[:n], delta, top)
        return
    sums[: d + 1] = 0.0
    for at in range(0, n, BLOCK):
        end = min(at + BLOCK, n)
        e = work.exponents[: end - at]
        for t in range(end - at):
            e[t] = score[at + t]
        for k in range(d):
            _add_scaled(delta[k], z[k, at:end], e)
        sums[0] += _exp_sum(e, sign[at:end], top)
        for k in range(d):
            sums[k + 1] += _dot(e, z[k, at:end])


@inner
def largest_exponent(z, score, n, delta):
    """max_j s_j + ⟨δ, z_j⟩."""
    top = -math.inf
    for j in range(n):
        s = score[j]
        for k in range(delta.size):
            s += delta[k] * z[k, j]
        top = max(top, s)
    return top


@loose
def total_weight(score, n):
    """Σ_j e^{s_j} over the first n tokens. Scores above 700 count as 700."""
    s = 0.0
    for j in range(n):
        s += fast_exp(min(score[j], _CEILING))
    return s


@loose
def _exp_of(score, sign, top, e):
    """e ← ± e^{e + score − top}; returns the sum."""
    s = 0.0
    for t in range(e.size):
        e[t] = sign[t] * fast_exp(e[t] + score[t] - top)
        s += e[t]
    return s


@loose
def _dot_three(e, x, y):
    s = 0.0
    for t in range(e.size):
        s += e[t] * x[t] * y[t]
    return s


@inlined
def moments(work, n, axes, delta, top):
    """Moments of the first n tokens with weights a = ± e^{s + ⟨δ, z⟩ − top}. Returns Σ a.

    work.mean ← Σ a z / Σ a and work.second ← Σ a z zᵀ / Σ a, both in the outer axes.
    """
    z, mean, second, d = work.z, work.mean, work.second, delta.size
    mass = 0.0
    mean[:] = 0.0
    second[:] = 0.0
    for at in range(0, n, BLOCK):
        end = min(at + BLOCK, n)
        e = work.exponents[: end - at]
        e[:] = 0.0
        for k in range(d):
            _add_scaled(delta[k], z[k, at:end], e)
        mass += _exp_of(work.score[at:end], work.sign[at:end], top, e)
        for k in range(d):
            x = z[k, at:end]
            s = _dot(e, x)
            for i in range(d):
                mean[i] += s * axes[k, i]
            for m in range(k + 1):
                s = _dot_three(e, x, z[m, at:end])
                for i in range(d):
                    for j in range(d):
                        second[i, j] += s * axes[k, i] * axes[m, j]
                        if m < k:
                            second[i, j] += s * axes[m, i] * axes[k, j]
    for i in range(d):
        mean[i] /= mass
        for j in range(d):
            second[i, j] /= mass
    return mass
