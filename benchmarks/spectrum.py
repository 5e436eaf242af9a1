"""Spectra of the 144 heads of a 12-layer, 12-head encoder of width 768: factored (64×64) against dense (768×768)."""

from __future__ import annotations

import torch
from measure import ratios, record

import metastable as ms

HEADS, WIDTH, INNER = 144, 768, 64


def random_heads() -> list[ms.Head]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) / WIDTH**0.5

    return [
        ms.Head(draw(INNER, WIDTH), draw(INNER, WIDTH), draw(INNER, WIDTH), output=draw(WIDTH, INNER))
        for _ in range(HEADS)
    ]


def main() -> None:
    heads = random_heads()
    few = heads[:6]

    def factored() -> list[torch.Tensor]:
        # A head keeps its theory, so each time new heads of the same matrices are asked.
        return [ms.Head(**head.matrices).theory().eigenvalues for head in heads]

    def dense() -> list[torch.Tensor]:
        return [torch.linalg.eigvals(head.M) for head in few]

    leading = [float(a.real.max() - b.real.max()) for a, b in zip(factored(), dense(), strict=False)]
    row = ratios(dense, factored, repeats=3)
    # The dense side does 6 of the 144 heads, all of one size; its time is scaled to 144.
    scale = HEADS / len(few)
    for key in ("slow_seconds", "ratio", "lowest", "highest"):
        row[key] *= scale
    record("spectrum", [{"what": "eigenvalues", "heads": HEADS, **row, "largest_difference": max(map(abs, leading))}])


if __name__ == "__main__":
    main()
