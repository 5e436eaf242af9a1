from __future__ import annotations

from metastable.claims import FAIL, Finding


def failed(finding: Finding) -> str:
    """The names of the failing checks, in one string."""
    return " | ".join(check.name for check in finding.checks if check.outcome == FAIL)
