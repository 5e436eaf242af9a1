"""Finitely many tokens leave too early.

Equal tokens hold the plateau only for a time of about log N. Graded tokens put small weights where the plateau is
decided and hold it longer. Only the mean field shows all of it.
"""

import plotly.graph_objects as go

import metastable as ms

head = ms.Head.from_spectra([1.4, 0.5], [1.2, 0.6], angle=60.0)
figure = go.Figure()
clouds = {f"{n} equal tokens": ms.equally_spaced(n) for n in (50, 200, 800)} | {
    "800 graded tokens": ms.graded(800, head)
}
for name, cloud in clouds.items():
    found = ms.simulate(head, cloud, beta=200.0, until=20.0, tol=1e-4).distance()
    figure.add_scatter(x=found["time"], y=found, name=name)
found = ms.mean_field(head, "uniform", beta=200.0, until=20.0, tol=1e-2).distance()
figure.add_scatter(x=found["time"], y=found, name="mean field", line={"color": "black", "width": 3})
figure.update_xaxes(title="time t")
figure.update_yaxes(title="W₂ to the limit law", type="log", tickvals=[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1])
figure.update_layout(width=720, height=400)
