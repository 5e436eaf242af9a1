"""A ledger of forecasts about an encoder: each is made before its outcome is measured, and then scored.

The forecasts and their simple baselines are in `forecasts`, whose functions do not get the outcomes. Here outcomes are
measured afterwards. The error of a text is the mean of |forecast − measured| over the depths, layers or steps of the
entry. With the mean errors over texts,

    skill = 1 − error/error of the best baseline,

1 for an exact forecast, 0 if a simple baseline is as good, below 0 if it is better. The best baseline is the one with
the smallest mean error on the texts of the score, which favours the baselines. The interval of 95 % is Student's, by a
jackknife over texts of log(error/error of the best baseline). A forecast is *better* than the best baseline if the
interval is above 0, *worse* if it is below 0, else *no better*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import t as student
from torch import Tensor

from metastable.decimals import decimals
from metastable.encoder.compress.healing import Layers
from metastable.encoder.exact_sums import Floats
from metastable.encoder.forecasts import (
    DEPTH_STATISTICS,
    Expected,
    apart,
    depth_statistics,
    embedding,
    joined,
    of_length,
    of_loop,
    of_removal,
    over_depth,
)
from metastable.encoder.hooks import Depth, read
from metastable.encoder.load import Encoder
from metastable.encoder.loop import looped_tokens
from metastable.encoder.statistics import mean_cosine
from metastable.encoder.texts import Batch, batches, beginnings

TEXTS, LONGEST = 16, 64
"""Texts, the first ones, and the tokens that they are cut to."""
FEWEST = 5
"""An entry needs this many texts."""
BATCH = 8
"""Texts of a batch: few texts have less padding, and many are faster."""
REMOVED, REMOVED_LONGEST = 8, 32
"""Texts, the first ones, on which layers are removed, and the tokens that they are cut to: every layer that is removed
costs two passes through the layers after it."""
MOST_LAYERS = 6
"""At most this many layers are removed, one at a time, evenly spaced."""
QUARTERED = 8
"""The fewest ordinary tokens of a text whose quarter still has a pair of tokens."""
SEEN_STEPS = 4
"""At most this many steps of a loop are seen before the forecast, and at most half of all steps."""
EXACT = 1e-9
"""The smallest ratio of errors; its logarithm is finite."""
BETTER, NO_BETTER, WORSE, UNDEFINED = "better", "no better", "worse", "undefined"
"""Verdicts: how a forecast does beside the best simple baseline."""


@dataclass(frozen=True)
class Ledger:
    """Forecasts with their scores.

    entries : a row for each forecast: key, what, method, forecast and measured (means over texts and places), error,
        baseline, baseline_error, skill with its interval skill_low and skill_high, verdict and the number of texts. The
        skill is NaN and the verdict "undefined" if the baseline has no error; the other verdicts are better, no better
        and worse, than the best baseline.
    curves : for each entry with places (depths, layers or steps) and each series the mean over texts: key, place,
        series, value. The series are "seen" (before the forecast), "measured", "forecast" and "best baseline".
    left_out : sentences about forecasts that do not apply to this encoder or these texts
    """

    entries: pd.DataFrame
    curves: pd.DataFrame
    left_out: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """Each forecast in words."""
        return [_sentence(row) for row in self.entries.itertuples()]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: numbers that are not known are null."""
        return {
            **{name: _rows(getattr(self, name)) for name in ("entries", "curves")},
            "sentences": self.sentences(),
            "left_out": list(self.left_out),
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Ledger:
        entries = pd.DataFrame(saved["entries"], columns=ENTRY)
        entries = entries.assign(**{name: entries[name].astype(float) for name in NUMBERS})
        # Files from before there were three verdicts have the interval, which decides.
        entries["verdict"] = [verdict(row.skill_low, row.skill_high) for row in entries.itertuples()]
        return cls(entries, pd.DataFrame(saved["curves"], columns=CURVE), tuple(saved["left_out"]))


NUMBERS = ["forecast", "measured", "error", "baseline_error", "skill", "skill_low", "skill_high"]
ENTRY = [
    *("key", "what", "method", "forecast", "measured", "error", "baseline", "baseline_error"),
    *("skill", "skill_low", "skill_high", "verdict", "texts"),
]
CURVE = ["key", "place", "series", "value"]


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    plain: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")
    return plain


def _sentence(row: Any) -> str:
    if row.verdict == UNDEFINED:
        return f"{row.baseline} is exact for {row.what}, so that no forecast can be better"
    skill, low, high = (decimals(number, 2) for number in (row.skill, row.skill_low, row.skill_high))
    score = f"skill {skill} ({low} to {high})"
    if row.verdict == NO_BETTER:
        return f"{row.method} does not forecast {row.what} better than {row.baseline} does: {score}"
    return f"{row.method} forecasts {row.what} {row.verdict} than {row.baseline} does: {score}"


def ledger(
    encoder: Encoder, texts: Sequence[str], special: str = "exclude", loops: int = 0, layer: int = 0
) -> Ledger | None:
    """The ledger on the first texts that have tokens; None if they are fewer than `FEWEST`.

    loops, layer : how often a loop applied which layer; 0 for no loop
    """
    encoder = encoder.private()
    tokenizer, limit = encoder.reads_text(), min(LONGEST, encoder.limit)
    # Copies of a text would count as texts of their own, and make intervals too short.
    texts = list(dict.fromkeys(texts))
    found = list(batches(tokenizer, texts[:TEXTS], limit, BATCH))
    if sum(len(batch.mask) for batch in found) < FEWEST:
        return None
    book = _Book([], [], [])
    depth = len(encoder.anatomy.layers)
    longer = _of_length(encoder, found, special)
    whole = _over_depth(encoder, found, special, book)
    book.score(longer, whole[:, None], "the mean cosine of the last hidden states of whole texts")
    if depth > 1 and not encoder.anatomy.tied:
        some = batches(tokenizer, texts[:REMOVED], min(REMOVED_LONGEST, limit), BATCH)
        _of_removal(encoder, list(some), book)
    elif encoder.anatomy.tied:
        book.left_out.append("no layer is removed, because all layers share their weights")
    else:
        book.left_out.append("an encoder of one layer has no later depths, and no layer that can be removed")
    if loops:
        _of_loop(encoder, found, special, loops, layer, book)
    return Ledger(
        pd.DataFrame(book.entries, columns=ENTRY), pd.DataFrame(book.curves, columns=CURVE), tuple(book.left_out)
    )


@dataclass(frozen=True)
class _Book:
    """The rows of a ledger in the making."""

    entries: list[dict[str, Any]]
    curves: list[dict[str, Any]]
    left_out: list[str]

    def score(self, made: Expected, measured: Floats, what: str) -> None:
        """Write down a forecast and its outcome, (texts, places), for the texts for which all numbers are known."""
        tables = [made.values, measured, *made.baselines.values()]
        known = np.all([np.isfinite(table).all(axis=1) for table in tables], axis=0)
        if known.sum() < FEWEST:
            self.left_out.append(f"fewer than {FEWEST} texts are long enough to forecast {what}")
            return
        errors = np.abs(made.values - measured)[known].mean(axis=1)
        others = {name: np.abs(value - measured)[known].mean(axis=1) for name, value in made.baselines.items()}
        means = {"forecast": float(made.values[known].mean()), "measured": float(measured[known].mean())}
        row = {"key": made.key, "what": what, "method": made.method, **means, **scored(errors, others)}
        self.entries.append({**row, "texts": int(known.sum())})
        series = {"measured": measured, "forecast": made.values, "best baseline": made.baselines[row["baseline"]]}
        drawn = [("seen", made.seen_places, made.seen)] if made.seen_places else []
        for name, places, table in [*drawn, *((name, made.places, table) for name, table in series.items())]:
            # Without places there is no curve.
            for place, value in zip(places, table[known].mean(axis=0), strict=False):
                self.curves.append({"key": made.key, "place": place, "series": name, "value": float(value)})


def scored(errors: Floats, baselines: dict[str, Floats]) -> dict[str, Any]:
    """Error, best baseline, skill with its interval and verdict, from the errors of each text.

    With r = log(error/error of the best baseline), and r_i the same without text i, where another baseline may be the
    best, the ends are 1 − exp(r ± t s), s² = (m − 1)/m Σ(r_i − mean r_i)², t Student's quantile of m − 1 degrees. The
    logarithm keeps the skill below 1.
    """
    names, m = list(baselines), len(errors)
    table = np.stack([errors, *baselines.values()])
    total = table.sum(axis=1, keepdims=True)
    means = np.concatenate([total / m, (total - table) / (m - 1)], axis=1)
    best = means[1:].min(axis=0)
    row: dict[str, Any] = {"error": float(means[0, 0]), "baseline": names[int(means[1:, 0].argmin())]}
    row |= {"baseline_error": float(best[0]), "skill": np.nan, "skill_low": np.nan, "skill_high": np.nan}
    if not best[0] > 0:
        return {**row, "verdict": UNDEFINED}
    # A baseline that is exact without one text makes the ratio of the others infinite, and the interval endless.
    ratio = np.log(np.maximum(means[0] / np.maximum(best, EXACT * best[0]), EXACT))
    spread = float(np.sqrt((m - 1) * np.var(ratio[1:])))
    reach = float(student.ppf(0.975, m - 1)) * spread
    ends = {name: float(1 - np.exp(ratio[0] + side)) for name, side in (("", 0.0), ("_low", reach), ("_high", -reach))}
    row |= {f"skill{name}": value for name, value in ends.items()}
    return {**row, "verdict": verdict(row["skill_low"], row["skill_high"])}


def verdict(low: float, high: float) -> str:
    """The verdict from the interval of the skill; "undefined" without one."""
    if np.isnan(low) or np.isnan(high):
        return UNDEFINED
    return BETTER if low > 0 else WORSE if high < 0 else NO_BETTER


def _over_depth(encoder: Encoder, found: Sequence[Batch], special: str, book: _Book) -> Floats:
    """Score the second half of the layers; return the hidden cosine of each text at the last depth, (texts,)."""
    depth = len(encoder.anatomy.layers)
    middle = depth // 2
    made: list[list[Expected]] = []
    outcomes: list[list[dict[str, Floats]]] = []
    for batch in found:
        seen: list[dict[str, Floats]] = []
        after: list[dict[str, Floats]] = []

        def visit(there: Depth, seen: list[Any] = seen, after: list[Any] = after) -> None:
            tokens, passage = there.tokens, there.passage
            here = seen if there.index <= middle else after
            here.append(depth_statistics(tokens.hidden, tokens.unit, passage.chosen))
            if there.index == middle and middle:
                # The later layers have not been run yet.
                made.append(over_depth(encoder.anatomy, tokens, passage.mask, passage.chosen, seen))

        read(encoder, batch, special, range(depth + 1), visit)
        outcomes.append(after)
    if made:
        depths = f"depth {depth}" if middle + 1 == depth else f"depths {middle + 1} to {depth}"
        words = {"hidden_cosine": "the mean cosine of the hidden states", "effective_rank": "the effective rank"}
        for number, name in enumerate(DEPTH_STATISTICS):
            measured = [np.stack([part[name] for part in after], axis=1) for after in outcomes]
            book.score(
                joined([parts[number] for parts in made]), np.concatenate(measured), f"{words[name]} at {depths}"
            )
    return np.concatenate([after[-1]["hidden_cosine"] for after in outcomes])


def _of_length(encoder: Encoder, found: Sequence[Batch], special: str) -> Expected:
    """The forecast for whole texts, (texts, 1), from their halves and quarters; NaN for texts that are too short."""
    long = np.concatenate([((batch.mask & ~batch.special).sum(dim=1) >= QUARTERED).numpy() for batch in found])
    cosines, tokens = [], []
    for share in (0.25, 0.5):
        parts = [beginnings(encoder.tokenizer, batch, share) for batch in found]
        every = np.concatenate([_last_cosine(encoder, part, special) for part in parts])
        cosines.append(np.where(long, every, np.nan))
        tokens.append(np.concatenate([part.lengths.numpy() for part in parts]))
    whole = np.concatenate([batch.lengths.numpy() for batch in found])
    quarter, half = cosines
    return of_length(quarter, half, np.stack([*tokens, whole]))


def _last_cosine(encoder: Encoder, batch: Batch, special: str) -> Floats:
    """The hidden cosine of each text at the last depth, (texts,)."""
    found: list[Floats] = []

    def visit(there: Depth) -> None:
        hidden = torch.nn.functional.normalize(there.tokens.hidden, dim=-1)
        found.append(mean_cosine(hidden, there.passage.chosen).cpu().numpy())

    read(encoder, batch, special, (len(encoder.anatomy.layers),), visit)
    return found[0]


def _of_removal(encoder: Encoder, found: Sequence[Batch], book: _Book) -> None:
    anatomy = encoder.anatomy
    # Nothing follows the last layer, so that its removal needs no forecast.
    last = len(anatomy.layers) - 2
    layers = [int(layer) for layer in np.unique(np.linspace(0, last, min(MOST_LAYERS, last + 1)).round())]
    made, outcomes = [], []
    for batch in found:
        passing, mask = Layers(encoder, [batch]), batch.mask.to(encoder.device)
        streams = [passing.hidden[0]]
        while passing.place < len(anatomy.layers):
            passing.move()
            streams.append(passing.hidden[0])
        with torch.inference_mode():
            made.append(of_removal(anatomy, streams, mask, layers))
            real = embedding(anatomy, streams[-1], mask, len(anatomy.layers))
            gone = [apart(real, embedding(anatomy, streams[layer], mask, layer + 1)) for layer in layers]
        outcomes.append(np.stack(gone, axis=1))
    book.score(joined(made), np.concatenate(outcomes), "the change of the embedding if a layer is removed")


def _of_loop(encoder: Encoder, found: Sequence[Batch], special: str, loops: int, layer: int, book: _Book) -> None:
    shown = min(SEEN_STEPS, loops // 2)
    if shown < 2:
        book.left_out.append("the loop is too short for a forecast, which needs 4 steps or more")
        return
    device = encoder.device
    chosen = [batch.chosen(special).to(device) for batch in found]
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        ways = [looped_tokens(encoder, layer, batch, batch.mask.to(device), loops) for batch in found]

        def follow(steps: int) -> Floats:
            """The dispersion at the next steps, (texts, steps); NaN where a text has no finite tokens any more."""
            return np.concatenate([_dispersions(way, here, steps) for way, here in zip(ways, chosen, strict=True)])

        made = of_loop(follow(shown + 1), loops)
        book.score(
            made, follow(loops - shown), f"the dispersion of tokens after steps {shown + 1} to {loops} of the loop"
        )


def _dispersions(way: Iterator[Tensor], chosen: Tensor, steps: int) -> Floats:
    """1 − |mean x̂|² at the next steps, (texts, steps); NaN from the step on where a number is not finite."""
    count = chosen.sum(dim=1).double()
    found = np.full((len(chosen), steps), np.nan)
    for step, unit in enumerate(islice(way, steps)):
        total = (unit * chosen.unsqueeze(-1)).sum(dim=1, dtype=torch.float64).square().sum(dim=1)
        found[:, step] = (1 - total / count.square()).cpu().numpy()
    return found
