"""Forecasts of attention at lengths that were not measured, their error bars, and their score against simple rules.

A forecast from n₀ to n' uses documents of n₀ tokens only, and has three parts:

1. *multiplicities*: near/far and atoms, see `dilution`;
2. *positions*: the second half of the text is moved to later positions, as it would be in a text of n' tokens, by
   0, 1/3, 2/3 and all of n' − n₀; the forecast is the mean of the four. Without a table of positions nothing moves;
3. *drift*: scores sharpen or blur as contexts grow. The same forecast made from n₀/2 and n₀/4 misses the known value at
   n₀. The mean miss for each doubling, moved towards its mean over heads (`OWN`), is added for each doubling from n₀ to
   n'.

Entropy and log participation are corrected as they are, top weight and special share by their logarithms.

Error bars: the drift is the uncertain part. A head's own drift is known to a share (`DRIFT_ERROR`), and drifts measured
from n₀/2 and from n₀/4 disagree by e, the root mean square over heads. The variance after k doublings grows like k² if
the error of the drift is the same for each doubling, and like k³ if the drift changes like a random walk. Real encoders
are between (`GROWTH`):

    σ² = 2σ_s² + k^g ((ρ·drift)² + (α·e)² + σ₀²),   ρ = `DRIFT_ERROR`, α = `DISAGREEMENT`, σ₀ = `FLOOR`, g = `GROWTH`,

where σ_s is the standard error over documents. It counts twice: the documents that are measured vary as much.

Simple rules use the measured values at n ≤ n₀:

- *no change*: the value at n₀;
- *constant H/log n*: the value at n₀ times log n'/log n₀ (for entropy and log participation);
- *linear in log n*: the least-squares line in log n through all rungs up to n₀, if there are two or more.

error = mean over heads of |forecast − measured|, skill = 1 − error/error of the rule. A skill of 0 or less means that
the rule is as good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from metastable.encoder.length.dilution import STATISTICS
from metastable.encoder.length.documents import Documents
from metastable.encoder.length.intervals import named
from metastable.encoder.length.rung import Floats, LengthMeter, PlaceInDocument, Rung

FORECAST = "forecast"
NEAR_FAR = "near/far alone"
RULES = ("no change", "constant H/log n", "linear in log n")
METHODS = (FORECAST, NEAR_FAR, *RULES)
LOGARITHMIC = ("top_weight", "special_share")
"""Statistics that are corrected by their logarithms."""

SMALLEST = 16
"""The shortest texts that drift is measured on, in tokens."""

GAPS = (0.0, 1 / 3, 2 / 3, 1.0)
"""How far the second half of a text is moved, as shares of n' − n₀."""

COVERAGE = 0.9
"""The nominal coverage of the error bars."""

OWN = 0.75
"""The share of a head's own drift; the rest is the mean over heads. Chosen on cases that docs/length.md names."""

DRIFT_ERROR, GROWTH = 0.3, 2.5
DISAGREEMENT = {"entropy": 0.9, "log_participation": 1.2, "top_weight": 1.2, "special_share": 1.2}
FLOOR = {"entropy": 0.0, "log_participation": 0.0, "top_weight": 0.06, "special_share": 0.15}
"""Standard deviations of the error for one doubling, as shares and as numbers (of the logarithm for `LOGARITHMIC`).
Chosen on cases that docs/length.md names."""
UNKNOWN = {"entropy": 0.15, "log_participation": 0.15, "top_weight": 0.15, "special_share": 0.40}
"""The disagreement e where n₀ is too short for two drifts: about twice that of the cases."""


@dataclass(frozen=True)
class LengthForecast:
    """Forecasts at one length for all heads, made before that length was measured.

    start : n₀; n : n'; documents : the number of documents that it was made from
    values : by statistic and method, (layers, heads)
    deviation : by statistic, (layers, heads), the standard deviation of the error, on the scale of the correction
    """

    start: int
    n: int
    documents: int
    values: dict[str, dict[str, Floats]]
    deviation: dict[str, Floats]

    def interval(self, statistic: str, widened: float = 1.0) -> tuple[Floats, Floats]:
        """The ends of the error bars, which contain the measured value of a head with probability `COVERAGE`."""
        reach = widened * norm.ppf(0.5 + COVERAGE / 2) * self.deviation[statistic]
        value = _corrected_scale(statistic, self.values[statistic][FORECAST])
        low, high = (_plain_scale(statistic, end) for end in (value - reach, value + reach))
        if statistic in LOGARITHMIC:
            return low, high
        # Entropy and log participation are at most log n.
        return np.clip(low, 0.0, math.log(self.n)), np.clip(high, 0.0, math.log(self.n))

    def probability_below(self, statistic: str, level: float, widened: float = 1.0) -> Floats:
        """The probability that a head's value is below a level, by the error bars, (layers, heads)."""
        value, end = (_corrected_scale(statistic, x) for x in (self.values[statistic][FORECAST], np.asarray(level)))
        return np.asarray(norm.cdf((end - value) / (widened * self.deviation[statistic])))


class Forecaster:
    """Documents cut to n₀ tokens and shorter, and what they say about longer ones.

    documents : of at least n₀ tokens
    measured : these documents at lengths up to n₀
    """

    def __init__(self, meter: LengthMeter, documents: Documents, start: int, measured: Mapping[int, Rung]) -> None:
        self.meter, self.documents, self.start = meter, documents, start
        self.measured = {n: rung for n, rung in measured.items() if n <= start}
        bases = [base for base in (start // 2, start // 4) if base >= SMALLEST]
        known = measured[start]
        self._misses = {base: self._difference(known, self._ahead(base, [start])[0]) for base in bases}

    def _ahead(self, base: int, lengths: Sequence[int]) -> list[dict[str, Floats]]:
        """Multiplicities and positions for each length: by statistic, (gaps, documents, layers, heads).

        The first gap is 0; one pass serves all lengths there.
        """
        documents = self.documents.prefixes(base)
        plain = self.meter.measure(documents, lengths)
        found = []
        for i, n in enumerate(lengths):
            # Without a table of positions nothing moves. No position is beyond the table.
            room = 0 if self.meter.positions is None else min(n, self.meter.limit) - base
            gaps = sorted({round(share * room) for share in GAPS} - {0})
            moved = [self.meter.measure(documents, [n], PlaceInDocument(gap, at=base // 2)) for gap in gaps]
            found.append(
                {
                    name: np.stack([plain.forecasts[name][..., i], *(part.forecasts[name][..., 0] for part in moved)])
                    for name in STATISTICS
                }
            )
        return found

    def _difference(self, known: Rung, ahead: dict[str, Floats]) -> dict[str, Floats]:
        return {
            name: _corrected_scale(name, known.heads[name].mean(axis=0))
            - _corrected_scale(name, ahead[name].mean(axis=(0, 1)))
            for name in STATISTICS
        }

    def _per_doubling(self, statistic: str) -> list[Floats]:
        return [miss[statistic] / math.log2(self.start / base) for base, miss in self._misses.items()]

    def drift(self, statistic: str) -> Floats:
        """The drift for each doubling, (layers, heads); 0 if n₀ is too short to know it."""
        found = self._per_doubling(statistic)
        if not found:
            return np.zeros(self.measured[self.start].heads[statistic].shape[1:])
        mean = np.mean(found, axis=0)
        return np.asarray(OWN * mean + (1 - OWN) * mean.mean())

    def disagreement(self, statistic: str) -> float:
        """e, the root mean square over heads of the difference between the two drifts."""
        found = self._per_doubling(statistic)
        if len(found) < 2:
            return UNKNOWN[statistic]
        return float(np.sqrt(np.mean((found[0] - found[1]) ** 2)))

    def forecasts(self, lengths: Sequence[int]) -> list[LengthForecast]:
        """All heads at each length."""
        if not lengths:
            return []
        found = zip(lengths, self._ahead(self.start, lengths), strict=True)
        return [self._forecast(n, ahead) for n, ahead in found]

    def _forecast(self, n: int, ahead: dict[str, Floats]) -> LengthForecast:
        doublings = math.log2(n / self.start)
        values, deviation = {}, {}
        for name in STATISTICS:
            now = {length: rung.heads[name].mean(axis=0) for length, rung in self.measured.items()}
            each = ahead[name].mean(axis=0)
            drift = self.drift(name)
            scaled = _corrected_scale(name, each.mean(axis=0)) + doublings * drift
            if name not in LOGARITHMIC:
                # Entropy and log participation are at most log n.
                scaled = np.clip(scaled, 0.0, math.log(n))
            found = {
                FORECAST: _plain_scale(name, scaled),
                NEAR_FAR: ahead[name][0].mean(axis=0),
                "no change": now[self.start],
            }
            if len(now) > 1:
                found["linear in log n"] = line(now, n)
            if name not in LOGARITHMIC:
                found["constant H/log n"] = now[self.start] * math.log(n) / math.log(self.start)
            sampling = _corrected_scale(name, each).std(axis=0, ddof=1) / math.sqrt(len(each))
            values[name] = found
            known = (DISAGREEMENT[name] * self.disagreement(name)) ** 2 + FLOOR[name] ** 2
            deviation[name] = np.sqrt(2 * sampling**2 + doublings**GROWTH * ((DRIFT_ERROR * drift) ** 2 + known))
        return LengthForecast(self.start, n, len(self.documents), values, deviation)


def _corrected_scale(statistic: str, values: Floats) -> Floats:
    return np.log(np.maximum(values, 1e-9)) if statistic in LOGARITHMIC else values


def _plain_scale(statistic: str, values: Floats) -> Floats:
    return np.minimum(np.exp(values), 1.0) if statistic in LOGARITHMIC else values


def line(values: Mapping[int, Floats], n: int) -> Floats:
    """The least-squares line in log n through values at several lengths, at n."""
    x = np.log(np.array(list(values), dtype=float))
    y = np.stack(list(values.values()))
    x_mean, y_mean = x.mean(), y.mean(axis=0)
    slope = np.tensordot(x - x_mean, y - y_mean, axes=1) / ((x - x_mean) ** 2).sum()
    return np.asarray(y_mean + slope * (math.log(n) - x_mean))


def score(made: LengthForecast, measured: Floats, statistic: str) -> list[dict[str, object]]:
    """A row for each method: its error on measured documents, and the skill of the forecast against it.

    The intervals of 95 % are Student's, with the standard error of a jackknife over the measured documents times √2:
    the forecast was made from about as many other documents, which vary as much.

    measured : (documents, layers, heads)
    """
    m = len(measured)
    total = measured.sum(axis=0)
    means = np.stack([total / m, *((total - one) / (m - 1) for one in measured)])
    errors = {method: np.abs(found - means).mean(axis=(1, 2)) for method, found in made.values[statistic].items()}
    rows: list[dict[str, object]] = []
    for method in METHODS:
        if method not in errors:
            continue
        row: dict[str, object] = {"made_from": made.start, "n": made.n, "statistic": statistic, "method": method}
        row["error"] = float(errors[method][0])
        if method != FORECAST:
            # A rule without an error leaves nothing to gain: NaN.
            rule = np.where(errors[method] > 0, errors[method], np.nan)
            skill = 1 - errors[FORECAST] / rule
            deviation = math.sqrt(2 * (m - 1) * float(np.var(skill[1:])))
            reach = float(student.ppf(0.975, m - 1)) * deviation
            row |= named("skill", (float(skill[0]), float(skill[0]) - reach, float(skill[0]) + reach))
        rows.append(row)
    return rows


def widening(made: Sequence[LengthForecast], measured: Sequence[Rung], statistic: str) -> float:
    """How much wider than expected the error bars must be, from forecasts that can be scored; at least 1."""
    found = [
        np.abs(_errors(each, rung.heads[statistic], statistic)) / each.deviation[statistic]
        for each, rung in zip(made, measured, strict=True)
    ]
    return max(1.0, _spread_of(np.stack(found))) if found else 1.0


def _errors(made: LengthForecast, measured: Floats, statistic: str) -> Floats:
    """Forecast − measured on the scale of the correction, (layers, heads). measured : (documents, layers, heads)"""
    forecast, seen = made.values[statistic][FORECAST], measured.mean(axis=0)
    return _corrected_scale(statistic, forecast) - _corrected_scale(statistic, seen)


def _spread_of(errors: Floats) -> float:
    """The standard deviation of the normal distribution whose central interval of `COVERAGE` has as many errors."""
    return float(np.quantile(np.abs(errors), COVERAGE) / norm.ppf(0.5 + COVERAGE / 2))
