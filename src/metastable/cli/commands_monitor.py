"""What `calibrate` and `watch` do once their arguments are parsed."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from metastable.encoder import texts as reading
from metastable.encoder.load import Encoder, load
from metastable.errors import BadInput
from metastable.monitor.baseline import Baseline, check_writable
from metastable.monitor.conformal import share
from metastable.monitor.monitor import Monitor
from metastable.monitor.records import Record
from metastable.monitor.scoring import SETTINGS
from metastable.monitor.screen import Screen
from metastable.monitor.sinks import Prometheus
from metastable.monitor.split import DELTA, SHARES
from metastable.monitor.stream import (
    AHEAD,
    TOGETHER,
    Intake,
    Kept,
    Score,
    Tally,
    arriving,
    as_line,
    batches,
    judged,
    kind,
    regular,
    row,
)
from metastable.progress import Texts

Shield = Callable[[], AbstractContextManager[None]]

REPEATED = 0.01
"""A share of all clean texts above which `calibrate` warns of a text that repeats."""

QUIET_END = 141
"""The exit code of a program whose reader went away: 128 + SIGPIPE, as the shell gives it."""


def watch(
    model: str,
    baseline: Path,
    texts: str,
    *,
    setting: str,
    alpha: float,
    out: Path | None,
    jsonl: bool,
    batch_size: int,
    prometheus: str | None,
    private: bool,
    resume: bool,
    overwrite: bool,
    allow_pickle: bool,
    as_json: bool,
    scheduler: str | None = None,
    workers: int | None = None,
) -> int:
    """Score a stream line by line; returns the exit code."""
    _open_closed()
    _check(texts, setting, batch_size, out, resume, overwrite)
    spread = scheduler is not None or workers is not None
    if spread and not regular(texts):
        raise BadInput(
            "--workers and --scheduler are for files of texts, and a stream is scored as it comes; give a file"
        )
    jsonl = jsonl or Path(texts).suffix.lower() == ".jsonl"
    # Lines are taken from here on, while the model is loaded.
    intake = Intake(reading.lines(texts, jsonl), AHEAD * batch_size)
    encoder, tally, judge, facts = _prepare(model, baseline, setting, alpha, batch_size, allow_pickle)
    sink = None if prometheus is None else _serve(prometheus)
    with ExitStack() as stack:
        kept = None
        if out is not None:
            facts |= {"batch_size": batch_size, "private": private, "jsonl": jsonl}
            kept = stack.enter_context(closing(Kept(out, facts, resume, overwrite)))
            kept.replay(tally)
        size, done = TOGETHER * batch_size, tally.lines
        if regular(texts):
            stream = batches(intake, size, done, kept.past() if kept is not None else ())
        else:
            stream = arriving(intake, size, done)
        run = _Run(tally, kept, sink, Screen(tally, as_json, texts), private)
        if not spread:
            return run.through(judged(batch, judge) for batch in stream)
        from metastable.scale import corpora

        of = (str(baseline.absolute()), facts["baseline"], setting, alpha, batch_size)
        watched = corpora.Watched(corpora.Source.of(encoder, allow_pickle), *of)
        records = corpora.scored(watched, stream, scheduler, workers, out is not None)
        return run.through(stack.enter_context(closing(records)))


def _prepare(
    model: str, baseline: Path, setting: str, alpha: float, batch_size: int, allow_pickle: bool
) -> tuple[Encoder, Tally, Score, dict[str, Any]]:
    """The encoder, the empty tally, what scores texts, and all that a record depends on besides its text."""
    share(alpha, "--alpha")
    known = Baseline.load(baseline)
    encoder = load(model, allow_pickle)
    known.check(encoder)
    least = known.settings[setting].calibration.resolution(DELTA)
    if least > alpha:
        few = f"the smallest p-value of this baseline is {least:.2g}"
        print(f"no single text can be strange at {alpha:g}: {few}; calibrate with more texts", file=sys.stderr)
    monitor = Monitor(encoder.model, known, setting, alpha=alpha, tokenizer=encoder.reads_text(), keep=1)
    facts = {
        "encoder": known.fingerprint,
        "baseline": hashlib.sha256((baseline / "baseline.json").read_bytes()).hexdigest(),
        "setting": setting,
        "alpha": alpha,
    }
    tally = Tally(known.alarm(setting, alpha), alpha)
    return encoder, tally, partial(monitor.score, batch_size=batch_size), facts


class _Run:
    """A stream from its first batch of records to its summary."""

    def __init__(self, tally: Tally, kept: Kept | None, sink: Prometheus | None, screen: Screen, private: bool) -> None:
        self.tally, self.kept, self.sink, self.screen, self.private = tally, kept, sink, screen, private

    def through(self, stream: Iterable[list[tuple[Record, str]]]) -> int:
        """Take all records, and end with the exit code."""
        code = None
        done = self.tally.lines
        try:
            with _signals() as shield:
                for records in stream:
                    with shield():
                        self._take([(record, sha) for record, sha in records if (record.line or 0) > done])
        except Stopped as stopped:
            code = 128 + stopped.signal
        except BrokenPipeError:
            code = QUIET_END
        summary = {"finished": code is None, **self.tally.to_dict()}
        if self.kept is not None:
            self.kept.finish(summary)
        try:
            if code != QUIET_END:
                self.screen.summary(summary)
        except BrokenPipeError:
            code = QUIET_END
        return self.tally.code if code is None else code

    def _take(self, records: list[tuple[Record, str]]) -> None:
        rows = [row(record, sha, self.tally, self.private) for record, sha in records]
        if self.kept is not None:
            self.kept.write(b"".join(as_line(found) for found, _ in rows))
        for found, alarmed in rows:
            self.screen.record(found, alarmed)
        if self.sink is not None:
            for record, _ in records:
                self.sink.write(record)
            self.sink.state(self.tally.alarm)
        self.screen.flush()


def _serve(address: str) -> Prometheus:
    """Metrics at http://HOST:PORT/metrics; a port alone is served to this machine only."""
    host, _, port = address.rpartition(":")
    sink = Prometheus()
    from prometheus_client import start_http_server

    try:
        start_http_server(int(port), host or "127.0.0.1")
    except (OSError, OverflowError, ValueError) as error:
        raise BadInput(f"--prometheus {address} cannot be served: {error}; give a free PORT or HOST:PORT") from error
    return sink


def calibrate(
    model: str, texts: str, out: Path, seed: int, batch_size: int, overwrite: bool, allow_pickle: bool
) -> dict[str, Any]:
    """Fit a baseline and save it in the folder `out`; returns what was learned."""
    _check_texts(texts)
    check_writable(out)  # before the work is done
    if not overwrite and (out / "baseline.json").exists():
        raise BadInput(f"--out {out} holds a baseline; --overwrite replaces it")
    unread: Counter[str] = Counter()
    usable, named = itertools.tee(_usable(texts, unread))
    try:
        # Some texts go through the model twice: to fit, and to be scored by what was fitted.
        with Texts(what="passes of texts through the model") as bar:
            found = Baseline.fit(
                model,
                (line.text or "" for line in usable),
                documents=(line.document for line in named),
                seed=seed,
                batch_size=batch_size,
                progress=bar,
                allow_pickle=allow_pickle,
            )
    except BadInput as error:
        if unread:
            raise BadInput(f"{error} ({_listed(unread)})") from error
        raise
    found.save(out)
    return {
        "schema": "metastable.calibrate/1",
        "baseline": str(out),
        "encoder": found.encoder_name,
        "fingerprint": found.fingerprint,
        **found.facts,
        "left_out": dict(unread + Counter(found.facts["left_out"])),
        "settings": {
            name: {
                "detectors": list(scorer.setting.members),
                "calibration_texts": scorer.texts,
                "least_p_value": scorer.calibration.resolution(DELTA),
                "least_p_marginal": scorer.calibration.resolution(),
            }
            for name, scorer in found.settings.items()
        },
    }


def _usable(texts: str, unread: Counter[str]) -> Iterator[reading.Line]:
    for line in reading.lines(texts):
        if line.text is None:
            unread[kind(line.reason or "")] += 1
        else:
            yield line


def calibrated(found: dict[str, Any]) -> list[str]:
    """What `calibrate` learned, for people."""
    parts, lengths, documents = found["parts"], found["lengths"], found["documents"]
    lines = [
        f"{found['encoder']} (weights {found['fingerprint'][:12]}): {sum(parts.values())} clean texts, "
        f"{found['tokens']} tokens, {lengths['least']} to {lengths['most']} a text, median {lengths['median']}",
        f"{parts['fit']} texts to fit detectors on, {parts['adjust']} for scales and lengths, "
        f"{parts['calibrate']} to rank new texts among",
    ]
    if documents is not None:
        lines.append(f"{sum(documents.values())} documents, {documents['calibrate']} of them to rank new texts among")
    lines.append("all promises are for texts that are independent of each other")
    if found["commonest"] > REPEATED:
        lines.append(
            f"warning: one text makes up {found['commonest']:.1%} of the clean texts; where the stream does not repeat "
            f"it as often, p-values are off by up to {found['commonest'] / SHARES['calibrate']:.1%}"
        )
    for name, setting in found["settings"].items():
        lines.append(
            f"setting {name}: {', '.join(setting['detectors'])}; the smallest p-value there can be is "
            f"{setting['least_p_value']:.2g}, and {setting['least_p_marginal']:.2g} where the alarm takes it"
        )
    if found["cut"]:
        lines.append(f"cut to the model's limit: {found['cut']}")
    if found["left_out"]:
        lines.append(f"left out: {_listed(Counter(found['left_out']))}")
    return [*lines, f"baseline: {found['baseline']}"]


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = number


@contextmanager
def _signals() -> Iterator[Shield]:
    """SIGINT and SIGTERM raise `Stopped` in here, but not within the shield that this gives: there they wait."""
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
    """Standard output and error that were closed (`>&-`) lead nowhere; else a file would get their descriptor."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _listed(reasons: Counter[str]) -> str:
    return f"{reasons.total()} lines: " + ", ".join(f"{count} × {reason}" for reason, count in reasons.most_common())


def _check_texts(texts: str) -> None:
    if texts != "-" and (not Path(texts).exists() or Path(texts).is_dir()):
        raise BadInput(f"{texts} is no file; give a file with one text a line, or - for standard input")


def _check(texts: str, setting: str, batch_size: int, out: Path | None, resume: bool, overwrite: bool) -> None:
    _check_texts(texts)
    if setting not in SETTINGS:
        raise BadInput(f"--setting is {setting!r}; choose one of {', '.join(SETTINGS)}")
    if batch_size < 1:
        raise BadInput(f"--batch-size is {batch_size}; it must be at least 1")
    if (resume or overwrite) and out is None:
        raise BadInput(f"{'--resume' if resume else '--overwrite'} is about the records in a folder; give --out too")
    if resume and overwrite:
        raise BadInput("--resume goes on and --overwrite begins again; give one of them")
