"""Texts from a file, and texts as batches of tokens.

A batch marks which positions are tokens, and which tokens are special ([CLS], [SEP], …). Padding is never a token.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from metastable.errors import BadInput, choice

SPECIAL = ("exclude", "include")
"""Whether special tokens belong to the cloud of a text."""

LONGEST_LINE = 16 * 2**20
"""The longest line, in bytes. A longer line means that the file has no lines."""

WINDOW = 512
"""Texts are sorted by length within windows of this many consecutive texts."""

WINDOW_CHARACTERS = 2**24
"""A window ends at this many characters, so that memory is bounded."""

TOKENS = 2**13
"""The largest number of positions in one batch, padding included."""

CHARACTERS = 8
"""Characters per token of the model's limit. Longer texts are tokenized alone, from their beginning."""

LONGEST_ID = 200
"""The longest id or slice of a text, in characters; longer ones are cut."""

PIECE = 2**20
"""Texts are tokenized together up to about this many characters. The rest of one longer text is cut off."""

WARNED, REFUSED = 0.05, 0.5
"""Texts are warned of, and refused, if this share of their tokens, or more, is unknown to the tokenizer."""


@dataclass(frozen=True)
class Line:
    """One line of a file: its number, counted from 1, and its text, or the reason why it cannot be used.

    id, document : the fields of these names in a line of `.jsonl`, if they are strings or whole numbers. Texts of one
        document are not independent of each other.
    query : the field of this name, if it is a string: a question that the text answers.
    slice : the field that `lines` was told to take as the slice, if it is a string or a whole number
    end : where the line ends in the file, in bytes
    """

    number: int
    text: str | None
    reason: str | None = None
    id: str | int | None = None
    document: str | None = None
    query: str | None = None
    slice: str | int | None = None
    end: int = field(default=0, compare=False)


def read_texts(path: str | Path) -> Iterator[str]:
    """The texts of a file, one a line in UTF-8, or `.jsonl` with a "text" field. "-" is standard input.

    Blank lines are returned; `batches` counts them. An unusable line, or a file without a text, is BadInput.
    """
    return (line.text or "" for line in read_lines(path))


def read_lines(path: str | Path) -> Iterator[Line]:
    """The lines of a file, all with a text. An unusable line, or a file without a text, is BadInput."""
    any_text = False
    for line in lines(path):
        if line.text is None:
            raise BadInput(f"{_named(path)}, line {line.number}: {line.reason}")
        any_text = any_text or not blank(line.text)
        yield line
    if not any_text:
        raise BadInput(f"{_named(path)} holds no text; give a file with one text a line")


def lines(path: str | Path, jsonl: bool | None = None, sliced_by: str | None = None) -> Iterator[Line]:
    """Every line of a file. Lines that cannot be used have a reason instead of a text.

    jsonl : whether a line is a JSON object with a "text" field; None decides by the ending `.jsonl`
    sliced_by : the field that becomes `Line.slice`
    """
    if str(path) == "-":
        yield from _lines(_standard_input(), bool(jsonl), sliced_by)
        return
    try:
        with Path(path).open("rb") as file:
            yield from _lines(file, Path(path).suffix.lower() == ".jsonl" if jsonl is None else jsonl, sliced_by)
    except OSError as error:
        raise BadInput(f"{_named(path)} cannot be read: {error.strerror or error}; give a file of texts") from error


def blank(text: str) -> bool:
    return not text or text.isspace()


def _named(path: str | Path) -> str:
    return "standard input" if str(path) == "-" else repr(str(path))


def _standard_input() -> IO[bytes]:
    """Standard input with its own buffer.

    If a thread waits in the buffer of sys.stdin when the process ends, Python aborts.
    """
    if sys.stdin is None:
        raise BadInput("standard input is closed; give a file of texts")
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except (AttributeError, OSError):  # replaced by something that is no file, as tests do
        return sys.stdin.buffer


def _lines(file: IO[bytes], jsonl: bool, sliced_by: str | None) -> Iterator[Line]:
    number = end = 0
    while raw := file.readline(LONGEST_LINE):
        number += 1
        end += len(raw)
        if len(raw) == LONGEST_LINE and not raw.endswith(b"\n"):
            while rest := file.readline(LONGEST_LINE):
                end += len(rest)
                if rest.endswith(b"\n"):
                    break
            yield Line(number, None, f"is longer than {LONGEST_LINE // 2**20} MiB; give one text a line", end=end)
            continue
        line = _line(number, raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw, jsonl, sliced_by)
        yield replace(line, end=end)


def _line(number: int, raw: bytes, jsonl: bool, sliced_by: str | None) -> Line:
    if b"\0" in raw:
        return Line(number, None, "holds a NUL byte, so it is binary or UTF-16; save it as UTF-8 text")
    try:
        text = raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        bad = f"byte 0x{raw[error.start]:02x} at place {error.start + 1}"
        return Line(number, None, f"is not UTF-8 ({bad}); save it as UTF-8 text")
    if jsonl and not blank(text):
        return _record(number, text, sliced_by)
    return Line(number, text)


def _record(number: int, text: str, sliced_by: str | None) -> Line:
    wanted = 'give one object a line with a "text" field'
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else "too deep or too large"
        return Line(number, None, f"is not JSON ({why}); {wanted}")
    if not isinstance(record, dict) or "text" not in record:
        return Line(number, None, f'has no "text" field; {wanted}')
    found = record["text"]
    if not isinstance(found, str):
        return Line(number, None, f'has a "text" of type {type(found).__name__}; it must be a string')
    reason = unusable(found)
    document = _name(record.get("document"))
    query = record.get("query")
    return Line(
        number,
        None if reason else found,
        reason,
        _short(_name(record.get("id"))),
        None if document is None else str(document),
        query if isinstance(query, str) and not unusable(query) else None,
        None if sliced_by is None else _short(_name(record.get(sliced_by))),
    )


def _name(value: Any) -> str | int | None:
    """A string or a whole number from JSON; None for other values."""
    if isinstance(value, str):
        return None if unusable(value) else value
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _short(name: str | int | None) -> str | int | None:
    return name if len(str(name)) <= LONGEST_ID else str(name)[: LONGEST_ID - 1] + "…"


def unusable(text: str) -> str | None:
    """The reason why a string is not a text, or None."""
    if "\0" in text:
        return "holds a NUL character; remove it"
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        return "holds half a surrogate pair, which is no character; remove it"
    return None


@dataclass
class TextCounts:
    """Numbers of texts that were measured, skipped (only special tokens) and cut to the limit; and of tokens.

    tokens, special, unknown : all tokens, special tokens, and ordinary tokens that the tokenizer does not know ([UNK])
    """

    texts: int = 0
    tokens: int = 0
    special: int = 0
    cut: int = 0
    skipped: int = 0
    unknown: int = 0

    def add(self, rows: list[Row]) -> None:
        """Count texts that are measured."""
        self.texts += len(rows)
        self.tokens += sum(len(row.special) for row in rows)
        self.special += sum(sum(row.special) for row in rows)
        self.unknown += sum(row.unknown for row in rows)

    def check(self) -> None:
        """Refuse a corpus without a text, and one that the tokenizer does not know."""
        if self.texts == 0:
            what = f"all {self.skipped} texts are blank" if self.skipped else "there are none"
            raise BadInput(f"no text to measure: {what}; give at least one text with a word in it")
        self.check_known()

    def check_known(self) -> None:
        """Refuse a corpus that the tokenizer does not know."""
        if (share := _unknown_share(vars(self))) >= REFUSED:
            raise BadInput(
                f"the tokenizer does not know {share:.0%} of the tokens of these texts, so that the encoder cannot "
                "read them; give texts in its language, or its own tokenizer (--tokenizer PATH)"
            )

    def __add__(self, other: TextCounts) -> TextCounts:
        return TextCounts(**{name: value + getattr(other, name) for name, value in vars(self).items()})


def unknown_tokens(counts: Mapping[str, int]) -> list[str]:
    """A warning if many tokens are unknown. counts : the fields of `TextCounts` by name"""
    share = _unknown_share(counts)
    if share < WARNED:
        return []
    return [
        f"Warning: the tokenizer does not know {share:.0%} of the tokens. All of them look the same to the encoder, so "
        "that texts seem more alike than they are."
    ]


def _unknown_share(counts: Mapping[str, int]) -> float:
    return counts.get("unknown", 0) / max(1, counts.get("tokens", 0) - counts.get("special", 0))


@dataclass(frozen=True)
class Batch:
    """Texts of about one length.

    inputs : the inputs of the model, each (texts, n)
    mask, special : (texts, n) of bool: tokens (not padding), and special tokens
    numbers : (texts,), the position of each text among all texts, counted from 0
    cut : for each text, whether it was longer than the limit
    """

    inputs: dict[str, Tensor]
    mask: Tensor
    special: Tensor
    numbers: Tensor
    cut: tuple[bool, ...] = ()

    def chosen(self, special: str) -> Tensor:
        """The tokens that belong to the cloud of a text, (texts, n) of bool. special : one of `SPECIAL`."""
        return self.mask if choice(special, "special", SPECIAL) == "include" else self.mask & ~self.special

    @property
    def lengths(self) -> Tensor:
        """n of each text, special tokens included, (texts,)."""
        return self.mask.sum(dim=1)


@dataclass(frozen=True)
class Row:
    """One text as tokens.

    inputs : the inputs of the model
    added : which tokens the tokenizer added; special : these, and special tokens that the text itself contains
    unknown : the number of tokens that the tokenizer does not know
    """

    number: int
    inputs: dict[str, list[int]]
    added: list[bool]
    special: list[bool]
    cut: bool
    unknown: int


def batches(
    tokenizer: Any, texts: Iterable[str], limit: int, size: int, counts: TextCounts | None = None
) -> Iterator[Batch]:
    """Batches of at most `size` texts, each cut to `limit` tokens.

    The batches depend only on the texts, `limit` and `size`. Texts with only special tokens are skipped. Each batch is
    added to `counts`.
    """
    if size < 1:
        raise BadInput(f"the batch size is {size}; it must be at least 1")
    counts = TextCounts() if counts is None else counts
    for window in windows(texts):
        found = _tokenized(tokenizer, window, limit, counts)
        found.sort(key=lambda t: (len(t.special), t.number))
        while found:
            take = min(size, len(found))
            while take > 1 and take * len(found[take - 1].special) > TOKENS:
                take -= 1
            part, found = found[:take], found[take:]
            counts.add(part)
            yield _padded(tokenizer, part)


def beginnings(tokenizer: Any, batch: Batch, share: float) -> Batch:
    """The same texts with only the first share of their ordinary tokens, rounded up. Special tokens stay."""
    ordinary = batch.mask & ~batch.special
    rank = ordinary.cumsum(dim=1)
    kept = batch.mask & (batch.special | (rank <= (share * rank[:, -1:]).ceil()))

    def column(values: Tensor, padding: int = 0) -> Tensor:
        rows = [row[here] for row, here in zip(values, kept, strict=True)]
        return pad_sequence(rows, batch_first=True, padding_value=padding)

    inputs = {name: column(values) for name, values in batch.inputs.items()}
    inputs["input_ids"] = column(batch.inputs["input_ids"], tokenizer.pad_token_id or 0)
    return Batch(inputs, column(batch.mask), column(batch.special), batch.numbers, (True,) * len(kept))


def tokenized(tokenizer: Any, texts: Iterable[str], limit: int, counts: TextCounts) -> Iterator[Row]:
    """The tokens of each text, cut to `limit`, in the order of the texts. Texts of special tokens only are skipped."""
    for window in windows(texts):
        found = _tokenized(tokenizer, window, limit, counts)
        counts.add(found)
        yield from found


def strings(texts: Iterable[str]) -> Iterator[str]:
    """The texts one by one; BadInput if one of them is no string, or if all is one string."""
    if isinstance(texts, str):
        raise BadInput(f"texts is one string, {texts[:20]!r}; give a list of strings or read_texts(path)")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadInput(f"text {number} is of type {type(text).__name__}; texts must be strings")
        yield text


def windows(texts: Iterable[str]) -> Iterator[list[tuple[int, str]]]:
    """The texts with their numbers, counted from 0, in windows. `batches` sorts the texts of each window.

    The end of a window depends only on the texts in it. A corpus that is split between windows makes the same batches.
    """
    window: list[tuple[int, str]] = []
    held = 0
    for number, text in enumerate(strings(texts)):
        if reason := unusable(text):
            raise BadInput(f"text {number} {reason}")
        window.append((number, text))
        held += len(text)
        if len(window) == WINDOW or held > WINDOW_CHARACTERS:
            yield window
            window, held = [], 0
    if window:
        yield window


def _tokenized(tokenizer: Any, window: list[tuple[int, str]], limit: int, counts: TextCounts) -> list[Row]:
    unknown_id = tokenizer.unk_token_id
    special_ids = set(tokenizer.all_special_ids) - {unknown_id}
    found = []
    known = [(number, text) for number, text in window if not blank(text)]
    for (number, text), row in zip(known, _rows(tokenizer, [text for _, text in known], limit), strict=True):
        was_cut = row is None or len(row["input_ids"]) > limit
        if row is None or was_cut:
            row, was_cut = _cut(tokenizer, text, limit)
        added = row.pop("special_tokens_mask")
        # An unknown word is a word. A [SEP] or [MASK] in the text is a special token.
        special = [bool(a) or i in special_ids for a, i in zip(added, row["input_ids"], strict=True)]
        if not all(special):
            counts.cut += was_cut
            unknown = sum(i == unknown_id and not s for i, s in zip(row["input_ids"], special, strict=True))
            found.append(Row(number, row, [bool(a) for a in added], special, was_cut, unknown))
    counts.skipped += len(window) - len(found)
    return found


def _rows(tokenizer: Any, texts: list[str], limit: int) -> list[dict[str, list[int]] | None]:
    """The tokens of each text without a cut; None for texts that are too long to be tokenized with the others."""
    rows: list[dict[str, list[int]] | None] = [None] * len(texts)
    short = [place for place, text in enumerate(texts) if len(text) <= CHARACTERS * limit]
    ends = accumulate(len(texts[place]) for place in short)
    for _, piece in groupby(zip(short, ends, strict=True), key=lambda pair: pair[1] // PIECE):
        places = [place for place, _ in piece]
        columns = tokenizer([texts[place] for place in places], return_special_tokens_mask=True, verbose=False)
        for i, place in enumerate(places):
            rows[place] = {name: column[i] for name, column in columns.items()}
    return rows


def _cut(tokenizer: Any, text: str, limit: int) -> tuple[dict[str, list[int]], bool]:
    """One long text, cut to `limit` tokens, and whether it was cut.

    Longer and longer beginnings of the text, ending at a space if possible, are tokenized until one fills the limit. So
    10⁸ characters cost no more than a few thousand, or than `PIECE` if they make few tokens.
    """
    end = CHARACTERS * limit
    while True:
        piece = text[:end]
        if end < len(text) and (space := max(piece.rfind(" "), piece.rfind("\n"))) > end // 2:
            piece = piece[:space]
        whole = tokenizer(piece, return_special_tokens_mask=True, verbose=False)
        if len(whole["input_ids"]) > limit:
            return dict(tokenizer(piece, return_special_tokens_mask=True, truncation=True, max_length=limit)), True
        if end >= min(len(text), PIECE):
            return dict(whole), end < len(text)
        end = min(4 * end, PIECE)


def _padded(tokenizer: Any, part: list[Row]) -> Batch:
    def column(rows: Iterable[list[Any]], value: int = 0) -> Tensor:
        return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)

    inputs = {name: column(t.inputs[name] for t in part) for name in part[0].inputs}
    inputs["input_ids"] = column((t.inputs["input_ids"] for t in part), tokenizer.pad_token_id or 0)
    mask = column([True] * len(t.special) for t in part)
    inputs["attention_mask"] = mask.long()
    numbers = torch.tensor([t.number for t in part])
    return Batch(inputs, mask, column(t.special for t in part), numbers, tuple(t.cut for t in part))
