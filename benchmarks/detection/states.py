"""What an encoder does with a set of texts, kept whole: the tokens at every depth, and all statistics of `Meter`.

This is for exploring, where hundreds of features are tried on the same passes. A monitor keeps none of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import attacks
import numpy as np
import torch
from corpora import CACHE

from metastable.encoder.loading import Encoder
from metastable.encoder.measuring import Meter
from metastable.encoder.measuring_tokens import Tokens, evaluating, watching
from metastable.encoder.statistics import CLOUD, cloud
from metastable.encoder.texts import Batch, batches

HEADS = ("entropy", "logit_gap", "special_share", "share_in_E", "maximiser_angle", "update_length")
LAYERS = ("update_length", "residual")


@dataclass(frozen=True)
class States:
    """A set of texts, in its order; T tokens in all, special ones left out; depths 0, …, L.

    tokens : (T, L + 1, d) of float16, x̂ at each depth
    ids : (T,), the tokens' numbers in the vocabulary
    starts : (texts + 1,), text k has the tokens starts[k] … starts[k + 1] − 1
    embeddings : (texts, d), sentence embeddings
    clouds : (texts, statistics of CLOUD, L + 1)
    layers : (texts, LAYERS, L)
    heads : (texts, HEADS, L, heads)
    """

    tokens: np.ndarray
    ids: np.ndarray
    starts: np.ndarray
    embeddings: np.ndarray
    clouds: np.ndarray
    layers: np.ndarray
    heads: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, special ones left out, (texts,)."""
        return np.diff(self.starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def take(self, chosen: Sequence[int] | np.ndarray) -> States:
        """The chosen texts, in the order given."""
        chosen = np.asarray(chosen)
        places = [np.arange(self.starts[k], self.starts[k + 1]) for k in chosen]
        where = np.concatenate(places) if len(places) else np.zeros(0, dtype=np.int64)
        return States(
            tokens=self.tokens[where],
            ids=self.ids[where],
            starts=np.concatenate([[0], np.cumsum(self.lengths[chosen])]).astype(np.int64),
            embeddings=self.embeddings[chosen],
            clouds=self.clouds[chosen],
            layers=self.layers[chosen],
            heads=self.heads[chosen],
        )


def states(encoder: Encoder, texts: Sequence[str]) -> States:
    """The states of texts, from the cache where they are."""
    key = hashlib.sha256(json.dumps([encoder.fingerprint, *texts]).encode()).hexdigest()[:16]
    path = CACHE / f"states-{key}.npz"
    if not path.is_file():
        found = _measured(encoder, list(texts))
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, **vars(found))
        partial.rename(path)
    with np.load(path) as saved:
        return States(**{name: saved[name] for name in saved.files})


class _Reader:
    """Takes everything from one batch as it passes through the depths."""

    def __init__(self, meter: Meter, batch: Batch) -> None:
        self.meter, self.batch = meter, batch
        self.chosen = batch.mask & ~batch.special
        self.betas = [*meter.betas, meter.betas[-1]]
        self.units: list[np.ndarray] = []
        self.clouds: list[np.ndarray] = []
        self.layers: list[np.ndarray] = []
        self.heads: list[np.ndarray] = []
        self.before: Tokens | None = None

    def visit(self, depth: int, tokens: Tokens) -> None:
        self.units.append(tokens.unit.half().numpy())
        self.clouds.append(_columns(cloud(tokens.unit, self.chosen, self.betas[depth]), CLOUD))
        if self.before is not None:
            lens = self.meter.lenses[depth - 1]
            layer, heads = lens.measure(self.before, tokens, self.batch.mask, self.batch.special, self.chosen)
            self.layers.append(_columns(layer, LAYERS))
            self.heads.append(_columns(heads, HEADS))
        self.before = tokens


def _columns(found: dict[str, torch.Tensor], names: tuple[str, ...]) -> np.ndarray:
    return np.stack([found[name].double().numpy() for name in names], axis=1)


def _measured(encoder: Encoder, texts: list[str]) -> States:
    meter = Meter(encoder)
    rows: dict[int, list[np.ndarray]] = {}
    for batch in batches(encoder.reads_text(), texts, meter.limit, 32):
        reader = _Reader(meter, batch)
        with evaluating(encoder.model), watching(encoder.anatomy, batch.mask, reader.visit):
            hidden = encoder.model(**batch.inputs).last_hidden_state
            embedded = attacks.embeddings(hidden, batch.mask).numpy()
        for place, number in enumerate(batch.numbers.tolist()):
            keep = reader.chosen[place].numpy()
            rows[number] = [
                np.stack([unit[place][keep] for unit in reader.units], axis=1),
                batch.inputs["input_ids"][place].numpy()[keep],
                embedded[place],
                np.stack([part[place] for part in reader.clouds], axis=-1),
                np.stack([part[place] for part in reader.layers], axis=-1),
                np.stack([part[place] for part in reader.heads], axis=1),
            ]
    kept = [rows[number] for number in sorted(rows)]
    lengths = [len(row[1]) for row in kept]
    return States(
        tokens=np.concatenate([row[0] for row in kept]),
        ids=np.concatenate([row[1] for row in kept]),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        embeddings=np.stack([row[2] for row in kept]),
        clouds=np.stack([row[3] for row in kept]),
        layers=np.stack([row[4] for row in kept]),
        heads=np.stack([row[5] for row in kept]),
    )
