"""What the server answers in the audit view: the table of an encoder's heads as a heat map, and one head of it."""

from __future__ import annotations

import logging
import math
from typing import Any

import dash
import pandas as pd
from dash import ClientsideFunction, Input, Output, html

from metastable import figures
from metastable.encoder.audit import Audit
from metastable.encoder.columns import CHECKS, meaning
from metastable.encoder.report import ASSUMPTIONS, head_sentence, heat_map
from metastable.encoder.trained_head import LONGEST, TIMES
from metastable.figures.heads import written
from metastable.figures.look import TITLE_HEIGHT, caption
from metastable.lab.callbacks import Room, sent
from metastable.lab.runs import one_line
from metastable.lab.theory_words import SIGNS

COLUMN = "prediction"
"""What is drawn until another column is chosen."""
FACTS = (
    "beta",
    "leading",
    "frequency",
    "gap",
    "rate",
    "layers_to_concentrate",
    "alignment",
    "value_leading",
    "nonnormality",
)
FOLLOWED = {"law": "tokens", "n": "500"}
"""How a head is followed in the laboratory: from the encoder's own tokens, at most so many of them."""


def register(app: dash.Dash, room: Room) -> None:
    app.callback(Output("model-answer", "data"), Input("model-wanted", "data"), prevent_initial_call=True)(
        lambda asked: modelled_or_told(asked, room)
    )
    app.callback(
        Output("head-words", "children"), Output("eigenvalues", "figure"), Output("caption-eigenvalues", "children"),
        Input("head-wanted", "data"), prevent_initial_call=True,
    )(lambda asked: opened(asked, room))  # fmt: skip
    app.clientside_callback(
        ClientsideFunction("lab", "model"),
        Output("heat-map", "figure"),
        Output("caption-heat-map", "children"),
        Input("model-answer", "data"),
    )


def modelled_or_told(asked: dict[str, Any], room: Room) -> dict[str, Any]:
    """`modelled`, or what went wrong with it: the page must not go on asking."""
    try:
        return modelled(asked, room)
    except Exception as error:
        logging.getLogger(__name__).exception("the table of an audit could not be shown")
        return {"model": asked["model"], "status": "failed", "fraction": 0.0, "message": one_line(error)}


def modelled(asked: dict[str, Any], room: Room) -> dict[str, Any]:
    """How the audit of a model is getting on, and once it is there, a column of its table."""
    tab, model = asked["tab"], asked["model"].strip()
    if asked["start"]:
        room.trusted.add(model)
        room.audits.start(tab, model)
    look = room.audits.look(tab, model)
    answer = {"model": asked["model"], "status": look.status, "fraction": look.fraction, "message": look.message}
    audit = room.audits.audit(tab, model) if look.status == "done" else None
    if audit is None:
        return answer
    column = asked["column"] if asked["column"] in audit.heads else COLUMN
    figure = heat_map(audit.heads, column)
    height = (figure.layout.height - TITLE_HEIGHT) * float(asked["scale"])
    return {
        **answer,
        "column": column,
        "headline": f"{model}, {audit.verdict.headline}",
        "layers": audit.shape["layers"],
        "heads": audit.shape["heads"],
        "caption": caption(figure),
        "height": height,
        "figure": sent(figure, asked),
    }


def opened(asked: dict[str, Any], room: Room) -> tuple[Any, Any, Any]:
    """One head: what the theory says of it in words, and its eigenvalues."""
    audit = room.audits.audit(asked["tab"], asked["model"].strip())
    place = asked["layer"], asked["head"]
    if audit is None or place not in audit.weights.spectra:
        raise dash.exceptions.PreventUpdate
    m, v = audit.weights.spectra[place]
    figure = figures.eigenvalues(m, v, "", audit.shape["width"])
    return _words(audit, asked["model"].strip(), *place), sent(figure, asked), caption(figure)


def _words(audit: Audit, model: str, layer: int, head: int) -> list[Any]:
    table = audit.heads
    row = table[(table["layer"] == layer) & (table["head"] == head)].iloc[0]
    start: dict[str, Any] = {f"data-{name}": text for name, text in followed(model, row).items()}
    facts = [
        html.Div(
            [html.Dt(name.replace("_", " ")), html.Dd(written(row[name]), className="value"), html.Dd(meaning(name)[0])]
        )
        for name in FACTS
        if name in row
    ]
    checks = [
        html.Tr(
            [
                html.Th(name, scope="row"),
                html.Td(f"{SIGNS[row[column]]} {row[column]}", className=f"status {row[column]}"),
                html.Td(ASSUMPTIONS[name]),
            ]
        )
        for name, column in CHECKS.items()
        if column in row and row[column] in SIGNS
    ]
    return [
        html.H2(f"Layer {layer}, head {head}", id="head-title", className="headline"),
        html.P(head_sentence(row, audit.shape["layers"])),
        html.Button("Follow in the laboratory", id="follow", type="button", className="primary", **start),
        html.Dl(facts, className="numbers"),
        html.H3("Which assumptions hold"),
        html.Table(html.Tbody(checks), className="checks"),
    ]


def followed(model: str, row: pd.Series) -> dict[str, str]:
    """The controls with which a head is followed: its own β, and the layers that `following` would take."""
    needed = TIMES * float(row["layers_to_concentrate"])
    until = min(needed, LONGEST) if math.isfinite(needed) and needed > 0 else LONGEST
    return {
        "trained": f"{model}:{int(row['layer'])}:{int(row['head'])}",
        "beta": f"{float(row['beta']):.4g}",
        "until": f"{until:.3g}",
        **FOLLOWED,
    }
