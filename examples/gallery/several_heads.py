"""Three heads that add.

Heads add their updates. The zero-temperature field is then no longer that of a matrix; its fixed points are searched
for. The dotted lines are the stable ones that the theory finds.
"""

import torch

import metastable as ms

block = ms.Block([ms.Head.from_spectra([1.4, 0.7], [1.2, 0.5], seed=seed) for seed in (1, 2, 6)])
run = ms.simulate(block, ms.uniform(80, d=2, seed=1), beta=200.0, until=6.0, t_eval=121)
figure = run.figure("angles").update_layout(width=720, height=380)
found = block.theory().fixed_points
for point in found.points[[kind == "stable" for kind in found.kinds]]:
    figure.add_hline(float(torch.atan2(point[1], point[0]).rad2deg()), line={"dash": "dot", "color": "black"})
