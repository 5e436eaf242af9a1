"""The effects of length on an encoder as one HTML file that needs no network, for readers who have read no paper."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go

from metastable import figures
from metastable.decimals import decimals, signed
from metastable.encoder.length.advice import ASKED
from metastable.encoder.length.causes import ATTENTION
from metastable.encoder.length.dilution import STATISTICS
from metastable.encoder.length.forecast import COVERAGE, FORECAST, METHODS
from metastable.encoder.length.ladder import MOST
from metastable.encoder.length.result import FOCUS, RISK, SHARE, part_column
from metastable.encoder.length.retrieval import CUTOFFS, MAXIMUM, MEAN, WHOLE
from metastable.encoder.report import PHASES
from metastable.encoder.report import length as count
from metastable.figures import length as drawn
from metastable.figures.look import BLUE, FAINT, SKY
from metastable.report.page import figure_block, render_page, target_of, write_page

if TYPE_CHECKING:
    from metastable.encoder.length.result import Length

WAYS = {WHOLE: drawn.WHOLE, MEAN: "mean of chunks", MAXIMUM: "closest chunk"}
"""The ways of representing a document, as the page names them; the others multiply scores."""
FARTHEST = 10**6
"""Critical lengths beyond this are not written as a number, in tokens."""
NO_FOCUS, LOSES = "no focus at {start} tokens", "loses its focus at {n:.0f}"
LATER, KEEPS = "forecast to lose it beyond {last}", "keeps its focus up to {last}"
"""What happens to the focus of a head."""
PARTS = {
    "document_cosine": {
        "averaging": "a mean over more text is closer to the mean of the corpus; an ideal encoder does this too",
        "positions": "the pieces are read at the later positions that they have in the document",
        "attention": "tokens attend to the whole document and not to their own piece only",
    },
    "entropy": {
        "more tokens": "every token counts as often as the text is longer; the entropy of every head grows alike",
        "near tokens": "a token has no more neighbours in a long text than in a short one",
        "special tokens": "there are no more special tokens in a long text, so they lose weight",
        "positions": "the pieces are read at the later positions that they have in the document",
        "other scores": "tokens have other scores in the whole document, because they have other contexts",
    },
}
"""The parts of a change in one clause each, see `causes`."""
DEPTHS = {
    "mean_cosine": ("Mean cosine of tokens", "1 if all tokens of a text are equal. Gains and offsets are removed."),
    "hidden_cosine": ("Mean cosine of hidden states", "The same for the hidden states that the model returns."),
    "effective_rank": ("Effective rank", "The number of directions that up to 64 tokens of a text use."),
}
"""The statistics that are drawn over depth: title and caption."""
MARKS = {True: ("✓", "holds"), False: ("✗", "fails"), None: ("?", "without")}
"""Whether the forecast is better than a rule (None: not known beyond the error): sign, and class in style.css."""


def write(found: Length, path: str | Path) -> Path:
    """Write the report to `path`, completely or not at all. Missing folders are made."""
    return write_page(target_of(path), render(found))


def render(found: Length) -> str:
    """The report as HTML."""
    advice = found.advice()
    said = {piece.sentence for piece in advice}
    pictures = {
        "answers": [*_answers(found)],
        "attention": [*_attention(found)],
        "focus": [_focus_map(found)],
        "forecasts": [*_forecasts(found)],
        "causes": [*_causes(found)],
        "depths": [*_depths(found)],
    }
    return render_page(
        "length.html.j2",
        found=found,
        headline=headline(found),
        titles=titles(found),
        lengths=lengths(found),
        advice=advice,
        sentences=[sentence for sentence in found.sentences() if sentence not in said],
        pictures={
            kind: [figure_block(f"{kind}-{i}", figure) for i, figure in enumerate(some)]
            for kind, some in pictures.items()
        },
        retrieval=_retrieval_table(found),
        heads=_head_table(found),
        skill=_skill_table(found),
        marks=MARKS,
        phases=_phase_rows(found),
        meanings=PHASES,
        making=_making(found),
        focus={"top": f"{FOCUS:g}", "share": f"{SHARE:g}"},
    )


def headline(found: Length) -> str:
    """The first sentence about the safe length, or else the first sentence of all, up to its first semicolon."""
    safe = [piece.sentence for piece in found.advice() if piece.topic == "safe length"]
    return re.split(r"[.;]\s", (safe or found.sentences())[0], maxsplit=1)[0].rstrip(".") + "."


def titles(found: Length) -> dict[str, str]:
    """The headings of the sections whose words depend on what was found."""
    own = found.heads[found.heads["source"] == _upper(found)].groupby("n")["entropy"].mean()
    return {
        "attention": "Attention spreads out" if own[found.last] > own[found.start] else "Attention as texts grow",
        "causes": _causes_title(found),
    }


def _causes_title(found: Length) -> str:
    """Whether documents become alike, if the intervals at n₀ and at the last length of documents do not overlap."""
    known = found.documents.set_index("n")
    if len(found.causes):
        before, after = known.loc[found.start], known.loc[found.top]
        if after["document_cosine_low"] > before["document_cosine_high"]:
            return "Why documents become alike"
        if after["document_cosine_high"] < before["document_cosine_low"]:
            return "Why documents become less alike"
    return "What makes documents alike"


def lengths(found: Length) -> list[int]:
    """The lengths that were measured, in tokens."""
    return sorted({int(n) for n in found.heads["n"]})


def _upper(found: Length) -> str:
    """The source that reaches the last length."""
    return "prefix" if found.last <= found.top else "glued"


def _answers(found: Length) -> Iterator[go.Figure]:
    table = found.retrieval
    if not len(table):
        return
    whole = table[table["way"] == WHOLE]
    curves = {drawn.WHOLE: whole}
    other = found.reference
    if other is not None and len(other.retrieval) and other.asked == found.asked:
        curves[drawn.REFERENCE] = other.retrieval[other.retrieval["way"] == WHOLE][["n", "mrr"]]
    seen = pd.concat([table[["mrr_low", "mrr_high"]].stack(), *(curve["mrr"] for curve in curves.values())])
    # An interval may end beyond 0 or 1, but the mean reciprocal rank does not.
    low, high = max(0.0, float(seen.min())), min(1.0, float(seen.max()))
    room = 0.05 * (high - low) or 0.02
    reach = (low - room, high + room)
    queries = f"{int(whole['queries'].iloc[0])} queries, one for each document: {ASKED[found.asked]}."
    yield figures.length_curves(
        "Documents cut to n tokens",
        f"{queries} All documents are ranked by their cosine with each query. MRR is the mean of 1/rank of the right "
        "document: 1 if it is always first, 0.5 if it is always second. The band is the 95 % interval.",
        "mrr",
        curves,
        y="MRR",
        reach=reach,
    )
    if len(table) > len(whole):
        yield _ways(found, reach)


def _ways(found: Length, reach: tuple[float, float]) -> go.Figure:
    top = int(found.retrieval["n"].max())
    points = _points(found.retrieval[found.retrieval["n"] == top])
    x = "chunk size in tokens"
    text = (
        "Each document is split into chunks. It is ranked by the mean of their embeddings, or by the chunk closest to "
        "the query."
    )
    if drawn.FACTORS in set(points["way"]):
        x += ", or factor of the scores"
        text += " Or it stays whole, and all attention scores are multiplied by a factor, as a lower temperature does."
    text += " Bars are 95 % intervals. The table compares each way with whole documents query by query."
    return figures.way_points(f"Documents cut to {top} tokens, in other ways", text, points, x, reach)


def _points(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of retrieval at one length, chunks first, with the names of the page."""
    ways = table["way"].map(WAYS).fillna(drawn.FACTORS)
    places = [
        "whole" if way == WHOLE else f"{chunk:.0f}" if way in WAYS else way.removeprefix("scores ")
        for way, chunk in zip(table["way"], table["chunk"], strict=True)
    ]
    order = {"mean of chunks": 0, "closest chunk": 0, drawn.WHOLE: 1, drawn.FACTORS: 2}
    return table.assign(way=ways, place=places).sort_values("way", key=lambda way: way.map(order), kind="stable")


def _attention(found: Length) -> Iterator[go.Figure]:
    longest = max(found.last, 0 if found.reference is None else found.reference.last)
    ends = pd.DataFrame({"n": [lengths(found)[0], longest]})
    largest = {"largest possible, log n": ends.assign(entropy=[math.log(n) for n in ends["n"]])}
    threshold = {f"focus needs {FOCUS:g}": ends.assign(top_weight=FOCUS)}
    yield figures.length_curves(
        "Entropy of attention",
        "How many tokens a query attends to, on a logarithmic scale: 0 for one token, log n for all tokens alike. The "
        "line is the mean over heads; 8 of 10 heads are in the band.",
        "entropy",
        _of_heads(found, "entropy"),
        largest,
        y="nats",
    )
    yield figures.length_curves(
        "Top weight",
        "The largest attention weight of a query. 1 means that it attends to one token only.",
        "top_weight",
        _of_heads(found, "top_weight"),
        threshold,
        y="share",
    )
    yield figures.length_curves(
        "Share on special tokens",
        "How much attention goes to [CLS], [SEP] and other special tokens.",
        "special_share",
        _of_heads(found, "special_share"),
        y="share",
    )


def _of_heads(found: Length, column: str) -> dict[str, pd.DataFrame]:
    """The mean of a statistic over heads by length, with the 10th and the 90th percentile, by the name of the curve."""
    curves = {}
    for source, name in (("prefix", drawn.WHOLE), ("glued", drawn.GLUED)):
        rows = found.heads[found.heads["source"] == source]
        if len(rows):
            own = rows.groupby("n")[column]
            ends = {column: own.mean(), f"{column}_low": own.quantile(0.1), f"{column}_high": own.quantile(0.9)}
            curves[name] = pd.DataFrame(ends).reset_index()
    if found.reference is not None:
        rows = found.reference.heads[found.reference.heads["source"] == _upper(found.reference)]
        curves[drawn.REFERENCE] = rows.groupby("n")[column].mean().reset_index()
    return curves


def _fate(found: Length, row: Any) -> str:
    """What happens to the focus of a head, in words."""
    if not row.focus_at_start:
        return NO_FOCUS.format(start=found.start)
    if not math.isnan(row.loses_focus_at):
        return LOSES.format(n=row.loses_focus_at)
    if not math.isnan(row.forecast_to_lose_later):
        return LATER.format(last=found.last)
    return KEEPS.format(last=found.last)


def _focus_map(found: Length) -> go.Figure:
    heads = list(found.focus.itertuples())
    words = [_fate(found, row) for row in heads]
    lost = [LOSES.format(n=n) for n in sorted(found.focus["loses_focus_at"].dropna().unique())]
    colours = {
        NO_FOCUS.format(start=found.start): FAINT,
        **dict(zip(lost, drawn.shades(drawn.LATE_TO_EARLY, len(lost))[::-1], strict=True)),
        LATER.format(last=found.last): SKY,
        KEEPS.format(last=found.last): BLUE,
    }
    hover = [
        f"<b>{word}</b><br>score gap {row.score_gap:.2f}, critical length {critical_length(row.score_gap)}"
        for row, word in zip(heads, words, strict=True)
    ]
    table = found.focus[["layer", "head"]].assign(word=words, hover=hover)
    text = (
        f"A head has focus if its mean top weight is at least {FOCUS:g} and it attends to at most {SHARE:g} of the "
        "tokens. Lengths are in tokens."
    )
    if LATER.format(last=found.last) in words:
        known = "shown in the next picture" if found.start < found.last else "not known"
        text += (
            f" Forecasts name heads that lose their focus with a probability of at least {RISK:g}, and go up to "
            f"{found.forecasts['n'].max()} tokens; how good forecasts are is {known}."
        )
    return figures.word_map(
        "Which heads lose their focus", text, table, {word: colours[word] for word in colours if word in words}
    )


def critical_length(gap: float) -> str:
    r"""e^G in words, with two digits: the number of far tokens that together outweigh the top token.

    >>> critical_length(7.1)
    'about 1\u202f200 tokens'
    """
    size = math.exp(gap)
    return (
        f"more than {count(FARTHEST)} tokens" if size > FARTHEST else f"about {count(int(float(f'{size:.2g}')))} tokens"
    )


def _forecasts(found: Length) -> Iterator[go.Figure]:
    table = found.forecasts
    own = table[(table["made_from"] == found.start) & (table["statistic"] == "entropy")].dropna(subset=["measured"])
    if not len(own):
        return
    judged = [piece.sentence for piece in found.advice() if piece.topic == "forecasts"]
    text = (
        f"Entropy of each head, forecast from texts of {found.start} tokens before longer texts were measured. Bars "
        f"are meant to contain {100 * COVERAGE:.0f} % of the heads."
    )
    if own["n"].nunique() > 1:
        text += " A click on a length in the legend shows it."
    yield figures.forecast_points("Forecast against measurement", " ".join([text, *judged]), own, "nats")


def _causes(found: Length) -> Iterator[go.Figure]:
    table = found.causes[found.causes["n"] == found.top]
    cosine, entropy = (table[table["quantity"] == name] for name in ("document_cosine", "entropy"))
    if not len(table):
        return
    known = found.documents.set_index("n")["document_cosine"]
    yield figures.waterfall(
        "Cosine between documents",
        f"Mean cosine between two documents of {found.start} and of {found.top} tokens. {_meanings(cosine)}",
        _steps(found, cosine, float(known[found.top])),
        "mean cosine",
    )
    heads = found.heads[(found.heads["source"] == "prefix") & (found.heads["n"] == found.top)]
    yield figures.waterfall(
        "Entropy of attention",
        f"Mean over heads, from pieces of {found.start} tokens to whole documents. {_meanings(entropy)}",
        _steps(found, entropy, float(heads["entropy"].mean())),
        "nats",
    )


def _meanings(parts: pd.DataFrame) -> str:
    known = PARTS[parts["quantity"].iloc[0]]
    return " ".join(f"{name.capitalize()}: {known[name]}." for name in parts["part"])


def _steps(found: Length, parts: pd.DataFrame, after: float) -> pd.DataFrame:
    """The bars of a waterfall that ends at the value `after`, see `figures.waterfall`."""
    before = after - float(parts["change"].sum())
    base = before + parts["change"].cumsum() - parts["change"]
    bars = pd.DataFrame(
        {"part": parts["part"], "base": base, "change": parts["change"], "low": parts["change_low"]}
        | {"high": parts["change_high"]}
    )
    ends = [
        pd.DataFrame([{"part": f"{n} tokens", "base": 0.0, "change": value, "low": math.nan, "high": math.nan}])
        for n, value in ((found.start, before), (found.top, after))
    ]
    return pd.concat([ends[0], bars, ends[1]], ignore_index=True)


def _by_length(found: Length) -> dict[str, tuple[pd.DataFrame, str]]:
    """The table of depths of each length, of glued texts where documents are too short, and a colour, by its name."""
    known = found.depths
    shades = drawn.shades(drawn.LIGHT_TO_DARK, len(lengths(found)))
    tables = {}
    for n, shade in zip(lengths(found), shades, strict=True):
        source = "prefix" if n <= found.top else "glued"
        name = f"{n} tokens" if source == "prefix" else f"{n} tokens, {drawn.GLUED}"
        tables[name] = known[(known["n"] == n) & (known["source"] == source)], shade
    return tables


def _depths(found: Length) -> Iterator[go.Figure]:
    tables = _by_length(found)
    for column, (title, text) in DEPTHS.items():
        yield figures.depth_by_length(title, text, column, tables)


def _phase_rows(found: Length) -> list[dict[str, Any]]:
    """The phase at each depth, a row for each length with the colour of its curves."""
    return [
        {"name": name, "colour": colour, "phases": list(table["phase"])}
        for name, (table, colour) in _by_length(found).items()
    ]


def _two(value: float) -> str:
    return "–" if math.isnan(value) else decimals(value, 2)


def _interval(row: Any, name: str, plus: bool = False) -> str:
    """A number with its interval, with plus signs if wanted; a dash if it does not apply."""
    values = [float(getattr(row, name + end)) for end in ("", "_low", "_high")]
    if math.isnan(values[0]):
        return "–"
    value, low, high = (signed(x, 2) if plus else _two(x) for x in values)
    return f"{value} ({low} to {high})"


def _tokens(n: float) -> str:
    return "–" if math.isnan(n) else f"{n:.0f}"


def _retrieval_table(found: Length) -> dict[str, Any]:
    columns = [
        "tokens",
        "way",
        "chunk",
        "MRR",
        *(f"recall@{k}" for k in CUTOFFS),
        "gain in MRR",
        "over whole documents of",
    ]
    rows = [
        [
            _tokens(row.n),
            WAYS.get(row.way, row.way),
            _tokens(row.chunk),
            _interval(row, "mrr"),
            *(_two(getattr(row, f"recall_{k}")) for k in CUTOFFS),
            _interval(row, "mrr_gain", plus=True),
            _tokens(row.against),
        ]
        for row in found.retrieval.itertuples()
    ]
    return {"columns": columns, "rows": rows}


def _head_table(found: Length) -> dict[str, Any]:
    parts = [name for name in ATTENTION if not found.focus[part_column(name)].isna().all()]
    columns = [
        "layer",
        "head",
        "focus",
        "forecast to lose it at",
        "later",
        "score gap",
        "critical length",
        "gap growth",
    ]
    rows = [
        [
            str(row.layer),
            str(row.head),
            _fate(found, row),
            _tokens(row.forecast_to_lose_at),
            _tokens(row.forecast_to_lose_later),
            _two(row.score_gap),
            critical_length(row.score_gap) if row.focus_at_start else "–",
            _two(row.gap_growth),
            *(signed(getattr(row, part_column(name)), 2) for name in parts),
        ]
        for row in found.focus.itertuples()
    ]
    return {"columns": [*columns, *(f"entropy: {name}" for name in parts)], "rows": rows}


def _skill_table(found: Length) -> dict[str, Any]:
    """Errors of all methods at the last length, and the skill of the forecast against each, by statistic."""
    table = found.skill[found.skill["n"] == found.last]
    known = {(row.method, row.statistic): row for row in table.itertuples()}
    rows = []
    for method in METHODS:
        cells = [_skill_cell(known.get((method, statistic))) for statistic in STATISTICS]
        if any(cells):
            rows.append({"method": method, "cells": cells})
    return {"columns": [name.replace("_", " ") for name in STATISTICS], "rows": rows}


def _skill_cell(row: Any) -> dict[str, Any] | None:
    """The error of a method, the skill of the forecast against it, and whether the forecast is better."""
    if row is None:
        return None
    cell: dict[str, Any] = {"error": f"{row.error:.3f}", "skill": "", "better": None}
    if row.method != FORECAST and not math.isnan(row.skill):
        decided = row.skill_low > 0 or row.skill_high < 0
        cell |= {"skill": _interval(row, "skill"), "better": bool(row.skill_low > 0) if decided else None}
    return cell


def _making(found: Length) -> dict[str, list[tuple[str, str]]]:
    """The encoder, the texts and the versions, for the last section of the report."""
    counts = found.counts
    encoder = [("model", found.name), ("family", found.family), ("limit", f"{count(found.limit)} tokens")]
    encoder += [("pooling", found.pooling), ("SHA-256 of the weights", found.fingerprint)]
    if found.reference is not None:
        encoder.append(("reference", found.reference.name))
    documents = f"{count(counts['documents'])} of {found.top} tokens or more, at most {MOST}"
    texts = [("texts read", count(counts["texts"])), ("documents", documents)]
    if counts["glued"]:
        texts.append(("glued texts", f"{count(counts['glued'])} of {found.last} tokens"))
    texts += [
        ("lengths", ", ".join(map(str, lengths(found)))),
        ("forecasts from n₀", f"{found.start} tokens"),
        ("texts cut", count(counts["cut"])),
        ("texts without a word", count(counts["skipped"])),
    ]
    return {
        "Encoder": encoder,
        "Texts": texts,
        "Versions": [(str(key), str(value)) for key, value in found.made.items()],
    }
