"""The attention of one query over n tokens, and the same attention at another length.

Let s_j be the scores of one query and w_j a multiplicity for each key. With e_j = e^{s_j},

    Z = Σ w_j e_j,   entropy = log Z − (Σ w_j e_j s_j)/Z,   participation = Z²/Σ w_j e_j²,   top weight = max_j e_j/Z.

All multiplicities are 1 in a measured text. A forecast at n' > n tokens keeps the scores and changes multiplicities:

- special tokens ([CLS], [SEP], …) are atoms: there are as many of them in a long text as in a short one;
- near tokens, at most `WINDOW`·n positions away, keep their scores, because the words around a token stay the same;
- far tokens stand for all others: each gets the multiplicity (N' − near)/far, where N' is the number of ordinary tokens
  at n', and near and far count those of this query. It need not be a whole number.

The *score gap* of a query is G = max_j s_j − log(mean over far tokens of e^{s_j}). Far tokens together outweigh the
top token if and only if log(number of far tokens) > G, so e^G is the *critical length*. This is the transition of
arXiv 2510.05554, where the scores are β = γ log n for the token itself and βρ for all others: G = γ(1 − ρ) log n, and
attention dilutes below γ = 1/(1 − ρ) and freezes above. A trained head keeps its focus at every length only if its G
grows at least like log n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

WINDOW = 0.25
"""Near tokens are at most this share of n positions away. Chosen in trials with n₀ = 128."""

STATISTICS = ("entropy", "log_participation", "top_weight", "special_share")
"""What is forecast."""

LARGEST_GAP = 30.0
"""The largest score gap, in nats: far tokens beyond it have no weight in float32."""

MEASURED = (*STATISTICS, "score_spread", "score_gap")
"""What is measured."""


class Groups:
    """Sums over the special, the near and the far keys of each query.

    scores : (texts, heads, queries, n), −inf for a key that the query does not see
    positions : (queries,), the position of each query
    special : (texts, n) of bool
    window : the largest distance of a near token, in positions
    """

    def __init__(self, scores: Tensor, positions: Tensor, special: Tensor, window: float) -> None:
        n = scores.shape[-1]
        distance = (positions[:, None] - torch.arange(n, device=scores.device)).abs()
        ordinary = ~special[:, None, None, :]
        near = ordinary & (distance <= window)
        self.sets = {"special": ~ordinary.expand_as(near), "near": near, "far": ordinary & ~near}
        self.counts = {name: members.sum(dim=-1).to(scores) for name, members in self.sets.items()}
        shifted = scores - scores.amax(dim=-1, keepdim=True)
        e = shifted.exp()
        # e·s is 0 for an unseen key.
        terms = (e, e * shifted.clamp_min(-1e4), e.square())
        self.sums = {
            name: tuple((term * members).sum(dim=-1, dtype=torch.float64) for term in terms)
            for name, members in self.sets.items()
        }
        self.spread = _spread(scores, ordinary)

    def multiplicity(self, ordinary: float) -> Tensor:
        """The multiplicity of far tokens in a text with that many ordinary tokens, (texts, 1, queries)."""
        return (ordinary - self.counts["near"]).clamp_min(0) / self.counts["far"].clamp_min(1)

    def statistics(
        self, special: Tensor | float = 1.0, near: Tensor | float = 1.0, far: Tensor | float = 1.0
    ) -> dict[str, Tensor]:
        """`STATISTICS` with these multiplicities, each (texts, heads, queries)."""
        weights = (("special", special), ("near", near), ("far", far))
        z, first, second = (sum((w * self.sums[name][i] for name, w in weights), torch.zeros(())) for i in range(3))
        return {
            "entropy": z.log() - first / z,
            "log_participation": 2 * z.log() - second.log(),
            "top_weight": 1 / z,
            "special_share": special * self.sums["special"][0] / z,
        }

    def gap(self) -> Tensor:
        """G, at most `LARGEST_GAP`: a query with a sliding window sees no far token."""
        far = self.sums["far"][0] / self.counts["far"].clamp_min(1)
        return -far.clamp_min(math.exp(-LARGEST_GAP)).log()


def _spread(scores: Tensor, ordinary: Tensor) -> Tensor:
    """The standard deviation of the scores over the ordinary keys that a query sees."""
    seen = ordinary & scores.isfinite()
    values = torch.where(seen, scores, 0.0)
    count = seen.sum(dim=-1).clamp_min(1)
    mean = values.sum(dim=-1) / count
    square = torch.where(seen, (scores - mean.unsqueeze(-1)).square(), 0.0).sum(dim=-1)
    return (square / count).sqrt()


def measured(groups: Groups) -> dict[str, Tensor]:
    """`MEASURED`, averaged over queries: each (texts, heads)."""
    found = groups.statistics() | {"score_spread": groups.spread, "score_gap": groups.gap()}
    return {name: value.double().mean(dim=-1) for name, value in found.items()}


def forecast(groups: Groups, ordinary: Sequence[float]) -> dict[str, Tensor]:
    """`STATISTICS` at other numbers of ordinary tokens, averaged over queries: each (texts, heads, targets)."""
    parts = [groups.statistics(far=groups.multiplicity(many)) for many in ordinary]
    return {name: torch.stack([part[name].mean(dim=-1) for part in parts], dim=-1) for name in STATISTICS}


def multiplied(groups: Groups, ordinary: float, now: float) -> dict[str, Tensor]:
    """The entropy forecast in three steps, averaged over queries, each (texts, heads).

    all : every token has the multiplicity N'/N, so that the entropy grows by log(N'/N)
    near : near tokens keep multiplicity 1, the others, special ones too, share the new tokens
    atoms : special tokens keep multiplicity 1 too: the forecast of `forecast`
    """
    counts = groups.counts
    alike = (counts["special"] + ordinary - counts["near"]) / (counts["special"] + counts["far"]).clamp_min(1)
    steps = {
        "all": groups.statistics(*[ordinary / now] * 3),
        "near": groups.statistics(special=alike, far=alike),
        "atoms": groups.statistics(far=groups.multiplicity(ordinary)),
    }
    return {name: found["entropy"].mean(dim=-1) for name, found in steps.items()}
