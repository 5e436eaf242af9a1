"""Slow, literal references: double loops over the formulas, in plain Python floats."""

from __future__ import annotations

import math


def scores(u, points):
    """⟨u, y_j⟩ for one query u and every token."""
    return [sum(a * b for a, b in zip(u, y, strict=True)) for y in points]


def softmax_mean(u, points, weights):
    """Σ w_j e^{⟨u,y_j⟩} y_j / Σ w_j e^{⟨u,y_j⟩} for one query u, term by term."""
    found = scores(u, points)
    top = max(s for s, w in zip(found, weights, strict=True) if w > 0)
    total, mean = 0.0, [0.0] * len(u)
    for score, y, w in zip(found, points, weights, strict=True):
        mass = w * math.exp(score - top)
        total += mass
        for c in range(len(u)):
            mean[c] += mass * y[c]
    return [m / total for m in mean]


def log_partition(u, points, weights):
    """log Σ w_j e^{⟨u,y_j⟩} for one query u, with the largest term taken out."""
    terms = [math.log(w) + s for s, w in zip(scores(u, points), weights, strict=True) if w > 0]
    return max(terms) + math.log(sum(math.exp(term - max(terms)) for term in terms))


def unnormalised_sum(u, points, weights):
    """Σ w_j e^{⟨u,y_j⟩} y_j for one query u, term by term."""
    masses = [w * math.exp(s) for s, w in zip(scores(u, points), weights, strict=True)]
    return [sum(m * y[c] for m, y in zip(masses, points, strict=True)) for c in range(len(u))]


def sigmoid_sum(u, points, weights):
    """Σ w_j σ(⟨u,y_j⟩) y_j for one query u, with σ(s) = (1 + tanh(s/2)) / 2."""
    masses = [w * (1 + math.tanh(s / 2)) / 2 for s, w in zip(scores(u, points), weights, strict=True)]
    return [sum(m * y[c] for m, y in zip(masses, points, strict=True)) for c in range(len(u))]


def linear_mean(u, points, weights):
    """ȳ + Cu for one query u, ȳ and C the mean and the covariance of the tokens with weights scaled to sum 1."""
    d, total = len(u), sum(weights)
    mean = [sum(w * y[c] for y, w in zip(points, weights, strict=True)) / total for c in range(d)]
    out = list(mean)
    for y, w in zip(points, weights, strict=True):
        z = [y[c] - mean[c] for c in range(d)]
        along = sum(a * b for a, b in zip(z, u, strict=True))
        for c in range(d):
            out[c] += w / total * along * z[c]
    return out


KERNELS = {
    "softmax": softmax_mean,
    "unnormalised": unnormalised_sum,
    "sigmoid": sigmoid_sum,
    "linear": linear_mean,
}


def attention(kernel, causal, points, weights, queries):
    """The kernel at every query; under a causal mask query i is given the tokens j ≤ i and their weights."""
    seen = [i + 1 if causal else len(points) for i in range(len(queries))]
    return [KERNELS[kernel](u, points[:n], weights[:n]) for u, n in zip(queries, seen, strict=True)]


def velocity(Q, K, V, points, weights, beta):
    """dx_i/dt = P_{x_i} V m_i with a_ij = softmax_j(β⟨Qx_i, Kx_j⟩) for every token, with lists of lists."""
    d, k = len(points[0]), len(Q)
    out = []
    for x in points:
        q = [sum(Q[r][c] * x[c] for c in range(d)) for r in range(k)]
        u = [beta * sum(K[r][c] * q[r] for r in range(k)) for c in range(d)]
        m = softmax_mean(u, points, weights)
        w = [sum(V[r][c] * m[c] for c in range(d)) for r in range(d)]
        along = sum(a * b for a, b in zip(w, x, strict=True))
        out.append([a - along * b for a, b in zip(w, x, strict=True)])
    return out
