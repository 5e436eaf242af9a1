"""One audit of the real encoder, one comparison and their pages, which the tests of a process share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from metastable.encoder.audit import Audit, audit
from metastable.encoder.compare import Comparison, compare
from metastable.encoder.load import load
from metastable.encoder.loop import Loop, loop
from metastable.encoder.report import render
from tests.encoder import models

TEXTS = [
    "The ferry to the island leaves at noon.",
    "Rain.",
    "Although the committee had read both reports, nobody could say why the bridge over the river had been closed.",
    "Dogs bark at night, and the neighbours complain about it every single morning of the week.",
    "The train to the valley leaves at night, as it has done every night for the last forty years.",
]
BLANK = "   "
EVIL = "<img src=x onerror=alert(1)></script>"
"""A name that would be markup if it were not escaped."""


@cache
def audited() -> Audit:
    return audit(str(models.minilm()), [*TEXTS, BLANK])


@cache
def by_weights() -> Audit:
    """The audit without texts, beside a reference with fewer layers."""
    reference = audit(models.tiny("albert"), beside_random=False)
    return replace(audited(), measured=None, twin=replace(audited().twin, measured=None), reference=reference)


@cache
def looped() -> Loop:
    return loop(load(str(models.minilm())), TEXTS[:3], 4, layer=1)


@cache
def full() -> Audit:
    """An audit with a reference and a loop, with markup in every name and in the prediction for the first head."""
    heads = audited().weights.heads.copy()
    heads.loc[0, "prediction"] = EVIL
    return replace(
        audited(),
        name=EVIL,
        family=EVIL,
        notes=(EVIL,),
        made={EVIL: EVIL},
        weights=replace(audited().weights, heads=heads),
        reference=replace(audited(), name=EVIL),
        loop=replace(looped(), trained_depth=3),
    )


@cache
def compared() -> Comparison:
    """The real encoder and its twin with random weights."""
    return compare(by_weights(), by_weights().twin)


def rendered(which: Callable[[], Audit] = audited) -> str:
    return _rendered(which)


@cache
def _rendered(which: Callable[[], Audit]) -> str:
    return render(which())
