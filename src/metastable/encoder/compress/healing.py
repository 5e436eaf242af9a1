"""Healing in closed form: linear maps of the smaller encoder are refitted to the streams of the full one.

Both encoders read the same texts, layer by layer. At a map y = W a + b whose output is added to a residual r, the full
encoder has the sum s* = r* + y*. The refit looks for the change Δ of W that brings the smaller encoder's sum to s*,

    minimise  Σ_tokens |(W + Δ) a + b' − (s* − r)|² + λ n |Δ|²,   a, r of the smaller encoder,

so Δ = C (G + λ n I)⁻¹ with G = Σ ã ãᵀ, C = Σ e ãᵀ, where ã is a without its mean and e the missing part without its
mean; b' takes up the means. Of a map without a bias nothing is centred. A change instead of new weights: with large λ
nothing changes. λ, or no change at all, is chosen by the error on texts that the sums do not contain.

Where layers are removed, the map out of the neurons of the layer before takes the output of the last removed layer
as its target. A post-norm layer standardises its sum, so the target is the standardised sum of the removed layer with
the mean and the length that the sum has now, and the layer takes over the gain and the offset of the removed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from metastable.encoder.anatomy import Anatomy
from metastable.encoder.compress.surgery import Removal
from metastable.encoder.hooks import caught, embedded
from metastable.encoder.load import Encoder
from metastable.encoder.texts import Batch

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""λ as multiples of the mean square of the inputs."""


@dataclass
class LeastSquares:
    """The sums of a least-squares problem over tokens, in float64. a : inputs (tokens, k), e : targets (tokens, d)"""

    count: int = 0
    a: Tensor = field(default_factory=lambda: torch.zeros(()))
    e: Tensor = field(default_factory=lambda: torch.zeros(()))
    aa: Tensor = field(default_factory=lambda: torch.zeros(()))
    ea: Tensor = field(default_factory=lambda: torch.zeros(()))
    ee: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, a: Tensor, e: Tensor) -> None:
        self.count += len(a)
        self.a = self.a + a.sum(dim=0, dtype=torch.float64)
        self.e = self.e + e.sum(dim=0, dtype=torch.float64)
        # Products of a batch in float32: their rounding is far below the ridge.
        self.aa = self.aa + (a.T @ a).double()
        self.ea = self.ea + (e.T @ a).double()
        self.ee = self.ee + e.double().square().sum()

    def covariance(self) -> Tensor:
        """Of the inputs, (k, k)."""
        mean = self.a / self.count
        return self.aa / self.count - torch.outer(mean, mean)

    def refit(self, penalty: float, biased: bool = True) -> tuple[Tensor, Tensor]:
        """(Δ (d, k), change of the bias (d,)) for λ = penalty times the mean square of the centred inputs.

        biased : whether the map has a bias; without one, sums are not centred, and the change of the bias is 0
        """
        if not biased:
            ridge = penalty * self.aa.diagonal().mean().clamp_min(1e-30)
            change = torch.linalg.solve(self.aa + ridge * torch.eye(len(self.aa), dtype=self.aa.dtype), self.ea.T).T
            return change, torch.zeros_like(self.e)
        mean_a, mean_e = self.a / self.count, self.e / self.count
        gram = self.count * self.covariance()
        cross = self.ea - self.count * torch.outer(mean_e, mean_a)
        ridge = penalty * gram.diagonal().mean().clamp_min(1e-30)
        change = torch.linalg.solve(gram + ridge * torch.eye(len(gram), dtype=gram.dtype), cross.T).T
        return change, mean_e - change @ mean_a

    def error(self, change: Tensor, bias: Tensor) -> float:
        """Σ |Δ a + bias − e|², from the sums alone."""
        fitted = change @ self.aa
        quadratic = (fitted * change).sum() + self.count * bias @ bias + 2 * bias @ (change @ self.a)
        return float(quadratic - 2 * ((self.ea * change).sum() + bias @ self.e) + self.ee)


@dataclass(frozen=True)
class Part:
    """What passes one linear map whose output is added to a residual, for the tokens of one batch, (tokens, …)."""

    a: Tensor
    y: Tensor
    residual: Tensor

    @property
    def total(self) -> Tensor:
        return self.residual + self.y


@dataclass(frozen=True)
class Passed:
    """What passes one layer: its attention output map, its map out of the neurons, and its output (texts, n, d)."""

    attention: Part
    neurons: Part
    hidden: Tensor


class Layers:
    """An encoder on batches, one layer after the other; only the current hidden states are kept.

    hidden : of each batch, (texts, n, d), the stream before layer `place`
    """

    def __init__(self, encoder: Encoder, batches: Sequence[Batch]) -> None:
        self.encoder, self.masks = encoder, [batch.mask for batch in batches]
        self.hidden = [embedded(encoder, batch) for batch in batches]
        self.place = 0

    def passed(self, number: int) -> Passed:
        """Batch `number` through layer `place`, without moving on."""
        block = self.encoder.anatomy.blocks[self.place]
        with torch.inference_mode(), caught((block.output, block.inner, block.outer)) as seen:
            hidden = self.encoder.anatomy.steps[self.place](self.hidden[number], self.masks[number])
        mask = self.masks[number]
        before = self.hidden[number][mask]
        output_in, output = (tensor[mask] for tensor in seen[block.output])
        inner_in, _ = (tensor[mask] for tensor in seen[block.inner])
        outer_in, outer = (tensor[mask] for tensor in seen[block.outer])
        attention = Part(output_in, output, before)
        # A post-norm perceptron reads the stream that its output is added to.
        residual = attention.total if self.encoder.anatomy.pre_norm else inner_in
        return Passed(attention, Part(outer_in, outer, residual), hidden)

    def move(self, passed: Sequence[Passed] | None = None) -> None:
        """All batches through layer `place`. passed : of all batches, if it is known"""
        step = self.encoder.anatomy.steps[self.place]
        if passed is not None:
            self.hidden = [each.hidden for each in passed]
        else:
            with torch.inference_mode():
                self.hidden = [step(hidden, mask) for hidden, mask in zip(self.hidden, self.masks, strict=True)]
        self.place += 1


class Targets:
    """The sums of the full encoder at every map, computed once for many refits; the maps of one layer after the other.

    attention, neurons : by layer and batch, (tokens, d)
    """

    def __init__(self, full: Encoder, batches: Sequence[Batch]) -> None:
        self.full, self.batches = full, batches
        self.attention: list[list[Tensor]] = []
        self.neurons: list[list[Tensor]] = []
        layers = Layers(full, batches)
        for _ in full.anatomy.blocks:
            passed = [layers.passed(number) for number in range(len(batches))]
            self.attention.append([each.attention.total for each in passed])
            self.neurons.append([each.neurons.total for each in passed])
            layers.move(passed)


def heal(targets: Targets, smaller: Encoder, removal: Removal, fitted: int) -> int:
    """Refit the maps of the smaller encoder that lost heads or neurons, or that precede removed layers, in place.

    smaller : in the even form, with weights of its own
    fitted : the number of batches, the first ones, that are fitted; the others choose λ

    Returns the number of maps that were changed. A shared layer is not healed: its maps serve many depths.
    """
    full, blocks = targets.full.anatomy, smaller.anatomy.blocks
    if len({id(block.module) for block in blocks}) < len(blocks):
        return 0
    kept = [layer for layer in range(len(full.blocks)) if layer not in removal.layers]
    last = max([-1, *(kept.index(layer) for layer in (*removal.heads, *removal.neurons)), *_before_gaps(kept, full)])
    ours, changed = Layers(smaller, targets.batches), 0
    for place, layer in enumerate(kept[: last + 1]):
        after = kept[place + 1] if place + 1 < len(kept) else len(full.blocks)
        if removal.heads.get(layer):
            changed += _refit(targets.attention[layer], ours, fitted, "attention")
        if removal.neurons.get(layer) or after > layer + 1:
            if after > layer + 1 and not full.pre_norm:
                _take_over_norm(full, smaller.anatomy, after - 1, place)
            changed += _refit(targets.neurons[after - 1], ours, fitted, "neurons")
        ours.move()
    return changed


def _before_gaps(kept: Sequence[int], full: Anatomy) -> list[int]:
    """The places of the layers that precede removed layers."""
    nexts = [*kept[1:], len(full.blocks)]
    return [place for place, (layer, after) in enumerate(zip(kept, nexts, strict=True)) if after > layer + 1]


def _take_over_norm(full: Anatomy, smaller: Anatomy, removed: int, place: int) -> None:
    """The gain and the offset of the normalisation at the end of a removed layer."""
    theirs, ours = full.sites[removed + 1].module, smaller.sites[place + 1].module
    with torch.no_grad():
        for name in ("weight", "bias"):
            getattr(ours, name).copy_(getattr(theirs, name))


def _refit(targets: Sequence[Tensor], ours: Layers, fitted: int, which: str) -> bool:
    """Refit one map of layer `ours.place` to the sums of each batch; whether it was changed."""
    block = ours.encoder.anatomy.blocks[ours.place]
    linear = block.output if which == "attention" else block.outer
    alive = linear.weight.abs().sum(dim=0) > 0
    sums, held = LeastSquares(), LeastSquares()
    for number in range(len(ours.hidden)):
        own: Part = getattr(ours.passed(number), which)
        total = targets[number] if ours.encoder.anatomy.pre_norm else _rescaled(targets[number], own.total)
        (sums if number < fitted else held).add(own.a[:, alive], total - own.total)
    if sums.count < 2 or held.count == 0:
        return False
    nothing = torch.zeros_like(sums.ea), torch.zeros_like(sums.e)
    candidates = [nothing, *(sums.refit(penalty, linear.bias is not None) for penalty in PENALTIES)]
    change, bias = min(candidates, key=lambda found: held.error(*found))
    if change is nothing[0]:
        return False
    with torch.no_grad():
        linear.weight[:, alive] += change.to(linear.weight)
        if linear.bias is not None:
            linear.bias.add_(bias.to(linear.bias))
    return True


def _rescaled(target: Tensor, own: Tensor) -> Tensor:
    """The target with the mean and the length of `own`, token by token: a normalisation does not see them."""

    def parts(x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean(dim=-1, keepdim=True)
        return mean, torch.linalg.vector_norm(x - mean, dim=-1, keepdim=True).clamp_min(1e-12)

    (mean, length), (target_mean, target_length) = parts(own), parts(target)
    return mean + (target - target_mean) / target_length * length
