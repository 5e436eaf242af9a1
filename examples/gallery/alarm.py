"""Evidence of an alarm.

The evidence of the monitor's alarm on simulated p-values. On a clean stream it hardly ever reaches the threshold,
however long the stream is. After a change at text 1000 it rises quickly.
"""

import numpy as np
import plotly.graph_objects as go

from metastable.monitor.alarm import Alarm

rng, calibration = np.random.default_rng(0), 4000
figure = go.Figure()
for name, colour, changed in (("changed at text 1000", "#D55E00", 0.8), ("clean", "#444444", 1.0)):
    for k in range(5):
        uniform = rng.random(2000)
        p = np.where(np.arange(2000) < 1000, uniform, uniform ** (1 / changed))
        ranks = np.ceil(p * (calibration + 1)) / (calibration + 1)
        evidence = Alarm(calibration).evidence(ranks)
        figure.add_scatter(y=evidence, line={"color": colour, "width": 1}, name=name, showlegend=k == 0)
figure.add_hline(
    Alarm(calibration).threshold,
    line={"dash": "dash"},
    annotation_text="threshold, α = 0.01",
    annotation_position="top left",
)
figure.update_xaxes(title="text")
figure.update_yaxes(title="log evidence", range=[-4, 12])
figure.update_layout(width=720, height=380)
