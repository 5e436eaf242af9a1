"""Compression of one encoder: every recipe is made, measured on texts that no choice saw, and written down.

The texts are dealt into three parts. *fit* tells which parts matter, heals, and is the pool that neighbours are
searched in; *select* makes every choice between candidates (λ of a refit, the next layer to go, the recipe for a
target, the options that sentences name); *test* is read for the numbers only. Texts of one document stay in one part.
Scored pairs of the user, if there are any, are dealt into a *select* and a *test* half of their own; see `pairs`. Texts
of the *test* half are in no part but *test*.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from metastable import files
from metastable.arrays import real, whole
from metastable.encoder.compress import surgery
from metastable.encoder.compress.build import Builder, Made, megabytes
from metastable.encoder.compress.fidelity import METRICS, fidelity
from metastable.encoder.compress.pairs import Task, deal, read_pairs
from metastable.encoder.compress.recipe import Recipe, plan
from metastable.encoder.compress.result import (
    COLUMNS,
    TASK,
    TASK_COLUMNS,
    Compression,
    check_percentile,
    condition,
    removed_layers,
)
from metastable.encoder.compress.saving import modules_after
from metastable.encoder.compress.surgery import Removal
from metastable.encoder.compress.words import REPEATS
from metastable.encoder.exit.scores import Interval
from metastable.encoder.identity import configuration
from metastable.encoder.length.intervals import named
from metastable.encoder.load import Encoder, load
from metastable.encoder.pooling import embed, pooling_of
from metastable.encoder.texts import Batch, TextCounts, batches, read_lines, strings, tokenized
from metastable.errors import BadInput

LEAST = 60
"""Texts that are needed at least."""
SHARES = {"fit": 0.5, "select": 0.15}
"""The shares of the texts in the first two parts; the rest is *test*."""
MOST = {"fit": 192, "select": 64, "test": 256}
"""Texts of each part, at most."""
TIMED = 48
"""Texts of *test* that speed is measured on, at most."""
HELD = 2**31
"""Healing keeps two numbers of 4 bytes for each token, feature and layer; *fit* and *select* are cut to this many
bytes."""
JOURNAL = "compress.journal"
ROWS = 2
"""The form of the rows in the journal. A journal with another form is begun anew."""


@dataclass(frozen=True)
class TextParts:
    """The texts as tokens, in three parts; see the module."""

    fit: list[Batch]
    select: list[Batch]
    test: list[Batch]
    counts: dict[str, int]


@torch.inference_mode(False)
@torch.autocast("cpu", enabled=False)
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
    pairs: str | Path | Iterable[tuple[str, str, float]] | None = None,
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
    texts : a file with one text a line (or .jsonl, perhaps with a field document), or strings; at least 60 that differ
        in the tokens that are read
    layers : the number of layers that go
    heads, neurons, merge : shares from 0 to 1: of all heads, of the neurons of each layer, of the tokens of a text
    int8 : quantise the linear maps of the layers
    target : a condition on the columns of the result, such as "nn_overlap >= 0.8" or "speed >= 1.5". The fastest recipe
        that meets a condition on fidelity is chosen, or the most faithful one that meets a condition on speed and size
        only. The choice reads the lower ends of the intervals on *select*; the numbers of the result are those of
        *test*, and `met` tells whether they meet the condition
    pairs : a similarity task: a file .jsonl with the fields sentence1, sentence2 and score, or (text, text, number); at
        least 200. Then layers are chosen by the score on one half of the pairs, which is Spearman's correlation of the
        cosines of the embeddings and the given numbers, unless the full encoder's own score there may be 0. The result
        has the score of each recipe on the other half, and a target may name task and task_difference. A target on
        speed and size only chooses by task_difference
    length : texts are cut to this many tokens
    pooling : "mean" or "cls"; by default that of the model's files
    seed : deals the texts into parts, and the pairs into halves
    resume : a folder for a journal; a study that was stopped goes on from there. The folder is locked meanwhile
    progress : called with the numbers of finished and of all recipes

    Returns
    -------
    Compression
        `options` (a row a recipe), `chosen`, `report(path)`, `save(folder)`, `save_model(folder)`.
    """
    _check(layers, heads, neurons, merge, length, batch_size, seed)
    scored = None if pairs is None else read_pairs(pairs)
    wish = None if target is None else condition(target, scored is not None)
    encoder = load(model, allow_pickle, tokenizer).private()
    encoder.reads_text()
    if encoder.device.type != "cpu":
        raise BadInput(f"the model is on {encoder.device}; compress runs on the CPU, so give model.cpu()")
    wanted = Recipe(layers, heads, neurons, merge, int8)
    depth, tied = len(encoder.anatomy.blocks), encoder.anatomy.tied
    wanted.check(depth)
    if wanted != Recipe() and target is not None:
        raise BadInput("both a target and amounts are given; give one of them")
    removable = surgery.removable_layers(encoder.anatomy, encoder.model.config)
    if layers > len(removable):
        raise BadInput(f"layers is {layers}; {len(removable)} of {depth} layers of {encoder.name!r} can be removed")
    how, length = pooling_of(encoder, pooling), min(length, encoder.limit)
    if encoder.folder is not None:
        modules_after(encoder.folder)  # refuses damaged files before the work
    task = None if scored is None else deal(encoder, scored, length, batch_size, seed)
    parts = _parts(encoder, texts, length, batch_size, seed, set() if task is None else task.test.tokens())
    if wish is not None:
        check_percentile(wish, parts.counts["select"])
    builder = Builder(encoder, parts.fit, parts.select, how)
    bench = _Bench(builder, parts, how, task, seed)
    if task is not None and bench.full_scores["select"][1] > 0:
        builder.task = lambda smaller: task.select.correlation(smaller, how)
    elif wish is not None and set(TASK) & set(wish.columns):
        value, low, high = bench.full_scores["select"]
        raise BadInput(
            f"target {target!r}: the full encoder's own score on the pairs is {value:.3f} ({low:.3f} to {high:.3f}), "
            "which is not surely above 0; check the scores, which must be higher for texts that are more alike"
        )
    recipes = [wanted] if wanted != Recipe() else plan(depth, bool(removable), tied)
    made_with = {name: metadata.version(name) for name in ("metastable", "torch", "transformers")}
    about = (encoder.fingerprint, configuration(encoder), made_with)
    given = [] if task is None else [task.select.identity(), task.test.identity()]
    identity = files.sha256(*about, parts.counts, length, how, batch_size, seed, _texts_hash(parts), ROWS, *given)
    rows: list[dict[str, Any]] = []
    with _journal(resume, identity) as journal:
        known = {} if journal is None else {entry.number: json.loads(entry.payload) for entry in journal.records()}
        for done, recipe in enumerate(recipes):
            number = _number(recipe)
            row = known.get(number)
            if row is None:
                row = bench.row(builder.make(recipe))
                if journal is not None:
                    journal.append([files.Entry(number, 0, json.dumps(row).encode())])
            elif recipe.layers and not recipe.baseline:
                _remember(builder, row)
            # A share of few heads may be less than one head.
            if row["recipe"] == Recipe().name:
                if len(recipes) == 1:
                    raise BadInput(f"{recipe.name} is less than one of them; give a larger share")
            else:
                rows.append(row)
            if progress is not None:
                progress(done + 1, len(recipes))
    options = pd.DataFrame(rows)
    removals = [Removal.from_dict(removal) for removal in options.pop("removal")]
    options["removed_layers"] = removed_layers(removals)
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
        counts=parts.counts | ({} if scored is None else {"pairs": len(scored), **bench.pair_counts}),
        made=made_with,
        target=target,
        options=options[[*COLUMNS, *(TASK_COLUMNS if task is not None else ())]],
        removals=removals,
        chosen=0 if wanted != Recipe() else None,
        full_task=bench.full_scores.get("test"),
        full_select_task=bench.full_scores.get("select"),
        builder=builder,
    )
    return found if target is None else found.choose(target)


def _check(layers: int, heads: float, neurons: float, merge: float, length: int, batch_size: int, seed: int) -> None:
    """BadInput for arguments that are no numbers of the right kind."""
    whole(layers, "layers", 0, "it must be a whole number, 0 or more")
    for name, share in (("heads", heads), ("neurons", neurons), ("merge", merge)):
        real(share, name, "it must be a share from 0 to below 1, such as 0.25 or 25%", allowed=lambda x: x < 1)
    whole(length, "length", 8, "texts must be cut to at least 8 tokens")
    whole(batch_size, "the batch size", 1, "it must be at least 1")
    whole(seed, "seed", 0, "it must be a whole number, 0 or more")


@contextmanager
def _journal(folder: str | Path | None, identity: str) -> Iterator[files.Journal | None]:
    """The journal in a folder, which is locked meanwhile; that of another study is begun anew."""
    if folder is None:
        yield None
        return
    path = Path(folder) / JOURNAL
    with files.locked(Path(folder)):
        if files.Journal(path, identity).foreign:
            path.unlink()
        with files.Journal(path, identity) as journal:
            if not journal.begun:
                raise BadInput(f"{path} is no journal of compress; move it away or choose another folder")
            yield journal


def _number(recipe: Recipe) -> int:
    """A number for the journal that depends on the recipe only."""
    return int(files.sha256(asdict(recipe))[:12], 16)


def _remember(builder: Builder, row: dict[str, Any]) -> None:
    """Take over the layers that an earlier run chose, in their order: each recipe adds one layer."""
    for layer in row["removal"]["layers"]:
        if layer not in builder.greedy:
            builder.greedy.append(layer)


def _texts_hash(parts: TextParts) -> str:
    ids = [[batch.inputs["input_ids"].tolist() for batch in part] for part in (parts.fit, parts.select, parts.test)]
    return files.sha256(ids)


def _parts(
    encoder: Encoder,
    texts: str | Path | Iterable[str],
    length: int,
    batch_size: int,
    seed: int,
    tested: Set[tuple[int, ...]] = frozenset(),
) -> TextParts:
    """The texts in three parts.

    tested : the token ids of texts that numbers come from, so that no choice and no refit may see them
    """
    groups = _different(encoder, texts, length, tested)
    count = sum(len(group.texts) for group in groups)
    if count < LEAST:
        raise BadInput(
            f"there are {count} different texts, as far as they are read; compression needs at least {LEAST}, better "
            "some hundreds"
        )
    free = sum(len(group.texts) for group in groups if not group.tested)
    if free < (least := round(sum(SHARES.values()) * LEAST)):
        raise BadInput(
            f"all texts except {free} are in the test half of the pairs, or in a document with such a text; give at "
            f"least {least} other texts"
        )
    random.Random(seed).shuffle(groups)
    # Documents that can only be in one part come first, so that the others fill the other parts.
    groups.sort(key=lambda group: not group.tested)
    most = dict(MOST)
    width = encoder.anatomy.layers[0].width
    fitting = HELD // (8 * width * len(encoder.anatomy.blocks) * length)
    if fitting < most["fit"] + most["select"]:
        most |= {name: max(LEAST // 4, int(fitting * most[name] / (MOST["fit"] + MOST["select"]))) for name in SHARES}
    dealt: dict[str, list[str]] = {"fit": [], "select": [], "test": []}
    for group in groups:
        # The part that is furthest below its share gets the next document.
        shares = {**SHARES, "test": 1 - sum(SHARES.values())}
        part = max(dealt, key=lambda name: shares[name] * count - len(dealt[name]))
        dealt["test" if group.tested else part] += group.texts
    found: dict[str, list[Batch]] = {}
    counts, total = {"texts": count}, TextCounts()
    for name, some in dealt.items():
        tally = TextCounts()
        found[name] = list(batches(encoder.tokenizer, some[: most[name]], length, batch_size, tally))
        tally.check()
        counts[name] = tally.texts
        total += tally
    counts |= {name: getattr(total, name) for name in ("tokens", "special", "unknown")}
    return TextParts(**found, counts=counts)


@dataclass
class _Document:
    """Different texts of one document. tested : whether one of them is among the texts that numbers come from"""

    texts: list[str] = field(default_factory=list)
    tested: bool = False


def _different(
    encoder: Encoder, texts: str | Path | Iterable[str], length: int, tested: Set[tuple[int, ...]]
) -> list[_Document]:
    """The texts that differ in the tokens that are read, by document; a text without a document is one of its own."""
    if isinstance(texts, (str, Path)):
        pairs = [(line.text or "", line.document) for line in read_lines(texts)]
    else:
        pairs = [(text, None) for text in strings(texts)]
    seen: set[tuple[int, ...]] = set()
    found: dict[Any, _Document] = {}
    for row in tokenized(encoder.tokenizer, [text for text, _ in pairs], length, TextCounts()):
        ids = tuple(row.inputs["input_ids"])
        if ids not in seen:
            seen.add(ids)
            text, document = pairs[row.number]
            own = found.setdefault(row.number if document is None else document, _Document())
            own.texts.append(text)
            own.tested |= ids in tested
    return list(found.values())


class _Bench:
    """Measures smaller encoders against the full one."""

    def __init__(self, builder: Builder, parts: TextParts, pooling: str, task: Task | None, seed: int) -> None:
        self.full, self.builder, self.parts, self.pooling = builder.full, builder, parts, pooling
        names = ("fit", "select", "test")
        self.embeddings = {name: embed(self.full, getattr(parts, name), pooling) for name in names}
        if not all(np.isfinite(rows).all() and rows.any(axis=1).all() for rows in self.embeddings.values()):
            raise BadInput("the encoder returns an embedding that is zero or not finite, which has no direction")
        self.halves = {} if task is None else {"select": task.select, "test": task.test}
        self.cosines = {name: half.cosines(self.full, pooling) for name, half in self.halves.items()}
        self.seed = seed
        self.timed: list[Batch] = []
        for batch in parts.test:
            if sum(len(each.mask) for each in self.timed) < TIMED:
                self.timed.append(batch)

    @property
    def pair_counts(self) -> dict[str, int]:
        return {f"{name}_pairs": len(half.scores) for name, half in self.halves.items()}

    @cached_property
    def full_scores(self) -> dict[str, Interval]:
        """The score of the full encoder on each half of the pairs; empty without pairs."""
        return {
            name: half.compared(self.cosines[name], self.cosines[name], self.seed)[0]
            for name, half in self.halves.items()
        }

    def row(self, made: Made) -> dict[str, Any]:
        """All numbers of one recipe."""
        recipe, full = made.recipe, self.embeddings
        with made.running() as smaller:
            own = {name: embed(smaller, getattr(self.parts, name), self.pooling) for name in full}
            scores = self._scores(smaller)
            speed, slowest, fastest = self._speed(smaller)
        pool = full["fit"], own["fit"]
        selected, tested = (fidelity(full[name], own[name], pool) for name in ("select", "test"))
        return {
            **{"recipe": recipe.name, "method": self._method(recipe), "baseline": recipe.baseline},
            **{"layers": recipe.layers, "heads": recipe.heads, "neurons": recipe.neurons, "merge": recipe.merge},
            **{"int8": recipe.int8, "healed": made.healed},
            **tested,
            **{"speed": speed, "speed_low": slowest, "speed_high": fastest},
            "megabytes": megabytes(made.fast.model),
            **{f"select_{name}": selected[f"{name}_low"] for name in METRICS},
            **scores,
            "removal": made.removal.to_dict(),
        }

    def _scores(self, smaller: Encoder) -> dict[str, float]:
        """The columns of the task; none without pairs."""
        found: dict[str, dict[str, float]] = {}
        for name, half in self.halves.items():
            own = half.cosines(smaller, self.pooling)
            _, score, difference = half.compared(self.cosines[name], own, self.seed)
            found[name] = {**named("task", score), **named("task_difference", difference)}
        if not found:
            return {}
        return {**found["test"], **{f"select_{name}": found["select"][f"{name}_low"] for name in TASK}}

    def _method(self, recipe: Recipe) -> str:
        """Of shared layers only the last calls can go."""
        alone = recipe.layers and not (recipe.heads or recipe.neurons)
        return "last" if alone and self.full.anatomy.tied else recipe.method

    def _speed(self, smaller: Encoder) -> tuple[float, float, float]:
        """The time of the full encoder over that of the smaller one: median and range of pairs, in turns."""
        sides = {"full": self.full, "smaller": smaller}
        for encoder in sides.values():
            self._seconds(encoder)
        ratios = []
        for number in range(REPEATS):
            took = {side: self._seconds(sides[side]) for side in sorted(sides, reverse=bool(number % 2))}
            ratios.append(took["full"] / took["smaller"])
        return statistics.median(ratios), min(ratios), max(ratios)

    def _seconds(self, encoder: Encoder) -> float:
        began = time.perf_counter()
        for batch in self.timed:
            encoder.run(batch.inputs)
        return time.perf_counter() - began
