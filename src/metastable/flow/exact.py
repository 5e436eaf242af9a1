"""The two flows that are known exactly.

Flow of V (one cluster, the terminal phase):  x(t) = e^{tV}x₀/|e^{tV}x₀|.

Zero temperature:  x = e^{τM}x₀/|e^{τM}x₀| with each token's own clock dt/dτ = |Bᵀx(τ)|. Internal time is cut into
panels of length about 1/(2‖M‖). On a panel the clock is interpolated at Chebyshev points, integrated in closed
form, and t(τ) = t inverted by Newton's method; x at that τ comes from the Taylor series of e^{σM}, which on a
panel reaches rounding. There is no time-stepping error, only this quadrature's, about 1e-12 a panel.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from metastable.cloud import Cloud
from metastable.errors import BadInput, SimulationStopped
from metastable.flow.steppers import unit
from metastable.head import Head

NODES = 14
TERMS = 20
NEWTON = 40
PANELS = 200_000
CHUNK = 50_000


def value_flow(head: Head, x: Tensor, times: Tensor) -> Tensor:
    """e^{tV}x/|e^{tV}x| for the rows of x, (n, d), at each of `times`, (T,): (T, n, d)."""
    V = head.V.to(torch.float64)
    # The direction is unchanged by V → V − sI; the shift keeps e^{tV} from overflowing.
    shifted = V - float(torch.linalg.eigvals(V).real.max()) * torch.eye(head.dim, dtype=V.dtype, device=V.device)
    moved = [unit(x.to(V.dtype) @ torch.linalg.matrix_exp(float(t) * shifted).T) for t in times]
    return torch.stack(moved).to(x.dtype)


def _increasing(times: Tensor) -> bool:
    return float(times[0]) >= 0 and bool((times.diff() > 0).all()) and bool(torch.isfinite(times).all())


def zero_temperature_flow(head: Head, cloud: Cloud, times: Tensor) -> Tensor:
    """The exact zero-temperature positions of all tokens at each of `times` (increasing, ≥ 0): (T, N, d)."""
    if head.offset is not None:
        raise BadInput("the exact zero-temperature flow needs linear scores, but this head has an offset")
    wanted = torch.as_tensor(times, dtype=torch.float64)
    if wanted.ndim != 1 or len(wanted) == 0 or not _increasing(wanted):
        raise BadInput("times must be a list of increasing numbers, 0 or more")
    out = torch.empty(len(wanted), len(cloud), cloud.dim, dtype=cloud.dtype, device=cloud.points.device)
    for start in range(0, len(cloud), CHUNK):
        part = cloud.points[start : start + CHUNK].detach().to("cpu", torch.float64)
        out[:, start : start + CHUNK] = _Panels(head, part).positions(wanted).to(out)
    return out


class _Panels:
    """March a set of tokens through panels of internal time; each token reports when its own time comes."""

    def __init__(self, head: Head, x: Tensor) -> None:
        self.x = x.clone()
        self.B = head.B.detach().to("cpu", torch.float64)
        M = head.M.detach().to("cpu", torch.float64)
        self.M = M - float(torch.linalg.eigvals(M).real.max()) * torch.eye(len(M), dtype=M.dtype)
        self.width = 0.5 / max(float(torch.linalg.matrix_norm(self.M, 2)), 1e-12)
        self._prepare()

    def _prepare(self) -> None:
        nodes = 0.5 * self.width * (1 - np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES))
        steps = [torch.linalg.matrix_exp(float(s) * self.M).T for s in (*nodes, self.width)]
        self.node_maps, self.panel_map = steps[:-1], steps[-1]
        reference = 2 * nodes / self.width - 1
        self.fit = torch.from_numpy(np.linalg.inv(chebyshev.chebvander(reference, NODES - 1)))

    def positions(self, times: Tensor) -> Tensor:
        n, d = self.x.shape
        out = torch.empty(len(times), n, d, dtype=torch.float64)
        clock_now = torch.zeros(n, dtype=torch.float64)
        following = torch.zeros(n, dtype=torch.long)
        active = torch.arange(n)
        for _ in range(PANELS):
            if len(active) == 0:
                return out
            x = self.x[active]
            series = self._elapsed(x)
            end = clock_now[active] + series.sum(dim=1)
            self._report(times, out, active, x, series, clock_now, end, following)
            self.x[active] = unit(x @ self.panel_map)
            clock_now[active] = end
            active = active[following[active] < len(times)]
        raise SimulationStopped(
            f"{len(active)} tokens sit where Bᵀx vanishes and their clock stands still at t = "
            f"{float(clock_now[active].min()):.4g}: the zero-temperature flow is undefined there"
        )

    def _elapsed(self, x: Tensor) -> Tensor:
        """Chebyshev coefficients, (n, NODES + 1), of the time elapsed since the start of the panel."""
        rates = torch.stack(
            [torch.linalg.vector_norm(unit(x @ step) @ self.B, dim=1) for step in self.node_maps], dim=1
        )
        coefficients = rates @ self.fit.T
        return torch.from_numpy(chebyshev.chebint(coefficients.numpy(), lbnd=-1, scl=0.5 * self.width, axis=1).copy())

    def _report(
        self,
        times: Tensor,
        out: Tensor,
        active: Tensor,
        x: Tensor,
        series: Tensor,
        begin: Tensor,
        end: Tensor,
        following: Tensor,
    ) -> None:
        """Write the position of every token for which a wanted time falls into this panel."""
        while True:
            index = following[active].clamp(max=len(times) - 1)
            due = (following[active] < len(times)) & (times[index] <= end)
            if not bool(due.any()):
                return
            rows = due.nonzero().squeeze(1)
            tokens = active[rows]
            sigma = self._invert(series[rows], times[index[rows]] - begin[tokens])
            out[following[tokens], tokens] = unit(self._advance(x[rows], sigma))
            following[tokens] += 1

    def _invert(self, series: Tensor, elapsed: Tensor) -> Tensor:
        """σ in [0, width] with t(σ) = elapsed, by Newton's method kept inside a shrinking bracket."""
        c = series.numpy().T
        slope = chebyshev.chebder(c, scl=2 / self.width)
        target = elapsed.numpy()
        low, high = np.full(target.shape, -1.0), np.ones(target.shape)
        z = np.clip(2 * target / np.maximum(c.sum(axis=0), 1e-300) - 1, -1, 1)
        for _ in range(NEWTON):
            residual = chebyshev.chebval(z, c, tensor=False) - target
            low, high = np.where(residual < 0, z, low), np.where(residual < 0, high, z)
            rate = chebyshev.chebval(z, slope, tensor=False) * (0.5 * self.width)
            with np.errstate(divide="ignore", invalid="ignore"):
                newton = z - residual / rate
            inside = (newton >= low) & (newton <= high)
            new = np.where(inside, newton, 0.5 * (low + high))
            moved, z = np.abs(new - z).max(), new
            if moved < 1e-13:
                break
        return torch.from_numpy(0.5 * self.width * (z + 1))

    def _advance(self, x: Tensor, sigma: Tensor) -> Tensor:
        """e^{σM}x with each row's own σ, by Horner's scheme for the Taylor series."""
        s, total = sigma.unsqueeze(1), x
        for j in range(TERMS, 0, -1):
            total = x + (s / j) * (total @ self.M.T)
        return total
