"""The live view of a stream that `watch` or `serve` is examining: timeline, counts, warnings, newest strange texts.

The page asks every `POLL` milliseconds. The server reads what was appended to records.jsonl since the last question,
and answers only if something changed.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import dash
from dash import Input, Output, State, dcc, html

from metastable.figures.look import caption, untitled
from metastable.lab.page import EMPTY, GRAPH, LIVE
from metastable.monitor.change_point import ChangePoint
from metastable.monitor.report import draw, headline, notes, promise, tiles
from metastable.monitor.watched import WatchedFile

POLL = 1500
"""The interval at which the page asks for new records, in milliseconds."""
NEWEST = 8
"""Strange texts that are listed."""
AGAIN = 1.02
"""The place of a change is estimated again when the stream has grown by this factor."""

NOTHING: dict[str, Any] = {"data": [], "layout": EMPTY}
"""The figure of a stream without scored texts."""


class LiveStream:
    """A stream that is read while it grows. Pages share it.

    version : grows with every change
    """

    def __init__(self, path: str | Path) -> None:
        self.watched = WatchedFile(path)
        self.version = 0
        self._lock = threading.Lock()
        self._change: ChangePoint | None = None
        self._estimated = 0

    def answer(self, seen: int | None) -> tuple[Any, ...]:
        """The contents of the page, or nothing new for a page that has seen this version."""
        with self._lock:
            if self.watched.update() or not self.version:
                self.version += 1
            if seen == self.version:
                raise dash.exceptions.PreventUpdate
            watched, change = self.watched, self._changed()
            if not watched.records:
                return self.version, f"Waiting for records in {watched.path} …", "", [], [], NOTHING, "", []
            figure = draw(watched, change) if watched.scored else None
            return (
                self.version,
                headline(watched, change),
                promise(watched.facts.alpha, bool(watched.slices)),
                [html.Li(note) for note in notes(watched, change)],
                _tiles(tiles(watched, change)),
                NOTHING if figure is None else untitled(figure).to_plotly_json(),
                "" if figure is None else caption(figure),
                self._newest(),
            )

    def _changed(self) -> ChangePoint | None:
        scored = self.watched.scored
        if not self.watched.alarms:
            self._change, self._estimated = None, 0
        elif not self._estimated <= scored < AGAIN * self._estimated:
            self._change, self._estimated = self.watched.change(), scored
        return self._change

    def _newest(self) -> list[Any]:
        places = self.watched.strange.nonzero()[0][-NEWEST:][::-1]
        return [
            html.Li(
                [html.Strong(f"text {int(self.watched.columns.number[i])}"), f": {self.watched.row(int(i))['reason']}"]
            )
            for i in places
        ]


def _tiles(numbers: dict[str, tuple[str, str]]) -> list[Any]:
    return [
        html.Div([html.Dt(name), html.Dd(value, className="value"), html.Dd(meaning, className="meaning")])
        for name, (value, meaning) in numbers.items()
    ]


def page() -> html.Div:
    """The whole page."""
    return html.Div(
        [
            dcc.Store(id="seen"),
            dcc.Interval(id="clock", interval=POLL),
            html.Header([html.H1(["metastable ", html.Span("lab: a watched stream")])]),
            html.Main(
                [
                    html.P("Loading the stream …", id="live-headline", role="status", **LIVE),
                    html.P(id="live-promise", className="hint"),
                    html.Ul(id="live-notes", **LIVE),
                    html.Dl(id="live-numbers"),
                    dcc.Graph(id="live-timeline", config=GRAPH, figure=NOTHING),
                    html.P(id="live-caption", className="caption"),
                    html.H2("Newest strange texts"),
                    html.Ul(id="live-newest"),
                ]
            ),
        ],
        id="live",
    )


def register(app: dash.Dash, stream: LiveStream) -> None:
    """Answer the questions of the page."""
    app.layout = page()
    outputs = [
        Output("seen", "data"),
        Output("live-headline", "children"),
        Output("live-promise", "children"),
        Output("live-notes", "children"),
        Output("live-numbers", "children"),
        Output("live-timeline", "figure"),
        Output("live-caption", "children"),
        Output("live-newest", "children"),
    ]
    app.callback(*outputs, Input("clock", "n_intervals"), State("seen", "data"))(lambda _, seen: stream.answer(seen))
