"""Four kernels of attention.

The same tokens under softmax, unnormalised, sigmoid and linear attention, with B = V = I. The mean cosine shows how
fast they come together.
"""

import plotly.graph_objects as go

import metastable as ms

identity = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
head = ms.Head.from_interaction(identity, identity)
figure = go.Figure()
for kernel in ("softmax", "unnormalised", "sigmoid", "linear"):
    run = ms.simulate(ms.Block(head, kernel=kernel), ms.uniform(200, d=3, seed=0), beta=2.0, until=20.0)
    seen = run.observables()
    figure.add_scatter(x=seen["time"], y=seen["mean_cosine"], name=kernel)
figure.update_xaxes(title="time t")
figure.update_yaxes(title="mean cosine of two tokens")
figure.update_layout(width=720, height=380)
