"""`ms.compress(…, pairs=…)`: the layer that the pairs ask for, scores and intervals, halves, files, bad input."""

import dataclasses
import json
import random

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr, zscore
from typer.testing import CliRunner

import metastable as ms
from metastable.cli.app import app
from metastable.encoder.compress import pairs as scored
from metastable.encoder.compress import study
from metastable.encoder.compress.recipe import Recipe
from metastable.encoder.compress.result import TASK_COLUMNS
from metastable.encoder.compress.surgery import Removal
from metastable.encoder.load import load
from tests.conftest import WORDS
from tests.encoder.models import tiny

LENGTH = 24


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, ("compress", *arguments))))


def drawn(count, seed=5):
    """Pairs of random texts with random scores."""
    draw = random.Random(seed)

    def text():
        return " ".join(draw.choices(WORDS, k=draw.randint(3, 12)))

    return [(text(), text(), draw.random()) for _ in range(count)]


def embedding(model, tokenizer, text):
    """The mean over tokens, one text at a time."""
    inputs = tokenizer(text, truncation=True, max_length=LENGTH, return_tensors="pt")
    with torch.inference_mode():
        return model(**inputs).last_hidden_state[0].mean(dim=0).double().numpy()


def cosines(model, tokenizer, pairs):
    found = []
    for first, second, _ in pairs:
        a, b = embedding(model, tokenizer, first), embedding(model, tokenizer, second)
        found.append(a @ b / np.sqrt((a @ a) * (b @ b)))
    return np.array(found)


def asked(tokenizer, pairs, **changes):
    return ms.compress(tiny("bert"), changes.pop("texts"), tokenizer=tokenizer, length=LENGTH, pairs=pairs, **changes)


@pytest.fixture(scope="module")
def plain(tokenizer, many_texts):
    """One layer is removed without pairs."""
    return ms.compress(tiny("bert"), many_texts, tokenizer=tokenizer, length=LENGTH, layers=1)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    write(path, drawn(200))
    return path


def write(path, pairs):
    rows = [dict(zip(("sentence1", "sentence2", "score"), pair, strict=True)) for pair in pairs]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def halves(pairs, tokenizer, seed=0):
    """The pairs of both halves, found again by their scores, which all differ."""
    task = scored.deal(load(tiny("bert"), tokenizer=tokenizer), scored.read_pairs(pairs), LENGTH, 16, seed)
    by_score = {score: (a, b, score) for a, b, score in pairs}
    return [[by_score[score] for score in half.scores] for half in (task.select, task.test)]


@pytest.mark.parametrize("layer", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_one_half_of_the_pairs_chooses_the_layer(layer, plain, tokenizer, many_texts):
    """Scores of the first half are near cosines without this layer, so that no other choice is better there.

    Those of the other half ask for another layer, which must not count. Some of the full encoder's cosines are added,
    because scores that have nothing to do with them choose nothing.
    """
    given = []
    for half, gone in zip(halves(drawn(200), tokenizer), (layer, (layer + 1) % 3), strict=True):
        smaller = plain.builder.removed(Recipe(layers=1), Removal((gone,))).even.model
        known = zscore(cosines(smaller, tokenizer, half)) + 0.6 * zscore(cosines(tiny("bert"), tokenizer, half))
        given += [(first, second, score) for (first, second, _), score in zip(half, known, strict=True)]
    # The halves depend on the order of the pairs, and not on their scores.
    order = {pair[:2]: number for number, pair in enumerate(drawn(200))}
    given.sort(key=lambda pair: order[pair[:2]])
    found = asked(tokenizer, given, texts=many_texts, layers=1)
    assert found.removals[0].layers == (layer,)
    assert found.pairs_choose
    assert found.options["select_task"][0] > found.options["task_high"][0]


def test_heads_keep_their_rule(tokenizer, many_texts):
    ours, theirs = (asked(tokenizer, some, texts=many_texts, heads=0.25) for some in (drawn(200), None))
    assert ours.removals == theirs.removals


@pytest.fixture(scope="module")
def with_pairs(tokenizer, many_texts):
    """One layer is removed by pairs that have random scores; the same texts are in several of them."""
    pairs = drawn(240)
    pairs += [(pairs[i][0], pairs[i + 1][1], 0.3 + i / 100) for i in range(0, 30, 3)]
    return asked(tokenizer, pairs, texts=many_texts, layers=1), pairs


def test_the_score_is_the_rank_correlation_of_plain_cosines(with_pairs, tokenizer):
    found, pairs = with_pairs
    select, test = halves(pairs, tokenizer)
    scores = [score for *_, score in test]
    full, own = (
        spearmanr(cosines(model, tokenizer, test), scores).statistic
        for model in (tiny("bert"), found.builder.removed(found.recipe(0), found.removals[0]).even.model)
    )
    row = found.options.iloc[0]
    assert found.full_task[0] == pytest.approx(full, abs=1e-6)
    assert (row["task"], row["task_difference"]) == pytest.approx((own, own - full), abs=1e-6)
    assert (found.counts["select_pairs"], found.counts["test_pairs"]) == (len(select), len(test))


def resampled(values, scores, groups, draws, random):
    """Literal bootstrap: draw groups, repeat their pairs, and take rank correlations."""
    members = [np.flatnonzero(groups == group) for group in range(groups.max() + 1)]
    found = []
    for _ in range(draws):
        chosen = np.concatenate([members[i] for i in random.integers(len(members), size=len(members))])
        found.append([spearmanr(own[chosen], scores[chosen]).statistic for own in values])
    return np.array(found)


def test_intervals_are_those_of_a_slow_paired_bootstrap():
    """Both encoders see the same noise, so that the interval of the difference is much the smaller one."""
    random = np.random.default_rng(3)
    groups = np.repeat(np.arange(60), 5)

    def effect():
        """Mostly the same for all pairs of a group."""
        return np.repeat(random.normal(size=60), 5) + 0.3 * random.normal(size=300)

    truth = effect()
    full = truth + effect()
    own = full + 0.4 * effect()
    half = scored.Half([], np.zeros((300, 2), dtype=np.int64), truth, groups)
    ends = half.compared(full, own, 0)
    slow = resampled((full, own), truth, groups, 500, random)
    expected = (slow[:, 0], slow[:, 1], slow[:, 1] - slow[:, 0])
    for (_, low, high), values in zip(ends, expected, strict=True):
        a, b = np.quantile(values, [0.025, 0.975])
        assert (low, high) == pytest.approx((a, b), abs=0.2 * (b - a))
    points = [spearmanr(values, truth).statistic for values in (full, own)]
    assert [end[0] for end in ends] == pytest.approx([*points, points[1] - points[0]])
    assert ends[2][2] - ends[2][1] < 0.7 * (ends[1][2] - ends[1][1])
    # Single pairs would count the effect of a group five times, and √5 is 2.2.
    alone = dataclasses.replace(half, groups=np.arange(300)).compared(full, own, 0)
    for wide, narrow in zip(ends, alone, strict=True):
        assert wide[2] - wide[1] > 1.5 * (narrow[2] - narrow[1])


def dealt_task(pairs, tokenizer, seed=0):
    return scored.deal(load(tiny("bert"), tokenizer=tokenizer), scored.read_pairs(pairs), LENGTH, 16, seed)


def test_a_group_is_what_shares_a_text(with_pairs, tokenizer):
    """Pairs that share a text have one number; each of the 220 others has its own."""
    pairs = with_pairs[1]
    task = dealt_task(pairs, tokenizer)
    sizes = []
    for half, some in zip((task.select, task.test), halves(pairs, tokenizer), strict=True):
        owner = {}
        for pair, group in zip(some, half.groups, strict=True):
            assert all(owner.setdefault(text, group) == group for text in pair[:2])
        sizes += np.bincount(half.groups).tolist()
    assert sorted(sizes) == [1] * 220 + [3] * 10


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_text_in_many_pairs_counts_little(seed, tokenizer):
    """One text is in 400 pairs: of 300 + 7 pairs its group has at most 1/40, and with 100 other pairs it is refused."""
    pairs = drawn(700)
    pairs[:400] = [("w1 w2", second, score) for _, second, score in pairs[:400]]
    task = dealt_task(pairs, tokenizer, seed)
    sizes = [np.bincount(half.groups) for half in (task.select, task.test)]
    assert sum(map(sum, sizes)) == 307
    assert max(map(max, sizes)) == 7
    with pytest.raises(ms.BadInput, match="102 of 500"):
        dealt_task(pairs[:500], tokenizer, seed)
    sixes = [(f"w{i % 40} w7 w{i % 40}", second, score) for i, (_, second, score) in enumerate(drawn(240))]
    for half in (few := dealt_task(sixes, tokenizer, seed)).select, few.test:
        assert len(np.bincount(half.groups)) == 20
        assert np.isfinite(half.compared(half.scores, half.scores, seed)).all()


def test_pairs_without_a_meaning_choose_nothing(with_pairs, plain, tokenizer, many_texts):
    """Random scores: the first sentence says so, and the layer is that of a choice without labels."""
    found = with_pairs[0]
    assert found.full_select_task[1] <= 0 <= found.full_select_task[2]
    assert found.builder.task is None
    assert not found.pairs_choose
    assert found.removals == plain.removals
    assert found.sentences()[0].startswith("Warning")
    below = dataclasses.replace(found, full_select_task=(-0.5, -0.6, -0.4))
    good = dataclasses.replace(found, full_select_task=(0.5, 0.4, 0.6))
    assert "below 0" in below.sentences()[0]
    assert not good.sentences()[0].startswith("Warning")
    assert sum("Layers were chosen by" in words for words in good.sentences()) == 1
    assert not any("Layers were chosen by" in words for words in found.sentences())
    with pytest.raises(ms.BadInput, match="not surely above 0"):
        asked(tokenizer, with_pairs[1], texts=many_texts, target="task_difference >= -0.01")


def test_texts_of_the_test_pairs_are_not_fitted(tokenizer, many_texts):
    """Texts of both halves are given as texts, some with more blanks."""
    pairs = drawn(200)
    texts = [f" {text} " for pair in pairs for text in pair[:2]]
    found = asked(tokenizer, pairs, texts=texts, neurons=0.25)
    task = dealt_task(pairs, tokenizer)
    seen = {
        tuple(row[mask].tolist())
        for batch in (*found.builder.fit, *found.builder.select)
        for row, mask in zip(batch.inputs["input_ids"], batch.mask, strict=True)
    }
    tested, chosen_by = (
        {tuple(tokenizer(text, truncation=True, max_length=LENGTH)["input_ids"]) for pair in half for text in pair[:2]}
        for half in reversed(halves(pairs, tokenizer))
    )
    assert task.test.tokens() == tested
    assert not seen & tested
    assert len(seen & chosen_by) > 100
    mine = [text for pair in halves(pairs, tokenizer)[1] for text in pair[:2]]
    with pytest.raises(ms.BadInput, match="except 30"):
        asked(tokenizer, pairs, texts=[*mine, *many_texts[:30]], neurons=0.25)


@pytest.mark.parametrize("seed", [0, 1])
def test_pairs_that_share_a_text_stay_in_one_half(seed, with_pairs, tokenizer):
    """Also through another pair, and where texts differ in blanks, or beyond the cut, only."""
    pairs = list(with_pairs[1])
    long = " ".join(WORDS[:40])
    pairs += [(f"{long} w{i}", f"  {pairs[60 + 2 * i][0]} ", 2.0 + i) for i in range(3)]
    dealt = halves(pairs, tokenizer, seed)
    ids = [{tuple(tokenizer(t)["input_ids"][: LENGTH - 1]) for p in half for t in p[:2]} for half in dealt]
    assert not ids[0] & ids[1]
    assert sorted(dealt[0] + dealt[1]) == sorted(pairs)
    assert abs(len(dealt[0]) - len(dealt[1])) <= 10
    assert halves(pairs, tokenizer, seed + 2) != dealt


def test_columns_follow_only_with_pairs(plain, with_pairs, tmp_path):
    found = with_pairs[0]
    assert tuple(found.options.columns) == (*plain.options.columns, *TASK_COLUMNS)
    assert plain.full_task is None
    for result in (plain, found):
        result.save(tmp_path)
        again = ms.Compression.load(tmp_path)
        assert again.full_task == result.full_task
        assert again.sentences() == result.sentences()
        assert list(again.options.columns) == list(result.options.columns)
    old = json.loads((tmp_path / "compress.json").read_text())
    del old["full_task"], old["full_select_task"]
    (tmp_path / "compress.json").write_text(json.dumps(old))
    assert ms.Compression.load(tmp_path).full_task is None


def planted(found, task, select, speed=(2.0, 3.0, 4.0)):
    """Three options with planted scores on both halves."""
    rows = pd.concat([found.options] * 3, ignore_index=True)
    for name, values in (("task", task), ("task_difference", np.array(task) - found.full_task[0])):
        rows[name] = values
    rows["select_task"], rows["select_task_difference"] = select, np.array(select) - 0.8
    rows["speed"] = speed
    surely = (0.8, 0.7, 0.9)
    return dataclasses.replace(found, options=rows, removals=found.removals * 3, chosen=None, full_select_task=surely)


def test_targets_read_the_lower_ends_on_the_first_half(with_pairs, plain):
    found = planted(with_pairs[0], task=(0.9, 0.9, 0.1), select=(0.8, 0.79, 0.7))
    assert found.choose("task >= 0.75").chosen == 1
    assert found.choose("task_difference >= -0.005").chosen == 0
    assert found.choose("task-difference >= -0.2").chosen == 2
    assert not found.choose("task >= 0.65").met
    assert found.choose("task >= 0.75").met
    assert found.choose("speed >= 2.5").chosen == 1
    for target, where in (
        ("task >= 0.75", "pairs"),
        ("speed > 2", "texts"),
        ("task > 0 and cosine > -1", "texts and pairs"),
    ):
        assert any(f"on the test {where} too" in words for words in found.choose(target).sentences())
    assert found.choose("task_difference >= 0.1").chosen is None
    with pytest.raises(ms.BadInput, match="--pairs"):
        plain.choose("task >= 0.5")


@pytest.mark.slow
def test_a_journal_of_other_pairs_is_not_used(tokenizer, many_texts, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "plan", lambda *_: [Recipe(neurons=0.25)])
    made = []
    original = study.Builder.make
    monkeypatch.setattr(study.Builder, "make", lambda self, recipe: made.append(recipe) or original(self, recipe))
    pairs = drawn(200)
    changed = [(*pairs[0][:2], 0.123), *pairs[1:]]
    first = asked(tokenizer, pairs, texts=many_texts, resume=tmp_path)
    again = asked(tokenizer, iter(pairs), texts=many_texts, resume=tmp_path)
    assert again.options["task"].tolist() == first.options["task"].tolist()
    assert len(made) == 1
    for other in (changed, None, pairs):
        asked(tokenizer, other, texts=many_texts, resume=tmp_path)
    assert len(made) == 4


def test_the_command_and_its_files(tokenizer, many_texts, file, tmp_path):
    tiny("bert").save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join(many_texts), encoding="utf-8")
    out = tmp_path / "out"
    given = (tmp_path / "model", "--texts", tmp_path / "texts.txt", "--length", LENGTH, "--out", out)
    result = invoke(*given, "--layers", 1, "--pairs", file, "--json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    row, full = shown["options"][0], shown["full_task"][0]
    said = next(words for words in shown["sentences"] if f"{full:.3f}" in words)
    assert f"{row['task']:.3f}" in said
    assert "100 test pairs" in said
    for path in (out / "report.html", out / "model" / "README.md"):
        text = path.read_text(encoding="utf-8")
        assert f"{full:.3f}" in text
        assert f"{row['task']:.3f}" in text
    refused = invoke(*given, "--target", "task >= 0.1")
    assert refused.exit_code == 2
    assert "--pairs" in refused.stderr


def bad(**fields):
    return json.dumps({"sentence1": "w1 w2", "sentence2": "w3", "score": 0.5} | fields)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("no json", "line 201.*not JSON"),
        ("[1, 2]", "line 201.*sentence1"),
        ('{"sentence1": "w1", "sentence2": "w2"}', "line 201.*score"),
        (bad(score="4.2"), "line 201.*str"),
        (bad(score=True), "line 201.*bool"),
        (bad(score=float("nan")), "line 201.*nan"),
        (bad(score=float("inf")), "line 201.*inf"),
        ('{"sentence1": "w1", "sentence2": "w2", "score": 1' + "0" * 400 + "}", "line 201.*finite"),
        (bad(sentence2=7), "line 201.*int"),
        (bad(sentence1=" "), "line 201.*blank"),
        (bad(sentence1="a\0b"), "line 201.*NUL"),
        (bad(sentence1="[SEP]"), "line 201.*special tokens"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(line, words, file, tokenizer, many_texts, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(f"{file.read_text()}\n{line}\n", encoding="utf-8")
    with pytest.raises(ms.BadInput, match=words) as error:
        asked(tokenizer, path, texts=many_texts, layers=1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (drawn(199), "199 scored pairs"),
        ([(a, b, 3) for a, b, _ in drawn(200)], "every pair is 3"),
        ([(a, b, 1 + (i == 7)) for i, (a, b, _) in enumerate(drawn(200))], "different scores"),
        ([(f"w{i % 9} w{i // 9}", f"w{(i + 1) % 9}", i) for i in range(200)], "share"),
        ([("w1", "w2")] * 200, "pair 0 is not"),
        ("w1 w2 0.5", "jsonl"),
        ("nowhere.jsonl", "nowhere.*file of pairs"),
        (["w1w"] * 200, "pair 0 is not"),
        (3, "int"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_pairs_are_refused(pairs, words, tokenizer, many_texts):
    with pytest.raises(ms.BadInput, match=words):
        asked(tokenizer, pairs, texts=many_texts, layers=1)


def test_pairs_are_read_before_the_model():
    with pytest.raises(ms.BadInput, match="scored pairs"):
        ms.compress("no/such/model", ["w1"], pairs=drawn(3))


def test_many_pairs_are_cut(tokenizer, many_texts, monkeypatch):
    monkeypatch.setattr(scored, "MOST", 80)
    found = asked(tokenizer, drawn(200), texts=many_texts, neurons=0.25)
    assert (found.counts["select_pairs"], found.counts["test_pairs"]) == (80, 80)
    assert any("Of your 200 pairs 160 were used" in words for words in found.sentences())


def test_numbers_of_numpy_are_numbers(tokenizer):
    given = [(a, b, np.float32(score)) for a, b, score in drawn(200)]
    assert [pair.score for pair in scored.read_pairs(given)] == [float(score) for *_, score in given]
