"""`metastable serve` as a client, a clumsy client and an operator meet it: a real process on a free port."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
import uvicorn
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from metastable.addresses import bound
from metastable.cli.app import app
from metastable.errors import BadInput
from metastable.monitor import service as service_module
from metastable.monitor.connections import configuration
from metastable.monitor.http_server import Limits, application
from metastable.monitor.monitor import Monitor
from metastable.monitor.service import Service
from tests.monitor.conftest import ODD

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


class Client:
    """A server in a process of its own, and requests to it, each on a connection of its own."""

    def __init__(self, process, port):
        self.process, self.port = process, port

    def ask(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, body as JSON or text)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            found = answer.read().decode()
            json_answer = answer.headers["content-type"] == "application/json"
            return (
                answer.status,
                answer.headers,
                json.loads(found, parse_constant=pytest.fail) if json_answer else found,
            )
        finally:
            connection.close()

    def post(self, content, **options):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.ask("POST", "/score", body, {"Content-Type": "application/json"}, **options)

    def score(self, texts, ids=None):
        status, _, found = self.post({"texts": texts} if ids is None else {"texts": texts, "ids": ids})
        assert status == 200, found
        return found["records"]

    def health(self):
        status, _, found = self.ask("GET", "/health")
        assert status == 200
        return found


@contextmanager
def serving(*arguments):
    command = [sys.executable, "-m", "metastable", "serve", *map(str, arguments), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=ENVIRONMENT, **pipes) as process:
        try:
            line = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
            assert found, line + process.communicate(timeout=60)[1]
            yield Client(process, int(found[1]))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def serve_arguments(small, small_baseline_folder):
    return [small, "--baseline", small_baseline_folder]


@pytest.fixture(scope="module")
def server(serve_arguments):
    with serving(*serve_arguments) as client:
        yield client


def test_scores_are_those_of_the_monitor(serve_arguments, small_encoder, small_baseline, stream):
    texts = [*stream[:50], "", "half \ud83d a pair", ODD[0], "a\0b"]
    ids = [f"id-{place}" for place in range(len(texts))]
    monitor = Monitor(small_encoder.model, small_baseline, "full", tokenizer=small_encoder.tokenizer)
    expected = [record.to_dict() for record in monitor.examine(texts)]
    with serving(*serve_arguments) as client:
        found = [row for first in range(0, len(texts), 9) for row in client.score(texts[first:][:9], ids[first:][:9])]
        health = client.health()
    assert [row["line"] for row in found] == list(range(1, len(texts) + 1))
    assert [row["id"] for row in found] == ids
    for own, other in zip(found, expected, strict=True):
        assert own.keys() == other.keys()
        for name in ("status", "n", "cut", "detector", "first_layer", "alarm"):
            assert own[name] == other[name], name
        # Other batches, so other rounding: a score may pass a calibration score, which is a rank of some 600.
        for name, size in {"score": 1e-4, "p_value": 0.002, "p_marginal": 0.002, "log_e": 0.01}.items():
            assert own[name] == (None if other[name] is None else pytest.approx(other[name], rel=1e-4, abs=size)), name
    assert {name: health[name] for name in ("texts", "scored", "strange", "rejected")} == {
        name: monitor.summary()[name] for name in ("texts", "scored", "strange", "rejected")
    }
    assert health["encoder"] == small_baseline.fingerprint
    assert health["failures"] == {}


def test_many_clients_share_one_stream(server, stream):
    before = server.health()["texts"]
    requests = [stream[first : first + size] for first, size in zip(range(0, 300, 3), [1, 2, 3] * 34, strict=False)]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(server.score, requests))
    assert [len(rows) for rows in answers] == [len(texts) for texts in requests]
    numbers = [row["line"] for rows in answers for row in rows]
    texts = sum(map(len, requests))
    assert sorted(numbers) == list(range(before + 1, before + 1 + texts))
    # A request is one piece of the stream.
    assert all(row["line"] == rows[0]["line"] + place for rows in answers for place, row in enumerate(rows))
    by_text = {}
    for given, rows in zip(requests, answers, strict=True):
        for text, row in zip(given, rows, strict=True):
            by_text.setdefault(text, set()).add((row["p_marginal"], row["sha"]))
    assert all(len(found) == 1 for found in by_text.values())
    assert server.health()["texts"] == before + texts


JSON = {"Content-Type": "application/json"}
TOO_LARGE = json.dumps({"texts": ["x " * 150_000] * 8}).encode()


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "words"),
    [
        ("POST", "/score", b'{"texts": ["a"', JSON, 400, "not JSON"),
        ("POST", "/score", b'{"texts": ["sen\xc3(ate"]}', JSON, 400, "0xc3 at place 16"),
        ("POST", "/score", b"", JSON, 400, "not JSON"),
        ("POST", "/score", b"[" * 100_000, JSON, 400, "too deep"),
        ("POST", "/score", b'{"texts": [1' + b"0" * 5000 + b"]}", JSON, 400, "too long"),
        ("POST", "/score", b'["a"]', JSON, 400, "no list of texts"),
        ("POST", "/score", b'{"texts": "a"}', JSON, 400, "no list of texts"),
        ("POST", "/score", b'{"texts": ["a", 3]}', JSON, 400, "texts[1] is of type int"),
        ("POST", "/score", b'{"texts": ["a"], "text": "b"}', JSON, 400, "'text'"),
        ("POST", "/score", b'{"texts": ["a"], "ids": []}', JSON, 400, "0 of them for 1 texts"),
        ("POST", "/score", b'{"texts": ["a"], "ids": "x"}', JSON, 400, "of type str"),
        ("POST", "/score", b'{"texts": ["a"], "ids": [true]}', JSON, 400, "ids[0] is 'True'"),
        ("POST", "/score", b'{"texts": ["a"], "ids": ["\\ud800"]}', JSON, 400, "ids[0]"),
        ("POST", "/score", b'{"texts": ["a"], "ids": ["' + b"x" * 201 + b'"]}', JSON, 413, "200 characters"),
        ("POST", "/score", b'{"texts": ["' + b"x" * 200_001 + b'"]}', JSON, 413, "200001 characters"),
        ("POST", "/score", json.dumps({"texts": ["a"] * 257}), JSON, 413, "257 texts"),
        ("POST", "/score", TOO_LARGE, JSON, 413, "2097152 bytes"),
        ("POST", "/score", iter([TOO_LARGE[: 2**20]] * 3), JSON, 413, "2097152 bytes"),
        ("POST", "/score", b'{"texts": ["a"]}', {"Content-Type": "text/plain"}, 415, "application/json"),
        ("GET", "/score", None, {}, 405, "send POST"),
        ("DELETE", "/health", None, {}, 405, "send GET"),
        ("POST", "/score", b'{"texts": ["a"], "slices": ["x"]}', JSON, 400, "without --slices"),
        ("POST", "/scores", b"{}", JSON, 404, "/scores"),
        ("GET", "/health", None, {"Host": "evil.example"}, 403, "evil.example"),
    ],
)
def test_bad_requests_have_one_clear_error_and_leave_no_trace(server, method, path, body, headers, status, words):
    before = server.health()
    found, _, error = server.ask(method, path, body, headers)
    assert (found, list(error)) == (status, ["error"])
    assert words in error["error"]
    assert "\n" not in error["error"]
    after = server.health()
    assert {name: after[name] for name in ("texts", "alarm", "failures")} == {
        name: before[name] for name in ("texts", "alarm", "failures")
    }


def test_no_texts_have_no_records(server):
    before = server.health()["texts"]
    assert server.score([]) == []
    assert server.health()["texts"] == before


def test_metrics_are_those_of_the_stream(server, stream):
    server.score(stream[:4])
    server.ask("GET", "/score")
    status, headers, text = server.ask("GET", "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    health = server.health()
    scored = float(values['metastable_texts_total{monitor="serve",status="scored"}'])
    assert scored == health["scored"] >= 4
    assert float(values['metastable_alarm_log_e{monitor="serve"}']) == pytest.approx(health["alarm"]["log_e"])
    assert float(values["metastable_waiting_texts"]) == 0
    assert float(values['metastable_requests_total{code="200"}']) == health["requests"]["200"]
    assert float(values["metastable_request_seconds_count"]) == health["requests"]["200"]


@pytest.mark.slow
def test_a_stop_under_load_loses_no_accepted_request(serve_arguments, stream, tmp_path):
    """Requests that were sent before the signal are answered, and every answer is in the folder."""
    with serving(*serve_arguments, "--out", tmp_path, "--batch-size", "2", "--waiting", "100000") as client:
        connections = [http.client.HTTPConnection("127.0.0.1", client.port, timeout=60) for _ in range(30)]
        for place, connection in enumerate(connections):
            texts = stream[10 * place : 10 * place + 10]
            connection.request("POST", "/score", json.dumps({"texts": texts}), JSON)
        # All of them have arrived once one of the last is answered or waits: requests are taken in order.
        while (found := client.health())["texts"] + found["waiting"] < 150:
            time.sleep(0.01)
        accepted = 0
        client.process.send_signal(signal.SIGTERM)
        rows = []
        for connection in connections:
            with suppress(ConnectionError):
                answer = connection.getresponse()
                assert answer.status == 200
                rows += json.loads(answer.read())["records"]
                accepted += 1
            connection.close()
        code, error = client.process.wait(60), client.process.stderr.read()
    assert code == 0, error
    assert accepted >= 15
    kept = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert sorted(rows, key=lambda row: row["line"]) == kept
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["finished"]
    assert summary["texts"] == len(kept) == 10 * accepted


@pytest.mark.slow
def test_a_killed_server_has_every_answer_in_its_folder_and_goes_on(serve_arguments, stream, tmp_path):
    with serving(*serve_arguments, "--out", tmp_path) as client:
        first = client.score(stream[:7])
        client.process.kill()
        client.process.wait()
    assert [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()] == first
    assert not json.loads((tmp_path / "summary.json").read_text())["finished"]
    with serving(*serve_arguments, "--out", tmp_path, "--resume") as client:
        assert client.health()["texts"] == 7
        second = client.score(stream[7:10])
        client.process.send_signal(signal.SIGINT)
        assert client.process.wait(60) == 0
    assert [row["line"] for row in second] == [8, 9, 10]
    kept = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert kept == first + second


@pytest.mark.slow
def test_alarms_of_slices_and_episodes_are_those_of_the_monitor_and_are_logged(
    serve_arguments, small_encoder, small_baseline, stream, tmp_path
):
    texts = ["", *stream[:20], *ODD * 5, *stream[20:60], *ODD * 5]
    values = ["b" if text in ODD else (None, "a", 7)[place % 3] for place, text in enumerate(texts)]
    options = {"tokenizer": small_encoder.tokenizer, "reset_after": 5, "slices": True}
    monitor = Monitor(small_encoder.model, small_baseline, "full", **options)
    expected = [record.to_dict() for record in monitor.examine(texts, slices=values)]
    arguments = [*serve_arguments, "--reset-after-alarm", "5", "--slices", "--out", tmp_path]
    found = []
    for first, resumed in ((0, []), (60, ["--resume"])):
        with serving(*arguments, *resumed) as client:
            status, _, answer = client.post({"texts": texts[first:][:60], "slices": values[first:][:60]})
            assert status == 200, answer
            found += answer["records"]
            assert client.post({"texts": ["a"], "slices": [["x"]]})[0] == 400
            client.process.send_signal(signal.SIGTERM)
            said = client.process.communicate(timeout=60)[1].splitlines()
            assert said.pop().startswith("metastable serve: page: ")
            said = [line for line in said if "copies of earlier ones" not in line]
            # One line for each alarm, which names the text that raised it.
            lines = [row["line"] for row in found[first:] for kind in ("alarm", "slice_alarm") if row[kind]]
            assert lines
            assert [int(re.search(r"alarm at text \d+ \(line (\d+)\)", line)[1]) for line in said[:-1]] == lines
    names = ("slice", "alarm", "slice_alarm", "episode")
    assert [[row[name] for name in names] for row in found] == [[row[name] for name in names] for row in expected]
    assert f"alarm at text {monitor.raised_at}" in said[-1]
    raised = sum(own.episodes.total > 0 for own in monitor.slices)
    assert f"an alarm in {raised} of 4 slices" in said[-1]


@pytest.mark.parametrize("private", [False, True], ids=["open", "private"])
def test_the_folder_of_a_server_has_all_that_the_folder_of_watch_has(private, serve_arguments, stream, tmp_path):
    texts, more = [*stream[:20], *ODD * 10], ["--private"] if private else []
    with serving(*serve_arguments, "--out", tmp_path / "served", *more) as client:
        client.score(texts)
        client.process.send_signal(signal.SIGTERM)
        said = client.process.communicate(timeout=60)[1]
        assert client.process.returncode == 0, said
    assert f"page: {tmp_path / 'served' / 'report.html'}" in said
    watching = ["watch", *map(str, serve_arguments), "--out", str(tmp_path / "watched"), *more]
    CliRunner().invoke(app, watching, input="\n".join(texts))
    served, watched = ({file.name for file in (tmp_path / name).iterdir()} for name in ("served", "watched"))
    assert served == watched
    assert ("strangest.json" in served) == (not private)
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("served", "watched")]
    assert summaries[0]["about"] == summaries[1]["about"]
    page = (tmp_path / "served" / "report.html").read_text(encoding="utf-8").rpartition("<body>")[2]
    assert ("zebra" in page) == (not private)
    assert "The alarm was raised at text" in page
    assert "began at about text" in page


def test_warnings_are_told_once_and_are_in_the_summary_while_the_server_runs(serve_arguments, stream, tmp_path):
    """A summary that is refreshed also has the alarm. Negative control: the first texts are no copies."""
    with serving(*serve_arguments, "--out", tmp_path) as client:

        def summary():
            return json.loads((tmp_path / "summary.json").read_text())

        client.score(stream[:30])
        assert "dependence" not in summary()
        client.score([stream[0]] * 30)
        assert summary()["dependence"]["copies"]["text"] is not None
        assert not summary()["alarm"]["raised"]
        client.score([stream[0]] * 30)
        client.score(ODD * 10)
        assert (summary()["alarm"]["raised"], summary()["finished"]) == (True, False)
        client.process.send_signal(signal.SIGTERM)
        said = client.process.communicate(timeout=60)[1]
    assert len(re.findall("warning: .* are copies of earlier ones", said)) == 1
    assert summary()["finished"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--reset-after-alarm", "0"], "--reset-after-alarm is 0"),
        (["--port", "99999"], "cannot listen on 127.0.0.1:99999"),
        (["--setting", "lite"], "did you mean 'light'"),
        (["--alpha", "2"], "--alpha"),
        (["--waiting", "0"], "--waiting is 0"),
        (["--timeout", "nan"], "--timeout is nan"),
        (["--resume"], "give --out too"),
        (["--baseline", "nowhere"], "'nowhere' is no baseline"),
    ],
)
def test_bad_options_are_one_line(serve_arguments, arguments, words):
    result = CliRunner().invoke(app, ["serve", *map(str, serve_arguments), "--port", "0", *arguments])
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


class Held:
    """A service whose examiner waits until it is released, behind a server in a thread of this process."""

    def __init__(self, service, port, release, seen):
        self.service, self.client, self.release, self.seen = service, Client(None, port), release, seen


@pytest.fixture
def held(small_encoder, small_baseline):
    """A function that starts one; all are stopped at the end."""
    with ExitStack() as stack:

        def start(limits=None, sinks=(), folder=None, fail=(), send_buffer=None, **options):
            monitor = Monitor(small_encoder.model, small_baseline, "light", sinks, tokenizer=small_encoder.tokenizer)
            release, seen, examiner = threading.Event(), [], monitor.examiner()
            examine = examiner.records

            def records(texts, batch_size=32, failed=None):
                seen.append(list(texts))
                assert release.wait(60)
                if set(fail) & set(texts):
                    raise RuntimeError("the pass failed")
                return examine(texts, batch_size, failed)

            examiner.records = records
            service = Service(monitor, folder, **options)
            limits = limits or Limits()
            server = uvicorn.Server(configuration(application(service, CollectorRegistry(), {}, limits), limits))
            listening = bound("127.0.0.1", 0)
            if send_buffer is not None:
                # Connections inherit it. Without it the kernel takes megabytes that the client does not read.
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
            thread = threading.Thread(target=server.run, args=([listening],))
            thread.start()
            port = listening.getsockname()[1]

            def stop():
                release.set()
                server.should_exit = True
                thread.join()
                service.close()

            stack.callback(stop)
            wait_for(lambda: server.started)
            return Held(service, port, release, seen)

        yield start


def wait_for(condition):
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not happen within a minute")


def test_a_full_queue_refuses_whole_requests(held, stream):
    found = held(most=10)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(found.client.score, stream[:2])
        wait_for(lambda: found.seen)
        waiting = pool.submit(found.client.score, stream[2:10])
        wait_for(lambda: found.service.waiting == 8)
        status, headers, error = found.client.post({"texts": stream[10:13]})
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "8 texts are waiting" in error["error"]
        # Two more fit.
        small = pool.submit(found.client.score, stream[10:12])
        wait_for(lambda: found.service.waiting == 10)
        found.release.set()
        assert [len(answer.result()) for answer in (first, waiting, small)] == [2, 8, 2]
    # What waited was examined together.
    assert found.seen == [stream[:2], stream[2:12]]
    assert found.client.health()["texts"] == 12
    assert found.client.health()["requests"] == {"200": 3, "503": 1}


def test_too_many_open_requests_are_refused(held, stream):
    found = held(Limits(requests=2))
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(found.client.score, [text]) for text in stream[:2]]
        wait_for(lambda: sum(map(len, found.seen)) + found.service.waiting == 2)
        status, headers, error = found.client.post({"texts": stream[:1]})
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "2 requests are open" in error["error"]
        found.release.set()
        assert all(len(answer.result()) == 1 for answer in answers)


def test_a_request_that_waits_too_long_is_withdrawn(held, stream):
    found = held(Limits(seconds=0.5))
    with ThreadPoolExecutor(2) as pool:
        begun = pool.submit(found.client.post, {"texts": stream[:1]})
        wait_for(lambda: found.seen)
        status, _, error = found.client.post({"texts": stream[1:3]})
        assert status == 504
        assert "0.5 s" in error["error"]
        assert begun.result()[0] == 504
    found.release.set()
    wait_for(lambda: found.service.waiting == 0)
    assert len(found.client.score(stream[3:4])) == 1
    # The pass had begun with the first request only.
    assert found.seen == [stream[:1], stream[3:4]]
    assert found.client.health()["texts"] == 2


def test_a_client_that_goes_away_is_not_examined(held, stream):
    found = held()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(found.client.score, stream[:1])
        wait_for(lambda: found.seen)
        gone = http.client.HTTPConnection("127.0.0.1", found.client.port)
        gone.request("POST", "/score", json.dumps({"texts": stream[1:4]}), JSON)
        wait_for(lambda: found.service.waiting == 3)
        gone.close()
        wait_for(lambda: found.client.health()["requests"].get("499") == 1)
        found.release.set()
        assert len(first.result()) == 1
    assert found.client.score(stream[4:5])[0]["line"] == 2
    assert found.seen == [stream[:1], stream[4:5]]


def test_a_body_that_does_not_arrive_is_given_up(held):
    found = held(Limits(seconds=0.3))
    with socket.create_connection(("127.0.0.1", found.client.port), timeout=60) as slow:
        slow.sendall(b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        slow.sendall(b'Content-Length: 100\r\n\r\n{"texts"')
        assert b" 408 " in slow.recv(1000).split(b"\r\n")[0]


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: loc"])
def test_headers_that_do_not_arrive_are_given_up(held, sent):
    found = held(Limits(seconds=0.3))
    with socket.create_connection(("127.0.0.1", found.client.port), timeout=60) as slow:
        slow.sendall(sent)
        assert b" 408 " in slow.recv(1000).split(b"\r\n")[0]
        assert slow.recv(1000) == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01 hello\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000,
    ],
    ids=["no HTTP", "no host", "large headers"],
)
def test_what_is_no_request_has_an_error_in_json(held, sent):
    found = held()
    with socket.create_connection(("127.0.0.1", found.client.port), timeout=60) as odd:
        odd.sendall(sent)
        head, _, body = odd.recv(1000).partition(b"\r\n\r\n")
    assert b" 400 " in head.split(b"\r\n")[0]
    assert "no HTTP request" in json.loads(body)["error"]
    assert found.client.health()["texts"] == 0


def test_headers_of_a_later_request_are_given_up_and_an_idle_connection_is_not(held):
    found = held(Limits(seconds=0.5))
    connection = http.client.HTTPConnection("127.0.0.1", found.client.port, timeout=60)
    with closing(connection):
        for _ in range(2):
            connection.request("GET", "/health")
            assert connection.getresponse().read()
            # Longer than headers may take.
            time.sleep(0.8)
        connection.sock.sendall(b"GET /health HT")
        assert b" 408 " in connection.sock.recv(1000).split(b"\r\n")[0]


def test_a_body_that_nobody_reads_does_not_hold_the_connection(held):
    found = held(Limits(seconds=0.5))
    with socket.create_connection(("127.0.0.1", found.client.port), timeout=60) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        with slow.makefile("rb") as answer:
            assert b" 200 " in answer.readline()
            slow.sendall(b"x")
            # To the end of the answer and of the connection.
            assert answer.read().endswith(b"}")


def test_headers_in_pieces_that_arrive_in_time_are_answered(held):
    found = held(Limits(seconds=30))
    with socket.create_connection(("127.0.0.1", found.client.port), timeout=60) as slow:
        for piece in (b"GET /hea", b"lth HTTP/1.1\r\nHost: local", b"host\r\n", b"\r\n"):
            slow.sendall(piece)
            time.sleep(0.05)
        assert b" 200 " in slow.recv(1000).split(b"\r\n")[0]


def test_connections_beyond_the_limit_are_refused_until_others_end(held):
    found = held(Limits(connections=3, seconds=60))
    address = ("127.0.0.1", found.client.port)
    assert found.client.health()
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(3)]
        with socket.create_connection(address, timeout=60) as other:
            answer = other.recv(1000)
        assert b" 503 " in answer.split(b"\r\n")[0]
        assert b"retry-after: 1" in answer.lower()
        silent[0].close()

        def answered():
            try:
                return found.client.ask("GET", "/health")[0] == 200
            except OSError:
                return False

        wait_for(answered)


@contextmanager
def small_receiver(port):
    """A connection that takes only a few kilobytes until the client reads."""
    with socket.socket() as found:
        found.settimeout(60)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        found.connect(("127.0.0.1", port))
        yield found


def metrics_requests(count):
    """Requests that are sent together. After the last one the connection is closed."""
    ask = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
    return (ask + b"\r\n") * (count - 1) + ask + b"Connection: close\r\n\r\n"


@pytest.mark.parametrize("count", [20, 40, 400])
def test_a_client_that_does_not_read_its_answers_loses_its_connection(held, count):
    """Also if the unread answers are few. They then wait in the server until the connection is closed."""
    found = held(Limits(connections=3, seconds=0.5), send_buffer=4096)
    with ExitStack() as stack:
        silent = [stack.enter_context(small_receiver(found.client.port)) for _ in range(3)]
        for one in silent:
            one.sendall(metrics_requests(count))

        def answered():
            with suppress(OSError):
                return found.client.ask("GET", "/health")[0] == 200

        wait_for(answered)


def test_a_slow_client_that_reads_gets_all_answers(held):
    """It takes longer for all of them than one answer may take."""
    found = held(Limits(seconds=4), send_buffer=4096)
    with small_receiver(found.client.port) as slow:
        slow.sendall(metrics_requests(180))
        answers, began = b"", time.monotonic()
        while piece := slow.recv(3000):
            answers += piece
            time.sleep(0.05)
        assert time.monotonic() - began > 5
    assert answers.count(b" 200 OK\r\n") == 180
    assert answers.endswith(b"\n")
    assert answers.rpartition(b"# HELP ")[2].count(b"metastable_waiting_texts") == 3


def test_the_words_of_an_error_do_not_reach_clients(held, stream, monkeypatch):
    """A detector that fails on a batch rejects its texts; the error may quote the text of another client."""

    def broken(*given):
        raise ValueError("a secret of another client")

    found = held()
    found.release.set()
    monkeypatch.setattr("metastable.monitor.examiner.records", broken)
    (row,) = found.client.score(stream[:1])
    assert (row["status"], row["reason"]) == ("rejected", "could not be scored")
    assert "secret" not in json.dumps(found.client.health())
    assert found.client.health()["failures"] == {"records": 1}
    assert "secret" in found.service.error


def test_a_pass_that_fails_costs_only_its_own_request(held, stream):
    found = held(fail=[ODD[0]])
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(found.client.score, stream[:1])
        wait_for(lambda: found.seen)
        others = [pool.submit(found.client.post, {"texts": texts}) for texts in ([stream[1]], [ODD[0]], [stream[2]])]
        wait_for(lambda: found.service.waiting == 3)
        found.release.set()
        assert len(first.result()) == 1
        assert sorted(other.result()[0] for other in others) == [200, 200, 500]
        (failed,) = [other.result()[2] for other in others if other.result()[0] == 500]
    assert failed == {"error": "these texts could not be scored: RuntimeError"}
    health = found.client.health()
    assert health["texts"] == 3
    assert health["failures"] == {"request": 1}
    # The words of an error may quote a text.
    assert health["error"] == "request: RuntimeError"
    assert found.service.error == "RuntimeError: the pass failed"


class Broken:
    """A sink that always fails."""

    def write(self, record):
        raise OSError("no space left")

    def close(self):
        raise OSError("no space left")


def test_a_failing_sink_fails_no_request(held, stream):
    found = held(sinks=[Broken()])
    found.release.set()
    assert len(found.client.score(stream[:3])) == 3
    assert found.client.health()["failures"] == {"sink": 3}


class FullDisk:
    """A folder whose disk is full at first."""

    def __init__(self):
        self.full, self.rows, self.summary = True, [], None

    def keep(self, records):
        pass

    def write(self, rows):
        if self.full:
            raise BadInput("no space left")
        self.rows += rows

    def refresh(self, monitor):
        pass

    def finish(self, summary):
        self.summary = summary


def test_rows_that_could_not_be_written_are_written_later_in_order(held, stream):
    folder = FullDisk()
    found = held(folder=folder)
    found.release.set()
    rows = found.client.score(stream[:3])
    assert folder.rows == []
    health = found.client.health()
    assert (health["failures"], health["error"]) == ({"out": 1}, "out: BadInput")
    folder.full = False
    rows += found.client.score(stream[3:5])
    assert folder.rows == rows
    folder.full = True
    rows += found.client.score(stream[5:6])
    found.service.close()
    assert not found.service.finish({})
    folder.full = False
    assert found.service.finish({"finished": True})
    assert (folder.rows, folder.summary) == (rows, {"finished": True})


def test_a_folder_that_stays_unwritable_is_given_up_and_holds_no_memory(held, stream, monkeypatch):
    monkeypatch.setattr(service_module, "UNWRITTEN", 4)
    folder = FullDisk()
    found = held(folder=folder)
    found.release.set()
    for text in stream[:6]:
        found.client.score([text])
    folder.full = False
    assert len(found.client.score(stream[6:7])) == 1
    assert folder.rows == []
    found.service.close()
    assert not found.service.finish({})


def test_a_closed_service_refuses(held, stream):
    found = held()
    found.service.close()
    status, headers, error = found.client.post({"texts": stream[:1]})
    assert (status, headers["Retry-After"]) == (503, "1")
    assert "stopping" in error["error"]
