"""The page as one value: links, what is wrong with it, and the head and the cloud that it stands for."""

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import metastable as ms
from metastable.encoder.trained_head import prepare
from metastable.lab import controls as room
from metastable.lab.controls import LAWS, MOST_NUMBERS, arguments, call_of
from metastable.lab.matrices import parse_matrices
from metastable.lab.problems import LARGEST_BETA, LONGEST, MOST_TOKENS
from metastable.lab.state import Controls, State, cloud_of, head_of, problems, second
from metastable.lab.trained import TEXTS
from tests.encoder import models

FLOATS = st.floats(allow_nan=False)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
CONTROLS = st.builds(
    Controls,
    d=st.integers(-5, 40),
    interaction=st.lists(FLOATS, max_size=5).map(tuple),
    value=st.lists(FLOATS, max_size=5).map(tuple),
    angle=FLOATS,
    matrices=TEXT,
    trained=TEXT,
    law=st.sampled_from([*LAWS, "other"]),
    n=st.integers(),
    seed=st.integers(),
    beta=FLOATS,
    until=FLOATS,
)
STATES = st.builds(
    State,
    controls=CONTROLS,
    compare=st.sampled_from(["", "beta", "n", "weights", "what"]),
    other=st.none() | FLOATS,
    view=st.sampled_from(["laboratory", "audit"]),
    model=TEXT,
    column=TEXT,
    head=st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99)),
    time=FINITE,
    theme=st.sampled_from(["light", "dark"]),
)
MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@MANY
@given(STATES)
def test_a_link_restores_the_exact_state(state):
    query = state.to_query()
    assert State.from_query(query) == state
    assert State.from_query("?" + query) == state
    assert State.from_query(query).unread == ()
    assert query.isascii()
    assert not any(mark in query for mark in " \"'<>\n")


def test_a_link_says_what_differs_and_nothing_else():
    assert State().to_query() == ""
    assert State.from_query("") == State()
    state = State(Controls(beta=0.1 + 0.2, value=(1.0, 2.0, 3.0)), view="audit", head=(3, 7), time=1.5)
    assert state.to_query() == "value=1,2,3&beta=0.30000000000000004&view=audit&head=3,7&time=1.5"
    assert State(Controls(beta=math.inf)).to_query() == "beta=inf"


@MANY
@given(st.text(max_size=80) | st.lists(st.tuples(st.sampled_from(["d", "beta", "head", "n", "x"]), TEXT)).map(
    lambda pairs: "&".join(f"{name}={text}" for name, text in pairs)
))  # fmt: skip
def test_no_link_is_an_exception_and_every_problem_is_one_line(query):
    state = State.from_query(query)
    state.to_query()
    for field, line in problems(state).items():
        assert field
        assert line
        assert "\n" not in line


@MANY
@given(STATES)
def test_every_state_has_an_answer_to_what_is_wrong(state):
    for line in problems(state).values():
        assert line
        assert "\n" not in line


def test_what_a_link_cannot_say_is_told_by_field_and_counts_as_its_default():
    state = State.from_query("d=two&beta=5&head=1&interaction=1,,2&theme=pink&time=inf&unheard=of")
    assert state == State(Controls(beta=5.0))
    assert set(problems(state)) == {"d", "head", "interaction", "theme", "time"}
    assert problems(state)["d"] == "the link says 'two', which cannot be read"
    assert State.from_query("n=" + "9" * 5000).unread[0][0] == "n"
    assert problems(State.from_query("matrices=" + "9" * 10**6)) == {
        "link": "the link is too long to be read; the page shows its defaults"
    }


def test_the_defaults_are_all_well():
    assert problems(Controls()) == {}
    assert problems(State()) == {}
    for law in ("uniform", "graded", "fibonacci", "von_mises_fisher", "mixture"):
        assert problems(Controls(law=law)) == {}


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"d": 1}, "d", "1: give a whole number from 2 to 32"),
        ({"d": 33}, "d", "from 2 to 32"),
        ({"d": None}, "d", "empty: give"),
        ({"d": 2.5}, "d", "2.5: give a whole number"),
        ({"d": 4, "value": (1.0,) * 4}, "interaction", "3 given, and d = 4 needs 4"),
        ({"interaction": (1.0, math.nan, 2.0)}, "interaction", "nan: eigenvalues are numbers"),
        ({"value": (1.0, 101.0, 2.0)}, "value", "from −100 to 100"),
        ({"value": "1, 2"}, "value", "numbers with commas"),
        ({"value": (1.0, "x", 2.0)}, "value", "x: eigenvalues"),
        ({"angle": math.inf}, "angle", "from −360 to 360"),
        ({"n": 0}, "n", "from 1 to 20\u202f000"),
        ({"n": MOST_TOKENS + 1}, "n", "20001: give"),
        ({"n": True}, "n", "True: give a whole"),
        ({"seed": -1}, "seed", "from 0 to"),
        ({"beta": -1.0}, "beta", "from 0 to 1\u202f000\u202f000, or inf"),
        ({"beta": 2 * LARGEST_BETA}, "beta", "or inf"),
        ({"beta": math.nan}, "beta", "nan: give a number"),
        ({"beta": None}, "beta", "empty"),
        ({"beta": 10**400}, "beta", "give a number"),
        ({"until": 0.0}, "until", "above 0"),
        ({"until": LONGEST + 1}, "until", "from 0 to 1\u202f000"),
        ({"until": math.inf}, "until", "inf: give a number"),
        ({"law": "tokens"}, "law", "tokens: choose one of uniform, graded"),
        ({"law": "gaussian\n"}, "law", "gaussian: choose one of"),
        ({"law": "equally_spaced"}, "law", "equally_spaced is for d = 2, and d is 3"),
        ({"law": "graded", "interaction": (1.0,) * 3, "value": (1.0,) * 3}, "law", "every eigenvalue of M is dominant"),
        ({"trained": "minilm:3"}, "trained", "give MODEL:layer:head"),
        ({"trained": "m:3:7", "law": "graded"}, "law", "the law of a trained head is one of tokens, uniform"),
        ({"trained": "m:3:7", "matrices": "1 0\n0 1\n\n1 0\n0 1"}, "matrices", "leave one of the two empty"),
        ({"matrices": "1 2\n3 4"}, "matrices", "there is 1 matrix; give B and V"),
        ({"matrices": "1\n\n1"}, "matrices", "B and V are 1×1; sizes from 2 to 32"),
        ({"matrices": "[[1,0],[0,1]] [[1,0],[0,1]]", "law": "fibonacci"}, "law", "fibonacci is for d = 3, and d is 2"),
    ],
)
def test_each_limit_is_told_beside_its_field(changes, field, words):
    found = problems(Controls(**changes))
    assert list(found) == [field]
    assert words in found[field]
    assert "\n" not in found[field]


def test_all_problems_are_told_at_once():
    wrong = Controls(d=2, interaction=(1.0,), value=(), angle=math.nan, n=-1, seed=0.5, beta=-2.0, until=-1.0, law="")
    assert set(problems(wrong)) == {"interaction", "value", "angle", "n", "seed", "beta", "until", "law"}


def test_what_does_not_count_is_not_complained_about():
    pasted = "1 0\n0 2\n\n3 0\n0 1"
    assert problems(Controls(matrices=pasted, d=99, interaction=(), value=(math.nan,), angle=math.nan)) == {}
    assert problems(Controls(trained="some/model:3:7", d=99, interaction=())) == {}


def test_a_run_fits_the_memory():
    wide = {"d": 32, "interaction": (1.0,) * 31 + (2.0,), "value": (1.0,) * 32}
    most = MOST_NUMBERS // 32
    assert problems(Controls(**wide, n=most)) == {}
    assert "at most 12\u202f483 tokens fit" in problems(Controls(**wide, n=most + 1))["n"]
    for n in (10, 2600, 5000, most):
        frames = arguments(Controls(**wide, n=n), 32).get("t_eval", 101)
        assert 21 <= frames <= 101
        assert 8 * frames * n * 32 <= room.FRAMES_BYTES
    assert arguments(Controls(n=2000), 3) == {"beta": 100.0, "until": 15.0}
    assert arguments(Controls(n=20_000), 3) == {"beta": 100.0, "until": 15.0, "t_eval": 51}


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
    head = head_of(Controls(matrices=text))
    assert head.B.tolist() == B
    assert head.V.tolist() == V


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 2\n3\n\n1 0\n0 1", "row 2 of B has 1 number and there are 2 rows"),
        ("1 2\n3 4\n\n1 0 0\n0 1 0", "row 1 of V has 3 numbers and there are 2 rows"),
        ("1 2\n3 x\n\n1 0\n0 1", "row 2 of B holds 'x'"),
        ("1 2\n3 4\n\n1 0\nnan 1", "row 2 of V holds 'nan'"),
        ("1 2\n3 4\n\n1 0\n0 1e999", "row 2 of V holds '1e999'; entries are numbers from −1000 to 1000"),
        ("1 2\n3 4\n\n1 0 0\n0 1 0\n0 0 1", "B is 2×2 and V 3×3; they must be of one size"),
        ("[[1, 2], [3, null]] [[1, 0], [0, 1]]", "row 2 of B holds 'None'"),
        ("[[1, 2], [3, true]] [[1, 0], [0, 1]]", "row 2 of B holds 'True'"),
        ("[[1, 2], [3, [4]]] [[1, 0], [0, 1]]", "row 2 of B holds '[4]'"),
        ("[[1, 2], [3, NaN]] [[1, 0], [0, 1]]", "row 2 of B holds 'nan'"),
        ("[[1, 2], [3, 4]] [1, 2]", "V is no list of rows"),
        ("[[1, 2], [3, 4]] []", "V is no list of rows"),
        ("[[1, 2], [3, 4]]", "there is 1 matrix; give B and V"),
        ("[[1, 2], [3, 4]] [[1, 2]", "matrix V is no JSON"),
        ("[[1, 2], [3, 4]", "matrix B is no JSON (Expecting"),
        ("[" * 100_000, "matrix B is no JSON (too long)"),
        ("[[1" + "0" * 5000 + "]] [[1]]", "matrix B is no JSON (too long)"),
        ('{"B": [[1]]}', "the JSON object has the keys B; give B and V"),
        ("1\n\n2\n\n3", "there are 3 matrices"),
        ("   ", "there are 0 matrices"),
        ("1 " * 200_000, "characters long"),
    ],
)
def test_what_is_wrong_with_pasted_matrices_names_the_row(text, words):
    with pytest.raises(ms.BadInput) as caught:
        parse_matrices(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert problems(Controls(matrices=text)) == {"matrices": str(caught.value)}


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("angle", [0.0, 35.0, -120.0])
def test_eigenvalues_and_angle_make_the_head_of_the_formula(d, angle):
    b, v = tuple(1.5 - 0.2 * i for i in range(d)), tuple(1.2 - 0.3 * i for i in range(d))
    head = head_of(Controls(d=d, interaction=b, value=v, angle=angle))
    assert head.B.tolist() == np.diag(b).tolist()
    assert np.allclose(np.linalg.eigvalsh(head.V.numpy()), sorted(v))
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
    controls = Controls(d=d, interaction=(1.5, 1.0, 0.6)[:d], value=(1.2, 0.9, 0.5)[:d], law=law, n=40, seed=5)
    assert problems(controls) == {}
    found, expected = cloud_of(controls), wanted(head_of(controls))
    assert torch.equal(found.points, expected.points)
    assert torch.equal(found.log_weights, expected.log_weights)
    assert found.law == expected.law


@pytest.mark.parametrize("law", ["uniform", "tokens"])
def test_a_trained_head_is_that_of_the_encoder(law):
    controls = Controls(trained=f"{models.minilm()}:2:3", law=law, n=120, seed=1, beta=50.0, until=4.0)
    assert problems(controls) == {}
    found = call_of(controls)
    texts = TEXTS if law == "tokens" else None
    wanted = prepare(controls.trained, texts, law, 120, 4.0, 50.0, seed=1)
    assert torch.equal(found.head.B, wanted.head.B)
    assert torch.equal(found.head.offset, wanted.head.offset)
    assert torch.equal(found.cloud.points, wanted.cloud.points)
    assert found.cloud.law == wanted.cloud.law
    assert found.arguments == {"beta": 50.0, "until": 4.0, "t_eval": 51}
    assert len(found.cloud) == 120
    assert torch.equal(cloud_of(controls).points, wanted.cloud.points)
    assert torch.equal(head_of(controls).V, wanted.head.V)


def test_an_encoder_with_too_many_tokens_is_refused_once_its_width_is_known():
    controls = Controls(trained=f"{models.minilm()}:2:3", n=2000)
    assert problems(controls) == {}
    with pytest.raises(ms.BadInput, match="2000 tokens in d = 384 need too much memory for a page; take at most n = 1"):
        call_of(controls)


def test_the_second_run_differs_in_one_thing():
    first = Controls(n=200)
    assert second(State(first)) is None
    assert second(State(first, other=5.0)) is None
    assert second(State(first, compare="beta")) is None
    assert second(State(first, compare="beta", other=math.inf)) == dataclasses.replace(first, beta=math.inf)
    assert second(State(first, compare="n", other=500.0)) == dataclasses.replace(first, n=500)
    assert isinstance(second(State(first, compare="n", other=500.0)).n, int)
    assert second(State(first, compare="weights")) == dataclasses.replace(first, law="graded")


@pytest.mark.parametrize(
    ("state", "field", "words"),
    [
        (State(compare="gamma"), "compare", "choose one of beta, n, weights"),
        (State(compare="beta"), "other", "give the second β"),
        (State(compare="n"), "other", "give the second N"),
        (State(compare="beta", other=-1.0), "other", "-1.0: give a number from 0"),
        (State(compare="n", other=2.5), "other", "2.5: give a whole number"),
        (State(compare="n", other=math.inf), "other", "inf: give a whole number"),
        (State(Controls(law="graded"), compare="weights"), "compare", "the law must be uniform"),
        (State(Controls(trained="m:1:2"), compare="weights"), "compare", "graded: the law of a trained head is one of"),
        (State(Controls(beta=-1.0), compare="n", other=20.0), "beta", "-1.0: give a number"),
    ],
)
def test_what_is_wrong_with_a_comparison_is_told_beside_it(state, field, words):
    assert list(problems(state)) == [field]
    assert words in problems(state)[field]


def test_comparisons_that_work_have_no_problems():
    for state in (State(compare="beta", other=math.inf), State(compare="n", other=7.0), State(compare="weights")):
        assert problems(state) == {}


def test_the_backend_needs_no_dash_and_loads_no_encoder():
    program = (
        "import sys, metastable.lab.state, metastable.lab.runs, metastable.lab.scripts, metastable.lab.audits\n"
        "from metastable.lab.state import *\n"
        "assert problems(State(Controls(trained='nowhere/model:1:2'))) == {}\n"
        "print(sorted({'dash', 'flask', 'transformers'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
