"""Plotly figures, one function each, for notebooks, reports and web pages.

Figures compute nothing: they ask the run. `caption(figure)` is the text that belongs under a figure. `paper(figure)`
gives any of them the size and the fonts of a paper, and `export(figure, path)` writes it as SVG, PDF or PNG.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go

from metastable.figures.angles import angles
from metastable.figures.curves import depth_curves, ledger_curves, lengths, loop_curves
from metastable.figures.distance import distance, distance_curves, distances
from metastable.figures.export import export
from metastable.figures.heads import comparison, heat_map
from metastable.figures.history import movement_map, step_curves
from metastable.figures.ladder import ladder_map
from metastable.figures.length import depth_by_length, forecast_points, length_curves, waterfall, way_points, word_map
from metastable.figures.look import caption, paper
from metastable.figures.monitor import length_histogram, p_by_depth, timeline
from metastable.figures.observables import observables
from metastable.figures.phase_diagram import phase_diagram
from metastable.figures.spectrum import eigenvalues, spectrum
from metastable.figures.sphere import sphere

OF_A_RUN: dict[str, Callable[[Any], go.Figure]] = {
    "distance": distance,
    "sphere": sphere,
    "spectrum": lambda run: spectrum(run.theory()),
    "observables": observables,
    "angles": angles,
}
"""The figures that `run.figure(kind)` can draw."""

__all__ = [
    "OF_A_RUN",
    "angles",
    "caption",
    "comparison",
    "depth_by_length",
    "depth_curves",
    "distance",
    "distance_curves",
    "distances",
    "eigenvalues",
    "export",
    "forecast_points",
    "heat_map",
    "ladder_map",
    "ledger_curves",
    "length_curves",
    "length_histogram",
    "lengths",
    "loop_curves",
    "movement_map",
    "observables",
    "p_by_depth",
    "paper",
    "phase_diagram",
    "spectrum",
    "sphere",
    "step_curves",
    "timeline",
    "waterfall",
    "way_points",
    "word_map",
]
