"""Lower temperature: closer to the limit, and longer.

The mean field of one head at four temperatures. With growing β the least distance falls and the plateau becomes
longer. The time until the plateau begins grows only slowly.
"""

import plotly.graph_objects as go

import metastable as ms

head = ms.Head.from_spectra([1.4, 0.5], [1.2, 0.6], angle=60.0)
figure = go.Figure()
for beta in (10.0, 30.0, 100.0, 200.0):
    run = ms.mean_field(head, "uniform", beta=beta, until=20.0, tol=1e-2)
    found = run.distance()
    figure.add_scatter(x=found["time"], y=found, name=f"β = {beta:g}")
figure.update_xaxes(title="time t")
figure.update_yaxes(title="W₂ to the limit law", type="log", tickvals=[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1])
figure.update_layout(width=720, height=400)
