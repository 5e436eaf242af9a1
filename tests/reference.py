"""Slow, literal references: double loops over the formulas, in plain Python floats."""

from __future__ import annotations

import math


def softmax_mean(u, points, weights):
    """Σ w_j e^{⟨u,y_j⟩} y_j / Σ w_j e^{⟨u,y_j⟩} for one query u, term by term."""
    scores = [sum(a * b for a, b in zip(u, y, strict=True)) for y in points]
    top = max(s for s, w in zip(scores, weights, strict=True) if w > 0)
    total, mean = 0.0, [0.0] * len(u)
    for score, y, w in zip(scores, points, weights, strict=True):
        mass = w * math.exp(score - top)
        total += mass
        for c in range(len(u)):
            mean[c] += mass * y[c]
    return [m / total for m in mean]


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
