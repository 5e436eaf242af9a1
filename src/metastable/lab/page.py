"""The components of the page: fields, figures and places for text.

Every field has the id `field-NAME`, a label, and a place `problem-NAME` for its error message. The script of the page
(assets/) reads the fields; `callbacks` answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from metastable.block import KERNELS, NORMS
from metastable.encoder.columns import CHECKS
from metastable.figures.look import CONFIG
from metastable.lab.lessons import EXAMPLES, TOUR, fields
from metastable.lab.state import COMPARISONS, LAWS, MASKS

POLL = 250
"""The interval at which the page asks for the progress of its run, in milliseconds."""
STORES = ("restored", "fields", "job", "tick", "answer", "model-wanted", "model-answer", "head-wanted")
SOURCES = {"spectra": "eigenvalues of B and V", "matrices": "pasted matrices", "trained": "a head of a trained encoder"}
DOWNLOADS = {"report": "Report", "script": "Script", "data": "Data"}
LABELS = {
    "beta": "inverse temperature β",
    "leading": "dominant eigenvalue of M, real part",
    "frequency": "rotation per layer |Im λ₁|",
    "gap": "spectral gap g of M",
    "dim": "dimension of the limit space",
    "multiplicity": "multiplicity of λ₁",
    "second": "second eigenvalue of M, real part",
    "complex": "dominant eigenvalue of M is complex",
    "negative": "dominant eigenvalue of M is not positive",
    "nonnormality": "non-normality of M",
    "eigenbasis_condition": "condition number of M's eigenvectors",
    "rate": "concentration rate c",
    "layers_to_concentrate": "layers to concentrate, log β/c",
    "value_leading": "dominant eigenvalue of V, real part",
    "value_frequency": "rotation per layer by V",
    "value_gap": "spectral gap of V",
    "value_norm": "norm of V",
    "value_rank": "effective rank of V",
    "terminal": "terminal phase of V",
    "offset": "score offset |a|/‖B‖",
    "gain_spread": "spread of the normalisation gain",
    "residual": "residual scale ρ",
    "unfolded": "score terms left out",
    "alignment": "alignment of M and V",
    "entropy": "attention entropy",
    "logit_gap": "lead of the best token over the others",
    "special_share": "attention on special tokens",
    "update_length": "length of the head's update",
    "share_in_E": "share of the tokens' energy in E",
    "maximiser_angle": "best token and best point, angle",
    "distance_before": "distance to the predicted limit, before",
    "distance_after": "distance to the predicted limit, after",
    "approach": "approach to the predicted limit",
    "predicted_approach": "approach, as predicted",
    "prediction": "predicted limit",
    **{column: f"assumption: {name}" for name, column in CHECKS.items()},
}
"""Labels of the columns of an audit."""
GROUPS = {
    "where tokens go": ("prediction", "dim", "layers_to_concentrate", "rate", "terminal", "alignment"),
    "on your texts": (
        *("entropy", "special_share", "logit_gap", "update_length", "share_in_E"),
        *("maximiser_angle", "distance_before", "distance_after", "approach", "predicted_approach"),
    ),
    "temperature and scores": ("beta", "offset", "gain_spread", "residual", "unfolded"),
    "M: where sharp attention sends tokens": (
        *("leading", "second", "gap", "frequency", "complex", "negative", "multiplicity"),
        *("nonnormality", "eigenbasis_condition"),
    ),
    "V: what moves late clusters": ("value_leading", "value_frequency", "value_gap", "value_norm", "value_rank"),
    "assumptions of the theory": tuple(CHECKS.values()),
}
"""The columns of an audit in groups."""
LIVE: dict[str, Any] = {"aria-live": "polite"}
GRAPH: Any = {**CONFIG, "responsive": True, "displayModeBar": "hover"}
EMPTY: dict[str, Any] = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "xaxis": {"visible": False},
    "yaxis": {"visible": False},
}
"""The layout of a graph before its first figure."""


def label_of(column: str) -> str:
    return LABELS.get(column, column.replace("_", " "))


def page(bundled: Sequence[str]) -> html.Div:
    """The whole page. `bundled` are the models that are installed as Python packages."""
    return html.Div(
        [
            dcc.Location(id="address", refresh=False),
            *(dcc.Store(id=name) for name in STORES),
            dcc.Interval(id="clock", interval=POLL, disabled=True),
            _header(),
            html.Main([_laboratory(), _audit(bundled)]),
        ],
        id="lab",
    )


def _header() -> html.Header:
    views = [_button(f"view-{name}", name.capitalize()) for name in ("laboratory", "audit")]
    tools = [html.Span(id="told", **LIVE), _button("tour-start", "Tour")]
    tools += [_button("copy-link", "Copy link"), _button("theme", "Dark")]
    return html.Header(
        [
            html.H1(["metastable ", html.Span("lab")]),
            html.Nav(views, **_aria("views")),
            html.Div(tools, className="tools"),
        ]
    )


def _laboratory() -> html.Section:
    figures = [
        _figure("sphere-1", "Tokens"),
        _figure("sphere-2", "Tokens"),
        _figure("curve", "Distance to the limit law"),
    ]
    said = html.Div([html.P(id="moment", **LIVE), html.P(id="gist")], id="said")
    stage = html.Div([_tour(), said, html.Div(figures, id="figures"), _time_bar(), _run_bar()], id="stage")
    theory = [html.Div(className="veil"), html.Div(id="theory")]
    return html.Section(
        [_fields(), stage, html.Section(theory, id="box-theory", **_aria("theory and results"))],
        id="laboratory",
        className="view",
        **_aria("laboratory"),
    )


def _tour() -> html.Section:
    """The guided tour, hidden until it is started. The script of the page reads the steps from it."""
    steps = [{"title": step.title, "words": step.words, "fields": fields(step.state)} for step in TOUR]
    data: dict[str, Any] = {"data-steps": json.dumps(steps)}
    buttons = [_button("tour-back", "Back"), _button("tour-next", "Next", "primary"), _button("tour-leave", "Leave")]
    text = html.Div([html.H2(id="tour-title"), html.P(id="tour-words")], **LIVE)
    return html.Section([text, html.Div(buttons, className="buttons")], id="tour", hidden=True, **data, **_aria("tour"))


def _figure(name: str, title: str) -> html.Div:
    """A figure with its heading. The veil covers a figure that does not belong to the current fields."""
    graph = dcc.Graph(id=name, config=GRAPH, responsive=True, figure={"data": [], "layout": EMPTY})
    return html.Div(
        [
            html.Div([html.H2(title, id=f"title-{name}"), html.Span(id=f"note-{name}")], className="title"),
            html.Div([graph, html.Div(className="veil")], className="plot"),
            html.P(id=f"caption-{name}", className="caption"),
        ],
        id=f"box-{name}",
        className="figure",
    )


def _time_bar() -> html.Div:
    slider = dcc.Input(id="time", type="range", min=0, max=1, step="any", value=0, debounce=False)
    quiet: dict[str, Any] = {"aria-live": "off"}
    return html.Div(
        [
            _button("play", "▶ Play", className="primary"),
            html.Label("Time", htmlFor="time"),
            slider,
            html.Output(id="now", **quiet),
        ],
        id="time-bar",
    )


def _run_bar() -> html.Div:
    downloads = [_button(f"download-{kind}", label) for kind, label in DOWNLOADS.items()]
    return html.Div(
        [
            html.Progress(id="progress", max="1", value="0", **_aria("progress of the run")),
            html.Span(id="status", role="status", **LIVE),
            _button("stop", "Stop"),
            _button("run", "Run", hidden=True),
            _button("trails", "Trails", title="a tail behind each token", **{"aria-pressed": "true"}),
            html.Span([html.Span("Download", className="label"), *downloads], className="downloads"),
        ],
        id="running",
    )


def _fields() -> html.Aside:
    marks = html.Div([html.Span(mark) for mark in ("0.1", "10", "10³", "10⁵", "∞")], className="scale")
    spectra = [
        _row({"d": "Dim. d", "interaction": "Eigenvalues of B = QᵀK", "value": "Eigenvalues of V"}, "spectrum"),
        _slider("angle", "Angle between B and V in degrees", 0, 90),
    ]
    keys: list[Any] = [html.Kbd("space"), " play, ", html.Kbd("←"), " ", html.Kbd("→"), " step, drag to rotate"]
    return html.Aside(
        [
            _examples(),
            _group("Temperature", _slider("beta", "Inverse temperature β", 0, 1000), marks),
            _group(
                "Head",
                _choice("source", "Given by", SOURCES),
                html.Div(spectra, className="source spectra"),
                html.Div([_area("matrices", "B, an empty line, V")], className="source matrices"),
                html.Div([_field("trained", "MODEL:layer:head")], className="source trained"),
            ),
            _group(
                "Block",
                _choice("kernel", "Attention", {name: name for name in KERNELS}),
                _choice("causal", "Tokens attend to", MASKS),
                _choice("norm", "Normalisation", NORMS),
                _row({"heads": "Heads", "perceptron": "Neurons", "noise": "Noise σ"}),
            ),
            _group(
                "Tokens",
                _choice("law", "Initial law", LAWS),
                _row({"n": "Number N", "seed": "Seed", "until": "Horizon t"}),
            ),
            _group(
                "Compare",
                _choice("compare", "Two runs side by side", COMPARISONS),
                html.Div([_field("other", "Second value")], className="source other"),
            ),
            html.P(keys, className="hint"),
        ],
        id="controls",
        **_aria("settings"),
    )


def _examples() -> html.Div:
    """A list of examples. The value of an option is the query of the state, which the server gives back."""
    options = [html.Option("own settings", value="own")]
    for name, state in EXAMPLES.items():
        data: dict[str, Any] = {"data-fields": json.dumps(fields(state))}
        options.append(html.Option(name, value=f"?{state.to_query()}", **data))
    return html.Div([html.Label("Example", htmlFor="example"), html.Select(options, id="example")], className="field")


def _audit(bundled: Sequence[str]) -> html.Section:
    installed = [_button("bundled", "Installed model: MiniLM", **{"data-model": model}) for model in bundled]
    twin = _button("twin", "Random twin", title="the same with random weights", **{"aria-pressed": "true"})
    choices = [_columns(), _choice("at-layer", "Layer", {}), _choice("at-head", "Head", {}), twin]
    click = html.P("Click a cell to open its head, or choose layer and head here.", id="click-a-cell")
    start = html.Div(
        [
            _button("audit-run", "Audit", className="primary"),
            *installed,
            html.Progress(id="audit-progress", max="1", hidden=True, **_aria("progress of the audit")),
            html.P(id="audit-status", role="status", **LIVE),
        ],
        className="buttons",
    )
    tables = [_figure("heat-map", "Layers × heads"), _figure("depth", "How tokens move with depth")]
    title = html.H2("What each token attends to most")
    attends = html.Section([title, _choice("sample", "In the text", {}), html.Div(id="attends")], id="box-attends")
    eigenvalues = _figure("eigenvalues", "Eigenvalues")
    return html.Section(
        [
            html.Div(
                [
                    html.Div([_field("model", "Model: a folder, a Hugging Face id or an installed package"), start]),
                    _area("corpus", "Texts, one on a line; without texts only the weights are read", rows=3),
                ],
                id="audit-controls",
            ),
            html.P(
                "The audit shows where each attention head of an encoder sends its tokens, by its weights and on the "
                "texts above, beside a model of the same shape with random weights.",
                className="hint",
                id="audit-hint",
            ),
            html.Div([html.P(id="audit-headline"), html.P(id="audit-words")], id="audit-said"),
            html.Div([html.Div(choices, id="audit-column"), click, html.Div(tables, id="tables")], id="audit-table"),
            html.Div([html.Div(id="head-words"), html.Div([attends, eigenvalues])], id="audit-head"),
        ],
        id="audit",
        className="view",
        **_aria("audit"),
    )


def _columns() -> html.Div:
    """The list of the columns of an audit, in groups."""
    groups = [
        html.Optgroup([html.Option(label_of(name), value=name) for name in names], label=title)
        for title, names in GROUPS.items()
    ]
    return _labelled("column", "Show", html.Select(groups, id="field-column"), _problem("column"))


def _aria(label: str) -> dict[str, Any]:
    return {"aria-label": label}


def _button(name: str, label: str, className: str = "", **more: Any) -> html.Button:
    return html.Button(label, id=name, type="button", className=className, **more)


def _group(title: str, *children: Any) -> html.Fieldset:
    return html.Fieldset([html.Legend(title), *children])


def _problem(name: str) -> html.Div:
    """The place for the error message of a field."""
    return html.Div(id=f"problem-{name}", className="problem", **LIVE)


def _labelled(name: str, label: str, control: Any, *below: Any) -> html.Div:
    return html.Div([html.Label(label, htmlFor=f"field-{name}"), control, *below], className="field")


def _text(name: str) -> dcc.Input:
    return dcc.Input(id=f"field-{name}", type="text", value="", debounce=True, spellCheck="false")


def _field(name: str, label: str) -> html.Div:
    return _labelled(name, label, _text(name), _problem(name))


def _row(fields: dict[str, str], className: str = "") -> html.Div:
    """Narrow fields side by side, with all their error messages below."""
    row = [_labelled(name, label, _text(name)) for name, label in fields.items()]
    return html.Div([html.Div(row, className=f"row {className}"), *(_problem(name) for name in fields)])


def _slider(name: str, label: str, low: float, high: float) -> html.Div:
    """A slider with a text field beside it; each follows the other."""
    slider = dcc.Input(id=f"slide-{name}", type="range", min=low, max=high, step=1, value=low)
    return _labelled(name, label, html.Div([slider, _text(name)], className="sliding"), _problem(name))


def _area(name: str, label: str, rows: int = 7) -> html.Div:
    area = dcc.Textarea(id=f"field-{name}", value="", rows=rows, spellCheck=False)
    return _labelled(name, label, area, _problem(name))


def _choice(name: str, label: str, options: dict[str, str]) -> html.Div:
    """A native select element, which phones and screen readers support; the page's script reads and sets it."""
    select = html.Select([html.Option(text, value=value) for value, text in options.items()], id=f"field-{name}")
    return _labelled(name, label, select, _problem(name))
