"""docs/length.md from the record of benchmarks/length.py."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from detection.packages import Package

from metastable.encoder.length.causes import EMBEDDINGS

DOCUMENT = Path(__file__).parents[1] / "docs" / "length.md"
METHODS = ("forecast", "near/far alone", "no change", "constant H/log n", "linear in log n")
LINE = "linear in log n"
NAMES = {"entropy": "entropy (nats)", "log_participation": "log participation", "top_weight": "top weight"}

Row = dict[str, Any]


def markdown(rows: Sequence[Row], time: Row | None, packages: Iterable[Package]) -> str:
    parts = [
        *_head(),
        *_summary(rows),
        *_cases(rows),
        *_attention(rows),
        *_forecasts(rows),
        *_coverage(rows),
        *_focus(rows),
        *_similarity(rows),
        *_retrieval(rows),
        *_time(time),
        *_sources(packages),
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip() + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def _section(title: str, text: str = "") -> list[str]:
    return ["", title, *(["", textwrap.fill(text, 118, break_on_hyphens=False)] if text else [])]


def _head() -> Iterator[str]:
    yield from _section(
        "# Effects of length: what was measured, and how good the forecasts are",
        "This page shows how attention and embeddings of ten pairs of encoder and corpus change as texts grow, and how "
        "well `metastable length` forecasts it. [Long texts](howto/length.md) explains the command.",
    )
    yield from _section(
        "",
        "An encoder is measured on the same documents cut to 32, 64, …, 512 tokens. Forecasts are made from one half "
        "of the documents, cut to n₀ = 128 tokens, and scored on the other half at 512 tokens. `python "
        "benchmarks/length.py` measures everything and writes this page from its record, "
        "`benchmarks/results/length.json`.",
    )


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    """The results over all cases."""
    less = [1 - r["errors"]["entropy"]["forecast"] / r["errors"]["entropy"][LINE] for r in rows]
    inside = [share for r in rows for share in r["coverage"].values()]
    lost, named, both = (sum(r["focus"][name] for r in rows) for name in ("lost", "named", "both"))
    yield from (
        "",
        "In short:",
        "",
        f"- The forecast of the entropy of attention has {100 * min(less):.0f} to {100 * max(less):.0f} % less error "
        "than a straight line in log n.",
        f"- On average {100 * sum(inside) / len(inside):.0f} % of the measured values lie inside the error bars of "
        f"90 % ({100 * min(inside):.0f} to {100 * max(inside):.0f} % by case and statistic).",
        f"- {lost} heads lose their focus between 128 and 512 tokens. The forecast names {both} of them, and "
        f"{named - both} others.",
        f"- {sum(r['tuned'] for r in rows)} of the {len(rows)} cases were used while the method was built.",
    )


def _cases(rows: Sequence[Row]) -> Iterator[str]:
    yield from _section("## Encoders and texts")
    yield from _table(
        ("case", "encoder and texts", "layers × heads", "documents measured", "used while the method was built"),
        (
            (r["name"], r["what"], f"{r['layers']} × {r['heads']}", str(r["documents"]), "yes" if r["tuned"] else "no")
            for r in rows
        ),
    )


def _attention(rows: Sequence[Row]) -> Iterator[str]:
    yield from _section(
        "## Attention by length",
        "Mean over all heads. Entropy is in nats; the largest possible value is log n, which is 6.24 at 512 tokens. "
        "*Top weight* is the largest attention weight of a query. Special tokens are those such as [CLS] and [SEP].",
    )
    lengths = [each["n"] for each in rows[0]["attention"]]
    for name, title in (
        ("entropy", "entropy"),
        ("top_weight", "top weight"),
        ("special_share", "weight on special tokens"),
    ):
        values = ([f"{each[name]:.2f}" for each in r["attention"]] for r in rows)
        yield from _table(
            (title, *(f"n = {n}" for n in lengths)), ((r["name"], *v) for r, v in zip(rows, values, strict=True))
        )


def _forecasts(rows: Sequence[Row]) -> Iterator[str]:
    yield from _section(
        "## Forecasts against simple rules",
        "Mean absolute error over heads at 512 tokens. *Participation* is the effective number of tokens that a query "
        "attends to, one over the sum of its squared weights. *Forecast* is the method of the package. It lets far "
        "tokens multiply and near tokens stay, and then corrects for later positions and for the drift of the scores; "
        "*near/far alone* leaves out these corrections. *No change*, *constant H/log n* (H is the entropy, or the log "
        "participation) and *linear in log n* are simple rules. The last column compares the forecast with the line in "
        "log n through 32, 64 and 128 tokens: −50 % means half of its error.",
    )
    for statistic, title in NAMES.items():
        shown = [method for method in METHODS if method in rows[0]["errors"][statistic]]
        yield from _table(
            (title, *shown, "against the line"),
            (
                (r["name"], *(f"{r['errors'][statistic][m]:.3f}" for m in shown), _against(r["errors"][statistic]))
                for r in rows
            ),
        )


def _against(errors: dict[str, float]) -> str:
    return f"{100 * (errors['forecast'] / errors[LINE] - 1):+.0f} %".replace("-", "−")


def _coverage(rows: Sequence[Row]) -> Iterator[str]:
    yield from _section(
        "## Error bars",
        "The share of heads whose measured value lies inside the error bars of the forecast, which should hold 90 % of "
        "them. The number after a statistic is the length in tokens; *special share* is the weight on special tokens.",
    )
    columns = list(rows[0]["coverage"])
    yield from _table(
        ("case", *(name.replace("_", " ") for name in columns)),
        ((r["name"], *(f"{100 * r['coverage'][name]:.0f} %" for name in columns)) for r in rows),
    )


def _focus(rows: Sequence[Row]) -> Iterator[str]:
    yield from _section(
        "## Heads that lose their focus",
        "A head has focus where its mean top weight is at least 0.25 and its participation at most half "
        "of the tokens. *Lost*: heads with focus at 128 tokens that have none at 512, measured on the half of the "
        "documents that scores. *Named*: heads that lose their focus by the forecast. *Recall* is the share of the "
        "lost heads that are named, *precision* the share of the named heads that are lost.",
    )
    table = []
    for r in rows:
        f = r["focus"]
        recall = f"{f['both'] / f['lost']:.2f}" if f["lost"] else "–"
        precision = f"{f['both'] / f['named']:.2f}" if f["named"] else "–"
        table.append((r["name"], str(f["at start"]), str(f["lost"]), str(f["named"]), recall, precision))
    yield from _table(("case", "with focus at 128", "lost", "named", "recall", "precision"), table)


def _similarity(rows: Sequence[Row]) -> Iterator[str]:
    yield from _section(
        "## Why documents become alike",
        "The mean cosine between embeddings of different documents at 128 tokens and at the longest documents, and its "
        "change as a sum of three parts, with 95 % intervals over documents. *Averaging*: an embedding averages over "
        "more content, which happens in an ideal encoder too. *Positions*: later tokens have later positions. "
        "*Attention*: tokens attend to the whole document.",
    )
    table = []
    for r in rows:
        top = r["reached"]["top"]
        if top <= r["reached"]["start"]:
            continue
        parts = {
            each["part"]: each for each in r["causes"] if each["quantity"] == "document_cosine" and each["n"] == top
        }
        cosine = {each["n"]: each["document_cosine"] for each in r["cosine"]}
        ends = f"{cosine[r['reached']['start']]:.2f} → {cosine[top]:.2f} at {top}"
        table.append((r["name"], ends, *(_ends(parts.get(part), "change") for part in EMBEDDINGS)))
    yield from _table(("case", "cosine", *EMBEDDINGS), table)


def _ends(row: Row | None, name: str) -> str:
    if row is None:
        return "–"
    return f"{row[name]:+.2f} ({row[f'{name}_low']:+.2f} to {row[f'{name}_high']:+.2f})".replace("-", "−")


def _retrieval(rows: Sequence[Row]) -> Iterator[str]:
    yield from _section(
        "## Retrieval",
        "Every query ranks all documents; MRR is the mean reciprocal rank of the right one, 1 at best. Queries are "
        "summaries or questions where the texts have them. Otherwise they are passages of 32 tokens of the documents, "
        "which is an easier task. A document is *whole*, cut to n tokens, or in chunks: it is then represented by the "
        "mean of the embeddings of its chunks, or by the chunk that is closest to the query (*maximum*). *Scores × "
        "1.1* multiplies the attention scores, which lowers the temperature; n₀ is 128. *Gain* is the difference in "
        "MRR to whole documents of the length after *against*: for whole documents the best shorter length, else the "
        "same length. It is paired query by query. Its intervals of 95 % hold at once for all pairs of lengths, for "
        "all ways with chunks, and for all factors.",
    )
    for r in rows:
        queries = {"pairs": "summaries or questions", "passages": "passages"}[r["asked"]]
        yield from ("", f"**{r['name']}** ({r['retrieval'][0]['queries']} queries: {queries})")
        table = []
        for each in r["retrieval"]:
            chunk = "" if each["chunk"] is None else f", {each['chunk']:.0f} tokens"
            gain = "" if each["mrr_gain"] is None else _ends(each, "mrr_gain")
            against = "" if each["against"] is None else f" against {each['against']:.0f}"
            table.append((str(each["n"]), f"{each['way']}{chunk}", f"{each['mrr']:.3f}", f"{gain}{against}"))
        yield from _table(("n", "way", "MRR", "gain"), table)


def _time(time: Row | None) -> Iterator[str]:
    if time is None:
        return
    yield from _section(
        "## Time", "The time of the whole command over that of plain forward passes over the same batches."
    )
    ratio = f"{time['ratio']:.2f}×"
    spread = f"{time['lowest']:.2f}–{time['highest']:.2f}, {time['repeats']} repeats"
    yield from _table(
        ("case", "tokens", "ratio", "spread"), [(time["what"], f"{time['tokens'] // 1000} 000", ratio, spread)]
    )


def _sources(packages: Iterable[Package]) -> Iterator[str]:
    yield from _section(
        "## Sources",
        "The program fetches these packages from PyPI when it runs. Nothing of them is part of this project.",
    )
    yield from _table(
        ("package", "licence of the package", "inside"),
        ((f"{package.name} {package.version}", package.licence, package.note) for package in packages),
    )
