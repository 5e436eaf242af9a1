"""How alike the tokens of a text are from depth to depth, in plain words.

The curve is the mean cosine of hidden states, as the model returns them, with its intervals of 95 % over texts. Two
depths *differ* if their intervals do not overlap and the means are at least `CHANGE` apart. Every sentence about the
course of the curve is made of such comparisons, so that it holds beyond the error.

One feature can own a cosine: if it holds a large share of the energy and has the same sign in all tokens, any two
tokens look alike. Where the cosine without the largest feature is lower by `OWNED` or more, the sentences say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from metastable.encoder.measure import Measurements

CHANGE = 0.02
"""The smallest difference of two mean cosines that is put in words."""
OWNED = 0.1
"""One feature decides a mean cosine if it is lower by this without the feature."""
COLLAPSED = 0.95
"""Tokens are nearly one point if their mean cosine is at least this."""
APART = 0.15
"""A difference between the cosines of hidden states and of normalised tokens that needs an explanation."""

Floats = np.ndarray


def course(mean: Floats, low: Floats, high: Floats) -> str:
    """What becomes of the tokens, as the end of a sentence that begins with "Tokens of a text".

    mean, low, high : the mean cosine at each depth, and its interval; NaN for a single text
    """
    low, high = (np.where(np.isfinite(end), end, mean) for end in (low, high))
    last, top, bottom = len(mean) - 1, int(mean.argmax()), int(mean.argmin())

    def more(a: int, b: int) -> bool:
        """Whether tokens are more alike at depth a than at depth b, beyond the error."""
        return bool(mean[a] - mean[b] >= CHANGE and low[a] > high[b])

    if not more(top, bottom):
        return "stay about as alike as they are at the input"
    if more(last, 0):
        if more(top, last):
            return f"become more alike up to depth {top} and less alike after it"
        if more(0, bottom):
            return f"become less alike up to depth {bottom}, and then more alike than at the input"
        return "become more alike"
    if more(0, last):
        if more(top, 0):
            return f"become more alike up to depth {top}, and then less alike than at the input"
        if more(last, bottom):
            return f"become less alike up to depth {bottom} and more alike after it"
        return "become less alike"
    if more(top, 0):
        return f"become more alike up to depth {top}, but end about as alike as at the input"
    return f"become less alike up to depth {bottom}, but end about as alike as at the input"


def headline(measured: Measurements) -> str:
    """One sentence about the hidden states, for a reader who has not read the paper."""
    tally = measured.depths["hidden_cosine"]
    mean, (low, high) = tally.mean(), tally.interval()
    layers, top = len(mean) - 1, int(mean.argmax())
    words = f"tokens of a text {course(mean, low, high)} over {layers} layer{'s' if layers > 1 else ''}: the mean "
    words += f"cosine of their hidden states goes from {mean[0]:.2f} to {mean[-1]:.2f}"
    if 0 < top < layers and mean[top] - max(mean[0], mean[-1]) >= CHANGE:
        words += f" with {mean[top]:.2f} at depth {top}"
    return f"{words}; {_collapse(measured)}"


def _collapse(measured: Measurements) -> str:
    cosine, without = (measured.depths[name].mean() for name in ("hidden_cosine", "hidden_cosine_without"))
    near = np.flatnonzero(cosine >= COLLAPSED)
    if not len(near):
        return "nothing collapses"
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
