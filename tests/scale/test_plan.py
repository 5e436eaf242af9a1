"""Which points a sweep has, what each of them is, and what a user may not ask for."""

import json
import math

import numpy as np
import pytest
import torch

import metastable as ms
from metastable.errors import BadInput
from metastable.scale.plan import make
from metastable.scale.points import measure

SPECTRA = {"interaction": [1.5, 0.6], "value": [1.0, 0.7]}


def plan(axes, head=SPECTRA, cloud=None, outputs=None, **run):
    return make(axes, head, {"n": 20} if cloud is None else cloud, {"until": 1.0, "beta": 5.0, **run}, outputs)


def without(name, axes, **kwargs):
    """A plan in which `name`, an axis, has no fixed value too."""
    run = {"until": 1.0, "beta": 5.0}
    run.pop(name)
    return make(axes, SPECTRA, {"n": 20}, run, **kwargs)


def test_points_are_the_product_of_the_axes_with_the_last_one_fastest():
    found = without("beta", {"beta": [1.0, 10.0], "seed": [7, 8, 9]})
    assert found.size == 6
    assert [tuple(found.values(i).values()) for i in range(6)] == [(b, s) for b in (1.0, 10.0) for s in (7, 8, 9)]


def test_points_that_differ_in_beta_or_head_share_their_tokens_and_others_do_not():
    found = make(
        {"beta": [1.0, 10.0], "gap": [0.2, 0.5], "n": [20, 30], "seed": [0, 1]},
        {"value": [1.0, 0.7]},
        {},
        {"until": 1.0},
    )
    tokens = {}
    for i in range(found.size):
        values = found.values(i)
        cloud = found.problem(i).cloud
        assert len(cloud) == values["n"]
        tokens.setdefault((values["n"], values["seed"]), set()).add(cloud.points.numpy().tobytes())
    assert [len(different) for different in tokens.values()] == [1, 1, 1, 1]
    assert len(set().union(*tokens.values())) == 4
    # Not even the first twenty of thirty tokens are those of the smaller cloud.
    small, large = (found.problem(i).cloud.points for i in (0, 2))
    assert not torch.equal(small, large[:20])


def test_gamma_and_n_are_crossed():
    found = make({"gamma": [0.5, 2.0], "n": [20, 30]}, SPECTRA, {}, {"until": 1.0}, ["distance"])
    arguments = [found.problem(i).arguments for i in range(4)]
    assert [given["gamma"] for given in arguments] == [0.5, 0.5, 2.0, 2.0]
    assert not any("beta" in given for given in arguments)
    assert [found.cloud_seed(0), found.cloud_seed(1)] == [found.cloud_seed(2), found.cloud_seed(3)]
    fixed = make({"n": [20, 30]}, SPECTRA, {}, {"until": 1.0, "gamma": 2.0}, ["distance"])
    by_hand = make({"n": [30]}, SPECTRA, {}, {"until": 1.0, "beta": 2.0 * math.log(30)}, ["distance"])
    assert np.array_equal(measure(fixed, 1), measure(found, 3))
    assert np.array_equal(measure(fixed, 1), measure(by_hand, 0))


def test_seeds_do_not_depend_on_the_order_of_axes_or_on_other_points():
    one = without("beta", {"beta": [1.0, 10.0], "seed": [0, 1]})
    other = without("beta", {"seed": [5, 1], "beta": [3.0]})
    by_seed = {one.values(i)["seed"]: one.cloud_seed(i) for i in range(4)}
    assert other.cloud_seed(1) == by_seed[1]
    # d is the head's, said or not.
    assert plan({"seed": [1]}, cloud={"n": 20, "d": 2}).cloud_seed(0) == by_seed[1]
    assert 0 <= by_seed[0] < 2**63
    assert plan({"tol": [1e-5]}, cloud={"n": 20, "seed": 1}).cloud_seed(0) == by_seed[1]
    assert plan({"tol": [1e-5]}).cloud_seed(0) == by_seed[0]


def test_the_order_of_the_axes_belongs_to_the_sweep():
    """Points are numbered by it: with another order, the same number is another point."""
    one = without("beta", {"beta": [1.0, 2.0], "seed": [0, 1]})
    other = without("beta", {"seed": [0, 1], "beta": [1.0, 2.0]})
    assert one.values(1) != other.values(1)
    assert one.identity != other.identity


def test_a_lattice_has_no_seed():
    found = plan({"law": ["uniform", "equally_spaced"]})
    assert found.cloud_seed(0) is not None
    assert found.cloud_seed(1) is None
    assert torch.equal(found.problem(1).cloud.points, ms.equally_spaced(20).points)


def test_the_description_is_json_and_every_part_counts():
    base = plan({"seed": [0, 1]})
    assert json.loads(json.dumps(base.description, allow_nan=False)) == base.description
    others = [
        plan({"seed": [0, 2]}),
        plan({"seed": [1, 0]}),
        plan({"seed": [0, 1]}, tol=1e-5),
        plan({"seed": [0, 1]}, cloud={"n": 21}),
        plan({"seed": [0, 1]}, head={**SPECTRA, "seed": 1}),
        plan({"seed": [0, 1]}, outputs=["distance"]),
        plan({"seed": [0, 1]}, t_eval=7),
        plan({"seed": [0, 1]}, beta=math.inf),
    ]
    assert len({found.identity for found in (base, *others)}) == 9


def test_arrays_and_ready_things_may_be_given():
    cloud, head = ms.uniform(9, d=2, seed=4), ms.Head.from_spectra([1.5, 0.6], [1.0, 0.7])
    found = make({"beta": np.geomspace(1, 100, 3)}, head, cloud, {"until": 1.0})
    assert found.axes["beta"] == pytest.approx([1.0, 10.0, 100.0])
    assert found.problem(2).cloud is cloud
    assert found.cloud_seed(0) is None
    assert found.identity != make({"beta": [1.0, 10.0, 100.0]}, head, ms.uniform(9, d=2), {"until": 1.0}).identity


def test_files_are_read_once(tmp_path):
    np.save(tmp_path / "points.npy", np.eye(2))
    head = ms.Head.from_spectra([1.5, 0.6], [1.0, 0.7])
    np.savez(tmp_path / "head.npz", query=head.query, key=head.key, value=head.value)
    table = {"file": str(tmp_path / "head.npz")}
    found = plan({"tol": [1e-5]}, head=table, cloud={"file": str(tmp_path / "points.npy")})
    (tmp_path / "points.npy").unlink()
    (tmp_path / "head.npz").unlink()
    assert torch.equal(found.problem(0).head.B, head.B)
    assert len(found.problem(0).cloud) == 2


def test_times_of_the_dataset():
    assert plan({"seed": [0]}, t_eval=3).times == (0.0, 0.5, 1.0)
    assert len(plan({"seed": [0]}).times) == 101
    assert without("until", {"until": [1.0, 2.0]}, outputs={"distance": [1.5, 0.5]}).times == (0.5, 1.5)
    assert without("until", {"until": [1.0, 4.0]}).times[-1] == 4.0


BAD = {
    "no axes": (lambda: plan({}), "at least one axis"),
    "misspelt": (lambda: plan({"bta": [1]}), "did you mean 'beta'"),
    "t_eval": (lambda: plan({"t_eval": [3]}), "t_eval cannot be an axis"),
    "d": (lambda: plan({"d": [2]}), "d cannot be an axis"),
    "one value": (lambda: plan({"seed": 3}), "give a list of values"),
    "empty": (lambda: plan({"seed": []}), "give a list of values"),
    "twice": (lambda: plan({"seed": [1, 1]}), "holds a value twice"),
    "mixed": (lambda: plan({"seed": [1, "a"]}), "all numbers, all words or all lists"),
    "none": (lambda: plan({"merge": [None, 0.1]}), "all numbers, all words or all lists"),
    "nan": (lambda: plan({"tol": [1e-6, math.nan]}), "nan is no value"),
    "fixed too": (lambda: plan({"beta": [1.0]}), "both an axis and a fixed value"),
    "no beta": (lambda: make({"until": [1.0]}, SPECTRA, {"n": 3}, {}), "beta is missing"),
    "beta and gamma": (lambda: plan({"gamma": [1.0]}), "both beta and gamma"),
    "negative gamma": (lambda: plan({"gamma": [-1.0, 5.0]}), "gamma is -1"),
    "gamma of a mean field": (
        lambda: make({"gamma": [1.0]}, SPECTRA, {}, {"until": 1.0, "mean_field": True}),
        "no number",
    ),
    "no until": (lambda: make({"beta": [1.0]}, SPECTRA, {"n": 3}, {}), "until is missing"),
    "no n": (lambda: plan({"seed": [0]}, cloud={"law": "uniform"}), "need n"),
    "wrong law": (lambda: plan({"law": ["unform"]}), "law is 'unform'"),
    "not of the law": (lambda: plan({"kappa": [1.0]}), "unknown key 'kappa'"),
    "fixed head": (
        lambda: plan({"gap": [0.1]}, head=ms.Head.from_interaction(torch.eye(2), torch.eye(2))),
        "the axis gap",
    ),
    "fixed tokens": (lambda: plan({"n": [5]}, cloud=ms.uniform(5, d=2)), "the axis n"),
    "other d": (lambda: plan({"seed": [0]}, cloud={"n": 3, "d": 3}), "the head has d = 2"),
    "no head": (lambda: plan({"seed": [0]}, head={}), "the head needs interaction"),
    "gap twice": (lambda: plan({"seed": [0]}, head={**SPECTRA, "gap": 0.1}), "both gap and interaction"),
    "outputs": (lambda: plan({"seed": [0]}, outputs=["distances"]), "did you mean 'distance'"),
    "no outputs": (lambda: plan({"seed": [0]}, outputs={}), "no outputs"),
    "observables": (lambda: plan({"seed": [0]}, outputs={"observables": ["cluster"]}), "did you mean 'clusters'"),
    "late time": (lambda: plan({"seed": [0]}, outputs={"distance": [2.0]}), "between 0 and 1"),
    "negative beta": (lambda: without("beta", {"beta": [-1.0, 5.0]}), "beta is -1"),
    "negative fixed beta": (lambda: plan({"seed": [0]}, beta=-1.0), "beta is -1"),
    "no tokens": (lambda: plan({"n": [0, 5]}, cloud={}), "n is 0"),
    "minus infinity": (lambda: without("beta", {"beta": [-math.inf, 1.0]}), "beta is -inf"),
    "words": (lambda: without("beta", {"beta": ["a", "b"]}), "must be numbers"),
    "words for a spectrum": (lambda: plan({"value": ["x", "y"]}, head={"interaction": [1.0, 2.0]}), "must be numbers"),
    "no spectrum": (lambda: plan({"value": [[], [1.0, 0.7]]}, head={"interaction": [1.0, 2.0]}), "d ≥ 2 numbers"),
    "large": (lambda: plan({"seed": [2**63, 1]}), "63 bits"),
    "two zeros": (lambda: plan({"gap": [0.0, -0.0]}, head={"value": [1.0, 0.7]}), "a value twice"),
    "lists of tokens": (lambda: plan({"n": [[1, 2]]}, cloud={}), "must be numbers"),
    "gap beside an interaction": (lambda: plan({"gap": [0.1, 0.2]}), "both gap and interaction"),
    "mean field as a word": (lambda: plan({"seed": [0]}, mean_field="false"), "give true or false"),
    "tokens of a mean field": (lambda: plan({"n": [5, 6]}, cloud={}, mean_field=True), "remove the axis n"),
    "merging of a mean field": (lambda: plan({"seed": [0]}, merge=0.1, mean_field=True), "unknown key 'merge'"),
    "step of a mean field": (lambda: plan({"step": [0.1, 0.2]}, mean_field=True), "unknown key 'step'"),
    "run": (lambda: plan({"seed": [0]}, tolerance=1), "unknown key 'tolerance'"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_swept_is_said_in_one_line(name):
    call, words = BAD[name]
    with pytest.raises(BadInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
