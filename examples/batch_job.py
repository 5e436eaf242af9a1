"""A nightly job: score the texts of a day, write what was found, and end with an exit code for the scheduler.

    python examples/batch_job.py ./my-encoder baseline texts-of-the-day.txt reports/2026-11-18

Writes records.jsonl (one record a line), strange.csv (the texts to look at, strangest first) and summary.json. A
second run into the same folder starts again.

The exit code is that of `metastable watch`: 1 if the day as a whole is not like the clean texts; else 2 if
lines could not be used, or there were none, or the input is bad; else 0.
"""

import csv
import itertools
from pathlib import Path

import typer

import metastable as ms
from metastable.cli.calibrate import check_texts
from metastable.cli.exits import EXIT_BAD_INPUT, EXIT_FINDING, one_line_errors
from metastable.encoder.texts import lines
from metastable.monitor.stream import examined, stream_folder


def main(model: str, baseline: Path, texts: str, out: Path) -> None:
    with one_line_errors(debug=False, resumes=False):
        check_texts(texts)
        monitor = ms.Monitor(model, baseline, setting="full", keep=1)
        examiner = monitor.examiner()
        facts = {"encoder": monitor.baseline.fingerprint, "setting": monitor.setting, "alpha": monitor.alpha}
        strange = []
        with stream_folder(out, facts, overwrite=True) as folder:
            (out / "strange.csv").unlink(missing_ok=True)
            coming = lines(texts)
            while some := list(itertools.islice(coming, 1024)):  # a file of any size, in bounded memory
                # A line that cannot be used has a record with the reason.
                records = monitor.take(examined(some, examiner.records))
                folder.write([record.to_dict() for record in records])
                for line, record in zip(some, records, strict=True):
                    if record.strange:
                        strange.append((record.p_value, record.score, line.number, record.reason, line.text))
            strange.sort(key=lambda row: (row[0], -row[1], row[2]))
            with (out / "strange.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("p_value", "score", "line", "reason", "text"), *strange])
            summary = monitor.summary()
            folder.finish({"finished": True, **summary})
        rejected, raised = sum(summary["rejected"].values()), summary["alarm"]["raised"]
        alarm = f"alarm at text {monitor.raised_at}" if raised else "no alarm"
        counts = f"{summary['texts']} texts, {rejected} rejected, {len(strange)} strange"
        print(f"{counts}, {alarm}: {out / 'strange.csv'}")
        raise typer.Exit(EXIT_FINDING if raised else EXIT_BAD_INPUT if rejected or not summary["texts"] else 0)


if __name__ == "__main__":
    typer.run(main)
