"""What the layers and heads of an encoder do on texts: every statistic as a mean over texts, with its interval and n.

A text's n is the number of tokens that the model sees, special ones included. The cloud of a text is its ordinary
tokens (all of them with special="include"); special tokens are always there to be attended to, padding never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.encoder.hooks import Depth, Passage, Tokens, read
from metastable.encoder.measure_heads import HEADS, LAYER, HeadLens
from metastable.encoder.statistics import CLOUD, cloud, mean_cosine_of_any
from metastable.encoder.tally import Floats, Tally
from metastable.encoder.texts import Batch, Counts, batches
from metastable.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

    from metastable.encoder.load import Encoder

SCORES = 2**24
"""Most scores of one text where a layer can give them only all at once (positions in the scores): 64 MB an array."""

SPECIAL = ("exclude", "include")

DEPTHS = (*CLOUD, "hidden_cosine")
"""Statistics of a text's tokens at a depth, by name: see `statistics.cloud`; the last is `mean_cosine` of the hidden
states as the model hands them on, with gains and offsets of the normalisations in them."""


@dataclass
class Measured:
    """Statistics of an encoder on texts.

    depths : by name (see `statistics.cloud`), tallies over depths 0, …, L, the input of each layer and the output
    layers : by name (see `measuring_heads.HeadLens.measure`), tallies over layers
    heads : by name (same place), tallies over (layers, heads)
    betas : (L,), the median effective β of each layer's heads, which the energy uses (the output: the last layer's)
    applicable, dims, random_share : (layers, heads), of the predictions, see `measuring_heads`
    lengths : how many texts had n tokens, by n
    special : "exclude" or "include", whether special tokens belong to the cloud
    """

    depths: dict[str, Tally]
    layers: dict[str, Tally]
    heads: dict[str, Tally]
    betas: Floats
    applicable: np.ndarray
    dims: np.ndarray
    random_share: Floats
    special: str
    lengths: Counter[int] = field(default_factory=Counter)
    counts: Counts = field(default_factory=Counts)

    def depth_table(self) -> pd.DataFrame:
        """A row a depth; for each statistic NAME the columns NAME, NAME_low, NAME_high and NAME_slope.

        low and high are the 95 % interval of the mean over texts, slope the change for each doubling of n. Statistics
        of layers stand at the depth of the layer's input, and the last depth has none.
        """
        import pandas as pd

        depth = len(self.betas) + 1
        columns: dict[str, Any] = {"depth": np.arange(depth)}
        for name, tally in self.depths.items():
            columns |= columns_of(name, tally)
        for name, tally in self.layers.items():
            columns |= {key: np.append(value, np.nan) for key, value in columns_of(name, tally).items()}
        return pd.DataFrame(columns | {"beta": np.append(self.betas, self.betas[-1])})

    def head_table(self) -> pd.DataFrame:
        """A row a head, columns as in `depth_table`, and `applicable`, `dim_E` and `random_share` beside them."""
        import pandas as pd

        layer, head = np.indices(self.applicable.shape)
        columns: dict[str, Any] = {"layer": layer, "head": head, "applicable": self.applicable, "dim_E": self.dims}
        columns["random_share"] = self.random_share
        for name, tally in self.heads.items():
            columns |= columns_of(name, tally)
        return pd.DataFrame({name: np.ravel(column) for name, column in columns.items()})

    def merge(self, other: Measured) -> Measured:
        """The statistics of the texts of both, measured with the same encoder; exact in any order."""
        if self.special != other.special or not np.array_equal(self.betas, other.betas):
            raise BadInput("measurements of different encoders, or with special tokens in and out, cannot be merged")
        groups = ("depths", "layers", "heads")
        merged = {g: {k: v.merge(getattr(other, g)[k]) for k, v in getattr(self, g).items()} for g in groups}
        lengths, counts = self.lengths + other.lengths, self.counts + other.counts
        return Measured(**{**vars(self), **merged, "lengths": lengths, "counts": counts})

    def to_dict(self) -> dict[str, Any]:
        """Everything, exactly, for JSON."""
        arrays = {name: getattr(self, name).tolist() for name in ("betas", "applicable", "dims")}
        shares = [[None if np.isnan(s) else s for s in row] for row in self.random_share.tolist()]
        tallies = {g: {k: v.to_dict() for k, v in getattr(self, g).items()} for g in ("depths", "layers", "heads")}
        lengths = {str(n): self.lengths[n] for n in sorted(self.lengths)}
        rest = {"random_share": shares, "special": self.special, "lengths": lengths, "counts": vars(self.counts).copy()}
        return {**tallies, **arrays, **rest}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Measured:
        groups = {g: {k: Tally.from_dict(v) for k, v in saved[g].items()} for g in ("depths", "layers", "heads")}
        return cls(
            **groups,
            betas=np.array(saved["betas"], dtype=np.float64),
            applicable=np.array(saved["applicable"], dtype=bool),
            dims=np.array(saved["dims"], dtype=np.int64),
            random_share=np.array(saved["random_share"], dtype=np.float64),
            special=saved["special"],
            lengths=Counter({int(n): count for n, count in saved["lengths"].items()}),
            counts=Counts(**saved["counts"]),
        )


def columns_of(name: str, tally: Tally) -> dict[str, Floats]:
    """The columns of a table that show a statistic: NAME, NAME_low, NAME_high and NAME_slope."""
    low, high = tally.interval()
    return {name: tally.mean(), f"{name}_low": low, f"{name}_high": high, f"{name}_slope": tally.slope()[0]}


class Meter:
    """An encoder ready to be measured, batch by batch: the statistics of each text, before any average over texts."""

    def __init__(self, encoder: Encoder, special: str = "exclude") -> None:
        if special not in SPECIAL:
            raise BadInput(f"special is {special!r}; it must be one of {', '.join(SPECIAL)}")
        self.encoder = encoder = encoder.private()
        self.special = special
        self.lenses = [HeadLens(layer) for layer in encoder.anatomy.layers]
        self.betas = np.array([lens.beta for lens in self.lenses])
        self.limit = encoder.limit
        for layer in encoder.anatomy.layers:
            if layer.scores is not None:
                self.limit = min(self.limit, int((SCORES / layer.heads) ** 0.5))

    def empty(self) -> Measured:
        """No texts yet."""
        shape = (len(self.lenses), self.lenses[0].layer.heads)
        return Measured(
            depths={name: Tally((len(self.lenses) + 1,)) for name in DEPTHS},
            layers={name: Tally((len(self.lenses),)) for name in LAYER},
            heads={name: Tally(shape) for name in HEADS},
            betas=self.betas,
            applicable=np.stack([lens.prediction.applicable for lens in self.lenses]),
            dims=np.stack([lens.prediction.dims for lens in self.lenses]),
            random_share=np.stack([lens.random_share for lens in self.lenses]),
            special=self.special,
        )

    def measure(self, batch: Batch) -> tuple[dict[str, Floats], dict[str, Floats], dict[str, Floats]]:
        """Each text's statistics: of depths (texts, L + 1), of layers (texts, L), of heads (texts, L, heads)."""
        device = next(self.encoder.model.parameters()).device
        mask, special = batch.mask.to(device), batch.special.to(device)
        chosen = mask if self.special == "include" else mask & ~special
        betas = [*self.betas, self.betas[-1]]
        clouds, layers, heads = [], [], []
        before: list[Tokens] = []

        def visit(depth: Depth) -> None:
            tokens = depth.tokens
            found = cloud(tokens.unit, chosen, betas[depth.index])
            clouds.append({**found, "hidden_cosine": mean_cosine_of_any(tokens.hidden, chosen)})
            if before:
                of_layer, of_heads = self.lenses[depth.index - 1].measure(before[0], tokens, mask, special, chosen)
                layers.append(of_layer)
                heads.append(of_heads)
            before[:] = [tokens]

        # Images have no token ids.
        passage = Passage(batch.inputs.get("input_ids", batch.mask).to(device), mask, chosen)
        read(self.encoder, batch.inputs, passage, range(len(betas)), visit)
        return _stacked(clouds), _stacked(layers), _stacked(heads)

    def tally(
        self, texts: Iterable[str], batch_size: int = 32, progress: Callable[[int], None] | None = None
    ) -> Measured:
        """The sums over texts; `progress` is called after each batch with the number of texts done."""
        measured = self.empty()
        counts = measured.counts
        for batch in batches(self.encoder.reads_text(), texts, self.limit, batch_size, counts):
            lengths = batch.lengths.numpy()
            groups = zip((measured.depths, measured.layers, measured.heads), self.measure(batch), strict=True)
            for tallies, values in groups:
                for name, tally in tallies.items():
                    tally.add(values[name], lengths)
            measured.lengths.update(lengths.tolist())
            if progress is not None:
                progress(counts.texts)
        return measured


def _stacked(parts: list[dict[str, Any]]) -> dict[str, Floats]:
    return {name: np.stack([part[name].double().cpu().numpy() for part in parts], axis=1) for name in parts[0]}


def measure(
    encoder: Encoder,
    texts: Iterable[str],
    batch_size: int = 32,
    special: str = "exclude",
    progress: Callable[[int], None] | None = None,
) -> Measured:
    """Measure an encoder on texts, in memory that does not grow with their number.

    Texts longer than the model's limit are cut and counted. In layers whose scores depend on positions the limit is
    also at most √(2²⁴/heads) tokens. `progress` is called after each batch with the number of texts done.
    """
    measured = Meter(encoder, special).tally(texts, batch_size, progress)
    refuse_nothing(measured.counts)
    return measured


def refuse_nothing(counts: Counts) -> None:
    if counts.texts == 0:
        what = f"all {counts.skipped} texts are blank" if counts.skipped else "there are none"
        raise BadInput(f"no text to measure: {what}; give at least one text with a word in it")
