"""`ms.length` from texts to tables, words and files."""

import dataclasses
import json
import math
import random

import pandas as pd
import pytest
import torch

import metastable as ms
from metastable.encoder.length import forecast
from metastable.encoder.length.documents import read_documents
from metastable.encoder.length.result import TABLES
from metastable.encoder.length.rung import LengthMeter
from metastable.encoder.load import load
from metastable.encoder.pooling import pooling_of
from metastable.encoder.texts import TextCounts
from tests.conftest import WORDS
from tests.encoder.length.conftest import encoder
from tests.encoder.models import tiny


def test_tables_have_their_columns_and_rows(found):
    assert (found.start, found.top, found.last, found.limit) == (32, 128, 128, 128)
    for name, columns in TABLES.items():
        table = getattr(found, name)
        assert list(table.columns) == list(columns), name
        assert len(table), name
    assert len(found.heads) == 3 * 3 * 4
    assert set(found.forecasts["n"]) == {64, 128, 256, 512, 1024}
    known = found.forecasts.groupby("n")["measured"].count() > 0
    assert known.to_dict() == {64: True, 128: True, 256: False, 512: False, 1024: False}


def test_numbers_are_consistent(found):
    heads = found.heads
    assert (heads["entropy_low"] <= heads["entropy"]).all()
    assert (heads["entropy"] <= heads["entropy_high"]).all()
    assert ((heads["focus"]) == ((heads["top_weight"] >= 0.25) & (heads["participation"] <= heads["n"] / 2))).all()
    cosine = found.documents.set_index("n")["document_cosine"]
    parts = found.causes[found.causes["quantity"] == "document_cosine"].groupby("n")["change"].sum()
    for n in (64, 128):
        assert parts[n] == pytest.approx(cosine[n] - cosine[32], abs=1e-6)
    at_top = heads[heads["n"] == 128].reset_index(drop=True)
    lost = found.focus["loses_focus_at"].notna()
    assert not at_top["focus"][found.focus["loses_focus_at"] == 128].any()
    assert at_top["focus"][found.focus["forecast_to_lose_later"].notna()].all()
    assert found.focus["focus_at_start"][lost].all()
    for row in found.focus[lost].itertuples():
        own = heads[(heads["layer"] == row.layer) & (heads["head"] == row.head) & (heads["n"] >= row.loses_focus_at)]
        assert not own["focus"].any()


def test_a_saved_result_is_the_same(found, tmp_path):
    written = found.save(tmp_path / "out")
    assert sorted(written) == sorted(["length", "report", *TABLES])
    for path in (tmp_path / "out", tmp_path / "out" / "length.json"):
        again = ms.Length.load(path)
        for field in dataclasses.fields(found):
            if field.name in TABLES:
                pd.testing.assert_frame_equal(getattr(again, field.name), getattr(found, field.name), check_dtype=False)
            else:
                assert getattr(again, field.name) == getattr(found, field.name)
        assert again.sentences() == found.sentences()


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"schema": "metastable.length/2"}'])
def test_a_damaged_file_is_bad_input(content, tmp_path):
    (tmp_path / "length.json").write_text(content, encoding="utf-8")
    with pytest.raises(ms.BadInput):
        ms.Length.load(tmp_path)


def test_findings_of_the_table_that_has_the_columns(found):
    assert set(found.findings("n == 64 and top_weight < 2")["n"]) == {64}
    assert "loses_focus_at" in found.findings("loses_focus_at > 0 or score_gap > 0 or gap_growth < 9")
    assert list(found.findings("way == 'whole'")["n"]) == [64, 128]
    with pytest.raises(ms.BadInput, match="top_weight"):
        found.findings("top_wait < 1")
    with pytest.raises(ms.BadInput, match="one table"):
        found.findings("way == 'whole' and layer == 0")


@pytest.mark.parametrize("case", ["mpnet", "modernbert", "deberta-v2", "albert"])
def test_families_without_queries(case, tokenizer, long_texts, found):
    other = ms.length(encoder(case), iter(long_texts), tokenizer=tokenizer, up_to=64, reference=found)
    assert other.last == 64
    assert (other.asked, list(other.retrieval["n"])) == ("passages", [64])
    assert any("BertModel" in sentence for sentence in other.sentences())
    assert ("positions" in set(other.causes["part"])) == (case in ("mpnet", "albert"))


def test_short_texts_are_glued(tokenizer):
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=40)) for _ in range(40)]
    found = ms.length(encoder("bert"), texts, texts, tokenizer=tokenizer, start=64)
    assert (found.start, found.top, found.last) == (32, 32, 128)
    assert found.heads.groupby("source")["n"].unique().map(list).to_dict() == {"glued": [32, 64, 128], "prefix": [32]}
    assert found.retrieval.empty
    assert any("glued" in sentence for sentence in found.sentences())


def test_texts_of_one_length_only(tokenizer):
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=40)) for _ in range(8)]
    found = ms.length(tiny("bert", max_position_embeddings=40), texts, texts, tokenizer=tokenizer)
    assert (found.start, found.top, found.last) == (32, 32, 32)
    assert found.sentences()
    assert found.findings("skill < 0").empty


def test_forecasts_come_before_long_texts(tokenizer, long_texts, monkeypatch):
    """No document above n₀ is measured before the forecasts are handed out, and they do not change afterwards."""
    seen, made, plain = [], [], LengthMeter.measure

    def watched(self, documents, *rest):
        seen.append(documents.length(0))
        return plain(self, documents, *rest)

    def forecasted(table):
        assert max(seen) == 32
        made.append(table)

    monkeypatch.setattr(LengthMeter, "measure", watched)
    found = ms.length(encoder("bert"), long_texts, tokenizer=tokenizer, forecasted=forecasted)
    assert max(seen) == 128
    columns = ["made_from", "n", "layer", "head", "statistic", "forecast", "low", "high"]
    pd.testing.assert_frame_equal(made[0][columns], found.forecasts[columns].iloc[: len(made[0])])


def test_the_half_that_scores_has_no_part_in_the_forecast(tokenizer, long_texts):
    """Other documents in the second half change the measured values only."""
    draw = random.Random(5)
    other = [" ".join(draw.choices(WORDS[:9], k=140)) if i % 2 else text for i, text in enumerate(long_texts)]
    tables = [ms.length(encoder("bert"), texts, tokenizer=tokenizer).forecasts for texts in (long_texts, other)]
    from_start = [table[table["made_from"] == 32] for table in tables]
    pd.testing.assert_series_equal(from_start[0]["forecast"], from_start[1]["forecast"], rtol=1e-5)
    assert (from_start[0]["measured"] - from_start[1]["measured"]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"texts": []}, "no text"),
        ({"texts": ["w1 w2", "w3"]}, "4 tokens"),
        ({"texts": ["w1 " * 50]}, "1 of 1"),
        ({"queries": ["w1"]}, "1 queries for 12"),
        ({"queries": "w1"}, "queries is one string"),
        ({"queries": ["w1"] * 11 + [7]}, "query 11 is of type int"),
        ({"queries": [" "] + ["w1"] * 11}, "query 0 is blank"),
        ({"fail_on": "phase > 3"}, "phase"),
        ({"up_to": 200}, "128"),
        ({"up_to": 8}, "32"),
        ({"start": 8}, "32"),
        ({"pooling": "maximum"}, "mean"),
        ({"batch_size": 0}, "batch"),
        ({"fail_on": "entropi > 1"}, "entropy"),
        ({"tokenizer": None}, "tokenizer"),
    ],
)
def test_bad_input_is_one_line(changes, words, tokenizer, long_texts):
    settings = {"texts": long_texts, "tokenizer": tokenizer, **changes}
    with pytest.raises(ms.BadInput, match=words) as error:
        ms.length(encoder("bert"), settings.pop("texts"), **settings)
    assert "\n" not in str(error.value)


def test_an_encoder_that_reads_too_little(tokenizer, long_texts):
    with pytest.raises(ms.BadInput, match="at most 20"):
        ms.length(tiny("bert", max_position_embeddings=20), long_texts, tokenizer=tokenizer)


def test_pooling_of_sentence_transformers(tokenizer, tmp_path):
    encoder("bert").save_pretrained(tmp_path)
    assert pooling_of(load(tmp_path, tokenizer=tokenizer), None) == "mean"
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}), encoding="utf-8")
    assert pooling_of(load(tmp_path, tokenizer=tokenizer), None) == "cls"
    assert pooling_of(load(tmp_path, tokenizer=tokenizer), "mean") == "mean"


def test_a_text_that_is_left_out_does_not_shift_the_queries(tokenizer, long_texts, queries, found):
    """A text of special tokens has no ordinary token."""
    texts = [*long_texts[:5], "[SEP] [SEP]", *long_texts[5:]]
    other = ms.length(encoder("bert"), texts, [*queries[:5], "w1", *queries[5:]], tokenizer=tokenizer)
    pd.testing.assert_frame_equal(other.retrieval, found.retrieval, rtol=1e-4)


def test_retrieval_is_measured_where_enough_documents_reach(tokenizer):
    draw = random.Random(2)
    texts = [" ".join(draw.choices(WORDS, k=k)) for k in [70] * 31 + [140] * 8]
    other = ms.length(encoder("bert"), texts, tokenizer=tokenizer)
    assert (other.top, other.retrieval["n"].max()) == (128, 64)
    assert set(other.retrieval["queries"]) == {39}
    few = ms.length(encoder("bert"), texts[20:], tokenizer=tokenizer)
    assert (few.retrieval["n"].max(), few.retrieval["queries"].max()) == (128, 8)


def test_pieces_are_read_at_their_own_positions(tokenizer, long_texts, monkeypatch):
    seen, plain = [], LengthMeter.measure

    def watched(self, documents, targets=(), place=None):
        if targets == [128] and place is not None and place.at == 1:
            seen.append((documents.ids[0], place.gap))
        return plain(self, documents, targets, place)

    monkeypatch.setattr(LengthMeter, "measure", watched)
    ms.length(encoder("bert"), long_texts, tokenizer=tokenizer)
    whole = read_documents(tokenizer, long_texts, 128, TextCounts())[0].ids[0]
    assert [gap for _, gap in seen] == [30, 60, 90]
    assert all(ids == whole[gap : gap + 30] for ids, gap in seen)


def test_error_bars_beyond_the_last_length_are_widened(tokenizer, long_texts, monkeypatch):
    def widths(factor):
        monkeypatch.setattr(forecast, "widening", lambda *_: factor)
        table = ms.length(encoder("bert"), long_texts, tokenizer=tokenizer, up_to=64).forecasts
        rows = table[(table["statistic"] == "special_share") & (table["made_from"] == 64)]
        return (rows["forecast"] / rows["low"]).map(math.log)

    pd.testing.assert_series_equal(2 * widths(1.0), widths(2.0), rtol=1e-3)


def test_embeddings_without_a_direction_are_refused(tokenizer, long_texts):
    model = encoder("bert")
    with torch.no_grad():
        model.encoder.layer[-1].output.LayerNorm.weight.zero_()
        model.encoder.layer[-1].output.LayerNorm.bias.zero_()
    with pytest.raises(ms.BadInput, match="no direction"):
        ms.length(model, long_texts, tokenizer=tokenizer)
