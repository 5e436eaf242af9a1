"""The state of the page: links, fields, limits, and the head and the cloud that it describes."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import metastable as ms
from metastable.block import KERNELS, NORMS
from metastable.encoder.trained_head import prepare
from metastable.lab.encoders import MOST_TEXTS, TEXTS
from metastable.lab.matrices import parse_matrices
from metastable.lab.state import COMPARISONS, FIELDS, FRAMES_BYTES, LAWS, MOST_NUMBERS, State, problem_of, problems
from tests.encoder import models

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
EIGENVALUE = st.floats(-100, 100)
STATES = st.builds(
    State,
    d=st.integers(2, 32),
    interaction=st.lists(EIGENVALUE, min_size=1, max_size=5).map(tuple),
    value=st.lists(EIGENVALUE, min_size=1, max_size=5).map(tuple),
    angle=st.floats(-360, 360),
    matrices=TEXT,
    trained=TEXT,
    heads=st.integers(1, 8),
    kernel=st.sampled_from(KERNELS),
    causal=st.sampled_from(["no", "yes"]),
    norm=st.sampled_from(list(NORMS)),
    perceptron=st.integers(0, 256),
    noise=st.floats(0, 10),
    law=st.sampled_from(list(LAWS)),
    n=st.integers(1, 20_000),
    seed=st.integers(0, 2**53 - 1),
    beta=st.one_of(st.floats(0, 1e6), st.just(math.inf)),
    until=st.floats(1e-6, 1000),
    compare=st.sampled_from(list(COMPARISONS)),
    other=TEXT,
    view=st.sampled_from(["laboratory", "audit"]),
    model=TEXT,
    corpus=TEXT,
    twin=st.sampled_from(["yes", "no"]),
    column=TEXT,
    head=st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99)),
    sample=st.integers(0, MOST_TEXTS - 1),
    time=st.floats(0, 1000),
    theme=st.sampled_from(["light", "dark"]),
)
MANY = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def assert_told(state):
    """Every message is one line beside a field."""
    for name, line in problems(state).items():
        assert name in FIELDS
        assert line
        assert "\n" not in line


@MANY
@given(STATES)
def test_a_link_restores_the_exact_state(state):
    query = state.to_query()
    assert State.from_query(query) == State.from_query("?" + query) == state
    assert query.isascii()
    assert not any(mark in query for mark in " \"'<>\n")
    assert_told(state)


@MANY
@given(STATES)
def test_the_fields_of_the_page_restore_the_state(state):
    state = replace(state, time=0.0, theme="light", trained="")
    state = replace(
        state, **{name: getattr(state, name).strip() for name in ("matrices", "other", "model", "corpus", "column")}
    )
    if state.compare not in ("beta", "n"):
        state = replace(state, other="")
    assert State.from_page(state.to_page()) == state


@MANY
@given(st.text(max_size=80) | st.lists(st.tuples(st.sampled_from(["d", "beta", "head", "n", "x"]), TEXT)).map(
    lambda pairs: "&".join(f"{name}={text}" for name, text in pairs)
))  # fmt: skip
def test_no_link_is_an_exception_and_a_wrong_text_stays_in_it(query):
    state = State.from_query(query)
    assert State.from_query(state.to_query()) == state
    assert_told(state)


def test_a_link_says_what_differs_and_nothing_else():
    assert State().to_query() == ""
    assert State.from_query("") == State()
    state = State(beta=0.1 + 0.2, value=(1.0, 2.0, 3.0), view="audit", head=(3, 7), time=1.5)
    assert state.to_query() == "value=1,2,3&beta=0.30000000000000004&view=audit&head=3,7&time=1.5"
    assert State(beta=math.inf).to_query() == "beta=inf"


def test_what_a_link_cannot_say_is_told_by_field_and_counts_as_its_default():
    state = State.from_query("d=two&beta=5&head=1&interaction=1,x,2&theme=pink&time=inf&unheard=of")
    assert replace(state, unread=()) == State(beta=5.0)
    assert set(problems(state)) == {"d", "head", "interaction", "theme", "time"}
    assert problems(state)["d"].startswith("two: ")
    assert state.to_page()["d"] == "two"
    with pytest.raises(ms.BadInput, match="too long"):
        State.from_query("matrices=" + "9" * 10**6)


def test_only_the_chosen_source_gives_the_head():
    page = State(matrices="1 0\n0 2\n\n1 0\n0 3").to_page()
    assert page["source"] == "matrices"
    assert State.from_page({**page, "source": "spectra"}).matrices == ""
    assert set(problems(State.from_page({**page, "source": "trained"}))) == {"trained"}
    assert set(problems(State.from_page({**page, "matrices": " "}))) == {"matrices"}


def test_the_defaults_are_all_well():
    for law in ("uniform", "graded", "fibonacci", "von_mises_fisher", "mixture"):
        assert problems(State(law=law)) == {}


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ("d=1", "d", "from 2 to 32"),
        ("d=33", "d", "33: "),
        ("d=", "d", "empty: "),
        ("d=2.5", "d", "2.5: "),
        ("d=4&interaction=1,1,1", "interaction", "d = 4"),
        ("interaction=1,nan,2", "interaction", "1,nan,2: "),
        ("value=1,101,2", "value", "100"),
        ("value=1,x,2", "value", "1,x,2: "),
        ("value=", "value", "empty: "),
        ("angle=inf", "angle", "360"),
        ("n=0", "n", "from 1 to 20000"),
        ("n=20001", "n", "20001: "),
        ("n=" + "9" * 5000, "n", "9…: "),
        ("seed=-1", "seed", "from 0 to"),
        ("beta=-1", "beta", "or inf"),
        ("beta=2e6", "beta", "or inf"),
        ("beta=nan", "beta", "nan: "),
        ("until=0", "until", "above 0"),
        ("until=1001", "until", "1000"),
        ("until=inf", "until", "inf: "),
        ("law=tokens", "law", "tokens: "),
        ("law=gaussian\n", "law", "gaussian: "),
        ("law=equally_spaced", "law", "d = 2"),
        ("law=graded&interaction=1,1,1&value=1,1,1", "law", "dominant"),
        ("trained=minilm:3", "trained", "MODEL:layer:head"),
        ("trained=m:3:7&law=graded", "law", "tokens"),
        ("trained=m:3:7&law=uniform&n=1", "n", "2"),
        ("matrices=1 2\n3 4", "matrices", "1 matrix"),
        ("matrices=1\n\n1", "matrices", "1×1"),
        ("matrices=[[1,0],[0,1]] [[1,0],[0,1]]&law=fibonacci", "law", "d = 3"),
        ("compare=gamma", "compare", "beta"),
        ("compare=beta&other=", "other", "empty: "),
        ("compare=beta&other=-1", "other", "-1: "),
        ("compare=n&other=2.5", "other", "whole number"),
        ("law=graded&compare=weights", "compare", "uniform"),
        ("beta=-1&compare=n&other=20", "beta", "-1: "),
    ],
)
def test_each_limit_is_told_beside_its_field(query, field, words):
    found = problems(State.from_query(query))
    assert list(found) == [field]
    assert words in found[field]
    assert "\n" not in found[field]


@pytest.mark.parametrize(
    ("query", "other"),
    [
        ("compare=beta", "10"),
        ("compare=beta&beta=5", "100"),
        ("compare=beta&beta=inf", "100000"),
        ("compare=beta&beta=1234.5", "123"),
        ("compare=n", "250"),
        ("compare=n&n=402", "101"),
        ("compare=n&n=100", "1000"),
        ("compare=weights", ""),
        ("other=3", "3"),
        ("compare=beta&other=3", "3"),
    ],
)
def test_a_comparison_without_its_second_value_has_that_of_the_page(query, other):
    state = State.from_query(query)
    assert state.other == other
    assert problems(state) == {}
    assert State.from_query(state.to_query()) == state


def test_the_second_value_of_a_link_is_empty_if_the_first_is_wrong():
    assert State.from_query("compare=n&n=many").other == ""


def test_all_problems_are_told_at_once():
    state = State.from_query("d=2&interaction=1&value=&angle=nan&n=-1&seed=0.5&beta=-2&until=-1&law=")
    assert set(problems(state)) == {"interaction", "value", "angle", "n", "seed", "beta", "until", "law"}


def test_fields_that_do_not_count_are_not_checked():
    assert problems(State(matrices="1 0\n0 2\n\n3 0\n0 1", d=9, interaction=())) == {}
    assert problems(State(trained="some/model:3:7", law="uniform", d=9, interaction=())) == {}


def test_a_run_fits_the_memory():
    wide = {"d": 32, "interaction": (1.0,) * 31 + (2.0,), "value": (1.0,) * 32}
    most = MOST_NUMBERS // 32
    assert problems(State(**wide, n=most)) == {}
    assert str(most) in problems(State(**wide, n=most + 1))["n"]
    for n in (10, 2600, 5000, most):
        frames = problem_of(State(**wide, n=n)).arguments.get("t_eval", 101)
        assert 21 <= frames <= 101
        assert 8 * frames * n * 32 <= FRAMES_BYTES
    assert problem_of(State(n=2000)).arguments == {"beta": 100.0, "until": 15.0}
    many = {"t_eval": 51, "tol": 1e-5}
    assert problem_of(State(n=20_000)).arguments == {"beta": 100.0, "until": 15.0, **many}


B, V = [[1.0, 0.5], [0.0, -2.0]], [[3.0, 0.0], [1e-3, 4.0]]


@pytest.mark.parametrize(
    "text",
    [
        "[[1, 0.5], [0, -2]]\n\n[[3, 0], [1e-3, 4]]",
        "[[1,0.5],[0,-2]][[3,0],[0.001,4.0]]",
        '{"B": [[1, 0.5], [0, -2]], "V": [[3, 0], [0.001, 4]]}',
        '  {"V": [[3, 0], [0.001, 4]],\n "B": [[1, 0.5], [0, -2]]}\n',
        "1 0.5\n0 -2\n\n3 0\n0.001 4",
        "\n1, 0.5;\r\n 0,\t\u22122\r\n \r\n\r\n3, 0\r\n1e-3, 4\r\n\r\n",
    ],
)
def test_pasted_matrices_are_read_in_every_form(text):
    assert parse_matrices(text) == (B, V)
    head = problem_of(State(matrices=text)).head
    assert head.B.tolist() == B
    assert head.V.tolist() == V


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 2\n3\n\n1 0\n0 1", "row 2 of B"),
        ("1 2\n3 4\n\n1 0 0\n0 1 0", "row 1 of V"),
        ("1 2\n3 x\n\n1 0\n0 1", "row 2 of B contains 'x'"),
        ("1 2\n3 4\n\n1 0\nnan 1", "row 2 of V contains 'nan'"),
        ("1 2\n3 4\n\n1 0\n0 1e999", "row 2 of V contains '1e999'"),
        ("1 2\n3 4\n\n1 0 0\n0 1 0\n0 0 1", "3×3"),
        ("[[1, 2], [3, null]] [[1, 0], [0, 1]]", "row 2 of B contains 'None'"),
        ("[[1, 2], [3, true]] [[1, 0], [0, 1]]", "row 2 of B contains 'True'"),
        ("[[1, 2], [3, [4]]] [[1, 0], [0, 1]]", "row 2 of B contains '[4]'"),
        ("[[1, 2], [3, NaN]] [[1, 0], [0, 1]]", "row 2 of B contains 'nan'"),
        ("[[1, 2], [3, 4]] [1, 2]", "V is not a list"),
        ("[[1, 2], [3, 4]] []", "V is not a list"),
        ("[[1, 2], [3, 4]]", "1 matrix"),
        ("[[1, 2], [3, 4]] [[1, 2]", "matrix V"),
        ("[[1, 2], [3, 4]", "matrix B is not valid JSON (Expecting"),
        ("[" * 100_000, "too long"),
        ("[[1" + "0" * 5000 + "]] [[1]]", "too long"),
        ('{"B": [[1]]}', "keys B"),
        ("1\n\n2\n\n3", "3 matrices"),
        ("   ", "0 matrices"),
        ("1 " * 200_000, "characters"),
    ],
)
def test_what_is_wrong_with_pasted_matrices_names_the_row(text, words):
    with pytest.raises(ms.BadInput) as caught:
        parse_matrices(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    # A field of spaces is an empty field.
    assert not text.strip() or problems(State(matrices=text)) == {"matrices": str(caught.value)}


@pytest.mark.parametrize(("d", "angle"), [(2, 0.0), (3, 35.0), (5, -120.0)])
def test_eigenvalues_and_angle_make_the_head_of_the_formula(d, angle):
    b, v = tuple(1.5 - 0.2 * i for i in range(d)), tuple(1.2 - 0.3 * i for i in range(d))
    head = problem_of(State(d=d, interaction=b, value=v, angle=angle)).head
    assert head.B.tolist() == np.diag(b).tolist()
    turned = np.zeros(d)
    turned[:2] = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    assert np.allclose(head.V.numpy() @ turned, v[0] * turned)
    assert np.allclose(head.V.numpy()[2:], np.diag(v)[2:])


@pytest.mark.parametrize(
    ("law", "d", "wanted"),
    [
        ("uniform", 3, lambda head: ms.uniform(40, d=3, seed=5)),
        ("graded", 3, lambda head: ms.graded(40, head, seed=5)),
        ("fibonacci", 3, lambda head: ms.fibonacci(40)),
        ("equally_spaced", 2, lambda head: ms.equally_spaced(40)),
        ("von_mises_fisher", 3, lambda head: ms.von_mises_fisher(40, [1.0, 1.0, 1.0], 6.0, seed=5)),
        (
            "mixture",
            2,
            lambda head: ms.mixture(40, [[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]], 8.0, [0.5, 0.3, 0.2], seed=5),
        ),
    ],
)
def test_each_law_is_that_of_the_package(law, d, wanted):
    state = State(d=d, interaction=(1.5, 1.0, 0.6)[:d], value=(1.2, 0.9, 0.5)[:d], law=law, n=40, seed=5)
    assert problems(state) == {}
    found = problem_of(state)
    expected = wanted(found.head)
    assert torch.equal(found.cloud.points, expected.points)
    assert torch.equal(found.cloud.log_weights, expected.log_weights)
    assert found.cloud.law == expected.law


@pytest.mark.parametrize("law", ["uniform", "tokens"])
def test_a_trained_head_is_that_of_the_encoder(law):
    state = State(trained=f"{models.minilm()}:2:3", law=law, n=120, seed=1, beta=50.0, until=4.0)
    assert problems(state) == {}
    found = problem_of(state)
    wanted = prepare(state.trained, TEXTS if law == "tokens" else None, law, 120, 4.0, 50.0, seed=1)
    assert torch.equal(found.head.B, wanted.head.B)
    assert torch.equal(found.head.V, wanted.head.V)
    assert torch.equal(found.head.offset, wanted.head.offset)
    assert torch.equal(found.cloud.points, wanted.cloud.points)
    assert found.cloud.law == wanted.cloud.law
    assert found.arguments == {"beta": 50.0, "until": 4.0, "t_eval": 51}


def test_an_encoder_with_too_many_tokens_is_refused_once_its_width_is_known():
    state = State(trained=f"{models.minilm()}:2:3", law="uniform", n=2000)
    assert problems(state) == {}
    with pytest.raises(ms.BadInput, match="2000 tokens in d = 384"):
        problem_of(state)


def test_the_second_run_differs_in_one_thing():
    first = State(n=200)
    assert first.runs() == replace(first, other="5", theme="dark", time=2.0).runs() == [first]
    assert replace(first, compare="beta", other="inf").runs() == [first, replace(first, beta=math.inf)]
    assert replace(first, compare="n", other="500").runs() == [first, replace(first, n=500)]
    assert replace(first, compare="weights").runs() == [first, replace(first, law="graded")]
    for state in (State(compare="beta", other="inf"), State(compare="n", other="7"), State(compare="weights")):
        assert problems(state) == {}


def test_the_backend_needs_no_dash_and_loads_no_encoder():
    program = (
        "import sys, metastable.lab.state, metastable.lab.runs, metastable.lab.encoders\n"
        "from metastable.lab.state import *\n"
        "assert problems(State(trained='nowhere/model:1:2', law='uniform')) == {}\n"
        "print(sorted({'dash', 'flask', 'transformers'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_the_fields_of_a_block_make_the_block():
    state = State(d=2, interaction=(1.0, 0.5), value=(1.0, 0.3), heads=2, kernel="sigmoid", causal="yes", perceptron=4)
    assert problems(state) == {}
    block = problem_of(state).block
    first = ms.Head.from_spectra([1.0, 0.5], [1.0, 0.3], angle=state.angle)
    assert torch.equal(block.heads[0].V, first.V)
    assert block.name == "sigmoid attention, 2 heads, causal, 4 neurons beside attention"
    assert problem_of(State()).block.plain


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"noise": 0.2, "norm": "pre"}, "noise"),
        ({"matrices": "1 0\n0 1\n\n1 0\n0 1", "heads": 2}, "heads"),
        ({"trained": "model:0:0", "law": "uniform", "norm": "pre"}, "norm"),
        ({"trained": "model:0:0", "law": "uniform", "heads": 3}, "heads"),
        ({"causal": "yes", "law": "graded"}, "law"),
        ({"kernel": "sigmoid", "beta": math.inf}, "kernel"),
    ],
)
def test_blocks_that_cannot_be_are_told_beside_a_field(changes, name):
    assert name in problems(replace(State(), **changes))


def test_a_link_with_a_dimension_alone_has_eigenvalues_that_fit():
    assert State.from_query("d=2").interaction == (1.5, 1.0)
    assert State.from_query("d=5").value == (1.2, 0.9, 0.5, 0.4, 0.32)
    for d in range(2, 33):
        state = State.from_query(f"d={d}")
        assert problems(state) == {}
        assert State.from_query(state.to_query()) == state
    # What the link gives stays as it is, also where it does not fit.
    given = State(d=2, interaction=(1.5, 1.0, 0.6), value=(1.0, 0.5))
    assert State.from_query(given.to_query()) == given
    assert State.from_query("d=4&value=1,1,1,1").value == (1.0, 1.0, 1.0, 1.0)
