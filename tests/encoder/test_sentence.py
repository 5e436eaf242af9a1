"""Models of sentence-transformers: in memory and on disk, read as that package reads them."""

import json
import shutil

import numpy as np
import pytest

import metastable as ms
from metastable.encoder.load import load
from metastable.encoder.pooling import embed, pooling_of
from metastable.encoder.texts import batches
from tests.encoder import models

LIMIT = 12
LONG = " ".join(["Although the committee had read both reports, nobody could say why the bridge had been closed."] * 3)
TEXTS = [*models.TEXTS, LONG]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The folder of a tiny BERT with the real tokenizer."""
    folder = tmp_path_factory.mktemp("plain")
    models.tiny("bert", vocab_size=30522).save_pretrained(folder)
    models.tokenizer().save_pretrained(folder)
    return folder


def sentence_model(folder, pooling="mean", limit=LIMIT):
    import sentence_transformers as st
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    encoder = Transformer(str(folder), max_seq_length=limit)
    return st.SentenceTransformer(modules=[encoder, Pooling(32, pooling_mode=pooling)], device="cpu")


@pytest.fixture(scope="module")
def model(plain):
    return sentence_model(plain)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_embeddings_are_those_of_the_model_itself(plain, pooling, tmp_path):
    """The cut, the tokens and the pooling, in memory and from its folder."""
    found = sentence_model(plain, pooling)
    found.save_pretrained(str(tmp_path / "saved"))
    expected = found.encode(TEXTS)
    for source in (found, tmp_path / "saved"):
        encoder = load(source)
        assert (encoder.limit, encoder.anatomy.limit) == (LIMIT, 64)
        assert pooling_of(encoder, None) == pooling
        parts = list(batches(encoder.tokenizer, TEXTS, encoder.limit, 2))
        order = np.argsort(np.concatenate([part.numbers for part in parts]))
        np.testing.assert_allclose(embed(encoder, parts, pooling)[order], expected, atol=1e-5)
        assert max(part.mask.shape[1] for part in parts) == LIMIT


def test_a_model_in_memory_stays_as_it_is(model):
    state = str(model.tokenizer.backend_tokenizer.truncation), model.training, model.max_seq_length
    encoder = load(model)
    assert encoder.model is model[0].auto_model
    list(batches(encoder.tokenizer, TEXTS, encoder.limit, 2))
    assert encoder.tokenizer is not model.tokenizer
    assert (str(model.tokenizer.backend_tokenizer.truncation), model.training, model.max_seq_length) == state


def old_layout(plain, folder, **settings):
    """The files as sentence-transformers wrote them up to version 1: the encoder in 0_Transformer."""
    shutil.copytree(plain, folder / "0_Transformer")
    kinds = "sentence_transformers.models"
    rows = [
        {"idx": 0, "name": "0", "path": "0_Transformer", "type": f"{kinds}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{kinds}.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    (folder / "0_Transformer" / "sentence_bert_config.json").write_text(json.dumps(settings))
    return folder


def test_the_old_layout(plain, tmp_path):
    encoder = load(old_layout(plain, tmp_path, max_seq_length=20, do_lower_case=False))
    assert encoder.limit == 20
    assert encoder.folder == tmp_path
    assert pooling_of(encoder, None) == "max"
    assert encoder.fingerprint == load(plain).fingerprint


def test_lower_case(tokenizer, tmp_path):
    """Words in capitals are known in lower case only."""
    plain = tmp_path / "plain"
    models.tiny("bert").save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    (tmp_path / "lower").mkdir()
    lower = load(old_layout(plain, tmp_path / "lower", max_seq_length=20, do_lower_case=True)).tokenizer
    assert lower("W3 w4 W5")["input_ids"] == lower("w3 w4 w5")["input_ids"] == tokenizer("w3 w4 w5")["input_ids"]
    assert tokenizer.unk_token_id in load(plain).tokenizer("W3 w4 W5")["input_ids"]
    assert lower("W3").word_ids() == [None, 0, None]


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ("no json", "modules.json is no list"),
        ("[]", "modules.json is no list"),
        ('[{"type": "x.Transformer", "path": "../secret"}]', "outside"),
        ('[{"type": "sentence_transformers.models.StaticEmbedding", "path": "0"}]', "StaticEmbedding"),
    ],
)
def test_damaged_files_are_one_line(tmp_path, modules, words):
    (tmp_path / "modules.json").write_text(modules)
    with pytest.raises(ms.BadInput, match=words):
        load(tmp_path)


def test_a_model_without_an_encoder_of_transformers_is_refused():
    import sentence_transformers as st
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    static = StaticEmbedding(models.tokenizer(), embedding_dim=8)
    with pytest.raises(ms.BadInput, match="begins with StaticEmbedding"):
        load(st.SentenceTransformer(modules=[static]))


def test_an_audit_cuts_texts_where_the_model_does(model):
    found = ms.audit(model, TEXTS)
    assert found.measured.counts.cut == 2
    assert int(max(found.measured.lengths)) <= LIMIT


def test_a_live_monitor_sees_what_encode_runs(model, clean_words):
    base = ms.Baseline.fit(model, clean_words)
    before = model.encode(clean_words[:50], batch_size=8)
    with ms.Monitor(model, base) as monitor:
        np.testing.assert_array_equal(model.encode(clean_words[:50], batch_size=8), before)
    assert (monitor.counts.scored, monitor.failures, monitor.counts.unreadable) == (50, {}, {})
    # Not in the order of the texts: `encode` sorts them by length.
    examined = ms.Monitor(model, base).examine(clean_words[:50])
    live = monitor.records
    assert sorted(record.n for record in live) == sorted(record.n for record in examined)
    scores = [sorted(record.score for record in found) for found in (live, examined)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)
    assert max(record.n for record in examined) == LIMIT - 2
    model.encode(clean_words[:5])
    assert monitor.counts.scored == 50


@pytest.fixture(scope="module")
def clean_words():
    """Texts of common words, some longer than the limit."""
    import random

    draw = random.Random(0)
    words = sorted({word for text in models.TEXTS for word in text.lower().strip(".").replace(",", "").split()})
    return [" ".join(draw.choices(words, k=draw.randint(4, 16))) for _ in range(1300)]
