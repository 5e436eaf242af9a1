"""Compile the kernels that tests use, once, before the workers of a test run start: `python -m tests.kernels`.

numba keeps compiled kernels beside the source, so a second run has nothing to compile. Without this step, every worker
that needs a kernel before another worker has finished it compiles it too, for up to half a minute.
"""

import torch

import metastable as ms
from metastable.attention import cells, direct, tree

if __name__ == "__main__":
    if not tree.compiled():
        tree.compile_kernels()
    cells.compile_kernels()
    # By dimension: alone, in one group of coordinates, and in groups.
    for d in (*range(1, 10), 11, 16):
        for dtype in (torch.float32, torch.float64):
            direct.compile_kernel(d, dtype)
    # The mean-field solvers on the circle and on the sphere.
    for spectrum in ([1.5, 0.8], [1.5, 0.8, 0.6]):
        ms.mean_field(ms.Head.from_spectra(spectrum, spectrum, seed=0), "uniform", beta=1.0, until=0.02, tol=0.5)
