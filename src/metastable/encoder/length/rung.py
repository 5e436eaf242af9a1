"""One rung of the ladder: an encoder on documents of one length, document by document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metastable.encoder.anatomy import AttentionLayer
from metastable.encoder.hooks import Depth, read
from metastable.encoder.length import dilution
from metastable.encoder.length.documents import Documents
from metastable.encoder.length.temperature import sharpened
from metastable.encoder.load import Encoder
from metastable.encoder.measure import longest_text
from metastable.encoder.statistics import effective_rank, mean_cosine, mean_square_cosine
from metastable.errors import BadInput

Floats = NDArray[np.float64]

QUERIES = 64
"""Attention, effective ranks and squared cosines are measured for this many tokens of a text, evenly spaced between the
special tokens at its ends. A special token inside a text counts as a query like any other."""

DEPTHS = ("mean_cosine", "mean_square_cosine", "effective_rank", "hidden_cosine")
"""Statistics of the tokens of a text at a depth. Effective rank and squared cosines are those of `QUERIES` tokens at
every length."""


@dataclass(frozen=True)
class Rung:
    """The statistics of each document at n tokens.

    heads : by name (`dilution.MEASURED`), (documents, layers, heads)
    forecasts : by name (`dilution.STATISTICS`), (documents, layers, heads, targets), forecasts at `targets`
    steps : by name (`dilution.multiplied`), (documents, layers, heads), the entropy at the last of the targets
    depths : by name (`DEPTHS`), (documents, depths)
    pooled : (documents, d), the embedding of each document
    """

    n: int
    targets: tuple[int, ...]
    heads: dict[str, Floats]
    forecasts: dict[str, Floats]
    steps: dict[str, Floats]
    depths: dict[str, Floats]
    pooled: Floats

    def __len__(self) -> int:
        return len(self.pooled)

    def some(self, chosen: Any) -> Rung:
        """The same for some of the documents: indices, a slice or a mask."""
        groups = {
            name: {key: value[chosen] for key, value in getattr(self, name).items()}
            for name in ("heads", "forecasts", "steps", "depths")
        }
        return Rung(self.n, self.targets, **groups, pooled=self.pooled[chosen])

    @classmethod
    def joined(cls, parts: Sequence[Rung]) -> Rung:
        """The documents of all parts, in order."""
        groups = {
            name: {key: np.concatenate([getattr(part, name)[key] for part in parts]) for key in getattr(parts[0], name)}
            for name in ("heads", "forecasts", "steps", "depths")
        }
        return cls(parts[0].n, parts[0].targets, **groups, pooled=np.concatenate([part.pooled for part in parts]))


@dataclass(frozen=True)
class Job:
    """Documents of one length, few enough for one pass, and what to compute from them. Workers can run it.

    targets, place : see `LengthMeter.measure`
    factor : of the scores, see `temperature`
    embeddings : only the embeddings, not the statistics
    """

    documents: Documents
    targets: tuple[int, ...] = ()
    place: PlaceInDocument | None = None
    factor: float = 1.0
    embeddings: bool = False


Work = Callable[["LengthMeter", Sequence[Job]], Iterable[Any]]
"""Runs jobs and returns their results in order: `LengthMeter.run` for each job, here or on workers."""


def run_here(meter: LengthMeter, jobs: Sequence[Job]) -> Iterator[Any]:
    return map(meter.run, jobs)


class LengthMeter:
    """An encoder ready to be measured on documents.

    pooling : "mean" or "max" over all tokens, or "cls", the first token
    """

    def __init__(
        self,
        encoder: Encoder,
        pooling: str,
        batch_size: int = 32,
        progress: Callable[[int], None] | None = None,
        work: Work = run_here,
    ) -> None:
        self.encoder = encoder.private()
        self.pooling, self.batch_size, self.work = pooling, batch_size, work
        self.positions = position_table(self.encoder.model)
        self.limit = longest_text(self.encoder.anatomy)
        self._progress, self._done = progress, 0

    def measure(self, documents: Documents, targets: Sequence[int] = (), place: PlaceInDocument | None = None) -> Rung:
        """Documents of one length.

        targets : lengths to forecast
        place : where the positions of the tokens are moved; nothing moves without a table of positions
        """
        parts = documents.parts(self.batch_size)
        return Rung.joined(self._results([Job(part, tuple(targets), place) for part in parts]))

    def embed(self, documents: Documents, factor: float = 1.0) -> Floats:
        """The embedding of each document, of any lengths, (documents, d), with scores multiplied by `factor`."""
        order = sorted(range(len(documents)), key=documents.length)
        parts = documents.of(documents.ids[i] for i in order).parts(self.batch_size)
        found = self._results([Job(part, factor=factor, embeddings=True) for part in parts])
        return np.asarray(np.concatenate(found)[np.argsort(order)])

    def _results(self, jobs: Sequence[Job]) -> list[Any]:
        found = []
        for job, result in zip(jobs, self.work(self, jobs), strict=True):
            found.append(result)
            self._done += len(job.documents) * job.documents.length(0)
            if self._progress is not None:
                self._progress(self._done)
        return found

    def run(self, job: Job) -> Rung | Floats:
        """The statistics of a job's documents, or their embeddings, (documents, d)."""
        with moved(self.positions, job.place), sharpened(self.encoder, job.factor):
            if job.embeddings:
                return self._pooled(self.encoder.run(job.documents.batch().inputs).last_hidden_state)
            return self._rung(job.documents, job.targets)

    def _rung(self, documents: Documents, targets: Sequence[int]) -> Rung:
        batch, n = documents.batch(), documents.length(0)
        queries = _evenly(len(documents.before), n - len(documents.after)).to(self.encoder.device)
        heads: list[dict[str, Tensor]] = []
        ahead: list[dict[str, Tensor]] = []
        steps: list[dict[str, Tensor]] = []
        depths: list[dict[str, Tensor]] = []
        last: list[Tensor] = []
        ordinary = [target - documents.added for target in targets]

        def visit(depth: Depth) -> None:
            chosen = depth.passage.chosen
            hidden = depth.tokens.hidden
            depths.append(
                {
                    "mean_cosine": mean_cosine(depth.tokens.unit, chosen),
                    "mean_square_cosine": mean_square_cosine(depth.tokens.unit[:, queries]),
                    "effective_rank": effective_rank(depth.tokens.unit[:, queries]),
                    "hidden_cosine": mean_cosine(nn.functional.normalize(hidden, dim=-1), chosen),
                }
            )
            if depth.index == len(self.encoder.anatomy.layers):
                last.append(hidden)
                return
            layer = self.encoder.anatomy.layers[depth.index]
            scores = query_scores(layer, depth.x, queries)
            groups = dilution.Groups(scores, queries, ~chosen, dilution.WINDOW * n)
            heads.append(dilution.measured(groups))
            if targets:
                ahead.append(dilution.forecast(groups, ordinary))
                steps.append(dilution.multiplied(groups, ordinary[-1], n - documents.added))

        read(self.encoder, batch, "exclude", range(len(self.encoder.anatomy.layers) + 1), visit)
        return Rung(
            n,
            tuple(targets),
            heads=_stacked(heads),
            forecasts=_stacked(ahead),
            steps=_stacked(steps),
            depths=_stacked(depths),
            pooled=self._pooled(last[0]),
        )

    def _pooled(self, hidden: Tensor) -> Floats:
        poolings = {"cls": lambda: hidden[:, 0], "max": lambda: hidden.amax(dim=1), "mean": lambda: hidden.mean(dim=1)}
        found = poolings[self.pooling]().double().cpu().numpy()
        if not np.isfinite(found).all() or not found.any(axis=1).all():
            raise BadInput("the encoder returns an embedding that is zero or not finite, which has no direction")
        return np.asarray(found)


def query_scores(layer: AttentionLayer, x: Tensor, queries: Tensor) -> Tensor:
    """The scores of some queries over all keys, (texts, heads, queries, n); −inf for a key that is not seen."""
    k = layer.key(x)
    if layer.scores is not None:
        # All pairs of tokens at once: one text after the other bounds the memory, see `longest_text`.
        q = layer.query(x)
        return torch.cat([layer.scores(q[i : i + 1], k[i : i + 1])[:, :, queries] for i in range(len(x))])
    return layer.scale * layer.query(x[:, queries]) @ k.transpose(-1, -2)


def _evenly(first: int, end: int) -> Tensor:
    """At most `QUERIES` positions from `first` to before `end`, evenly spaced."""
    count = min(QUERIES, end - first)
    return torch.linspace(first, end - 1, count, dtype=torch.float64).round().long()


def unit(vectors: Floats) -> Floats:
    """Each vector divided by its length, (…, d)."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def _stacked(parts: list[dict[str, Tensor]]) -> dict[str, Floats]:
    """(texts, …) of each layer or depth → (texts, layers, …)."""
    return {
        name: torch.stack([part[name] for part in parts], dim=1).double().cpu().numpy()
        for name in (parts[0] if parts else ())
    }


def position_table(model: Any) -> nn.Embedding | None:
    """The table of absolute positions; None for an encoder with relative or rotary positions only."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module
    return None


@dataclass(frozen=True)
class PlaceInDocument:
    """Positions of a short text in a long one: tokens from number `at` on are `gap` places later.

    Only absolute positions move. Biases of relative positions stay those of the short text.
    """

    gap: int
    at: int

    def __call__(self, positions: Tensor) -> Tensor:
        later = torch.arange(positions.shape[-1], device=positions.device) >= self.at
        return positions + self.gap * later


@contextmanager
def moved(table: nn.Embedding | None, place: PlaceInDocument | None) -> Iterator[None]:
    """Within this context the positions of every pass are moved. The table must belong to a private model."""
    if table is None or place is None:
        yield
        return
    handle = table.register_forward_pre_hook(lambda _, arguments: (place(arguments[0]),))
    try:
        yield
    finally:
        handle.remove()
