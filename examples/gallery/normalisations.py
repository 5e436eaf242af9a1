"""Normalisation sets the clock.

The same head under four normalisations. On the sphere (post, ngpt) tokens approach the limit exponentially fast. If
the radius may grow (pre, peri), they slow down to a power of t. The first two leave again at the end, because β is
finite.
"""

import numpy as np
import plotly.graph_objects as go

import metastable as ms

head = ms.Head.from_spectra([1.4, 0.7], [1.2, 0.5], angle=40.0)
times = [0.0, *np.geomspace(0.1, 30.0, 60)]
figure = go.Figure()
for norm in ("post", "ngpt", "pre", "peri"):
    block = ms.Block(head, norm=norm)
    run = ms.simulate(block, ms.graded(400, head), beta=400.0, until=30.0, t_eval=times, tol=1e-4)
    found = run.distance()
    figure.add_scatter(x=found["time"][1:], y=found[1:], name=norm)
figure.update_xaxes(title="time t", type="log", dtick=1)
figure.update_yaxes(title="W₂ to the limit law", type="log", tickvals=[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1])
figure.update_layout(width=720, height=380)
