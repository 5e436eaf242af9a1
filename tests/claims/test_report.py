"""The report of the claims and the command: content, escaping and exit codes."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from metastable import claims
from metastable.claims import report as page
from metastable.claims import running, two_tokens
from metastable.claims.experiment import ClaimCheck, Finding, Panel, Picture
from metastable.cli.app import app
from metastable.files import locked
from metastable.head import Head

DRAWN = Picture(
    "Two panels",
    "What is seen & how",
    [Panel("time t", "W₂", log_y=True, title="first"), Panel("β", "slope", log_x=True)],
)
DRAWN.add("measured", [1, 2, 3], [0.1, 0.2, 0.3], "points")
DRAWN.add("predicted", [1, 2, 3], [0.1, 0.2, 0.3], "dashed")
DRAWN.add("allowed", [1, 10], style="band", low=[0.0, 0.1], high=[1.0, 1.1], panel=1)
DRAWN.add("measured", [1, 10], [0.5, 0.6], panel=1)


def findings(tmp_path, outcome="PASS"):
    found = Finding("t ≤ 1", "it holds for e^{βt} <script>alert(1)</script>", pictures=[DRAWN], seconds=1.5)
    if outcome == "?":
        found.undecided("a", "why")
    else:
        found.within("a < b", 1.0 if outcome == "PASS" else 3.0, high=2.0)
    found.within("c", 1.0)
    for i in range(30):
        found.row("many rows", {"i": i, "size": 1e-7 * i, "yes": True, "none": None, "word": "x^{2}"})
    return running.Findings({"two-tokens": found}, "quick", None, tmp_path)


def test_the_page_has_verdict_numbers_and_command(tmp_path):
    html = page.render(findings(tmp_path))
    assert "1 of 1 claims pass" in html
    assert "<script>alert(1)" not in html
    assert "e<sup>βt</sup> &lt;script&gt;alert(1)" in html
    assert "a &lt; b" in html
    assert "at most 2" in html
    assert page.wanted(ClaimCheck("x", 1.0, 0.9999, math.inf, "PASS")) == "at least 0.9999"
    assert "16 more rows in tables/two-tokens-many-rows.csv" in html
    assert "<code>metastable claims two-tokens</code>" in html
    assert 'id="figure-two-tokens-0"' in html


@pytest.mark.parametrize(
    ("outcome", "words"), [("FAIL", "0 of 1 claims pass, 1 fail"), ("?", "0 of 1 claims pass, 1 undecided")]
)
def test_the_headline_counts(tmp_path, outcome, words):
    found = findings(tmp_path, outcome)
    assert page.headline(found) == words
    html = page.render(found)
    assert f'<h1 id="headline">{words}</h1>' in html
    assert "a &lt; b: 3, not" in html or "a: why" in html


def test_panels_can_stand_side_by_side():
    below, beside = page.figure(DRAWN), page.figure(DRAWN, columns=2)
    assert below.layout.xaxis.domain == below.layout.xaxis2.domain
    assert beside.layout.xaxis.domain[1] < beside.layout.xaxis2.domain[0]
    assert beside.layout.yaxis.domain == beside.layout.yaxis2.domain
    assert beside.layout.height < below.layout.height


@pytest.mark.parametrize("columns", [1, 2])
def test_a_picture_has_its_panels_names_and_bands(columns):
    figure = page.figure(DRAWN, columns)
    assert figure.layout.yaxis.type == "log"
    assert figure.layout.xaxis2.type == "log"
    assert {trace.name for trace in figure.data} == {"measured", "predicted", "allowed"}
    assert len([trace for trace in figure.data if trace.showlegend]) == 3
    assert [trace.fill for trace in figure.data if trace.fill] == ["tonexty"]
    colours = {
        trace.name: (trace.line.color or trace.marker.color)
        for trace in figure.data
        if trace.mode != "lines" or trace.line.width
    }
    assert len(set(colours.values())) == 2


def invoke(*arguments):
    return CliRunner().invoke(app, ["claims", *map(str, arguments)])


@pytest.fixture
def settled(monkeypatch):
    """The claim about two tokens, with an outcome of our choice."""

    def settle(high):
        found = Finding("t ≤ 1", "said so")
        found.within("x", 1.0, high=high)
        claim = replace(two_tokens.check, experiment=lambda head, tell, **sizes: found)
        monkeypatch.setattr(two_tokens, "check", claim)

    return settle


def test_command_prints_verdicts_and_exit_code(settled, tmp_path):
    settled(2.0)
    good = invoke("two-tokens", "--out", tmp_path / "a")
    assert good.exit_code == 0, good.output
    assert good.stdout.splitlines()[0].split() == ["PASS", "two-tokens", "said", "so"]
    assert (tmp_path / "a" / "report.html").stat().st_size > 1_000_000
    settled(0.5)
    bad = invoke("two-tokens", "--out", tmp_path / "b", "--json")
    assert bad.exit_code == 1
    assert json.loads(bad.stdout)["claims"]["two-tokens"]["outcome"] == "FAIL"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["laplac"], "there is no claim 'laplac'; did you mean 'laplace'?"),
        (["two-tokens", "--jobs", "0"], "jobs is 0"),
        (["two-tokens", "--head", "nothing.toml"], "cannot read nothing.toml"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments, "--out", "out")
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_head_without_a_table(tmp_path):
    path = tmp_path / "head.toml"
    path.write_text("beta = 1.0")
    result = invoke("two-tokens", "--head", path, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "has no [head] table" in result.stderr


def test_a_given_head_reaches_the_claim(tmp_path):
    path = tmp_path / "head.toml"
    path.write_text("[head]\ninteraction = [1.5, 0.6]\nvalue = [1.0, 0.7]\n")
    result = invoke("two-tokens", "--head", path, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert "INCONCLUSIVE" in result.stdout


@pytest.mark.parametrize("name", claims.NAMES)
def test_a_head_that_a_claim_is_not_about_is_not_tried(name):
    """Some claims are about B = V = I only, and no claim is about scores with an offset."""
    fixed = claims.find(name).identity_only
    head = Head(np.eye(3), np.eye(3), 2 * np.eye(3), offset=None if fixed else [0.2, 0.1, 0.0])
    found = claims.check(name, head=head)
    assert found.outcome == claims.INCONCLUSIVE
    assert ("B = V = I" if fixed else "offset") in found.checks[0].note


def test_a_second_process_is_refused(tmp_path):
    with locked(tmp_path / "findings"):
        result = invoke("two-tokens", "--out", tmp_path)
    assert result.exit_code == 2
    assert "another process" in result.stderr


def test_a_folder_with_another_report_is_refused(tmp_path):
    (tmp_path / "report.html").write_text("mine")
    result = invoke("two-tokens", "--out", tmp_path)
    assert result.exit_code == 2
    assert "holds a report of something else" in result.stderr
    assert (tmp_path / "report.html").read_text() == "mine"


def test_the_headline_of_a_finding_begins_with_its_undecided_check(tmp_path):
    found = findings(tmp_path, "?").found["two-tokens"]
    assert found.headline.startswith("undecided: a (why); it holds")


def test_the_list_names_every_claim():
    listed = invoke("--list").stdout.split("\n")
    assert [line.split()[0] for line in listed if line] == list(claims.NAMES)
