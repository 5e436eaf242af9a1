"""Labels from files and lists: classes, numbers, documents, and what is refused."""

import json

import numpy as np
import pytest
import torch

from metastable.encoder.exit.labelled import Target, paired, read_labelled
from metastable.errors import BadInput


def rows(labels, **more):
    return [{"text": f"text {i}", "label": label, **more} for i, label in enumerate(labels)]


def written(path, some):
    file = path / "data.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in some) + "\n", encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["b", "a"] * 30, ("a", "b")),
        ([3, 1, 2] * 20, (1, 2, 3)),
        ([1.0, 2.0] * 30, (1, 2)),
        ([True, False] * 30, (False, True)),
        ([1, 2.5, 3] * 20, ()),
    ],
)
def test_what_labels_are(labels, classes, tmp_path):
    from_file = read_labelled(written(tmp_path, rows(labels))).target()
    assert from_file.classes == classes
    wanted = [classes.index(label) for label in labels] if classes else labels
    np.testing.assert_array_equal(from_file.values, wanted)
    for column in (labels, tuple(labels), np.array(labels), [np.array(label)[()] for label in labels]):
        again = paired([f"text {i}" for i in range(len(labels))], column, None).target()
        assert again.classes == classes
        np.testing.assert_array_equal(again.values, wanted)


def test_tensors_are_labels():
    assert paired([f"text {i}" for i in range(40)], torch.arange(40) % 2, None).target().classes == (0, 1)


def test_documents_and_equal_texts_are_groups(tmp_path):
    some = [{"text": f"t{i % 50}", "label": i % 2, "document": f"d{i % 45}" if i < 90 else None} for i in range(100)]
    found = read_labelled(written(tmp_path, some))
    assert found.given
    names = [f"d{i % 45}" if i < 90 else f"t{i % 50}" for i in range(100)]
    for i in range(100):
        assert [found.groups[j] == found.groups[i] for j in range(100)] == [name == names[i] for name in names]
    twice = paired(["one", "two", "one"], ["a", "b", "a"], None)
    assert twice.groups.tolist() == [0, 1, 0]
    assert not twice.given


def test_blank_texts_and_lines_are_left_out(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "one", "label": 1}\n\n{"text": " "}\n{"text": "two", "label": 2}\n', encoding="utf-8")
    found = read_labelled(file)
    assert found.texts == ["one", "two"]
    assert found.labels == [1, 2]
    assert found.skipped == 2


def test_some_of_the_texts():
    found = paired(["a", "b", "c", "d"], [1, 2, 3, 4], ["x", "y", "x", "z"]).some(np.array([1, 2]))
    assert found.texts == ["b", "c"]
    assert found.groups.tolist() == [1, 0]
    assert found.skipped == 2


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["a"] * 50, "all labels are 'a'"),
        ([0.5] * 50, "all labels are 0.5"),
        ([1, 2] * 15, "30"),
        (["a", "b"] * 25 + ["rare"] * 4, "'rare' has 4"),
        (list(range(50)), "fraction"),
        ([1, "b"] * 25, "mixed"),
        ([True, 2] * 25, "mixed"),
        ([1, 2] * 25 + [None], "no label"),
        ([1, 2] * 25 + [""], "no label"),
        ([0.5, 2] * 25 + [float("nan")], "nan"),
        ([0.5, 2] * 25 + [float("inf")], "inf"),
        ([0.5, 2] * 25 + [10**400], "finite"),
        ([1, 2] * 25 + [["a"]], "list"),
    ],
)
def test_bad_labels_are_one_line(labels, words, tmp_path):
    for make in (
        lambda: read_labelled(written(tmp_path, rows(labels))).target(),
        lambda: paired([f"text {i}" for i in range(len(labels))], labels, None).target(),
    ):
        with pytest.raises(BadInput, match=words) as found:
            make()
        assert "\n" not in str(found.value)


def test_a_missing_label_names_its_line(tmp_path):
    with pytest.raises(BadInput, match="line 3"):
        read_labelled(written(tmp_path, [*rows([1, 2]), {"text": "x"}]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((["a", "b"], [1], None), "1 labels for 2 texts"),
        ((["a", "b"], [1, 2], ["x"]), "1 documents for 2 texts"),
        ((["a", "b"], "ab", None), "labels is of type str"),
        ((["a", "b"], 3, None), "labels is of type int"),
        (("ab", [1, 2], None), "one string"),
        (([" ", "\t"], [1, 2], None), "blank"),
        (([1, 2], [1, 2], None), "int"),
    ],
)
def test_bad_lists_are_one_line(arguments, words):
    with pytest.raises(BadInput, match=words):
        paired(*arguments)


def test_a_file_of_another_kind(tmp_path):
    file = tmp_path / "data.csv"
    file.write_text("text,label\n", encoding="utf-8")
    with pytest.raises(BadInput, match="jsonl"):
        read_labelled(file)


def test_numbers_are_not_classes():
    assert Target.of([1, 2.5]).task == "numbers"
    assert Target.of([1, 2]).task == "classes"
