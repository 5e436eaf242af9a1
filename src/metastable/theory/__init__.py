"""What the theory says of a head: spectrum, limit, assumptions, rates and the plateau."""

from metastable.theory.assumptions import Verdict
from metastable.theory.theory import Theory

__all__ = ["Theory", "Verdict"]
