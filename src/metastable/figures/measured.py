"""What a run says about its distance to the limit law, asked for once and shared by figure and report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from metastable.errors import BadInput, SimulationStopped

if TYPE_CHECKING:
    import xarray as xr

    from metastable.run.run import Run
    from metastable.theory.phases import Phases
    from metastable.transport import NoiseFloor

DIAMETER = 2.0
"""No two laws on the unit sphere are further apart than this in chordal distance."""

PLACED = ("graded", "fibonacci", "equally_spaced")
"""Laws whose tokens are no random sample."""


@dataclass
class Measured:
    """Curves, noise floor and phases of a run. A part that could not be had is None and `missing` says why.

    `quadrature` tells that the tokens were placed by rule instead of drawn at random.
    """

    distance: xr.DataArray | None = None
    laplace: xr.DataArray | None = None
    lyapunov: xr.DataArray | None = None
    certificate: xr.DataArray | None = None
    floor: NoiseFloor | None = None
    phases: Phases | None = None
    quadrature: bool = False
    missing: list[str] = field(default_factory=list)

    @property
    def bound(self) -> np.ndarray | None:
        """Certificate + Lyapunov term, (T,): by the triangle inequality above the distance. None without either."""
        if self.certificate is None or self.lyapunov is None:
            return None
        return np.asarray(self.certificate.values + self.lyapunov["upper"].values)

    @property
    def vacuous_from(self) -> float | None:
        """The first saved time at which the bound reaches the sphere's diameter, from where on it says nothing."""
        if self.bound is None or self.certificate is None:
            return None
        above = np.flatnonzero(~(self.bound < DIAMETER))
        return float(self.certificate["time"][above[0]]) if len(above) else None


def measure(run: Run) -> Measured:
    """Ask the run for everything that it can say."""
    found = Measured(quadrature=run.cloud.law["law"] in PLACED)
    if run.theory.no_limit:
        found.missing.append(f"There is no limit law to measure a distance to: {run.theory.no_limit}.")
        return found
    found.distance = run.distance()
    found.phases = run.phases()
    try:
        found.floor = run.noise_floor()
    except BadInput as reason:
        found.missing.append(f"No noise floor: {reason}.")
    try:
        found.laplace, found.lyapunov = run.laplace_term(), run.lyapunov_term()
    except (BadInput, SimulationStopped) as reason:
        found.missing.append(f"The Laplace term, the Lyapunov term and the bound are left out: {reason}.")
        return found
    if np.isfinite(run.theory.lipschitz):
        found.certificate = run.certificate()
    else:
        found.missing.append("The bound is left out: B is singular, so its Lipschitz constant L is infinite.")
    return found
