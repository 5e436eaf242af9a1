"""The language of --fail-on against a reference evaluation in Python, and against garbage."""

import math
import operator

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metastable.encoder.expression import LONGEST, parse
from metastable.errors import BadInput

TABLE = pd.DataFrame(
    {
        "layer": [0, 0, 1, 1],
        "head": [0, 3, 0, 3],
        "gap": [0.5, 0.001, 0.2, math.nan],
        "beta": [100.0, 600.0, math.inf, 700.0],
        "complex": [False, True, False, True],
        "terminal": ["narrows", "circles", "it's", None],
    }
)
SIGNS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def met(text):
    return parse(text).rows(TABLE).index.tolist()


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("gap < 0.01", [1]),
        ("gap<=.2 and head==0", [2]),
        ("beta > 500 and not complex", [2]),
        ("gap >= 0.5 or (beta > 650 and head == 3)", [0, 3]),
        ("complex or layer == 1 and head == 0", [1, 2, 3]),
        ("(complex or layer == 1) and head == 0", [2]),
        ("not complex == true", [0, 2]),
        ("terminal == 'circles' or terminal == \"it's\"", [1, 2]),
        ("terminal != 'circles'", [0, 2]),
        ("beta == inf", [2]),
        ("-1e-3 < gap", [0, 1, 2]),
        ("beta > -inf AND NOT Complex == False".replace("Complex", "complex"), [1, 3]),
        ("gap == nan or gap != nan", []),
        ("gap != 0.5", [1, 2]),
        ("not (gap <= inf)", [3]),
        ("layer == head", [0]),
        ("complex and true", [1, 3]),
        ("gap < +1 and false", []),
        ("0.1 < gap <= 0.5", [0, 2]),
        ("gap < 1 and Terminal == 'AND'".replace("T", "t"), []),
    ],
)
def test_rows(text, rows):
    assert met(text) == rows


def test_columns_in_their_order_and_the_table_is_left_alone():
    expression = parse("gap < 1 and (complex or gap > beta) and terminal == 'gap layer'")
    assert expression.columns == ("gap", "complex", "beta", "terminal")
    assert str(expression).startswith("gap < 1 and")
    before = TABLE.copy()
    assert list(expression.rows(TABLE).columns) == list(TABLE.columns)
    pd.testing.assert_frame_equal(before, TABLE)
    assert parse("gap < 1").rows(TABLE.iloc[:0]).empty


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at its end"),
        ("gap", "holds numbers"),
        ("gap <", "cannot be read"),
        ("gap < 1 beta", "cannot be read at character 9"),
        ("gap = 1", "write =="),
        ("gap < 1 && beta > 2", "write and"),
        ("gap < 1 || beta > 2", "write or"),
        ("gap < 1 & complex", "expected"),
        ("gap < 'x", "character 7"),
        ("(gap < 1", "cannot be read"),
        ("gap < 1)", "character 8"),
        ("not", "cannot be read"),
        ("gap < - beta", "expected a column, a number"),
        ("gap + 1 < 2", "expected a column, a number"),
        ("1 < 2", "names no column"),
        ("3 and gap < 1", "expected a comparison"),
        ("gap is 1", "compare"),
        ("gap in (1, 2)", "expected"),
        ("gap < 1j", "expected a column, a number"),
        ("gapp < 1", "no column 'gapp'; did you mean 'gap'"),
        ("zzz < 1", "choose one of layer, head"),
        ("gap < 'x'", "numbers cannot be compared with words"),
        ("terminal < 'x'", "by == and != only"),
        ("complex == 1", "true or false cannot be compared with numbers"),
        ("terminal", "holds words"),
        ("__import__('os')", "expected a comparison"),
        ("__import__('os').system('true')", "expected a comparison"),
        ("gap.__class__ == 1", "expected a column"),
        ("(lambda: gap)()", "expected a comparison"),
        ("[gap for gap in complex]", "expected a comparison"),
        ("(gap := 1) < 2", "expected"),
        ("f'{gap}' == 'a'", "expected"),
        ("gap < 1; gap", "cannot be read"),
        ("gap < 1\n\x00", "cannot be read"),
        ("gap < " + "1" * LONGEST, "at most 1000"),
        ("(" * 300 + "gap < 1" + ")" * 300, "cannot be read"),
    ],
)
def test_errors_are_one_line_and_point_at_the_place(text, words):
    with pytest.raises(BadInput, match=words) as caught:
        met(text)
    assert len(str(caught.value).splitlines()) == 1


def test_the_limits_themselves_are_allowed():
    assert met("(" * 50 + "gap < 0.01" + ")" * 50) == [1]
    assert met("not " * 50 + "complex") == [1, 3]
    assert met("gap < " + "1" * 400) == [0, 1, 2]
    assert met(("gap < 0.01" + " or complex" * 100)[:LONGEST].rsplit(" or", 1)[0]) == [1, 3]
    assert met(" and ".join(["(not complex)"] * 55)) == [0, 2]


numbers = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6)
comparisons = st.tuples(
    st.just("compare"), st.sampled_from(["gap", "beta", "layer", "head"]), st.sampled_from(sorted(SIGNS)), numbers
)
turned = st.tuples(
    st.just("turned"), numbers, st.sampled_from(sorted(SIGNS)), st.sampled_from(["gap", "beta", "layer", "head"])
)
conditions = st.recursive(
    st.one_of(comparisons, turned, st.just(("bool", "complex"))),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), inner, inner),
    ),
    max_leaves=8,
)


def written(tree):
    match tree:
        case ("bool", name):
            return name
        case ("not", inner):
            return f"not ({written(inner)})"
        case ("and" | "or" as word, left, right):
            return f"({written(left)}) {word} ({written(right)})"
        case (_, left, sign, right):
            return f"{left} {sign} {right}"


def reference(tree, row):
    match tree:
        case ("bool", name):
            return bool(row[name])
        case ("not", inner):
            return not reference(inner, row)
        case ("and", left, right):
            return reference(left, row) and reference(right, row)
        case ("or", left, right):
            return reference(left, row) or reference(right, row)
        case (_, left, sign, right):
            values = [float(row[v]) if isinstance(v, str) else v for v in (left, right)]
            return not any(map(math.isnan, values)) and SIGNS[sign](*values)


@given(conditions)
@settings(deadline=None, max_examples=200)
def test_against_a_reference_evaluation(tree):
    text = written(tree)
    if len(text) > LONGEST:
        return
    assert met(text) == [i for i, row in TABLE.iterrows() if reference(tree, row)]


@given(st.lists(st.tuples(st.sampled_from(["and", "or"]), st.booleans(), st.sampled_from(["complex", "even", "low"]))))
@settings(deadline=None, max_examples=200)
def test_precedence_is_pythons(parts):
    table = pd.DataFrame(
        {"complex": [True, False] * 4, "even": [True, True, False, False] * 2, "low": [True] * 4 + [False] * 4}
    )
    text = "complex" + "".join(f" {word} {'not ' * negated}{name}" for word, negated, name in parts)
    if len(text) > LONGEST:
        return
    # `or` binds less than `and`, and `not` more than both.
    groups = [[name.split() for name in group.split(" and ")] for group in text.split(" or ")]
    expected = [
        i
        for i, row in table.iterrows()
        if any(all(row[name] != ("not" in negations) for *negations, name in group) for group in groups)
    ]
    assert parse(text).rows(table).index.tolist() == expected


def outcome(text):
    """The rows, or what is wrong."""
    try:
        return met(text)
    except BadInput as error:
        return str(error)


@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(
            st.sampled_from(
                [*SIGNS, "(", ")", "and", "or", "not", "gap", "complex", "1", "-", "'a'", "nan", "inf", "true", "="]
            ),
            max_size=14,
        ).map(" ".join),
    )
)
@settings(deadline=None, max_examples=500)
def test_garbage_raises_nothing_but_bad_input(text):
    found = outcome(text)
    if isinstance(found, str):
        assert len(found.splitlines()) == 1
    else:
        assert set(found) <= set(TABLE.index)
