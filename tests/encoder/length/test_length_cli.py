"""`metastable length` as a person, a pipe and a CI meet it."""

import json
import shutil

import pandas as pd
import pytest
from typer.testing import CliRunner

from metastable.cli.app import app
from metastable.encoder.length.rung import LengthMeter
from tests.encoder.length.conftest import encoder


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, ("length", *arguments))))


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    encoder("bert").save_pretrained(made)
    tokenizer.save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def pairs(long_texts, tmp_path_factory):
    file = tmp_path_factory.mktemp("texts") / "pairs.jsonl"
    rows = [json.dumps({"query": " ".join(text.split()[:6]), "text": text}) for text in long_texts]
    file.write_text("\n".join(rows), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def plain(long_texts, tmp_path_factory):
    file = tmp_path_factory.mktemp("texts") / "texts.txt"
    file.write_text("\n".join(long_texts), encoding="utf-8")
    return file


def test_pairs(folder, pairs, tmp_path):
    result = invoke(folder, "--texts", pairs, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    tables = ("causes", "depths", "documents", "focus", "forecasts", "heads", "retrieval", "skill")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        ["length.json", "report.html", *(f"{name}.csv" for name in tables)]
    )
    for word in ("entropy", "focus", "forecast", "cosine", "reciprocal rank"):
        assert word in result.stdout


def test_json_reference_and_a_rule_that_is_met(folder, plain, tmp_path):
    first = invoke(folder, "--texts", plain, "--up-to", 64, "--out", tmp_path / "first")
    assert first.exit_code == 0, first.output
    rule = ["--fail-on", "n == 64 and layer == 1 and entropy > 0", "--reference", tmp_path / "first" / "length.json"]
    result = invoke(folder, "--texts", plain, "--from", 32, "--json", *rule, "--out", tmp_path / "out")
    assert result.exit_code == 1
    found = json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert found["schema"] == "metastable.length/2"
    assert all(place.pop("entropy") > 0 for place in found["findings"])
    assert found["findings"] == [{"n": 64, "source": "prefix", "layer": 1, "head": head} for head in range(4)]
    assert any("Reference" in sentence for sentence in found["sentences"])
    assert {piece["topic"] for piece in found["advice"]} >= {"safe length", "heads"}
    assert list(pd.read_csv(found["written"]["retrieval"])["n"])[:2] == [64, 128]


def test_a_rule_that_nothing_meets(folder, plain, tmp_path):
    result = invoke(folder, "--texts", plain, "--up-to", 64, "--fail-on", "entropy < 0", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "rows that meet it: 0" in result.stdout


def test_forecasts_are_there_if_long_texts_fail(folder, plain, tmp_path, monkeypatch):
    measure = LengthMeter.measure

    def failing(self, documents, *rest):
        if documents.length(0) > 32:
            raise MemoryError
        return measure(self, documents, *rest)

    monkeypatch.setattr(LengthMeter, "measure", failing)
    result = invoke(folder, "--texts", plain, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["forecasts.csv"]
    table = pd.read_csv(tmp_path / "out" / "forecasts.csv")
    assert set(table["n"]) == {64, 128}
    assert table["forecast"].notna().all()
    assert table["measured"].isna().all()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no text"),
        ("\n \n", "no text"),
        ("w1 w2 w3\nw4\n", "5 tokens"),
        ("w1 " * 60, "1 of 1"),
        ('{"text": "w1", "query": "w2"}\n{"text": "w3"}\n', "1 of 2"),
        ('{"query": "w2"}\n', "text"),
    ],
)
def test_bad_texts_are_one_line_and_leave_nothing(content, words, folder, tmp_path):
    file = tmp_path / ("texts.jsonl" if content.startswith("{") else "texts.txt")
    file.write_text(content, encoding="utf-8")
    refused(words, tmp_path / "out", folder, "--texts", file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--up-to", 1000], "128"),
        (["--from", 4], "32"),
        (["--pooling", "last"], "mean"),
        (["--batch-size", 0], "batch"),
        (["--fail-on", "entropy <"], "cannot be read"),
        (["--fail-on", "entropi < 1"], "entropy"),
        (["--fail-on", "phase > 3"], "phase"),
        (["--fail-on", "mrr < 0.5 and layer == 0"], "one table"),
        (["--reference", "nowhere.json"], "nowhere.json"),
        (["--texts", "nowhere.txt"], "is no file"),
    ],
)
def test_bad_options_are_one_line_and_leave_nothing(arguments, words, folder, plain, tmp_path):
    refused(words, tmp_path / "out", folder, "--texts", plain, *arguments)


def test_a_model_without_a_tokenizer(folder, plain, tmp_path):
    bare = shutil.copytree(folder, tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    refused("tokenizer", tmp_path / "out", bare, "--texts", plain)


def refused(words, out, *arguments):
    result = invoke(*arguments, "--out", out)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not out.exists()
