"""Smaller encoders: what is lost, what is gained.

Each point is one way to make an encoder smaller. Up is more faithful, right is faster. The line joins the options
that no other option exceeds in both. The numbers are those of the recorded benchmark.
"""

import json
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

row = json.loads((Path(__file__).parents[2] / "benchmarks/results/compression.json").read_text())["rows"][0]
options = pd.DataFrame(row["options"]).sort_values("speed", ascending=False)
front = options[options["cosine"] == options["cosine"].cummax()]
figure = go.Figure()
figure.add_scatter(x=front["speed"], y=front["cosine"], mode="lines", name="no other option is better in both")
for int8, name in ((False, "float32"), (True, "int8")):
    some = options[options["int8"] == int8]
    figure.add_scatter(x=some["speed"], y=some["cosine"], mode="markers", name=name, hovertext=some["recipe"])
figure.update_xaxes(title="speed, times the full encoder")
figure.update_yaxes(title="mean cosine to the full encoder")
figure.update_layout(title=row["name"], width=720, height=420)
