"""Texts with labels, from a file or from lists, and which of them must stay together.

Labels that are strings, truth values or whole numbers are classes. If a label has a fraction part, all labels are
numbers. Texts of one document stay together in a fold and in a resample, and so do equal texts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastable.encoder.texts import blank, lines, read_lines, strings
from metastable.errors import BadInput

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Label = str | bool | int | float

FEWEST = 40
"""The smallest number of texts, or of documents where they are given."""
FOLDS = 5
"""Folds of the cross validation, and the smallest number of texts, or documents, of a class."""
LARGEST = 1e100
"""Labels that are numbers must be smaller than this, so that their squares are finite."""


@dataclass(frozen=True)
class Target:
    """What is predicted.

    values : (texts,), the number of the class of each text, or the label itself if labels are numbers
    classes : the classes in order; empty if labels are numbers
    """

    values: Floats
    classes: tuple[Label, ...]

    @classmethod
    def of(cls, labels: Sequence[Label]) -> Target:
        if all(isinstance(label, (int, float)) for label in labels) and any(label != int(label) for label in labels):
            return cls(np.array([float(label) for label in labels]), ())
        plain = [int(label) if isinstance(label, float) else label for label in labels]
        classes = sorted(set(plain))
        place = {label: number for number, label in enumerate(classes)}
        return cls(np.array([place[label] for label in plain], dtype=np.float64), tuple(classes))

    @property
    def task(self) -> str:
        return "classes" if self.classes else "numbers"

    @property
    def numbers(self) -> Ints:
        """The number of the class of each text."""
        return self.values.astype(np.int64)


@dataclass(frozen=True)
class Labelled:
    """Texts with a word in them, a label each, and the group of each text: its document, or the text itself.

    given : whether documents are given
    skipped : texts without a word, which are left out
    """

    texts: list[str]
    labels: list[Label]
    groups: Ints
    given: bool
    skipped: int

    @classmethod
    def of(cls, rows: Iterable[tuple[str, Any, Any, str]]) -> Labelled:
        """From rows of text, label, document (None if there is none) and a name for messages."""
        texts, labels, owners, skipped = [], [], [], 0
        for text, label, document, name in rows:
            if blank(text):
                skipped += 1
                continue
            texts.append(text)
            labels.append(_label(label, name))
            owners.append(("text", text) if document is None else ("document", document))
        if not texts:
            raise BadInput("all texts are blank; give texts with a word in them")
        _check_kinds(labels)
        place: dict[Any, int] = {}
        groups = np.array([place.setdefault(owner, len(place)) for owner in owners], dtype=np.int64)
        return cls(texts, labels, groups, any(kind == "document" for kind, _ in owners), skipped)

    def some(self, chosen: Ints) -> Labelled:
        """The texts of these numbers; the others are counted as skipped."""
        groups = np.unique(self.groups[chosen], return_inverse=True)[1].astype(np.int64)
        texts, labels = [self.texts[i] for i in chosen], [self.labels[i] for i in chosen]
        return Labelled(texts, labels, groups, self.given, self.skipped + len(self.texts) - len(chosen))

    def target(self) -> Target:
        """What is predicted; BadInput if there are too few texts for a cross validation."""
        found, unit = Target.of(self.labels), "documents" if self.given else "different texts"
        many = len(set(self.groups.tolist()))
        if many < FEWEST:
            raise BadInput(f"there are {many} labelled {unit}; give at least {FEWEST}")
        if not found.classes:
            if np.ptp(found.values) == 0:
                raise BadInput(f"all labels are {found.values[0]:g}; give texts with different labels")
            return found
        if len(found.classes) == 1:
            raise BadInput(f"all labels are {found.classes[0]!r}; give texts of at least two classes")
        pairs = {(number, group) for number, group in zip(found.numbers.tolist(), self.groups.tolist(), strict=True)}
        by_class = Counter(number for number, _ in pairs)
        rare = min(range(len(found.classes)), key=lambda number: by_class[number])
        if by_class[rare] < FOLDS:
            few = f"class {found.classes[rare]!r} has {by_class[rare]} {unit}; give at least {FOLDS} of each class"
            whole = "; whole numbers are classes, and numbers with a fraction part make a regression"
            raise BadInput(few + (whole if isinstance(found.classes[0], int) else ""))
        return found


def read_labelled(path: str | Path) -> Labelled:
    """The rows of a file `.jsonl` with the fields text and label, and document where there is one."""
    if Path(path).suffix.lower() != ".jsonl":
        raise BadInput(f'{str(path)!r} is no .jsonl file; give one object a line with the fields "text" and "label"')

    def rows() -> Iterable[tuple[str, Any, Any, str]]:
        # The first reader checks every line. The second one has its fields.
        for line, raw in zip(read_lines(path), lines(path, jsonl=False), strict=True):
            record = json.loads(raw.text or "") if not blank(raw.text or "") else {}
            yield line.text or "", record.get("label"), line.document, f"line {line.number} of {str(path)!r}"

    return Labelled.of(rows())


def paired(texts: Iterable[str], labels: Iterable[Any], documents: Iterable[Any] | None) -> Labelled:
    """Texts and labels from lists, arrays or columns, with the document of each text where it is known."""
    known, marks = list(strings(texts)), _listed(labels, "labels")
    owners = [None] * len(known) if documents is None else _listed(documents, "documents")
    for name, column in (("labels", marks), ("documents", owners)):
        if len(column) != len(known):
            raise BadInput(f"there are {len(column)} {name} for {len(known)} texts; give one for each text")
    return Labelled.of((*row, f"text {number}") for number, row in enumerate(zip(known, marks, owners, strict=True)))


def _listed(column: Any, name: str) -> list[Any]:
    if isinstance(column, (str, bytes)) or not isinstance(column, Iterable):
        raise BadInput(f"{name} is of type {type(column).__name__}; give a list with one value for each text")
    return column.tolist() if hasattr(column, "tolist") else list(column)


def _label(value: Any, name: str) -> Label:
    plain = value.item() if hasattr(value, "item") else value
    if plain is None or plain == "":
        raise BadInput(f"{name} has no label; give every text one")
    if not isinstance(plain, (str, int, float)):
        kind = type(plain).__name__
        raise BadInput(f"{name} has a label of type {kind}; give a string, a whole number or a number")
    # The comparison is false for NaN.
    if isinstance(plain, (int, float)) and not abs(plain) < LARGEST:
        raise BadInput(f"{name} has the label {str(plain)[:20]}; give a finite number below {LARGEST:g}")
    return plain


def _check_kinds(labels: Sequence[Label]) -> None:
    kinds = {str: "a string", bool: "a truth value", int: "a number", float: "a number"}
    examples: dict[str, Label] = {}
    for label in labels:
        examples.setdefault(kinds[type(label)], label)
    if len(examples) > 1:
        mixed = " and ".join(f"{kind} ({label!r})" for kind, label in examples.items())
        raise BadInput(f"labels are of mixed types: {mixed}; give all of them one type")
