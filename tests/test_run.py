import dataclasses
import math

import numpy as np
import pytest
import torch

import metastable as ms
from metastable.run.run import gronwall
from tests.problems import circle_head, head_with_generator

HEAD = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5))


@pytest.fixture(scope="module")
def run():
    return ms.simulate(HEAD, ms.graded(600, HEAD), beta=100.0, until=20.0)


def test_distance_is_the_network_simplex_distance_to_the_pushed_tokens():
    small = ms.simulate(HEAD, ms.graded(40, HEAD, smallest=1e-3), beta=100.0, until=4.0, t_eval=3)
    for p in (1, 2):
        curve = small.distance(p=p)
        for i in range(3):
            exact = ms.wasserstein(small.at(i), small.limit, p=p, method="exact")
            assert float(curve[i]) == pytest.approx(exact.value, rel=1e-6)
    geodesic = small.distance(cost="geodesic")
    assert float(geodesic[0]) > float(small.distance()[0])


def test_three_phases_of_the_circle_as_in_the_theory(run):
    """Theory, section 5, third head at β = 100: least distance 0.0856, half way to V's eigenvector at t = 8."""
    phases = run.phases()
    assert phases.least == pytest.approx(0.0856, rel=0.02)
    assert 3 < phases.concentrated < phases.least_time < phases.terminal < 10
    to_value = run.distance(target="terminal")
    assert float(to_value[-1]) < 1e-3
    assert float(run.distance()[-1]) == pytest.approx(float(torch.linalg.norm(_axis_gap())), rel=0.02)


def _axis_gap():
    e = HEAD.theory().basis[:, 0]
    v = HEAD.theory().terminal.basis[:, 0]
    return e - torch.sign(e @ v) * v


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tokens_at_their_limit_are_at_distance_zero(dtype):
    """No token may be split for the sake of rounding: 10⁵ weights, all at the atoms."""
    cloud = ms.graded(100_000, HEAD).to(dtype)
    short = ms.simulate(HEAD, cloud.subset(10), beta=1.0, until=0.1, t_eval=2)
    pushed = HEAD.theory().limit(cloud.points)
    arrived = dataclasses.replace(short, cloud=cloud, times=short.times[-1:], frames=pushed[None])
    assert float(arrived.distance()[0]) < (1e-14 if dtype == torch.float64 else 2e-7)


def test_terms_bound_the_distance_by_the_triangle_inequality(run):
    total = run.laplace_term().values + run.lyapunov_term().values
    assert (run.distance().values <= total + 1e-12).all()
    assert run.laplace_term().values[0] < 1e-12
    assert run.lyapunov_term().values[0] == pytest.approx(run.distance().values[0])


def test_certificate_bounds_the_laplace_term_and_says_when_it_is_vacuous(run):
    certificate = run.certificate()
    measured = run.laplace_term(cost="geodesic")
    assert (measured.values <= certificate.values + 1e-12).all()
    assert certificate.values[0] == 0
    after = certificate.attrs["vacuous_after"]
    assert 0 < after < 20
    assert (certificate.values[run.times.numpy() < after] < math.pi).all()
    # Early on it must not be far off either, or it would be of no use.
    early = (run.times.numpy() > 0) & (run.times.numpy() <= 1.0)
    assert (certificate.values[early] < 5 * measured.values[early]).all()


@pytest.mark.parametrize("seed", range(4))
def test_certificate_holds_on_other_heads(seed):
    head = ms.Head.from_spectra([1.5, 0.9, 0.5], [1.1, 0.4, -0.6], seed=seed)
    run = ms.simulate(head, ms.fibonacci(800), beta=40.0, until=2.0, t_eval=9)
    assert (run.laplace_term(cost="geodesic").values <= run.certificate().values + 1e-12).all()


def test_gronwall_of_a_constant_error_is_the_closed_form():
    s = torch.linspace(0, 2, 41, dtype=torch.float64)
    errors = torch.stack([s, torch.full_like(s, 0.3)], dim=1)
    times = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    for L in (1.7, -0.4):
        assert np.allclose(gronwall(errors, L, times), 0.3 * np.expm1(L * times.numpy()) / L)
    assert np.allclose(gronwall(errors, 0.0, times), 0.3 * times.numpy())
    assert gronwall(errors, math.inf, times).tolist() == [0.0, math.inf, math.inf]


def test_laplace_term_shrinks_and_lyapunov_term_does_not_as_beta_grows():
    cloud = ms.graded(400, HEAD)
    runs = [ms.simulate(HEAD, cloud, beta=b, until=2.0, t_eval=3) for b in (50.0, 200.0)]
    first, second = (float(r.laplace_term()[-1]) for r in runs)
    assert second < first / 2.5
    assert float(runs[0].lyapunov_term()[-1]) == pytest.approx(float(runs[1].lyapunov_term()[-1]), rel=1e-12)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_run_can_be_judged_where_gradients_are_off(mode, tmp_path):
    """Whether the run was made in that mode or outside of it, it gives the same numbers."""
    cloud = ms.graded(40, HEAD)
    outside = ms.simulate(HEAD, cloud, beta=50.0, until=2.0, t_eval=5)
    with mode():
        inside = ms.simulate(HEAD, ms.graded(40, HEAD), beta=50.0, until=2.0, t_eval=5)
        assert HEAD.theory().lipschitz == pytest.approx(ms.Head.from_interaction(HEAD.B, HEAD.V).theory().lipschitz)
        bounds = [run.certificate() for run in (inside, outside)]
        assert outside.figure("distance").data
        assert outside.report(tmp_path / "report.html").exists()
    bounds += [run.certificate() for run in (inside, ms.simulate(HEAD, cloud, beta=50.0, until=2.0, t_eval=5))]
    assert inside.figure("distance").data
    for bound in bounds:
        assert np.array_equal(bound, bounds[0])


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_the_default_dtype_of_the_host_changes_nothing(kind):
    before = torch.get_default_dtype()
    expected = ms.simulate(HEAD, ms.graded(40, HEAD), beta=50.0, until=2.0, t_eval=5)
    try:
        torch.set_default_dtype(kind)
        found = ms.simulate(HEAD, ms.graded(40, HEAD), beta=50.0, until=2.0, t_eval=5)
        assert torch.equal(found.frames, expected.frames)
        assert np.array_equal(found.certificate(), expected.certificate())
        assert np.array_equal(found.observables()["clusters"], expected.observables()["clusters"])
    finally:
        torch.set_default_dtype(before)


def test_two_dimensional_limit_has_bounds_that_enclose():
    head = head_with_generator(torch.diag(torch.tensor([1.0, 1.0, 0.2], dtype=torch.float64)), seed=1)
    run = ms.simulate(head, ms.uniform(150, d=3, seed=0), beta=200.0, until=4.0, t_eval=3)
    curve = run.distance()
    assert run.theory().dim == 2
    assert (curve.coords["lower"].values <= curve.values + 1e-12).all()
    assert (curve.values <= curve.coords["upper"].values + 1e-12).all()


def test_distance_to_any_cloud_and_unknown_target(run):
    target = ms.uniform(30, d=2, seed=5)
    short = ms.simulate(HEAD, ms.uniform(30, d=2, seed=0), beta=10.0, until=1.0, t_eval=2)
    found = short.distance(target=target)
    assert float(found[0]) == pytest.approx(ms.wasserstein(short.initial, target).value)
    with pytest.raises(ms.BadInput, match="target is 'limits'"):
        run.distance(target="limits")


def test_no_limit_is_said_in_one_line():
    head = ms.Head.from_interaction(torch.eye(2), torch.tensor([[0.3, -1.0], [1.0, 0.3]], dtype=torch.float64))
    run = ms.simulate(head, ms.uniform(20, d=2), beta=5.0, until=1.0, t_eval=3)
    for ask in (run.distance, run.phases, run.lyapunov_term, run.noise_floor):
        with pytest.raises(ms.BadInput, match="no limit point"):
            ask()
    assert run.laplace_term().values[0] < 1e-12
    assert set(run.observables()) == {"log_energy", "mean_cosine", "effective_rank", "clusters"}


def test_token_on_the_dividing_set_is_put_at_the_basis_vector():
    head = ms.Head.from_interaction(torch.eye(2), torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64)))
    run = ms.simulate(head, ms.Cloud([[0.0, 1.0], [1.0, 0.0]]), beta=5.0, until=0.1, t_eval=2)
    assert bool(torch.isfinite(run.limit.points).all())


class TestObservables:
    def observe(self, cloud, beta=4.0):
        d = cloud.dim
        run = ms.simulate(ms.Head.from_interaction(torch.eye(d), torch.eye(d)), cloud, beta=beta, until=1e-3, t_eval=2)
        return run.observables().isel(time=0)

    def test_closed_forms(self):
        opposite = self.observe(ms.Cloud([[1.0, 0.0], [-1.0, 0.0]]))
        assert float(opposite["mean_cosine"]) == pytest.approx(-1)
        assert float(opposite["effective_rank"]) == pytest.approx(1)
        assert float(opposite["clusters"]) == 2
        expected = math.log((math.exp(4) + math.exp(-4)) / 2 / 8)
        assert float(opposite["log_energy"]) == pytest.approx(expected)

    def test_weights_count(self):
        cloud = ms.Cloud([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], weights=[2, 1, 1])
        # Pairs: (0,1) cos 0, (0,2) cos −1 with weight 2·1, (1,2) cos 0; Σ_{i<j} w w = 2 + 2 + 1.
        assert float(self.observe(cloud)["mean_cosine"]) == pytest.approx(-2 / 5)

    def test_uniform_cloud_has_full_rank_and_one_cluster(self):
        found = self.observe(ms.fibonacci(2000), beta=100.0)
        assert float(found["effective_rank"]) == pytest.approx(3, abs=1e-3)
        assert float(found["clusters"]) == 1

    def test_large_beta_does_not_overflow(self):
        assert math.isfinite(float(self.observe(ms.fibonacci(200), beta=1e6)["log_energy"]))
        assert math.isnan(float(self.observe(ms.fibonacci(20), beta=0.0)["log_energy"]))


def test_unknown_figure_is_refused(run):
    with pytest.raises(ms.BadInput, match="figure is 'pie'"):
        run.figure("pie")


def test_the_dataset_has_labels_and_the_distance(run):
    data = run.to_xarray()
    assert data["frames"].sel(token=3, coordinate=1, time=0.0).item() == float(run.frames[0, 3, 1])
    assert np.array_equal(data["distance"], run.distance())
    assert np.array_equal(data["distance_upper"], run.distance()["upper"])
    rotating = ms.Head.from_interaction(torch.eye(2), [[0.0, -1.0], [1.0, 0.0]])
    assert "distance" not in ms.simulate(rotating, ms.uniform(5, d=2), 1.0, 0.1, t_eval=2).to_xarray()


def test_a_second_call_is_free(run, monkeypatch):
    """Report and figure both ask for the noise floor and for the observables."""
    floor, seen = run.noise_floor(), run.observables(sample=100)
    monkeypatch.setattr("metastable.transport.noise_floor", None)
    monkeypatch.setattr("metastable.run.run.observe", None)
    assert run.noise_floor() == floor
    assert run.observables(sample=100).equals(seen)
    assert run.theory() is run.head.theory()
