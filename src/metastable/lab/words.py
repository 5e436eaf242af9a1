"""The text of the page: what the theory says about a head, and what a run did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from dash import html

from metastable.encoder import trained_head
from metastable.encoder.columns import CHECKS, meaning
from metastable.encoder.report import ASSUMPTIONS, head_sentence
from metastable.figures.distance import DistanceCurves
from metastable.figures.heads import written
from metastable.figures.look import number
from metastable.lab.page import label_of
from metastable.report.sentences import KeyNumber, afterwards, assumptions, headline, key_numbers, rate
from metastable.run.run import Run
from metastable.theory import Theory
from metastable.theory.block import BlockTheory

if TYPE_CHECKING:
    from metastable.encoder.audit import Audit

MOST_EIGENVALUES = 5
"""The number of eigenvalues that are listed."""
PHASES = (
    "The concentration phase ends when the distance first comes within a factor 1.5 of its minimum over the run. The "
    "plateau ends when the distance exceeds 1.5 times this minimum. The terminal phase follows. Each run has its own "
    "minimum, so the marks of two runs lie at different heights."
)
SIGNS = {"holds": "✓", "doubtful": "?", "fails": "✗"}
HEAD_NUMBERS = (
    "beta",
    "leading",
    "frequency",
    "gap",
    "rate",
    "layers_to_concentrate",
    "alignment",
    "value_leading",
    "nonnormality",
    "entropy",
    "special_share",
    "update_length",
)
"""Columns of an audit that are shown for one head."""


def of_runs(
    runs: Sequence[Run], measured: Sequence[DistanceCurves], names: Sequence[str], captions: Sequence[str]
) -> list[Any]:
    """The text below the figures. Of an unfinished run (`measured` is empty): what the theory says about the head."""
    theory = runs[0].theory()
    pairs = list(zip(runs, measured, names, strict=False))
    found: list[Any] = []
    for run, m, name in pairs:
        which = [html.Span(f"{name}: ", className="which")] if len(runs) > 1 else []
        found.append(html.H2([*which, headline(run, m)], className="headline"))
        trained = trained_head.sentence(run) if "address" in run.cloud.law else ""
        found += [html.P(text) for text in (afterwards(run, m), _early_departure(run, m), trained) if text]
    predicted = theory_numbers(theory) if isinstance(theory, Theory) else block_numbers(theory)
    what = "What the theory says about this head" if runs[0].block.plain else "What is known about this block"
    found += [html.P(assumptions(theory.verdict)), _numbers(predicted, what)]
    for run, m, name in pairs:
        title = f"Numbers of the run, {name}" if len(runs) > 1 else "Numbers of the run"
        said = {one.name for one in predicted}
        found.append(_numbers([one for one in key_numbers(run, m) if one.name not in said], title))
    checks = [(c.name, c.status, number(c.number), c.sentence) for c in theory.verdict.checks]
    heading = ("assumption", "status", "number", "meaning")
    found += [html.H3("Which assumptions hold"), _table(checks, heading), html.H3("How to read the figures")]
    return [*found, html.P(PHASES), *(html.P(text) for text in captions)]


def of_audit(audit: Audit) -> str:
    """What the audit checked, and how its random twin differs."""
    if audit.measured is None:
        return "Give texts to see what the heads do, and not only what their weights say."
    checks = audit.checks()
    others = [check for check in checks if check.status != "ok"]
    found = f"{len(checks) - len(others)} of {len(checks)} checks are ok on {audit.measured.counts.texts} texts."
    found = " ".join([found, *(f"{check.name.capitalize()}: {check.sentence}." for check in others)])
    if audit.twin is None:
        return found
    own, other = (number(float(table["hidden_cosine"].iloc[-1])) for table in (audit.layers, audit.twin.layers))
    return f"{found} Mean cosine at the last depth: {own}; with random weights {other}."


def of_head(row: pd.Series, layers: int, settings: dict[str, str]) -> list[Any]:
    """The text about one head of an audit. The button carries the settings of the simulation that it starts."""
    data: dict[str, Any] = {f"data-{name}": text for name, text in settings.items()}
    facts = [KeyNumber(label_of(name), written(row[name]), meaning(name)[0]) for name in HEAD_NUMBERS if name in row]
    checks = [
        (name, row[column], ASSUMPTIONS[name])
        for name, column in CHECKS.items()
        if column in row and row[column] in SIGNS
    ]
    return [
        html.H2(f"Layer {int(row['layer'])}, head {int(row['head'])}", id="head-title", className="headline"),
        html.P(head_sentence(row, layers)),
        html.Button("Follow in the laboratory", id="follow", type="button", className="primary", **data),
        _numbers(facts, "Numbers of the head"),
        html.H3("Which assumptions hold"),
        _table(checks),
    ]


def of_attention(attends: Sequence[tuple[str, str, float]]) -> Any:
    """What the tokens of a text attend to.

    attends : (token, the token that it attends to most, share of its attention)
    """
    if not attends:
        return html.P("This model has no tokenizer, so it reads no text.")
    found = [html.Li([f"{token} → ", html.Strong(most), f" {100 * share:.0f} %"]) for token, most, share in attends]
    return html.Ul(found, className="attends")


def _early_departure(run: Run, measured: DistanceCurves) -> str:
    """Why these tokens leave the plateau earlier than the theory's law, if they do."""
    if measured.phases is None or measured.phases.terminal is None or not run.cloud.equal_weights:
        return ""
    if math.isinf(run.beta):
        return (
            "At β = ∞ each token attends to the single token with the largest score. The theory at zero temperature "
            "is about a law with tokens everywhere; N tokens only approximate it. The Laplace term is the difference, "
            "and it is why these tokens leave the plateau."
        )
    return (
        "Tokens of equal weight leave the plateau earlier than infinitely many tokens would: soon no token is left "
        "near the boundary between the two sides. With the initial law “graded weights” the plateau lasts longer."
    )


def theory_numbers(theory: Theory) -> list[KeyNumber]:
    """Eigenvalues, gap and rates of a head."""
    limit = (
        "one dominant direction: sharp attention sends tokens to two points, +e and −e"
        if theory.dim == 1
        else f"the dominant space has dimension {theory.dim}: sharp attention sends tokens to its unit sphere"
    )
    terminal = theory.verdict["terminal phase of V"].sentence
    found = [
        KeyNumber("eigenvalues of M = V Bᵀ", eigenvalues(theory.eigenvalues), theory.no_limit or limit),
        KeyNumber("eigenvalues of V", eigenvalues(theory.terminal.eigenvalues), terminal),
        KeyNumber("gap g", number(theory.gap), "λ₁ minus the real part of the next eigenvalue of M"),
    ]
    if theory.no_limit:
        return found
    escape = "tokens near the boundary between the two sides leave it like exp(κt)"
    return [
        *found,
        KeyNumber("token rate c", number(theory.rate), "a single token approaches its limit like exp(−ct)"),
        KeyNumber("law rate", number(theory.law_rate()), "the law of all tokens approaches its limit at this rate"),
        KeyNumber("escape rate κ", number(theory.escape_rate), escape),
    ]


def block_numbers(theory: BlockTheory) -> list[KeyNumber]:
    """What is known about a block that is more than one softmax head."""
    found = [KeyNumber("member", theory.block.kernel, theory.block.name)]
    if theory.terminal is not None:
        words = f"a single cluster moves by {theory.terminal.name} alone"
        found.append(
            KeyNumber(f"eigenvalues of {theory.terminal.name}", eigenvalues(theory.terminal.eigenvalues), words)
        )
    if theory.no_limit:
        return [*found, KeyNumber("limit law", "none", theory.no_limit)]
    if theory.one_head is None:
        points = theory.fixed_points
        count = f"{points.count('stable')} of {len(points)}"
        found.append(KeyNumber("stable fixed points", count, "of the field at zero temperature, where tokens go"))
    return [*found, rate(theory)]


def eigenvalues(values: torch.Tensor) -> str:
    """The first few eigenvalues in the given order. A complex pair is written once, with ±."""
    texts: list[str] = []
    for value in values.tolist():
        z = complex(value)
        real = abs(z.imag) <= 1e-9 * max(abs(z), 1e-300)
        if real or z.imag > 0:
            texts.append(number(z.real) if real else f"{number(z.real)} ± {number(z.imag)}i")
    more = len(texts) - MOST_EIGENVALUES
    return ", ".join(texts[:MOST_EIGENVALUES]) + (f" and {more} more" if more > 0 else "")


def _numbers(found: Sequence[KeyNumber], title: str) -> html.Section:
    rows = [html.Div([html.Dt(n.name), html.Dd(n.value, className="value"), html.Dd(n.meaning)]) for n in found]
    return html.Section([html.H3(title), html.Dl(rows, className="numbers")])


def _table(checks: Sequence[tuple[str, ...]], heading: Sequence[str] = ()) -> html.Table:
    """Rows of (assumption, status, …) with a sign and a colour for the status."""
    rows = [
        html.Tr(
            [
                html.Th(name, scope="row"),
                html.Td(f"{SIGNS[status]} {status}", className=f"status {status}"),
                *(html.Td(text) for text in rest),
            ]
        )
        for name, status, *rest in checks
    ]
    head = [html.Thead(html.Tr([html.Th(text) for text in heading]))] if heading else []
    return html.Table([*head, html.Tbody(rows)], className="checks")
