"""Where the limit law stops holding: what happens instead, and which verdict of `theory()` had warned.

The experiments, their formulas and tolerances are in `beyond`, a complex dominant pair, a gap that closes, singular B
with and without a positive eigenvalue, and in `holes`, laws without full support. `theory()` knows the head and not the
law, so no verdict can warn of the latter.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from metastable.claims.beyond import Part, Sizes, kernel, rotation, singular, small_gap
from metastable.claims.claim import Claim, Tell
from metastable.claims.finding import PASS, Finding, Panel, Picture, Table, undecided
from metastable.claims.holes import emptied, hole
from metastable.claims.prescribed import clocked, too_long
from metastable.head import Head


def own_parts(sizes: Sizes) -> list[Callable[[], Part]]:
    """The boundaries, each with a head that is over it."""
    X = np.eye(3) + 0.3 * np.random.default_rng(4).standard_normal((3, 3))
    M = X @ np.array([[0.3, -1.0, 0.0], [1.0, 0.3, 0.0], [0.0, 0.0, -0.5]]) @ np.linalg.inv(X)
    B = np.array([[1.2, 0.3, 0.0], [-0.2, 0.8, 0.1], [0.1, 0.0, 1.0]])
    turning = Head.from_interaction(B, M @ np.linalg.inv(B.T))
    rng = np.random.default_rng(6)
    flat = Head(rng.standard_normal((2, 3)), rng.standard_normal((2, 3)), np.eye(3))
    return [
        lambda: rotation(turning, sizes),
        lambda: small_gap(sizes),
        lambda: singular(flat, sizes),
        lambda: kernel(sizes),
        lambda: hole(clocked((1.0, 0.2), (1.0, 0.7), 5), sizes),
        lambda: emptied(sizes),
    ]


def parts_for(head: Head, sizes: Sizes) -> list[Callable[[], Part]]:
    """What can be tested on a given head: nothing if it meets the assumptions, save for the hole on the circle."""
    theory = head.theory()
    if head.offset is not None:
        return []
    if theory.attention.rotates and theory.attention.multiplicity == 2 and not theory.singular:
        return [lambda: rotation(head, sizes)]
    if theory.no_limit or theory.rate == 0 or math.isinf(theory.gap):
        return []
    found: list[Callable[[], Part]] = []
    if theory.singular and too_long(head, 7 / theory.law_rate(2)) is None:
        found.append(lambda: singular(head, sizes))
    if head.dim == 2 and theory.dim == 1 and not theory.singular:
        found.append(lambda: hole(head, sizes))
    return found


def check(sizes: Sizes, head: Head | None, tell: Tell) -> Finding:
    """Each boundary in turn."""
    plan = own_parts(sizes) if head is None else parts_for(head.to(torch.float64), sizes)
    if not plan:
        assert head is not None
        unmet = ", ".join(head.theory().verdict.unmet) or "none"
        reason = f"no boundary of this head can be measured here; assumptions that it does not meet: {unmet}"
        return Finding(reason, "nothing was run", (undecided("boundaries", reason),))
    parts = []
    for i, part in enumerate(plan):
        parts.append(part())
        tell((i + 1) / len(plan))
    picture = Picture(
        "What happens where the limit law does not hold",
        "A token that turns for ever; concentration that takes longer as the gap closes; tokens that reach the kernel "
        "of B in finite time; plateaus that end early because the law has a hole where Πx = 0.",
        (
            Panel("time t", "coordinate in the plane", title="complex pair"),
            Panel("gap g", "time to W₂ = 0.1", log_x=True, log_y=True, title="gap → 0"),
            Panel("time t", "angle φ from the kernel", title="dominant kernel"),
            Panel("time t", "W₂ to the limit law", log_y=True, title="holes"),
        ),
        tuple(series for part in parts for series in part.series),
    )
    rows = tuple((p.what, p.warned, p.instead) for p in parts)
    table = Table("boundaries", ("boundary", "verdict that warns", "what happens instead"), rows)
    horizon = f"{sizes.turns} turns, gaps {sizes.gaps[0]:g} to {sizes.gaps[-1]:g}, β up to {sizes.betas[-1]:g}"
    passed = sum(p.outcome == PASS for p in (c for part in parts for c in part.checks))
    total = sum(len(part.checks) for part in parts)
    sentence = f"{passed} of {total} checks show what the verdicts warn of: {'; '.join(p.what for p in parts)}"
    return Finding(sentence, horizon, tuple(c for p in parts for c in p.checks), (picture,), (table,))


CLAIM = Claim(
    "boundaries",
    "Where it stops holding",
    "The limit law needs a real dominant eigenvalue, a gap, B invertible (or Re λ₁ > 0) and a law of full support "
    "[paper: assumptions]. Without them: rotation at ω over the mean of |Bᵀx|, a time ∝ 1/gap, arrival at the kernel "
    "in finite time, m_β at the best point of the support, and a plateau that does not wait for β [derived].",
    check,
    quick=Sizes(1000, 500, 6, (0.3, 0.1, 0.03, 0.01, 3e-3, 7e-4, 2e-4), (1e3, 3e3, 1e4, 3e4, 1e5)),
    full=Sizes(
        20_000, 4000, 40, tuple(np.geomspace(0.3, 1e-4, 15).tolist()), tuple(np.geomspace(1e3, 1e6, 13).tolist())
    ),
)
