"""The queries of a tree of boxes, from large boxes to small ones.

For each box the visible tokens are found. Then the softmax is expanded about the centre of the box, or summed directly
for each query, or the box is split.
"""

import math

from .boxes import depth_of, first_point
from .expansion import BLOCK, add_block, certify, choose_order, divide_by_factorials, evaluate_block, sample_sums
from .vectors import ZERO, fast_exp, inlined, inner, kernel
from .visible import (
    best_token,
    collect,
    direct_sums,
    first_mean,
    largest_exponent,
    moments,
    total_weight,
    trim,
    visible_ranges,
)

# Shares of the tolerance: nodes skipped or packed, tokens trimmed (this includes the nodes), expansions truncated.
_SKIP, _TRIM, _TRUNCATE = 0.25, 0.35, 0.6
# Expected number of skipped nodes with a share near the largest allowed.
_SKIPPED = 250.0
# Costs of one (query, token) pair and of one (query, coefficient) pair, in units of one (token, coefficient) pair.
_PAIR, _EVALUATE = 22.0, 4.0

# A box of at most FEW queries is split only if it is wider than WIDEST_OF_FEW standard deviations of the softmax,
# because every box has to search for its own visible tokens.
FEW, WIDEST_OF_FEW = 16, 6.0

# A box starts from the tokens of the box before, if they are at most MOST_FOLLOWED tokens and at most NEAR standard
# deviations away. If its own tokens weigh more than OUTWEIGHED times those, the box is started again from the tree.
MOST_FOLLOWED, NEAR, OUTWEIGHED = 16384, 4.0, 2.0

# More than HEAVY (query, token) pairs are summed only if the parent box saw less than SPARED times more tokens. Where
# a cloud thins out, a box may be narrow by the softmax at its centre and yet see many tokens.
HEAVY, SPARED = 40_000, 1.5

SPLIT, DONE = 0, 1


@inner
def _spread_along(second, mean, axis):
    """Standard deviation along an axis, from second moments about c and the mean relative to c."""
    d = mean.size
    s, m = 0.0, 0.0
    for i in range(d):
        m += axis[i] * mean[i]
        for k in range(d):
            s += axis[i] * second[i, k] * axis[k]
    return math.sqrt(max(s - m * m, 0.0))


@inner
def _exchange(axes, half, i, j):
    for m in range(half.size):
        axes[i, m], axes[j, m] = axes[j, m], axes[i, m]
    half[i], half[j] = half[j], half[i]


@inner
def _reference(tokens, work):
    """Step one: c ← m_A at u0 (about which every score is taken). Returns (shift, mass of A).

    The weights are a_j = e^{log w_j + ⟨u0, y_j − c⟩ − shift}; the largest, that of the best token, is 1.
    """
    u, c, mean = work.small[0], work.small[1], work.small[2]
    points, log_weights, records, depth = tokens.points, tokens.log_weights, tokens.records, tokens.depth
    for k in range(u.size):
        c[k] = points[work.guess[0], k]
    best, _ = best_token(points, log_weights, records, depth, u, c, work.stack, work.guess[0])
    work.guess[0] = best
    for k in range(u.size):
        c[k] = points[best, k]
    shift = log_weights[best]
    mass = first_mean(points, log_weights, records, depth, u, c, shift, work.stack, mean, work.second)
    for k in range(u.size):
        c[k] += mean[k]
        shift -= u[k] * mean[k]
    return shift, mass


@inner
def _follow(work):
    """Step one, from the tokens that the box before has kept, if they are few and near.

    These tokens carry nearly all of the softmax. Their scores at the new u0 are the old ones plus ⟨δ, z⟩. If none of
    them is packed, they are a measure A below the softmax. If some are, their mass is no lower bound.
    Returns (shift, mass, lower bound by this mass); mass 0 if there is no such neighbour.
    """
    u, c, mean, delta, second = work.small[0], work.small[1], work.small[2], work.small[5], work.second
    d, n = u.size, work.followed[0]
    axes, old_u, old_c = work.past[:d], work.past[d], work.past[d + 1]
    far = 0.0
    for k in range(d):
        for i in range(d):
            far += (u[k] - old_u[k]) * (second[k, i] - mean[k] * mean[i]) * (u[i] - old_u[i])
    if n == 0 or not far <= NEAR * NEAR:
        return 0.0, 0.0, 0.0
    for k in range(d):
        delta[k] = 0.0
        for i in range(d):
            delta[k] += axes[k, i] * (u[i] - old_u[i])
    top = largest_exponent(work.z, work.score, n, delta)
    mass = moments(work, n, axes, delta, top)
    shift = work.past_shift[0] + top
    for k in range(d):
        c[k] = old_c[k] + mean[k]
        shift -= u[k] * mean[k]
    return shift, mass, mass if work.followed[1] else 0.0


@inner
def _keep(work, kept, shift):
    """Remember the box and its tokens for the next one."""
    d = work.axes.shape[0]
    work.past_shift[0] = shift
    for k in range(d):
        for i in range(d):
            work.past[k, i] = work.axes[k, i]
        work.past[d, k], work.past[d + 1, k] = work.small[0, k], work.small[1, k]
    work.followed[0] = kept if kept <= MOST_FOLLOWED else 0


@inlined
def _arrange(work):
    """Step two: thin axis first, widest last.

    Returns the size of the box in standard deviations, and an estimate of how far the mean moves from c inside it, a
    little more than |Cov δ|. The estimate is a heuristic: the bound of a query uses the distance that is found.
    """
    half, mean, axes, second = work.small[3], work.small[2], work.axes, work.second
    d = half.size
    size, shift, total = 0.0, 0.0, 0.0
    thin, wide = ZERO, ZERO
    least, most = math.inf, -1.0
    for k in range(d):
        sigma = _spread_along(second, mean, axes[k])
        x = half[k] * sigma
        size += x * x
        shift += (x * sigma) ** 2
        total += sigma * sigma
        if x < least:
            thin, least = k, x
        if x >= most:
            wide, most = k, x
    _exchange(axes, half, ZERO, thin)
    if wide == 0:
        wide = thin
    _exchange(axes, half, d - 1, wide)
    return math.sqrt(size), 1.25 * math.sqrt(shift) + 0.1 * math.sqrt(total)


@inlined
def _remember(work, level):
    """Keep the covariance for the boxes below."""
    mean, second, covariance = work.small[2], work.second, work.covariances[level]
    for i in range(mean.size):
        for k in range(mean.size):
            covariance[i, k] = second[i, k] - mean[i] * mean[k]


@inlined
def _worth_cutting(work, level, count, kept):
    """Whether to split a box that would be summed directly: it is large, and the last split reduced the tokens."""
    above = work.kept_above[level - 1] if level else math.inf
    work.kept_above[level] = kept
    return kept * count > HEAVY and above > SPARED * kept


@inlined
def _predicted(work, level):
    """Size of a box in standard deviations, by the covariance of its parent, which it inherits. 0 if unknown.

    It saves the walk over the tokens for boxes that will certainly be split.
    """
    if level == 0:
        return 0.0
    half, axes = work.small[3], work.axes
    above, covariance = work.covariances[level - 1], work.covariances[level]
    size = 0.0
    for k in range(half.size):
        for i in range(half.size):
            covariance[k, i] = above[k, i]
            for m in range(half.size):
                size += half[k] * half[k] * axes[k, i] * above[i, m] * axes[k, m]
    return math.sqrt(size) if size > 0.0 else 0.0


@inner
def _see(tokens, work, shift, mass, slack, tol):
    """Step three: fill the buffers with the visible tokens and add the others to `skipped`. Returns their number."""
    u, turned = work.small[0], work.small[4]
    d = u.size
    total = tokens.records[1, d * d + 2 * d + 1]
    per_unit, per_node = -math.inf, -math.inf
    if tol > 0.0:
        per_unit = math.log(0.5 * _SKIP * tol * mass) - total
        per_node = math.log(_SKIP * tol * mass / _SKIPPED)
    for _ in range(30):
        work.skipped[:] = 0.0
        count = visible_ranges(tokens, work, shift, slack, per_unit, per_node)
        # per_unit alone keeps the sum within its share; per_node does so unless many nodes come close to it.
        over = (work.skipped[1] + slack * work.skipped[0]) / (_SKIP * tol * mass) if tol > 0.0 else 0.0
        if over <= 1.0:
            break
        per_node -= math.log(over) + 0.3
    for k in range(d):
        turned[k] = 0.0
        for i in range(d):
            turned[k] += work.axes[k, i] * u[i]
    work.followed[1] = 1
    for i in range(count):
        if work.ranges[i, 1] > tokens.points.shape[0]:
            work.followed[1] = 0
    seen = collect(tokens, work, count, shift, slack)
    work.counts[2] += 1
    work.counts[5] += seen
    if tol <= 0.0:
        return seen
    budget = _TRIM * tol * mass - work.skipped[1] - slack * work.skipped[0]
    return trim(work, seen, slack, budget)


@inner
def _displacement(queries, i, work, delta):
    """δ = u − u0 in the axes of the box."""
    u, axes = work.small[0], work.axes
    for k in range(u.size):
        s = 0.0
        for m in range(u.size):
            s += axes[k, m] * (queries[i, m] - u[m])
        delta[k] = s


@inner
def _write(work, offset, out):
    """out ← c + Σ_k offset_k axis_k. Returns |offset|."""
    c, axes = work.small[1], work.axes
    far = 0.0
    for m in range(c.size):
        out[m] = c[m]
        far += offset[m] * offset[m]
        for k in range(c.size):
            out[m] += offset[k] * axes[k, m]
    return math.sqrt(far)


@inner
def _direct(queries, i, work, kept, floor, widest, sums, offset, mean):
    """The mean over the kept tokens, summed. Returns its error bound: only skipped and packed tokens enter."""
    d = offset.size
    _displacement(queries, i, work, offset)
    # Σ e is at least about 1 for every δ (Jensen), so only overflow must be avoided, and only in a wide box.
    top = largest_exponent(work.z, work.score, kept, offset) if widest > 300.0 else 0.0
    direct_sums(work, kept, offset, top, sums)
    for k in range(d):
        offset[k] = sums[k + 1] / sums[0]
    far = _write(work, offset, mean)
    work.counts[0] += kept
    least = max(floor, sums[0] * math.exp(min(top, 700.0)) - work.skipped[0])
    return (work.skipped[1] + far * work.skipped[0]) / least


@inlined
def _expand(work, kept, p, r):
    """The coefficients of the expansion, from all kept tokens."""
    half = work.small[3]
    d = half.size
    work.coefficients[:] = 0.0
    at = 0
    while at < kept:
        n = min(BLOCK, kept - at)
        for t in range(n):
            work.products[0, t] = work.sign[at + t] * fast_exp(work.score[at + t])
        for t in range(n, BLOCK):
            work.products[0, t] = 0.0
        for k in range(d):
            for t in range(n):
                work.v[k, t] = work.z[k, at + t] * half[k]
        add_block(work, p, r)
        at += n
    divide_by_factorials(work, p, r)


@inner
def evaluate(queries, lo, hi, work, kept, floor, p, r, e_f, e_g, tol, means, bounds):
    """Evaluate the expansion at every query of the box. A query whose bound is above tol is summed directly."""
    half, offset = work.small[3], work.small[5]
    d = half.size
    value = work.rows[2]
    for first in range(lo, hi, BLOCK):
        n = min(BLOCK, hi - first)
        for t in range(n):
            _displacement(queries, first + t, work, offset)
            for k in range(d):
                work.v[k, t] = offset[k] / half[k]
        evaluate_block(work, n, p, r)
        for t in range(n):
            for k in range(d):
                offset[k] = work.gradient[k, t] / (half[k] * value[t])
            far = _write(work, offset, means[first + t])
            least = max(floor, value[t] - e_f - work.skipped[0])
            bounds[first + t] = (e_g + work.skipped[1] + far * (e_f + work.skipped[0])) / least
            if not bounds[first + t] <= tol:
                bounds[first + t] = _direct(
                    queries, first + t, work, kept, floor, 0.0, work.rows[3], offset, means[first + t]
                )


@inner
def _order(work, count, kept, slack, budget):
    """Step four: degrees chosen on a sample, then certified on all tokens; (terms, p, r, E_f, E_g), terms 0 if none."""
    if count <= 4:
        return 0, 0, 0, 0.0, 0.0
    sample_sums(work, kept)
    aim = 0.8 * budget
    for _ in range(3):
        terms, p, r = choose_order(work.table, work.sums, slack, aim)
        if not terms:
            break
        e_f, e_g = certify(work, kept, p, r)
        if e_g + slack * e_f <= budget:
            return terms, p, r, e_f, e_g
        aim *= 0.4
    return 0, 0, 0, 0.0, 0.0


@inlined
def attend_box(tokens, queries, lo, hi, level, work, tol, strict, may_split, means, bounds):
    """Means and bounds of queries lo … hi − 1, whose box is in work.small[0], work.small[3] and work.axes.

    Returns DONE, or SPLIT if smaller boxes would be cheaper or are needed. `strict` ≤ 1 lowers what may be skipped.
    """
    count = hi - lo
    widest = work.widest[0] if count > FEW else WIDEST_OF_FEW
    if may_split:
        work.kept_above[level] = math.inf
    if may_split and _predicted(work, level) > 1.25 * widest:
        return SPLIT
    shift, mass, floor = _follow(work)
    kept = -1
    while kept < 0:
        follows = mass > 0.0
        if not follows:
            shift, mass = _reference(tokens, work)
            floor = mass
        size, slack = _arrange(work)
        slack += tol
        if may_split:
            _remember(work, level)
            if size > widest:
                return SPLIT
        kept = _see(tokens, work, shift, mass, slack, tol * strict)
        _keep(work, kept, shift)
        if follows and not total_weight(work.score, kept) <= OUTWEIGHED * mass:
            kept, mass = -1, 0.0
    terms, p, r, e_f, e_g = _order(work, count, kept, slack, _TRUNCATE * tol * mass)
    direct = _PAIR * kept * count
    spread = 0.0
    for j in range(kept):
        spread = max(spread, work.spread[j])
    if terms and kept * (terms + 20.0) + _EVALUATE * terms * count < direct:
        _expand(work, kept, p, r)
        evaluate(queries, lo, hi, work, kept, floor, p, r, e_f, e_g, tol, means, bounds)
        work.counts[1] += kept
        work.counts[3] += 1
    else:
        if may_split and (count > 64 or _worth_cutting(work, level, count, kept)):
            return SPLIT
        for i in range(lo, hi):
            bounds[i] = _direct(queries, i, work, kept, floor, spread, work.rows[3], work.small[5], means[i])
        work.counts[4] += 1
    for i in range(lo, hi):
        if not bounds[i] <= tol:
            return SPLIT
    return DONE


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
    """A box that is one query: it has size zero, and any axes will do."""
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

    Boxes that must be split at level `stop` are written to `later` instead; returns how many. A leaf that must be split
    is answered query by query (on the stack as −1 − query), with a smaller `strict` each time until the bound is met.
    With strict = 0 nothing is skipped and the bound is zero, so this ends. Equal queries are answered once.
    """
    n = queries.shape[0]
    work.covariances[:] = math.nan  # no values of another run
    work.kept_above[:] = math.inf
    work.followed[0] = 0
    work.guess[0] = 0  # the answer must not depend on which thread is first
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
                size += 1  # repeat the same query
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
