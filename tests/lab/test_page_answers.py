"""What the server answers, without a browser: fields and states, keys, pictures that fail."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import dash
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metastable import figures
from metastable.figures.look import number
from metastable.lab import callbacks
from metastable.lab.audits import Audits
from metastable.lab.callbacks import Room, accepted, accepted_or_told, answered, drawn_or_told, key_of, names
from metastable.lab.callbacks_audit import modelled_or_told
from metastable.lab.controls import arguments, common_frames, frames, head_of
from metastable.lab.fields import read, texts
from metastable.lab.runs import Runs
from metastable.lab.scripts import script
from metastable.lab.state import Controls, State, problems
from metastable.lab.theory_words import of_the_spectra

SMALL = Controls(n=40, until=1.0)


@pytest.fixture
def room():
    runs = Runs()
    yield Room(runs, Audits(), {"installed"})
    runs.close()


def filled(state, **more):
    return {**texts(state), "tab": "a", "serial": 1, **more}


def tick(state, **more):
    asked = {"tab": "a", "key": key_of(state), "query": state.to_query(), "seen": -1, "due": True, "now": 0}
    return {**asked, "theme": "light", "scale": 1, **more}


def finished(state, room):
    deadline = time.monotonic() + 60
    while room.runs.look("a", key_of(state)).status != "done":
        assert time.monotonic() < deadline
        time.sleep(0.02)


eigenvalue = st.floats(-100, 100)
controls = st.integers(2, 5).flatmap(
    lambda d: st.builds(
        Controls,
        d=st.just(d),
        interaction=st.tuples(*[eigenvalue] * d),
        value=st.tuples(*[eigenvalue] * d),
        angle=st.floats(-360, 360),
        n=st.integers(1, 20_000),
        seed=st.integers(0, 2**53 - 1),
        beta=st.one_of(st.floats(0, 1e6), st.just(math.inf)),
        until=st.floats(1e-6, 1000),
    )
)


@settings(max_examples=60, deadline=None)
@given(controls, st.sampled_from([("", None), ("beta", 3.5), ("beta", math.inf), ("n", 17), ("weights", None)]))
def test_fields_say_exactly_the_state_that_filled_them(given_controls, compared):
    state = State(
        given_controls, compare=compared[0], other=compared[1], model="some/model", column="gap", head=(3, 11)
    )
    found, wrong = read(texts(state))
    assert found == state
    # Some heads have no graded tokens to compare with.
    assert wrong == problems(state)
    assert set(wrong) <= {"compare"}


def test_only_the_way_that_is_chosen_gives_the_head():
    state = State(replace(SMALL, matrices="1 0\n0 2\n\n1 0\n0 3"))
    given_fields = texts(state)
    assert given_fields["source"] == "matrices"
    assert read({**given_fields, "source": "spectra"})[0].controls.matrices == ""
    assert set(read({**given_fields, "source": "trained"})[1]) == {"trained"}
    assert set(read({**given_fields, "matrices": " "})[1]) == {"matrices"}


def test_what_no_page_of_ours_sends_is_no_exception():
    for name in texts(State()):
        for text in ("", "nan", "-inf", "1e999", "9" * 400, "<b>", "\x00", None, ["x"], {"a": 1}):
            _, wrong = read({**texts(State()), name: text})
            assert isinstance(wrong, dict)
    assert isinstance(read({})[1], dict)


def test_a_key_is_of_the_run_alone():
    state = State(SMALL, compare="beta", other=3.0)
    same = replace(state, time=2.0, theme="dark", view="audit", model="m", head=(1, 2), column="gap")
    assert key_of(state) == key_of(same)
    assert key_of(state) != key_of(replace(state, other=4.0))
    assert names(state) == ["β = 100", "β = 3"]


def test_a_run_is_started_once_and_not_from_the_other_view(room):
    state = State(SMALL)
    assert accepted(filled(replace(state, view="audit")), room)["key"] is None
    assert room.runs.look("a", key_of(state)).status == "unknown"
    assert accepted(filled(state), room)["key"] == key_of(state)
    finished(state, room)
    before = room.runs.look("a", key_of(state)).version
    assert accepted(filled(state), room)["key"] == key_of(state)
    assert room.runs.look("a", key_of(state)).version == before


def test_models_are_read_when_somebody_asks(room):
    state = State(replace(SMALL, trained="elsewhere:0:0"))
    job = accepted(filled(state), room)
    assert (job["key"], job["status"]) == (None, "asking")
    assert room.runs.look("a", key_of(state)).status == "unknown"
    assert accepted(filled(state, consent="another"), room)["status"] == "asking"
    assert accepted(filled(state, consent="elsewhere"), room)["key"] == key_of(state)
    assert room.trusted == {"installed", "elsewhere"}


def test_controls_that_are_wrong_end_the_run_of_before(room):
    state = State(replace(SMALL, beta=math.inf, n=150, until=1000.0))
    accepted(filled(state), room)
    assert room.runs.look("a", key_of(state)).status in ("waiting", "running")
    data = filled(state) | {"n": "abc"}
    assert accepted(data, room)["status"] == "wrong"
    assert room.runs.look("a", key_of(state)).status == "stopped"


def test_two_runs_of_one_slider_are_saved_at_the_same_times():
    big = replace(SMALL, d=32, interaction=(1.0,) * 32, value=(0.5,) * 32, n=100)
    both = [big, replace(big, n=7000)]
    counts = [frames(one, 32) for one in both]
    assert counts[0] != counts[1]
    assert common_frames(both) == min(counts)
    assert {arguments(one, 32, common_frames(both))["t_eval"] for one in both} == {min(counts)}
    text = script(State(big, compare="n", other=7000.0))
    assert text.count(f"t_eval={min(counts)}") == 2


def test_two_temperatures_have_two_names():
    assert names(State(replace(SMALL, beta=1000.0), compare="beta", other=1000.4)) == ["β = 1000.0", "β = 1000.4"]


def test_every_number_of_the_theory_stands_beside_its_own_name(room):
    state = State(SMALL)
    theory = head_of(SMALL).theory()
    shown = {one.name: one.value for one in of_the_spectra(theory)}
    assert shown["token rate c"] == number(theory.rate)
    assert shown["escape rate κ"] == number(theory.escape_rate)
    assert shown["law rate"] == number(theory.law_rate())
    assert shown["gap g"] == number(theory.gap)
    assert len({shown[name] for name in ("token rate c", "escape rate κ", "gap g")}) == 3
    accepted(filled(state), room)
    finished(state, room)
    _, words = answered(tick(state), room)
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


def test_odd_requests_are_no_errors_of_the_server(room):
    for data in (None, "text", [], {"serial": 1}):
        with pytest.raises(dash.exceptions.PreventUpdate):
            accepted_or_told(data, room)
    told = accepted_or_told({"serial": 1, "tab": "a", "n": {}}, room)
    assert told["serial"] == 1
    assert told["key"] is None


def test_figures_come_once_with_the_key_of_their_state(room):
    state = State(SMALL)
    accepted(filled(state), room)
    finished(state, room)
    answer, words = answered(tick(state), room)
    assert [figure["layout"]["meta"]["key"] for figure in (*answer["spheres"], answer["curve"])] == [key_of(state)] * 2
    assert words.to_plotly_json()["props"]["data-key"] == key_of(state)
    again, nothing = answered(tick(state, seen=answer["version"]), room)
    assert again["spheres"] == []
    assert nothing is callbacks.no_update
    other, _ = answered(tick(replace(state, controls=replace(SMALL, seed=1))), room)
    assert other["status"] == "unknown"
    assert other["spheres"] == []


def test_a_picture_that_cannot_be_drawn_ends_the_waiting(room, monkeypatch, caplog):
    state = State(SMALL)
    accepted(filled(state), room)
    finished(state, room)

    def broken(*given, **more):
        raise ZeroDivisionError("no\nsuch thing")

    monkeypatch.setattr(figures, "sphere", broken)
    answer, _ = drawn_or_told(tick(state), room)
    assert answer["status"] == "failed"
    assert answer["message"] == "ZeroDivisionError: no such thing"
    assert "could not be made" in caplog.text


def test_a_table_that_cannot_be_shown_ends_the_asking(room, monkeypatch, caplog):
    def broken(*given):
        raise KeyError("gap")

    monkeypatch.setattr(room.audits, "look", broken)
    asked = {"tab": "a", "model": "m", "column": "gap", "start": False, "theme": "light", "scale": 1}
    answer = modelled_or_told(asked, room)
    assert (answer["model"], answer["status"]) == ("m", "failed")
    assert answer["message"].startswith("KeyError")
    assert "could not be shown" in caplog.text
