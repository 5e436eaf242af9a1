"""Small vector kernels: a polynomial exponential that the compiler can vectorise.

`exp` of the mathematical library is a call, and a call inside a loop keeps the loop scalar. Here the argument
is split as x = k ln 2 + r with |r| ≤ ln 2 / 2, e^r is a polynomial of degree 12 (truncation below 2e-16
relative), and 2^k is written straight into the exponent bits. Arguments under −708 are raised to −708: the result
is then below 1e-307 instead of zero, which is under the rounding of any sum that contains the largest term.
"""

import functools

import numpy as np
from numba import njit

# Sums may be reordered and multiplications fused with additions; inf and NaN keep their meaning.
LOOSE = {"reassoc", "contract", "arcp", "nsz"}

# Every kernel releases the interpreter lock, keeps its machine code on disk and divides as numpy does.
_common = functools.partial(njit, cache=True, nogil=True, error_model="numpy", _nrt=False)
kernel = _common()
# Kernels that only other kernels call have no entry point for Python, which saves a third of their compilation.
# A call from Python crashes.
_inner = functools.partial(_common, no_cpython_wrapper=True, no_cfunc_wrapper=True)
inner = _inner()
loose = _inner(fastmath=LOOSE)
strict_order = _inner(fastmath={"contract"})
# A kernel with one caller is inserted into it and not compiled on its own.
inlined = _common(inline="always")

# The start value of an integer that is passed to other kernels. A plain 0 has a type of its own (a literal) at first,
# so numba would compile those kernels twice.
ZERO = np.int64(0)

_LOG2E = 1.4426950408889634
_LN2_HI = 0.693147180369123816490
_LN2_LO = 1.90821492927058770002e-10
_MAGIC = 6755399441055744.0  # 1.5 · 2^52: adding it leaves the rounded integer in the low bits
_BIAS = np.int64(1023)
_SHIFT = np.int64(52)


@inner
def dot(x, y):
    """⟨x, y⟩ in R^d, d = x.size, added from left to right."""
    s = 0.0
    for k in range(x.size):
        s += x[k] * y[k]
    return s


@inner
def score(start, u, y, c):
    """start + ⟨u, y − c⟩ in R^d, d = u.size, added from left to right."""
    for k in range(u.size):
        start += u[k] * (y[k] - c[k])
    return start


@strict_order
def fast_exp(x):
    """e^x for x ≤ 709, to two units in the last place, without a branch or a call.

    Compiled without reassociation, which would cancel the magic number.
    """
    x = max(x, -708.0)
    shifted = x * _LOG2E + _MAGIC
    k = shifted - _MAGIC
    r = (x - k * _LN2_HI) - k * _LN2_LO
    p = 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.755731922398589e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    exponent = (np.float64(shifted).view(np.int64) + _BIAS) << _SHIFT
    return p * np.int64(exponent).view(np.float64)
