"""A warning when texts of a stream are visibly dependent, which breaks the promise of the alarm.

It is raised when neighbouring texts are alike by their p-values, as below, or when many texts are copies of earlier
ones; see `copies`.

**The statistic.** The stream is cut into blocks of B = 32 texts. In each block the p-values become midranks minus their
mean, x_1 … x_B, and

    S = Σ_{i<B} x_i x_{i+1},      z = (S − E S)/(Var S)^{1/2},

with the mean and the variance over all orders of the same values. With s_k = Σ x_i^k they are exact, ties included:

    E S = −s_2/B
    E S² = (s_2² − s_4)/B + (2 (2 s_4 − s_2²) + 3 s_2² − 6 s_4)/(B (B − 1))

z is the lag-1 rank correlation of a block, on the scale of a standard normal variable. A block of equal p-values says
nothing and is left out: independent texts that are strongly shifted share the smallest p-value.

**A change of level is no dependence.** It makes neighbours alike in the one block that it falls into. So the D = 3
blocks with the largest z are dropped: T = (sum of the other z)/(n − D)^{1/2}. For independent texts whose law changes
at most D times, T is at most the same sum without the changed blocks, which has mean 0 and variance 1 whatever the laws
are. A slow drift changes little within a block.

**The level.** T is compared with normal quantiles when there are n = 8, 16, 32, … blocks, the j-th time at level
0.01/(j (j + 1)). These levels add up to 0.01, so an independent stream of any length with at most D changes is ever
warned of with a probability of about 0.01 at most (by the normal approximation; dropping blocks makes it less).

**Why not the runs test.** On p-values of autoregressive scores, at the same level and with the same blocks, runs above
and below the median of a block find dependence less often: see `test_dependence`. Runs of texts that are much longer
than a block look like changes of level, and are not found.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri

from metastable.monitor.copies import Copies

# Texts in a block.
BLOCK = 32
# Blocks that are dropped: as many changes of level are no dependence.
DROPPED = 3
# Blocks at the first check; the number doubles from check to check.
FIRST = 8
# The probability that a stream of independent texts is ever warned of because of its p-values.
LEVEL = 0.01


def correlation(p: np.ndarray) -> float | None:
    """z of a block of p-values, (B,); None if all of them are equal."""
    # A midrank minus the mean of all: half the number of smaller values, minus half the number of larger ones.
    x = np.sign(p[:, None] - p).sum(axis=1) / 2
    b, squares = len(x), x * x
    s2, s4 = float(squares.sum()), float(squares @ squares)
    if s2 == 0:
        return None
    mean = -s2 / b
    square = (s2**2 - s4) / b + (2 * (2 * s4 - s2**2) + 3 * s2**2 - 6 * s4) / (b * (b - 1))
    return (float(x[1:] @ x[:-1]) - mean) / math.sqrt(square - mean**2)


class Dependence:
    """Takes the p-values of a stream in their order, and warns. Memory does not grow with the stream.

    Attributes
    ----------
    blocks : blocks that counted so far
    alike_at : the number (from 1) of the p-value after which neighbours were found alike, or None
    copies : texts that are copies of earlier ones
    """

    def __init__(self) -> None:
        self.blocks = 0
        self.alike_at: int | None = None
        self.copies = Copies()
        self._texts = 0
        self._rest = np.empty(0)
        self._sum = 0.0
        self._largest: list[float] = []
        self._next, self._checks = FIRST, 0
        self._z: float | None = None

    @property
    def warned_at(self) -> int | None:
        """The number (from 1) of the text after which the warning was raised, or None; the warning stays."""
        return min((at for at in (self.alike_at, self.copies.warned_at) if at is not None), default=None)

    def update(self, p: np.ndarray, keys: Sequence[Hashable | None] = ()) -> bool:
        """Take p-values; returns whether the warning is raised by now. How a stream is cut into calls is no matter.

        keys : a digest or a hash of each text, None where it is not known; or none at all
        """
        self.copies.update(keys)
        waiting = np.concatenate([self._rest, p])
        whole = len(waiting) // BLOCK * BLOCK
        self._rest = waiting[whole:]
        for block in waiting[:whole].reshape(-1, BLOCK):
            self._texts += BLOCK
            if (z := correlation(block)) is not None:
                self._take(z)
        return self.warned_at is not None

    def _take(self, z: float) -> None:
        self.blocks += 1
        self._sum += z
        self._largest = sorted([*self._largest, z])[-DROPPED:]
        if self.blocks < self._next:
            return
        self._checks += 1
        self._next *= 2
        self._z = (self._sum - sum(self._largest)) / math.sqrt(self.blocks - DROPPED)
        if self.alike_at is None and self._z > -ndtri(LEVEL / (self._checks * (self._checks + 1))):
            self.alike_at = self._texts

    def to_dict(self) -> dict[str, Any]:
        """The warning for JSON. Each "text" is the one after which it was raised, or None.

        z : the statistic at the last check, None before the first one
        """
        return {
            "warned": self.warned_at is not None,
            "text": self.warned_at,
            "neighbours": {"text": self.alike_at, "z": self._z, "level": LEVEL},
            "copies": self.copies.to_dict(),
        }


class NewWarnings:
    """Tells each warning of a stream once.

    told : sentences by their reason, as they were when they were new
    """

    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    def take(self, dependence: Dependence) -> list[str]:
        """The warnings that were raised since the last call, in sentences."""
        if dependence.warned_at is None:
            return []
        found = {reason: told for reason, told in warnings(dependence.to_dict()).items() if reason not in self.told}
        self.told |= found
        return list(found.values())


def warnings(found: Mapping[str, Any]) -> dict[str, str]:
    """The warning in sentences, by its reason: "neighbours" and "copies". found : `Dependence.to_dict()`"""
    neighbours, copies, made = found["neighbours"], found["copies"], {}
    if neighbours["text"] is not None:
        made["neighbours"] = (
            f"neighbouring texts are alike (seen up to text {neighbours['text']}; at most about "
            f"{neighbours['level']:.0%} of streams of independent texts get this warning). The alarm is promised for "
            "independent texts only. Name the documents at calibration, and watch a thinned or shuffled stream: for "
            "example one text per document."
        )
    if copies["text"] is not None:
        of = f"the first {copies['among']} texts"
        if copies["until"] > copies["among"]:
            of = f"{copies['among']} texts in a row, up to text {copies['until']},"
        made["copies"] = (
            f"{copies['most']} of {of} are copies of earlier ones. The alarm is promised for independent texts only. "
            "Watch each text only once."
        )
    return made
