"""What the monitor detects.

Length-matched AUROC of single texts for the frozen shifts of one domain, from the recorded benchmark. 50 is chance,
100 is perfect. Gradient-based swaps and single words are the hard ones.
"""

import json
from pathlib import Path

import plotly.graph_objects as go

record = json.loads((Path(__file__).parents[2] / "benchmarks/results/detection.json").read_text())
shifts = record["domains"]["commons"]["groups"]["frozen"]
order = sorted(shifts, key=lambda name: shifts[name]["methods"]["full"]["matched"])
figure = go.Figure()
for method, symbol in (("light", "circle-open"), ("full", "circle")):
    values = [shifts[name]["methods"][method]["matched"] for name in order]
    figure.add_scatter(x=values, y=order, mode="markers", name=method, marker={"symbol": symbol, "size": 8})
figure.update_xaxes(title="AUROC, per cent", range=[45, 101])
figure.update_yaxes(dtick=1)
figure.update_layout(width=720, height=640, margin={"l": 150, "t": 30})
