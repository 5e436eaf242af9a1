"""Normalisation: the claim holds, and says FAIL for another normalisation, another speed and another law."""

from __future__ import annotations

import pytest
import torch

from metastable import Block, Head, claims
from metastable.claims import normalisation
from metastable.flow.fields import tangent
from metastable.theory.normalisation import Clustering, clustering_exponent
from tests.claims import failed

CASES = ((5, 0.0, 2.0, 1.0),)
NORMS = ("post", "ngpt", "pre", "peri", "none")


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer steps, to save time: what is broken here is far outside of every tolerance."""
    monkeypatch.setattr(normalisation, "TOKENS_TOL", 1e-7)
    monkeypatch.setattr(normalisation, "CLUSTER_TOL", 1e-8)


def small(head: Head | None = None) -> claims.Finding:
    return normalisation.check(head, cases=CASES, seeds=(3,), dims=(3,), frames=25)


def short(monkeypatch: pytest.MonkeyPatch) -> claims.Finding:
    """Runs to t of about 10: with a wrong clock, long runs would take too many steps. Rates are not seen."""
    monkeypatch.setattr(normalisation, "GROWTH", 2.4)
    monkeypatch.setattr(normalisation, "late_from", lambda norm, case: 1.0)
    return normalisation.check(cases=CASES, seeds=(3,), dims=(2,), frames=5)


def wrong(finding: claims.Finding, what: str) -> list[str]:
    """The normalisations for which a check whose name begins with `what` fails."""
    names = [check.name for check in finding.checks if check.outcome == claims.FAIL and check.name.startswith(what)]
    return [norm for norm in NORMS if any(f", {norm}, " in name for name in names)]


TOKENS, ORBIT = "largest error of cosines", "largest error of the orbit"


def test_holds() -> None:
    found = small()
    assert found.outcome == claims.PASS
    rows = {row["norm"]: row for row in found.tables["equiangular tokens"]}
    assert rows["post"]["quantity"] == "rate"
    assert rows["pre"]["quantity"] == "exponent of t"
    assert rows["none"]["measured"] > 0.5


@pytest.mark.parametrize(
    ("taken", "broken"),
    [
        ({"pre": "post"}, ["pre"]),
        ({"post": "pre"}, ["post"]),
        ({"ngpt": "post", "peri": "pre"}, ["ngpt", "peri"]),
    ],
)
def test_fails_with_another_normalisation(
    monkeypatch: pytest.MonkeyPatch, taken: dict[str, str], broken: list[str]
) -> None:
    monkeypatch.setattr(normalisation, "Block", lambda head, norm: Block(head, norm=taken.get(norm, norm)))
    found = short(monkeypatch)
    assert wrong(found, TOKENS) == broken
    assert wrong(found, ORBIT) == broken


def test_fails_when_tokens_without_normalisation_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalisation, "Block", lambda head, norm: Block(head, norm="post" if norm == "none" else norm))
    found = short(monkeypatch)
    assert wrong(found, TOKENS) == ["none"]
    assert wrong(found, "1 − ρ at the end over its limit") == ["none"]


def test_fails_at_half_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metastable.flow.fields.tangent", lambda x, w: 0.5 * tangent(x, w))
    found = short(monkeypatch)
    assert wrong(found, TOKENS) == wrong(found, ORBIT) == ["post", "ngpt"]


def test_fails_when_beta_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = normalisation.simulate
    monkeypatch.setattr(
        normalisation, "simulate", lambda head, cloud, beta, *a, **k: plain(head, cloud, beta / 2, *a, **k)
    )
    found = short(monkeypatch)
    assert wrong(found, TOKENS) == list(NORMS)
    # A cluster does not depend on β.
    assert wrong(found, ORBIT) == []


def test_fails_with_other_exponents(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(norm: str) -> Clustering:
        return clustering_exponent(norm)._replace(exponent=clustering_exponent(norm).exponent / 2)

    monkeypatch.setattr(normalisation, "clustering_exponent", halved)
    found = small()
    assert wrong(found, "rate of 1 − ρ") == ["post", "ngpt"]
    assert wrong(found, "exponent of t of 1 − ρ") == ["pre", "peri"]


def test_fails_when_v_is_transposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Head, "values", lambda self, m: m @ self.value)
    assert "orbit" in failed(short(monkeypatch))


def test_a_given_head() -> None:
    head = Head.from_spectra([1.5, -1.0, 0.8, 0.7], [3.0, 1.5, -1.0, 0.2], seed=0)
    found = small(head)
    assert found.outcome == claims.PASS
    assert list(found.tables) == ["clusters"]


def test_says_that_late_times_are_out_of_reach() -> None:
    # Cold tokens that start far apart wait for e^β, and pre-LN for a power of it.
    found = normalisation.check(cases=((4, -0.3, 12.0, 1.0),), seeds=(3,), dims=(2,), frames=5)
    assert found.outcome == claims.INCONCLUSIVE
    assert "no late time" in found.explanation


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([[0.0, -1.0], [1.0, 0.0]], "real, positive"),
        ([[-1.0, 0.0], [0.0, -2.0]], "real, positive"),
        ([[1.0, 0.0], [0.0, 1.0]], "not the only one"),
        ([[1.0, 50.0], [0.0, 0.5]], "slow"),
        ([[1.0, 1e4], [0.0, 0.0]], "projector"),
    ],
)
def test_says_why_it_does_not_apply(value: list[list[float]], words: str) -> None:
    found = small(Head.from_interaction(torch.eye(2).double(), torch.tensor(value).double()))
    assert found.outcome == claims.INCONCLUSIVE
    assert words in found.explanation
