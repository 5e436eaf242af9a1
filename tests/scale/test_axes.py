"""What cannot be an axis is refused in one line, before any worker starts."""

import math

import pytest

from metastable.errors import BadInput
from metastable.scale.axes import checked
from metastable.scale.plan import AXES, make

SPECTRA = {"interaction": [1.5, 0.6], "value": [1.0, 0.7]}


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"beta": ["a", "b"]}, "must be numbers"),
        ({"value": ["x", "y"]}, "must be numbers"),
        ({"value": [[], [1.0, 0.7]]}, "a list of d ≥ 2 numbers"),
        ({"seed": [2**63, 1]}, "63 bits"),
        ({"beta": [-math.inf, 1.0]}, "-inf"),
        ({"gap": [0.0, -0.0]}, "a value twice"),
        ({"n": [[1, 2]]}, "must be numbers"),
    ],
)
def test_values_that_are_none(axes, words):
    with pytest.raises(BadInput, match=words) as caught:
        checked(axes, AXES)
    assert "\n" not in str(caught.value)


def test_the_order_of_the_axes_belongs_to_the_sweep():
    """Points are numbered by it: with another order, the same number is another point."""
    one, other = ({"beta": [1.0, 2.0], "seed": [0, 1]}, {"seed": [0, 1], "beta": [1.0, 2.0]})
    plans = [make(axes, SPECTRA, {"n": 5}, {"until": 1.0}) for axes in (one, other)]
    assert plans[0].values(1) != plans[1].values(1)
    assert plans[0].identity != plans[1].identity


@pytest.mark.parametrize(
    ("axes", "run", "words"),
    [
        ({"beta": [1.0]}, {"mean_field": "false"}, "give true or false"),
        ({"beta": [1.0], "n": [5, 6]}, {"mean_field": True}, "remove the axis n"),
    ],
)
def test_mean_fields_that_are_none(axes, run, words):
    with pytest.raises(BadInput, match=words):
        make(axes, SPECTRA, {}, {"until": 1.0, **run})


def test_a_gap_beside_an_interaction_is_refused_at_once():
    with pytest.raises(BadInput, match="both gap and interaction"):
        make({"gap": [0.1, 0.2]}, SPECTRA, {"n": 5}, {"beta": 1.0, "until": 1.0})
