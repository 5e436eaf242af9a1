"""Audits of encoders for the page, from the weights alone, made one after the other in a thread beside it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from metastable.lab.runs import one_line
from metastable.lab.trained import encoder, stamp_of

if TYPE_CHECKING:
    from metastable.encoder.audit import Audit

MOST_KEPT = 2
"""An audit holds its encoder's weights."""


@dataclass(frozen=True)
class AuditLook:
    """How an audit is getting on.

    status : waiting, running, done, failed, or unknown: nobody asked for it in this tab, or it is no longer kept
    fraction : 0 while the encoder is read, ½ while its heads are, 1 at the end
    message : what is done, or what went wrong, in one line
    """

    status: str
    fraction: float
    message: str


class Audits:
    """Audits by model, shared by all tabs. The last `MOST_KEPT` are kept, until the files of the model change."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._wanted: dict[Hashable, str] = {}
        self._looks: dict[str, AuditLook] = {}
        self._kept: OrderedDict[str, tuple[object, Audit]] = OrderedDict()
        self._worker: threading.Thread | None = None
        self._working = self._closed = False

    def start(self, tab: Hashable, model: str) -> None:
        """Audit a folder, an installed package or a hub id; what the tab asked for before is no longer wanted there."""
        with self._lock:
            self._wanted[tab] = model
            kept = self._kept.get(model)
            if self._closed or self._status(model) in ("waiting", "running"):
                return
            if kept is not None and kept[0] == stamp_of(model):
                self._kept.move_to_end(model)
                return
            self._kept.pop(model, None)
            self._looks[model] = AuditLook("waiting", 0.0, "waiting for another audit to end")
            if not self._working:
                self._working = True
                self._worker = threading.Thread(target=self._work, name="lab audit", daemon=True)
                self._worker.start()

    def look(self, tab: Hashable, model: str) -> AuditLook:
        with self._lock:
            found = self._looks.get(model) if self._wanted.get(tab) == model else None
            return found or AuditLook("unknown", 0.0, "")

    def audit(self, tab: Hashable, model: str) -> Audit | None:
        """The finished audit; None where there is none for this tab."""
        with self._lock:
            if self._wanted.get(tab) != model or model not in self._kept:
                return None
            self._kept.move_to_end(model)
            return self._kept[model][1]

    def forget(self, tab: Hashable) -> None:
        """The tab is gone; an audit that only it waited for is not begun."""
        with self._lock:
            self._wanted.pop(tab, None)

    def close(self) -> None:
        """Begin no further audit, and wait for the one under way."""
        with self._lock:
            self._closed = True
            self._wanted.clear()
            worker = self._worker
        if worker is not None:
            worker.join()

    def _status(self, model: str) -> str:
        return self._looks[model].status if model in self._looks else "unknown"

    def _next(self) -> str | None:
        """The model to audit now; without one the thread ends."""
        with self._lock:
            for model in [m for m, look in self._looks.items() if look.status == "waiting"]:
                if model in self._wanted.values():
                    return model
                del self._looks[model]
            self._working = False
            return None

    def _work(self) -> None:
        while (model := self._next()) is not None:
            try:
                stamp = stamp_of(model)
                self._tell(model, AuditLook("running", 0.0, f"reading {model}"))
                found = self._made(model)
                with self._lock:
                    self._kept[model] = stamp, found
                    while len(self._kept) > MOST_KEPT:
                        del self._looks[self._kept.popitem(last=False)[0]]
                    self._tell(model, AuditLook("done", 1.0, found.verdict.headline))
            except BaseException as error:
                self._tell(model, AuditLook("failed", 0.0, one_line(error)))

    def _tell(self, model: str, look: AuditLook) -> None:
        with self._lock:
            self._looks[model] = look

    def _made(self, model: str) -> Audit:
        from metastable.encoder.audit import audit

        loaded = encoder(model)
        layers = loaded.anatomy.layers
        words = f"{sum(layer.heads for layer in layers)} heads in {len(layers)} layers"
        self._tell(model, AuditLook("running", 0.5, words))
        # The same encoder is at hand when one of its heads is followed in the laboratory.
        found = audit(loaded.model, tokenizer=loaded.tokenizer, beside_random=False)
        return replace(found, name=model)
