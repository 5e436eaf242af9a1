"""The command line: one file a command."""

from metastable.cli.app import main

__all__ = ["main"]
