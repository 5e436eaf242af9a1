"""When does the mean field leave the plateau in d = 3? A conjecture, and runs of the moving triangulation against it.

Let λ₁ > λ₂ > λ₃ be the eigenvalues of M = V Bᵀ with eigenvectors e₁ = e, e₂, e₃. Of the mass that rests near e_k on
its way, a share e^{−κ_k t} is left at time t, κ_k = Σ_{j<k} (λ_j − λ_k)/|Bᵀe_k|. It keeps the clusters at ±e as long
as it outweighs them in the softmax, that is as long as κ_k t < βG_k with
G_k = max{⟨Bᵀe, y⟩ : y in span(e₁ … e_k), |y| = 1} − ⟨Bᵀe, e⟩. Hence

    departure ≈ β max_k G_k/κ_k + O(1):   a slope in β, which is what is compared.

Departure is read from W₂ to {±e}: the first time at which it is above 1.5 times its least value so far.

    python -m studies.departure3d            # every run (about half an hour on one core), written after each
    python -m studies.departure3d --words    # what the recorded runs say
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from pathlib import Path

import numpy as np

import metastable as ms
from metastable.meanfield.triangles import Triangles
from tests.meanfield.driver import Driver, circle_of, side_masses, to_atoms

RESULTS = Path(__file__).parent / "results" / "departure3d.json"
INTERACTION, VALUE = (1.4, 1.0, 0.7), (1.2, 0.8, 0.5)
SEEDS = (4, 24, 9, 18)
H, HORIZON = 2.0, 60.0
# First how much the size of the cells matters, then the slopes.
RUNS = [(4, 30.0, h) for h in (2.0, 1.5, 1.0, 0.75)] + [(4, 100.0, h) for h in (2.0, 1.0)]
RUNS += [(seed, beta, H) for beta in (30.0, 100.0, 200.0) for seed in SEEDS]
RUNS += [(seed, 400.0, H) for seed in (18, 24)]


def head_of(seed: int) -> ms.Head:
    return ms.Head.from_spectra(INTERACTION, VALUE, seed=seed)


def slopes(head: ms.Head) -> dict[int, float]:
    """G_k/κ_k for k = 2, 3."""
    B, M = head.B.numpy(), head.M.numpy()
    values, vectors = np.linalg.eig(M)
    order = np.argsort(-values.real)
    values, vectors = values.real[order], vectors.real[:, order]
    e = vectors[:, 0]
    found = {}
    for k in (2, 3):
        basis = np.linalg.qr(vectors[:, :k])[0]
        gain = np.linalg.norm(basis.T @ B.T @ e) - e @ B @ e
        rate = (values[: k - 1] - values[k - 1]).sum() / np.linalg.norm(B.T @ vectors[:, k - 1])
        found[k] = float(gain / rate)
    return found


def departure(times: list[float], distances: list[float]) -> float | None:
    """First crossing of 1.5 times the least distance so far, interpolated between steps; None if there is none."""
    for i in range(1, len(times)):
        level = 1.5 * min(distances[: i + 1])
        if distances[i] > level:
            part = (level - distances[i - 1]) / (distances[i] - distances[i - 1])
            return times[i - 1] + part * (times[i] - times[i - 1])
    return None


def run(seed: int, beta: float, h: float) -> dict:
    head, began = head_of(seed), time.time()
    cells = Triangles.of(lambda x: np.zeros(len(x)), h / math.sqrt(beta), circle=circle_of(head))
    masses = side_masses(cells)
    driver = Driver(head, beta, cells, h)
    times, distances, most = [0.0], [to_atoms(cells, head, masses)], len(cells.corners)
    for t in driver.steps(HORIZON):
        times.append(t)
        distances.append(to_atoms(cells, head, masses))
        most = max(most, len(cells.corners))
        if departure(times, distances) is not None:
            break
    least = int(np.argmin(distances))
    return {
        "seed": seed,
        "beta": beta,
        "h": h,
        "departure": departure(times, distances),
        "horizon": times[-1],
        "least": distances[least],
        "least_at": times[least],
        "steps": len(times) - 1,
        "most_cells": most,
        "folded": cells.folded,
        "mass_error": float(abs(np.logaddexp.reduce(cells.log_masses))),
        "side_error": float(np.abs(side_masses(cells) - masses).max()),
        "seconds": round(time.time() - began),
        "times": [round(t, 5) for t in times],
        "distances": [round(d, 6) for d in distances],
    }


def words(runs: list[dict]) -> None:
    """Departures by β and by h, and the slope between successive β against the conjecture."""
    for seed in SEEDS:
        two, three = slopes(head_of(seed)).values()
        print(f"seed {seed}: G/κ = {two:.4f} (k = 2), {three:.4f} (k = 3); conjectured slope {max(two, three):.4f}")
        mine = sorted((r for r in runs if r["seed"] == seed), key=lambda r: (r["beta"], -r["h"]))
        for r in mine:
            left = f"none up to {r['horizon']:g}" if r["departure"] is None else f"{r['departure']:.3f}"
            least = f"least {r['least']:.4f} at {r['least_at']:.2f}"
            size = f"{r['most_cells']} cells, {r['steps']} steps, {r['seconds']} s"
            print(f"  β = {r['beta']:g}, h = {r['h']:g}: departure {left}, {least} ({size})")
        same = [r for r in mine if r["h"] == H and r["departure"] is not None]
        for a, b in itertools.pairwise(same):
            slope = (b["departure"] - a["departure"]) / (b["beta"] - a["beta"])
            print(f"  slope from β = {a['beta']:g} to {b['beta']:g}: {slope:.4f}")


def main() -> None:
    runs = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    if "--words" not in sys.argv:
        for seed, beta, h in RUNS:
            if not any((r["seed"], r["beta"], r["h"]) == (seed, beta, h) for r in runs):
                runs.append(run(seed, beta, h))
                RESULTS.parent.mkdir(exist_ok=True)
                part = RESULTS.with_suffix(".part")
                part.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
                part.replace(RESULTS)
    words(runs)


if __name__ == "__main__":
    main()
