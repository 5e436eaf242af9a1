"""metastable: token dynamics of mean-field transformers at low temperature.

>>> import metastable as ms
>>> head = ms.Head.from_spectra(interaction=[1.5, 1.0, 0.6], value=[1.2, 0.9, 0.5], seed=0)
>>> run = ms.simulate(head, ms.uniform(200, d=3, seed=0), beta=50.0, until=2.0)
>>> run.final
Cloud(200 tokens, d=3, equal weights, float64, uniform)

The public names are listed in the stub file `__init__.pyi`, which type checkers and editors read. A name is imported
when it is first used, so that `import metastable` and the command line start at once.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
