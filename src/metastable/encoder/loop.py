"""A whole layer applied again and again: a weight-tied encoder beyond its trained depth, or one layer of any other.

Step t + 1 applies the whole layer (attention, MLP, normalisations; see `anatomy.Step`) to the output of step t, with
the padding and the positions of the text. This is not the model of the theory, and no limit law is known. The loop
measures whether and when tokens come together, and whether they stay together.

Phases are detected in the **dispersion** 1 − |mean x̂|² (mean over texts), as in a simulation. The dispersion is 0
exactly for one point, and it does not need the limit of the tokens. The distance to the last state cannot be used: it
is 0 at the end of every loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metastable.arrays import whole
from metastable.encoder.anatomy import Anatomy, AttentionLayer, Norm
from metastable.encoder.exact_sums import ExactSums, Floats
from metastable.encoder.fold import fold_heads
from metastable.encoder.hooks import embedded
from metastable.encoder.measure import columns_of
from metastable.encoder.statistics import CLOUD, averaged, cloud
from metastable.encoder.texts import Batch, TextCounts, batches
from metastable.errors import BadInput
from metastable.theory import phases

if TYPE_CHECKING:
    import pandas as pd

    from metastable.encoder.load import Encoder

SCHEMA = "metastable.loop/1"
ANGLE = 20.0
"""Degrees. Tokens linked by smaller angles are one cluster. Random directions in 384 dimensions are 90 ± 3 degrees
apart, so they are not linked by chance."""
NAMES = (*CLOUD, "clusters", "change")
ONE_POINT = 0.01
"""The largest dispersion that counts as one point, see `Loop.floor`."""
READABLE = 1e-4
"""A feature with a smaller ratio of gain to offset is not read back from x = γz + b, because the rounding of x would
become 10⁻³ of z or more."""


@dataclass(frozen=True)
class Loop:
    """The tokens of texts under one layer, applied again and again.

    tallies : by name, over steps 0, …, K: mean_cosine, effective_rank, dispersion, energy (see `statistics.cloud`),
        clusters (groups of tokens linked by angles below `angle` degrees), and change, the mean of |x̂_{t+1} − x̂_t|
        over tokens: how far the next step moves them, NaN at the last step
    layer : the layer that was repeated; 0 for a weight-tied encoder
    trained_depth : the number of layers of a weight-tied encoder; None for other encoders
    asked : the requested number of steps K
    stopped : the step at which a number was no longer finite in some text, or None; curves end before it
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
        """min(1/β, 0.01): tokens with less dispersion count as one point.

        Their distances are then about β^{−1/2}, which the softmax hardly distinguishes.
        """
        return min(1 / self.beta, ONE_POINT) if self.beta > 0 else ONE_POINT

    def sentence(self) -> str:
        """The result in words with numbers."""
        what = "the shared layer" if self.trained_depth is not None else f"layer {self.layer}"
        over = f"{self.texts} text{'s' if self.texts != 1 else ''}"
        parts = [f"{what} applied {self.steps} times, {over}: mean token cosine {self._way()}"]
        parts.append(self._course())
        if self.steps:
            parts += [self._change("clusters", "clusters a text"), self._change("effective_rank", "effective rank")]
        last = self._value("change", self.steps - 1)
        if math.isfinite(last):
            at_rest = "tokens are at rest" if last < 1e-4 else f"a step moves a token by {last:.2g} on average"
            parts.append(f"at the end {at_rest}")
        if self.stopped is not None:
            parts.append(f"stopped because numbers were not finite at step {self.stopped} of {self.asked}")
        return "; ".join(parts)

    def _change(self, name: str, words: str) -> str:
        """A curve from the first step to the last one."""
        return f"{words} {self._value(name, 0):.3g} → {self._value(name, self.steps):.3g}"

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
            return "one step shows no phases"
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
        """The plateaus in words; nothing if there is none."""
        found = []
        for plateau in self.phases.plateaus:
            counts = {f"{self._value('clusters', t):.2g}": None for t in (plateau.start, plateau.end)}
            groups = f"a plateau of {' → '.join(counts)} cluster{'' if list(counts) == ['1'] else 's'} a text"
            held = f"still holds at step {self.steps}" if plateau.end == self.steps else f"ends at {plateau.end:g}"
            found.append(f"{groups} that begins at step {plateau.start:g} and {held}")
        return f", then {', then '.join(found)}" if found else ""

    def to_dict(self) -> dict[str, Any]:
        """Everything for JSON: tallies, curves, phases and the sentence; numbers that do not exist are None."""
        kept = ("model", "layer", "trained_depth", "asked", "steps", "stopped", "beta", "special", "angle", "texts")
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in kept},
            "counts": vars(self.counts).copy(),
            "tallies": {name: tally.to_dict() for name, tally in self.tallies.items()},
            "curves": self.curves.astype(object).where(np.isfinite(self.curves), None).to_dict("list"),
            "phases": {**asdict(self.phases), "curve": "dispersion", "floor": self.floor},
            "sentence": self.sentence(),
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Loop:
        plain = {field.name: saved[field.name] for field in fields(cls)}
        tallies = {name: ExactSums.from_dict(tally) for name, tally in saved["tallies"].items()}
        return cls(**{**plain, "tallies": tallies, "counts": TextCounts(**saved["counts"])})


def loop(
    encoder: Encoder,
    texts: Iterable[str],
    steps: int,
    layer: int | None = None,
    batch_size: int = 32,
    special: str = "exclude",
) -> Loop:
    """Apply a whole layer `steps` times to the tokens of texts, and measure the tokens at each step.

    A weight-tied encoder starts from its embeddings, so that one step is one depth. For other encoders `layer` is
    required, and the start is the input of that layer. `special` is as in `measure`.
    """
    steps = whole(steps, "steps", 1, "a loop takes 1 step or more")
    layer = _chosen(encoder, layer)
    private = encoder.private()
    attention = private.anatomy.layers[layer]
    beta = float(np.median([head.beta for head in fold_heads(attention)]))
    tallies = {name: ExactSums((steps + 1,)) for name in NAMES}
    counts, reach = TextCounts(), steps
    for batch in batches(encoder.reads_text(), texts, encoder.limit, batch_size, counts):
        found = _follow(private, layer, batch, special, beta, reach)
        # Steps that one text could not reach are not computed for the others.
        reach = found["dispersion"].shape[1] - 1
        for name, tally in tallies.items():
            missing = ((0, 0), (0, steps - reach))
            tally.add(np.pad(found[name], missing, constant_values=np.nan), batch.lengths.numpy())
    counts.check()
    depth = len(encoder.anatomy.layers) if encoder.anatomy.tied else None
    stopped = reach + 1 if reach < steps else None
    return Loop(encoder.name, tallies, layer, depth, steps, stopped, beta, special, counts)


def _chosen(encoder: Encoder, layer: int | None) -> int:
    """The layer to repeat."""
    if encoder.anatomy.tied:
        if layer is not None:
            raise BadInput(f"layer is {layer}, but all layers of {encoder.name!r} are the same; do not give a layer")
        return 0
    if layer is None:
        raise BadInput(f"a loop needs the layer to repeat; {_which(encoder)}, give one of them")
    return layer_of(encoder, layer).index


def layer_of(encoder: Encoder, layer: int) -> AttentionLayer:
    """The attention layer of that number; BadInput if there is none."""
    layers = encoder.anatomy.layers
    if whole(layer, "layer", 0, _which(encoder)) >= len(layers):
        raise BadInput(f"layer is {layer}; {_which(encoder)}")
    return layers[layer]


def _which(encoder: Encoder) -> str:
    return f"{encoder.name!r} has layers 0 to {len(encoder.anatomy.layers) - 1}"


def _follow(encoder: Encoder, layer: int, batch: Batch, special: str, beta: float, steps: int) -> dict[str, Floats]:
    """The statistics of each text, (texts, reached + 1). It stops at a number that is not finite."""
    device = next(encoder.model.parameters()).device
    mask, chosen = batch.mask.to(device), batch.chosen(special).to(device)
    rows: list[dict[str, Floats]] = []
    before = None
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        for unit in looped_tokens(encoder, layer, batch, mask, steps):
            found = cloud(unit, chosen, beta) | {"clusters": clusters(unit, chosen, ANGLE)}
            rows.append({name: value.double().cpu().numpy() for name, value in found.items()})
            if before is not None:
                moved = averaged(torch.linalg.vector_norm(unit - before, dim=-1), chosen)
                rows[-2]["change"] = moved.cpu().numpy()
            before = unit
    if not rows:
        where = f"the input of layer {layer} of {encoder.name!r}"
        raise BadInput(f"{where} is not finite for some text; check the weights")
    rows[-1]["change"] = np.full(len(mask), np.nan)
    return {name: np.stack([row[name] for row in rows], axis=1) for name in NAMES}


def looped_tokens(encoder: Encoder, layer: int, batch: Batch, mask: Tensor, steps: int) -> Iterator[Tensor]:
    """Unit tokens at steps 0, …, `steps`, as long as they are finite. encoder : a private one"""
    anatomy = encoder.anatomy
    stream = embedded(encoder, batch)
    for earlier in anatomy.steps[:layer]:
        stream = earlier(stream, mask)
    for t in range(steps + 1):
        stream = anatomy.steps[layer](stream, mask) if t else stream
        unit = unit_tokens(anatomy, layer, t, stream, mask)
        # Numbers of unit vectors cannot overflow in a sum, and NaN stays NaN.
        if not math.isfinite(float(unit.sum())):
            return
        yield unit


def unit_tokens(anatomy: Anatomy, layer: int, t: int, stream: Tensor, mask: Tensor) -> Tensor:
    """The unit tokens x̂ = z/|z|, (texts, n, d), at step t of a loop over `layer`; 0 for padding, NaN if z is lost.

    They are those of `measure`: with x = γz + b behind a normalisation, z = (x − b)/γ. The normalisation is the one
    before the layer at the start, and the last one of the layer afterwards. A pre-norm stream h is standardised, as the
    layer itself does.
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
        inverse = torch.where(readable, 1 / torch.where(readable, gain, 1.0), 0.0)
        z = torch.addcmul(-offset * inverse, h, inverse)
    length = torch.linalg.vector_norm(z, dim=-1)
    # A length beyond float32 would give the finite quotient 0.
    factor = torch.where(length.isfinite() & (length > 0), 1 / length, torch.nan)
    return z * torch.where(mask, factor, 0.0).unsqueeze(-1)


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
    """The number of groups of the chosen tokens of each text, (texts,). Tokens closer than `angle` degrees are linked.

    Groups are connected components, so a long chain of close tokens is one group.
    """
    here = chosen.unsqueeze(1) & chosen.unsqueeze(2)
    near = (unit @ unit.transpose(1, 2) > math.cos(math.radians(angle))) & here
    own = torch.arange(chosen.shape[1], device=chosen.device, dtype=torch.int32).expand(chosen.shape)
    # Every token takes the least number among its neighbours until nothing changes: one number for each group.
    labels, before = own, torch.full_like(own, -1)
    while not torch.equal(labels, before):
        nearby = torch.where(near, labels.unsqueeze(1), chosen.shape[1]).amin(dim=2)
        # The token with that number may have a smaller one by now.
        before, labels = labels, torch.minimum(labels, nearby)
        labels = labels.gather(1, labels.long())
    return (chosen & (labels == own)).sum(dim=1).float()
