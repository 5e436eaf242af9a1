"""The choice of a layer from features alone: folds, no leak, and what a choice without nesting would claim."""

import numpy as np
import pytest

from metastable.encoder.exit.labelled import FOLDS, Target, paired
from metastable.encoder.exit.probes import fit, losses, predicted
from metastable.encoder.exit.scores import accuracy, value
from metastable.encoder.exit.selection import DepthFits, dealt, earliest, nested
from metastable.encoder.exit.study import select


def labelled(labels, documents=None):
    return paired([f"text {i}" for i in range(len(labels))], labels, documents)


def test_folds_are_stratified_and_keep_documents_together():
    draw = np.random.default_rng(0)
    target = Target.of(draw.choice(list("abc"), p=[0.7, 0.25, 0.05], size=400).tolist())
    fold = dealt(np.arange(400), target, 0)
    for number in range(3):
        counts = np.bincount(fold[target.numbers == number], minlength=FOLDS)
        assert counts.max() - counts.min() <= 1
    documents = draw.integers(0, 80, 400)
    groups = np.unique(documents, return_inverse=True)[1]
    fold = dealt(groups, target, 0)
    assert all(len(set(fold[groups == group])) == 1 for group in set(groups))
    sizes = np.bincount(fold, minlength=FOLDS)
    assert sizes.max() - sizes.min() <= 12


def test_folds_depend_on_the_seed_only():
    target = Target.of([0.5, 1.5] * 30)
    assert (dealt(np.arange(60), target, 3) == dealt(np.arange(60), target, 3)).all()
    assert (dealt(np.arange(60), target, 3) != dealt(np.arange(60), target, 4)).any()


@pytest.mark.parametrize(
    ("scores", "loss", "layer"),
    [
        ([0.0, 0.5, 0.6, 0.7], 0.0, 3),
        ([0.0, 0.5, 0.6, 0.7], 0.1, 2),
        ([0.9, 0.5, 0.6, 0.7], 0.02, 3),
        ([0.0, 0.7, 0.6, 0.5], 0.02, 1),
    ],
)
def test_the_rule(scores, loss, layer):
    assert earliest(np.array(scores), loss) == layer


@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_nested_selection_is_the_double_loop(task):
    """Outer and inner loop written out, each with its own fits."""
    draw = np.random.default_rng(2)
    features = draw.normal(size=(60, 3, 4))
    hidden = features[:, 2, 0] + draw.normal(size=60)
    target = Target.of((hidden > 0).astype(int).tolist() if task == "classes" else hidden.tolist())
    fold = dealt(np.arange(60), target, 0)
    found = nested(features, target, fold)
    penalties = DepthFits(features[:, 0], target, fold).penalties
    for k in range(FOLDS):
        train, test = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
        for depth in range(3):
            x = features[:, depth]
            cost, guesses = np.zeros(len(penalties)), np.zeros((len(penalties), 60))
            for j in set(range(FOLDS)) - {k}:
                rows, inside = train[fold[train] != j], train[fold[train] == j]
                for i, probe in enumerate(fit(x, target, rows, penalties)):
                    outputs = probe.outputs(x[inside])
                    cost[i] += losses(outputs, target.values[inside], task).sum()
                    guesses[i, inside] = predicted(outputs, task)
            best = int(cost.argmin())
            assert found.penalties[k, depth] == penalties[best]
            if task == "classes":
                right = value(accuracy, target.values[train], guesses[best, train])
                assert found.inner[k, depth] == pytest.approx(right)
            outer = fit(x, target, train, penalties)[best]
            np.testing.assert_allclose(found.outputs[depth, test], outer.outputs(x[test]), atol=1e-9)
    rule = found.rule(0.02)
    mixed = found.predictions(rule)
    for k in range(FOLDS):
        np.testing.assert_array_equal(mixed[fold == k], found.predictions(int(rule[k]))[fold == k])


def test_labels_of_a_fold_have_no_part_in_its_predictions():
    draw = np.random.default_rng(3)
    features, labels = draw.normal(size=(80, 4, 3)), draw.integers(0, 2, 80)
    target = Target.of(labels.tolist())
    fold = dealt(np.arange(80), target, 0)
    changed = Target(np.where(fold == 2, 1 - target.values, target.values), target.classes)
    one, two = (nested(features, some, fold) for some in (target, changed))
    np.testing.assert_array_equal(one.inner[2], two.inner[2])
    np.testing.assert_array_equal(one.outputs[:, fold == 2], two.outputs[:, fold == 2])
    assert (one.outputs[:, fold != 2] != two.outputs[:, fold != 2]).any()


@pytest.mark.slow
def test_random_labels_stay_at_chance_and_a_choice_without_nesting_does_not():
    """Ten layers of noise. Half of the texts are of each class."""
    honest, chosen, covered = [], [], []
    for seed in range(6):
        draw = np.random.default_rng(seed)
        features = draw.normal(size=(80, 11, 3))
        labels = draw.permutation(np.arange(80) % 2).tolist()
        found = select(features, labelled(labels), 0.0, seed)
        rule = found["rules"].set_index("rule").loc["best"]
        honest.append(rule["accuracy"])
        chosen.append(found["layers"]["accuracy"].max())
        covered.append(rule["accuracy_low"] <= 0.5 <= rule["accuracy_high"])
    # The mean of 6 accuracies on 80 texts has a standard deviation of 0.023; folds of random labels lean below 0.5.
    assert 0.4 < np.mean(honest) < 0.55
    assert np.mean(chosen) > 0.56
    assert np.mean(covered) >= 0.75


def test_the_layer_that_carries_the_label_is_found():
    draw = np.random.default_rng(5)
    features = draw.normal(size=(300, 6, 5))
    labels = np.where(features[:, 3, 0] > 0, "yes", "no")
    features[:, 4:, 0] = features[:, 3:4, 0]
    found = select(features, labelled(labels.tolist()), 0.02)
    assert found["layer"] == 3
    assert set(found["fold_layers"]) == {3}
    assert found["classes"] == ("no", "yes")
    assert np.mean(np.array(found["probe"].predict(features[:, 3])) == labels) > 0.95


def test_documents_that_give_the_label_away_do_not_help():
    """Each document has its own place in space and its own random label. Without documents, probes learn the places."""
    draw = np.random.default_rng(6)
    owners = np.repeat(np.arange(40), 6)
    places, marks = draw.normal(size=(40, 30)), draw.permutation(np.arange(40) % 2)
    features = np.repeat((places[owners] + 0.1 * draw.normal(size=(240, 30)))[:, None], 3, axis=1)
    labels = marks[owners].tolist()
    blind, seen = (select(features, labelled(labels, given), 0.02) for given in (None, owners.tolist()))
    blind, seen = (found["rules"].set_index("rule").loc["earliest"] for found in (blind, seen))
    assert blind["accuracy_low"] > 0.75
    assert seen["accuracy_low"] < 0.5
    # Intervals over documents are wider: there are 40 of them, and 240 texts.
    width = [rule["accuracy_high"] - rule["accuracy_low"] for rule in (blind, seen)]
    assert width[1] > 2 * width[0]
