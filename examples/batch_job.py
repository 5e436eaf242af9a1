"""A nightly job: score the texts of a day, write what was found, and end with an exit code for the scheduler.

    python examples/batch_job.py ./my-encoder baseline texts-of-the-day.txt reports/2026-11-18

Writes records.jsonl (one record a text), strange.csv (the texts to look at, strangest first) and summary.json. The exit
code is 1 if the day as a whole is not like the clean texts, else 0.
"""

import csv
import itertools
import json
import sys
from pathlib import Path

import metastable as ms
from metastable.encoder.texts import read_texts
from metastable.monitor.sinks import JsonLines

if len(sys.argv) != 5:
    raise SystemExit(f"usage: python {sys.argv[0]} MODEL BASELINE TEXTS OUT")
model, baseline, texts, out = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
out.mkdir(parents=True, exist_ok=False)

monitor = ms.Monitor(model, baseline, setting="full", sinks=[JsonLines(out / "records.jsonl")])
strange = []
lines = enumerate(read_texts(texts), start=1)
while some := list(itertools.islice(lines, 1024)):  # a file of any size, in bounded memory
    for (line, text), record in zip(some, monitor.examine([text for _, text in some]), strict=True):
        if record.strange:
            strange.append((record.p_value, line, record.reason, text))

with (out / "strange.csv").open("w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("p_value", "line", "reason", "text"), *sorted(strange)])
summary = monitor.summary()
(out / "summary.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
alarm = "alarm" if monitor.raised_at else "no alarm"
print(f"{summary['texts']} texts, {len(strange)} strange, {alarm}: {out / 'strange.csv'}")
raise SystemExit(1 if monitor.raised_at else 0)
