"""What the server answers to the page: it reads the controls, starts runs, and draws what they have come to.

The page asks in its own script (assets/), each time with everything that the answer depends on: a tab, a key, a
theme. So the server keeps nothing about a page but its run.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import dash
from dash import ClientsideFunction, Input, Output, html, no_update

from metastable import figures
from metastable.figures.look import caption, cursor, dark, enlarged, fitted, number
from metastable.lab import fields, theory_words
from metastable.lab.audits import Audits
from metastable.lab.runs import Look, Runs, one_line
from metastable.lab.state import State, second

FRAMES = 51
"""Every second of the times that a run saves."""
ENDED = ("done", "failed", "stopped")


@dataclass
class Room:
    """What the answers come from. `trusted`: models that somebody at this machine has asked for, or bundled ones."""

    runs: Runs
    audits: Audits
    trusted: set[str] = field(default_factory=set)

    def forget(self, tab: str) -> None:
        """A tab is gone."""
        self.runs.forget(tab)
        self.audits.forget(tab)


def register(app: dash.Dash, room: Room) -> None:
    """Connect the page with its answers."""
    app.callback(Output("restored", "data"), Input("address", "search"))(lambda search: restored(search, room))
    app.callback(Output("job", "data"), Input("fields", "data"), prevent_initial_call=True)(
        lambda data: accepted_or_told(data, room)
    )
    app.callback(
        Output("answer", "data"), Output("theory", "children"), Input("tick", "data"), prevent_initial_call=True
    )(lambda tick: drawn_or_told(tick, room))
    plots = ("sphere-1", "sphere-2", "curve")
    app.clientside_callback(ClientsideFunction("lab", "restore"), Input("restored", "data"))
    app.clientside_callback(ClientsideFunction("lab", "accept"), Input("job", "data"))
    app.clientside_callback(ClientsideFunction("lab", "beat"), Input("clock", "n_intervals"))
    app.clientside_callback(
        ClientsideFunction("lab", "answer"), *(Output(name, "figure") for name in plots), Input("answer", "data")
    )
    app.clientside_callback(
        ClientsideFunction("lab", "watch"), *(Input(name, "figure") for name in (*plots, "heat-map"))
    )


def restored(search: str | None, room: Room) -> dict[str, Any]:
    """The controls of a link. A model that only the link names is not read until somebody asks for it."""
    state = State.from_query(search or "")
    wrong = dict(state.unread)
    message = wrong.pop("link", "the link cannot be read in full; Run takes the fields as they stand")
    return {
        "fields": fields.texts(state),
        "time": max(state.time, 0.0),
        "trusted": state.model in room.trusted,
        "problems": dict(state.unread),
        "message": message,
    }


def accepted_or_told(data: dict[str, Any], room: Room) -> dict[str, Any]:
    """`accepted`, or what went wrong with it: the page must not wait for ever for a run that cannot begin."""
    if not (isinstance(data, dict) and {"serial", "tab"} <= set(data)):
        raise dash.exceptions.PreventUpdate
    try:
        return accepted(data, room)
    except Exception as error:
        logging.getLogger(__name__).exception("the controls could not be read")
        told = {"serial": data["serial"], "query": "", "problems": {}, "key": None}
        return {**told, "status": "failed", "message": one_line(error)}


def accepted(data: dict[str, Any], room: Room) -> dict[str, Any]:
    """Read the controls; start their run unless something is wrong with them or it is under way already."""
    state, wrong = fields.read(data)
    job = {"serial": data["serial"], "query": state.to_query(), "problems": wrong, "key": None, "message": ""}
    if wrong:
        room.runs.stop(data["tab"])
        return {**job, "status": "wrong", "message": "nothing is computed until the marked field is put right"}
    if state.view != "laboratory":
        return {**job, "status": "elsewhere"}
    model = state.controls.trained.rsplit(":", 2)[0]
    if model and data.get("consent") == model:
        room.trusted.add(model)
    if model and model not in room.trusted:
        room.runs.stop(data["tab"])
        return {**job, "status": "asking", "message": f"this link follows a head of {model}; Run reads that model"}
    key = key_of(state)
    found = room.runs.look(data["tab"], key).status
    if found == "unknown" or (data.get("again") and found in ("failed", "stopped")):
        room.runs.start(data["tab"], key, controls_of(state))
    title = "Distance to the limit law"
    return {
        **job,
        "key": key,
        "status": "running",
        "names": names(state),
        "title": title,
        "until": state.controls.until,
    }


def key_of(state: State) -> str:
    """What the runs of a state depend on, and nothing else."""
    return State(controls=state.controls, compare=state.compare, other=state.other).to_query()


def controls_of(state: State) -> list[Any]:
    other = second(state)
    return [state.controls] if other is None else [state.controls, other]


def names(state: State) -> list[str]:
    """What tells the runs apart, where there are two."""
    if state.compare == "beta":
        betas = [c.beta for c in controls_of(state)]
        short = [number(beta) for beta in betas]
        return [f"β = {b}" for b in (short if len(set(short)) > 1 else map(str, betas))]
    if state.compare == "n":
        return [f"N = {c.n}" for c in controls_of(state)]
    return ["equal weights", "graded weights"] if state.compare else ["run"]


def drawn_or_told(tick: dict[str, Any], room: Room) -> tuple[dict[str, Any], Any]:
    """`answered`, or what went wrong with it: the page must not wait for ever for a picture that cannot be drawn."""
    try:
        return answered(tick, room)
    except Exception as error:
        logging.getLogger(__name__).exception("the picture of a run could not be made")
        told = {"key": tick["key"], "status": "failed", "fraction": 0.0, "message": one_line(error)}
        return {
            **told,
            "version": tick["seen"],
            "spheres": [],
            "curve": None,
            "names": [],
            "asked": tick["now"],
        }, no_update


def answered(tick: dict[str, Any], room: Room) -> tuple[dict[str, Any], Any]:
    """How a run is getting on, with its figures and words where the page has not seen them yet."""
    tab, key = tick["tab"], tick["key"]
    look = room.runs.look(tab, key)
    answer = {"key": key, "status": look.status, "fraction": look.fraction, "message": told(look)}
    state = State.from_query(tick["query"])
    answer |= {"names": names(state) if state.compare else []}
    answer |= {"version": tick["seen"], "spheres": [], "curve": None, "asked": tick["now"]}
    answer |= {"theme": tick["theme"], "scale": tick["scale"]}
    fresh = look.version != tick["seen"] and (tick["due"] or look.status in ENDED)
    runs = room.runs.partial(tab, key) if fresh else []
    if not runs:
        return answer, no_update
    measured = room.runs.measured(tab, key) if look.status == "done" else []
    drawn = [figures.sphere(run, controls=False, frames=FRAMES) for run in runs]
    captions = [caption(drawn[0])]
    if measured:
        curve = (
            figures.distance(runs[0], measured[0])
            if len(runs) == 1
            else figures.distances(runs, measured, names(state))
        )
        captions.append(caption(curve))
        # A click moves the time; a box drawn by mistake in front of an audience would only hide the curve.
        curve.update_layout(dragmode=False)
        answer["curve"] = sent(cursor(curve, 0.0), tick, key, f"{key} {look.version}")
    answer["spheres"] = [sent(one, tick, key, f"{key} {look.version} {i}") for i, one in enumerate(drawn)]
    answer["version"] = look.version
    words = theory_words.words(runs, measured, names(state), captions)
    made_for: dict[str, Any] = {"data-key": key}
    return answer, html.Div(words, className="words", **made_for)


def told(look: Look) -> str:
    """The state of a run in words."""
    if look.status == "done":
        return f"done in {look.seconds:.1f} s"
    return look.message


def sent(figure: Any, asked: dict[str, Any], key: str = "", name: str = "") -> dict[str, Any]:
    """A figure as the page gets it: in its theme and size, with its title and the state that it was made for."""
    theme, scale = asked["theme"], min(max(float(asked["scale"]), 1.0), 2.0)
    told = {"key": key, "id": f"{name} {theme} {scale}", "title": figure.layout.title.text}
    fitted(figure).update_layout(meta={**figure.layout.meta, **told})
    if scale > 1:
        enlarged(figure, scale)
    return dict((dark(figure) if theme == "dark" else figure).to_plotly_json())
