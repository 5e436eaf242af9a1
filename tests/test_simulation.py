import math

import numpy as np
import pytest
import torch

import metastable as ms
from metastable.run import simulation
from tests.problems import circle_head

HEAD = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5))
CLOUD = ms.uniform(30, d=2, seed=0)


def test_every_method_reaches_the_same_place():
    exact = ms.simulate(HEAD, CLOUD, beta=5.0, until=1.0, t_eval=2, tol=1e-11).final.points
    for method, error in (("euler", 2e-3), ("heun", 1e-6), ("rk4", 1e-10), ("dopri5", 1e-5)):
        options = {} if method == "dopri5" else {"step": 1e-3}
        found = ms.simulate(HEAD, CLOUD, beta=5.0, until=1.0, t_eval=2, method=method, **options).final.points
        assert torch.allclose(found, exact, atol=error), method


def test_smaller_tolerance_gives_smaller_error():
    def end(tol):
        return ms.simulate(HEAD, CLOUD, beta=5.0, until=3.0, tol=tol, t_eval=2).final.points

    exact = end(1e-13)
    errors = [float((end(tol) - exact).norm(dim=1).max()) for tol in (1e-4, 1e-7, 1e-10)]
    assert errors[0] > 100 * errors[1] > 1e4 * errors[2]
    assert errors[2] < 1e-8


def test_saved_times_are_hit_exactly_and_always_include_both_ends():
    run = ms.simulate(HEAD, CLOUD, beta=5.0, until=2.0, t_eval=[0.123456789, 1.0])
    assert run.times.tolist() == [0.0, 0.123456789, 1.0, 2.0]
    assert len(ms.simulate(HEAD, CLOUD, beta=5.0, until=2.0, t_eval=7).times) == 7
    assert len(ms.simulate(HEAD, CLOUD, beta=5.0, until=0.1).times) == 101
    assert torch.equal(run.frames[0], CLOUD.points)


def test_saved_positions_do_not_depend_on_which_others_are_saved():
    few = ms.simulate(HEAD, CLOUD, beta=5.0, until=2.0, t_eval=2, tol=1e-10)
    many = ms.simulate(HEAD, CLOUD, beta=5.0, until=2.0, t_eval=50, tol=1e-10)
    assert torch.allclose(few.final.points, many.final.points, atol=1e-8)


def test_large_clouds_save_fewer_frames(monkeypatch):
    monkeypatch.setattr(simulation, "FRAME_BYTES", CLOUD.points.numel() * 8 * 20)
    assert len(ms.simulate(HEAD, CLOUD, beta=5.0, until=0.1).times) == 20


def test_fixed_steps_divide_the_intervals_evenly():
    run = ms.simulate(HEAD, CLOUD, beta=5.0, until=1.0, method="euler", step=0.3, t_eval=[0.5])
    assert run.configuration["steps"] == 4
    assert np.allclose(run.field_errors[:, 0].numpy(), [0, 0.25, 0.5, 0.75, 1.0])


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_the_tree_follows_the_same_path_with_one_tree_a_step(monkeypatch, method):
    from metastable.attention import tree

    built = 0
    original = tree.Tree._build

    def counted(self, points):
        nonlocal built
        built += 1
        original(self, points)

    monkeypatch.setattr(tree.Tree, "_build", counted)
    options = {"beta": 20.0, "until": 3.0, "t_eval": 4, "method": method, "tol": 1e-8}
    options |= {} if method == "dopri5" else {"step": 0.1}
    found = ms.simulate(HEAD, CLOUD, engine="tree", **options)
    exact = ms.simulate(HEAD, CLOUD, engine="dense", **options)
    assert torch.allclose(found.frames, exact.frames, atol=1e-6)
    steps = found.configuration["steps"] + found.configuration["rejected"]
    # One for the start, one a step; a refit may build anew when tokens have moved far, which is rare.
    assert steps < built <= 1.2 * steps + 1
    assert found.configuration["evaluations"] > 3 * built


def test_at_rest_the_step_is_as_long_as_the_method_is_stable():
    """Two tokens at V's eigenvectors ±e: the method is stable up to 3.3 over the fastest rate, whatever tol is."""
    head = ms.Head.from_interaction(np.eye(2), np.diag([1.0, 0.2]))
    cloud = ms.Cloud([[1.0, 1e-3], [-1.0, 1e-3]])
    for tol in (1e-4, 1e-9):
        run = ms.simulate(head, cloud, beta=50.0, until=1e3, t_eval=2, tol=tol)
        assert run.configuration["steps"] < 1.15 * 1e3 / (3.3 / 0.8) + 30
        assert float((run.final.points[:, 1]).abs().max()) < 10 * tol


def test_hardmax_runs_through_the_same_call():
    run = ms.simulate(HEAD, CLOUD, beta=math.inf, until=5.0, step=0.02)
    assert run.configuration["method"] == "heun"
    assert float((run.final.points.norm(dim=1) - 1).abs().max()) < 1e-12
    assert not torch.allclose(run.final.points, CLOUD.points, atol=0.1)


def test_float32_stays_float32_and_agrees():
    single = ms.simulate(HEAD, CLOUD.to(torch.float32), beta=5.0, until=1.0, tol=1e-5)
    assert single.frames.dtype == torch.float32
    double = ms.simulate(HEAD, CLOUD, beta=5.0, until=1.0)
    assert torch.allclose(single.final.points.double(), double.final.points, atol=1e-4)


def test_field_error_is_measured_at_every_step():
    """At t = 0 on the uniform law of the circle, |𝒱_β − 𝒱_∞| = (1 − I₁/I₀(κ))·|P_x V û|."""
    from scipy import special

    from metastable.flow.fields import zero_temperature

    cloud = ms.equally_spaced(300)
    run = ms.simulate(HEAD, cloud, beta=20.0, until=0.1, t_eval=2)
    u = HEAD.directions(cloud.points)
    kappa = 20.0 * u.norm(dim=1)
    shrink = 1 - torch.from_numpy(special.ive(1, kappa.numpy()) / special.ive(0, kappa.numpy()))
    zero = zero_temperature(HEAD, cloud.points)
    expected = float(((shrink.unsqueeze(1) * zero) ** 2).sum(dim=1).mean().sqrt())
    assert float(run.field_errors[0, 1]) == pytest.approx(expected, rel=1e-9)
    assert len(run.field_errors) == run.configuration["steps"] + 1


def test_a_number_that_is_not_finite_stops_the_run_with_the_time():
    huge = ms.Head.from_interaction(np.eye(2) * 1e300, np.eye(2) * 1e300)
    with pytest.raises(ms.SimulationStopped, match=r"no longer finite at t = .*beta = 1e\+10"):
        ms.simulate(huge, CLOUD, beta=1e10, until=1.0)


def test_a_field_too_rough_for_the_tolerance_stops_with_a_remedy(monkeypatch):
    noise = torch.Generator().manual_seed(0)

    def rough(*args, **kwargs):
        return torch.randn(30, 2, generator=noise, dtype=torch.float64) * 1e6

    monkeypatch.setattr(simulation._Solver, "field", rough)
    with pytest.raises(ms.SimulationStopped, match="no step is small enough for tol = 1e-09"):
        ms.simulate(HEAD, CLOUD, beta=5.0, until=1.0, tol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": -1.0}, "beta is -1.0"),
        ({"beta": math.nan}, "beta is nan"),
        ({"beta": None}, "beta is missing; give beta, or gamma"),
        ({"gamma": 2.0}, "both beta and gamma are given"),
        ({"beta": None, "gamma": -1.0}, "gamma is -1.0"),
        ({"beta": None, "gamma": math.inf}, "gamma is inf"),
        ({"beta": None, "gamma": 1e308}, "too large"),
        ({"beta": None, "gamma": "2"}, "gamma is '2'"),
        ({"until": None}, "until is None"),
        ({"until": 0}, "until is 0"),
        ({"until": -3.0}, "until is -3.0"),
        ({"until": math.inf}, "until is inf"),
        ({"until": "5"}, "until is '5'"),
        ({"engine": "gpu"}, "engine is 'gpu'; choose one of auto, dense, flash, direct, tree"),
        ({"method": "rk5"}, "method is 'rk5'"),
        ({"tol": 0}, "tol is 0"),
        ({"step": 0.1}, "step= is for the methods"),
        ({"method": "rk4", "step": -0.1}, "step is -0.1"),
        ({"t_eval": 1}, "t_eval is 1"),
        ({"merge": 0}, "merge is 0; it must be a finite number above 0"),
        ({"merge": 2.0}, "merge is 2.0; it is the largest distance of tokens that become one, below 1"),
        ({"merge": "1e-3"}, "merge is '1e-3'"),
        ({"merge": 1e-3, "beta": math.inf}, "merge needs a finite beta"),
        ({"t_eval": [3.0, 99.0]}, r"outside of 0 … 5\.0"),
        ({"t_eval": "all"}, "t_eval is 'all'"),
        ({"cloud": ms.uniform(5, d=3)}, "the head has d = 2 and the cloud d = 3"),
        ({"progress": print}, "progress is of type builtin_function_or_method; give True, False"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(options, message):
    arguments = {"head": HEAD, "cloud": CLOUD, "beta": 5.0, "until": 5.0, **options}
    with pytest.raises(ms.BadInput, match=message) as caught:
        ms.simulate(**arguments)
    assert "\n" not in str(caught.value)


def test_gamma_says_how_beta_grows_with_the_number_of_tokens(tmp_path):
    for n in (30, 60):
        cloud = ms.uniform(n, d=2, seed=0)
        run = ms.simulate(
            HEAD, cloud, until=1.0, gamma=np.float32(2), t_eval=3, merge=0.01, checkpoint=tmp_path / f"{n}.zarr"
        )
        assert run.beta == 2.0 * math.log(n)
        plain = ms.simulate(HEAD, cloud, 2.0 * math.log(n), 1.0, t_eval=3, merge=0.01)
        assert torch.equal(run.frames, plain.frames)
        kept = ms.Run.load(tmp_path / f"{n}.zarr")
        assert (kept.beta, kept.configuration["gamma"]) == (run.beta, 2.0)
        assert "gamma" not in plain.configuration


def test_progress_bar_shows_time_left_when_asked(capsys):
    ms.simulate(HEAD, CLOUD, beta=5.0, until=0.5, progress=True)
    shown = capsys.readouterr().err
    assert "simulating" in shown
    assert "left" in shown
    ms.simulate(HEAD, CLOUD, beta=5.0, until=0.5)
    assert capsys.readouterr().err == ""


class Notes:
    """A watcher that writes down what it is told, and stops the run after so many steps."""

    def __init__(self, stop_after=None):
        self.stop_after, self.steps, self.frames, self.inside = stop_after, [], [], None

    def __enter__(self):
        self.inside = True

    def __exit__(self, *exc):
        self.inside = False

    def at(self, t):
        assert self.inside
        self.steps.append(t)
        if len(self.steps) == self.stop_after:
            raise InterruptedError("enough")

    def frame(self, t, x):
        assert self.inside
        self.frames.append((t, x))


def test_a_watcher_is_told_of_every_step_and_frame_and_changes_nothing():
    notes = Notes()
    run = ms.simulate(HEAD, CLOUD, beta=5.0, until=2.0, t_eval=[0.5], progress=notes)
    assert [t for t, _ in notes.frames] == run.times.tolist() == [0.0, 0.5, 2.0]
    assert torch.equal(torch.stack([x for _, x in notes.frames]), run.frames)
    assert len(notes.steps) == run.configuration["steps"] + run.configuration["rejected"]
    assert notes.steps[-1] == 2.0
    assert notes.inside is False
    assert torch.equal(run.frames, ms.simulate(HEAD, CLOUD, beta=5.0, until=2.0, t_eval=[0.5]).frames)


def test_a_watcher_stops_a_run_within_a_step_and_a_checkpoint_goes_on_from_there(tmp_path):
    arguments = {"beta": 5.0, "until": 2.0, "t_eval": 9, "tol": 1e-9, "checkpoint": tmp_path / "run.zarr"}
    first, second = Notes(stop_after=12), Notes()
    with pytest.raises(InterruptedError, match="enough"):
        ms.simulate(HEAD, CLOUD, progress=first, **arguments)
    assert len(first.steps) == 12
    assert first.inside is False
    assert 1 < len(first.frames) < 9
    run = ms.simulate(HEAD, CLOUD, progress=second, **arguments)
    assert [t for t, _ in second.frames] == run.times.tolist()
    assert torch.equal(torch.stack([x for _, x in second.frames]), run.frames)
    assert second.steps[0] > first.frames[-1][0]
    whole = ms.simulate(HEAD, CLOUD, **{**arguments, "checkpoint": None})
    assert torch.equal(run.frames, whole.frames)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, torch.tensor])
def test_scalars_of_every_kind_are_numbers(kind):
    plain = ms.simulate(HEAD, CLOUD, beta=5.0, until=1.0, t_eval=3)
    other = ms.simulate(
        HEAD, ms.uniform(np.int32(30), d=np.int64(2), seed=np.int8(0)), kind(5), kind(1), t_eval=np.int64(3)
    )
    assert torch.equal(plain.final.points, other.final.points)


@pytest.mark.slow
def test_two_hundred_thousand_tokens_fit_in_four_gibibytes():
    """A step of N = 200 000 tokens at d = 3 and its distance, in a process of its own, with every tool loaded."""
    import subprocess
    import sys

    code = """
import resource, torch, metastable as ms
head = ms.Head.from_spectra([1.5, 0.9, 0.6], [1.2, 0.7, 0.4], seed=4)
cloud = ms.uniform(200_000, d=3, seed=0).to(torch.float32)
run = ms.simulate(head, cloud, beta=100.0, until=0.1, method="euler", step=0.1, t_eval=2)
assert float(run.distance()[-1]) < float(run.distance()[0])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4 * 2**30


def test_a_run_says_what_it_took():
    took = ms.simulate(HEAD, CLOUD, beta=5.0, until=0.1, t_eval=2).configuration
    assert took["seconds"] > 0
    assert took["cpu_seconds"] > 0
