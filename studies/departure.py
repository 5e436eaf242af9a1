"""Study (a): when the plateau ends as a function of β, on three heads, with the solver's own intervals.

Fits, by least squares over the recorded β: a line in β, a multiple of log β, a power of β, and the law
κt = βD − (3/2) log β + C, in which only C is free.
"""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
import torch
from heads import RESULTS, THREE, circle_head, numbers, write

import metastable as ms

BETAS = (100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0, 6400.0, 10000.0)


def horizon(q: dict[str, float], beta: float) -> float:
    return 1.15 * beta * q["D"] / q["kappa"] + 8


def one(name: str, beta: float) -> dict[str, object]:
    head = circle_head(*THREE[name])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = ms.mean_field(head, "uniform", beta=beta, until=horizon(numbers(head), beta), tol=0.02, t_eval=201)
    found = run.phases()
    return {
        "beta": beta,
        "departure": found.terminal,
        "interval": found.terminal_interval,
        "least": found.least,
        "least_time": found.least_time,
        "discretisation": run.discretisation,
        "converged": run.converged,
        "warnings": [str(w.message) for w in said],
        "cell": run.configuration["cell"],
        "steps": run.configuration["steps"],
        "cells": run.configuration["most_cells"],
        "seconds": run.configuration["seconds"],
    }


def fits(rows: list[dict], q: dict[str, float]) -> dict[str, object]:
    """Each law with its free numbers and the root mean square of what it leaves unexplained."""
    b, t = (np.array([row[key] for row in rows]) for key in ("beta", "departure"))
    line, power = np.polyfit(b, t, 1), np.polyfit(np.log(b), np.log(t), 1)
    logs = np.polyfit(np.log(b), t, 1)
    C = q["kappa"] * t - b * q["D"] + 1.5 * np.log(b)
    law = (b * q["D"] - 1.5 * np.log(b) + C.mean()) / q["kappa"]

    def rms(model: np.ndarray) -> float:
        return float(np.sqrt(np.mean((model - t) ** 2)))

    return {
        "linear": {"slope": line[0], "offset": line[1], "rms": rms(np.polyval(line, b))},
        "slope over D/kappa": float(line[0] / (q["D"] / q["kappa"])),
        "slope of the last two over D/kappa": float((t[-1] - t[-2]) / (b[-1] - b[-2]) / (q["D"] / q["kappa"])),
        "slope of the last two over D/kappa, 3/2 log taken off": float(
            (t[-1] - t[-2]) / ((b[-1] - b[-2]) * q["D"] - 1.5 * np.log(b[-1] / b[-2])) * q["kappa"]
        ),
        "logarithm": {"slope": logs[0], "offset": logs[1], "rms": rms(np.polyval(logs, np.log(b)))},
        "power": {"exponent": power[0], "rms": rms(np.exp(np.polyval(power, np.log(b))))},
        "D, kappa and 3/2 log": {"C": C.tolist(), "rms": rms(law)},
    }


def recorded(name: str) -> list[dict]:
    """What an earlier call has found already."""
    path = RESULTS / f"departure_{name}.json"
    return json.loads(path.read_text())["rows"] if path.exists() else []


def main(names: list[str], largest: float) -> None:
    torch.set_num_threads(1)
    rows = {name: recorded(name) for name in names}
    for beta, name in ((b, name) for b in BETAS if b <= largest for name in names):
        if any(row["beta"] == beta for row in rows[name]):
            continue
        q = numbers(circle_head(*THREE[name]))
        rows[name].append(one(name, beta))
        print(name, rows[name][-1], flush=True)
        seen = [row for row in rows[name] if row["departure"] is not None]
        record = {"study": "departure", "head": THREE[name], "numbers": q, "rows": rows[name]}
        write(f"departure_{name}", {**record, "fits": fits(seen, q) if len(seen) > 2 else None})


if __name__ == "__main__":
    main(sys.argv[2:] or list(THREE), float(sys.argv[1]) if len(sys.argv) > 1 else 10000.0)
