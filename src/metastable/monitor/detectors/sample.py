"""A uniform sample of rows that pass by, in bounded memory: Vitter's Algorithm R ("Random sampling with a reservoir",
ACM Transactions on Mathematical Software 11, 1985)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Sample:
    """At most `most` rows (d,) of those given, each set of that size equally likely.

    The i-th row takes a random place below i, and replaces what is there if the place is below `most`. The same rows in
    the same order give the same sample.
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
