"""How large the truncation error of an expansion can be, and the cheapest expansion that is good enough.

For a token with v = scaled coordinates, T = Σ_k |v_k| and V = |v_0| (the thin axis), at every ξ in the box

    | e^{⟨ξ, v⟩} − Σ_{α ∈ A} ξ^α v^α / α! |  ≤  Σ_{k > p} T^k / k!  +  e^T V^{r+1} / (r + 1)!

The first sum is what |α| ≤ p leaves out. The second bounds the terms with α_0 > r: they are at most
Σ_{k > r} V^k / k! · e^{T − V} ≤ V^{r+1} / (r + 1)! · e^V · e^{T − V}. The gradient along axis i is the same sum
with one order less in that axis and v_i in front, whence (p − 1, r) for i ≠ 0 and (p − 1, r − 1) for i = 0.
"""

import math

from .expansion import BLOCK, MAX_THIN, count_terms
from .vectors import ZERO, fast_exp, inlined, loose

# Terms T^k / k! summed one by one; the rest, k > TERMS, is bounded by e^T T^{TERMS + 1} / (TERMS + 1)!.
TERMS = 28


@loose
def _step(power, far, spread, scale):
    """One term of the series: its sums with weights 1 and |z|, then on to the next."""
    s0 = s1 = 0.0
    for t in range(power.size):
        s0 += power[t]
        s1 += power[t] * far[t]
        power[t] *= spread[t] * scale
    return s0, s1


@loose
def _step_thin(power, far, thin, scale):
    """One term of the thin series: Σ power |z_0| before the step, Σ power {1, |z|} after it."""
    s0 = s1 = s2 = 0.0
    for t in range(power.size):
        x = abs(thin[t])
        s2 += power[t] * x
        power[t] *= x * scale
        s0 += power[t]
        s1 += power[t] * far[t]
    return s0, s1, s2


@loose
def _start(score, z, at, a, far):
    """a ← e^s, far ← |z|."""
    far[:] = 0.0
    for k in range(z.shape[0]):
        x = z[k, at : at + far.size]
        for t in range(far.size):
            far[t] += x[t] * x[t]
    for t in range(far.size):
        far[t] = math.sqrt(far[t])
        a[t] = fast_exp(score[t])


@inlined
def sample_sums(n, z, score, spread, crest, half, power, far, sums):
    """The sums of which every truncation bound is made, from a sample of blocks of the n tokens:

    sums[0, k] = Σ a T^k/k!, sums[1, k] = Σ a |z| T^k/k!, in the last column the remainder Σ e^T a T^K/K! {1, |z|};
    sums[2, r], sums[3, r] = Σ e^T a V^{r+1}/(r+1)! {1, |z|} and sums[4, r] = Σ e^T a |z_0| V^r/r!.
    """
    sums[:] = 0.0
    every = 1 + n // (6 * BLOCK)
    for at in range(0, n, BLOCK * every):
        end = min(at + BLOCK, n)
        a, b = power[: end - at], far[: end - at]
        _start(score[at:end], z, at, a, b)
        for k in range(TERMS + 1):
            s0, s1 = _step(a, b, spread[at:end], 1.0 / (k + 1))
            sums[0, k] += s0
            sums[1, k] += s1
        for t in range(end - at):
            x = a[t] * fast_exp(spread[at + t])
            sums[0, TERMS + 1] += x
            sums[1, TERMS + 1] += x * b[t]
            a[t] = crest[at + t]
        for r in range(MAX_THIN + 1):
            s0, s1, s2 = _step_thin(a, b, z[0, at:end], half[0] / (r + 1) if half.size > 1 else 0.0)
            sums[2, r] += s0
            sums[3, r] += s1
            sums[4, r] += s2
    sums *= every


@loose
def _certify_block(p, r, a, far, spread, crest, thin, h0, power, thin_power):
    """The error bounds of one block, (for f, for g)."""
    for t in range(far.size):
        power[t] = 1.0
        thin_power[t] = crest[t]
    for k in range(1, p + 1):
        scale = 1.0 / k
        for t in range(far.size):
            power[t] *= spread[t] * scale
    for k in range(1, r + 1):
        scale = h0 / k
        for t in range(far.size):
            thin_power[t] *= abs(thin[t]) * scale
    e_f = e_g = 0.0
    for t in range(far.size):
        # Σ_{k ≥ p} T^k/k! ≤ T^p/p! · min(e^T, 1 / (1 − T/(p + 1))), the second only if T < p + 1.
        left = 1.0 - spread[t] / (p + 1)
        tail = power[t] * (min(crest[t], a[t] / left) if left > 1e-3 else crest[t])
        side = thin_power[t] * abs(thin[t])
        e_f += tail * spread[t] / (p + 1) + side * h0 / (r + 1)
        e_g += tail * far[t] + side + side * far[t] * h0 / (r + 1)
    return e_f, e_g


@inlined
def certify(n, p, r, z, score, spread, crest, half, rows):
    """Bounds on the truncation errors of f and of its gradient anywhere in the box, over all n tokens."""
    h0 = half[0] if half.size > 1 else 0.0
    e_f, e_g = 0.0, 0.0
    for at in range(0, n, BLOCK):
        end = min(at + BLOCK, n)
        a, far = rows[0, : end - at], rows[1, : end - at]
        _start(score[at:end], z, at, a, far)
        x, y = _certify_block(
            p,
            r,
            a,
            far,
            spread[at:end],
            crest[at:end],
            z[0, at:end],
            h0,
            rows[2, : end - at],
            rows[3, : end - at],
        )
        e_f += x
        e_g += y
    return e_f, e_g


@inlined
def choose_order(table, sums, slack, budget):
    """The cheapest (p, r) whose error E_g + slack · E_f, by the sample, is within the budget.

    Returns (number of terms, p, r), zeros if there is none.
    """
    p_max = table[table.shape[0] - 1, 0]
    best = (ZERO, ZERO, ZERO)
    tail_f, tail_g = sums[0, TERMS + 1], sums[1, TERMS + 1]
    for k in range(TERMS, p_max, -1):
        tail_f += sums[0, k]
        tail_g += sums[1, k]
    for p in range(p_max, 0, -1):
        tail_g += sums[1, p]
        if tail_g + slack * tail_f > budget:
            break
        for r in range(1, min(MAX_THIN, p) + 1):
            e_f = tail_f + sums[2, r]
            e_g = tail_g + sums[3, r] + sums[4, r]
            if e_g + slack * e_f <= budget:
                terms = count_terms(table, p, r)
                if best[0] == 0 or terms < best[0]:
                    best = (terms, p, r)
                break
        tail_f += sums[0, p]
    return best
