"""The programs that make the pictures of the documentation."""

import runpy
import sys
from xml.etree import ElementTree

import plotly.graph_objects as go
import pytest

from tests.conftest import chromium
from tests.docs.pages import ROOT, inserts

EXAMPLES = ROOT / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", inserts().gallery_names())
def test_a_program_of_the_gallery_leaves_a_figure(name):
    figure = runpy.run_path(str(EXAMPLES / "gallery" / f"{name}.py"))["figure"]
    assert isinstance(figure, go.Figure)
    assert figure.data
    assert figure.layout.width <= 900
    assert figure.layout.height


def _run(monkeypatch, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.mark.slow
def test_the_picture_of_the_readme_moves_and_is_the_one_that_is_committed(tmp_path, monkeypatch):
    _run(monkeypatch, "concentration.py", tmp_path / "picture.svg")
    moving = "{http://www.w3.org/2000/svg}animateTransform"
    drawn = ElementTree.parse(tmp_path / "picture.svg").getroot()
    kept = ElementTree.parse(ROOT / "docs" / "images" / "concentration.svg").getroot()
    assert len(drawn.findall(f".//{moving}")) > 60
    assert [each.tag for each in drawn.iter()] == [each.tag for each in kept.iter()]


@pytest.mark.slow
@pytest.mark.browser
def test_screenshots_of_reports(tmp_path, monkeypatch):
    if chromium() is None:
        pytest.skip("no Chromium found")
    (tmp_path / "report.html").write_text("<h1>A report</h1>", encoding="utf-8")
    _run(monkeypatch, "screenshots.py", f"{tmp_path}=page", tmp_path / "images")
    assert (tmp_path / "images" / "page.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.browser
def test_screenshots_of_the_lab(tmp_path, monkeypatch):
    if chromium() is None:
        pytest.skip("no Chromium found")
    _run(monkeypatch, "screenshots.py", tmp_path)
    for name in ("laboratory", "compare", "audit"):
        assert (tmp_path / f"{name}.png").stat().st_size > 30_000, f"{name}.png is nearly empty"
        assert (ROOT / "docs" / "images" / f"{name}.png").exists()
