"""The checks of an audit: numbers from the tables, statuses of planted values, and the policy of the command."""

import copy
import dataclasses
import json
import math
import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import metastable as ms
from metastable.cli.app import app
from metastable.encoder import checks
from metastable.encoder.load import load
from metastable.encoder.measure import measure
from tests.conftest import WORDS
from tests.encoder.models import tiny
from tests.encoder.test_judging import tally

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def audit(tokenizer):
    texts = [" ".join(WORDS[i % 30 : i % 30 + 6 + i % 9]) for i in range(40)]
    return ms.audit(tiny("bert"), texts, tokenizer=tokenizer)


def test_the_summary_counts_and_names(audit):
    one = checks.checks(audit)[0]
    found = [dataclasses.replace(one, name=name, status=s) for name, s in (("a", "ok"), ("b", "look"), ("c", "act"))]
    assert checks.summary(found) == "1 of 3 checks are ok; act on: c; look at: b."
    assert checks.summary(found[:1] * 2) == "All 2 checks are ok."


def planted(audit, **depths):
    """The audit with other curves over depth."""
    count = audit.shape["layers"] + 1
    curves = {**audit.measured.depths, **{name: tally(curve) for name, curve in depths.items()}}
    largest = {name: [Counter({5: 40})] * count for name in ("tokens", "hidden")}
    return dataclasses.replace(audit, measured=dataclasses.replace(audit.measured, depths=curves, largest=largest))


def found(audit):
    return {check.key: check for check in audit.checks()}


def test_numbers_are_those_of_the_tables(audit):
    own = found(audit)
    layers, heads = audit.layers, audit.heads
    assert own["collapse"].number == layers["hidden_cosine"].max()
    counts = audit.measured.counts
    ordinary = (counts.tokens - counts.special) / counts.texts
    assert own["bottleneck"].number == pytest.approx(layers["effective_rank"].min() / ordinary)
    assert own["outlier"].number == layers["hidden_largest_share"].max()
    assert own["special"].number == heads["special_share"].median()
    assert own["idle"].number == (heads["update_length"] < 0.01).mean()
    assert own["step"].number == heads["value_norm"].max()
    assert own["unknown"].number == 0
    error = audit.measured.depths["hidden_cosine"].slope()[1][-1]
    assert ("length" in own) == bool(error < 0.03)
    assert own["length"].number == layers["hidden_cosine_slope"].iloc[-1]
    values = [v for _, v in audit.weights.spectra.values()]
    narrow = [(np.abs(v) ** 2).max() * (2 if abs(v[np.abs(v).argmax()].imag) > 0 else 1) for v in values]
    assert own["narrow"].number == np.mean(
        [n >= 0.5 * (np.abs(v) ** 2).sum() for n, v in zip(narrow, values, strict=True)]
    )


def embedded(model, tokenizer, texts):
    """The mean of the last hidden states of ordinary tokens, one text at a time, with plain transformers."""
    rows = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
        ordinary = inputs.pop("special_tokens_mask")[0] == 0
        with torch.no_grad():
            rows.append(model(**inputs).last_hidden_state[0][ordinary].double().mean(dim=0).numpy())
    return np.array(rows)


def test_texts_alike_against_plain_transformers(tokenizer):
    model = tiny("bert")
    texts = [" ".join(WORDS[i : i + 4 + i % 5]) for i in range(12)]
    rows = embedded(model, tokenizer, texts)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    expected = np.mean([a @ b for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j])
    encoder = load(model, tokenizer=tokenizer)
    for size in (1, 5, 32):
        assert measure(encoder, texts, size).embeddings.mean() == pytest.approx(expected, abs=1e-6)
    halves = [measure(encoder, part, 1).embeddings for part in (texts[:5], texts[5:])]
    whole = measure(encoder, texts, 1).embeddings
    assert halves[1].merge(halves[0]).to_dict() == halves[0].merge(halves[1]).to_dict() == whole.to_dict()


def test_an_encoder_that_gives_all_texts_one_embedding(tokenizer):
    model = copy.deepcopy(tiny("bert"))
    last = model.encoder.layer[-1].output.LayerNorm
    with torch.no_grad():
        last.weight.mul_(1e-3)
        last.bias.copy_(torch.linspace(-1, 1, len(last.bias)))
    texts = [" ".join(WORDS[i : i + 6]) for i in range(8)]
    check = found(ms.audit(model, texts, tokenizer=tokenizer, beside_random=False))["alike"]
    assert (check.status, check.number) == ("act", pytest.approx(1, abs=1e-3))


def test_files_without_embeddings_still_load(audit, tmp_path):
    saved = audit.to_dict()
    del saved["measured"]["embeddings"], saved["twin"]["measured"]["embeddings"]
    (tmp_path / "audit.json").write_text(json.dumps(saved))
    again = found(ms.Audit.load(tmp_path))
    assert "alike" not in again
    assert "alike" in found(audit)
    assert set(found(audit)) - set(again) == {"alike"}


@pytest.mark.parametrize(("cosine", "status"), [(0.5, "ok"), (0.85, "look"), (0.97, "act")])
def test_collapse(audit, cosine, status):
    curve = [0.1, 0.2, cosine, 0.3]
    check = found(planted(audit, hidden_cosine=curve, hidden_cosine_without=curve))["collapse"]
    assert (check.status, check.shown) == (status, f"{cosine:.2f}")
    assert "at depth 2" in check.sentence


def test_one_feature_is_no_collapse_but_an_outlier(audit):
    own = found(planted(
        audit, hidden_cosine=[0.1, 0.2, 0.3, 0.97], hidden_cosine_without=[0.1, 0.2, 0.3, 0.3],
        hidden_largest_share=[0.1, 0.1, 0.1, 0.7],
    ))  # fmt: skip
    assert (own["collapse"].status, own["outlier"].status) == ("look", "act")
    inner = found(planted(audit, hidden_cosine=[0.1, 0.5, 0.3, 0.3], hidden_cosine_without=[0.1, 0.2, 0.3, 0.3]))
    assert inner["outlier"].status == "look"
    large = found(planted(
        audit, hidden_cosine=[0.3] * 4, hidden_cosine_without=[0.3] * 4, hidden_largest_share=[0.1, 0.5, 0.1, 0.1]
    ))  # fmt: skip
    assert large["outlier"].status == "ok"
    assert "One feature makes it" in own["collapse"].sentence
    assert own["outlier"].sentence.startswith("Feature 5 holds")


@pytest.mark.parametrize(("rank", "status"), [(6.0, "ok"), (2.2, "ok"), (1.2, "act")])
def test_bottleneck(audit, rank, status):
    assert found(planted(audit, effective_rank=[8.0, 7.0, rank, 7.0]))["bottleneck"].status == status


def test_without_texts_only_the_weights_are_checked(tokenizer):
    assert set(found(ms.audit(tiny("bert")))) == {"step", "narrow", "unusual"}


def test_shared_layers_are_checked_once(tokenizer):
    texts = [" ".join(WORDS[i % 30 : i % 30 + 6 + i % 9]) for i in range(40)]
    audit = ms.audit(tiny("albert"), texts, tokenizer=tokenizer, beside_random=False)
    assert " of 4 heads " in found(audit)["narrow"].sentence
    # Head 0 is idle in every call, head 1 in the first call only.
    heads = audit.heads.assign(update_length=1.0)
    heads.loc[(heads["head"] == 0) | ((heads["head"] == 1) & (heads["layer"] == 0)), "update_length"] = 0.001
    rows = [{"layer": layer, "head": 2, "column": "entropy", "expected": 0.001} for layer in range(3)]
    audit.__dict__["heads"] = heads
    audit.__dict__["verdict"] = dataclasses.replace(audit.verdict, unusual=pd.DataFrame(rows))
    own = found(audit)
    assert own["idle"].shown == "1 of 4"
    assert own["unusual"].shown == "1 of 4"


def test_what_is_usual_comes_from_the_audited_encoders(audit):
    table = checks.usual()
    assert len(table["encoders"]) >= 6
    for key, check in found(audit).items():
        low, high = table["ranges"][key]
        assert low <= high
        assert all(math.isfinite(end) for end in (low, high))
        assert check.usual.startswith("usual: ")


def test_a_policy_decides_the_exit_code(audit, tokenizer, tmp_path, capsys):
    tiny("bert").save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    texts = tmp_path / "texts.txt"
    # One token in five is unknown, which is worth a look.
    texts.write_text("\n".join(f"{' '.join(WORDS[i : i + 8])} zzz yyy" for i in range(40)), encoding="utf-8")

    def code(*more):
        arguments = ["audit", str(tmp_path / "model"), "--texts", str(texts), "--out", str(tmp_path / "out"), *more]
        with pytest.raises(SystemExit) as ended:
            app(arguments)
        return ended.value.code, capsys.readouterr()

    strict, output = code("--policy", "strict")
    assert strict == 1
    assert "checks that fail" in output.out
    assert "unknown tokens" in output.out.splitlines()[-1]
    saved = json.loads((tmp_path / "out" / "audit.json").read_text())
    acts = [check for check in saved["checks"] if check["status"] == "act"]
    assert code("--policy", "default")[0] == (1 if acts else 0)
    assert code()[0] == 0
    assert code("--policy", "severe")[0] == 2


@pytest.mark.slow
def test_the_examples_for_continuous_integration_run(tokenizer, tmp_path, monkeypatch, capsys):
    """Their command, as it stands, passes an ordinary encoder and stops one whose tokens are one point."""
    action, hook = (
        yaml.safe_load((EXAMPLES / "ci" / name).read_text(encoding="utf-8"))
        for name in ("audit.yml", "pre-commit-config.yaml")
    )
    steps = [step["run"] for step in action["jobs"]["audit"]["steps"] if "run" in step]
    (command,) = [step for step in steps if step.startswith("metastable ")]
    assert hook["repos"][0]["hooks"][0]["entry"].partition(" --out ")[0] == command.partition(" --out ")[0]
    monkeypatch.chdir(tmp_path)
    model = tiny("bert")
    with torch.no_grad():
        # The layers of the tiny model draw tokens together; weak ones without offsets leave them apart.
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.zero_()
            elif "LayerNorm" not in name and "embeddings" not in name:
                weight.mul_(0.4)
    tokenizer.save_pretrained("encoder")
    Path("texts.txt").write_text("\n".join(" ".join(WORDS[i : i + 8]) for i in range(12)), encoding="utf-8")

    def code():
        model.save_pretrained("encoder")
        with pytest.raises(SystemExit) as ended:
            app(shlex.split(command)[1:])
        return ended.value.code

    assert code() == 0
    with torch.no_grad():
        model.encoder.layer[-1].output.LayerNorm.weight.zero_()
        model.encoder.layer[-1].output.LayerNorm.bias.fill_(1.0)
    assert code() == 1
    assert "collapse" in capsys.readouterr().out
