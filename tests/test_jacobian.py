"""The Jacobian of the particle system, against finite differences of the field itself."""

import numpy as np
import pytest
import scipy.linalg
import torch

import metastable as ms
from metastable.flow.jacobian import Jacobian

CASES = [(2, 5, 3.0, False), (3, 6, 20.0, False), (4, 7, 0.0, False), (3, 6, 8.0, True)]


def problem(d, n, beta, folded, seed=0):
    rng = np.random.default_rng(seed)
    B, V, offset = rng.normal(size=(d, d)), rng.normal(size=(d, d)), rng.normal(size=d)
    head = ms.Head(np.eye(d), B, V, offset=offset if folded else None)
    cloud = ms.Cloud(rng.normal(size=(n, d)), weights=rng.uniform(0.1, 1.0, n))
    return rng, head, cloud, Jacobian(head, beta, cloud.points.numpy(), cloud.log_weights.numpy())


def tangent(rng, x):
    v = rng.normal(size=x.shape)
    return v - (v * x).sum(axis=1, keepdims=True) * x


def velocity(head, points, log_weights, beta):
    return ms.velocity(head, ms.Cloud(points, log_weights=log_weights), beta, engine="dense").numpy()


@pytest.mark.parametrize(("d", "n", "beta", "folded"), CASES)
def test_the_jacobian_is_the_derivative_of_the_field(d, n, beta, folded):
    rng, head, cloud, response = problem(d, n, beta, folded)
    x, eps = cloud.points.numpy(), 1e-5
    for _ in range(3):
        eta = tangent(rng, x)
        ends = [velocity(head, x + sign * eps * eta, cloud.log_weights, beta) for sign in (1, -1)]
        assert np.allclose(response(eta), (ends[0] - ends[1]) / (2 * eps), atol=1e-6 * (1 + beta) ** 2)


@pytest.mark.parametrize(("d", "n", "beta", "folded"), CASES)
def test_own_derivative_is_that_of_a_token_nobody_sees(d, n, beta, folded):
    rng, head, cloud, response = problem(d, n, beta, folded)
    x, eps = cloud.points.numpy(), 1e-5
    eta = tangent(rng, x)
    ends = [ms.velocity(head, cloud, beta, at=x + sign * eps * eta).numpy() for sign in (1, -1)]
    found = np.einsum("nij,nj->ni", response.A, eta)
    assert np.allclose(found, (ends[0] - ends[1]) / (2 * eps), atol=1e-6 * (1 + beta) ** 2)


@pytest.mark.parametrize(("d", "n", "beta", "folded"), CASES)
def test_spread_is_the_second_order_of_tokens_split_in_two(d, n, beta, folded):
    """Each token becomes two, at x ± εξ put back on the sphere: the mean of their velocities changes by ε²(Jη + q)."""
    rng, head, cloud, response = problem(d, n, beta, folded)
    x = cloud.points.numpy()
    xi = tangent(rng, x)
    S = xi[:, :, None] * xi[:, None, :]
    logs = torch.cat([cloud.log_weights, cloud.log_weights])

    def change(eps):
        both = [x + eps * xi, x - eps * xi]
        both = [y / np.linalg.norm(y, axis=1, keepdims=True) for y in both]
        f = velocity(head, np.concatenate(both), logs, beta)
        eta = 0.5 * (both[0] + both[1]) - x
        still = velocity(head, x, cloud.log_weights, beta)
        return (0.5 * (f[:n] + f[n:]) - still - response(eta)) / eps**2

    q = response.spread(S)
    coarse, fine = (np.abs(change(eps) - q).max() for eps in (2e-3, 1e-3))
    assert fine < 0.3 * coarse + 1e-6
    assert fine < 1e-3 * (1 + beta) ** 2 * np.abs(q).max()


@pytest.mark.parametrize(("d", "n", "beta", "folded"), CASES)
def test_hidden_scores_are_those_of_displaced_keys_and_queries(d, n, beta, folded):
    rng, _, cloud, response = problem(d, n, beta, folded)
    x = cloud.points.numpy()
    xi = tangent(rng, x)
    largest = 0.0
    for i in range(n):
        keys = sum(response.p[i, j] * (response.u[i] @ xi[j]) ** 2 for j in range(n))
        changed = x @ (response.R @ xi[i])
        own = response.p[i] @ (changed - response.p[i] @ changed) ** 2
        largest = max(largest, keys, own)
    assert response.hidden(xi[:, :, None] * xi[:, None, :]) == pytest.approx(np.sqrt(largest), rel=1e-9)


@pytest.mark.parametrize("h", [0.1, 2.0, 30.0])
def test_linear_equations_are_solved_as_by_dense_exponentials(h):
    rng, _, cloud, response = problem(3, 30, 5.0, False)
    n, d = cloud.points.shape
    columns = np.eye(n * d).reshape(n * d, n, d)
    J = np.stack([response(e).ravel() for e in columns], axis=1)
    J -= 1.1 * max(scipy.linalg.eigvals(J).real) * np.eye(n * d)
    response.__class__ = type("Shifted", (Jacobian,), {"__call__": lambda self, e: (J @ e.ravel()).reshape(n, d)})
    eta, q = rng.normal(size=(n, d)), rng.normal(size=(n, d))
    larger = np.block([[J, q.reshape(-1, 1)], [np.zeros((1, n * d + 1))]])
    exact = (scipy.linalg.expm(h * larger) @ np.append(eta.ravel(), 1.0))[:-1].reshape(n, d)
    assert np.allclose(response.shift(eta, q, h), exact, atol=2e-3 * np.abs(exact).max())
    S = rng.normal(size=(n, d, d))
    S = S @ S.transpose(0, 2, 1)
    phi = [scipy.linalg.expm(0.1 * h * a) for a in response.A]
    assert np.allclose(response.carry(S, 0.1 * h), [p @ s @ p.T for p, s in zip(phi, S, strict=True)], rtol=1e-8)
