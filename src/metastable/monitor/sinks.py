"""Where a monitor's records go: a file of JSON lines, metrics for Prometheus, or a class of your own.

**Privacy.** Texts in production belong to the users of the model. A record's `tokens` and `reason` quote the most
anomalous words of a text: `JsonLines(path, tokens=False)` writes none. The text itself is written only with
`include_text=True`. `Prometheus` gets numbers only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from metastable.errors import BadInput, extra
from metastable.files import Lines, Mutex
from metastable.monitor.alarm import Alarm
from metastable.monitor.record import Record

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# Upper bounds of the buckets in the histogram of p-values.
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Sink(Protocol):
    """A receiver of records. Whatever it raises is counted by the monitor and goes no further.

    One thread at a time calls its methods: a thread of the monitor while a live model is watched, so that a slow sink
    does not hold up the model, and the thread of the caller in `examine` without a live model. Each sink waits for the
    others. Records of a live model that a sink does not take in time are dropped, see `monitor.delivery`.

    A sink may also have `state(alarm)`, called after each pass with the alarm as it was then; `failed(kind)`, called
    for each failure, each text that was dropped and each pass that cannot be read; and an attribute `include_text`: if
    it is true, records have their text.
    """

    def write(self, record: Record) -> None:
        """Called for each text, in the order of the stream."""

    def close(self) -> None:
        """Called when the monitor is left. It may be entered again, so `write` may follow."""


class JsonLines:
    """Writes one JSON object per line to a file that is opened with the first record. One process per file.

    Each line goes to the system at once: if the process is killed, the file has every record written so far. See
    `files.Lines` for a full disk and for a file that ends in the middle of a line.

    tokens : whether `tokens` are written, and quoted in `reason`. They are words of the text.
    include_text : whether to add the text itself as "text". On a live model the text is decoded from its tokens; it is
        None without a tokenizer.
    """

    def __init__(self, path: str | os.PathLike[str], tokens: bool = True, include_text: bool = False) -> None:
        self.tokens, self.include_text = tokens, include_text
        self._lines = Lines(path)

    @property
    def path(self) -> Path:
        return self._lines.path

    def write(self, record: Record) -> None:
        row = record.to_dict(words=self.tokens)
        self._lines.append(row | {"text": record.text} if self.include_text else row)

    def close(self) -> None:
        self._lines.close()


class Prometheus:
    """Metrics for Prometheus, by the package prometheus-client (extra `monitor`), labelled with the monitor's name:

    texts_total{status}             texts scored and rejected
    failures_total{kind}            errors inside the monitor, texts dropped for sinks, and passes that cannot be read
    p_value                         a histogram of p-values
    last_p_value                    the p-value of the newest text
    alarm_log_e, alarm_raised       the logarithm of the alarm's e-value; 1 once it is raised, else 0
    alarm_threshold_log_e           the logarithm of the e-value at which the alarm is raised
    alarm_episode                   the number of the episode; with it, alarm_raised goes back to 0
    alarms_total{of}                alarms so far, of "all" texts or of a "slice"; names of slices are not exported

    each with the prefix and an underscore before it. Serve them with `prometheus_client.start_http_server`.

    registry : prometheus-client's own registry unless given
    monitor : the label that distinguishes the monitors of one process; a running number unless given. Sinks with the
        same label count together.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, prefix: str = "metastable", monitor: str | None = None
    ) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise BadInput(f"metrics need the package prometheus-client; {extra('monitor')}") from error
        metrics = _metrics(prometheus_client.REGISTRY if registry is None else registry, prefix)
        self.monitor = metrics.name() if monitor is None else monitor
        self._texts = {status: metrics.texts.labels(self.monitor, status) for status in ("scored", "rejected")}
        self._failures = metrics.failures
        self._p_values = metrics.p_values.labels(self.monitor)
        self._last = metrics.last.labels(self.monitor)
        self._log_e, self._raised = metrics.log_e.labels(self.monitor), metrics.raised.labels(self.monitor)
        self._threshold = metrics.threshold
        self._episode = metrics.episode.labels(self.monitor)
        self._alarms = {of: metrics.alarms.labels(self.monitor, of) for of in ("all", "slice")}

    def write(self, record: Record) -> None:
        self._texts[record.status].inc()
        if record.p_value is not None:
            self._p_values.observe(record.p_value)
            self._last.set(record.p_value)
        if record.alarm:
            self._alarms["all"].inc()
        if record.slice_alarm:
            self._alarms["slice"].inc()

    def state(self, alarm: Alarm) -> None:
        self._log_e.set(alarm.log_e)
        self._raised.set(alarm.raised_at is not None)
        self._threshold.labels(self.monitor).set(alarm.threshold)
        self._episode.set(alarm.episode)

    def failed(self, kind: str) -> None:
        self._failures.labels(self.monitor, kind).inc()

    def close(self) -> None:
        """The last values stay readable for later scrapes."""


class _Metrics:
    """The metrics of one prefix in one registry, which takes each name only once."""

    def __init__(self, registry: Any, prefix: str) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        # Registered below: all of them or none.
        own: dict[str, Any] = {"namespace": prefix, "registry": None}
        by_name = ["monitor"]
        self.texts = Counter("texts_total", "Texts by status", [*by_name, "status"], **own)
        self.failures = Counter("failures_total", "Failures inside the monitor by kind", [*by_name, "kind"], **own)
        self.p_values = Histogram("p_value", "P-values of texts, small if anomalous", by_name, buckets=BUCKETS, **own)
        self.last = Gauge("last_p_value", "P-value of the newest text", by_name, **own)
        self.log_e = Gauge("alarm_log_e", "Logarithm of the alarm's e-value", by_name, **own)
        self.raised = Gauge("alarm_raised", "1 once the alarm is raised", by_name, **own)
        self.threshold = Gauge("alarm_threshold_log_e", "Threshold of alarm_log_e", by_name, **own)
        self.episode = Gauge("alarm_episode", "Number of the episode of the alarm", by_name, **own)
        self.alarms = Counter("alarms_total", "Alarms of all texts and of slices", [*by_name, "of"], **own)
        self._monitors = 0
        done: list[Any] = []
        try:
            for metric in (
                *(self.texts, self.failures, self.p_values, self.last),
                *(self.log_e, self.raised, self.threshold, self.episode, self.alarms),
            ):
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
_LOCK = Mutex()


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
