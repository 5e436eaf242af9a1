"""Statistics of clouds of tokens, one cloud a text, and a random sample of rows in bounded memory.

Clouds are padded: unit (texts, n, d) holds unit vectors x̂, and chosen (texts, n) marks those that belong to the cloud.
Every result is one number for each text, and padding does not enter it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

CLOUD = ("mean_cosine", "mean_square_cosine", "effective_rank", "dispersion", "energy")
"""What `cloud` returns, by name."""


def cloud(unit: Tensor, chosen: Tensor, beta: float) -> dict[str, Tensor]:
    """Statistics of each text's cloud of m tokens, each (texts,).

    mean_cosine : mean of ⟨x̂_i, x̂_j⟩ over pairs i ≠ j; NaN for one token
    mean_square_cosine : mean of ⟨x̂_i, x̂_j⟩² over the same pairs: 1 for two opposite points too
    effective_rank : exp of the entropy of the eigenvalues of (1/m) Σ x̂ x̂ᵀ: 1 (one direction) to min(m, d)
    dispersion : 1 − |mean x̂|²: 0 (one point) to 1
    energy : (1/β) log mean_ij e^{β(⟨x̂_i, x̂_j⟩ − 1)}, pairs i = j included: −log(m)/β (far apart) to 0 (one point)
    """
    x = unit * chosen.unsqueeze(-1)
    m = chosen.sum(dim=1).double()
    gram = x @ x.transpose(1, 2)
    total = _square_of_sum(chosen.to(unit.dtype), unit)
    own = gram.diagonal(dim1=1, dim2=2).double()
    squares = torch.linalg.vecdot(gram, gram).sum(dim=1, dtype=torch.float64)
    return {
        "mean_cosine": _over_pairs(total - own.sum(dim=1), m),
        "mean_square_cosine": _over_pairs(squares - own.square().sum(dim=1), m),
        "effective_rank": _effective_rank(x, gram, m),
        "dispersion": 1 - total / m.square(),
        "energy": _energy(gram, chosen, m, beta),
    }


def mean_cosine(unit: Tensor, chosen: Tensor) -> Tensor:
    """The mean of ⟨x̂_i, x̂_j⟩ over pairs i ≠ j of each text's cloud, (texts,); NaN for one token."""
    own = torch.where(chosen, torch.linalg.vecdot(unit, unit), 0.0).sum(dim=1, dtype=torch.float64)
    total = _square_of_sum(chosen.to(unit.dtype), unit)
    return _over_pairs(total - own, chosen.sum(dim=1).double())


def _square_of_sum(weight: Tensor, unit: Tensor) -> Tensor:
    """|Σ_i w_i x̂_i|² of each text, (texts,). weight : (texts, n)"""
    return (weight.unsqueeze(1) @ unit).squeeze(1).double().square().sum(dim=1)


def largest_feature(unit: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The feature with the most energy in each text's cloud: (its number, its share of the energy, the mean cosine
    without it), each (texts,).

    The share of feature f is the mean of x̂_f² over the cloud: about 1/d if no feature stands out. Without f a token is
    (x̂ − x̂_f e_f)/√(1 − x̂_f²), so that the sum of the tokens is a weighted sum of the x̂.
    """
    weight = chosen.to(unit.dtype)
    share, feature = ((weight.unsqueeze(1) @ unit.square()).squeeze(1) / weight.sum(dim=1, keepdim=True)).max(dim=1)
    along = unit.gather(2, feature[:, None, None].expand(-1, unit.shape[1], 1)).squeeze(2)
    # A token that is this feature alone has no direction without it.
    rest = torch.where(chosen & (along.abs() < 1 - 1e-6), (1 - along.square()).clamp_min(1e-12).rsqrt(), 0.0)
    total = (rest.unsqueeze(1) @ unit).squeeze(1).scatter(1, feature[:, None], 0.0).double().square().sum(dim=1)
    own = (rest > 0).sum(dim=1).double()
    return feature, share.double(), _over_pairs(total - own, chosen.sum(dim=1).double())


def _over_pairs(total: Tensor, m: Tensor) -> Tensor:
    """The mean over the pairs i ≠ j of m tokens from their sum; NaN for one token."""
    pairs = m * (m - 1)
    return torch.where(pairs > 0, total / pairs, torch.nan)


def mean_square_cosine(unit: Tensor) -> Tensor:
    """The mean of ⟨x̂_i, x̂_j⟩² over pairs i ≠ j of clouds without padding, (texts, n, d) → (texts,): see `cloud`."""
    squares = (unit @ unit.transpose(1, 2)).square().double()
    m = torch.full((len(unit),), unit.shape[1], dtype=torch.float64, device=unit.device)
    return _over_pairs(squares.sum(dim=(1, 2)) - squares.diagonal(dim1=1, dim2=2).sum(1), m)


def effective_rank(unit: Tensor) -> Tensor:
    """The effective rank of clouds of unit vectors without padding, (texts, n, d) → (texts,): see `cloud`."""
    m = torch.full((len(unit),), unit.shape[1], dtype=torch.float64, device=unit.device)
    return _effective_rank(unit, unit @ unit.transpose(1, 2), m)


def _effective_rank(x: Tensor, gram: Tensor, m: Tensor) -> Tensor:
    # Gram matrix and covariance share their nonzero eigenvalues; rows of padding only add zeros.
    small = gram if x.shape[1] <= x.shape[2] else x.transpose(1, 2) @ x
    finite = small.isfinite().all(dim=2).all(dim=1)
    values = torch.linalg.eigvalsh(torch.where(finite[:, None, None], small, 0.0)).double().clamp_min(0)
    shares = values / m.unsqueeze(1)
    return torch.where(finite, torch.exp(-torch.special.xlogy(shares, shares).sum(dim=1)), torch.nan)


def _energy(gram: Tensor, chosen: Tensor, m: Tensor, beta: float) -> Tensor:
    if beta <= 0:
        return torch.full_like(m, torch.nan)
    both = chosen.unsqueeze(1) & chosen.unsqueeze(2)
    # Pairs i = j have exponent 0, so e^{−80} is nothing beside them; below that numbers are subnormal and very slow.
    exponents = torch.where(both, (beta * (gram - 1)).clamp_min(-80), -torch.inf).flatten(1)
    return (exponents.logsumexp(dim=1).double() - 2 * m.log()) / beta


def two_atom_distance(along: Tensor, up: Tensor, chosen: Tensor) -> Tensor:
    """W₂ (chordal) of clouds of unit vectors to (k/m) δ_e + (1 − k/m) δ_{−e}.

    For y = ±e, |x̂ − y|² = 2 − 2⟨x̂, y⟩, so the best plan sends the k tokens with the greatest ⟨x̂, e⟩ to e.

    along : (…, texts, heads, n), ⟨x̂_i, e⟩ with each head's e
    up : (texts, heads), k, the number of tokens at e
    chosen : (texts, n), which tokens belong to the cloud; m of them
    """
    m, n = chosen.sum(dim=1)[:, None], along.shape[-1]
    # numpy sorts short rows many times faster than torch, which also returns their order.
    ordered = np.sort(along.masked_fill(~chosen[:, None, :], -torch.inf).cpu().numpy(), axis=-1)
    place = torch.arange(n, device=along.device)
    sign = along.new_ones(()).where(place >= n - up.unsqueeze(-1), -1.0)
    terms = torch.where(place >= n - m.unsqueeze(-1), sign * torch.from_numpy(ordered).to(along), 0.0)
    gained = terms.sum(dim=-1, dtype=torch.float64)
    return (2 - 2 * gained / m).clamp_min(0).sqrt()


def averaged(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean of values (texts, n) or (texts, heads, n) over the chosen tokens of each text, in float64."""
    weight = chosen if values.ndim == 2 else chosen.unsqueeze(1)
    return torch.where(weight, values, 0.0).sum(dim=-1, dtype=torch.float64) / weight.sum(dim=-1)


def mean_over(x: Tensor, members: Tensor) -> Tensor:
    """The mean of x (texts, n, d) over the members (texts, n) of bool, (texts, d); 0 for texts without members.

    The mean is a product with weights, which reads x once and makes no copy of it. If a value with weight 0 is not
    finite, the product is repeated with such values replaced by 0.
    """
    share = members.to(x.dtype) / members.sum(dim=1, keepdim=True).clamp_min(1)
    found = torch.bmm(share.unsqueeze(1), x).squeeze(1)
    if not bool(found.isfinite().all()):
        found = torch.bmm(share.unsqueeze(1), torch.where(members.unsqueeze(-1), x, 0.0)).squeeze(1)
    return found


def embeddings(hidden: Tensor, chosen: Tensor) -> Tensor:
    """One unit vector for each text, (texts, d) in float64: the direction of the mean of its chosen hidden states."""
    return torch.nn.functional.normalize(averaged(hidden.transpose(1, 2), chosen), dim=-1)


class Sample:
    """At most `most` rows (d,) of those given, every set of that size equally likely: a reservoir.

    The i-th row draws a random place below i and replaces the row at that place if the place is below `most` (Vitter,
    "Random sampling with a reservoir", ACM Transactions on Mathematical Software 11, 1985). The same rows in the same
    order give the same sample.
    """

    def __init__(self, most: int, width: int, seed: int = 0) -> None:
        self.most, self.seen = most, 0
        self._kept = np.empty((0, width), dtype=np.float32)
        self._chance = np.random.default_rng(seed)

    def add(self, rows: Tensor) -> None:
        """rows : (any number, d)"""
        new = rows.detach().float().cpu().numpy()
        free = min(self.most - len(self._kept), len(new))
        if free > 0:
            self._kept = np.concatenate([self._kept, new[:free]])
            self.seen += free
            new = new[free:]
        places = self._chance.integers(0, np.arange(self.seen + 1, self.seen + 1 + len(new)))
        self.seen += len(new)
        taken = places < self.most
        # Where two rows take one place, numpy keeps the later one, as if they had come one by one.
        self._kept[places[taken]] = new[taken]

    @property
    def rows(self) -> Tensor:
        """(at most `most`, d), a copy."""
        return torch.tensor(self._kept)
