"""The paper's statements as experiments that can fail, one file each.

>>> from metastable import claims
>>> finding = claims.check("two-tokens")
>>> finding.outcome
'PASS'
"""

from __future__ import annotations

import difflib
from importlib import import_module

from metastable.claims.claim import Claim
from metastable.claims.finding import FAIL, INCONCLUSIVE, PASS, Check, Finding
from metastable.errors import BadInput
from metastable.head import Head

_HOMES = {
    "limit": "limit",
    "lyapunov": "lyapunov",
    "laplace": "laplace",
    "stability": "stability",
    "bound": "bound",
    "log-beta": "log_beta",
    "metastability": "metastability",
    "terminal": "terminal",
    "mean-field": "mean_field",
    "boundaries": "boundaries",
    "two-tokens": "two_tokens",
    "equiangular": "equiangular",
    "clusters": "clusters",
    "long-plateaus": "long_plateaus",
}
NAMES = tuple(_HOMES)
"""The ten claims of the paper, then those of its peers."""

__all__ = ["FAIL", "INCONCLUSIVE", "NAMES", "PASS", "Check", "Claim", "Finding", "check", "find"]


def find(name: str) -> Claim:
    """The claim of this name."""
    if name not in _HOMES:
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(NAMES)}"
        raise BadInput(f"there is no claim {name!r}; {hint}")
    claim = import_module(f"metastable.claims.{_HOMES[name]}").CLAIM
    assert isinstance(claim, Claim)
    return claim


def check(name: str, full: bool = False, head: Head | None = None) -> Finding:
    """Run one experiment, in its quick or its full size, on its own heads or on the one given."""
    claim = find(name)
    return claim.check(claim.full if full else claim.quick, head, lambda share: None)
