"""The family of models: every member against a literal loop, orders of its steps, noise, files, and what is refused."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from scipy.linalg import expm

import metastable as ms
from metastable import block as family
from metastable.attention import KERNELS
from metastable.flow.fields import TokenField
from metastable.flow.steppers import FIXED, dopri5, noisy_heun, unit

HEADS = [ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, -0.9, 0.5], seed=s) for s in (0, 1)]
PERCEPTRON = ms.Perceptron.random(3, 8, seed=2, strength=2.0)
CLOUD = ms.uniform(12, d=3, seed=0)
BETA = 3.0


def weights_of(kernel, scores, own, causal):
    """The weight of each token for one query; `own` is the number of the query's token."""
    seen = np.arange(len(scores)) <= own if causal else np.ones(len(scores), dtype=bool)
    n = len(scores)
    if kernel == "softmax":
        e = np.where(seen, np.exp(scores - scores[seen].max()), 0.0)
        return e / e.sum()
    if kernel == "unnormalised":
        return np.where(seen, np.exp(scores), 0.0) / n
    return np.where(seen, 1 / (1 + np.exp(-scores)), 0.0) / n


def literal_update(block, x):
    """Σ_h V_h Σ_j a_ij x_j + p(x_i), token by token."""
    out = np.zeros_like(x)
    for i in range(len(x)):
        for head in block.heads:
            B, V = head.B.numpy(), head.V.numpy()
            if block.kernel == "linear":
                part = x[: i + 1] if block.causal else x
                mean = part.mean(axis=0)
                m = mean + (part - mean).T @ (part - mean) / len(part) @ (BETA * B.T @ x[i])
            else:
                m = weights_of(block.kernel, BETA * x @ (B.T @ x[i]), i, block.causal) @ x
            out[i] += V @ m
        if block.perceptron is not None:
            p = block.perceptron
            inner = np.tanh(p.inner.numpy() @ x[i] + p.inner_offset.numpy())
            out[i] += p.outer.numpy() @ inner + p.outer_offset.numpy()
    return out


@pytest.mark.parametrize("norm", sorted(set(family.NORMS) - {"none"}))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", family.KERNELS)
def test_velocity_of_every_member_is_the_literal_sum(kernel, causal, norm):
    perceptron = ms.Perceptron.random(3, 8, seed=2, activation="tanh")
    block = ms.Block(HEADS, perceptron, kernel=kernel, causal=causal, norm=norm)
    x = CLOUD.points.numpy()
    wanted = literal_update(block, x)
    if norm in ("peri", "ngpt"):
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    if norm in ("post", "ngpt"):
        wanted -= (wanted * x).sum(axis=1, keepdims=True) * x
    np.testing.assert_allclose(ms.velocity(block, CLOUD, BETA).numpy(), wanted, atol=1e-12)


def test_pre_normalisation_sees_directions_only():
    field = TokenField(ms.Block(HEADS, norm="pre"), CLOUD.log_weights, BETA, "dense", 1e-6)
    radii = torch.linspace(0.5, 7.0, len(CLOUD)).double().unsqueeze(1)
    assert torch.allclose(field(radii * CLOUD.points, 0.0), field(CLOUD.points, 0.0), atol=1e-14)


@pytest.mark.parametrize("count", [1, 2])
def test_tokens_without_normalisation_are_rescaled(count):
    """z = e^{−tV}h with h' = Σ_h V_h m_h(h), integrated literally."""
    heads = [ms.Head.from_spectra([1.0, 0.5], [0.6, 0.3], seed=s) for s in range(count)]
    block, cloud = ms.Block(heads, norm="none"), ms.uniform(6, d=2, seed=1)
    run = ms.simulate(block, cloud, 2.0, 1.5, tol=1e-10, t_eval=2)
    V = sum(head.V.numpy() for head in heads)

    def field(h):
        out = np.zeros_like(h)
        for head in heads:
            scores = 2.0 * h @ head.B.numpy() @ h.T
            a = np.exp(scores - scores.max(axis=1, keepdims=True))
            out += (a / a.sum(axis=1, keepdims=True)) @ h @ head.V.numpy().T
        return out

    h, steps = cloud.points.numpy().copy(), 3000
    for _ in range(steps):
        d = 1.5 / steps
        k1 = field(h)
        k2 = field(h + d / 2 * k1)
        k3 = field(h + d / 2 * k2)
        h = h + d / 6 * (k1 + 2 * k2 + 2 * k3 + field(h + d * k3))
    z = run.radii[-1].numpy()[:, None] * run.frames[-1].numpy()
    np.testing.assert_allclose(z, h @ expm(-1.5 * V).T, atol=1e-8)


def test_one_head_as_a_block_is_the_head_bit_for_bit():
    for options in ({}, {"method": "rk4", "step": 0.05}, {"engine": "tree", "tol": 1e-5}, {"merge": 0.05}):
        alone = ms.simulate(HEADS[0], CLOUD, 20.0, 2.0, **options)
        block = ms.simulate(ms.Block([HEADS[0]]), CLOUD, 20.0, 2.0, **options)
        assert torch.equal(alone.frames, block.frames)
        assert torch.equal(alone.field_errors, block.field_errors)
    assert ms.Block(HEADS[0]).theory() is HEADS[0].theory()


def test_two_heads_with_one_b_add_their_v():
    B = HEADS[0].B
    both = [ms.Head.from_interaction(B, head.V) for head in HEADS]
    one = ms.Head.from_interaction(B, HEADS[0].V + HEADS[1].V)
    a, b = (ms.simulate(m, CLOUD, 10.0, 3.0, tol=1e-9) for m in (ms.Block(both), one))
    assert torch.allclose(a.frames, b.frames, atol=1e-7)


@pytest.mark.parametrize("norm", ["post", "pre", "peri", "ngpt"])
@pytest.mark.parametrize("sequential", [False, True])
def test_discrete_layers_are_literal_layers(norm, sequential):
    block = ms.Block(HEADS, ms.Perceptron.random(3, 8, seed=2, activation="tanh"), norm=norm, sequential=sequential)
    step, state = 0.3, CLOUD.points.numpy().copy()
    halves = [ms.Block(HEADS, norm=norm), block] if sequential else [block]
    for _ in range(4):
        for number, half in enumerate(halves):
            x = state / np.linalg.norm(state, axis=1, keepdims=True)
            update = literal_update(half, x)
            if number == 1:
                update -= literal_update(halves[0], x)
            if norm in ("peri", "ngpt"):
                update /= np.linalg.norm(update, axis=1, keepdims=True)
            state = state + step * update
            if norm in ("post", "ngpt"):
                state /= np.linalg.norm(state, axis=1, keepdims=True)
    run = ms.simulate(block, CLOUD, BETA, 1.2, method="layers", step=step)
    assert run.configuration["evaluations"] == 4
    assert run.times.tolist() == pytest.approx([0.0, 0.3, 0.6, 0.9, 1.2])
    found = run.frames[-1].numpy() * (1.0 if run.radii is None else run.radii[-1].numpy()[:, None])
    np.testing.assert_allclose(found, state, atol=1e-12)


def test_layers_of_length_zero_become_the_flow():
    block = ms.Block(HEADS, PERCEPTRON, sequential=True)
    flow = ms.simulate(block, CLOUD, BETA, 1.0, tol=1e-10, t_eval=2).frames[-1]
    steps = [1 / 20, 1 / 40, 1 / 80]
    errors = [
        float((ms.simulate(block, CLOUD, BETA, 1.0, method="layers", step=h, t_eval=2).frames[-1] - flow).norm())
        for h in steps
    ]
    assert np.polyfit(np.log(steps), np.log(errors), 1)[0] == pytest.approx(1.0, abs=0.15)


@cache
def end_off_the_sphere(norm, name, count):
    """The tokens after `count` steps of a method."""
    block = ms.Block([ms.Head.from_spectra([1.0, 0.5], [0.6, 0.3], seed=1)], norm=norm)
    cloud = ms.uniform(8, d=2, seed=1)
    field = TokenField(block, cloud.log_weights, 2.0, "dense", 1e-6)
    x, h = cloud.points, 2.0 / count
    for i in range(count):
        t = i * h
        k = field(x, t)
        x = dopri5(field, t, x, k, h, sphere=False)[0] if name == "dopri5" else FIXED[name](field, t, x, k, h, False)
    return x


@pytest.mark.parametrize("name", [*FIXED, "dopri5"])
@pytest.mark.parametrize("norm", ["pre", "none"])
def test_order_of_the_steps_off_the_sphere_and_with_a_clock(name, norm):
    exact = end_off_the_sphere(norm, "rk4", 800)
    counts = [4, 8, 16] if name == "dopri5" else [8, 16, 32]
    errors = [float((end_off_the_sphere(norm, name, n) - exact).norm()) for n in counts]
    order = {"euler": 1, "heun": 2, "rk4": 4, "dopri5": 5}[name]
    slope = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert slope > order - 0.3
    # The leading error of dopri5 is so small here that higher terms still count at these steps.
    assert slope < order + 0.5 or name == "dopri5"


def brownian(x, steps, until, path, field):
    """noisy_heun with `steps` steps along a Brownian path given by its increments on the finest grid, (F, n, d)."""
    h, each = until / steps, len(path) // steps
    for i in range(steps):
        x = noisy_heun(field, i * h, x, field(x, i * h), h, path[i * each : (i + 1) * each].sum(dim=0))
    return x


@pytest.mark.parametrize("d", [2, 3])
def test_strong_order_of_noise_is_at_least_one_half(d):
    """The same Brownian paths with coarser and coarser steps, against the finest: order ½ for d = 3, 1 for d = 2."""
    sigma, finest, tokens = 0.8, 1024, 400
    cloud = ms.uniform(tokens, d, seed=0)
    # Tokens that do not see each other, so that 400 paths are independent: each moves by a field of its own.
    M = ms.Head.from_spectra([1.0] + [0.4] * (d - 1), [1.0] + [0.5] * (d - 1), seed=0).V

    def field(x, t):
        y = x @ M.T
        return y - (y * x).sum(dim=1, keepdim=True) * x

    draw = torch.Generator().manual_seed(1)
    path = sigma * math.sqrt(1.0 / finest) * torch.randn(finest, tokens, d, generator=draw, dtype=torch.float64)
    exact = brownian(cloud.points, finest, 1.0, path, field)
    counts = [8, 16, 32, 64]
    errors = [float((brownian(cloud.points, n, 1.0, path, field) - exact).norm(dim=1).mean()) for n in counts]
    order = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert order > 0.45
    assert order < 1.3


def test_free_brownian_motion_forgets_its_start_at_the_rate_of_the_sphere():
    """E⟨x(t), x(0)⟩ = e^{−σ²(d−1)t/2}, the first eigenvalue of the Laplace–Beltrami operator."""
    d, sigma, until, tokens = 3, 0.7, 1.0, 20_000
    start = torch.zeros(tokens, d, dtype=torch.float64)
    start[:, 0] = 1.0
    block = ms.Block(ms.Head.from_interaction(torch.eye(d), torch.zeros(d, d)), noise=sigma, noise_seed=5)
    run = ms.simulate(block, ms.Cloud(start), 0.0, until, step=0.02, t_eval=2)
    seen = float(run.frames[-1][:, 0].mean())
    assert seen == pytest.approx(math.exp(-(sigma**2) * (d - 1) * until / 2), abs=4 * 0.6 / math.sqrt(tokens))
    assert float((run.frames[-1].norm(dim=1) - 1).abs().max()) < 1e-12


def test_noise_is_repeatable_and_its_seed_matters(tmp_path):
    block = ms.Block(HEADS[0], noise=0.3, noise_seed=1)
    first, again = (ms.simulate(block, CLOUD, BETA, 1.0, step=0.05) for _ in range(2))
    other = ms.simulate(ms.Block(HEADS[0], noise=0.3, noise_seed=2), CLOUD, BETA, 1.0, step=0.05)
    assert torch.equal(first.frames, again.frames)
    assert not torch.allclose(first.frames[-1], other.frames[-1], atol=1e-3)


@pytest.mark.parametrize("options", [{"noise": 0.3}, {"norm": "pre"}, {"norm": "none"}, {"causal": True}])
def test_interrupted_members_end_with_the_same_bits(tmp_path, monkeypatch, options):
    from metastable.run import simulation

    block = ms.Block(HEADS, PERCEPTRON, **options)
    wanted = ms.simulate(block, CLOUD, BETA, 1.0, t_eval=6)
    field = simulation._Solver.field

    def interrupted(self, x, t):
        if self.evaluations >= 20:
            raise KeyboardInterrupt
        return field(self, x, t)

    with monkeypatch.context() as patch:
        patch.setattr(simulation._Solver, "field", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ms.simulate(block, CLOUD, BETA, 1.0, t_eval=6, checkpoint=tmp_path / "run.zarr")
    resumed = ms.simulate(block, CLOUD, BETA, 1.0, t_eval=6, checkpoint=tmp_path / "run.zarr")
    assert torch.equal(resumed.frames, wanted.frames)
    loaded = ms.Run.load(tmp_path / "run.zarr")
    assert torch.equal(loaded.frames, wanted.frames)
    assert loaded.block.options == block.options
    assert loaded.block.name == block.name
    assert (loaded.radii is None) == (wanted.radii is None)
    if wanted.radii is not None:
        assert torch.equal(loaded.radii, wanted.radii)


GELU = ms.Perceptron.random(3, 8, seed=1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ms.Block(HEADS[0], norm="pre"), ms.Block(HEADS[0], norm="peri")),
        (ms.Block(HEADS[0], norm="none"), ms.Block(HEADS[0], norm="pre")),
        (ms.Block(HEADS[0], causal=True), ms.Block(HEADS[0], kernel="sigmoid")),
        (ms.Block(HEADS[0], noise=0.1), ms.Block(HEADS[0], noise=0.1, noise_seed=1)),
        (ms.Block(HEADS[0], GELU), ms.Block(HEADS[0], ms.Perceptron(**GELU.arrays, activation="relu"))),
    ],
)
def test_only_the_same_member_continues_a_run(tmp_path, first, second):
    def run(block):
        options = {"engine": "dense", "progress": False, **({"step": 0.1} if block.noise else {})}
        return ms.simulate(block, CLOUD, BETA, 0.5, checkpoint=tmp_path / "run.zarr", **options)

    made = run(first)
    assert torch.equal(run(first).frames, made.frames)
    with pytest.raises(ms.BadInput, match="holds another run: digest"):
        run(second)


def test_the_number_of_layers_does_not_depend_on_the_rounding_of_times():
    """0.1·10240 and 0.1·10241 are apart by more than 0.1 in the last digits."""
    pair, layers = ms.uniform(2, d=2, seed=0), 10241
    settings = {"method": "layers", "step": 0.1, "t_eval": [0.1 * (layers - 1)], "progress": False}
    run = ms.simulate(ms.Head.from_spectra([1.0, 0.5], [0.1, 0.05]), pair, 0.0, 0.1 * layers, **settings)
    assert run.configuration["steps"] == layers


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: ms.Block([]), "at least one head"),
        (lambda: ms.Block(None), "heads is None"),
        (lambda: ms.Block(HEADS, "hi"), "perceptron is 'hi'"),
        (lambda: ms.Block(HEADS, sequential=True), "no perceptron"),
        (lambda: ms.simulate(HEADS[0], CLOUD, 1.0, 1e-10, method="layers"), "less than one layer"),
        (lambda: ms.simulate(ms.Block(HEADS, norm="pre"), CLOUD, 1.0, 1.0, radius=None), "radius is None"),
        (lambda: ms.simulate(ms.Block(HEADS, norm="pre"), CLOUD, 1.0, 1.0, radius="a"), "radius is 'a'"),
        (lambda: ms.Block([HEADS[0], ms.Head.from_spectra([1.0, 0.5], [1.0, 0.5])]), "d = 2, 3"),
        (lambda: ms.Block(HEADS, ms.Perceptron.random(2, 4)), "d = 2 and the heads d = 3"),
        (lambda: ms.Block(HEADS, kernel="sofmax"), "did you mean 'softmax'"),
        (lambda: ms.Block(HEADS, norm="layer"), "norm is 'layer'"),
        (lambda: ms.Block(HEADS, noise=-1.0), "noise is -1.0"),
        (lambda: ms.Block(HEADS, noise=0.1, norm="pre"), "norm 'post'"),
        (lambda: ms.Block(HEADS, causal=1), "causal is 1; it must be true or false"),
        (lambda: ms.simulate(ms.Block(HEADS, noise=0.1), CLOUD, 1.0, 1.0, method="dopri5"), "moves by heun"),
        (lambda: ms.simulate(ms.Block(HEADS, noise=0.1), CLOUD, 1.0, 1.0, merge=0.01), "merge"),
        (lambda: ms.simulate(ms.Block(HEADS), CLOUD, 1.0, 1.0, merge=0.01), "2 heads"),
        (lambda: ms.simulate(ms.Block(HEADS, causal=True), ms.Cloud(CLOUD.points, range(1, 13)), 1.0, 1.0), "order"),
        (lambda: ms.simulate(ms.Block(HEADS, kernel="sigmoid"), CLOUD, math.inf, 1.0), "hardmax"),
        (lambda: ms.simulate(ms.Block(HEADS, kernel="sigmoid"), CLOUD, 1.0, 1.0, engine="tree"), "sigmoid"),
        (lambda: ms.simulate(ms.Block(HEADS, norm="none"), CLOUD, 1.0, 1.0, engine="tree"), "unit sphere"),
        (lambda: ms.simulate(ms.Block(HEADS, norm="none"), CLOUD, 1.0, 1.0, method="layers"), "continuous time"),
        (lambda: ms.simulate(HEADS[0], CLOUD, 1.0, 1.0, method="layers", step=0.3), "not a multiple"),
        (lambda: ms.simulate(HEADS[0], CLOUD, 1.0, 1.0, radius=2.0), "norms pre and peri"),
        (lambda: ms.simulate(ms.Block(HEADS, norm="pre"), CLOUD, 1.0, 1.0, radius=-2.0), "above 0"),
        (lambda: ms.simulate("head", CLOUD, 1.0, 1.0), "not str"),
        (lambda: ms.mean_field(ms.Block(HEADS), "uniform", 1.0, 1.0, 0.1), "one softmax head"),
        (lambda: ms.simulate(ms.Block(HEADS), CLOUD, 1.0, 1.0).certificate(), "one softmax head"),
        (lambda: ms.simulate(ms.Block(HEADS), CLOUD, 1.0, 1.0).head, "2 heads"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, line):
    with pytest.raises(ms.BadInput, match=line) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_kernels_of_blocks_are_those_of_attention():
    assert set(family.KERNELS) == set(KERNELS)


def test_overflow_stops_with_the_reason():
    with pytest.raises(ms.SimulationStopped, match="smaller beta"):
        ms.simulate(ms.Block(HEADS[0], kernel="unnormalised"), CLOUD, 5000.0, 1.0)


def test_a_head_and_a_perceptron_of_other_dtypes_become_one():
    block = ms.Block([HEADS[0].to(torch.float32), HEADS[1]], PERCEPTRON.to(torch.float32))
    assert {part.dtype for part in block.arrays.values()} == {torch.float64}
    run = ms.simulate(block, CLOUD.to(torch.float32), 2.0, 0.5)
    assert run.frames.dtype == torch.float32
    assert float((unit(run.frames[-1]) - run.frames[-1]).abs().max()) < 1e-6
