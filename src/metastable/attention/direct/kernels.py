"""The loops of the direct engine. One kernel is compiled for every width of a group of coordinates and precision.

Tokens lie in blocks, coordinate by coordinate, so that the loops over the tokens of a block are vector instructions. A
token's last coordinate is its log-weight. Scores are in units of log 2: weights are 2^s.
"""

import functools
import math

import numpy as np
from numba import njit
from numba.extending import intrinsic

TILE = 64
"""So many queries visit a block of tokens before the next block is loaded."""

LOG2E = 1 / math.log(2)
LN2 = math.log(2)

# Sums may be reordered, and scores are finite: `_fits` sees to it.
_LOOSE = {"reassoc", "contract", "arcp", "nsz", "nnan", "ninf"}
# Every kernel releases the interpreter lock, keeps its machine code on disk and divides as numpy does.
_common = functools.partial(njit, cache=True, nogil=True, error_model="numpy", _nrt=False)
_kernel = _common(fastmath=_LOOSE)
_strict = _common()
# Kernels that only other kernels call have no entry point for Python. A call from Python crashes. Without `fastmath` of
# their own they would be compiled with that of their caller.
_inner = functools.partial(_common, no_cpython_wrapper=True, no_cfunc_wrapper=True)

_SINGLE_MAGIC = np.float32(1.5 * 2**23)  # adding it leaves the rounded integer in the low bits
_SINGLE_LOWEST = np.float32(-126)
_SINGLE_SHIFT = np.int32(23)
_DOUBLE_MAGIC = 1.5 * 2.0**52
_DOUBLE_LOWEST = -1022.0
_DOUBLE_SHIFT = np.int64(52)
# The polynomials of degree 5 and 10 with the smallest relative error on [−½, ½] from 2^r: 7.5e-8 and 2.2e-16.
_SINGLE = tuple(
    np.float32(c)
    for c in (1.3276472631950876e-3, 9.675541343121327e-3, 5.550713271855644e-2, 0.2402211972371072, 0.6931469670650352)
)
_ONE = np.float32(1)


@_inner(fastmath={"contract"})
def exp2_single(x):
    """2^x for x ≤ 0 in float32, without a branch or a call; x below −126 is raised to −126, far below rounding.

    x = k + r with k whole and |r| ≤ ½; 2^r is a polynomial, and k is added to its exponent bits. Compiled without
    reassociation, which would cancel the magic number.
    """
    x = x if x > _SINGLE_LOWEST else _SINGLE_LOWEST
    shifted = x + _SINGLE_MAGIC
    r = x - (shifted - _SINGLE_MAGIC)
    p = _SINGLE[0]
    p = p * r + _SINGLE[1]
    p = p * r + _SINGLE[2]
    p = p * r + _SINGLE[3]
    p = p * r + _SINGLE[4]
    p = p * r + _ONE
    exponent = np.float32(shifted).view(np.int32) << _SINGLE_SHIFT
    return np.int32(np.float32(p).view(np.int32) + exponent).view(np.float32)


@_inner(fastmath={"contract"})
def exp2_double(x):
    """2^x for x ≤ 0 in float64, as `exp2_single`; x below −1022 is raised to −1022."""
    x = x if x > _DOUBLE_LOWEST else _DOUBLE_LOWEST
    shifted = x + _DOUBLE_MAGIC
    r = x - (shifted - _DOUBLE_MAGIC)
    p = 7.037279530582803e-09
    p = p * r + 1.0208537904552164e-07
    p = p * r + 1.3215662831846103e-06
    p = p * r + 1.5252658116561384e-05
    p = p * r + 1.5403529961135955e-04
    p = p * r + 1.3333558228561476e-03
    p = p * r + 9.618129108034589e-03
    p = p * r + 5.550410866445883e-02
    p = p * r + 2.4022650695908768e-01
    p = p * r + 6.931471805599498e-01
    p = p * r + 1.0
    exponent = np.float64(shifted).view(np.int64) << _DOUBLE_SHIFT
    return np.int64(np.float64(p).view(np.int64) + exponent).view(np.float64)


@intrinsic
def larger(typing, x, y):
    """The larger of two finite numbers. `max` does not carry the flags that let LLVM vectorise a maximum."""

    def code(context, builder, signature, arguments):
        a, b = arguments
        flags = ("nnan", "nsz")
        return builder.select(builder.fcmp_ordered(">", a, b, flags=flags), a, b, flags=flags)

    return x(x, y), code


@_strict
def arrange(points, log_weights, heaviest, keys, widest):
    """Write tokens to `keys` (blocks, coordinates + 1, size); returns how many have a weight above 0.

    The last coordinate is log2(w / max w). `widest` gets the largest |y_k| of each coordinate k, NaN if one is NaN.
    """
    size, last, count = keys.shape[2], keys.shape[1] - 1, 0
    lowest = -0.25 * np.finfo(keys.dtype).max
    for j in range(len(points)):
        if log_weights[j] == -np.inf:
            continue
        block, i = divmod(count, size)
        for k in range(points.shape[1]):
            y = points[j, k]
            keys[block, k, i] = y
            if abs(y) > widest[k] or y != y:
                widest[k] = abs(y)
        keys[block, last, i] = max((log_weights[j] - heaviest) * LOG2E, lowest)
        count += 1
    return count


@_inner(fastmath=False)
def _fits(u, widest, limit):
    """Whether the scores of all tokens are finite and below `limit`."""
    reach = 0.0
    for k in range(u.size):
        reach += abs(np.float64(u[k])) * np.float64(widest[k])
    return reach < limit


@_inner(fastmath=False)
def _finish(total, fits, heaviest, mean, log_z, q):
    """Write the mean and log Z of query q from its sums, NaN if its scores do not fit."""
    for k in range(mean.size):
        mean[k] = total[2 + k] / total[1] if fits else np.nan
    log_z[q] = LN2 * (total[0] + math.log2(total[1])) + heaviest if fits else np.nan


@functools.cache
def sums_of(width, grouped, single):
    """The kernel for coordinates in one group of `width` ≤ 8, or in several (`grouped`), in float32 (`single`).

    It writes the means and log Z of the queries first … last − 1 for the `count` tokens in `keys`. `widest` and
    `heaviest` are those of `arrange`. With `causal`, query i sees the tokens j ≤ i. `scores`, `asked` and `running` are
    buffers. Blocks whose largest score is more than `faint` below the largest so far are left out.
    """
    real = np.float32 if single else np.float64
    # Below every score, and far enough from the end of the range that differences of scores stay inside.
    lowest = real(np.finfo(real).min / 2)
    zero, limit = real(0), float(np.finfo(real).max) / 8

    def sums(keys, count, queries, widest, heaviest, faint, first, last, causal, scores, asked, running, means, log_z):
        d, size, groups = queries.shape[1], keys.shape[2], (keys.shape[1] - 1) // width
        for low in range(first, last, TILE):
            high = min(low + TILE, last)
            for q in range(low, high):
                fits = _fits(queries[q], widest, limit)
                for k in range(asked.shape[1]):
                    asked[q - low, k] = real(queries[q, k] * LOG2E) if fits and k < d else zero
                running[q - low, 0] = lowest
                running[q - low, 1:] = 0.0
            end = min(high, count) if causal else count
            for b in range((end + size - 1) // size):
                block = keys[b]
                for q in range(low, high):
                    seen = min(size, (min(q + 1, count) if causal else count) - b * size)
                    if seen <= 0:
                        continue
                    if grouped:
                        offsets = block[groups * width]
                        for i in range(seen):
                            scores[i] = offsets[i]
                    top = lowest
                    for g in range(groups):
                        u, y = asked[q - low, g * width :], block[g * width :]
                        u0 = u[0]
                        u1 = u[1] if width > 1 else zero
                        u2 = u[2] if width > 2 else zero
                        u3 = u[3] if width > 3 else zero
                        u4 = u[4] if width > 4 else zero
                        u5 = u[5] if width > 5 else zero
                        u6 = u[6] if width > 6 else zero
                        u7 = u[7] if width > 7 else zero
                        top = lowest
                        for i in range(seen):
                            s = scores[i] if grouped else y[width, i]
                            s += u0 * y[0, i]
                            if width > 1:
                                s += u1 * y[1, i]
                            if width > 2:
                                s += u2 * y[2, i]
                            if width > 3:
                                s += u3 * y[3, i]
                            if width > 4:
                                s += u4 * y[4, i]
                            if width > 5:
                                s += u5 * y[5, i]
                            if width > 6:
                                s += u6 * y[6, i]
                            if width > 7:
                                s += u7 * y[7, i]
                            scores[i] = s
                            top = larger(s, top)
                    total = running[q - low]
                    if top > total[0]:
                        factor = exp2_double(total[0] - np.float64(top))
                        for k in range(1, total.size):
                            total[k] *= factor
                        total[0] = top
                    elif top < total[0] - faint:
                        continue
                    base = real(total[0])
                    z = zero
                    if grouped:
                        for i in range(seen):
                            p = exp2_single(scores[i] - base) if single else exp2_double(scores[i] - base)
                            z += p
                            scores[i] = p
                    for g in range(groups):
                        m, y = total[2 + g * width :], block[g * width :]
                        m0 = m1 = m2 = m3 = m4 = m5 = m6 = m7 = zero
                        for i in range(seen):
                            if grouped:
                                p = scores[i]
                            else:
                                p = exp2_single(scores[i] - base) if single else exp2_double(scores[i] - base)
                                z += p
                            m0 += p * y[0, i]
                            if width > 1:
                                m1 += p * y[1, i]
                            if width > 2:
                                m2 += p * y[2, i]
                            if width > 3:
                                m3 += p * y[3, i]
                            if width > 4:
                                m4 += p * y[4, i]
                            if width > 5:
                                m5 += p * y[5, i]
                            if width > 6:
                                m6 += p * y[6, i]
                            if width > 7:
                                m7 += p * y[7, i]
                        m[0] += m0
                        if width > 1:
                            m[1] += m1
                        if width > 2:
                            m[2] += m2
                        if width > 3:
                            m[3] += m3
                        if width > 4:
                            m[4] += m4
                        if width > 5:
                            m[5] += m5
                        if width > 6:
                            m[6] += m6
                        if width > 7:
                            m[7] += m7
                    total[1] += z
            for q in range(low, high):
                _finish(running[q - low], _fits(queries[q], widest, limit), heaviest, means[q], log_z, q)

    # Every kernel has its own file in numba's cache.
    sums.__qualname__ = f"sums_{real.__name__}_{width}{'_grouped' if grouped else ''}"
    return _kernel(sums)
