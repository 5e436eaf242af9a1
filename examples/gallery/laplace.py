"""The softmax mean approaches the best point.

For uniform tokens the distance from the softmax mean to the best point of the sphere is (d − 1)/(2β) to first order.
The dashed lines have this slope. The paper's bound, √(log(β + 1)/β), holds for any law that is bounded below and is
weaker.
"""

import numpy as np
import plotly.graph_objects as go
import torch

import metastable as ms

betas = np.geomspace(2, 2000, 25)
figure = go.Figure()
for d, cloud in ((2, ms.equally_spaced(4000)), (3, ms.fibonacci(40_000))):
    best = torch.eye(d, dtype=torch.float64)[:1]
    gaps = [float((ms.attend(cloud, beta * best) - best).norm()) for beta in betas]
    figure.add_scatter(x=betas, y=gaps, mode="markers", name=f"measured, d = {d}")
    figure.add_scatter(x=betas, y=(d - 1) / (2 * betas), line={"dash": "dash"}, name=f"(d − 1)/(2β), d = {d}")
figure.add_scatter(
    x=betas, y=np.sqrt(np.log(betas + 1) / betas), line={"dash": "dot", "color": "grey"}, name="√(log(β + 1)/β)"
)
figure.update_xaxes(title="β", type="log", dtick=1)
figure.update_yaxes(title="distance to the best point", type="log", dtick=1)
figure.update_layout(width=720, height=400)
