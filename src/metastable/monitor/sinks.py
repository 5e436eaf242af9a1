"""Where a monitor's records go: a file of JSON lines, metrics for Prometheus, or anything of your own.

**Privacy.** What runs through a model in production belongs to its users. A record's `tokens` and `reason` quote the
strangest words of a text, and words are content: `JsonLines(path, tokens=False)` writes none. The text itself is
written only with `include_text=True`. `Prometheus` sees nothing but numbers.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from metastable.errors import BadInput
from metastable.monitor.alarm import Alarm
from metastable.monitor.records import Record

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Upper ends of the histogram of p-values."""

CHUNK = 2**20
"""Bytes read at once when the end of a file is looked for."""

LONGEST = 64 * CHUNK
"""Bytes: no record is as long as that."""


class Sink(Protocol):
    """What takes records. Whatever it raises is counted by the monitor and reaches nobody else.

    A sink may also have `state(alarm)`, called after each pass; `failed(kind)`, called for each failure and each pass
    that cannot be read; and an attribute `include_text`: where it is true, records come with their text.
    """

    def write(self, record: Record) -> None:
        """Called for each text, in the order of the stream, while other threads of the model wait: be quick."""

    def close(self) -> None:
        """Called when the monitor is left. It may be entered again, so `write` can come after this."""


class JsonLines:
    """One JSON object a line, appended to a file that is opened with the first record. One process a file.

    Each line goes to the system in one call, and nothing is held back: if the process is killed, the file has every
    record written so far, whole. Where a line does not fit on the disk, what was written of it is taken back.

    If the file ends without a newline, because an earlier writer lost its power in mid-line, the last line is completed
    where it is whole JSON and cut off where it is the beginning of a record. A file that ends otherwise was not made
    here: it is left alone, and the record is refused.

    tokens : whether `tokens` are written, and quoted in `reason`. They are words of the text.
    include_text : whether to add the text itself as "text". On a live model it is what the tokenizer makes of the
        tokens; None where there is no tokenizer.
    """

    def __init__(self, path: str | os.PathLike[str], tokens: bool = True, include_text: bool = False) -> None:
        self.path, self.tokens, self.include_text = Path(path), tokens, include_text
        self._file: int | None = None
        self._lock = threading.Lock()

    def write(self, record: Record) -> None:
        found = (record if self.tokens else replace(record, tokens=())).to_dict()
        if self.include_text:
            found["text"] = record.text
        # Half a surrogate pair is no UTF-8, and a rejected text may hold one.
        line = (json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n").encode(errors="replace")
        with self._lock:
            if self._file is None:
                self._file = _opened(self.path)
            _append(self._file, line)

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                os.close(self._file)
            self._file = None


def _opened(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        _mend(file, path)
    except BaseException:
        os.close(file)
        raise
    return file


def _mend(file: int, path: Path) -> None:
    """Make a file end with a whole line; see `JsonLines`."""
    end = start = os.fstat(file).st_size
    pieces: list[bytes] = []
    while start and end - start < LONGEST and not (pieces and b"\n" in pieces[-1]):
        step = min(start, CHUNK)
        start -= step
        pieces.append(os.pread(file, step, start))
    torn = b"".join(reversed(pieces)).rpartition(b"\n")[2]
    if not torn:
        return
    try:
        json.loads(torn)
    except ValueError:
        if len(torn) >= LONGEST or not torn.startswith(b'{"'[: len(torn)]):
            raise BadInput(f"{str(path)!r} does not end in JSON lines; give another file") from None
        os.ftruncate(file, end - len(torn))
    else:
        _append(file, b"\n")


def _append(file: int, line: bytes) -> None:
    """All of the line, or nothing and an error."""
    before = os.fstat(file).st_size
    written = os.write(file, line)
    if written == len(line):
        return
    os.ftruncate(file, before)
    raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes could be written")


class Prometheus:
    """Metrics for Prometheus, by the package prometheus-client (metastable[monitor]), labelled with the monitor's name:

    texts_total{status}             texts scored and rejected
    failures_total{kind}            what went wrong inside the monitor, and passes that it could not read
    p_value                         a histogram of p-values
    last_p_value                    that of the newest text
    alarm_log_e, alarm_raised       the logarithm of the alarm's e-value; 1 once it is raised, else 0

    with the prefix and a line before each. Serve them as any others, such as by `prometheus_client.start_http_server`.

    registry : prometheus-client's own registry unless given
    monitor : the label by which monitors in one process are told apart; a running number unless given. Two sinks of one
        name count together.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, prefix: str = "metastable", monitor: str | None = None
    ) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise BadInput("metrics need the package prometheus-client; install metastable[monitor]") from error
        metrics = _metrics(prometheus_client.REGISTRY if registry is None else registry, prefix)
        self.monitor = metrics.name() if monitor is None else monitor
        self._texts = {status: metrics.texts.labels(self.monitor, status) for status in ("scored", "rejected")}
        self._failures = metrics.failures
        self._p_values = metrics.p_values.labels(self.monitor)
        self._last = metrics.last.labels(self.monitor)
        self._log_e, self._raised = metrics.log_e.labels(self.monitor), metrics.raised.labels(self.monitor)

    def write(self, record: Record) -> None:
        self._texts[record.status].inc()
        if record.p_value is not None:
            self._p_values.observe(record.p_value)
            self._last.set(record.p_value)

    def state(self, alarm: Alarm) -> None:
        self._log_e.set(alarm.log_e)
        self._raised.set(alarm.raised_at is not None)

    def failed(self, kind: str) -> None:
        self._failures.labels(self.monitor, kind).inc()

    def close(self) -> None:
        """The last values can still be read: who scrapes comes later."""


class _Metrics:
    """The metrics of one prefix in one registry, where each name can be there only once."""

    def __init__(self, registry: Any, prefix: str) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        # Registered below, all or none.
        own: dict[str, Any] = {"namespace": prefix, "registry": None}
        by_name = ["monitor"]
        self.texts = Counter("texts_total", "Texts by what became of them", [*by_name, "status"], **own)
        self.failures = Counter("failures_total", "Failures inside the monitor by kind", [*by_name, "kind"], **own)
        self.p_values = Histogram("p_value", "P-values of texts, small if strange", by_name, buckets=BUCKETS, **own)
        self.last = Gauge("last_p_value", "P-value of the newest text", by_name, **own)
        self.log_e = Gauge("alarm_log_e", "Logarithm of the alarm's e-value", by_name, **own)
        self.raised = Gauge("alarm_raised", "1 once the alarm is raised", by_name, **own)
        self._monitors = 0
        done: list[Any] = []
        try:
            for metric in (self.texts, self.failures, self.p_values, self.last, self.log_e, self.raised):
                registry.register(metric)
                done.append(metric)
        except ValueError:
            for metric in done:
                registry.unregister(metric)
            raise

    def name(self) -> str:
        with _LOCK:
            self._monitors += 1
            return str(self._monitors)


_KNOWN: WeakKeyDictionary[Any, dict[str, _Metrics]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def _metrics(registry: Any, prefix: str) -> _Metrics:
    from prometheus_client import CollectorRegistry

    if not isinstance(registry, CollectorRegistry):
        raise BadInput(f"registry is of type {type(registry).__name__}; give a CollectorRegistry of prometheus-client")
    with _LOCK:
        known = _KNOWN.setdefault(registry, {})
        if prefix not in known:
            try:
                known[prefix] = _Metrics(registry, prefix)
            except ValueError as error:
                raise BadInput(f"the prefix {prefix!r} cannot be used ({error}); give another") from error
        return known[prefix]
