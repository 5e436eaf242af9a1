"""Long runs cost little once tokens have merged.

With `merge=δ`, tokens closer than δ become one weighted token. The number of live tokens falls, and a bound says how
far the law is from the run without merging.
"""

import numpy as np
from plotly.subplots import make_subplots

import metastable as ms

head = ms.Head.from_spectra(interaction=[1.5, 1.0, 0.6], value=[1.2, 0.9, 0.5], seed=0)
times = np.geomspace(0.1, 1e4, 120)
run = ms.simulate(head, ms.uniform(500, d=3, seed=0), beta=100.0, until=1e4, t_eval=times, merge=1e-4)
error = run.merge_error()
figure = make_subplots(1, 2, subplot_titles=["live tokens", "bound of the error in W₂"])
figure.add_scatter(x=error["time"], y=error["live"], row=1, col=1)
figure.add_scatter(x=error["time"], y=error, row=1, col=2)
figure.update_xaxes(title="time t", type="log", dtick=1)
figure.update_yaxes(type="log", dtick=1, col=1)
figure.update_yaxes(exponentformat="power", col=2)
figure.update_layout(width=720, height=340, showlegend=False)
