"""The audit in words: which phase tokens are in at each depth, and whether each layer did what the theory predicts.

**Phases** go by the spread s = 1 − mean cosine over pairs of tokens of a text: about 1 for directions at random, 0 for
one point, and free of the share of n that the dispersion carries. Beside it stands that of a twin with random
weights, at the same depth and at the encoder's typical n.

- *terminal*: s ≤ ONE_POINT, the tokens of a text are one cluster.
- *concentrating*: the layer before has lowered s by more than STILL, beyond the intervals of both means.
- *metastable*: s is below CLOSE of the twin's (or of s at the start, if that is less) and rests: it moved by less.
- *spread*: none of these.

**Predictions** are those of the heads whose limit law is two points ±e: one layer of such a head alone, at zero
temperature, would bring a text's tokens nearer to that law by `predicted_approach` (see `measuring_heads`). A head
meets it if the tokens came nearer by at least HALF of that, and misses it if not, where the interval over texts tells.
A layer *met* the prediction if more of its heads met than missed it, *missed* it if not; it is *not applicable* where
no head tells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from metastable.encoder.weights import COLUMNS, LINEAR, Weights, unusual

if TYPE_CHECKING:
    from metastable.encoder.measuring import Measured
    from metastable.encoder.tally import Tally

ONE_POINT, STILL, CLOSE, HALF = 0.05, 0.05, 0.6, 0.5
PHASES = ("spread", "concentrating", "metastable", "terminal")
BEHAVIOUR = ("entropy", "logit_gap", "special_share", "maximiser_angle", "update_length")
"""Statistics of heads on text that are looked through for unusual values, beside the weights' columns."""


@dataclass(frozen=True)
class Judgement:
    """One depth: its phase, and whether the layer that starts there met the theory's prediction."""

    depth: int
    phase: str
    prediction: str
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """What the audit found, in words. `unusual`: see `weights.unusual`, with a sentence for each row."""

    headline: str
    layers: tuple[Judgement, ...]
    sentences: tuple[str, ...]
    unusual: pd.DataFrame


def judge(weights: Weights, heads: pd.DataFrame, measured: Measured | None, twin: Measured | None) -> Verdict:
    """The verdict on an encoder: `heads` is the joined table of weights and behaviour, the rest may be missing."""
    layers = () if measured is None else _judgements(heads, measured, twin)
    sentences = [_counts(weights.heads), _depth_needed(weights.heads, measured)]
    if measured is not None:
        sentences += [_parting(heads, measured), *(judgement.sentence for judgement in layers)]
    return Verdict(
        headline=_headline(weights.heads, measured, twin, layers),
        layers=layers,
        sentences=tuple(s for s in sentences if s),
        unusual=_unusual(heads, measured),
    )


def typical_length(measured: Measured) -> float:
    """The geometric mean of n over texts: where encoder and twin are compared."""
    counts = np.array(list(measured.lengths.values()), dtype=float)
    logs = np.log(np.array(list(measured.lengths), dtype=float))
    return float(np.exp((counts * logs).sum() / counts.sum()))


def at_length(tally: Tally, n: float) -> np.ndarray:
    """The mean at n tokens, or the plain mean where all texts have one length."""
    found, mean = tally.at(n)[0], tally.mean()
    return np.where(np.isfinite(found), found, mean)


def _judgements(heads: pd.DataFrame, measured: Measured, twin: Measured | None) -> tuple[Judgement, ...]:
    cosine = measured.depths["mean_cosine"]
    spread, (low, high) = 1 - cosine.mean(), cosine.interval()
    n = typical_length(measured)
    usual = np.ones_like(spread) if twin is None else 1 - at_length(twin.depths["mean_cosine"], n)
    found = []
    for depth in range(len(spread)):
        phase = _phase(spread, (1 - high, 1 - low), min(usual[depth], spread[0]), depth)
        prediction, why = _prediction(heads, depth)
        words = f"depth {depth}: mean cosine {1 - spread[depth]:.2f} ({low[depth]:.2f} to {high[depth]:.2f}"
        words += ")" if twin is None else f"; random weights {1 - usual[depth]:.2f})"
        rank = measured.depths["effective_rank"].mean()[depth]
        found.append(Judgement(depth, phase, prediction, f"{words}, effective rank {rank:.1f}: {phase}; {why}"))
    return tuple(found)


def _phase(spread: np.ndarray, intervals: tuple[np.ndarray, np.ndarray], usual: float, depth: int) -> str:
    now = spread[depth]
    if not math.isfinite(now):
        return "spread"
    if now <= ONE_POINT:
        return "terminal"
    if depth == 0:
        return "spread"
    before, (least, most) = spread[depth - 1], intervals
    if now < (1 - STILL) * before and most[depth] < least[depth - 1]:
        return "concentrating"
    return "metastable" if now <= CLOSE * usual and now < (1 + STILL) * before else "spread"


def _prediction(heads: pd.DataFrame, layer: int) -> tuple[str, str]:
    """met, missed or not applicable, and why in words, for the layer that starts at this depth."""
    own = heads[heads["layer"] == layer]
    if own.empty:
        return "not applicable", "after the last layer"
    # Where Π is oblique a cloud may have to move away first: nothing to meet.
    own = own[own["applicable"].astype(bool) & np.isfinite(own["approach"]) & (own["predicted_approach"] > 0)]
    if own.empty:
        return "not applicable", "no head of the layer predicts two points"
    wanted = HALF * own["predicted_approach"].to_numpy(dtype=float)
    met = int((own["approach_low"].to_numpy(dtype=float) >= wanted).sum())
    missed = int((own["approach_high"].to_numpy(dtype=float) < wanted).sum())
    outcome = "not applicable" if not met + missed else "met" if met > missed else "missed"
    words = f"of {len(own)} heads that predict two points {met} drew the tokens towards them as predicted and {missed} "
    words += f"did not (distance {own['distance_before'].median():.3f}, nearer by {own['approach'].median():.3f}, "
    return outcome, words + f"{own['predicted_approach'].median():.3f} predicted; medians): {outcome}"


def _counts(heads: pd.DataFrame) -> str:
    points = int((heads["prediction"].str.startswith("concentrates")).sum())
    turning = int((heads["prediction"] == "rotates").sum())
    nowhere = len(heads) - points - turning
    words = f"by their weights, {points} of {len(heads)} heads would draw tokens to fixed points, {turning} turn them "
    return words + f"around in a plane for ever, {nowhere} draw them nowhere of their own"


def _depth_needed(heads: pd.DataFrame, measured: Measured | None) -> str:
    needed = heads["layers_to_concentrate"].to_numpy(dtype=float)
    needed = needed[np.isfinite(needed)]
    depth = heads["layer"].nunique()
    if not len(needed):
        return "no head has a rate of concentration"
    words = f"alone and at zero temperature the fastest head would need about {needed.min():.0f} layers to concentrate "
    words += f"the tokens, the median head {np.median(needed):.0f}; the encoder has {depth}"
    if measured is not None:
        spent = np.nansum(measured.layers["update_length"].mean())
        words += f", and its attention updates together are {spent:.2f} token lengths long"
    return words


def _parting(heads: pd.DataFrame, measured: Measured) -> str:
    angle = float(np.nanmedian(heads["maximiser_angle"].to_numpy(dtype=float)))
    ratio = heads["share_in_E"].to_numpy(dtype=float) / heads["random_share"].to_numpy(dtype=float)
    known = ratio[np.isfinite(ratio)]
    words = "where theory and encoder part: the theory lets a token attend to the best point of the whole sphere; the "
    words += f"best token that a text has is {angle:.0f}° away from it (median over heads; 90° is no relation)"
    if len(known):
        words += (
            f"; the predicted directions hold {np.median(known):.1f} times the share of token energy of random ones"
        )
    special = float(np.nanmedian(measured.heads["special_share"].mean()))
    return words + f"; {100 * special:.0f} % of the attention of a median head goes to special tokens"


def _headline(
    heads: pd.DataFrame, measured: Measured | None, twin: Measured | None, layers: tuple[Judgement, ...]
) -> str:
    if measured is None:
        return f"weights only: {_counts(heads).removeprefix('by their weights, ')}"
    cosine = measured.depths["mean_cosine"].mean()
    last = layers[-1]
    words = {
        "spread": "tokens stay spread out",
        "concentrating": "tokens come together and were still doing so at the last layer",
        "metastable": "tokens come together and rest there",
        "terminal": "tokens end in one point",
    }[last.phase]
    words += f": mean cosine {cosine[0]:.2f} → {cosine[-1]:.2f} over {len(cosine) - 1} layers"
    if twin is not None:
        n = typical_length(measured)
        words += f" (random weights: {at_length(twin.depths['mean_cosine'], n)[-1]:.2f})"
    if cosine.max() > cosine[-1] + STILL:
        words += f", at most {cosine.max():.2f} at depth {int(cosine.argmax())}"
    judged = [judgement.prediction for judgement in layers[:-1]]
    met, missed = judged.count("met"), judged.count("missed")
    if not met + missed:
        return f"{words}; the theory makes no prediction that applies"
    return f"{words}; the theory's prediction is met in {met} of the {met + missed} layers where it applies"


def _unusual(heads: pd.DataFrame, measured: Measured | None) -> pd.DataFrame:
    behaviour = () if measured is None else BEHAVIOUR
    found = unusual(heads, (*LINEAR, *behaviour))

    def sentence(row: pd.Series) -> str:
        size = "above" if row["score"] > 0 else "below"
        words = (
            f"layer {row['layer']}, head {row['head']}: {row['column']} is {row['value']:.3g}, far {size} this model's "
        )
        words += f"median of {row['median']:.3g} (robust score {row['score']:.1f})"
        meaning = COLUMNS.get(row["column"])
        return words if meaning is None else f"{words}; {row['column']} is {meaning[0]}"

    return found.assign(sentence=[sentence(row) for _, row in found.iterrows()])
