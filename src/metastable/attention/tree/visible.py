"""The tokens visible from a box of queries: their coordinates and weights there, and the trimming of the faint ones."""

import math

from .expansion import BLOCK
from .vectors import ZERO, bits_of, fast_exp, inlined, inner, loose

# Largest exponent that is kept apart: a token that could weigh more is never trimmed, so its exact size is no matter.
_CEILING = 700.0
_BINS = 2048


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


@inner
def _weigh(columns, log_weights, lo, hi, at, u, c, axes, half, shift, slack, z, score, spread, crest, faint):
    """Coordinates z, score s, spread T, crest e^{s+T} and importance e^{s+T} (|z| + slack) of tokens lo … hi − 1."""
    end = at + hi - lo
    score, spread, crest, faint = score[at:end], spread[at:end], crest[at:end], faint[at:end]
    if u.size == 3:
        x, y, w = columns[0, lo:hi], columns[1, lo:hi], columns[2, lo:hi]
        z0, z1, z2 = z[0, at:end], z[1, at:end], z[2, at:end]
        _weigh_in_space(
            x, y, w, log_weights[lo:hi], u, c, axes, half, shift, slack, z0, z1, z2, score, spread, crest, faint
        )
        return
    for t in range(hi - lo):
        score[t] = log_weights[lo + t] - shift
    spread[:] = 0.0
    faint[:] = 0.0
    for k in range(u.size):
        out = z[k, at:end]
        out[:] = 0.0
        for i in range(u.size):
            _axpy(axes[k, i], columns[i, lo:hi], c[i], out)
        _add_axis(u[k], half[k], out, score, spread, faint)
    _crests(score, spread, slack, crest, faint)


@inlined
def collect(
    columns,
    log_weights,
    signs,
    ranges,
    count,
    u,
    c,
    axes,
    half,
    shift,
    slack,
    z,
    sign,
    score,
    spread,
    crest,
    faint,
    bins,
):
    """Fill the buffers with the tokens of the ranges; bins[e] ← Σ importance over importances in [2^e, 2^{e+1}),
    from a sample if there are many (it only steers: what is trimmed is added up exactly).

    Everything is in the axes of the box and relative to c; u is u0 in those axes. Returns the number of tokens.
    """
    at = ZERO
    bins[:] = 0.0
    for i in range(count):
        for lo in range(ranges[i, 0], ranges[i, 1], BLOCK):
            hi = min(lo + BLOCK, ranges[i, 1])
            _weigh(
                columns, log_weights, lo, hi, at, u, c, axes, half, shift, slack, z, score, spread, crest, faint
            )  # fmt: skip
            for t in range(hi - lo):
                sign[at + t] = signs[lo + t]
            at += hi - lo
    every = 1 + at // 4096
    for t in range(0, at, every):
        bins[(bits_of(faint[t]) >> 52) & 2047] += every * faint[t]
    return at


@inlined
def _cut(bins, budget):
    """The largest power of two under which all importances together stay within the budget, and about how many."""
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
def trim(n, slack, bins, budget, z, sign, score, spread, crest, faint, place, skipped):
    """Drop the faintest tokens, as many as the budget allows, and close the gaps (unless they are too few to bother).

    What they could have added is added to `skipped` = (Σ crest, Σ crest |z|). Returns the number of tokens kept.
    """
    cut, few = _cut(bins, 0.9 * budget)
    if few < 0.1 * n:
        return n
    _faint_sums(n, cut, slack, faint[:n], crest[:n], skipped)
    kept = 0
    for j in range(n):
        place[kept] = j
        kept += 0 if faint[j] < cut else 1
    for k in range(z.shape[0]):
        _gather(place[:kept], z[k])
    _gather(place[:kept], sign)
    _gather(place[:kept], score)
    _gather(place[:kept], spread)
    _gather(place[:kept], crest)
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


@inner
def direct_sums(z, sign, score, n, delta, top, exponents, sums):
    """sums ← (Σ e, Σ e z_1, …, Σ e z_d) with e_j = ± e^{s_j + ⟨δ, z_j⟩ − top}."""
    d = delta.size
    if d == 3:
        x, y, w = z[0, :n], z[1, :n], z[2, :n]
        sums[0], sums[1], sums[2], sums[3] = _direct_in_space(x, y, w, sign[:n], score[:n], delta, top)
        return
    sums[: d + 1] = 0.0
    for at in range(0, n, BLOCK):
        end = min(at + BLOCK, n)
        e = exponents[: end - at]
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
    """Σ_j e^{s_j} over the first n tokens; more than e^{700} is as good as infinite."""
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


@inner
def moments(z, sign, score, n, delta, top, exponents, axes, mean, second):
    """mean ← Σ a z / Σ a and second ← Σ a z zᵀ / Σ a in the outer axes, a = ± e^{s + ⟨δ, z⟩ − top}. Returns Σ a."""
    d = delta.size
    mass = 0.0
    mean[:] = 0.0
    second[:] = 0.0
    for at in range(0, n, BLOCK):
        end = min(at + BLOCK, n)
        e = exponents[: end - at]
        e[:] = 0.0
        for k in range(d):
            _add_scaled(delta[k], z[k, at:end], e)
        mass += _exp_of(score[at:end], sign[at:end], top, e)
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
