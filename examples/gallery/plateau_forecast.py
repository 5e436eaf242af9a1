"""The plateau lasts for a time linear in β.

The line is the forecast `theory().plateau(beta)`, which needs no simulation, with the range in which forty random
heads fell. The points are solved mean fields, read from a recorded study.
"""

import json
from math import cos, sin
from pathlib import Path

import numpy as np
import plotly.graph_objects as go

import metastable as ms

record = json.loads((Path(__file__).parents[2] / "studies/results/departure_third.json").read_text())
a, b, c, v = record["head"]
B, V = (
    np.array([[cos(x), -sin(x)], [sin(x), cos(x)]]) @ np.diag(s) @ np.array([[cos(x), sin(x)], [-sin(x), cos(x)]])
    for x, s in ((a, b), (c, v))
)
betas = np.linspace(300, 3200, 30)
found = [ms.Head.from_interaction(B, V).theory().plateau(beta) for beta in betas]
figure = go.Figure()
figure.add_scatter(x=betas, y=[f.lower for f in found], line={"width": 0}, showlegend=False)
figure.add_scatter(x=betas, y=[f.upper for f in found], line={"width": 0}, fill="tonexty", name="its range")
figure.add_scatter(x=betas, y=[f.departure for f in found], name="forecast", line={"color": "#0072B2"})
rows = [row for row in record["rows"] if row.get("departure")]
x, y = [row["beta"] for row in rows], [row["departure"] for row in rows]
figure.add_scatter(x=x, y=y, mode="markers", name="solved mean field", marker={"size": 9, "color": "#D55E00"})
figure.update_xaxes(title="β")
figure.update_yaxes(title="end of the plateau, time t")
figure.update_layout(width=720, height=400)
