"""Exit codes of the commands, and the one line that an error prints.

0  success
1  a finding: a failed claim, a row that meets --fail-on, an alarm, a simulation that stopped
2  bad input, a file that cannot be read or written, or not enough memory
70 an internal error of this package, or a lost Dask scheduler
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import typer

from metastable.errors import BadInput, SchedulerLost, SimulationStopped

EXIT_FINDING, EXIT_BAD_INPUT, EXIT_INTERNAL = 1, 2, 70
# 128 + the number of the signal, as shells report it.
EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 130, 141
SLOW_SECONDS = 5.0
"""Shorter computations are never called slow."""
BUSY_SHARE = 0.7
"""A computation with less processor time than this share of its wall time waited for a core."""


@contextlib.contextmanager
def one_line_errors(debug: bool, resumes: bool = True) -> Iterator[None]:
    """Turn an error inside the block into one line on standard error and an exit code.

    debug : raise the error instead, with its traceback
    resumes : whether the same command continues an interrupted computation
    """
    try:
        yield
        sys.stdout.flush()  # a closed pipe is reported here rather than at the interpreter's exit
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        complain("interrupted; the same command resumes the computation" if resumes else "interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        silence_stdout()
        raise typer.Exit(EXIT_BROKEN_PIPE) from None
    except Exception as error:
        if debug:
            raise
        code, message = _ending(error)
        complain(message)
        raise typer.Exit(code) from None


def _ending(error: Exception) -> tuple[int, str]:
    """The exit code and the message of an error."""
    message = str(error)
    if isinstance(error, BadInput):
        return EXIT_BAD_INPUT, message
    if isinstance(error, SimulationStopped):
        return EXIT_FINDING, message
    if isinstance(error, SchedulerLost):
        return EXIT_INTERNAL, message
    # torch raises a RuntimeError where it cannot allocate memory.
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in message):
        return EXIT_BAD_INPUT, "not enough memory; use fewer tokens (a smaller n) or a smaller --batch-size"
    if isinstance(error, OSError):
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            # Every other failed write names its path.
            silence_stdout()
            return EXIT_BAD_INPUT, f"standard output cannot be written: {error.strerror}; free some space"
        return EXIT_BAD_INPUT, f"{error.filename}: {error.strerror}" if error.filename else message
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{'/'.join(Path(last.filename).parts[-2:])}:{last.lineno} in {last.name}"
    what = f"internal error, {type(error).__name__}: {message} ({where})"
    return EXIT_INTERNAL, f"{what}; this is a bug: please report it with the traceback that --debug shows"


@contextlib.contextmanager
def slow_machine_note() -> Iterator[None]:
    """After a slow command that succeeded, say so if other programs were using the processor cores."""
    began, began_cpu = time.perf_counter(), time.process_time()
    yield
    sys.stdout.flush()  # a failed write is an error, and an error is the only line
    wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    cores = os.cpu_count() or 1
    # os.getloadavg does not exist on every system.
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if wall >= SLOW_SECONDS and cpu < BUSY_SHARE * wall and load > cores:
        busy = f"the load average is {load:.1f} on {cores} cores"
        complain(f"other programs slowed this down: {wall:.0f} s with {cpu:.0f} s of processor time; {busy}")


def complain(message: str) -> None:
    """Print a message on standard error, on one line."""
    print(f"metastable: {' '.join(message.split())}", file=sys.stderr)


def open_closed() -> None:
    """Send a closed standard output or error (`>&-`) to the null device; else a file would get its descriptor."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def silence_stdout() -> None:
    """Discard further output after the reader of standard output went away."""
    with contextlib.suppress(OSError, ValueError):  # standard output may have no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
