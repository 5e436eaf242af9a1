"""Folders of watched streams that no encoder made: rows as `watch` writes them."""

from __future__ import annotations

import json
import math

import numpy as np

from metastable.monitor.alarm import Alarm

TEXTS = 1000


def rows_of(p, alpha=0.01, **more):
    """Scored rows of marginal p-values. more : fields for strange texts, each a function of the line."""
    alarm = Alarm(TEXTS, alpha)
    log_e = alarm.evidence(p)
    found = []
    for place, value in enumerate(p):
        line, strange = place + 1, value <= alpha
        row = {"line": line, "id": None, "status": "scored", "p_value": float(value), "p_marginal": float(value)}
        row |= {"score": -math.log(value), "first_layer": 2 if strange else None, "detector": "place-surprise"}
        row |= {"tokens": [{"text": "word", "value": 2.0}], "n": 20, "cut": False, "sha": f"{line:012x}"}
        row |= {"reason": f"reason {line}", "log_e": float(log_e[place]), "alarm": alarm.raised_at == line}
        if strange:
            row |= {name: make(line) for name, make in more.items()}
        found.append(row)
    return found


def rejected(line, reason="is empty"):
    empty = dict.fromkeys(("id", "p_value", "p_marginal", "score", "first_layer", "detector", "log_e", "sha"))
    return {**empty, "line": line, "status": "rejected", "tokens": [], "n": 0, "cut": None} | {
        "reason": reason,
        "alarm": False,
    }


def shifted(n, begin, seed=0):
    """P-values j/(m + 1): uniform, and small from `begin` on."""
    u = np.random.default_rng(seed).random(n)
    u[begin:] **= 5
    return np.ceil(u * (TEXTS + 1)) / (TEXTS + 1)


def write_folder(folder, rows, private=False, finished=True, alpha=0.01, texts=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    about = {"encoder": "/models/tiny", "calibration_texts": TEXTS, "threshold_log_e": Alarm(TEXTS, alpha).threshold}
    summary = {"schema": "metastable.watch/1", "made": {"alpha": alpha, "setting": "full", "private": private}}
    summary |= {"about": {**about, "lengths": [5, 60]}, "finished": finished}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    if texts is not None:
        kept = {key: {"p": 0.001, "score": 5.0, "text": text, "of": "Latin"} for key, text in texts.items()}
        (folder / "strangest.json").write_text(json.dumps({"texts": kept}), encoding="utf-8")
    return folder
