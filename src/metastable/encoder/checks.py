"""The checks of an audit: a few numbers that matter to whoever ships the encoder, with what is usual and what to do.

Each check has one number, its status and a sentence. *ok*: nothing to do. *look*: worth a look. *act*: likely a
problem. What is usual comes from the encoders that `benchmarks/usual.py` audited, see usual.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from metastable.encoder import course
from metastable.encoder.texts import WARNED

if TYPE_CHECKING:
    from metastable.encoder.audit import Audit
    from metastable.encoder.measure import Measurements

IDLE = 0.01
"""A head is idle if its mean update is shorter than this share of a token."""
DOMINATED = 0.5
"""A value map is nearly of rank one if one eigenvalue, or a complex pair, holds this share of Σ|λ|²."""
SURE = 0.03
"""The largest standard error of the effect of length that is shown."""
MANY = 0.2
"""The share of unknown tokens from which on the numbers describe another input than the texts."""
BY_CHANCE = 0.05
"""A value of a head is unusual if fewer values so far away are expected by chance among all values."""


@dataclass(frozen=True)
class AuditCheck:
    """One check.

    key : its name in usual.json and in `Audit.checks`; name : its name for people
    number : what is compared; shown : the number for people
    status : "ok", "look" or "act", by the fixed `rule`, in words
    usual : the range over audited encoders, in words, for comparison only; empty if it is not known
    sentence : what the number means, and what to do if it is not ok
    """

    key: str
    name: str
    number: float
    shown: str
    status: str
    usual: str
    rule: str
    sentence: str


def summary(found: list[AuditCheck]) -> str:
    """How many checks are ok, and the names of the others."""
    good = sum(check.status == "ok" for check in found)
    words = f"All {good} checks are ok" if good == len(found) else f"{good} of {len(found)} checks are ok"
    for status, verb in (("act", "act on"), ("look", "look at")):
        names = [check.name for check in found if check.status == status]
        words += f"; {verb}: {', '.join(names)}" if names else ""
    return f"{words}."


def checks(audit: Audit) -> list[AuditCheck]:
    """All checks that the audit has numbers for."""
    found = [] if audit.measured is None else list(_on_text(audit, audit.measured))
    return [*found, *_of_weights(audit)]


@cache
def usual() -> dict[str, Any]:
    """{"encoders": names, "ranges": {key: [lowest, highest]}}"""
    found: dict[str, Any] = json.loads((resources.files("metastable.encoder") / "usual.json").read_text("utf-8"))
    return found


def _percent(number: float) -> str:
    return f"{100 * number:.3g} %"


def _made(
    key: str,
    name: str,
    number: float,
    status: str,
    rule: str,
    sentence: str,
    shown: Callable[[float], str] = _percent,
    value: str | None = None,
) -> AuditCheck:
    ends = usual()["ranges"].get(key)
    words = "" if ends is None else f"usual: {shown(ends[0])} to {shown(ends[1])}"
    if ends is not None and shown(ends[0]) == shown(ends[1]):
        words = f"usual: {shown(ends[0])}"
    return AuditCheck(
        key, name, float(number), shown(number) if value is None else value, status, words, rule, sentence
    )


def _two_digits(number: float) -> str:
    return f"{number:.2f}"


def _short(number: float) -> str:
    return f"{number:.2g}"


def _judged(
    number: float, look: float, act: float = math.inf, shown: Callable[[float], str] = _percent
) -> tuple[str, str]:
    """The status of a number of which large values are bad, and the rule in words."""
    rule = f"look from {shown(look)}" + (f", act from {shown(act)}" if math.isfinite(act) else "")
    return "act" if number >= act else "look" if number >= look else "ok", rule


def _on_text(audit: Audit, measured: Measurements) -> Iterator[AuditCheck]:
    depths = {name: tally.mean() for name, tally in measured.depths.items()}
    yield _collapse(measured, depths)
    yield _bottleneck(audit, measured, depths)
    if measured.embeddings is not None and measured.embeddings.count > 1:
        yield _alike(measured.embeddings.mean())
    yield _outliers(measured, depths)
    special = float(np.nanmedian(audit.heads["special_share"]))
    status, rule = _judged(special, 0.7)
    words = "The median head puts this share of its attention on special tokens such as [CLS] and [SEP]."
    if status != "ok":
        words += " Most attention rests there; look at the heads that put nearly all of theirs there."
    yield _made("special", "attention on special tokens", special, status, rule, words)
    # A head of a shared layer is one head: it is idle if it is idle in every call.
    updates = audit.heads["update_length"].groupby(_places(audit)).max().to_numpy(dtype=float)
    idle = int((updates < IDLE).sum())
    status, rule = _judged(idle / len(updates), 0.1, 0.5)
    words = f"{idle} of {len(updates)} heads move tokens by less than {_percent(IDLE)} of their length."
    if status != "ok":
        words += " Try to remove them: metastable compress measures what is lost."
    yield _made("idle", "idle heads", idle / len(updates), status, rule, words, value=f"{idle} of {len(updates)}")
    ordinary = max(1, measured.counts.tokens - measured.counts.special)
    unknown = measured.counts.unknown / ordinary
    words = "Tokens of the texts that the tokenizer does not know."
    if unknown >= WARNED:
        words += " They all look the same to the encoder, so no number of this audit describes it. Give texts in its "
        words += "language, or its own tokenizer."
    yield _made("unknown", "unknown tokens", unknown, *_judged(unknown, WARNED, MANY), words)
    slope, error = (float(part[-1]) for part in measured.depths["hidden_cosine"].slope())
    # Texts of about one length say nothing about other lengths.
    if math.isfinite(slope) and error < SURE:
        words = "Change of the mean cosine of the last hidden states when a text is twice as long."
        status, _ = _judged(abs(slope) - 2 * error, 0.1)
        if status != "ok":
            words += " Similarities of short and long texts cannot be compared; see metastable length."
        rule = "look beyond ±0.10 by more than the error"
        yield _made("length", "effect of length", slope, status, rule, words, lambda number: f"{number:+.2f}")


def _places(audit: Audit) -> pd.Series:
    """A number for each row of heads, the same for all calls of a shared head."""
    return audit.heads["head"] if audit.tied else pd.Series(audit.heads.index)


def _collapse(measured: Measurements, depths: dict[str, np.ndarray]) -> AuditCheck:
    cosine = depths["hidden_cosine"]
    at = int(cosine.argmax())
    owned = course.owned(measured, "hidden")[at]
    status, rule = _judged(cosine[at], 0.8, course.COLLAPSED, _two_digits)
    status = "look" if owned and status == "act" else status
    words = f"The largest mean cosine between two hidden states of a text, at depth {at}; 1 means that all are equal."
    if status != "ok" and owned:
        words += " One feature makes it; see outlier features."
    elif status != "ok":
        words += " Tokens have little of their own left there. For tasks on tokens an earlier layer may be better."
    return _made("collapse", "collapse", cosine[at], status, rule, words, _two_digits)


def _alike(cosine: float) -> AuditCheck:
    status, rule = _judged(cosine, course.COLLAPSED, 0.98, _two_digits)
    words = "The mean cosine between two texts, each the mean of its last hidden states; 1 means that all are equal."
    if status != "ok":
        words += (
            " Similarities of texts differ little. Subtract the mean embedding of a corpus before texts are compared."
        )
    if status == "act":
        words += " If that does not help, the embeddings have collapsed: take an earlier layer or checkpoint."
    return _made("alike", "texts alike", cosine, status, rule, words, _two_digits)


def _bottleneck(audit: Audit, measured: Measurements, depths: dict[str, np.ndarray]) -> AuditCheck:
    tokens = (measured.counts.tokens - measured.counts.special) / max(1, measured.counts.texts)
    most = min(tokens, audit.shape["width"])
    rank = depths["effective_rank"]
    at = int(rank.argmin())
    share = float(rank[at]) / most
    status = "act" if rank[at] < 2 else "look" if share < 0.05 else "ok"
    words = f"The tokens of a text use {rank[at]:.3g} directions at depth {at}, of about {most:.3g} that are possible."
    if status != "ok":
        words += " Few directions are left; look at the layer before."
    rule = "look below 5 %, act below 2 directions; short texts have a larger share"
    return _made("bottleneck", "directions in use", share, status, rule, words)


def _outliers(measured: Measurements, depths: dict[str, np.ndarray]) -> AuditCheck:
    share = depths["hidden_largest_share"]
    at = int(share.argmax())
    owned = course.owned(measured, "hidden")
    last = len(share) - 1
    status = "act" if owned[last] else "look" if owned.any() else "ok"
    number = course.feature(measured, "hidden", at)
    words = f"Feature {number} holds this share of the energy of hidden states at depth {at}."
    if owned[last]:
        words += " One feature decides the cosine of the returned hidden states: standardise features first."
    elif owned.any():
        words += " Cosines of inner hidden states are decided by one feature; those of the returned ones are not."
    rule = "look if one feature decides a cosine, act if that of the last depth"
    return _made("outlier", "outlier features", share[at], status, rule, words)


def _of_weights(audit: Audit) -> Iterator[AuditCheck]:
    own = audit.heads[audit.heads["layer"] == 0] if audit.tied else audit.heads
    norms = own["value_norm"].to_numpy(dtype=float)
    longest = float(np.nanmax(norms))
    where = own.iloc[int(np.nanargmax(norms))]
    status, rule = _judged(longest, 10, shown=_short)
    words = "The longest update that a head can give to a token, in lengths of a token: "
    words += f"layer {int(where['layer'])}, head {int(where['head'])}."
    if status != "ok":
        words += " One head can outweigh the stream; look at its section."
    yield _made("step", "longest step", longest, status, rule, words, _short)
    spectra = [v for (layer, _), (_, v) in audit.weights.spectra.items() if layer == 0 or not audit.tied]
    narrow = sum(_dominated(values) for values in spectra)
    status, rule = _judged(narrow / len(spectra), 0.25)
    words = f"{narrow} of {len(spectra)} heads have a value map in which one eigenvalue outweighs all others."
    if status != "ok":
        words += " They pass on one direction only, which draws tokens together."
    yield _made(
        "narrow",
        "value maps near rank one",
        narrow / len(spectra),
        status,
        rule,
        words,
        value=f"{narrow} of {len(spectra)}",
    )
    rare = audit.verdict.unusual
    rare = rare[rare["expected"] < BY_CHANCE]
    count = len(rare["head"].unique()) if audit.tied else len(rare[["layer", "head"]].drop_duplicates())
    words = f"Heads with a value that is far from those of the other heads: {count} of {len(own)}."
    if count:
        words += " An unusual value is no error; it is the first place to look. The report lists them."
    status, rule = _judged(count / len(own), 0.25)
    yield _made("unusual", "unusual heads", count / len(own), status, rule, words, value=f"{count} of {len(own)}")


def _dominated(values: np.ndarray) -> bool:
    energy = np.sort(np.abs(values) ** 2)[::-1]
    if not energy.sum():
        return False
    # A complex pair is one rotation: both of its eigenvalues have the same size.
    first = energy[:2].sum() if len(energy) > 1 and abs(values[np.argmax(np.abs(values))].imag) > 0 else energy[0]
    return bool(first / energy.sum() >= DOMINATED)
