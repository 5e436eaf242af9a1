"""The scalar equations of normalisation schemes against n tokens that are followed one by one."""

import numpy as np
import pytest

from metastable.errors import BadInput
from metastable.theory.normalisation import NORMS, clustering_exponent, equiangular
from tests import problems


def tokens_at(norm, h, beta, t, steps=600):
    """h(t) of n tokens (n, d) by the classical Runge–Kutta method, from the definition of the scheme."""

    def unit(h):
        return h / np.linalg.norm(h, axis=1, keepdims=True)

    def attention(y):
        scores = beta * y @ y.T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights @ y / weights.sum(axis=1, keepdims=True)

    def velocity(h):
        x = unit(h)
        f = attention(h if norm == "none" else x)
        if norm in ("peri", "ngpt"):
            f = unit(f)
        if norm in ("post", "ngpt"):
            f = np.linalg.norm(h, axis=1, keepdims=True) * (f - (f * x).sum(axis=1, keepdims=True) * x)
        return f

    step = t / steps
    for _ in range(steps):
        k1 = velocity(h)
        k2 = velocity(h + step / 2 * k1)
        k3 = velocity(h + step / 2 * k2)
        k4 = velocity(h + step * k3)
        h = h + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return h


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("n", "beta", "rho0", "radius"), [(5, 2.0, 0.1, 1.0), (3, 0.5, -0.4, 0.7), (8, 4.0, 0.3, 1.5)])
def test_scalar_equations_are_those_of_n_tokens(norm, n, beta, rho0, radius):
    h = radius * problems.equiangular(n, rho0).numpy()
    h = tokens_at(norm, h, beta, 2.0)
    r = np.linalg.norm(h, axis=1)
    cosines = (h @ h.T / np.outer(r, r))[np.triu_indices(n, 1)]
    rho, found = equiangular(n, beta, rho0, norm, [0.0, 1.0, 2.0], radius=radius)
    assert np.ptp(cosines) < 1e-8
    assert rho[-1] == pytest.approx(cosines[0], abs=1e-8)
    assert found[-1] == pytest.approx(r[0], abs=1e-8)
    assert rho[0] == pytest.approx(rho0, abs=1e-14)


@pytest.mark.parametrize("norm", ["post", "ngpt", "pre", "peri"])
def test_late_times_follow_the_table(norm):
    law = clustering_exponent(norm)
    times = np.linspace(6, 12, 30) if law.kind == "exponential" else np.geomspace(1e3, 1e5, 30)
    rho, _ = equiangular(6, 1.5, 0.2, norm, times)
    clock = times if law.kind == "exponential" else np.log(times)
    slope = np.polyfit(clock, np.log(1 - rho), 1)[0]
    assert -slope == pytest.approx(law.exponent, rel=0.01)


def test_radii_grow_like_the_time_where_the_table_says_power():
    for norm in ("pre", "peri"):
        _, r = equiangular(6, 1.5, 0.2, norm, [1e4])
        assert r[0] == pytest.approx(1e4, rel=1e-3)


def test_without_normalisation_tokens_do_not_meet():
    rho, r = equiangular(6, 1.5, 0.2, "none", [1.0, 30.0, 60.0, 400.0])
    assert clustering_exponent("none").kind == "none"
    assert rho[-1] == pytest.approx(rho[1], abs=1e-10)
    assert rho[-1] < 0.99
    log_distance = np.log(r) + 0.5 * np.log(2 * (1 - rho))
    assert (np.diff(log_distance) > 0).all()
    assert np.log(r[2] / r[1]) == pytest.approx(30, rel=1e-9)


def test_all_clocks_run_through_the_same_cosines_with_the_same_radii():
    # Between two values of ρ the radius of pre grows by a factor that peri shares: d log r/dρ has no clock in it.
    found = {}
    for norm in ("pre", "peri"):
        rho, r = equiangular(4, 1.0, 0.0, norm, np.linspace(0, 3, 4001))
        found[norm] = np.interp(0.5, rho, np.log(r))
    assert found["pre"] == pytest.approx(found["peri"], abs=1e-6)


def test_bad_arguments_are_named():
    with pytest.raises(BadInput, match="norm"):
        equiangular(3, 1.0, 0.0, "batch", [1.0])
    with pytest.raises(BadInput, match="rho0"):
        equiangular(3, 1.0, -0.6, "post", [1.0])
    with pytest.raises(BadInput, match="times"):
        equiangular(3, 1.0, 0.0, "post", [2.0, 1.0])
