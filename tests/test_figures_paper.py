"""Figures for papers: sizes, fonts, colours that colour-blind readers can tell apart, and export to files."""

import importlib
import importlib.util
import itertools
import re
import subprocess
import sys

import numpy as np
import plotly.graph_objects as go
import pytest

import metastable as ms
from metastable import figures
from metastable.figures import look
from tests.docs.pages import ROOT
from tests.test_figures import CASES, case, fonts

exporting = importlib.import_module("metastable.figures.export")
POINTS = 96 / 72
KINDS = [(name, kind) for name in ("circle", "sphere", "rotating", "causal") for kind in figures.OF_A_RUN]


@pytest.mark.parametrize(("name", "kind"), [pair for pair in KINDS if pair[1] not in case(pair[0]).without_figures])
def test_a_figure_for_a_paper_has_the_width_of_a_column_and_texts_of_8_points(name, kind):
    assert name in CASES
    single = case(name).figure(kind, style="paper")
    assert single.layout.width == pytest.approx(3.3 * 96)
    sizes = dict(fonts({"layout": single.layout.to_plotly_json(), "data": [t.to_plotly_json() for t in single.data]}))
    assert {round(size, 6) for path, size in sizes.items() if "hoverlabel" not in path} == {round(8 * POINTS, 6)}
    assert single.layout.title.text is None
    assert single.layout.paper_bgcolor == single.layout.plot_bgcolor == look.CLEAR
    assert not single.frames
    assert not single.layout.sliders
    assert not single.layout.updatemenus
    screen = case(name).figure(kind)
    for thin, thick in zip(single.data, screen.data, strict=True):
        if getattr(thick, "mode", None) == "lines" and thick.line.width:
            assert thin.line.width == pytest.approx(thick.line.width / 2)
    assert figures.caption(single) == figures.caption(screen)


def test_a_moving_figure_shows_its_last_frame():
    run = case("sphere")
    moving, still = run.figure("sphere"), run.figure("sphere", style="paper")
    last = moving.frames[-1]
    for place, trace in zip(last.traces, last.data, strict=True):
        assert np.array_equal(still.data[place].x, trace.x)
    assert any(note.text == f"t = {look.number(run.horizon)}" for note in still.layout.annotations)


def test_bad_styles_and_widths_are_refused_in_one_line():
    for wrong in ({"style": "papier"}, {"style": "paper", "width": "triple"}, {"style": "paper", "width": -1}):
        with pytest.raises(ms.BadInput, match=r"style|width"):
            case("circle").figure("distance", **wrong)
    with pytest.raises(ms.BadInput, match="font"):
        figures.paper(go.Figure(), font="gothic")


def seen(colour, kind):
    """CIE L*a*b* of "#RRGGBB" for readers with normal eyes, or without red (protan) or green (deutan) cones.

    Machado, Oliveira and Fernandes (2009): matrices for linear RGB at full severity.
    """
    blind = {
        "normal": np.eye(3),
        "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    }
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(blind[kind]) @ linear, 0, 1)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    t = np.array(to_xyz) @ linear / np.array([0.95047, 1.0, 1.08883])
    f = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_simulation_of_colour_blindness_is_right():
    # Pure red and dark yellow-green are far apart for normal eyes and alike without green cones.
    assert np.allclose(seen("#FFFFFF", "deutan"), [100, 0, 0], atol=0.1)
    apart = {kind: np.linalg.norm(seen("#A52A2A", kind) - seen("#5E5E20", kind)) for kind in ("normal", "deutan")}
    assert apart["normal"] > 40
    assert apart["deutan"] < 15


@pytest.mark.parametrize(("width", "inches"), [("double", 6.8), (5, 5)])
def test_other_widths(width, inches):
    assert case("circle").figure("distance", style="paper", width=width).layout.width == pytest.approx(inches * 96)


@pytest.mark.parametrize("kind", ["normal", "protan", "deutan"])
def test_colours_of_curves_can_be_told_apart(kind):
    # A difference of about 2 is just noticeable on large areas; thin lines need several times as much.
    used = (look.BLUE, look.VERMILLION, look.GREEN, look.PURPLE, look.ORANGE, look.SKY, look.INK)
    for a, b in itertools.combinations(used, 2):
        assert np.linalg.norm(seen(a, kind) - seen(b, kind)) > 12, (a, b)


@pytest.mark.parametrize("name", ["circle", "sphere", "causal"])
def test_curves_of_one_figure_differ_for_colour_blind_readers(name):
    drawn = case(name).figure("distance", style="paper")
    curves = {
        (t.line.color, t.line.dash)
        for t in drawn.data
        if t.mode == "lines" and t.line.width and t.showlegend is not False
    }
    solid = [colour for colour, dash in curves if dash in (None, "solid") and colour.startswith("#")]
    for a, b in itertools.combinations(solid, 2):
        for kind in ("protan", "deutan"):
            assert np.linalg.norm(seen(a, kind) - seen(b, kind)) > 12, (a, b, kind)


WAYS = ("kaleido", "playwright")


@pytest.fixture(params=WAYS)
def way(request, monkeypatch, browser):
    """Each of the two packages that can draw, alone."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in WAYS and name != request.param else real(name)
    )
    return request.param


def pages_of(pdf):
    """Width and height of each page of a PDF, in points."""
    assert pdf.startswith(b"%PDF-")
    boxes = re.findall(rb"/MediaBox\s*\[\s*0 0 ([\d.]+) ([\d.]+)\s*\]", pdf)
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == len(boxes)
    return [(float(width), float(height)) for width, height in boxes]


@pytest.mark.browser
def test_export_writes_real_files(way, tmp_path):
    figure = case("circle").figure("distance")
    before = figure.to_json()
    pdf = figures.export(figure, tmp_path / "deep" / "figure.pdf", width="single").read_bytes()
    height = case("circle").figure("distance", style="paper").layout.height
    (size,) = pages_of(pdf)
    assert size[0] == pytest.approx(3.3 * 72, abs=1)
    assert size[1] == pytest.approx(height / POINTS, abs=1.5)
    assert b"/FontFile" in pdf  # fonts are embedded, and the text is text
    svg = figures.export(figure, tmp_path / "figure.svg", width="single").read_text(encoding="utf-8")
    assert svg.startswith("<svg")
    assert "distance (chordal)" in svg
    png = figures.export(figure, tmp_path / "figure.png", width="double").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20]) == pytest.approx(6.8 * 96 * exporting.SCALE, abs=exporting.SCALE)
    assert figure.to_json() == before


@pytest.mark.slow
@pytest.mark.browser
def test_the_program_of_the_papers_figures_makes_pdf_pages(browser, tmp_path):
    program = [sys.executable, str(ROOT / "examples/paper/make.py"), "two-tokens", "--out", str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "two-tokens: PASS" in done.stdout
    made = sorted(tmp_path.glob("*.pdf"))
    assert [path.name for path in made] == [f"two-tokens-{i}.pdf" for i in range(1, len(made) + 1)]
    assert made
    for path in made:
        ((width, _),) = pages_of(path.read_bytes())
        assert width == pytest.approx(3.3 * 72, abs=1)
    captions = (tmp_path / "captions.txt").read_text(encoding="utf-8")
    assert all(path.name in captions for path in made)


def test_export_without_a_browser_says_what_to_install(monkeypatch, tmp_path):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in WAYS else real(name))
    with pytest.raises(ms.BadInput, match="pip install kaleido") as found:
        figures.export(go.Figure(), tmp_path / "figure.pdf")
    assert "\n" not in str(found.value)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "playwright" or None)
    monkeypatch.setattr(exporting, "_by_playwright", lambda figure, kind: 1 / 0)
    with pytest.raises(ms.BadInput, match="division by zero"):
        figures.export(go.Figure(), tmp_path / "figure.pdf")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ms.BadInput, match="ending"):
        figures.export(go.Figure(), tmp_path / "figure.docx")
