"""Temperature decides how many tokens are heard.

One query looks at tokens on the circle. At small β it hears all of them, at large β only those close to the direction
that it looks for. The width of the bell is about β^(−1/2).
"""

import plotly.graph_objects as go
import torch

import metastable as ms

cloud = ms.equally_spaced(720)
angle = torch.atan2(cloud.points[:, 1], cloud.points[:, 0])
order = angle.argsort()
figure = go.Figure()
for beta in (0.0, 1.0, 10.0, 100.0, 1000.0):
    query = beta * torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    weights = torch.softmax(query @ cloud.points.T, dim=1)[0]
    mean = ms.attend(cloud, query)[0]  # the softmax mean itself
    name = f"β = {beta:g}, length of the mean {float(mean.norm()):.3f}"
    figure.add_scatter(x=angle[order].rad2deg(), y=(weights / weights.max())[order], name=name)
figure.update_xaxes(title="angle between token and query direction, degrees")
figure.update_yaxes(title="weight, relative to the largest")
figure.update_layout(width=720, height=380)
