"""Many claims in one folder: several at a time, each kept as soon as it is finished, so that a killed run goes on.

claims.json             every verdict with its checks and tables
findings/*.json         one finding each, written completely or not at all; the next start reads them
tables/*.csv            the checks and the tables of each claim
"""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import metastable
from metastable.claims import find
from metastable.claims.experiment import FAIL, Finding, Tell
from metastable.errors import BadInput
from metastable.files import locked, sha256, write_json, write_text, writing
from metastable.head import Head
from metastable.run import storage
from metastable.versions import versions

SCHEMA = "metastable.claims/1"
STOPPED = "the experiment stopped"
"""Name of the check of an experiment that ended with an error."""

Watch = Callable[[dict[str, float]], None]
"""Called with the share of each claim that is done, several times a second."""


@dataclass(frozen=True)
class Findings:
    """The findings of a folder by name, in order.

    size : "quick" or "full"
    head : the given head, if any
    origin : where the head came from, as written on the command line
    """

    found: dict[str, Finding]
    size: str
    head: Head | None
    folder: Path
    origin: str | None = None

    @property
    def failed(self) -> list[str]:
        """The claims that fail, or whose experiment ended with an error."""
        return [name for name, finding in self.found.items() if finding.outcome == FAIL or _stopped(finding)]

    def to_json(self) -> dict[str, Any]:
        """Plain data without pictures."""
        claims = {}
        for name, finding in self.found.items():
            record = {"title": find(name).title, "statement": find(name).statement, **finding.to_json()}
            claims[name] = {key: value for key, value in record.items() if key != "pictures"}
        head = None if self.head is None else storage.head_to_json(self.head)
        return {"schema": SCHEMA, "size": self.size, "head": head, "versions": versions(), "claims": claims}


def run(
    names: Sequence[str], full: bool, head: Head | None, folder: Path, jobs: int, watch: Watch, again: bool = False
) -> Findings:
    """Check the claims, `jobs` at a time, and write their findings; findings that the folder has already are kept.

    A finding is kept if it was made by the same source code, in the same size and for the same head, and `again` is
    False. A claim whose experiment stops with an error is INCONCLUSIVE, with the reason, and is not kept.
    """
    for name in names:
        find(name)
    if jobs < 1:
        raise BadInput(f"jobs is {jobs}; give 1 or more")
    given = None if head is None else storage.head_to_json(head)
    with locked(folder / "findings"):
        # A digest of everything that a finding depends on. Each size and each head has files of its own.
        identities = {name: sha256(SCHEMA, name, full, versions(), source(), given) for name in names}
        paths = {name: folder / "findings" / f"{name}-{identities[name][:12]}.json" for name in names}
        kept = {} if again else {name: f for name in names if (f := _kept(paths[name], identities[name]))}
        missing = [name for name in names if name not in kept]
        for name, finding in _computed(missing, full, head, jobs, lambda s: watch({**dict.fromkeys(kept, 1.0), **s})):
            kept[name] = finding
            if not _stopped(finding):
                record = {"schema": SCHEMA, "identity": identities[name], "finding": finding.to_json()}
                write_json(paths[name], record)
        found = Findings({name: kept[name] for name in names}, "full" if full else "quick", head, folder)
        _write_tables(found)
        write_json(folder / "claims.json", found.to_json())
    return found


@cache
def source() -> str:
    """A digest of the package's own code: a finding of other code is not kept."""
    root = Path(metastable.__file__).parent
    return sha256({str(path.relative_to(root)): path.read_text("utf-8") for path in sorted(root.rglob("*.py"))})


def _kept(path: Path, identity: str) -> Finding | None:
    """The finding of an earlier start; None if there is no usable one."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return Finding.from_json(record["finding"]) if record["identity"] == identity else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _stopped(finding: Finding) -> bool:
    return any(check.name == STOPPED for check in finding.checks)


def _no_verdict(why: str) -> Finding:
    found = Finding("not run to its end", f"no verdict: {why}")
    found.undecided(STOPPED, why)
    return found


def _checked(name: str, full: bool, head: Head | None, tell: Tell) -> Finding:
    """The finding of one claim, with the time that it took; an error of the experiment is a finding too."""
    began = time.perf_counter()
    try:
        finding = find(name)(head, tell, full)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1].name
        finding = _no_verdict(f"{type(error).__name__}: {error}; {where}")
    finding.seconds = time.perf_counter() - began
    return finding


def _computed(
    names: Sequence[str], full: bool, head: Head | None, jobs: int, watch: Watch
) -> Iterator[tuple[str, Finding]]:
    """Each finding as soon as it is finished. One job runs in this process, several in processes of their own."""
    if jobs > 1 and len(names) > 1:
        yield from _in_processes(names, full, head, jobs, watch)
        return
    shares: dict[str, float] = {}
    for name in names:

        def tell(share: float, name: str = name) -> None:
            shares[name] = share
            watch(shares)

        yield name, _checked(name, full, head, tell)
        tell(1.0)


def _in_processes(
    names: Sequence[str], full: bool, head: Head | None, jobs: int, watch: Watch
) -> Iterator[tuple[str, Finding]]:
    context = multiprocessing.get_context("spawn")
    shares = context.Array("d", len(names), lock=False)
    pool = ProcessPoolExecutor(min(jobs, len(names)), mp_context=context, initializer=_begin, initargs=(shares,))
    try:
        waiting: dict[Future[Finding], str] = {
            pool.submit(_in_worker, name, full, head, place): name for place, name in enumerate(names)
        }
        while waiting:
            ended, _ = wait(waiting, timeout=0.3, return_when=FIRST_COMPLETED)
            for future in ended:
                name = waiting.pop(future)
                shares[names.index(name)] = 1.0
                try:
                    yield name, future.result()
                except BrokenProcessPool:
                    yield name, _no_verdict("a process of this run was ended from outside, perhaps for lack of memory")
            watch(dict(zip(names, shares, strict=True)))
    except BaseException:
        # Interrupted: without this the interpreter would wait for the experiments that are running.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


_shares: Any = None
"""In a worker: the array that all workers write their progress to."""


def _begin(shares: Any) -> None:
    """Prepare a worker: one thread for the libraries, an end when the parent ends, and a place for progress.

    The worker's own environment changes; that of the parent does not.
    """
    import torch

    global _shares
    _shares = shares
    single = ("METASTABLE_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    os.environ.update(dict.fromkeys(single, "1"))
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent(sentinel: int) -> None:
        # Not by the parent's process id: the parent may have ended before this worker began.
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, args=(parent.sentinel,), daemon=True).start()


def _in_worker(name: str, full: bool, head: Head | None, place: int) -> Finding:
    return _checked(name, full, head, lambda share: _shares.__setitem__(place, share))


def table_file(claim: str, title: str) -> Path:
    """The file of a claim's table, relative to the folder of the report."""
    return Path("tables") / f"{claim}-{title.replace(' ', '-')}.csv"


def _write_tables(found: Findings) -> None:
    with writing(found.folder):
        (found.folder / "tables").mkdir(exist_ok=True)
    for name, finding in found.found.items():
        checks = [asdict(check) for check in finding.checks]
        checks = [{"check": check.pop("name"), **check} for check in checks]
        for title, rows in {"checks": checks, **finding.tables}.items():
            text = io.StringIO()
            csv.writer(text).writerows([list(rows[0]), *(row.values() for row in rows)])
            write_text(found.folder / table_file(name, title), text.getvalue())
