"""`metastable serve`: score texts over HTTP, for programs in any language."""

from __future__ import annotations

import hashlib
import math
import signal
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metastable.cli.exits import EXIT_BAD_INPUT, EXIT_INTERRUPTED, complain, one_line_errors
from metastable.cli.options import AllowPickle, Alpha, BatchSize, Debug, Tokenizer, Watched
from metastable.errors import BadInput, extra

if TYPE_CHECKING:
    import socket

    from starlette.applications import Starlette

    from metastable.monitor.alarm import Alarm
    from metastable.monitor.http_server import Limits
    from metastable.monitor.monitor import Monitor
    from metastable.monitor.record import Record
    from metastable.monitor.sinks import Sink

NEEDED = ("starlette", "uvicorn", "prometheus_client")


def serve(
    model: Watched,
    baseline: Annotated[Path, typer.Option(help="The folder that `calibrate` wrote, of the same encoder.")],
    setting: Annotated[str, typer.Option(help="full, or light: cheaper.")] = "full",
    alpha: Alpha = 0.01,
    reset_after_alarm: Annotated[
        int | None,
        typer.Option(metavar="N", help="Begin again N texts after an alarm, with evidence 1, as `watch` does."),
    ] = None,
    slices: Annotated[
        bool,
        typer.Option(
            "--slices",
            help="Requests may have a list slices beside texts. Each value gets an alarm of its own; all alarms share "
            "alpha. Clean texts of each value must be like the calibration texts.",
        ),
    ] = False,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Other machines can send texts to any other address.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 picks a free port.")] = 8760,
    out: Annotated[Path | None, typer.Option(help="Folder for records.jsonl, summary.json and report.html.")] = None,
    private: Annotated[
        bool,
        typer.Option(
            "--private",
            help="Records and report.html quote no words of the texts. They keep ids and a short hash. Without it, the "
            "strangest texts are kept in --out for report.html.",
        ),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last record in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again in --out.")] = False,
    batch_size: BatchSize = 32,
    waiting: Annotated[int, typer.Option(help="Texts that may wait; requests beyond that are refused (503).")] = 1024,
    timeout: Annotated[
        float,
        typer.Option(
            help="Seconds to read headers, to read the body, to answer, and until the client has read the answer."
        ),
    ] = 30.0,
    tokenizer: Tokenizer = None,
    allow_pickle: AllowPickle = False,
    debug: Debug = False,
) -> None:
    """Score texts over HTTP: one monitor and one alarm for the texts of all requests, in their order.

    POST /score takes {"texts": […], "ids": […]} (ids are optional) and returns {"records": […]}, as `watch` writes
    them. GET /health has the counts and the alarm, GET /metrics the same for Prometheus. Texts that wait are examined
    together. An alarm, and a warning that texts are not independent, is also a line on standard error.

    SIGTERM and Ctrl-C end the server: it accepts no more requests, answers those that it accepted, and exits with 0,
    with or without an alarm (see /health, or summary.json in --out). A second Ctrl-C ends it at once, with 130. At the
    end report.html is written into --out.

    Exit code: 0 after a stop; 2 for bad input, or if --out does not have all records; 130 after a second Ctrl-C.
    """
    with one_line_errors(debug, resumes=False), ExitStack() as stack:
        if absent := [name for name in NEEDED if find_spec(name) is None]:
            raise BadInput(f"serve needs {absent[0]}; {extra('serve')}")
        from prometheus_client import CollectorRegistry

        from metastable.addresses import bound, is_loopback, url
        from metastable.cli.watch import check_flags, check_least, page_written
        from metastable.encoder.load import load
        from metastable.errors import choice
        from metastable.monitor.baseline import Baseline
        from metastable.monitor.conformal import share
        from metastable.monitor.http_server import Limits, application
        from metastable.monitor.monitor import Monitor
        from metastable.monitor.scoring import SETTINGS
        from metastable.monitor.service import Service
        from metastable.monitor.sinks import Prometheus
        from metastable.monitor.stream import page_facts, stream_folder

        check_flags(batch_size, out, resume, overwrite, reset_after_alarm)
        choice(setting, "--setting", SETTINGS)
        share(alpha, "--alpha")
        if waiting < 1:
            raise BadInput(f"--waiting is {waiting}; it must be at least 1")
        if not (math.isfinite(timeout) and timeout > 0):
            raise BadInput(f"--timeout is {timeout:g}; it must be a number of seconds above 0")
        address = stack.enter_context(bound(host, port))
        known = Baseline.load(baseline)
        encoder = load(model, allow_pickle, tokenizer, weights=False)
        known.check(encoder)
        check_least(known, setting, alpha)
        registry = CollectorRegistry()
        encoder.reads_text()
        events = _Events()
        sinks: list[Sink] = [Prometheus(registry, monitor="serve"), events]
        monitor = Monitor(
            *(encoder, known, setting, sinks, alpha),
            keep=1,
            reset_after=reset_after_alarm,
            slices=slices,
        )
        about = {
            "encoder": known.fingerprint,
            "baseline": hashlib.sha256((baseline / "baseline.json").read_bytes()).hexdigest(),
            "setting": setting,
            "alpha": alpha,
            "reset_after_alarm": reset_after_alarm,
            "slice": "slices" if slices else None,
        }
        folder = None
        if out is not None:
            facts = {**about, "private": private, "source": "http"}
            folder = stack.enter_context(stream_folder(out, facts, resume, overwrite, page_facts(monitor)))
            monitor.replay(folder.past())
        events.follow(monitor)
        service = Service(monitor, folder, batch_size=batch_size, most=waiting, private=private)
        limits = Limits(seconds=timeout)
        app = application(service, registry, {"name": encoder.name, **about}, limits, host)
        if not is_loopback(host):
            complain(f"warning: {host} can be reached from other machines, and anyone there can send texts")
        ready = f"metastable serve: {url(host, address.getsockname()[1])} (Ctrl-C stops)"
        complete = _run(app, limits, address, ready)
        service.close(answer=complete)
        written = out is None or service.finish({"finished": complete, **monitor.summary()})
        _say(_ended(monitor))
        if not written:
            complain(f"--out {out} does not have all records: {service.error}")
        if out is not None:
            _say(page_written(out))
        raise typer.Exit(EXIT_INTERRUPTED if not complete else 0 if written else EXIT_BAD_INPUT)


def _say(words: str) -> None:
    print(f"metastable serve: {words}", file=sys.stderr, flush=True)


class _Events:
    """A sink that says on standard error which texts raised an alarm, and each warning of dependence once."""

    def follow(self, monitor: Monitor) -> None:
        from metastable.monitor.dependence import NewWarnings

        self._monitor, self._scored = monitor, monitor.counts.scored
        self._warnings = NewWarnings()

    def write(self, record: Record) -> None:
        from metastable.cli.watch import raised_words

        self._scored += record.status == "scored"
        if record.alarm or record.slice_alarm:
            for words in raised_words(record.to_dict(), self._scored, self._monitor):
                _say(words)

    def state(self, alarm: Alarm) -> None:
        """Called after each pass."""
        for words in self._warnings.take(self._monitor.dependence):
            _say(f"warning: {words}")

    def close(self) -> None:
        pass


def _ended(monitor: Monitor) -> str:
    """The last line."""
    counts, total = monitor.counts, monitor.episodes.total
    alarm = f"alarm at text {monitor.raised_at}" + (f" and {total - 1} more" if total > 1 else "")
    words = f"stopped after {counts.texts} texts, {counts.strange} strange, {alarm if total else 'no alarm'}"
    if monitor.slices is not None:
        raised = [own.episodes.total > 0 for own in monitor.slices]
        words += f" over all texts, an alarm in {sum(raised)} of {len(raised)} slices"
    return words


def _run(app: Starlette, limits: Limits, address: socket.socket, ready: str) -> bool:
    """Serve until a signal comes and open requests are answered; whether that was not cut short by a second signal.

    ready : is printed when the server listens
    """
    import uvicorn

    from metastable.monitor.connections import configuration

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print(ready, flush=True)

    server = Server(configuration(app, limits))

    def stop(number: int, frame: Any) -> None:
        server.should_exit = True

    # uvicorn has handlers of its own while it runs. It raises the signal again for these when it has stopped.
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[address])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return not server.force_exit
