"""Softmax means of clustered tokens in any dimension, certified.

    m(u) = Σ_j w_j e^{⟨u, y_j⟩} y_j / Z(u),     Z(u) = Σ_j w_j e^{⟨u, y_j⟩},     Σ_j w_j = 1

**Method.** The tokens are sorted into a tree whose nodes follow the clusters of the cloud (`grouping`). Queries that
are close to each other walk through it together (`walk`), the nearer child first. At a node with the weighted mean b
and tokens y = b + z, each query u has a bound T ≥ |⟨u, z⟩| and a bound s ≥ ⟨u, y⟩. The node is

1. *left out* if s ≤ log θ + log L, where L ≤ Z(u) is what is known from below: a sum over tokens that were visited, or
   W e^{⟨u, b⟩} for a node of weight W (Jensen);
2. *expanded* if its first two moments are enough. With C = Σ w z zᵀ / W and v = ⟨u, Cu⟩, the node has
   f = Σ w e^{⟨u, y⟩} ≈ W e^{⟨u, b⟩} (1 + v/2) and g = Σ w e^{⟨u, y⟩} y ≈ b f + W e^{⟨u, b⟩} Cu;
3. replaced by its children; or, if it is a leaf, *summed*: scores, their exponentials, sums, in float32 if its rounding
   is small against the tolerance. The tokens of a leaf are stored relative to b. A leaf whose largest term is too small
   for rule 1 is left out after its scores.

In d dimensions the cost of a query is that of the tokens in the clusters that it sees, 4d operations a token, and of d²
operations for each cluster that is narrow enough for rule 2, which needs |u| times the variance to be small.

**Certificate.** Let f̃, g̃ stand for Z and Σ w e^{⟨u, y⟩} y, m̃ = g̃ / f̃, and let n run over the parts of the cloud that
are treated alike. Their f_n add up to Z, and

    m̃ − m = Σ_n [ (g̃_n − g_n) − (f̃_n − f_n) m̃ ] / Z.                                                             (1)

1. *Left out.* Each token of such a node has e^{⟨u, y⟩} ≤ θ Z. A leaf has Σ w e^{⟨u, y⟩} ≤ n max_j w_j e^{⟨u, y_j⟩} ≤
   θ W Z. Weights add up to at most 1. So these tokens add at most θ max |y − m̃| to (1), and log Z is too small by at
   most −log(1 − θ).
2. *Expanded.* With x = ⟨u, z⟩, |x| ≤ T, and Σ w z = 0, the remainders are, relative to W e^{⟨u, b⟩},

       |Σ w (e^x − 1 − x − x²/2)| / W ≤ e^T T v / 6,     |Σ w z (e^x − 1 − x)| / W ≤ e^T r v / 2,   r = max |z|,

   and W e^{⟨u, b⟩} ≤ f_n by Jensen. So (1) gets at most the largest e^T v (r/2 + |b − m̃| T/6) of all expanded nodes.
3. *Rounding in float32.* A score ⟨u, z⟩ + log w has an error of at most (d + 6) 2^{−24} (|u| r + the range of log w in
   the leaf), a sum and a term 2^x together 3e-5. If all weights have relative errors of at most ε, (1) gets at most
   ε Σ π_j |y_j − m̃| with the softmax π, and Σ π_j |y_j − m|² ≤ max |y|² − |m|². On a sphere this is small wherever the
   softmax is narrow. If it is too large, the queries are answered in float64.

m̃ is a convex combination of tokens up to tol, which bounds |y − m̃| and |b − m̃|. θ and the largest error of an expanded
node are shares of tol, fixed beforehand, so bound ≤ tol whatever the cloud is. All choices of nodes, groups and order
only affect the cost. **Rounding in float64** is not in the bound, as in `metastable.attention.tree`.
"""

from .engine import Cells, compile_kernels, compiled, visible_share

__all__ = ["Cells", "compile_kernels", "compiled", "visible_share"]
