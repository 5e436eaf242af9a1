"""A token is faster than the law.

At zero temperature a token converges at the rate c. The whole law is slower, because some tokens start close to the
place where the limit map jumps. The dashed lines have the two predicted slopes.
"""

import numpy as np
import plotly.graph_objects as go
import torch

import metastable as ms

head = ms.Head.from_spectra(interaction=[1.5, 0.6], value=[1.2, 0.5], seed=2)
theory, cloud = head.theory(), ms.graded(4000, head, smallest=1e-30)
times = torch.linspace(0.0, 14.0, 29, dtype=torch.float64)
frames = ms.zero_temperature_flow(head, cloud, times)
limit = cloud.moved_to(theory.limit(cloud.points))
law = np.array([ms.wasserstein(cloud.moved_to(x), limit).value for x in frames])
token = (frames - limit.points).norm(dim=2).median(dim=1).values.numpy()
figure = go.Figure()
for name, values, rate, colour in (
    ("median token", token, theory.rate, "#0072B2"),
    ("W₂ of the law", law, theory.law_rate(2), "#D55E00"),
):
    figure.add_scatter(x=times, y=values, name=name, mode="markers", marker={"color": colour})
    late = times.numpy()[12:]
    line = values[20] * np.exp(-rate * (late - times[20].item()))
    dashed = {"dash": "dash", "color": colour}
    figure.add_scatter(x=late, y=line, mode="lines", name=f"rate {rate:.3f}", line=dashed)
figure.update_xaxes(title="time t")
figure.update_yaxes(title="distance to the limit", type="log", dtick=1, exponentformat="power")
figure.update_layout(width=720, height=380)
