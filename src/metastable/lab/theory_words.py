"""What the theory says of the head and what the run did, in the words of the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from dash import html

from metastable.encoder import trained_head as following
from metastable.figures.distance import DistanceCurves
from metastable.figures.look import number
from metastable.report.sentences import KeyNumber, afterwards, assumptions, headline, key_numbers
from metastable.run.run import Run
from metastable.theory import Theory

MOST_EIGENVALUES = 5
PHASES = (
    "Concentration lasts until the distance first comes within a factor 1.5 of the least that this run reaches; the "
    "plateau until it exceeds 1.5 times that least; what follows is the terminal phase. The factor counts from each "
    "run's own least distance, so the marks of two runs lie at different heights."
)
SIGNS = {"holds": "✓", "doubtful": "?", "fails": "✗"}


def words(
    runs: Sequence[Run], measured: Sequence[DistanceCurves], names: Sequence[str], captions: Sequence[str]
) -> list[Any]:
    """What is written below the figures: of a run that is not finished, what the theory says of its head."""
    run = runs[0]
    found: list[Any] = []
    for i, (one, m) in enumerate(zip(runs, measured, strict=False)):
        place = [html.Span(f"{names[i]}: ", className="which")] if len(runs) > 1 else []
        found.append(html.H2([*place, headline(one, m)], className="headline"))
        found += [html.P(text) for text in (afterwards(one, m), _early(one, m)) if text]
        found.append(html.P(following.sentence(one)) if "address" in one.cloud.law else None)
    found.append(html.P(assumptions(run.theory().verdict)))
    predicted = of_the_spectra(run.theory())
    said = {one.name for one in predicted}
    found.append(_numbers(predicted, "What the theory says of this head"))
    for i, (one, m) in enumerate(zip(runs, measured, strict=False)):
        title = f"Numbers of the run, {names[i]}" if len(runs) > 1 else "Numbers of the run"
        found.append(_numbers([n for n in key_numbers(one, m) if n.name not in said], title))
    found += [html.H3("Which assumptions hold"), _checks(run.theory()), html.H3("How to read the figures")]
    return [part for part in [*found, html.P(PHASES), *(html.P(text) for text in captions)] if part is not None]


def _early(run: Run, measured: DistanceCurves) -> str:
    """Why these tokens leave sooner than the theory's law, if they do."""
    if measured.phases is None or measured.phases.terminal is None or not run.cloud.equal_weights:
        return ""
    if math.isinf(run.beta):
        return (
            "At β = ∞ each token looks at the one token that fits best. With finitely many that is not yet the zero "
            "temperature of the theory, whose law has tokens everywhere: hence the Laplace term, and hence they leave."
        )
    return (
        "Tokens of equal weight leave sooner than infinitely many would, because soon none is left near the boundary "
        "between the sides; with the starting law “graded” the plateau lasts longer."
    )


def of_the_spectra(theory: Theory) -> list[KeyNumber]:
    """Eigenvalues, gap and rates, which need no run."""
    limit = theory.no_limit or _limit(theory)
    found = [
        KeyNumber("eigenvalues of M = V Bᵀ", eigenvalues(theory.eigenvalues), limit),
        KeyNumber(
            "eigenvalues of V", eigenvalues(theory.terminal.eigenvalues), theory.verdict["terminal phase of V"].sentence
        ),
        KeyNumber(
            "gap g", number(theory.gap), "λ₁ less the real part of the next: how far ahead the dominant direction is"
        ),
    ]
    if theory.no_limit:
        return found
    return [
        *found,
        KeyNumber("token rate c", number(theory.rate), "a single token approaches its limit like exp(−ct)"),
        KeyNumber(
            "law rate", number(theory.law_rate()), "the whole law approaches it in W₂ like exp of minus this times t"
        ),
        KeyNumber(
            "escape rate κ",
            number(theory.escape_rate),
            "tokens that start near the boundary between the sides leave it like exp(κt)",
        ),
    ]


def _limit(theory: Theory) -> str:
    if theory.dim == 1:
        return "one direction is dominant: sharp attention sends tokens to two points, +e and −e"
    return f"the dominant space has dimension {theory.dim}: sharp attention sends tokens to its unit sphere"


def eigenvalues(values: torch.Tensor) -> str:
    """The first few, by decreasing real part; of a pair one with ±."""
    written: list[str] = []
    for value in values.tolist():
        z = complex(value)
        small = abs(z.imag) <= 1e-9 * max(abs(z), 1e-300)
        if z.imag < 0 and not small:
            continue
        written.append(number(z.real) if small else f"{number(z.real)} ± {number(z.imag)}i")
    more = len(written) - MOST_EIGENVALUES
    return ", ".join(written[:MOST_EIGENVALUES]) + (f" and {more} more" if more > 0 else "")


def _numbers(found: Sequence[KeyNumber], title: str) -> html.Section:
    rows = [html.Div([html.Dt(n.name), html.Dd(n.value, className="value"), html.Dd(n.meaning)]) for n in found]
    return html.Section([html.H3(title), html.Dl(rows, className="numbers")])


def _checks(theory: Theory) -> html.Table:
    names = html.Thead(html.Tr([html.Th(name) for name in ("assumption", "status", "number", "what it says")]))
    rows = [
        html.Tr(
            [
                html.Th(check.name, scope="row"),
                html.Td(f"{SIGNS[check.status]} {check.status}", className=f"status {check.status}"),
                html.Td(number(check.number)),
                html.Td(check.sentence),
            ]
        )
        for check in theory.verdict.checks
    ]
    return html.Table([names, html.Tbody(rows)], className="checks")
