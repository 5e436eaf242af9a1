"""Wasserstein distances between clouds: exact where possible, elsewhere bounds that are labelled as bounds.

W_p(μ, ν) = (inf over couplings γ of ∫ c(x, y)^p dγ)^{1/p}, with c(x, y) = |x − y| (cost "chordal") or the angle
between x and y (cost "geodesic"). There is no factor ½. All computations are in float64 on the CPU, whatever
the dtype and the device of the clouds.
"""

from metastable.transport.atoms import two_atoms
from metastable.transport.bounds import coupling, sliced
from metastable.transport.distances import NoiseFloor, noise_floor, to_limit, wasserstein
from metastable.transport.measure import Distance

__all__ = [
    "Distance",
    "NoiseFloor",
    "coupling",
    "noise_floor",
    "sliced",
    "to_limit",
    "two_atoms",
    "wasserstein",
]
