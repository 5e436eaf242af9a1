import math

import numpy as np
import pytest
import torch

import metastable as ms
from tests.problems import random_matrix


def test_interaction_scores_are_query_key_products():
    Q, K, V = random_matrix(4, 0)[:2], random_matrix(4, 1)[:2], random_matrix(4, 2)
    head = ms.Head(Q, K, V)
    x, y = random_matrix(4, 3)[0], random_matrix(4, 4)[0]
    assert float(head.directions(x[None])[0] @ y) == pytest.approx(float((Q @ x) @ (K @ y)), rel=1e-12)
    assert torch.allclose(head.B, Q.T @ K)
    assert torch.allclose(head.M, V @ (Q.T @ K).T)
    assert torch.allclose(head.values(x[None])[0], V @ x)


def test_output_and_value_factors_make_the_same_head_as_their_product():
    Q, K = random_matrix(5, 0)[:2], random_matrix(5, 1)[:2]
    outer, inner = random_matrix(5, 2)[:, :3], random_matrix(5, 3)[:3]
    factored, plain = ms.Head(Q, K, inner, output=outer), ms.Head(Q, K, outer @ inner)
    assert torch.allclose(factored.V, plain.V)
    assert torch.allclose(factored.M, plain.M)
    x = random_matrix(5, 4)
    assert torch.allclose(factored.values(x), plain.values(x))


def test_offset_shifts_every_direction():
    offset = torch.tensor([1.0, -2.0], dtype=torch.float64)
    head = ms.Head(torch.eye(2), torch.eye(2), torch.eye(2), offset=offset)
    assert torch.equal(head.directions(torch.zeros(3, 2, dtype=torch.float64)), offset.expand(3, 2))


def test_from_spectra_has_the_spectra_asked_for_and_repeats_with_its_seed():
    head = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, -0.5], seed=3)
    assert torch.allclose(torch.linalg.eigvalsh(head.B), torch.tensor([0.6, 1.0, 1.5], dtype=torch.float64))
    assert torch.allclose(torch.linalg.eigvalsh(head.V), torch.tensor([-0.5, 0.9, 1.2], dtype=torch.float64))
    assert torch.equal(head.B, ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, -0.5], seed=3).B)
    assert not torch.allclose(head.B, ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, -0.5], seed=4).B)


def test_mixed_precision_becomes_the_wider_one():
    head = ms.Head(torch.eye(2), np.eye(2), torch.eye(2))
    assert head.query.dtype == head.value.dtype == torch.float64
    assert ms.Head(torch.eye(2), torch.eye(2), torch.eye(2)).dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.eye(2), np.eye(3), np.eye(3)), "query is 2×2 and key 3×3"),
        ((np.eye(3), np.eye(3), np.eye(2)), "value is 2×2, expected 3×3"),
        ((np.ones((4, 2)), np.ones((4, 2)), np.eye(4)), "transpose query and key"),
        ((np.eye(2), np.eye(2), [[1, math.nan], [0, 1]]), r"value holds a number that is not finite \(nan at \[0, 1\]"),
        ((np.ones(3), np.eye(3), np.eye(3)), r"query has shape \(3,\)"),
        ((np.eye(2) * 1j, np.eye(2), np.eye(2)), "query is complex"),
        (("a", np.eye(2), np.eye(2)), "query is not an array of numbers"),
        ((np.zeros((0, 3)), np.zeros((0, 3)), np.eye(3)), "query has shape"),
    ],
)
def test_bad_matrices_are_named(arguments, message):
    with pytest.raises(ms.BadInput, match=message) as caught:
        ms.Head(*arguments)
    assert "\n" not in str(caught.value)


def test_bad_factors_are_named():
    with pytest.raises(ms.BadInput, match="output is 3×3 and value 2×3"):
        ms.Head(np.eye(3), np.eye(3), np.ones((2, 3)), output=np.eye(3))
    with pytest.raises(ms.BadInput, match="offset has shape"):
        ms.Head(np.eye(3), np.eye(3), np.eye(3), offset=[1.0])
    with pytest.raises(ms.BadInput, match="interaction is 2×3"):
        ms.Head.from_interaction(np.ones((2, 3)), np.eye(3))


@pytest.mark.parametrize(
    "strange", [lambda a: a[::-1, ::-1], lambda a: a.astype(">f8"), lambda a: a.astype(">f4"), lambda a: a.T]
)
def test_numpy_arrays_of_any_layout_and_byte_order_are_read(strange):
    a = strange(np.arange(1.0, 10.0).reshape(3, 3))
    assert ms.Head.from_interaction(a, a).V.tolist() == a.tolist()
    assert torch.allclose(ms.Cloud(a).points, ms.Cloud(a.tolist()).points.to(ms.Cloud(a).dtype))


def test_an_array_that_cannot_be_written_is_read_without_a_warning(recwarn):
    a = np.eye(3)
    a.flags.writeable = False
    ms.Cloud(a)
    assert not recwarn.list


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, so that nothing is missing")
@pytest.mark.parametrize("what", [ms.Head.from_spectra([2, 1], [2, 1]), ms.uniform(3, d=2)])
def test_a_missing_gpu_is_named_in_one_line(what):
    with pytest.raises(ms.BadInput, match="device is 'cuda'") as caught:
        what.to(device="cuda")
    assert "\n" not in str(caught.value)
