"""The history of a training: its numbers, its file, its warning, and that the training does not notice it."""

import copy
import json
import logging
import os
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import metastable as ms
from metastable.encoder.history.collapse import collapses, together, unseen, warning
from metastable.encoder.history.history import FILE, FIRST
from metastable.encoder.history.report import DRAWN
from tests.encoder.models import tiny


@pytest.fixture
def small():
    """A BERT with dropout, in training mode."""
    model = tiny("bert", hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    return model.train()


@pytest.fixture
def history(small, texts, tokenizer, tmp_path):
    return ms.History(small, texts[:6], tokenizer=tokenizer, out=tmp_path / "h", every=2)


def train(model, steps, after=lambda: None, rate=1e-3, seed=0):
    """A plain loop with dropout; returns its losses."""
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for _ in range(steps):
        ids = torch.randint(5, 80, (4, 9))
        # Which of two words is in the text: a small task with an answer.
        score = model(input_ids=ids).last_hidden_state[:, 0].mean(dim=-1)
        loss = nn.functional.binary_cross_entropy_with_logits(score, (ids[:, 1] > 40).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after()
    return losses


def spread(model):
    """Take away what all tokens share in the embeddings: a small random encoder makes all texts alike by that."""
    with torch.no_grad():
        for weight in (model.embeddings.LayerNorm.bias, model.embeddings.position_embeddings.weight):
            weight.zero_()
        model.embeddings.token_type_embeddings.weight.zero_()
    return model


def merge(model):
    """Add one vector to all tokens, so that all of them point in its direction."""
    with torch.no_grad():
        model.embeddings.LayerNorm.bias.add_(5.0)


def test_a_plain_loop_is_the_same_with_and_without_a_history(small, texts, tokenizer, tmp_path):
    other = copy.deepcopy(small)
    plain = train(other, 5)
    history = ms.History(small, texts[:6], tokenizer=tokenizer, out=tmp_path / "h", every=2)
    assert train(small, 5, history.step) == plain
    assert history.steps == [0, 2, 4]
    assert history.failures == 0
    assert all(module.training for module in small.modules())
    for one, two in zip(small.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert one.grad is None or torch.equal(one.grad, two.grad)


def test_a_record_has_the_numbers_of_an_audit(small, texts, tokenizer, history):
    train(small, 2, history.step)
    audit = ms.audit(small, texts[:6], tokenizer=tokenizer, beside_random=False)
    last = history.table[history.table["step"] == 2].set_index("depth")
    medians = audit.heads.groupby("layer")[["beta", "gap", "value_norm", "value_rank", "entropy"]].median()
    for name, column in medians.items():
        assert last[name][:3].to_numpy() == pytest.approx(column.to_numpy(), rel=1e-9), name
        assert np.isnan(last[name][3])
    layers = audit.layers.set_index("depth")
    for name in ("hidden_cosine", "effective_rank", "effective_rank_low", "hidden_cosine_high"):
        assert last[name].to_numpy() == pytest.approx(layers[name].to_numpy(), rel=1e-9), name


def test_the_change_of_the_weights_is_that_of_the_whole_matrices(small, texts, tokenizer, tmp_path):
    before = {name: value.clone() for name, value in small.state_dict().items()}
    history = ms.History(small, texts[:6], tokenizer=tokenizer, out=tmp_path, every=1)
    assert (history.table[["attention_change", "perceptron_change"]].dropna() == 0).all(axis=None)
    with torch.no_grad():
        noise = torch.Generator().manual_seed(0)
        for layer, size in ((0, 0.01), (2, 0.3)):
            for name, weight in small.encoder.layer[layer].named_parameters():
                if "attention" in name:
                    weight.add_(size * torch.randn(weight.shape, generator=noise))
        small.encoder.layer[1].intermediate.dense.weight.mul_(1.5)
    history.step()
    last = history.table[history.table["step"] == 1].set_index("depth")
    parts = {
        "attention_change": (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
        ),
        "perceptron_change": ("intermediate.dense", "output.dense"),
    }
    now = small.state_dict()
    for column, names in parts.items():
        for layer in range(3):
            keys = [f"encoder.layer.{layer}.{name}.weight" for name in names]
            first = torch.cat([before[key].reshape(-1) for key in keys])
            moved = torch.cat([now[key].reshape(-1) for key in keys]) - first
            assert last[column][layer] == pytest.approx(float(moved.norm() / first.norm()), rel=0.05), (column, layer)
    assert last["attention_change"][1] == 0


def test_texts_that_come_together_are_warned_of_once(small, texts, tokenizer, tmp_path, caplog):
    history = ms.History(spread(small), texts[:12], tokenizer=tokenizer, out=tmp_path, every=2)
    with caplog.at_level(logging.WARNING):
        history.step(2)
        assert not history.warnings
        merge(small)
        history.step(4)
        history.step(6)
    assert len(history.warnings) == 1
    assert history.warnings[0].startswith("step 4: ")
    assert len([r for r in caplog.records if r.name.startswith("metastable")]) == 1
    lines = [json.loads(line) for line in (history.folder / FILE).read_text().splitlines()]
    assert [line["warning"] is not None for line in lines if "step" in line] == [False, False, True, True]
    assert history.sentences()[0].startswith("Texts have collapsed")
    assert history.phases == [(4, None)]
    page = history.report().read_text(encoding="utf-8")
    assert 'id="warnings"' in page
    assert page.count(history.sentences()[0]) == 1


def test_an_ordinary_training_is_not_warned_of(small, texts, tokenizer, tmp_path):
    history = ms.History(spread(small), texts[:12], tokenizer=tokenizer, out=tmp_path, every=4)
    train(small, 8, history.step)
    assert history.table["attention_change"].max() > 0.003
    assert not history.warnings


def test_a_rule_by_hand():
    """Halved variety with disjoint intervals is a collapse; overlapping intervals or three fifths are none."""

    def rows(texts, tokens=0.2, rank=9.0, reach=0.01):
        found = {"depth": 0}
        for name, value, width in (
            ("text_cosine", texts, reach),
            ("hidden_cosine", tokens, reach),
            ("effective_rank", rank, 10 * reach),
        ):
            found |= {name: value, f"{name}_low": value - width, f"{name}_high": value + width}
        return pd.DataFrame([found])

    first = rows(0.2)
    assert not collapses(first, first)
    assert not collapses(first, rows(0.52))
    assert [loss.left for loss in collapses(first, rows(0.7))] == [pytest.approx(0.375)]
    assert not collapses(first, rows(0.7, reach=0.6))
    assert not collapses(first, rows(0.7, reach=float("nan")))
    assert not collapses(rows(0.9), rows(0.1))
    assert not collapses(rows(0.92), rows(0.99, reach=0.001))
    # Where the rule cannot warn, it says so.
    assert not unseen(first, rows(0.99))
    for hidden in (rows(0.92), rows(0.2, reach=0.8), rows(float("nan"))):
        assert list(unseen(hidden, rows(0.99)).values()) == [[0]]
    assert list(unseen(first, rows(float("nan"))).values()) == [[0]]
    assert warning(first, rows(0.94)) != warning(first, rows(0.96)).replace("0.96", "0.94")
    assert warning(first, rows(0.96)).startswith("Texts have collapsed")
    # Tokens of a text that come together are another matter.
    assert not collapses(first, rows(0.2, tokens=0.7, rank=3.0))
    assert [loss.statistic for loss in together(first, rows(0.2, tokens=0.7))] == ["hidden_cosine"]
    assert [loss.statistic for loss in together(first, rows(0.2, rank=4.0))] == ["effective_rank"]
    assert not together(first, rows(0.7, rank=5.8))
    assert not together(rows(0.2, rank=1.8), rows(0.2, rank=1.01, reach=0.001))


def test_the_cosine_of_texts_is_that_of_all_pairs(small, texts, tokenizer, history):
    """Against a plain loop over texts and pairs, on the hidden states that transformers returns."""
    means = []
    with torch.no_grad():
        for text in texts[:6]:
            states = copy.deepcopy(small).eval()(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
            means.append([state[0, 1:-1].mean(dim=0) for state in states.hidden_states])

    def cosine(kept, depth):
        pairs = [(i, j) for i in kept for j in kept if i < j]
        return np.mean([float(torch.cosine_similarity(means[i][depth], means[j][depth], dim=0)) for i, j in pairs])

    for depth, row in history.table.set_index("depth").iterrows():
        assert row["text_cosine"] == pytest.approx(cosine(range(6), depth), abs=1e-5)
        left_out = [cosine([i for i in range(6) if i != out], depth) for out in range(6)]
        reach = 2.570582 * np.sqrt(5 / 6 * np.sum((left_out - np.mean(left_out)) ** 2))
        assert row["text_cosine_high"] == pytest.approx(min(1, row["text_cosine"] + reach), abs=1e-5)
        assert row["text_cosine"] - row["text_cosine_low"] == pytest.approx(reach, abs=1e-5)


def test_a_history_comes_back_from_its_folder(small, history, tmp_path):
    train(small, 4, history.step)
    read = ms.History.load(history.folder)
    assert read.table.equals(history.table)
    assert (read.steps, read.warnings, read.sentences()) == (history.steps, history.warnings, history.sentences())
    assert read.report(tmp_path / "page.html").stat().st_size > 1_000_000
    assert read.steps == [0, 2, 4]
    for call in (read.measure, read.step):
        with pytest.raises(ms.BadInput, match="without a model"):
            call()
    with pytest.raises(ms.BadInput, match="no record"):
        ms.History.load(tmp_path)


def test_a_continued_training_keeps_what_counts(small, texts, tokenizer, history):
    first = history.table
    train(small, 6, history.step)
    with open(history.folder / FILE, "ab") as file:
        file.write(b'{"step": 8, "rows": [{"dep')  # killed in the middle of a line
    again = ms.History(small, texts[:6], tokenizer=tokenizer, out=history.folder, every=2, start=4)
    assert again.steps == [0, 2, 4]
    again.step()
    again.step()
    assert again.steps == [0, 2, 4, 6]
    read = ms.History.load(history.folder)
    assert read.table.equals(again.table)
    assert read.table[read.table["step"] == 0].equals(first)
    # The weights are those of six steps, and the change is since step 0 of the first process.
    old, new = (h.table[h.table["step"] == 6]["attention_change"].dropna().tolist() for h in (history, again))
    assert new == pytest.approx(old, rel=1e-12)
    wider = tiny("bert", intermediate_size=48)
    for model, given in ((small, texts[6:12]), (wider, texts[:6])):
        with pytest.raises(ms.BadInput, match="another folder"):
            ms.History(model, given, tokenizer=tokenizer, out=history.folder, start=4)
    for damage in (b"", (history.folder / FIRST).read_bytes()[:500]):
        (history.folder / FIRST).write_bytes(damage)
        with pytest.raises(ms.BadInput, match="another folder"):
            ms.History(small, texts[:6], tokenizer=tokenizer, out=history.folder, start=4)
    fresh = ms.History(small, texts[:6], tokenizer=tokenizer, out=history.folder)
    assert fresh.steps == ms.History.load(history.folder).steps == [0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_killed_training_keeps_its_records(history):
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        history.step(2)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert ms.History.load(history.folder).steps == [0, 2]


def test_a_second_record_of_a_step_replaces_the_first(small, history):
    history.step(2)
    merge(small)
    again = history.measure()
    assert history.steps == [0, 2]
    last = history.table[history.table["step"] == 2]
    assert last["text_cosine"].tolist() == pytest.approx(again["text_cosine"].tolist(), rel=1e-12)
    assert ms.History.load(history.folder).table.equals(history.table)
    assert history.report().exists()


def test_errors_are_counted_and_do_not_end_the_training(small, history, caplog):
    with torch.no_grad():
        small.encoder.layer[0].attention.self.query.weight[0, 0] = float("nan")
    with caplog.at_level(logging.ERROR):
        for _ in range(4):
            history.step()
        history.report()  # the step was tried already
    assert history.failures == 2
    assert history.steps == [0]
    assert len([r for r in caplog.records if r.name.startswith("metastable")]) == 1
    # The words, the page and the file tell of it: nothing looks healthy.
    read = ms.History.load(history.folder)
    assert (read.failures, read.sentences()) == (2, history.sentences())
    assert "2 records failed since step 2" in history.sentences()[0]
    assert any("NaN" in sentence for sentence in history.sentences())
    assert history.sentences()[0] in (history.folder / "report.html").read_text(encoding="utf-8")
    with pytest.raises(ms.BadInput):
        history.measure()
    # A record that succeeds takes the place of its failure, and earlier failures are still told.
    with torch.no_grad():
        small.encoder.layer[0].attention.self.query.weight[0, 0] = 0.0
    history.measure()
    assert history.steps == [0, 4]
    assert "failed" not in history.sentences()[0]
    assert any("step 2 failed" in sentence for sentence in history.sentences())
    assert history.failures == ms.History.load(history.folder).failures == 1


def test_the_encoder_is_found_inside_a_module(texts, tokenizer, tmp_path):
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = tiny("distilbert")
            self.top = nn.Linear(32, 2)

    compiled = torch.compile(tiny("bert"))
    models = (Siamese(), tiny("bert", head="ForSequenceClassification"), tiny("modernbert"), compiled)
    for i, model in enumerate(models):
        history = ms.History(model, texts[:4], tokenizer=tokenizer, out=tmp_path / str(i))
        assert len(history.table) == 4
        assert np.isfinite(history.table["hidden_cosine"]).all()


def test_bad_input(small, texts, tokenizer, tmp_path):
    good = {"tokenizer": tokenizer, "out": tmp_path}
    adapted = copy.deepcopy(small)

    class Adapter(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.weight, self.bias = base, base.weight, base.bias

    inner = adapted.encoder.layer[1].attention.self
    inner.value = Adapter(inner.value)
    for model, given, options in (
        (small, texts[:6], {"out": tmp_path}),
        (small, texts[:3], good),
        (small, [texts[0]] * 6, good),
        (small, [*texts[:3], "[SEP]"], good),
        (small, [*texts[:3], f"{texts[0]} "], good),
        (small, texts[:6], {**good, "tokenizer": 3}),
        (tiny("vit"), texts[:6], good),
        (small, " ".join(texts[:3]), good),
        (small, texts[:6], {**good, "every": 0}),
        (small, texts[:6], {**good, "tensorboard": 3}),
        (nn.Linear(2, 2), texts[:6], good),
        ("bert", texts[:6], good),
        (adapted, texts[:6], good),
    ):
        with pytest.raises(ms.BadInput):
            ms.History(model, given, **options)
    assert not (tmp_path / FILE).exists()


class Writer:
    """Stands for a SummaryWriter."""

    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))

    def flush(self):
        pass


def test_tensorboard_gets_every_finite_number(small, texts, tokenizer, tmp_path):
    writer = Writer()
    history = ms.History(small, texts[:6], tokenizer=tokenizer, out=tmp_path, every=1, tensorboard=writer)
    history.step(7)
    assert {step for _, _, step in writer.scalars} == {0, 7}
    last = history.table.set_index(["step", "depth"])
    found = {(tag, step): value for tag, value, step in writer.scalars}
    assert found["metastable/hidden_cosine/depth 3", 7] == last["hidden_cosine"][7, 3]
    assert found["metastable/beta/depth 1", 0] == last["beta"][0, 1]
    assert ("metastable/beta/depth 3", 0) not in found


def edited(history, change):
    """The history from its file after a change of every record but the first."""
    path = history.folder / FILE
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in [line for line in lines if "rows" in line][1:]:
        change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ms.History.load(history.folder)


def test_the_cost_is_told(small, texts, tokenizer, tmp_path):
    """The advice counts the steps that were made between records, not those that were asked for."""
    history = ms.History(small, texts[:6], tokenizer=tokenizer, out=tmp_path, every=500)
    assert history.overhead is None
    history._step = 30
    history.measure()
    assert history.overhead > 0
    history.measure()  # no step was made: no time of a training
    assert history.overhead is None
    for seconds, words in ((1.2, "every=180 "), (12.0, "120 %"), (3100.0, "310 times")):
        timed = {"seconds": seconds, "training_seconds": 10.0, "training_steps": 30}
        read = edited(history, lambda line, timed=timed: line.update(timed))
        assert words in read.sentences()[-1]
        assert "e+" not in read.sentences()[-1]
    page = read.report().read_text(encoding="utf-8")
    assert "one every 30 steps" in page


def test_one_record_is_compared_with_nothing_and_the_page_takes_another(small, texts, tokenizer, tmp_path):
    history = ms.History(small, texts[:6], tokenizer=tokenizer, out=tmp_path, every=100)
    assert len(history.sentences()) == 1
    assert "one record" in history.sentences()[0]
    assert "collapse" not in history.sentences()[0]
    history.step()
    history.report()
    history.report()
    assert history.steps == [0, 1]
    assert len(history.sentences()) > 1
    assert history.failures == 0


def test_the_words_tell_which_kinds_of_weights_changed(small, history):
    def sentences():
        history.step(history._step + 2)
        return history.sentences()

    inner = small.encoder.layer[1]
    with torch.no_grad():
        assert sentences()[0].startswith("No weight changed")
        inner.output.dense.bias[3] += 1e-3
        found = sentences()
        assert found[0].startswith("No weight matrix")
        assert "The embeddings did not change; biases" in found[1]
        # All texts of a small random encoder are alike from the start.
        assert "a collapse cannot be seen" in found[0]
        small.embeddings.word_embeddings.weight[79, 0] += 1e-3
        assert "The embeddings changed" in sentences()[1]
        inner.output.dense.weight[0] += 1.0
        assert sentences()[0].startswith("Layer 1 moved most")


@pytest.mark.parametrize(
    ("changes", "alike"),
    [([0.0015, 0.0012, 0.0011], True), ([0.02, 0.02, 0.0], False), ([0.02, 0.009, 0.001], False)],
)
def test_layers_that_moved_alike(history, changes, alike):
    history.step(2)

    def change(line):
        for row, value in zip(line["rows"], changes, strict=False):
            row.update(attention_change=value, perceptron_change=value)

    first = edited(history, change).sentences()[0]
    assert first.startswith("All layers") == alike
    assert ("0.11 to 0.15 %" in first) == alike


def test_the_newest_history_of_a_folder_is_the_only_one(small, texts, tokenizer, history):
    history.step(2)
    newer = ms.History(small, texts[:6], tokenizer=tokenizer, out=history.folder, every=2)
    history.step(4)
    assert (history.failures, history.steps) == (1, [0, 2])
    with pytest.raises(ms.BadInput, match="newer history"):
        history.report()
    # A record of the older one that was on its way when the newer one began.
    with open(history.folder / FILE, "a") as file:
        file.write(json.dumps({**history._records[-1], "step": 1, "run": history._header["run"]}) + "\n")
    newer.step(2)
    newer.report()
    assert (newer.failures, newer.steps) == (0, [0, 2])
    assert ms.History.load(history.folder).table.equals(newer.table)


def test_a_deleted_folder_is_written_again(small, texts, tokenizer, history):
    history.step(2)
    shutil.rmtree(history.folder)
    history.step(4)
    assert history.failures == 0
    assert ms.History.load(history.folder).table.equals(history.table)
    again = ms.History(small, texts[:6], tokenizer=tokenizer, out=history.folder, start=4)
    assert again.steps == [0, 2, 4]


def test_a_page_of_many_records_draws_some_of_them(history):
    history.step(2)
    lines = (history.folder / FILE).read_text().splitlines()
    last = json.loads(lines[-1])
    many = [json.dumps({**last, "step": step}) for step in range(4, 2001, 2)]
    (history.folder / FILE).write_text("\n".join([*lines, *many, ""]))
    read = ms.History.load(history.folder)
    assert len(read.steps) == 1001
    text = read.report().read_text(encoding="utf-8")
    assert f"{DRAWN} of the 1001 records" in text
    assert "table" not in vars(read)  # the page does not need the table of all records
