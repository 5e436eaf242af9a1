"""The exit layer for a task, step by step: one pass over the texts, probes at all depths, the choice, what it saves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from metastable.arrays import real, whole
from metastable.encoder.anatomy import Norm
from metastable.encoder.exit import per_text
from metastable.encoder.exit.labelled import Floats, Ints, Labelled, paired, read_labelled
from metastable.encoder.exit.probes import TIGHT, fit
from metastable.encoder.exit.result import Exit, Speed
from metastable.encoder.exit.scores import SCORES, Bootstrap
from metastable.encoder.exit.selection import FIRST, Nested, Visit, dealt, earliest, nested
from metastable.encoder.hooks import Depth, read
from metastable.encoder.length.intervals import named
from metastable.encoder.load import Encoder, load
from metastable.encoder.pooling import pooled, pooling_of
from metastable.encoder.texts import TextCounts, batches
from metastable.errors import BadInput
from metastable.versions import versions

PAIRS = 7
"""Pairs of passes that are timed: full depth and the exit layer, one after the other."""
TIMED = 32
"""Texts in a timed pass, the first ones."""


def exit_layer(
    model: Any,
    texts: str | Path | Iterable[str],
    labels: Iterable[Any] | None = None,
    *,
    documents: Iterable[Any] | None = None,
    loss: float = 0.02,
    pooling: str | None = None,
    batch_size: int = 32,
    allow_pickle: bool = False,
    tokenizer: Any = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Exit:
    """The earliest layer of an encoder whose embeddings predict the labels with a loss of at most `loss`.

    At least 40 different texts are needed, and at least 5 of each class. If documents are given, at least 40 documents
    are needed, and each class must occur in at least 5 of them. The interval of a difference to full depth is that of a
    paired bootstrap, 1.5 times as wide, because the probes themselves vary.

    The model of a host program is not touched: a copy of its modules that shares the weights is run.

    texts : a list, or a file `.jsonl` with the fields text, label and, where there are documents, document
    labels : of the texts in a list: strings or whole numbers are classes; numbers, one with a fraction part at least,
        make a regression
    documents : the document of each text in a list; texts of one document stay together
    loss : how far below the best layer the score may be: accuracy of classes, Spearman's correlation of numbers
    pooling : "mean", "cls" or "max"; None takes that of a model of sentence-transformers, or "mean"
    progress : called with the number of texts that are read and of probes that are trained
    """
    real(loss, "loss", "it must be a number from 0 to below 1", allowed=lambda number: number < 1)
    whole(seed, "seed", 0, "it must be a whole number, 0 or more")
    whole(batch_size, "the batch size", 1, "it must be at least 1")
    labelled = _labelled(texts, labels, documents)
    labelled.target()
    encoder = load(model, allow_pickle=allow_pickle, tokenizer=tokenizer)
    encoder.reads_text()
    way = pooling_of(encoder, pooling)
    depth = len(encoder.anatomy.layers)
    if depth < 2:
        raise BadInput(f"{encoder.name!r} has one layer; give an encoder with two or more")
    first = first_exit(encoder)
    counts = TextCounts()
    tell = _Teller(progress)
    numbers, features = pooled_states(encoder, labelled.texts, way, batch_size, counts, tell)
    counts.check()
    known = labelled.some(numbers)
    found = select(features, known, loss, seed, tell, first)
    layer = int(found["layer"])
    speed = _speed(encoder, layer, known.texts, batch_size) if layer < depth else None
    return Exit(
        name=encoder.name,
        family=encoder.anatomy.family,
        fingerprint=encoder.fingerprint,
        depth=depth,
        pooling=way,
        loss=float(loss),
        seed=seed,
        counts={
            "texts": len(known.texts),
            "documents": int(known.groups.max()) + 1 if known.given else 0,
            "skipped": known.skipped,
            **{name: getattr(counts, name) for name in ("cut", "tokens", "special", "unknown")},
        },
        made={**versions(), "transformers": metadata.version("transformers")},
        speed=speed,
        encoder=encoder,
        **found,
    )


def first_exit(encoder: Encoder) -> int:
    """The earliest layer after which all layers can be removed; BadInput if there is none before the last one."""
    from metastable.encoder.compress.surgery import removable_layers

    depth = len(encoder.anatomy.layers)
    removable = set(removable_layers(encoder.anatomy, encoder.model.config))
    found = next((layer for layer in range(FIRST, depth) if removable.issuperset(range(layer, depth))), None)
    if found is None:
        raise BadInput(f"{encoder.name!r} has no exit before full depth, because its last layer cannot be removed")
    return found


def _labelled(
    texts: str | Path | Iterable[str], labels: Iterable[Any] | None, documents: Iterable[Any] | None
) -> Labelled:
    if isinstance(texts, (str, Path)):
        if labels is not None or documents is not None:
            raise BadInput('labels are given beside a file; give them as the field "label" of the .jsonl file')
        return read_labelled(texts)
    if labels is None:
        raise BadInput("texts are given without labels; give one label for each text, or a .jsonl file")
    return paired(texts, labels, documents)


class _Teller:
    """Counts steps for a progress bar."""

    def __init__(self, progress: Callable[[int], None] | None) -> None:
        self._progress, self._done = progress, 0

    def __call__(self, steps: int = 1) -> None:
        self._done += steps
        if self._progress is not None:
            self._progress(self._done)


def pooled_states(
    encoder: Encoder,
    texts: list[str],
    pooling: str,
    batch_size: int = 32,
    counts: TextCounts | None = None,
    done: Callable[[int], None] = lambda texts: None,
) -> tuple[Ints, Floats]:
    """The numbers of the texts that have a token, and their pooled hidden state at each depth, (texts, depths, d).

    The state at depth k is what an encoder with the first k layers returns. In a pre-norm encoder that is the stream
    after the final normalisation.

    pooling : "mean" or "max" over the tokens that are no padding, or "cls", the first token
    """
    private = encoder.private()
    anatomy = private.anatomy
    depth, final = len(anatomy.layers), Norm.of(anatomy.final)
    found: dict[int, Floats] = {}
    for batch in batches(private.tokenizer, texts, private.limit, batch_size, counts):
        rows: list[Tensor] = []

        def visit(at: Depth, rows: list[Tensor] = rows) -> None:
            hidden = at.before if at.pre_norm and at.before is not None else at.x
            if anatomy.pre_norm and at.index < depth:
                z = final.standardise(hidden.float())
                hidden = torch.addcmul(final.offset.to(z), final.gain.to(z), z)
            rows.append(pooled(hidden.float(), at.passage.mask, pooling))

        read(private, batch, "include", range(depth + 1), visit)
        states = torch.stack(rows, dim=1).cpu().numpy()
        found.update(zip(batch.numbers.tolist(), states, strict=True))
        done(len(states))
    if not found:
        raise BadInput("no text has a token of its own; give texts with words that the tokenizer knows")
    numbers = sorted(found)
    features = np.stack([found[number] for number in numbers])
    if not np.isfinite(features).all():
        raise BadInput("the encoder returns an embedding that is not finite; check its weights")
    return np.array(numbers, dtype=np.int64), features


def select(
    features: Floats,
    labelled: Labelled,
    loss: float,
    seed: int = 0,
    fitted: Callable[[], None] = lambda: None,
    first: int = FIRST,
) -> dict[str, Any]:
    """The choice of a layer from features (texts, depths, d), as fields of `Exit`.

    first : the earliest layer that can be an exit
    """
    target = labelled.target()
    fold = dealt(labelled.groups, target, seed)
    trial = per_text.FoldTrial(target, fold, labelled.groups, loss, seed, first)
    wanted = bool(target.classes) and trial.calibration_texts >= per_text.needed(loss)
    visit: Visit = trial.visit if wanted else lambda depth, fits: None
    found = nested(features, target, fold, fitted, visit, first)
    layer = earliest(found.final, loss, first)
    layers, rules = _tables(found, labelled.groups, loss, seed)
    probe = fit(features[:, layer], target, np.arange(len(fold)), [found.penalties[-1, layer]], TIGHT)[0]
    return {
        "task": target.task,
        "classes": target.classes,
        "layer": layer,
        "first": first,
        "fold_layers": tuple(int(chosen) for chosen in found.rule(loss)),
        "baseline": float(np.bincount(target.numbers).max() / len(fold)) if target.classes else 0.0,
        "layers": layers,
        "rules": rules,
        "per_text": trial.result(found, features) if wanted else None,
        "probe": probe,
    }


def _tables(found: Nested, groups: Ints, loss: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables `layers` and `rules` of `Exit`."""
    depths = range(len(found.outputs))
    full = depths[-1]
    rules = {"earliest": found.predictions(found.rule(loss)), "best": found.predictions(found.best)}
    predictions = [*(found.predictions(depth) for depth in depths), *rules.values()]
    rows: list[dict[str, Any]] = [{} for _ in predictions]
    bootstrap = Bootstrap(groups, seed)
    for name, score in SCORES[found.target.task].items():
        compared = bootstrap.compare(score, found.target.values, predictions, full)
        for row, (own, change) in zip(rows, compared, strict=True):
            row |= named(name, own) | named(f"{name}_difference", change)
    chosen_by = {"chosen_by": found.final, "penalty": found.penalties[-1]}
    layers = pd.DataFrame({"depth": list(depths)}).join(pd.DataFrame(rows[: full + 1])).assign(**chosen_by)
    names = pd.DataFrame({"rule": [*rules, "full"]})
    return layers, names.join(pd.DataFrame([*rows[full + 1 :], rows[full]]))


def _truncated(encoder: Encoder, layers: int) -> Encoder:
    from metastable.encoder.compress.surgery import first_layers

    return first_layers(encoder, layers)


def _speed(encoder: Encoder, layer: int, texts: list[str], batch_size: int) -> Speed:
    """How many times faster the first layers are than all of them: pairs of passes over the same texts."""
    some = list(batches(encoder.tokenizer, texts[:TIMED], encoder.limit, batch_size))
    sides = {"full": encoder.private(), "short": _truncated(encoder, layer)}

    def seconds(side: str) -> float:
        began = time.perf_counter()
        for batch in some:
            sides[side].run(batch.inputs)
        return time.perf_counter() - began

    for side in sides:
        seconds(side)
    ratios = []
    for number in range(PAIRS):
        order = ("full", "short") if number % 2 else ("short", "full")
        took = {side: seconds(side) for side in order}
        ratios.append(took["full"] / took["short"])
    return Speed(median(ratios), min(ratios), max(ratios), PAIRS)
