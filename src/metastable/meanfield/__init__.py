"""The mean-field equation itself: cells that move with the flow, carry their mass in logarithms and are refined."""

from metastable.meanfield.run import MeanFieldPhases, MeanFieldRun
from metastable.meanfield.solving import mean_field

__all__ = ["MeanFieldPhases", "MeanFieldRun", "mean_field"]
