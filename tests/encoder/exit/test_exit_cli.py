"""`metastable exit` as a person, a pipe and a CI meet it."""

import json

import pytest
from typer.testing import CliRunner

from metastable.cli.app import app
from tests.encoder.exit.test_study import data
from tests.encoder.models import tiny


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, ("exit", *arguments))))


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    tiny("bert").save_pretrained(made)
    tokenizer.save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    file = tmp_path_factory.mktemp("texts") / "data.jsonl"
    rows = [json.dumps({"text": text, "label": label}) for text, label in zip(*data(80), strict=True)]
    file.write_text("\n".join(rows), encoding="utf-8")
    return file


def test_words_and_files(folder, labelled, tmp_path):
    result = invoke(folder, "--labelled", labelled, "--loss", 0.3, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names - {"model"} == {"exit.json", "layers.csv", "probe.json", "report.html"}
    assert "report:" in result.stdout
    assert "of 3" in result.stdout


def test_json_is_strict(folder, labelled, tmp_path):
    result = invoke(folder, "--labelled", labelled, "--json", "--seed", 1, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert found["schema"] == "metastable.exit/1"
    assert found["seed"] == 1
    assert found["classes"] == ["high", "low"]
    assert found["written"]["exit"].endswith("exit.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no text"),
        ('{"text": " ", "label": 1}\n' * 50, "no text"),
        ('{"text": "w1", "label": 1}\n' * 50, "give at least 40"),
        ('{"text": "w1"}\n' * 50, "line 1"),
        ('{"label": 1}\n' * 50, "text"),
        ("w1 w2\n", "JSON"),
        ('{"text": "w1", "label": NaN}\n', "nan"),
    ],
)
def test_bad_data_is_one_line_and_leaves_nothing(content, words, folder, tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text(content, encoding="utf-8")
    refused(words, tmp_path / "out", folder, "--labelled", file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--loss", 2], "loss"),
        (["--seed", -1], "seed"),
        (["--pooling", "last"], "mean"),
        (["--batch-size", 0], "batch"),
        (["--labelled", "nowhere.jsonl"], "is no file"),
    ],
)
def test_bad_options_are_one_line_and_leave_nothing(arguments, words, folder, labelled, tmp_path):
    refused(words, tmp_path / "out", folder, "--labelled", labelled, *arguments)


def test_a_folder_with_another_report_is_left_alone(folder, labelled, tmp_path):
    (tmp_path / "report.html").write_text("mine", encoding="utf-8")
    result = invoke(folder, "--labelled", labelled, "--out", tmp_path)
    assert result.exit_code == 2
    assert (tmp_path / "report.html").read_text() == "mine"


def refused(words, out, *arguments):
    result = invoke(*arguments, "--out", out)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not out.exists()
