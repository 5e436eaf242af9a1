"""Maps of a sweep: regions and lines against datasets whose phases are known beforehand."""

import json
import math

import numpy as np
import pytest
import xarray as xr

import metastable as ms
from metastable.errors import BadInput
from metastable.figures import phase_diagram
from metastable.figures.look import caption
from metastable.figures.phase_diagram import MOST_CELLS, PHASES, regions, terminal_level
from tests.problems import circle_head

COURSES = "one_time still falling settled"
TIMES = np.linspace(0.0, 10.0, 11)
STILL, FALLING, SETTLED = 1, 2, 3


def made(axes, law="uniform", **given):
    """A dataset as `sweep` leaves it, with these numbers in it."""
    dims, shape = tuple(axes), tuple(map(len, axes.values()))
    usual = {"concentrated": math.nan, "terminal": math.nan, "least": 0.1, "course": SETTLED, "status": 0}
    data = {name: (dims, np.broadcast_to(given.get(name, value), shape).copy()) for name, value in usual.items()}
    data["reason"] = (dims, np.full(shape, "", dtype=object))
    distance = given.get("distance", np.broadcast_to(np.exp(-TIMES), (*shape, len(TIMES))).copy())
    data["distance"] = ((*dims, "time"), distance)
    found = xr.Dataset(
        data, coords={**axes, "time": TIMES}, attrs={"configuration": json.dumps({"cloud": {"law": law}})}
    )
    found["course"].attrs["flag_meanings"] = COURSES
    return found


def cells(figure):
    return np.array(figure.data[0].z, dtype=float)


def test_regions_are_those_of_the_phases():
    data = made(
        {"beta": [10.0, 20.0, 30.0, 40.0, 50.0]},
        concentrated=[2.5, 3.0, math.nan, math.nan, 1.0],
        terminal=[6.0, math.nan, math.nan, math.nan, 4.0],
        course=[SETTLED, SETTLED, FALLING, STILL, SETTLED],
        status=[0, 0, 0, 0, 1],
    )
    found = regions(data).values
    assert found[0].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2]
    assert found[1].tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert found[2].tolist() == [0] * 11
    assert np.isnan(found[3]).all()
    assert np.isnan(found[4]).all()


def test_what_a_run_did_not_reach_is_white():
    distance = np.broadcast_to(np.exp(-TIMES), (2, 11)).copy()
    distance[0, 6:] = math.nan
    data = made({"beta": [10.0, 20.0]}, concentrated=2.0, distance=distance)
    assert np.isnan(regions(data).values).sum(axis=1).tolist() == [5, 0]
    assert np.isnan(cells(phase_diagram(data, "distance"))).sum(axis=1).tolist() == [5, 0]


def test_axes_are_put_in_order_and_zero_temperature_has_a_row():
    data = made({"beta": [1000.0, math.inf, 10.0, 100.0]}, least=[3.0, 4.0, 1.0, 2.0], concentrated=1.0)
    figure = phase_diagram(data)
    np.testing.assert_allclose(figure.data[0].y, [0.5, 1.5, 2.5, 3.5, 4.5])
    assert figure.layout.yaxis.ticktext[-1] == "∞"
    data = made({"gap": [0.5, 0.1], "beta": [100.0, 10.0]}, least=[[4.0, 3.0], [2.0, 1.0]])
    figure = phase_diagram(data, "least", x="gap")
    np.testing.assert_allclose(10 ** cells(figure), [[1.0, 3.0], [2.0, 4.0]], rtol=1e-4)
    np.testing.assert_allclose(figure.data[0].x, [-0.1, 0.3, 0.7], atol=1e-12)


def test_seeds_are_averaged():
    data = made(
        {"beta": [10.0, 20.0], "seed": [0, 1, 2]},
        least=[[1.0, 2.0, 10.0], [0.1, 0.2, 0.3]],
        concentrated=[[2.0, 2.0, 8.0], [8.0, 8.0, 2.0]],
    )
    assert cells(phase_diagram(data)).tolist()[0] == [0, 0] + [1] * 9
    assert cells(phase_diagram(data)).tolist()[1] == [0] * 8 + [1] * 3
    assert "3 seeds" in phase_diagram(data).layout.title.subtitle.text
    one = phase_diagram(data, seed=1)
    assert cells(one).tolist() == cells(phase_diagram(data.isel(seed=[1]))).tolist()


def test_runs_that_never_got_there_count_as_later_ones():
    times = [[2.0, math.nan, 4.0], [math.nan, 3.0, math.nan]]
    data = made({"beta": [10.0, 20.0], "seed": [0, 1, 2]}, terminal=times, concentrated=1.0)
    found = cells(phase_diagram(data.isel(seed=[0]), "terminal", x="seed"))
    assert found[0].tolist() == [2.0]
    middle = cells(phase_diagram(data.assign_coords(n=1).expand_dims("n"), "terminal", x="n"))
    assert middle[0].tolist() == [4.0]
    assert np.isnan(middle[1]).all()


def test_phases_that_cannot_be_told_apart_are_not_told():
    """±e and ±v are closer than 1.5 times the least distance: nobody can be seen to leave."""
    theory = circle_head(0.6, (1.5, 0.4), -0.4, (1.2, 0.5)).theory()
    level = terminal_level(theory)
    e, v = theory.basis[:, 0].numpy(), theory.terminal.basis[:, 0].numpy()
    assert level == pytest.approx(min(np.linalg.norm(e - v), np.linalg.norm(e + v)))
    leasts = [level / 1.4, level / 1.4, level / 1.6]
    data = made({"beta": [10.0, 20.0, 30.0]}, concentrated=2.0, terminal=[math.nan, 6.0, math.nan], least=leasts)
    found = cells(phase_diagram(data, theory=theory))
    assert found[0][:2].tolist() == [0, 0]
    assert np.isnan(found[0][2:]).all()
    assert found[1].tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2]
    assert found[2].tolist() == [0, 0] + [1] * 9


def test_maps_of_two_slices_have_the_same_colours():
    data = made({"gap": [0.1, 0.5], "beta": [10.0, 100.0]}, concentrated=1.0, least=0.1)
    data["distance"][1] = 0.001
    scales = [phase_diagram(data, "distance", gap=gap).layout.coloraxis for gap in (0.1, 0.5)]
    assert (scales[0].cmin, scales[0].cmax) == (scales[1].cmin, scales[1].cmax)


def test_without_an_axis_of_beta_the_first_one_is_taken():
    data = made({"n": [10, 20]}, concentrated=1.0)
    assert phase_diagram(data).layout.yaxis.title.text == "N"


def test_the_log_beta_line_has_the_slope_of_the_theory_and_the_height_of_the_runs():
    theory = circle_head(0.6, (1.5, 0.4), -0.4, (1.2, 0.5)).theory()
    betas = np.array([30.0, 100.0, 300.0, 1000.0])
    times = np.log(betas) / theory.law_rate() - 1.25
    figure = phase_diagram(made({"beta": betas}, concentrated=times), theory=theory)
    line = next(t for t in figure.data if t.name == "log β line")
    np.testing.assert_allclose(line.x, times)
    np.testing.assert_allclose(line.y, np.log10(betas))
    assert "a = −1.25" in caption(figure)


def test_the_forecast_is_drawn_for_the_law_that_it_is_about():
    theory = circle_head(0.6, (1.5, 0.4), -0.4, (1.2, 0.5)).theory()
    betas = [1.5, 300.0, 1000.0, 3000.0, math.inf]
    figure = phase_diagram(made({"beta": betas}, concentrated=1.0), theory=theory)
    line = next(t for t in figure.data if t.name == "forecast departure")
    np.testing.assert_allclose(line.x, [theory.plateau(b).departure for b in betas[1:4]])
    other = phase_diagram(made({"beta": betas}, concentrated=1.0, law="von_mises_fisher"), theory=theory)
    assert "forecast departure" not in {t.name for t in other.data}


def test_every_phase_has_its_colour_wherever_it_is():
    scale = phase_diagram(made({"beta": [10.0, 20.0]}, concentrated=[2.0, 20.0])).layout.coloraxis
    at = {round((code + 0.5) / 3, 6): None for code in range(3)}
    for place in at:
        low = [colour for edge, colour in scale.colorscale if edge <= place][-1]
        at[place] = low
    assert list(at.values()) == list(PHASES.values())
    assert (scale.cmin, scale.cmax) == (-0.5, 2.5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda data: phase_diagram(data, "leest"), "no 'leest'"),
        (lambda data: phase_diagram(data, "least"), "one number a run"),
        (lambda data: phase_diagram(data, x="angle"), "'angle' is no free axis"),
        (lambda data: phase_diagram(data, gap=0.3), "gap = 0.3 is not in the sweep; it has 0.1, 0.5"),
        (lambda data: phase_diagram(data), "several gap (0.1, 0.5)"),
        (lambda data: phase_diagram(data.drop_vars("terminal"), gap=0.1), "no terminal"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_line(call, words):
    data = made({"gap": [0.1, 0.5], "beta": [10.0, 100.0]}, concentrated=1.0)
    with pytest.raises(BadInput) as caught:
        call(data)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_phase_of_a_map_of_axes_is_that_of_a_time():
    data = made({"gap": [0.1, 0.5], "beta": [10.0, 100.0]}, concentrated=[[2.0, 3.0], [4.0, 5.0]], terminal=6.0)
    assert cells(phase_diagram(data, x="gap", time=3.4)).tolist() == [[1, 0], [1, 0]]
    assert cells(phase_diagram(data, x="gap")).tolist() == [[2, 2], [2, 2]]
    assert "t = 3" in phase_diagram(data, x="gap", time=3.4).layout.title.subtitle.text


def test_of_very_many_values_some_are_drawn():
    data = made({"beta": np.geomspace(1.5, 1e4, 3 * MOST_CELLS)}, concentrated=1.0)
    figure = phase_diagram(data)
    assert len(figure.data[0].z) == MOST_CELLS
    assert len(figure.data[0].y) == MOST_CELLS + 1


def test_an_axis_may_be_called_value():
    data = made({"value": ["[1.0, 0.5]", "[1.0, 0.7]"], "beta": [10.0, 100.0]}, concentrated=1.0, least=0.1)
    assert cells(phase_diagram(data, "phase", value="[1.0, 0.5]")).shape == (2, 11)


def test_words_make_an_axis_too():
    data = made({"law": ["uniform", "graded"], "beta": [10.0, 100.0]}, least=[[1.0, 2.0], [3.0, 4.0]])
    figure = phase_diagram(data, "least", x="law")
    assert list(figure.layout.xaxis.ticktext) == ["uniform", "graded"]
    np.testing.assert_allclose(10 ** cells(figure), [[1.0, 3.0], [2.0, 4.0]], rtol=1e-4)


def test_phases_of_the_map_are_those_of_single_runs():
    """Against `run.phases()` of the same simulation."""
    head = circle_head(0.6, (1.5, 0.4), -0.4, (1.2, 0.5))
    run = ms.simulate(head, ms.graded(60, head), beta=60.0, until=10.0, t_eval=TIMES.tolist(), progress=False)
    found = run.phases()
    data = made(
        {"beta": [60.0]},
        concentrated=math.nan if found.concentrated is None else found.concentrated,
        terminal=math.nan if found.terminal is None else found.terminal,
        course={"falling": FALLING, "settled": SETTLED}[found.course],
        distance=run.distance().values[None],
    )
    row = cells(phase_diagram(data))[0]
    for t, code in zip(TIMES, row, strict=True):
        concentrated = found.concentrated is not None and t >= found.concentrated
        left = found.terminal is not None and t >= found.terminal
        assert code == (2 if left else 1 if concentrated else 0)
