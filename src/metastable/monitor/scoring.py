"""From detectors' columns to p-values: one scale for all columns, one number per detector, one score per text.

    columns ─► z by column (`Adjustment`) ─┬► a number per detector, adjusted ─┬► `Surprise` ─► weighted sum ─┐
                                           └► `Exposure`, adjusted ────────────┘                              │
                                           └► mean z by depth ─► `Surprise` ─► `worst` ─► p by depth          │
                                                                 p ◄─ rank ◄─ `TailAdjustment` ◄───────────────┘

Everything up to the score is fitted on the "adjust" part of the clean texts (`Scale`) and is then a fixed function of a
text. Only p-values use the "calibrate" part (`Scorer`). So p-values are exact for a clean text that is exchangeable
with the calibration texts, whatever the detectors are and however badly they were fitted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metastable.arrays import whole
from metastable.errors import BadInput
from metastable.monitor.alarm import checked_worth, worth, worth_of_means
from metastable.monitor.conformal import Calibration, Surprise, ladder, worst
from metastable.monitor.detectors.base import Detector
from metastable.monitor.exposure import EXPOSURE, Exposure
from metastable.monitor.length_adjustment import Adjustment, TailAdjustment, shaped
from metastable.monitor.moments import Moments, blended, whitening
from metastable.monitor.split import DELTA

# Most texts that a `Surprise` is fitted on. It is a curve: more points cost time per text and gain nothing.
SURPRISED = 2000
# The rule for saved numbers of columns and depths.
WHOLE = "it must be a whole number, 0 or more"


@dataclass(frozen=True)
class Setting:
    """Which detectors are used together.

    members : by the name of a detector, which of its depths: those nearest to these shares of the encoder's layers;
        None for all columns
    exposed : the detectors whose columns the classifier of spoilt texts sees; () for no classifier
    weights : of the surprises in the sum, by the name of a detector or `EXPOSURE`; others have no weight, and only
        explain or serve the classifier
    """

    name: str
    members: Mapping[str, tuple[float, ...] | None]
    exposed: tuple[str, ...]
    weights: Mapping[str, float]

    @classmethod
    def plain(cls, name: str, members: Mapping[str, tuple[float, ...] | None]) -> Setting:
        """Fisher's sum over all members, without a classifier."""
        return cls(name, members, (), dict.fromkeys(members, 1.0))

    def only(self, names: Collection[str]) -> Setting:
        """The setting with no other detectors than these."""
        members = {name: depths for name, depths in self.members.items() if name in names}
        weights = {name: weight for name, weight in self.weights.items() if name in members or name == EXPOSURE}
        return Setting(self.name, members, tuple(name for name in self.exposed if name in members), weights)

    @property
    def terms(self) -> tuple[str, ...]:
        """What has a surprise: the members, then the classifier if there is one."""
        return (*self.members, EXPOSURE) if self.exposed else (*self.members,)

    def places(self, detector: Detector) -> tuple[int, ...]:
        """Which of a detector's columns are used: those whose depths are all chosen."""
        chosen = self.members[detector.name]
        if chosen is None:
            return tuple(range(len(detector.columns)))
        depths = {min(detector.depths, key=lambda d: abs(d - share * detector.layers)) for share in chosen}
        return tuple(i for i, c in enumerate(detector.columns) if {c.depth, c.since} <= {*depths, None})

    def depths(self, detector: Detector) -> tuple[int | None, ...]:
        """The depth of each of these columns; None for the text as a whole."""
        return tuple(detector.columns[place].depth for place in self.places(detector))

    def visits(self, detector: Detector) -> tuple[int, ...]:
        """Where the detector has to read tokens for these columns: at all its depths if one is of the whole text."""
        columns = [detector.columns[place] for place in self.places(detector)]
        if any(column.depth is None for column in columns):
            return tuple(detector.depths)
        return tuple(sorted({depth for c in columns for depth in (c.depth, c.since) if depth is not None}))


# The settings by name. They were chosen on the development shifts of benchmarks/detection and are reported on others.
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "light",
            {
                "pooled-mahalanobis": (0, 1 / 3, 2 / 3),
                "place-surprise": (1 / 3,),
                "nearest-texts": None,
                "concentration": (0, 1 / 2),
                "spoilt-probe": None,
            },
            ("pooled-mahalanobis", "place-surprise", "concentration", "spoilt-probe"),
            {EXPOSURE: 2.0, "pooled-mahalanobis": 1.0, "nearest-texts": 1.5, "spoilt-probe": 1.0},
        ),
        Setting(
            "full",
            {
                "token-mahalanobis": None,
                "place-surprise": None,
                "nearest-texts": None,
                "concentration": (0, 1 / 3, 2 / 3, 1),
                "attention-entropy": None,
                "spoilt-probe": None,
            },
            ("token-mahalanobis", "place-surprise", "concentration", "attention-entropy", "spoilt-probe"),
            {EXPOSURE: 2.0, "token-mahalanobis": 1.5, "nearest-texts": 1.5, "spoilt-probe": 1.0},
        ),
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
class Vector:
    """log |W(z − μ)|²/k of a vector z of k numbers, W C Wᵀ = I with C their covariance, shrunk: unusual in any way.

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
    """Turns one detector's columns into one number per text, adjusted for length again.

    The number is the mean of the adjusted columns, or of a two-sided detector the `Vector` of them. The second
    adjustment is needed because the spread of the number depends on the correlation of its columns, and that depends on
    length.

    places : which of the detector's columns
    depths : where each of these columns is read; None for the text as a whole
    vector : None unless the detector is two-sided
    """

    name: str
    places: tuple[int, ...]
    depths: tuple[int | None, ...]
    first: Adjustment
    second: Adjustment
    vector: Vector | None = None

    @classmethod
    def of(cls, detector: Detector, places: tuple[int, ...], columns: np.ndarray, lengths: np.ndarray) -> Member:
        first = Adjustment.of(columns[:, places], lengths)
        z = first(columns[:, places], lengths)
        vector = Vector.of(z) if detector.two_sided else None
        number = z.mean(axis=1) if vector is None else vector(z)
        depths = tuple(detector.columns[place].depth for place in places)
        return cls(detector.name, places, depths, first, Adjustment.of(number[:, None], lengths), vector)

    def number(self, z: np.ndarray) -> np.ndarray:
        """One number per text, (texts,), from adjusted columns (texts, k)."""
        return z.mean(axis=1) if self.vector is None else self.vector(z)

    def anomaly(self, z: np.ndarray) -> np.ndarray:
        """How anomalous each of the adjusted columns is, (texts, k)."""
        return z if self.vector is None else np.abs(z)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the arrays, for JSON."""
        return {"name": self.name, "places": list(self.places), "depths": list(self.depths)}

    def to_arrays(self) -> dict[str, np.ndarray]:
        found = {f"first.{name}": array for name, array in vars(self.first).items()}
        found |= {f"second.{name}": array for name, array in vars(self.second).items()}
        return found if self.vector is None else found | {f"vector.{n}": a for n, a in vars(self.vector).items()}

    @classmethod
    def from_arrays(cls, kept: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Member:
        """kept : what `to_dict` gave; arrays : what `to_arrays` gave"""
        name, places = str(kept["name"]), wholes(kept["places"], "places")
        depths = tuple(None if depth is None else whole(depth, "depths", 0, WHOLE) for depth in kept["depths"])
        first = Adjustment.from_arrays(within(arrays, "first."), len(places))
        second = Adjustment.from_arrays(within(arrays, "second."), 1)
        vector = None
        if own := within(arrays, "vector."):
            vector = Vector(shaped(own, "white", (len(places), len(places))), shaped(own, "mean", (len(places),)))
        return cls(name, places, depths, first, second, vector)


def wholes(values: Iterable[Any], name: str) -> tuple[int, ...]:
    """Saved whole numbers, 0 or more."""
    return tuple(whole(value, name, 0, WHOLE) for value in values)


def within(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin with the prefix, without the prefix."""
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class Scores:
    """Scores of texts before p-values.

    total : (texts,), the weighted sum of surprises, adjusted for length: see `TailAdjustment`
    by_term : (texts, terms), the surprise of each detector and of the classifier
    by_depth : (texts, depths), the surprise of each depth
    kinds : (texts,), the kind of spoilt text that each is most like; None without a classifier
    traits : (texts, k), what is averaged over the texts of a window, see `Scale.of_windows`
    """

    total: np.ndarray
    by_term: np.ndarray
    by_depth: np.ndarray
    kinds: np.ndarray | None
    traits: np.ndarray

    @property
    def worst_depth(self) -> np.ndarray:
        return worst(self.by_depth) if self.by_depth.shape[1] else self.total


@dataclass(frozen=True)
class Spoilt:
    """Columns of spoilt copies of clean texts, and the number of each copy's kind in `spoiling.KINDS`."""

    table: ColumnTable
    kinds: np.ndarray


@dataclass(frozen=True)
class Scale:
    """A fixed function from a text's columns to its score, fitted on the "adjust" part; see the module's docstring.

    exposure, exposed : the classifier of spoilt texts and the adjustment of its log-odds; None without one
    surprise_by_depth : None if no column belongs to a depth
    tail : of the weighted sum
    """

    setting: Setting
    members: tuple[Member, ...]
    exposure: Exposure | None
    exposed: Adjustment | None
    surprise: Surprise
    surprise_by_depth: Surprise | None
    tail: TailAdjustment

    @classmethod
    def of(
        cls, setting: Setting, detectors: Mapping[str, Detector], adjust: ColumnTable, spoilt: Spoilt | None = None
    ) -> Scale:
        """spoilt : copies of the texts of `adjust`, for a setting with a classifier"""
        if absent := [name for name in setting.members if name not in detectors]:
            raise BadInput(f"the setting {setting.name!r} needs the detector {absent[0]!r}, which is not there")
        members = tuple(
            Member.of(d, setting.places(d), adjust.columns[d.name], adjust.lengths)
            for d in (detectors[name] for name in setting.members)
        )
        exposure = exposed = None
        z = _adjusted(members, adjust)
        if setting.exposed:
            assert spoilt is not None, "a setting with a classifier needs spoilt copies"
            copies = _adjusted(members, spoilt.table)
            exposure = Exposure.of(_joined(z, setting), _joined(copies, setting), spoilt.kinds)
            exposed = Adjustment.of(exposure(_joined(z, setting))[:, None], adjust.lengths)
        terms = _second(members, exposed)(_numbers(setting, members, exposure, z), adjust.lengths)
        some = np.unique(np.linspace(0, len(adjust) - 1, min(len(adjust), SURPRISED)).astype(int))
        by_depth = _by_depth(members, {name: own[some] for name, own in z.items()})
        surprise = Surprise(terms[some])
        return cls(
            setting,
            members,
            exposure,
            exposed,
            surprise,
            Surprise(by_depth) if by_depth.shape[1] else None,
            TailAdjustment.of(surprise(terms) @ _weights(setting), adjust.lengths),
        )

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Where any of the columns is read, in order."""
        return _all_depths(self.members)

    @cached_property
    def _adjustments(self) -> tuple[Adjustment, Adjustment]:
        """Of all columns, and of the numbers of all terms."""
        return _first(self.members), _second(self.members, self.exposed)

    def __call__(self, table: ColumnTable) -> Scores:
        first, second = self._adjustments
        z = _adjusted(self.members, table, first)
        numbers = _numbers(self.setting, self.members, self.exposure, z)
        surprises = self.surprise(second(numbers, table.lengths))
        by_depth = _by_depth(self.members, z)
        if self.surprise_by_depth is not None:
            by_depth = self.surprise_by_depth(by_depth)
        total = self.tail(surprises @ _weights(self.setting), table.lengths)
        kinds = None if self.exposure is None else self.exposure.kinds(_joined(z, self.setting))
        own = [z[member.name] for member in self.members]
        traits = np.concatenate(own if self.exposure is None else [*own, numbers[:, -1:]], axis=1)
        return Scores(total, surprises, by_depth, kinds, traits.astype(np.float32))

    @property
    def traits(self) -> int:
        """k, the number of traits of a text."""
        return sum(len(member.places) for member in self.members) + (self.exposure is not None)

    def of_windows(self, means: np.ndarray) -> np.ndarray:
        """The number of each term, (windows, terms), from the mean traits of the texts of each window, (windows, k).

        The traits are the adjusted columns and the log-odds of the classifier. A detector makes one number of its mean
        columns as it does of the columns of a text, so what is a little unusual in all texts of a window adds up.
        """
        edges = [0, *accumulate(len(member.places) for member in self.members)]
        parts = zip(self.members, pairwise(edges), strict=True)
        found = [member.number(means[:, a:b]) for member, (a, b) in parts]
        return np.stack(found if self.exposure is None else [*found, means[:, -1]], axis=1)


def _weights(setting: Setting) -> np.ndarray:
    return np.array([setting.weights.get(term, 0.0) for term in setting.terms])


def _joined(z: Mapping[str, np.ndarray], setting: Setting) -> np.ndarray:
    """The columns that the classifier sees, (texts, columns)."""
    return np.concatenate([z[name] for name in setting.exposed], axis=1)


def _first(members: Sequence[Member]) -> Adjustment:
    """The first adjustment of all members, of their columns side by side."""
    return Adjustment.joined([member.first for member in members])


def _second(members: Sequence[Member], exposed: Adjustment | None) -> Adjustment:
    """The adjustment of the numbers of all terms."""
    own = [member.second for member in members]
    return Adjustment.joined(own if exposed is None else [*own, exposed])


def _adjusted(members: Sequence[Member], table: ColumnTable, first: Adjustment | None = None) -> dict[str, np.ndarray]:
    """The adjusted columns of each member, (texts, k) by its name; all members at once, which takes fewer calls."""
    columns = np.concatenate([table.columns[member.name][:, member.places] for member in members], axis=1)
    z = (first or _first(members))(columns, table.lengths)
    edges = [0, *accumulate(len(member.places) for member in members)]
    return {member.name: z[:, a:b] for member, (a, b) in zip(members, pairwise(edges), strict=True)}


def _numbers(
    setting: Setting, members: Sequence[Member], exposure: Exposure | None, z: Mapping[str, np.ndarray]
) -> np.ndarray:
    """The number of each term of the setting, (texts, terms), before its adjustment."""
    found = [member.number(z[member.name]) for member in members]
    if exposure is not None:
        found.append(exposure(_joined(z, setting)))
    return np.stack(found, axis=1)


def _all_depths(members: Sequence[Member]) -> tuple[int, ...]:
    return tuple(sorted({depth for member in members for depth in member.depths if depth is not None}))


def _by_depth(members: Sequence[Member], z: Mapping[str, np.ndarray]) -> np.ndarray:
    """The mean anomaly of all columns at each depth, (texts, depths)."""
    at = np.array([-1 if depth is None else depth for member in members for depth in member.depths])
    anomaly = np.concatenate([member.anomaly(z[member.name]) for member in members], axis=1)
    here = at[:, None] == np.array(_all_depths(members), dtype=int)
    return np.asarray(anomaly @ (here / here.sum(axis=0)))


@dataclass(frozen=True)
class Assessment:
    """Scores and p-values of the texts of one passage. Higher scores and smaller p-values are more anomalous.

    lengths : (texts,), the number of tokens of each text
    usable : (texts,) of bool; False for texts without a token of their own, or with numbers that are not finite. All
        numbers of these texts are NaN.
    score : (texts,)
    p_marginal, p_value : (texts,), of the score; p_value is calibration-conditional at δ = 0.1, see `conformal`
    by_term : (texts, terms), the surprise of each detector and of the classifier of spoilt texts
    kinds : (texts,), the kind of spoilt text that each is most like, as its number in `spoiling.KINDS`; None without a
        classifier
    p_by_depth : (texts, depths), calibration-conditional, corrected for the number of depths
    depths : the depths of `p_by_depth`
    names : the names of the terms
    tokens : by detector, (texts, n), the anomaly of each token; only for detectors that look at single tokens
    least : the smallest possible p_value
    usual : the fewest and the most tokens of 99 % of the clean texts, see `TailAdjustment.usual`
    traits : (texts, k), see `Scale.of_windows`
    """

    lengths: np.ndarray
    usable: np.ndarray
    score: np.ndarray
    p_marginal: np.ndarray
    p_value: np.ndarray
    by_term: np.ndarray
    kinds: np.ndarray | None
    p_by_depth: np.ndarray
    depths: tuple[int, ...]
    names: tuple[str, ...]
    tokens: Mapping[str, Tensor]
    least: float
    usual: tuple[int, int]
    traits: np.ndarray


@dataclass(frozen=True)
class Scorer:
    """A `Scale` and the scores of the clean texts that new scores are ranked among.

    calibration : of `Scores.total`; by_depth : of `Scores.worst_depth`
    traits : (m, k), of the calibration texts
    independent : how many independent texts the calibration texts are worth, see `alarm.worth`
    independent_traits : the same for means of traits, see `alarm.worth_of_means`
    """

    scale: Scale
    calibration: Calibration
    by_depth: Calibration
    traits: np.ndarray
    independent: float
    independent_traits: float

    @classmethod
    def of(cls, scale: Scale, table: ColumnTable, documents: np.ndarray | None = None) -> Scorer:
        """Calibrated on a table of clean texts.

        documents : (texts,), the label of each one's document; None if every text is its own
        """
        scores = scale(table)
        documents = np.arange(len(table)) if documents is None else documents
        total, by_depth = Calibration(scores.total), Calibration(scores.worst_depth)
        own = worth(scores.total, documents), worth_of_means(scores.traits.astype(np.float64), documents)
        return cls(scale, total, by_depth, scores.traits, *own)

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

    @property
    def independent_words(self) -> str:
        """How many independent texts the calibration texts are worth, as a sentence."""
        if self.independent >= self.texts - 0.5:
            return f"texts of one document are no more alike than others, so all {self.texts} calibration texts count"
        return (
            f"texts of one document are alike, so the alarm counts the {self.texts} calibration texts as "
            f"{self.independent:.0f} independent ones"
        )

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
        total = Calibration(np.concatenate([self.calibration.scores, scores.total]))
        by_depth = Calibration(np.concatenate([self.by_depth.scores, scores.worst_depth]))
        traits = np.concatenate([self.traits, scores.traits])
        # Texts without a known spread over documents count as the present ones do.
        own = (worth * total.texts / self.texts for worth in (self.independent, self.independent_traits))
        return Scorer(self.scale, total, by_depth, traits, *own)

    def assess(self, table: ColumnTable, tokens: Mapping[str, Tensor] | None = None) -> Assessment:
        usable = self.usable(table)
        scores = self.scale(table if usable.all() else table[usable])
        ranks = self.calibration.ranks(scores.total)
        by_depth = self.ladder[self.by_depth.ranks(scores.by_depth) - 1]
        return Assessment(
            lengths=table.lengths,
            usable=usable,
            score=_spread(scores.total, usable),
            p_marginal=_spread(ranks / (self.texts + 1), usable),
            p_value=_spread(self.ladder[ranks - 1], usable),
            by_term=_spread(scores.by_term, usable),
            kinds=None if scores.kinds is None else _spread(scores.kinds.astype(np.float64), usable),
            p_by_depth=_spread(by_depth, usable),
            depths=self.scale.depths,
            names=self.setting.terms,
            tokens=tokens or {},
            least=self.least,
            usual=self.scale.tail.usual,
            traits=_spread(scores.traits, usable),
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        scale = self.scale
        assert scale.surprise_by_depth is not None, "the columns of the library's settings belong to depths"
        arrays = {"surprise": scale.surprise.scores, "surprise_by_depth": scale.surprise_by_depth.scores}
        arrays |= {"calibration": self.calibration.scores, "by_depth": self.by_depth.scores, "traits": self.traits}
        parts = {f"member.{member.name}": member.to_arrays() for member in scale.members}
        parts["tail"] = vars(scale.tail)
        if scale.exposure is not None and scale.exposed is not None:
            parts |= {"exposure": vars(scale.exposure), "exposed": vars(scale.exposed)}
        return arrays | {f"{part}.{name}": array for part, own in parts.items() for name, array in own.items()}

    def to_dict(self) -> dict[str, Any]:
        """Everything that is not in the arrays, for JSON."""
        worths = {"independent": self.independent, "independent_traits": self.independent_traits}
        return {"members": [member.to_dict() for member in self.scale.members], **worths}

    @classmethod
    def from_arrays(cls, setting: Setting, kept: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Scorer:
        """kept : what `to_dict` gave."""
        members = tuple(Member.from_arrays(m, within(arrays, f"member.{m['name']}.")) for m in kept["members"])
        exposure = exposed = None
        if setting.exposed:
            columns = sum(len(member.places) for member in members if member.name in setting.exposed)
            exposure = Exposure.from_arrays(within(arrays, "exposure."), columns)
            exposed = Adjustment.from_arrays(within(arrays, "exposed."), 1)
        surprise = Surprise(shaped(arrays, "surprise", (-1, len(setting.terms))))
        by_depth = Surprise(shaped(arrays, "surprise_by_depth", (-1, len(_all_depths(members)))))
        tail = TailAdjustment.from_arrays(within(arrays, "tail."))
        calibration = Calibration(shaped(arrays, "calibration", (-1,)))
        own = Calibration(shaped(arrays, "by_depth", (calibration.texts,)))
        scale = Scale(setting, members, exposure, exposed, surprise, by_depth, tail)
        traits = shaped(arrays, "traits", (calibration.texts, scale.traits))
        worths = (checked_worth(kept[name], calibration.texts) for name in ("independent", "independent_traits"))
        return cls(scale, calibration, own, traits, *worths)


def _spread(values: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Values of the usable texts at their places among all texts; NaN elsewhere."""
    found = np.full((len(usable), *values.shape[1:]), np.nan)
    found[usable] = values
    return found
