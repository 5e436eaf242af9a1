"""Texts that the tokenizer does not know are warned of or refused, and the right tokenizer can be given."""

import json

import pytest

import metastable as ms
from metastable.cli.app import app
from metastable.encoder.load import load
from metastable.encoder.texts import TextCounts, batches, unknown_tokens
from tests.conftest import WORDS
from tests.encoder.models import tiny


def mixed(known, unknown, count=40):
    """Texts with this many known and unknown words each."""
    return [" ".join([*WORDS[i % 40 : i % 40 + known], *["zzz"] * unknown]) for i in range(count)]


def test_unknown_tokens_are_counted_without_special_ones(tokenizer):
    counts = TextCounts()
    list(batches(tokenizer, ["w1 zzz w2", "[MASK] w1 yyy xxx"], 64, 8, counts))
    assert (counts.tokens - counts.special, counts.unknown) == (6, 3)


@pytest.mark.parametrize(("known", "unknown", "warned"), [(20, 1, False), (19, 1, True), (6, 5, True)])
def test_an_audit_warns_from_one_in_twenty(tokenizer, known, unknown, warned):
    found = ms.audit(tiny("bert"), mixed(known, unknown), tokenizer=tokenizer, beside_random=False)
    assert any(note.startswith("Warning: the tokenizer does not know") for note in found.notes) == warned


def refused(name, tokenizer):
    """A command on texts of which half or more is unknown."""
    model, texts, given = tiny("bert"), mixed(5, 6, 60), {"tokenizer": tokenizer}
    if name == "audit":
        return ms.audit(model, texts, **given)
    if name == "length":
        return ms.length(model, [" ".join(texts)] * 9, **given)
    if name == "compress":
        return ms.compress(model, [f"{text} {word}" for text in texts[:2] for word in WORDS], **given)
    if name == "exit":
        return ms.exit_layer(model, texts, ["a", "b"] * 30, **given)
    return ms.Baseline.fit(model, [f"zzz yyy {word} xxx {i}" for i, word in enumerate(WORDS * 20)], **given)


@pytest.mark.parametrize("name", ["audit", "length", "compress", "exit", "calibrate"])
def test_texts_that_are_half_unknown_are_refused(tokenizer, name):
    with pytest.raises(ms.BadInput, match=r"does not know \d\d% of the tokens.*--tokenizer"):
        refused(name, tokenizer)


def test_one_token_a_text_is_laid_to_the_tokenizer(tokenizer):
    with pytest.raises(ms.BadInput, match="makes one token of each text"):
        ms.audit(tiny("bert"), WORDS[:5], tokenizer=tokenizer)


def test_warnings_are_in_words_for_every_result(tokenizer):
    assert unknown_tokens({"tokens": 120, "special": 20, "unknown": 4}) == []
    (words,) = unknown_tokens({"tokens": 120, "special": 20, "unknown": 5})
    assert "5%" in words


def test_a_tokenizer_by_its_folder(tokenizer, tmp_path):
    tiny("bert").save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "words")
    with pytest.raises(ms.BadInput, match="no tokenizer beside its weights"):
        ms.audit(tmp_path / "model", mixed(9, 0))
    given = load(tmp_path / "model", tokenizer=tmp_path / "words")
    assert given.tokenizer_folder == tmp_path / "words"
    assert given.tokenizer("w3 w4")["input_ids"] == tokenizer("w3 w4")["input_ids"]
    with pytest.raises(ms.BadInput, match="holds no tokenizer"):
        load(tmp_path / "model", tokenizer=tmp_path)


def test_the_command_takes_a_tokenizer(tokenizer, tmp_path, capsys):
    tiny("bert").save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "words")
    (tmp_path / "texts.txt").write_text("\n".join(mixed(8, 2)), encoding="utf-8")
    arguments = ["audit", str(tmp_path / "model"), "--texts", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "o")]
    with pytest.raises(SystemExit) as ended:
        app([*arguments, "--tokenizer", str(tmp_path / "words")])
    assert ended.value.code == 0
    assert "Warning: the tokenizer does not know 20% of the tokens" in capsys.readouterr().out
    saved = json.loads((tmp_path / "o" / "audit.json").read_text())
    assert saved["measured"]["counts"]["unknown"] == 80
