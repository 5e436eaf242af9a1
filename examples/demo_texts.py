"""Texts to try the monitor and the effects of length with: editorials, and a stream that turns into something else.

    python examples/demo_texts.py [FOLDER]    # clean.jsonl to calibrate on, stream.txt to watch, documents.txt

The editorials come out of the package vaderSentiment, which is fetched into a cache (see benchmarks/detection). The
stream holds 100 editorial sentences of documents that are not in clean.jsonl, in random order; then 60 with their words
shuffled. Each line of documents.txt is a whole editorial.
"""

import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks" / "detection"))
from corpora import splits

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-texts")
folder.mkdir(parents=True, exist_ok=True)
parts = splits("editorials", {"clean": 0.9, "held": 0.1}, seed=0)
chance = random.Random(0)
held = chance.sample([text.text for text in parts["held"]], 160)
shuffled = [" ".join(chance.sample(words := text.split(), len(words))) for text in held[100:]]
with (folder / "clean.jsonl").open("w", encoding="utf-8") as file:
    for text in parts["clean"]:
        file.write(json.dumps({"text": text.text, "document": text.document}) + "\n")
(folder / "stream.txt").write_text("\n".join([*held[:100], *shuffled]) + "\n", encoding="utf-8")
documents: dict[str, list[str]] = {}
for text in parts["clean"]:
    documents.setdefault(text.document, []).append(text.text)
(folder / "documents.txt").write_text("".join(f"{' '.join(d)}\n" for d in documents.values()), encoding="utf-8")
print(f"{len(parts['clean'])} clean texts and a stream of {100 + len(shuffled)} in {folder}")
