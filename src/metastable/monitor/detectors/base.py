"""What detectors have in common: the interface, fitted arrays, means over tokens.

A detector is fitted on clean texts and turns a forward pass into a few numbers per text, its columns. Lengths, p-values
and other detectors are the business of `monitor.scoring`, which puts all columns on one scale.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from metastable.encoder.hooks import Depth, Lens, Passage, Watch, lenses
from metastable.encoder.load import Encoder
from metastable.encoder.statistics import Sample
from metastable.errors import BadInput
from metastable.monitor.length_adjustment import shaped
from metastable.monitor.moments import Moments, blended, whitening

# Tokens in the mean of the highest values of a text.
WORST = 3
# Clean tokens from which the mean and the standard deviation of single tokens' values are estimated.
TYPICAL = 4096


@dataclass(frozen=True)
class Column:
    """One number per text.

    depth : where it is read; None means the text as a whole
    since : a depth that must be read before, for a number about what happens in between
    """

    name: str
    depth: int | None
    since: int | None = None


@dataclass(frozen=True)
class Values:
    """What a detector computes for a passage.

    columns : (texts, k) of float64, one for each of the detector's columns. They are finite wherever the model's own
        tokens are, and 0 for texts without a chosen token and at depths that were not visited.
    tokens : (texts, n), the value of each chosen token in standard deviations of clean tokens (0 elsewhere), averaged
        over the depths that were visited; None if the detector does not look at single tokens
    """

    columns: Tensor
    tokens: Tensor | None = None


class Reading(ABC):
    """A detector at work on one passage."""

    @abstractmethod
    def visit(self, depth: Depth) -> None:
        """Called at the detector's depths, in order. Depths whose columns are not wanted may be left out."""

    @abstractmethod
    def values(self) -> Values:
        """Called once, after the last depth."""


class Detector(ABC):
    """Something that is fitted on clean texts and then scores passages.

    Fitting: for each stage, `learn` on every passage, then `settle`. Scoring: `open` on every passage. The fitted state
    is a dictionary of arrays.

    name : as users type it
    words : why a text is anomalous to this detector, to follow "because": "its words are unlike those of …"
    stages : passes over the clean texts that fitting takes
    needs_weights : whether it reads weights of the encoder, which an ONNX file does not show
    reads_projections : whether it reads the queries and keys of the layers at its depths
    two_sided : whether columns that are too small are as anomalous as columns that are too large
    explains : whether it may be named as the reason why a text is anomalous
    layers : the number L of layers of the encoder
    depths : where the detector reads tokens
    columns : what it computes, in order
    """

    name: ClassVar[str]
    words: ClassVar[str]
    stages: ClassVar[int] = 1
    needs_weights: ClassVar[bool] = False
    reads_projections: ClassVar[bool] = False
    two_sided: ClassVar[bool] = False
    explains: ClassVar[bool] = True

    depths: tuple[int, ...]
    columns: tuple[Column, ...]

    def __init__(self, encoder: Encoder) -> None:
        """An unfitted detector. Subclasses choose the depths and columns that it has on this encoder."""
        self.layers = len(encoder.anatomy.layers)
        self._width, self._lenses = encoder.anatomy.layers[0].width, lenses(encoder.anatomy)
        self._arrays: dict[str, Tensor] = {}
        self._elsewhere: dict[torch.device, dict[str, Tensor]] = {}

    @abstractmethod
    def learn(self, stage: int, passage: Passage) -> Watch:
        """Begin to learn from a passage of clean texts; the passage counts once the watch is closed."""

    @abstractmethod
    def settle(self, stage: int) -> None:
        """End a stage: all texts of it are learned."""

    @abstractmethod
    def open(self, passage: Passage) -> Reading:
        """Begin to score a passage."""

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the fitted arrays by name, with −1 for any number of rows."""

    def arrays_on(self, device: torch.device) -> dict[str, Tensor]:
        """The fitted arrays on a device; they are moved once."""
        if not self._arrays:
            raise BadInput(f"the detector {self.name} is not fitted; fit it on clean texts first")
        if device.type == "cpu":
            return self._arrays
        if device not in self._elsewhere:
            self._elsewhere[device] = {name: array.to(device) for name, array in self._arrays.items()}
        return self._elsewhere[device]

    def keep(self, arrays: Mapping[str, Tensor]) -> None:
        """Take over fitted arrays, as float32 in memory of torch's own: products depend on how memory is aligned."""
        self._arrays = {
            name: torch.empty(array.shape, dtype=torch.float32).copy_(array) for name, array in arrays.items()
        }
        self._elsewhere = {}

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The whole fitted state."""
        return {name: array.numpy().copy() for name, array in self._arrays.items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Put back what `to_arrays` gave, into an unfitted detector of the same encoder."""
        self.keep({name: torch.tensor(shaped(arrays, name, shape)) for name, shape in self.shapes().items()})


class Unfitted(Detector):
    """A detector that learns nothing itself: `monitor.scoring` compares its columns with those of clean texts."""

    stages = 0

    def learn(self, stage: int, passage: Passage) -> Watch:
        raise RuntimeError(f"{self.name} has no stages, and nothing to learn")

    def settle(self, stage: int) -> None:
        raise RuntimeError(f"{self.name} has no stages, and nothing to learn")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {}


class Taught(Detector):
    """A detector that learns to tell clean texts from spoilt copies of them.

    Fitting: `learn` on passages of both, in any order, and then `teach`.
    """

    stages = 0

    def settle(self, stage: int) -> None:
        raise RuntimeError(f"{self.name} has no stages; it is taught")

    @abstractmethod
    def teach(self, kinds: np.ndarray) -> None:
        """End of learning. kinds : (texts,), as in `spoiling.with_copies`, in the order in which texts were learned."""


class Gathering:
    """A watch that collects rows at each depth and hands them over when the pass is complete.

    Nothing is handed over from a pass that broke off.
    """

    def __init__(self, take: Callable[[Depth], Tensor], give: Callable[[dict[int, Tensor]], None]) -> None:
        self._take, self._give = take, give
        self._rows: dict[int, Tensor] = {}

    def visit(self, depth: Depth) -> None:
        self._rows[depth.index] = self._take(depth)

    def close(self) -> None:
        self._give(self._rows)


def adding(*receivers: Mapping[int, Moments | Sample]) -> Callable[[dict[int, Tensor]], None]:
    """What a `Gathering` gives its rows to: at each depth, every receiver's own of that depth."""

    def give(rows: dict[int, Tensor]) -> None:
        for depth, own in rows.items():
            for receiver in receivers:
                receiver[depth].add(own)

    return give


def chosen_units(depth: Depth) -> Tensor:
    """x̂ of all chosen tokens of a passage, one after another, (tokens, d)."""
    return depth.lens(depth.x[depth.passage.chosen])


class Leading:
    """Moves the first chosen tokens of each text, at most `most`, to its beginning, in their order.

    there : (texts, m) of bool, the places that they take
    count : (texts,), how many there are
    full : whether all m places of all texts are taken
    """

    def __init__(self, passage: Passage, most: int) -> None:
        self.count = passage.counts.clamp_max(most)
        m = max(int(self.count.max()), 1)
        self.there = torch.arange(m, device=self.count.device) < self.count.unsqueeze(1)
        self.full = bool(self.there.all())
        self._width = passage.chosen.shape[1]
        # The places of the tokens in each text: the same ones in all texts, or (texts, m).
        self._places: slice | Tensor
        if passage.start is not None:
            self._places = slice(passage.start, passage.start + m)
        else:
            self._places = (~passage.chosen).to(torch.uint8).argsort(dim=1, stable=True)[:, :m]

    def forth(self, x: Tensor, texts: slice = slice(None)) -> Tensor:
        """x (texts, n, …) at these tokens, (texts, m, …), a view if possible; any value where no token is.

        texts : those of the passage that x is of
        """
        if isinstance(self._places, slice):
            return x[:, self._places]
        places = self._places[texts]
        return x.gather(1, places.view(*places.shape, *(1,) * (x.ndim - 2)).expand(*places.shape, *x.shape[2:]))

    def filled(self, x: Tensor) -> Tensor:
        """x (texts, m, d) with 0 where no token is. x itself is changed."""
        return x if self.full else x.masked_fill_(~self.there.unsqueeze(-1), 0.0)

    def back(self, values: Tensor) -> Tensor:
        """Values (texts, m) at the places of their tokens, (texts, n); any value elsewhere."""
        found = values.new_zeros(len(values), self._width)
        if not isinstance(self._places, slice):
            return found.scatter_(1, self._places, values)
        found[:, self._places] = values
        return found


def typical(values: Tensor) -> Tensor:
    """Mean and standard deviation of clean tokens' values, (2,)."""
    found = values.double()
    # If all tokens are alike, any scale keeps their order.
    return torch.stack([found.mean(), found.std(correction=0).clamp_min(1e-6)])


def over_tokens(values: Tensor, passage: Passage) -> Tensor:
    """Mean, and mean of the three highest, of the chosen tokens' values (…, texts, n): (…, texts, 2); 0 without any."""
    counts = passage.counts
    highest = torch.where(passage.chosen, values, -torch.inf).topk(min(WORST, values.shape[-1]), dim=-1).values
    there = torch.arange(highest.shape[-1], device=counts.device) < counts.unsqueeze(1)
    worst = torch.where(there, highest, 0.0).sum(dim=-1) / counts.clamp(1, WORST)
    mean = torch.where(passage.chosen, values, 0.0).sum(dim=-1) / counts.clamp_min(1)
    return torch.stack([mean, worst], dim=-1)


def token_columns(depths: tuple[int, ...]) -> tuple[Column, ...]:
    """The columns of `TokenReading`, depth after depth."""
    return tuple(Column(name, depth) for depth in depths for name in ("mean", "worst three"))


class TextReading(Reading):
    """Some columns at each depth: `score` gives those of a depth, (texts, k)."""

    def __init__(self, detector: Detector, passage: Passage, score: Callable[[Depth], Tensor]) -> None:
        self._depths, self._passage, self._score = detector.depths, passage, score
        self._per_depth = len(detector.columns) // len(detector.depths)
        self._found: dict[int, Tensor] = {}

    def visit(self, depth: Depth) -> None:
        self._found[depth.index] = self._score(depth)

    def values(self) -> Values:
        none = torch.zeros(len(self._passage.ids), self._per_depth, device=self._passage.ids.device)
        return Values(torch.cat([self._found.get(depth, none) for depth in self._depths], dim=1).double())


class TokenReading(TextReading):
    """Values of single tokens at each depth: their mean and the mean of the three highest; see `token_columns`.

    score : gives the values (texts, n) at a depth; the values of tokens that are not chosen are ignored
    arrays : typical.{depth} is the mean and the standard deviation of clean tokens' values, (2,)
    """

    def __init__(
        self, detector: Detector, passage: Passage, score: Callable[[Depth], Tensor], arrays: Mapping[str, Tensor]
    ) -> None:
        super().__init__(detector, passage, score)
        self._arrays = arrays
        self._of_tokens: dict[int, Tensor] = {}

    def visit(self, depth: Depth) -> None:
        self._of_tokens[depth.index] = self._score(depth)

    def values(self) -> Values:
        # One call for all depths is quicker than one for each.
        if not self._of_tokens:
            return super().values()
        values = torch.stack([*self._of_tokens.values()])
        self._found = dict(zip(self._of_tokens, over_tokens(values, self._passage), strict=True))
        mean, deviation = torch.stack([self._arrays[f"typical.{depth}"] for depth in self._of_tokens], dim=1)
        strange = ((values - mean[:, None, None]) / deviation[:, None, None]).mean(dim=0)
        return Values(super().values().columns, torch.where(self._passage.chosen, strange, 0.0))


def gaussian(moments: Moments) -> tuple[Tensor, Tensor]:
    """U, u with |Ux̂ + u|² = |W(x̂ − μ)|²/d, the covariance shrunk as Ledoit and Wolf estimate: (d, d) and (d,)."""
    white = whitening(blended(moments.covariance, moments.ledoit_wolf())) / len(moments.centre) ** 0.5
    return white, -white @ moments.mean


def folded(white: Tensor, offset: Tensor, lens: Lens) -> tuple[Tensor, Tensor]:
    """The same two with v in place of x̂."""
    return white * lens.scale, offset + white @ lens.shift.double()


def squares(white: Tensor, offset: Tensor, rows: Tensor, passage: Passage) -> Tensor:
    """|U row + u|² of each text, (texts,); 0 for texts without a chosen token."""
    y = torch.addmm(offset, rows, white.T)
    return torch.where(passage.counts > 0, torch.linalg.vecdot(y, y), 0.0)
