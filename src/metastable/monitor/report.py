"""The page of a watched stream as one HTML file that needs no network."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from metastable import figures
from metastable.figures.look import number
from metastable.figures.monitor import Timeline
from metastable.monitor.change_point import ChangePoint
from metastable.monitor.exposure import called
from metastable.monitor.groups import groups
from metastable.monitor.watched import (
    KEPT,
    NO_LAYER,
    REPORT,
    WINDOWS,
    RaisedAlarm,
    Watched,
    WatchedFile,
    WatchedSlice,
    read_windows,
)
from metastable.report.page import figure_block, render_page, short_name, target_of, write_page

# Characters of a text on the page.
SHOWN = 600
# Strange texts that are shown at once; the others are behind a click.
FIRST = 6
# Characters of an example of a group.
EXAMPLE = 160
# Rows of the table of slices and of the table of alarms.
ROWS = 40
# Slices and alarms that a sentence names.
NAMED = 3
# Characters of the name of a slice.
NAME = 40

PERSISTS = {
    "yes": "The shift persists",
    "not certain": "It is not certain yet whether the shift persists",
    "no sign of it": "There is no sign yet that the shift persists",
}
"""Sentences about an episode that is going on, by `episodes.persistence`."""
PERSISTED = {
    "yes": "The shift persisted",
    "not certain": "It is not certain that the shift persisted",
    "no sign of it": "There is no sign that the shift persisted",
}
"""Sentences about an episode that has ended."""

NO_TEXTS: Mapping[str, str] = {}


def write_stream(folder: str | Path, path: str | Path | None = None) -> Path:
    """Write the page of the stream in a folder of `watch`, by default as report.html in it."""
    watched = WatchedFile(folder)
    watched.update()
    windows = read_windows(watched.path.with_name(WINDOWS))
    return write(watched, Path(folder) / REPORT if path is None else path, watched.texts(), windows)


def write(
    watched: Watched,
    path: str | Path,
    texts: Mapping[str, str] = NO_TEXTS,
    windows: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write the page of a stream to `path`, completely or not at all."""
    return write_page(target_of(path), render(watched, texts, windows))


def render(watched: Watched, texts: Mapping[str, str] = NO_TEXTS, windows: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page as HTML.

    texts : the strangest texts by their sha
    windows : the tested windows, as `windows.Window.to_dict` gives them
    """
    facts, change = watched.facts, watched.change()
    kept = NO_TEXTS if facts.private else texts
    parts = _parts(watched, change)
    return render_page(
        "watch.html.j2",
        encoder=None if facts.encoder is None else short_name(facts.encoder),
        facts=facts,
        headline=headline(watched, change),
        notes=[*_unfinished(watched), *notes(watched, change)],
        promise=promise(facts.alpha, bool(watched.slices)),
        numbers=tiles(watched, change) | _windows_tile(windows, facts.alpha),
        windows=_windows(windows),
        tested=len(windows),
        timeline=figure_block("timeline", draw(watched, change)) if watched.scored else None,
        depths=figure_block("depths", figures.p_by_depth(_depths(watched, parts), facts.alpha))
        if watched.depths
        else None,
        strangest=[_shown(watched, index, kept) for index in watched.strangest(KEPT)],
        strange=int(watched.strange.sum()),
        first=FIRST,
        groups=_groups(watched, kept),
        parts=list(parts),
        comparison=_comparison(watched, parts),
        changed=change is not None and len(parts) > 1,
        slices=_slices(watched),
        sliced=len(watched.slices),
        numbered=any(isinstance(own.value, int) for own in watched.slices),
        raised=_ends(watched.raised()) if facts.reset_after is not None else [],
        alarms=len(watched.alarms),
        rejected=watched.reasons().most_common(),
    )


def promise(alpha: float, sliced: bool = False) -> str:
    """What the alarm promises, in words. sliced : whether slices have alarms of their own"""
    once = f"at most 1 of {1 / alpha:.0f}" if alpha < 0.5 else f"at most {alpha:g} of all"
    like = "the texts of each slice" if sliced else "all texts"
    raised = "raise any alarm, that of a slice included" if sliced else "raise the alarm"
    return (
        f"If {like} were like the calibration texts and independent of each other, {once} such streams would ever "
        f"{raised}, however long they are watched."
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
        of_slices = _slice_alarms(watched)
        return f"{of_slices}, and the stream as a whole raised none." if of_slices else f"No alarm: {told}."
    began = "" if change is None else f"change began at about text {_numbered(watched, change.begin)[0]}"
    if len(watched.alarms) > 1:
        at = f"{len(watched.alarms)} alarms were raised, the first at text {watched.alarms[0]}"
        return f"{at}, and the first {began}." if began else f"{at}."
    at = f"The alarm was raised at text {watched.alarms[0]}"
    return f"{at}, and the {began}: {told}." if began else f"{at}: {told}."


def _at(texts: list[int]) -> str:
    """Where alarms were raised: at all texts, or the first and the last of many."""
    if len(texts) > 2 * NAMED:
        return f"the first at text {texts[0]} and the last at text {texts[-1]}"
    return f"at text{'s' if len(texts) > 1 else ''} {_listed([str(text) for text in texts])}"


def _listed(parts: list[str]) -> str:
    return " and ".join([*([", ".join(parts[:-1])] if parts[1:] else []), *parts[-1:]])


def _persistence(watched: Watched) -> str:
    """Whether the shift persists after the newest alarm, if the evidence starts again after alarms; else ""."""
    raised = watched.raised() if watched.facts.reset_after is not None else []
    if not raised or not raised[-1].texts:
        return ""
    newest, after = raised[-1], "the last alarm" if len(raised) > 1 else "the alarm"
    if newest.restart is not None:
        since = f"the evidence started again at text {newest.restart} and has raised no alarm since"
        if newest.persistence is None:
            return f"{since[0].upper()}{since[1:]}."
        return f"{PERSISTED[newest.persistence]} in the {_texts(newest.texts)} after {after}; {since}."
    if newest.persistence is None:
        return ""
    words = PERSISTED if newest.ended else PERSISTS
    return f"{words[newest.persistence]} in the {_texts(newest.texts)} after {after}."


def _texts(n: int) -> str:
    return "one text" if n == 1 else f"{n} texts"


def slice_name(own: WatchedSlice) -> str:
    """The name of a slice for people. Strings have quotation marks: the number 7 is not the string ‘7’."""
    if own.others:
        return "all further values"
    if own.value is None:
        return "texts without a value"
    value = str(own.value)
    shown = value if len(value) <= NAME else value[: NAME - 1] + "…"
    return f"‘{shown}’" if isinstance(own.value, str) else shown


def _slice_alarms(watched: Watched) -> str:
    """The slices that raised an alarm, as the beginning of a sentence; "" if none did."""
    raised = sorted((own for own in watched.slices if own.alarms), key=lambda own: own.alarms[0])
    if not raised:
        return ""
    by = "" if watched.facts.sliced_by is None else f" by {watched.facts.sliced_by}"
    if len(raised) == 1:
        own = raised[0]
        name = f"of {slice_name(own)}" if own.others or own.value is None else slice_name(own)
        return f"The slice {name} raised the alarm at text {own.alarms[0]}"
    first = raised[0].alarms[0]
    return f"{len(raised)} of {len(watched.slices)} slices{by} raised an alarm, the first at text {first}"


def _slices(watched: Watched) -> list[tuple[str, int, str, str]]:
    """Rows of the table of slices, those with an alarm first: name, scored texts, strange ones, alarms."""
    size = len(watched.slices)
    own = watched.columns.slice
    scored = np.bincount(own[own >= 0], minlength=size)
    strange = np.bincount(own[(own >= 0) & watched.strange], minlength=size)
    order = sorted(range(size), key=lambda i: (not watched.slices[i].alarms, -strange[i], -scored[i]))
    found = []
    for i in order[:ROWS]:
        alarms, texts = watched.slices[i].alarms, int(scored[i])
        share = f" ({_percent(strange[i] / texts)})" if texts else ""
        found.append((slice_name(watched.slices[i]), texts, f"{strange[i]}{share}", _at(alarms) if alarms else "none"))
    return found


def _windows_tile(windows: Sequence[Mapping[str, Any]], alpha: float) -> dict[str, tuple[str, str]]:
    if not windows:
        return {}
    strange = sum(bool(one["strange"]) for one in windows)
    meaning = (
        f"windows of {windows[0]['texts']} texts with p ≤ {alpha:g}; at most about {alpha * len(windows):.2g} expected"
    )
    return {"strange windows": (f"{strange} of {len(windows)}", meaning)}


def _windows(windows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, bool]]:
    """Rows of the table of windows: its lines, p, the detector, and whether it is strange.

    The strange ones in the order of the stream, or those with the smallest p-values if there are more than `ROWS`; the
    one with the smallest p-value if none is strange.
    """
    order = sorted(windows, key=lambda one: (one["p_value"], one["number"]))
    shown = [one for one in order if one["strange"]][:ROWS] or order[:1]
    return [
        (
            f"{one['first']} to {one['last']}",
            f"{one['p_value']:.2g}",
            called(str(one["detector"])),
            bool(one["strange"]),
        )
        for one in sorted(shown, key=lambda one: one["number"])
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.{2 if share < 0.995 else 3}g} %"


def _ends(raised: list[RaisedAlarm]) -> list[RaisedAlarm]:
    """The rows of the table of alarms: all, or the first and the newest."""
    return raised if len(raised) <= ROWS else [raised[0], *raised[1 - ROWS :]]


def _expected(watched: Watched) -> str:
    expected = watched.facts.alpha * watched.scored
    return f"{expected:.2g}" if expected < 10 else f"{expected:.0f}"


def _numbered(watched: Watched, place: Any) -> tuple[int, int, int]:
    """A place among the scored texts as numbers of texts in the stream: estimate, low, high."""
    numbers = watched.columns.number
    at, low, high = (int(numbers[text - 1]) for text in (place.text, place.low, place.high))
    return at, low, high


def _unfinished(watched: Watched) -> list[str]:
    if watched.facts.finished is not False:
        return []
    return [f"The stream was not read to its end: this page is about its first {watched.records} texts."]


def notes(watched: Watched, change: ChangePoint | None) -> list[str]:
    """Warnings of dependence, and what limits the meaning of the numbers."""
    found = []
    if watched.facts.missing:
        found.append(f"{watched.facts.missing} earlier texts are not on this page: their records were not kept.")
    found += [f"Warning: {words}" for words in watched.facts.dependence]
    if change is not None and change.end is not None:
        at, low, high = _numbered(watched, change.end)
        which = "first change" if len(watched.alarms) > 1 else "change"
        found.append(f"The {which} seems to have ended: its last text is about text {at}, between {low} and {high}.")
    if change is not None and watched.considered < watched.scored:
        last = int(watched.columns.number[watched.considered - 1])
        found.append(
            f"The stream raised {len(watched.alarms)} alarms. The change on this page is the first one: it is "
            f"estimated from the texts up to text {last}, where the episode of the first alarm ends."
        )
    if persistence := _persistence(watched):
        found.append(persistence)
    if watched.alarms and change is None and watched.facts.calibration_texts is not None:
        found.append("The evidence is spread over the stream: there is no single place at which it changed.")
    restarts = sum(one.restart is not None for one in watched.raised())
    if restarts:
        when = f" {watched.facts.reset_after} texts after each alarm" if watched.facts.reset_after else ""
        found.append(
            f"The evidence E drops {'once' if restarts == 1 else f'{restarts} times'} because a new episode begins"
            f"{when}: E starts again from 1, so that a new alarm can be raised. A drop does not mean that the stream "
            "is clean again."
        )
    if watched.damaged:
        lines = "1 line of the records is" if watched.damaged == 1 else f"{watched.damaged} lines of the records are"
        found.append(f"{lines} damaged and left out.")
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
    most = ""
    if len(log_e):
        # E starts with 1. These are the words of `watch` on a terminal.
        now, peak = power(float(log_e[-1])), power(max(0.0, float(log_e.max())))
        most = f"E = {now}" + (f", at most {peak}" if peak != now else "")
    at = "" if watched.facts.threshold is None else f"; alarm at {power(watched.facts.threshold)}"
    if len(watched.alarms) > 1:
        found["alarms"] = (str(len(watched.alarms)), f"{_at(watched.alarms)}; {most}{at}")
    else:
        name = "alarm over all texts" if watched.slices else "alarm"
        found[name] = (_at(watched.alarms) if watched.alarms else "none", most + at)
    newest = watched.raised()[-1:]
    if newest and newest[0].persistence is not None:
        verb = "is" if newest[0].strange == 1 else "are"
        meaning = (
            f"of the {_texts(newest[0].texts)} after the {'last ' * (len(watched.alarms) > 1)}alarm {verb} strange"
        )
        name = "shift persisted" if newest[0].ended else "shift persists"
        found[name] = (newest[0].persistence, f"{newest[0].strange} {meaning}")
    if watched.slices:
        raised = [own for own in watched.slices if own.alarms]
        named = _listed([f"{slice_name(own)} {_at(own.alarms)}" for own in raised[:NAMED]])
        meaning = named + (f" and {len(raised) - NAMED} more" if len(raised) > NAMED else "")
        found["slices with an alarm"] = (f"{len(raised)} of {len(watched.slices)}", meaning)
    if change is not None:
        begin, low, high = _numbered(watched, change.begin)
        name = "first change" if len(watched.alarms) > 1 else "change"
        found[name] = (f"from text {begin}", f"95 % interval: {low} to {high}")
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
        slice_alarms=sorted(number for own in watched.slices for number in own.alarms),
        restarts=[one.restart for one in watched.raised() if one.restart is not None],
    )
    return figures.timeline(given, [watched.row(int(index))["reason"] for index in given.marked])


Parts = dict[str, slice]
"""Parts of the scored texts, by name."""


def _parts(watched: Watched, change: ChangePoint | None) -> Parts:
    """Before and after the change, or the two halves. Empty parts are left out."""
    n = watched.scored
    if change is not None:
        begin, end = change.begin.text - 1, watched.considered if change.end is None else change.end.text
        found = {"before the change": slice(0, begin), "after the change": slice(begin, end)}
        if len(watched.alarms) > 1:
            found = {"before": slice(0, begin), "the first change": slice(begin, end), "later texts": slice(end, n)}
        elif end < n:
            found = {"before": slice(0, begin), "during the change": slice(begin, end), "after it": slice(end, n)}
        elif not begin:
            found = {"the whole stream": slice(0, n)}
    elif n == 1:
        found = {"the stream": slice(0, 1)}
    else:
        found = {"first half": slice(0, n // 2), "second half": slice(n // 2, n)}
    return {name: own for name, own in found.items() if own.stop > own.start}


def _depths(watched: Watched, parts: Parts) -> dict[str, dict[int, float]]:
    """The median p-value at each depth: of each part, and of the strange texts."""
    chosen = {name: watched.p_by_depth[own] for name, own in parts.items()}
    chosen |= {"strange texts": watched.p_by_depth[watched.strange]} if watched.strange.any() else {}
    known = {name: p[~np.isnan(p).any(axis=1)] for name, p in chosen.items()}
    medians = {name: np.median(p, axis=0) for name, p in known.items() if len(p)}
    return {name: dict(zip(watched.depths, p.tolist(), strict=True)) for name, p in medians.items()}


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
        last = int(columns.number[own.stop - 1])
        add("texts", f"{first} to {last}" if last > first else str(first))
        add("scored", str(size))
        add("strange", f"{odd} ({_percent(odd / size)})")
        add("median p-value", number(float(np.median(columns.p_value[own]))))
        add("median length in tokens", f"{np.median(columns.n[own]):g}")
        layers = columns.layer[own][strange[own]]
        layers = layers[layers != NO_LAYER]
        add("median first strange depth", f"{np.median(layers):g}" if len(layers) else "–")
        for name, _ in detectors.most_common():
            count = int((columns.detector[own][strange[own]] == watched.names.index(name)).sum())
            add(f"strange to {called(name)}", str(count))
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
