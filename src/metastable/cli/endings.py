"""How a command ends: fine, with a finding, or with an error as one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

EXIT_FINDING, EXIT_BAD_INPUT, EXIT_INTERNAL = 1, 2, 70


@contextmanager
def one_line_errors(debug: bool, resumes: bool = True, kept: bool = False) -> Iterator[None]:
    """Turn an error into one line on standard error and an exit code.

    resumes : of a simulation, which the same command goes on with; kept : so does one of texts
    """
    try:
        yield
    except KeyboardInterrupt:
        complain("interrupted; the same command goes on from what was kept" if resumes or kept else "interrupted")
        raise typer.Exit(130) from None
    except Exception as error:
        message = str(error)
        if type(error).__name__ == "SimulationStopped":
            code = EXIT_FINDING
        elif type(error).__name__ == "SchedulerLost":
            code = EXIT_INTERNAL
        elif isinstance(error, (ValueError, OSError)):
            code = EXIT_BAD_INPUT
        elif isinstance(error, MemoryError) or "allocate" in message:
            less = "take a smaller n" if resumes else "take fewer texts at a time (--batch-size)"
            code, message = EXIT_BAD_INPUT, f"not enough memory for this many tokens; {less}"
        else:
            kind = type(error).__name__
            code, message = EXIT_INTERNAL, f"unexpected {kind}: {message}; --debug shows where, please report it"
        if debug:
            raise
        complain(message)
        raise typer.Exit(code) from None


def complain(message: str) -> None:
    print(f"metastable: {' '.join(message.split())}", file=sys.stderr)
