"""Attention at another length, against a literal loop over queries and keys."""

import math

import numpy as np
import pytest
import torch

from metastable.encoder.length import dilution

N, WINDOW = 23, 4.0


@pytest.fixture
def cloud():
    """Scores (2 texts, 3 heads, 5 queries, 23 keys); some keys are not seen."""
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(2, 3, 5, N, generator=generator, dtype=torch.float64)
    scores[1, 2, 3, 15:] = -math.inf
    special = torch.zeros(2, N, dtype=torch.bool)
    special[:, [0, -1]] = True
    special[1, 7] = True
    return scores, torch.tensor([1, 5, 11, 17, 21]), special


def literal(scores, weights, special):
    """The formulas of the module's docstring, for one query. Without shifts: the scores are small."""
    z = sum(w * math.exp(s) for s, w in zip(scores, weights, strict=True))
    first = sum(w * math.exp(s) * s for s, w in zip(scores, weights, strict=True) if s > -math.inf)
    second = sum(w * math.exp(s) ** 2 for s, w in zip(scores, weights, strict=True))
    return {
        "entropy": math.log(z) - first / z,
        "log_participation": math.log(z**2 / second),
        "top_weight": max(math.exp(s) for s in scores) / z,
        "special_share": sum(w * math.exp(s) for s, w, a in zip(scores, weights, special, strict=True) if a) / z,
    }


def kinds(position, special):
    return ["special" if special[j] else "near" if abs(position - j) <= WINDOW else "far" for j in range(N)]


def each_query(cloud):
    scores, positions, special = (part.tolist() for part in cloud)
    for t, h, q in np.ndindex(2, 3, 5):
        yield (t, h, q), scores[t][h][q], kinds(positions[q], special[t]), special[t]


def averaged(cloud, statistics):
    """The mean over queries of a function of (scores, kinds, special), (texts, heads) by name."""
    found = {}
    for (t, h, _), scores, kind, special in each_query(cloud):
        for name, value in statistics(scores, kind, special).items():
            found.setdefault(name, np.zeros((2, 3)))[t, h] += value / 5
    return found


def close(found, expected):
    assert set(expected) <= set(found)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name].numpy(), values, rtol=1e-9, atol=1e-12, err_msg=name)


def test_measured_statistics(cloud):
    def statistics(scores, kind, special):
        seen = [s for s, k in zip(scores, kind, strict=True) if k != "special" and s > -math.inf]
        far = [math.exp(s) for s, k in zip(scores, kind, strict=True) if k == "far"]
        return {
            **literal(scores, [1] * N, special),
            "score_spread": float(np.std(seen)),
            "score_gap": max(scores) - math.log(sum(far) / len(far)),
        }

    close(dilution.measured(dilution.Groups(*cloud, WINDOW)), averaged(cloud, statistics))


@pytest.mark.parametrize("ordinary", [20.0, 33.5, 200.0])
def test_a_forecast_multiplies_far_tokens(cloud, ordinary):
    def statistics(scores, kind, special):
        many = (ordinary - kind.count("near")) / kind.count("far")
        return literal(scores, [many if k == "far" else 1 for k in kind], special)

    found = dilution.forecast(dilution.Groups(*cloud, WINDOW), [ordinary])
    close({name: value[..., 0] for name, value in found.items()}, averaged(cloud, statistics))


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_whole_multiplicity_is_a_repetition(cloud, times):
    """Far keys that really occur several times give what the forecast gives, query by query."""
    groups = dilution.Groups(*cloud, WINDOW)
    found = groups.statistics(far=float(times))
    for place, scores, kind, special in each_query(cloud):
        repeated = [j for j in range(N) for _ in range(times if kind[j] == "far" else 1)]
        expected = literal([scores[j] for j in repeated], [1] * len(repeated), [special[j] for j in repeated])
        for name, value in expected.items():
            assert found[name][place].item() == pytest.approx(value, rel=1e-9)


def test_steps_of_the_entropy(cloud):
    ordinary, now = 90.0, 21.0

    def statistics(scores, kind, special):
        near, far, atoms = (kind.count(name) for name in ("near", "far", "special"))
        alike = (atoms + ordinary - near) / (atoms + far)
        weights = {
            "all": [ordinary / now] * N,
            "near": [1 if k == "near" else alike for k in kind],
            "atoms": [(ordinary - near) / far if k == "far" else 1 for k in kind],
        }
        return {name: literal(scores, each, special)["entropy"] for name, each in weights.items()}

    groups = dilution.Groups(*cloud, WINDOW)
    found = dilution.multiplied(groups, ordinary, now)
    close(found, averaged(cloud, statistics))
    plain = dilution.measured(groups)["entropy"]
    np.testing.assert_allclose(found["all"] - plain, math.log(ordinary / now), atol=1e-12)


def test_large_scores_do_not_overflow(cloud):
    scores, positions, special = cloud
    found = dilution.measured(dilution.Groups(scores + 5000, positions, special, WINDOW))
    plain = dilution.measured(dilution.Groups(*cloud, WINDOW))
    for name, value in found.items():
        np.testing.assert_allclose(value, plain[name], atol=1e-9)


def test_a_query_without_far_keys_has_the_largest_gap():
    scores = torch.zeros(1, 1, 1, 9)
    scores[..., 5:] = -math.inf
    groups = dilution.Groups(scores, torch.tensor([2]), torch.zeros(1, 9, dtype=torch.bool), 2.0)
    assert dilution.measured(groups)["score_gap"].item() == pytest.approx(dilution.LARGEST_GAP)
