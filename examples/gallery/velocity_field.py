"""The field of one head on the circle.

The curves show how fast a token at each angle turns. A token rests where the curve crosses zero: with a falling slope
the point attracts, with a rising slope it repels. At low temperature the field depends on M alone.
"""

import plotly.graph_objects as go
import torch

import metastable as ms

head = ms.Head.from_spectra([1.4, 0.7], [1.2, 0.5], angle=40.0)
angles = torch.linspace(-torch.pi, torch.pi, 361, dtype=torch.float64)
points = torch.stack([angles.cos(), angles.sin()], dim=1)
turn = torch.stack([-angles.sin(), angles.cos()], dim=1)
figure = go.Figure()
for beta in (0.0, 1.0, 5.0, 100.0):
    speed = (ms.velocity(head, ms.equally_spaced(2000), beta, at=points) * turn).sum(dim=1)
    figure.add_scatter(x=angles.rad2deg(), y=speed, name=f"β = {beta:g}")
e = head.theory().basis[:, 0]
for sign in (1, -1):
    place = float(torch.atan2(sign * e[1], sign * e[0]).rad2deg())
    figure.add_vline(place, line={"dash": "dot", "color": "crimson"}, annotation_text="e" if sign > 0 else "−e")
figure.update_xaxes(title="angle of the token, degrees", dtick=90)
figure.update_yaxes(title="angular velocity, radians per time")
figure.update_layout(width=720, height=400)
