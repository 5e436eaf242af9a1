"""Critical scaling: the claim holds, and says FAIL when ρ, β, the theory or the flow is another one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad, solve_ivp

from metastable import claims
from metastable.claims import critical_scaling
from metastable.flow.fields import tangent
from tests.claims import failed

SMALL = {"counts": (1_000, 3_000, 10_000, 30_000), "queries": 64, "flows": (32, 40, 48, 64)}


def small(**sizes: object) -> claims.Finding:
    return critical_scaling.check(**{**SMALL, **sizes})


def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS, [check for check in found.checks if check.outcome != claims.PASS]
    assert all(row["used"] for row in found.tables["weights"])


@pytest.mark.parametrize(("kappa", "d"), [(1.0, 8), (9.0, 32), (22.0, 256)])
def test_exponential_moment_of_random_cosines(kappa: float, d: int) -> None:
    """Against the density (1 − s²)^{(d − 4)/2} of the cosine of two random vectors in d − 1 dimensions."""

    def integral(power: int, tilt: float) -> float:
        def density(s: float) -> float:
            return s**power * math.exp(tilt * s) * (1 - s * s) ** ((d - 4) / 2)

        return float(quad(density, -1, 1, epsabs=0, limit=200)[0])

    log_moment, mean = critical_scaling.others(kappa, d)
    assert log_moment == pytest.approx(math.log(integral(0, kappa) / integral(0, 0.0)), rel=1e-8)
    assert mean == pytest.approx(integral(1, kappa) / integral(0, kappa), rel=1e-8)


def test_weight_of_a_token_on_itself_is_that_of_its_row_of_the_softmax() -> None:
    """The weight that the claim reads from the output, against the diagonal of the softmax matrix in float64."""
    cloud = critical_scaling.tokens(2_000, 0.3, 64, seed=0)
    x = cloud.points.double()
    for step in critical_scaling.measured(cloud, 0.3, 2_000):
        weights = torch.softmax(step.kappa / 0.7 * x @ x.T, dim=1)
        assert step.weight == pytest.approx(float(weights.diagonal().mean()), rel=0.02, abs=1e-4)
        outputs = weights @ x
        units = outputs / outputs.norm(dim=1, keepdim=True)
        cosines = (units @ units.T)[~torch.eye(2_000, dtype=torch.bool)]
        assert step.cosine == pytest.approx(float(cosines.mean()), abs=1e-5)


def test_tokens_have_the_cosine_and_the_length_that_they_should() -> None:
    for cloud, spread in (
        (critical_scaling.tokens(500, 0.6, 256, seed=0), 0.03),
        (critical_scaling.equal_cosines(9, 0.6), 1e-12),
    ):
        gram = cloud.points.double() @ cloud.points.double().T
        assert torch.allclose(gram.diagonal(), torch.ones(len(cloud), dtype=torch.float64), atol=1e-6)
        away = gram[~torch.eye(len(cloud), dtype=torch.bool)]
        assert float(away.mean()) == pytest.approx(0.6, abs=1e-3)
        assert float(away.std()) < spread


def test_time_is_that_of_the_scalar_equation() -> None:
    n, beta = 40, 9.0

    def slope(_: float, r: np.ndarray) -> np.ndarray:
        return 2 * np.exp(beta * r) * (1 - r) * ((n - 1) * r + 1) / (np.exp(beta) + (n - 1) * np.exp(beta * r))

    time = critical_scaling.exact_time(n, beta)
    assert solve_ivp(slope, (0, time), [0.5], rtol=1e-10, atol=1e-12).y[0, -1] == pytest.approx(0.75, abs=1e-8)
    # A very negative β takes the weight of a token on itself away.
    assert critical_scaling.diluted_time(n) == pytest.approx(critical_scaling.exact_time(n, -400.0), rel=1e-9)


@pytest.mark.parametrize("change", [-0.1, 0.1])
def test_fails_for_tokens_of_another_cosine(monkeypatch: pytest.MonkeyPatch, change: float) -> None:
    plain = critical_scaling.tokens
    monkeypatch.setattr(critical_scaling, "tokens", lambda n, rho, d, seed: plain(n, rho + change, d, seed))
    assert "slope of log-odds" in failed(small(flows=(16,)))


def test_fails_when_beta_does_not_grow_with_n(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = critical_scaling.attend
    monkeypatch.setattr(
        critical_scaling,
        "attend",
        lambda cloud, queries, engine: plain(cloud, math.log(1_000) / math.log(len(cloud)) * queries, engine),
    )
    found = failed(small(flows=(16,)))
    assert "slope of log-odds" in found
    assert "cosine of outputs" in found


def test_fails_with_a_wrong_critical_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the term of the finite dimension the log-odds and their slopes are off."""
    plain = critical_scaling.others
    monkeypatch.setattr(critical_scaling, "others", lambda kappa, d: (0.0, plain(kappa, d)[1]))
    assert "log-odds" in failed(small(flows=(16,)))


def test_is_undecided_where_weights_are_not_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far below γ_c the noise of 64 queries hides a, and far above it float32 hides 1 − a."""
    monkeypatch.setattr(critical_scaling, "SHARES", (0.2, 2.6))
    found = small(flows=(16,))
    assert {row["used"] for row in found.tables["weights"] if row["N"] > 1_000} == {False}
    slopes = [check for check in found.checks if check.name.startswith("slope")]
    assert {check.outcome for check in slopes} == {claims.INCONCLUSIVE}


def test_fails_when_the_flow_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metastable.flow.fields.tangent", lambda x, w: 0.9 * tangent(x, w))
    assert "time T" in failed(small(counts=(1_000, 3_000, 10_000)))


def test_fails_when_the_beta_of_the_flow_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = critical_scaling.simulate

    def fixed(head: object, cloud: object, gamma: float, **more: object) -> object:
        return plain(head, cloud, beta=gamma * math.log(16), **more)

    monkeypatch.setattr(critical_scaling, "simulate", fixed)
    assert "time T" in failed(small(counts=(1_000, 3_000, 10_000)))
