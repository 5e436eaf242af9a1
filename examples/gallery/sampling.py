"""How far apart are two samples of one law?

W₂ between two independent samples of N uniform tokens. This noise floor tells how much a different sample would
change a distance; it falls slowly, and more slowly in higher dimension.
"""

import plotly.graph_objects as go

import metastable as ms

sizes = (25, 50, 100, 200, 400, 800)
figure = go.Figure()
for d in (2, 3, 5):
    found = [
        [ms.wasserstein(ms.uniform(n, d=d, seed=2 * k), ms.uniform(n, d=d, seed=2 * k + 1)).value for k in range(5)]
        for n in sizes
    ]
    middle = [sum(row) / len(row) for row in found]
    up, down = (
        [max(row) - m for row, m in zip(found, middle, strict=True)],
        [m - min(row) for row, m in zip(found, middle, strict=True)],
    )
    error = {"array": up, "arrayminus": down}
    figure.add_scatter(x=sizes, y=middle, error_y=error, mode="lines+markers", name=f"d = {d}")
figure.update_xaxes(title="N", type="log", tickvals=sizes)
figure.update_yaxes(title="W₂ between two samples", type="log", tickvals=[0.05, 0.1, 0.2, 0.5, 1])
figure.update_layout(width=720, height=380)
