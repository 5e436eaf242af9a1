"""The sentence about the time that is shown: the phase that the distances say, or why there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from metastable.figures.distance import DistanceCurves, distance_curves
from metastable.lab.lessons import EXAMPLES
from metastable.lab.moments import moments
from metastable.lab.state import State, problem_of
from metastable.run.simulation import simulate
from metastable.theory.phases import detect


def simulated(state):
    problem = problem_of(state, frames=41)
    return simulate(problem.block, problem.cloud, **problem.arguments, progress=False)


@pytest.fixture(scope="module")
def run():
    return simulated(State(n=40, until=3.0))


def said(run, times, distance):
    """The first words of the sentences for a curve of distances."""
    found = moments(run, DistanceCurves(phases=detect(times, distance)))
    assert [t for t, _ in found] == sorted({t for t, _ in found})
    assert found[0][0] == 0
    return [(t, words.partition(":")[0].partition(".")[0]) for t, words in found]


T = np.linspace(0, 30, 301)
FALL = np.exp(-T) + 0.01


def test_each_phase_has_its_sentence_from_the_time_at_which_it_begins(run):
    rise = 0.01 * np.exp(np.minimum(2 * (T - 12), 4))
    phases = detect(T, FALL + rise)
    later = [one for one in phases.plateaus if one.end > phases.terminal][-1]
    assert said(run, T, FALL + rise) == [
        (0.0, "Concentrating"),
        (phases.concentrated, "On the plateau"),
        (phases.terminal, "Leaving"),
        (later.start, "Terminal"),
    ]
    words = moments(run, DistanceCurves(phases=phases))
    assert "the two points +e and −e" in words[1][1]
    assert words[2][1].startswith("Leaving: V pulls tokens away from the two points")
    assert words[2][1].endswith("towards ±v.")


def test_curves_without_all_phases(run):
    assert [name for _, name in said(run, T, FALL)] == ["Concentrating", "On the plateau"]
    assert "ends before they leave" in moments(run, DistanceCurves(phases=detect(T, FALL)))[-1][1]
    assert [name for _, name in said(run, T, np.exp(-T / 10))] == ["Concentrating"]
    assert [name for _, name in said(run, T, np.ones_like(T))] == ["No phases"]
    assert [name for _, name in said(run, [0.0], [1.0])] == ["Only one time was saved, so there are no phases to tell"]
    # Between concentration and departure the page calls everything the plateau, as the bands of the figure do.
    turning = [name for _, name in said(run, T, np.exp(np.abs(T - 15) - 3))]
    assert turning == ["Concentrating", "On the plateau", "Leaving"]


def test_heads_and_blocks_of_every_kind():
    turning = EXAMPLES["Rotation (no limit)"]
    spun = simulated(State(matrices=turning.matrices, n=30, until=2.0))
    found = moments(spun, distance_curves(spun))
    seen = spun.observables()
    assert [t for t, _ in found] == seen["time"].values.tolist()
    assert all("turns tokens around" in words for _, words in found)
    assert f"effective rank of {float(seen['effective_rank'][-1]):.2f} of 3" in found[-1][1]
    assert f"there are {int(seen['clusters'][0])} clusters" in found[0][1]
    plane = simulated(State(interaction=(1.5, 1.5, 0.6), value=(1.2, 1.2, 0.5), angle=0.0, n=60, until=6.0))
    assert "dimension 2" in moments(plane, distance_curves(plane))[0][1]
    hard = simulated(State(beta=math.inf, n=60, until=4.0))
    assert moments(hard, distance_curves(hard))[0][1].startswith("Concentrating")
    for state in (
        State(heads=3, n=30, until=1.0),
        State(kernel="linear", n=30, until=1.0),
        State(noise=0.3, n=30, until=1.0),
    ):
        block = simulated(state)
        words = moments(block, distance_curves(block))
        assert words[0][0] == 0
        if block.theory().no_limit:
            assert all(text.startswith("No phases: there is no limit law here") for _, text in words)
