"""`metastable watch`: examine a stream of texts and raise an alarm when it is not like the clean texts."""

from __future__ import annotations

import hashlib
import json
import math
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metastable.cli.calibrate import check_texts
from metastable.cli.exits import EXIT_BAD_INPUT, EXIT_BROKEN_PIPE, EXIT_FINDING, one_line_errors, silence_stdout
from metastable.cli.options import AllowPickle, Alpha, BatchSize, Debug, Scheduler, Tokenizer, Watched, Workers
from metastable.errors import BadInput

if TYPE_CHECKING:
    from metastable.monitor.baseline import Baseline
    from metastable.monitor.monitor import Monitor
    from metastable.monitor.record import Record
    from metastable.monitor.sinks import Prometheus
    from metastable.monitor.stream import StreamFolder
    from metastable.monitor.windows import Window, Windows


def watch(
    model: Watched,
    baseline: Annotated[Path, typer.Option(help="The folder that `calibrate` wrote, of the same encoder.")],
    texts: Annotated[str, typer.Argument(help="One text a line, or .jsonl; - is standard input.")] = "-",
    setting: Annotated[str, typer.Option(help="full, or light: cheaper, and made for live models.")] = "full",
    alpha: Alpha = 0.01,
    reset_after_alarm: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Begin again N texts after an alarm, with evidence 1, and say whether the shift persists in these N "
            "texts. Without it the alarm stays raised.",
        ),
    ] = None,
    sliced_by: Annotated[
        str | None,
        typer.Option(
            "--slice",
            metavar="FIELD",
            help="A field of the JSON lines, such as source or language. Each of its values gets an alarm of its own; "
            "all alarms share alpha. Values are strings and whole numbers; any other value counts as null. Clean texts "
            "of each value must be like the calibration texts.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Also test every N scored texts in a row together, which sees slight shifts that all of them have. "
            "Each window gets a p-value, in windows.jsonl in --out. Alarm and exit code do not depend on it. After "
            "--resume on a pipe, a new window begins.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for records.jsonl, summary.json and report.html.")] = None,
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
            help="Records and report.html quote no words of the texts. They keep ids and a short hash, which can "
            "confirm a guess. Without it, the strangest texts are kept in --out for report.html.",
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
    Ctrl-C, a summary follows on standard error, and report.html is written into --out.

    The alarm assumes that texts are independent of each other and that the calibration texts were drawn like the clean
    stream. If neighbouring texts are visibly alike, or many texts are copies of earlier ones, a warning says so.

    Exit code: 1 if the alarm, or one of a slice, was raised; else 2 if lines were rejected, or there were none; else 0.
    But 130 after Ctrl-C, 143 after SIGTERM and 141 if the reader of standard output went away, with or without an
    alarm: see the summary (none is printed after 141), or summary.json in --out.
    """
    with one_line_errors(debug, resumes=False), ExitStack() as stack:
        check_texts(texts)
        check_flags(batch_size, out, resume, overwrite, reset_after_alarm)
        if window is not None and window < 2:
            raise BadInput(f"--window is {window}; it must be a number of texts, at least 2")
        from metastable.encoder.load import load
        from metastable.encoder.texts import lines
        from metastable.errors import choice
        from metastable.monitor import stream
        from metastable.monitor.baseline import Baseline
        from metastable.monitor.conformal import share
        from metastable.monitor.monitor import Monitor
        from metastable.monitor.scoring import SETTINGS
        from metastable.monitor.windows import LEAST, Windows
        from metastable.progress import FileTexts

        choice(setting, "--setting", SETTINGS)
        share(alpha, "--alpha")
        distributed = scheduler is not None or workers is not None
        if distributed and not stream.regular(texts):
            raise BadInput("--workers and --scheduler need all texts at once, and a pipe has them later; give a file")
        jsonl = jsonl or Path(texts).suffix.lower() == ".jsonl"
        if sliced_by is not None and (not jsonl or sliced_by == "text"):
            what = (
                "is the text itself; give another field" if jsonl else "needs JSON lines; give a .jsonl file or --jsonl"
            )
            raise BadInput(f"--slice {sliced_by} {what}")
        # Lines are read from here on, while the model is loaded.
        intake = stream.Intake(lines(texts, jsonl, sliced_by), stream.AHEAD * batch_size)
        known = Baseline.load(baseline)
        encoder = load(model, allow_pickle, tokenizer, weights=False)
        known.check(encoder)
        check_least(known, setting, alpha)
        sinks = [] if prometheus is None else [_served(prometheus)]
        encoder.reads_text()
        monitor = Monitor(
            *(encoder, known, setting, sinks, alpha),
            keep=1,
            reset_after=reset_after_alarm,
            slices=sliced_by is not None,
        )
        windows = None if window is None else Windows(monitor.examiner().scorer, window, alpha)
        if windows is not None and alpha < LEAST:
            print(f"no window can be strange at {alpha:g}: its smallest p-value is {LEAST:g}", file=sys.stderr)
        digest = hashlib.sha256((baseline / "baseline.json").read_bytes()).hexdigest()
        facts = {
            "encoder": known.fingerprint,
            "baseline": digest,
            "setting": setting,
            "alpha": alpha,
            "batch_size": batch_size,
            "private": private,
            "jsonl": jsonl,
            "reset_after_alarm": reset_after_alarm,
            "slice": sliced_by,
            "window": window,
        }
        folder = None
        if out is not None:
            about = stream.page_facts(monitor)
            folder = stack.enter_context(stream.stream_folder(out, facts, resume, overwrite, about))
            monitor.replay(folder.past())
            if windows is not None:
                windows.replay(folder.past_windows())
        done, size = monitor.counts.texts, stream.TOGETHER * batch_size
        if stream.regular(texts):
            # The texts of an unfinished window are examined again.
            after = done if windows is None else min(done, windows.line)
            coming = stream.batches(intake, size, done, () if folder is None else folder.past(), after)
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
        advance: Callable[[], None] | None = None
        if (bytes_of_file := stream.file_size(texts)) is not None:
            bar = stack.enter_context(FileTexts(before=done))

            def advance() -> None:
                bar(monitor.counts.texts, intake.expected(bytes_of_file))

        screen = Screen(monitor, as_json, texts, advance)
        code = _through(records, monitor, folder, screen, private, sliced_by, windows)
        raise typer.Exit(code)


def check_flags(
    batch_size: int, out: Path | None, resume: bool, overwrite: bool, reset_after: int | None = None
) -> None:
    if batch_size < 1:
        raise BadInput(f"--batch-size is {batch_size}; it must be at least 1")
    if reset_after is not None and reset_after < 1:
        raise BadInput(f"--reset-after-alarm is {reset_after}; it must be a number of texts, at least 1")
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
    stream: Iterable[list[Record]],
    monitor: Monitor,
    folder: StreamFolder | None,
    screen: Screen,
    private: bool,
    sliced_by: str | None,
    windows: Windows | None,
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
                    found: list[Window] = []
                    if windows is not None:
                        found = windows.take([record for record in batch if (record.line or 0) > windows.line])
                    if folder is not None and (rows or found):
                        if not private:
                            folder.keep(new)
                        folder.write(rows, [one.to_dict() for one in found])
                        folder.refresh(monitor)
                    screen.show(rows)
                    screen.show_windows(found)
    except StopSignal as stopped:
        code = 128 + stopped.signal
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    summary = {"finished": code is None, **monitor.summary()}
    summary["windows"] = None if windows is None else windows.to_dict()
    missing = bool(summary["slices"]) and all(own["slice"] is None for own in summary["slices"])
    summary["slice_field_missing"] = missing if sliced_by is not None else None
    if folder is not None:
        folder.finish(summary)
    try:
        if code != EXIT_BROKEN_PIPE:
            screen.summary(summary, new=monitor.counts.texts - done)
            if missing:
                values = "a string or a whole number"
                told = f"warning: no line has the field {sliced_by!r} with {values}; all texts are one slice"
                print(_printable(told), file=sys.stderr)
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    if folder is not None:
        told = page_written(folder.folder)
        if code != EXIT_BROKEN_PIPE:
            print(told, file=sys.stderr)
    if code is not None:
        return code
    if summary["alarm"]["raised"] or any(own["alarms_raised"] for own in summary["slices"] or ()):
        return EXIT_FINDING
    return EXIT_BAD_INPUT if summary["rejected"] or not summary["texts"] else 0


def page_written(folder: Path) -> str:
    """Write report.html, and say where it is or why there is none. A page that fails does not change the exit code."""
    try:
        from metastable.monitor.report import write_stream

        return f"page: {write_stream(folder)}"
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        return f"the page {folder / 'report.html'} was not written: {why}; the records are not affected"


class Screen:
    """What a person or a pipe sees: records on standard output, everything else on standard error.

    In a pipe, or with `as_json`, every record is a line of JSON. On a terminal, strange and rejected texts are a
    sentence each. If standard error is a terminal, its last line shows the counts, unless texts are typed there.

    advance : called after each batch, to tell the progress
    """

    def __init__(self, monitor: Monitor, as_json: bool, texts: str, advance: Callable[[], None] | None = None) -> None:
        self.monitor, self.as_json, self._advance = monitor, as_json, advance
        self.terminal = sys.stdout.isatty()
        self.lines = as_json or not self.terminal
        typed = texts == "-" and sys.stdin is not None and sys.stdin.isatty()
        self.live = sys.stderr.isatty() and not typed
        from metastable.monitor.dependence import NewWarnings

        # What was told so far: alarms, the newest episode whose end was told, and warnings of dependence.
        self._announced, self._ended = False, monitor.alarm.episode - 1
        self._warnings = NewWarnings()
        self._scored = monitor.counts.scored
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
            self._scored += row["status"] == "scored"
            if row["alarm"] or row["slice_alarm"]:
                self._write(waiting)
                waiting = []
                self._clear()
                self._tell_ends(row["episode"])
                for words in raised_words(row, self._scored, self.monitor):
                    print(words, file=sys.stderr)
                self._announced = self._announced or row["alarm"]
        self._write(waiting)
        self._tell_ends(self.monitor.alarm.episode)
        for words in self._warnings.take(self.monitor.dependence):
            self._clear()
            print(f"warning: {words}", file=sys.stderr)
        if self.live:
            counts = self.monitor.counts
            words = f"{counts.texts} texts, {counts.strange} strange, {counts.texts - counts.scored} rejected"
            words += f", log e-value {self.monitor.alarm.log_e:.1f}"
            if self.monitor.episodes.reset_after is not None:
                words += f", episode {self.monitor.alarm.episode}"
            print(f"\r\x1b[2K{words}", end="", file=sys.stderr, flush=True)
        if self._advance is not None:
            self._advance()

    def show_windows(self, found: list[Window]) -> None:
        """A sentence for each strange window, on a terminal."""
        for one in found:
            if one.strange and not self.lines:
                self._clear()
                print(f"lines {one.first} to {one.last}: {one.reason}")

    def _tell_ends(self, episode: int) -> None:
        """Say whether the shift persisted, for each episode before this one that has not been told."""
        for one in self.monitor.episodes.raised:
            if self._ended < one.episode < episode:
                self._clear()
                print(_after_words(one.to_dict(), ended=True), file=sys.stderr)
        self._ended = max(self._ended, episode - 1)

    def summary(self, found: dict[str, Any], new: int) -> None:
        """The end of the stream. new : texts that were examined by this command."""
        from metastable.monitor.stream import SCHEMA

        self._clear()
        if self.as_json:
            self._write([{"schema": SCHEMA, **found}])
        elif found["texts"] and not new:
            print(f"nothing new: all {found['texts']} lines have a record already", file=sys.stderr)
        else:
            print("\n".join(_summary_lines(found, self._announced, self._warnings.told.values())), file=sys.stderr)

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
    return _printable(f"{where}{' rejected' if row['status'] == 'rejected' else ''}: {row['reason']}")


def _printable(words: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)


def _summary_lines(found: dict[str, Any], announced: bool, warned: Collection[str]) -> list[str]:
    """The summary for a terminal.

    announced : alarms were shown when they were raised
    warned : sentences of warnings that were shown; more copies than then are told again
    """
    from metastable.monitor.dependence import warnings

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
        lines.append(_alarm_words(alarm, found["slices"] is not None))
    if alarm["reset_after"] is not None and alarm["raised"]:
        lines += _episode_lines(found)
    if found["slices"] is not None:
        lines += _slice_lines(found["slices"])
    if found["windows"] is not None:
        lines.append(_window_words(found["windows"], alarm["alpha"]))
    lines += [f"warning: {words}" for words in warnings(found["dependence"]).values() if words not in warned]
    return [*lines, f"the alarm assumes: {alarm['assumes']}"]


def _alarm_words(alarm: dict[str, Any], sliced: bool) -> str:
    at = _power(alarm["threshold_log_e"])
    if not alarm["raised"]:
        none = f"no alarm{' over all texts' if sliced else ''}"
        return f"{none}: e-value {_power(alarm['log_e'])}, at most {_power(alarm['peak_log_e'])}; alarm at {at}"
    of = f"alarm at {_where(alarm['text'], alarm['line'])}: the stream"
    return _raised(of, alarm["log_e_then"], alarm["threshold_log_e"], alarm["alpha"])


def _raised(of: str, log_e: float, threshold: float, alpha: float, among: str = "streams") -> str:
    once = f"at most 1 of {1 / alpha:.0f}" if alpha < 0.5 else f"at most {alpha:g} of all"
    evidence = f"e-value {_power(log_e)} ≥ {_power(threshold)}"
    return f"{of} is not like the clean texts ({evidence}; this happens in {once} clean {among})"


def raised_words(row: dict[str, Any], text: int, monitor: Monitor) -> Iterator[str]:
    """The alarms that a record raised. text : its number among the scored texts"""
    where = _where(text, row["line"])
    if row["alarm"]:
        again = row["episode"] > 1
        of = f"alarm at {where}{', episode ' + str(row['episode']) if again else ''}: the stream"
        among = "episodes" if again else "streams"
        yield _raised(of, row["log_e"], monitor.alarm.threshold, monitor.alpha, among)
    if row["slice_alarm"] and monitor.slices is not None:
        own = monitor.slices.of(row["slice"])
        of = f"alarm at {where}: {_named(own.value, own.others)}"
        first = own.episodes.first
        among = "streams" if first is None or first.place.text == text else "episodes"
        yield _printable(_raised(of, row["slice_log_e"], own.episodes.alarm.threshold, monitor.alpha, among))


def _where(text: int, line: int | None) -> str:
    return f"text {text}" + ("" if line == text else f" (line {line})")


def _after_words(alarm: dict[str, Any], ended: bool) -> str:
    """What the texts after an alarm say. ended : whether its episode has ended"""
    from metastable.monitor.episodes import persistence

    after, at = alarm["after"], f"after the alarm at {_where(alarm['text'], alarm['line'])}"
    if not after["texts"]:
        return f"{at}: no further text yet"
    are = "is" if after["strange"] == 1 else "are"
    strange = (
        f"{after['strange']} of the {after['texts']} following texts {are} strange "
        f"(expected for clean texts: at most about {after['expected_at_most']:.2g})"
    )
    now, peak = _power(after["log_e"]), _power(after["peak_log_e"])
    evidence = f"e-value {now}" + (f", at most {peak}" if peak != now else "")
    found = f"{strange}; these texts alone have {evidence} (threshold {_power(after['threshold_log_e'])})"
    verb = "persisted" if ended else "persists"
    words = {
        "yes": f"the shift {verb}",
        "not certain": f"it is not certain that the shift {verb}"
        if ended
        else f"not certain yet whether the shift {verb}",
        "no sign of it": f"no sign that the shift {verb}",
    }
    return f"{at}: {words[persistence(after['persists'], after['log_e'])]}: {found}"


def _episode_lines(found: dict[str, Any]) -> list[str]:
    """All alarms and the episode that is going on."""
    alarm, alarms = found["alarm"], found["alarms"]
    newest, total = alarms[-1], found["alarms_raised"]
    texts = ", ".join(str(one["text"]) for one in alarms[-5:])
    newest_only = "" if total <= 5 else "the newest "
    lines = [f"{total} alarm{'' if total == 1 else 's'}, {newest_only}at text{'' if total == 1 else 's'} {texts}"]
    if newest["episode"] == alarm["episode"]:
        return [*lines, _after_words(newest, ended=False)]
    now = f"e-value {_power(alarm['log_e'])}, alarm at {_power(alarm['threshold_log_e'])}"
    return [*lines, f"episode {alarm['episode']} is going on without an alarm: {now}"]


def _window_words(found: dict[str, Any], alpha: float) -> str:
    size, count, strange = found["texts"], found["count"], found["strange"]
    if not count:
        return f"no window: the stream has fewer than {size} scored texts"
    one = f"{strange} of {count} windows of {size} texts {'is' if strange == 1 else 'are'} strange at p ≤ {alpha:g}"
    return f"{one} (expected for clean texts: at most about {found['expected_at_most']:.2g})"


def _slice_lines(slices: list[dict[str, Any]]) -> list[str]:
    """The slices with an alarm, at most 10 of them, and how many there are."""
    raised = [own for own in slices if own["alarms_raised"]]
    lines = [f"{len(slices)} slice{'' if len(slices) == 1 else 's'}, {len(raised)} with an alarm"]
    for own in raised[:10]:
        first = own["alarms"][0]
        more = f", and {own['alarms_raised'] - 1} more" if own["alarms_raised"] > 1 else ""
        lines.append(
            f"{_named(own['slice'], own['others'])}: alarm at {_where(first['text'], first['line'])}{more}; "
            f"{own['scored']} texts, {own['strange']} strange"
        )
    if len(raised) > 10:
        lines.append(f"and {len(raised) - 10} more slices with an alarm: see summary.json in --out")
    return [_printable(line) for line in lines]


def _named(value: str | int | None, others: bool) -> str:
    if others:
        return "the slice of all further values"
    return "the slice of texts without a value" if value is None else f"slice {value!r}"


def _power(log: float) -> str:
    """e^log, which may be far too large for a float."""
    if abs(log) > 600:
        return f"1e{log / math.log(10):+.0f}"
    value = math.exp(log)
    return f"{value:.0f}" if 100 <= value < 1e5 else f"{value:.2g}"


class StopSignal(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = number


@contextmanager
def _signals() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """SIGINT and SIGTERM raise `StopSignal` inside this context. Inside the shield that it gives, they wait."""
    shielded, waiting = False, 0

    def handle(number: int, frame: Any) -> None:
        nonlocal waiting
        if not shielded:
            raise StopSignal(number)
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
                raise StopSignal(waiting)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield shield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
