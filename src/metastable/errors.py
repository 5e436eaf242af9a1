"""The expected ways in which a call can fail, each with a one-line message. Any other exception is a bug."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """An argument cannot be used. The message names the value and the remedy, on one line."""


class SimulationStopped(RuntimeError):
    """A velocity is not finite, or no step is small enough. The message gives the time and the reason."""


class SchedulerLost(RuntimeError):
    """The connection to the Dask scheduler ended during a computation. The message says what was kept."""


def extra(name: str) -> str:
    """How to install an extra, for the end of a message. The package is not on PyPI, so it is installed from its clone.

    >>> extra("lab")
    "install it in the folder of the clone: pip install '.[lab]'"
    """
    return f"install it in the folder of the clone: pip install '.[{name}]'"


def suggestion(value: object, allowed: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest allowed name, or all of them.

    >>> suggestion("tre", ("dense", "flash", "tree"))
    "did you mean 'tree'?"
    >>> suggestion(3, ("dense", "flash"))
    'choose one of dense, flash'
    """
    names = list(allowed)
    close = difflib.get_close_matches(str(value), names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names)}"


def choice(value: object, name: str, allowed: Iterable[str]) -> str:
    """`value` if it is one of `allowed`; BadInput with a suggestion otherwise."""
    names = tuple(allowed)
    if not isinstance(value, str) or value not in names:
        raise BadInput(f"{name} is {value!r}; {suggestion(value, names)}")
    return value
