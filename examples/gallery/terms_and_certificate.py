"""The distance and its two terms.

The distance is at most the sum of two terms. The Lyapunov term falls: zero temperature brings the tokens to the
limit. The Laplace term grows: finite temperature drifts away from zero temperature. The bound needs no fitted number,
and it soon says nothing.
"""

import metastable as ms

head = ms.Head.from_spectra(interaction=[1.5, 0.9, 0.6], value=[1.2, 0.7, 0.4], seed=4)
run = ms.simulate(head, ms.graded(800, head), beta=200.0, until=16.0, tol=1e-4)
figure = run.figure("distance").update_layout(width=720)
