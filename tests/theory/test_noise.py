"""Noise on the sphere against time stepping, quadrature and finite differences that share no code with the theory."""

import math

import numpy as np
import pytest
from scipy import optimize, special

from metastable.errors import BadInput
from metastable.theory.bessel import bessel_ratio, log_sphere_mean
from metastable.theory.noise import critical_noise, growth_rate, stationary_law

ANGLES = 2 * np.pi * np.arange(64) / 64


def drift(beta, kernel):
    """The velocity of tokens on the circle as a function of the masses on ANGLES, from the sums of the definition."""
    scores = np.exp(beta * np.cos(ANGLES[:, None] - ANGLES))
    pull = scores * np.sin(ANGLES - ANGLES[:, None])
    return lambda mass: pull @ mass / (scores @ mass if kernel == "softmax" else 1.0)


def derivative(values, order=1):
    k = np.fft.fftfreq(len(values), 1 / len(values))
    return np.real(np.fft.ifft((1j * k) ** order * np.fft.fft(values)))


def fokker_planck(beta, sigma, kernel, start, steps=12_000, h=0.02):
    """The order parameter at the end of ∂_tμ = −∂(μv) + (σ²/2)∂²μ: diffusion implicit, transport explicit."""
    k = np.fft.fftfreq(len(ANGLES), 1 / len(ANGLES))
    damping, velocity = 1 + h * sigma**2 / 2 * k**2, drift(beta, kernel)
    density = start / start.sum()
    for _ in range(steps):
        flux = density * velocity(density)
        density = np.real(np.fft.ifft((np.fft.fft(density) - h * 1j * k * np.fft.fft(flux)) / damping))
    return abs(float(density @ np.cos(ANGLES)))


@pytest.mark.parametrize("kernel", ["softmax", "unnormalised"])
@pytest.mark.parametrize(("beta", "l"), [(0.5, 1), (3.0, 1), (3.0, 2), (6.0, 3)])
def test_growth_rate_is_the_derivative_of_the_mean_field_equation(kernel, beta, l):  # noqa: E741
    sigma, eps, mode = 0.3, 1e-6, np.cos(l * ANGLES)

    def change(sign):
        density = (1 + sign * eps * mode) / len(ANGLES)
        return -derivative(density * drift(beta, kernel)(density)) + sigma**2 / 2 * derivative(density, 2)

    found = 2 * mode @ (change(1) - change(-1)) / (2 * eps)
    assert growth_rate(l, beta, 2, sigma, kernel) == pytest.approx(found, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("d", [3, 4, 7])
def test_growth_rate_in_higher_dimensions_by_quadrature(d):
    beta, sigma, degree = 2.5, 0.2, 2
    t, w = special.roots_gegenbauer(60, (d - 2) / 2)
    zonal = special.eval_gegenbauer(degree, (d - 2) / 2, t) / special.eval_gegenbauer(degree, (d - 2) / 2, 1.0)
    ratio = (w * np.exp(beta * t)) @ zonal / ((w * np.exp(beta * t)).sum())
    expected = degree * (degree + d - 2) * (ratio / beta - sigma**2 / 2)
    assert growth_rate(degree, beta, d, sigma) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("d", [2, 3, 10, 768])
def test_critical_noise_from_no_attention_to_very_low_temperature(d):
    assert critical_noise(0.0, d) == pytest.approx(math.sqrt(2 / d), rel=1e-12)
    assert critical_noise(1e-4, d) == pytest.approx(math.sqrt(2 / d), rel=1e-6)
    # A_d(β) = 1 − (d−1)/(2β) + (d−1)(d−3)/(8β²) + …
    ratio = 1 - (d - 1) / 2e6 + (d - 1) * (d - 3) / 8e12
    assert critical_noise(1e6, d) == pytest.approx(math.sqrt(2e-6 * ratio), rel=1e-9)
    for kernel in ("softmax", "unnormalised"):
        assert growth_rate(1, 2.0, d, critical_noise(2.0, d, kernel), kernel) == pytest.approx(0, abs=1e-12)
    assert critical_noise(1e6, d, "unnormalised") == math.inf


def test_bessel_functions_by_quadrature_and_where_they_underflow():
    t, w = special.roots_gegenbauer(80, 2.0)
    for z in (1e-9, 0.3, 20.0):
        assert log_sphere_mean(2.0, np.array([z]))[0] == pytest.approx(
            math.log((w / w.sum()) @ np.exp(z * t)), rel=1e-12, abs=1e-14
        )
    # I_ν(z) is below the smallest float here. To fourth order log Ω = q/(ν+1) − q²/(2(ν+1)²(ν+2)), q = z²/4.
    nu, z = 400.0, 2.0
    expected = 1 / 401 - 1 / (2 * 401**2 * 402)
    assert special.iv(nu, z) == 0
    assert log_sphere_mean(nu, np.array([z]))[0] == pytest.approx(expected, rel=1e-6)
    assert bessel_ratio(nu, z) == pytest.approx(1 / (401 + 1 / 402), rel=1e-8)


@pytest.mark.parametrize(
    ("beta", "share", "kernel"),
    [(1.0, 0.9, "softmax"), (5.0, 0.7, "softmax"), (1.0, 0.6, "unnormalised"), (4.0, 0.9, "unnormalised")],
)
def test_order_parameter_is_that_of_the_fokker_planck_equation(beta, share, kernel):
    sigma = share * critical_noise(beta, 2, kernel)
    reached = fokker_planck(beta, sigma, kernel, 1 + 0.5 * np.cos(ANGLES), h=0.02 if kernel == "softmax" else 0.005)
    law = stationary_law(beta, 2, sigma, kernel)
    assert law.order == pytest.approx(reached, abs=1e-7)
    assert law.spread.order == pytest.approx(reached, abs=1e-7)
    assert law.concentrated.residual < 1e-10


@pytest.mark.parametrize("d", [2, 3, 5])
def test_without_attention_it_is_the_noisy_kuramoto_model(d):
    sigma = 0.8 * math.sqrt(2 / d)
    t, w = special.roots_jacobi(80, (d - 3) / 2, (d - 3) / 2)

    def gap(r):
        weights = w * np.exp(2 * r / sigma**2 * t)
        return r - weights @ t / weights.sum()

    r = optimize.brentq(gap, 0.05, 1)
    for beta, accuracy in ((0.0, 1e-10), (1e-5, 1e-4)):
        assert stationary_law(beta, d, sigma).order == pytest.approx(r, abs=accuracy)
    if d == 2:
        kappa = 2 * r / sigma**2
        assert r == pytest.approx(special.i1(kappa) / special.i0(kappa), abs=1e-12)


def test_the_law_on_the_2_sphere_solves_its_equation_by_a_product_quadrature():
    beta, sigma = 4.0, 0.45
    law = stationary_law(beta, 3, sigma).concentrated
    assert law.order > 0.5
    phi = 2 * np.pi * np.arange(64) / 64
    y = np.stack([np.outer(np.sin(law.angle), np.cos(phi)), np.outer(np.cos(law.angle), np.ones(64))], axis=2)
    places = np.arange(0, len(law.angle), 9)
    log_Z = []
    for theta in law.angle[places]:
        score = y @ np.array([math.sin(theta), math.cos(theta)])
        log_Z.append(math.log(law.mass @ np.exp(beta * score).mean(axis=1)))
    constant = law.log_density[places] - 2 / (sigma**2 * beta) * np.array(log_Z)
    assert np.ptp(constant) < 1e-9


@pytest.mark.parametrize("beta", [0.5, 8.0])
def test_above_the_critical_noise_softmax_has_the_uniform_law_only(beta):
    law = stationary_law(beta, 2, 1.02 * critical_noise(beta, 2))
    assert law.order < 1e-9
    assert np.abs(law.concentrated.log_density).max() < 1e-8
    assert not law.hysteresis


@pytest.mark.parametrize(("beta", "kernel"), [(1.0, "softmax"), (8.0, "softmax"), (1.5, "unnormalised")])
def test_the_order_grows_like_the_third_order_expansion(beta, kernel):
    ratio = 1e-4
    p, rho = special.iv(1, beta) / special.iv(0, beta), special.iv(2, beta) / special.iv(1, beta)
    softmax = (1 - p) * ((1 - p) * rho / (2 * (1 - rho)) - p - 0.5)
    C = softmax if kernel == "softmax" else 0.5 * (rho / (1 - rho) - 1)
    law = stationary_law(beta, 2, critical_noise(beta, 2, kernel) / math.sqrt(1 + ratio), kernel)
    assert law.order**2 == pytest.approx(-ratio / C, rel=5e-3)
    assert law.spread.order == pytest.approx(law.order, rel=1e-6)


def test_unnormalised_attention_jumps_from_a_low_temperature_on():
    threshold = optimize.brentq(lambda b: special.iv(2, b) - special.iv(1, b) / 2, 1, 5)
    assert threshold == pytest.approx(2.447, abs=2e-3)
    for beta, jumps in ((2.0, False), (4.0, True)):
        sigma = 1.01 * critical_noise(beta, 2, "unnormalised")
        law = stationary_law(beta, 2, sigma, "unnormalised")
        assert law.hysteresis is jumps
        assert law.spread.order < 1e-9
        if jumps:
            concentrated = fokker_planck(beta, sigma, "unnormalised", np.exp(3 * np.cos(ANGLES)), h=0.005)
            assert law.order == pytest.approx(concentrated, abs=1e-6)


def test_low_temperature_does_not_overflow():
    law = stationary_law(500.0, 3, 0.01)
    assert law.concentrated.residual < 1e-10
    # Next to a Dirac μ ∝ e^{(2/σ²) cos θ}, and the spread of the cluster weakens the pull by about (d−1)βσ²/4.
    assert 1 - law.order == pytest.approx(0.01**2 / 2, rel=0.05)


def test_bad_arguments_are_named():
    with pytest.raises(BadInput, match="kernel"):
        critical_noise(1.0, 3, "hardmax")
    with pytest.raises(BadInput, match="nodes"):
        stationary_law(1e6, 2, 1e-4)


def test_softmax_is_continuous_at_every_temperature():
    beta = np.geomspace(1e-3, 1e5, 400)
    p, rho = special.ive(1, beta) / special.ive(0, beta), special.ive(2, beta) / special.ive(1, beta)
    assert ((1 - p) * rho / (2 * (1 - rho)) < p + 0.5).all()
