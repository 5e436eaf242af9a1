"""The sentences of the audit's report: what an assumption means, what a head does, how the audit was made."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pandas as pd

from metastable.figures.look import number

if TYPE_CHECKING:
    from metastable.encoder.audit import Audit

ASSUMPTIONS = {
    "B invertible": "scores tell all directions apart; a head narrower than the model never does, and directions "
    "that it does not see are left to other heads",
    "λ₁ real": "tokens go to fixed points; where this fails, they turn around in a plane and have no limit",
    "λ₁ semisimple": "tokens approach exponentially; where this fails, more slowly than any rate",
    "gap > 0": "one direction is ahead of the others; the smaller the gap, the longer it takes",
    "Re λ₁ > 0 if B is singular": "the directions that the head sees outgrow those it does not; where this fails, "
    "the head concentrates nothing",
    "M near normal": "tokens approach without detours; where this fails, distances may grow long before they shrink",
    "eigenbasis conditioned": "eigenvalues can be trusted under small changes of the weights",
    "terminal phase of V": "late clusters narrow and come to rest; where this fails, they circle or come apart",
    "scores linear": "scores come from pairs of tokens alone; biases that favour some tokens for all queries are small",
}
"""Each assumption of the theory, in words: what it gives, and what its failure means."""


def capital(sentence: str) -> str:
    """With a capital at its start; a formula such as β = 3 stays as it is."""
    return sentence[:1].upper() + sentence[1:] if sentence[1:2].isalpha() else sentence


def head_sentence(row: pd.Series, layers: int) -> str:
    """What the theory says of a head from its weights alone, in words."""
    prediction = str(row["prediction"])
    if prediction == "rotates":
        turn = number(float(row["frequency"]))
        words = f"By its weights this head turns tokens around in a plane, {turn} radians a layer, and has no limit."
    elif prediction == "nowhere of its own":
        words = "By its weights this head concentrates tokens nowhere of its own."
    else:
        words = f"By its weights this head {prediction}"
        needed = float(row["layers_to_concentrate"])
        words += (
            f": alone and at zero temperature it would need about {number(needed)} layers; the encoder has {layers}."
            if math.isfinite(needed)
            else ", at no rate that can be named."
        )
    late = {
        "narrows": "late clusters would narrow",
        "circles": "late clusters would circle",
        "spreads": "late clusters would come apart",
        "neither": "late clusters would neither narrow nor come apart",
    }.get(str(row["terminal"]))
    return words if late is None else f"{words} By V alone, {late}."


def making(audit: Audit) -> dict[str, list[tuple[str, str]]]:
    """How the audit was made: the encoder, the texts, versions and settings."""
    shape = [(name.replace("_", " "), str(value)) for name, value in audit.shape.items()]
    shared = "all layers share their weights" if audit.tied else "each layer has its own weights"
    encoder = [("model", audit.name), ("family", audit.family), *shape, ("weights", shared)]
    encoder.append(("SHA-256 of the weights", audit.fingerprint))
    if audit.reference is not None:
        encoder.append(("reference", audit.reference.name))
    found = {"Encoder": encoder, "Texts": _texts(audit)}
    return {**found, "Versions and settings": [(str(key), str(value)) for key, value in audit.made.items()]}


def _texts(audit: Audit) -> list[tuple[str, str]]:
    if audit.measured is None:
        return [("texts", "none: this audit is of the weights alone")]
    counts = audit.measured.counts
    kept = audit.measured.special == "include"
    twin = None if audit.twin is None else audit.twin.measured
    beside = [] if twin is None else [("texts measured with random weights", length(twin.counts.texts))]
    special = "belong to the cloud of tokens" if kept else "are attended to, but do not belong to the cloud of tokens"
    return [
        ("texts measured", length(counts.texts)),
        *beside,
        ("tokens", f"{length(counts.tokens)}, of them {length(counts.special)} special"),
        ("cut to the model's limit", length(counts.cut)),
        ("skipped, no word in them", length(counts.skipped)),
        ("special tokens", special),
        ("padding", "is never a token"),
    ]


def length(count: int) -> str:
    r"""A count with thin spaces between thousands.

    >>> length(1234567)
    '1\u202f234\u202f567'
    """
    return f"{count:,}".replace(",", "\u202f")
