"""The two ways in which a call can end badly, each with a one-line message."""


class BadInput(ValueError):
    """An argument cannot be used. The message names the value and the remedy, on one line."""


class SimulationStopped(RuntimeError):
    """A run met a number that is not finite, or a step too small to take. The message says when and why."""
