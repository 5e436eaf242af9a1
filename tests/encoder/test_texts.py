"""Reading texts and making batches of them: no text is lost silently, and only tokens are counted."""

import io
import json
import random
import sys
from types import SimpleNamespace

import pytest
import torch

from metastable.encoder import texts as module
from metastable.encoder.texts import TextCounts, batches, lines, read_texts
from metastable.errors import BadInput
from tests.encoder import models


@pytest.fixture(scope="module")
def tokenizer():
    return models.tokenizer()


def written(folder, content, name="texts.txt"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_one_text_a_line(tmp_path):
    path = written(tmp_path, "\ufefferste Zeile\r\n\n \t \nмир\u2028все ещё\n最后一行")
    assert list(read_texts(path)) == ["erste Zeile", "", " \t ", "мир\u2028все ещё", "最后一行"]


def test_jsonl_takes_the_text_field(tmp_path):
    rows = [{"text": "eins", "id": 3}, {"text": "<b>zwei</b>\nnoch"}]
    path = written(tmp_path, "\n".join(map(json.dumps, rows)) + "\n\n", "texts.JSONL")
    assert list(read_texts(path)) == ["eins", "<b>zwei</b>\nnoch", ""]


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("a\nb ü".encode())))
    assert list(read_texts("-")) == ["a", "b ü"]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"ok\n\xff")))
    with pytest.raises(BadInput, match=r"^standard input, line 2: is not UTF-8 \(byte 0xff at place 1\)"):
        list(read_texts("-"))


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        (b"good\nbad \xc3( here\n", "a.txt", r"line 2: is not UTF-8 \(byte 0xc3 at place 5\)"),
        (b"good\n\ngo\0od\n", "a.txt", "line 3: holds a NUL byte"),
        ("utf sixteen".encode("utf-16"), "a.txt", "line 1: "),
        (random.Random(0).randbytes(5000), "a.txt", "line 1: "),
        (b"", "a.txt", "holds no text"),
        (b"\n  \n\t\n", "a.txt", "holds no text"),
        (b'{"text": "a"}\n{"text": "b"', "a.jsonl", "line 2: is not JSON"),
        (b"[" * 100_000, "a.jsonl", "line 1: is not JSON"),
        (b'{"texts": "a"}\n', "a.jsonl", 'line 1: has no "text" field'),
        (b"[1]\n", "a.jsonl", 'line 1: has no "text" field'),
        (b'{"text": 3}\n', "a.jsonl", "of type int"),
        (b'{"text": "a\\u0000b"}\n', "a.jsonl", "NUL"),
        (b'{"text": "a\\ud83d"}\n', "a.jsonl", "surrogate"),
    ],
)
def test_unusable_files_are_refused_in_one_line(tmp_path, content, name, words):
    path = written(tmp_path, content, name)
    with pytest.raises(BadInput, match=words) as caught:
        list(read_texts(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_and_folders_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nothing.txt"):
        with pytest.raises(BadInput, match="cannot be read"):
            list(read_texts(path))


def test_lines_go_on_after_a_bad_one(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 2**20)
    path = written(tmp_path, b"one\n\xff\n" + b"x" * (2**20 + 7) + b"\nfour\n")
    found = list(lines(path))
    assert [line.number for line in found] == [1, 2, 3, 4]
    assert [line.text for line in found] == ["one", None, None, "four"]
    assert "UTF-8" in found[1].reason
    assert "longer than 1 MiB" in found[2].reason


def test_names_of_texts_and_of_their_documents(tmp_path):
    named = [
        ({"id": "a-1", "document": "report 7"}, "a-1", "report 7"),
        ({"id": 12, "document": 7}, 12, "7"),
        ({"id": 10**400}, "1" + "0" * 198 + "…", None),
        ({"id": True, "document": [1]}, None, None),
        ({"id": 1.5, "document": None}, None, None),
        ({"id": {"a": 1}, "document": "half \ud83d"}, None, None),
        ({}, None, None),
    ]
    rows = [json.dumps({"text": "good", **more}) for more, _, _ in named]
    rows.append('{"text": "a\\u0000b", "id": "bad", "document": "d"}')
    found = list(lines(written(tmp_path, "\n".join(rows), "texts.jsonl")))
    assert [(line.id, line.document) for line in found[:-1]] == [(i, document) for _, i, document in named]
    assert [line.text for line in found] == ["good"] * len(named) + [None]
    assert (found[-1].id, found[-1].document) == ("bad", "d")


def test_jsonl_is_asked_for_or_goes_by_the_ending(tmp_path, monkeypatch):
    content = '{"text": "inside", "id": 1}\n'
    for name, jsonl, inside in (("a.txt", True, True), ("a.jsonl", None, True), ("b.jsonl", False, False)):
        assert [line.text for line in lines(written(tmp_path, content, name), jsonl)] == [
            "inside" if inside else content.strip()
        ]
    for jsonl in (None, False, True):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content.encode())))
        assert [line.text for line in lines("-", jsonl)] == ["inside" if jsonl else content.strip()]


def test_standard_input_that_is_closed_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(BadInput, match="standard input is closed"):
        list(lines("-"))


def test_a_broken_line_is_met_only_when_it_is_reached(tmp_path):
    stream = read_texts(written(tmp_path, b"one\ntwo\n\xff\n"))
    assert [next(stream), next(stream)] == ["one", "two"]


TEXTS = [
    "A short one.",
    "",
    "A somewhat longer text about nothing in particular.",
    "\u200b",
    "Third",
    " ",
    "мир",
    "世界",
]


def test_batches_hold_the_tokenizer_s_tokens(tokenizer):
    counts = TextCounts()
    found = list(batches(tokenizer, TEXTS, 512, 3, counts))
    seen = {}
    for batch in found:
        assert len(batch.numbers) <= 3
        for row, number in enumerate(batch.numbers.tolist()):
            seen[number] = batch.inputs["input_ids"][row][batch.mask[row]].tolist()
            assert (batch.inputs["attention_mask"][row].bool() == batch.mask[row]).all()
            assert (batch.inputs["input_ids"][row][~batch.mask[row]] == tokenizer.pad_token_id).all()
            special = batch.special[row][batch.mask[row]]
            assert special.tolist() == [True, *[False] * (len(special) - 2), True]
            assert not batch.special[row][~batch.mask[row]].any()
    assert seen == {i: tokenizer(TEXTS[i])["input_ids"] for i in (0, 2, 4, 6, 7)}
    assert counts == TextCounts(texts=5, tokens=sum(map(len, seen.values())), special=10, cut=0, skipped=3, unknown=1)


def test_typed_special_tokens_are_special_and_unknown_words_are_not(tokenizer):
    (batch,) = batches(tokenizer, ["one [SEP] two [MASK] ☃☃"], 512, 4)
    words = tokenizer.convert_ids_to_tokens(batch.inputs["input_ids"][0])
    assert words == ["[CLS]", "one", "[SEP]", "two", "[MASK]", "[UNK]", "[SEP]"]
    assert batch.special[0].tolist() == [True, False, True, False, True, False, True]


def test_batches_depend_on_the_texts_alone_and_are_sorted_within_a_window(tokenizer, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 6)
    many = [" ".join(["word"] * (1 + 7 * i % 11)) for i in range(20)]
    numbers = [batch.numbers.tolist() for batch in batches(tokenizer, iter(many), 512, 4)]
    assert numbers == [batch.numbers.tolist() for batch in batches(tokenizer, many, 512, 4)]
    assert sorted(number for batch in numbers for number in batch) == list(range(20))
    expected = []
    for start in range(0, 20, 6):
        window = sorted(range(start, min(start + 6, 20)), key=lambda i: (7 * i % 11, i))
        expected += [window[i : i + 4] for i in range(0, len(window), 4)]
    assert numbers == expected


def test_no_batch_has_more_places_than_allowed(tokenizer, monkeypatch):
    monkeypatch.setattr(module, "TOKENS", 100)
    many = ["word " * n for n in (5, 5, 30, 30, 30, 30, 200)]
    shapes = [tuple(batch.mask.shape) for batch in batches(tokenizer, many, 512, 32)]
    assert shapes == [(3, 32), (3, 32), (1, 202)]


def test_long_texts_are_cut_and_counted(tokenizer):
    words = "the quick brown fox jumps over the lazy dog and is gone "
    long, fits = words * 20_000, "word " * 62
    counts = TextCounts()
    (batch,) = batches(tokenizer, [long, fits, "word " * 63], 64, 8, counts)
    rows = {number: row for row, number in enumerate(batch.numbers.tolist())}
    kept = batch.inputs["input_ids"][rows[0]]
    assert kept.tolist() == tokenizer(words * 30, truncation=True, max_length=64)["input_ids"]
    assert batch.lengths.tolist() == [64, 64, 64]
    assert batch.special[rows[0]].sum() == 2
    assert counts == TextCounts(texts=3, tokens=192, special=6, cut=2)


def test_only_the_beginning_of_an_absurdly_long_text_is_tokenized(tokenizer, monkeypatch):
    monkeypatch.setattr(module, "PIECE", 2**16)
    asked = []

    class Spy:
        all_special_ids, unk_token_id, pad_token_id = tokenizer.all_special_ids, tokenizer.unk_token_id, 0

        def __call__(self, what, **options):
            asked.append(len(what) if isinstance(what, str) else sum(map(len, what)))
            return tokenizer(what, **options)

    counts = TextCounts()
    spaces = "word" + " " * 2_000_000 + "end"
    found = list(batches(Spy(), ["word " * 400_000, spaces, "x" * 2_000_000, "short"], 64, 8, counts))
    assert max(asked) <= module.PIECE
    assert sum(asked) < 6 * module.PIECE
    assert (counts.texts, counts.cut) == (4, 3)
    assert sorted(torch.cat([batch.lengths for batch in found]).tolist()) == [3, 3, 3, 64]


def test_blanks_before_a_word_are_read_past(tokenizer):
    counts = TextCounts()
    (batch,) = batches(tokenizer, [" " * 5000 + "end"], 64, 8, counts)
    assert batch.inputs["input_ids"][0].tolist() == tokenizer("end")["input_ids"]
    assert counts.cut == 0


def test_arguments_that_are_no_texts_are_refused(tokenizer):
    for wrong, words in (
        ("one string", "list of strings"),
        (["a", 3], "text 1 is of type int"),
        (["\ud800"], "text 0 "),
    ):
        with pytest.raises(BadInput, match=words):
            list(batches(tokenizer, wrong, 64, 8))
    with pytest.raises(BadInput, match="batch size is 0"):
        list(batches(tokenizer, ["a"], 64, 0))
