"""`ms.compress` and `metastable compress`: targets, files, models that load again, resuming, bad input."""

import html
import json

import numpy as np
import pytest
import torch
from plotly.offline import get_plotlyjs
from transformers import AutoModel
from typer.testing import CliRunner

import metastable as ms
from metastable.cli.app import app
from metastable.encoder.compress import study
from metastable.encoder.compress.result import COLUMNS, condition
from tests.encoder.models import tiny


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, ("compress", *arguments))))


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    tiny("bert").save_pretrained(made)
    tokenizer.save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def texts(many_texts, tmp_path_factory):
    file = tmp_path_factory.mktemp("texts") / "texts.txt"
    file.write_text("\n".join(many_texts), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def whole(folder, texts):
    """All options of a small encoder."""
    return ms.compress(folder, texts, length=24)


def test_every_option_is_measured(whole):
    assert tuple(whole.options.columns) == COLUMNS
    assert len(whole.options) == len(whole.removals) == len(study.plan(3))
    ours = whole.options[~whole.options["baseline"]]
    assert (whole.options["cosine"] <= 1 + 1e-9).all()
    assert (whole.options["speed"] > 0).all()
    assert (
        ours.loc[ours["int8"] | (ours[["layers", "heads", "neurons"]].sum(axis=1) > 0), "megabytes"]
        < whole.full_megabytes
    ).all()
    assert whole.chosen is None
    assert sum(whole.counts[name] for name in ("fit", "select", "test")) <= whole.counts["texts"]


def test_the_front_is_what_no_option_beats(whole):
    ours = whole.options[~whole.options["baseline"]]
    expected = {
        row.Index
        for row in ours.itertuples()
        if not any(
            (other.speed >= row.speed and other.cosine >= row.cosine)
            and (other.speed > row.speed or other.cosine > row.cosine)
            for other in ours.itertuples()
        )
    }
    assert set(whole.front().index) == expected


def test_targets_choose_by_the_numbers_of_the_second_part(whole):
    ours = whole.options[~whole.options["baseline"]]
    middle = float(ours["select_cosine"].median())
    found = whole.choose(f"cosine >= {middle}")
    allowed = ours[ours["select_cosine"] >= middle]
    assert found.chosen == int(allowed["speed"].idxmax())
    slow = float(ours["speed"].median())
    found = whole.choose(f"speed >= {slow}")
    assert found.chosen == int(ours.loc[ours["speed"] >= slow, "select_cosine"].idxmax())
    assert whole.choose("cosine >= 2").chosen is None
    assert str(condition("nn-overlap >= 0.8")) == "nn_overlap >= 0.8"
    for wrong in ("layers > 1", "cosine >=", "1 > 0", "cosin > 0.9"):
        with pytest.raises(ms.BadInput):
            whole.choose(wrong)


@pytest.mark.parametrize(
    "amounts",
    [
        {"layers": 1},
        {"neurons": 0.25},
        {"layers": 1, "heads": 0.25, "neurons": 0.25},
        {"heads": 0.5},
        {"merge": 0.25, "layers": 1},
        {"heads": 0.25, "int8": True},
    ],
    ids=str,
)
def test_the_written_model_gives_the_measured_embeddings(amounts, folder, texts, many_texts, tokenizer, tmp_path):
    """`load_compressed` reproduces the fast form; plain transformers too, where nothing is merged or quantised."""
    found = ms.compress(folder, texts, length=24, **amounts)
    made = found.builder.removed(found.recipe(0), found.removals[0])
    path = found.save_model(tmp_path / "model")
    batch = tokenizer(many_texts[:6], padding=True, truncation=True, max_length=24, return_tensors="pt")
    mask = batch["attention_mask"].bool()
    with torch.inference_mode():
        with made.running() as fast:
            expected = fast.model(**batch).last_hidden_state[mask]
        again = ms.load_compressed(path)(**batch).last_hidden_state[mask]
        torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-4)
        if not (amounts.get("merge") or amounts.get("int8")):
            plain = AutoModel.from_pretrained(path).eval()
            torch.testing.assert_close(plain(**batch).last_hidden_state[mask], expected, rtol=1e-4, atol=1e-4)
    assert found.needs_package == bool(set(amounts) & {"heads", "merge", "int8"})
    assert found.options.iloc[0]["recipe"] in (path / "README.md").read_text(encoding="utf-8")


def test_results_survive_files(whole, tmp_path):
    chosen = whole.choose("speed > 0")
    written = chosen.save(tmp_path / "out")
    again = ms.Compression.load(tmp_path / "out")
    assert again.sentences() == chosen.sentences()
    assert again.removals == chosen.removals
    page = written["report"].read_text(encoding="utf-8").replace(get_plotlyjs(), "")
    assert not any(outside in page for outside in ('src="http', 'href="http', "@import"))
    assert chosen.sentences()[0] in html.unescape(page)
    with pytest.raises(ms.BadInput, match="run compress again"):
        again.save_model(tmp_path / "model")


def test_a_stopped_study_goes_on(folder, texts, tmp_path, monkeypatch):
    """What was measured before the stop is not measured again, and the greedy order of layers is kept."""

    class Stop(Exception):
        pass

    def stop(done, total):
        if done == 5:
            raise Stop

    few = study.plan(3)[:8]
    monkeypatch.setattr(study, "plan", lambda *_: few)
    with pytest.raises(Stop):
        ms.compress(folder, texts, length=24, resume=tmp_path, progress=stop)
    made = []
    original = study.Builder.make
    monkeypatch.setattr(study.Builder, "make", lambda self, recipe: made.append(recipe) or original(self, recipe))
    found = ms.compress(folder, texts, length=24, resume=tmp_path)
    assert made == few[5:]
    with monkeypatch.context() as patch:
        patch.setattr(study.Builder, "make", None)
        assert len(ms.compress(folder, texts, length=24, resume=tmp_path).options) == len(found.options)


def test_the_command(folder, texts, tmp_path):
    out = tmp_path / "out"
    result = invoke(folder, "--texts", texts, "--neurons", "25%", "--length", 24, "--out", out)
    assert result.exit_code == 0, result.output
    assert (out / "model" / "config.json").is_file()
    assert json.loads((out / "compress.json").read_text())["chosen"] == 0
    shown = json.loads(
        invoke(folder, "--texts", texts, "--neurons", 0.25, "--length", 24, "--out", out, "--json").stdout
    )
    assert shown["options"][0]["neurons"] == 0.25


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--heads", "150%"], "share"),
        (["--heads", "many"], "no number"),
        (["--layers", "3"], "one layer must stay"),
        (["--layers", "-1"], "layers"),
        (["--target", "cosine >= 0.9", "--layers", "1"], "one of them"),
        (["--target", "speeed > 1"], "speed"),
        (["--pooling", "max"], "pooling"),
        (["--length", "2"], "length"),
        (["--texts", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(extra, words, folder, texts, tmp_path):
    out = tmp_path / "out"
    given = [folder, "--out", out, *extra]
    result = invoke(*given, *([] if "--texts" in extra else ["--texts", texts]))
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (out / "compress.json").exists()


def test_few_texts_are_refused(folder, many_texts):
    with pytest.raises(ms.BadInput, match="60"):
        ms.compress(folder, many_texts[:20])


def test_a_damaged_folder_is_one_line(folder, texts, tmp_path):
    path = ms.compress(folder, texts, length=24, layers=1).save_model(tmp_path / "model")
    (path / "metastable.json").write_text("{}")
    with pytest.raises(ms.BadInput, match="damaged"):
        ms.load_compressed(path)
    with pytest.raises(ms.BadInput, match="metastable compress"):
        ms.load_compressed(folder)


def test_numbers_are_those_of_the_written_model(folder, texts, tokenizer, many_texts, tmp_path):
    """The cosine of the table is that of plain embeddings by two plain models, on the texts of the last part."""
    found = ms.compress(folder, texts, length=24, layers=1, batch_size=8)
    path = found.save_model(tmp_path / "model")
    cosines = []
    for name in (folder, path):
        model = AutoModel.from_pretrained(name).eval()
        rows = []
        for text in _test_texts(many_texts):
            batch = tokenizer(text, truncation=True, max_length=24, return_tensors="pt")
            with torch.inference_mode():
                rows.append(model(**batch).last_hidden_state[0].mean(dim=0).double().numpy())
        rows = np.stack(rows)
        cosines.append(rows / np.linalg.norm(rows, axis=1)[:, None])
    assert found.options["cosine"].iloc[0] == pytest.approx((cosines[0] * cosines[1]).sum(axis=1).mean(), abs=1e-5)


def _test_texts(many_texts):
    import random

    dealt = list(dict.fromkeys(many_texts))
    random.Random(0).shuffle(dealt)
    return dealt[round(0.5 * len(dealt)) + round(0.15 * len(dealt)) :]
