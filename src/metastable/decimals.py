"""Numbers for people, with a fixed number of decimals and a true minus sign."""

from __future__ import annotations


def decimals(x: float, digits: int) -> str:
    """A number with so many decimals and a true minus sign.

    >>> decimals(-0.127, 2), decimals(-0.001, 2)
    ('−0.13', '0.00')
    """
    # Adding 0 turns −0 into 0.
    return f"{round(x, digits) + 0.0:.{digits}f}".replace("-", "−")


def signed(x: float, digits: int) -> str:
    """The same with a plus sign for numbers that are not negative.

    >>> signed(0.127, 2), signed(-0.127, 2)
    ('+0.13', '−0.13')
    """
    return f"{round(x, digits) + 0.0:+.{digits}f}".replace("-", "−")
