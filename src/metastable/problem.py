"""A simulation described in TOML: which keys there are, and what is wrong with a file that cannot be used.

beta = 100.0
until = 20.0              # also tol, save, method, step, engine, merge, as in `simulate`

[head]
interaction = [1.5, 0.6]  # a list: the spectrum of a random symmetric B; a list of lists: B itself
value = [1.0, 0.7]        # the same for V
seed = 0
# or query, key, value (, output, offset) as matrices, or file = "head.npz" with arrays of those names

[cloud]
law = "graded"            # uniform, graded, fibonacci, equally_spaced, von_mises_fisher, mixture
n = 1000                  # further keys are the arguments of that law
# or file = "points.npy" (N×d), or "points.npz" with points and weights
"""

from __future__ import annotations

import difflib
import inspect
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from metastable import cloud as laws
from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.head import Head

RUN_KEYS = ("beta", "until", "tol", "save", "method", "step", "engine", "merge")
HEAD_KEYS = ("interaction", "value", "seed", "query", "key", "output", "offset", "file")
LAWS: dict[str, Callable[..., Cloud]] = {
    "uniform": laws.uniform,
    "graded": laws.graded,
    "fibonacci": laws.fibonacci,
    "equally_spaced": laws.equally_spaced,
    "von_mises_fisher": laws.von_mises_fisher,
    "mixture": laws.mixture,
}


def read(path: str | Path, further: Iterable[str] = ()) -> dict[str, Any]:
    """The tables of a TOML file, with every key known; `further` are keys that a simulation alone does not have."""
    path = Path(path)
    try:
        with open(path, "rb") as handle:
            tables = tomllib.load(handle)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {path}: {error}") from error
    _known(tables, (*RUN_KEYS, "head", "cloud", *further), str(path))
    for name in ("head", "cloud"):
        if not isinstance(tables.get(name, {}), dict):
            raise BadInput(f"{path}: {name} must be a table, [{name}]")
    for name in ("head", "cloud"):
        table = tables.get(name, {})
        if "file" in table:
            table["file"] = str(path.parent / _text(table["file"], "file"))
    return tables


def build(tables: dict[str, Any]) -> tuple[Head, Cloud, dict[str, Any]]:
    """The head, the cloud and the other arguments of `simulate`."""
    head = build_head(tables.get("head", {}))
    arguments = {key: tables[key] for key in RUN_KEYS if key in tables}
    for key in ("beta", "until"):
        if key not in arguments:
            raise BadInput(f"{key} is missing; give it as a flag (--{key}) or in the TOML file")
    return head, build_cloud(tables.get("cloud", {}), head), arguments


def build_head(table: dict[str, Any]) -> Head:
    """A head from a [head] table."""
    _known(table, HEAD_KEYS, "[head]")
    if "file" in table:
        return _head_from_file(table)
    if "query" in table or "key" in table:
        _require(table, ("query", "key", "value"), "[head]")
        _allow(table, ("query", "key", "value", "output", "offset"), "[head] with query and key")
        return Head(**table)
    _require(table, ("interaction", "value"), "[head]")
    _allow(table, ("interaction", "value", "seed"), "[head] with interaction")
    spectra = [_is_flat(table[name], name) for name in ("interaction", "value")]
    if all(spectra):
        return Head.from_spectra(table["interaction"], table["value"], seed=table.get("seed", 0))
    if any(spectra):
        raise BadInput("[head] interaction and value must both be lists (spectra) or both be matrices")
    _allow(table, ("interaction", "value"), "[head] with matrices")
    return Head.from_interaction(table["interaction"], table["value"])


def build_cloud(table: dict[str, Any], head: Head) -> Cloud:
    """A cloud from a [cloud] table; d and head are filled in from the head."""
    if "file" in table:
        _allow(table, ("file",), "[cloud] with file")
        return _cloud_from_file(table["file"])
    law = table.get("law", "uniform")
    if not isinstance(law, str) or law not in LAWS:
        raise BadInput(f"[cloud] law is {law!r}; {_choose(str(law), LAWS)}")
    wanted = inspect.signature(LAWS[law]).parameters
    filled = {name: value for name, value in (("d", head.dim), ("head", head)) if name in wanted}
    given = {key: value for key, value in table.items() if key != "law"}
    if given.pop("d", head.dim) != head.dim:
        raise BadInput(f"[cloud] d is {table['d']} but the head has d = {head.dim}; they must agree")
    _known(given, [name for name in wanted if name not in filled], f"[cloud] with law = {law!r}")
    missing = [n for n, p in wanted.items() if p.default is p.empty and n not in given and n not in filled]
    if missing:
        raise BadInput(f"[cloud] with law = {law!r} needs {', '.join(missing)}")
    return LAWS[law](**given, **filled)


def _head_from_file(table: dict[str, Any]) -> Head:
    _allow(table, ("file",), "[head] with file")
    arrays = _load_arrays(table["file"])
    known = ("query", "key", "value", "output", "offset", "interaction")
    _known(arrays, known, table["file"])
    if "interaction" in arrays:
        _require(arrays, ("value",), table["file"])
        return Head.from_interaction(arrays["interaction"], arrays["value"])
    _require(arrays, ("query", "key", "value"), table["file"])
    return Head(**arrays)


def _cloud_from_file(path: str) -> Cloud:
    arrays = _load_arrays(path)
    _known(arrays, ("points", "weights"), path)
    _require(arrays, ("points",), path)
    return Cloud(arrays["points"], arrays.get("weights"))


def _load_arrays(path: str) -> dict[str, np.ndarray]:
    try:
        loaded = np.load(path, allow_pickle=False)
        return {"points": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise BadInput(f"cannot read {path} as a .npy or .npz file: {error}") from error


def _known(given: Iterable[str], known: Iterable[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise BadInput(f"{where}: unknown key {key!r}; {_choose(key, known)}")


def _allow(table: dict[str, Any], allowed: Iterable[str], where: str) -> None:
    for key in table:
        if key not in allowed:
            raise BadInput(f"{where} does not take {key}; remove it")


def _require(table: Iterable[str], keys: Iterable[str], where: str) -> None:
    missing = [key for key in keys if key not in table]
    if missing:
        raise BadInput(f"{where} needs {', '.join(missing)}")


def _choose(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{name} is {value!r}; it must be a path in quotes")
    return value


def _is_flat(value: Any, name: str) -> bool:
    if not isinstance(value, list) or not value:
        raise BadInput(f"[head] {name} is {value!r}; give a list of numbers or a matrix")
    return not isinstance(value[0], list)
