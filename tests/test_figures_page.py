"""What a page asks of figures: no controls of their own, dark colours, a cursor, two runs in one."""

import json
import math
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

import metastable as ms
from metastable import figures
from metastable.figures import look
from metastable.figures.distance import distance_curves
from metastable.figures.look import DARK, cursor, dark, enlarged, fitted

HEAD = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5], seed=0)
TURNING = ms.Head.from_interaction(torch.eye(3), [[1.0, -0.8, 0.0], [0.8, 1.0, 0.0], [0.0, 0.0, 0.3]])

HEADS = pd.DataFrame(
    {"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "prediction": ["two points", "rotates", "rotates", "two points"]}
)


@cache
def run(beta=50.0, head=HEAD, n=60):
    return ms.simulate(head, ms.uniform(n, 3), beta, 8.0, t_eval=17)


@cache
def two():
    runs = (run(), run(5.0))
    return runs, tuple(distance_curves(one) for one in runs)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_sphere_without_controls_says_when_its_frames_are():
    figure = figures.sphere(run(), controls=False, frames=9)
    assert len(figure.layout.sliders) == 0
    assert len(figure.layout.updatemenus) == 0
    assert figure.layout.meta["times"] == run().times[::2].tolist()
    for i, frame in enumerate(figure.frames):
        moved = np.sort(np.concatenate([part.x for part in frame.data]))
        expected = np.sort(run().frames[2 * i, :, 0].numpy())
        np.testing.assert_allclose(moved, expected, atol=1e-4)
    assert figures.caption(figure) == figures.caption(figures.sphere(run()))


def test_the_camera_stays_as_it_was_turned_from_run_to_run_but_not_from_sphere_to_circle():
    circle = ms.Head.from_interaction([[1.4, 0.0], [0.0, 0.7]], [[1.1, 0.3], [0.3, 0.6]])
    flat = ms.simulate(circle, ms.uniform(30, 2), 20.0, 2.0, t_eval=5)
    names = [figures.sphere(one, controls=False).layout.uirevision for one in (run(), run(5.0), flat)]
    assert names[0] == names[1] != names[2]
    assert names[0]
    assert figures.sphere(run()).layout.uirevision is None


def test_a_fitted_figure_takes_the_room_it_gets():
    figure = fitted(figures.distance(run()))
    assert figure.layout.height is None
    assert figure.layout.title.text is None


def test_the_cursor_is_one_named_shape_across_the_figure():
    for head in (HEAD, TURNING):
        figure = figures.distance(run(head=head))
        before = len(figure.layout.shapes)
        shapes = [s for s in cursor(figure, 3.5).layout.shapes if s.name == "cursor"]
        assert len(figure.layout.shapes) == before + 1
        assert [(s.x0, s.x1, s.y0, s.y1, s.yref) for s in shapes] == [(3.5, 3.5, 0, 1, "paper")]


@pytest.mark.parametrize("make", [
    lambda: figures.sphere(run(), controls=False),
    lambda: figures.distance(run()),
    lambda: figures.distance(run(head=TURNING)),
    lambda: figures.distances(*two(), ("a", "b")),
    lambda: figures.heat_map(HEADS, "prediction"),
    lambda: figures.eigenvalues(np.array([1.0, 0.5 + 0.2j, 0.5 - 0.2j]), np.array([1.0, 0.2]), "", 8),
])  # fmt: skip
def test_dark_figures_have_no_light_colour_left_and_the_same_numbers(make):
    light, figure = make(), dark(make())
    left = json.dumps([figure.layout.to_plotly_json(), *(t.to_plotly_json() for t in figure.data)], default=str)
    for colour in DARK:
        assert f'"{colour}"' not in left
    for before, after in zip(light.data, figure.data, strict=True):
        for axis in "xy":
            np.testing.assert_array_equal(np.asarray(before[axis]), np.asarray(after[axis]))
    assert len(figure.frames) == len(light.frames)


def test_enlarged_figures_have_larger_texts_lines_and_marks_and_the_same_numbers():
    graded = ms.simulate(HEAD, ms.graded(40, HEAD), 50.0, 2.0, t_eval=3)
    for make in (lambda: figures.distance(run()), lambda: figures.sphere(graded, controls=False)):
        before, after = make(), enlarged(make(), 1.5)
        assert after.layout.legend.font.size == 1.5 * before.layout.legend.font.size
        assert after.layout.margin.b == 1.5 * before.layout.margin.b
        for one, other in zip(before.data, after.data, strict=True):
            np.testing.assert_array_equal(np.asarray(one.x), np.asarray(other.x))
            if getattr(one, "mode", None) == "markers":
                np.testing.assert_allclose(np.asarray(other.marker.size), 1.5 * np.asarray(one.marker.size))
            elif getattr(one, "line", None) is not None and one.line.width:
                assert other.line.width == 1.5 * one.line.width


def test_dark_colours_can_be_read_and_told_apart():
    ground = DARK["white"]
    for text in (look.INK, look.GREY):
        assert contrast(DARK[text], ground) >= 4.5
    lines = [DARK[c] for c in (look.BLUE, look.VERMILLION, look.GREEN)]
    assert min(contrast(c, ground) for c in lines) >= 4.5
    assert len({*lines, DARK[look.INK], DARK[look.GREY]}) == 5
    for name in ("concentration", "plateau", "terminal"):
        tint = DARK[look.PHASE_TINTS[name]]
        assert contrast(DARK[look.INK], tint) >= 4.5


def test_two_runs_in_one_figure_are_told_apart_by_colour_dash_and_name():
    runs, measured = two()
    figure = figures.distances(runs, measured, ("β = 50", "β = 5"))
    first, second = (next(t for t in figure.data if t.name == f"W₂, {name}") for name in ("β = 50", "β = 5"))
    assert first.line.color != second.line.color
    assert first.line.dash != second.line.dash
    for line, one in ((first, runs[0]), (second, runs[1])):
        np.testing.assert_allclose(line.y, one.distance().values, rtol=1e-12)
    for m, name in zip(measured, ("β = 50", "β = 5"), strict=True):
        times = [t for t in (m.phases.concentrated, m.phases.terminal) if t]
        marks = [t for t in figure.data if t.name == f"phases, {name}"]
        assert [float(x) for mark in marks for x in mark.x] == times
    assert sum((t.name or "").startswith("noise") for t in figure.data) == 1


def test_two_noise_floors_where_they_differ():
    runs = (run(), run(n=400))
    figure = figures.distances(runs, [distance_curves(one) for one in runs], ("N = 60", "N = 400"))
    floors = [t for t in figure.data if t.name.startswith("noise")]
    assert [t.name.split(", ")[1] for t in floors] == ["N = 60", "N = 400"]
    assert floors[0].y[0] > floors[1].y[0]


def test_two_runs_without_a_limit_law_show_their_cosines():
    runs = (run(head=TURNING), run(5.0, TURNING))
    figure = figures.distances(runs, [distance_curves(one) for one in runs], ("a", "b"))
    assert [t.name for t in figure.data] == ["a", "b"]
    np.testing.assert_allclose(figure.data[1].y, runs[1].observables()["mean_cosine"].values)
    assert "no limit law" in figures.caption(figure)


def test_no_figure_offers_to_send_itself_away():
    assert look.CONFIG["showSendToCloud"] is False


def test_a_run_at_its_limit_from_the_start_can_be_compared():
    same = ms.simulate(ms.Head.from_interaction(torch.eye(3), torch.eye(3)), ms.uniform(30, 3), 1e-9, 0.5, t_eval=3)
    figure = figures.distances((same, same), [distance_curves(same)] * 2, ("a", "b"))
    assert all(math.isfinite(x) for x in figure.layout.yaxis.range)
