"""The history of a training as one HTML file that needs no network."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from metastable import figures
from metastable.encoder.history.collapse import LEFT
from metastable.encoder.history.record import CHANGES, COLUMNS, LONGEST, SAMPLE
from metastable.figures.look import number
from metastable.report.page import figure_block, render_page, short_name, target_of, write_page

if TYPE_CHECKING:
    from metastable.encoder.history.history import History

PANELS = dict(zip(CHANGES, ("attention: query, key, value and output", "perceptron"), strict=True))
CURVES = {
    "text_cosine": ("Mean cosine of two texts", "1 if all texts point in one direction: a collapse.", "depth"),
    "hidden_cosine": ("Mean cosine of hidden states", "1 if all tokens of a text point in one direction.", "depth"),
    "effective_rank": ("Effective rank of the tokens", "The number of directions that a text uses; 1 is one.", "depth"),
    "entropy": ("Attention entropy", "1 if every token gets the same weight, 0 if one gets it all.", "layer"),
    "beta": ("Effective inverse temperature β", "From the weights alone. A larger β: sharper attention.", "layer"),
    "value_rank": ("Effective rank of V", "From the weights alone, median over the heads of a layer.", "layer"),
}
"""The columns that are drawn over the steps: title, caption and what a row is called."""
DRAWN = 200
"""At most this many records are drawn: a plot has not many more pixels, and a page of thousands is slow."""
LAYER: tuple[str, ...] = (*CHANGES, "beta", "gap", "rate", "value_norm", "value_rank", "entropy", "hidden_cosine")
LAYER += ("effective_rank", "text_cosine")
"""The columns of the table of layers."""


def write(history: History, path: str | Path) -> Path:
    """Write the page to `path`, completely or not at all. Missing folders are made."""
    return write_page(target_of(path), render(history))


def render(history: History) -> str:
    """The page as HTML."""
    steps, warned = history.steps, [begun for begun, _ in history.phases]
    places = _drawn(len(steps))
    table = history.part(places)
    layers = table[table[CHANGES[0]].notna()]
    curves = [
        figure_block(column, figures.step_curves(table, column, title, caption, warned, place))
        for column, (title, caption, place) in CURVES.items()
    ]
    return render_page(
        "history.html.j2",
        name=short_name(history.name),
        family=history.family,
        steps=steps,
        apart=_apart(steps),
        drawn=len(places),
        sentences=history.sentences(),
        warnings=[_lasted(*phase) for phase in history.phases],
        moved=figure_block("movement", figures.movement_map(layers, PANELS)),
        curves=curves,
        columns=["depth", *LAYER],
        rows=_rows(history),
        glossary={name: COLUMNS[name] for name in ("depth", *LAYER)},
        left=f"{100 * LEFT:g}",
        longest=LONGEST,
        sample=f"{SAMPLE:,}".replace(",", " "),
    )


def _drawn(count: int) -> list[int]:
    """The places of the records that are drawn: all, or `DRAWN` of them at even distances."""
    if count <= DRAWN:
        return list(range(count))
    return [round(place * (count - 1) / (DRAWN - 1)) for place in range(DRAWN)]


def _apart(steps: list[int]) -> str:
    """How many steps lie between two records, in words."""
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    least, most = min(gaps, default=0), max(gaps, default=0)
    return f"one every {most} steps" if least == most else f"{least} to {most} steps apart"


def _lasted(begun: int, gone: int | None) -> str:
    return f"A collapse began at step {begun} and " + ("lasts." if gone is None else f"was gone at step {gone}.")


def _rows(history: History) -> list[list[tuple[str, str]]]:
    """The last record, one row a depth: each value, and below it that of the first record."""
    first, last = (history.part([place]).set_index("depth") for place in (0, -1))
    found = []
    for depth, row in last.iterrows():
        cells = [(str(depth), "")]
        for name in LAYER:
            if name in CHANGES:
                cells.append(("–" if row[name] != row[name] else f"{number(100 * row[name])} %", ""))
            else:
                before = number(first.loc[depth, name])
                cells.append((number(row[name]), f"from {before}" if before != "–" and len(history.steps) > 1 else ""))
        found.append(cells)
    return found
