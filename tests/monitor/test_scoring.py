"""From columns to p-values: the arithmetic against a literal one; p-values of clean real texts are uniform."""

import math

import numpy as np
import pytest
from scipy.stats import binom, kstest

from metastable.errors import BadInput
from metastable.monitor.conformal import ladder
from metastable.monitor.detectors import DETECTORS
from metastable.monitor.detectors.base import Column
from metastable.monitor.exposure import EXPOSURE, Exposure
from metastable.monitor.length_adjustment import TailAdjustment
from metastable.monitor.scoring import SETTINGS, ColumnTable, Scale, Scorer, Setting, Spoilt, Vector
from metastable.monitor.spoiling import KINDS
from tests.benchmarks.modules import module

bench_scorer = module("bench").scorer


def scorer_of(setting, detectors, adjust, calibrate, spoilt=None):
    return bench_scorer(setting, detectors, adjust, spoilt, calibrate)


class Described:
    """As much of a detector as scoring looks at."""

    def __init__(self, name, depths, two_sided=False):
        self.name, self.two_sided, self.layers = name, two_sided, 6
        self.depths = tuple(d for d in dict.fromkeys(depths) if d is not None)
        self.columns = tuple(Column(f"c{i}", depth) for i, depth in enumerate(depths))


ONE = Described("one", (0, 0, 2, 2))
TWO = Described("two", (2, 5, None), two_sided=True)
BOTH = {"one": ONE, "two": TWO}
WEIGHTS = {"one": 1.0, "two": 0.5, EXPOSURE: 2.0}
SETTING = Setting("both", {"one": None, "two": None}, ("two", "one"), WEIGHTS)


def drawn(texts, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 60, texts)
    common = rng.normal(size=(texts, 1))
    one = 1 / lengths[:, None] + common + rng.normal(size=(texts, 4)) + shift
    two = np.log(lengths)[:, None] + rng.normal(size=(texts, 3)) * [1.0, 2.0, 5.0] + shift
    return ColumnTable({"one": one, "two": two}, lengths)


def spoilt_copies(texts, seed):
    """Copies that are shifted a little, each kind in another column."""
    table = drawn(texts, seed)
    kinds = np.random.default_rng(seed).integers(len(KINDS), size=texts)
    columns = {name: found.copy() for name, found in table.columns.items()}
    columns["one"][np.arange(texts), kinds % 4] += 1.0 + 0.2 * kinds
    return Spoilt(ColumnTable(columns, table.lengths), kinds)


def literal(adjust, calibrate, new, spoilt, settings=SETTING):
    """Score, marginal p and p by depth of one text, with loops, from the formulas."""
    surprises, by_depth = {}, {}
    tables = {"adjust": adjust, "calibrate": calibrate, "new": new, "spoilt": spoilt.table}
    strange = {key: {} for key in tables}
    columns = {}
    for name in settings.members:
        z = columns[name] = {}
        location, scale, within = _fitted(adjust.columns[name], adjust.lengths)
        for key, table in tables.items():
            z[key] = _adjusted(table.columns[name], table.lengths, location, scale, within)
        if BOTH[name].two_sided:
            mean = z["adjust"].mean(axis=0)
            inverse = np.linalg.inv(_shrunk(z["adjust"] - mean))
            one = {k: np.array([math.log((v - mean) @ inverse @ (v - mean) / 3 + 1e-9) for v in z[k]]) for k in tables}
        else:
            one = {k: np.array([sum(v) / len(v) for v in z[k]]) for k in tables}
        again = _fitted(one["adjust"][:, None], adjust.lengths)
        numbers = {k: _adjusted(one[k][:, None], tables[k].lengths, *again)[:, 0] for k in tables}
        surprises[name] = {k: [_tail(s, numbers["adjust"]) for s in numbers[k]] for k in tables}
        for key in tables:
            for i, column in enumerate(BOTH[name].columns):
                if column.depth is not None:
                    value = np.abs(z[key][:, i]) if BOTH[name].two_sided else z[key][:, i]
                    strange[key].setdefault(column.depth, []).append(value)
    seen = {k: np.concatenate([columns[name][k] for name in settings.exposed], axis=1) for k in tables}
    odds = Exposure.of(seen["adjust"], seen["spoilt"], spoilt.kinds)
    again = _fitted(odds(seen["adjust"])[:, None], adjust.lengths)
    numbers = {k: _adjusted(odds(seen[k])[:, None], tables[k].lengths, *again)[:, 0] for k in tables}
    surprises[EXPOSURE] = {k: [_tail(s, numbers["adjust"]) for s in numbers[k]] for k in tables}
    sums = {
        k: np.array([sum(WEIGHTS[n] * surprises[n][k][i] for n in surprises) for i in range(len(tables[k]))])
        for k in tables
    }
    tail = TailAdjustment.of(sums["adjust"], adjust.lengths)
    total = {k: tail(sums[k], tables[k].lengths) for k in tables}
    for depth in strange["new"]:
        mean = {k: np.mean(strange[k][depth], axis=0) for k in tables}
        by_depth[depth] = {k: [_tail(s, mean["adjust"]) for s in mean[k]] for k in tables}
    worst = [max(by_depth[d]["calibrate"][i] for d in by_depth) for i in range(len(calibrate))]
    m = len(calibrate)
    rank = 1 + sum(c >= total["new"][0] for c in total["calibrate"])
    ranks = [1 + sum(c >= by_depth[d]["new"][0] for c in worst) for d in sorted(by_depth)]
    return total["new"][0], rank / (m + 1), ladder(m, 0.1)[np.array(ranks) - 1]


def _fitted(columns, lengths):
    log_n = np.log(lengths)
    within = np.quantile(log_n, 0.005), np.quantile(log_n, 0.995)
    kept = np.clip(log_n, *within)
    location, scale = [], []
    for s in columns.T:
        X = np.stack([np.ones(len(s)), kept, kept**2], axis=1)
        beta = np.linalg.solve(X.T @ X, X.T @ s)
        rest = s - X @ beta
        size = np.log(np.abs(rest) + 1e-3 * rest.std())
        X = X[:, :2]
        gamma = np.linalg.solve(X.T @ X, X.T @ size)
        gamma[0] += 0.5 * math.log(np.mean((rest / np.exp(X @ gamma)) ** 2))
        location.append(beta)
        scale.append(gamma)
    return location, scale, within


def _adjusted(columns, lengths, location, scale, within):
    kept = np.clip(np.log(lengths), *within)
    parts = [
        (s - a - b * kept - c * kept**2) / np.exp(g + h * kept)
        for s, (a, b, c), (g, h) in zip(columns.T, location, scale, strict=True)
    ]
    return np.stack(parts, axis=1)


def _shrunk(centred):
    n, k = centred.shape
    S = sum(np.outer(v, v) for v in centred) / n
    level = np.trace(S) / k
    noise = sum(np.sum((np.outer(v, v) - S) ** 2) for v in centred) / n**2
    share = min(max(noise / np.sum((S - level * np.eye(k)) ** 2), 0.01), 1.0)
    return (1 - share) * S + share * level * np.eye(k)


def _tail(s, own):
    """−log of the share of scores above, with straight lines between and an exponential tail."""
    own = np.sort(own)
    n = len(own)
    if s >= own[-1]:
        start = own[int(0.9 * (n - 1))]
        return math.log(n + 1) + (s - own[-1]) / np.mean(own[own >= start] - start)
    # The points of the line, from the highest down: each a twentieth of the interquartile range below the last one.
    step = 0.05 * (np.quantile(own, 0.75) - np.quantile(own, 0.25))
    above = own[-1]
    for knot in own[::-1][1:]:
        if above - knot >= step:
            if knot <= s:
                low, high = (-math.log((1 + (own > one).sum()) / (n + 1)) for one in (knot, above))
                return low + (s - knot) / (above - knot) * (high - low)
            above = knot
    return -math.log((1 + (own > above).sum()) / (n + 1))


@pytest.mark.parametrize("shift", [0.0, 1.5, 8.0])
def test_against_the_formulas(shift):
    adjust, calibrate, new = drawn(200, 0), drawn(500, 1), drawn(1, 2, shift)
    spoilt = spoilt_copies(300, 3)
    scorer = scorer_of(SETTING, BOTH, adjust, calibrate, spoilt)
    judged = scorer.assess(new)
    score, p, by_depth = literal(adjust, calibrate, new, spoilt)
    assert judged.names == ("one", "two", EXPOSURE)
    assert judged.depths == (0, 2, 5)
    # Moments are taken of float32 rows: see `moments`.
    assert judged.score[0] == pytest.approx(score, rel=1e-5)
    assert judged.p_marginal[0] == pytest.approx(p, abs=1e-12)
    np.testing.assert_allclose(judged.p_by_depth[0], by_depth, rtol=1e-12)
    rank = round(p * 501)
    assert judged.p_value[0] == ladder(500, 0.1)[rank - 1]
    assert judged.least == ladder(500, 0.1)[0]


def test_vector_is_the_shrunk_mahalanobis_distance():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(40, 6)) @ rng.normal(size=(6, 6))
    centred = z - z.mean(axis=0)
    inverse = np.linalg.inv(_shrunk(centred))
    expected = [math.log(v @ inverse @ v / 6 + 1e-9) for v in centred]
    np.testing.assert_allclose(Vector.of(z)(z), expected, rtol=1e-4, atol=1e-4)


def test_the_classifier_is_the_ridge_multinomial_regression():
    """Its slope is zero at the optimum, by central differences of the loss written out."""
    rng = np.random.default_rng(0)
    kinds = np.arange(60) % len(KINDS)
    clean, spoilt = rng.normal(size=(40, 3)), rng.normal(size=(60, 3)) + kinds[:, None] / 5
    found = Exposure.of(clean, spoilt, kinds)
    z = np.clip(np.concatenate([clean, spoilt]), -6, 6)
    x = (z - z.mean(axis=0)) / z.std(axis=0)

    def loss(weights):
        total = 15.0 * np.sum(weights[:-1] ** 2)
        for row, point in enumerate(x):
            logits = [0.0, *(point @ weights[:-1] + weights[-1])]
            right = 0 if row < 40 else 1 + kinds[row - 40]
            total += (1 if row < 40 else 40 / 60) * (math.log(sum(map(math.exp, logits))) - logits[right])
        return total

    assert np.abs(found.weights).max() > 0.1
    for place in np.ndindex(found.weights.shape):
        step = np.zeros_like(found.weights)
        step[place] = 1e-4
        assert abs(loss(found.weights + step) - loss(found.weights - step)) / 2e-4 < 0.05
    odds = [math.log(sum(math.exp(v) for v in row)) for row in found.logits(spoilt)]
    np.testing.assert_allclose(found(spoilt), odds)
    assert found(spoilt).mean() > found(clean).mean() + 0.05


def test_two_sided_detectors_find_too_little_and_one_sided_ones_do_not():
    adjust, calibrate = drawn(300, 0), drawn(600, 1)
    low = drawn(200, 2, shift=-12.0)
    two = scorer_of(Setting.plain("two", {"two": None}), BOTH, adjust, calibrate).assess(low)
    one = scorer_of(Setting.plain("one", {"one": None}), BOTH, adjust, calibrate).assess(low)
    assert np.median(two.p_value) == two.least
    assert np.median(one.p_marginal) > 0.9


def test_texts_that_cannot_be_used_are_told_apart_and_change_nothing():
    scorer = scorer_of(SETTING, BOTH, drawn(200, 0), drawn(500, 1), spoilt_copies(300, 3))
    new = drawn(5, 2)
    judged = scorer.assess(new)
    columns = {name: found.copy() for name, found in new.columns.items()}
    lengths = new.lengths.copy()
    lengths[1] = 0
    columns["one"][3, 2] = math.nan
    columns["two"][4, 0] = math.inf
    broken = scorer.assess(ColumnTable(columns, lengths))
    assert broken.usable.tolist() == [True, False, True, False, False]
    for name in ("score", "p_marginal", "p_value", "by_term", "p_by_depth"):
        assert np.isnan(getattr(broken, name)[[1, 3, 4]]).all()
        assert np.array_equal(getattr(broken, name)[[0, 2]], getattr(judged, name)[[0, 2]])
    nothing = scorer.assess(ColumnTable({n: c[:0] for n, c in columns.items()}, lengths[:0]))
    assert nothing.score.shape == (0,)
    assert nothing.p_by_depth.shape == (0, 3)


def test_saved_and_restored_bit_for_bit():
    deep = BOTH | {"two": Described("two", (2, 5, 5), two_sided=True)}
    scorer = scorer_of(SETTING, deep, drawn(200, 0), drawn(500, 1), spoilt_copies(300, 3))
    new = drawn(50, 2, shift=0.5)
    again = Scorer.from_arrays(SETTING, scorer.to_dict(), scorer.to_arrays())
    first, second = scorer.assess(new), again.assess(new)
    for name in ("score", "p_marginal", "p_value", "by_term", "kinds", "p_by_depth"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
    assert again.setting == scorer.setting
    assert [SETTING.visits(deep[name]) for name in ("one", "two")] == [(0, 2), (2, 5)]
    assert SETTING.visits(Described("one", (None,))) == Described("one", (None,)).depths
    for name in scorer.to_arrays():
        arrays = scorer.to_arrays()
        del arrays[name]
        with pytest.raises(BadInput, match="no "):
            Scorer.from_arrays(SETTING, scorer.to_dict(), arrays)
        bad = scorer.to_arrays()
        bad[name] = np.full_like(bad[name], math.nan)
        with pytest.raises(BadInput, match="not finite"):
            Scorer.from_arrays(SETTING, scorer.to_dict(), bad)
        bad[name] = np.zeros((2, 2, 2))
        with pytest.raises(BadInput, match="shape"):
            Scorer.from_arrays(SETTING, scorer.to_dict(), bad)


def test_detectors_without_a_depth_have_no_depths():
    whole = Described("whole", (None, None))
    rng = np.random.default_rng(0)

    def table(texts):
        return ColumnTable({"whole": rng.normal(size=(texts, 2))}, rng.integers(4, 60, texts))

    scorer = scorer_of(Setting.plain("whole", {"whole": None}), {"whole": whole}, table(200), table(500))
    judged = scorer.assess(table(7))
    assert judged.depths == ()
    assert judged.p_by_depth.shape == (7, 0)


def test_settings_choose_depths_by_place(encoder):
    detectors = {name: DETECTORS[name](encoder) for name in DETECTORS}
    light, full = SETTINGS["light"], SETTINGS["full"]
    place = detectors["place-surprise"]
    assert {place.columns[i].depth for i in light.places(place)} == {2}
    assert {place.columns[i].depth for i in full.places(place)} == {2, 3}
    course = detectors["concentration"]
    assert {course.columns[i].depth for i in light.places(course)} == {0, 3}
    tokens, pooled = detectors["token-mahalanobis"], detectors["pooled-mahalanobis"]
    assert [tokens.columns[i].depth for i in full.places(tokens)] == [0, 0, 2, 2, 4, 4, 6, 6]
    assert [pooled.columns[i].depth for i in light.places(pooled)] == [0, 2, 4]
    with pytest.raises(BadInput, match="needs the detector 'place-surprise'"):
        Scale.of(
            light, {"pooled-mahalanobis": pooled}, ColumnTable({"pooled-mahalanobis": np.zeros((3, 7))}, np.ones(3))
        )


def test_a_setting_without_some_detectors():
    full = SETTINGS["full"]
    less = full.only([name for name in full.members if not DETECTORS[name].needs_weights])
    assert set(full.members) - set(less.members) == {"attention-entropy"}
    assert "attention-entropy" not in less.exposed
    assert less.weights == full.weights
    assert less.only(less.members) == less
    nothing_heavy = full.only(["place-surprise"])
    assert nothing_heavy.weights == {EXPOSURE: 2.0}
    assert nothing_heavy.terms == ("place-surprise", EXPOSURE)


ADJUST, CALIBRATE, DEALS = 200, 480, 400
# One text a deal, and deals are independent given the texts: the p-values are independent and exactly uniform. By the
# Dvoretzky–Kiefer–Wolfowitz inequality D exceeds this with probability 1e-6 at most.
KS = math.sqrt(math.log(2 / 1e-6) / (2 * DEALS))


def randomised(calibration, scores, rng):
    """A p-value that is exactly uniform for exchangeable scores without ties."""
    return (calibration.ranks(scores)[0] - rng.random()) / (calibration.texts + 1)


def copies_of(held, order):
    """Stand-ins for spoilt copies: the columns of the adjust part, exchanged between texts. P-values do not care."""
    own = held[order[:ADJUST]]
    rng = np.random.default_rng(0)
    columns = {name: rng.permuted(found, axis=0) for name, found in own.columns.items()}
    return Spoilt(ColumnTable(columns, own.lengths), np.arange(ADJUST) % len(KINDS))


def dealt(baseline, setting, held, calibrate=None):
    """P-values, randomised, of one held text a deal: of its score, and of its worst depth. Rows (deals, 2)."""
    found = []
    for deal in range(DEALS):
        rng = np.random.default_rng(deal)
        order = rng.permutation(len(held))
        own = held[order[ADJUST : ADJUST + CALIBRATE]]
        if calibrate is not None:
            own = calibrate[rng.permutation(len(calibrate))[:CALIBRATE]]
        scorer = scorer_of(SETTINGS[setting], baseline.detectors, held[order[:ADJUST]], own, copies_of(held, order))
        scores = scorer.scale(held[order[-1:]])
        found.append(
            [
                randomised(scorer.calibration, scores.total, rng),
                randomised(scorer.by_depth, scores.worst_depth, rng),
            ]
        )
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["light", "full"])
def test_p_values_of_clean_texts_are_uniform(baseline, held, setting):
    p = dealt(baseline, setting, held)
    assert kstest(p[:, 0], "uniform").statistic < KS
    assert kstest(p[:, 1], "uniform").statistic < KS


@pytest.mark.slow
def test_calibrating_on_the_texts_that_detectors_know_is_caught(baseline, held, clean_tables):
    """The negative control of the test above: the fitted texts are less strange to the detectors than new ones."""
    assert len(clean_tables["fit"]) == baseline.facts["parts"]["fit"]
    p = dealt(baseline, "light", held, clean_tables["fit"])
    assert kstest(p[:, 0], "uniform").statistic > 2 * KS
    # Too small, that is: too many clean texts would be called strange.
    assert np.mean(p[:, 0] < 0.1) > 0.2


@pytest.mark.slow
def test_conditional_p_values_keep_their_promise(baseline, held):
    """In at most δ = 0.1 of all deals is the share of clean texts with p ≤ t above t, for any t of these."""
    deals, broken = 100, 0
    for deal in range(deals):
        order = np.random.default_rng(deal).permutation(len(held))
        own = held[order[ADJUST : ADJUST + CALIBRATE]]
        scorer = scorer_of(SETTINGS["light"], baseline.detectors, held[order[:ADJUST]], own, copies_of(held, order))
        p = scorer.assess(held[order[ADJUST + CALIBRATE :]]).p_value
        broken += any(np.mean(p <= t) > t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5))
    # Shares are of some 800 texts and not of all, which adds chance: without it fewer deals would be broken.
    assert broken <= binom.isf(1e-6, deals, 0.1)
