"""Noise against attention.

A Brownian motion on the circle competes with attention. Below the critical strength σ_c the tokens form a cluster
that wanders; above it they stay spread out.
"""

from plotly.subplots import make_subplots

import metastable as ms
from metastable.theory.noise import critical_noise

identity = [[1.0, 0.0], [0.0, 1.0]]
head, critical = ms.Head.from_interaction(identity, identity), critical_noise(5.0, 2)
figure = make_subplots(1, 2, subplot_titles=["0.7 σ_c", "1.3 σ_c"], shared_yaxes=True)
for column, factor in enumerate((0.7, 1.3), start=1):
    block = ms.Block(head, noise=factor * critical)
    run = ms.simulate(block, ms.uniform(16, d=2, seed=1), beta=5.0, until=100.0, t_eval=61, step=0.05)
    for trace in run.figure("angles").data:
        figure.add_trace(trace, row=1, col=column)
figure.update_xaxes(title="time t")
figure.update_yaxes(title="angle, degrees", dtick=90, col=1)
figure.update_layout(width=720, height=320, showlegend=False)
