"""The server behind the page: whom it answers, what it refuses, how the command starts and ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from metastable.errors import BadInput
from metastable.lab.app import LARGEST_REQUEST, answers_to, create, listen

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def app():
    return create()


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
    assert "run it again" in client.post("/download/report", data={"tab": "x", "state": "n=60"}).text
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
        found = _command("--port", str(port), "--no-browser")
        out, err = found.communicate(timeout=120)
    assert found.returncode == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"metastable: cannot listen on 127.0.0.1:{port}: ")
    assert "--port" in err


@pytest.mark.parametrize(("port", "host"), [(70000, "127.0.0.1"), (0, "256.1.1.1"), (0, "no.such.host.invalid")])
def test_addresses_that_are_none(app, port, host):
    with pytest.raises(BadInput, match="cannot listen on"):
        listen(app, host, port)


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_the_command_serves_until_it_is_interrupted(host, warned):
    process = _command("--port", "0", "--host", host, "--no-browser")
    line = process.stdout.readline()
    address = re.search(r"http://\S+?:(\d+)/", line)
    assert address, line
    with urllib.request.urlopen(f"http://127.0.0.1:{address[1]}/", timeout=60) as page:
        assert b"metastable lab" in page.read()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out == ""
    assert ("warning" in err) is warned
    assert err.count("\n") == int(warned)
    if warned:
        assert "not this machine alone" in err


def _command(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "metastable", "lab", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
