"""Four numbers of a cloud.

The mean cosine rises when tokens point one way. It stays below 1 here, because some tokens go to the opposite point.
The effective rank counts directions in use, and clusters are counted by short steps between tokens.
"""

import metastable as ms

head = ms.Head.from_spectra(interaction=[1.5, 1.0, 0.6], value=[1.2, 0.9, 0.5], seed=0)
run = ms.simulate(
    head, ms.von_mises_fisher(500, mean=[1.0, 0.0, 0.0], kappa=1.0, seed=0), beta=50.0, until=30.0, tol=1e-4
)
figure = run.figure("observables").update_layout(width=720)
