"""How often does a random head concentrate tokens?

Heads with independent normal entries. A real dominant eigenvalue concentrates tokens on two points; a complex pair
rotates them. The share of real ones falls with the dimension.
"""

import plotly.graph_objects as go
import torch

import metastable as ms

generator = torch.Generator().manual_seed(0)
dims, heads = (2, 3, 4, 6, 8, 12, 16, 24, 32), 200
shares = []
for d in dims:
    matrices = torch.randn(heads, 3, d, d, generator=generator, dtype=torch.float64)
    shares.append(sum(ms.Head(*three).theory().no_limit is None for three in matrices) / heads)
spread = [2 * (share * (1 - share) / heads) ** 0.5 for share in shares]
figure = go.Figure()
figure.add_scatter(x=dims, y=shares, error_y={"array": spread}, mode="lines+markers")
figure.update_xaxes(title="dimension d", type="log", tickvals=dims)
figure.update_yaxes(title="share of heads with a limit law", range=[0, 1])
figure.update_layout(width=720, height=360)
