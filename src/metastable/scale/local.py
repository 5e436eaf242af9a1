"""A Dask cluster on this machine, in a process of its own: `python -m metastable.scale.local SETTINGS`.

Dask's nannies change the environment of the process that starts them, and its clusters set log levels. Here that is
this process and not the user's. It prints one line of JSON, {"address": ...} or {"error": ...}. It ends when its
standard input is closed, so also when the process that started it is killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys


def main() -> None:
    """Start the cluster, print its address, and close it at the end of standard input."""
    import dask
    from distributed import LocalCluster

    settings = json.loads(sys.argv[1])
    dask.config.set({"distributed.scheduler.allowed-failures": settings["deaths"] - 1})
    # Workers inherit standard output, and nobody reads what they print there.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        cluster = LocalCluster(
            n_workers=settings["workers"],
            threads_per_worker=1,
            memory_limit=settings["memory"],
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        )
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answer, flush=True)
        os._exit(1)
    print(json.dumps({"address": cluster.scheduler_address}), file=answer, flush=True)
    sys.stdin.read()
    # Dask raises where a worker died a moment ago and is being restarted.
    with contextlib.suppress(Exception):
        cluster.close()
    os._exit(0)


if __name__ == "__main__":
    main()
