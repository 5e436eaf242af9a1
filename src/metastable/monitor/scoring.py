"""From detectors' columns to p-values: one scale for each column, one number a detector, one score a text.

    columns ─► z by column (`Adjustment`) ─► a number a detector, adjusted ─► `Surprise` ─► `combine` ─► p
            └► mean z by depth ─────────────────────────────────────────────► `Surprise` ─► `worst`   ─► p by depth

Everything up to the score is fitted on the "adjust" part of the clean texts (`Scale`) and is then a fixed function of a
text; only p-values use the "calibrate" part (`Scorer`). So for a clean text exchangeable with the calibration texts
p-values are exact, whatever the detectors are and however badly they were fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metastable.arrays import whole
from metastable.errors import BadInput
from metastable.monitor.alarm import Alarm
from metastable.monitor.conformal import Calibration, Surprise, combine, ladder, worst
from metastable.monitor.detectors.base import Detector
from metastable.monitor.length_adjustment import Adjustment, shaped
from metastable.monitor.moments import Moments, blended, whitening
from metastable.monitor.split import DELTA

SURPRISED = 2000
"""Most texts that a `Surprise` is fitted on: it is a curve, and more points cost time with each text for nothing."""


COUNT = "it must be a whole number, 0 or more"


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


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("light", {"pooled-mahalanobis": None, "place-surprise": (0,)}),
        Setting("full", {"token-mahalanobis": None, "place-surprise": None}),
    )
}
"""By name. They were chosen on the development shifts of benchmarks/detection, and are reported on others."""


@dataclass(frozen=True)
class Table:
    """Numbers of texts. columns : by the name of a detector, (texts, k). lengths : (texts,), n of each text."""

    columns: Mapping[str, np.ndarray]
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: Any) -> Table:
        return Table({name: found[rows] for name, found in self.columns.items()}, self.lengths[rows])

    @classmethod
    def joined(cls, tables: Sequence[Table]) -> Table:
        columns = {name: np.concatenate([t.columns[name] for t in tables]) for name in tables[0].columns}
        return cls(columns, np.concatenate([t.lengths for t in tables]))


@dataclass(frozen=True)
class Vector:
    """log |W(z − μ)|²/k of a vector z of k numbers, W C Wᵀ = I with C their covariance, shrunk: strange in any way.

    C = (1 − α) S + α (tr S/k) I with Ledoit and Wolf's α: see `moments`.
    """

    white: np.ndarray
    mean: np.ndarray

    @classmethod
    def of(cls, z: np.ndarray) -> Vector:
        moments = Moments(z.shape[1])
        moments.add(torch.from_numpy(z))
        white = whitening(blended(moments.covariance, moments.ledoit_wolf()))
        return cls(white.numpy(), moments.mean.numpy())

    def __call__(self, z: np.ndarray) -> np.ndarray:
        square = np.square((z - self.mean) @ self.white.T).mean(axis=1)
        return np.asarray(np.log(square + 1e-9))


@dataclass(frozen=True)
class Member:
    """One detector's columns, made one number a text: higher is stranger.

    One-sided detectors: the mean of their adjusted columns. Two-sided ones: `Vector` of these. Either is adjusted for
    length once more, because the spread of a mean depends on how its columns go together, and that on length.

    places : which of the detector's columns; depths : where each of them is read, None for the text as a whole
    visits : where the detector has to look for that; all of its depths for a column of the text as a whole
    """

    name: str
    places: tuple[int, ...]
    depths: tuple[int | None, ...]
    visits: tuple[int, ...]
    first: Adjustment
    vector: Vector | None
    second: Adjustment

    @classmethod
    def of(cls, detector: Detector, places: tuple[int, ...], columns: np.ndarray, lengths: np.ndarray) -> Member:
        first = Adjustment.of(columns[:, places], lengths)
        z = first(columns[:, places], lengths)
        vector = Vector.of(z) if detector.two_sided else None
        second = Adjustment.of(_one(z, vector), lengths)
        return cls(detector.name, places, *_reads(detector, places), first, vector, second)

    def check(self, detector: Detector, setting: Setting) -> None:
        """Refuse what was saved of it where the detector has other columns on this encoder."""
        places = setting.places(detector)
        saved = (self.places, self.depths, self.visits, self.vector is not None)
        if saved != (places, *_reads(detector, places), detector.two_sided):
            raise BadInput(
                f"the baseline is damaged: in its setting {setting.name!r} {self.name} reads columns {[*self.places]} "
                f"at depths {[*self.depths]}, which it does not on this encoder; calibrate again"
            )

    def __call__(self, columns: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of all the detector's columns (texts, K): the number, (texts, 1), and how strange its own k are."""
        z = self.first(columns[:, self.places], lengths)
        return self.second(_one(z, self.vector), lengths), z if self.vector is None else np.abs(z)

    def to_arrays(self) -> dict[str, np.ndarray]:
        arrays = {f"first.{k}": a for k, a in self.first.to_arrays().items()}
        arrays |= {f"second.{k}": a for k, a in self.second.to_arrays().items()}
        return arrays if self.vector is None else arrays | {"white": self.vector.white, "mean": self.vector.mean}

    def to_dict(self) -> dict[str, Any]:
        """All that is not in the arrays, for JSON."""
        lists = {name: list(getattr(self, name)) for name in ("places", "depths", "visits")}
        return {"name": self.name, **lists, "two_sided": self.vector is not None}

    @classmethod
    def from_arrays(cls, kept: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Member:
        """kept : what `to_dict` gave."""
        places = wholes(kept["places"], "places")
        depths = tuple(None if d is None else whole(d, "depths", 0, COUNT) for d in kept["depths"])
        k, vector, two_sided = len(places), None, kept["two_sided"]
        if not isinstance(two_sided, bool):
            raise BadInput(f"two_sided is {two_sided!r}; it must be true or false")
        if two_sided:
            vector = Vector(shaped(arrays, "white", (k, k)), shaped(arrays, "mean", (k,)))
        first = Adjustment.from_arrays(within(arrays, "first."), k)
        second = Adjustment.from_arrays(within(arrays, "second."), 1)
        return cls(str(kept["name"]), places, depths, wholes(kept["visits"], "visits"), first, vector, second)


def _reads(detector: Detector, places: tuple[int, ...]) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
    """`depths` and `visits` of a member with these columns."""
    depths = tuple(detector.columns[i].depth for i in places)
    return depths, detector.depths if None in depths else tuple(sorted({d for d in depths if d is not None}))


def _one(z: np.ndarray, vector: Vector | None) -> np.ndarray:
    return (z.mean(axis=1) if vector is None else vector(z))[:, None]


def wholes(values: Iterable[Any], name: str) -> tuple[int, ...]:
    """Saved numbers, each of which counts something."""
    return tuple(whole(value, name, 0, COUNT) for value in values)


def within(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin so, without the beginning."""
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class Scores:
    """Of texts, before p-values. total : (texts,). by_member : (texts, members). by_depth : (texts, depths)."""

    total: np.ndarray
    by_member: np.ndarray
    by_depth: np.ndarray

    @property
    def worst_depth(self) -> np.ndarray:
        return worst(self.by_depth) if self.by_depth.shape[1] else self.total


@dataclass(frozen=True)
class Scale:
    """A fixed function from a text's columns to its score, fitted on the "adjust" part; see the module's docstring."""

    setting: Setting
    members: tuple[Member, ...]
    surprise: Surprise
    surprise_by_depth: Surprise | None

    @classmethod
    def of(cls, setting: Setting, detectors: Mapping[str, Detector], adjust: Table) -> Scale:
        members = tuple(
            Member.of(d, setting.places(d), adjust.columns[d.name], adjust.lengths) for d in _own(setting, detectors)
        )
        numbers, by_depth = _numbers(members, adjust[_some(len(adjust))])
        return cls(setting, members, Surprise(numbers), Surprise(by_depth) if by_depth.shape[1] else None)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Where any of its columns is read, in order."""
        return _all_depths(self.members)

    def __call__(self, table: Table) -> Scores:
        numbers, by_depth = _numbers(self.members, table)
        surprises = self.surprise(numbers)
        if self.surprise_by_depth is not None:
            by_depth = self.surprise_by_depth(by_depth)
        return Scores(combine(surprises), surprises, by_depth)


def _own(setting: Setting, detectors: Mapping[str, Detector]) -> list[Detector]:
    if absent := [name for name in setting.members if name not in detectors]:
        raise BadInput(f"the setting {setting.name!r} needs the detector {absent[0]!r}, which is not there")
    return [detectors[name] for name in setting.members]


def _some(texts: int) -> np.ndarray:
    return np.unique(np.linspace(0, texts - 1, min(texts, SURPRISED)).astype(int))


def _all_depths(members: Sequence[Member]) -> tuple[int, ...]:
    return tuple(sorted({depth for member in members for depth in member.depths if depth is not None}))


def _numbers(members: Sequence[Member], table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Each detector's number, (texts, members), and the mean z of all columns at each depth, (texts, depths)."""
    found = [member(table.columns[member.name], table.lengths) for member in members]
    at = np.array([-1 if depth is None else depth for member in members for depth in member.depths])
    z = np.concatenate([strange for _, strange in found], axis=1)
    by_depth = [z[:, at == depth].mean(axis=1) for depth in _all_depths(members)]
    return np.concatenate([n for n, _ in found], axis=1), np.stack(by_depth, axis=1) if by_depth else z[:, :0]


@dataclass(frozen=True)
class Judged:
    """What is said of the texts of one passage. Higher scores are stranger, smaller p-values are.

    lengths : (texts,), n of each
    usable : (texts,) of bool; False for texts without a token of their own, or with numbers that are not finite. All
        numbers of these are NaN.
    score : (texts,)
    p_marginal, p_value : (texts,), of the score; p_value is calibration-conditional at δ = 0.1, see `conformal`
    by_member : (texts, members), surprise of each detector; names : theirs; words : what each means, after "because"
    p_by_depth : (texts, depths), calibration-conditional, corrected for the number of depths; depths : these
    tokens : by detector, (texts, n), how strange each token is; only of detectors that look at single tokens
    least : the smallest p_value that there can be
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
    words: tuple[str, ...]
    tokens: Mapping[str, Tensor]
    least: float

    @property
    def p_alarm(self) -> np.ndarray:
        """What `Alarm.update` takes: the marginal p-values of the texts that can be used, in their order."""
        return self.p_marginal[self.usable]


@dataclass(frozen=True)
class Scorer:
    """A `Scale` with the clean texts that its scores are ranked among.

    calibration : of `Scores.total`; by_depth : of `Scores.worst_depth`
    """

    scale: Scale
    calibration: Calibration
    by_depth: Calibration

    @classmethod
    def of(cls, setting: Setting, detectors: Mapping[str, Detector], adjust: Table, calibrate: Table) -> Scorer:
        """Fitted on two tables of clean texts that have no text in common, nor any with the detectors' own."""
        scale = Scale.of(setting, detectors, adjust)
        scores = scale(calibrate)
        return cls(scale, Calibration(scores.total), Calibration(scores.worst_depth))

    @property
    def setting(self) -> Setting:
        return self.scale.setting

    def check(self, detectors: Mapping[str, Detector]) -> None:
        """Refuse members that were saved otherwise than the setting and the encoder's detectors have them."""
        if [member.name for member in self.scale.members] != [*self.setting.members]:
            name = self.setting.name
            raise BadInput(f"the baseline is damaged: its setting {name!r} is of other detectors; calibrate again")
        for member, detector in zip(self.scale.members, _own(self.setting, detectors), strict=True):
            member.check(detector, self.setting)

    @property
    def texts(self) -> int:
        """The number m of calibration texts."""
        return self.calibration.texts

    @cached_property
    def _steps(self) -> np.ndarray:
        return ladder(self.texts, DELTA)

    def alarm(self, alpha: float = 0.01, delta: float | None = None) -> Alarm:
        """A new alarm for `Judged.p_alarm`."""
        return Alarm(self.texts, alpha, delta)

    def judge(self, table: Table, words: Sequence[str], tokens: Mapping[str, Tensor] | None = None) -> Judged:
        """words : of each member, see `Judged`."""
        usable = table.lengths > 0
        for member in self.scale.members:
            usable &= np.isfinite(table.columns[member.name][:, member.places]).all(axis=1)
        scores = self.scale(table[usable])
        ranks = self.calibration.ranks(scores.total)
        by_depth = self._steps[self.by_depth.ranks(scores.by_depth) - 1]
        return Judged(
            lengths=table.lengths,
            usable=usable,
            score=_spread(scores.total, usable),
            p_marginal=_spread(ranks / (self.texts + 1), usable),
            p_value=_spread(self._steps[ranks - 1], usable),
            by_member=_spread(scores.by_member, usable),
            p_by_depth=_spread(by_depth, usable),
            depths=self.scale.depths,
            names=tuple(member.name for member in self.scale.members),
            words=tuple(words),
            tokens=tokens or {},
            least=float(self._steps[0]),
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        scale = self.scale
        arrays = {f"{m.name}.{k}": a for m in scale.members for k, a in m.to_arrays().items()}
        arrays |= {"surprise": scale.surprise.scores, "calibration": self.calibration.scores}
        if scale.surprise_by_depth is None:
            return arrays
        return arrays | {"surprise_by_depth": scale.surprise_by_depth.scores, "by_depth": self.by_depth.scores}

    def to_dict(self) -> dict[str, Any]:
        """All that is not in the arrays, for JSON."""
        members = {name: None if chosen is None else [*chosen] for name, chosen in self.setting.members.items()}
        return {"setting": members, "members": [member.to_dict() for member in self.scale.members]}

    @classmethod
    def from_arrays(cls, name: str, kept: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Scorer:
        """kept : what `to_dict` gave."""
        chosen = {n: None if places is None else wholes(places, n) for n, places in kept["setting"].items()}
        members = tuple(Member.from_arrays(m, within(arrays, f"{m['name']}.")) for m in kept["members"])
        surprise = Surprise(shaped(arrays, "surprise", (-1, len(members))))
        calibration = Calibration(shaped(arrays, "calibration", (-1,)))
        depths = _all_depths(members)
        if not depths:
            return cls(Scale(Setting(name, chosen), members, surprise, None), calibration, calibration)
        by_depth = Surprise(shaped(arrays, "surprise_by_depth", (-1, len(depths))))
        own = Calibration(shaped(arrays, "by_depth", (calibration.texts,)))
        return cls(Scale(Setting(name, chosen), members, surprise, by_depth), calibration, own)


def _spread(values: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Values of the usable texts at their places among all, NaN elsewhere."""
    found = np.full((len(usable), *values.shape[1:]), np.nan)
    found[usable] = values
    return found
