"""The page of a sweep in a real Chromium: every map drawn, failures told, nothing asked of the network."""

import pytest
from typer.testing import CliRunner

from metastable.cli.app import app
from tests.labels import overlapping

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
def test_every_map_is_drawn_in_a_wide_and_in_a_narrow_window(browser, made):
    _, path = made
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = context.new_page()
    complaints, requests = [], []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: line.type == "error" and complaints.append(line.text))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    drawn = (
        "[...document.querySelectorAll('.js-plotly-plot')].map(p => p.querySelectorAll('.heatmaplayer image').length)"
    )
    page.wait_for_function(f"{drawn}.length >= 8 && {drawn}.every(n => n >= 1)")
    for width in (1280, 380):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")
        assert all(count >= 1 for count in page.evaluate(drawn))
        assert overlapping(page) == []
    assert complaints == []
    assert requests == [path.as_uri()]
    context.close()
