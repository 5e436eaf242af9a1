"""The mean-field solver against exact solutions, particles and the figures of earlier converged trials."""

import dataclasses
import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, special

import metastable as ms
from metastable.flow.meanfield.flow import CellSizes, Turning, follow, start
from metastable.flow.meanfield.laws import log_density
from metastable.progress import Progress
from metastable.run import mean_field as solving
from metastable.run.run import BaseRun
from metastable.theory.phases import detect
from tests.problems import circle_head, rotation

HEAD = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5))
EYE = ms.Head.from_interaction(np.eye(2), np.eye(2))


@pytest.fixture(scope="module")
def run():
    return ms.mean_field(HEAD, "uniform", beta=20.0, until=6.0, tol=2e-3, t_eval=31)


def uniform(x):
    return np.zeros(len(x))


@pytest.mark.parametrize("beta", [1.0, 20.0, 1000.0])
def test_uniform_law_sees_the_von_mises_fisher_mean(beta):
    cells = start(HEAD, uniform, 0.3 * beta**-0.5)
    x = torch.from_numpy(cells.points)
    u = beta * x @ HEAD.B
    norm = u.norm(dim=1, keepdim=True)
    length = torch.from_numpy(special.ive(1, norm.numpy()) / special.ive(0, norm.numpy()))
    w = (length * u / norm) @ HEAD.V.T
    expected = (w[:, 1] * x[:, 0] - w[:, 0] * x[:, 1]).numpy()
    assert np.abs(Turning(HEAD, beta, cells)(cells.angles) - expected).max() < 1e-5


def test_identity_head_and_uniform_law_do_not_move():
    run = ms.mean_field(EYE, "uniform", beta=30.0, until=5.0, t_eval=2)
    assert torch.allclose(run.frames[0], run.frames[-1], atol=1e-9)
    assert run.converged


@pytest.mark.parametrize("beta", [3.0, 300.0])
def test_a_narrow_law_moves_like_a_dirac_under_V(beta):
    at = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    law = ms.von_mises_fisher(1, at[0], 1e9)
    run = ms.mean_field(HEAD, law, beta=beta, until=2.0, tol=5e-4, t_eval=3)
    mean = run.final.weights @ run.final.points
    expected = ms.value_flow(HEAD, at, torch.tensor([2.0]))[0, 0]
    assert run.converged
    assert float((mean - expected).norm()) < 5e-4


def test_many_particles_agree_with_it(run):
    particles = ms.simulate(HEAD, ms.equally_spaced(1200), beta=20.0, until=3.0, t_eval=16, tol=1e-6)
    difference = np.abs(particles.distance().values - run.distance().values[:16])
    assert difference.max() < run.discretisation + 1e-3


def test_halving_the_cells_shrinks_the_error_at_second_order():
    times = list(np.linspace(0, 3, 7))
    moments = []
    for h in (1.2, 0.6, 0.3, 0.15):
        longest = h * 20**-0.5
        cells = start(HEAD, uniform, longest)
        frames, _ = follow(HEAD, cells, 20.0, times, CellSizes(longest, 0.02 * longest, 1e-7), Progress(3.0, False))
        moments.append(np.array([np.exp(w) @ (x[:, 0] * x[:, 1]) for x, w in frames]))
    changes = [np.abs(a - b).max() for a, b in pairwise(moments)]
    assert changes[0] > 4 * changes[1] > 16 * changes[2]


def test_figures_of_the_converged_trial_at_beta_100():
    """theory, section 5: least distance 0.0856, at t = 6; half of the way to V's eigenvector at t = 8."""
    run = ms.mean_field(HEAD, "uniform", beta=100.0, until=10.0, tol=2e-3, t_eval=101)
    curve = run.distance()
    assert run.converged
    assert abs(float(curve.sel(time=6.0)) - 0.0856) <= run.discretisation + 5e-5
    e, v = HEAD.theory().basis[:, 0], HEAD.theory().terminal.basis[:, 0]
    half = 0.5 * math.sqrt(2 - 2 * abs(float(e @ v)))
    crossing = float(curve.time[curve.values < half][-1])
    assert 7.5 <= crossing <= 8.5


FIRST, SECOND = ((0.5, (1.5, 0.6), -0.3, (1.0, 0.7)), (0.2, (1.4, 0.7), -0.3, (1.2, 0.5)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "beta", "departure"),
    [(FIRST, 200.0, 9), (FIRST, 400.0, 12), (FIRST, 800.0, 18), (SECOND, 400.0, 9), (SECOND, 800.0, 12)],
)
def test_departures_of_the_converged_trial(parameters, beta, departure):
    """theory, section 5: the first whole number at which the distance exceeds 1.5 times its least."""
    until = departure + 2
    run = ms.mean_field(circle_head(*parameters), "uniform", beta=beta, until=until, tol=0.01, t_eval=range(until + 1))
    curve = run.distance().values
    least = int(curve.argmin())
    assert least + int((curve[least:] > 1.5 * curve[least]).argmax()) == departure


@pytest.mark.slow
def test_the_third_head_at_beta_300():
    """theory, section 5: least distance 0.0249; half of the way at 16."""
    run = ms.mean_field(HEAD, "uniform", beta=300.0, until=18.0, tol=5e-3, t_eval=73)
    curve = run.distance()
    e, v = HEAD.theory().basis[:, 0], HEAD.theory().terminal.basis[:, 0]
    half = 0.5 * math.sqrt(2 - 2 * abs(float(e @ v)))
    assert abs(float(curve.min()) - 0.0249) <= run.discretisation + 1e-4
    assert 15.5 <= float(curve.time[curve.values < half][-1]) <= 16.5


def test_mass_is_conserved_in_every_frame(run):
    assert float(torch.logsumexp(run.log_weights, 1).abs().max()) < 1e-11
    assert math.isclose(float(run.cloud.weights[run.cloud.points @ HEAD.theory().co_basis[:, 0] > 0].sum()), 0.5)


def test_bounds_hold_the_distance_and_are_as_wide_as_the_change(run):
    curve = run.distance()
    assert (curve["lower"] <= curve).all()
    assert (curve <= curve["upper"]).all()
    assert curve.attrs["discretisation"] == run.discretisation > 0
    assert float(0.5 * (curve["upper"] - curve["lower"]).max()) <= run.discretisation * (1 + 1e-9)
    assert run.distance(p=1)[0] < run.distance()[0]
    with pytest.raises(ms.BadInput, match="target is 'somewhere'"):
        run.distance(target="somewhere")


def test_phases_have_intervals_around_their_times():
    run = ms.mean_field(HEAD, "uniform", beta=40.0, until=10.0, tol=5e-4, t_eval=51)
    found = run.phases()
    coarse = dataclasses.replace(run, frames=run.coarse.points, log_weights=run.coarse.log_weights)
    other = detect(run.times, coarse.distance().values)
    for name in ("concentrated", "terminal"):
        low, high = getattr(found, f"{name}_interval")
        assert low <= getattr(found, name) <= high
        assert min(abs(getattr(other, name) - low), abs(getattr(other, name) - high)) < 1e-9
        assert high - low < 0.2
    assert any("discretisation" in line for line in found.sentences)


def test_turning_head_and_law_turns_the_solution(run):
    R = rotation(0.7)
    turned = ms.Head.from_interaction(R @ HEAD.B @ R.T, R @ HEAD.V @ R.T)
    other = ms.mean_field(turned, "uniform", beta=20.0, until=6.0, tol=2e-3, t_eval=31)
    assert np.abs(other.distance().values - run.distance().values).max() < 1e-3


def test_a_loaded_run_is_the_saved_one(run, tmp_path):
    path = run.save(tmp_path / "run.zarr")
    with pytest.raises(ms.BadInput, match=r"ms\.MeanFieldRun\.load"):
        ms.Run.load(path)
    for back in (BaseRun.load(path), ms.MeanFieldRun.load(path)):
        assert isinstance(back, ms.MeanFieldRun)
        assert torch.equal(back.frames, run.frames)
        assert torch.equal(back.log_weights, run.log_weights)
        assert torch.equal(back.coarse.points, run.coarse.points)
        assert back.configuration == run.configuration
        assert back.phases() == run.phases()
        assert back.cloud.law == run.cloud.law
    tokens = ms.simulate(HEAD, ms.equally_spaced(8), beta=1.0, until=0.1, t_eval=2).save(tmp_path / "tokens.zarr")
    with pytest.raises(ms.BadInput, match=r"ms\.Run\.load"):
        ms.MeanFieldRun.load(tokens)


def test_what_needs_tokens_or_a_sample_does_not_exist(run):
    for name in ("laplace_term", "lyapunov_term", "certificate", "merge_error", "noise_floor", "report"):
        assert hasattr(ms.Run, name)
        assert not hasattr(run, name)
    with pytest.raises(ms.BadInput, match="figure is 'sphere'"):
        run.figure("sphere")


def test_figures_say_what_is_missing(run):
    figure = run.figure()
    names = [trace.name for trace in figure.data]
    assert "W₂ to the limit law" in names
    assert "W₂ lies in here (not exact)" in names
    assert run.figure("observables").data


def test_a_tolerance_out_of_reach_is_admitted(monkeypatch):
    monkeypatch.setitem(solving.KINDS, 2, solving.KINDS[2]._replace(levels=2))
    with pytest.warns(UserWarning, match="still changed by"):
        run = ms.mean_field(HEAD, "uniform", beta=5.0, until=1.0, tol=1e-9, t_eval=3)
    assert not run.converged
    assert "not converged" in repr(run)


def test_a_head_that_rotates_is_followed_by_its_moments():
    head = ms.Head.from_interaction(np.eye(2), rotation(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = ms.mean_field(head, ms.von_mises_fisher(1, [1.0, 0.0], 5.0), beta=10.0, until=3.0, tol=1e-2, t_eval=4)
    assert run.converged
    with pytest.raises(ms.BadInput, match="no limit"):
        run.distance()


@pytest.mark.parametrize(
    "law",
    [
        {"law": "mixture", "means": [[1.0, 0.0], [0.0, 1.0]], "kappas": [2.0, 0.0], "proportions": [0.3, 0.7]},
        ms.mixture(3, [[1.0, 0.0], [0.0, 1.0]], [2.0, 0.0], [0.3, 0.7]),
    ],
)
def test_mixtures_have_their_density(law):
    density, record = log_density(law, 2)
    theta = 0.8
    expected = 0.3 * math.exp(2 * math.cos(theta)) / (2 * math.pi * special.i0(2)) + 0.7 / (2 * math.pi)
    assert math.isclose(float(density(np.array([[math.cos(theta), math.sin(theta)]]))[0]), math.log(expected))
    assert "seed" not in record


def test_masses_of_the_limit_are_those_of_the_law():
    law = ms.von_mises_fisher(1, [1.0, 0.3], 1.5)
    run = ms.mean_field(HEAD, law, beta=5.0, until=0.2, tol=0.1, t_eval=2)
    normal = HEAD.theory().co_basis[:, 0].numpy()
    mean = np.array(law.law["mean"])

    def density(t):
        x = np.array([math.cos(t), math.sin(t)])
        return math.exp(1.5 * mean @ x)

    begin = math.atan2(normal[1], normal[0]) - math.pi / 2
    upper = integrate.quad(density, begin, begin + math.pi)[0] / (2 * math.pi * special.i0(1.5))
    found = float(run.cloud.weights[run.cloud.points @ torch.from_numpy(normal) > 0].sum())
    assert math.isclose(found, upper, rel_tol=1e-9)


def test_a_callable_law_is_the_same_as_its_name():
    named = ms.mean_field(HEAD, ms.von_mises_fisher(1, [0.0, 1.0], 2.0), beta=8.0, until=1.0, tol=0.05, t_eval=3)
    called = ms.mean_field(HEAD, lambda x: 2.0 * x[:, 1], beta=8.0, until=1.0, tol=0.05, t_eval=3)
    assert np.allclose(named.distance().values, called.distance().values, atol=1e-9)
    assert called.cloud.law["law"] == "log-density"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"beta": math.inf}, "zero-temperature flow is exact already"),
        ({"beta": 0.0}, "beta is 0.0; it must be a finite number above 0"),
        ({"beta": math.nan}, "beta is nan"),
        ({"until": -1.0}, "until is -1.0"),
        ({"tol": 0.0}, "tol is 0.0; it must lie between 0 and 1"),
        ({"tol": 1.0}, "tol is 1.0; it must lie between 0 and 1"),
        ({"law": "normal"}, "law is 'normal'"),
        ({"law": 3}, "law is a int"),
        ({"law": ms.equally_spaced(5)}, "law is 'equally_spaced', which has no density"),
        ({"law": ms.uniform(5, d=3)}, "the law lives in d = 3 and the head in d = 2"),
        ({"law": {"law": "von_mises_fisher", "mean": [1.0, 0.0]}}, "incomplete or misshapen"),
        ({"law": lambda x: x}, r"the log-density returned shape"),
        ({"law": lambda x: x[:, 0] * math.nan}, "the log-density returned NaN"),
        ({"head": ms.Head.from_interaction(np.eye(4), np.eye(4))}, "the head has d = 4; cells stop at d"),
        ({"t_eval": 1}, "t_eval is 1"),
    ],
)
def test_bad_input_is_one_clear_line(changed, message):
    arguments = {"head": HEAD, "law": "uniform", "beta": 10.0, "until": 1.0, "tol": 1e-2, **changed}
    with pytest.raises(ms.BadInput, match=message) as caught:
        ms.mean_field(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_sphere_agrees_with_many_tokens():
    """d = 3 at a moderate β and a short time, where 20 000 evenly placed tokens are the mean field to 1e-2."""
    head = ms.Head.from_spectra((1.4, 1.0, 0.7), (1.2, 0.8, 0.5), seed=4)
    run = ms.mean_field(head, "uniform", beta=10.0, until=2.0, tol=0.02, t_eval=3)
    tokens = ms.simulate(head, ms.fibonacci(20_000), beta=10.0, until=2.0, tol=1e-5, t_eval=3, engine="tree")
    assert run.converged
    assert np.abs(run.distance().values - tokens.distance().values).max() < 1e-2
    assert math.isclose(float(run.final.weights.sum()), 1.0, rel_tol=1e-12)


def test_four_dimensions_are_refused():
    head = ms.Head.from_spectra([1.5, 1.0, 0.6, 0.4], [1.2, 0.9, 0.5, 0.3], seed=0)
    with pytest.raises(ms.BadInput, match="cells stop at d = 3"):
        ms.mean_field(head, "uniform", beta=10.0, until=1.0)
