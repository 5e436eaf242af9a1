"""Whole layers again and again: a weight-tied encoder beyond its trained depth, or one layer of any other.

Step t + 1 is the whole layer (attention, MLP, normalisations; see `anatomy.Step`) applied to what step t returned, with
the text's own padding and positions in the scores. Nothing of it is the theory's model, and no limit law is known: what
is measured is whether and when tokens come together, and whether they stay.

The phases are read off the **dispersion** 1 − |mean x̂|² (mean over texts) by the laboratory's own detector. It is 0
exactly for one point and needs no knowledge of where tokens go. The distance to the last state would not do: it ends
at 0 whatever happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from metastable.arrays import whole
from metastable.encoder.anatomy import Anatomy, AttentionLayer, Norm, Step
from metastable.encoder.exact_sums import ExactSums, Floats
from metastable.encoder.fold import fold
from metastable.encoder.hooks import Depth, Passage, read
from metastable.encoder.measure import SPECIAL, columns_of
from metastable.encoder.statistics import CLOUD, averaged, cloud
from metastable.encoder.texts import Batch, TextCounts, batches
from metastable.errors import BadInput
from metastable.theory import phases

if TYPE_CHECKING:
    import pandas as pd

    from metastable.encoder.load import Encoder

SCHEMA = "metastable.loop/1"
ANGLE = 20.0
"""Degrees. Tokens joined by steps shorter than this are one cluster. Random directions in 384 dimensions are 90 ± 3
degrees apart, so that a chain of chance links is out of the question; the count says how many groups tokens form, not
how narrow these are, which is what dispersion and effective rank are for."""
NAMES = (*CLOUD, "clusters", "change")
ONE_POINT = 0.01
"""Largest dispersion that may count as one point, see `Loop.floor`."""
READABLE = 1e-4
"""A feature whose gain is less than this part of its offset is not read back from x = γz + b: the rounding of x would
be blown up to 10⁻³ of z and more."""


@dataclass(frozen=True)
class Loop:
    """What happened to the tokens of texts under one layer, applied again and again.

    tallies : by name, over steps 0, …, K: mean_cosine, effective_rank, dispersion, energy (see `statistics.cloud`),
        clusters (groups of tokens linked by angles below `angle` degrees), and change, the mean of |x̂_{t+1} − x̂_t|
        over tokens: how far the next step moves them, unknown at the last
    layer : the layer that was repeated; 0 for a weight-tied encoder
    trained_depth : the step at which a weight-tied encoder ends in use; None for any other
    asked : K as asked for; stopped : the step whose numbers were no longer finite in some text, so that the
        curves end before it, or None
    beta : the median effective β of the layer's heads, which the energy uses
    """

    model: str
    tallies: dict[str, ExactSums]
    layer: int
    trained_depth: int | None
    asked: int
    stopped: int | None
    beta: float
    special: str
    counts: TextCounts
    angle: float = ANGLE

    @property
    def texts(self) -> int:
        return self.counts.texts

    @property
    def steps(self) -> int:
        """The last step of the curves."""
        return self.asked if self.stopped is None else self.stopped - 1

    @cached_property
    def curves(self) -> pd.DataFrame:
        """A row a step; for each NAME the mean over texts, its 95 % interval NAME_low and NAME_high, and NAME_slope,
        the change for each doubling of the number of tokens.
        """
        import pandas as pd

        columns: dict[str, Any] = {"step": np.arange(self.asked + 1)}
        for name, tally in self.tallies.items():
            columns |= columns_of(name, tally)
        table = pd.DataFrame(columns).iloc[: self.steps + 1].copy()
        # Where the loop stopped early, some texts took the next step and others did not.
        table.loc[self.steps, [name for name in table if str(name).startswith("change")]] = np.nan
        return table

    @cached_property
    def phases(self) -> phases.Phases:
        """Concentration, plateaus and a new spreading ("terminal") in steps, from the dispersion: see `phases.detect`.

        None means "not seen up to the last step", not "never".
        """
        return phases.detect(self.curves["step"], self.curves["dispersion"].clip(lower=0.0), floor=self.floor)

    @property
    def floor(self) -> float:
        """min(1/β, 0.01): with less dispersion tokens count as one point.

        They are then within about β^{−1/2} of each other, and the softmax hardly tells them apart. A fall
        towards 0 has no other scale at which to call it complete.
        """
        return min(1 / self.beta, ONE_POINT) if self.beta > 0 else ONE_POINT

    def sentence(self) -> str:
        """What happened, in words with numbers."""
        what = "the shared layer" if self.trained_depth is not None else f"layer {self.layer}"
        over = f"{self.texts} text{'s' if self.texts != 1 else ''}"
        parts = [f"{what} applied {self.steps} times, {over}: mean token cosine {self._way()}"]
        parts.append(self._course())
        last = self._value("change", self.steps - 1)
        if math.isfinite(last):
            at_rest = "tokens are at rest" if last < 1e-4 else f"a step still moves a token by {last:.2g}"
            parts.append(f"at the end {at_rest}")
        if self.stopped is not None:
            parts.append(f"stopped: numbers were no longer finite at step {self.stopped} of {self.asked}")
        return "; ".join(parts)

    def _value(self, name: str, step: float) -> float:
        return float(self.curves[name].iloc[min(max(round(step), 0), self.steps)])

    def _way(self) -> str:
        """The mean cosine at the start, at the trained depth, where concentration was complete, and at the end."""
        done, marks = self.phases.concentrated, {self.steps: "at step {}"}
        if done is not None:
            marks[math.ceil(done)] = "at step {}"
        if self.trained_depth is not None and self.trained_depth <= self.steps:
            marks[self.trained_depth] = "at the trained depth ({})"
        marks[0] = ""
        words = (f"{self._value('mean_cosine', t):.2f} {marks[t].format(t)}".strip() for t in sorted(marks))
        return " → ".join(words)

    def _course(self) -> str:
        found, end = self.phases, f"step {self.steps}"
        if found.course == "one time":
            return "the start alone tells no phases"
        if found.course == "still":
            if found.concentrated is not None:
                return f"tokens are one point from the start, up to {end}"
            level = f"the dispersion stays within a factor {found.factor:g} of {found.least:.2g}"
            return f"no concentration seen up to {end}: {level}"
        if found.concentrated is None:
            return f"tokens are still coming together at {end}, dispersion {found.least:.2g}"
        if found.concentrated == 0:
            rise = f"from dispersion {found.least:.2g} to {self._value('dispersion', self.steps):.2g}"
            return f"tokens do not concentrate but spread, {rise} at {end}"
        least = "down to one point" if found.least <= self.floor else f"least dispersion {found.least:.2g}"
        text = f"concentrated from step {math.ceil(found.concentrated)}, {least}{self._rest()}"
        if found.terminal is not None:
            later = f"dispersion {self._value('dispersion', self.steps):.2g} at {end}"
            return f"{text}; tokens spread again from step {math.ceil(found.terminal)}, {later}"
        return f"{text}; no new spreading seen up to {end}"

    def _rest(self) -> str:
        """The plateau that holds the least dispersion, in words; nothing if there is none."""
        when = self.phases.least_time
        for plateau in self.phases.plateaus:
            if plateau.start <= when <= plateau.end:
                counts = {f"{self._value('clusters', t):.2g}": None for t in (plateau.start, plateau.end)}
                groups = f"a plateau of {' → '.join(counts)} cluster{'' if list(counts) == ['1'] else 's'} a text"
                held = f"still holds at step {self.steps}" if plateau.end == self.steps else f"ends at {plateau.end:g}"
                return f", then {groups} that begins at step {plateau.start:g} and {held}"
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Everything for JSON: tallies, curves, phases and the sentence; numbers that do not exist are None."""
        curves = {str(name): _plain(column.tolist()) for name, column in self.curves.items()}
        kept = ("model", "layer", "trained_depth", "asked", "steps", "stopped", "beta", "special", "angle", "texts")
        rest = {name: getattr(self, name) for name in kept}
        found = {**asdict(self.phases), "curve": "dispersion", "floor": self.floor}
        return {
            "schema": SCHEMA,
            **rest,
            "counts": vars(self.counts).copy(),
            "tallies": {name: tally.to_dict() for name, tally in self.tallies.items()},
            "curves": curves,
            "phases": found,
            "sentence": self.sentence(),
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Loop:
        kept = ("model", "layer", "trained_depth", "asked", "stopped", "beta", "special", "angle")
        tallies = {name: ExactSums.from_dict(tally) for name, tally in saved["tallies"].items()}
        return cls(tallies=tallies, counts=TextCounts(**saved["counts"]), **{name: saved[name] for name in kept})


def _plain(values: list[Any]) -> list[Any]:
    return [value if math.isfinite(value) else None for value in values]


def loop(
    encoder: Encoder,
    texts: Iterable[str],
    steps: int,
    layer: int | None = None,
    batch_size: int = 32,
    special: str = "exclude",
    progress: Callable[[int], None] | None = None,
) -> Loop:
    """Apply a whole layer `steps` times to the tokens of texts, and measure them before, between and after.

    A weight-tied encoder is followed from its embeddings, so that a step is a depth and its trained depth lies on the
    way. Of any other one `layer` must be named, and the start is what enters it. `special` as in `measure`. `progress`
    is called after each batch with the number of texts done.
    """
    steps = whole(steps, "steps", 1, "a loop takes 1 step or more")
    if special not in SPECIAL:
        raise BadInput(f"special is {special!r}; it must be one of {', '.join(SPECIAL)}")
    looper = _Looper(encoder, _chosen(encoder, layer), special)
    tallies = {name: ExactSums((steps + 1,)) for name in NAMES}
    counts, reach = TextCounts(), steps
    for batch in batches(encoder.reads_text(), texts, encoder.limit, batch_size, counts):
        found = looper.follow(batch, reach)
        # What one text could not reach is not followed for the others.
        reach = found["dispersion"].shape[1] - 1
        for name, tally in tallies.items():
            missing = ((0, 0), (0, steps - reach))
            tally.add(np.pad(found[name], missing, constant_values=np.nan), batch.lengths.numpy())
        if progress is not None:
            progress(counts.texts)
    if counts.texts == 0:
        what = f"all {counts.skipped} texts are blank" if counts.skipped else "there are none"
        raise BadInput(f"no text to loop over: {what}; give at least one text with a word in it")
    tied = encoder.anatomy.tied
    depth = len(encoder.anatomy.layers) if tied else None
    stopped = reach + 1 if reach < steps else None
    return Loop(encoder.name, tallies, looper.layer, depth, steps, stopped, looper.beta, special, counts)


def _chosen(encoder: Encoder, layer: int | None) -> int:
    """The layer to repeat."""
    if encoder.anatomy.tied:
        if layer is not None:
            raise BadInput(f"layer is {layer}, but all layers of {encoder.name!r} are one; leave the layer away")
        return 0
    if layer is None:
        raise BadInput(f"a loop needs the layer to repeat, since layers differ; {_which(encoder)}, name one of them")
    return layer_of(encoder, layer).index


def layer_of(encoder: Encoder, layer: int) -> AttentionLayer:
    """The attention layer of that number, or one line that says which there are."""
    layers = encoder.anatomy.layers
    if whole(layer, "layer", 0, _which(encoder)) >= len(layers):
        raise BadInput(f"layer is {layer}; {_which(encoder)}")
    return layers[layer]


def _which(encoder: Encoder) -> str:
    return f"{encoder.name!r} has layers 0 to {len(encoder.anatomy.layers) - 1}"


class _Looper:
    """A layer that is repeated, on batches of texts."""

    def __init__(self, encoder: Encoder, layer: int, special: str) -> None:
        self.encoder = encoder = encoder.private()
        self.layer, self.special = layer, special
        attention = encoder.anatomy.layers[layer]
        self.beta = float(np.median([fold(attention, head).beta for head in range(attention.heads)]))
        self.step: Step = encoder.anatomy.steps[layer]

    def follow(self, batch: Batch, steps: int) -> dict[str, Floats]:
        """Each text's statistics, (texts, reached + 1): fewer steps where a number was no longer finite."""
        device = next(self.encoder.model.parameters()).device
        mask = batch.mask.to(device)
        chosen = mask if self.special == "include" else mask & ~batch.special.to(device)
        rows: list[dict[str, Floats]] = []
        before = None
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            for unit in self._tokens(batch, mask, chosen, steps):
                found = cloud(unit, chosen, self.beta) | {"clusters": clusters(unit, chosen, ANGLE)}
                rows.append({name: value.double().cpu().numpy() for name, value in found.items()})
                if before is not None:
                    moved = averaged(torch.linalg.vector_norm(unit - before, dim=-1), chosen)
                    rows[-2]["change"] = moved.cpu().numpy()
                before = unit
        if not rows:
            where = f"the input of layer {self.layer} of {self.encoder.name!r}"
            raise BadInput(f"{where} is not finite for some text; check the weights")
        rows[-1]["change"] = np.full(len(mask), np.nan)
        return {name: np.stack([row[name] for row in rows], axis=1) for name in NAMES}

    def _tokens(self, batch: Batch, mask: Tensor, chosen: Tensor, steps: int) -> Iterator[Tensor]:
        """Unit tokens at steps 0, …, `steps`, as far as they are finite."""
        anatomy = self.encoder.anatomy
        seen: list[Tensor] = []

        def visit(depth: Depth) -> None:
            # What the first layer adds its update to.
            found = depth.before if depth.pre_norm else depth.x
            assert found is not None
            seen.append(found.clone())

        passage = Passage(batch.inputs["input_ids"].to(mask.device), mask, chosen)
        read(self.encoder, batch.inputs, passage, (0,), visit)
        stream = seen[0]
        for earlier in anatomy.steps[: self.layer]:
            stream = earlier(stream, mask)
        for t in range(steps + 1):
            stream = self.step(stream, mask) if t else stream
            unit = unit_tokens(anatomy, self.layer, t, stream, mask)
            if not bool(unit.isfinite().all()):
                return
            yield unit


def unit_tokens(anatomy: Anatomy, layer: int, t: int, stream: Tensor, mask: Tensor) -> Tensor:
    """The unit tokens x̂ = z/|z|, (texts, n, d), of what step t of a loop over `layer` holds; 0 where padding is,
    NaN where a token has no direction.

    The same x̂ as `measuring` reads: with x = γz + b behind a normalisation, z = (x − b)/γ with the gain and offset of
    the one that wrote x. That is the one before the layer at the start, and the layer's own last one afterwards. A
    pre-norm stream h is standardised, as the layer itself does when it reads it.
    """
    norm, written = _written_by(anatomy, layer, t)
    h = torch.where(mask.unsqueeze(-1), stream.float(), 0.0)
    if norm is None:
        z = h
    elif not written:
        z = norm.standardise(h) * norm.seen
    else:
        gain, offset = norm.gain.to(h), norm.offset.to(h)
        readable = norm.seen.to(h.device) & (gain.abs() > READABLE * offset.abs())
        z = torch.where(readable, (h - offset) / torch.where(readable, gain, 1.0), 0.0)
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    # A length beyond float32 would make a finite quotient, 0, out of a token that is lost.
    unit = torch.where(length.isfinite(), z / length, torch.nan)
    return torch.where(mask.unsqueeze(-1), unit, 0.0)


def _written_by(anatomy: Anatomy, layer: int, t: int) -> tuple[Norm | None, bool]:
    """The normalisation to read tokens with, and whether the stream is its output (post-norm) or its input."""
    own = anatomy.layers[layer]
    if t == 0 or own.pre_norm:
        return own.norm, not own.pre_norm
    if layer + 1 < len(anatomy.layers):
        after = anatomy.layers[layer + 1]
        return after.norm, not after.pre_norm
    return Norm.of(anatomy.final), not anatomy.pre_norm


def clusters(unit: Tensor, chosen: Tensor, angle: float) -> Tensor:
    """How many groups the chosen tokens of each text form, (texts,), when tokens nearer than `angle` are linked.

    Groups are connected components, so that a long chain of near tokens is one. One graph holds the whole batch.
    """
    texts, n = chosen.shape
    near = unit @ unit.transpose(1, 2) > math.cos(math.radians(angle))
    near &= chosen.unsqueeze(1) & chosen.unsqueeze(2)
    text, i, j = near.nonzero().cpu().numpy().T
    graph = coo_array((np.ones(len(text), dtype=np.int8), (text * n + i, text * n + j)), shape=(texts * n, texts * n))
    labels = connected_components(graph, directed=False)[1].reshape(texts, n)
    kept = chosen.cpu().numpy()
    return torch.tensor([float(len(np.unique(row[here]))) for row, here in zip(labels, kept, strict=True)])
