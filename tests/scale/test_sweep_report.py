"""The page of a sweep in a real Chromium: every map drawn, failures told, nothing asked of the network."""

import pytest
from typer.testing import CliRunner

from metastable.cli.app import app

CONFIG = """
until = 6.0
t_eval = 13
[axes]
gap = [0.3, 0.6, 3.0]
beta = [3.0, 10.0, 30.0, 100.0, inf]
[head]
value = [1.2, 0.5]
angle = 30.0
[cloud]
law = "graded"
n = 40
"""
FIGURES = 10
"""Phase and distance for each of three gaps, then phase, least, concentrated and terminal over (gap, β)."""


@pytest.fixture(scope="module")
def made(tmp_path_factory, scheduler):
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "config.toml").write_text(CONFIG)
    arguments = ["sweep", str(folder / "config.toml"), "--out", str(folder / "out"), "--scheduler", scheduler]
    return CliRunner().invoke(app, arguments), folder / "out" / "report.html"


def test_the_command_names_the_page(made):
    answer, page = made
    assert answer.exit_code in (0, 1), answer.output
    assert f"report: {page}" in answer.stdout
    text = page.read_text(encoding="utf-8")
    assert "log \\u03b2 line" in text
    assert "gap = 0.3" in text


@pytest.mark.browser
@pytest.mark.parametrize("width", [380, 1280])
def test_every_map_is_drawn(browser, made, width):
    _, path = made
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
    page = context.new_page()
    complaints, requests = [], []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: line.type == "error" and complaints.append(line.text))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_function(
        "n => document.querySelectorAll('.heatmaplayer image, .heatmaplayer .hm').length >= n", arg=1
    )
    maps = page.locator(".js-plotly-plot").count()
    assert maps >= 8
    drawn = (
        "[...document.querySelectorAll('.js-plotly-plot')].map(p => p.querySelectorAll('.heatmaplayer image').length)"
    )
    page.wait_for_function(f"{drawn}.every(n => n >= 1)")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert complaints == []
    assert requests == [path.as_uri()]
    context.close()
