"""What the live view answers, without a browser: the words of the page of the same stream."""

import json

import numpy as np

from metastable.lab.live import LiveStream, page
from metastable.monitor.dependence import Dependence
from tests.monitor.streams import rows_of, write_folder


def test_the_alarm_of_a_slice_and_the_field_are_told(tmp_path):
    rows = rows_of([0.5] * 30)
    for row in rows:
        row |= {"slice": "a" if row["line"] % 2 else "b", "slice_log_e": 0.1, "slice_alarm": row["line"] == 18}
    folder = write_folder(tmp_path, rows)
    summary = json.loads((folder / "summary.json").read_text())
    summary["made"]["slice"] = "source"
    (folder / "summary.json").write_text(json.dumps(summary))
    _, headline, promise, _, tiles, *_ = LiveStream(folder).answer(None)
    assert headline.startswith("The slice ‘b’ raised the alarm at text 18")
    assert "each slice" in promise
    assert "1 of 2" in str(tiles)


def test_a_warning_of_a_running_stream_is_shown_when_its_summary_has_it(tmp_path):
    folder = write_folder(tmp_path, rows_of([0.5] * 30), finished=False)
    stream = LiveStream(folder)
    version, _, _, notes, *_ = stream.answer(None)
    assert notes == []
    summary = json.loads((folder / "summary.json").read_text())
    found = Dependence()
    found.update(np.linspace(0.1, 0.9, 20), ["the same text"] * 20)
    summary["dependence"] = found.to_dict()
    (folder / "summary.json").write_text(json.dumps(summary))
    _, _, _, notes, *_ = stream.answer(version)
    assert len(notes) == 1
    assert "19 of the first 20 texts are copies of earlier ones" in str(notes[0])


def test_the_page_says_that_it_loads_before_the_first_answer():
    assert "Loading" in str(page())
