"""The server behind the page: whom it answers, what it refuses, how the command starts and ends."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from typer.testing import CliRunner

from metastable.cli.app import app as command_line
from metastable.errors import BadInput
from metastable.lab.app import LARGEST_REQUEST, answers_to, create, listen, warm_up
from metastable.lab.callbacks import Backend
from metastable.lab.state import State
from tests.lab.conftest import until

PATIENCE = 300
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def app():
    backend = Backend()
    yield create(backend)
    backend.close()


@pytest.fixture
def client(app):
    return app.server.test_client()


@pytest.mark.parametrize(
    ("name", "host", "answered"),
    [
        ("127.0.0.1:8050", "127.0.0.1", True),
        ("localhost:9000", "127.0.0.1", True),
        ("[::1]:8050", "::1", True),
        ("evil.example", "127.0.0.1", False),
        ("evil.example:8050", "127.0.0.1", False),
        ("127.0.0.1.evil.example:8050", "127.0.0.1", False),
        ("192.168.1.7:8050", "127.0.0.1", False),
        ("192.168.1.7:8050", "192.168.1.7", True),
        ("192.168.1.7:8050", "0.0.0.0", True),
        ("[fe80::1]:8050", "::", True),
        ("evil.example:8050", "0.0.0.0", False),
        ("lab.example:8050", "lab.example", True),
    ],
)
def test_a_name_that_another_site_pointed_here_is_not_answered(name, host, answered):
    assert answers_to(name, host) is answered


def test_requests_for_another_name_or_from_another_page_are_refused(client):
    assert client.get("/").status_code == 200
    assert client.get("/", headers={"Host": "evil.example:8050"}).status_code == 403
    assert client.get("/_dash-layout", headers={"Host": "evil.example"}).status_code == 403
    other = {**JSON, "Origin": "http://evil.example"}
    assert client.post("/_dash-update-component", headers=other, data="{}").status_code == 403
    assert client.post(f"/tab/{32 * 'a'}/stop", headers={"Origin": "null"}).status_code == 403
    own = {"Host": "localhost:8050", "Origin": "http://localhost:8050"}
    assert client.post(f"/tab/{32 * 'a'}/stop", headers=own).status_code == 204


def test_a_request_that_is_too_long_is_refused(client):
    body = '{"a": "' + LARGEST_REQUEST * "x" + '"}'
    assert client.post("/_dash-update-component", headers=JSON, data=body).status_code == 413


def test_pages_may_load_nothing_from_elsewhere(client):
    response = client.get("/")
    policy = dict(part.split(" ", 1) for part in response.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert "unsafe" not in policy["script-src"]
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    addresses = re.findall(r'(?:src|href)="([^"]+)"', response.text)
    assert addresses
    assert [address for address in addresses if not address.startswith("/")] == []


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../app.py",
        "/assets/%2e%2e/app.py",
        "/assets//etc/passwd",
        "/download/../app.py",
        "/download/anything",
        "/tab/short/close",
    ],
)
def test_no_other_file_is_served_and_there_is_no_debugger(client, app, path):
    answer = client.get(path)
    # Dash answers any other path with its page.
    assert answer.status_code in (404, 405) or "<title>metastable lab</title>" in answer.text
    assert not app.server.debug


def test_downloads_of_a_run_that_is_not_there(client):
    assert client.post("/download/data", data={"tab": "x", "state": "n=60"}).status_code == 400
    assert client.post("/download/report", data={"tab": "x", "state": "n=60"}).status_code == 400
    answer = client.post("/download/script", data={"state": "n=0"})
    assert answer.status_code == 400
    assert answer.text.startswith("n: ")


def test_a_busy_port_is_one_line(app):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            listen(app, "127.0.0.1", port)
        found = CliRunner().invoke(command_line, ["lab", "--port", str(port), "--no-browser"])
    assert found.exit_code == 2
    assert found.stdout == ""
    assert found.stderr.count("\n") == 1
    assert found.stderr.startswith(f"metastable: cannot listen on 127.0.0.1:{port}: ")
    assert "--port" in found.stderr


@pytest.mark.parametrize(("port", "host"), [(70000, "127.0.0.1"), (0, "256.1.1.1"), (0, "no.such.host.invalid")])
def test_addresses_that_are_none(app, port, host):
    with pytest.raises(BadInput, match="cannot listen on"):
        listen(app, host, port)


@pytest.mark.parametrize(
    ("host", "warned"), [pytest.param("127.0.0.1", False, marks=pytest.mark.slow), ("0.0.0.0", True)]
)
def test_the_command_serves_until_it_is_interrupted(host, warned):
    process = _command("--port", "0", "--host", host, "--no-browser")
    line = process.stdout.readline()
    address = re.search(r"http://\S+?:(\d+)/", line)
    assert address, line
    with urllib.request.urlopen(f"http://127.0.0.1:{address[1]}/", timeout=PATIENCE) as page:
        assert b"metastable lab" in page.read()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert out == ""
    assert ("warning" in err) is warned
    assert err.count("\n") == int(warned)


def _command(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "metastable", "lab", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # Shells let background jobs ignore SIGINT, and their children inherit it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_warming_up_leaves_the_kernels_ready():
    from metastable.attention.tree import compiled

    warm_up()
    assert compiled()


def host_state():
    """What a host program may have set up, and threads that it did not start."""
    loggers = [logging.getLogger(name) for name in (None, "werkzeug", "flask", "metastable")]
    with ThreadPoolExecutor(1) as pool:
        threads = pool.submit(torch.get_num_threads).result()
    return {
        "loggers": [(logger.level, list(logger.handlers)) for logger in loggers],
        "filters": list(warnings.filters),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "threads": (torch.get_num_threads(), threads, set(threading.enumerate())),
        "torch": (torch.get_default_dtype(), torch.is_grad_enabled(), torch.random.get_rng_state().tolist()),
        "environment": dict(os.environ),
    }


def test_a_lab_inside_a_host_program_leaves_nothing_behind():
    """A run, an audit that fails and an error of the server, in a lab that is closed at the end."""
    before = host_state()
    backend = Backend()
    app = create(backend)

    @app.server.get("/broken")
    def _broken():
        raise ZeroDivisionError

    server = listen(app, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    state = State(n=20, until=0.5)
    backend.runs.start("tab", state.key, state.runs())
    backend.audits.start("tab", "/no/such/folder")
    with pytest.raises(urllib.error.HTTPError, match="500"):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/broken", timeout=PATIENCE)
    until(lambda: backend.runs.progress("tab", state.key).status == "done")
    until(lambda: backend.audits.progress("tab", "/no/such/folder").status == "failed")
    server.shutdown()
    server.server_close()
    thread.join()
    backend.close()
    assert host_state() == before
