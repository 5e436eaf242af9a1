"""The examples and the steps of the tour say what is so."""

from __future__ import annotations

import pytest

from metastable.encoder.columns import COLUMNS
from metastable.encoder.measure import HEADS
from metastable.figures.distance import distance_curves
from metastable.lab.lessons import EXAMPLES, TOUR, fields
from metastable.lab.moments import moments
from metastable.lab.page import GROUPS
from metastable.lab.state import State, problem_of, problems
from metastable.run.simulation import simulate


def test_every_example_can_run_and_its_fields_restore_it():
    for state in (*EXAMPLES.values(), *(step.state for step in TOUR)):
        assert problems(state) == {}
        assert State.from_page(fields(state)) == state
    assert next(iter(EXAMPLES.values())) == State()


def curves(state):
    problem = problem_of(state)
    run = simulate(problem.block, problem.cloud, **problem.arguments, progress=False)
    return run, distance_curves(run)


@pytest.mark.slow
def test_the_runs_do_what_the_words_say():
    phases = {name: curves(state)[1].phases for name, state in EXAMPLES.items() if state.source == "spectra"}
    three, long = phases["Three phases"], phases["Long plateau (V = 1)"]
    assert three.concentrated
    assert three.terminal
    ends = [long.horizon if long.terminal is None else long.terminal, three.terminal]
    assert ends[0] - long.concentrated > 1.5 * (ends[1] - three.concentrated)
    # Step by step.
    warm, cold = (curves(step.state)[1].phases for step in TOUR[:2])
    assert cold.least < warm.least
    stays = [one.terminal - one.concentrated for one in (warm, cold)]
    assert stays[1] > 1.5 * stays[0]
    assert curves(TOUR[3].state)[1].phases.terminal is not None
    run, found = curves(TOUR[4].state)
    assert found.phases is None
    assert "turns tokens around" in moments(run, found)[0][1]
    plane, found = curves(EXAMPLES["Two-dimensional limit"])
    assert plane.theory().dim == 2
    assert found.phases.concentrated is not None


def test_every_column_of_an_audit_is_in_one_group():
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted((set(COLUMNS) | set(HEADS)) - {"layer", "head"})
