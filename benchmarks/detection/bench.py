"""Every detector, setting and combination on shifted texts, for one new deal of a domain's clean documents.

Detectors were fitted once (`columns`). A seed deals the other clean documents anew: scales and lengths are fitted on
`adjust`, p-values on `calibrate`, and shifted texts are compared with `test`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from columns import ALL_DEPTHS, SUBSPACES, inside
from measures import aupr, auroc, fpr_at, interval, weights

from metastable.monitor.conformal import Surprise
from metastable.monitor.detectors.base import Detector
from metastable.monitor.exposure import EXPOSURE
from metastable.monitor.scoring import SETTINGS, ColumnTable, Scale, Scorer, Setting, Spoilt

SHARES = {"adjust": 0.25, "calibrate": 0.35, "test": 0.40}
"""Of the documents that no detector was fitted on."""

BATCH, DRAWS = 8, 400
"""Texts in a batch, and batches drawn on each side of a comparison."""

CONTROLS = ("token-count", "unigram-rarity")
SINGLE = (
    *("token-mahalanobis", "place-surprise", "pooled-mahalanobis", "layer-mean-mahalanobis", "nearest-texts"),
    *("concentration", "attention-entropy", "spoilt-probe"),
)
"""Every detector alone; the simple baselines that a setting has to beat are these and the controls."""

_FULL = SETTINGS["full"]
_WITHOUT = tuple(name for name in _FULL.exposed if name != "concentration")
COMBINATIONS = {
    **SETTINGS,
    "light before": Setting.plain("light before", {"pooled-mahalanobis": None, "place-surprise": (1 / 3,)}),
    "full before": Setting.plain("full before", {"token-mahalanobis": None, "place-surprise": None}),
    "full, no classifier": Setting.plain("", _FULL.members),
    "full, classifier alone": Setting("", _FULL.members, _FULL.exposed, {EXPOSURE: 1.0}),
    "full, no concentration": Setting("", _FULL.members, _WITHOUT, _FULL.weights),
}
"""The settings of the library, those that they replace, and parts of the new ones."""

STREAMED = ("light", "full", "light before", "full before")
"""The combinations whose p-values, false alarms and delays are measured."""

ABLATIONS = (ALL_DEPTHS, *(inside(subspace) for subspace in SUBSPACES))

UNADJUSTED = SINGLE
"""Also shown as if all texts had one length."""


def unadjusted(name: str) -> str:
    return f"{name}, lengths ignored"


def dealt(documents: list[str], seed: int) -> dict[str, np.ndarray]:
    """Places of the clean texts in each part, by document."""
    order = sorted(set(documents))
    random.Random(seed).shuffle(order)
    ends = np.cumsum(list(SHARES.values())) * len(order)
    ends[-1] = len(order)
    part_of = {d: list(SHARES)[int(np.searchsorted(ends, place, side="right"))] for place, d in enumerate(order)}
    parts = np.array([part_of[d] for d in documents])
    return {part: np.flatnonzero(parts == part) for part in SHARES}


def of_one_length(table: ColumnTable) -> ColumnTable:
    """The same numbers as if all texts had ten tokens: then nothing is adjusted for length."""
    return ColumnTable(table.columns, np.full_like(table.lengths, 10))


@dataclass(frozen=True)
class Method:
    """A score of texts, and of batches of them.

    scale : fitted on the adjust part; of_batches : the surprise of batches, fitted on batches of that part
    """

    scale: Scale
    of_batches: Surprise
    adjusted: bool = True

    @classmethod
    def of(
        cls,
        setting: Setting,
        detectors: Mapping[str, Detector],
        adjust: ColumnTable,
        spoilt: Spoilt,
        adjusted: bool,
        seed: int,
    ) -> Method:
        own = adjust if adjusted else of_one_length(adjust)
        scale = Scale.of(setting, detectors, own, spoilt)
        drawn = np.random.default_rng(seed).integers(len(adjust), size=(DRAWS, BATCH))
        return cls(scale, Surprise(_batch_numbers(scale, own, drawn)), adjusted)

    def texts(self, table: ColumnTable) -> np.ndarray:
        """(texts,)"""
        return self.scale(table if self.adjusted else of_one_length(table)).total

    def batches(self, table: ColumnTable, drawn: np.ndarray) -> np.ndarray:
        """(draws,), of the texts drawn (draws, 8)."""
        own = table if self.adjusted else of_one_length(table)
        return self.of_batches(_batch_numbers(self.scale, own, drawn)).sum(axis=1)


def _batch_numbers(scale: Scale, table: ColumnTable, drawn: np.ndarray) -> np.ndarray:
    """(draws, terms): what the library's test of windows makes of each batch."""
    return scale.of_windows(scale(table).traits[drawn].mean(axis=1, dtype=np.float64))


@dataclass(frozen=True)
class Clean:
    """The clean texts of a domain that no detector was fitted on, with spoilt copies of them.

    documents : the document of each text; kinds, sources : see `Columns.spoilt`
    """

    table: ColumnTable
    documents: list[str]
    copies: ColumnTable
    kinds: np.ndarray
    sources: np.ndarray

    def deal(self, seed: int) -> tuple[dict[str, ColumnTable], Spoilt]:
        """The parts of a deal, and the spoilt copies of its adjust part."""
        places = dealt(self.documents, seed)
        own = np.isin(self.sources, places["adjust"])
        return {part: self.table[at] for part, at in places.items()}, Spoilt(self.copies[own], self.kinds[own])

    def calibrated(self, seed: int) -> np.ndarray:
        """The documents of the calibrate part of a deal."""
        return np.array(self.documents)[dealt(self.documents, seed)["calibrate"]]


def scorer(
    setting: Setting,
    detectors: Mapping[str, Detector],
    adjust: ColumnTable,
    spoilt: Spoilt,
    calibrate: ColumnTable,
    documents: np.ndarray | None = None,
) -> Scorer:
    """Fitted on two tables of clean texts that have no text in common, nor any with the detectors' own.

    documents : of the texts of `calibrate`; None if every text is its own
    """
    return Scorer.of(Scale.of(setting, detectors, adjust, spoilt), calibrate, documents)


class Bench:
    """All methods of one seed."""

    def __init__(self, clean: Clean, detectors: Mapping[str, Detector], seed: int) -> None:
        self.seed = seed
        self.parts, spoilt = clean.deal(seed)
        adjust = self.parts["adjust"]
        wanted = [*SINGLE, *CONTROLS, *(name for name in ABLATIONS if name in detectors)]
        settings = {name: Setting.plain(name, {name: None}) for name in wanted} | COMBINATIONS
        # A count of tokens that is adjusted for their count says nothing.
        self.methods = {
            name: Method.of(s, detectors, adjust, spoilt, name != "token-count", seed) for name, s in settings.items()
        }
        for name in UNADJUSTED:
            self.methods[unadjusted(name)] = Method.of(settings[name], detectors, adjust, spoilt, False, seed)
        self.scorers = {
            name: scorer(COMBINATIONS[name], detectors, adjust, spoilt, self.parts["calibrate"], clean.calibrated(seed))
            for name in STREAMED
        }
        self._of_clean = {name: method.texts(self.parts["test"]) for name, method in self.methods.items()}

    def judge(self, table: ColumnTable) -> dict[str, dict[str, float]]:
        """Every method's numbers on one shift, in percent."""
        clean = self.parts["test"]
        weight, usable = weights(clean.lengths, table.lengths)
        chance = np.random.default_rng(self.seed)
        from_clean = chance.choice(len(clean), size=(DRAWS, BATCH), p=weight / weight.sum())
        from_shifted = chance.choice(np.flatnonzero(usable), size=(DRAWS, BATCH))
        found = {}
        for name, method in self.methods.items():
            c, s = self._of_clean[name], method.texts(table)
            low, high = interval(c, s[usable], weight, self.seed)
            numbers = {
                "matched": auroc(c, s[usable], weight),
                "low": low,
                "high": high,
                "raw": auroc(c, s),
                "aupr": aupr(c, s[usable], weight),
                "fpr95": fpr_at(c, s[usable], weight),
                "batch": auroc(method.batches(clean, from_clean), method.batches(table, from_shifted)),
            }
            found[name] = {key: 100 * value for key, value in numbers.items()}
        return found

    def covered(self, table: ColumnTable) -> float:
        """The percentage of shifted texts that have clean ones of their length."""
        return 100 * float(weights(self.parts["test"].lengths, table.lengths)[1].mean())

    def caught(self, table: ColumnTable, alpha: float = 0.01) -> dict[str, dict[str, float]]:
        """By setting: the percentage of texts with a p-value of at most α, and where it began, as the library says.

        first : by depth, the percentage of texts for which it is the first with a corrected p-value ≤ α
        """
        found: dict[str, dict[str, float]] = {}
        for name, scorer in self.scorers.items():
            judged = scorer.assess(table)
            small = judged.p_by_depth <= alpha
            first = np.where(small.any(axis=1), small.argmax(axis=1), -1)
            found[name] = {
                "conditional": 100 * float((judged.p_value <= alpha).mean()),
                "marginal": 100 * float((judged.p_marginal <= alpha).mean()),
                **{f"depth {d}": 100 * float((first == place).mean()) for place, d in enumerate(judged.depths)},
            }
        return found

    def by_length(self, alpha: float = 0.01) -> dict[str, dict[str, float]]:
        """By setting: the percentage of clean test texts with a marginal p-value of at most α, by length."""
        clean = self.parts["test"]
        low, high = np.quantile(clean.lengths, [0.1, 0.9])
        classes = {
            "shortest tenth": clean.lengths <= low,
            "middle": (clean.lengths > low) & (clean.lengths < high),
            "longest tenth": clean.lengths >= high,
        }
        found = {}
        for name, scorer in self.scorers.items():
            small = scorer.assess(clean).p_marginal <= alpha
            found[name] = {words: 100 * float(small[own].mean()) for words, own in classes.items()}
        return found
