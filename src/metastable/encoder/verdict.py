"""The audit in words: which phase tokens are in at each depth, and whether each layer did what the theory predicts.

**Phases** go by the spread s of a text's tokens, the lesser of 1 − mean cosine and 1 − mean squared cosine over pairs:
about 1 for directions at random, 0 for one point and also for two opposite ones, the theory's own limit, and free of
the share of n that the dispersion carries. Beside it stands that of a twin with random weights, at the same depth and
at the encoder's typical n.

- *terminal*: 1 − mean cosine ≤ ONE_POINT, the tokens of a text are one cluster.
- *concentrating*: the layer before has lowered s by more than STILL, beyond the intervals of both means.
- *metastable*: s is below CLOSE of the twin's (of 1 without a twin) and has not risen by more than STILL.
- *spread*: none of these.

**Predictions** are those of the heads whose limit law is two points ±e: one layer of such a head alone, at zero
temperature, would bring a text's tokens nearer to that law by `predicted_approach` (see `measure.HeadLens`). A head
meets it if the tokens came nearer by at least HALF of that, and misses it if not, where the interval over texts tells.
Heads that predict less than LEAST are not counted. A layer *met* the prediction if more of its heads met than missed
it, *missed* it if not; it is *undecided* where the texts do not tell, *not applicable* where no head predicts two
points. Each head is held against what the whole layer did, so that some layers meet a prediction by chance: the twin's
count stands beside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from metastable.encoder.columns import meaning
from metastable.encoder.weights import LINEAR, Weights, unusual

if TYPE_CHECKING:
    from metastable.encoder.exact_sums import ExactSums
    from metastable.encoder.measure import Measurements

ONE_POINT, STILL, CLOSE, HALF, LEAST = 0.05, 0.05, 0.6, 0.5, 0.005
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
class AuditVerdict:
    """What the audit found, in words. `unusual`: see `weights.unusual`, with a sentence for each row."""

    headline: str
    layers: tuple[Judgement, ...]
    sentences: tuple[str, ...]
    unusual: pd.DataFrame


def judge(
    weights: Weights,
    heads: pd.DataFrame,
    measured: Measurements | None,
    twin: Measurements | None,
    beside: tuple[Judgement, ...] = (),
) -> AuditVerdict:
    """The verdict: `heads` is the joined table of weights and behaviour, `beside` the twin's own judgements."""
    layers = () if measured is None else _judgements(heads, measured, twin)
    sentences = [_depth_needed(weights.heads, measured)]
    if measured is not None:
        sentences = [_counts(weights.heads), *sentences, _parting(heads, measured), _beside(measured, twin)]
        sentences += [judgement.sentence for judgement in layers]
    return AuditVerdict(
        headline=_headline(weights.heads, measured, twin, layers, beside),
        layers=layers,
        sentences=tuple(s for s in sentences if s),
        unusual=_unusual(heads, measured),
    )


def typical_length(measured: Measurements) -> float:
    """The geometric mean of n over texts: where encoder and twin are compared."""
    counts = np.array(list(measured.lengths.values()), dtype=float)
    logs = np.log(np.array(list(measured.lengths), dtype=float))
    return float(np.exp((counts * logs).sum() / counts.sum()))


def at_length(tally: ExactSums, n: float) -> np.ndarray:
    """The mean at n tokens, or the plain mean where all texts have one length."""
    found, mean = tally.at(n)[0], tally.mean()
    return np.where(np.isfinite(found), found, mean)


def _judgements(heads: pd.DataFrame, measured: Measurements, twin: Measurements | None) -> tuple[Judgement, ...]:
    cosine = measured.depths["mean_cosine"]
    mean, (low, high) = cosine.mean(), cosine.interval()
    spread, least, most = _spread(measured)
    usual, random = np.ones_like(spread), None
    if twin is not None:
        n = typical_length(measured)
        random = at_length(twin.depths["mean_cosine"], n)
        usual = 1 - np.maximum(random, at_length(twin.depths["mean_square_cosine"], n))
    found = []
    for depth in range(len(spread)):
        phase = "terminal" if 1 - mean[depth] <= ONE_POINT else _phase(spread, least, most, usual[depth], depth)
        prediction, why = _prediction(heads, depth)
        known = f"{low[depth]:.2f} to {high[depth]:.2f}" if math.isfinite(low[depth]) else "one text, no interval"
        words = f"depth {depth}: mean cosine {mean[depth]:.2f} ({known}"
        words += ")" if random is None else f"; random weights {random[depth]:.2f})"
        words += f", effective rank {measured.depths['effective_rank'].mean()[depth]:.1f}: {phase}"
        if phase == "metastable" and spread[depth] < 1 - mean[depth] - STILL:
            words += ", about two opposite points"
        found.append(Judgement(depth, phase, prediction, f"{words}; {why}"))
    return tuple(found)


def _spread(measured: Measurements) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(s, its lower and upper end) at each depth."""
    sides = []
    for name in ("mean_cosine", "mean_square_cosine"):
        tally = measured.depths[name]
        low, high = tally.interval()
        sides.append((1 - tally.mean(), 1 - high, 1 - low))
    lesser = sides[1][0] < sides[0][0]
    spread, least, most = (np.where(lesser, other, one) for one, other in zip(*sides, strict=True))
    return spread, least, most


def _phase(spread: np.ndarray, least: np.ndarray, most: np.ndarray, usual: float, depth: int) -> str:
    now = spread[depth]
    if depth:
        before = spread[depth - 1]
        if now < (1 - STILL) * before and most[depth] < least[depth - 1]:
            return "concentrating"
        if not now < (1 + STILL) * before:
            return "spread"
    return "metastable" if now <= CLOSE * usual else "spread"


def _prediction(heads: pd.DataFrame, layer: int) -> tuple[str, str]:
    """met, missed or not applicable, and why in words, for the layer that starts at this depth."""
    own = heads[heads["layer"] == layer]
    if own.empty:
        return "not applicable", "after the last layer"
    own = own[own["applicable"].astype(bool) & np.isfinite(own["approach"])]
    if own.empty:
        return "not applicable", "no head of the layer predicts two points"
    # Where Π is oblique a cloud may even have to move away first: nothing to meet.
    own = own[own["predicted_approach"] >= LEAST]
    if own.empty:
        return "undecided", f"no head of the layer predicts that the distance falls by {LEAST:g} or more"
    wanted = HALF * own["predicted_approach"].to_numpy(dtype=float)
    met = int((own["approach_low"].to_numpy(dtype=float) >= wanted).sum())
    missed = int((own["approach_high"].to_numpy(dtype=float) < wanted).sum())
    outcome = "undecided" if not met + missed else "met" if met > missed else "missed"
    words = f"of {len(own)} heads that predict two points {met} drew the tokens towards them as predicted and {missed} "
    words += f"did not (distance {own['distance_before'].median():.3f}, nearer by {own['approach'].median():.3f}, "
    return outcome, words + f"{own['predicted_approach'].median():.3f} predicted; medians): {outcome}"


def _counts(heads: pd.DataFrame) -> str:
    points = int((heads["prediction"].str.startswith("concentrates")).sum())
    turning = int((heads["prediction"] == "rotates").sum())
    nowhere = len(heads) - points - turning
    words = f"by their weights, {points} of {len(heads)} heads would draw tokens to fixed points, {turning} turn them "
    return words + f"around in a plane for ever, {nowhere} draw them nowhere of their own"


def _depth_needed(heads: pd.DataFrame, measured: Measurements | None) -> str:
    needed = heads["layers_to_concentrate"].to_numpy(dtype=float)
    needed = needed[np.isfinite(needed)]
    depth = heads["layer"].nunique()
    if not len(needed):
        if (heads["rate"] > 0).any():
            return f"no head that concentrates is at low temperature: β is {heads['beta'].max():.2g} at most"
        return "no head has a rate of concentration"
    words = f"alone and at zero temperature the fastest head would need about {needed.min():.0f} layers to concentrate "
    words += f"the tokens, the median head {np.median(needed):.0f}; the encoder has {depth}"
    if measured is not None:
        spent = np.nansum(measured.layers["update_length"].mean())
        words += f", and its attention updates together are {spent:.2f} token lengths long"
    return words


def _parting(heads: pd.DataFrame, measured: Measurements) -> str:
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
    heads: pd.DataFrame,
    measured: Measurements | None,
    twin: Measurements | None,
    layers: tuple[Judgement, ...],
    beside: tuple[Judgement, ...],
) -> str:
    if measured is None:
        return f"weights only: {_counts(heads).removeprefix('by their weights, ')}"
    cosine = measured.depths["mean_cosine"].mean()
    words = _course([judgement.phase for judgement in layers])
    words += f": mean cosine {cosine[0]:.2f} → {cosine[-1]:.2f} over {len(cosine) - 1} layers"
    if cosine.max() > max(cosine[0], cosine[-1]) + STILL:
        words += f", {cosine.max():.2f} at depth {int(cosine.argmax())}"
    if twin is not None:
        n = typical_length(measured)
        words += f" (random weights: {at_length(twin.depths['mean_cosine'], n)[-1]:.2f})"
    hidden = measured.depths["hidden_cosine"].mean()
    words += f"; of the hidden states as returned {hidden[0]:.2f} → {hidden[-1]:.2f}"
    judged = [judgement.prediction for judgement in layers[:-1]]
    met, missed = judged.count("met"), judged.count("missed")
    if not met + missed:
        why = "cannot be told on these texts" if "undecided" in judged else "does not apply"
        return f"{words}; the theory's prediction {why}"
    words += f"; the theory's prediction is met in {met} of the {met + missed} layers where it can be told"
    if beside:
        other = [judgement.prediction for judgement in beside]
        words += f" (random weights: {other.count('met')} of {other.count('met') + other.count('missed')})"
    return words


def _course(phases: list[str]) -> str:
    if phases[-1] == phases[0] and phases[0] in ("terminal", "metastable"):
        return "tokens are close together from the start, and at the end"
    if phases[-1] == "terminal":
        return "tokens end in one point"
    if phases[-1] == "metastable":
        return "tokens come together and rest there"
    if phases[-1] == "concentrating":
        return "tokens come together and were still doing so at the last layer"
    nearer = [depth for depth, phase in enumerate(phases) if phase != "spread"]
    if not nearer:
        return "tokens stay spread out"
    return f"tokens come together on the way (depths {nearer[0]} to {nearer[-1]}) but do not stay together"


def _beside(measured: Measurements, twin: Measurements | None) -> str:
    """Whether the tokens of the trained encoder can be told from those of random weights at all."""
    if twin is None:
        return ""
    n = typical_length(measured)
    low, high = measured.depths["mean_cosine"].interval()
    other, error = at_length(twin.depths["mean_cosine"], n), twin.depths["mean_cosine"].at(n)[1]
    reach = 2 * np.where(np.isfinite(error), error, 0.0)
    told = (other + reach < low) | (other - reach > high)
    if not told.any():
        return "by the cosines of its tokens this encoder cannot be told from one with random weights"
    return ""


def _unusual(heads: pd.DataFrame, measured: Measurements | None) -> pd.DataFrame:
    behaviour = () if measured is None else BEHAVIOUR
    found = unusual(heads, (*LINEAR, *behaviour))

    def sentence(row: pd.Series) -> str:
        size = "above" if row["score"] > 0 else "below"
        words = (
            f"layer {row['layer']}, head {row['head']}: {row['column']} is {row['value']:.3g}, far {size} this model's "
        )
        words += f"median of {row['median']:.3g} (robust score {row['score']:.1f})"
        return f"{words}; {row['column']}: {meaning(row['column'])[0]}"

    return found.assign(sentence=[sentence(row) for _, row in found.iterrows()])
