"""Statements of the paper and of related papers as experiments that can fail, one file each.

>>> from metastable import claims
>>> finding = claims.check("two-tokens")
>>> finding.outcome
'PASS'
"""

from __future__ import annotations

from importlib import import_module

from metastable.claims.experiment import FAIL, INCONCLUSIVE, PASS, Claim, ClaimCheck, Finding
from metastable.errors import BadInput, suggestion
from metastable.head import Head

GROUPS = {
    "The paper": (
        *("limit", "lyapunov", "laplace", "stability", "bound", "log-beta", "metastability", "terminal"),
        *("mean-field", "boundaries"),
    ),
    "Results of other papers about the same model": (
        *("two-tokens", "equiangular", "clusters", "long-plateaus", "critical-scaling"),
    ),
    "Other members of the family of models": (
        *("multi-head", "normalisation", "unnormalised", "leaders", "causal", "noise"),
    ),
}
"""The names of the claims, by the part of the report that shows them. Each claim is in the file of its name."""
NAMES = tuple(name for names in GROUPS.values() for name in names)

__all__ = ["FAIL", "GROUPS", "INCONCLUSIVE", "NAMES", "PASS", "Claim", "ClaimCheck", "Finding", "check", "find"]


def find(name: str) -> Claim:
    """The claim of this name."""
    if name not in NAMES:
        raise BadInput(f"there is no claim {name!r}; {suggestion(name, NAMES)}")
    found = import_module(f"metastable.claims.{name.replace('-', '_')}").check
    assert isinstance(found, Claim)
    return found


def check(name: str, full: bool = False, head: Head | None = None) -> Finding:
    """Run one experiment, in its quick or its full size, on its own heads or on the given head."""
    return find(name)(head, full=full)
