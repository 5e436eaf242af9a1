"""The clusters in which a run of tokens ends, followed backwards to the time from which they are narrow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from metastable.flow.exact import value_flow
from metastable.flow.merging import groups
from metastable.run.run import Run

NARROW = 0.01
"""Largest distance of a token from its cluster's centre, in β^{−1/2}|Bᵀx|^{−1/2}: the spread then bends the cluster's
path by about NARROW² only."""
TOGETHER = 0.2
"""Tokens this close at the end, in the same unit, are one cluster."""


@dataclass(frozen=True)
class LateClusters:
    """G clusters of a run with T saved times.

    Attributes
    ----------
    shares : (G,) share of the tokens, decreasing
    centres : (G, T, d) mean of each cluster's tokens, scaled to norm 1
    spreads : (G, T) largest distance of a token from its centre
    onset : index of the first time from which every cluster is narrow, None if that was not seen
    """

    times: np.ndarray
    shares: np.ndarray
    centres: np.ndarray
    spreads: np.ndarray
    onset: int | None

    @property
    def late(self) -> np.ndarray:
        """The times from the onset on."""
        return np.asarray(self.times[self.onset :])

    def by_value_alone(self, run: Run) -> np.ndarray:
        """Where e^{tV} takes the centres from the onset on, (G, T − onset, d)."""
        assert self.onset is not None
        start = torch.from_numpy(self.centres[:, self.onset])
        moved = value_flow(run.head, start, torch.from_numpy(self.late - self.late[0]))
        return np.asarray(moved.transpose(0, 1).numpy())

    def seen(self, run: Run) -> float:
        """‖V‖ times ∫ (share of its softmax that a cluster gives to the others) dt from the onset on, at its largest.

        About how far the others have drawn a cluster off its own way.
        """
        assert self.onset is not None
        x = self.centres[:, self.onset :].transpose(1, 0, 2)
        scores = run.beta * np.einsum("tgi,ij,thj->tgh", x, run.head.B.numpy(), x) + np.log(self.shares)
        scores = np.exp(scores - scores.max(axis=2, keepdims=True))
        own = np.einsum("tgg->tg", scores) / scores.sum(axis=2)
        rates = float(torch.linalg.matrix_norm(run.head.V, 2)) * (1 - own)
        return float(max(elapsed(self.late, rate)[-1] for rate in rates.T))


def late_clusters(run: Run) -> LateClusters:
    """The clusters of the last frame and where their tokens were at every saved time."""
    frames = run.frames.double().numpy()
    unit = (run.beta * float(torch.linalg.matrix_norm(run.head.B, 2))) ** -0.5
    leader = groups(frames[-1], TOGETHER * unit, len(frames[-1]))
    assert leader is not None
    names, sizes = np.unique(leader, return_counts=True)
    names = names[np.argsort(-sizes, kind="stable")]
    centres, spreads = zip(*(_followed(frames[:, leader == name]) for name in names), strict=True)
    widest = np.max(spreads, axis=0)
    wide = np.flatnonzero(widest > NARROW * unit)
    first = int(wide[-1]) + 1 if len(wide) else 0
    onset = first if first < len(frames) else None
    return LateClusters(
        run.times.numpy(), np.sort(sizes)[::-1] / len(leader), np.stack(centres), np.stack(spreads), onset
    )


def _followed(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre (T, d) and largest distance from it (T,) of the tokens (T, n, d) of one cluster."""
    mean = tokens.mean(axis=1)
    centre = mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-300)
    return centre, np.linalg.norm(tokens - centre[:, None], axis=2).max(axis=1)


def elapsed(times: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """∫ rate dt from the first time to each of them, by the trapezoidal rule."""
    steps = 0.5 * (rates[1:] + rates[:-1]) * np.diff(times)
    return np.concatenate([[0.0], np.cumsum(steps)])
