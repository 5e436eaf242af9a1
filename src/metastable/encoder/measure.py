"""What the layers and heads of an encoder do on texts: the mean of every statistic over texts, with its interval.

The n of a text is the number of tokens that the model sees, special tokens included. The cloud of a text is its
ordinary tokens (all tokens with special="include"). Tokens may attend to special tokens, but never to padding.

Queries, keys and mean values are those that the model itself computed in the same pass. What else a head needs of a
token is linear in z (see `fold`): the part of z along the head's updates, W_oᵀCz, and the coordinates in its eigenspace
E. One matrix product serves all heads. Scores are scale·⟨q, Kz⟩, up to a constant for each query, which does not enter
any statistic.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metastable.arrays import set_own_threads
from metastable.encoder.anatomy import Anatomy, AttentionLayer
from metastable.encoder.exact_sums import ExactCosine, ExactSums, Floats
from metastable.encoder.hooks import Attended, Depth, DepthTokens, caught, read
from metastable.encoder.statistics import (
    CLOUD,
    averaged,
    cloud,
    embeddings,
    largest_feature,
    mean_cosine,
    two_atom_distance,
)
from metastable.encoder.texts import SPECIAL, Batch, TextCounts, batches
from metastable.encoder.weights import SmallTheory, Theories, on_one_core, theories
from metastable.errors import BadInput, choice
from metastable.theory import Theory

if TYPE_CHECKING:
    import pandas as pd

    from metastable.encoder.load import Encoder

HEADS = (
    *("entropy", "logit_gap", "special_share", "share_in_E", "maximiser_angle", "update_length"),
    *("distance_before", "distance_after", "approach", "predicted_approach"),
)
"""Statistics of a head on a text, by name; see `HeadLens.measure`."""

LAYER = ("update_length", "residual")
"""Statistics of a layer on a text."""

CHUNK = 2**19
"""The largest number of scores in one array: 2 MB of float32, which stay in the cache of a processor."""

MOST_BATCHES = 8
"""At most this many batches are computed at a time, which bounds the memory."""

LOWEST = -1e30
"""Added to a score, it hides a key."""

SAME_LENGTH = 5e-7
"""Tokens whose lengths differ by at most this share have the same length; the rounding of float32 is about 1e-7."""

SCORES = 2**24
"""The largest number of scores of one text in a layer that computes them all at once, because they depend on
positions: 64 MB of float32."""

DEPTHS = (*CLOUD, "hidden_cosine", "largest_share", "cosine_without", "hidden_largest_share", "hidden_cosine_without")
"""Statistics of the tokens of a text at a depth, see `statistics.cloud` and `largest_feature`. Those named hidden_… are
of the hidden states as the model returns them, with the gains and offsets of the normalisations."""
CLOUDS = ("tokens", "hidden")
"""The two clouds whose largest features are counted."""


Largest = dict[str, list[list[int]]]
"""By cloud and depth, the feature with the most energy of each text."""


@dataclass
class Measurements:
    """Statistics of an encoder on texts.

    depths : sums by name (see `DEPTHS`), of shape (L + 1,): the input of each layer and the output of the encoder
    layers, heads : sums by name (see `HeadLens.measure`), of shapes (L,) and (L, heads)
    betas : (L,), the median effective β of the heads of each layer. The energy at depth L uses that of the last layer.
    applicable, dims, random_share : (L, heads), see `Prediction` and `HeadLens`
    lengths : how many texts had n tokens, by n
    largest : by cloud (see `CLOUDS`) and depth, in how many texts a feature had the most energy, by its number
    special : "exclude" or "include", whether special tokens belong to the cloud
    embeddings : the mean cosine between two texts, each the mean of its last hidden states, see
        `statistics.embeddings`. A copy of a text counts as another text. None in files that were written without it.
    """

    depths: dict[str, ExactSums]
    layers: dict[str, ExactSums]
    heads: dict[str, ExactSums]
    betas: Floats
    applicable: np.ndarray
    dims: np.ndarray
    random_share: Floats
    special: str
    lengths: Counter[int] = field(default_factory=Counter)
    counts: TextCounts = field(default_factory=TextCounts)
    largest: dict[str, list[Counter[int]]] = field(default_factory=dict)
    embeddings: ExactCosine | None = None

    def __post_init__(self) -> None:
        if not self.largest:
            self.largest = {name: [Counter() for _ in range(len(self.betas) + 1)] for name in CLOUDS}

    def depth_table(self) -> pd.DataFrame:
        """One row per depth; for each statistic NAME the columns NAME, NAME_low, NAME_high and NAME_slope.

        low and high are the 95 % interval of the mean over texts, and slope is the change for each doubling of n. A
        layer is at the depth of its input, so the statistics of layers are NaN at the last depth.
        """
        import pandas as pd

        columns: dict[str, Any] = {"depth": np.arange(len(self.betas) + 1)}
        for name, tally in self.depths.items():
            columns |= columns_of(name, tally)
        for name, tally in self.layers.items():
            columns |= {key: np.append(value, np.nan) for key, value in columns_of(name, tally).items()}
        return pd.DataFrame(columns | {"beta": np.append(self.betas, self.betas[-1])})

    def head_table(self) -> pd.DataFrame:
        """One row per head: the columns as in `depth_table`, and `applicable`, `dim_E` and `random_share`."""
        import pandas as pd

        layer, head = np.indices(self.applicable.shape)
        columns: dict[str, Any] = {"layer": layer, "head": head, "applicable": self.applicable, "dim_E": self.dims}
        columns["random_share"] = self.random_share
        for name, tally in self.heads.items():
            columns |= columns_of(name, tally)
        return pd.DataFrame({name: np.ravel(column) for name, column in columns.items()})

    def merge(self, other: Measurements) -> Measurements:
        """The statistics of the texts of both, measured with the same encoder; exact in any order."""
        if self.special != other.special or not np.array_equal(self.betas, other.betas):
            raise BadInput("measurements of different encoders, or with special tokens in and out, cannot be merged")
        groups = ("depths", "layers", "heads")
        merged = {g: {k: v.merge(getattr(other, g)[k]) for k, v in getattr(self, g).items()} for g in groups}
        lengths, counts = self.lengths + other.lengths, self.counts + other.counts
        largest = {
            name: [own + more for own, more in zip(every, other.largest[name], strict=True)]
            for name, every in self.largest.items()
        }
        rest: dict[str, Any] = {"lengths": lengths, "counts": counts, "largest": largest, "embeddings": None}
        if self.embeddings is not None and other.embeddings is not None:
            rest["embeddings"] = self.embeddings.merge(other.embeddings)
        return Measurements(**{**vars(self), **merged, **rest})

    def to_dict(self) -> dict[str, Any]:
        """Everything, exactly, for JSON."""
        arrays = {name: getattr(self, name).tolist() for name in ("betas", "applicable", "dims")}
        shares = [[None if np.isnan(s) else s for s in row] for row in self.random_share.tolist()]
        tallies = {g: {k: v.to_dict() for k, v in getattr(self, g).items()} for g in ("depths", "layers", "heads")}
        rest: dict[str, Any] = {"random_share": shares, "special": self.special, "counts": vars(self.counts).copy()}
        largest = {name: [_ordered(depth) for depth in every] for name, every in self.largest.items()}
        rest["embeddings"] = None if self.embeddings is None else self.embeddings.to_dict()
        return {**tallies, **arrays, **rest, "lengths": _ordered(self.lengths), "largest": largest}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Measurements:
        groups = {g: {k: ExactSums.from_dict(v) for k, v in saved[g].items()} for g in ("depths", "layers", "heads")}
        return cls(
            **groups,
            betas=np.array(saved["betas"], dtype=np.float64),
            applicable=np.array(saved["applicable"], dtype=bool),
            dims=np.array(saved["dims"], dtype=np.int64),
            random_share=np.array(saved["random_share"], dtype=np.float64),
            special=saved["special"],
            lengths=_counter(saved["lengths"]),
            counts=TextCounts(**saved["counts"]),
            largest={name: [_counter(depth) for depth in every] for name, every in saved["largest"].items()},
            embeddings=ExactCosine.from_dict(saved["embeddings"]) if saved.get("embeddings") else None,
        )


def _ordered(counter: Counter[int]) -> dict[str, int]:
    """A counter for JSON."""
    return {str(key): counter[key] for key in sorted(counter)}


def _counter(saved: dict[str, int]) -> Counter[int]:
    return Counter({int(key): count for key, count in saved.items()})


def columns_of(name: str, tally: ExactSums) -> dict[str, Floats]:
    """The columns of a table that show a statistic: NAME, NAME_low, NAME_high and NAME_slope."""
    low, high = tally.interval()
    return {name: tally.mean(), f"{name}_low": low, f"{name}_high": high, f"{name}_slope": tally.slope()[0]}


def longest_text(anatomy: Anatomy) -> int:
    """The longest text that can be measured, in tokens: the limit of the encoder, or less where memory limits it.

    Scores that depend on positions are computed for all pairs of tokens at once.
    """
    all_at_once = [layer.heads for layer in anatomy.layers if layer.scores is not None]
    return min([anatomy.limit, *(int((SCORES / heads) ** 0.5) for heads in all_at_once)])


class Meter:
    """An encoder ready to be measured, batch by batch: the statistics of each text, before any average over texts.

    known : the `theories` of its heads, if they are there already
    cores : how many cores torch may use
    """

    def __init__(self, encoder: Encoder, special: str = "exclude", known: Theories | None = None) -> None:
        self.encoder = encoder = encoder.private()
        self.cores = torch.get_num_threads() if encoder.device.type == "cpu" else 1
        self.special = choice(special, "special", SPECIAL)
        known = theories(encoder.anatomy) if known is None else known
        self.lenses = [HeadLens(*pair) for pair in zip(encoder.anatomy.layers, known, strict=True)]
        self.betas = np.array([lens.beta for lens in self.lenses])
        self.limit = min(longest_text(encoder.anatomy), encoder.limit)

    def empty(self) -> Measurements:
        """No texts yet."""
        shape = (len(self.lenses), self.lenses[0].layer.heads)
        return Measurements(
            depths={name: ExactSums((len(self.lenses) + 1,)) for name in DEPTHS},
            layers={name: ExactSums((len(self.lenses),)) for name in LAYER},
            heads={name: ExactSums(shape) for name in HEADS},
            betas=self.betas,
            applicable=np.stack([lens.prediction.applicable for lens in self.lenses]),
            dims=np.stack([lens.prediction.dims for lens in self.lenses]),
            random_share=np.stack([lens.random_share for lens in self.lenses]),
            special=self.special,
            embeddings=ExactCosine(self.lenses[0].layer.width),
        )

    def measure(self, batch: Batch) -> Statistics:
        """Each text's statistics: of depths (texts, L + 1), of layers (texts, L), of heads (texts, L, heads).

        Also the largest feature of each text, by cloud and depth, and its embedding, (texts, d).
        """
        betas = [*self.betas, self.betas[-1]]
        clouds: list[dict[str, Tensor]] = []
        layers: list[dict[str, Tensor]] = []
        heads: list[dict[str, Tensor]] = []
        largest: Largest = {name: [] for name in CLOUDS}
        before: list[DepthTokens] = []
        embedded: list[Tensor] = []

        def visit(depth: Depth) -> None:
            tokens, mask, chosen = depth.tokens, depth.passage.mask, depth.passage.chosen
            found = cloud(tokens.unit, chosen, betas[depth.index])
            hidden = torch.nn.functional.normalize(tokens.hidden, dim=-1)
            found["hidden_cosine"] = mean_cosine(hidden, chosen)
            for name, unit, prefix in (("tokens", tokens.unit, ""), ("hidden", hidden, "hidden_")):
                feature, share, without = largest_feature(unit, chosen)
                found |= {f"{prefix}largest_share": share, f"{prefix}cosine_without": without}
                largest[name].append(feature.tolist())
            clouds.append(found)
            if before:
                special = batch.special.to(mask.device)
                place = depth.index - 1
                attended = Attended.of(blocks[place], seen)
                of_layer, of_heads = self.lenses[place].measure(before[0], attended, tokens, mask, special, chosen)
                layers.append(of_layer)
                heads.append(of_heads)
            before[:] = [tokens]
            seen.clear()
            if depth.index == len(self.lenses):
                embedded.append(embeddings(tokens.hidden, chosen))

        blocks = self.encoder.anatomy.blocks
        with caught(part for block in blocks for part in (*block.linears, block.output)) as seen:
            read(self.encoder, batch, self.special, range(len(betas)), visit)
        return _stacked(clouds), _stacked(layers), _stacked(heads), largest, embedded[0].cpu().numpy()

    def tally(
        self, texts: Iterable[str], batch_size: int = 32, progress: Callable[[int], None] | None = None
    ) -> Measurements:
        """The sums over texts; `progress` is called after each batch with the number of texts done."""
        measured = self.empty()
        done = 0
        made = batches(self.encoder.reads_text(), texts, self.limit, batch_size, measured.counts)
        for batch, (depths, layers, heads, largest, embedded) in self._measured(made):
            lengths = batch.lengths.numpy()
            done += len(lengths)
            if measured.embeddings is not None:
                measured.embeddings.add(embedded)
            for tallies, values in ((measured.depths, depths), (measured.layers, layers), (measured.heads, heads)):
                for name, tally in tallies.items():
                    tally.add(values[name], lengths)
            measured.lengths.update(lengths.tolist())
            for name, every in largest.items():
                for counter, features in zip(measured.largest[name], every, strict=True):
                    counter.update(features)
            if progress is not None:
                progress(done)
        return measured

    def _measured(self, made: Iterator[Batch]) -> Iterator[tuple[Batch, Statistics]]:
        """Every batch with its statistics, in order.

        Cores share batches instead of operations, because most operations on a batch are too small to share. A batch
        that is alone has all cores.
        """
        shared, first = min(self.cores, MOST_BATCHES), list(islice(made, 2))
        if shared == 1 or len(first) < 2:
            yield from ((batch, self.measure(batch)) for batch in chain(first, made))
            return
        # Hooks belong to modules, so every thread has modules of its own.
        meters = [self, *(self._copy() for _ in range(shared - 1))]
        pools = [ThreadPoolExecutor(max_workers=1) for _ in meters]
        try:
            for pool in pools:
                pool.submit(set_own_threads, self.cores // shared, torch.get_num_threads()).result()
            waiting: deque[tuple[Batch, Future[Statistics]]] = deque()
            for number, batch in enumerate(chain(first, made)):
                if len(waiting) == 2 * shared:
                    yield waiting[0][0], waiting.popleft()[1].result()
                waiting.append((batch, pools[number % shared].submit(meters[number % shared].measure, batch)))
            while waiting:
                yield waiting[0][0], waiting.popleft()[1].result()
        finally:
            for pool in pools:
                pool.shutdown(cancel_futures=True)

    def _copy(self) -> Meter:
        """This meter with modules of its own."""
        other = copy(self)
        other.encoder, other.lenses = self.encoder.private(), [copy(lens) for lens in self.lenses]
        for lens, layer in zip(other.lenses, other.encoder.anatomy.layers, strict=True):
            lens.layer = layer
        return other


Statistics = tuple[dict[str, Floats], dict[str, Floats], dict[str, Floats], Largest, Floats]
"""See `Meter.measure`."""


def _stacked(parts: list[dict[str, Any]]) -> dict[str, Floats]:
    return {name: np.stack([part[name].double().cpu().numpy() for part in parts], axis=1) for name in parts[0]}


Tally = Callable[[Meter, Iterable[str], int, Callable[[int], None] | None], Measurements]


def measure(
    encoder: Encoder,
    texts: Iterable[str],
    batch_size: int = 32,
    special: str = "exclude",
    progress: Callable[[int], None] | None = None,
    tally: Tally = Meter.tally,
    known: Theories | None = None,
) -> Measurements:
    """Measure an encoder on texts, in memory that does not grow with their number.

    Texts longer than the model's limit are cut and counted. In layers whose scores depend on positions the limit is
    also at most √(2²⁴/heads) tokens. `progress` is called after each batch with the number of texts done.
    `tally` computes the sums over the texts, in this process or on workers. `known` is as in `Meter`.
    """
    measured = tally(Meter(encoder, special, known), texts, batch_size, progress)
    measured.counts.check()
    return measured


@dataclass(frozen=True)
class Prediction:
    """Where the theory sends tokens, for the heads of one layer.

    dims : (heads,), dim E; 0 for a head that does not concentrate tokens
    applicable : (heads,) of bool, whether the limit law is two atoms, so that distances to it are measured
    basis : (d, Σ dims), orthonormal bases of the E side by side; owner : (Σ dims,), the head of each column
    atoms, co_vectors : (d, number applicable), e and Λ of each applicable head: Πx = ⟨Λ, x⟩e, T(x) = e if ⟨Λ, x⟩ > 0
    rates : (number applicable,), c, for each layer
    """

    dims: np.ndarray
    applicable: np.ndarray
    basis: Tensor
    owner: Tensor
    atoms: Tensor
    co_vectors: Tensor
    rates: Tensor

    @classmethod
    def of(cls, theories: Sequence[Theory]) -> Prediction:
        # A rotating pair has no limit point, but a plane that tokens are drawn to.
        drawn = [theory.attention.rotates or not theory.no_limit for theory in theories]
        dims = np.array([theory.dim if there else 0 for theory, there in zip(theories, drawn, strict=True)])
        applicable = np.array([not theory.no_limit and theory.dim == 1 for theory in theories])
        two_atoms = [theory for theory, there in zip(theories, applicable, strict=True) if there]
        co_vectors = [t.co_basis / (t.co_basis[:, 0] @ t.basis[:, 0]) for t in two_atoms]
        none = theories[0].head.query.new_zeros(theories[0].head.dim, 0)
        return cls(
            dims=dims,
            applicable=applicable,
            basis=torch.cat([none, *(t.basis for t, there in zip(theories, drawn, strict=True) if there)], dim=1),
            owner=torch.from_numpy(np.repeat(np.arange(len(dims)), dims)),
            atoms=torch.cat([none, *(t.basis for t in two_atoms)], dim=1),
            co_vectors=torch.cat([none, *co_vectors], dim=1),
            rates=torch.tensor([t.rate for t in two_atoms], dtype=torch.float64),
        )


def _joined(parts: list[dict[str, Tensor]], dim: int) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts], dim=dim) for name in parts[0]}


def _same_length(length: Tensor, mask: Tensor) -> Tensor | None:
    """The length that all tokens of a text have to rounding, (texts,); None if some differ."""
    longest = torch.where(mask, length, 0.0).amax(dim=1)
    shortest = torch.where(mask, length, torch.inf).amin(dim=1)
    return longest if bool((longest - shortest <= SAME_LENGTH * longest).all()) else None


class HeadLens:
    """One layer's heads, folded and with their predictions, ready to measure batches; float32, where the layer is."""

    def __init__(self, layer: AttentionLayer, known: Sequence[SmallTheory]) -> None:
        folded, self.prediction = [theory.folded for theory in known], on_one_core(Prediction.of)(known)
        self.layer = layer
        self.beta = float(np.median([head.beta for head in folded]))
        self._speeds = self.prediction.rates * folded[0].residual
        key, key_offset, output = (
            torch.stack([getattr(head, name) for head in folded]) for name in ("key", "key_offset", "output")
        )
        centred = output - output.mean(dim=1, keepdim=True)
        # A token x̂ has no erased features, but z has them.
        atoms = self.prediction.atoms if layer.norm is None else self.prediction.atoms * layer.norm.seen.cpu()[:, None]
        predicted = torch.cat([self.prediction.basis, self.prediction.co_vectors, atoms], dim=1).T
        rows = torch.cat([centred.transpose(1, 2).reshape(-1, layer.width), predicted])

        self._like = like = layer.output.new_zeros((), dtype=torch.float32)
        self._rows = rows.to(like)
        self._key_gram = (key @ key.transpose(1, 2)).to(like)
        self._output_gram = (centred.transpose(1, 2) @ centred).to(like)
        self._key_offset = key_offset.unsqueeze(1).to(like)
        self._atoms = self.prediction.atoms.to(like)
        self._owner = self.prediction.owner.to(like.device)

    @property
    def random_share(self) -> np.ndarray:
        """dim E over the dimension of the space that tokens live in: the share in a random subspace; NaN without E."""
        room = self.layer.width - (self.layer.norm is not None)
        return np.where(self.prediction.dims > 0, self.prediction.dims / room, np.nan)

    def measure(
        self, tokens: DepthTokens, attended: Attended, after: DepthTokens, mask: Tensor, special: Tensor, chosen: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Statistics of the layer (texts,) and of its heads (texts, heads), averaged over the chosen tokens i.

        tokens, attended, after : the tokens before the layer, what its attention computed, and the next depth

        Of the layer: update_length = |P_z C u_i|/|C r_i| is the time that the layer spends. u is the whole attention
        update with its bias, r is the stream that it is added to, and C subtracts the mean over features. residual = ρ
        is the root mean square of C r.

        Of a head, where n is the number of keys that the query sees, special tokens included:
        entropy : −Σ_j a_ij log a_ij / log n
        logit_gap : (max_j s_ij − mean_j s_ij)/log n
        special_share : Σ a_ij over special tokens j
        share_in_E : |P_E x̂_i|²; compare `random_share`
        maximiser_angle : degrees between Bᵀz_i + a and the nearest token's x̂_j
        update_length : |P_z C u_i|/|C r_i| of this head alone
        distance_before, distance_after : W₂ (chordal) of the text's chosen tokens, before the layer and at the next
            depth, to the law T_# of those before it; NaN where that law is not two atoms
        approach : distance_before − distance_after
        predicted_approach : the same if this head alone, at zero temperature, moved the tokens to
            x' ∝ Πx̂ + e^{−c}(x̂ − Πx̂), with c for the ρ of this text: the slowest approach that the theory allows
        """
        texts, n, _ = tokens.z.shape
        heads = self.layer.heads
        flat = torch.nn.functional.linear(tokens.z, self._rows)
        atoms = self._atoms.shape[1]
        along, inside, predicted = flat.split((attended.mean.shape[-1], self.prediction.basis.shape[1], 2 * atoms), -1)
        query, key = (self._by_head(part) for part in (attended.query, attended.key))
        query.mul_(self.layer.scale)
        # K z: padding has none.
        key.sub_(self._key_offset).masked_fill_(~mask[:, None, :, None], 0.0)
        attention = self._attention(query, key, tokens.length, mask, special)
        found = {name: averaged(value, chosen) for name, value in attention.items()}

        squares = (inside / tokens.length.unsqueeze(-1)).square().transpose(1, 2)
        share = squares.new_zeros(texts, heads, n).index_add_(1, self._owner, squares)
        without = torch.from_numpy(self.prediction.dims == 0).to(share.device)
        found["share_in_E"] = torch.where(without, torch.nan, averaged(share, chosen))

        stream = self._residual(tokens)
        length = torch.where(chosen, stream, 1.0)
        found["update_length"] = averaged(self._own_update(attended.mean, along, tokens, length), chosen)
        whole = averaged(self._whole_update(attended.update, tokens, length), chosen)
        residual = (averaged(stream.double().square(), chosen) / self.layer.width).sqrt()

        side, ahead = (predicted / tokens.length.unsqueeze(-1)).split((atoms, atoms), dim=-1)
        found |= self._distances(side, ahead, after, residual, chosen)
        return {"update_length": whole, "residual": residual}, found

    def _distances(
        self, side: Tensor, along: Tensor, after: DepthTokens, residual: Tensor, chosen: Tensor
    ) -> dict[str, Tensor]:
        """The distances to the predicted law, (texts, heads).

        side, along : (texts, n, applicable), ⟨Λ, x̂⟩ and ⟨e, x̂⟩
        """
        up = ((side > 0) & chosen.unsqueeze(-1)).sum(dim=1)
        shrink = torch.exp(-self._speeds.to(along.device) / residual.unsqueeze(1)).to(along).unsqueeze(1)
        # x' = a e + q r with r = x̂ − a e: its part along e, and its length.
        rest = along - side
        square = (1 - 2 * side * along + side.square()).clamp_min(0)
        length = (side.square() + 2 * side * shrink * rest + shrink.square() * square).clamp_min(1e-30).sqrt()
        clouds = torch.stack([along, after.unit @ self._atoms, (side + shrink * rest) / length])
        distances = two_atom_distance(clouds.transpose(2, 3), up, chosen)
        applicable = torch.from_numpy(self.prediction.applicable).to(side.device)
        full = distances.new_full((3, len(side), len(applicable)), torch.nan)
        full[:, :, applicable] = distances
        before, reached, predicted = full
        return {
            "distance_before": before,
            "distance_after": reached,
            "approach": before - reached,
            "predicted_approach": before - predicted,
        }

    def _by_head(self, rows: Tensor) -> Tensor:
        """(texts, n, heads·w) → (texts, heads, n, w), a copy."""
        view = rows.unflatten(-1, (self.layer.heads, -1)).transpose(1, 2)
        return view.clone(memory_format=torch.contiguous_format)

    def _attention(self, q: Tensor, k: Tensor, length: Tensor, mask: Tensor, special: Tensor) -> dict[str, Tensor]:
        """`_attention_of` all queries, in pieces of at most `CHUNK` scores where the layer allows it."""
        texts, heads, n, _ = q.shape
        step = max(1, CHUNK // (heads * n * n))
        rows = n if step > 1 or self.layer.scores is not None else max(1, CHUNK // (heads * n))
        pieces = []
        for t in range(0, texts, step):
            T = slice(t, t + step)
            across = [
                self._attention_of(q[T, :, r : r + rows], k[T], length[T], mask[T], special[T])
                for r in range(0, n, rows)
            ]
            pieces.append(_joined(across, dim=2))
        return _joined(pieces, dim=0)

    def _attention_of(self, q: Tensor, k: Tensor, length: Tensor, mask: Tensor, special: Tensor) -> dict[str, Tensor]:
        """What needs all pairs of tokens, for some queries: (texts, heads, rows).

        Every pass over the scores counts here; an added number hides a key four times faster than a choice does.
        """
        plain = q @ k.transpose(-1, -2)
        shown, unseen, mean, keys = self._seen(plain, q, k, mask)
        top = shown.amax(dim=-1)
        same = _same_length(length, mask) if shown is plain else None
        if same is None:
            hidden = shown if shown is plain else plain + unseen
            nearest = (hidden * length.reciprocal()[:, None, None, :]).amax(dim=-1)
        else:
            nearest = top / same[:, None, None]
        aim = (q * (q @ self._key_gram)).sum(dim=-1).clamp_min(1e-30).sqrt()
        cosine = (nearest / aim).clamp(-1, 1)
        # e^{−80} is nothing beside the largest term, 1; below that numbers are subnormal and very slow.
        shown.sub_(top.unsqueeze(-1)).clamp_(min=-80)
        # e^{s_ij − top} as rows of a matrix for each text: products with columns are faster than sums over short rows.
        rows = shown.exp().flatten(1, 2)
        columns = torch.stack([torch.ones_like(special), special], dim=-1).to(q)
        total, to_special = (rows @ columns).unflatten(1, q.shape[1:3]).unbind(dim=-1)
        inner = (rows.mul_(shown.flatten(1, 2)) @ columns[:, :, :1]).view_as(top)
        log_n = torch.where(keys > 1, keys.to(q), torch.nan).log()
        return {
            "entropy": (total.log() - inner / total) / log_n,
            "logit_gap": (top - mean) / log_n,
            "special_share": to_special / total,
            "maximiser_angle": torch.rad2deg(torch.acos(cosine)),
        }

    def _seen(self, plain: Tensor, q: Tensor, k: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Scores that hide unseen keys, what hides them when added, the mean score and the number of seen keys."""
        if self.layer.scores is None:
            # Keys are 0 where there is padding. The mean score is that of the mean key: no pass over the scores.
            hidden, keys = plain.new_zeros(()).where(mask, LOWEST)[:, None, None, :], mask.sum(dim=-1)[:, None, None]
            mean = (q @ k.sum(dim=2).unsqueeze(-1)).squeeze(-1) / keys
            return plain.add_(hidden), hidden, mean, keys
        scores = self.layer.scores(q / self.layer.scale, k + self._key_offset)
        seen = mask[:, None, None, :] & scores.isfinite()
        hidden, keys = scores.new_zeros(()).where(seen, LOWEST), seen.sum(dim=-1)
        scores = torch.where(seen, scores, 0.0)
        return scores + hidden, hidden, scores.sum(dim=-1) / keys, keys

    def _residual(self, tokens: DepthTokens) -> Tensor:
        """|C r| for each token, (texts, n)."""
        if self.layer.pre_norm or self.layer.norm is None:
            return tokens.stream
        return torch.linalg.vector_norm(tokens.hidden - tokens.hidden.mean(dim=-1, keepdim=True), dim=-1)

    def _own_update(self, mean: Tensor, along: Tensor, tokens: DepthTokens, stream: Tensor) -> Tensor:
        """|P_z C W_o m|/|C r| for each head's m = Σ_j a_ij v_j, (texts, heads, n), without vectors of length d.

        |C W_o m|² = mᵀ(W_oᵀ C W_o)m and ⟨C W_o m, z⟩ = ⟨m, W_oᵀ C z⟩.

        mean, along : (texts, n, heads·r)
        """
        m = self._by_head(mean)
        square = torch.linalg.vecdot(m, m @ self._output_gram)
        products = (mean * along).unflatten(-1, (self.layer.heads, -1)).sum(dim=-1)
        radial = products.transpose(1, 2) / tokens.length.unsqueeze(1)
        return (square - radial.square()).clamp_min(0).sqrt() / stream.unsqueeze(1)

    def _whole_update(self, update: Tensor, tokens: DepthTokens, stream: Tensor) -> Tensor:
        update = update - update.mean(dim=-1, keepdim=True)
        radial = torch.linalg.vecdot(update, tokens.unit).unsqueeze(-1)
        return torch.linalg.vector_norm(torch.addcmul(update, radial, tokens.unit, value=-1), dim=-1) / stream
