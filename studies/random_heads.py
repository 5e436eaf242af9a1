"""Study (b): does the plateau of a random head on the circle end at βD/κ? One level of cells (h = 0.3)."""

from __future__ import annotations

import json
import math
import sys
import time

import numpy as np
import torch
from heads import RESULTS, circle_head, numbers, random_parameters, write

from metastable.flow.meanfield.flow import CellSizes, follow, start
from metastable.progress import Progress
from metastable.theory import phases
from metastable.transport import two_atoms

DEPTHS = (6.0, 12.0, 24.0)
"""β is chosen so that βD takes these values, as far as 50 ≤ β ≤ LARGEST."""
DEEP = 12
"""Only for so many heads the largest of them: it takes minutes."""
LARGEST = 2000.0
LONGEST_RUN = 100.0


def once(parameters, beta, until):
    """Departure by the detector, and the time at which the cluster sees itself as much as the tail."""
    head = circle_head(*parameters)
    longest = 0.3 * beta**-0.5
    times = list(np.linspace(0, until, 161))
    cells = start(head, lambda x: np.zeros(len(x)), longest)
    sizes = CellSizes(longest, 0.5 * longest, 3e-4 * longest)
    frames, work = follow(head, cells, beta, times, sizes, Progress(until, False))
    e = head.theory().basis[:, 0].numpy()
    curve = [two_atoms(x, np.exp(w), np.stack([e, -e]), [0.5, 0.5]).value for x, w in frames]
    seen = phases.detect(times, curve)
    own = [own_share(head, beta, e, *frame) for frame in frames]
    # From the last time at which the tail still decides: early on there is no cluster yet.
    late = [i for i, (share, _) in enumerate(own) if share < 0.5]
    half = float(times[late[-1]]) if late and late[-1] + 1 < len(times) else None
    plateaus = [(p.start, p.end, p.level) for p in seen.plateaus]
    return {
        "beta": beta,
        "until": until,
        "terminal": seen.terminal,
        "concentrated": seen.concentrated,
        "least": seen.least,
        "least_time": seen.least_time,
        "half_share": half,
        "plateaus": plateaus,
        "final": curve[-1],
        "moved": [round(own[i][1], 5) for i in range(0, len(own), 8)],
        "steps": work["steps"],
    }


def own_share(head, beta, e, x, w):
    """Share of the softmax that a cluster at x̄ gives to its own half of the way to û(x̄), and the angle from e to x̄."""
    near = x @ e > 0
    mass = np.exp(w) * near
    centre = mass @ x / np.linalg.norm(mass @ x)
    u = head.B.T.numpy() @ centre
    half = 0.5 * math.acos(min(1.0, float(u @ centre) / float(np.linalg.norm(u))))
    scores = beta * (x @ u) + w
    p = np.exp(scores - scores.max())
    own = np.arccos(np.clip(x @ centre, -1, 1)) < half
    return float(p[own].sum() / p.sum()), float(math.acos(min(1.0, abs(float(centre @ e)))))


def main(count: int, seed: int) -> None:
    torch.set_num_threads(1)
    path = RESULTS / "random_heads.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    drawn, left = random_parameters(count, seed)
    for index, parameters in list(enumerate(drawn))[len(rows) :]:
        q = numbers(circle_head(*parameters))
        row = {"index": index, "parameters": parameters, **q, "runs": []}
        depths = DEPTHS if index < DEEP else DEPTHS[:-1]
        for beta in sorted(min(max(round(depth / q["D"]), 50), LARGEST) for depth in depths):
            if any(run["beta"] == beta for run in row["runs"]):
                continue
            until = 1.1 * beta * q["D"] / q["kappa"] + 12
            if until > LONGEST_RUN:
                row["runs"].append({"beta": beta, "skipped": f"until {until:.0f}"})
                continue
            began = time.perf_counter()
            try:
                row["runs"].append({**once(parameters, beta, until), "seconds": time.perf_counter() - began})
            except Exception as error:
                row["runs"].append({"beta": beta, "failed": str(error)})
        rows.append(row)
        shown = [
            (r["beta"], r.get("terminal"), r.get("half_share"), round(r.get("seconds", 0), 1)) for r in row["runs"]
        ]
        print(index, {k: round(v, 4) for k, v in q.items()}, shown, flush=True)
        write("random_heads", {"study": "random_heads", "seed": seed, "law": "uniform", "left out": left, "rows": rows})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 48, seed=0)
