"""How many of the newest texts of a stream are copies of earlier ones.

A text is a copy if it is equal, character by character, to one of the last `RECENT` different texts before it. Equal
p-values do not show copies: independent texts that are strongly shifted share the smallest p-value too.

**The rule.** Of the last n ≤ `WINDOW` texts, k are copies. The warning is raised when

    k ≥ LEAST + SHARE · n.

Ten copies of one text are enough. If every text were a copy with probability 0.05, independently of the others, the
warning would be raised within the first `WINDOW` texts with probability at most 2·10⁻⁵: with θ = 1.37,
E exp(θ (X − SHARE)) ≤ 1 for a Bernoulli variable X of mean 0.05, so exp(θ (k − SHARE n)) is a supermartingale that
starts from 1, and exp(−LEAST · θ) < 2·10⁻⁵ by Ville's inequality. Later, k would have to lie eight standard deviations
above its mean.

Texts that come again after more than `RECENT` others are not found.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from typing import Any

# Different texts that are remembered, each by a digest or a hash.
RECENT = 10_000
# Texts among which copies are counted.
WINDOW = 1000
# The warning is raised at LEAST + SHARE · n copies among n texts.
LEAST, SHARE = 8, 0.1


class Copies:
    """Takes a digest or a hash of each text of a stream, in their order. Memory does not grow with the stream.

    Attributes
    ----------
    warned_at : the number (from 1) of the text at which the warning was raised, or None; the warning stays
    most, among, until : the largest number of copies so far, among how many texts in a row, and the number of the last
        of these texts
    """

    def __init__(self) -> None:
        self.warned_at: int | None = None
        self.most = self.among = self.until = 0
        self._texts = self._count = 0
        self._recent: OrderedDict[Hashable, None] = OrderedDict()
        self._window: deque[bool] = deque(maxlen=WINDOW)

    def update(self, keys: Iterable[Hashable | None]) -> bool:
        """Take texts; returns whether the warning is raised by now. None : a text that is like no other one"""
        for key in keys:
            self._texts += 1
            self._add(key is not None and self._known(key))
        return self.warned_at is not None

    def _known(self, key: Hashable) -> bool:
        """Whether a text is among the recent ones; it is from now on."""
        if key in self._recent:
            self._recent.move_to_end(key)
            return True
        self._recent[key] = None
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)
        return False

    def _add(self, copy: bool) -> None:
        if len(self._window) == WINDOW:
            self._count -= self._window[0]
        self._window.append(copy)
        self._count += copy
        if self._count > self.most:
            self.most, self.among, self.until = self._count, len(self._window), self._texts
        if self.warned_at is None and self._count >= LEAST + SHARE * len(self._window):
            self.warned_at = self._texts

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the text of the warning, or None, and `most`, `among` and `until`."""
        return {"text": self.warned_at, "most": self.most, "among": self.among, "until": self.until}
