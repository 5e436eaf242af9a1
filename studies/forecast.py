"""The forecast of `theory().plateau` and the plain law βD/κ against the recorded runs of the other studies.

Reads results/random_heads.json and results/departure_*.json, solves nothing, writes results/forecast.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from heads import RESULTS, THREE, circle_head, numbers, write

import metastable as ms
from metastable.theory import plateau

BANDS = ((5.5, 7.0), (11.0, 13.0), (23.0, 25.0), (25.0, 1000.0))
"""Ranges of βD that are told apart."""


@contextmanager
def plateau_for_any_depth() -> Iterator[None]:
    """The forecast refuses a shallow plateau; this study shows why."""
    kept, plateau.BANDS = plateau.BANDS, ((0.0, 0.0, 10.0),)
    try:
        yield
    finally:
        plateau.BANDS = kept


def compared(head: ms.Head, name: str, beta: float, departure: float | None, until: float | None) -> dict | None:
    q = numbers(head)
    if beta * q["D"] < 5.5:
        return None
    with plateau_for_any_depth():
        found = head.theory().plateau(beta)
    row = {"head": name, "beta": beta, "beta D": beta * q["D"], "departure": departure, "until": until}
    row |= {"forecast": found.departure, "beta D / kappa": beta * q["D"] / q["kappa"]}
    return {**row, "measured / forecast": departure / found.departure if departure else None}


def runs() -> list[dict]:
    rows = []
    for record in json.loads((RESULTS / "random_heads.json").read_text())["rows"]:
        a, b, a2, v = record["parameters"]
        head = circle_head(a, tuple(b), a2, tuple(v))
        for run in record["runs"]:
            if "until" in run:
                rows.append(compared(head, f"random {record['index']}", run["beta"], run["terminal"], run["until"]))
    for name, parameters in THREE.items():
        path = RESULTS / f"departure_{name}.json"
        for run in json.loads(path.read_text())["rows"] if path.exists() else []:
            rows.append(compared(circle_head(*parameters), name, run["beta"], run["departure"], None))
    return [row for row in rows if row is not None]


def by_depth(rows: list[dict]) -> list[dict]:
    found = []
    for low, high in BANDS:
        part = [row for row in rows if low <= row["beta D"] < high]
        seen = [row["measured / forecast"] for row in part if row["departure"]]
        plain = [row["departure"] / row["beta D / kappa"] for row in part if row["departure"]]
        late = [row for row in part if not row["departure"] and row["until"] > 1.02 * row["forecast"]]
        if seen:
            shares = {key: float(np.percentile(seen, at)) for key, at in (("least", 0), ("median", 50), ("most", 100))}
            within = float(np.mean(np.abs(np.array(seen) - 1) < 0.05))
            also = {"within 5 %": within, "not seen although forecast": len(late)}
            plain_range = [float(min(plain)), float(np.median(plain)), float(max(plain))]
            found.append({"beta D": [low, high], "runs": len(seen), **shares, **also, "over βD/κ": plain_range})
    return found


def slopes(rows: list[dict]) -> dict[str, list[float]]:
    """Between a random head's two deepest runs: Δt/Δβ over D/κ, and over (D − (3/2)Δ log β/Δβ)/κ."""
    plain, corrected = [], []
    for name in sorted({row["head"] for row in rows if row["head"].startswith("random")}):
        part = [row for row in rows if row["head"] == name and row["departure"]]
        if len(part) < 2 or part[-1]["beta D"] < 20:
            continue
        a, b = part[-2], part[-1]
        rise = b["beta D / kappa"] - a["beta D / kappa"]
        kappa = b["beta D"] / b["beta D / kappa"]
        plain.append((b["departure"] - a["departure"]) / rise)
        corrected.append((b["departure"] - a["departure"]) / (rise - 1.5 * np.log(b["beta"] / a["beta"]) / kappa))
    return {"over D/kappa": plain, "over the law with 3/2 log": corrected}


if __name__ == "__main__":
    rows = runs()
    record = {"study": "forecast", "by depth": by_depth(rows), "slopes from βD = 12 to 24": slopes(rows), "runs": rows}
    write("forecast", record)
    for row in record["by depth"]:
        print(row)
    for key, values in record["slopes from βD = 12 to 24"].items():
        if values:
            print(
                key, f"median {np.median(values):.3f}, from {min(values):.3f} to {max(values):.3f}, {len(values)} heads"
            )
