"""Many claims in one folder: on all cores, each kept as soon as it is finished, taken up again after a kill.

claims.json             every verdict with its checks
findings/*.json         one finding each, written whole or not at all; found again by the next start
tables/*.csv            the checks and the tables of each claim
"""

from __future__ import annotations

import csv
import hashlib
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
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import metastable
from metastable.claims import find
from metastable.claims.claim import Tell
from metastable.claims.finding import FAIL, Finding, undecided
from metastable.errors import BadInput
from metastable.head import Head
from metastable.run import storage as store

SCHEMA = "metastable.claims/1"
STOPPED = "the experiment stopped"

Watch = Callable[[dict[str, float]], None]
"""Called with the share of each claim that is done, several times a second."""


@dataclass(frozen=True)
class Findings:
    """What a folder of claims holds: findings by name, in order, and how they were asked for."""

    found: dict[str, Finding]
    size: str
    head: Head | None
    folder: Path
    origin: str | None = None
    """Where the head came from, as the command line had it."""

    @property
    def failed(self) -> list[str]:
        return [name for name, finding in self.found.items() if finding.outcome == FAIL]

    @property
    def stopped(self) -> list[str]:
        """Those whose experiment ended with an error."""
        return [name for name, finding in self.found.items() if _stopped(finding)]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "size": self.size,
            "head": None if self.head is None else store.head_to_json(self.head),
            "versions": store.versions(),
            "claims": {
                name: {"title": find(name).title, "statement": find(name).statement, **_without_pictures(finding)}
                for name, finding in self.found.items()
            },
        }


def _without_pictures(finding: Finding) -> dict[str, Any]:
    return {key: value for key, value in finding.to_json().items() if key != "pictures"}


def run(
    names: Sequence[str], full: bool, head: Head | None, folder: Path, jobs: int, watch: Watch, again: bool = False
) -> Findings:
    """Check the claims, `jobs` at a time, and write their findings; those that the folder holds already are kept.

    A finding is kept if it was made by the same source code, in the same size and for the same head, and `again` is
    False. A claim whose experiment stops with an error is INCONCLUSIVE, with the reason, and is not kept.
    """
    for name in names:
        find(name)
    if jobs < 1:
        raise BadInput(f"jobs is {jobs}; give 1 or more")
    try:
        (folder / "findings").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write to {folder}: {error.strerror or error}") from error
    handle = store.hold(folder / "findings" / "lock", f"another process is checking claims in {folder}; wait for it")
    try:
        identities = {name: _identity(name, full, head) for name in names}
        kept = {} if again else {name: f for name in names if (f := _kept(folder, name, identities[name]))}
        missing = [name for name in names if name not in kept]
        for name, finding in _computed(missing, full, head, jobs, lambda s: watch({**dict.fromkeys(kept, 1.0), **s})):
            kept[name] = finding
            if not _stopped(finding):
                _keep(folder, name, identities[name], finding)
        found = Findings({name: kept[name] for name in names}, "full" if full else "quick", head, folder)
        _write_tables(found)
        store.write_text(folder / "claims.json", json.dumps(found.to_json(), indent=1, ensure_ascii=False))
    finally:
        if handle is not None:
            handle.close()
    return found


def _identity(name: str, full: bool, head: Head | None) -> str:
    """Everything that a finding depends on, as a digest."""
    claim = find(name)
    parts: list[Any] = [SCHEMA, name, repr(claim.full if full else claim.quick), store.versions(), source()]
    parts.append(None if head is None else store.head_to_json(head))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def source() -> str:
    """A digest of the package's own code: a finding of other code is no finding of this one."""
    root = Path(metastable.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


def _path(folder: Path, name: str, identity: str) -> Path:
    """Quick and full findings, and those of several heads, stay beside each other."""
    return folder / "findings" / f"{name}-{identity[:12]}.json"


def _stopped(finding: Finding) -> bool:
    return any(check.name == STOPPED for check in finding.checks)


def _keep(folder: Path, name: str, identity: str, finding: Finding) -> None:
    record = {"schema": SCHEMA, "identity": identity, "finding": finding.to_json()}
    store.write_text(_path(folder, name, identity), json.dumps(record, ensure_ascii=False, allow_nan=False))


def _kept(folder: Path, name: str, identity: str) -> Finding | None:
    """The finding of an earlier start; None if there is none that can be used."""
    try:
        record = json.loads(_path(folder, name, identity).read_text(encoding="utf-8"))
        return Finding.from_json(record["finding"]) if record["identity"] == identity else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


_shares: Any = None


def _begin(shares: Any) -> None:
    """In each worker: one thread for the libraries, an eye on the parent, and the place to write progress to."""
    import torch

    global _shares
    _shares = shares
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()

    assert parent is not None

    def end_with_parent(sentinel: int) -> None:
        # Not by the parent's number: it may have ended before this worker began.
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, args=(parent.sentinel,), daemon=True).start()


def _in_worker(name: str, full: bool, head: Head | None, place: int) -> Finding:
    def tell(share: float) -> None:
        _shares[place] = share

    return _one(name, full, head, tell)


def _one(name: str, full: bool, head: Head | None, tell: Tell) -> Finding:
    claim, began = find(name), time.perf_counter()
    try:
        finding = claim.check(claim.full if full else claim.quick, head, tell)
    except Exception as error:
        why = f"{type(error).__name__}: {error}; {traceback.extract_tb(error.__traceback__)[-1].name}"
        finding = _no_verdict(why)
    return replace(finding, seconds=time.perf_counter() - began)


def _no_verdict(why: str) -> Finding:
    return Finding(f"no verdict: {why}", "not run to its end", (undecided(STOPPED, why),))


def _result(future: Future[Finding]) -> Finding:
    try:
        return future.result()
    except BrokenProcessPool:
        return _no_verdict("a process of this run was ended from outside, perhaps for want of memory")


def _computed(
    names: Sequence[str], full: bool, head: Head | None, jobs: int, watch: Watch
) -> Iterator[tuple[str, Finding]]:
    """Each finding as it comes. One job runs here, several in processes of their own."""
    if jobs == 1 or len(names) < 2:
        for i, name in enumerate(names):
            done = dict.fromkeys(names[:i], 1.0)
            yield name, _one(name, full, head, lambda share, b=done, n=name: watch({**b, n: share}))  # type: ignore[misc]
        watch(dict.fromkeys(names, 1.0))
        return
    context = multiprocessing.get_context("spawn")
    shares = context.Array("d", len(names), lock=False)
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    before = {key: os.environ.get(key) for key in threads}
    os.environ.update(threads)
    pool = ProcessPoolExecutor(min(jobs, len(names)), mp_context=context, initializer=_begin, initargs=(shares,))
    try:
        waiting: dict[Future[Finding], str] = {
            pool.submit(_in_worker, n, full, head, i): n for i, n in enumerate(names)
        }
        while waiting:
            ended, _ = wait(waiting, timeout=0.3, return_when=FIRST_COMPLETED)
            for future in ended:
                name = waiting.pop(future)
                shares[names.index(name)] = 1.0
                yield name, _result(future)
            watch(dict(zip(names, shares, strict=True)))
    except BaseException:
        # Interrupted: without this the interpreter would wait for the experiments that are under way.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.__setitem__(key, value)


def table_file(claim: str, title: str) -> Path:
    """Where a table of a claim is, from the folder of the report."""
    return Path("tables") / f"{claim}-{title.replace(' ', '-')}.csv"


def _write_tables(found: Findings) -> None:
    (found.folder / "tables").mkdir(exist_ok=True)
    for name, finding in found.found.items():
        checks = [(c.name, c.measured, c.low, c.high, c.outcome, c.note) for c in finding.checks]
        tables: list[tuple[str, Sequence[str], Sequence[Any]]] = [
            ("checks", ("check", "measured", "low", "high", "outcome", "note"), checks)
        ]
        tables += [(t.name, t.columns, t.rows) for t in finding.tables]
        for title, columns, rows in tables:
            text = io.StringIO()
            csv.writer(text).writerows([columns, *rows])
            store.write_text(found.folder / table_file(name, title), text.getvalue())
