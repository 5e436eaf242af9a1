"""The monitor on encoders and texts that none of its settings was chosen on, through the library's own calls alone.

    python benchmarks/monitor_elsewhere.py

For each encoder and two random splits by document: a baseline of clean texts; the share of held-out clean texts with
p ≤ 0.01 and p ≤ 0.05, also by length; the AUROC of texts of other kinds, with lengths as they are; and alarms in clean
streams, which are the held-out clean texts in random orders, in four slices, with restarts. Orders of one split share
their calibration set and their texts, so they are not independent.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import packaged_texts as texts
from detection import perturbations as worse
from measure import record
from packaged_encoders import chinese, fine_tuned, reactions

from metastable.encoder.load import Encoder, load
from metastable.monitor.baseline import Baseline
from metastable.monitor.examiner import Examiner
from metastable.monitor.monitor import Monitor
from metastable.monitor.record import Record

SPLITS, ORDERS = 2, 50
FITTED, HELD_OUT, SHIFTED = 3000, 1500, 300
RESET, SLICES = 100, (0.6, 0.25, 0.1, 0.05)
"""Texts after an alarm until the evidence starts again; the shares of the slices of a clean stream."""

Document = list[str]


@dataclass(frozen=True)
class Case:
    """An encoder with clean documents, texts of other kinds, and ways to make clean texts worse."""

    encoder: str
    corpus: str
    load: Callable[[], str]
    clean: Callable[[], list[Document]]
    shifts: dict[str, Callable[[], Iterable[str]]]
    changes: dict[str, Callable[[list[str]], list[str]]]


def sentences(documents: Iterable[str], least: int = 25, most: int = 400) -> list[Document]:
    """Documents as their sentences of 25 to 400 characters."""
    found = []
    for document in documents:
        own = [" ".join(s.split()) for s in re.split(r"(?<=[.!?])\s+", document)]
        found.append([s for s in own if least <= len(s) <= most])
    return found


def clauses(documents: Iterable[str]) -> list[Document]:
    """Chinese documents as their sentences of 8 to 133 characters."""
    cut = ([s.strip() for s in re.split(r"(?<=[。！？])", document)] for document in documents)
    return [[s for s in own if 8 <= len(s) <= 133] for own in cut]


def flat(documents: Iterable[Document]) -> Iterable[str]:
    return itertools.chain.from_iterable(documents)


def shuffled_letters(source: list[str]) -> list[str]:
    chance = random.Random(1)
    return ["".join(chance.sample(text, len(text))) for text in source]


def reversed_reactions(source: list[str]) -> list[str]:
    """What is made stands where what it is made of stood."""
    return [">>".join(reversed(text.split(">>"))) for text in source]


def reactions_of(classes: Callable[[str], bool]) -> list[Document]:
    return [[reaction] for kind, reaction in texts.patents() if classes(kind)]


def bbc_sentences() -> list[str]:
    return list(flat(sentences(texts.bbc())))


CASES = (
    Case(
        "fine-tuned MiniLM",
        "sentences of film reviews",
        fine_tuned,
        lambda: sentences(texts.film_reviews()[:4000]),
        {
            "news": bbc_sentences,
            "lawsuits": lambda: flat(sentences(document for document, _ in texts.lawsuits()[:200])),
            "Wikipedia": lambda: flat(sentences(texts.encyclopaedia())),
            "Chinese": lambda: flat(clauses(texts.chinese_reviews())),
        },
        {
            "misread letters 10 %": lambda source: worse.lettered(source, 0.10, worse.MISREAD, seed=1),
            "neighbours exchanged 30 %": lambda source: worse.exchanged(source, 0.30, seed=2),
            "words repeated 15 %": lambda source: worse.repeated(source, 0.15, seed=3),
            "half news": lambda source: worse.mixed(source, bbc_sentences()[-SHIFTED:], seed=4),
            "injected order": lambda source: worse.joined(source, worse.ORDERS, seed=5),
        },
    ),
    Case(
        "Chinese BERT",
        "sentences of product reviews",
        chinese,
        lambda: clauses(texts.chinese_reviews()),
        {
            "newspaper": lambda: flat(clauses(texts.peoples_daily())),
            "English": bbc_sentences,
        },
        {"shuffled characters": shuffled_letters},
    ),
    Case(
        "BERT of reactions",
        "reactions of classes 2 to 10",
        lambda: reactions("ft"),
        lambda: reactions_of(lambda kind: kind != "1"),
        {"reactions of class 1": lambda: flat(reactions_of(lambda kind: kind == "1"))},
        {"reversed": reversed_reactions, "shuffled characters": shuffled_letters},
    ),
)


def parts(clean: list[Document], seed: int) -> dict[str, list[Document]]:
    """Documents in random order: those to calibrate on, to compare with, and to make worse. No text stands twice."""
    chance, seen = random.Random(seed), set()
    order = chance.sample(clean, len(clean))
    found: dict[str, list[Document]] = {"fit": [], "test": [], "worse": []}
    sizes = iter((("fit", FITTED), ("test", HELD_OUT), ("worse", SHIFTED)))
    part, size = next(sizes)
    for document in order:
        own = [text for text in dict.fromkeys(document) if text not in seen]
        seen.update(own)
        found[part].append(own)
        if sum(map(len, found[part])) >= size:
            part, size = next(sizes, ("", 0))
            if not part:
                return found
    raise SystemExit(f"there are only {len(seen)} clean texts")


def auroc(clean: np.ndarray, shifted: np.ndarray) -> float:
    """The share of pairs in which the shifted text has the higher score."""
    below = np.searchsorted(np.sort(clean), shifted, side="left") + np.searchsorted(np.sort(clean), shifted, "right")
    return float(below.sum() / (2 * len(clean) * len(shifted)))


def clean_streams(encoder: Encoder, baseline: Baseline, setting: str, made: list[Record], seed: int) -> dict[str, int]:
    """Of ORDERS random orders: how many raise an alarm over all texts, and how many any alarm if they have slices."""
    found = {"overall": 0, "slices": 0}
    for order in range(ORDERS):
        rng = np.random.default_rng([seed, order])
        own = [made[place] for place in rng.permutation(len(made))]
        values = rng.choice(len(SLICES), size=len(own), p=SLICES).tolist()
        plain = Monitor(encoder, baseline, setting, reset_after=RESET)
        plain.take(own)
        found["overall"] += plain.episodes.total > 0
        sliced = Monitor(encoder, baseline, setting, reset_after=RESET, slices=True)
        sliced.take([replace(row, slice=value) for row, value in zip(own, values, strict=True)])
        assert sliced.slices is not None
        found["slices"] += sliced.episodes.total + sum(one.episodes.total for one in sliced.slices) > 0
    return found


def shares(made: list[Record]) -> dict[str, float]:
    """Percentages of clean texts with a small p-value, marginal and calibration-conditional, and by length."""
    p, n = np.array([row.p_marginal for row in made]), np.array([row.n for row in made])
    low, high = np.quantile(n, [0.1, 0.9])
    small = 100 * (p <= 0.01)
    return {
        "p 0.05": 100 * float((p <= 0.05).mean()),
        "p 0.01": float(small.mean()),
        "conditional 0.01": 100 * float(np.mean([row.p_value <= 0.01 for row in made])),  # type: ignore[operator]
        "shortest tenth": float(small[n <= low].mean()),
        "longest tenth": float(small[n >= high].mean()),
    }


def one_split(case: Case, encoder: Encoder, seed: int) -> dict[str, dict[str, Any]]:
    """By setting, what one baseline finds."""
    part = parts(case.clean(), seed)
    labels = [number for number, document in enumerate(part["fit"]) for _ in document]
    baseline = Baseline.fit(encoder, list(flat(part["fit"])), documents=labels, seed=seed)
    source = list(flat(part["worse"]))[:SHIFTED]
    shifted = {name: drawn(make(), seed) for name, make in case.shifts.items()}
    shifted |= {name: change(source) for name, change in case.changes.items()}
    found: dict[str, dict[str, Any]] = {}
    for setting in baseline.settings:
        examiner = Examiner(baseline, setting, encoder)
        clean = scored(examiner, list(flat(part["test"]))[:HELD_OUT])
        scores = np.array([row.score for row in clean])
        found[setting] = {
            **shares(clean),
            **{f"streams, {name}": n for name, n in clean_streams(encoder, baseline, setting, clean, seed).items()},
            **{
                f"AUROC, {name}": 100 * auroc(scores, np.array([row.score for row in scored(examiner, own)]))
                for name, own in shifted.items()
            },
        }
    return found


def drawn(found: Iterable[str], seed: int) -> list[str]:
    whole = list(dict.fromkeys(found))
    return random.Random(seed).sample(whole, min(SHIFTED, len(whole)))


def scored(examiner: Examiner, given: list[str]) -> list[Record]:
    return [row for row in examiner.records(given) if row.status == "scored"]


def main() -> None:
    rows = []
    for case in CASES:
        encoder = load(case.load(), allow_pickle=True)
        splits = [one_split(case, encoder, seed) for seed in range(SPLITS)]
        for setting in splits[0]:
            own = [split[setting] for split in splits]
            mean = {key: round(float(np.mean([one[key] for one in own])), 2) for key in own[0]}
            total = {key: sum(one[key] for one in own) for key in own[0] if key.startswith("streams")}
            about = {"encoder": case.encoder, "corpus": case.corpus, "setting": setting, "splits": SPLITS}
            rows.append({**about, "orders": SPLITS * ORDERS, **mean, **total})
            print(rows[-1], flush=True)
    record("monitor_elsewhere", rows)


if __name__ == "__main__":
    main()
