"""In the terminal phase a cluster obeys V alone.

A single cluster feels only itself, so it moves by dx/dt = P_x V x, for every temperature. The line is the exact flow
of V; the points are a simulation of one token at two temperatures.
"""

import plotly.graph_objects as go
import torch

import metastable as ms

head = ms.Head.from_spectra([1.4, 0.7], [1.2, 0.5], angle=40.0)
times = torch.linspace(0.0, 10.0, 101, dtype=torch.float64)
start = ms.Cloud([[0.3, -1.0]])


def degrees(frames: torch.Tensor) -> torch.Tensor:
    return torch.atan2(frames[:, 0, 1], frames[:, 0, 0]).rad2deg()


figure = go.Figure()
figure.add_scatter(
    x=times, y=degrees(ms.value_flow(head, start.points, times)), name="flow of V", line={"color": "black"}
)
for beta in (1.0, 1000.0):
    run = ms.simulate(head, start, beta=beta, until=10.0, t_eval=21)
    figure.add_scatter(x=run.times, y=degrees(run.frames), mode="markers", name=f"one token, β = {beta:g}")
figure.update_traces(marker={"size": 9, "symbol": "circle-open"}, selector={"name": "one token, β = 1"})
figure.add_hline(
    -140.0, line={"dash": "dot"}, annotation_text="dominant direction of V", annotation_position="top left"
)
figure.update_xaxes(title="time t")
figure.update_yaxes(title="angle, degrees")
figure.update_layout(width=720, height=380)
