"""The versions that results are written down with."""

from __future__ import annotations

from importlib import metadata


def versions() -> dict[str, str]:
    """Versions of this package and of those that decide its numbers."""
    return {name: metadata.version(name) for name in ("metastable", "torch", "numpy", "scipy")}
