"""What the server answers, without a browser: fields and states, keys, pictures that fail."""

from __future__ import annotations

import math
from dataclasses import replace

import dash
import pytest

from metastable import figures
from metastable.encoder.columns import COLUMNS, TEXT
from metastable.figures.look import number
from metastable.lab.callbacks import Backend, accepted, audited, drawn, names, no_update, restored
from metastable.lab.page import LABELS
from metastable.lab.state import State, problem_of, problems
from metastable.lab.words import theory_numbers
from tests.lab.conftest import until

SMALL = State(n=40, until=1.0)


@pytest.fixture
def backend():
    backend = Backend({"installed"})
    yield backend
    backend.close()


def filled(state, **more):
    return {**state.to_page(), "tab": "a", "serial": 1, **more}


def tick(state, **more):
    asked = {"tab": "a", "key": state.key, "query": state.to_query(), "seen": -1, "due": True, "now": 0}
    return {**asked, "theme": "light", "scale": 1, **more}


def finished(state, backend):
    until(lambda: backend.runs.progress("a", state.key).status == "done")


def test_every_column_of_an_audit_has_a_label():
    assert set(COLUMNS) - {"layer", "head"} <= set(LABELS) <= set(COLUMNS) | set(TEXT)


def test_a_link_that_is_too_long_is_told(backend):
    found = restored("?matrices=" + "9" * 10**6, backend)
    assert found["fields"] == State().to_page()
    assert set(found["problems"]) == {"link"}


def test_what_no_page_of_ours_sends_is_no_exception():
    page = State().to_page()
    for name in page:
        for text in ("", "nan", "-inf", "1e999", "9" * 400, "<b>", "\x00", None, ["x"], {"a": 1}):
            assert isinstance(problems(State.from_page({**page, name: text})), dict)
    assert problems(State.from_page({})) == {}


def test_a_key_is_of_the_run_alone():
    state = replace(SMALL, compare="beta", other="3")
    same = replace(state, time=2.0, theme="dark", view="audit", model="m", head=(1, 2), column="gap")
    assert state.key == same.key
    assert state.key != replace(state, other="4").key
    assert names(state) == ["β = 100", "β = 3"]


def test_a_run_is_started_once_and_not_from_the_other_view(backend):
    state = SMALL
    assert accepted(filled(replace(state, view="audit")), backend)["key"] is None
    assert backend.runs.progress("a", state.key).status == "unknown"
    assert accepted(filled(state), backend)["key"] == state.key
    finished(state, backend)
    before = backend.runs.progress("a", state.key).version
    assert accepted(filled(state), backend)["key"] == state.key
    assert backend.runs.progress("a", state.key).version == before


def test_models_are_read_when_somebody_asks(backend):
    state = replace(SMALL, trained="elsewhere:0:0")
    job = accepted(filled(state), backend)
    assert (job["key"], job["status"]) == (None, "asking")
    assert backend.runs.progress("a", state.key).status == "unknown"
    assert accepted(filled(state, consent="another"), backend)["status"] == "asking"
    assert accepted(filled(state, consent="elsewhere"), backend)["key"] == state.key
    assert backend.trusted == {"installed", "elsewhere"}


def test_controls_that_are_wrong_end_the_run_of_before(backend):
    state = replace(SMALL, beta=math.inf, n=150, until=1000.0)
    accepted(filled(state), backend)
    assert backend.runs.progress("a", state.key).status in ("waiting", "running")
    data = filled(state) | {"n": "abc"}
    assert accepted(data, backend)["status"] == "wrong"
    assert backend.runs.progress("a", state.key).status == "stopped"


def test_two_runs_of_one_slider_are_saved_at_the_same_times(backend, monkeypatch):
    monkeypatch.setattr("metastable.lab.state.MANY_TOKENS", 50)
    state = replace(SMALL, compare="n", other="60", until=0.01)
    accepted(filled(state), backend)
    finished(state, backend)
    first, second = backend.runs.results("a", state.key)[0]
    assert len(first.cloud) != len(second.cloud)
    assert first.times.tolist() == second.times.tolist()
    assert len(first.times) == 51


def test_two_temperatures_have_two_names():
    assert names(replace(SMALL, beta=1000.0, compare="beta", other="1000.4")) == ["β = 1000.0", "β = 1000.4"]


def test_every_number_of_the_theory_stands_beside_its_own_name(backend):
    state = SMALL
    theory = problem_of(SMALL).head.theory()
    shown = {one.name: one.value for one in theory_numbers(theory)}
    assert shown["token rate c"] == number(theory.rate)
    assert shown["escape rate κ"] == number(theory.escape_rate)
    assert shown["law rate"] == number(theory.law_rate())
    assert shown["gap g"] == number(theory.gap)
    assert len({shown[name] for name in ("token rate c", "escape rate κ", "gap g")}) == 3
    accepted(filled(state), backend)
    finished(state, backend)
    _, words = drawn(tick(state), backend)
    found = dict(zip(_texts(words, "Dt"), _texts(words, "Dd", "value"), strict=True))
    assert shown.items() <= found.items()


def _texts(node, kind, name=None):
    """What is in the elements of a kind, in the order of the page."""
    if isinstance(node, (list, tuple)):
        return [text for part in node for text in _texts(part, kind, name)]
    if not hasattr(node, "to_plotly_json"):
        return []
    if type(node).__name__ == kind and name in (None, getattr(node, "className", None)):
        return [node.children]
    return _texts(getattr(node, "children", None) or [], kind, name)


def test_odd_requests_are_no_errors_of_the_server(backend):
    for data in (None, "text", [], {"serial": 1}):
        with pytest.raises(dash.exceptions.PreventUpdate):
            accepted(data, backend)
    told = accepted({"serial": 1, "tab": "a", "n": {}}, backend)
    assert told["serial"] == 1
    assert told["key"] is None


def test_figures_come_once_with_the_key_of_their_state(backend):
    state = SMALL
    accepted(filled(state), backend)
    finished(state, backend)
    answer, words = drawn(tick(state), backend)
    assert [figure["layout"]["meta"]["key"] for figure in (*answer["spheres"], answer["curve"])] == [state.key] * 2
    assert words.to_plotly_json()["props"]["data-key"] == state.key
    again, nothing = drawn(tick(state, seen=answer["version"]), backend)
    assert again["spheres"] == []
    assert nothing is no_update
    other, _ = drawn(tick(replace(state, seed=1)), backend)
    assert other["status"] == "unknown"
    assert other["spheres"] == []


def test_a_picture_that_cannot_be_drawn_ends_the_waiting(backend, monkeypatch, caplog):
    state = SMALL
    accepted(filled(state), backend)
    finished(state, backend)

    def broken(*given, **more):
        raise ZeroDivisionError("no\nsuch thing")

    monkeypatch.setattr(figures, "sphere", broken)
    answer, _ = drawn(tick(state), backend)
    assert answer["status"] == "failed"
    assert answer["message"] == "ZeroDivisionError: no such thing"
    assert "ZeroDivisionError" in caplog.text


def test_a_table_that_cannot_be_shown_ends_the_asking(backend, monkeypatch, caplog):
    def broken(*given):
        raise KeyError("gap")

    monkeypatch.setattr(backend.audits, "progress", broken)
    asked = {"tab": "a", "model": "m", "column": "gap", "start": False, "theme": "light", "scale": 1}
    answer = audited(asked, backend)
    assert (answer["model"], answer["status"]) == ("m", "failed")
    assert answer["message"].startswith("KeyError")
    assert "KeyError" in caplog.text
