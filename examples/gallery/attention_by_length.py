"""Attention dilutes over longer texts.

Attention entropy, mean over all heads, of ten pairs of encoder and corpus, from the recorded benchmark of lengths.
The dashed line is log n, attention spread over all tokens alike.
"""

import json
import math
from pathlib import Path

import plotly.graph_objects as go

rows = json.loads((Path(__file__).parents[2] / "benchmarks/results/length.json").read_text())["rows"]
figure = go.Figure()
colours = {"MiniLM": "#0072B2", "fine-tuned": "#D55E00", "Chinese BERT": "#009E73"}
for row in rows:
    colour = colours[row["name"].split(",")[0]]
    n, entropy = ([each[name] for each in row["attention"]] for name in ("n", "entropy"))
    figure.add_scatter(x=n, y=entropy, name=row["name"], mode="lines+markers", line={"color": colour})
dashed = {"dash": "dash", "color": "black"}
figure.add_scatter(x=n, y=[math.log(x) for x in n], name="log n", mode="lines", line=dashed)
figure.update_xaxes(title="tokens n", type="log", tickvals=n)
figure.update_yaxes(title="attention entropy, nats")
figure.update_layout(width=720, height=420)
