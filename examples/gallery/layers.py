"""Discrete layers against continuous time.

A transformer has layers, not time. With short layers the discrete model follows the continuous one; long layers are
slower, because normalisation shortens a long update.
"""

import plotly.graph_objects as go

import metastable as ms

head = ms.Head.from_spectra([1.4, 0.7], [1.2, 0.5], angle=40.0)
cloud = ms.graded(400, head)
figure = go.Figure()
for step in (2.0, 1.0, 0.25):
    found = ms.simulate(head, cloud, beta=60.0, until=12.0, method="layers", step=step).distance()
    figure.add_scatter(
        x=found["time"], y=found, name=f"layers of length {step:g}", mode="lines+markers", marker={"size": 4}
    )
found = ms.simulate(head, cloud, beta=60.0, until=12.0).distance()
figure.add_scatter(x=found["time"], y=found, name="continuous time", line={"color": "black", "dash": "dash"})
figure.update_xaxes(title="time t")
figure.update_yaxes(title="W₂ to the limit law", type="log", tickvals=[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1])
figure.update_layout(width=720, height=380)
