"""Two spectra decide everything.

Left, M = V Bᵀ: its eigenvalue with the largest real part attracts the tokens on the plateau. Right, V alone: its
dominant eigenvalue takes over in the terminal phase.
"""

import metastable as ms
from metastable.figures import spectrum

head = ms.Head.from_spectra([2.0, 1.4, 1.1, 0.8, 0.6, 0.4], [1.5, 1.2, 0.9, 0.6, 0.4, 0.3], seed=7)
print(head.theory().verdict)
figure = spectrum(head.theory()).update_layout(width=720)
