"""`ms.compress` and `metastable compress`: targets, files, models that load again, resuming, bad input."""

import dataclasses
import html
import itertools
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from plotly.offline import get_plotlyjs
from transformers import AutoModel
from typer.testing import CliRunner

import metastable as ms
from metastable import files
from metastable.cli.app import app
from metastable.encoder.compress import study
from metastable.encoder.compress.fidelity import fidelity
from metastable.encoder.compress.recipe import Recipe
from metastable.encoder.compress.result import COLUMNS, condition
from metastable.encoder.load import load
from metastable.encoder.pooling import embed, pooling_of
from tests.conftest import WORDS
from tests.encoder.models import tiny


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, ("compress", *arguments))))


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
    assert str(condition("nn-overlap >= 0.8", pairs=False)) == "nn_overlap >= 0.8"
    for wrong in ("layers > 1", "cosine >=", "1 > 0", "cosin > 0.9"):
        with pytest.raises(ms.BadInput):
            whole.choose(wrong)


def planted(whole, test, select, speed=(2.0, 3.0, 4.0)):
    """Three options with planted mean cosines on both parts."""
    rows = whole.options[~whole.options["baseline"]].head(3).copy()
    rows["cosine"], rows["select_cosine"], rows["speed"] = test, select, speed
    rows["speed_low"], rows["cosine_low"], rows["cosine_high"] = rows["speed"], rows["cosine"], rows["cosine"]
    return dataclasses.replace(whole, options=rows.reset_index(drop=True), removals=whole.removals[:3])


def test_a_choice_reads_select_and_the_words_tell_whether_test_agrees(whole):
    """The test part would choose another option; the chosen one misses the target there."""
    lucky = planted(whole, test=(0.99, 0.97, 0.93), select=(0.99, 0.96, 0.96)).choose("cosine >= 0.95")
    assert (lucky.chosen, lucky.met) == (2, False)
    assert any("does not meet it on the test texts" in words for words in lucky.sentences())
    sure = planted(whole, test=(0.99, 0.97, 0.93), select=(0.99, 0.96, 0.90)).choose("cosine >= 0.95")
    assert (sure.chosen, sure.met) == (1, True)
    assert any("meets it on the test texts too" in words for words in sure.sentences())
    plain = dataclasses.replace(planted(whole, test=(0.99, 0.97, 0.96), select=(0.99, 0.96, 0.90)), target=None)
    assert f"with a mean cosine of 0.95 or more is {plain.options['recipe'][1]}" in plain.sentences()[0]
    slow = dataclasses.replace(planted(whole, (0.99,) * 3, (0.99,) * 3, speed=(0.9, 1.0, 0.8)), target=None)
    assert slow.sentences()[0].startswith("No option is surely faster")


def test_a_percentile_needs_texts(whole, folder, texts, monkeypatch):
    monkeypatch.setattr(study.Builder, "make", None)
    for asked in (whole.choose, lambda target: ms.compress(folder, texts, length=24, target=target)):
        with pytest.raises(ms.BadInput, match=f"{whole.counts['select']} texts .* too few"):
            asked("speed > 0 and cosine_p10 >= 0.9")
    many = dataclasses.replace(whole, counts=whole.counts | {"select": 36})
    assert many.choose("cosine_p10 >= 0.9").chosen is None


def test_numbers_of_select_are_lower_ends_on_other_texts(folder, texts):
    found = ms.compress(folder, texts, length=24, neurons=0.5)
    builder = found.builder
    made = builder.removed(found.recipe(0), found.removals[0])
    with made.running() as smaller:
        own = [embed(smaller, part, "mean") for part in (builder.select, builder.fit)]
    full = [embed(builder.full, part, "mean") for part in (builder.select, builder.fit)]
    expected = fidelity(full[0], own[0], (full[1], own[1]))
    row = found.options.iloc[0]
    for name in ("cosine", "cosine_p10", "nn_overlap"):
        assert row[f"select_{name}"] == pytest.approx(expected[f"{name}_low"], abs=1e-6, nan_ok=True)
    assert row["cosine"] != pytest.approx(expected["cosine"], abs=1e-9)


def test_speed_is_the_time_of_the_full_encoder_over_that_of_the_option(folder, texts, monkeypatch):
    def seconds(self, encoder):
        return 6.0 if encoder is self.full else 2.0

    monkeypatch.setattr(study._Bench, "_seconds", seconds)
    assert ms.compress(folder, texts, length=24, layers=1).options["speed"].tolist() == [3.0]


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
    table = pd.read_csv(written["options"], keep_default_na=False, dtype=str)
    assert set(table["cosine_p10_low"]) == {""}
    named = [", ".join(map(str, removal.layers)) for removal in chosen.removals]
    assert table["removed_layers"].tolist() == again.options["removed_layers"].tolist() == named
    old = json.loads(written["compress"].read_text())
    for row in old["options"]:
        del row["removed_layers"]
        row["cosine_p10_low"] = row["select_cosine_p10"] = -1.0
    (tmp_path / "compress.json").write_text(json.dumps(old))
    pd.testing.assert_frame_equal(ms.Compression.load(tmp_path).options, again.options)
    page = written["report"].read_text(encoding="utf-8").replace(get_plotlyjs(), "")
    assert not any(outside in page for outside in ('src="http', 'href="http', "@import"))
    assert chosen.sentences()[0] in html.unescape(page)
    with pytest.raises(ms.BadInput, match="run compress again"):
        again.save_model(tmp_path / "model")


class Stop(Exception):
    pass


def stopped_after(count):
    def stop(done, total):
        if done == count:
            raise Stop

    return stop


def test_a_stopped_study_goes_on(folder, texts, tmp_path, monkeypatch):
    """What was measured before the stop is not measured again, and the greedy order of layers is kept."""
    few = [Recipe(heads=0.25), Recipe(layers=1), Recipe(layers=2), Recipe(neurons=0.25), Recipe(int8=True)]
    monkeypatch.setattr(study, "plan", lambda *_: few)
    with pytest.raises(Stop):
        ms.compress(folder, texts, length=24, resume=tmp_path, progress=stopped_after(2))
    made = []
    original = study.Builder.make
    monkeypatch.setattr(study.Builder, "make", lambda self, recipe: made.append(recipe) or original(self, recipe))
    # The order of layers comes from the journal: choosing it again would take another layer.
    monkeypatch.setattr(study.Builder, "_next_layer", lambda self, candidates: candidates[0])
    found = ms.compress(folder, texts, length=24, resume=tmp_path)
    assert made == few[2:]
    assert set(found.removals[1].layers) < set(found.removals[2].layers)
    with monkeypatch.context() as patch:
        patch.setattr(study.Builder, "make", None)
        assert len(ms.compress(folder, texts, length=24, resume=tmp_path).options) == len(found.options)


@pytest.mark.parametrize(
    "change",
    ["texts", "configuration", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pooling", "seed"))],
)
def test_a_journal_of_another_study_is_not_used(change, folder, texts, many_texts, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "plan", lambda *_: [Recipe(neurons=0.25)])
    ms.compress(folder, texts, length=24, resume=tmp_path / "out")
    made = []
    original = study.Builder.make
    monkeypatch.setattr(study.Builder, "make", lambda self, recipe: made.append(recipe) or original(self, recipe))
    model, given, more = folder, texts, {}
    if change == "texts":
        given = [*many_texts[:-1], "w1 w2 w3 w4 w5"]
    elif change == "configuration":
        # The same weights, but twice as many heads.
        small = tiny("bert")
        other = type(small)(type(small.config).from_dict({**small.config.to_dict(), "num_attention_heads": 8}))
        other.load_state_dict(small.state_dict())
        other.save_pretrained(tmp_path / "other")
        tokenizer.save_pretrained(tmp_path / "other")
        model = tmp_path / "other"
    else:
        more = {"pooling": "cls"} if change == "pooling" else {"seed": 1}
    ms.compress(model, given, length=24, resume=tmp_path / "out", **more)
    assert len(made) == 1


def test_a_folder_is_for_one_study_at_a_time(folder, texts, tmp_path):
    with files.locked(tmp_path), pytest.raises(ms.BadInput, match="is at work in"):
        ms.compress(folder, texts, length=24, layers=1, resume=tmp_path)


def test_the_journal_of_a_sweep_is_left_alone(folder, texts, tmp_path):
    (tmp_path / "journal").write_text("metastable-journal-1 abcdef\n")
    ms.compress(folder, texts, length=24, layers=1, resume=tmp_path)
    assert (tmp_path / "journal").read_text() == "metastable-journal-1 abcdef\n"


def test_an_old_model_does_not_stay_beside_a_new_result(folder, texts, tmp_path):
    out = tmp_path / "out"
    assert invoke(folder, "--texts", texts, "--layers", 1, "--length", 24, "--out", out).exit_code == 0
    found = ms.compress(folder, texts, length=24, neurons=0.25)
    dataclasses.replace(found, chosen=None, target="cosine >= 2").save(out)
    assert not (out / "model").exists()


def test_parts_share_no_text_and_no_document(folder, tokenizer, tmp_path):
    """Texts that differ beyond the cut, or in blanks only, are one text."""
    with pytest.raises(ms.BadInput, match="there are 1 different texts"):
        ms.compress(folder, ["w1 w2 w3" + " " * i for i in range(70)])
    with pytest.raises(ms.BadInput, match="there are 1 different texts"):
        ms.compress(folder, [" ".join(WORDS[:30]) + f" {word}" for word in WORDS], length=24)
    file = tmp_path / "texts.jsonl"
    rows = [{"text": f"{WORDS[i % 80]} {WORDS[i // 3]} w7 w{i % 7}", "document": f"d{i // 4}"} for i in range(160)]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    encoder = load(folder).private()
    parts = study._parts(encoder, file, 24, 8, 0)
    document = {tuple(tokenizer(row["text"])["input_ids"]): row["document"] for row in rows}
    sides = []
    for part in (parts.fit, parts.select, parts.test):
        ids = [row[mask].tolist() for b in part for row, mask in zip(b.inputs["input_ids"], b.mask, strict=True)]
        sides.append({document[tuple(row)] for row in ids})
    assert [a & b for a, b in itertools.combinations(sides, 2)] == [set()] * 3
    assert all(sides)


@pytest.mark.parametrize(
    ("amounts", "share"), [({"heads": 0.9}, 0.75), ({"neurons": 0.99}, 39 / 40), ({"heads": 0.1}, 1 / 12)], ids=str
)
def test_names_say_what_really_went(amounts, share, folder, texts):
    (kind,) = amounts
    found = ms.compress(folder, texts, length=24, **amounts)
    assert found.options[kind][0] == pytest.approx(share)
    assert f"{100 * share:.3g} % of {kind}" in found.options["recipe"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"heads": 0.001}, "less than one"),
        ({"layers": 1.5}, "layers"),
        ({"heads": "25%"}, "heads"),
        ({"length": "20"}, "length"),
        ({"seed": None}, "seed"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(arguments, words, folder, texts):
    with pytest.raises(ms.BadInput, match=words):
        ms.compress(folder, texts, **{"length": 24, **arguments})


def test_an_encoder_without_a_direction_is_refused(texts, tokenizer):
    model = tiny("bert")
    with torch.no_grad():
        model.encoder.layer[-1].output.LayerNorm.weight.zero_()
        model.encoder.layer[-1].output.LayerNorm.bias.zero_()
    with pytest.raises(ms.BadInput, match="zero or not finite"):
        ms.compress(model, texts, tokenizer=tokenizer, layers=1)


def test_the_host_s_precision_changes_nothing(folder, texts):
    plain = ms.compress(folder, texts, length=24, heads=0.25).options
    with torch.autocast("cpu", torch.bfloat16):
        inside = ms.compress(folder, texts, length=24, heads=0.25).options
    assert inside["cosine"].tolist() == plain["cosine"].tolist()
    torch.set_default_dtype(torch.float64)
    try:
        other = ms.compress(folder, texts, length=24, heads=0.25).options
    finally:
        torch.set_default_dtype(torch.float32)
    assert other["cosine"].tolist() == pytest.approx(plain["cosine"].tolist(), abs=1e-6)


def test_shared_layers_have_no_rules_to_compare(tokenizer, many_texts):
    rows = [recipe for recipe in study.plan(3, True, tied=True) if recipe.baseline]
    assert not any(recipe.layers or not recipe.healed for recipe in rows)
    found = ms.compress(tiny("albert"), many_texts, tokenizer=tokenizer, length=24, layers=1)
    assert found.options["method"].tolist() == ["last"]


def test_the_written_tokenizer_cuts_no_text(folder, texts, tmp_path):
    path = ms.compress(folder, texts, length=24, neurons=0.25).save_model(tmp_path / "model")
    assert json.loads((path / "tokenizer.json").read_text())["truncation"] is None
    assert (path / "model.safetensors").stat().st_mode & 0o777 == (path / "config.json").stat().st_mode & 0o777


def sentence_files(folder, target, modules):
    shutil.copytree(folder, target)
    (target / "modules.json").write_text(modules if isinstance(modules, str) else json.dumps(modules))
    (target / "1_Pooling").mkdir()
    (target / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    return target


def test_files_of_sentence_transformers(folder, texts, tmp_path):
    """The modules behind the encoder are copied, and the encoder is the smaller one."""
    kinds = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": ".", "type": f"{kinds}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{kinds}.Pooling"},
    ]
    source = sentence_files(folder, tmp_path / "source", modules)
    found = ms.compress(source, texts, length=24, layers=1)
    assert found.pooling == "cls"
    path = found.save_model(tmp_path / "model")
    assert json.loads((path / "config.json").read_text())["num_hidden_layers"] == 2
    assert [row["path"] for row in json.loads((path / "modules.json").read_text())] == ["", "1_Pooling"]
    assert (path / "1_Pooling" / "config.json").is_file()


@pytest.mark.parametrize("modules", ["no json", '["a"]', [{"path": "../../secret", "type": "x.Pooling"}]], ids=str)
def test_damaged_files_of_sentence_transformers_are_refused_before_the_work(modules, folder, texts, tmp_path):
    source = sentence_files(folder, tmp_path / "source", modules)
    with pytest.raises(ms.BadInput, match=r"modules\.json"):
        ms.compress(source, texts, length=24, layers=1)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_weightedmean_tokens": True}, None),
        ({"pooling_mode": ["cls", "mean"]}, None),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, None),
    ],
    ids=str,
)
def test_a_pooling_that_is_not_known_is_refused(settings, expected, folder, tmp_path):
    source = sentence_files(folder, tmp_path / "source", [])
    (source / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    if expected is None:
        with pytest.raises(ms.BadInput, match="--pooling"):
            pooling_of(load(source), None)
    else:
        assert pooling_of(load(source), None) == expected


def test_heads_of_layers_behind_a_removed_one(folder, texts, tokenizer, many_texts, tmp_path, monkeypatch):
    """Removed heads are written by the places of the layers that stay."""
    monkeypatch.setattr(study.Builder, "_next_layer", lambda self, candidates: candidates[0])
    found = ms.compress(folder, texts, length=24, layers=1, heads=0.5)
    assert found.removals[0].layers == (0,)
    path = found.save_model(tmp_path / "model")
    settings = json.loads((path / "metastable.json").read_text())
    assert set(settings["heads"]) <= {"0", "1"}
    made = found.builder.removed(found.recipe(0), found.removals[0])
    batch = tokenizer(many_texts[:4], padding=True, return_tensors="pt")
    mask = batch["attention_mask"].bool()
    with torch.inference_mode(), made.running() as fast:
        expected = fast.model(**batch).last_hidden_state[mask]
        again = ms.load_compressed(path)(**batch).last_hidden_state[mask]
    torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-4)


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
        (["--target", "cosine >= 97%"], "write 0.97"),
        (["--pooling", "last"], "pooling"),
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


def test_numbers_are_those_of_the_written_model(folder, texts, tmp_path):
    """The cosine of the table is that of plain embeddings by two plain models, on the texts of the last part."""
    found = ms.compress(folder, texts, length=24, layers=1, batch_size=8)
    path = found.save_model(tmp_path / "model")
    parts = study._parts(load(folder).private(), texts, 24, 8, 0)
    cosines = []
    for name in (folder, path):
        model = AutoModel.from_pretrained(name).eval()
        rows = []
        for batch in parts.test:
            for ids, mask in zip(batch.inputs["input_ids"], batch.mask, strict=True):
                with torch.inference_mode():
                    hidden = model(input_ids=ids[mask][None]).last_hidden_state[0]
                rows.append(hidden.mean(dim=0).double().numpy())
        rows = np.stack(rows)
        cosines.append(rows / np.linalg.norm(rows, axis=1)[:, None])
    assert found.options["cosine"].iloc[0] == pytest.approx((cosines[0] * cosines[1]).sum(axis=1).mean(), abs=1e-5)
