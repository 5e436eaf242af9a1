"""Plotly figures, one function each, for notebook, report and web page alike.

Figures compute nothing of their own: they ask the run. `caption(figure)` is the text that belongs under one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from metastable.figures.compared import distances
from metastable.figures.curves import depth_curves, lengths, loop_curves
from metastable.figures.distance import distance
from metastable.figures.heads import comparison, eigenvalues, heat_map
from metastable.figures.look import caption
from metastable.figures.observables import observables
from metastable.figures.phase_diagram import phase_diagram
from metastable.figures.picture import picture
from metastable.figures.spectrum import spectrum
from metastable.figures.sphere import sphere

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from metastable.run.run import Run

OF_A_RUN: dict[str, Callable[[Run], go.Figure]] = {
    "distance": distance,
    "sphere": sphere,
    "spectrum": lambda run: spectrum(run.theory),
    "observables": observables,
}
"""What `run.figure(kind)` chooses from."""

__all__ = [
    "OF_A_RUN",
    "caption",
    "comparison",
    "depth_curves",
    "distance",
    "distances",
    "eigenvalues",
    "heat_map",
    "lengths",
    "loop_curves",
    "observables",
    "phase_diagram",
    "picture",
    "spectrum",
    "sphere",
]
