import dataclasses
import json
import math
import re
import warnings
from functools import cache

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

import metastable as ms
from metastable import figures
from metastable.figures import look
from metastable.figures.distance import DIAMETER, distance_curves, phase_intervals
from metastable.theory.phases import Phases, Plateau
from tests.problems import circle_head

CIRCLE = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5))
SPHERE = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5], seed=0)
TURNED = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5], seed=5)
EIGHT = ms.Head.from_spectra([2.0, 1.8, 1.5, 1.2, 1.0, 0.8, 0.6, 0.5], [1.5, 1.2, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5], seed=1)


def diagonal(*entries):
    return torch.diag(torch.tensor(entries, dtype=torch.float64))


def rotating():
    return ms.Head.from_interaction(torch.eye(3), [[1.0, -0.8, 0.0], [0.8, 1.0, 0.0], [0.0, 0.0, 0.3]])


def head_with_offset():
    return ms.Head(torch.eye(3), diagonal(1.5, 1.0, 0.6), diagonal(1.2, 0.9, 0.5), offset=[0.2, 0.1, 0.0])


def factored(d, k):
    g = torch.Generator().manual_seed(3)
    q, key, inner = (torch.randn(k, d, generator=g, dtype=torch.float64) for _ in range(3))
    return ms.Head(q, key, inner, output=key.T @ torch.eye(k, dtype=torch.float64) + inner.T)


def simulated(head, cloud, beta=50.0, until=8.0, t_eval=17, **more):
    return ms.simulate(head, cloud, beta, until, t_eval=t_eval, **more)


CASES = {
    "circle": lambda: ms.simulate(CIRCLE, ms.graded(120, CIRCLE), 100.0, 20.0, t_eval=41),
    "sphere": lambda: simulated(SPHERE, ms.graded(120, SPHERE)),
    "equal weights": lambda: simulated(SPHERE, ms.uniform(60, 3)),
    "float32": lambda: simulated(SPHERE, ms.uniform(60, 3).to(torch.float32)),
    "too short": lambda: simulated(SPHERE, ms.uniform(60, 3), until=0.5, t_eval=3),
    "beta 0": lambda: simulated(SPHERE, ms.uniform(60, 3), beta=0.0),
    "beta inf": lambda: simulated(SPHERE, ms.uniform(60, 3), beta=math.inf, step=0.05),
    "rotating": lambda: simulated(rotating(), ms.uniform(60, 3)),
    "rotating circle": lambda: simulated(
        ms.Head.from_interaction(torch.eye(2), [[1.0, -0.8], [0.8, 1.0]]), ms.equally_spaced(40)
    ),
    "V negative": lambda: simulated(
        ms.Head.from_interaction(-diagonal(1.4, 0.9, 0.6), -diagonal(0.5, 0.8, 1.1)), ms.uniform(60, 3)
    ),
    "identity": lambda: simulated(ms.Head.from_interaction(torch.eye(3), torch.eye(3)), ms.uniform(60, 3), beta=5.0),
    "identity on the circle": lambda: simulated(
        ms.Head.from_interaction(torch.eye(2), torch.eye(2)), ms.equally_spaced(40)
    ),
    "plane": lambda: simulated(ms.Head.from_interaction(torch.eye(3), diagonal(1.0, 1.0, 0.4)), ms.uniform(60, 3)),
    "singular": lambda: simulated(ms.Head(*2 * [diagonal(1, 0.5, 0)[:2]], torch.eye(3)), ms.uniform(60, 3)),
    "B = 0": lambda: simulated(ms.Head.from_interaction(torch.zeros(3, 3), torch.eye(3)), ms.uniform(40, 3)),
    "V = 0": lambda: simulated(ms.Head.from_interaction(torch.eye(3), torch.zeros(3, 3)), ms.uniform(40, 3), until=1.0),
    "offset": lambda: simulated(head_with_offset(), ms.uniform(60, 3)),
    "eight dimensions": lambda: simulated(EIGHT, ms.uniform(60, 8)),
    "factored": lambda: simulated(factored(40, 4), ms.uniform(30, 40), beta=1.0, until=1.0, t_eval=5),
    "several heads": lambda: simulated(ms.Block([SPHERE, TURNED]), ms.uniform(60, 3)),
    "perceptron on the circle": lambda: simulated(
        ms.Block(CIRCLE, ms.Perceptron.random(2, 8, seed=1)), ms.uniform(60, 2)
    ),
    "causal": lambda: simulated(ms.Block(CIRCLE, causal=True), ms.uniform(60, 2)),
    "pre-LN": lambda: simulated(ms.Block(CIRCLE, norm="pre"), ms.uniform(60, 2)),
    "no normalisation": lambda: simulated(ms.Block(SPHERE, norm="none"), ms.uniform(60, 3), beta=2.0, until=2.0),
    "noise": lambda: simulated(ms.Block(CIRCLE, noise=0.2), ms.uniform(60, 2), until=2.0, step=0.05),
    "layers": lambda: simulated(SPHERE, ms.uniform(60, 3), method="layers", step=0.5),
}  # fmt: skip


@cache
def case(name):
    return CASES[name]()


@cache
def drawn(name, kind):
    """The figure of a case. A warning while it is drawn is an error."""
    run = case(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return run.figure(kind)


@cache
def curves(name):
    return distance_curves(case(name))


def trace(figure, start):
    found = [t for t in figure.data if (t.name or "").startswith(start)]
    assert len(found) == 1, f"{start!r} is not one of {[t.name for t in figure.data]}"
    return found[0]


def names(figure):
    return [t.name for t in figure.data]


def shapes(figure):
    return {s.name: s for s in figure.layout.shapes if s.name}


def notes(figure):
    return [a.text for a in figure.layout.annotations]


def fonts(node, path=""):
    """Every font size that is written anywhere in a figure."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key.endswith("font") and isinstance(value, dict) and "size" in value and "sliders" not in path:
                yield f"{path}.{key}", value["size"]
            yield from fonts(value, f"{path}.{key}")
    elif isinstance(node, (list, tuple)):
        for i, value in enumerate(node):
            yield from fonts(value, f"{path}[{i}]")


@pytest.mark.parametrize("kind", figures.OF_A_RUN)
@pytest.mark.parametrize("name", CASES)
def test_every_case_can_be_drawn(name, kind):
    if kind in case(name).without_figures:
        with pytest.raises(ms.BadInput, match="figure is"):
            case(name).figure(kind)
        return
    figure = drawn(name, kind)
    layout = figure.layout
    json.loads(figure.to_json())
    assert len(figure.data) > 0
    assert layout.title.text
    assert layout.paper_bgcolor == layout.plot_bgcolor == "white"
    assert figures.caption(figure).strip().endswith(".")
    assert not re.search(r"\b(nan|inf|None)\b", figures.caption(figure))
    small = {path: size for path, size in fonts(figure.to_dict()) if size < 13}
    assert not small


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.123456, "0.123"),
        (1500.0, "1500"),
        (12345.0, "12300"),
        (-0.5, "−0.5"),
        (2.0, "2"),
        (0.00099999, "0.001"),
        (99999.0, "10⁵"),
        (1e5, "10⁵"),
        (1e-9, "10⁻⁹"),
        (4.56e-7, "4.56×10⁻⁷"),
        (-2.5e6, "−2.5×10⁶"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_numbers_are_written_with_three_digits(value, text):
    assert look.number(value) == text


class TestDistance:
    def test_the_curves_are_those_of_the_run(self):
        run, figure = case("circle"), drawn("circle", "distance")
        for start, curve in (
            ("W₂", run.distance()),
            ("Laplace", run.laplace_term()),
            ("Lyapunov", run.lyapunov_term()),
        ):
            line = trace(figure, start)
            np.testing.assert_array_equal(line.x, run.times.numpy())
            seen = np.isfinite(line.y)
            np.testing.assert_array_equal(np.asarray(line.y)[seen], curve.values[seen])
            np.testing.assert_array_equal(~seen, curve.values < 1e-9)
        assert run.laplace_term().values[0] < 1e-15, "the case must hold a 0 that a logarithm cannot show"
        assert figure.layout.yaxis.type == "log"
        assert figure.layout.xaxis.title.text == "time t"
        assert figure.layout.yaxis.title.text == "W₂ distance (chordal)"

    def test_the_bound_is_certificate_plus_lyapunov_term_until_it_is_vacuous(self):
        run, figure = case("circle"), drawn("circle", "distance")
        line = trace(figure, "bound")
        total = run.certificate().values + run.lyapunov_term().values
        vacuous = np.flatnonzero(total >= DIAMETER)[0]
        assert 2 < vacuous < len(total) - 1
        np.testing.assert_allclose(line.y[:vacuous], total[:vacuous])
        assert line.y[vacuous] == DIAMETER
        assert np.isnan(line.y[vacuous + 1 :]).all()
        assert line.name.endswith(f"vacuous from t = {look.number(float(run.times[vacuous]))}")
        assert line.line.dash == "dash"
        assert (np.asarray(line.y)[:vacuous] >= run.distance().values[:vacuous]).all()

    def test_a_bound_that_stays_useful_is_drawn_to_the_end(self):
        line = trace(drawn("too short", "distance"), "bound")
        assert np.isfinite(line.y).all()
        assert "vacuous" not in line.name

    def test_the_noise_floor_is_a_dotted_line(self):
        run, figure = case("circle"), drawn("circle", "distance")
        line = trace(figure, "noise floor")
        assert list(line.y) == [run.noise_floor().mean] * 2
        assert list(line.x) == [0, run.horizon]
        assert line.line.dash == "dot"
        assert f"{run.noise_floor().size} tokens each" in figures.caption(figure)

    def test_a_quadrature_is_not_called_a_random_sample(self):
        assert "quadrature" in figures.caption(drawn("circle", "distance"))
        assert "another sample" in figures.caption(drawn("equal weights", "distance"))

    def test_the_phases_are_shaded_and_named(self):
        run, figure = case("circle"), drawn("circle", "distance")
        phases = run.phases()
        assert phases.concentrated is not None
        assert phases.terminal is not None
        found = shapes(figure)
        assert [(found[n].x0, found[n].x1) for n in ("concentration", "plateau", "terminal")] == [
            (0, phases.concentrated),
            (phases.concentrated, phases.terminal),
            (phases.terminal, phases.horizon),
        ]  # fmt: skip
        for mark, t in (("concentrated", phases.concentrated), ("terminal", phases.terminal)):
            line = found[f"{mark} at"]
            assert (line.type, line.x0, line.x1) == ("line", t, t)
            assert f"t = {look.number(t)}" in notes(figure)
        assert {"concentration", "plateau", "terminal"} <= set(notes(figure))

    def test_names_of_narrow_phases_do_not_lie_on_each_other(self):
        phases = Phases(1.0, 2.0, 20.0, 0.1, 1.5, ())
        figure = figures.distance(case("circle"), dataclasses.replace(curves("circle"), phases=phases))
        labels = [a for a in figure.layout.annotations if a.text in ("concentration", "plateau", "terminal")]
        shifts = {a.text: a.yshift for a in labels}
        assert len(labels) == 3
        assert shifts["plateau"] > shifts["concentration"]

    @pytest.mark.parametrize(
        ("phases", "expected"),
        [
            (Phases(3.0, 8.0, 20.0, 0.1, 5.0, ()), [("concentration", 0, 3), ("plateau", 3, 8), ("terminal", 8, 20)]),
            (Phases(3.0, None, 20.0, 0.1, 5.0, ()), [("concentration", 0, 3), ("plateau", 3, 20)]),
            (Phases(None, None, 20.0, 0.1, 20.0, (), course="falling"), [("concentration", 0, 20)]),
            (Phases(None, None, 20.0, 0.1, 20.0, (), course="still"), []),
            (Phases(0.0, 0.5, 20.0, 0.1, 0.0, ()), [("plateau", 0, 0.5), ("terminal", 0.5, 20)]),
        ],
    )
    def test_intervals_follow_what_the_run_saw(self, phases, expected):
        assert phase_intervals(phases) == expected

    @pytest.mark.parametrize(
        ("course", "words"), [("falling", "concentration, not complete"), ("still", "hardly any change")]
    )
    def test_a_run_without_phases_says_so(self, course, words):
        run = case("circle")
        phases = Phases(None, None, run.horizon, 0.1, run.horizon, (), course=course)
        figure = figures.distance(run, dataclasses.replace(curves("circle"), phases=phases))
        assert words in notes(figure)
        assert not any(s.type == "line" for s in figure.layout.shapes)

    def test_every_plateau_of_a_staircase_is_marked(self):
        run = case("circle")
        steps = (Plateau(3.0, 6.0, 0.1), Plateau(11.0, 20.0, 0.2))
        phases = Phases(3.0, 8.0, 20.0, 0.1, 5.0, steps)
        figure = figures.distance(run, dataclasses.replace(curves("circle"), phases=phases))
        line = trace(figure, "at rest")
        assert list(line.x) == [3.0, 6.0, None, 11.0, 20.0, None]
        assert list(line.y) == [0.1, 0.1, None, 0.2, 0.2, None]

    def test_bounds_are_a_band_and_only_when_the_distance_is_not_exact(self):
        run, exact = case("plane"), curves("plane")
        assert not any("not exact" in n for n in names(figures.distance(run, exact)))
        d = exact.distance
        wide = d.assign_coords(lower=("time", d.values * 0.5), upper=("time", d.values * 1.5))
        figure = figures.distance(run, dataclasses.replace(exact, distance=wide))
        upper, lower = trace(figure, "W₂ lies in here"), trace(figure, "lower bound")
        assert upper.fill == "tonexty"
        assert names(figure).index(lower.name) + 1 == names(figure).index(upper.name)
        np.testing.assert_allclose(upper.y, np.minimum(1.5 * d.values, DIAMETER))
        assert (np.asarray(lower.y) <= d.values).all()
        assert (np.asarray(lower.y) > 0).all()

    def test_without_a_limit_law_it_says_why_and_shows_observables(self):
        run, figure = case("rotating"), drawn("rotating", "distance")
        written = " ".join(notes(figure)).replace("<br>", " ")
        assert run.theory().no_limit in written
        seen = run.observables()
        np.testing.assert_array_equal(trace(figure, "mean cosine").y, seen["mean_cosine"].values)
        np.testing.assert_array_equal(trace(figure, "effective rank").y, seen["effective_rank"].values)
        assert "no limit law" in figures.caption(figure)

    def test_a_head_with_an_offset_has_no_zero_temperature_curves(self):
        figure = drawn("offset", "distance")
        assert not any(n.startswith(("Laplace", "Lyapunov", "bound")) for n in names(figure))
        assert trace(figure, "W₂").y is not None
        assert "left out" in figures.caption(figure)
        assert "offset" in figures.caption(figure)

    def test_a_singular_interaction_has_no_bound(self):
        figure = drawn("singular", "distance")
        assert not any(n.startswith("bound") for n in names(figure))
        assert "B is singular" in figures.caption(figure)

    def test_the_axis_shows_the_whole_distance_and_floor(self):
        for name in CASES:
            run = case(name)
            if run.theory().no_limit:
                continue
            low, high = (10**v for v in drawn(name, "distance").layout.yaxis.range)
            values = run.distance().values
            assert low < values[values > 1e-9].min(initial=1.0)
            assert low < (run.noise_floor().mean or 1.0)
            assert low > 1e-11
            assert high >= DIAMETER


class TestSphere:
    def test_colours_are_the_side_of_the_limit(self):
        run, figure = case("sphere"), drawn("sphere", "sphere")
        e = run.theory().basis[:, 0]
        side = (run.limit.points @ e).numpy()
        plus, minus = trace(figure, "sent to +e"), trace(figure, "sent to −e")
        for tokens, mask in ((plus, side > 0), (minus, side < 0)):
            shown = np.stack([tokens.x, tokens.y, tokens.z], axis=1)
            np.testing.assert_allclose(shown, run.cloud.points.numpy()[mask], atol=6e-5)
        assert plus.marker.color != minus.marker.color
        assert len(plus.x) + len(minus.x) == len(run.cloud)
        assert len(plus.x) > 0
        assert len(minus.x) > 0

    def test_frames_are_the_saved_positions(self):
        run, figure = case("sphere"), drawn("sphere", "sphere")
        assert len(figure.frames) == len(run.times)
        mask = (run.limit.points @ run.theory().basis[:, 0]).numpy() > 0
        for i, frame in enumerate(figure.frames):
            moved = np.stack([frame.data[0].x, frame.data[0].y, frame.data[0].z], axis=1)
            np.testing.assert_allclose(moved, run.frames[i].numpy()[mask], atol=6e-5)
            assert [figure.data[j].name for j in frame.traces] == ["sent to +e", "sent to −e"]

    def test_the_slider_has_a_step_for_each_frame(self):
        run, figure = case("sphere"), drawn("sphere", "sphere")
        (slider,) = figure.layout.sliders
        assert [s.args[0] for s in slider.steps] == [(f.name,) for f in figure.frames]
        assert [s.label for s in slider.steps] == [look.number(float(t)) for t in run.times]
        assert [b.label for b in figure.layout.updatemenus[0].buttons] == ["▶ Play", "❚❚ Pause"]

    def test_large_runs_are_thinned_out(self):
        run = simulated(SPHERE, ms.fibonacci(1600), until=0.1, t_eval=41, engine="dense", method="euler", step=0.1)
        figure = run.figure("sphere")
        assert len(figure.frames) == 40
        assert [s.label for s in figure.layout.sliders[0].steps][-1] == "0.1"
        assert sum(len(t.x) for t in figure.data if t.name.startswith("sent")) == 1500
        assert "1500 of the 1600 tokens" in figures.caption(figure)
        assert len(figure.to_json()) < 2e6

    def test_coordinates_have_four_digits(self):
        tokens = trace(drawn("sphere", "sphere"), "sent to +e")
        np.testing.assert_array_equal(tokens.x, np.asarray(tokens.x).round(4))

    def test_the_size_grows_with_the_weight_if_weights_differ(self):
        run = case("sphere")
        mask = (run.limit.points @ run.theory().basis[:, 0]).numpy() > 0
        sizes = np.asarray(trace(drawn("sphere", "sphere"), "sent to +e").marker.size)
        weights = run.cloud.weights.numpy()[mask]
        assert (np.diff(sizes[weights.argsort()]) >= 0).all()
        assert sizes.max() > 1.5 * sizes.min()
        assert np.isscalar(trace(drawn("equal weights", "sphere"), "sent to +e").marker.size)

    def test_axes_point_along_the_dominant_directions(self):
        run, figure = case("sphere"), drawn("sphere", "sphere")
        e, v = run.theory().basis[:, 0].numpy(), run.theory().terminal.basis[:, 0].numpy()
        for start, direction, letter in (("±e", e, "e"), ("±v", v, "v")):
            axis, labels = trace(figure, start), trace(figure, f"label ±{letter}")
            ends = np.stack([axis.x, axis.y, axis.z], axis=1)
            np.testing.assert_allclose(ends[0], -ends[1])
            assert abs(ends[1] @ direction) == pytest.approx(np.linalg.norm(ends[1]), rel=1e-3)
            assert tuple(labels.text) == (f"−{letter}", f"+{letter}")
            places = np.stack([labels.x, labels.y, labels.z], axis=1)
            assert np.linalg.norm(places[1]) > np.linalg.norm(ends[1]), "the labels are beyond the ends"
            np.testing.assert_allclose(
                places[1] @ ends[1], np.linalg.norm(places[1]) * np.linalg.norm(ends[1]), rtol=1e-6
            )
            np.testing.assert_allclose(places[0], -places[1])
        axis = trace(figure, "±e")
        assert np.array([axis.x[1], axis.y[1], axis.z[1]]) @ e > 1

    def test_plus_v_is_on_the_side_of_plus_e(self):
        turned = 0
        for seed in range(5):
            head = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5], seed=seed)
            turned += float(head.theory().basis[:, 0] @ head.theory().terminal.basis[:, 0]) < 0
            figure = simulated(head, ms.uniform(5, 3), until=0.1, t_eval=2).figure("sphere")
            e, v = (np.array([t.x[1], t.y[1], t.z[1]]) for t in (trace(figure, "±e"), trace(figure, "±v")))
            assert e @ v > 0
        assert 0 < turned < 5, "some of the eigenvectors must come with the other sign"

    def test_on_the_circle_it_is_flat_and_round(self):
        figure = drawn("circle", "sphere")
        assert {type(t) for t in figure.data} == {go.Scatter}
        assert figure.layout.yaxis.scaleanchor == "x"

    def test_high_dimensions_are_projected_along_e_first(self):
        run, figure = case("eight dimensions"), drawn("eight dimensions", "sphere")
        e = run.theory().basis[:, 0]
        mask = (run.limit.points @ e > 0).numpy()
        tokens = trace(figure, "sent to +e")
        np.testing.assert_allclose(tokens.x, (run.cloud.points @ e).numpy()[mask], atol=6e-5)
        length = np.sqrt(np.square([tokens.x, tokens.y, tokens.z]).sum(axis=0))
        assert (length < 1).all()
        axis = trace(figure, "±v")
        assert abs(axis.z[1]) < 1e-6, "v lies in the span of the first two directions"
        for text in (figures.caption(figure), figure.layout.title.subtitle.text):
            assert "rojected from 8 to 3 dimensions, along e, v, the tokens' main directions" in text

    def test_a_dominant_plane_is_coloured_by_angle_and_drawn_as_a_circle(self):
        run, figure = case("plane"), drawn("plane", "sphere")
        inside = (run.limit.points @ run.theory().basis).numpy()
        expected = np.degrees(np.arctan2(inside[:, 1], inside[:, 0])).round()
        np.testing.assert_array_equal(trace(figure, "angle of the limit").marker.color, expected)
        ring = trace(figure, "dominant plane of M")
        points = np.stack([ring.x, ring.y, ring.z], axis=1)
        np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, atol=2e-4)
        np.testing.assert_allclose(points @ run.theory().projector.numpy().T, points, atol=2e-4)

    def test_without_a_limit_law_colour_is_where_a_token_starts(self):
        run, figure = case("rotating"), drawn("rotating", "sphere")
        x = run.cloud.points.numpy()
        expected = np.degrees(np.arctan2(x[:, 1], x[:, 0])).round()
        np.testing.assert_array_equal(trace(figure, "starting azimuth").marker.color, expected)
        assert "no limit law" in figures.caption(figure)

    def test_the_colours_of_angles_close_the_circle(self):
        assert look.CYCLE[0][1] == look.CYCLE[-1][1]
        scale = trace(drawn("plane", "sphere"), "angle of the limit").marker
        assert (scale.cmin, scale.cmax) == (-180, 180)


class TestSpectrum:
    def test_the_points_are_the_eigenvalues_and_the_dominant_ones_stand_out(self):
        th = case("eight dimensions").theory()
        figure = figures.spectrum(th)
        for name, s in (("M = V Bᵀ", th.attention), ("V", th.terminal)):
            first, rest = trace(figure, f"dominant of {name}"), trace(figure, f"eigenvalues of {name}")
            found = np.array([*first.x, *rest.x]) + 1j * np.array([*first.y, *rest.y])
            np.testing.assert_allclose(np.sort_complex(found), np.sort_complex(s.eigenvalues.numpy()))
            assert len(first.x) == s.multiplicity
            assert first.x[0] == max(found.real)
            assert first.marker.size > rest.marker.size

    def test_the_gap_is_drawn_between_the_first_two(self):
        th = SPHERE.theory()
        gaps = [s for s in figures.spectrum(th).layout.shapes if s.name == "gap"]
        for shape, s in zip(gaps, (th.attention, th.terminal), strict=True):
            values = s.eigenvalues.real.numpy()
            assert (shape.x0, shape.x1) == pytest.approx((values[1], values[0]))

    def test_no_gap_is_drawn_where_there_is_none(self):
        figure = drawn("identity", "spectrum")
        assert not any(s.name == "gap" for s in figure.layout.shapes)
        assert any("no other" in text for text in notes(figure))

    def test_axes_are_equal_and_the_zero_line_is_there(self):
        figure = figures.spectrum(SPHERE.theory())
        assert (figure.layout.yaxis.scaleanchor, figure.layout.yaxis2.scaleanchor) == ("x", "x2")
        zero = [s for s in figure.layout.shapes if s.name == "Re λ = 0"]
        assert [(s.x0, s.x1, s.xref) for s in zero] == [(0, 0, "x"), (0, 0, "x2")]
        for axis, name in ((figure.layout.xaxis, "M = V Bᵀ"), (figure.layout.xaxis2, "V")):
            places = [0, *trace(figure, f"eigenvalues of {name}").x, *trace(figure, f"dominant of {name}").x]
            assert axis.range[0] < min(places)
            assert max(places) < axis.range[1] < 2 * max(places)

    def test_a_complex_pair_is_two_dominant_points(self):
        figure = drawn("rotating", "spectrum")
        first = trace(figure, "dominant of M")
        assert sorted(first.y) == pytest.approx([-0.8, 0.8])
        assert any("1 ± 0.8i" in text for text in notes(figure))
        assert "|λ| = 1.28" in first.text[0]

    def test_many_equal_eigenvalues_are_one_point_with_a_count(self):
        figure = drawn("factored", "spectrum")
        rest = trace(figure, "eigenvalues of M")
        at_zero = [text for x, text in zip(rest.x, rest.text, strict=True) if x == 0]
        assert at_zero == ["λ = 0, 36 times"]

    def test_many_eigenvalues_are_drawn_smaller(self):
        g = torch.Generator().manual_seed(0)
        many = torch.randn(60, 60, generator=g, dtype=torch.float64)
        figure = figures.spectrum(ms.Head.from_interaction(torch.eye(60), many).theory())
        few = figures.spectrum(SPHERE.theory())
        assert trace(figure, "eigenvalues of V").marker.size < trace(few, "eigenvalues of V").marker.size


class TestObservables:
    def test_the_curves_are_those_of_the_run(self):
        run, figure = case("sphere"), drawn("sphere", "observables")
        seen = run.observables()
        assert len(figure.data) == 4
        for name, key in (
            ("mean cosine", "mean_cosine"),
            ("effective rank", "effective_rank"),
            ("clusters", "clusters"),
            ("log energy", "log_energy"),
        ):
            np.testing.assert_array_equal(trace(figure, name).y, seen[key].values)

    @pytest.mark.parametrize(("name", "beta"), [("beta inf", "∞"), ("beta 0", "0")])
    def test_an_energy_that_is_not_defined_is_said_so(self, name, beta):
        assert f"not defined<br>at β = {beta}" in notes(drawn(name, "observables"))
        assert not any("not defined" in text for text in notes(drawn("sphere", "observables")))
