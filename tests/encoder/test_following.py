"""One head of a trained encoder in the laboratory, against the layer's own attention from the raw weights."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoModel

import metastable as ms
from metastable.cli.simulate import findings
from metastable.encoder import families
from metastable.encoder.load import Encoder, load
from metastable.encoder.trained_head import (
    default_horizon,
    follow,
    full_support,
    head_of,
    parse_address,
    prepare,
    sentence,
    tokens_of,
)
from metastable.errors import BadInput
from tests.encoder import models

TEXT = models.TEXTS[2]
ADDRESS = f"{models.minilm()}:{{}}:{{}}"


@cache
def encoder():
    return load(models.minilm())


@cache
def raw():
    """The eager model in float64, and what each of its layers reads of TEXT, (n, d)."""
    model = AutoModel.from_pretrained(models.minilm(), attn_implementation="eager", local_files_only=True).double()
    with torch.no_grad():
        ids = models.tokenizer()(TEXT, return_tensors="pt")
        return model, [x[0] for x in model(**ids, output_hidden_states=True).hidden_states]


def standardised(layer):
    """z of TEXT at a layer, from what that layer reads, and the normalisation that wrote it."""
    model, x = raw()
    norm = model.embeddings.LayerNorm if layer == 0 else model.encoder.layer[layer - 1].output.LayerNorm
    return (x[layer] - norm.bias.detach()) / norm.weight.detach(), norm


def own_update(layer, head):
    """P_z C W_o Σ_j a_ij (v_j − v₀), v₀ being the value of z = 0, in units of ρ√d: literally, token by token."""
    model, x = raw()
    block = model.encoder.layer[layer].attention
    rows = slice(32 * head, 32 * head + 32)
    (q, k, v) = ((block.self.query, block.self.key, block.self.value)[i] for i in range(3))
    z, norm = standardised(layer)
    with torch.no_grad():
        queries, keys, values = (linear(x[layer])[:, rows] for linear in (q, k, v))
        constant = v(norm.bias)[rows]
        rho = math.sqrt(float((norm.weight**2 + norm.bias**2).mean()))
        moved = []
        for i in range(len(z)):
            weights = torch.tensor([math.exp(float(queries[i] @ key) / math.sqrt(32)) for key in keys]).double()
            mean = (weights / weights.sum()) @ values
            update = block.output.dense.weight[:, rows] @ (mean - constant)
            update = update - update.mean()
            along = z[i] / z[i].norm()
            moved.append((update - (update @ along) * along) / (rho * math.sqrt(384)))
    return torch.stack(moved)


@pytest.mark.parametrize(("layer", "head"), [(0, 9), (2, 9), (4, 6)])
def test_the_flow_starts_as_the_layer_itself_moves_tokens(layer, head):
    """One layer is one unit of time: velocity = the head's own update relative to the residual."""
    folded, beta = head_of(encoder(), layer, head)
    cloud = tokens_of(encoder(), [TEXT], layer, special="include")
    run = ms.simulate(folded, cloud, beta=beta, until=1e-6, method="euler", step=1e-6, t_eval=2)
    found = (run.frames[1] - run.frames[0]) / 1e-6
    expected = own_update(layer, head)
    scale = float(expected.norm(dim=1).max())
    assert float((found - expected).norm(dim=1).max()) < 1e-4 * scale
    assert 1e-3 < scale < 10
    doubled = head_of(encoder(), layer, head, residual=2.0)[0]
    once = head_of(encoder(), layer, head, residual=1.0)[0]
    assert torch.allclose(2 * ms.velocity(doubled, cloud, beta), ms.velocity(once, cloud, beta))


def test_tokens_are_those_of_the_encoder():
    z, _ = standardised(3)
    expected = z / z.norm(dim=1, keepdim=True)
    everyone = tokens_of(encoder(), [TEXT], 3, special="include")
    assert torch.allclose(everyone.points, expected, atol=1e-5)
    ordinary = tokens_of(encoder(), [TEXT], 3)
    assert torch.allclose(ordinary.points, expected[1:-1], atol=1e-5)
    assert ordinary.equal_weights
    assert float(ordinary.points.mean(dim=1).abs().max()) < 1e-6
    assert ordinary.law["fingerprint"] == encoder().fingerprint


def test_a_sample_of_tokens_is_fair_and_bounded():
    texts = [*models.TEXTS, "Dogs bark at night."] * 3
    everyone = tokens_of(encoder(), texts, 1)
    some = tokens_of(encoder(), texts, 1, most=20)
    assert (len(some), some.law["tokens"], some.law["n"], some.law["texts"]) == (20, len(everyone), 20, 12)
    places = [int((everyone.points - point).norm(dim=1).argmin()) for point in some.points]
    assert all(torch.allclose(everyone.points[i], p, atol=1e-6) for i, p in zip(places, some.points, strict=True))
    assert torch.equal(some.points, tokens_of(encoder(), texts, 1, most=20).points)
    assert not torch.equal(some.points, tokens_of(encoder(), texts, 1, most=20, seed=1).points)
    drawn = [tokens_of(encoder(), [TEXT], 0, most=10, seed=seed).points for seed in range(12)]
    own = tokens_of(encoder(), [TEXT], 0).points
    seen = {int((own - point).norm(dim=1).argmin()) for sample in drawn for point in sample}
    # A given token is missed by all 12 samples with probability (1 − 10/n)^12, below 0.1 %.
    assert len(seen) == len(own)


def test_the_law_of_full_support():
    cloud = full_support(5, 40_000, seed=3)
    assert float(cloud.points.sum(dim=1).abs().max()) < 1e-12
    assert torch.allclose(cloud.points.norm(dim=1), torch.ones(40_000, dtype=torch.float64))
    wanted = (torch.eye(5, dtype=torch.float64) - 0.2) / 4
    assert torch.allclose(cloud.points.T @ cloud.points / 40_000, wanted, atol=5e-3)
    assert torch.allclose(cloud.points.mean(dim=0), torch.zeros(5, dtype=torch.float64), atol=1e-2)
    assert float(ms.uniform(100, 5).points.sum(dim=1).abs().max()) > 0.1
    with pytest.raises(BadInput, match="d is 2"):
        full_support(2, 10)


def test_following_keeps_tokens_on_their_sphere_and_says_where_it_came_from(tmp_path):
    address = ADDRESS.format(0, 9)
    run = follow(address, models.TEXTS, until=4.0, t_eval=5, encoder=encoder(), checkpoint=tmp_path / "run.zarr")
    assert float(run.final.points.sum(dim=1).abs().max()) < 1e-6
    again = ms.Run.load(tmp_path / "run.zarr")
    assert again.cloud.law["address"] == address
    assert (again.cloud.law["layer"], again.cloud.law["head"]) == (0, 9)
    assert again.cloud.law["fingerprint"] == encoder().fingerprint
    assert again.cloud.law["law"] == "tokens"
    assert sentence(again) == sentence(run)
    assert run.beta == pytest.approx(run.cloud.law["effective_beta"])


def test_a_head_with_a_limit_says_how_far_from_it_the_run_stayed(tmp_path):
    run = follow(ADDRESS.format(0, 9), law="uniform", n=60, encoder=encoder())
    assert run.horizon == pytest.approx(3 * math.log(run.beta) / run.theory().rate)
    assert run.theory().lipschitz == math.inf
    # Sixty tokens in 384 dimensions have no full support: they meet elsewhere, at right angles to the limit law.
    assert (run.distance() > 1.2).all()
    said = sentence(run)
    assert f"theory: tokens go to two points at rate {run.theory().rate:.3g} a layer".lower() in said.lower()
    assert "not part of the theory" in said
    cosines = [(x @ x.T).double().fill_diagonal_(0).sum() / (60 * 59) for x in (run.frames[0], run.frames[-1])]
    assert "The tokens ended in one point" in said
    assert "This is the terminal phase: 99 % of their energy is in the dominant space of V. W2 to the limit" in said
    assert f"Mean token cosine {cosines[0]:.3f} → {cosines[1]:.3f}" in said
    assert cosines[1] > 0.99
    ends = torch.linalg.qr(run.theory().terminal.basis).Q
    shares = [float((x @ ends).square().sum(dim=1).mean()) for x in (run.frames[0], run.frames[-1])]
    # The terminal phase, by the spectrum of V: that is where they meet.
    assert shares[0] < 0.05
    assert shares[1] > 0.99
    assert f"in that of V (dim {ends.shape[1]}) {shares[0]:.3f} → {shares[1]:.3f}" in said
    with pytest.raises(BadInput, match="needs linear scores"):
        run.certificate()
    assert any("stays within a factor" in line for line in findings(run)["sentences"])
    assert findings(run)["sentences"][0].startswith("The tokens ended in one point")
    page = run.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "The distance to the limit law stayed near" in page
    assert "The Laplace term, the Lyapunov term and the bound are left out" in page


def test_a_rotating_head_has_no_limit_and_says_so(tmp_path):
    run = follow(ADDRESS.format(2, 9), models.TEXTS[:1], until=3.0, t_eval=4, encoder=encoder())
    assert run.theory().attention.rotates
    for ask in (run.distance, run.phases, run.noise_floor):
        with pytest.raises(BadInput, match="complex dominant pair") as error:
            ask()
        assert "\n" not in str(error.value)
    assert "no limit point" in sentence(run)
    assert "share of tokens in the dominant eigenspace of m (dim 2)" in sentence(run).lower()
    assert "no limit point" in findings(run)["no_limit"]
    assert "no limit law to compare with" in run.report(tmp_path / "r.html").read_text(encoding="utf-8")
    assert default_horizon(run.head, run.beta) == 100


def test_a_head_that_leads_nowhere_says_so(tmp_path):
    """M = −QᵀQ: the kernel dominates."""
    q = torch.randn(2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    origin = {"address": "m:0:0", "model": "m", "layer": 0, "head": 0, "left_out": []}
    cloud = full_support(8, 30)
    cloud.law |= origin
    run = ms.simulate(ms.Head(q, q, -torch.eye(8)), cloud, beta=50.0, until=2.0, t_eval=3)
    assert "does not concentrate tokens anywhere of its own" in sentence(run)
    assert "does not concentrate" in run.report(tmp_path / "r.html").read_text(encoding="utf-8")
    with pytest.raises(BadInput, match="did not start from a head"):
        sentence(ms.simulate(ms.Head(q, q, torch.eye(8)), full_support(8, 5), beta=5.0, until=0.1, t_eval=2))


def test_the_residual_of_a_pre_norm_layer_is_measured():
    model = models.tiny("modernbert", vocab_size=30522)
    made = Encoder("m", model, models.tokenizer(), families.anatomy(model))
    ready = prepare("m:1:2", [TEXT], encoder=made)
    with torch.no_grad():
        ids = models.tokenizer()(TEXT, return_tensors="pt")
        h = model(**{k: ids[k] for k in ("input_ids", "attention_mask")}, output_hidden_states=True).hidden_states[1]
    h = h[0, 1:-1].double()
    rho = float((h - h.mean(dim=1, keepdim=True)).square().mean().sqrt())
    assert ready.cloud.law["residual"] == pytest.approx(rho, rel=1e-4)
    unmeasured = prepare("m:1:2", encoder=made)
    assert unmeasured.cloud.law["residual"] == 1.0
    assert torch.allclose(ready.head.V * rho, unmeasured.head.V, rtol=1e-4)
    assert ready.cloud.law["left_out"] == list(made.anatomy.layers[1].unfolded)
    assert "rotary positions" in ready.cloud.law["left_out"]
    assert unmeasured.cloud.law["law"] == "uniform on mean-zero vectors"
    measured_everywhere = prepare("m:1:2", [TEXT], law="uniform", n=50, encoder=made)
    assert measured_everywhere.cloud.law["residual"] == pytest.approx(rho, rel=1e-4)
    assert len(measured_everywhere.cloud) == 50


def test_a_layer_without_a_normalisation_has_no_mean_zero_sphere():
    model = models.tiny("albert", vocab_size=30522)
    made = Encoder("a", model, models.tokenizer(), families.anatomy(model))
    first, second = (prepare(f"a:{layer}:0", n=20, encoder=made).cloud for layer in (0, 1))
    assert float(first.points.sum(dim=1).abs().max()) > 0.1
    assert float(second.points.sum(dim=1).abs().max()) < 1e-12


def test_addresses():
    assert parse_address("owner/name:3:11") == ("owner/name", 3, 11)
    assert parse_address("C:/a:b:0:7") == ("C:/a:b", 0, 7)


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("minilm", "'minilm' is not the address of a head; give MODEL:layer:head"),
        ("minilm:3", "is not the address of a head"),
        (":3:4", "is not the address of a head"),
        ("minilm:three:4", "layer is 'three'"),
        ("minilm:3:-1", "head is '-1'"),
        ("minilm:3:²", "head is '²'"),
        ("minilm:3:", "head is ''"),
        ("minilm:6:0", "layer is 6; .* has layers 0 to 5"),
        ("minilm:5:12", "head is 12; layer 5 of .* has heads 0 to 11"),
    ],
)
def test_bad_addresses_are_one_line(address, line):
    with pytest.raises(BadInput, match=line) as error:
        prepare(address, encoder=encoder())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"law": "gaussian"}, "law is 'gaussian'; choose one of tokens, uniform"),
        ({"law": "tokens"}, "there are no texts"),
        ({"texts": [" "]}, "the texts hold 0 tokens"),
        ({"texts": [TEXT], "special": "maybe"}, "special is 'maybe'"),
        ({"texts": [TEXT], "n": 1}, "n is 1; at least 2 tokens"),
    ],
)
def test_bad_starts_are_one_line(arguments, line):
    with pytest.raises(BadInput, match=line) as error:
        prepare(ADDRESS.format(0, 0), encoder=encoder(), **arguments)
    assert "\n" not in str(error.value)


def test_the_horizon_is_a_few_times_what_the_theory_needs():
    slow, beta = head_of(encoder(), 4, 6)
    assert math.log(beta) / slow.theory().rate > 100
    assert default_horizon(slow, beta) == 100
    quick, beta = head_of(encoder(), 0, 9)
    assert default_horizon(quick, beta) == pytest.approx(3 * math.log(beta) / quick.theory().rate)
    assert default_horizon(quick, 0.5) == 100
    assert np.isfinite(default_horizon(quick, math.inf))
