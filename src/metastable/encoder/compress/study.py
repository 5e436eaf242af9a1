"""Compression of one encoder: every recipe is made, measured on texts that no choice saw, and written down.

The texts are dealt into three parts. *fit* tells which parts matter and heals; *select* makes every choice between
candidates (λ of a refit, the next layer to go, the recipe for a target); *test* is read for the numbers only.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from metastable import files
from metastable.encoder.compress import surgery
from metastable.encoder.compress.build import Builder, Made, megabytes
from metastable.encoder.compress.fidelity import fidelity, values
from metastable.encoder.compress.recipe import Recipe, plan
from metastable.encoder.compress.result import COLUMNS, Compression, condition
from metastable.encoder.compress.surgery import Removal
from metastable.encoder.compress.words import REPEATS
from metastable.encoder.load import Encoder, load
from metastable.encoder.pooling import embed, pooling_of
from metastable.encoder.texts import Batch, TextCounts, batches, blank, read_texts, strings
from metastable.errors import BadInput

LEAST = 60
"""Texts that are needed at least."""
SHARES = {"fit": 0.5, "select": 0.15}
"""The shares of the texts in the first two parts; the rest is *test*."""
MOST = {"fit": 192, "select": 64, "test": 256}
"""Texts of each part, at most."""
TIMED = 48
"""Texts of *test* that speed is measured on, at most."""


@dataclass(frozen=True)
class Parts:
    """The texts as tokens, in three parts; see the module."""

    fit: list[Batch]
    select: list[Batch]
    test: list[Batch]
    counts: dict[str, int]


@torch.inference_mode(False)
def compress(
    model: Any,
    texts: str | Path | Iterable[str],
    *,
    layers: int = 0,
    heads: float = 0.0,
    neurons: float = 0.0,
    merge: float = 0.0,
    int8: bool = False,
    target: str | None = None,
    length: int = 128,
    pooling: str | None = None,
    batch_size: int = 32,
    seed: int = 0,
    allow_pickle: bool = False,
    tokenizer: Any = None,
    resume: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Compression:
    """Find out which parts of an encoder can go, and at what loss.

    Without amounts, all recipes of the plan are measured, baselines included, and `target` chooses one of them. With
    amounts (`layers` to `int8`) only this one recipe is measured, and it is the chosen one.

    Parameters
    ----------
    model : a folder, a hub id, the name of an installed package, or a model of transformers
    texts : a file with one text a line (or .jsonl), or strings; at least 60
    layers : the number of layers that go
    heads, neurons, merge : shares from 0 to 1: of all heads, of the neurons of each layer, of the tokens of a text
    int8 : quantise the linear maps of the layers
    target : a condition on the columns of the result, such as "nn_overlap >= 0.8" or "speed >= 1.5". The fastest recipe
        that meets a condition on fidelity is chosen, or the most faithful one that meets a condition on speed and size
        only. The choice reads the numbers of *select*; the numbers of the result are those of *test*
    length : texts are cut to this many tokens
    pooling : "mean" or "cls"; by default that of the model's files
    seed : deals the texts into parts
    resume : a folder for a journal; a study that was stopped goes on from there
    progress : called with the numbers of finished and of all recipes

    Returns
    -------
    Compression
        `options` (a row a recipe), `chosen`, `report(path)`, `save(folder)`, `save_model(folder)`.
    """
    encoder = load(model, allow_pickle, tokenizer).private()
    encoder.reads_text()
    wanted = Recipe(layers, heads, neurons, merge, int8)
    depth = len(encoder.anatomy.blocks)
    wanted.check(depth)
    if wanted != Recipe() and target is not None:
        raise BadInput("both a target and amounts are given; give one of them")
    removable = surgery.removable_layers(encoder.anatomy, encoder.model.config)
    if layers > len(removable):
        raise BadInput(f"layers is {layers}; {len(removable)} of {depth} layers of {encoder.name!r} can be removed")
    if target is not None:
        condition(target)
    how = pooling_of(encoder, pooling)
    parts = _parts(encoder, texts, length, batch_size, seed)
    builder = Builder(encoder, parts.fit, parts.select, how)
    recipes = [wanted] if wanted != Recipe() else plan(depth, bool(removable))
    identity = files.sha256(
        encoder.fingerprint, parts.counts, length, how, batch_size, seed, _texts_hash(parts), metadata.version("torch")
    )
    bench = _Bench(builder, parts, how)
    rows: list[dict[str, Any]] = []
    with _journal(resume, identity) as journal:
        known = {} if journal is None else {entry.number: json.loads(entry.payload) for entry in journal.records()}
        for recipe in recipes:
            number = _number(recipe)
            row = known.get(number)
            if row is None:
                row = bench.row(builder.make(recipe))
                if journal is not None:
                    journal.append([files.Entry(number, 0, json.dumps(row).encode())])
            elif recipe.layers and not recipe.baseline:
                _remember(builder, row)
            rows.append(row)
            if progress is not None:
                progress(len(rows), len(recipes))
    options = pd.DataFrame(rows)
    removals = [Removal.from_dict(removal) for removal in options.pop("removal")]
    found = Compression(
        name=encoder.name,
        family=encoder.anatomy.family,
        fingerprint=encoder.fingerprint,
        pooling=how,
        length=length,
        depth=depth,
        heads=encoder.anatomy.layers[0].heads,
        neurons=encoder.anatomy.blocks[0].outer.in_features,
        full_megabytes=megabytes(encoder.model),
        counts=parts.counts,
        made={name: metadata.version(name) for name in ("metastable", "torch", "transformers")},
        target=target,
        options=options[list(COLUMNS)],
        removals=removals,
        builder=builder,
    )
    return found.choose(target if wanted == Recipe() else None, only=wanted != Recipe())


def _journal(folder: str | Path | None, identity: str) -> AbstractContextManager[files.Journal | None]:
    if folder is None:
        return nullcontext()
    with files.writing(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / "journal"
    journal = files.Journal(path, identity)
    if journal.foreign:
        path.unlink()
        journal = files.Journal(path, identity)
    return journal


def _number(recipe: Recipe) -> int:
    """A number for the journal that depends on the recipe only."""
    return int(files.sha256(asdict(recipe))[:12], 16)


def _remember(builder: Builder, row: dict[str, Any]) -> None:
    """Take over the layers that an earlier run chose, in their order: each recipe adds one layer."""
    for layer in row["removal"]["layers"]:
        if layer not in builder.greedy:
            builder.greedy.append(layer)


def _texts_hash(parts: Parts) -> str:
    ids = [[batch.inputs["input_ids"].tolist() for batch in part] for part in (parts.fit, parts.select, parts.test)]
    return files.sha256(ids)


def _parts(encoder: Encoder, texts: str | Path | Iterable[str], length: int, batch_size: int, seed: int) -> Parts:
    if length < 8:
        raise BadInput(f"length is {length}; texts must be cut to at least 8 tokens")
    source = read_texts(texts) if isinstance(texts, (str, Path)) else strings(texts)
    whole = list(dict.fromkeys(text for text in source if not blank(text)))
    if len(whole) < LEAST:
        raise BadInput(
            f"there are {len(whole)} different texts; compression needs at least {LEAST}, better some hundreds"
        )
    random.Random(seed).shuffle(whole)
    first = round(SHARES["fit"] * len(whole))
    second = first + round(SHARES["select"] * len(whole))
    dealt = {"fit": whole[:first], "select": whole[first:second], "test": whole[second:]}
    found: dict[str, list[Batch]] = {}
    counts, total = {"texts": len(whole)}, TextCounts()
    for name, some in dealt.items():
        tally = TextCounts()
        limit = min(length, encoder.limit)
        found[name] = list(batches(encoder.tokenizer, some[: MOST[name]], limit, batch_size, tally))
        tally.check()
        counts[name] = tally.texts
        total += tally
    counts |= {name: getattr(total, name) for name in ("tokens", "special", "unknown")}
    return Parts(**found, counts=counts)


class _Bench:
    """Measures smaller encoders against the full one."""

    def __init__(self, builder: Builder, parts: Parts, pooling: str) -> None:
        self.full, self.builder, self.parts, self.pooling = builder.full, builder, parts, pooling
        self.embeddings = {name: embed(self.full, getattr(parts, name), pooling) for name in ("select", "test")}
        self.timed: list[Batch] = []
        for batch in parts.test:
            if sum(len(each.mask) for each in self.timed) < TIMED:
                self.timed.append(batch)

    def row(self, made: Made) -> dict[str, Any]:
        """All numbers of one recipe."""
        recipe = made.recipe
        with made.running() as smaller:
            selected, tested = (embed(smaller, part, self.pooling) for part in (self.parts.select, self.parts.test))
            speed, slowest, fastest = self._speed(smaller)
        return {
            **{"recipe": recipe.name, "method": recipe.method, "baseline": recipe.baseline},
            **{"layers": recipe.layers, "heads": recipe.heads, "neurons": recipe.neurons, "merge": recipe.merge},
            **{"int8": recipe.int8, "healed": made.healed},
            **fidelity(self.embeddings["test"], tested),
            **{"speed": speed, "speed_low": slowest, "speed_high": fastest},
            "megabytes": megabytes(made.fast.model),
            **{f"select_{name}": value for name, value in values(self.embeddings["select"], selected).items()},
            "removal": made.removal.to_dict(),
        }

    def _speed(self, smaller: Encoder) -> tuple[float, float, float]:
        """The time of the full encoder over that of the smaller one: median and range of pairs, one after the other."""
        self._seconds(smaller), self._seconds(self.full)
        ratios = sorted(self._seconds(self.full) / self._seconds(smaller) for _ in range(REPEATS))
        return statistics.median(ratios), ratios[0], ratios[-1]

    def _seconds(self, encoder: Encoder) -> float:
        began = time.perf_counter()
        for batch in self.timed:
            encoder.run(batch.inputs)
        return time.perf_counter() - began
