"""Compression of real encoders on real texts: every option and every baseline.

    python benchmarks/compression_fidelity.py                  # every case, about ten minutes each on two idle cores
    python benchmarks/compression_fidelity.py --case Chinese   # the cases whose name has this word; others stay
    python benchmarks/compression_fidelity.py --write-docs     # docs/compression.md from the record only

Encoders and texts are read from packages on PyPI, as in length.py. Speed is measured in pairs of passes: nothing else
must run on the machine. Writes benchmarks/results/compression.json and docs/compression.md.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compression_tasks import section
from measure import RESULTS
from packaged_encoders import MINILM, chinese, fine_tuned, reactions
from packaged_texts import bbc, chinese_reviews, film_reviews, patents, xsum

import metastable as ms

RECORD = RESULTS / "compression.json"
TASKS = RESULTS / "compression_tasks.json"
DOCUMENT = Path(__file__).parent.parent / "docs" / "compression.md"
TEXTS, LENGTH = 400, 64
"""Texts of a case, and the tokens that they are cut to."""
SHOWN = ("cosine", "cosine_p10", "nn_overlap", "spearman", "speed")


HEAD = f"""\
This page shows what can be removed from some encoders, at what loss, and what is gained. [Make an encoder
smaller](howto/compress.md) explains the command `metastable compress`. `python benchmarks/compression_fidelity.py`
measures everything and writes this page from its records, `benchmarks/results/compression.json` and, for the last
section, `benchmarks/results/compression_tasks.json`.

How to read the tables, one for each encoder and its texts:

- **Fidelity** compares the embeddings of the smaller encoder with those of the full one, on texts that no choice saw,
  cut to {LENGTH} tokens. Intervals of 95 % are over texts.
  - *mean cosine* and *10th percentile*: of the cosines between the two embeddings of each text;
  - *same neighbours*: of the 10 nearest texts among those that the smaller encoder was fitted on, the share that both
    encoders agree on;
  - *rank correlation*: Spearman's correlation of the similarities of texts in both encoders.
- **Speed** is the time of the full encoder over that of the smaller one: median and range of five pairs of timings on
  two cores. **MB** is the size in memory.
- **Rule** says how parts were chosen. `compress` itself uses *greedy* for layers (one after the other, each time the
  one that is missed least) and *gradient* for heads and neurons (the effect on the embedding, to first order). The
  other rules are baselines: *influence* (the change of the hidden state in a layer), *last* (the last layers),
  *update* (the change of the hidden state by a head or neuron), *magnitude* (the size of its weights), *random*.
- The maps beside a gap are refitted to the hidden states of the full encoder. Rows *not refitted* are baselines too."""
"""The beginning of docs/compression.md."""


@dataclass(frozen=True)
class Case:
    """An encoder and texts. tuned : whether the method was tried on this case while it was built"""

    name: str
    encoder: Callable[[], str]
    texts: Callable[[], Sequence[Any]]
    tuned: bool = False

    def read(self) -> list[str]:
        """The beginnings of texts, in random order."""
        found = [row[0] if isinstance(row, tuple) else row for row in self.texts()]
        found = [" ".join(text[:300].split()) for text in found if len(text) >= 40]
        random.Random(1).shuffle(found)
        return found[:TEXTS]


CASES = (
    Case("fine-tuned MiniLM, XSum", fine_tuned, xsum),
    Case("Chinese BERT, product reviews", chinese, chinese_reviews),
    Case("BERT of reactions, patents", lambda: reactions("pretrained"), lambda: [text for _, text in patents()]),
    Case("MiniLM, BBC news", lambda: MINILM, bbc, tuned=True),
    Case("MiniLM, film reviews", lambda: MINILM, film_reviews),
)


def computed(case: Case) -> dict[str, Any]:
    found = ms.compress(case.encoder(), case.read(), length=LENGTH, allow_pickle=True)
    return {
        "name": case.name,
        "tuned": case.tuned,
        "depth": found.depth,
        "heads": found.heads,
        "neurons": found.neurons,
        "megabytes": found.full_megabytes,
        "counts": found.counts,
        "sentences": found.sentences(),
        "options": json.loads(found.options.to_json(orient="records")),
    }


def markdown(rows: Sequence[dict[str, Any]], tasks: Sequence[dict[str, Any]]) -> str:
    return "\n".join([*_lines(rows), *(section(tasks) if tasks else ())]) + "\n"


def _lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "# Compression: what can go, and at what loss"
    yield ""
    yield from HEAD.splitlines()
    for row in rows:
        tried = "used while the method was built" if row["tuned"] else "not used while the method was built"
        yield from ("", f"## {row['name']}", "")
        yield (
            f"{row['depth']} layers of {row['heads']} heads and {row['neurons']} neurons, {row['megabytes']:.0f} MB; "
            f"{tried}; {row['counts']['fit']} texts to fit, {row['counts']['test']} test texts."
        )
        yield from ("", *(f"- {sentence}" for sentence in row["sentences"]), "")
        yield "| option | rule | mean cosine | 10th percentile | same neighbours | rank correlation | speed | MB |"
        yield "|---|---|---|---|---|---|---|---|"
        for option in row["options"]:
            ends = [f"{option[n]:.3f} ({option[f'{n}_low']:.3f}–{option[f'{n}_high']:.3f})" for n in SHOWN[:-1]]
            speed = f"{option['speed']:.2f}× ({option['speed_low']:.2f}–{option['speed_high']:.2f})"
            cells = (option["recipe"], option["method"], *ends, speed, f"{option['megabytes']:.1f}")
            yield f"| {' | '.join(cells)} |"


def main(arguments: Iterable[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="", help="only the cases whose name has this word")
    parser.add_argument("--write-docs", action="store_true", help="write docs/compression.md from the record")
    chosen = parser.parse_args(list(arguments))
    record = json.loads(RECORD.read_text()) if RECORD.is_file() else {"benchmark": "compression", "rows": []}
    known = {row["name"]: row for row in record["rows"]}
    for case in CASES:
        if not chosen.write_docs and chosen.case in case.name:
            print(case.name, file=sys.stderr, flush=True)
            known[case.name] = computed(case)
            record["rows"] = [known[each.name] for each in CASES if each.name in known]
            RECORD.write_text(json.dumps(record, indent=1) + "\n")
    tasks = json.loads(TASKS.read_text())["rows"] if TASKS.is_file() else []
    DOCUMENT.write_text(markdown(record["rows"], tasks))


if __name__ == "__main__":
    main(sys.argv[1:])
