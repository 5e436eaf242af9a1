"""Softmax means in low dimension, certified, at a cost that grows like N.

    m(u) = Σ_j w_j e^{⟨u, y_j⟩} y_j / Σ_j w_j e^{⟨u, y_j⟩} = ∇ log Z(u),     Z(u) = Σ_j w_j e^{⟨u, y_j⟩}

**Method.** The tokens y_j are sorted into a tree of boxes (`boxes`), and so are the queries. A box of queries,
u = u0 + δ, is answered as a whole (`descent`). The tokens that can matter somewhere in it are found (`visible`). Many
close tokens of a circle or sphere are replaced by a few weights on a grid (`packs`). Z is expanded in δ (`expansion`),
and every query of the box costs one polynomial and its gradient. A box sees about N/β tokens and there are about β
boxes, so the work is of order N at every β. Boxes with few queries sum directly over their visible tokens.

**Certificate.** Fix a box, a point c and a constant s, and write z_j = y_j − c, a_j = w_j e^{⟨u0, z_j⟩ − s},

    f(δ) = Σ_j a_j e^{⟨δ, z_j⟩},   g(δ) = Σ_j a_j e^{⟨δ, z_j⟩} z_j = ∇f(δ),   so that   m(u0 + δ) = c + g/f.

If f̃, g̃ stand for f, g, and m̃ = c + g̃/f̃, then from  m̃ − m = [(g̃ − g) − (m̃ − c)(f̃ − f)] / f,

    |m̃ − m| ≤ ( |g̃ − g| + |m̃ − c| |f̃ − f| ) / f.                                                              (1)

1. *Below.* Let A be any measure with Z_A ≤ Z everywhere: a subset of the tokens, or groups of tokens each moved to its
   weighted mean (Jensen: W e^{⟨v, mean⟩} ≤ Σ w_j e^{⟨v, y_j⟩}). log Z_A is convex with gradient m_A, whence
   f(δ) ≥ f_A(0) e^{⟨δ, m_A(u0) − c⟩} = f_A(0) on the whole box if c = m_A(u0), which is how c is chosen. Also
   f ≥ f̃ − |f̃ − f|; the larger of the two is used. If a box starts from packed tokens of its neighbour, which are no
   such measure, only the second is used.
2. *Skipped tokens.* In the box |⟨δ, z_j⟩| ≤ T_j = Σ_k h_k |⟨e_k, z_j⟩| (e_k axes, h_k half-widths), so a skipped token
   takes at most a_j e^{T_j} from f and a_j e^{T_j} |z_j| from g. A skipped node is bounded in the same way by its box:
   ⟨u0, z⟩ is at most `reach`, T at most its value at the centre plus |h| · radius, |z| at most the distance of the
   centre plus the radius. All of these are summed, not estimated.
3. *Packed tokens.* `packs` bounds the change by a grid at every corner of the box; the bound is added to the same sums.
   Weights of a grid may be negative and f̃ above f, hence the |f̃ − f| in 1.
4. *Truncation.* `expansion` bounds the remainder for every token at every corner of the box, and adds it up over all
   tokens that were expanded. A direct sum has no remainder.

**log Z** comes from the same sums: Z(u0 + δ) = e^{s + ⟨u0 + δ, c⟩} f(δ), so that

    log Z = s + ⟨u0 + δ, c⟩ + log f,     |log f̃ − log f| ≤ |f̃ − f| / min(f̃, f)   if f̃ > 0.                       (2)

The lower bound of f is that of 1, and |f̃ − f| is at most the sum of the bounds for f in 2, 3 and 4. If f̃ ≤ 0, which
signed weights of a grid allow, the bound is infinite. The mean tolerates a larger |f̃ − f| where the softmax is narrow,
because (1) multiplies it by the small |m̃ − c|. If log Z is asked for, boxes therefore collect more tokens and take
higher degrees.

The bound of a query is (1) with these sums and the computed |m̃ − c|. If it is above tol, the query is summed directly,
then on its own with a smaller threshold, at last over all tokens. So bound ≤ tol for every query. If log Z is asked
for, the same holds for (2). The choice of boxes, of A and of the first degree is heuristic and only affects the cost.

**Rounding** is not in `bound`. Scores are formed as ⟨u, y − c⟩ with c near the mean, so a weight that counts has a
relative error of a few ε (1 + |u| |y − c|), ε = 1.1e-16. Sums and polynomials have a few ε times the mean of e^{T_j},
which the size of a box keeps below about e^5. y − c is as exact as the tokens, and boxes are exact to a few ε |y|. We
assume that all this is small against tol, which holds for tol ≥ 1e-9. For smaller tol, or |u| ε near tol, the answer is
that of float64 and the bound that of exact arithmetic. log Z itself is a number of size |u| |y|, so that float64 holds
it to a few ε |u| |y|.

**Threads** are plain ones that end with the call; the kernels release the interpreter lock. There is no OpenMP pool
that could compete with torch's. Up to 2000 queries the calling thread does everything but the packing.
"""

from .engine import Tree, cache_folder, compile_kernels, compiled

__all__ = ["Tree", "cache_folder", "compile_kernels", "compiled"]
