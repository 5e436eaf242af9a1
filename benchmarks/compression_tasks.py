"""What a choice costs on tasks: removed layers on STS-B and Reuters, the exit layer on Reuters and 20 Newsgroups.

    python benchmarks/compression_tasks.py      # about fifteen minutes on two cores

`compress` chooses a layer from texts without labels. Here every other choice is made too, and all of them are scored on
the task: what is lost against the best choice, which nobody can know beforehand? In the same way `exit` chooses a layer
from training texts, and every layer is scored on the test part of the corpus. Writes
benchmarks/results/compression_tasks.json; `compression.py --write-docs` puts it into docs/compression.md.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from measure import record
from packaged_encoders import MINILM, fine_tuned
from packaged_texts import newsgroups, reuters, sts_b
from scipy.stats import spearmanr

import metastable as ms
from metastable.encoder.compress import surgery
from metastable.encoder.compress.build import Builder
from metastable.encoder.compress.fidelity import unit
from metastable.encoder.compress.recipe import Recipe
from metastable.encoder.compress.surgery import Removal
from metastable.encoder.exit.labelled import Target
from metastable.encoder.exit.probes import PENALTIES, fit
from metastable.encoder.exit.study import pooled_states
from metastable.encoder.load import Encoder, load
from metastable.encoder.pooling import embed, pooling_of
from metastable.encoder.texts import batches

ENCODERS = {"MiniLM": lambda: MINILM, "fine-tuned MiniLM": fine_tuned}
LENGTH = 64
"""Texts are cut to this many tokens."""
FIT, SELECT = 192, 64
"""Texts without labels that `compress` gets to choose and to heal, as many as in a study."""
TRAIN, TEST = 1500, 1500
"""Texts of a classification task, at most."""
LOSS = 0.02


def some(rows: Sequence[Any], count: int, seed: int = 0) -> list[Any]:
    return random.Random(seed).sample(list(rows), min(count, len(rows)))


def embedded(encoder: Encoder, texts: Sequence[str], pooling: str) -> np.ndarray[Any, Any]:
    """The embedding of each text, in its place."""
    parts = list(batches(encoder.tokenizer, texts, LENGTH, 32))
    numbers = np.concatenate([batch.numbers for batch in parts])
    found = embed(encoder, parts, pooling)
    return np.asarray(found[np.argsort(numbers)])


def similarity(encoder: Encoder, pooling: str) -> float:
    """Spearman's correlation of cosines and human scores on the test part of STS-B."""
    rows = sts_b("test")
    first, second = (unit(embedded(encoder, [row[i] for row in rows], pooling)) for i in (1, 2))
    return float(spearmanr((first * second).sum(axis=1), [row[0] for row in rows]).statistic)


def accuracy(encoder: Encoder, pooling: str) -> float:
    """Accuracy of a logistic probe on the test part of Reuters R8; its penalty is chosen on a part of the training."""
    train, test = some(reuters("train"), TRAIN), some(reuters("test"), TEST)
    target = Target.of([label for label, _ in train])
    x = embedded(encoder, [text for _, text in train], pooling)
    cut = len(train) * 4 // 5
    rows, held = np.arange(cut), np.arange(cut, len(train))
    probes = fit(x, target, rows, PENALTIES["classes"])

    def right(probe: Any) -> float:
        return float((probe.outputs(x[held]).argmax(axis=1) == target.numbers[held]).mean())

    penalty = max(probes, key=right).penalty
    probe = fit(x, target, np.arange(len(train)), [penalty])[0]
    predicted = probe.predict(embedded(encoder, [text for _, text in test], pooling))
    return float(np.mean([a == b for a, (b, _) in zip(predicted, test, strict=True)]))


def removals(name: str) -> Iterator[dict[str, Any]]:
    """One row a task: the score without each layer, and the layer that `compress` removes."""
    encoder = load(ENCODERS[name]()).private()
    pooling = pooling_of(encoder, None)
    unlabelled = {
        "STS-B": [text for row in sts_b("train") for text in row[1:]],
        "Reuters R8": [text for _, text in reuters("train")],
    }
    for task, score in (("STS-B", similarity), ("Reuters R8", accuracy)):
        texts = some(list(dict.fromkeys(unlabelled[task])), FIT + SELECT, seed=1)
        fitted, selected = (list(batches(encoder.tokenizer, part, LENGTH, 32)) for part in (texts[:FIT], texts[FIT:]))
        builder = Builder(encoder, fitted, selected, pooling)
        layers = surgery.removable_layers(encoder.anatomy, encoder.model.config)
        smaller = {layer: builder.removed(Recipe(layers=1), Removal((layer,))).even for layer in layers}
        scores = {layer: score(one, pooling) for layer, one in smaller.items()}
        (chosen,) = builder.layers(1, "greedy")
        yield {
            "kind": "removed layer",
            "encoder": name,
            "task": task,
            "full": score(encoder, pooling),
            "chosen": chosen,
            "scores": {str(layer): value for layer, value in scores.items()},
        }


def exits(name: str) -> Iterator[dict[str, Any]]:
    """One row a task: the score of each layer on texts that are new, and the layer that `exit` chooses."""
    path = ENCODERS[name]()
    encoder = load(path)
    pooling = pooling_of(encoder, None)
    for task, corpus in (("Reuters R8", reuters), ("20 Newsgroups", newsgroups)):
        train, test = (some([(y, x[:400]) for y, x in corpus(part)], TRAIN) for part in ("train", "test"))
        found = ms.exit_layer(path, [x for _, x in train], [y for y, _ in train], loss=LOSS)
        (train_numbers, x), (test_numbers, fresh) = (
            pooled_states(encoder, [text for _, text in part], pooling) for part in (train, test)
        )
        target = Target.of([train[i][0] for i in train_numbers])
        labels = np.array([test[i][0] for i in test_numbers], dtype=object)
        scores = {}
        for depth in range(1, x.shape[1]):
            penalty = float(found.layers.set_index("depth").loc[depth, "penalty"])
            probe = fit(x[:, depth], target, np.arange(len(x)), [penalty])[0]
            scores[str(depth)] = float(np.mean(np.array(probe.predict(fresh[:, depth]), dtype=object) == labels))
        difference, low, high = found.exit_difference
        yield {
            "kind": "exit layer",
            "encoder": name,
            "task": task,
            "full": scores[str(found.depth)],
            "chosen": found.layer,
            "scores": scores,
            "promised": {"difference": difference, "low": low, "high": high},
            "sentence": found.sentences()[0],
        }


def section(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The part of docs/compression.md about tasks."""
    yield from ("", "## On tasks", "")
    yield (
        "*Removed layer*: the score of the task after one layer was removed and the rest healed, with the layer that "
        "`compress` chose from texts without labels, and with the layer that is best on the test part, which nobody "
        "can know beforehand. STS-B: Spearman's correlation of cosines and human scores. Reuters R8: accuracy of a "
        "logistic probe. *Exit layer*: the layer that `exit` chose from "
        f"{TRAIN} training texts with a loss of at most {LOSS:g}, scored on the test part of the corpus. The promised "
        "interval is that of the difference to full depth that `exit` prints. A layer that is best for embeddings in "
        "general need not be best for a task: a choice without labels can lose points of the task that another layer "
        "would have kept."
    )
    yield ""
    yield "| | encoder | task | full depth | chosen | best | chosen − best | promised difference |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        scores = {int(layer): value for layer, value in row["scores"].items()}
        chosen = row["chosen"]
        best = max(scores, key=lambda layer: scores[layer])
        given = row.get("promised")
        interval = (
            f"{given['low']:+.3f} to {given['high']:+.3f}, found {scores[chosen] - row['full']:+.3f}" if given else ""
        )
        cells = (
            row["kind"],
            row["encoder"],
            row["task"],
            f"{row['full']:.4f}",
            f"{scores[chosen]:.4f} (layer {chosen})",
            f"{scores[best]:.4f} (layer {best})",
            f"{scores[chosen] - scores[best]:+.4f}",
            interval,
        )
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    rows: list[dict[str, Any]] = []
    for name in ENCODERS:
        for found in (removals(name), exits(name)):
            for row in found:
                print(row["kind"], name, row["task"], file=sys.stderr, flush=True)
                rows.append(row)
    record("compression_tasks", sorted(rows, key=lambda row: row["kind"], reverse=True))


if __name__ == "__main__":
    main()
