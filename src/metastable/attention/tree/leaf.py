"""One box of queries: find what it sees, then expand, sum directly, or ask for smaller boxes."""

import math

from .expansion import BLOCK, add_block, divide_by_factorials, evaluate_block
from .search import best_token, first_mean
from .seeing import visible_ranges
from .truncation import certify, choose_order, sample_sums
from .vectors import ZERO, fast_exp, inlined, inner
from .visible import collect, direct_sums, largest_exponent, moments, total_weight, trim

# Shares of the tolerance: nodes skipped or packed, tokens trimmed (this includes the nodes), expansions truncated.
_SKIP, _TRIM, _TRUNCATE = 0.25, 0.35, 0.6
# How many nodes are expected to be skipped with a share near the largest allowed.
_SKIPPED = 250.0
# Costs of one (query, token) pair and of one (query, coefficient) pair, in units of one (token, coefficient) pair.
_PAIR, _EVALUATE = 22.0, 4.0

# So few queries are not worth boxes of their own, which would each look for the tokens they see, unless they are far
# apart: this many standard deviations of the softmax.
FEW, WIDEST_OF_FEW = 16, 6.0

# A box looks first at what the one before has kept, if that is at most so many tokens and so many standard deviations
# away; if its own tokens weigh more than OUTWEIGHED times those, it looks for itself.
MOST_FOLLOWED, NEAR, OUTWEIGHED = 16384, 4.0, 2.0

# So many (query, token) pairs are summed only if the box before the last cut saw less than SPARED times more tokens:
# where a cloud thins out, a box may be narrow by the softmax at its centre and yet see far.
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

    Near a neighbour they carry nearly all of the softmax. Their scores at the new u0 are the old ones plus ⟨δ, z⟩. If
    none of them is packed they are a measure A below the softmax like any other; if some are, their mass only steers.
    Returns (shift, mass, what of it is a bound from below), mass 0 if there is no such neighbour.
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
    mass = moments(work.z, work.sign, work.score, n, delta, top, work.exponents, axes, mean, second)
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

    Returns the size of the box in standard deviations, and an estimate of how far the mean moves from c inside it,
    |Cov δ| and a little (it only steers: the bound of a query uses the distance that it finds)."""
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
    """Whether a box that would be summed directly should be cut: it is large, and the last cut has spared tokens."""
    above = work.kept_above[level - 1] if level else math.inf
    work.kept_above[level] = kept
    return kept * count > HEAVY and above > SPARED * kept


@inlined
def _predicted(work, level):
    """Size of a box in standard deviations, by the covariance of its parent; it is then passed on. 0 if unknown.

    Only spares the walk over the tokens for boxes that are sure to be split.
    """
    if level == 0:
        return 0.0
    half, axes, above, covariance = (
        work.small[3],
        work.axes,
        work.covariances[level - 1],
        work.covariances[level],
    )
    size = 0.0
    for k in range(half.size):
        for i in range(half.size):
            covariance[k, i] = above[k, i]
            for m in range(half.size):
                size += half[k] * half[k] * axes[k, i] * above[i, m] * axes[k, m]
    return math.sqrt(size) if size > 0.0 else 0.0


@inner
def _see(tokens, work, shift, mass, slack, tol):
    """Step three: the visible tokens into the buffers, all that is left out into `skipped`. Returns their number."""
    u, c, half, turned = work.small[0], work.small[1], work.small[3], work.small[4]
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
    seen = collect(
        tokens.columns, tokens.logs, tokens.signs, work.ranges, count, turned, c, work.axes, half, shift, slack,
        work.z, work.sign, work.score, work.spread, work.crest, work.faint, work.bins,
    )  # fmt: skip
    work.counts[2] += 1
    work.counts[5] += seen
    if tol <= 0.0:
        return seen
    budget = _TRIM * tol * mass - work.skipped[1] - slack * work.skipped[0]
    return trim(
        seen, slack, work.bins, budget, work.z, work.sign, work.score, work.spread, work.crest, work.faint, work.place,
        work.skipped,
    )  # fmt: skip


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
    # Σ e ≥ 1 or so whatever δ is (Jensen), so only overflow has to be kept off, and only in a wide box.
    top = largest_exponent(work.z, work.score, kept, offset) if widest > 300.0 else 0.0
    direct_sums(work.z, work.sign, work.score, kept, offset, top, work.exponents, sums)
    for k in range(d):
        offset[k] = sums[k + 1] / sums[0]
    far = _write(work, offset, mean)
    work.counts[0] += kept
    least = max(floor, sums[0] * math.exp(min(top, 700.0)) - work.skipped[0])
    return (work.skipped[1] + far * work.skipped[0]) / least


@inlined
def _expand(work, kept, p, r, stride):
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
        add_block(work.table, p, r, work.v, work.products, work.powers, stride, work.coefficients)
        at += n
    divide_by_factorials(work.table, p, r, stride, work.coefficients)


@inner
def _answer(queries, lo, hi, work, kept, floor, p, r, e_f, e_g, stride, tol, means, bounds):
    """Evaluate the expansion at every query of the box; the rare one whose bound is above tol is summed directly."""
    half, offset = work.small[3], work.small[5]
    d = half.size
    value = work.rows[2]
    for first in range(lo, hi, BLOCK):
        n = min(BLOCK, hi - first)
        for t in range(n):
            _displacement(queries, first + t, work, offset)
            for k in range(d):
                work.v[k, t] = offset[k] / half[k]
        evaluate_block(
            n, work.table, p, r, stride, work.coefficients, work.v, work.products, work.rows[0], work.rows[1], value,
            work.gradient,
        )  # fmt: skip
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
    z, score, spread, crest, half = work.z, work.score, work.spread, work.crest, work.small[3]
    sample_sums(kept, z, score, spread, crest, half, work.rows[0], work.rows[1], work.sums)
    aim = 0.8 * budget
    for _ in range(3):
        terms, p, r = choose_order(work.table, work.sums, slack, aim)
        if not terms:
            break
        e_f, e_g = certify(kept, p, r, z, score, spread, crest, half, work.rows)
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
    stride = work.powers.shape[0]
    terms, p, r, e_f, e_g = _order(work, count, kept, slack, _TRUNCATE * tol * mass)
    direct = _PAIR * kept * count
    spread = 0.0
    for j in range(kept):
        spread = max(spread, work.spread[j])
    if terms and kept * (terms + 20.0) + _EVALUATE * terms * count < direct:
        _expand(work, kept, p, r, stride)
        _answer(queries, lo, hi, work, kept, floor, p, r, e_f, e_g, stride, tol, means, bounds)
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
