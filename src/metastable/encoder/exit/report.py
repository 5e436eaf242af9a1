"""The exit layer for a task as one HTML file that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from metastable.encoder.exit.labelled import FOLDS
from metastable.encoder.exit.result import NAMES, signed, three
from metastable.encoder.exit.scores import RESAMPLES, SCORES, WIDER
from metastable.figures import look
from metastable.report.page import figure_block, target_of, write_page

if TYPE_CHECKING:
    from metastable.encoder.exit.result import Exit

HEIGHT = 340
"""Height of the picture, in pixels."""
TEMPLATE = """{% extends "page.html.j2" %}

{% block title %}metastable exit: {{ found.name }}{% endblock %}

{% block content %}
<header>
  <p class="eyebrow whole">metastable exit report: <strong id="model">{{ found.name }}</strong>,
  {{ found.family }}, {{ found.depth }} layers, {{ found.pooling }} pooling; {{ found.counts.texts }} labelled texts
  {%- if found.counts.documents %} of {{ found.counts.documents }} documents{% endif %}</p>
  <h1 id="headline">{{ sentences[0] }}</h1>
</header>
<ul class="found" id="found">{% for sentence in sentences[1:] %}<li>{{ sentence }}</li>{% endfor %}</ul>
<figure>
  <h2>{{ block.title }}</h2>
  <div class="plot" role="img" aria-label="{{ block.caption }}">{{ block.html }}</div>
  <figcaption>{{ block.caption }}</figcaption>
</figure>
<h2>All depths</h2>
<div class="wide" tabindex="0">
<table class="data" id="depths">
  <thead><tr>{% for name in columns %}<th>{{ name }}</th>{% endfor %}</tr></thead>
  <tbody>{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody>
</table>
</div>
<h2>How it was measured</h2>
<p>Every text was read once by the whole encoder. At each depth a linear probe predicts the labels from the pooled
hidden states. Texts were dealt into {{ folds }} folds
{%- if found.counts.documents %}; texts of one document are in the same fold{% endif %}.
The penalty of a probe and the layer were chosen without the fold that is predicted, so that the scores are those of new
texts. Intervals are from {{ resamples }} resamples of
{% if found.counts.documents %}documents{% else %}texts{% endif %}; differences to full depth are taken on the same
resamples.</p>
<div class="making">
{% for name, lines in making.items() %}
  <div>
    <h3>{{ name }}</h3>
    <table>{% for key, value in lines.items() %}
      <tr><th scope="row">{{ key }}</th><td>{{ value }}</td></tr>
    {% endfor %}</table>
  </div>
{% endfor %}
</div>
<h2>Words used here</h2>
<dl class="glossary">
  <dt>Depth, layer k</dt><dd>The embedding at depth k is what an encoder with only the first k layers returns.
  Depth 0 has no layer: token embeddings only. Full depth has all {{ found.depth }} layers.</dd>
  <dt>Rule</dt><dd>The earliest layer whose score on inner folds is at most {{ loss }} below the best layer's.</dd>
{% if found.task == "classes" %}
  <dt>Accuracy</dt><dd>The share of texts whose class is predicted.
  Without a model, the most frequent class gives {{ baseline }}.</dd>
  <dt>Macro-F₁</dt><dd>The mean over classes of F₁, the harmonic mean of precision and recall.
  Every class counts the same.</dd>
{% else %}
  <dt>Spearman correlation</dt><dd>The correlation of the ranks of labels and predictions:
  1 for the same order, 0 for none.</dd>
  <dt>R²</dt><dd>The share of the variance of the labels that is predicted.</dd>
{% endif %}
  <dt>95 % interval</dt><dd>The range that contains the true value in 95 of 100 such measurements.
  Intervals of differences are {{ wider }} times those of the resamples, because probes vary with their training texts
  too.</dd>
</dl>
<p class="note">exit.json and layers.csv have all numbers, probe.json the weights of the probe.</p>
{% endblock %}
"""


def write(found: Exit, path: str | Path) -> Path:
    """Write the report to `path`, completely or not at all. Missing folders are made."""
    return write_page(target_of(path), render(found))


def render(found: Exit) -> str:
    """The report as HTML."""
    templates = Environment(loader=PackageLoader("metastable.report"), autoescape=True, undefined=StrictUndefined)
    columns, rows = _table(found)
    return templates.from_string(TEMPLATE).render(
        plotly=Markup(get_plotlyjs()),
        found=found,
        sentences=found.sentences(),
        block=figure_block("depths", picture(found)),
        columns=columns,
        rows=rows,
        folds=FOLDS,
        resamples=RESAMPLES,
        wider=f"{WIDER:g}",
        loss=f"{found.loss:g}",
        baseline=three(found.baseline),
        making=_making(found),
    )


def picture(found: Exit) -> go.Figure:
    """The score by depth with intervals, with the chosen layer marked."""
    table, name = found.layers, found.score
    word = NAMES[name]
    figure = look.plain(
        f"{word[0].upper()}{word[1:]} by depth",
        HEIGHT,
        f"{word[0].upper()}{word[1:]} of a linear probe at each depth, on texts that it was not trained on. Bars are "
        "95 % intervals. The dashed line is full depth. The large point is the chosen layer. The table has differences "
        "to full depth, which are surer than a comparison of two bars.",
    )
    full = float(table[name].iloc[-1])
    ends = [float(table["depth"].iloc[0]), float(table["depth"].iloc[-1])]
    look.curve(figure, ends, [full, full], "full depth", look.GREY, width=1, dash="dash", hoverinfo="skip")
    up, down = table[f"{name}_high"] - table[name], table[name] - table[f"{name}_low"]
    figure.add_scatter(
        x=table["depth"],
        y=table[name],
        error_y={"type": "data", "array": up, "arrayminus": down, "color": look.BLUE, "thickness": 1.5, "width": 4},
        mode="lines+markers",
        line={"color": look.BLUE, "width": 2},
        marker={"color": look.BLUE, "size": 7},
        name="each depth",
        hovertemplate="depth %{x}: %{y:.3f}<extra></extra>",
    )
    figure.add_scatter(
        x=[found.layer],
        y=[found.of_depth(found.layer)[0]],
        mode="markers",
        marker={"color": look.VERMILLION, "size": 15, "line": {"color": "white", "width": 2}},
        name=f"chosen: layer {found.layer}",
        hovertemplate="chosen: layer %{x}, %{y:.3f}<extra></extra>",
    )
    figure.update_xaxes(title={"text": "depth (number of layers)"}, dtick=1 if found.depth <= 16 else 2)
    figure.update_yaxes(title={"text": word})
    figure.update_layout(hovermode="closest")
    look.legend_below(figure)
    return figure


def _table(found: Exit) -> tuple[list[str], list[list[str]]]:
    names = list(SCORES[found.task])
    columns = ["depth", *(NAMES[name] for name in names), *(f"{NAMES[name]}, difference" for name in names)]
    rows = []
    for depth in found.layers["depth"]:
        place = f"{depth} (chosen)" if depth == found.layer else str(depth)
        scores = [_with_interval(found.of_depth(depth, name), three) for name in names]
        changes = [_with_interval(found.of_depth(depth, name, difference=True), signed) for name in names]
        rows.append([place, *scores, *(["–"] * len(names) if depth == found.depth else changes)])
    return columns, rows


def _with_interval(ends: tuple[float, float, float], shown: Any) -> str:
    value, low, high = map(shown, ends)
    return f"{value} ({low} to {high})"


def _making(found: Exit) -> dict[str, dict[str, Any]]:
    """The encoder, the texts and the versions, for the last section of the report."""
    counts = found.counts
    encoder = {"model": found.name, "family": found.family, "SHA-256 of the weights": found.fingerprint}
    texts = {
        "texts": counts["texts"],
        "texts without a word": counts["skipped"],
        "texts cut": counts["cut"],
        "labels": f"{len(found.classes)} classes" if found.classes else "numbers",
        "largest loss": f"{found.loss:g}",
        "seed": found.seed,
    }
    if counts["documents"]:
        texts = {"documents": counts["documents"], **texts}
    return {"Encoder": encoder, "Texts": texts, "Versions": found.made}
