"""From detectors' columns to p-values: one scale for all columns, one number per detector, one score per text.

    columns ─► z by column (`Adjustment`) ─► a number per detector, adjusted ─► `Surprise` ─► `combine` ─► p
            └► mean z by depth ───────────────────────────────────────────────► `Surprise` ─► `worst`   ─► p by depth

Everything up to the score is fitted on the "adjust" part of the clean texts (`Scale`) and is then a fixed function of a
text. Only p-values use the "calibrate" part (`Scorer`). So p-values are exact for a clean text that is exchangeable
with the calibration texts, whatever the detectors are and however badly they were fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from metastable.arrays import whole
from metastable.errors import BadInput
from metastable.monitor.conformal import Calibration, Surprise, combine, ladder, worst
from metastable.monitor.detectors.base import Detector
from metastable.monitor.length_adjustment import Adjustment, shaped
from metastable.monitor.split import DELTA

# Most texts that a `Surprise` is fitted on. It is a curve: more points cost time per text and gain nothing.
SURPRISED = 2000


@dataclass(frozen=True)
class Setting:
    """Which detectors are used together.

    members : by the name of a detector, which of its depths, counted from 0 in its own order; None for all columns
    """

    name: str
    members: Mapping[str, tuple[int, ...] | None]

    def places(self, detector: Detector) -> tuple[int, ...]:
        """Which of a detector's columns are used."""
        chosen = self.members[detector.name]
        if chosen is None:
            return tuple(range(len(detector.columns)))
        depths = {detector.depths[i] for i in chosen if i < len(detector.depths)}
        return tuple(i for i, column in enumerate(detector.columns) if column.depth in depths)

    def depths(self, detector: Detector) -> tuple[int | None, ...]:
        """Where each of these columns is read; None for the text as a whole."""
        return tuple(detector.columns[place].depth for place in self.places(detector))


# The settings by name. They were chosen on the development shifts of benchmarks/detection and are reported on others.
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("light", {"pooled-mahalanobis": None, "place-surprise": (0,)}),
        Setting("full", {"token-mahalanobis": None, "place-surprise": None}),
    )
}


@dataclass(frozen=True)
class ColumnTable:
    """Detectors' columns of some texts.

    columns : by the name of a detector, (texts, k)
    lengths : (texts,), the number of tokens of each text
    """

    columns: Mapping[str, np.ndarray]
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: Any) -> ColumnTable:
        return ColumnTable({name: found[rows] for name, found in self.columns.items()}, self.lengths[rows])

    @classmethod
    def joined(cls, tables: Sequence[ColumnTable]) -> ColumnTable:
        columns = {name: np.concatenate([t.columns[name] for t in tables]) for name in tables[0].columns}
        return cls(columns, np.concatenate([t.lengths for t in tables]))


@dataclass(frozen=True)
class Member:
    """Turns one detector's columns into one number per text: the mean of the adjusted columns, adjusted again.

    The second adjustment is needed because the spread of a mean depends on the correlation of its columns, and that
    depends on length.

    places : which of the detector's columns
    depths : where each of these columns is read; None for the text as a whole
    """

    name: str
    places: tuple[int, ...]
    depths: tuple[int | None, ...]
    first: Adjustment
    second: Adjustment

    @classmethod
    def of(cls, detector: Detector, places: tuple[int, ...], columns: np.ndarray, lengths: np.ndarray) -> Member:
        first = Adjustment.of(columns[:, places], lengths)
        mean = first(columns[:, places], lengths).mean(axis=1)
        depths = tuple(detector.columns[place].depth for place in places)
        return cls(detector.name, places, depths, first, Adjustment.of(mean[:, None], lengths))

    def number(self, z: np.ndarray) -> np.ndarray:
        """One number per text, (texts,), from adjusted columns (texts, k)."""
        return z.mean(axis=1)

    def __call__(self, columns: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """From all the detector's columns (texts, K): the number, (texts, 1), and the anomaly of the k chosen ones."""
        z = self.first(columns[:, self.places], lengths)
        return self.second(self.number(z)[:, None], lengths), z

    def to_dict(self) -> dict[str, Any]:
        """Everything but the adjustments, for JSON."""
        return {"name": self.name, "places": list(self.places), "depths": list(self.depths)}

    @classmethod
    def from_arrays(cls, kept: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Member:
        """kept : what `to_dict` gave"""
        name, places, depths = str(kept["name"]), wholes(kept["places"], "places"), wholes(kept["depths"], "depths")
        first = Adjustment.from_arrays(within(arrays, f"{name}.first."), len(places))
        return cls(name, places, depths, first, Adjustment.from_arrays(within(arrays, f"{name}.second."), 1))


def wholes(values: Iterable[Any], name: str) -> tuple[int, ...]:
    """Saved whole numbers, 0 or more."""
    return tuple(whole(value, name, 0, "it must be a whole number, 0 or more") for value in values)


def within(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin with the prefix, without the prefix."""
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class Scores:
    """Scores of texts before p-values. total : (texts,). by_member : (texts, members). by_depth : (texts, depths)."""

    total: np.ndarray
    by_member: np.ndarray
    by_depth: np.ndarray

    @property
    def worst_depth(self) -> np.ndarray:
        return worst(self.by_depth) if self.by_depth.shape[1] else self.total


MakeMember = Callable[[Detector, tuple[int, ...], np.ndarray, np.ndarray], Member]


@dataclass(frozen=True)
class Scale:
    """A fixed function from a text's columns to its score, fitted on the "adjust" part; see the module's docstring.

    surprise_by_depth : None if no column belongs to a depth
    """

    setting: Setting
    members: tuple[Member, ...]
    surprise: Surprise
    surprise_by_depth: Surprise | None

    @classmethod
    def of(
        cls,
        setting: Setting,
        detectors: Mapping[str, Detector],
        adjust: ColumnTable,
        member_of: MakeMember = Member.of,
    ) -> Scale:
        if absent := [name for name in setting.members if name not in detectors]:
            raise BadInput(f"the setting {setting.name!r} needs the detector {absent[0]!r}, which is not there")
        members = tuple(
            member_of(d, setting.places(d), adjust.columns[d.name], adjust.lengths)
            for d in (detectors[name] for name in setting.members)
        )
        some = np.unique(np.linspace(0, len(adjust) - 1, min(len(adjust), SURPRISED)).astype(int))
        numbers, by_depth = _numbers(members, adjust[some])
        return cls(setting, members, Surprise(numbers), Surprise(by_depth) if by_depth.shape[1] else None)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Where any of the columns is read, in order."""
        return _all_depths(self.members)

    def __call__(self, table: ColumnTable) -> Scores:
        numbers, by_depth = _numbers(self.members, table)
        surprises = self.surprise(numbers)
        if self.surprise_by_depth is not None:
            by_depth = self.surprise_by_depth(by_depth)
        return Scores(combine(surprises), surprises, by_depth)


def _all_depths(members: Sequence[Member]) -> tuple[int, ...]:
    return tuple(sorted({depth for member in members for depth in member.depths if depth is not None}))


def _numbers(members: Sequence[Member], table: ColumnTable) -> tuple[np.ndarray, np.ndarray]:
    """Each detector's number, (texts, members), and the mean anomaly of all columns at each depth, (texts, depths)."""
    found = [member(table.columns[member.name], table.lengths) for member in members]
    at = np.array([-1 if depth is None else depth for member in members for depth in member.depths])
    z = np.concatenate([strange for _, strange in found], axis=1)
    by_depth = [z[:, at == depth].mean(axis=1) for depth in _all_depths(members)]
    return np.concatenate([n for n, _ in found], axis=1), np.stack(by_depth, axis=1) if by_depth else z[:, :0]


@dataclass(frozen=True)
class Assessment:
    """Scores and p-values of the texts of one passage. Higher scores and smaller p-values are more anomalous.

    lengths : (texts,), the number of tokens of each text
    usable : (texts,) of bool; False for texts without a token of their own, or with numbers that are not finite. All
        numbers of these texts are NaN.
    score : (texts,)
    p_marginal, p_value : (texts,), of the score; p_value is calibration-conditional at δ = 0.1, see `conformal`
    by_member : (texts, members), the surprise of each detector
    p_by_depth : (texts, depths), calibration-conditional, corrected for the number of depths
    depths : the depths of `p_by_depth`
    names : the names of the detectors
    tokens : by detector, (texts, n), the anomaly of each token; only for detectors that look at single tokens
    least : the smallest possible p_value
    """

    lengths: np.ndarray
    usable: np.ndarray
    score: np.ndarray
    p_marginal: np.ndarray
    p_value: np.ndarray
    by_member: np.ndarray
    p_by_depth: np.ndarray
    depths: tuple[int, ...]
    names: tuple[str, ...]
    tokens: Mapping[str, Tensor]
    least: float


@dataclass(frozen=True)
class Scorer:
    """A `Scale` and the scores of the clean texts that new scores are ranked among.

    calibration : of `Scores.total`; by_depth : of `Scores.worst_depth`
    """

    scale: Scale
    calibration: Calibration
    by_depth: Calibration

    @property
    def setting(self) -> Setting:
        return self.scale.setting

    def check(self, detectors: Mapping[str, Detector]) -> None:
        """Refuse saved members that differ from what the setting and the encoder's detectors say."""
        own = [detectors[name] for name in self.setting.members]
        expected = [(d.name, self.setting.places(d), self.setting.depths(d)) for d in own]
        if [(member.name, member.places, member.depths) for member in self.scale.members] != expected:
            raise BadInput(
                f"the baseline is damaged: its setting {self.setting.name!r} reads other detectors or columns than it "
                "does on this encoder; calibrate again"
            )

    @property
    def texts(self) -> int:
        """The number m of calibration texts."""
        return self.calibration.texts

    @cached_property
    def visits(self) -> dict[str, frozenset[int]]:
        """Where each detector has to read tokens, by its name."""
        members = self.scale.members
        return {member.name: frozenset(depth for depth in member.depths if depth is not None) for member in members}

    @cached_property
    def ladder(self) -> np.ndarray:
        """The calibration-conditional p-value of each rank, (m + 1,)."""
        return ladder(self.texts, DELTA)

    @property
    def least(self) -> float:
        """The smallest possible calibration-conditional p-value."""
        return float(self.ladder[0])

    def threshold(self, alpha: float) -> float | None:
        """A text is strange at level alpha if its score is above this; None if no text can be strange at this level.

        p = b_j ≤ α if the rank j is at most J = #{j : b_j ≤ α}, that is if fewer than J calibration scores are ≥ s.
        """
        ranks = int((self.ladder <= alpha).sum())
        return float(self.calibration.scores[-ranks]) if ranks else None

    def usable(self, table: ColumnTable) -> np.ndarray:
        """(texts,) of bool; False for texts without a token of their own, or with numbers that are not finite."""
        found = table.lengths > 0
        for member in self.scale.members:
            found &= np.isfinite(table.columns[member.name][:, member.places]).all(axis=1)
        return found

    def extended(self, table: ColumnTable) -> Scorer:
        """The same scale with more clean texts, all of them usable, among the calibration texts; see `review`."""
        scores = self.scale(table)
        total = np.concatenate([self.calibration.scores, scores.total])
        return Scorer(
            self.scale, Calibration(total), Calibration(np.concatenate([self.by_depth.scores, scores.worst_depth]))
        )

    def assess(self, table: ColumnTable, tokens: Mapping[str, Tensor] | None = None) -> Assessment:
        usable = self.usable(table)
        scores = self.scale(table[usable])
        ranks = self.calibration.ranks(scores.total)
        by_depth = self.ladder[self.by_depth.ranks(scores.by_depth) - 1]
        return Assessment(
            lengths=table.lengths,
            usable=usable,
            score=_spread(scores.total, usable),
            p_marginal=_spread(ranks / (self.texts + 1), usable),
            p_value=_spread(self.ladder[ranks - 1], usable),
            by_member=_spread(scores.by_member, usable),
            p_by_depth=_spread(by_depth, usable),
            depths=self.scale.depths,
            names=tuple(member.name for member in self.scale.members),
            tokens=tokens or {},
            least=self.least,
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        scale = self.scale
        assert scale.surprise_by_depth is not None, "the columns of the library's settings belong to depths"
        arrays = {"surprise": scale.surprise.scores, "surprise_by_depth": scale.surprise_by_depth.scores}
        arrays |= {"calibration": self.calibration.scores, "by_depth": self.by_depth.scores}
        for member in scale.members:
            arrays |= {f"{member.name}.first.{name}": array for name, array in vars(member.first).items()}
            arrays |= {f"{member.name}.second.{name}": array for name, array in vars(member.second).items()}
        return arrays

    def to_dict(self) -> dict[str, Any]:
        """Everything that is not in the arrays, for JSON."""
        return {"members": [member.to_dict() for member in self.scale.members]}

    @classmethod
    def from_arrays(cls, setting: Setting, kept: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Scorer:
        """kept : what `to_dict` gave."""
        members = tuple(Member.from_arrays(member, arrays) for member in kept["members"])
        surprise = Surprise(shaped(arrays, "surprise", (-1, len(members))))
        by_depth = Surprise(shaped(arrays, "surprise_by_depth", (-1, len(_all_depths(members)))))
        calibration = Calibration(shaped(arrays, "calibration", (-1,)))
        own = Calibration(shaped(arrays, "by_depth", (calibration.texts,)))
        return cls(Scale(setting, members, surprise, by_depth), calibration, own)


def _spread(values: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Values of the usable texts at their places among all texts; NaN elsewhere."""
    found = np.full((len(usable), *values.shape[1:]), np.nan)
    found[usable] = values
    return found
