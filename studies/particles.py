"""Studies (c) and (d): what N equal-weight tokens say about the end of the plateau, and how fast they converge.

(c) The third head at β = 300 until 30: N equally spaced tokens against the mean field; once no token is left near û
the plateau ends, at about log N/κ. (d) The same head at β = 20: the largest difference of the distance curves up to
t = 3, for equally spaced and for random tokens, and the exponent of N in it.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
from heads import THREE, circle_head, numbers, write

import metastable as ms

HEAD = circle_head(*THREE["third"])


def half_way(run: ms.Run) -> float | None:
    """When the distance last was below half of that from e to V's eigenvector; None if it never left."""
    e, v = run.theory.basis[:, 0], run.theory.terminal.basis[:, 0]
    near = run.distance().values < 0.5 * math.sqrt(2 - 2 * abs(float(e @ v)))
    last = int(np.flatnonzero(near)[-1])
    return float(run.times[last]) if last + 1 < len(near) else None


def departures(sizes: list[int], beta: float = 300.0, until: float = 24.0) -> dict[str, object]:
    kappa = numbers(HEAD)["kappa"]
    exact = ms.mean_field(HEAD, "uniform", beta=beta, until=until, tol=0.01, save=121)
    found = exact.phases()
    rows = []
    for n in sizes:
        engine = "tree" if n >= 20_000 else "flash"
        run = ms.simulate(HEAD, ms.equally_spaced(n), beta=beta, until=until, save=121, tol=1e-5, engine=engine)
        seen = run.phases()
        apart = np.abs(run.distance().values - exact.distance().values)
        agreed = run.times.numpy()[: int(np.argmax(apart > 0.01))] if (apart > 0.01).any() else run.times.numpy()
        row = {"N": n, "departure": seen.terminal, "half way": half_way(run), "least": seen.least}
        row["log N / kappa"] = float(np.log(n) / kappa)
        rows.append({**row, "within 0.01 of the mean field until": float(agreed[-1]) if len(agreed) else 0.0})
        print(rows[-1], flush=True)
    graded = ms.simulate(HEAD, ms.graded(1200, HEAD), beta=beta, until=until, save=121, tol=1e-5)
    seen = graded.phases()
    rows.append({"N": "1200 graded", "departure": seen.terminal, "half way": half_way(graded), "least": seen.least})
    mean = {"departure": found.terminal, "interval": found.terminal_interval, "least": found.least}
    mean["half way"] = half_way(exact)
    return {"beta": beta, "kappa": kappa, "mean field": mean, "particles": rows}


def convergence(sizes: list[int], beta: float = 20.0, until: float = 3.0, seeds: int = 10) -> dict[str, object]:
    exact = ms.mean_field(HEAD, "uniform", beta=beta, until=until, tol=1e-4, save=13)
    target = exact.distance().values
    rows = []
    for n in sizes:
        spaced = ms.simulate(HEAD, ms.equally_spaced(n), beta=beta, until=until, save=13, tol=1e-7).distance().values
        drawn = [
            ms.simulate(HEAD, ms.uniform(n, d=2, seed=s), beta=beta, until=until, save=13, tol=1e-6).distance().values
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
    found = {"study": "particles", "convergence": convergence([125, 250, 500, 1000])}
    write("particles", found)
    sizes = [n for n in (1000, 1200, 10_000, 100_000, 1_000_000) if n <= largest]
    write("particles", {**found, "departures": departures(sizes)})
