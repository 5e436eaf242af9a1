"""A probe of mean tokens for signs of spoiling: words out of place, missing or repeated, typing errors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from metastable.encoder.hooks import Depth, Passage, Watch
from metastable.encoder.load import Encoder
from metastable.errors import BadInput
from metastable.monitor.detectors.base import Column, Gathering, Reading, Taught, Values
from metastable.monitor.exposure import CLIP, Exposure
from metastable.monitor.spoiling import KINDS

# Where mean tokens are read, as shares of the layers. Chosen on development and seen shifts of the benchmark.
SHARES = (1 / 3, 1 / 2)
# A coordinate of x̄ with a smaller standard deviation is constant up to the rounding of float32.
CONSTANT = 1e-7
# The probe is one feature among others, so the digits that a default tolerance gives are enough.
STEPS = {"maxiter": 300}


class SpoiltProbe(Taught):
    """Log-odds of each kind of spoilt text, and of any, from a text's mean tokens x̄ at two depths.

        log P(kind j | x̄) − log P(clean | x̄) = ⟨w_j, clip((x̄ − centre)/unit)⟩ + b_j

    is an `Exposure` of the mean tokens themselves, side by side, which is learned from clean texts and from spoilt
    copies of the same texts. The clip at ±6 limits what it says far from both. A copy has the topic of its text, so the
    probe cannot learn topics: it finds the direction in which spoiling moves hidden states. Such a linear map of hidden
    states is called a probe (Alain and Bengio, "Understanding intermediate layers using linear classifier probes",
    2017).

    Its columns are for the classifier of spoilt texts, which weighs them against those of the other detectors.
    """

    name = "spoilt-probe"
    words = "on average its words are like those of spoilt texts"
    explains = False

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.depths = tuple(sorted({round(share * self.layers) for share in SHARES}))
        self.columns = tuple(Column(kind, None) for kind in (*KINDS, "any"))
        self._rows: list[np.ndarray] = []

    def learn(self, stage: int, passage: Passage) -> Watch:
        def take(depth: Depth) -> Tensor:
            return torch.where(passage.counts.unsqueeze(1) > 0, depth.lens.of_view(depth.mean), torch.nan)

        def give(rows: dict[int, Tensor]) -> None:
            self._rows.append(torch.cat([rows[depth] for depth in self.depths], dim=1).cpu().numpy())

        return Gathering(take, give)

    def teach(self, kinds: np.ndarray) -> None:
        rows = np.concatenate(self._rows).astype(np.float64) if self._rows else np.empty((0, 1))
        self._rows = []
        read = np.isfinite(rows).all(axis=1)
        clean, spoilt = read & (kinds < 0), read & (kinds >= 0)
        if not clean.any() or not spoilt.any():
            raise BadInput(
                f"the detector has learned from {clean.sum()} clean and {spoilt.sum()} spoilt texts; "
                "give texts with words in them"
            )
        probe = Exposure.of(rows[clean], rows[spoilt], kinds[spoilt], STEPS)
        # The mean token comes as a mean of v, with x̂ = scale⊙v + shift.
        lenses = [self._lenses[depth] for depth in self.depths]
        scale, shift = (torch.cat([getattr(lens, name).double() for lens in lenses]) for name in ("scale", "shift"))
        centre, unit = torch.from_numpy(probe.centre), torch.from_numpy(probe.unit)
        # Coordinates that do not vary say nothing.
        unit = torch.where(unit > CONSTANT, unit, torch.inf)
        self.keep(
            {
                "slope": scale / unit,
                "offset": (shift - centre) / unit,
                "weights": torch.from_numpy(probe.weights),
            }
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        k = len(self.depths) * self._width
        return {"slope": (k,), "offset": (k,), "weights": (k + 1, len(KINDS))}

    def open(self, passage: Passage) -> Reading:
        return _Probing(self, passage)


class _Probing(Reading):
    def __init__(self, probe: SpoiltProbe, passage: Passage) -> None:
        self._depths, self._arrays, self._passage = probe.depths, probe.arrays_on(passage.ids.device), passage
        self._means: dict[int, Tensor] = {}

    def visit(self, depth: Depth) -> None:
        self._means[depth.index] = depth.mean

    def values(self) -> Values:
        counts = self._passage.counts
        if len(self._means) < len(self._depths):
            return Values(torch.zeros(len(counts), len(KINDS) + 1, dtype=torch.float64))
        means = torch.cat([self._means[depth] for depth in self._depths], dim=1)
        z = torch.addcmul(self._arrays["offset"], self._arrays["slope"], means).clamp_(-CLIP, CLIP)
        weights = self._arrays["weights"]
        logits = torch.addmm(weights[-1], z, weights[:-1])
        found = torch.cat([logits, torch.logsumexp(logits, dim=1, keepdim=True)], dim=1).double()
        return Values(torch.where(counts.unsqueeze(1) > 0, found, 0.0))
