"""Merging: tokens closer than δ become one weighted token, and the error that this makes is followed.

**Groups.** A token that is in no group yet takes with it every such token within δ/2, in the order of the tokens: a
group has a diameter of at most δ (no chains), and the groups depend on nothing else. The group becomes one token at
X = Σwx/|Σwx| with the weight Σw.

**Error.** Tokens that coincide stay together. The merged run is therefore a solution of the full system of N tokens,
restarted at each merge from positions that are wrong by x_i − X. With every token coupled to itself,

    W₂(μ_t, merged μ_t) ≤ ( Σ_i w_i |x_i(t) − X_i(t)|² )^{1/2},

which a merge raises from 0 to e = ( Σ w |x − X|² )^{1/2}. Later the differences grow or shrink according to the
stability of the full system. Its Jacobian at the merged state splits: differences ξ inside a group G obey ξ' = A_G ξ
with a d × d matrix A_G, and the means of the groups obey the Jacobian J of the live system (see `jacobian`). A merge
leaves the means unchanged up to second order in δ. The first order is inside the groups, S_G = mean of ξξᵀ. The means
move by a displacement η that the spread S causes to second order, through a source q(S):

    S_G' = A_G S_G + S_G A_Gᵀ,     η' = Jη + q(S),     E₀ = ( Σ W_G tr S_G )^{1/2} + ( Σ W_G |η_G|² )^{1/2}.

Both equations are solved along the run, from step to step, and every merge adds its displacements to S and η. What is
reported is E = 2 (1 + ρ) E₀. Here ρ is the parameter of the expansion, the largest so far of two numbers: the standard
deviation that the displacements make in any token's scores (of order β|Bᵀx|δ at a merge), and (tr S_G)^{1/2} + |η_G| in
any group. Once ρ exceeds 1/3, or E the diameter 2 of the sphere, E is inf, because the expansion is not valid there.
Where merged tokens would come apart (as for V negative definite) S grows, and so does E. Where a token is so close to
the boundary between two basins of attraction that merging may have moved it across, η grows.

**What is proved, what is measured.** For δ → 0 the distance is at most E₀ up to terms of third order. That the factor
2 (1 + ρ) covers those terms, and the error of solving for S and η with the run's own steps, is measured: on random
heads, in tests/test_merging.py. The error of time stepping itself (`tol`) is not in E.

A Grönwall bound E' ≤ ΛE, with Λ the largest eigenvalue of the symmetric part of the full Jacobian in the inner product
Σ w⟨·,·⟩, assumes the worst displacement of all tokens. While tokens still concentrate, that costs a
factor e^{∫Λ} with Λ of order 1 to 10 (measured: 150 tokens, d = 3, β = 100, t < 10), for differences that shrink.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from metastable.cloud import Cloud
from metastable.flow.jacobian import Jacobian
from metastable.flow.steppers import unit
from metastable.head import Head

FOLLOWED = 1024
"""Following the error takes O(n²) a step: tokens are merged once no more than this many would be left."""
SCATTER_ENTRIES = 2**24
SMALL = 64
"""Up to this many live tokens every merge is made; above, only those that remove a tenth of the tokens."""
LONGEST_WAIT = 16
SAFETY = 2.0
LARGEST_PARAMETER = 1 / 3
DIAMETER = 2.0
TENSORS = ("owner", "log_weights", "counts")


def groups(x: np.ndarray, delta: float, most: int) -> np.ndarray | None:
    """For each row of x (n, d) the index of the first token of its group; None when more than `most` groups are left.

    >>> groups(np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [0.0, 1.0]]), 1e-3, most=3).tolist()
    [0, 1, 2, 1]
    """
    tree = cKDTree(x)
    distances = np.asarray(tree.query(x, k=2, distance_upper_bound=0.5 * delta)[0])
    crowded = np.flatnonzero(np.isfinite(distances[:, 1]))
    count = len(x) - len(crowded)
    leader = np.arange(len(x))
    free = np.zeros(len(x), dtype=bool)
    free[crowded] = True
    for i in crowded:
        if count > most:
            return None
        if free[i]:
            ball = np.asarray(tree.query_ball_point(x[i], 0.5 * delta))
            ball = ball[free[ball]]
            leader[ball], free[ball] = i, False
            count += 1
    return leader if count <= most else None


class Merging:
    """The live tokens of a run, who stands for whom, and the error followed since the first merge.

    owner : (N,) index of the live token that stands for each token
    log_weights, counts : (n,) weight of each live token, and how many tokens it stands for
    scatter, shift : (n, d, d) and (n, d), S and η above
    largest : the largest E at any step so far
    jumps : for each merge its time and how far it moved the law, ( Σ w θ² )^{1/2} with θ the angle between x and X
    """

    def __init__(self, head: Head, cloud: Cloud, beta: float, delta: float) -> None:
        self.head, self.beta, self.delta = head, beta, delta
        n, d = cloud.points.shape
        self.owner = torch.arange(n, device=cloud.points.device)
        self.log_weights, self.counts = cloud.log_weights, torch.ones_like(cloud.log_weights)
        self.scatter, self.shift = np.zeros((n, 0, 0)), np.zeros((n, 0))
        self.followed = min(FOLLOWED, SCATTER_ENTRIES // d**2)
        self.patience, self.wait = 1, 0
        self.parameter, self.largest, self.lost = 0.0, 0.0, False
        self.jumps: list[tuple[float, float]] = []
        self._before: tuple[float, Jacobian] | None = None

    @property
    def error(self) -> float:
        """E, the bound of W₂ to the run without merging."""
        if not self.jumps:
            return 0.0
        if self.lost:
            return math.inf
        w = self.log_weights.double().exp().cpu().numpy()
        inside, means = self._displacements()
        return SAFETY * (1 + self.parameter) * (math.sqrt(float(w @ inside**2)) + math.sqrt(float(w @ means**2)))

    def _displacements(self) -> tuple[np.ndarray, np.ndarray]:
        """(tr S_G)^{1/2} and |η_G| of each group, (n,)."""
        inside = np.trace(self.scatter, axis1=1, axis2=2).clip(min=0)
        return np.sqrt(inside), np.linalg.norm(self.shift, axis=1)

    def follow(self, x: Tensor, t: float) -> None:
        """Carry the error to the next step's end, live tokens at x (n, d) at time t."""
        if not self.jumps or self.lost:
            return
        after = self._jacobian(x)
        assert self._before is not None
        start, before = self._before
        for jacobian in (before, after):
            self._carry(jacobian, 0.5 * (t - start))
            if self.lost:
                return
        self._before = (t, after)
        # The carried matrices belong to tangent vectors at x; ⟨x, x + ξ⟩ = 1 − |ξ|²/2 on the sphere.
        normal = after.x
        across = self.scatter - normal[:, :, None] * (normal[:, None, :] @ self.scatter)
        self.scatter = across - (across @ normal[:, :, None]) * normal[:, None, :]
        height = (self.shift * normal).sum(axis=1) + 0.5 * np.trace(self.scatter, axis1=1, axis2=2)
        self.shift = self.shift - height[:, None] * normal

    def _carry(self, jacobian: Jacobian, h: float) -> None:
        later = jacobian.carry(self.scatter, h)
        if not np.isfinite(later).all():
            self._give_up()
            return
        self.shift = jacobian.shift(self.shift, jacobian.spread(0.5 * (self.scatter + later)), h)
        self.scatter = later
        self._judge(jacobian)

    def _judge(self, jacobian: Jacobian) -> None:
        """Raise ρ to what merging hides now, and give the error up where the expansion says nothing."""
        inside, means = self._displacements()
        hidden = jacobian.hidden(self.scatter + self.shift[:, :, None] * self.shift[:, None, :])
        self.parameter = max(self.parameter, hidden, float((inside + means).max()))
        error = self.error
        self.largest = max(self.largest, error)
        if not (self.parameter <= LARGEST_PARAMETER and error <= DIAMETER):
            self._give_up()

    def _give_up(self) -> None:
        self.lost, self.largest, self._before = True, math.inf, None
        self.scatter, self.shift = self.scatter[:, :0, :0], self.shift[:, :0]

    def attempt(self, x: Tensor, t: float) -> Tensor | None:
        """Merge what is closer than δ, if enough is: the new live tokens (n, d), or None if all is as before.

        After attempts without success the next ones come after 2, 4, …, 16 steps.
        """
        self.wait -= 1
        n = len(x)
        if n == 1 or self.wait > 0:
            return None
        most = min(self.followed, n - 1 if n <= SMALL else int(0.9 * n))
        leader = groups(x.double().cpu().numpy(), self.delta, most)
        if leader is None:
            self.patience = self.wait = min(2 * self.patience, LONGEST_WAIT)
            return None
        self.patience = 1
        merged = self._merge(x, np.unique(leader, return_inverse=True)[1], t)
        if not self.lost:
            self._before = (t, self._jacobian(merged))
            self._judge(self._before[1])
        return merged

    def _merge(self, x: Tensor, group: np.ndarray, t: float) -> Tensor:
        """Replace the live tokens by one for each group, (n,) numbers from 0 on."""
        size = np.bincount(group)
        places, logs = x.double().cpu().numpy(), self.log_weights.double().cpu().numpy()
        top = np.full(len(size), -math.inf)
        np.maximum.at(top, group, logs)
        # In a group whose weights are all 0 every token counts the same.
        share = np.exp(np.subtract(logs, top[group], out=np.zeros_like(logs), where=top[group] > -math.inf))
        total = np.bincount(group, share)
        share /= total[group]
        mean = np.zeros((len(size), x.shape[1]))
        np.add.at(mean, group, share[:, None] * places)
        merged = unit(torch.from_numpy(mean).to(x))
        alone = torch.from_numpy(size[group] == 1).to(x.device)
        numbers = torch.from_numpy(group).to(x.device)
        merged[numbers[alone]] = x[alone]
        moved = (x - merged[numbers]).double().cpu().numpy()
        angle = 2 * np.arcsin(0.5 * np.linalg.norm(moved, axis=1))
        self.jumps.append((t, math.sqrt(float(np.exp(logs) @ angle**2))))
        if not self.lost:
            self._displace(moved, share, group)
        self.log_weights = torch.from_numpy(top + np.log(total)).to(self.log_weights)
        self.counts = torch.zeros_like(self.log_weights).index_add(0, numbers, self.counts)
        self.owner = numbers[self.owner]
        return merged

    def _displace(self, moved: np.ndarray, share: np.ndarray, group: np.ndarray) -> None:
        """Moments of the new groups about their new places, from those of the old ones and their displacements."""
        n, d = moved.shape
        old, shift = (self.scatter, self.shift) if self.shift.size else (np.zeros((n, d, d)), np.zeros((n, d)))
        both = moved[:, :, None] * (0.5 * moved + shift)[:, None, :]
        scatter = old + both + both.transpose(0, 2, 1)
        count = int(group.max()) + 1
        self.scatter, self.shift = np.zeros((count, d, d)), np.zeros((count, d))
        np.add.at(self.scatter, group, share[:, None, None] * scatter)
        np.add.at(self.shift, group, share[:, None] * (shift + moved))

    def _jacobian(self, x: Tensor) -> Jacobian:
        logs = self.log_weights.double().cpu().numpy()
        return Jacobian(self.head, self.beta, x.double().cpu().numpy(), logs)

    def pack(self) -> dict[str, np.ndarray]:
        """All of it as arrays, for a checkpoint."""
        arrays: dict[str, Any] = {name: getattr(self, name).cpu().numpy() for name in TENSORS}
        arrays |= {"scatter": self.scatter, "shift": self.shift, "jumps": np.array(self.jumps).reshape(-1, 2)}
        numbers = (self.patience, self.wait, self.lost, self.parameter, self.largest)
        arrays["numbers"] = np.array(numbers, dtype=float)
        return {f"merging_{name}": array for name, array in arrays.items()}

    def unpack(self, stored: dict[str, np.ndarray], x: Tensor, t: float) -> None:
        """Take up what `pack` gave, with the live tokens at x at time t."""
        arrays = {name.removeprefix("merging_"): a for name, a in stored.items() if name.startswith("merging_")}
        for name in TENSORS:
            setattr(self, name, torch.from_numpy(arrays[name]).to(x.device))
        self.scatter, self.shift = arrays["scatter"], arrays["shift"]
        self.jumps = [(float(s), float(e)) for s, e in arrays["jumps"]]
        patience, wait, lost, self.parameter, self.largest = arrays["numbers"].tolist()
        self.patience, self.wait, self.lost = int(patience), int(wait), bool(lost)
        if self.jumps and not self.lost:
            self._before = (t, self._jacobian(x))
