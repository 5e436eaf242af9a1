"""Trained encoders for the page: the last one that was loaded, and audits of the weights in a thread of their own."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from metastable.errors import BadInput
from metastable.lab.queue import UNKNOWN, JobProgress, one_line

if TYPE_CHECKING:
    from metastable.encoder.audit import Audit
    from metastable.encoder.load import Encoder

AUDITS_KEPT = 2
"""The number of finished audits in memory. An audit holds its encoder's weights."""
MOST_TEXTS = 200
"""The largest number of texts of an audit: the page is for looking, `metastable audit` for many texts."""

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
"""The texts of the law "tokens" (about 300 tokens, which all attend to one another), and those that an audit reads
unless the user gives others."""


class Wish(NamedTuple):
    """What a tab wants to have audited. Without texts only the weights are read."""

    model: str
    texts: tuple[str, ...] = ()


def lines_of(text: str) -> tuple[str, ...]:
    """The texts in a field, one on a line."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())


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
    """Audits by model and texts, shared by all tabs. The last ones are kept until the files of the model change."""

    def __init__(self, encoders: EncoderCache | None = None) -> None:
        self._encoders = encoders or EncoderCache()
        self._lock = threading.RLock()
        self._wanted: dict[Hashable, Wish] = {}
        self._progress: dict[Wish, JobProgress] = {}
        self._kept: OrderedDict[Wish, tuple[object, Audit]] = OrderedDict()
        self._one_at_a_time = ThreadPoolExecutor(1, "lab audit")
        self._closed = False

    def start(self, tab: Hashable, model: str, texts: tuple[str, ...] = ()) -> None:
        """Audit a folder, an installed package or a hub id for a tab, instead of what it asked for before."""
        with self._lock:
            wish = self._wanted[tab] = Wish(model, texts)
            if self._closed or (wish in self._progress and self._progress[wish].status in ("waiting", "running")):
                return
            if wish in self._kept and self._kept[wish][0] == files_of(model):
                self._kept.move_to_end(wish)
                return
            self._kept.pop(wish, None)
            self._progress[wish] = JobProgress("waiting", 0.0, "waiting for another audit to end")
            self._one_at_a_time.submit(self._work, wish)

    def progress(self, tab: Hashable, model: str) -> JobProgress:
        """The state of an audit: fraction 0 while the encoder is loaded, ½ during the audit, 1 at the end."""
        with self._lock:
            wish = self._wanted.get(tab)
            return UNKNOWN if wish is None or wish.model != model else self._progress.get(wish, UNKNOWN)

    def audit(self, tab: Hashable, model: str) -> Audit | None:
        """The finished audit, or None if this tab has none."""
        with self._lock:
            wish = self._wanted.get(tab)
            if wish is None or wish.model != model or wish not in self._kept:
                return None
            self._kept.move_to_end(wish)
            return self._kept[wish][1]

    def texts(self, tab: Hashable) -> tuple[str, ...]:
        """The texts to look into: those of the tab's audit, or `TEXTS` if it has none."""
        with self._lock:
            wish = self._wanted.get(tab)
        return wish.texts if wish is not None and wish.texts else TEXTS

    def attends(self, model: str, text: str, layer: int, head: int) -> list[tuple[str, str, float]]:
        """What each token of a text attends to most in a head; empty if the model reads no text."""
        from metastable.encoder.attention_map import attention_map

        try:
            return attention_map(self._encoders.load(model), text, layer, head).strongest()
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

    def _work(self, wish: Wish) -> None:
        with self._lock:
            if wish not in self._wanted.values():
                del self._progress[wish]
                return
        try:
            stamp = files_of(wish.model)
            found = self._audited(wish)
            with self._lock:
                self._kept[wish] = stamp, found
                while len(self._kept) > AUDITS_KEPT:
                    del self._progress[self._kept.popitem(last=False)[0]]
                self._report(wish, "done", 1.0, found.verdict.headline)
        except BaseException as error:
            self._report(wish, "failed", 0.0, one_line(error))

    def _report(self, wish: Wish, status: str, fraction: float, message: str) -> None:
        with self._lock:
            self._progress[wish] = JobProgress(status, fraction, message)

    def _audited(self, wish: Wish) -> Audit:
        from metastable.encoder.audit import audit

        count = len(wish.texts)
        if count > MOST_TEXTS:
            raise BadInput(f"{count} texts; this page reads at most {MOST_TEXTS}, `metastable audit` any number")
        self._report(wish, "running", 0.0, f"loading {wish.model}")
        encoder = self._encoders.load(wish.model)
        layers = encoder.anatomy.layers
        what = f"auditing {sum(layer.heads for layer in layers)} heads in {len(layers)} layers"
        self._report(wish, "running", 0.5, what)

        def read(done: int) -> None:
            self._report(wish, "running", 0.5 + 0.5 * done / (count + 1), f"{what}: {done} of {count} texts")

        # An encoder without a tokenizer has weights to look at.
        texts = wish.texts if wish.texts and encoder.tokenizer is not None else None
        found = audit(encoder.model, texts, tokenizer=encoder.tokenizer, batch_size=8, progress=read)
        return replace(found, name=wish.model)
