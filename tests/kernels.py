"""Compile the kernels that tests use, once, before the workers of a test run start: `python -m tests.kernels`.

numba keeps compiled kernels beside the source, so a second run has nothing to compile. Without this step, every worker
that needs a kernel before another worker has finished it compiles it too, for up to half a minute.
"""

import metastable as ms
from metastable.attention.tree import compile_kernels, compiled

if __name__ == "__main__":
    if not compiled():
        compile_kernels()
    # The mean-field solvers on the circle and on the sphere.
    for spectrum in ([1.5, 0.8], [1.5, 0.8, 0.6]):
        ms.mean_field(ms.Head.from_spectra(spectrum, spectrum, seed=0), "uniform", beta=1.0, until=0.02, tol=0.5)
