"""Study (e): where the clusters rest after they have left ±e, and what they see there.

After departure the cluster at x̄ moves by V alone until the tail near û(x̄) outweighs it again: that needs
κt < βD(x̄) with D(x̄) = |Bᵀx̄| − ⟨Bᵀx̄, x̄⟩. If D grows on the way to V's eigenvector, the cluster can only creep along
D(x̄) = κt/β. Recorded at each time: the angle from e to x̄, the cluster's share of its own softmax, βD(x̄), and the
tail's weight −log(tail mass that x̄ sees), which is κt as long as the source at x_r works.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
from heads import THREE, circle_head, numbers, write

import metastable as ms

CASES = (("first", 800.0, 60.0), ("third", 100.0, 30.0), ("third", 300.0, 40.0))


def track(run: ms.MeanFieldRun, every: int = 4) -> list[dict[str, float]]:
    B, e = run.head.B.numpy(), run.theory().basis[:, 0].numpy()
    rows = []
    for i in range(0, len(run.times), every):
        cloud = run.at(i)
        x, w = cloud.points.numpy(), cloud.log_weights.numpy()
        mass = np.exp(w) * (x @ e > 0)
        centre = mass @ x / np.linalg.norm(mass @ x)
        u = B.T @ centre
        size = float(np.linalg.norm(u))
        half = 0.5 * math.acos(min(1.0, float(u @ centre) / size))
        own = np.arccos(np.clip(x @ centre, -1, 1)) < half
        scores = run.beta * (x @ u) + w
        top = scores.max()
        inside = float(np.exp(scores[own] - top).sum()) if own.any() else 0.0
        outside = float(np.exp(scores[~own] - top).sum())
        rows.append(
            {
                "t": float(run.times[i]),
                "angle": float(math.acos(min(1.0, abs(float(centre @ e))))),
                "own share": inside / (inside + outside),
                "beta D": run.beta * (size - float(u @ centre)),
                "tail": run.beta * size - (math.log(outside) + top) if outside > 0 else math.inf,
            }
        )
    return rows


def main(cases: tuple[tuple[str, float, float], ...]) -> None:
    torch.set_num_threads(1)
    found = []
    for name, beta, until in cases:
        head = circle_head(*THREE[name])
        run = ms.mean_field(head, "uniform", beta=beta, until=until, tol=0.02, t_eval=241)
        seen = run.phases()
        found.append(
            {
                "head": name,
                "beta": beta,
                "numbers": numbers(head),
                "discretisation": run.discretisation,
                "departure": seen.terminal,
                "interval": seen.terminal_interval,
                "plateaus": [(p.start, p.end, p.level) for p in seen.plateaus],
                "distance": [round(float(v), 5) for v in run.distance().values[::4]],
                "track": track(run),
            }
        )
        print(name, beta, found[-1]["departure"], found[-1]["plateaus"], run.discretisation, flush=True)
        write("staircase", {"study": "staircase", "cases": found})


if __name__ == "__main__":
    main(CASES[: int(sys.argv[1])] if len(sys.argv) > 1 else CASES)
