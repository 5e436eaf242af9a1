"""Texts tested together: the statistic against loops, exact p-values, more power than single texts, and streams."""

import json
import math

import numpy as np
import pytest
from scipy.stats import binomtest

from metastable.errors import BadInput
from metastable.monitor import windows as module
from metastable.monitor.alarm import worth_of_means
from metastable.monitor.exposure import EXPOSURE
from metastable.monitor.monitor import Monitor
from metastable.monitor.record import Record
from metastable.monitor.report import render
from metastable.monitor.scoring import Scale, Scorer
from metastable.monitor.watched import WatchedRows, read_windows
from metastable.monitor.windows import DRAWS, LEAST, Windows, compared
from tests.monitor.conftest import ODD
from tests.monitor.streams import rows_of
from tests.monitor.test_commands import contents, killed_at
from tests.monitor.test_report import FACTS, page_text
from tests.monitor.test_scoring import BOTH, SETTING, drawn, spoilt_copies
from tests.monitor.test_watch_life import invoke, watching  # noqa: F401


@pytest.fixture(scope="module")
def scale():
    return Scale.of(SETTING, BOTH, drawn(600, 1), spoilt_copies(600, 2))


@pytest.fixture(scope="module")
def scorer(scale):
    return Scorer.of(scale, drawn(500, 3))


def traits(scale, table):
    return scale(table).traits


def literal(scorer, own, seed):
    """p-value, by loops: means of the traits, a number a term, tail shares among all sets, sums, rank."""
    scale, n = scorer.scale, len(own)
    chance = np.random.default_rng([seed, n, int(scorer.independent_traits)])
    pool = np.concatenate([own, scorer.traits[chance.permutation(scorer.texts)[: int(scorer.independent_traits)]]])
    sets = [list(range(n))] + [chance.choice(len(pool), n, replace=False, shuffle=False) for _ in range(DRAWS)]
    one, two = scale.members
    numbers = []
    for own_set in sets:
        mean = sum(pool[i].astype(float) for i in own_set) / n
        k = len(one.places)
        z = mean[k : k + len(two.places)] - two.vector.mean
        square = sum(float(row @ z) ** 2 for row in two.vector.white) / len(z)
        numbers.append((sum(mean[:k]) / k, math.log(square + 1e-9), mean[-1]))
    totals = np.zeros(len(sets))
    for column in np.array(numbers).T:
        totals += module.Surprise(column[:, None])(column[:, None])[:, 0]
    return sum(total >= totals[0] - 1e-6 for total in totals) / len(totals)


@pytest.mark.parametrize("documents", [None, 100])
@pytest.mark.parametrize(("shift", "n"), [(0.0, 5), (0.0, 30), (0.5, 5), (0.3, 12)])
def test_the_p_value_is_that_of_the_formula(scale, shift, n, documents):
    table = drawn(500, 3)
    if documents is not None:
        documents = np.repeat(np.arange(documents), 5)
        table.columns["one"][:] += 0.5 * np.random.default_rng(0).normal(size=(100, 1))[documents]
    scorer = Scorer.of(scale, table, documents)
    assert (scorer.independent_traits < 450) == (documents is not None)
    own = traits(scale, drawn(n, 11, shift))
    found = compared(scorer, own, seed=4)
    assert found.p_value == pytest.approx(literal(scorer, own, 4), abs=2.1 / (DRAWS + 1))
    assert list(found.by_term) == ["one", "two", EXPOSURE]
    assert found.by_term[found.detector] == max(found.by_term.values())
    assert found.texts == n


def test_traits_are_adjusted_columns_and_log_odds(scale):
    """The exposure sees its own order of the columns; a mean of one text is the text."""
    table = drawn(30, 5)
    own = scale(table)
    one, two = (m.first(table.columns[m.name][:, m.places], table.lengths) for m in scale.members)
    odds = scale.exposure(np.concatenate([two, one], axis=1))
    np.testing.assert_allclose(own.traits, np.column_stack([one, two, odds]), atol=1e-5)
    numbers = scale.of_windows(own.traits)
    np.testing.assert_allclose(numbers[:, 0], one.mean(axis=1), atol=1e-5)
    np.testing.assert_allclose(numbers[:, 2], odds, atol=1e-5)


def shares(scale, monkeypatch, shift, windows=400):
    """Of windows with p ≤ 0.05 and p ≤ 0.5; every window has calibration texts of its own."""
    monkeypatch.setattr(module, "DRAWS", 199)
    monkeypatch.setattr(module, "LARGEST", 0.2)
    p = []
    for number in range(windows):
        own = Scorer.of(scale, drawn(60, 1000 + number))
        p.append(compared(own, traits(scale, drawn(12, 5000 + number, shift)), seed=number).p_value)
    return [int((np.array(p) <= t).sum()) for t in (0.05, 0.5)]


def test_p_values_of_clean_windows_are_exact(scale, monkeypatch):
    """P(p ≤ t) = t for t in steps of 1/200, so both counts are binomial."""
    for count, t in zip(shares(scale, monkeypatch, 0.0), (0.05, 0.5), strict=True):
        assert binomtest(count, 400, t).pvalue > 1e-3


def test_a_shifted_window_has_no_uniform_p_value(scale, monkeypatch):
    """Negative control of the test above."""
    assert binomtest(shares(scale, monkeypatch, 0.4, 100)[0], 100, 0.05).pvalue < 1e-6


def test_a_slight_shift_of_all_texts_is_seen_together_and_not_alone(scale, scorer):
    table = drawn(400, 7, 0.5)
    alone = float((scorer.assess(table).p_marginal <= 0.01).mean())
    own = traits(scale, table)
    together = [compared(scorer, own[i : i + 40]).strange for i in range(0, 400, 40)]
    assert alone < 0.1
    assert sum(together) >= 9
    clean = traits(scale, drawn(400, 8))
    assert sum(compared(scorer, clean[i : i + 40]).strange for i in range(0, 400, 40)) <= 1


def test_the_same_texts_have_the_same_p_value_whatever_the_hosts_generator_does(scale, scorer):
    own = traits(scale, drawn(9, 12))
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    first = compared(scorer, own, seed=3)
    assert np.array_equal(np.random.get_state()[1], before)
    assert compared(scorer, own, seed=3) == first
    assert compared(scorer, own, seed=4).p_value == pytest.approx(first.p_value, abs=0.06)


def test_little_memory_gives_the_same_numbers(scale, scorer, monkeypatch):
    own = traits(scale, drawn(20, 13))
    whole = compared(scorer, own)
    monkeypatch.setattr(module, "GATHERED", 1)
    assert compared(scorer, own) == whole


@pytest.mark.parametrize(
    ("n", "words"), [(1, "give at least 2"), (51, "this baseline allows 50; give a random sample")]
)
def test_too_few_and_too_many_texts_are_refused(scale, scorer, n, words):
    with pytest.raises(BadInput, match=words):
        compared(scorer, traits(scale, drawn(n, 1)))
    assert compared(scorer, traits(scale, drawn(50, 1))).texts == 50


def test_the_worth_of_means_is_the_variance_of_the_mean():
    """Against the variance over drawn sets of documents, and against loops; 1 text a document is worth itself."""
    rng = np.random.default_rng(0)
    documents = np.repeat(np.arange(40), 5)

    def sample():
        return rng.normal(size=(40, 2))[documents] * [1.0, 0.0] + rng.normal(size=(200, 2))

    x = sample()
    rest = x - x.mean(axis=0)
    effects = [
        sum(sum(rest[i, c] for i in np.flatnonzero(documents == k)) ** 2 for k in range(40)) / sum(rest[:, c] ** 2)
        for c in range(2)
    ]
    assert worth_of_means(x, documents) == pytest.approx(200 / (sum(effects) / 2))
    variances = np.array([sample().mean(axis=0) for _ in range(4000)]).var(axis=0)
    true = np.mean(variances / (np.array([2.0, 1.0]) / 200))
    assert np.mean([200 / worth_of_means(sample(), documents) for _ in range(200)]) == pytest.approx(true, rel=0.1)
    assert worth_of_means(x, np.arange(200)) == pytest.approx(200)
    assert worth_of_means(np.ones((200, 2)), documents) == 200


@pytest.mark.parametrize("size", [1, 0, -5, 2.5, 51])
def test_sizes_that_are_none_are_refused(scorer, size):
    with pytest.raises(BadInput, match="window is"):
        Windows(scorer, size)


def records(own, rejected=()):
    made = [Record("scored", p_value=0.5, p_marginal=0.5, traits=row) for row in own]
    for place in sorted(rejected):
        made.insert(place, Record.rejected("is empty"))
    return [Record(**{name: getattr(r, name) for name in r.__slots__} | {"line": i}) for i, r in enumerate(made, 1)]


@pytest.mark.parametrize("cut", [1, 3, 7, 100])
def test_windows_do_not_depend_on_how_the_stream_is_cut(scale, scorer, cut):
    """Rejected texts belong to no window; the texts after the last whole window wait."""
    stream = records(traits(scale, drawn(33, 9)), rejected=(0, 4, 12))
    whole = Windows(scorer, 10)
    expected = whole.take(stream)
    own = Windows(scorer, 10)
    found = [one for i in range(0, len(stream), cut) for one in own.take(stream[i : i + cut])]
    assert found == expected
    assert [(one.number, one.first, one.last, one.texts) for one in found] == [
        (1, 2, 12, 10),
        (2, 14, 23, 10),
        (3, 24, 33, 10),
    ]
    assert own.to_dict() == whole.to_dict()
    assert (own.number, own.line) == (3, 33)
    later = Windows(scorer, 10)
    later.replay([one.to_dict() for one in expected[:2]])
    assert later.take([record for record in stream if record.line > later.line]) == expected[2:]
    assert later.to_dict() == own.to_dict()


def test_words_say_whether_the_smallest_p_value_was_reached(scale, scorer):
    strange = compared(scorer, traits(scale, drawn(30, 14, 2.0)))
    assert (strange.p_value, strange.strange) == (LEAST, True)
    assert "the 30 texts together are not like the clean texts: p is at most 0.0005, most by " in strange.reason
    clean = compared(scorer, scorer.traits[:30])
    assert not clean.strange
    assert "as far as can be seen: p = " in clean.reason


def test_texts_are_tested_together_in_python(small, small_baseline_folder, stream):
    monitor = Monitor(small, small_baseline_folder, "full")
    found = monitor.test([*stream[:20], "", *ODD * 7])
    assert (found.texts, found.strange) == (48, True)
    assert not monitor.test(stream[20:60]).strange
    assert monitor.counts.texts == monitor.alarm.count == 0
    with pytest.raises(BadInput, match=r"1 of 3 texts can be scored, and 2 are needed; a text is empty"):
        monitor.test(["A text.", "", "  "])
    with pytest.raises(BadInput, match="give at least 2"):
        monitor.test([])


@pytest.fixture(scope="module")
def path(stream, tmp_path_factory):
    found = tmp_path_factory.mktemp("windows") / "texts.txt"
    given = [*stream[:60], "", *(f"{word} {n}" for n in range(8) for word in ODD), *stream[60:83]]
    found.write_text("".join(f"{text}\n" for text in given), encoding="utf-8")
    return found


def test_windows_of_a_stream_are_kept_told_and_resumed_to_the_last_byte(watching, path, tmp_path):  # noqa: F811
    asked = [*watching, path, "--window", 9]
    result = invoke(*asked, "--out", tmp_path / "whole")
    assert result.exit_code in (1, 2), result.output
    found = read_windows(tmp_path / "whole" / "windows.jsonl")
    assert [row["number"] for row in found] == list(range(1, 115 // 9 + 1))
    assert [row["last"] for row in found[:7]] == [9, 18, 27, 36, 45, 54, 64]
    assert all(row["strange"] for row in found[7:9])
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())["windows"]
    strange = sum(row["strange"] for row in found)
    assert summary == {"texts": 9, "count": 12, "strange": strange, "expected_at_most": pytest.approx(0.12)}
    assert f"{strange} of 12 windows of 9 texts are strange at p ≤ 0.01" in result.stderr
    words = page_text((tmp_path / "whole" / "report.html").read_text())
    assert f"{strange} of 12" in words
    assert "65 to 73" in words
    # Killed in the middle of a window, and after a window whose row was not written yet.
    out = tmp_path / "out"
    killed_at([*asked, "--out", out], out, (tmp_path / "whole" / "records.jsonl").stat().st_size // 3)
    rows = (out / "windows.jsonl").read_bytes().splitlines(keepends=True)
    (out / "windows.jsonl").write_bytes(b"".join(rows[:-1]) + rows[-1][:50])
    assert invoke(*asked, "--out", out, "--resume").exit_code == result.exit_code
    for name in ("records.jsonl", "windows.jsonl", "summary.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    before = contents(out)
    again = invoke(*asked, "--out", out, "--resume")
    assert "nothing new" in again.stderr
    assert contents(out) == before
    other = invoke(*watching, path, "--window", 8, "--out", out, "--resume")
    assert (other.exit_code, contents(out)) == (2, before)
    assert "window 9, not 8" in other.stderr
    # An --overwrite that was killed after it had removed the records: nothing of the stream before is left.
    (out / "records.jsonl").unlink()
    assert invoke(*asked, "--out", out).exit_code == result.exit_code
    for name in ("records.jsonl", "windows.jsonl", "summary.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    (out / "windows.jsonl").write_bytes(b"".join(rows[1:]))
    damaged = invoke(*asked, "--out", out, "--resume")
    assert damaged.exit_code == 2
    assert "line 1 is not window 1; --overwrite starts again" in damaged.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [(["--window", 1], "--window is 1"), (["--window", -3], "at least 2"), (["--window", 10**6], "make it smaller")],
)
def test_bad_windows_are_one_line(more, words, watching, tmp_path):  # noqa: F811
    result = invoke(*watching, *more, "--out", tmp_path / "out", stdin="A text.\n")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_stream_shorter_than_a_window_says_so(watching, stream):  # noqa: F811
    result = invoke(*watching, "--window", 30, "--alpha", "0.0001", stdin="\n".join(stream[:5]))
    assert "no window: the stream has fewer than 30 scored texts" in result.stderr
    assert "no window can be strange at 0.0001: its smallest p-value is 0.0005" in result.stderr


def test_the_page_has_the_strange_windows_or_the_least_ordinary_one():
    rows = [
        {"number": n, "first": 10 * n - 9, "last": 10 * n, "texts": 10, "p_value": p, "detector": "concentration"}
        | {"strange": p <= 0.01}
        for n, p in enumerate([0.4, 0.0005, 0.9], start=1)
    ]
    watched = WatchedRows(rows_of(np.full(30, 0.5)), FACTS)
    words = " ".join(page_text(render(watched, windows=rows)).split())
    assert "1 of 3" in words
    assert "The table has 1 of 3 windows: strange ones." in words
    assert "11 to 20 0.0005 concentration" in words
    assert "1 to 10 0.4" not in words
    words = " ".join(page_text(render(watched, windows=[rows[2], rows[0]])).split())
    assert "No window is strange; this one has the smallest p-value of 2." in words
    assert "1 to 10 0.4 concentration" in words
    assert "Windows" not in page_text(render(watched))
