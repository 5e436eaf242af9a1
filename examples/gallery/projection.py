"""Where each token goes: the projection.

The theory sends a token x to T(x) = Πx/|Πx|. On the circle that is a step: one side goes to e, the other to −e. A run
at finite temperature follows the step, except for the tokens that start next to the jump.
"""

import plotly.graph_objects as go
import torch

import metastable as ms

head = ms.Head.from_spectra([1.4, 0.7], [1.2, 0.5], angle=40.0)
cloud = ms.equally_spaced(361)


def degrees(x: torch.Tensor) -> torch.Tensor:
    return torch.atan2(x[:, 1], x[:, 0]).rad2deg()


order = degrees(cloud.points).argsort()
start = degrees(cloud.points)[order]
figure = go.Figure()
for until in (1.0, 2.0, 4.0):
    run = ms.simulate(head, cloud, beta=200.0, until=until, t_eval=2)
    figure.add_scatter(
        x=start, y=degrees(run.final.points)[order], mode="markers", marker={"size": 3}, name=f"t = {until:g}"
    )
limit = head.theory().limit(cloud.points)
figure.add_scatter(
    x=start, y=degrees(limit)[order], mode="lines", line={"color": "black", "width": 1}, name="limit T(x)"
)
figure.update_xaxes(title="angle at the start, degrees", dtick=90)
figure.update_yaxes(title="angle at time t, degrees", dtick=90)
figure.update_layout(width=720, height=420)
