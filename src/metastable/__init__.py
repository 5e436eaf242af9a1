"""metastable: token dynamics of mean-field transformers at low temperature.

>>> import metastable as ms
>>> head = ms.Head.from_spectra(interaction=[1.5, 1.0, 0.6], value=[1.2, 0.9, 0.5], seed=0)
>>> run = ms.simulate(head, ms.uniform(200, d=3, seed=0), beta=50.0, until=2.0)
>>> run.final
Cloud(200 tokens, d=3, equal weights, float64, uniform)

Names are imported when first used, so that the command line starts at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "attention": ["attend", "certified"],
    "cloud": ["Cloud", "equally_spaced", "fibonacci", "graded", "mixture", "uniform", "von_mises_fisher"],
    "encoder.audit": ["Audit", "audit", "compare"],
    "errors": ["BadInput", "SimulationStopped"],
    "flow.fields": ["velocity"],
    "flow.exact": ["value_flow", "zero_temperature_flow"],
    "head": ["Head"],
    "run.mean_field": ["mean_field"],
    "run.mean_field_run": ["MeanFieldRun"],
    "monitor.baseline": ["Baseline"],
    "monitor.monitor": ["Monitor"],
    "theory.phases": ["Phases"],
    "run.run": ["Run"],
    "scale.sweep": ["sweep"],
    "run.simulation": ["simulate"],
    "theory": ["Theory", "Verdict"],
    "transport": ["Distance", "wasserstein"],
}
_WHERE = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'metastable' has no attribute {name!r}")
    value = getattr(import_module(f"metastable.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
