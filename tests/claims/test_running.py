"""Many claims in one folder: findings are saved at once and reused, damaged ones are repeated, errors are reported."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from metastable import claims, files
from metastable.claims import running, two_tokens
from metastable.claims.experiment import Finding, Panel, size
from metastable.cli.app import app
from metastable.errors import BadInput
from metastable.head import Head

HEAD = Head.from_spectra([1.5, 0.6], [1.0, 0.7], seed=0)


@pytest.fixture
def counted(monkeypatch):
    """A claim that counts how often it is checked and can be told what to find."""
    calls: list[object] = []

    def check(head, tell, high: float = size(2.0, full=0.7)):
        calls.append(head)
        tell(1.0)
        found = Finding("t ≤ 1", "found")
        found.within("one", 1.0, 0.5, high)
        found.row("some rows", {"x": 1.0, "y": math.inf, "z": "a,b"})
        found.picture("P", "C", Panel("x", "y", log_y=True)).add("s", [1.0, 2.0], [1.0, 2.0])
        return found

    claim = replace(two_tokens.check, experiment=check, identity_only=False)
    monkeypatch.setattr(two_tokens, "check", claim)
    return calls


@pytest.fixture
def broken(monkeypatch):
    """A claim whose experiment ends with an error, and how often it was checked."""
    calls: list[object] = []

    def check(head, tell):
        calls.append(head)
        raise ZeroDivisionError("no gap")

    monkeypatch.setattr(two_tokens, "check", replace(two_tokens.check, experiment=check))
    return calls


def run(folder, full=False, head=None, again=False, names=("two-tokens",)):
    return running.run(names, full, head, Path(folder), 1, lambda shares: None, again)


def test_findings_are_kept_and_found_again(counted, tmp_path):
    first, second = run(tmp_path), run(tmp_path)
    assert len(counted) == 1
    assert first.found == second.found
    assert run(tmp_path, again=True).found == first.found
    assert len(counted) == 2


def test_another_size_or_head_is_another_finding(counted, tmp_path):
    assert run(tmp_path).found["two-tokens"].outcome == claims.PASS
    assert run(tmp_path, full=True).found["two-tokens"].outcome == claims.FAIL
    run(tmp_path, full=True, head=HEAD)
    assert [h is None for h in counted] == [True, True, False]
    run(tmp_path)
    run(tmp_path, full=True)
    assert len(counted) == 3, "each stays where it is"


def test_other_code_makes_its_own_finding(counted, tmp_path, monkeypatch):
    run(tmp_path)
    monkeypatch.setattr(running, "source", lambda: "changed")
    run(tmp_path)
    assert len(counted) == 2


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"identity": 1}', b"[]"])
def test_a_damaged_finding_is_made_again(counted, tmp_path, damage):
    first = run(tmp_path)
    next((tmp_path / "findings").glob("two-tokens-*.json")).write_bytes(damage)
    assert run(tmp_path).found == first.found
    assert len(counted) == 2


def test_an_error_is_named_and_not_kept(broken, tmp_path):
    found = run(tmp_path).found["two-tokens"]
    assert found.outcome == claims.INCONCLUSIVE
    assert "ZeroDivisionError: no gap" in found.sentence
    run(tmp_path)
    assert len(broken) == 2


def test_an_error_ends_the_command_with_one(broken, tmp_path):
    result = CliRunner().invoke(app, ["claims", "two-tokens", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stdout


def test_files_say_the_same_as_the_findings(counted, tmp_path):
    found = run(tmp_path, full=True)
    record = json.loads((tmp_path / "claims.json").read_text())
    assert record["schema"] == running.SCHEMA
    assert record["claims"]["two-tokens"]["outcome"] == "FAIL"
    assert found.failed == ["two-tokens"]
    with open(tmp_path / "tables" / "two-tokens-some-rows.csv", newline="") as handle:
        assert list(csv.reader(handle)) == [["x", "y", "z"], ["1.0", "inf", "a,b"]]
    assert (
        (tmp_path / "tables" / "two-tokens-checks.csv").read_text().startswith("check,measured,low,high,outcome,note")
    )


def test_a_finding_survives_json(counted, tmp_path):
    finding = run(tmp_path).found["two-tokens"]
    assert Finding.from_json(json.loads(files.to_json(finding.to_json()))) == finding


def test_bad_names_and_places(tmp_path):
    with pytest.raises(BadInput, match="did you mean 'laplace'"):
        run(tmp_path, names=("laplac",))
    with pytest.raises(BadInput, match="jobs is 0"):
        running.run(["two-tokens"], False, None, tmp_path, 0, lambda shares: None)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write"):
        run(tmp_path / "file")


def test_outcomes_are_the_worst_of_the_checks():
    found = Finding("")
    assert found.outcome == "INCONCLUSIVE"
    found.within("a", 1, 0, 2)
    assert found.outcome == "PASS"
    found.undecided("b", "why")
    assert found.outcome == "INCONCLUSIVE"
    found.within("c", math.nan, 0, 2)
    assert found.outcome == "FAIL"
    assert "b: why" in found.explanation


@pytest.mark.parametrize(
    ("interval", "outcome"),
    [
        ((1.0, 0.9, 1.1), "PASS"),
        ((2.0, 0.5, 3.5), "INCONCLUSIVE"),
        ((1.0, 0.5, 1.5), "INCONCLUSIVE"),
        ((2.0, 1.9, 2.1), "FAIL"),
        ((math.nan,) * 3, "FAIL"),
    ],
)
def test_intervals_decide(interval, outcome):
    found = Finding("")
    found.overlapping("x", interval, 0.8, 1.2)
    assert found.outcome == outcome


KILLED = """
import os, sys
from pathlib import Path
from metastable.claims import running

folder, before = Path(sys.argv[1]), dict(os.environ)

def watch(shares):
    # Renamed when it is whole: the parent kills this process at any moment.
    (folder / "writing").write_text("the same" if dict(os.environ) == before else "another")
    (folder / "writing").rename(folder / "environment")

running.run(["two-tokens", "metastability"], False, None, folder, 2, watch)
"""


@pytest.mark.slow
def test_kill_loses_nothing_that_was_finished(tmp_path):
    """A killed run leaves its finished claim and no worker, and the next run keeps that finding.

    The finding of a worker is that of this process, and several jobs leave the environment of the parent alone.
    """
    script = [sys.executable, "-c", KILLED, str(tmp_path)]
    child = subprocess.Popen(script, start_new_session=True, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    environment = tmp_path / "environment"
    while time.monotonic() < deadline:
        found = list((tmp_path / "findings").glob("two-tokens-*.json"))
        if found and environment.is_file():
            break
        time.sleep(0.1)
    kept = found[0]
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    before = kept.read_bytes()
    again = running.run(["two-tokens"], False, None, tmp_path, 1, lambda shares: None)
    assert again.found["two-tokens"] == claims.check("two-tokens")
    assert kept.read_bytes() == before
    assert environment.read_text() == "the same"
    while _group(child.pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not _group(child.pid)


def _group(pid: int) -> bool:
    """Whether any process of that session is left."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True
