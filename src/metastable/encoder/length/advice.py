"""The result of `length` in words: what to do, and what was found, each sentence with the numbers that carry it.

**Safe length**: the last length up to which whole documents lose at most `TOLERATED` in mean reciprocal rank against
the best shorter length, by the 95 % interval of the paired difference. The shortest length counts as safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metastable.encoder.length.result import FOCUS, RISK, SHARE
from metastable.encoder.length.retrieval import MAXIMUM, MEAN, PASSAGE, WHOLE
from metastable.figures.length import signed

if TYPE_CHECKING:
    import pandas as pd

    from metastable.encoder.length.result import Length

LINE = "linear in log n"
TOLERATED = 0.05
"""A loss in mean reciprocal rank up to this counts as safe."""
FEW = 30
"""With fewer documents nearly every query finds its own, so nothing is advised about retrieval."""
MOST_NAMED = 5
"""Heads that are named; the table focus has all of them."""
ASKED = {"pairs": "the given queries", "passages": f"passages of {PASSAGE} tokens of the documents themselves"}
"""The queries of retrieval in words."""
REPRESENTED = {MEAN: "the mean of the chunk embeddings", MAXIMUM: "the chunk closest to the query"}
"""The ways of representing a document by chunks in words."""


@dataclass(frozen=True)
class Advice:
    """One piece of advice.

    topic : what it is about; value : the advice in a few words; sentence : the reason, with numbers
    """

    topic: str
    value: str
    sentence: str


def advice(found: Length) -> list[Advice]:
    """What to do about long documents, temperature, heads and forecasts, as far as the texts allow to say."""
    return [*_long_documents(found), *_temperature(found), *_heads(found), *_forecast(found)]


def sentences(found: Length) -> list[str]:
    """The advice, then what was found about attention, focus and similarity, then the reference."""
    said = [piece.sentence for piece in advice(found)]
    said += [*_attention(found), *_focus(found), *_similarity(found)]
    if found.reference is not None:
        other = found.reference
        compared = [piece.sentence for piece in _long_documents(other)]
        said += [f"Reference {other.name!r}: {s}" for s in (*compared, *_attention(other), *_focus(other))]
    return said


def _long_documents(found: Length) -> Iterator[Advice]:
    table = found.retrieval
    whole = table[table["way"] == WHOLE].set_index("n")
    if len(whole) < 2:
        return
    many = int(whole["queries"].iloc[0])
    if many < FEW:
        first, last = whole["mrr"].iloc[0], whole["mrr"].iloc[-1]
        yield Advice(
            "safe length",
            "not decided",
            f"The safe length cannot be decided with {many} documents; give {FEW} or more. Their mean reciprocal rank "
            f"is {first:.2f} at {whole.index[0]} tokens and {last:.2f} at {found.top} ({ASKED[found.asked]}).",
        )
        return
    yield _safe_length(found, whole, f"{many} queries, {ASKED[found.asked]}")
    chunks = table[table["way"].isin(REPRESENTED)]
    best = chunks.loc[chunks["mrr_gain"].idxmax()]
    size, way = f"{best.chunk:.0f}", REPRESENTED[best.way]
    split = f"split documents of {found.top} tokens into chunks of {size} and rank them by {way}"
    change = f"{best.mrr:.2f} instead of {whole.loc[found.top].mrr:.2f}, a change of {_signed(best, 'mrr_gain')}"
    if best.mrr_gain_low > 0:
        value = f"chunks of {size} tokens, {'closest chunk' if best.way == MAXIMUM else 'mean of chunks'}"
        yield Advice("long documents", value, f"{split.capitalize()}: the mean reciprocal rank is {change}.")
    else:
        what = f"No chunk size is better than whole documents of {found.top} tokens beyond the error"
        yield Advice("long documents", "no gain from chunks", f"{what}. The best is to {split}: {change}.")


def _safe_length(found: Length, whole: pd.DataFrame, queries: str) -> Advice:
    later = whole.iloc[1:]
    unsafe = later[~(later["mrr_gain_low"] >= -TOLERATED)]
    row = unsafe.iloc[0] if len(unsafe) else later.iloc[-1]
    n = int(row.name)
    change = (
        f"the mean reciprocal rank is {row.mrr:.2f}, and at {row.against:.0f} tokens it is "
        f"{whole.loc[int(row.against)].mrr:.2f}: a change of {_signed(row, 'mrr_gain')} ({queries}). A loss of at most "
        f"{TOLERATED:g} counts as safe"
    )
    if not len(unsafe):
        known = f"Whole documents are safe up to {n} tokens, the longest documents. There"
        return Advice("safe length", f"at least {n} tokens", f"{known} {change}.")
    safe = max(length for length in whole.index if length < n)
    if row.mrr_gain_high < 0:
        known = f"Whole documents are safe up to {safe} tokens. At {n} tokens"
        return Advice("safe length", f"{safe} tokens", f"{known} {change}.")
    known = f"Whole documents are safe up to {safe} tokens, and longer ones are undecided. At {n} tokens"
    return Advice("safe length", f"{safe} tokens or more", f"{known} {change}; more queries would decide it.")


def _temperature(found: Length) -> Iterator[Advice]:
    remedies = found.retrieval[found.retrieval["way"].str.startswith("scores")]
    if not len(remedies) or remedies["queries"].iloc[0] < FEW:
        return
    best = remedies.loc[remedies["mrr_gain"].idxmax()]
    tried = f"Of {len(remedies)} factors of the scores at {found.top} tokens (a lower temperature), the best is"
    change = f"{best.way.removeprefix('scores × ')}; it changes the mean reciprocal rank by {_signed(best, 'mrr_gain')}"
    helps = best.mrr_gain_low > 0
    verdict = "It helps" if helps else "This is no gain beyond the error"
    yield Advice("temperature", best.way if helps else "leave it as it is", f"{tried} {change}. {verdict}.")


def _heads(found: Length) -> Iterator[Advice]:
    heads = found.focus
    sharp, lost = heads["focus_at_start"].astype(bool), heads["loses_focus_at"].notna()
    if not sharp.any() or found.start == found.last:
        return
    growing, many = int((heads["gap_growth"][sharp] >= 1).sum()), int(sharp.sum())
    words = f"{int(lost.sum())} of the {many} heads with focus at {found.start} tokens lose it by {found.last}"
    if lost.any():
        first = heads[lost].sort_values(["loses_focus_at", "layer", "head"]).head(MOST_NAMED)
        names = ", ".join(f"layer {h.layer} head {h.head} at {h.loses_focus_at:.0f}" for h in first.itertuples())
        words += f"; the first: {names}"
    words += ". A head keeps its focus at every length only if its score gap grows at least like log n, as it does for "
    words += f"{growing} of the {many}."
    yield Advice("heads", f"{int(lost.sum())} of {many} lose focus", words)


def _forecast(found: Length) -> Iterator[Advice]:
    rows = found.skill[(found.skill["n"] == found.last) & (found.skill["statistic"] == "entropy")].set_index("method")
    if not len(rows):
        return
    # With one length up to n₀ there is no line.
    rule, name = (LINE, "the line in log n") if LINE in rows.index else ("no change", "the value without a change")
    own, other = rows.loc["forecast"], rows.loc[rule]
    made = f"The forecast of the entropy at {found.last} tokens, made from {found.start} tokens,"
    errors = f"its mean error is {own.error:.2f} nats and that of {name} is {other.error:.2f}"
    skill = f"skill {other.skill:.2f}, {other.skill_low:.2f} to {other.skill_high:.2f}"
    if other.skill_low > 0:
        later = found.focus["forecast_to_lose_later"].dropna()
        more = (
            f" By {later.max():.0f} tokens, {len(later)} more heads are forecast to lose focus." if len(later) else ""
        )
        yield Advice("forecasts", "usable", f"{made} is better than {name}: {errors} ({skill}).{more}")
    else:
        worse = f"{made} is not better than {name} beyond its error: {errors} ({skill})."
        yield Advice("forecasts", "do not use them", f"{worse} Do not rely on longer forecasts.")


def _attention(found: Length) -> Iterator[str]:
    source = "prefix" if found.last <= found.top else "glued"
    own = found.heads[found.heads["source"] == source]
    means = own.groupby("n")[["entropy", "top_weight"]].mean()
    first, last = means.loc[found.start], means.loc[found.last]
    if found.start == found.last:
        yield (
            f"At {found.start} tokens the mean attention entropy is {first.entropy:.2f} nats and the mean top weight "
            f"{first.top_weight:.2f}. No texts are longer."
        )
        return
    texts = "" if source == "prefix" else ", on texts glued together"
    yield (
        f"From {found.start} to {found.last} tokens the mean attention entropy changes from {first.entropy:.2f} to "
        f"{last.entropy:.2f} nats and the mean top weight from {first.top_weight:.2f} to {last.top_weight:.2f}{texts}."
    )


def _focus(found: Length) -> Iterator[str]:
    heads = found.focus
    lost, sharp = heads["loses_focus_at"].notna(), int(heads["focus_at_start"].sum())
    yield (
        f"{sharp} of {len(heads)} heads have focus at {found.start} tokens (top weight at least {FOCUS:g}, "
        f"participation at most {SHARE:g} of the tokens); {int(lost.sum())} of them lose it by {found.last} tokens."
    )
    foreseen = heads["forecast_to_lose_at"].notna()
    if (lost | foreseen).any():
        yield (
            f"The forecast made from {found.start} tokens names {int((lost & foreseen).sum())} of these heads and "
            f"{int((foreseen & ~lost).sum())} others: those that lose focus with a probability of at least {RISK:g}."
        )


def _similarity(found: Length) -> Iterator[str]:
    parts = found.causes[(found.causes["quantity"] == "document_cosine") & (found.causes["n"] == found.top)]
    if not len(parts):
        return
    cosine = found.documents.set_index("n")["document_cosine"]
    each = ", ".join(f"{row.part} {_signed(row, 'change')}" for _, row in parts.iterrows())
    yield (
        f"From {found.start} to {found.top} tokens the mean cosine between documents changes from "
        f"{cosine[found.start]:.2f} to {cosine[found.top]:.2f}: {each}."
    )


def _signed(row: Any, name: str) -> str:
    """A change with its interval."""
    value, low, high = (signed(row[name + end]) for end in ("", "_low", "_high"))
    return f"{value} ({low} to {high})"
