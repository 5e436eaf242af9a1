"""Encoders as ONNX files: hidden states, p-values and refusals, against the same model in torch."""

import hashlib
import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import metastable as ms
from metastable.cli.app import app
from metastable.encoder.hooks import read
from metastable.encoder.load import load
from metastable.encoder.onnx import OnnxModel, Outline
from metastable.encoder.texts import batches
from tests.encoder import models
from tests.monitor.conftest import ODD

INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


class HiddenStates(torch.nn.Module):
    """What is exported: all hidden states of a model, apart or stacked."""

    def __init__(self, model, stacked):
        super().__init__()
        self.model, self.stacked = model, stacked

    def forward(self, input_ids, attention_mask, token_type_ids):
        found = self.model(input_ids, attention_mask, token_type_ids, output_hidden_states=True).hidden_states
        return torch.stack(found) if self.stacked else tuple(found)


def export(model, path, stacked=False, names=None, dynamic=True):
    names = names or (["hidden_states"] if stacked else [f"hidden_states.{depth}" for depth in range(4)])
    axes = {name: {0: "texts", 1: "n"} for name in INPUTS}
    axes |= {name: {1: "texts", 2: "n"} if stacked else {0: "texts", 1: "n"} for name in names}
    ids = torch.randint(5, 97, (2, 7), generator=torch.Generator().manual_seed(0))
    given = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            HiddenStates(model, stacked).eval(),
            given,
            str(path),
            input_names=INPUTS,
            output_names=names,
            dynamic_axes=axes if dynamic else None,
            dynamo=False,
        )
    return path


@pytest.fixture(scope="session")
def onnx_folder(small, once):
    """model.onnx of the small encoder, beside its tokenizer and without its weights."""

    def make(path):
        path.mkdir()
        for file in small.iterdir():
            if file.suffix != ".safetensors":
                shutil.copyfile(file, path / file.name)
        export(load(small).model, path / "model.onnx")

    return once("onnx", make)


@pytest.fixture(scope="session")
def onnx_encoder(onnx_folder):
    return load(onnx_folder, weights=False)


@pytest.fixture(scope="session")
def onnx_baseline(once, onnx_encoder, clean_texts):
    folder = once("onnx-baseline", lambda path: ms.Baseline.fit(onnx_encoder, clean_texts).save(path))
    return ms.Baseline.load(folder)


def hidden_states(encoder, texts):
    """By depth, the tokens of a batch, (texts, n, d), without padding."""
    (batch,) = batches(encoder.reads_text(), texts, encoder.limit, len(texts))
    found = {}
    read(encoder.private(), batch, "include", range(4), lambda depth: found.update({depth.index: depth.x.clone()}))
    return [found[depth][batch.mask] for depth in range(4)]


@pytest.mark.parametrize("stacked", [False, True])
def test_hidden_states_are_those_of_torch(small_encoder, onnx_folder, stacked, tmp_path):
    path = onnx_folder / "model.onnx"
    if stacked:
        shutil.copytree(onnx_folder, tmp_path / "stacked")
        path = export(small_encoder.private().model, tmp_path / "stacked" / "model.onnx", stacked=True)
    encoder = load(path, weights=False)
    for found, expected in zip(
        hidden_states(encoder, models.TEXTS), hidden_states(small_encoder, models.TEXTS), strict=True
    ):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_what_is_known_of_the_file(onnx_folder, onnx_encoder, small_encoder):
    raw = (onnx_folder / "model.onnx").read_bytes()
    assert onnx_encoder.fingerprint == hashlib.sha256(raw).hexdigest()
    assert (onnx_encoder.limit, len(onnx_encoder.anatomy.layers), onnx_encoder.anatomy.layers[0].width) == (512, 3, 32)
    assert (onnx_encoder.has_weights, small_encoder.has_weights) == (False, True)


def in_torch(encoder, small_encoder):
    """The encoder with torch in place of onnxruntime."""
    base = small_encoder.private().model

    def run(given):
        return base(**{name: given[name] for name in INPUTS}, output_hidden_states=True).hidden_states

    model = OnnxModel(run, 4)
    return replace(encoder, model=model, anatomy=Outline.of(model, 32, 512))


@pytest.mark.parametrize("setting", ["light", "full"])
def test_p_values_are_those_of_the_same_hidden_states_in_torch(
    onnx_encoder, onnx_baseline, small_encoder, held_texts, setting
):
    texts = [*held_texts[:60], *ODD]
    found = ms.Monitor(onnx_encoder, onnx_baseline, setting).examine(texts)
    expected = ms.Monitor(in_torch(onnx_encoder, small_encoder), onnx_baseline, setting).examine(texts)
    # onnxruntime rounds otherwise than torch, by 1e-6 of a hidden state.
    assert [r.score for r in found] == pytest.approx([r.score for r in expected], rel=1e-3, abs=1e-3)
    # A score that moves by rounding may pass one calibration score.
    step = 1 / (onnx_baseline.scorer(setting).texts + 1)
    np.testing.assert_allclose([r.p_marginal for r in found], [r.p_marginal for r in expected], atol=1.01 * step)
    assert all(record.p_marginal <= 0.05 for record in found[60:])
    assert [[word.text for word in r.tokens] for r in found] == [[word.text for word in r.tokens] for r in expected]


def test_the_commands(onnx_folder, clean_texts, tmp_path):
    clean = tmp_path / "clean.txt"
    clean.write_text("\n".join(clean_texts), encoding="utf-8")
    given = ["calibrate", onnx_folder, "--texts", clean, "--out", tmp_path / "base"]
    assert CliRunner().invoke(app, list(map(str, given))).exit_code == 0
    given = ["watch", onnx_folder / "model.onnx", "--baseline", tmp_path / "base"]
    result = CliRunner().invoke(app, list(map(str, given)), input="The senate met.\n")
    assert result.exit_code == 0, result.output
    assert '"status": "scored"' in result.stdout


def test_reviewed_texts_are_accepted(onnx_folder, onnx_baseline, held_texts, tmp_path):
    onnx_baseline.save(tmp_path / "base")
    (tmp_path / "reviewed.txt").write_text("\n".join(held_texts[:20]), encoding="utf-8")
    given = ["recalibrate", onnx_folder, "--baseline", tmp_path / "base", "--texts", tmp_path / "reviewed.txt", "--yes"]
    result = CliRunner().invoke(app, list(map(str, given)))
    assert result.exit_code == 0, result.output
    before, after = (own.scorer("full").texts for own in (onnx_baseline, ms.Baseline.load(tmp_path / "base")))
    assert after == before + 20
    records = ms.Monitor(onnx_folder, tmp_path / "base", "full").examine(held_texts[:20])
    assert all(record.status == "scored" for record in records)


def test_without_a_tokenizer_no_text_is_reviewed(onnx_folder, onnx_baseline, tmp_path):
    for name in ("model.onnx", "config.json"):
        shutil.copyfile(onnx_folder / name, tmp_path / name)
    with pytest.raises(ms.BadInput, match="cannot read text"):
        onnx_baseline.review(tmp_path, iter(lambda: pytest.fail("a text was read"), None))


def test_a_baseline_is_for_one_file(onnx_folder, onnx_baseline, small_encoder, tmp_path):
    shutil.copytree(onnx_folder, tmp_path / "other")
    export(
        models.tiny("bert", seed=1, vocab_size=30522, max_position_embeddings=512), tmp_path / "other" / "model.onnx"
    )
    for other in (tmp_path / "other", small_encoder):
        with pytest.raises(ms.BadInput, match="calibrate again"):
            ms.Monitor(other, onnx_baseline).examine(["rain"])


@pytest.mark.parametrize("command", ["audit", "length"])
def test_what_needs_weights_says_so(onnx_folder, command):
    given = [command, str(onnx_folder / "model.onnx"), "--texts", "examples/texts.txt"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert "has no weights" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_live_monitor_needs_a_model(onnx_folder, onnx_baseline):
    with pytest.raises(ms.BadInput, match="examine"), ms.Monitor(onnx_folder, onnx_baseline):
        pass


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"names": [f"state{depth}" for depth in range(4)]}, "outputs state0"),
        ({"names": ["hidden_states.0", "hidden_states.1", "hidden_states.3", "last"]}, "export it with its hidden"),
        ({"dynamic": False}, "dynamic axes"),
    ],
)
def test_graphs_that_cannot_be_read(small_encoder, tmp_path, how, words):
    export(small_encoder.private().model, tmp_path / "model.onnx", **how)
    models.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ms.BadInput, match=words):
        load(tmp_path, weights=False)


def test_damaged_and_incomplete_files(onnx_folder, tmp_path):
    (tmp_path / "model.onnx").write_bytes((onnx_folder / "model.onnx").read_bytes()[:1000])
    with pytest.raises(ms.BadInput, match="no ONNX graph"):
        load(tmp_path, weights=False)
    shutil.copyfile(onnx_folder / "model.onnx", tmp_path / "model.onnx")
    with pytest.raises(ms.BadInput, match="longest text"):
        load(tmp_path, weights=False)
    shutil.copyfile(onnx_folder / "config.json", tmp_path / "config.json")
    assert load(tmp_path, weights=False).limit == 512
    with pytest.raises(ms.BadInput, match="cannot read text"):
        load(tmp_path, weights=False).reads_text()


def test_the_export_in_the_docs(onnx_folder, small_encoder, tmp_path, monkeypatch):
    page = (Path(__file__).parent.parent.parent / "docs" / "serving.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    shutil.copytree(onnx_folder, tmp_path / "exported")
    (tmp_path / "exported" / "model.onnx").unlink()
    monkeypatch.chdir(tmp_path / "exported")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(block, {"torch": torch, "model": small_encoder.private().model})
    found = hidden_states(load(tmp_path / "exported", weights=False), models.TEXTS)
    for own, expected in zip(found, hidden_states(small_encoder, models.TEXTS), strict=True):
        torch.testing.assert_close(own, expected, atol=1e-4, rtol=0)
