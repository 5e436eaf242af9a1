"""Frames whose number of points changes from one time to the next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from metastable.cloud import Cloud


@dataclass(frozen=True)
class Frames:
    """Weighted points at several times; short frames are filled up with copies of their first point at weight 0.

    points : (T, N, d)
    log_weights : (T, N), −inf where filled up
    """

    points: Tensor
    log_weights: Tensor

    @classmethod
    def of(cls, found: Sequence[tuple[np.ndarray, np.ndarray]]) -> Frames:
        most, d = max(len(x) for x, _ in found), found[0][0].shape[1]
        points = torch.empty(len(found), most, d, dtype=torch.float64)
        log_weights = torch.full((len(found), most), -math.inf, dtype=torch.float64)
        for i, (x, w) in enumerate(found):
            points[i, : len(x)], points[i, len(x) :] = torch.from_numpy(x), torch.from_numpy(x[0])
            log_weights[i, : len(x)] = torch.from_numpy(w)
        return cls(points, log_weights)

    def __len__(self) -> int:
        return len(self.points)

    def cloud(self, index: int, law: dict[str, object]) -> Cloud:
        """The frame as a cloud, without the filling."""
        seen = self.log_weights[index] > -math.inf
        # Scaling to norm 1 and sum 1 once more could change the last bit.
        cloud = Cloud(self.points[index][seen], log_weights=self.log_weights[index][seen], law=law)
        cloud.points, cloud.log_weights = self.points[index][seen], self.log_weights[index][seen]
        return cloud

    def clouds(self, law: dict[str, object]) -> Iterator[Cloud]:
        return (self.cloud(i, law) for i in range(len(self)))

    def moments(self) -> np.ndarray:
        """Mean and second moments of every frame, (T, d + d²)."""
        w, x = self.log_weights.exp(), self.points
        first, second = torch.einsum("tn,tnd->td", w, x), torch.einsum("tn,tnc,tnd->tcd", w, x, x)
        return torch.cat([first, second.flatten(1)], dim=1).numpy()
