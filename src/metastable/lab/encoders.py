"""Trained encoders for the page: the last one that was loaded, and audits of the weights in a thread of their own."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from metastable.errors import BadInput
from metastable.lab.queue import UNKNOWN, JobProgress, one_line

if TYPE_CHECKING:
    from metastable.encoder.audit import Audit
    from metastable.encoder.load import Encoder

AUDITS_KEPT = 2
"""The number of finished audits in memory. An audit holds its encoder's weights."""

TEXTS = (
    "The last bus had left, so they walked home along the canal.",
    "A committee of nine people cannot choose a colour.",
    "Water boils sooner on a mountain than at the sea.",
    "She folded the letter twice and put it under the clock.",
    "How many keys does a lighthouse keeper need?",
    "Prices rose by three per cent in spring and fell again before the harvest.",
    "The old map shows a road where the forest now stands.",
    "Please bring a coat, a lamp and enough bread for two days.",
    "Nobody in the orchestra noticed that the second oboe was missing.",
    "If the bridge is closed, turn left after the mill and follow the river.",
    "His grandfather repaired radios, watches and, once, a church organ.",
    "Snow fell all night, and in the morning the dog refused to go out.",
    "The court found that the contract had never been signed.",
    "Two thirds of the seeds came up within a week.",
    "They argued about the ending of a film that neither had seen.",
    "An engine that is never stopped is never mended.",
    "The museum opens at ten, but the garden is always open.",
    "Light from that star left it before there were cities.",
    "My neighbour sings while she paints the fence.",
    "Every theorem in the book is followed by an exercise that breaks it.",
    "The patient slept well and asked for coffee.",
    "Half of the letters were addressed to people who had moved away.",
    "Where does the wind go when it stops?",
    "The children built a harbour out of boxes and sailed until supper.",
)
"""The texts of the law "tokens": about 300 tokens, which all attend to one another."""


class EncoderCache:
    """Loads encoders and keeps the last one until the files of its folder change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[object, Encoder] | None = None

    def load(self, model: str) -> Encoder:
        from metastable.encoder.load import load

        with self._lock:
            stamp = model, files_of(model)
            if self._last is None or self._last[0] != stamp:
                self._last = None
                self._last = stamp, load(model)
            return self._last[1]


def files_of(model: str) -> tuple[tuple[str, int, int], ...]:
    """Name, modification time and size of each file in a model's folder. Empty if `model` is not a folder."""
    folder = os.path.expanduser(model)
    if not model.strip() or not os.path.isdir(folder):
        return ()
    try:
        found = [(file.name, file.stat()) for file in os.scandir(folder) if file.is_file()]
    except OSError:
        return ()  # The loader reports the reason.
    return tuple(sorted((name, status.st_mtime_ns, status.st_size) for name, status in found))


class Audits:
    """Audits by model, shared by all tabs. The last `AUDITS_KEPT` are kept until the files of the model change."""

    def __init__(self, encoders: EncoderCache | None = None) -> None:
        self._encoders = encoders or EncoderCache()
        self._lock = threading.RLock()
        self._wanted: dict[Hashable, str] = {}
        self._progress: dict[str, JobProgress] = {}
        self._kept: OrderedDict[str, tuple[object, Audit]] = OrderedDict()
        self._one_at_a_time = ThreadPoolExecutor(1, "lab audit")
        self._closed = False

    def start(self, tab: Hashable, model: str) -> None:
        """Audit a folder, an installed package or a hub id for a tab, instead of the model it asked for before."""
        with self._lock:
            self._wanted[tab] = model
            if self._closed or (model in self._progress and self._progress[model].status in ("waiting", "running")):
                return
            if model in self._kept and self._kept[model][0] == files_of(model):
                self._kept.move_to_end(model)
                return
            self._kept.pop(model, None)
            self._progress[model] = JobProgress("waiting", 0.0, "waiting for another audit to end")
            self._one_at_a_time.submit(self._work, model)

    def progress(self, tab: Hashable, model: str) -> JobProgress:
        """The state of an audit: fraction 0 while the encoder is loaded, ½ during the audit, 1 at the end."""
        with self._lock:
            return self._progress.get(model, UNKNOWN) if self._wanted.get(tab) == model else UNKNOWN

    def audit(self, tab: Hashable, model: str) -> Audit | None:
        """The finished audit, or None if this tab has none."""
        with self._lock:
            if self._wanted.get(tab) != model or model not in self._kept:
                return None
            self._kept.move_to_end(model)
            return self._kept[model][1]

    def attends(self, model: str, layer: int, head: int) -> list[tuple[str, str, float]]:
        """What each token of the first text attends to most in a head; empty if the model reads no text."""
        from metastable.encoder.attention_map import attention_map

        try:
            return attention_map(self._encoders.load(model), TEXTS[0], layer, head).strongest()
        except BadInput:
            return []

    def forget(self, tab: Hashable) -> None:
        """The tab was closed. An audit that only this tab waits for will not be started."""
        with self._lock:
            self._wanted.pop(tab, None)

    def close(self) -> None:
        """Start no further audit, and wait for the one that is running."""
        with self._lock:
            self._closed = True
            self._wanted.clear()
        self._one_at_a_time.shutdown()

    def _work(self, model: str) -> None:
        with self._lock:
            if model not in self._wanted.values():
                del self._progress[model]
                return
        try:
            stamp = files_of(model)
            found = self._audited(model)
            with self._lock:
                self._kept[model] = stamp, found
                while len(self._kept) > AUDITS_KEPT:
                    del self._progress[self._kept.popitem(last=False)[0]]
                self._report(model, "done", 1.0, found.verdict.headline)
        except BaseException as error:
            self._report(model, "failed", 0.0, one_line(error))

    def _report(self, model: str, status: str, fraction: float, message: str) -> None:
        with self._lock:
            self._progress[model] = JobProgress(status, fraction, message)

    def _audited(self, model: str) -> Audit:
        from metastable.encoder.audit import audit

        self._report(model, "running", 0.0, f"loading {model}")
        encoder = self._encoders.load(model)
        layers = encoder.anatomy.layers
        heads = sum(layer.heads for layer in layers)
        self._report(model, "running", 0.5, f"auditing {heads} heads in {len(layers)} layers")
        found = audit(encoder.model, tokenizer=encoder.tokenizer, beside_random=False)
        return replace(found, name=model)
