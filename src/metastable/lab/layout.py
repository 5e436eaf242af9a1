"""What is on the page: controls, figures, places for words. Nothing here computes, and nothing here is decided.

Every control has the id `field-NAME`, its label, and a place `problem-NAME` beside it for what is wrong with it. The
script of the page (assets/) reads the controls; `callbacks` answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from metastable.figures.look import CONFIG
from metastable.lab.controls import LAWS

POLL = 250
"""How often the page asks how its run is getting on, in milliseconds."""
SOURCES = {"spectra": "eigenvalues of B and V", "matrices": "pasted matrices", "trained": "a head of a trained encoder"}
COMPARISONS = {
    "": "nothing",
    "beta": "two temperatures β",
    "n": "two numbers of tokens N",
    "weights": "equal and graded weights",
}
LIVE: dict[str, Any] = {"aria-live": "polite"}
GRAPH: Any = {**CONFIG, "responsive": True, "displayModeBar": "hover"}


def page(columns: Sequence[tuple[str, str]], bundled: Sequence[str]) -> html.Div:
    """The whole page. `columns` are (name, meaning) of the audit's table, `bundled` the models that are installed."""
    return html.Div(
        id="lab",
        children=[
            dcc.Location(id="address", refresh=False),
            *(dcc.Store(id=name) for name in STORES),
            dcc.Interval(id="clock", interval=POLL, disabled=True),
            _header(),
            html.Main([_laboratory(), _audit(columns, bundled)]),
        ],
    )


STORES = ("restored", "fields", "job", "tick", "answer", "model-wanted", "model-answer", "head-wanted", "head-answer")


def named(words: str) -> dict[str, Any]:
    return {"aria-label": words}


def _header() -> html.Header:
    views = [_button(f"view-{name}", name.capitalize()) for name in ("laboratory", "audit")]
    told = html.Span(id="told", **LIVE)
    tools = [told, _button("copy-link", "Copy link"), _button("theme", "Dark")]
    return html.Header(
        [
            html.H1(["metastable ", html.Span("lab")]),
            html.Nav(views, **named("views")),
            html.Div(tools, className="tools"),
        ]
    )


def _laboratory() -> html.Section:
    figures = [
        _figure("sphere-1", "Tokens"),
        _figure("sphere-2", "Tokens"),
        _figure("curve", "Distance to the limit law"),
    ]
    stage = [html.Div(figures, id="figures"), _time_bar(), _running()]
    theory = html.Section(
        [html.Div(className="veil"), html.Div(id="theory")], id="box-theory", **named("theory in words")
    )
    return html.Section(
        [_controls(), html.Div(stage, id="stage"), theory],
        id="laboratory",
        className="view",
        **named("laboratory"),
    )


def _figure(name: str, title: str) -> html.Div:
    """A figure with its heading; the veil says what the picture is not."""
    graph = dcc.Graph(id=name, config=GRAPH, responsive=True, figure={"data": [], "layout": EMPTY})
    return html.Div(
        [
            html.H2(title, id=f"title-{name}"),
            html.Div([graph, html.Div(className="veil")], className="plot"),
            html.P(id=f"caption-{name}", className="caption"),
        ],
        id=f"box-{name}",
        className="figure",
    )


EMPTY: dict[str, Any] = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "xaxis": {"visible": False},
    "yaxis": {"visible": False},
}


def _time_bar() -> html.Div:
    slider = dcc.Input(id="time", type="range", min=0, max=1, step="any", value=0, debounce=False)
    return html.Div(
        [
            _button("play", "▶ Play", className="primary"),
            html.Label("time", htmlFor="time"),
            slider,
            html.Output(id="now", **{**LIVE, "aria-live": "off"}),
        ],
        id="time-bar",
    )


def _running() -> html.Div:
    downloads = [_button(f"download-{kind}", label) for kind, label in DOWNLOADS.items()]
    return html.Div(
        [
            html.Progress(id="progress", max="1", value="0", **named("progress of the run")),
            html.Span(id="status", role="status", **LIVE),
            _button("stop", "Stop"),
            _button("run", "Run", hidden=True),
            html.Span([html.Span("download", className="label"), *downloads], className="downloads"),
        ],
        id="running",
    )


KEYS: list[Any] = [html.Kbd("space"), " plays, ", html.Kbd("←"), " ", html.Kbd("→"), " step; drag to turn the sphere"]
DOWNLOADS = {"report": "Report", "script": "Script", "data": "Data"}


def _controls() -> html.Aside:
    return html.Aside(
        [
            _group(
                "Temperature",
                _sliding("beta", "inverse temperature β", 0, 1000),
                html.Div([html.Span(mark) for mark in ("0.1", "10", "10³", "10⁵", "∞")], className="scale"),
            ),
            _group(
                "Head",
                _choice("source", "given by", SOURCES),
                html.Div(
                    [
                        _row(
                            {"d": "dim. d", "interaction": "eigenvalues of B = QᵀK", "value": "eigenvalues of V"},
                            "spectrum",
                        ),
                        _sliding("angle", "angle between B and V, in degrees", 0, 90),
                    ],
                    className="source spectra",
                ),
                html.Div([_area("matrices", "B, a blank line, V")], className="source matrices"),
                html.Div([_field("trained", "MODEL:layer:head")], className="source trained"),
            ),
            _group(
                "Tokens",
                _choice(
                    "law", "starting law", {law: f"{law.replace('_', ' ')}: {words}" for law, words in LAWS.items()}
                ),
                _row({"n": "number N", "seed": "seed", "until": "horizon t"}),
            ),
            _group(
                "Compare",
                _choice("compare", "side by side", COMPARISONS),
                html.Div([_field("other", "the second")], className="source other"),
            ),
            html.P(KEYS, className="hint"),
        ],
        id="controls",
        **named("controls"),
    )


def _audit(columns: Sequence[tuple[str, str]], bundled: Sequence[str]) -> html.Section:
    small = [_button("bundled", "MiniLM, installed here", **{"data-model": model}) for model in bundled]
    return html.Section(
        [
            html.Div(
                [
                    _field("model", "model: a folder, a hub id or an installed package"),
                    html.Div([_button("audit-run", "Audit", className="primary"), *small], className="buttons"),
                    html.Progress(id="audit-progress", max="1", hidden=True, **named("progress of the audit")),
                    html.P(id="audit-status", role="status", **LIVE),
                ],
                id="audit-controls",
            ),
            html.P(id="audit-headline"),
            html.Div(
                [
                    html.Div(
                        [
                            _choice("column", "column", dict(columns)),
                            _choice("at-layer", "layer", {}),
                            _choice("at-head", "head", {}),
                        ],
                        id="audit-column",
                    ),
                    _figure("heat-map", "Layers × heads"),
                ],
                id="audit-table",
            ),
            html.Div([html.Div(id="head-words"), _figure("eigenvalues", "Eigenvalues")], id="audit-head"),
        ],
        id="audit",
        className="view",
        **named("audit"),
    )


def _button(name: str, label: str, className: str = "", **more: Any) -> html.Button:
    return html.Button(label, id=name, type="button", className=className, **more)


def _group(title: str, *children: Any) -> html.Fieldset:
    return html.Fieldset([html.Legend(title), *children])


def _place(name: str) -> html.Div:
    """Where it is said what is wrong with a field."""
    return html.Div(id=f"problem-{name}", className="problem", **LIVE)


def _text(name: str) -> dcc.Input:
    return dcc.Input(id=f"field-{name}", type="text", value="", debounce=True, spellCheck="false")


def _field(name: str, label: str, apart: bool = False) -> html.Div:
    """A text with its label; `apart`: the place for what is wrong with it is elsewhere."""
    place = [] if apart else [_place(name)]
    return html.Div([html.Label(label, htmlFor=f"field-{name}"), _text(name), *place], className="field")


def _row(fields: dict[str, str], className: str = "") -> html.Div:
    """Narrow fields side by side, with all that is wrong with them below."""
    side = html.Div([_field(name, label, apart=True) for name, label in fields.items()], className=f"row {className}")
    return html.Div([side, *(_place(name) for name in fields)])


def _sliding(name: str, label: str, low: float, high: float) -> html.Div:
    """A slider and the number beside it; either can be moved."""
    slider = dcc.Input(id=f"slide-{name}", type="range", min=low, max=high, step=1, value=low)
    return html.Div(
        [
            html.Label(label, htmlFor=f"field-{name}"),
            html.Div([slider, _text(name)], className="sliding"),
            _place(name),
        ],
        className="field",
    )


def _area(name: str, label: str) -> html.Div:
    area = dcc.Textarea(id=f"field-{name}", value="", rows=7, spellCheck=False)
    return html.Div([html.Label(label, htmlFor=f"field-{name}"), area, _place(name)], className="field")


def _choice(name: str, label: str, options: dict[str, str]) -> html.Div:
    """A native select, which phones and screen readers know; the script reads it and sets it."""
    chosen = [html.Option(words, value=value) for value, words in options.items()]
    select = html.Select(chosen, id=f"field-{name}")
    return html.Div([html.Label(label, htmlFor=f"field-{name}"), select, _place(name)], className="field")
