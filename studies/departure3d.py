"""When does the mean field leave the plateau in d = 3? A conjecture, and runs of the moving triangulation against it.

Let λ₁ > λ₂ > λ₃ be the eigenvalues of M = V Bᵀ with eigenvectors e₁ = e, e₂, e₃. Of the mass that rests near e_k on
its way, a share e^{−κ_k t} is left at time t, κ_k = Σ_{j<k} (λ_j − λ_k)/|Bᵀe_k|. It keeps the clusters at ±e as long
as it outweighs them in the softmax, that is as long as κ_k t < βG_k with
G_k = max{⟨Bᵀe, y⟩ : y in span(e₁ … e_k), |y| = 1} − ⟨Bᵀe, e⟩. Hence

    departure ≈ β max_k G_k/κ_k + O(1):   a slope in β, which is what is compared.

Departure is read in two ways: from W₂ to {±e}, the first time at which it is above 1.5 times its least value so far;
and from the angle between e and the mean of the mass that started on e's side, the first time after that of the least
W₂ at which it is half of the angle between e and V's eigenvector ("half way").

What the recorded runs say (four heads, uniform law; the table is in studies/README.md).

- Size of the cells, seed 4: at β = 30, h = 2, 1.5, 1, 0.75 give 8.32, 8.29, 8.30, 8.31; at β = 100, h = 2 and 1.4 give
  12.96 and 12.97. At h = 2 a different tolerance of the engine moved the first by 0.1: that is the scatter there.
- By distance, slopes between β = 200 and 400: 0.023 against a conjectured 0.039 (seed 4), 0.028 against 0.071 (24),
  0.011 against 0.054 (9). Between 400 and 800: 0.043 (4); the other heads were not run at 800.
- Half way: 0.089 against 0.039 (4), 0.068 against 0.071 (24), 0.044 against 0.054 (9), 0.065 against 0.076 (18).

So the conjecture does not hold for the departure by distance up to β = 400, and is met within 11 % by the one run at
800. For the half-way time it is off by 4 to 19 % in three heads, and by a factor of 2.3 in the fourth. It is open.

    python -m studies.departure3d            # every run (hours on one core), written after each
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
from metastable.flow.meanfield.sphere.triangles import Triangles
from tests.meanfield.driver import Driver, circle_of, side_masses, to_atoms

RESULTS = Path(__file__).parent / "results" / "departure3d.json"
INTERACTION, VALUE = (1.4, 1.0, 0.7), (1.2, 0.8, 0.5)
SEEDS = (4, 24, 9, 18)
H, HORIZON, WAIT = 2.0, 120.0, 6.0
# First how much the size of the cells matters, then the slopes.
RUNS = [(4, 30.0, h) for h in (2.0, 1.5, 1.0, 0.75)] + [(4, 100.0, h) for h in (2.0, 1.4)]
RUNS += [(seed, beta, H) for beta in (30.0, 100.0, 200.0, 400.0, 800.0) for seed in SEEDS]


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


def crossing(times: list[float], values: list[float], levels: list[float]) -> float | None:
    """The first time at which values pass levels, interpolated between steps; None if they do not."""
    for i in range(1, len(times)):
        if values[i] > levels[i]:
            part = (levels[i] - values[i - 1]) / (values[i] - values[i - 1])
            return times[i - 1] + min(max(part, 0.0), 1.0) * (times[i] - times[i - 1])
    return None


def departures(times: list[float], distances: list[float], angles: list[float], way: float) -> list[float | None]:
    """By distance, and half way."""
    least = int(np.argmin(distances))
    levels = [1.5 * d for d in np.minimum.accumulate(distances)]
    half = crossing(times[least:], angles[least:], [0.5 * way] * (len(times) - least))
    return [crossing(times, distances, levels), half]


def angle(a: np.ndarray, b: np.ndarray) -> float:
    """Between two lines."""
    return float(np.arccos(min(1.0, abs(a @ b) / np.linalg.norm(a) / np.linalg.norm(b))))


def lean(cells: Triangles, e: np.ndarray) -> float:
    """The angle between e and the mean of the mass that started on its side."""
    points, logs = cells.quadrature()
    side = np.repeat(cells.labels == 1, 3)
    return angle(np.exp(logs[side]) @ points[side], e)


def run(seed: int, beta: float, h: float) -> dict:
    head, began = head_of(seed), time.time()
    e, v = (spectrum.basis[:, 0].numpy() for spectrum in (head.theory().attention, head.theory().terminal))
    way = angle(e, v)
    cells = Triangles.of(lambda x: np.zeros(len(x)), h / math.sqrt(beta), circle=circle_of(head))
    masses = side_masses(cells)
    driver = Driver(head, beta, cells, h)
    times, distances, angles, most = [0.0], [to_atoms(cells, head, masses)], [lean(cells, e)], len(cells.corners)
    for t in driver.steps(HORIZON):
        times.append(t)
        distances.append(to_atoms(cells, head, masses))
        angles.append(lean(cells, e))
        most = max(most, len(cells.corners))
        by_distance, half_way = departures(times, distances, angles, way)
        if half_way is not None and (by_distance is not None or t > half_way + WAIT):
            break
    least = int(np.argmin(distances))
    return {
        "seed": seed,
        "beta": beta,
        "h": h,
        "departure": by_distance,
        "half_way": half_way,
        "horizon": times[-1],
        "least": distances[least],
        "least_at": times[least],
        "way": way,
        "steps": len(times) - 1,
        "most_cells": most,
        "folded": cells.folded,
        "mass_error": float(abs(np.logaddexp.reduce(cells.log_masses))),
        "side_error": float(np.abs(side_masses(cells) - masses).max()),
        "seconds": round(time.time() - began),
        "times": [round(t, 5) for t in times],
        "distances": [round(d, 6) for d in distances],
        "angles": [round(a, 6) for a in angles],
    }


def words(runs: list[dict]) -> None:
    """Departures by β and by h, and the slopes between successive β against the conjecture."""
    for seed in SEEDS:
        two, three = slopes(head_of(seed)).values()
        print(f"seed {seed}: G/κ = {two:.4f} (k = 2), {three:.4f} (k = 3); conjectured slope {max(two, three):.4f}")
        mine = sorted((r for r in runs if r["seed"] == seed), key=lambda r: (r["beta"], -r["h"]))
        for r in mine:
            found = [f"{r[name]:.3f}" if r[name] is not None else "none" for name in ("departure", "half_way")]
            least = f"least {r['least']:.4f} at {r['least_at']:.2f}"
            size = f"{r['most_cells']} cells, {r['steps']} steps, {r['seconds']} s"
            print(f"  β = {r['beta']:g}, h = {r['h']:g}: departure {found[0]}, half way {found[1]}, {least} ({size})")
        for name in ("departure", "half_way"):
            same = [r for r in mine if r["h"] == H and r[name] is not None]
            for a, b in itertools.pairwise(same):
                slope = (b[name] - a[name]) / (b["beta"] - a["beta"])
                print(f"  slope of {name} from β = {a['beta']:g} to {b['beta']:g}: {slope:.4f}")


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
