"""The descent through a tree of boxes of queries, from large boxes to small ones.

For each box the kernels find the visible tokens. Then they expand the softmax about the centre of the box, or sum it
directly for each query, or split the box.
"""

import math

from .boxes import depth_of, first_point
from .expansion import BLOCK, add_block, certify, choose_order, divide_by_factorials, evaluate_block, sample_sums
from .vectors import ZERO, dot, fast_exp, inlined, inner, kernel, score
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
# Expected number of skipped nodes whose error is near the largest allowed one.
_SKIPPED = 250.0
# Costs of one (query, token) pair and of one (query, coefficient) pair, in units of one (token, coefficient) pair.
_PAIR, _EVALUATE = 22.0, 4.0

# A box wider than WIDEST standard deviations of the softmax is split (measured: the cost varies little around it).
# For a box of at most FEW queries it is WIDEST_OF_FEW, because every box has to search for its own visible tokens.
WIDEST, FEW, WIDEST_OF_FEW = 1.8, 16, 6.0

# A box starts from the tokens of the previous box if these are at most MOST_FOLLOWED, and the centres of the boxes are
# at most NEAR standard deviations apart. If its own tokens weigh over OUTWEIGHED times those, it starts from the tree.
MOST_FOLLOWED, NEAR, OUTWEIGHED = 16384, 4.0, 2.0

# A box with more than HEAVY (query, token) pairs is split once more if its parent saw more than SPARED times as many
# tokens. At the edge of a cloud a box may be narrow by the softmax at its centre and still see many tokens.
HEAVY, SPARED = 40_000, 1.5

SPLIT, DONE = 0, 1


@inner
def _spread_along(second, mean, axis):
    """Standard deviation along an axis, from second moments about c and the mean relative to c."""
    s, m = 0.0, dot(axis, mean)
    for i in range(mean.size):
        for k in range(mean.size):
            s += axis[i] * second[i, k] * axis[k]
    return math.sqrt(max(s - m * m, 0.0))


@inner
def _exchange(axes, half, i, j):
    for m in range(half.size):
        axes[i, m], axes[j, m] = axes[j, m], axes[i, m]
    half[i], half[j] = half[j], half[i]


@inner
def _reference(tokens, work):
    """Step one: c ← m_A(u0), the reference point of all scores. Returns (shift, mass of A).

    The weights are a_j = e^{log w_j + ⟨u0, y_j − c⟩ − shift}. The best token has the largest weight, 1.
    """
    u, c, mean = work.u, work.c, work.mean
    for k in range(u.size):
        c[k] = tokens.points[work.guess[0], k]
    best = best_token(tokens, work, work.guess[0])
    work.guess[0] = best
    for k in range(u.size):
        c[k] = tokens.points[best, k]
    shift = tokens.log_weights[best]
    mass = first_mean(tokens, work, shift)
    for k in range(u.size):
        c[k] += mean[k]
        shift -= u[k] * mean[k]
    return shift, mass


@inner
def _follow(work):
    """Step one, started from the tokens that the previous box kept, if they are few and near.

    These tokens carry nearly all of the softmax. Their scores at the new u0 are the old ones plus ⟨δ, z⟩. If none of
    them is packed, they are a measure A with Z_A ≤ Z. Otherwise their mass is no lower bound.
    Returns (shift, mass, lower bound of f from this mass). The mass is 0 if the previous box cannot be used.
    """
    u, c, mean, delta, second = work.u, work.c, work.mean, work.delta, work.second
    d, n = u.size, work.followed[0]
    axes, old_u, old_c = work.past[:d], work.past[d], work.past[d + 1]
    far = 0.0
    for k in range(d):
        for i in range(d):
            far += (u[k] - old_u[k]) * (second[k, i] - mean[k] * mean[i]) * (u[i] - old_u[i])
    if n == 0 or not far <= NEAR * NEAR:
        return 0.0, 0.0, 0.0
    for k in range(d):
        delta[k] = score(0.0, axes[k], u, old_u)
    top = largest_exponent(work.z, work.score, n, delta)
    mass = moments(work, n, axes, delta, top)
    shift = work.past_shift[0] + top
    for k in range(d):
        c[k] = old_c[k] + mean[k]
        shift -= u[k] * mean[k]
    return shift, mass, mass if work.followed[1] else 0.0


@inner
def _keep(work, kept, shift):
    """Record the box and its tokens for the next box."""
    d = work.axes.shape[0]
    work.past_shift[0] = shift
    for k in range(d):
        for i in range(d):
            work.past[k, i] = work.axes[k, i]
        work.past[d, k], work.past[d + 1, k] = work.u[k], work.c[k]
    work.followed[0] = kept if kept <= MOST_FOLLOWED else 0


@inlined
def _arrange(work):
    """Step two: thin axis first, widest last.

    Returns the size of the box in standard deviations, and an estimate of how far the mean moves from c inside it, a
    little more than |Cov δ|. The estimate is a heuristic: the bound of a query uses the distance that is found.
    """
    half, mean, axes, second = work.half, work.mean, work.axes, work.second
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
    """Record the covariance of the softmax for the boxes below."""
    mean, second, covariance = work.mean, work.second, work.covariances[level]
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
    """Size of a box in standard deviations, by the covariance of its parent; 0 if that is unknown.

    It saves the walk over the tokens for boxes that will certainly be split. The parent's covariance is copied to the
    box, for its own children.
    """
    if level == 0:
        return 0.0
    half, axes = work.half, work.axes
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
    """Step three: fill the buffers with the visible tokens, add bounds of the others to `skipped`.

    Returns the number of tokens in the buffers.
    """
    u, turned = work.u, work.turned
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
        turned[k] = dot(work.axes[k], u)
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
    for k in range(delta.size):
        delta[k] = score(0.0, work.axes[k], queries[i], work.u)


@inner
def _write(work, offset, out):
    """out ← c + Σ_k offset_k axis_k. Returns |offset|."""
    c, axes = work.c, work.axes
    far = 0.0
    for m in range(c.size):
        out[m] = c[m]
        far += offset[m] * offset[m]
        for k in range(c.size):
            out[m] += offset[k] * axes[k, m]
    return math.sqrt(far)


@inner
def _write_log_z(query, c, shift, value, top, error, floor, answers, i):
    """log Z = shift + ⟨u, c⟩ + log f̃ with f̃ = value · e^top, and its bound, from |f̃ − f| ≤ error and f ≥ floor."""
    answers.log_z[i] = dot(query, c) + shift + top + math.log(value)
    near = value * math.exp(min(top, 700.0))
    # f ≥ max(floor, f̃ − error). A packed f̃ may be negative; then nothing is known about its logarithm.
    least = min(near, max(floor, near - error))
    answers.log_z_bounds[i] = error / least if least > 0.0 else math.inf


@inner
def _within(answers, i, tol):
    """Whether all bounds of query i are at most tol."""
    return answers.bounds[i] <= tol and (answers.log_z.size == 0 or answers.log_z_bounds[i] <= tol)


@inner
def _direct(queries, i, work, kept, floor, widest, mean):
    """mean ← the direct sum over the kept tokens.

    Returns (bound of the mean, value, top) with f̃ = value · e^top. The bound is from skipped and packed tokens alone.
    """
    sums, offset = work.rows[3], work.delta
    _displacement(queries, i, work, offset)
    # Σ e is at least about 1 for every δ (Jensen), so only overflow must be avoided, and only in a wide box.
    top = largest_exponent(work.z, work.score, kept, offset) if widest > 300.0 else 0.0
    direct_sums(work, kept, offset, top, sums)
    for k in range(offset.size):
        offset[k] = sums[k + 1] / sums[0]
    far = _write(work, offset, mean)
    work.counts[0] += kept
    least = max(floor, sums[0] * math.exp(min(top, 700.0)) - work.skipped[0])
    return (work.skipped[1] + far * work.skipped[0]) / least, sums[0], top


@inlined
def _expand(work, kept, p, r):
    """The coefficients of the expansion, from all kept tokens."""
    half = work.half
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
def evaluate(queries, lo, hi, work, kept, floor, shift, p, r, e_f, e_g, tol, answers):
    """Evaluate the expansion at every query of the box. A query with a bound above tol is summed directly."""
    half, offset, means, bounds = work.half, work.delta, answers.means, answers.bounds
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
        if answers.log_z.size:
            error = e_f + work.skipped[0]
            for t in range(n):
                i = first + t
                _write_log_z(queries[i], work.c, shift, value[t], 0.0, error, floor, answers, i)
        for i in range(first, first + n):
            if not _within(answers, i, tol):
                bounds[i], f, top = _direct(queries, i, work, kept, floor, 0.0, means[i])
                if answers.log_z.size:
                    _write_log_z(queries[i], work.c, shift, f, top, work.skipped[0], floor, answers, i)


@inner
def _order(work, count, kept, slack, budget):
    """Step four: choose the degrees on a sample of the tokens, then certify them on all tokens.

    Returns (number of terms, p, r, E_f, E_g). The number of terms is 0 if no degrees are within the budget.
    """
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
def attend_box(tokens, queries, lo, hi, level, work, tol, strict, may_split, answers):
    """Answers to queries lo … hi − 1, whose box is in work.u, work.half and work.axes.

    Returns DONE, or SPLIT if smaller boxes are cheaper or needed. `strict` ≤ 1 scales the error of skipped tokens.
    """
    count = hi - lo
    widest = WIDEST if count > FEW else WIDEST_OF_FEW
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
        # With slack ≥ 1 the shares of the tolerance bound the relative error of f, which is that of log Z.
        slack += tol + (1.0 if answers.log_z.size else 0.0)
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
        evaluate(queries, lo, hi, work, kept, floor, shift, p, r, e_f, e_g, tol, answers)
        work.counts[1] += kept
        work.counts[3] += 1
    else:
        if may_split and (count > 64 or _worth_cutting(work, level, count, kept)):
            return SPLIT
        for i in range(lo, hi):
            answers.bounds[i], f, top = _direct(queries, i, work, kept, floor, spread, answers.means[i])
            if answers.log_z.size:
                _write_log_z(queries[i], work.c, shift, f, top, work.skipped[0], floor, answers, i)
        work.counts[4] += 1
    for i in range(lo, hi):
        if not _within(answers, i, tol):
            return SPLIT
    return DONE


@inlined
def _load_box(record, work):
    """Load u0, half-widths and axes of a node of queries. No half-width is 0: the expansion divides by them."""
    u, half, axes = work.u, work.half, work.axes
    d = u.size
    widest = 0.0
    for k in range(d):
        u[k] = record[k]
        widest = max(widest, record[d + k])
    floor = max(1e-6 * widest, 1e-14 * math.sqrt(dot(u, u)), 1e-100)
    for k in range(d):
        half[k] = max(record[d + k] * (1.0 + 1e-12), floor)
        for m in range(d):
            axes[k, m] = record[2 * d + k * d + m]


@inlined
def _load_query(query, work):
    """Load a box that is one query. It has size 0, and any axes are right."""
    for k in range(query.size):
        work.u[k] = query[k]
        work.half[k] = 0.0
        for m in range(query.size):
            work.axes[k, m] = 1.0 if k == m else 0.0


@inlined
def _all_equal(record, d):
    """Whether all queries of a node are equal: its box has no width."""
    widest = 0.0
    for k in range(d):
        widest = max(widest, record[d + k])
    return widest == 0.0


@inlined
def _repeat(answers, lo, hi, end):
    """Copy the answer to query lo to queries hi … end − 1."""
    for i in range(hi, end):
        answers.bounds[i] = answers.bounds[lo]
        for k in range(answers.means.shape[1]):
            answers.means[i, k] = answers.means[lo, k]
        if answers.log_z.size:
            answers.log_z[i], answers.log_z_bounds[i] = answers.log_z[lo], answers.log_z_bounds[lo]


@kernel
def descend(tokens, queries, records, depth, nodes, stop, work, tol, answers, stack, later):
    """Answer the queries under the given nodes of the query tree.

    Boxes that must be split at level `stop` are written to `later` instead; returns how many. A leaf that must be split
    is answered query by query (−1 − query on the stack), with a smaller `strict` each time until the bounds are at most
    tol. With strict = 0 no token is skipped and the bounds are 0, so the loop ends. Equal queries are answered once.
    """
    n = queries.shape[0]
    # The answer must not depend on what this thread did before.
    work.covariances[:] = math.nan
    work.kept_above[:] = math.inf
    work.followed[0] = 0
    work.guess[0] = 0
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
        if attend_box(tokens, queries, lo, hi, level, work, tol, strict, not alone, answers) == DONE:
            strict = 1.0
            _repeat(answers, lo, hi, end)
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
