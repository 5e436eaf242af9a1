"""The two flows that are known exactly.

Flow of V (one cluster, the terminal phase):  x(t) = e^{tV}x₀/|e^{tV}x₀|.

Zero temperature:  x = e^{τM}x₀/|e^{τM}x₀| with each token's own clock dt/dτ = |Bᵀx(τ)|. Internal time is cut into
panels of length about 1/(2‖M‖). On a panel the clock is interpolated at Chebyshev points, integrated in closed
form, and t(τ) = t is solved by Newton's method. The position at that τ is the Taylor series of e^{σM}, which is exact
to rounding on a panel. There is no time-stepping error. The error of the quadrature is about 1e-12 a panel.
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
"""Chebyshev points of a panel."""
TERMS = 20
"""Terms of the Taylor series of e^{σM}."""
NEWTON = 40
"""Most iterations of Newton's method."""
PANELS = 200_000
"""Most panels: a token whose clock stands still never reaches the last time."""
CHUNK = 50_000
"""Tokens that are moved at once."""


def value_flow(head: Head, x: Tensor, times: Tensor) -> Tensor:
    """e^{tV}x/|e^{tV}x| for the rows of x, (n, d), at each of `times`, (T,): (T, n, d)."""
    V = _shifted(head.V)
    moved = [unit(x.to(V.dtype) @ torch.linalg.matrix_exp(float(t) * V).T) for t in times]
    return torch.stack(moved).to(x.dtype)


def _shifted(M: Tensor) -> Tensor:
    """M − sI in float64, s the largest real part of an eigenvalue. e^{tM}x keeps its direction and cannot overflow."""
    M = M.to(torch.float64)
    return M - float(torch.linalg.eigvals(M).real.max()) * torch.eye(len(M), dtype=M.dtype, device=M.device)


def zero_temperature_flow(head: Head, cloud: Cloud, times: Tensor) -> Tensor:
    """The exact zero-temperature positions of all tokens at each of `times` (increasing, ≥ 0): (T, N, d)."""
    if head.offset is not None:
        raise BadInput("the exact zero-temperature flow needs linear scores, but this head has an offset")
    wanted = torch.as_tensor(times, dtype=torch.float64, device="cpu")
    increasing = bool(torch.isfinite(wanted).all()) and bool((wanted.diff() > 0).all())
    if wanted.ndim != 1 or len(wanted) == 0 or not increasing or float(wanted[0]) < 0:
        raise BadInput("times must be a list of increasing numbers, 0 or more")
    out = torch.empty(len(wanted), len(cloud), cloud.dim, dtype=cloud.dtype, device=cloud.points.device)
    for start in range(0, len(cloud), CHUNK):
        part = cloud.points[start : start + CHUNK].detach().to("cpu", torch.float64).numpy()
        out[:, start : start + CHUNK] = torch.from_numpy(_Panels(head, part).positions(wanted.numpy())).to(out)
    return out


class _Panels:
    """Move tokens (n, d) through panels of internal time. Each token is reported at the times of its own clock."""

    def __init__(self, head: Head, x: np.ndarray) -> None:
        self.x = x.copy()
        self.B = head.B.detach().to("cpu", torch.float64).numpy()
        shifted = _shifted(head.M.cpu())
        self.M = shifted.numpy()
        self.width = 0.5 / max(float(np.linalg.norm(self.M, 2)), 1e-12)
        nodes = 0.5 * self.width * (1 - np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES))
        steps = [torch.linalg.matrix_exp(float(s) * shifted).T.numpy() for s in (*nodes, self.width)]
        self.node_maps, self.panel_map = steps[:-1], steps[-1]
        self.fit = np.linalg.inv(chebyshev.chebvander(2 * nodes / self.width - 1, NODES - 1))

    def positions(self, times: np.ndarray) -> np.ndarray:
        """Positions at each of the times: (T, n, d)."""
        out = np.empty((len(times), *self.x.shape))
        clock = np.zeros(len(self.x))
        # Index of the next wanted time of each token.
        following = np.zeros(len(self.x), dtype=int)
        active = np.arange(len(self.x))
        for _ in range(PANELS):
            if len(active) == 0:
                return out
            x = self.x[active]
            series = self._elapsed(x)
            end = clock[active] + series.sum(axis=1)
            while True:
                due = following[active] < len(times)
                due[due] = times[following[active[due]]] <= end[due]
                if not due.any():
                    break
                tokens = active[due]
                sigma = self._invert(series[due], times[following[tokens]] - clock[tokens])
                out[following[tokens], tokens] = _unit(self._advance(x[due], sigma))
                following[tokens] += 1
            self.x[active] = _unit(x @ self.panel_map)
            clock[active] = end
            active = active[following[active] < len(times)]
        raise SimulationStopped(
            f"{len(active)} tokens sit where Bᵀx vanishes and their clock stands still at t = "
            f"{float(clock[active].min()):.4g}: the zero-temperature flow is undefined there"
        )

    def _elapsed(self, x: np.ndarray) -> np.ndarray:
        """Chebyshev coefficients, (n, NODES + 1), of the time elapsed since the start of the panel."""
        moved = (x @ step for step in self.node_maps)
        rates = np.stack([np.sqrt(_squares(y @ self.B) / _squares(y)) for y in moved], axis=1)
        return np.asarray(chebyshev.chebint(rates @ self.fit.T, lbnd=-1, scl=0.5 * self.width, axis=1))

    def _invert(self, series: np.ndarray, elapsed: np.ndarray) -> np.ndarray:
        """σ in [0, width] with t(σ) = elapsed, by Newton's method kept inside a shrinking bracket."""
        c = series.T
        slope = chebyshev.chebder(c, scl=2 / self.width)
        low, high = np.full(elapsed.shape, -1.0), np.ones(elapsed.shape)
        z = np.clip(2 * elapsed / np.maximum(c.sum(axis=0), 1e-300) - 1, -1, 1)
        for _ in range(NEWTON):
            residual = chebyshev.chebval(z, c, tensor=False) - elapsed
            low, high = np.where(residual < 0, z, low), np.where(residual < 0, high, z)
            rate = chebyshev.chebval(z, slope, tensor=False) * (0.5 * self.width)
            with np.errstate(divide="ignore", invalid="ignore"):
                newton = z - residual / rate
            inside = (newton >= low) & (newton <= high)
            new = np.where(inside, newton, 0.5 * (low + high))
            moved, z = np.abs(new - z).max(), new
            if moved < 1e-13:
                break
        return np.asarray(0.5 * self.width * (z + 1))

    def _advance(self, x: np.ndarray, sigma: np.ndarray) -> np.ndarray:
        """e^{σM}x with each row's own σ, by Horner's scheme for the Taylor series."""
        s, total = sigma[:, None], x
        for j in range(TERMS, 0, -1):
            total = x + (s / j) * (total @ self.M.T)
        return total


def _unit(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.sqrt(_squares(x))[:, None])


def _squares(x: np.ndarray) -> np.ndarray:
    """|x|² of each row."""
    return np.asarray(np.einsum("ij,ij->i", x, x))
