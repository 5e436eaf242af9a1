"""What a choice costs on tasks: removed layers on STS-B and Reuters, the exit layer on Reuters and 20 Newsgroups.

    python benchmarks/compression_tasks.py              # about twenty minutes on two cores
    python benchmarks/compression_tasks.py --task STS   # the tasks whose name has this word; others stay

`compress` chooses a layer from texts without labels, or from scored pairs. Here every other choice is made too, and all
of them are scored on the task: what is lost against the best choice, which nobody can know beforehand? In the same way
`exit` chooses a layer from training texts, and every layer is scored on the test part of the corpus. Writes
benchmarks/results/compression_tasks.json; `compression.py --write-docs` puts it into docs/compression.md.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from measure import RESULTS, record
from packaged_encoders import MINILM, fine_tuned
from packaged_texts import lee, lee_pairs, newsgroups, reuters, sts_b
from scipy.stats import spearmanr

import metastable as ms
from metastable.encoder.compress import surgery
from metastable.encoder.compress.build import Builder
from metastable.encoder.compress.fidelity import unit
from metastable.encoder.compress.pairs import LEAST, deal, read_pairs
from metastable.encoder.compress.recipe import Recipe
from metastable.encoder.compress.surgery import Removal
from metastable.encoder.exit.labelled import Target
from metastable.encoder.exit.probes import PENALTIES, fit
from metastable.encoder.exit.study import pooled_states
from metastable.encoder.load import Encoder, load
from metastable.encoder.pooling import embed, pooling_of
from metastable.encoder.texts import batches

RECORD = RESULTS / "compression_tasks.json"
ENCODERS = {"MiniLM": lambda: MINILM, "fine-tuned MiniLM": fine_tuned}
LENGTH = 64
"""Texts are cut to this many tokens."""
FIT, SELECT = 192, 64
"""Texts without labels that `compress` gets to choose and to heal, as many as in a study."""
TRAIN, TEST = 1500, 1500
"""Texts of a classification task, at most."""
LOSS = 0.02
PAIRS = (60, 100, 200, 500, 1000, 1500)
"""Numbers of scored pairs of the dev part of STS-B."""
DRAWS = 200
"""Draws of that many pairs."""
Scored = Sequence[tuple[float, str, str]]


def some(rows: Sequence[Any], count: int, seed: int = 0) -> list[Any]:
    return random.Random(seed).sample(list(rows), min(count, len(rows)))


def embedded(encoder: Encoder, texts: Sequence[str], pooling: str) -> np.ndarray[Any, Any]:
    """The embedding of each text, in its place."""
    parts = list(batches(encoder.tokenizer, texts, LENGTH, 32))
    numbers = np.concatenate([batch.numbers for batch in parts])
    found = embed(encoder, parts, pooling)
    return np.asarray(found[np.argsort(numbers)])


def cosines(encoder: Encoder, pooling: str, rows: Scored) -> np.ndarray[Any, Any]:
    """The cosine of each pair. A text that is in several pairs is embedded once."""
    texts = {text: number for number, text in enumerate(dict.fromkeys(text for row in rows for text in row[1:]))}
    found = unit(embedded(encoder, list(texts), pooling))
    first, second = (found[[texts[row[i]] for row in rows]] for i in (1, 2))
    return np.asarray((first * second).sum(axis=1))


def similarity(rows: Scored) -> Callable[[Encoder, str], float]:
    """A score: Spearman's correlation of cosines and human scores."""
    return lambda encoder, pooling: float(
        spearmanr(cosines(encoder, pooling, rows), [row[0] for row in rows]).statistic
    )


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


def by_count(smaller: dict[int, Encoder], scores: dict[int, float], pooling: str) -> list[dict[str, float]]:
    """What a choice by fewer pairs loses against the best layer, as mean and 95th percentile over draws.

    The choice is that of `compress` without its shortlist: the best healed layer on one half of the pairs.
    """
    rows = sts_b("dev")
    human = np.array([row[0] for row in rows])
    own = {layer: cosines(one, pooling, rows) for layer, one in smaller.items()}
    draw, best, found = np.random.default_rng(0), max(scores.values()), []
    for count in PAIRS:
        lost = []
        for _ in range(DRAWS):
            some = draw.choice(len(rows), size=count // 2, replace=False)
            lost.append(best - scores[max(own, key=lambda i: spearmanr(own[i][some], human[some]).statistic)])
        found.append({"pairs": count, "mean": float(np.mean(lost)), "percentile_95": float(np.quantile(lost, 0.95))})
    return found


def removals(name: str, word: str) -> Iterator[dict[str, Any]]:
    """One row a task: the score without each layer, and the layers that `compress` removes."""
    encoder = load(ENCODERS[name]()).private()
    pooling = pooling_of(encoder, None)
    unlabelled = {
        "STS-B": [text for row in sts_b("train") for text in row[1:]],
        "Lee": lee("lee_background"),
        "Reuters R8": [text for _, text in reuters("train")],
    }
    tasks: dict[str, Callable[[Encoder, str], float]] = {
        "STS-B": similarity(sts_b("test")),
        "Lee": similarity(lee_pairs()),
        "Reuters R8": accuracy,
    }
    for task, score in tasks.items():
        if word not in task:
            continue
        texts = some(list(dict.fromkeys(unlabelled[task])), FIT + SELECT, seed=1)
        fitted, selected = (list(batches(encoder.tokenizer, part, LENGTH, 32)) for part in (texts[:FIT], texts[FIT:]))
        builder = Builder(encoder, fitted, selected, pooling)
        layers = surgery.removable_layers(encoder.anatomy, encoder.model.config)
        smaller = {layer: builder.removed(Recipe(layers=1), Removal((layer,))).even for layer in layers}
        scores = {layer: score(one, pooling) for layer, one in smaller.items()}
        (chosen,) = builder.layers(1, "greedy")
        labels: dict[str, Any] = {}
        if task != "Reuters R8":
            pairs = read_pairs([(a, b, number) for number, a, b in sts_b("dev")])
            half = deal(encoder, pairs, LENGTH, 32, seed=0).select
            knowing = replace(builder, task=lambda one, half=half: half.correlation(one, pooling), greedy=[])
            labels["with_pairs"] = {"pairs": len(pairs), "chosen": knowing.layers(1, "greedy")[0]}
        if task == "STS-B":
            labels["by_count"] = by_count(smaller, scores, pooling)
        yield {
            "kind": "removed layer",
            "encoder": name,
            "task": task,
            "full": score(encoder, pooling),
            "chosen": chosen,
            "scores": {str(layer): value for layer, value in scores.items()},
            **labels,
        }


def exits(name: str, word: str) -> Iterator[dict[str, Any]]:
    """One row a task: the score of each layer on texts that are new, and the layer that `exit` chooses."""
    path = ENCODERS[name]()
    encoder = load(path)
    pooling = pooling_of(encoder, None)
    for task, corpus in (("Reuters R8", reuters), ("20 Newsgroups", newsgroups)):
        if word not in task:
            continue
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
        "Does a removed layer cost points of a task? A layer that is best for embeddings in general need not be best "
        "for a task, so a choice without labels can lose points that another layer would have kept."
    )
    yield from (
        "",
        "- *Removed layer*: the score of the task after one layer was removed and the rest refitted. *Chosen*: the "
        "layer that `compress` chooses from texts without labels. *With pairs*: the layer that it chooses with "
        "`--pairs`, from 1500 pairs of the dev part of STS-B, of which 750 choose. *Best*: the layer that is best on "
        "the test part, which nobody can know beforehand.",
        f"- *Exit layer*: the layer that `exit` chose from {TRAIN} training texts with a loss of at most {LOSS:g}, "
        "scored on the test part of the corpus. *Promised difference*: the interval of the difference to full depth "
        "that `exit` prints, and the difference that was found.",
        "- STS-B is scored by Spearman's correlation of cosines and human scores, and so is Lee, all pairs of 50 news "
        "stories. Reuters R8 and 20 Newsgroups are scored by the accuracy of a linear probe.",
        "- Lee has no pairs of its own to give: each story is in 49 pairs, and the two halves of the pairs must share "
        "no text. Its column *with pairs* shows what pairs of another task, STS-B, do there.",
    )
    yield ""
    yield (
        "| | encoder | task | full depth | chosen | with pairs | best | chosen − best | with pairs − best | promised "
        "difference |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        scores = {int(layer): value for layer, value in row["scores"].items()}
        chosen = row["chosen"]
        best = max(scores, key=lambda layer: scores[layer])
        given = row.get("promised")
        interval = (
            f"{given['low']:+.3f} to {given['high']:+.3f}, found {scores[chosen] - row['full']:+.3f}" if given else ""
        )
        layer = row["with_pairs"]["chosen"] if "with_pairs" in row else None
        cells = (
            row["kind"],
            row["encoder"],
            row["task"],
            f"{row['full']:.4f}",
            f"{scores[chosen]:.4f} (layer {chosen})",
            "" if layer is None else f"{scores[layer]:.4f} (layer {layer})",
            f"{scores[best]:.4f} (layer {best})",
            f"{scores[chosen] - scores[best]:+.4f}",
            "" if layer is None else f"{scores[layer] - scores[best]:+.4f}",
            interval,
        )
        yield f"| {' | '.join(cells)} |"
    counted = [row for row in rows if "by_count" in row]
    if counted:
        yield from _few_pairs(counted)


def _few_pairs(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What fewer pairs lose."""
    yield ""
    yield (
        "How many pairs are enough? The table has the loss on the test part of STS-B against the best layer if the "
        "layer is chosen by this many pairs of the dev part, of which one half chooses: the mean and, in brackets, the "
        f"95th percentile of {DRAWS} draws. `compress` asks for at least {LEAST} pairs."
    )
    yield ""
    heads = [f"{one['pairs']} pairs" for one in rows[0]["by_count"]]
    yield f"| encoder | without labels | {' | '.join(heads)} |"
    yield "|---|---|" + "---|" * len(rows[0]["by_count"])
    for row in rows:
        missed = max(row["scores"].values()) - row["scores"][str(row["chosen"])]
        cells = [f"{one['mean']:.4f} ({one['percentile_95']:.4f})" for one in row["by_count"]]
        yield f"| {' | '.join([row['encoder'], f'{missed:.4f}', *cells])} |"


def main(arguments: Iterable[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="", help="only the tasks whose name has this word")
    word = parser.parse_args(list(arguments)).task
    kept = json.loads(RECORD.read_text())["rows"] if word and RECORD.is_file() else []
    known = {_place(row): row for row in kept}
    for name in ENCODERS:
        for found in (removals(name, word), exits(name, word)):
            for row in found:
                print(row["kind"], name, row["task"], file=sys.stderr, flush=True)
                known[_place(row)] = row
    record("compression_tasks", [known[place] for place in sorted(known)])


def _place(row: dict[str, Any]) -> tuple[int, ...]:
    """The place of a row in the table."""
    orders = (("removed layer", "exit layer"), tuple(ENCODERS), ("STS-B", "Lee", "Reuters R8", "20 Newsgroups"))
    return tuple(order.index(row[name]) for order, name in zip(orders, ("kind", "encoder", "task"), strict=True))


if __name__ == "__main__":
    main(sys.argv[1:])
