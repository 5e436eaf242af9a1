"""Studies (c) and (d): what N equal-weight tokens say about the end of the plateau, and how fast they converge.

(c) The third head at β = 300 until 30: N equally spaced tokens against the mean field; once no token is left near û
the plateau ends, at about log N/κ. (d) The same head at β = 20: the largest difference of the distance curves up to
t = 3, for equally spaced and for random tokens, and the exponent of N in it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator

import numpy as np
import torch
from heads import RESULTS, THREE, circle_head, numbers, write

import metastable as ms
from metastable.theory import phases

HEAD = circle_head(*THREE["third"])
SAVED = 101


def half_way(times: np.ndarray, curve: np.ndarray) -> float | None:
    """When the distance last was below half of that from e to V's eigenvector; None if it never left."""
    near = np.flatnonzero(curve < 0.5 * numbers(HEAD)["to_v"])
    return float(times[near[-1]]) if near[-1] + 1 < len(times) else None


def departures(sizes: list[int], beta: float = 300.0, until: float = 20.0) -> Iterator[dict[str, object]]:
    """The record so far, after each number of tokens."""
    kappa, times = numbers(HEAD)["kappa"], np.linspace(0, until, SAVED)
    exact = ms.mean_field(HEAD, "uniform", beta=beta, until=until, tol=2e-3, t_eval=SAVED)
    target, found = exact.distance().values, exact.phases()
    mean = {"departure": found.terminal, "interval": found.terminal_interval, "least": found.least}
    mean |= {"half way": half_way(times, target), "discretisation": exact.discretisation}
    print(mean, flush=True)
    rows: list[dict[str, object]] = []
    for n in ("1200 graded", *sizes):
        cloud = ms.equally_spaced(n) if isinstance(n, int) else ms.graded(1200, HEAD)
        curve = ms.simulate(HEAD, cloud, beta=beta, until=until, t_eval=SAVED, tol=1e-6).distance().values
        seen = phases.detect(times, curve)
        apart = np.flatnonzero(np.abs(curve - target) > 0.01)
        row = {"N": n, "departure": seen.terminal, "half way": half_way(times, curve), "least": seen.least}
        row["within 0.01 of the mean field until"] = float(times[apart[0] - 1]) if len(apart) else until
        rows.append({**row, "log N / kappa": math.log(n) / kappa} if isinstance(n, int) else row)
        print(rows[-1], flush=True)
        yield {"beta": beta, "kappa": kappa, "mean field": mean, "particles": rows}


def convergence(sizes: list[int], beta: float = 20.0, until: float = 3.0, seeds: int = 10) -> dict[str, object]:
    exact = ms.mean_field(HEAD, "uniform", beta=beta, until=until, tol=1e-4, t_eval=13)
    target = exact.distance().values
    rows = []
    for n in sizes:
        spaced = ms.simulate(HEAD, ms.equally_spaced(n), beta=beta, until=until, t_eval=13, tol=1e-7).distance().values
        drawn = [
            ms.simulate(HEAD, ms.uniform(n, d=2, seed=s), beta=beta, until=until, t_eval=13, tol=1e-6).distance().values
            for s in range(seeds)
        ]
        random = [float(np.abs(curve - target).max()) for curve in drawn]
        rows.append({"N": n, "equally spaced": float(np.abs(spaced - target).max()), "random": random})
        print(rows[-1], flush=True)
    logs = np.log(sizes)
    spaced_errors = [row["equally spaced"] for row in rows]
    above = [i for i, error in enumerate(spaced_errors) if error > 3 * exact.discretisation]
    return {
        "beta": beta,
        "until": until,
        "discretisation of the mean field": exact.discretisation,
        "rows": rows,
        "exponent, random": float(np.polyfit(logs, np.log([np.mean(row["random"]) for row in rows]), 1)[0]),
        "exponent, equally spaced": float(np.polyfit(logs[above], np.log(np.array(spaced_errors)[above]), 1)[0])
        if len(above) > 1
        else None,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    largest = int(float(sys.argv[1])) if len(sys.argv) > 1 else 100_000
    path = RESULTS / "particles.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    found = {"study": "particles", "convergence": kept.get("convergence") or convergence([125, 250, 500, 1000])}
    write("particles", found)
    sizes: list[int] = [n for n in (1000, 1200, 10_000, 100_000, 1_000_000) if n <= largest]
    for record in departures(sizes):
        write("particles", {**found, "departures": record})
