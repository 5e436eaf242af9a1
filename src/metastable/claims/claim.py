"""`Claim`: a statement, its two sizes, and the experiment that decides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from metastable.claims.finding import Finding
from metastable.head import Head

Tell = Callable[[float], None]
"""What an experiment calls with the share of its work that is done, 0 to 1."""


@dataclass(frozen=True)
class Claim:
    """One statement of the theory, with the experiment that can refute it.

    Attributes
    ----------
    name : the word on the command line
    title, statement : for the report; the statement says the formula and who says it ([paper], [derived], a reference)
    check : (sizes, head or None, tell) → Finding. With a head the experiment is about it, otherwise about its own
    quick, full : the sizes; the same code runs with either
    """

    name: str
    title: str
    statement: str
    check: Callable[[Any, Head | None, Tell], Finding]
    quick: Any
    full: Any
    peer: bool = False
