"""The result of `length` in words: what to do, and what was found, each sentence with the numbers that carry it.

**Safe length**: the last length up to which whole documents lose at most `TOLERATED` in mean reciprocal rank against
the best shorter length, by the 95 % interval of the paired difference. The shortest length counts as safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metastable.decimals import signed
from metastable.encoder.length.result import FOCUS, RISK, SHARE
from metastable.encoder.length.retrieval import MAXIMUM, MEAN, PASSAGE, WHOLE
from metastable.encoder.texts import unknown_tokens

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
ASKED = {"pairs": "the given queries", "passages": f"passages of {PASSAGE} tokens of the documents"}
"""The queries of retrieval in words."""
REPRESENTED = {MEAN: "the mean of the chunk embeddings", MAXIMUM: "the chunk closest to the query"}
SHORT = {MEAN: "mean of chunks", MAXIMUM: "closest chunk"}
"""The ways of representing a document by chunks, in words and in short."""
UNDECIDED = "not decided"


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
    said = [*unknown_tokens(found.counts), *(piece.sentence for piece in advice(found))]
    said += [*_attention(found), *_focus(found), *_similarity(found)]
    if found.reference is not None:
        other = found.reference
        compared = [piece.sentence for piece in _long_documents(other)]
        said += [f"Reference {other.name!r}: {s}" for s in (*compared, *_attention(other), *_focus(other))]
        if other.asked != found.asked:
            said.append("The reference was measured with other queries, so the ranks of the two cannot be compared.")
    return said


def _long_documents(found: Length) -> Iterator[Advice]:
    table = found.retrieval
    whole = table[table["way"] == WHOLE].set_index("n")
    if len(whole) < 2:
        why = f"too few documents have more than {found.top} tokens"
        yield Advice("safe length", UNDECIDED, f"The safe length cannot be decided: {why}.")
        return
    many = int(whole["queries"].iloc[0])
    if many < FEW:
        first, last = whole["mrr"].iloc[0], whole["mrr"].iloc[-1]
        yield Advice(
            "safe length",
            UNDECIDED,
            f"The safe length cannot be decided with {many} documents; give {FEW} or more. Their mean reciprocal rank "
            f"is {first:.3f} at {whole.index[0]} tokens and {last:.3f} at {whole.index[-1]} ({ASKED[found.asked]}).",
        )
        return
    chance = sum(1 / rank for rank in range(1, many + 1)) / many
    if whole["mrr_low"].iloc[0] <= chance:
        found_by = f"{whole['mrr'].iloc[0]:.3f} at {whole.index[0]} tokens, and by chance {chance:.3f}"
        known = f"Their mean reciprocal rank is {found_by}"
        yield Advice("safe length", UNDECIDED, f"The queries find their documents no better than chance. {known}.")
        return
    yield _safe_length(found, whole, many)
    yield _chunks(table[table["way"].isin(REPRESENTED)])


def _safe_length(found: Length, whole: pd.DataFrame, many: int) -> Advice:
    later = whole.iloc[1:]
    unsafe = later[~(later["mrr_gain_low"] >= -TOLERATED)]
    row = unsafe.iloc[0] if len(unsafe) else later.iloc[-1]
    n = int(row.name)
    numbers = (
        f"the mean reciprocal rank is {row.mrr:.3f}; at the best shorter length, {row.against:.0f} tokens, it is "
        f"{whole.loc[int(row.against)].mrr:.3f}. The change is {_signed(row, 'mrr_gain')}, with {many} queries among "
        f"{many} documents: {ASKED[found.asked]}. A loss of at most {TOLERATED:g} counts as safe."
    )
    if not len(unsafe):
        known = f"Whole documents are safe up to {n} tokens, the last length that was measured on them."
        return Advice("safe length", f"at least {n} tokens", f"{known} There {numbers}")
    safe = max(length for length in whole.index if length < n)
    if row.mrr_gain_high < 0:
        known = f"Whole documents are safe up to {safe} tokens."
        return Advice("safe length", f"{safe} tokens", f"{known} At {n} tokens {numbers}")
    known = f"Whole documents are safe up to {safe} tokens, and {n} tokens are undecided."
    return Advice(
        "safe length", f"{safe} tokens or more", f"{known} At {n} tokens {numbers} More queries would decide."
    )


def _chunks(chunks: pd.DataFrame) -> Advice:
    best = chunks.loc[chunks["mrr_gain"].idxmax()]
    way = f"chunks of {best.chunk:.0f} tokens, ranked by {REPRESENTED[best.way]}"
    rank = f"the mean reciprocal rank is {best.mrr:.3f} instead of {best.mrr - best.mrr_gain:.3f}"
    numbers = f"{rank}, a change of {_signed(best, 'mrr_gain')}"
    if best.mrr_gain_low > 0:
        known = f"For documents of {best.n} tokens, use {way}: {numbers}."
        return Advice("chunks", f"of {best.chunk:.0f} tokens, by the {SHORT[best.way]}", known)
    known = f"Chunks are not shown to be better than whole documents of {best.n} tokens. The best that was tried is"
    return Advice("chunks", "no gain shown", f"{known} {way}: {numbers}.")


def _temperature(found: Length) -> Iterator[Advice]:
    remedies = found.retrieval[found.retrieval["way"].str.startswith("scores")]
    if not len(remedies) or remedies["queries"].iloc[0] < FEW:
        return
    best = remedies.loc[remedies["mrr_gain"].idxmax()]
    tried = f"Attention scores of documents of {best.n} tokens were multiplied by {len(remedies)} factors (a lower "
    change = f"{best.way.removeprefix('scores × ')}, changes the mean reciprocal rank by {_signed(best, 'mrr_gain')}"
    helps = best.mrr_gain_low > 0
    verdict = "It helps" if helps else "That is no gain beyond the error"
    words = f"{tried}temperature). The best factor, {change}. {verdict}."
    yield Advice("temperature", best.way if helps else "leave it as it is", words)


def _heads(found: Length) -> Iterator[Advice]:
    heads = found.focus
    lost, many = heads["loses_focus_at"].notna(), int(heads["focus_at_start"].sum())
    if not many or found.start == found.last:
        return
    words = f"{int(lost.sum())} of the {many} heads with focus at {found.start} tokens lose it by {found.last}"
    if lost.any():
        first = heads[lost].sort_values(["loses_focus_at", "layer", "head"]).head(MOST_NAMED)
        names = ", ".join(f"layer {h.layer} head {h.head} at {h.loses_focus_at:.0f}" for h in first.itertuples())
        words += f"; the first: {names}"
    words += ". Whether this harms search is answered by the safe length, not by this count."
    yield Advice("heads", f"{int(lost.sum())} of {many} lose focus", words)


def _forecast(found: Length) -> Iterator[Advice]:
    rows = found.skill[(found.skill["n"] == found.last) & (found.skill["statistic"] == "entropy")].set_index("method")
    if not len(rows):
        return
    # With one length up to n₀ there is no line.
    rule, name = (LINE, "a straight line in log n") if LINE in rows.index else ("no change", "assuming no change")
    own, other = rows.loc["forecast"], rows.loc[rule]
    made = f"The forecast of the attention entropy at {found.last} tokens, made from {found.start} tokens,"
    errors = f"its mean error is {own.error:.2f} nats, and that of the other is {other.error:.2f}"
    skill = f"skill {other.skill:.2f}, {other.skill_low:.2f} to {other.skill_high:.2f}"
    if other.skill_low > 0:
        later = found.focus["forecast_to_lose_later"]
        more = int((later <= found.limit).sum())
        words = f"{made} is better than {name}: {errors} ({skill})."
        if more:
            words += f" {more} more heads are forecast to lose focus by {later[later <= found.limit].max():.0f} tokens."
        yield Advice("forecasts", f"better than {name}", words)
    else:
        words = f"{made} is not better than {name} beyond its error: {errors} ({skill})."
        yield Advice("forecasts", f"no better than {name}", f"{words} Do not rely on longer forecasts.")


def _attention(found: Length) -> Iterator[str]:
    source = "prefix" if found.last <= found.top else "glued"
    own = found.heads[found.heads["source"] == source]
    means = own.groupby("n")[["entropy", "top_weight"]].mean()
    first, last = means.loc[found.start], means.loc[found.last]
    if found.start == found.last:
        yield (
            f"At {found.start} tokens the mean attention entropy is {first.entropy:.2f} nats and the mean top weight "
            f"{first.top_weight:.2f}. No longer texts were measured."
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
        named, others = int((lost & foreseen).sum()), int((foreseen & ~lost).sum())
        yield (
            f"The forecast made from {found.start} tokens expected {named} of these losses, and {others} that did not "
            f"come. It names a head if the probability of a loss is at least {RISK:g} by its error bars."
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
    value, low, high = (signed(row[name + end], 3) for end in ("", "_low", "_high"))
    return f"{value} ({low} to {high})"
