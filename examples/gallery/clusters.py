"""Clusters that merge one by one.

With B = V = I there is no preferred direction. Tokens form several clusters, which stay for long and then merge in
pairs. The time axis is logarithmic: each next merger takes much longer.
"""

import numpy as np

import metastable as ms

head = ms.Head.from_interaction([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]])
times = [0.0, *np.geomspace(0.1, 1e5, 150)]
run = ms.simulate(head, ms.uniform(100, d=2, seed=3), beta=14.0, until=1e5, t_eval=times, merge=1e-3)
figure = run.figure("angles").update_layout(width=720, height=380)
figure.update_xaxes(type="log", range=[-1, 5], dtick=1)
