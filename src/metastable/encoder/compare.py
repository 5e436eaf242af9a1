"""Two checkpoints of one encoder, before and after training: which heads moved in weights, spectrum and behaviour.

B and V are folded as in `fold`. The changes of a head are relative to checkpoint a:

    interaction_change = ‖B_b − B_a‖_F/‖B_a‖_F,   value_change = ‖V_b − V_a‖_F/‖V_a‖_F,
    offset_change = |a_b − a_a|·√d/β_a,
    spectral_movement = ( min_π Σ_i |λ_i − μ_π(i)|² / Σ_i |λ_i|² )^{1/2}, π matching the eigenvalues of M_a and M_b.

Differences of products are products of stacked factors, B_b − B_a = [Q_b − Q_a; Q_a]ᵀ [K_b; K_b − K_a]. Their norms
come from triangular factors of at most 2k rows, so no d×d matrix is formed. They are exactly 0 for equal weights, and
of the order of rounding if only the basis inside a head was rotated (Q → RQ, K → RK), which changes no score.

Other weights are compared by groups (see `GROUPS`): ‖W_b − W_a‖/‖W_a‖ over all weights of a group. Together with B, V
and the score offset these are all weights of the encoder; poolers and task heads are not compared.

Whether a change on text is large is told by a **noisy copy**: checkpoint a with random noise on every weight, as long
as the change of this weight from a to b. If b differs from a as much as the noisy copy does, the change has no
direction that matters to the heads; see `Comparison.against_noise`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import norm as normal
from torch import Tensor, nn

from metastable import notebook
from metastable.encoder.anatomy import Anatomy
from metastable.encoder.fold import FoldedHead, fold
from metastable.encoder.weights import Weights, weigh
from metastable.errors import BadInput

if TYPE_CHECKING:
    from metastable.encoder.audit import Audit
    from metastable.encoder.exact_sums import ExactSums
    from metastable.encoder.load import Encoder

WEIGHTS = ("interaction_change", "value_change", "offset_change")
ROUNDING = 4.0
"""A smaller change is rounding, in units of the last place of the stored weights."""
ARITHMETIC = 1e-13
"""A smaller change is rounding too: the error of the difference of two products in float64."""
SHOWN = 3
"""The number of heads that `sentences` names."""
SIZES = ((0.01, "tiny"), (0.05, "small"), (0.2, "moderate"), (math.inf, "large"))
"""Relative changes in words: up to 1 % is tiny, up to 5 % small, up to 20 % moderate."""
ALIKE = 1.3
"""Layers changed alike if the largest change of a layer is at most this many times the smallest one."""
BY_CHANCE = 0.05
"""A statistic on text moved if fewer z-values as large are expected by chance among all comparisons."""

EMBEDDINGS, PERCEPTRONS, NORMS, REST = "embeddings", "perceptrons", "normalisations", "other weights"
GROUPS = (EMBEDDINGS, PERCEPTRONS, NORMS, REST)
"""Weights besides those in B, V and the score offset, by group. The gains and offsets that a layer reads are also part
of its B and V. Other weights are those in no other group, such as the biases of values and outputs."""

COLUMNS: dict[str, str] = {
    "rank": "1 for the head that moved most; heads are ordered by their mean rank over all changes and the largest |z|",
    "layer": "the attention layer, counted from 0",
    "head": "the head in its layer, counted from 0",
    "interaction_change": "relative change of B, Frobenius norm",
    "value_change": "relative change of V, Frobenius norm",
    "offset_change": "change of the score offset a in units of ‖B_a‖, on unit tokens",
    "spectral_movement": "relative distance between the eigenvalues of M, optimally matched",
    "moved": "whether any of the three changes is larger than rounding",
    "beta_before": "effective inverse temperature in checkpoint a",
    "beta_after": "the same in checkpoint b",
    "rate_before": "rate of concentration per layer in checkpoint a; 0 without a limit",
    "rate_after": "the same in checkpoint b",
    "prediction_before": "where tokens go at zero temperature, in checkpoint a",
    "prediction_after": "the same in checkpoint b",
    "prediction_changed": "whether the two differ",
}
"""The columns of `Comparison.heads`. Each statistic on text adds a column `z_NAME`; `largest_z` is the largest |z|."""


@dataclass(frozen=True)
class Comparison:
    """Made by `compare`.

    heads : one row a head, ordered by rank, see `COLUMNS`
    against_noise : how many times as much the heads changed on text as those of the noisy copy, by the median over
        statistics of the root mean square over heads; None without a noisy copy
    others : the relative change of the weights of each group of `GROUPS` that the encoder has, without changes of a
        weight by rounding; inf if all were 0 before, NaN if the shapes differ, so that there is nothing to compare
    """

    heads: pd.DataFrame
    against_noise: float | None = None
    others: dict[str, float] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """The comparison in a notebook: its sentences, and the change of B and V of each head."""
        rows: dict[str, object] = {
            "heads": len(self.heads),
            "moved": int(self.heads["moved"].sum()),
            "prediction changed": int(self.heads["prediction_changed"].sum()),
        }
        rows |= {str(i): sentence for i, sentence in enumerate(self.sentences(), start=1)}
        change = self.heads.assign(change=self.heads[["interaction_change", "value_change"]].mean(axis=1))
        cells = change.pivot(index="layer", columns="head", values="change").sort_index().to_numpy(dtype=float)
        label = "mean change of B and V by layer (down) and head (across)"
        return notebook.table("Comparison", rows, notebook.grid(cells, label))

    @property
    def layers(self) -> pd.DataFrame:
        """One row a layer: means over its heads of the changes, and `change`, the mean of those of B and V."""
        measures = [*WEIGHTS, "spectral_movement", *(["largest_z"] if "largest_z" in self.heads else [])]
        table = self.heads.groupby("layer")[measures].mean().reset_index()
        return table.assign(change=table[["interaction_change", "value_change"]].mean(axis=1))

    @property
    def _scores(self) -> pd.DataFrame:
        return self.heads.filter(regex="^z_").astype(float)

    @property
    def compared(self) -> int:
        """The number of z-values."""
        return int(self._scores.notna().to_numpy().sum())

    def sentences(self) -> list[str]:
        """The movement in words: layers that changed most and least, then counts, then the heads that moved most."""
        table, behaved = self.heads, pd.Series(False, index=self.heads.index)
        if self.compared:
            behaved = self.compared * 2 * normal.sf(table["largest_z"].astype(float)) < BY_CHANCE
        moved = table[table["moved"] | behaved]
        if moved.empty:
            still = "no head moved beyond rounding in B, V or the score offset"
            quiet = [f"on text, no head behaves differently beyond chance in {self.compared} comparisons"]
            return [still, *self._others(), *(quiet if self.compared else [])]
        changed = int(table["prediction_changed"].sum())
        words = f"{int(table['moved'].sum())} of {len(table)} heads moved beyond rounding in B, V or the score offset; "
        words += f"the prediction of the theory changed for {changed}"
        if self.compared:
            chance = f"more than chance explains in {self.compared} comparisons"
            words += f"; on text, {int(behaved.sum())} of {len(table)} heads behave differently, {chance}"
        heads = [self._sentence(row) for _, row in moved.head(SHOWN).iterrows()]
        return [*self._pattern(), *self._others(), *self._noise(), words, *heads]

    def _pattern(self) -> list[str]:
        """Which layers changed most and least, with the size of the change in words; nothing if none changed."""
        change = self.layers.set_index("layer")["change"]
        if not 0 < change.max() < math.inf:
            return []

        def size(value: float) -> str:
            return f"{_size(value)} on average, a {_word(value)} change"

        if len(change) == 1 or change.max() <= ALIKE * change.min():
            return [f"B and V changed about alike in all layers: by {size(float(change.mean()))}"]
        most = change[change >= change.max() / ALIKE].index.tolist()
        least = change[change <= change.min() * ALIKE].index.tolist()
        rest = f"least in {_listed(least)}, by {size(float(change[least].mean()))}"
        if change[least].max() == 0:
            rest = f"not at all in {_listed(least)}"
        return [f"B and V changed most in {_listed(most)}, by {size(float(change[most].mean()))}, and {rest}"]

    def _others(self) -> list[str]:
        """What became of the weights outside of B, V and the score offset, in one sentence."""
        if not self.others:
            return []
        changed = {name: change for name, change in self.others.items() if 0 < change < math.inf}
        appeared = [name for name, change in self.others.items() if change == math.inf]
        unknown = [name for name, change in self.others.items() if math.isnan(change)]
        same = [name for name, change in self.others.items() if change == 0]
        parts = [f"the {name} changed by {_size(change)}, a {_word(change)} change" for name, change in changed.items()]
        parts += [f"the {_and(appeared)} were all 0 and are not any more"] if appeared else []
        parts += [f"the {_and(unknown)} have other shapes and cannot be compared"] if unknown else []
        parts += [f"the {_and(same)} did not change beyond rounding"] if same else []
        return [
            "outside of B, V and the score offset, " + "; ".join([*parts, "poolers and task heads are not compared"])
        ]

    def _noise(self) -> list[str]:
        if self.against_noise is None or not math.isfinite(self.against_noise):
            return []
        ratio, size = self.against_noise, "random changes of the weights of the same size"
        if ratio > 2:
            return [f"on text, the heads changed {ratio:.2g} times as much as with {size}"]
        if ratio < 0.5:
            return [f"on text, the heads changed less than with {size}: {ratio:.2g} times as much"]
        return [f"on text, the heads changed about as much as with {size}: {ratio:.2g} times as much"]

    def _sentence(self, row: pd.Series) -> str:
        changes = [f"{100 * row[name]:.3g} %" for name in (*WEIGHTS, "spectral_movement")]
        words = f"layer {row['layer']}, head {row['head']}: B changed by {changes[0]}, V by {changes[1]}, "
        words += f"the score offset by {changes[2]} of ‖B‖, M's eigenvalues by {changes[3]}; "
        words += f"β {row['beta_before']:.4g} → {row['beta_after']:.4g}"
        if row["prediction_changed"]:
            words += f"; prediction: {row['prediction_before']} → {row['prediction_after']}"
        if self.compared and math.isfinite(row["largest_z"]):
            scores = self._scores.loc[row.name]
            first = str(scores.abs().idxmax())
            words += f"; on text {first.removeprefix('z_').replace('_', ' ')} moved most, z = {scores[first]:.3g}"
        return words


def _size(change: float) -> str:
    return f"{100 * change:.2g} %" if change < 1 else f"{100 * change:.0f} %"


def _word(change: float) -> str:
    return next(word for end, word in SIZES if change <= end)


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _listed(layers: list[int]) -> str:
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {', '.join(map(str, layers))}"


def compare(a: Audit, b: Audit, noisy: Audit | None = None) -> Comparison:
    """Which heads moved from checkpoint a to b: in weights, in spectrum and, if both have texts, in behaviour.

    Each statistic on text gets z = (mean_b − mean_a)/√(se_a² + se_b²). The errors on the same texts are correlated, so
    |z| is too small.

    noisy : the audit of the noisy copy (see `noisy_copy`) on the same texts
    """
    anatomies = _anatomy(a), _anatomy(b)
    _check_shapes(*anatomies)
    weights = weigh(anatomies[0]), weigh(anatomies[1])
    rows: list[dict[str, Any]] = []
    for before, after in zip(anatomies[0].layers, anatomies[1].layers, strict=True):
        stored = max(torch.finfo(layer.query.weight.dtype).eps for layer in (before, after))
        rounding = max(ROUNDING * stored, ARITHMETIC)
        for head in range(before.heads):
            rows.append(_row(fold(before, head), fold(after, head), *weights, place=len(rows), rounding=rounding))
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    measures = [*WEIGHTS, "spectral_movement"]
    if a.measured is not None and b.measured is not None:
        table = table.assign(**_scores(a.measured.heads, b.measured.heads))
        measures.append("largest_z")
    standing = table[measures].fillna(-1.0).rank(method="average", ascending=False).mean(axis=1)
    table = table.assign(rank=standing).sort_values(["rank", "layer", "head"], kind="stable").reset_index(drop=True)
    table = table.assign(rank=np.arange(1, len(table) + 1))
    return Comparison(table, _against_noise(a, b, noisy), _other_changes(*anatomies))


def _other_changes(a: Anatomy, b: Anatomy) -> dict[str, float]:
    """See `Comparison.others`."""
    before, after = _grouped(a), _grouped(b)
    found = {}
    for name in GROUPS:
        own, other = before[name], after[name]
        if not own and not other:
            continue
        if {key: weight.shape for key, weight in own.items()} != {key: weight.shape for key, weight in other.items()}:
            found[name] = math.nan
            continue
        size, moved = (
            math.sqrt(sum(float(part.double().square().sum()) for part in parts))
            for parts in (own.values(), [_beyond_rounding(own[key], other[key]) for key in own])
        )
        found[name] = _ratio(moved, size)
    return found


def _beyond_rounding(a: Tensor, b: Tensor) -> Tensor:
    """b − a, with 0 for each weight that differs by rounding only."""
    rounding = ROUNDING * max(torch.finfo(weight.dtype).eps for weight in (a, b))
    before, after = a.double().cpu(), b.double().cpu()
    moved = after - before
    return torch.where(moved.abs() > rounding * torch.maximum(before.abs(), after.abs()), moved, 0.0)


def _grouped(anatomy: Anatomy) -> dict[str, dict[str, Tensor]]:
    """The weights of each group of `GROUPS`, by name."""
    kinds: dict[int, str] = {}
    for module in anatomy.model.modules():
        kind = EMBEDDINGS if isinstance(module, nn.Embedding) else NORMS if isinstance(module, nn.LayerNorm) else None
        if kind is not None:
            kinds |= {id(weight): kind for weight in module.parameters(recurse=False)}
    for block in anatomy.blocks:
        kinds |= {id(weight): PERCEPTRONS for linear in (block.inner, block.outer) for weight in linear.parameters()}
        kinds |= {id(linear.weight): "" for linear in (*block.linears, block.output)}
        if len(block.linears) > 1 and block.linears[0].bias is not None:
            kinds[id(block.linears[0].bias)] = ""
    found: dict[str, dict[str, Tensor]] = {name: {} for name in (*GROUPS, "")}
    for name, weight in anatomy.model.named_parameters():
        if not name.startswith("pooler."):
            found[kinds.get(id(weight), REST)][name] = weight.detach()
    return found


def noisy_copy(a: Encoder, b: Encoder, seed: int = 0) -> Encoder:
    """Checkpoint a with Gaussian noise on each weight, as long as the change of this weight from a to b."""
    _check_shapes(a.anatomy, b.anatomy)
    random, after = torch.Generator().manual_seed(seed), dict(b.model.named_parameters())
    found = a.separate()
    with torch.no_grad():
        for name, weight in found.model.named_parameters():
            if name in after and after[name].shape == weight.shape:
                noise = torch.randn(weight.shape, generator=random)
                length = float((after[name].detach().float().cpu() - weight.cpu()).norm())
                weight.add_((length / float(noise.norm().clamp_min(1e-30)) * noise).to(weight))
    return replace(found, name=f"{a.name} with noise")


def _against_noise(a: Audit, b: Audit, noisy: Audit | None) -> float | None:
    """See `Comparison.against_noise`."""
    if noisy is None or a.measured is None or b.measured is None or noisy.measured is None:
        return None
    ratios = []
    for name in a.measured.heads:
        start, end, beside = (audit.measured.heads[name].mean() for audit in (a, b, noisy) if audit.measured)
        with np.errstate(invalid="ignore"):
            moved, by_noise = (float(np.sqrt(np.nanmean((other - start) ** 2))) for other in (end, beside))
        if by_noise > 0 and math.isfinite(moved):
            ratios.append(moved / by_noise)
    return float(np.median(ratios)) if ratios else None


def _anatomy(audit: Audit) -> Anatomy:
    if audit.anatomy is None:
        raise BadInput(f"the audit of {audit.name!r} was read from a file, without weights; audit the model itself")
    return audit.anatomy


def _check_shapes(a: Anatomy, b: Anatomy) -> None:
    if a.family != b.family:
        raise BadInput(
            f"cannot compare a {a.family} encoder with a {b.family} encoder; give two checkpoints of one model"
        )
    if len(a.layers) != len(b.layers):
        raise BadInput(f"cannot compare {len(a.layers)} layers with {len(b.layers)}; give two checkpoints of one model")
    for before, after in zip(a.layers, b.layers, strict=True):
        shapes = [(layer.heads, *layer.query.weight.shape[1:]) for layer in (before, after)]
        if shapes[0] != shapes[1] or before.output.shape != after.output.shape:
            words = " with ".join(f"{heads} heads of {k}×{d}" for heads, k, d in shapes)
            raise BadInput(f"layer {before.index}: cannot compare {words}; give two checkpoints of one model")


def _row(a: FoldedHead, b: FoldedHead, before: Weights, after: Weights, place: int, rounding: float) -> dict[str, Any]:
    old, new = before.heads.iloc[place], after.heads.iloc[place]
    changes = {
        "interaction_change": _relative(a.scale * a.query, a.key, b.scale * b.query, b.key),
        "value_change": _relative(_centred(a).T, a.value, _centred(b).T, b.value),
        "offset_change": _offset_change(a, b, old["beta"]),
    }
    if not any(changes.values()):
        # Equal weights have equal spectra; the rounding of two decompositions must not show.
        new, movement = old, 0.0
    else:
        movement = matching_distance(before.spectra[a.layer, a.head][0], after.spectra[b.layer, b.head][0])
    return {
        "layer": a.layer,
        "head": a.head,
        **changes,
        "spectral_movement": movement,
        "moved": any(change > rounding for change in changes.values()),
        **{f"{name}_before": old[name] for name in ("beta", "rate", "prediction")},
        **{f"{name}_after": new[name] for name in ("beta", "rate", "prediction")},
        "prediction_changed": bool(old["prediction"] != new["prediction"]),
    }


def _centred(head: FoldedHead) -> Tensor:
    """C W_o/ρ, (d, r): the left factor of V."""
    return (head.output - head.output.mean(dim=0, keepdim=True)) / head.residual


def _relative(left_a: Tensor, right_a: Tensor, left_b: Tensor, right_b: Tensor) -> float:
    """‖L_bᵀR_b − L_aᵀR_a‖_F/‖L_aᵀR_a‖_F for factors (k, d)."""
    change = _frobenius(torch.cat([left_b - left_a, left_a]), torch.cat([right_b, right_b - right_a]))
    return _ratio(change, _frobenius(left_a, right_a))


def _frobenius(left: Tensor, right: Tensor) -> float:
    """‖LᵀR‖_F from triangular factors. Traces of Gram matrices would lose half of the digits of a small change."""
    small = [torch.linalg.qr(factor.T, mode="r").R for factor in (left, right)]
    return float(torch.linalg.matrix_norm(small[0] @ small[1].T))


def _offset_change(a: FoldedHead, b: FoldedHead, beta: float) -> float:
    before, after = (head.scale * head.query_offset @ head.key for head in (a, b))
    return _ratio(math.sqrt(a.dim) * float((after - before).norm()), beta)


def _ratio(change: float, size: float) -> float:
    return change / size if size > 0 else math.inf if change > 0 else 0.0


def matching_distance(a: np.ndarray, b: np.ndarray) -> float:
    """(min_π Σ|a_i − b_π(i)|² / Σ|a_i|²)^{1/2} for two lists of k complex numbers, in any order."""
    cost = np.abs(a[:, None] - b[None, :]) ** 2
    rows, columns = linear_sum_assignment(cost)
    return _ratio(math.sqrt(float(cost[rows, columns].sum())), math.sqrt(float((np.abs(a) ** 2).sum())))


def _scores(a: Mapping[str, ExactSums], b: Mapping[str, ExactSums]) -> dict[str, np.ndarray]:
    """z of each statistic and the largest |z|, (heads of all layers,)."""
    scores = {}
    for name in sorted(a):
        change = (b[name].mean() - a[name].mean()).ravel()
        error = np.hypot(a[name].error(), b[name].error()).ravel()
        with np.errstate(divide="ignore", invalid="ignore"):
            scores[f"z_{name}"] = np.where((change == 0) & (error == 0), 0.0, change / error)
    return {**scores, "largest_z": pd.DataFrame(scores).abs().max(axis=1).to_numpy()}
