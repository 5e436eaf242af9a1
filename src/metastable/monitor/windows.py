"""Whether several texts together are like the clean texts: a two-sample test in which all detectors take part.

**The statistic.** For n texts, the traits of the texts are averaged, and each term (a detector, or the classifier of
spoilt texts) makes one number of the averages: see `Scale.of_windows`. The statistic of the n texts is

    T = Σ −log(tail probability of the number), over the terms,

with tail probabilities estimated by `Surprise`. A shift that is slight in each text adds up over n texts.

**The p-value.** n texts are drawn without replacement from the n texts of the window and m' calibration texts together,
B times. m' is how many independent texts the calibration texts are worth (see `alarm.worth_of_means`): all of them if
every text is its own document, else as many of them, chosen at random. The mean of texts of few documents is less
certain, and a pool of fewer texts allows for it. The curves of `Surprise` are fitted on the numbers of all B + 1 sets,
so that no set is treated differently, and

    p = (1 + #{b : T_b ≥ T})/(1 + B).

For texts that are exchangeable with the calibration texts, P(p ≤ t) ≤ t for every t, whatever the detectors are (a
permutation test with random permutations: Phipson and Smyth, "Permutation p-values should never be zero", 2010).

**The assumption.** Texts of a window are independent of each other. Texts of one document are alike, and a window of
them gets too small a p-value. The promise is for one window, on average over calibration sets: all windows of a stream
are compared with the same calibration texts, and for an unlucky set more than αW of W clean windows have p ≤ α. The
larger n is against m', the more that varies, so n is at most m'/10. The alarm is the promise about a whole stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metastable.arrays import whole
from metastable.errors import BadInput
from metastable.monitor.conformal import Surprise
from metastable.monitor.exposure import called
from metastable.monitor.record import Record
from metastable.monitor.scoring import Scorer

# B, the random sets that a window is compared with. The smallest p-value is 1/(B + 1).
DRAWS = 1999
LEAST = 1 / (DRAWS + 1)
# Traits that are gathered at once, over all sets: bounds memory.
GATHERED = 2**24
# The fewest texts of a window: one text has its own p-value.
FEWEST = 2
# The most texts of a window, as a share of m'.
LARGEST = 0.1


@dataclass(frozen=True, slots=True)
class Window:
    """Several texts tested together.

    texts : n, their number
    p_value : of all of them together; at least 1/2000
    detector : the detector to which they are most anomalous together; "exposure" is the classifier of spoilt texts
    by_term : −log of the tail probability of each detector and of the classifier, by name
    alpha : the texts together are not like the clean texts if p_value ≤ alpha
    number, first, last : of a stream: the number of the window, from 1, and the lines of its first and last text
    """

    texts: int
    p_value: float
    detector: str
    by_term: dict[str, float]
    alpha: float = 0.01
    number: int | None = None
    first: int | None = None
    last: int | None = None

    @property
    def strange(self) -> bool:
        """Whether p_value is at most alpha."""
        return self.p_value <= self.alpha

    @property
    def reason(self) -> str:
        """What was found, in words."""
        p = f"p {'is at most' if self.p_value <= LEAST else '='} {self.p_value:.2g}"
        if not self.strange:
            return f"the {self.texts} texts together are like the clean texts, as far as can be seen: {p}"
        return f"the {self.texts} texts together are not like the clean texts: {p}, most by {called(self.detector)}"

    def to_dict(self) -> dict[str, Any]:
        """The window for JSON."""
        names = ("number", "first", "last", "texts", "p_value", "detector", "by_term")
        return {name: getattr(self, name) for name in names} | {"strange": self.strange, "reason": self.reason}


def compared(scorer: Scorer, traits: np.ndarray, alpha: float = 0.01, seed: int = 0) -> Window:
    """The test of texts together by their traits (n, k).

    seed : of the random sets
    """
    n, m = len(traits), int(scorer.independent_traits + 1e-9)
    whole(n, "the number of texts that are tested together", FEWEST, f"give at least {FEWEST}")
    if n > most_texts(scorer):
        raise BadInput(
            f"{n} texts are to be tested together, and this baseline allows {most_texts(scorer)}; give a random sample "
            "of them, or calibrate with more documents"
        )
    random = np.random.default_rng([seed, n, m])
    pool = np.concatenate([traits.astype(np.float32), scorer.traits[random.permutation(scorer.texts)[:m]]])
    sets = np.stack([np.arange(n), *(random.choice(len(pool), n, replace=False, shuffle=False) for _ in range(DRAWS))])
    at_once = max(1, GATHERED // (n * pool.shape[1]))
    means = [pool[sets[i : i + at_once]].mean(axis=1, dtype=np.float64) for i in range(0, len(sets), at_once)]
    numbers = scorer.scale.of_windows(np.concatenate(means))
    totals = Surprise(numbers)(numbers).sum(axis=1)
    # Sums of the same texts in another order differ by rounding.
    p_value = float((totals >= totals[0] - 1e-9 * (1 + totals[0])).mean())
    # By curves that have not seen the window, which tell how far beyond all random sets it is.
    by_term = Surprise(numbers[1:])(numbers[:1])[0].round(3).tolist()
    own = dict(zip(scorer.setting.terms, by_term, strict=True))
    return Window(n, p_value, max(own, key=own.__getitem__), own, alpha)


def most_texts(scorer: Scorer) -> int:
    """The most texts that can be tested together."""
    return int(LARGEST * scorer.independent_traits + 1e-9)


class Windows:
    """The windows of a stream: every `size` scored texts in a row are tested together.

    size : texts of a window
    number, strange : windows so far, and those with p_value ≤ alpha
    line : the last line that belongs to a complete window; 0 before the first
    """

    def __init__(self, scorer: Scorer, size: int, alpha: float = 0.01) -> None:
        self.scorer, self.alpha = scorer, alpha
        self.size = whole(size, "window", FEWEST, "it must be a number of texts, at least 2")
        if self.size > most_texts(scorer):
            raise BadInput(f"window is {size}, and this baseline allows {most_texts(scorer)} texts; make it smaller")
        self.number = self.strange = self.line = 0
        self._waiting: list[Record] = []

    def replay(self, past: Iterable[dict[str, Any]]) -> None:
        """Go on after windows of an earlier process, as `Window.to_dict` gave them."""
        for row in past:
            self.number, self.line = int(row["number"]), int(row["last"])
            self.strange += bool(row["strange"])

    def to_dict(self) -> dict[str, Any]:
        """The windows in numbers, for JSON."""
        expected = self.alpha * self.number
        return {"texts": self.size, "count": self.number, "strange": self.strange, "expected_at_most": expected}

    def take(self, records: Iterable[Record]) -> list[Window]:
        """Take the next records of the stream; returns the windows that they complete."""
        made = []
        for record in records:
            if record.traits is None:
                continue
            self._waiting.append(record)
            if len(self._waiting) == self.size:
                made.append(self._complete())
        return made

    def _complete(self) -> Window:
        rows, self._waiting = self._waiting, []
        self.number += 1
        traits = np.stack([row.traits for row in rows if row.traits is not None])
        found = compared(self.scorer, traits, self.alpha, seed=self.number)
        self.strange += found.strange
        self.line = rows[-1].line or 0
        return replace(found, number=self.number, first=rows[0].line, last=rows[-1].line)
