"""The exact W₂ of 10⁶ tokens to a two-atom limit law against one field evaluation at 10⁴ tokens."""

from __future__ import annotations

import torch
from measure import ratios, record

import metastable as ms
from metastable import transport

HEAD = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5], seed=0)


def main() -> None:
    theory = HEAD.theory()
    rows = []
    for name, many in (("equal weights", ms.uniform(10**6, d=3, seed=0)), ("graded", ms.graded(10**6, HEAD))):
        e = theory.basis[:, 0]
        weights, atoms, up = many.weights, torch.stack([e, -e]), theory.limit(many.points) @ e > 0
        masses = [float(weights[up].sum()), float(weights[~up].sum())]
        for dtype in (torch.float32, torch.float64):
            few = ms.uniform(10**4, d=3, seed=1).to(dtype)
            row = ratios(
                lambda few=few: ms.velocity(HEAD, few, 100.0, engine="flash"),
                lambda x=many.points, w=weights, a=atoms, m=masses: transport.two_atoms(x, w, a, m),
                repeats=7,
            )
            rows.append({"what": f"W2 at 1e6 ({name}) against a field at 1e4 ({dtype})", **row})
    record("two_atoms", rows)


if __name__ == "__main__":
    main()
