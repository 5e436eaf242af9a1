"""Tokens on a sphere concentrate.

Six hundred tokens start anywhere on the sphere. The head pulls them to two opposite points, ±e, the dominant
direction of M. They gather there within about eight units of time.
"""

from plotly.subplots import make_subplots

import metastable as ms

head = ms.Head.from_spectra(interaction=[1.5, 0.9, 0.6], value=[1.2, 0.7, 0.4], seed=4)
run = ms.simulate(head, ms.uniform(600, d=3, seed=0), beta=50.0, until=8.0, t_eval=[2.0, 4.0], tol=1e-4)

titles = [f"t = {t:g}" for t in run.times.tolist()]
figure = make_subplots(1, 4, specs=[[{"type": "scene"}] * 4], subplot_titles=titles, horizontal_spacing=0.0)
e = head.theory().basis[:, 0]
for column, frame in enumerate(run.frames, start=1):
    x, y, z = frame.T
    figure.add_scatter3d(
        x=x, y=y, z=z, mode="markers", marker={"size": 2, "color": z, "colorscale": "Viridis"}, col=column, row=1
    )
    figure.add_scatter3d(
        x=[-e[0], e[0]],
        y=[-e[1], e[1]],
        z=[-e[2], e[2]],
        mode="lines",
        line={"color": "crimson", "width": 3},
        col=column,
        row=1,
    )
box = {"range": [-1.05, 1.05], "visible": False}
eye = {"eye": {"x": 1.1, "y": 1.1, "z": 0.6}}
figure.update_scenes(xaxis=box, yaxis=box, zaxis=box, aspectmode="cube", camera=eye)
figure.update_layout(showlegend=False, width=860, height=270, margin={"l": 0, "r": 0, "t": 30, "b": 0})
