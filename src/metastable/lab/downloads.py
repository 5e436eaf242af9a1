"""What the page fetches besides Dash's own: files to take home, and the word of a tab that it is there or gone."""

from __future__ import annotations

import io
import zipfile

from flask import Flask, Response, request

from metastable.errors import BadInput
from metastable.lab import scripts
from metastable.lab.callbacks import Room, key_of
from metastable.lab.controls import head_of
from metastable.lab.state import State

TAB = 32
"""Digits of a tab's name."""


def register(server: Flask, room: Room) -> None:
    @server.post("/download/<kind>")
    def _download(kind: str) -> Response:
        state = State.from_query(request.form.get("state", ""))
        try:
            return _file(kind, state, request.form.get("tab", ""), room)
        except BadInput as error:
            return Response(str(error), 400, mimetype="text/plain")

    @server.post("/tab/<tab>/<what>")
    def _tab(tab: str, what: str) -> Response:
        told = {"touch": room.runs.touch, "stop": room.runs.stop, "close": room.forget}.get(what)
        if told is None or len(tab) != TAB:
            return Response("there is nothing here", 404, mimetype="text/plain")
        told(tab)
        return Response(status=204)


def _file(kind: str, state: State, tab: str, room: Room) -> Response:
    """One file, or a line that says why there is none."""
    if kind == "script":
        return _sent(scripts.script(state).encode(), f"{stem(state)}.py", "text/x-python")
    if kind not in ("report", "data"):
        return Response("there is nothing here", 404, mimetype="text/plain")
    key = key_of(state)
    runs, measured = room.runs.partial(tab, key), room.runs.measured(tab, key)
    if not measured:
        raise BadInput("this run is not kept any more; reload the page to run it again")
    if kind == "data":
        distances = [m.distance for m in measured]
        return _sent(scripts.data(runs, distances), f"{stem(state)}.npz", "application/octet-stream")
    reports = [scripts.report(run) for run in runs]
    if len(reports) == 1:
        return _sent(reports[0], f"{stem(state)}.html", "text/html")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for which, page in zip(("first", "second"), reports, strict=True):
            archive.writestr(f"{stem(state)}-{which}.html", page)
    return _sent(packed.getvalue(), f"{stem(state)}.zip", "application/zip")


def stem(state: State) -> str:
    """The name of a file without its ending: plain letters, and enough to tell two runs apart."""
    controls = state.controls
    who = "-".join(["head", *controls.trained.rsplit(":", 2)[1:]]) if controls.trained else f"d{head_of(controls).dim}"
    compared = f"-compare-{state.compare}" if state.compare else ""
    return f"metastable-{who}-beta{controls.beta:g}-n{controls.n}-seed{controls.seed}{compared}"


def _sent(content: bytes, name: str, kind: str) -> Response:
    headers = {"X-Name": name, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, mimetype=kind, headers=headers)
