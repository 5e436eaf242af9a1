"""What is usual: the checks of the audit over real encoders and texts, as the ranges that reports quote.

    python benchmarks/usual.py      # about eight minutes on two cores

Encoders and texts are read from packages on PyPI. Writes src/metastable/encoder/usual.json and, with the numbers of
each encoder, benchmarks/results/usual.json.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from measure import record
from packaged_encoders import MINILM, antibodies, chinese, fine_tuned, reactions, reactions_albert
from packaged_texts import antibody_genes, bbc, chinese_reviews, film_reviews, newsgroups, patents, peoples_daily

import metastable as ms

TEXTS = 200
"""Texts of a case."""
TABLE = Path(__file__).parents[1] / "src" / "metastable" / "encoder" / "usual.json"


def _reactions() -> list[str]:
    return [reaction for _, reaction in patents()]


CASES = {
    "MiniLM, BBC news": (lambda: MINILM, bbc, 600),
    "MiniLM, film reviews": (lambda: MINILM, film_reviews, 400),
    "fine-tuned MiniLM, BBC news": (fine_tuned, bbc, 600),
    "fine-tuned MiniLM, newsgroups": (fine_tuned, lambda: [text for _, text in newsgroups("test")], 500),
    "Chinese BERT, People's Daily": (chinese, peoples_daily, 150),
    "Chinese BERT, product reviews": (chinese, chinese_reviews, 150),
    "BERT of reactions, patents": (lambda: reactions("pretrained"), _reactions, 400),
    "fine-tuned BERT of reactions, patents": (lambda: reactions("ft"), _reactions, 400),
    "ALBERT of reactions, patents": (reactions_albert, _reactions, 400),
    "BERT of antibodies, germline genes": (antibodies, antibody_genes, 150),
}
"""Encoder, texts, and the characters that texts are cut to."""


def main() -> None:
    rows = []
    for name, (encoder, corpus, characters) in CASES.items():
        texts = [text[:characters] for text in corpus() if len(text) >= 40]
        random.Random(2).shuffle(texts)
        found = ms.audit(encoder(), texts[:TEXTS], allow_pickle=True)
        rows.append({"what": name, **{check.key: check.number for check in found.checks()}})
    record("usual", rows)
    # Corpora of about one length have no effect of length.
    known = {key: [row[key] for row in rows if key in row] for row in rows for key in row if key != "what"}
    ranges = {key: [min(values), max(values)] for key, values in known.items()}
    content = {"made_by": "benchmarks/usual.py", "encoders": [row["what"] for row in rows], "ranges": ranges}
    TABLE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
