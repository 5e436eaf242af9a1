"""The answers of the server to the page: it reads the fields, starts runs and audits, and draws their results.

Each request of the page (see assets/) contains everything that the answer depends on: the tab, the key of the run, the
theme. The server keeps nothing about a page except its runs and audits.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import dash
import pandas as pd
from dash import ClientsideFunction, Input, Output, html, no_update

from metastable import figures
from metastable.encoder.report import FIRST_PANELS, heat_map
from metastable.encoder.trained_head import LONGEST, TIMES
from metastable.errors import BadInput
from metastable.figures.look import TITLE_HEIGHT, caption, cursor, dark, enlarged, fitted, later, number
from metastable.lab import words
from metastable.lab.encoders import Audits, EncoderCache, lines_of
from metastable.lab.moments import moments
from metastable.lab.page import GROUPS, label_of
from metastable.lab.queue import one_line
from metastable.lab.runs import Runs
from metastable.lab.state import State, problems
from metastable.report.sentences import headline

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from metastable.encoder.audit import Audit

FRAMES = 51
"""The largest number of frames in an animation: every second saved time of a run."""
ENDED = ("done", "failed", "stopped")
FIRST_COLUMN = "prediction"
"""The column of the audit that is shown first."""
FOLLOWED = {"law": "tokens", "n": "500"}
"""Settings for following a head of an audit: start from at most 500 of the encoder's own tokens."""
PLOTS = ("sphere-1", "sphere-2", "curve")
RANDOM = "random weights, same shape"
SAMPLE = 60
"""The number of characters of a text in the list of texts."""

logger = logging.getLogger(__name__)


class Backend:
    """What the answers are computed with.

    trusted : names of models that may be loaded: bundled ones, and those that a user of the page asked for
    """

    def __init__(self, trusted: set[str] | None = None) -> None:
        encoders = EncoderCache()
        self.runs, self.audits = Runs(encoders=encoders), Audits(encoders)
        self.trusted = trusted or set()

    def forget(self, tab: str) -> None:
        """The tab was closed."""
        self.runs.forget(tab)
        self.audits.forget(tab)

    def close(self) -> None:
        """Stop all work and wait for its threads."""
        self.runs.close()
        self.audits.close()


def register(app: dash.Dash, backend: Backend) -> None:
    """Connect the components of the page with the answers of the server and of the page's script."""
    heat_map = [Output("heat-map", "figure"), Output("caption-heat-map", "children"), Output("depth", "figure")]
    head = [
        Output("head-words", "children"),
        Output("attends", "children"),
        Output("eigenvalues", "figure"),
        Output("caption-eigenvalues", "children"),
    ]
    answers: list[tuple[str, Callable[..., Any], list[Output]]] = [
        ("fields", accepted, [Output("job", "data")]),
        ("tick", drawn, [Output("answer", "data"), Output("theory", "children")]),
        ("model-wanted", audited, [Output("model-answer", "data")]),
        ("head-wanted", opened, head),
    ]
    app.callback(Output("restored", "data"), Input("address", "search"))(partial(restored, backend=backend))
    for store, answer, outputs in answers:
        app.callback(*outputs, Input(store, "data"), prevent_initial_call=True)(partial(answer, backend=backend))
    scripts: list[tuple[str, list[Output], list[Input]]] = [
        ("restore", [], [Input("restored", "data")]),
        ("accept", [], [Input("job", "data")]),
        ("beat", [], [Input("clock", "n_intervals")]),
        ("answer", [Output(plot, "figure") for plot in PLOTS], [Input("answer", "data")]),
        ("watch", [], [Input(plot, "figure") for plot in (*PLOTS, "heat-map")]),
        ("model", heat_map, [Input("model-answer", "data")]),
    ]
    for name, outputs, inputs in scripts:
        app.clientside_callback(ClientsideFunction("lab", name), *outputs, *inputs)


def restored(search: str | None, backend: Backend) -> dict[str, Any]:
    """The fields for a link. A model that only the link names is not loaded before the user asks for it."""
    message = "a field of the link is wrong; correct it, or press Run"
    try:
        state = State.from_query(search or "")
        wrong = problems(state) if state.unread else {}
    except BadInput as error:
        state, message = State(), str(error)
        wrong = {"link": message}
    trusted = state.model in backend.trusted
    return {"fields": state.to_page(), "time": state.time, "trusted": trusted, "problems": wrong, "message": message}


def accepted(data: dict[str, Any], backend: Backend) -> dict[str, Any]:
    """Read the fields and start their run, unless a field is wrong or the run exists already."""
    if not (isinstance(data, dict) and {"serial", "tab"} <= set(data)):
        raise dash.exceptions.PreventUpdate
    job = {"serial": data["serial"], "query": "", "problems": {}, "key": None, "message": ""}
    try:
        return {**job, **_started(data, backend)}
    except Exception as error:
        return {**job, **_failure(error)}


def _failure(error: Exception) -> dict[str, Any]:
    """The answer for work that failed: the page must not wait for it."""
    logger.exception("an answer to the page could not be made")
    return {"status": "failed", "fraction": 0.0, "message": one_line(error)}


def _started(data: dict[str, Any], backend: Backend) -> dict[str, Any]:
    state, tab = State.from_page(data), data["tab"]
    wrong = problems(state)
    job = {"query": state.to_query(), "problems": wrong}
    if wrong:
        backend.runs.stop(tab)
        return {**job, "status": "wrong", "message": "correct the marked field to start the run"}
    if state.view != "laboratory":
        return {**job, "status": "elsewhere"}
    if state.trained:
        model = state.address[0]
        if data.get("consent") == model:
            backend.trusted.add(model)
        if model not in backend.trusted:
            backend.runs.stop(tab)
            return {**job, "status": "asking", "message": f"this link uses a head of {model}; press Run to load it"}
    found = backend.runs.progress(tab, state.key).status
    if found == "unknown" or (data.get("again") and found in ("failed", "stopped")):
        backend.runs.start(tab, state.key, state.runs())
    return {**job, "status": "running", "key": state.key, "until": state.until}


def names(state: State) -> list[str]:
    """The names that distinguish two runs."""
    if state.compare == "beta":
        betas = [run.beta for run in state.runs()]
        short = [number(beta) for beta in betas]
        return [f"β = {beta}" for beta in (short if len(set(short)) > 1 else map(str, betas))]
    if state.compare == "n":
        return [f"N = {run.n}" for run in state.runs()]
    return ["equal weights", "graded weights"] if state.compare else ["run"]


def drawn(tick: dict[str, Any], backend: Backend) -> tuple[dict[str, Any], Any]:
    """The progress of a run, with figures and text if the page has not seen them yet."""
    tab, key = tick["tab"], tick["key"]
    answer: dict[str, Any] = {"key": key, "version": tick["seen"], "asked": tick["now"]}
    answer |= {"spheres": [], "curve": None, "names": [], "moments": [], "gist": ""}
    try:
        progress = backend.runs.progress(tab, key)
        message = f"done in {progress.seconds:.1f} s" if progress.status == "done" else progress.message
        answer |= {"status": progress.status, "fraction": progress.fraction, "message": message}
        answer |= {"theme": tick["theme"], "scale": tick["scale"]}
        fresh = progress.version != tick["seen"] and (tick["due"] or progress.status in ENDED)
        runs, distances = backend.runs.results(tab, key) if fresh else ([], [])
        if not runs:
            return answer, no_update
        state = State.from_query(tick["query"])
        spheres = [figures.sphere(run, controls=False, frames=FRAMES) for run in runs]
        captions = [caption(spheres[0])]
        if distances:
            if state.compare:
                curve = figures.distances(runs, distances, names(state))
            else:
                curve = figures.distance(runs[0], distances[0])
            captions.append(caption(curve))
            # A click moves the time. Dragging must not zoom into the curve.
            curve.update_layout(dragmode=False)
            answer["curve"] = _figure(cursor(later(curve), 0.0), tick, key, f"{key} {progress.version}")
            answer["moments"] = [moments(run, found) for run, found in zip(runs, distances, strict=True)]
            answer["gist"] = "" if state.compare else headline(runs[0], distances[0])
        answer["spheres"] = [_figure(one, tick, key, f"{key} {progress.version} {i}") for i, one in enumerate(spheres)]
        answer |= {"version": progress.version, "names": names(state) if state.compare else []}
        made_for: dict[str, Any] = {"data-key": key}
        return answer, html.Div(words.of_runs(runs, distances, names(state), captions), className="words", **made_for)
    except Exception as error:
        return {**answer, **_failure(error)}, no_update


def _figure(figure: Any, asked: dict[str, Any], key: str = "", name: str = "") -> dict[str, Any]:
    """A figure in the theme and size of the page, with its title and the key of its run."""
    theme, scale = asked["theme"], min(max(float(asked["scale"]), 1.0), 2.0)
    meta = {"key": key, "id": f"{name} {theme} {scale}", "title": figure.layout.title.text}
    fitted(figure).update_layout(meta={**figure.layout.meta, **meta})
    if scale > 1:
        enlarged(figure, scale)
    return dict((dark(figure) if theme == "dark" else figure).to_plotly_json())


def audited(asked: dict[str, Any], backend: Backend) -> dict[str, Any]:
    """The progress of an audit, and one column of its table once it is finished."""
    tab, model = asked["tab"], asked["model"].strip()
    answer: dict[str, Any] = {"model": asked["model"]}
    try:
        if asked["start"]:
            backend.trusted.add(model)
            backend.audits.start(tab, model, lines_of(str(asked["corpus"])))
        progress = backend.audits.progress(tab, model)
        answer |= {"status": progress.status, "fraction": progress.fraction, "message": progress.message}
        audit = backend.audits.audit(tab, model) if progress.status == "done" else None
        if audit is None:
            return answer
        column = asked["column"] if asked["column"] in audit.heads else FIRST_COLUMN
        label = label_of(column)
        figure = heat_map(audit.heads, column, audit.twin.heads if asked["twin"] == "yes" and audit.twin else None)
        return {
            **answer,
            "column": column,
            "columns": [name for names in GROUPS.values() for name in names if name in audit.heads],
            "samples": [shorten(text, SAMPLE) for text in backend.audits.texts(tab)],
            "title": f"{label[0].upper()}{label[1:]}, by layer and head",
            "headline": f"{model}, {audit.verdict.headline}",
            "words": words.of_audit(audit),
            "layers": audit.shape["layers"],
            "heads": audit.shape["heads"],
            "interesting": interesting(audit.heads),
            "caption": caption(figure),
            "height": (figure.layout.height - TITLE_HEIGHT) * float(asked["scale"]),
            "figure": _figure(figure, asked),
            "depth": None if audit.measured is None else _figure(_over_depth(audit, asked["twin"] == "yes"), asked),
        }
    except Exception as error:
        return {**answer, **_failure(error)}


def _over_depth(audit: Audit, beside: bool) -> go.Figure:
    """How tokens move with depth, beside the random twin."""
    others = {RANDOM: audit.twin.layers} if beside and audit.twin else {}
    return figures.depth_curves(audit.layers, FIRST_PANELS, others, title="How tokens move with depth")


def opened(asked: dict[str, Any], backend: Backend) -> tuple[Any, Any, Any, Any]:
    """One head of an audit: what the theory says about it, what tokens attend to, and its eigenvalues."""
    model, layer, head = asked["model"].strip(), asked["layer"], asked["head"]
    audit = backend.audits.audit(asked["tab"], model)
    if audit is None or (layer, head) not in audit.weights.spectra:
        raise dash.exceptions.PreventUpdate
    table = audit.heads
    row = table[(table["layer"] == layer) & (table["head"] == head)].iloc[0]
    figure = figures.eigenvalues(*audit.weights.spectra[layer, head], "", audit.shape["width"])
    texts = backend.audits.texts(asked["tab"])
    text = texts[min(asked["sample"], len(texts) - 1)]
    attends = backend.audits.attends(model, text, layer, head)
    told = words.of_head(row, audit.shape["layers"], settings_to_follow(model, row))
    return told, words.of_attention(attends), _figure(figure, asked), caption(figure)


def interesting(heads: pd.DataFrame) -> list[int]:
    """(layer, head) to show first: of the heads that send tokens to two points, the one that does it fastest.

    Without such a head: the head with the largest β.
    """
    fast = heads[heads["prediction"].str.contains("two points") & (heads["rate"] > 0)]
    row = heads.loc[heads["beta"].idxmax()] if fast.empty else fast.loc[fast["layers_to_concentrate"].idxmin()]
    return [int(row["layer"]), int(row["head"])]


def settings_to_follow(model: str, row: pd.Series) -> dict[str, str]:
    """The fields for a simulation of one head of an audit: its own β, and the horizon of `trained_head`."""
    needed = TIMES * float(row["layers_to_concentrate"])
    until = min(needed, LONGEST) if math.isfinite(needed) and needed > 0 else LONGEST
    return {
        "trained": f"{model}:{int(row['layer'])}:{int(row['head'])}",
        "beta": f"{float(row['beta']):.4g}",
        "until": f"{until:.3g}",
        **FOLLOWED,
    }
