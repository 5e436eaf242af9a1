"""How alike the tokens of a text are from depth to depth, in plain words.

The curve is the mean cosine of hidden states, as the model returns them, with its intervals of 95 % over texts. Two
depths *differ* if their intervals do not overlap and the means are at least `CHANGE` apart. Every sentence about the
course of the curve is made of such comparisons over the whole curve, so that it holds beyond the error.

One feature can own a cosine: if it holds a large share of the energy and has the same sign in all tokens, any two
tokens look alike. Where the cosine without the largest feature is lower by `OWNED` or more, the sentences say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from metastable.encoder.measure import Measurements

CHANGE = 0.02
"""The smallest difference of two mean cosines that is put in words."""
OWNED = 0.1
"""One feature decides a mean cosine if it is lower by this without the feature."""
TURNS = 3
"""The largest number of turns of the curve that are put in words one by one."""
COLLAPSED = 0.95
"""Tokens are nearly one point if their mean cosine is at least this."""
APART = 0.15
"""A difference between the cosines of hidden states and of normalised tokens that needs an explanation."""

Floats = np.ndarray


def course(mean: Floats, low: Floats, high: Floats) -> str:
    """What becomes of the tokens, as the end of a sentence that begins with "the tokens of a text".

    The curve is cut at its turns: the depths where a rise that is beyond the error ends and a fall that is beyond the
    error begins, or the other way round. All of them are named, up to `TURNS`.

    mean, low, high : the mean cosine at each depth, and its interval; NaN for a single text
    """
    low, high = (np.where(np.isfinite(end), end, mean) for end in (low, high))
    last = len(mean) - 1

    def more(a: int, b: int) -> bool:
        """Whether tokens are more alike at depth a than at depth b, beyond the error."""
        return bool(mean[a] - mean[b] >= CHANGE and low[a] > high[b])

    start, rising, turns = _turns(low, high, more)
    if rising is None:
        return "stay about as alike as they are at the input"
    ways = ["more alike", "less alike"] if rising else ["less alike", "more alike"]
    apart = more(last, 0) or more(0, last)
    if not turns:
        return f"become {ways[0]}" if apart else f"become {ways[0]} after depth {start}"
    if len(turns) > TURNS:
        top, bottom = int(mean.argmax()), int(mean.argmin())
        words = f"become more and less alike by turns, most alike at depth {top} and least at depth {bottom}"
    else:
        parts = [f"{ways[number % 2]} up to depth {turn}" for number, turn in enumerate(turns)]
        words = f"become {', '.join(parts)} and {ways[len(turns) % 2]} after it"
    if not apart:
        return f"{words}, but end about as alike as at the input"
    return f"{words}, and end {'more' if more(last, 0) else 'less'} alike than at the input"


def _turns(lows: Floats, highs: Floats, more: Callable[[int, int], bool]) -> tuple[int, bool | None, list[int]]:
    """Where the first rise or fall begins, whether it is a rise (None if there is neither), and the turns after it.

    The top so far is the depth whose interval has the highest lower end, because a fall is seen from there first.
    """
    low = high = start = 0
    rising: bool | None = None
    turns: list[int] = []
    for depth in range(1, len(lows)):
        if rising is not True and highs[depth] < highs[low]:
            low = depth
        if rising is not False and lows[depth] > lows[high]:
            high = depth
        if rising is not True and more(depth, low):
            start, turns = (low, turns) if rising is None else (start, [*turns, low])
            rising, high = True, depth
        elif rising is not False and more(high, depth):
            start, turns = (high, turns) if rising is None else (start, [*turns, high])
            rising, low = False, depth
    return start, rising if len(turns) % 2 == 0 else not rising, turns


def headline(measured: Measurements) -> str:
    """One sentence about the hidden states, for a reader who has not read the paper."""
    tally = measured.depths["hidden_cosine"]
    mean, (low, high) = tally.mean(), tally.interval()
    layers, top = len(mean) - 1, int(mean.argmax())
    words = f"over {layers} layer{'s' if layers > 1 else ''} the tokens of a text {course(mean, low, high)}: the mean "
    words += f"cosine of their hidden states goes from {mean[0]:.2f} to {mean[-1]:.2f}"
    if 0 < top < layers and mean[top] - max(mean[0], mean[-1]) >= CHANGE:
        words += f" with {mean[top]:.2f} at depth {top}"
    return f"{words}; {_collapse(measured)}"


def _collapse(measured: Measurements) -> str:
    cosine, without = (measured.depths[name].mean() for name in ("hidden_cosine", "hidden_cosine_without"))
    near = np.flatnonzero(cosine >= COLLAPSED)
    if not len(near):
        return "they do not collapse to one point"
    if (without[near] < COLLAPSED - OWNED).all():
        return "one feature alone makes them look equal"
    where = f"at depth {near[0]}" if len(near) == 1 else f"at depths {', '.join(map(str, near))}"
    return f"the tokens of a text are nearly one point {where}"


def sentences(measured: Measurements) -> list[str]:
    """What the headline depends on: features that own a cosine, and where two ways to compare tokens disagree."""
    return [*_owned(measured, "hidden"), *_disagreement(measured)]


def feature(measured: Measurements, cloud: str, depth: int) -> int:
    """The feature that has the most energy in most texts."""
    return measured.largest[cloud][depth].most_common(1)[0][0]


def owned(measured: Measurements, cloud: str) -> np.ndarray:
    """Whether one feature decides the mean cosine at each depth, (L + 1,) of bool. cloud : "tokens" or "hidden" """
    mean, without, _ = _curves(measured, cloud)
    return np.asarray(mean - without >= OWNED)


def _curves(measured: Measurements, cloud: str) -> tuple[Floats, Floats, Floats]:
    """(mean cosine, mean cosine without the largest feature, share of that feature) at each depth."""
    names = ("mean_cosine", "cosine_without", "largest_share")
    if cloud == "hidden":
        names = ("hidden_cosine", "hidden_cosine_without", "hidden_largest_share")
    mean, without, share = (measured.depths[name].mean() for name in names)
    return mean, without, share


def _owned(measured: Measurements, cloud: str) -> Iterator[str]:
    """A sentence for each feature that decides the cosine of hidden states, with the depths where it does."""
    mean, without, share = _curves(measured, cloud)
    found = [(depth, feature(measured, cloud, depth)) for depth in np.flatnonzero(owned(measured, cloud)).tolist()]
    for number, group in groupby(sorted(found, key=lambda pair: (pair[1], pair[0])), key=lambda pair: pair[1]):
        depths = [depth for depth, _ in group]
        worst = max(depths, key=lambda depth: mean[depth] - without[depth])
        where = f"depth {depths[0]}" if len(depths) == 1 else f"depths {', '.join(map(str, depths))}"
        yield (
            f"feature {number} decides the cosine of hidden states at {where}: at depth {worst} it holds "
            f"{100 * share[worst]:.0f} % of their energy, and without it the mean cosine is {without[worst]:.2f} "
            f"instead of {mean[worst]:.2f}"
        )


def _disagreement(measured: Measurements) -> Iterator[str]:
    """Why hidden states and normalised tokens give other cosines, at the first and at the last depth."""
    hidden = measured.depths["hidden_cosine"].mean()
    mean, without, share = _curves(measured, "tokens")
    for depth in (0, len(mean) - 1):
        apart = abs(hidden[depth] - mean[depth])
        if apart < APART:
            continue
        words = f"at depth {depth} tokens without gains and offsets, as the theory sees them, have a mean cosine of "
        words += f"{mean[depth]:.2f} where hidden states have {hidden[depth]:.2f}: "
        if abs(hidden[depth] - without[depth]) <= apart / 2:
            words += f"feature {feature(measured, 'tokens', depth)}, which the gain makes small, holds "
            words += f"{100 * share[depth]:.0f} % of their energy, and without it the cosine is {without[depth]:.2f}"
        else:
            words += "the gains and offsets of the normalisation make the difference"
        yield words
