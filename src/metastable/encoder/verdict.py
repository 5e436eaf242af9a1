"""The audit in words: the phase of the tokens at each depth, and whether each layer did what the theory predicts.

**Phases** are decided by the spread s of the tokens of a text: the smaller of 1 − mean cosine and 1 − mean squared
cosine over pairs. It is about 1 for random directions. It is 0 for one point, and also for two opposite points, the
limit of the theory. It is compared with the spread of a twin with random weights, at the same depth and at the
encoder's typical n. If one feature decides the cosine at some depth (see `course.owned`), s is 1 − mean cosine without
the largest feature, at all depths.

- *terminal*: 1 − mean cosine ≤ ONE_POINT; the tokens of a text are one cluster.
- *concentrating*: the layer before lowered s by more than STILL, beyond the intervals of both means.
- *metastable*: s is below CLOSE times the spread of the twin (1 without a twin) and did not rise by more than STILL.
- *spread*: none of these.

**Predictions** come from the heads whose limit law is two points ±e. At zero temperature, one layer of such a head
alone would bring the tokens of a text closer to that law by `predicted_approach` (see `measure.HeadLens`). A head *met*
its prediction if the tokens came closer by at least HALF of it, and *missed* it otherwise, if the interval over texts
decides. Heads that predict less than LEAST are not counted. A layer met the prediction if more of its heads met than
missed it. It is *undecided* if the texts do not decide, and *not applicable* if no head predicts two points. Each head
is compared with what the whole layer did, so some layers meet a prediction by chance; the count of the twin shows how
many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from metastable.encoder import course
from metastable.encoder.columns import meaning
from metastable.encoder.weights import LINEAR, unusual

if TYPE_CHECKING:
    from metastable.encoder.exact_sums import ExactSums
    from metastable.encoder.measure import Measurements

Ends = tuple[np.ndarray, np.ndarray, np.ndarray]
"""A statistic at each depth with the lower and the upper limit of its interval."""
ONE_POINT, STILL, CLOSE, HALF, LEAST = 0.05, 0.05, 0.6, 0.5, 0.005
"""Thresholds of the phases and predictions, see above. STILL is relative to s; LEAST is a distance."""
BEHAVIOUR = ("entropy", "logit_gap", "special_share", "maximiser_angle", "update_length")
"""Statistics of heads on text that are searched for unusual values, beside the columns of the weights."""


@dataclass(frozen=True)
class Judgement:
    """One depth: its phase, and whether the layer that starts there met the prediction of the theory."""

    depth: int
    phase: str
    prediction: str
    sentence: str


@dataclass(frozen=True)
class AuditVerdict:
    """The findings of the audit in words.

    headline : what the tokens do, from the hidden states alone; see `course`
    sentences : what the headline depends on
    theory : theory and encoder side by side, with a sentence for each depth at the end
    unusual : see `weights.unusual`, with a sentence for each row
    """

    headline: str
    layers: tuple[Judgement, ...]
    sentences: tuple[str, ...]
    theory: tuple[str, ...]
    unusual: pd.DataFrame


def judge(
    heads: pd.DataFrame,
    measured: Measurements | None,
    twin: Measurements | None = None,
    beside: tuple[Judgement, ...] = (),
    tied: bool = False,
) -> AuditVerdict:
    """The verdict.

    heads : the joined table of weights and behaviour; beside : the judgements of the twin
    tied : whether all layers share their weights, so that they have the heads of one layer
    """
    own = heads[heads["layer"] == 0] if tied else heads
    if measured is None:
        headline = f"weights only: {_counts(own, tied)}"
        return AuditVerdict(headline, (), (), (_depth_needed(heads),), _unusual(own, LINEAR, tied))
    layers = _judgements(heads, measured, twin)
    theory = [_predicted(layers, beside), f"by their weights, {_counts(own, tied)}"]
    theory += [_depth_needed(heads, measured), _parting(heads, measured)]
    sentences = course.sentences(measured)
    if twin is not None and not _distinguished(measured, twin):
        sentences.append("the cosines of the tokens do not distinguish this encoder from one with random weights")
    return AuditVerdict(
        headline=course.headline(measured),
        layers=layers,
        sentences=tuple(sentences),
        theory=(*theory, *(judgement.sentence for judgement in layers)),
        unusual=_unusual(heads, (*LINEAR, *BEHAVIOUR), tied),
    )


def typical_length(measured: Measurements) -> float:
    """The geometric mean of n over texts. Encoder and twin are compared at this length."""
    lengths, counts = list(measured.lengths), list(measured.lengths.values())
    return float(np.exp(np.average(np.log(lengths), weights=counts)))


def at_length(tally: ExactSums, n: float) -> np.ndarray:
    """The mean at n tokens, or the plain mean if all texts have one length."""
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
    for depth, phase in enumerate(phases(mean, (spread, least, most), usual)):
        prediction, why = _prediction(heads, depth)
        known = f"{low[depth]:.2f} to {high[depth]:.2f}" if math.isfinite(low[depth]) else "one text, no interval"
        words = f"depth {depth}: {phase}"
        if phase == "metastable" and spread[depth] < 1 - mean[depth] - STILL:
            words += ", about two opposite points"
        words += f"; mean cosine {mean[depth]:.2f} ({known}"
        words += ")" if random is None else f"; random weights {random[depth]:.2f})"
        words += f", effective rank {measured.depths['effective_rank'].mean()[depth]:.1f}"
        found.append(Judgement(depth, phase, prediction, f"{words}; {why}"))
    return tuple(found)


def _spread(measured: Measurements) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """s and its lower and upper limit, at each depth."""
    names = ("mean_cosine", "mean_square_cosine")
    if course.owned(measured, "tokens").any():
        names = ("cosine_without", "cosine_without")
    cosine, square = ((tally.mean(), *tally.interval()) for tally in (measured.depths[name] for name in names))
    return spread_of(cosine, square)


def spread_of(cosine: Ends, square: Ends) -> Ends:
    """s with its interval, from the mean cosine and the mean squared cosine with theirs, at each depth."""
    lesser = square[0] > cosine[0]
    mean, low, high = (np.where(lesser, other, one) for one, other in zip(cosine, square, strict=True))
    return 1 - mean, 1 - high, 1 - low


def phases(cosine: np.ndarray, spread: Ends, usual: np.ndarray) -> list[str]:
    """The phase at each depth.

    cosine : the mean cosine; spread : s with its interval; usual : s of the twin, 1 without a twin
    """
    together = 1 - cosine <= ONE_POINT
    return ["terminal" if together[depth] else _phase(*spread, usual[depth], depth) for depth in range(len(spread[0]))]


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
    """The outcome for the layer that starts at this depth, and the reason in words."""
    own = heads[heads["layer"] == layer]
    if own.empty:
        return "not applicable", "after the last layer"
    own = own[own["applicable"].astype(bool) & np.isfinite(own["approach"])]
    if own.empty:
        return "not applicable", "no head of the layer predicts two points"
    # If Π is oblique, the predicted cloud may even move away first.
    own = own[own["predicted_approach"] >= LEAST]
    if own.empty:
        return "undecided", f"no head of the layer predicts a decrease of the distance by {LEAST:g} or more"
    wanted = HALF * own["predicted_approach"]
    met = int((own["approach_low"] >= wanted).sum())
    missed = int((own["approach_high"] < wanted).sum())
    outcome = "undecided" if not met + missed else "met" if met > missed else "missed"
    counts = f"{met} met the prediction, {missed} missed it and {len(own) - met - missed} are undecided"
    medians = ", ".join(
        f"{what} {own[name].median():.3f}"
        for what, name in (
            ("distance", "distance_before"),
            ("decrease", "approach"),
            ("predicted", "predicted_approach"),
        )
    )
    chosen = f"of {len(own)} heads that predict a decrease of {LEAST:g} or more"
    return outcome, f"prediction {outcome}: {chosen}, {counts} (medians: {medians})"


def _counts(heads: pd.DataFrame, tied: bool = False) -> str:
    points = int(heads["prediction"].str.startswith("concentrates").sum())
    turning = int((heads["prediction"] == "rotates").sum())
    whole = f"{len(heads)} heads of the shared layer" if tied else f"{len(heads)} heads"
    words = f"{points} of {whole} concentrate tokens on fixed points, {turning} rotate tokens without "
    return words + f"converging (complex dominant eigenvalue) and {len(heads) - points - turning} do neither"


def _depth_needed(heads: pd.DataFrame, measured: Measurements | None = None) -> str:
    needed = heads["layers_to_concentrate"].to_numpy(dtype=float)
    needed = needed[np.isfinite(needed)]
    if not len(needed):
        if (heads["rate"] > 0).any():
            return f"no head that concentrates tokens is at low temperature: the largest β is {heads['beta'].max():.2g}"
        return "no head has a rate of concentration"
    words = f"alone and at zero temperature, the fastest head would need about {needed.min():.0f} layers to concentrate"
    words += f" the tokens and the median head {np.median(needed):.0f}; the model has {heads['layer'].nunique()}"
    if measured is not None:
        spent = np.nansum(measured.layers["update_length"].mean())
        words += f", and its attention updates sum to {spent:.2f} token lengths"
    return words


def _parting(heads: pd.DataFrame, measured: Measurements) -> str:
    ratio = (heads["share_in_E"] / heads["random_share"]).to_numpy(dtype=float)
    known = ratio[np.isfinite(ratio)]
    angle = heads["maximiser_angle"].median()
    words = "where theory and encoder differ: in the theory a token attends to the best point of the whole sphere; the "
    words += f"best token of a text is {angle:.0f}° away from that point (median over heads; 90° means no relation)"
    if len(known):
        words += f"; the predicted directions hold {np.median(known):.1f} times the energy of random directions"
    special = float(np.nanmedian(measured.heads["special_share"].mean()))
    return words + f"; the median head puts {100 * special:.0f} % of its attention on special tokens"


def _predicted(layers: tuple[Judgement, ...], beside: tuple[Judgement, ...]) -> str:
    """In how many layers the prediction of the theory is met."""
    own, others = ([judgement.prediction for judgement in every] for every in (layers, beside))
    judged = own.count("met") + own.count("missed")
    if not judged:
        why = "cannot be decided on these texts" if "undecided" in own else "does not apply"
        return f"the prediction of the theory {why}"
    words = f"the prediction of the theory is met in {own.count('met')} of the {judged} layers that can be judged"
    if beside:
        met, missed = others.count("met"), others.count("missed")
        words += f" and, with random weights, in {met} of {met + missed}"
    return words


def _distinguished(measured: Measurements, twin: Measurements) -> bool:
    """Whether the mean cosine differs from that of random weights at some depth, beyond the errors of both."""
    n = typical_length(measured)
    low, high = measured.depths["mean_cosine"].interval()
    other, error = at_length(twin.depths["mean_cosine"], n), twin.depths["mean_cosine"].at(n)[1]
    reach = 2 * np.where(np.isfinite(error), error, 0.0)
    return bool(((other + reach < low) | (other - reach > high)).any())


def _unusual(heads: pd.DataFrame, linear: tuple[str, ...], tied: bool = False) -> pd.DataFrame:
    """Unusual values in words. A value of the weights of a shared layer stands there once."""
    found = unusual(heads, linear)
    if tied:
        of_weights = ~found["column"].isin(BEHAVIOUR)
        found = found[~(of_weights & found.duplicated(["head", "column"]))].reset_index(drop=True)
    sentences = []
    for row in found.itertuples():
        size = "above" if row.score > 0 else "below"
        words = f"layer {row.layer}, head {row.head}: {row.column} is {row.value:.3g}, far {size} the median of "
        words += f"{row.median:.3g} over the heads of this model (robust score {row.score:.1f})"
        sentences.append(f"{words}; {row.column}: {meaning(row.column)[0]}")
    return found.assign(sentence=sentences)
