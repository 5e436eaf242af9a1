"""The ten oracles of a correct program (theory, section 7), on every engine."""

import math

import numpy as np
import pytest
import torch
from scipy import special
from scipy.integrate import solve_ivp

import metastable as ms
from metastable import transport
from tests.problems import equiangular, head_with_generator, random_matrix

I = torch.eye  # noqa: E741


def identity_head(d):
    return ms.Head.from_interaction(I(d), I(d))


def follow(head, cloud, beta, until, engine, t_eval=11, tol=1e-9):
    return ms.simulate(head, cloud, beta=beta, until=until, engine=engine, t_eval=t_eval, tol=tol)


class TestOracle1ZeroTemperatureThroughTheSameCall:
    @pytest.mark.parametrize("beta", [1e4, 1e5, 1e6])
    def test_large_beta_is_finite_in_both_precisions(self, engine, dtype, beta):
        head = head_with_generator(random_matrix(3, 0))
        cloud = ms.uniform(200, d=3, seed=0).to(dtype)
        field = ms.velocity(head, cloud, beta, engine=engine)
        assert bool(torch.isfinite(field).all())
        assert float(field.norm(dim=1).max()) <= float(torch.linalg.matrix_norm(head.V, 2)) * (1 + 1e-5)

    def test_softmax_tends_to_hardmax(self, engine):
        head = head_with_generator(random_matrix(3, 0))
        cloud = ms.Cloud(ms.uniform(40, d=3, seed=0).points, weights=torch.arange(1, 41))
        hard = ms.velocity(head, cloud, math.inf)
        # Tokens whose best and second-best scores are closer than 1e-4 have not decided yet at β = 10⁶.
        scores = (head.directions(cloud.points) @ cloud.points.T).sort(dim=1).values
        decided = scores[:, -1] - scores[:, -2] > 1e-4
        assert int(decided.sum()) > 30
        assert torch.allclose(ms.velocity(head, cloud, 1e6, engine=engine)[decided], hard[decided], atol=1e-9)
        assert not torch.allclose(ms.velocity(head, cloud, 10.0, engine=engine)[decided], hard[decided], atol=1e-2)


class TestOracle2UniformLawGivesTheVonMisesFisherMean:
    @pytest.mark.parametrize("beta", [1.0, 10.0, 100.0])
    def test_on_the_sphere(self, engine, beta):
        """d = 3: m_β = (coth κ − 1/κ)û with κ = β|Bᵀx|."""
        head = head_with_generator(random_matrix(3, 1))
        x = ms.uniform(20, d=3, seed=0).points
        u = beta * head.directions(x)
        kappa = u.norm(dim=1, keepdim=True)
        expected = (1 / torch.tanh(kappa) - 1 / kappa) * u / kappa
        assert torch.allclose(ms.attend(ms.fibonacci(20_000), u, engine=engine), expected, atol=2e-3 * beta**0.5 / 10)

    def test_on_the_circle_it_is_exact(self, engine):
        """d = 2: A₂(κ) = I₁(κ)/I₀(κ); equal spacing integrates a periodic function to rounding."""
        u = 30.0 * ms.uniform(10, d=2, seed=0).points
        expected = special.ive(1, 30.0) / special.ive(0, 30.0) * u / 30.0
        assert torch.allclose(ms.attend(ms.equally_spaced(400), u, engine=engine), expected, atol=1e-12)

    def test_gap_to_zero_temperature_is_first_order_in_the_temperature(self, engine):
        """|m_β − û| = (d−1)/(2κ) + …: the exponent −1, not the −½ of the general bound."""
        u = ms.uniform(5, d=2, seed=0).points
        betas = np.array([50.0, 100.0, 200.0, 400.0])
        gaps = [float((ms.attend(ms.equally_spaced(4000), b * u, engine=engine) - u).norm(dim=1).max()) for b in betas]
        assert np.polyfit(np.log(betas), np.log(gaps), 1)[0] == pytest.approx(-1, abs=0.02)
        assert gaps[-1] == pytest.approx(1 / (2 * betas[-1]), rel=0.01)


def test_oracle_3_uniform_law_with_identity_head_does_not_move(engine):
    run = follow(identity_head(2), ms.equally_spaced(200), 10.0, 2.0, engine)
    assert float((run.final.points - run.initial.points).norm(dim=1).max()) < 1e-7
    moving = follow(identity_head(2), ms.uniform(200, d=2, seed=0), 10.0, 2.0, engine)
    assert float((moving.final.points - moving.initial.points).norm(dim=1).max()) > 0.1


@pytest.mark.parametrize("beta", [0.0, 1.0, 20.0])
def test_oracle_4_two_tokens(engine, beta):
    angle = 2.2
    cloud = ms.Cloud([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
    run = follow(identity_head(2), cloud, beta, 3.0, engine)

    def rate(_, p):
        c = np.cos(p)
        return -2 * np.sin(p) * np.exp(beta * c) / (np.exp(beta) + np.exp(beta * c))

    exact = solve_ivp(rate, (0, 3), [angle], t_eval=run.times.numpy(), rtol=1e-12, atol=1e-13).y[0]
    chords = (run.frames[:, 0] - run.frames[:, 1]).norm(dim=1).numpy()
    assert np.allclose(2 * np.arcsin(chords / 2), exact, atol=1e-7)


@pytest.mark.parametrize(("n", "beta", "start"), [(3, 1.0, 0.0), (5, 4.0, -0.2), (6, 10.0, 0.5)])
def test_oracle_5_equiangular_tokens(engine, n, beta, start):
    run = follow(identity_head(n), ms.Cloud(equiangular(n, start)), beta, 4.0, engine)

    def rate(_, r):
        grown = np.exp(beta * (r - 1))
        return 2 * grown * (1 - r) * ((n - 1) * r + 1) / (1 + (n - 1) * grown)

    exact = solve_ivp(rate, (0, 4), [start], t_eval=run.times.numpy(), rtol=1e-12, atol=1e-13).y[0]
    cosines = (run.frames[:, 0] * run.frames[:, 1]).sum(dim=1).numpy()
    assert np.allclose(cosines, exact, atol=1e-7)
    others = (run.frames[:, 1] * run.frames[:, -1]).sum(dim=1).numpy()
    assert np.allclose(cosines, others, atol=1e-7)


@pytest.mark.parametrize("beta", [0.0, 10.0, 1e6, math.inf])
def test_oracle_6_a_dirac_moves_by_the_flow_of_v_at_every_temperature(engine, beta):
    head = head_with_generator(random_matrix(3, 2))
    cloud = ms.Cloud(ms.uniform(1, d=3, seed=3).points.expand(4, 3))
    run = ms.simulate(head, cloud, beta=beta, until=3.0, engine=engine, tol=1e-10, t_eval=4, method="dopri5")
    exact = ms.value_flow(head, cloud.points, run.times)
    assert torch.allclose(run.frames, exact, atol=1e-8)


class TestOracle7Symmetries:
    def setup_method(self):
        self.head = head_with_generator(random_matrix(3, 4))
        self.cloud = ms.Cloud(ms.uniform(30, d=3, seed=0).points, weights=torch.arange(1, 31))

    def test_rotation(self, engine):
        R = torch.linalg.qr(random_matrix(3, 9)).Q
        turned = ms.Head.from_interaction(R @ self.head.B @ R.T, R @ self.head.V @ R.T)
        cloud = ms.Cloud(self.cloud.points @ R.T, log_weights=self.cloud.log_weights)
        plain = follow(self.head, self.cloud, 20.0, 1.0, engine).final.points
        assert torch.allclose(follow(turned, cloud, 20.0, 1.0, engine).final.points, plain @ R.T, atol=1e-7)

    def test_permutation(self, engine):
        order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
        cloud = ms.Cloud(self.cloud.points[order], log_weights=self.cloud.log_weights[order])
        plain = follow(self.head, self.cloud, 20.0, 1.0, engine).final.points
        assert torch.allclose(follow(self.head, cloud, 20.0, 1.0, engine).final.points, plain[order], atol=1e-8)

    def test_weight_2w_is_two_tokens_of_weight_w(self, engine):
        double = self.cloud.weights.clone()
        double[0] *= 2
        merged = ms.Cloud(self.cloud.points, weights=double)
        points = torch.cat([self.cloud.points, self.cloud.points[:1]])
        split = ms.Cloud(points, weights=torch.cat([self.cloud.weights, self.cloud.weights[:1]]))
        ends = [follow(self.head, c, 20.0, 1.0, engine, tol=1e-10).final.points[:30] for c in (merged, split)]
        assert torch.allclose(*ends, atol=1e-8)
        plain = follow(self.head, self.cloud, 20.0, 1.0, engine, tol=1e-10).final.points
        assert not torch.allclose(ends[0], plain, atol=1e-4)


def test_oracle_8_energy_never_decreases_for_the_identity_head(engine):
    run = follow(identity_head(3), ms.uniform(60, d=3, seed=0), 5.0, 6.0, engine, t_eval=61)
    energy = run.observables()["log_energy"].values
    assert (np.diff(energy) >= -1e-12).all()
    assert energy[-1] > energy[0] + 0.5


def test_oracle_9_stepping_converges_to_the_exact_zero_temperature_flow():
    """Asserted for every integrator and for its order in tests/flow/test_orders.py; here the adaptive tolerance."""
    from metastable.flow.fields import zero_temperature
    from metastable.flow.steppers import dopri5, next_step

    head = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, -0.9, 0.5], seed=3)
    cloud = ms.uniform(40, d=3, seed=0)
    exact = ms.zero_temperature_flow(head, cloud, torch.tensor([2.0]))[0]
    field = lambda x, t: zero_temperature(head, x)  # noqa: E731
    reached = []
    for tol in (1e-4, 1e-7, 1e-10):
        x, t, h = cloud.points, 0.0, 0.01
        while t < 2.0:
            step = min(h, 2.0 - t)
            new, _, error = dopri5(field, t, x, field(x, t), step)
            h = next_step(step, error, tol)
            if error <= tol:
                x, t = new, t + step
        reached.append(float((x - exact).square().sum(dim=1).mean().sqrt()))
    assert reached[0] < 1e-3
    assert reached[1] < 1e-6
    assert reached[2] < 1e-9


@pytest.mark.parametrize(("dominant", "d"), [(1, 3), (1, 2), (2, 4)])
def test_oracle_10_reduced_distances_equal_the_network_simplex(dominant, d):
    values = [2.0] * dominant + [1.0 - 0.1 * i for i in range(d - dominant)]
    head = head_with_generator(torch.diag(torch.tensor(values, dtype=torch.float64)), seed=6)
    th = head.theory()
    cloud = ms.Cloud(ms.uniform(50, d=d, seed=0).points, weights=torch.arange(1, 51))
    pushed = th.limit(cloud.points)
    moved = cloud.moved_to(ms.zero_temperature_flow(head, cloud, torch.tensor([0.6]))[0])
    reduced = transport.to_limit(moved, pushed, th.basis, 2, "chordal")
    whole = ms.wasserstein(moved, cloud.moved_to(pushed), p=2)
    assert reduced.value == pytest.approx(whole.value, rel=1e-7)
    assert whole.lower == pytest.approx(whole.upper)
