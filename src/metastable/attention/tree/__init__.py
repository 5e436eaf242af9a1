"""Softmax means in low dimension, certified, at a cost that grows like N.

    m(u) = Σ_j w_j e^{⟨u, y_j⟩} y_j / Σ_j w_j e^{⟨u, y_j⟩} = ∇ log Z(u),     Z(u) = Σ_j w_j e^{⟨u, y_j⟩}

**How.** The tokens y_j are sorted into a tree of boxes (`boxes`, `ordered`), and so are the queries. A box of queries,
u = u0 + δ, is answered as a whole (`leaf`): the tokens that can matter somewhere in it are found (`search`, `seeing`,
`visible`), many close tokens of a circle or sphere are replaced by a few weights on a grid (`packs`), Z is
expanded in δ (`expansion`, `truncation`), and every query of the box costs one polynomial and its gradient. A box
sees about N/β tokens and there are about β boxes, so that the work is of order N at every β. Where boxes hold few
queries their sums are formed directly, over the same visible tokens.

**Certificate.** Fix a box, a point c and a constant s, and write z_j = y_j − c, a_j = w_j e^{⟨u0, z_j⟩ − s},

    f(δ) = Σ_j a_j e^{⟨δ, z_j⟩},   g(δ) = Σ_j a_j e^{⟨δ, z_j⟩} z_j = ∇f(δ),   so that   m(u0 + δ) = c + g/f.

If f̃, g̃ stand for f, g, and m̃ = c + g̃/f̃, then from  m̃ − m = [(g̃ − g) − (m̃ − c)(f̃ − f)] / f,

    |m̃ − m| ≤ ( |g̃ − g| + |m̃ − c| |f̃ − f| ) / f.                                                              (1)

1. *Below.* Let A be any measure with Z_A ≤ Z everywhere: a subset of the tokens, or groups of tokens each moved to its
   weighted mean (Jensen: W e^{⟨v, mean⟩} ≤ Σ w_j e^{⟨v, y_j⟩}). log Z_A is convex with gradient m_A, whence
   f(δ) ≥ f_A(0) e^{⟨δ, m_A(u0) − c⟩} = f_A(0) on the whole box if c = m_A(u0), which is how c is chosen. Also
   f ≥ f̃ − |f̃ − f|; the larger of the two is used. Where a box starts from the packed tokens of its neighbour, which
   are no such measure, the second alone is.
2. *Skipped tokens.* In the box |⟨δ, z_j⟩| ≤ T_j = Σ_k h_k |⟨e_k, z_j⟩| (e_k axes, h_k half-widths), so a skipped token
   takes at most a_j e^{T_j} from f and a_j e^{T_j} |z_j| from g. For a skipped node the same with the upper ends
   of its box: ⟨u0, z⟩ at most `reach`, T at most its value at the centre plus |h| · radius, |z| at most the distance of
   the centre plus the radius. All of this is added up, not estimated.
3. *Packed tokens.* What a grid in the place of a node's tokens changes is bounded in `packs`, at every corner of the
   box, and added to the same sums. Weights of a grid may be negative, f̃ may then be above f: hence the |f̃ − f| in 1.
4. *Truncation.* `truncation` bounds the remainder for every token at every corner of the box, and adds it up over all
   tokens that were expanded. A direct sum has none.

The bound of a query is (1) with these sums and the |m̃ − c| that was found. If it is above tol the query is summed
directly, then on its own with a stricter threshold, at last over all tokens: so bound ≤ tol for every query. How
boxes are chosen, what A is, which degree is tried first: all that is heuristic and only moves the cost.

**Rounding** is not in `bound`. Scores are formed as ⟨u, y − c⟩ with c near the mean, so a weight that counts
has a relative error of a few ε (1 + |u| |y − c|), ε = 1.1e-16, sums and polynomials a few ε times the mean of e^{T_j},
which the size of a box keeps below about e^5. The differences y − c are as exact as the tokens, and boxes are exact to
a few ε |y|. The certificate assumes that all of this is small against tol, which holds for tol ≥ 1e-9. For a smaller
tol, and where |u| ε is close to tol, the answer is that of float64 and the bound is that of exact arithmetic.

**Threads** are Python threads that end with the call (the kernels release the interpreter lock). They do not compete
with the OpenMP threads of torch. Up to 2000 queries are answered by the calling thread; only packing uses others.
"""

from .compiling import compiled, compiling
from .engine import Tree, TreeResult

__all__ = ["Tree", "TreeResult", "compiled", "compiling"]
