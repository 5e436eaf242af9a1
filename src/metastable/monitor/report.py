"""The page of a watched stream as one HTML file that needs no network."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from metastable import figures
from metastable.figures.look import number
from metastable.figures.monitor import Timeline
from metastable.monitor.change_point import ChangePoint
from metastable.monitor.groups import groups
from metastable.monitor.watched import KEPT, NO_LAYER, REPORT, Watched, WatchedFile
from metastable.report.page import figure_block, render_page, short_name, target_of, write_page

# Characters of a text on the page.
SHOWN = 600
# Strange texts that are shown at once; the others are behind a click.
FIRST = 6
# Characters of an example of a group.
EXAMPLE = 160

NO_TEXTS: Mapping[str, str] = {}


def write_stream(folder: str | Path, path: str | Path | None = None) -> Path:
    """Write the page of the stream in a folder of `watch`, by default as report.html in it."""
    watched = WatchedFile(folder)
    watched.update()
    return write(watched, Path(folder) / REPORT if path is None else path, watched.texts())


def write(watched: Watched, path: str | Path, texts: Mapping[str, str] = NO_TEXTS) -> Path:
    """Write the page of a stream to `path`, completely or not at all."""
    return write_page(target_of(path), render(watched, texts))


def render(watched: Watched, texts: Mapping[str, str] = NO_TEXTS) -> str:
    """The page as HTML.

    texts : the strangest texts by their sha
    """
    facts, change = watched.facts, watched.change()
    kept = NO_TEXTS if facts.private else texts
    parts = _parts(watched, change)
    return render_page(
        "watch.html.j2",
        encoder=None if facts.encoder is None else short_name(facts.encoder),
        facts=facts,
        headline=headline(watched, change),
        notes=_notes(watched, change),
        promise=promise(facts.alpha),
        numbers=tiles(watched, change),
        timeline=figure_block("timeline", draw(watched, change)) if watched.scored else None,
        depths=figure_block("depths", figures.first_depths(_depths(watched, parts))) if watched.strange.any() else None,
        strangest=[_shown(watched, index, kept) for index in watched.strangest(KEPT)],
        strange=int(watched.strange.sum()),
        first=FIRST,
        groups=_groups(watched, kept),
        parts=list(parts),
        comparison=_comparison(watched, parts),
        changed=change is not None,
        rejected=watched.reasons().most_common(),
    )


def promise(alpha: float) -> str:
    """What the alarm promises, in words."""
    once = f"at most 1 of {1 / alpha:.0f}" if alpha < 0.5 else f"at most {alpha:g} of all"
    return (
        f"If all texts were like the calibration texts and independent of each other, {once} such streams would ever "
        "raise the alarm, however long they are watched."
    )


def headline(watched: Watched, change: ChangePoint | None) -> str:
    """What happened, in one sentence."""
    texts, scored, strange = watched.records, watched.scored, int(watched.strange.sum())
    if not texts:
        return "The stream is empty."
    if not scored:
        one = "The only text was rejected" if texts == 1 else f"All {texts} texts were rejected"
        return f"No text could be scored: {one[0].lower()}{one[1:]}."
    if scored == 1:
        told = f"the only scored text is {'strange' if strange else 'not strange'}"
    else:
        told = (
            f"{strange} of {scored} scored texts {'is' if strange == 1 else 'are'} strange, and clean texts would give "
        )
        told += f"at most about {_expected(watched)}"
    if not watched.alarms:
        return f"No alarm: {told}."
    began = "" if change is None else f", and the change began at about text {_numbered(watched, change.begin)[0]}"
    return f"The alarm was raised at text {watched.alarms[0]}{began}: {told}."


def _expected(watched: Watched) -> str:
    expected = watched.facts.alpha * watched.scored
    return f"{expected:.2g}" if expected < 10 else f"{expected:.0f}"


def _numbered(watched: Watched, place: Any) -> tuple[int, int, int]:
    """A place among the scored texts as numbers of texts in the stream: estimate, low, high."""
    numbers = watched.columns.number
    at, low, high = (int(numbers[text - 1]) for text in (place.text, place.low, place.high))
    return at, low, high


def _notes(watched: Watched, change: ChangePoint | None) -> list[str]:
    found = []
    if watched.facts.finished is False:
        found.append(f"The stream was not read to its end: this page is about its first {watched.records} texts.")
    if watched.facts.missing:
        found.append(f"{watched.facts.missing} earlier texts are not on this page: their records were not kept.")
    if change is not None and change.end is not None:
        at, low, high = _numbered(watched, change.end)
        found.append(f"The change seems to have ended: its last text is about text {at}, between {low} and {high}.")
    if watched.alarms and change is None and watched.facts.calibration_texts is not None:
        found.append("The evidence is spread over the stream: there is no single place at which it changed.")
    if watched.damaged:
        found.append(f"{watched.damaged} lines of the records are damaged and left out.")
    return found


def tiles(watched: Watched, change: ChangePoint | None) -> dict[str, tuple[str, str]]:
    """The numbers at the top of a page: by name, the value and its meaning."""
    rejected, scored = len(watched.rejected), watched.scored
    cut = f", {watched.cut} cut to the model's limit" if watched.cut else ""
    found = {"texts": (str(watched.records), f"{scored} scored, {rejected} rejected{cut}")}
    if not scored:
        return found
    strange = int(watched.strange.sum())
    found["strange"] = (str(strange), f"p ≤ {watched.facts.alpha:g}; at most about {_expected(watched)} expected")
    log_e = watched.columns.log_e[np.isfinite(watched.columns.log_e)]
    most = f"E was at most {power(float(log_e.max()))}" if len(log_e) else ""
    at = "" if watched.facts.threshold is None else f", alarm at {power(watched.facts.threshold)}"
    found["alarm"] = (f"at text {watched.alarms[0]}" if watched.alarms else "none", most + at)
    if change is not None:
        begin, low, high = _numbered(watched, change.begin)
        found["change"] = (f"from text {begin}", f"95 % interval: {low} to {high}")
    return found


def power(log: float) -> str:
    """e^log with two or three digits; it may be too large for a float."""
    if abs(log) < 600:
        return number(math.exp(log))
    return f"10{str(round(log / math.log(10))).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def draw(watched: Watched, change: ChangePoint | None) -> Any:
    """The timeline of a stream; the hover text of a marked text is its reason."""
    columns = watched.columns
    begin = None if change is None else _numbered(watched, change.begin)
    end = None if change is None or change.end is None else _numbered(watched, change.end)
    given = Timeline(
        numbers=columns.number,
        p=columns.p_value,
        log_e=columns.log_e,
        strange=watched.strange,
        alpha=watched.facts.alpha,
        threshold=watched.facts.threshold,
        alarms=watched.alarms,
        change=begin,
        end=end,
    )
    return figures.timeline(given, [watched.row(int(index))["reason"] for index in given.marked])


Parts = dict[str, slice]
"""Parts of the scored texts, by name."""


def _parts(watched: Watched, change: ChangePoint | None) -> Parts:
    """Before and after the change, or the two halves. Empty parts are left out."""
    n = watched.scored
    if change is not None:
        begin, end = change.begin.text - 1, n if change.end is None else change.end.text
        found = {"before the change": slice(0, begin), "after the change": slice(begin, end)}
        if end < n:
            found = {"before": slice(0, begin), "during the change": slice(begin, end), "after it": slice(end, n)}
    elif n == 1:
        found = {"the stream": slice(0, 1)}
    else:
        found = {"first half": slice(0, n // 2), "second half": slice(n // 2, n)}
    return {name: own for name, own in found.items() if own.stop > own.start}


def _depths(watched: Watched, parts: Parts) -> dict[str, dict[int | None, float]]:
    found = {}
    for name, own in parts.items():
        layers = watched.columns.layer[own][watched.strange[own]]
        size = own.stop - own.start
        values, counts = np.unique(layers, return_counts=True)
        found[name] = {
            None if layer == NO_LAYER else int(layer): 100 * int(count) / size
            for layer, count in zip(values, counts, strict=True)
        }
    return found


def _comparison(watched: Watched, parts: Parts) -> list[tuple[str, list[str]]]:
    """Rows of the table that compares the parts: name, and one cell for each part."""
    columns, strange = watched.columns, watched.strange
    rows: dict[str, list[str]] = {}

    def add(name: str, cell: str) -> None:
        rows.setdefault(name, []).append(cell)

    edges = [int(columns.number[own.start]) for own in parts.values()]
    detectors = Counter(watched.names[code] for code in columns.detector[strange])
    for (_, own), first, after in zip(parts.items(), edges, [*edges[1:], math.inf], strict=False):
        size, odd = own.stop - own.start, int(strange[own].sum())
        add("texts", f"{first} to {int(columns.number[own.stop - 1])}")
        add("scored", str(size))
        add("strange", f"{odd} ({100 * odd / size:.2g} %)")
        add("median p-value", number(float(np.median(columns.p_value[own]))))
        add("median length in tokens", f"{np.median(columns.n[own]):g}")
        layers = columns.layer[own][strange[own]]
        layers = layers[layers != NO_LAYER]
        add("median first strange depth", f"{np.median(layers):g}" if len(layers) else "–")
        for name, _ in detectors.most_common():
            count = int((columns.detector[own][strange[own]] == watched.names.index(name)).sum())
            add(f"strange to {name}", str(count))
        begin = first if first != edges[0] else 0
        add("rejected", str(watched.reasons(begin, after - 1 if math.isfinite(after) else math.inf).total()))
    return list(rows.items())


@dataclass(frozen=True)
class ShownText:
    """A strange text on the page. text : with its words marked, or "" if it was not kept."""

    number: int
    name: str
    p: str
    reason: str
    text: Markup


def _shown(watched: Watched, index: int, texts: Mapping[str, str], longest: int = SHOWN) -> ShownText:
    row = watched.row(index)
    words = [str(word["text"]) for word in row.get("tokens") or () if isinstance(word, dict) and "text" in word]
    text = texts.get(str(row.get("sha")), "")
    name = "" if row.get("id") is None else str(row["id"])
    p = number(float(watched.columns.p_value[index]))
    return ShownText(int(watched.columns.number[index]), name, p, str(row["reason"]), marked(text, words, longest))


def marked(text: str, words: list[str], longest: int = SHOWN) -> Markup:
    """A text as HTML with each of the words marked where it occurs first; cut, with the marked words in view.

    >>> marked("a <b> of c", ["of"])
    Markup('a &lt;b&gt; <mark>of</mark> c')
    """
    spans = sorted(span for word in words if (span := _span(text, word.rstrip("…"))) is not None)
    first = max(0, min(spans[0][0] - longest // 4, len(text) - longest)) if spans and len(text) > longest else 0
    last = first + longest
    found, place = Markup("… " if first else ""), first
    for begin, end in spans:
        if begin >= place and end <= last:
            found += escape(text[place:begin]) + Markup("<mark>") + escape(text[begin:end]) + Markup("</mark>")
            place = end
    return found + escape(text[place:last]) + (" …" if last < len(text) else "")


def _span(text: str, word: str) -> tuple[int, int] | None:
    """Where a word occurs first: as a whole word, or else as a part of one."""
    if not word:
        return None
    found = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) or re.search(re.escape(word), text, re.IGNORECASE)
    return None if found is None else found.span()


def _groups(watched: Watched, texts: Mapping[str, str]) -> list[dict[str, Any]]:
    found = []
    for group in groups(watched):
        # An example whose text was kept, if there is one.
        rows = [_shown(watched, int(index), texts, EXAMPLE) for index in group.members[:KEPT]]
        example = next((row for row in rows if row.text), rows[0])
        found.append({"name": group.name, "sentence": group.sentence, "count": len(group.members), "example": example})
    return found
