"""`metastable watch`: examine a stream of texts and raise an alarm when it is not like the clean texts."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metastable.cli.calibrate import check_texts
from metastable.cli.exits import EXIT_BAD_INPUT, EXIT_BROKEN_PIPE, EXIT_FINDING, one_line_errors, silence_stdout
from metastable.cli.options import AllowPickle, BatchSize, Debug, Scheduler, Tokenizer, Watched, Workers
from metastable.errors import BadInput

if TYPE_CHECKING:
    from metastable.monitor.baseline import Baseline
    from metastable.monitor.monitor import Monitor
    from metastable.monitor.record import Record
    from metastable.monitor.sinks import Prometheus
    from metastable.monitor.stream import StreamFolder


def watch(
    model: Watched,
    baseline: Annotated[Path, typer.Option(help="The folder that `calibrate` wrote, of the same encoder.")],
    texts: Annotated[str, typer.Argument(help="One text a line, or .jsonl; - is standard input.")] = "-",
    setting: Annotated[str, typer.Option(help="full, or light: cheaper, and made for live models.")] = "full",
    alpha: Annotated[
        float,
        typer.Option(
            help="The probability that a clean stream ever raises an alarm is at most alpha. A text is strange if its "
            "p-value is at most alpha."
        ),
    ] = 0.01,
    out: Annotated[Path | None, typer.Option(help="Folder for records.jsonl and summary.json.")] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Lines are JSON objects with a field text.")] = False,
    batch_size: BatchSize = 32,
    prometheus: Annotated[
        str | None,
        typer.Option(help="Serve metrics for Prometheus: PORT for this machine only, or HOST:PORT."),
    ] = None,
    private: Annotated[
        bool,
        typer.Option(
            "--private",
            help="Records quote no words of the texts. They keep ids and a short hash, which can confirm a guess.",
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on after the last record in --out. Lines of a file that have a record are skipped, and must be "
            "the same. Lines of a pipe are all new, and line numbers go on.",
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again in --out.")] = False,
    scheduler: Scheduler = None,
    workers: Workers = None,
    tokenizer: Tokenizer = None,
    allow_pickle: AllowPickle = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Records as JSON on a terminal too, and the summary as the last line.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Examine each text of a stream, and the stream as a whole: one record per line, as JSON in a pipe.

    A line that cannot be used gets a record with the reason, and the stream goes on. At the end of the stream, or after
    Ctrl-C, a summary follows on standard error.

    The alarm assumes that texts are independent of each other and that the calibration texts were drawn like the clean
    stream.

    Exit code: 1 if the alarm was raised; else 2 if lines were rejected, or there were none; else 0.
    But 130 after Ctrl-C, 143 after SIGTERM and 141 if the reader of standard output went away, with or without an
    alarm: see the summary (none is printed after 141), or summary.json in --out.
    """
    with one_line_errors(debug, resumes=False), ExitStack() as stack:
        _open_closed()
        check_texts(texts)
        check_flags(batch_size, out, resume, overwrite)
        from metastable.encoder.load import load
        from metastable.encoder.texts import lines
        from metastable.errors import choice
        from metastable.monitor import stream
        from metastable.monitor.baseline import Baseline
        from metastable.monitor.conformal import share
        from metastable.monitor.monitor import Monitor
        from metastable.monitor.scoring import SETTINGS

        choice(setting, "--setting", SETTINGS)
        share(alpha, "--alpha")
        distributed = scheduler is not None or workers is not None
        if distributed and not stream.regular(texts):
            raise BadInput("--workers and --scheduler need all texts at once, and a pipe has them later; give a file")
        jsonl = jsonl or Path(texts).suffix.lower() == ".jsonl"
        # Lines are read from here on, while the model is loaded.
        intake = stream.Intake(lines(texts, jsonl), stream.AHEAD * batch_size)
        known = Baseline.load(baseline)
        encoder = load(model, allow_pickle, tokenizer, weights=False)
        known.check(encoder)
        check_least(known, setting, alpha)
        sinks = [] if prometheus is None else [_served(prometheus)]
        encoder.reads_text()
        monitor = Monitor(encoder, known, setting, sinks, alpha, keep=1)
        digest = hashlib.sha256((baseline / "baseline.json").read_bytes()).hexdigest()
        facts = {
            "encoder": known.fingerprint,
            "baseline": digest,
            "setting": setting,
            "alpha": alpha,
            "batch_size": batch_size,
            "private": private,
            "jsonl": jsonl,
        }
        folder = None
        if out is not None:
            folder = stack.enter_context(stream.stream_folder(out, facts, resume, overwrite))
            monitor.replay(folder.past())
        done, size = monitor.counts.texts, stream.TOGETHER * batch_size
        if stream.regular(texts):
            coming = stream.batches(intake, size, done, () if folder is None else folder.past())
        else:
            coming = stream.arriving(intake, size, done)
        examine = partial(monitor.examiner().records, batch_size=batch_size)
        records: Iterable[list[Record]] = (stream.examined(batch, examine) for batch in coming)
        if distributed:
            from metastable.scale import corpora

            of = (str(baseline.absolute()), digest, setting, alpha, batch_size)
            watched = corpora.WatchTask(corpora.Source.of(encoder, allow_pickle), *of)
            found = corpora.records_on_workers(watched, coming, scheduler, workers, out is not None)
            records = stack.enter_context(closing(found))
        code = _through(records, monitor, folder, Screen(monitor, as_json, texts), private)
        raise typer.Exit(code)


def check_flags(batch_size: int, out: Path | None, resume: bool, overwrite: bool) -> None:
    if batch_size < 1:
        raise BadInput(f"--batch-size is {batch_size}; it must be at least 1")
    if (resume or overwrite) and out is None:
        raise BadInput(f"{'--resume' if resume else '--overwrite'} is about the records in a folder; give --out too")
    if resume and overwrite:
        raise BadInput("--resume goes on and --overwrite starts again; give one of them")


def check_least(known: Baseline, setting: str, alpha: float) -> None:
    """Say so if no p-value can be as small as alpha."""
    least = known.settings[setting].least
    if least > alpha:
        few = f"the smallest p-value of this baseline is {least:.2g}"
        print(f"no single text can be strange at {alpha:g}: {few}; calibrate with more texts", file=sys.stderr)


def _served(address: str) -> Prometheus:
    """Metrics at http://HOST:PORT/metrics; a port alone is served to this machine only."""
    from metastable.monitor.sinks import Prometheus

    host, _, port = address.rpartition(":")
    sink = Prometheus()
    from prometheus_client import start_http_server

    try:
        start_http_server(int(port), host or "127.0.0.1")
    except (OSError, OverflowError, ValueError) as error:
        raise BadInput(f"--prometheus {address} cannot be served: {error}; give a free PORT or HOST:PORT") from error
    return sink


def _through(
    stream: Iterable[list[Record]], monitor: Monitor, folder: StreamFolder | None, screen: Screen, private: bool
) -> int:
    """Take all records of a stream; returns the exit code."""
    code = None
    done = monitor.counts.texts
    try:
        with _signals() as shield:
            for batch in stream:
                with shield():
                    new = monitor.take([record for record in batch if (record.line or 0) > done])
                    rows = [record.to_dict(words=not private) for record in new]
                    if folder is not None:
                        folder.write(rows)
                    screen.show(rows)
    except Stopped as stopped:
        code = 128 + stopped.signal
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    summary = {"finished": code is None, **monitor.summary()}
    if folder is not None:
        folder.finish(summary)
    try:
        if code != EXIT_BROKEN_PIPE:
            screen.summary(summary, new=monitor.counts.texts - done)
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    if code is not None:
        return code
    if summary["alarm"]["raised"]:
        return EXIT_FINDING
    return EXIT_BAD_INPUT if summary["rejected"] or not summary["texts"] else 0


class Screen:
    """What a person or a pipe sees: records on standard output, everything else on standard error.

    In a pipe, or with `as_json`, every record is a line of JSON. On a terminal, strange and rejected texts are a
    sentence each. If standard error is a terminal, its last line shows the counts, unless texts are typed there.
    """

    def __init__(self, monitor: Monitor, as_json: bool, texts: str) -> None:
        self.monitor, self.as_json = monitor, as_json
        self.terminal = sys.stdout.isatty()
        self.lines = as_json or not self.terminal
        typed = texts == "-" and sys.stdin is not None and sys.stdin.isatty()
        self.live = sys.stderr.isatty() and not typed
        self._announced = False
        if typed:
            print("one text a line; Ctrl-D ends", file=sys.stderr)

    def show(self, rows: list[dict[str, Any]]) -> None:
        waiting: list[dict[str, Any]] = []
        for row in rows:
            if self.lines:
                waiting.append(row)
            elif sentence := _sentence(row, self.monitor.alpha):
                self._clear()
                print(sentence)
            if row["alarm"]:
                self._write(waiting)
                waiting = []
                self._clear()
                print(_alarm_words(self.monitor.summary()["alarm"]), file=sys.stderr)
                self._announced = True
        self._write(waiting)
        if self.live:
            counts = self.monitor.counts
            words = f"{counts.texts} texts, {counts.strange} strange, {counts.texts - counts.scored} rejected"
            words += f", log e-value {self.monitor.alarm.log_e:.1f}"
            print(f"\r\x1b[2K{words}", end="", file=sys.stderr, flush=True)

    def summary(self, found: dict[str, Any], new: int) -> None:
        """The end of the stream. new : texts that were examined by this command."""
        from metastable.monitor.stream import SCHEMA

        self._clear()
        if self.as_json:
            self._write([{"schema": SCHEMA, **found}])
        elif found["texts"] and not new:
            print(f"nothing new: all {found['texts']} lines have a record already", file=sys.stderr)
        else:
            print("\n".join(_summary_lines(found, self._announced)), file=sys.stderr)

    def _write(self, rows: list[dict[str, Any]]) -> None:
        """Rows as JSON lines; on a terminal in ASCII, so that no character of a text controls the terminal."""
        lines = "".join(json.dumps(row, ensure_ascii=self.terminal, allow_nan=False) + "\n" for row in rows)
        try:
            if lines:
                sys.stdout.buffer.write(lines.encode(errors="replace"))
            sys.stdout.flush()
        except OSError as error:
            silence_stdout()
            if isinstance(error, BrokenPipeError):
                raise
            raise BadInput(f"standard output cannot be written: {error.strerror}; free some space") from error

    def _clear(self) -> None:
        if self.live:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def _sentence(row: dict[str, Any], alpha: float) -> str | None:
    """A strange or rejected text in words, without control characters; None for an ordinary text."""
    where = f"line {row['line']}" + ("" if row["id"] is None else f" ({row['id']})")
    if row["status"] == "scored" and row["p_value"] > alpha:
        return None
    found = f"{where}{' rejected' if row['status'] == 'rejected' else ''}: {row['reason']}"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in found)


def _summary_lines(found: dict[str, Any], announced: bool) -> list[str]:
    """The summary for a terminal. announced : the alarm was already shown when it was raised."""
    texts, scored, alarm = found["texts"], found["scored"], found["alarm"]
    if not texts:
        return ["the stream is empty: no text was scored; give one text a line"]
    expected = f" (expected for clean texts: at most about {alarm['alpha'] * scored:.2g})" if scored else ""
    lines = [
        f"{texts} text{'' if texts == 1 else 's'}, {scored} scored, "
        f"{found['strange']} strange at p ≤ {alarm['alpha']:g}{expected}"
    ]
    if found["cut"]:
        lines.append(f"{found['cut']} cut to the model's limit")
    if found["rejected"]:
        by_count = sorted(found["rejected"].items(), key=lambda item: -item[1])
        parts = ", ".join(f"{count} × {reason}" for reason, count in by_count)
        lines.append(f"{sum(found['rejected'].values())} rejected: {parts}")
    if not announced:
        lines.append(_alarm_words(alarm))
    return [*lines, f"the alarm assumes: {alarm['assumes']}"]


def _alarm_words(alarm: dict[str, Any]) -> str:
    at = _power(alarm["threshold_log_e"])
    if not alarm["raised"]:
        return f"no alarm: e-value {_power(alarm['log_e'])}, at most {_power(alarm['peak_log_e'])}; alarm at {at}"
    where = "" if alarm["line"] == alarm["text"] else f" (line {alarm['line']})"
    share = alarm["alpha"]
    once = f"at most 1 of {1 / share:.0f}" if share < 0.5 else f"at most {share:g} of all"
    return (
        f"alarm at text {alarm['text']}{where}: the stream is not like the clean texts "
        f"(e-value {_power(alarm['log_e_then'])} ≥ {at}; this happens in {once} clean streams)"
    )


def _power(log: float) -> str:
    """e^log, which may be far too large for a float."""
    if abs(log) > 600:
        return f"1e{log / math.log(10):+.0f}"
    value = math.exp(log)
    return f"{value:.0f}" if 100 <= value < 1e5 else f"{value:.2g}"


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = number


@contextmanager
def _signals() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """SIGINT and SIGTERM raise `Stopped` inside this context. Inside the shield that it gives, they wait."""
    shielded, waiting = False, 0

    def handle(number: int, frame: Any) -> None:
        nonlocal waiting
        if not shielded:
            raise Stopped(number)
        waiting = number

    @contextmanager
    def shield() -> Iterator[None]:
        nonlocal shielded
        shielded = True
        try:
            yield
        finally:
            shielded = False
            if waiting:
                raise Stopped(waiting)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield shield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _open_closed() -> None:
    """Send a closed standard output or error (`>&-`) to the null device; else a file would get its descriptor."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
