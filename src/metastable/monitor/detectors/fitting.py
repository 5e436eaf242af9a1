"""What detectors share: learning from rows at each depth, keeping what was fitted, reducing tokens to texts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage, Watch
from metastable.errors import BadInput
from metastable.monitor.detectors.base import Column, Detector, Reading, Values

WORST = 3
"""Tokens in the mean of the worst."""

TYPICAL = 4096
"""Clean tokens from which the mean and the standard deviation of single tokens' values are taken."""


class Gathering:
    """A watch that takes rows at each depth and gives them all away when the pass is over: none of a broken one."""

    def __init__(self, take: Callable[[Depth], Tensor], give: Callable[[dict[int, Tensor]], None]) -> None:
        self._take, self._give = take, give
        self._rows: dict[int, Tensor] = {}

    def visit(self, depth: Depth) -> None:
        self._rows[depth.index] = self._take(depth)

    def close(self) -> None:
        self._give(self._rows)


def chosen_units(depth: Depth) -> Tensor:
    """x̂ of all chosen tokens of a passage, one after another, (tokens, d)."""
    return depth.lens(depth.x[depth.passage.chosen])


class Unfitted(Detector):
    """A detector that learns nothing: what is normal is for `monitor.scoring` to find out."""

    stages = 0

    def learn(self, stage: int, passage: Passage) -> Watch:
        raise RuntimeError(f"{self.name} has no stages, and nothing to learn")

    def settle(self, stage: int) -> None:
        raise RuntimeError(f"{self.name} has no stages, and nothing to learn")

    def to_arrays(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        if arrays:
            raise BadInput(f"the saved {self.name} holds {sorted(arrays)} in place of nothing; fit again")


class Fitted(Detector):
    """A detector whose fitted state is some arrays by name, the same on every device its passes run on."""

    def __init__(self) -> None:
        self._arrays: dict[str, Tensor] = {}
        self._elsewhere: dict[torch.device, dict[str, Tensor]] = {}

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The arrays by name, with −1 for any number of rows."""

    def arrays_on(self, device: torch.device) -> dict[str, Tensor]:
        """The fitted arrays there, moved once."""
        if not self._arrays:
            raise BadInput(f"the detector {self.name} is not fitted; fit it on clean texts first")
        if device.type == "cpu":
            return self._arrays
        if device not in self._elsewhere:
            self._elsewhere[device] = {name: array.to(device) for name, array in self._arrays.items()}
        return self._elsewhere[device]

    def keep(self, arrays: Mapping[str, Tensor]) -> None:
        """Take over fitted arrays, in memory of torch's own: products depend on how memory is aligned."""
        self._arrays = {name: torch.empty(array.shape).copy_(array) for name, array in arrays.items()}
        self._elsewhere = {}

    def to_arrays(self) -> dict[str, np.ndarray]:
        return {name: array.numpy().copy() for name, array in self._arrays.items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        wanted = self.shapes()
        if set(arrays) != set(wanted):
            raise BadInput(f"the saved {self.name} holds {sorted(arrays)} in place of {sorted(wanted)}; fit again")
        for name, shape in wanted.items():
            found = np.shape(arrays[name])
            fits = len(found) == len(shape) and all(w in (f, -1) for f, w in zip(found, shape, strict=True))
            if not fits or not np.isfinite(arrays[name]).all():
                raise BadInput(
                    f"{name} of the saved {self.name} is damaged (shape {found}, not {shape}, or not finite)"
                )
        self.keep({name: torch.tensor(np.asarray(arrays[name], dtype=np.float32)) for name in wanted})


def need_some(count: int, what: str) -> None:
    """Refuse to settle on nothing."""
    if count == 0:
        raise BadInput(f"the detector has learned from 0 {what}; give texts with words in them")


def typical(values: Tensor) -> Tensor:
    """Mean and standard deviation of clean tokens' values, (2,)."""
    found = values.double()
    # Tokens that are all alike: any scale keeps their order.
    return torch.stack([found.mean(), found.std(correction=0).clamp_min(1e-6)])


def over_tokens(values: Tensor, passage: Passage) -> Tensor:
    """Mean, and mean of the three highest, of the chosen tokens' values (texts, n): (texts, 2); 0 without any."""
    counts = passage.counts
    highest = torch.where(passage.chosen, values, -torch.inf).topk(min(WORST, values.shape[1]), dim=1).values
    there = torch.arange(highest.shape[1], device=counts.device) < counts.unsqueeze(1)
    worst = torch.where(there, highest, 0.0).sum(dim=1) / counts.clamp(1, WORST)
    mean = torch.where(passage.chosen, values, 0.0).sum(dim=1) / counts.clamp_min(1)
    return torch.stack([mean, worst], dim=1)


def token_columns(depths: tuple[int, ...]) -> tuple[Column, ...]:
    """The columns of `TokenReading`."""
    return tuple(Column(name, depth) for depth in depths for name in ("mean", "worst three"))


class TokenReading(Reading):
    """Values of single tokens at some depths, as their mean and the mean of the three highest at each depth.

    score : gives the values (texts, n) at a depth; what it gives for tokens that are not chosen does not matter
    scale : by depth, mean and standard deviation of clean tokens' values, (2,)
    """

    def __init__(
        self,
        depths: tuple[int, ...],
        passage: Passage,
        score: Callable[[Depth], Tensor],
        scale: Callable[[Depth], Tensor],
    ) -> None:
        self._depths, self._passage, self._score, self._scale = depths, passage, score, scale
        self._found: dict[int, Tensor] = {}
        self._tokens: list[Tensor] = []

    def visit(self, depth: Depth) -> None:
        values = self._score(depth)
        self._found[depth.index] = over_tokens(values, self._passage)
        mean, deviation = self._scale(depth)
        self._tokens.append((values - mean) / deviation)

    def values(self) -> Values:
        none = torch.zeros(len(self._passage.ids), 2, device=self._passage.ids.device)
        columns = torch.cat([self._found.get(depth, none) for depth in self._depths], dim=1).double()
        if not self._tokens:
            return Values(columns)
        strange = sum(self._tokens[1:], start=self._tokens[0]) / len(self._tokens)
        return Values(columns, torch.where(self._passage.chosen, strange, 0.0))
