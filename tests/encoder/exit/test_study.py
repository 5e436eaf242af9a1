"""The whole study on small encoders: hidden states, the truncated model, words and files."""

import json
import random
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import transformers

from metastable.encoder.compress.surgery import first_layers
from metastable.encoder.exit import per_text
from metastable.encoder.exit.report import render
from metastable.encoder.exit.result import Exit
from metastable.encoder.exit.study import exit_layer, pooled_states
from metastable.encoder.load import load
from metastable.errors import BadInput
from tests.conftest import WORDS
from tests.encoder.models import tiny

FAMILIES = ("bert", "roberta", "distilbert", "albert", "electra-mapped", "mpnet", "deberta-v2", "modernbert")


REFERENCE = {"cls": lambda h: h[0], "mean": lambda h: h.mean(0), "max": lambda h: h.max(0)[0]}


def pooled_output(encoder, texts, pooling):
    """One text at a time, so without padding."""
    rows = []
    for text in texts:
        inputs = dict(encoder.tokenizer(text, return_tensors="pt"))
        with torch.no_grad():
            hidden = encoder.private().model(**inputs).last_hidden_state[0]
        rows.append(REFERENCE[pooling](hidden).numpy())
    return np.stack(rows)


@pytest.mark.parametrize("case", FAMILIES)
def test_a_depth_is_what_a_truncated_model_returns(case, tokenizer):
    texts = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11 w12", "w13 w14"]
    encoder = load(tiny(case), tokenizer=tokenizer)
    for pooling in REFERENCE:
        numbers, features = pooled_states(encoder, texts, pooling)
        assert numbers.tolist() == [0, 1, 2, 3]
        for layers in (1, 2, 3):
            wanted = pooled_output(first_layers(encoder, layers), texts, pooling)
            np.testing.assert_allclose(features[:, layers], wanted, atol=2e-5)
        if case != "modernbert":
            inputs = dict(tokenizer(texts[0], return_tensors="pt"))
            with torch.no_grad():
                states = encoder.private().model(**inputs, output_hidden_states=True).hidden_states
            first = states[0][0]
            np.testing.assert_allclose(features[0, 0], REFERENCE[pooling](first), atol=2e-5)


def data(many, seed=0):
    """Texts of two classes: whether a word of the first half of the vocabulary comes first."""
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(many)]
    return texts, ["low" if int(text.split()[0][1:]) < 40 else "high" for text in texts]


@pytest.fixture(scope="module")
def found(tokenizer):
    texts, labels = data(120)
    return exit_layer(tiny("bert"), [*texts, " "], [*labels, "low"], tokenizer=tokenizer, loss=0.1)


def test_the_result_is_complete(found):
    assert found.depth == 3
    assert 1 <= found.layer <= 3
    assert len(found.fold_layers) == 5
    assert found.counts == {
        **{"texts": 120, "documents": 0, "skipped": 1, "cut": 0},
        **{"tokens": found.counts["tokens"], "special": 240, "unknown": 0},
    }
    assert found.first == 1
    assert found.layers["depth"].tolist() == [0, 1, 2, 3]
    assert found.rules["rule"].tolist() == ["earliest", "best", "full"]
    for name in ("accuracy", "macro_f1"):
        for table in (found.layers, found.rules):
            assert (table[f"{name}_low"] <= table[name]).all()
            assert (table[name] <= table[f"{name}_high"]).all()
    assert found.of_depth(3, difference=True) == (0.0, 0.0, 0.0)
    assert found.of_rule("full") == found.of_depth(3)
    assert found.baseline == pytest.approx(max(np.mean([label == "low" for label in data(120)[1]]), 0.5), abs=0.2)


def test_the_same_call_gives_the_same_numbers(found, tokenizer):
    texts, labels = data(120)
    again = exit_layer(tiny("bert"), texts, labels, tokenizer=tokenizer, loss=0.1)
    pd.testing.assert_frame_equal(again.layers, found.layers)
    assert again.fold_layers == found.fold_layers
    np.testing.assert_array_equal(again.probe.weight, found.probe.weight)


def chosen(found, layer, change=(0.0, -0.001, 0.001), score=(0.9, 0.88, 0.92)):
    """The same result with another layer and other numbers for it and for the rule."""

    def changed(table, rows):
        table = table.copy()
        for name, ends in (("accuracy", score), ("accuracy_difference", change)):
            for end, value in zip(("", "_low", "_high"), ends, strict=True):
                table.loc[rows, name + end] = value
        return table

    rows = found.layers["depth"] == (layer if layer < found.depth else found.depth - 1)
    known = replace(found, layer=layer, fold_layers=(layer,) * 5, baseline=0.1)
    full = found.layers["depth"] == found.depth
    layers = changed(found.layers, rows)
    layers.loc[~rows & ~full, "accuracy"] = 0.1
    rules = changed(found.rules, found.rules["rule"] == "earliest") if layer < found.depth else found.rules
    return replace(known, layers=layers, rules=rules)


@pytest.mark.parametrize(
    ("layer", "change", "verdict", "words"),
    [
        (2, (-0.003, -0.012, 0.006), "enough", "Layer 2 of 3 is enough"),
        (2, (-0.05, -0.2, 0.006), "undecided", "not excluded"),
        (2, (-0.3, -0.4, -0.2), "needed", "Full depth is needed"),
        (3, (-0.3, -0.4, -0.2), "needed", "Full depth is needed"),
        (3, (-0.01, -0.05, 0.02), "kept", "Full depth is chosen"),
    ],
)
def test_the_headline_claims_what_the_interval_says(layer, change, verdict, words, found):
    case = chosen(found, layer, change)
    assert case.verdict == verdict
    assert words in case.headline()
    assert f"{change[1]:+.3f} to {change[2]:+.3f}".replace("-", "−") in case.headline()
    assert case.truncates == (verdict in ("enough", "undecided"))
    assert case.headline() == case.sentences()[0]


def test_labels_that_cannot_be_predicted(found):
    case = replace(chosen(found, 2, score=(0.5, 0.4, 0.6)), baseline=0.99)
    assert case.verdict == "unpredictable"
    assert "0.990" in case.headline()
    assert not case.truncates


def test_the_worse_of_rule_and_layer_is_quoted(found):
    case = chosen(found, 2, (-0.01, -0.2, 0.05))
    rules = case.rules.copy()
    rules.loc[rules["rule"] == "earliest", "accuracy_difference_low"] = -0.01
    mixed = replace(case, rules=rules, fold_layers=(2, 2, 2, 1, 3))
    assert not mixed.by_rule
    assert mixed.verdict == "undecided"
    said = mixed.sentences()[1]
    assert "layer 2 in 3 of 5, layer 1 in 1 of 5 and layer 3 in 1 of 5 repetitions." in said
    assert "The scores above are those of layer 2 for all texts." in said
    assert "the difference is −0.010, 95 % interval −0.010 to +0.050." in said
    rules.loc[rules["rule"] == "earliest", "accuracy_difference_low"] = -0.3
    said = replace(mixed, rules=rules).sentences()[1]
    assert "In the scores above, each text is predicted from the layer that was chosen without it." in said
    assert "With layer 2 for all texts, the difference is −0.010, 95 % interval −0.200 to +0.050." in said


def test_scores_in_words_are_those_of_the_headline(found):
    case = chosen(found, 2)
    layers = case.layers.copy()
    layers.loc[layers["depth"] == 2, ["macro_f1", "accuracy_difference_low"]] = (0.777, -0.5)
    assert not replace(case, layers=layers).by_rule
    said = replace(case, layers=layers).sentences()[3]
    assert said.startswith("For the same predictions, macro-F₁ is 0.777, and ")
    assert "If the layer with the best score is chosen" in case.sentences()[4]
    assert not any("best score" in said for said in replace(case, loss=0.0).sentences())


@pytest.mark.parametrize(
    ("score", "change", "best", "words"),
    [
        (0.904, (0.001, -0.002, 0.004), 0.9, ": this task barely needs the encoder."),
        (0.904, (-0.005, -0.018, 0.008), 0.91, ": this task barely needs the encoder."),
        (0.904, (0.03, -0.05, 0.11), 0.9, ": this task may barely need the encoder."),
        (0.904, (-0.01, -0.05, 0.03), 0.9, None),
        # A layer in the middle is better than both ends.
        (0.904, (0.001, -0.002, 0.004), 0.96, None),
    ],
)
def test_a_task_that_barely_needs_the_encoder(score, change, best, words, found):
    case = replace(chosen(found, 2), loss=0.02)
    layers, rules = case.layers.copy(), case.rules.copy()
    layers.loc[layers["depth"] == 0, "accuracy"] = score
    for end, value in zip(("", "_low", "_high"), change, strict=True):
        layers.loc[layers["depth"] == 0, f"accuracy_difference{end}"] = value
    rules.loc[rules["rule"] == "best", "accuracy"] = best
    said = [one for one in replace(case, layers=layers, rules=rules).sentences() if "before the first layer" in one]
    assert len(said) == (words is not None)
    assert all(one.startswith("The embeddings before the first layer have accuracy 0.904") for one in said)
    assert all(one.endswith(words) for one in said)


def test_exits_per_text_in_words(found):
    assert found.per_text is None
    assert str(5 * per_text.needed(0.1)) in found.sentences()[-1]
    for numbers, offered, words in (
        ((1.25, 1.75, (-0.5, -0.6, -0.4)), False, "do not clearly save more"),
        ((1.25, 1.0, (0.25, -0.1, 0.6)), False, "do not clearly save more"),
        ((2.1, 1.0, (1.1, 0.9, 1.3)), False, "no threshold passed the test"),
        ((2.1, 1.0, (1.1, 0.9, 1.3)), True, "all layers up to its own exit"),
    ):
        sentence = replace(found, per_text=per_text.PerText(*numbers, 0.8, 0.81, offered))._per_text()
        assert words in sentence
        assert f"save {numbers[0]:.2f} layers per text, and the fixed layer saves {numbers[1]:.2f}" in sentence
        assert ("not offered" in sentence) == (not offered)
    assert "regression" in replace(found, task="numbers")._per_text()
    assert "loss of 0" in replace(found, loss=0.0).sentences()[-1]


def test_files(found, tmp_path):
    case = chosen(found, 2)
    written = case.save(tmp_path / "out")
    names = ["exit.json", "layers.csv", "model", "probe.json", "report.html"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    saved = json.loads(written["exit"].read_text(encoding="utf-8"), parse_constant=lambda word: pytest.fail(word))
    assert saved["schema"] == "metastable.exit/1"
    assert saved["layer"] == 2
    assert saved["sentences"] == case.sentences()
    pd.testing.assert_frame_equal(pd.read_csv(written["layers"]), case.layers, check_dtype=False)
    again = Exit.load(tmp_path / "out")
    pd.testing.assert_frame_equal(again.layers, case.layers)
    assert again.to_dict() == case.to_dict()
    assert again.probe.to_dict() == case.probe.to_dict()
    page = written["report"].read_text(encoding="utf-8")
    assert case.headline() in page
    words = " ".join(page.split("</script>")[-1].split())
    assert "it is no encoder, and is therefore not chosen" in words
    assert "paired bootstrap, 1.5 times as wide, because the probes themselves vary" in words
    assert "At least 40 different texts are needed, and at least 5 for each class." in words
    assert "An exit before" not in words
    assert "http://" not in page.split("</script>")[-1]


@pytest.mark.parametrize(
    ("layer", "change", "baseline", "mark"),
    [
        (2, (-0.003, -0.012, 0.006), 0.1, "chosen"),
        (3, (-0.3, -0.4, -0.2), 0.1, "chosen"),
        (2, (-0.3, -0.4, -0.2), 0.1, "not enough"),
        (2, (-0.003, -0.012, 0.006), 0.99, None),
    ],
)
def test_the_report_marks_what_the_headline_says(layer, change, baseline, mark, found):
    page = render(replace(chosen(found, layer, change), baseline=baseline))
    assert re.findall(r"<td>(\d \(.*?\))</td>", page) == ([f"{layer} ({mark})"] if mark else [])
    assert (f'"layer {layer}, {mark}"' in page) == (mark is not None)
    assert ("The large point is" in page) == (mark is not None)


def test_the_model_on_disk_is_the_first_layers(found, tokenizer, tmp_path):
    case = chosen(found, 2)
    folder = case.save(tmp_path / "out")["model"]
    model, own = (kind.from_pretrained(folder) for kind in (transformers.AutoModel, transformers.AutoTokenizer))
    assert model.config.num_hidden_layers == 2
    inputs = own("w1 w2 w3 w4", return_tensors="pt")
    with torch.no_grad():
        short = model.eval()(**inputs).last_hidden_state
        states = tiny("bert")(**inputs, output_hidden_states=True).hidden_states
    torch.testing.assert_close(short, states[2], atol=1e-5, rtol=1e-5)
    assert case.headline() in (folder / "README.md").read_text(encoding="utf-8")


def test_full_depth_leaves_no_model_of_an_earlier_result(found, tmp_path):
    chosen(found, 2).save(tmp_path)
    written = chosen(found, 3, (-0.3, -0.4, -0.2)).save(tmp_path)
    assert "model" not in written
    assert not (tmp_path / "model").exists()


def test_a_folder_model_of_something_else_is_left_alone(found, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.txt").write_text("mine", encoding="utf-8")
    chosen(found, 3, (-0.3, -0.4, -0.2)).save(tmp_path)
    assert (tmp_path / "model" / "mine.txt").is_file()


def test_exits_per_text_are_saved(found, tmp_path):
    exits = per_text.PerText(2.0, 1.0, (1.0, 0.8, 1.2), 0.9, 0.9, True, 0.9, (found.probe,) * 3)
    replace(found, per_text=exits, encoder=None).save(tmp_path)
    again = Exit.load(tmp_path / "exit.json").per_text
    assert again.threshold == 0.9
    assert again.gain == exits.gain
    np.testing.assert_array_equal(again.probes[2].weight, found.probe.weight)
    saved = json.loads((tmp_path / "probe.json").read_text(encoding="utf-8"))
    assert [probe["layer"] for probe in saved["per_text"]] == [1, 2, 3]


def test_only_impossible_exits_are_excluded(tokenizer, tmp_path):
    """A convolution joins the first two layers."""
    texts, labels = data(60)
    case = exit_layer(tiny("deberta-v2-conv"), texts, labels, tokenizer=tokenizer, loss=0.9)
    assert case.first == 2
    assert case.layer == 2
    assert case.best_earlier == 2
    case.save(tmp_path)
    assert Exit.load(tmp_path).first == 2
    assert "An exit before layer 2 is not possible" in (tmp_path / "report.html").read_text(encoding="utf-8")
    encoder = load(tiny("deberta-v2-conv"), tokenizer=tokenizer)
    features = pooled_states(encoder, texts[:4], "mean")[1]
    np.testing.assert_allclose(features[:, 2], pooled_output(first_layers(encoder, 2), texts[:4], "mean"), atol=2e-5)


def test_numbers_and_documents(tokenizer):
    texts, _ = data(100)
    labels = [int(text.split()[0][1:]) / 7 for text in texts]
    owners = [f"document {i // 2}" for i in range(100)]
    steps = []
    case = exit_layer(
        tiny("bert"), texts, labels, documents=owners, tokenizer=tokenizer, pooling="cls", progress=steps.append
    )
    assert case.task == "numbers"
    assert case.counts["documents"] == 50
    assert case.score == "spearman"
    assert case.pooling == "cls"
    assert case.per_text is None
    assert steps == sorted(steps)
    assert steps[-1] > 100


def test_a_broken_file_is_one_line(tmp_path):
    for content in ("[", '{"schema": "other"}', '{"schema": "metastable.exit/1"}'):
        (tmp_path / "exit.json").write_text(content, encoding="utf-8")
        with pytest.raises(BadInput, match=r"exit\.json"):
            Exit.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": 1.0}, "loss"),
        ({"loss": float("nan")}, "loss"),
        ({"seed": -1}, "seed"),
        ({"batch_size": 0}, "batch"),
        ({"pooling": "last"}, "mean"),
        ({"labels": None}, "without labels"),
        ({"texts": "nowhere.jsonl"}, "beside a file"),
        ({"texts": "nowhere.jsonl", "labels": None}, "cannot be read"),
        ({"tokenizer": None}, "tokenizer"),
        ({"model": tiny("bert", num_hidden_layers=1)}, "one layer"),
        ({"model": tiny("albert-groups")}, "has no exit before full depth"),
        ({"model": tiny("deberta-v2-conv", num_hidden_layers=2)}, "has no exit before full depth"),
    ],
)
def test_bad_input_is_one_line(change, words, tokenizer):
    texts, labels = data(60)
    given = {"model": tiny("bert"), "texts": texts, "labels": labels, "tokenizer": tokenizer, **change}
    with pytest.raises(BadInput, match=words) as refused:
        exit_layer(given.pop("model"), given.pop("texts"), given.pop("labels"), **given)
    assert "\n" not in str(refused.value)


def test_texts_of_special_tokens_only_are_left_out(tokenizer):
    texts, labels = data(60)
    case = exit_layer(tiny("bert"), ["[SEP] [MASK]", *texts], ["low", *labels], tokenizer=tokenizer)
    assert case.counts["texts"] == 60
    assert case.counts["skipped"] == 1


def test_the_model_of_the_host_is_not_touched(tokenizer):
    model = tiny("bert").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    texts, labels = data(60)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    exit_layer(model, texts, labels, tokenizer=tokenizer)
    assert model.training
    assert model.config.num_hidden_layers == 3
    assert (torch.get_rng_state() == state).all()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
