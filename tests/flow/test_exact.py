import math

import pytest
import torch
from scipy.integrate import solve_ivp

import metastable as ms
from metastable.flow.fields import zero_temperature
from tests.problems import circle_head, head_with_generator, random_matrix


@pytest.mark.parametrize("seed", range(3))
def test_zero_temperature_flow_solves_its_equation(seed):
    head = head_with_generator(random_matrix(3, seed), seed)
    x0 = ms.uniform(1, d=3, seed=seed)

    def right_side(_, y):
        return zero_temperature(head, torch.from_numpy(y)[None])[0].numpy()

    reference = solve_ivp(right_side, (0, 6), x0.points[0].numpy(), t_eval=[0.5, 3.0, 6.0], rtol=1e-12, atol=1e-13)
    found = ms.zero_temperature_flow(head, x0, torch.tensor([0.5, 3.0, 6.0], dtype=torch.float64))
    assert torch.allclose(found[:, 0], torch.from_numpy(reference.y.T), atol=1e-9)


def test_flow_property_and_starting_point():
    head = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5))
    cloud = ms.uniform(100, d=2, seed=0)
    start = cloud.points.clone()
    whole = ms.zero_temperature_flow(head, cloud, torch.tensor([0.0, 1.0, 3.5]))
    assert torch.allclose(whole[0], start, atol=1e-13)
    assert torch.equal(cloud.points, start)
    rest = ms.zero_temperature_flow(head, cloud.moved_to(whole[1]), torch.tensor([2.5]))
    assert torch.allclose(rest[0], whole[2], atol=1e-11)


def test_many_tokens_are_done_in_chunks(monkeypatch):
    from metastable.flow import exact

    head, cloud = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5)), ms.uniform(100, d=2, seed=0)
    whole = ms.zero_temperature_flow(head, cloud, torch.tensor([1.0]))
    monkeypatch.setattr(exact, "CHUNK", 7)
    assert torch.allclose(ms.zero_temperature_flow(head, cloud, torch.tensor([1.0])), whole, atol=1e-14)


def test_jordan_block_and_rotation_are_no_obstacle():
    for M in ([[1.0, 1.0], [0.0, 1.0]], [[0.2, -3.0], [3.0, 0.2]]):
        head = ms.Head.from_interaction(torch.eye(2), torch.tensor(M, dtype=torch.float64))
        cloud = ms.uniform(20, d=2, seed=0)
        # B = I: the clock runs at 1, so the flow is that of V.
        times = torch.tensor([0.7, 5.0])
        assert torch.allclose(
            ms.zero_temperature_flow(head, cloud, times), ms.value_flow(head, cloud.points, times), atol=1e-10
        )


def test_value_flow_does_not_overflow_at_great_times():
    head = ms.Head.from_interaction(torch.eye(3), torch.diag(torch.tensor([5.0, 4.0, -3.0])).double())
    end = ms.value_flow(head, ms.uniform(10, d=3, seed=0).points, torch.tensor([1e4]))[0]
    assert torch.allclose(end[:, 0].abs(), torch.ones(10, dtype=torch.float64))


def test_a_token_in_the_kernel_of_the_interaction_stops_with_a_sentence(monkeypatch):
    from metastable.flow import exact

    monkeypatch.setattr(exact, "PANELS", 50)
    head = ms.Head.from_interaction(torch.diag(torch.tensor([1.0, 0.0])), torch.eye(2))
    with pytest.raises(ms.SimulationStopped, match="where Bᵀx vanishes"):
        ms.zero_temperature_flow(head, ms.Cloud([[0.0, 1.0]]), torch.tensor([1.0]))


@pytest.mark.parametrize("times", [[1.0, 0.5], [-1.0], [], [[1.0]], [math.nan], [math.inf]])
def test_bad_times_are_refused(times):
    head = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5))
    with pytest.raises(ms.BadInput, match="times must be"):
        ms.zero_temperature_flow(head, ms.uniform(3, d=2), torch.tensor(times))


def test_offset_has_no_exact_flow():
    head = ms.Head(torch.eye(2), torch.eye(2), torch.eye(2), offset=[1.0, 0.0])
    with pytest.raises(ms.BadInput, match="linear scores"):
        ms.zero_temperature_flow(head, ms.uniform(3, d=2), torch.tensor([1.0]))
