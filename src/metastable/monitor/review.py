"""Reviewed texts: what it changes to accept them as clean, and the baseline with them.

A monitor raises an alarm when the stream changes. If people look at the new texts and find them in order, these texts
can be accepted: their scores join the calibration scores. Detectors and scales stay as they were fitted.

**The promise.** The score is a fixed function of a text, fitted on other texts. So with m calibration texts of law P
and r accepted texts of law Q, the clean law is now the mixture (m P + r Q)/(m + r). P-values are exact for a new text
that is exchangeable with all m + r texts: if the share r/(m + r) came about by chance, as in a random sample of the
mixture. If m and r were chosen, then for a new text of the mixture, with n = m + r,

    P(rank ≤ j) = (m/n) E[a]/(m + 1) + (r/n) E[b]/(r + 1) ≤ (j + 2)/n.

Here a counts the texts of law P among the first j of m + 1 texts of law P and r of law Q, and b the texts of law Q
among the first j of m texts of law P and r + 1 of law Q: the new text is each of its kind with equal probability.
Without the new text, the numbers of both kinds among the first j add up to j, and the new text adds at most 1 to a and
to b. So at most about two ranks are lost. The promise of the alarm is for the mixture in the same sense.

**What this needs.** The accepted texts are drawn like the new clean texts. If only texts that the monitor found strange
are accepted, strange texts are over-represented, and the monitor misses more. If accepted texts are stranger than the
others, a stream with a larger share of them than r/(m + r) gets p-values that are too small, and a stream without them
p-values that are too large.

**Documents.** All accepted texts go to the calibration texts, so a new document is never split. Texts of a document
that detectors or scales were fitted on are left out: they are less anomalous than texts of a new document. Texts of one
document are alike, so an accepted document that makes up a large share of the calibration texts is warned of.

Only hashes of accepted texts are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from metastable.arrays import whole
from metastable.encoder.hooks import Passage, Reader, Watch
from metastable.encoder.load import Encoder
from metastable.encoder.texts import TextCounts, batches, blank, unusable
from metastable.errors import BadInput
from metastable.monitor import passes
from metastable.monitor.baseline import NO_TOKEN, Baseline
from metastable.monitor.scoring import ColumnTable, Scorer
from metastable.monitor.split import DOCUMENTS, digest, labelled, short_digest

# The level at which thresholds and strange texts are compared.
ALPHA = 0.01
# Above this share of accepted texts among the calibration texts, detectors and scales no longer fit the clean texts.
LARGEST_SHARE = 0.5

OF_FITTED = "of a document that the detectors were fitted on"
NOT_FINITE = "with hidden states that are not finite"


@dataclass(frozen=True)
class Effect:
    """What acceptance changes in one setting, at level `ALPHA`.

    threshold_before, threshold_after : texts with a higher score are strange; None if no text can be
    highest_before : the highest calibration score before
    strange_before, strange_after : how many of the reviewed texts are strange
    """

    threshold_before: float | None
    threshold_after: float | None
    highest_before: float
    strange_before: int
    strange_after: int

    @property
    def blind(self) -> bool:
        """Whether a text must be stranger than all calibration texts of before to be called strange afterwards."""
        return self.threshold_after is None or self.threshold_after > self.highest_before


@dataclass(frozen=True, eq=False)
class Review:
    """Reviewed texts before they are accepted.

    baseline : the baseline as it is
    digests : of the texts that would be accepted
    repeated : texts that the baseline knows, or that occur twice among the reviewed ones; they are left out
    left_out : texts that cannot be used, by reason
    documents : the documents of the texts that would be accepted, a text without a label being one; None without labels
    largest : the most texts of one of these documents
    before, after : the number of calibration texts
    effects : by setting
    """

    baseline: Baseline
    digests: tuple[str, ...]
    repeated: int
    left_out: dict[str, int]
    documents: int | None
    largest: int
    before: int
    after: int
    effects: dict[str, Effect]
    table: ColumnTable

    @classmethod
    def of(
        cls,
        baseline: Baseline,
        encoder: Encoder,
        texts: Iterable[str],
        documents: Iterable[Any] | None,
        batch_size: int,
        progress: Callable[[int, int], None] | None,
    ) -> Review:
        whole(batch_size, "batch_size", 1, "it must be at least 1")
        known = {one for entry in baseline.accepted for one in entry["sha256"]}
        own_texts, fitted = set(baseline.known.tolist()), set(baseline.fitted.tolist())
        fresh: dict[str, str] = {}
        labels: dict[str, Any] = {}
        left_out: Counter[str] = Counter()
        given = repeated = 0
        for text, label in labelled(texts, documents):
            given += 1
            if reason := "blank" if blank(text) else unusable(text):
                left_out[reason.partition(";")[0]] += 1
            elif (own := digest(text)) in known or own in fresh or short_digest(text) in own_texts:
                repeated += 1
            elif label is not None and short_digest(str(label)) in fitted:
                left_out[OF_FITTED] += 1
            else:
                fresh[own], labels[own] = text, label
        table, rows = _columns(baseline, encoder, list(fresh.values()), batch_size, progress)
        left_out[NO_TOKEN] += len(fresh) - len(rows)
        usable = np.ones(len(rows), dtype=bool)
        for scorer in baseline.settings.values():
            usable &= scorer.usable(table)
        left_out[NOT_FINITE] += int((~usable).sum())
        table, digests = table[usable], [list(fresh)[row] for row in rows[usable]]
        left_out = +left_out
        if not digests:
            why = f"{repeated} are known to the baseline or occur twice, {left_out.total()} cannot be used"
            raise BadInput(f"there is no text to accept: of {given} texts, {why}; give reviewed texts that are new")
        before = next(iter(baseline.settings.values())).texts
        effects = {name: _effect(scorer, table) for name, scorer in baseline.settings.items()}
        of_document = Counter(own if labels[own] is None else str(labels[own]) for own in digests)
        count = None if all(label is None for label in labels.values()) else len(of_document)
        return cls(
            *(baseline, tuple(sorted(digests)), repeated, dict(left_out), count, max(of_document.values())),
            *(before, before + len(digests), effects, table),
        )

    @property
    def texts(self) -> int:
        """The number of texts that would be accepted."""
        return len(self.digests)

    @property
    def share(self) -> float:
        """The share of all accepted texts, with these, among the calibration texts."""
        return (sum(entry["texts"] for entry in self.baseline.accepted) + self.texts) / self.after

    @property
    def warnings(self) -> list[str]:
        """Reasons not to accept the texts, in words."""
        found = []
        if blind := [name for name, effect in self.effects.items() if effect.blind]:
            where = f"setting{'s' if len(blind) > 1 else ''} {' and '.join(blind)}"
            found.append(
                f"in the {where}, a text is then strange only if it is stranger than all present "
                "calibration texts and than most of these: the monitor is nearly blind to such texts; accept fewer "
                "strange texts, or calibrate again with many more"
            )
        if self.share > LARGEST_SHARE:
            found.append(
                f"{self.share:.0%} of the calibration texts are accepted ones, and the detectors were fitted on other "
                "texts; calibrate again with both kinds of texts"
            )
        if self.largest * DOCUMENTS > self.after:
            found.append(
                f"one document has {self.largest} of the {self.after} calibration texts; texts of one document are "
                "alike, so p-values are off by up to its share; accept texts of more documents, and fewer of each"
            )
        return found

    def accepted(self, by: str | None = None) -> Baseline:
        """The baseline with these texts among its calibration texts. by : who accepted them, for the record"""
        check_name(by)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        counts = {"texts": self.texts, "documents": self.documents}
        entry = {"when": now, "by": by, **counts, "sha256": list(self.digests), "warnings": self.warnings}
        own = self.baseline
        settings = {name: scorer.extended(self.table) for name, scorer in own.settings.items()}
        found = replace(own, settings=settings, accepted=(*own.accepted, entry))
        found._detectors = own._detectors
        return found

    def to_dict(self) -> dict[str, Any]:
        """The effect for JSON."""
        return {
            "texts": self.texts,
            "documents": self.documents,
            "repeated": self.repeated,
            "left_out": self.left_out,
            "calibration_texts": {"before": self.before, "after": self.after},
            "accepted_share": self.share,
            "alpha": ALPHA,
            "settings": {name: asdict(effect) | {"blind": effect.blind} for name, effect in self.effects.items()},
            "warnings": self.warnings,
        }


def check_name(by: str | None) -> None:
    if by is not None and (not isinstance(by, str) or blank(by) or unusable(by) or not by.isprintable()):
        raise BadInput(f"by is {by!r}; give a name on one line")


def _effect(scorer: Scorer, table: ColumnTable) -> Effect:
    after = scorer.extended(table)
    return Effect(
        scorer.threshold(ALPHA),
        after.threshold(ALPHA),
        float(scorer.calibration.scores[-1]),
        *(int((own.assess(table).p_value <= ALPHA).sum()) for own in (scorer, after)),
    )


def _columns(
    baseline: Baseline,
    encoder: Encoder,
    texts: list[str],
    batch_size: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[ColumnTable, np.ndarray]:
    """The columns of the texts that have a token of their own, and the places of these texts."""
    detectors, own, counts = baseline.detectors, encoder.private(), TextCounts()
    tables: list[ColumnTable] = []
    rows: list[int] = []

    def open(passage: Passage) -> Watch:
        return passes.reading(detectors, passage, lambda table, tokens: tables.append(table))

    depths, projected = passes.depths(detectors.values()), passes.projected(detectors.values())
    with Reader(own.model, own.anatomy, baseline.special, depths, open, projected=projected):
        for batch in batches(encoder.reads_text(), texts, own.limit, batch_size, counts):
            own.run(batch.inputs)
            rows += batch.numbers.tolist()
            if progress is not None:
                progress(len(rows), len(texts))
    counts.check_known()
    if not tables:
        empty = {name: np.empty((0, len(detector.columns))) for name, detector in detectors.items()}
        return ColumnTable(empty, np.empty(0, dtype=np.int64)), np.empty(0, dtype=np.int64)
    return ColumnTable.joined(tables), np.array(rows)
