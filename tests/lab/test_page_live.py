"""The live view of a watched stream, in a real browser: records arrive on the page while they are appended."""

from __future__ import annotations

import json
import shutil
import threading

import pytest
from typer.testing import CliRunner

from metastable.cli.app import app as command_line
from metastable.lab.app import create_live, listen
from tests.lab.conftest import PATIENCE
from tests.monitor.streams import rejected, rows_of, shifted, write_folder

pytestmark = pytest.mark.browser

DRAWN = """([name, count]) => { const plot = document.querySelector('#live-timeline .js-plotly-plot');
    const traces = ((plot && plot._fullData) || []).filter(t => t.name && t.name.startsWith(name));
    return traces.length > 0 && traces[0].x.length === count; }"""
"""Whether the trace of this name has this many points."""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def live(folder):
    server = listen(create_live(folder), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_records_arrive_while_they_are_appended(live, folder, context):
    page, complaints = context.new_page(), []
    page.set_default_timeout(1000 * PATIENCE)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: line.type == "error" and complaints.append(line.text))
    page.goto(live)

    def says(words):
        page.wait_for_function(
            "words => document.querySelector('#live-headline')?.textContent.includes(words)", arg=words
        )

    says("Waiting for records")
    p = shifted(120, 60)
    rows = rows_of(p, reason=lambda line: f"<b>strange</b> words of line {line}")
    write_folder(folder, rows[:40], finished=False)
    says("of 40 scored texts")
    page.wait_for_function(DRAWN, arg=["ordinary", int((p[:40] > 0.01).sum())])
    lines = [json.dumps(row) + "\n" for row in rows]
    with (folder / "records.jsonl").open("a") as file:
        # A torn line waits for its end.
        file.write("".join(lines[40:119]) + lines[119][:50])
    says("of 119 scored texts")
    with (folder / "records.jsonl").open("a") as file:
        file.write(lines[119][50:])
    says("of 120 scored texts")
    says("alarm was raised")
    strange = [line for line, value in enumerate(p, start=1) if value <= 0.01]
    page.wait_for_function(DRAWN, arg=["strange", len(strange)])
    newest = f"text {strange[-1]}: <b>strange</b> words of line {strange[-1]}"
    page.wait_for_function("text => document.querySelector('#live-newest li')?.textContent === text", arg=newest)
    # The stream begins again.
    shutil.rmtree(folder)
    says("Waiting for records")
    write_folder(folder, [rejected(1), *({**row, "line": row["line"] + 1} for row in rows_of([0.4, 0.5]))])
    says("of 2 scored texts")
    page.wait_for_function(DRAWN, arg=["ordinary", 2])
    page.close()
    assert complaints == []


def test_a_file_that_holds_no_records_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("a")
    result = CliRunner().invoke(command_line, ["lab", "--watch", str(tmp_path / "notes.txt"), "--no-browser"])
    assert result.exit_code == 2
    assert "notes.txt" in result.stderr
