"""Trained encoders for the page: the last one is kept, and there are texts to start its tokens from."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metastable.encoder.load import Encoder

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
"""What the law "tokens" reads: about 300 tokens, all of them seeing one another."""

_LOCK = threading.Lock()
_LAST: list[tuple[object, Encoder]] = []


def encoder(model: str) -> Encoder:
    """The encoder of that name, by the audit's own loader; that of the last call, if its files are still the same."""
    from metastable.encoder.load import load

    with _LOCK:
        stamp = (model, stamp_of(model))
        if not _LAST or _LAST[0][0] != stamp:
            _LAST.clear()
            _LAST.append((stamp, load(model)))
        return _LAST[0][1]


def stamp_of(model: str) -> tuple[tuple[str, int, int], ...]:
    """Names, times and sizes of the files of a model's folder: another stamp is another model. Empty without folder."""
    folder = os.path.expanduser(model)
    if not model.strip() or not os.path.isdir(folder):
        return ()
    try:
        found = [(file.name, file.stat()) for file in os.scandir(folder) if file.is_file()]
    except OSError:
        return ()  # the loader says why
    return tuple(sorted((name, status.st_mtime_ns, status.st_size) for name, status in found))
