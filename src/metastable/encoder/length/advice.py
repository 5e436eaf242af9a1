"""The result of `length` in words, each sentence with the numbers that carry it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from metastable.encoder.length.result import FOCUS, SHARE

if TYPE_CHECKING:
    from metastable.encoder.length.result import Length

LINE = "linear in log n"
MOST_NAMED = 5
"""Heads that are named; the table focus has all of them."""


def sentences(found: Length) -> list[str]:
    """What was found about attention, focus, forecasts, similarity, retrieval and remedies."""
    said = [*_attention(found), *_focus(found), *_forecast(found), *_similarity(found), *_retrieval(found)]
    if found.reference is not None:
        other = found.reference
        said += [f"Reference {other.name!r}: {sentence}" for sentence in (*_attention(other), *_focus(other))]
    return said


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
    if lost.any():
        first = heads[lost].sort_values(["loses_focus_at", "layer", "head"]).head(MOST_NAMED)
        names = ", ".join(f"layer {h.layer} head {h.head} at {h.loses_focus_at:.0f}" for h in first.itertuples())
        yield f"The first to lose it: {names}."
    foreseen = heads["forecast_to_lose_at"].notna()
    if (lost | foreseen).any():
        yield (
            f"The forecast made from {found.start} tokens names {int((lost & foreseen).sum())} of these heads and "
            f"{int((foreseen & ~lost).sum())} others."
        )
    later = heads["forecast_to_lose_later"].dropna()
    if len(later):
        yield f"Forecast to lose it by {later.max():.0f} tokens: {len(later)} more."


def _forecast(found: Length) -> Iterator[str]:
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
        yield f"{made} is better than {name}: {errors} ({skill})."
    else:
        yield f"{made} is not better than {name} beyond its error: {errors} ({skill}). Do not rely on longer forecasts."


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


def _retrieval(found: Length) -> Iterator[str]:
    if not len(found.retrieval):
        return
    whole = found.retrieval[found.retrieval["way"] == "whole"].set_index("n")["mrr"]
    by_length = ", ".join(f"{mrr:.2f} at {n} tokens" for n, mrr in whole.items())
    yield f"Retrieval with {found.retrieval['queries'].iloc[0]} queries, mean reciprocal rank by length: {by_length}."
    chunks = found.retrieval[(found.retrieval["n"] == found.top) & (found.retrieval["way"] != "whole")]
    if len(chunks):
        ways = ", ".join(f"{row.way} {row.mrr:.2f}" for _, row in chunks.iterrows())
        yield f"With documents of {found.top} tokens in chunks of {found.start} it is: {ways}."
    if len(found.remedies):
        yield _remedy(found.remedies)


def _remedy(remedies: pd.DataFrame) -> str:
    best = remedies.loc[remedies["mrr_gain"].idxmax()]
    gain = f"changes the mean reciprocal rank by {_signed(best, 'mrr_gain')}"
    what = f"Of {len(remedies)} temperature factors the best, {best.remedy},"
    if best.mrr_gain_low > 0:
        return f"{what} {gain}: it helps."
    return f"{what} {gain}: no gain beyond the error."


def _signed(row: pd.Series, name: str) -> str:
    """A change with its interval."""
    return f"{row[name]:+.2f} ({row[f'{name}_low']:+.2f} to {row[f'{name}_high']:+.2f})"
