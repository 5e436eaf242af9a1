"""Observables of one cloud: how concentrated the tokens are, without reference to a limit law."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from metastable.arrays import matmul
from metastable.attention import log_partition
from metastable.block import Block
from metastable.cloud import Cloud

LINKED = 50_000
"""Tokens for the cluster count: in a smaller sample of a spread-out cloud every token would be a cluster."""


def observe(block: Block, cloud: Cloud, beta: float, sample: int, seed: int) -> dict[str, float]:
    """Observables of one cloud.

    log_energy : log (1/2β)∬ e^{β⟨Bᵀx,y⟩} dμ dμ  (NaN for β = 0 or ∞, and for several heads), on at most `sample` tokens
    mean_cosine : Σ_{i≠j} w_i w_j ⟨x_i,x_j⟩ / Σ_{i≠j} w_i w_j
    effective_rank : exp of the entropy of the eigenvalues of Σ w x xᵀ: 1 (one direction) to d (uniform)
    clusters : number of groups of tokens linked by steps shorter than max(β, 1)^{−1/2} (1e-3 for β = ∞), on at
        most 50 000 tokens for d ≤ 3 and `sample` beyond
    """
    part = cloud.subset(sample, seed)
    # In high dimension a cluster fills so many boxes that its pairs are not saved; see `_clusters`.
    linked = cloud.subset(LINKED, seed) if cloud.dim <= 3 else part
    return {
        "log_energy": _log_energy(block, part, beta),
        "mean_cosine": mean_cosine(cloud),
        "effective_rank": _effective_rank(cloud),
        "clusters": float(_clusters(linked, 1e-3 if math.isinf(beta) else max(beta, 1.0) ** -0.5)),
    }


def _log_energy(block: Block, cloud: Cloud, beta: float) -> float:
    if beta == 0 or math.isinf(beta) or len(block.heads) > 1:
        return math.nan
    u = beta * block.head.to(cloud.dtype, cloud.points.device).directions(cloud.points)
    inner = log_partition(cloud.points, cloud.log_weights, u)
    return float(torch.logsumexp(inner + cloud.log_weights, 0)) - math.log(2 * beta)


def mean_cosine(cloud: Cloud) -> float:
    w, x = cloud.weights.double(), cloud.points.double()
    same = float((w * w).sum())
    mean = (w.unsqueeze(1) * x).sum(dim=0)
    return (float(mean @ mean) - same) / (1 - same) if len(cloud) > 1 and same < 1 else 1.0


def _effective_rank(cloud: Cloud) -> float:
    w, x = cloud.weights.double(), cloud.points.double()
    values = torch.linalg.eigvalsh(matmul(x.T, w.unsqueeze(1) * x)).clamp_min(0)
    shares = values / values.sum()
    return math.exp(-float(torch.special.xlogy(shares, shares).sum()))


def _clusters(cloud: Cloud, reach: float) -> int:
    """Connected components of the tokens closer than `reach`.

    Tokens in one box of side reach/(2√d) are closer than reach/2, so one of them stands for all: a tight cluster
    of n tokens then costs one token instead of n² pairs. Links between boxes are those of their representatives,
    which can miss a link longer than reach/2.
    """
    x = cloud.points.double().cpu().numpy()
    boxes = np.floor(x * (2 * math.sqrt(cloud.dim) / reach)).astype(np.int64)
    first = np.unique(boxes, axis=0, return_index=True)[1]
    pairs = cKDTree(x[first]).query_pairs(reach, output_type="ndarray")
    graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(len(first), len(first)))
    return int(connected_components(graph, directed=False)[0])
