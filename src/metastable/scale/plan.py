"""What a sweep computes: its axes, what stays fixed, its outputs, and the seed of every point.

Points are the product of the axes, numbered in C order: the last axis moves fastest. All that decides a result is in
`Plan.description`; its SHA-256 is the sweep's identity, and journal and dataset belong to one identity only.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from metastable import problem as configuration
from metastable.arrays import positive
from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.head import Head
from metastable.run import storage as store
from metastable.run.simulation import saved_times
from metastable.scale.axes import checked, known, plain

SCHEMA = "metastable.sweep/1"
RUN = ("beta", "until", *(key for key in configuration.OPTIONS if key != "t_eval"))
FIXED = ("beta", "until", *configuration.OPTIONS, "mean_field")
SOLVED = ("beta", "until", "tol", "t_eval", "mean_field")
"""What `mean_field` takes of these."""
HEAD = ("gap", "angle", "interaction", "value")
LAW = configuration.LAW_KEYS
AXES = (*RUN, *(key for key in LAW if key != "d"), *HEAD)
PHASES = ("concentrated", "terminal", "least", "least_time", "course")
OBSERVABLES = ("log_energy", "mean_cosine", "effective_rank", "clusters")
OUTPUTS = ("distance", "phases", "observables")
FRAMES = 101


@dataclass(frozen=True)
class Plan:
    """A sweep, checked. `head` and `cloud` are tables as in `configuration`, or the things themselves.

    axes : the values of each axis, in order
    run : the fixed arguments of `simulate`, or with `mean_field` those of `meanfield.mean_field`
    times : the dimension "time" of the dataset; where a point ends before, its values are NaN
    phases, observables : names of the further outputs; `distance` says whether distances are kept
    """

    head: dict[str, Any] | Head
    cloud: dict[str, Any] | Cloud
    axes: dict[str, list[Any]]
    run: dict[str, Any]
    times: tuple[float, ...]
    distance: bool
    phases: tuple[str, ...]
    observables: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(values) for values in self.axes.values())

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def columns(self) -> list[tuple[str, int]]:
        """The numbers that a point leaves behind, in order: name and how many."""
        along = [*(["distance"] if self.distance else []), *self.observables]
        return [*((name, len(self.times)) for name in along), *((name, 1) for name in self.phases)]

    @property
    def width(self) -> int:
        return sum(count for _, count in self.columns)

    def values(self, index: int) -> dict[str, Any]:
        """Where on the axes point `index` lies."""
        places = np.unravel_index(index, self.shape)
        return {name: values[int(i)] for (name, values), i in zip(self.axes.items(), places, strict=True)}

    def arguments(self, index: int) -> dict[str, Any]:
        """The arguments of `simulate` at a point, without the saved times."""
        return {**self.run, **{k: v for k, v in self.values(index).items() if k in RUN}}

    def head_at(self, index: int) -> Head:
        """The head at a point."""
        if isinstance(self.head, Head):
            return self.head
        return configuration.build_head({**self.head, **{k: v for k, v in self.values(index).items() if k in HEAD}})

    def law_at(self, index: int) -> dict[str, Any]:
        """The [cloud] table at a point, with the seed as it was given."""
        assert not isinstance(self.cloud, Cloud)
        return {"law": "uniform", **self.cloud, **{k: v for k, v in self.values(index).items() if k in LAW}}

    def cloud_seed(self, index: int) -> int | None:
        """The seed of the tokens at a point; None where nothing is drawn.

        It is made of the given seed and of what shapes the cloud (the law and its arguments), and of nothing else.
        So points that differ in β, in the head or in the solver start from the very same tokens, and their
        differences are not the noise of two samples; and a result does not depend on order, workers or restarts.
        """
        if isinstance(self.cloud, Cloud):
            return None
        table = self.law_at(index)
        law = configuration.LAWS.get(table["law"]) if isinstance(table["law"], str) else None
        if law is None or "seed" not in inspect.signature(law).parameters:
            return None
        words = json.dumps({"seed": 0, **table, "d": self._dimension(index)}, sort_keys=True)
        return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") >> 1

    def _dimension(self, index: int) -> int:
        """d, without making the head."""
        if isinstance(self.head, Head):
            return self.head.dim
        value = {**self.head, **self.values(index)}["value"]
        return len(value[0]) if isinstance(value[0], list) else len(value)

    def cloud_at(self, index: int, head: Head) -> Cloud:
        """The tokens at a point."""
        if isinstance(self.cloud, Cloud):
            return self.cloud
        seed = self.cloud_seed(index)
        table = {key: value for key, value in self.law_at(index).items() if key != "seed"}
        return configuration.build_cloud(table if seed is None else {**table, "seed": seed}, head)

    @cached_property
    def description(self) -> dict[str, Any]:
        """All that decides the results, as JSON: what sweep.json and the dataset's attributes hold."""
        head: Any = self.head
        if isinstance(head, Head):
            head = {**store.head_to_json(head), "dtype": str(head.dtype).removeprefix("torch.")}
        cloud: Any = self.cloud
        if isinstance(cloud, Cloud):
            points, weights = (a.cpu().numpy() for a in (cloud.points, cloud.log_weights))
            cloud = {**cloud.law, "sha256": hashlib.sha256(points.tobytes() + weights.tobytes()).hexdigest()}
        outputs = {"distance": self.distance, "times": list(self.times)}
        outputs |= {"phases": list(self.phases), "observables": list(self.observables)}
        # Points are numbered by the order of the axes, so it belongs to what decides them.
        parts = {
            "axes": self.axes,
            "order": list(self.axes),
            "head": head,
            "cloud": cloud,
            "run": self.run,
            "outputs": outputs,
        }
        return {"schema": SCHEMA, **_worded(plain(parts)), "versions": store.versions()}

    @cached_property
    def identity(self) -> bytes:
        """SHA-256 of the description."""
        return hashlib.sha256(json.dumps(self.description, sort_keys=True).encode()).digest()


def make(
    axes: Mapping[str, Any],
    head: Head | Mapping[str, Any] | None,
    cloud: Cloud | Mapping[str, Any],
    run: Mapping[str, Any],
    outputs: Mapping[str, Any] | Sequence[str] | None = None,
) -> Plan:
    """A plan from what a user gave, or BadInput. `cloud` is a [cloud] table, or a Cloud."""
    listed = checked(axes, AXES)
    head = head if isinstance(head, Head) else dict(plain(head or {}))
    cloud = cloud if isinstance(cloud, Cloud) else dict(plain(cloud))
    fixed = {key: plain(value) for key, value in run.items() if value is not None}
    known(fixed, FIXED, "the sweep")
    if not isinstance(fixed.get("mean_field", False), bool):
        raise BadInput(f"mean_field is {fixed['mean_field']!r}; give true or false")
    if fixed.get("mean_field"):
        if "n" in listed:
            raise BadInput("a mean field has no number of tokens; remove the axis n")
        known([*fixed, *(key for key in listed if key in RUN)], SOLVED, "a sweep of mean fields")
        # The law alone counts there, and not how many tokens are drawn from it.
        cloud = cloud if isinstance(cloud, Cloud) else {"n": 1, **cloud}
    _refuse_twice(listed, head, cloud, fixed)
    _check_head(head, listed)
    _check_cloud(cloud, listed)
    for key in ("beta", "until"):
        if key not in fixed and key not in listed:
            raise BadInput(f"{key} is missing; give it a value or make it an axis")
    wanted = _outputs(outputs)
    untils = listed.get("until", [fixed.get("until")])
    last = max(positive(until, "until") for until in untils)
    given = wanted["distance"]
    times = saved_times(fixed.get("t_eval", FRAMES), last) if isinstance(given, bool) else _times(given, last)
    names = {"phases": PHASES, "observables": OBSERVABLES}
    chosen = {key: _names(wanted[key], names[key], key) for key in names}
    if given is False and not any(chosen.values()):
        raise BadInput(f"the sweep has no outputs; choose some of {', '.join(OUTPUTS)}")
    head = _read_head(head, listed, cloud)
    plan = Plan(head, cloud, listed, fixed, times, given is not False, **chosen)
    if isinstance(cloud, dict) and "file" in cloud:
        # Read once, here, as a head: workers may not see the file.
        return replace(plan, cloud=configuration.build_cloud(cloud, plan.head_at(0)))
    return plan


def _worded(value: Any) -> Any:
    """The same with infinity as a word, for JSON has none."""
    if isinstance(value, dict):
        return {key: _worded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_worded(item) for item in value]
    return "inf" if value == math.inf else value


def _refuse_twice(axes: dict[str, list[Any]], head: Any, cloud: Any, run: dict[str, Any]) -> None:
    for name in axes:
        tables = (run, head if isinstance(head, dict) else {}, cloud if isinstance(cloud, dict) else {})
        # A head's seed is not the seed of the tokens.
        if any(name in table for table in (tables[0], tables[2])) or (name in HEAD and name in tables[1]):
            raise BadInput(f"{name} is both an axis and a fixed value; remove one of the two")


def _check_head(head: Head | dict[str, Any], axes: dict[str, list[Any]]) -> None:
    moved = [name for name in axes if name in HEAD]
    if moved and (isinstance(head, Head) or {"file", "query", "key"} & set(head)):
        raise BadInput(
            f"the axis {moved[0]} makes the head, so the head cannot be given as matrices; "
            'give it as spectra, head={"interaction": [...], "value": [...]}'
        )
    if "gap" in axes and ("interaction" in axes or (isinstance(head, dict) and "interaction" in head)):
        raise BadInput("both gap and interaction are given; gap makes the interaction 1, 1 − gap, …: give one of them")
    if not isinstance(head, Head):
        known(head, configuration.HEAD_KEYS, "[head]")


def _read_head(
    head: Head | dict[str, Any], axes: dict[str, list[Any]], cloud: Cloud | dict[str, Any]
) -> Head | dict[str, Any]:
    """A head in a file is read once, here: workers may not see the file. A head that cannot be made ends the sweep."""
    if isinstance(head, dict):
        _require_spectra(head, axes)
    if any(name in HEAD for name in axes):
        return head
    built = head if isinstance(head, Head) else configuration.build_head(head)
    d = cloud.dim if isinstance(cloud, Cloud) else cloud.get("d", built.dim)
    if d != built.dim:
        raise BadInput(f"d is {d} but the head has d = {built.dim}; they must agree")
    return built if isinstance(head, dict) and "file" in head else head


def _require_spectra(head: dict[str, Any], axes: dict[str, list[Any]]) -> None:
    made = {*head, *axes}
    if made & {"file", "query", "key"}:
        return
    for needed in ("interaction", "value"):
        if needed not in made and not (needed == "interaction" and "gap" in made):
            raise BadInput(f"the head needs {needed}; give head, or a [head] table with interaction and value")


def _check_cloud(cloud: Cloud | dict[str, Any], axes: dict[str, list[Any]]) -> None:
    moved = [name for name in axes if name in LAW]
    if isinstance(cloud, Cloud) or "file" in cloud:
        if moved:
            raise BadInput(f"the axis {moved[0]} makes the tokens, but they are given as points; remove one of the two")
        return
    names = axes.get("law", [cloud.get("law", "uniform")])
    laws = [configuration.LAWS.get(name) if isinstance(name, str) else None for name in names]
    for name, law in zip(names, laws, strict=True):
        if law is None:
            raise BadInput(f"law is {name!r}; choose one of {', '.join(configuration.LAWS)}")
    takes = {a for law in laws if law is not None for a in inspect.signature(law).parameters} | {"law", "d"}
    known([*cloud, *moved], sorted(takes - {"head"}), f"tokens with law = {', '.join(map(str, names))}")
    for name, law in zip(names, laws, strict=True):
        assert law is not None
        needed = [a for a, p in inspect.signature(law).parameters.items() if p.default is p.empty]
        missing = [a for a in needed if a not in ("d", "head") and a not in cloud and a not in axes]
        if missing:
            where = "in [cloud], in Python as an argument, or as an axis"
            raise BadInput(f"tokens with law = {name!r} need {', '.join(missing)}; give it {where}")


def _outputs(outputs: Mapping[str, Any] | Sequence[str] | None) -> dict[str, Any]:
    if outputs is None:
        outputs = ("distance", "phases")
    if isinstance(outputs, str) or not isinstance(outputs, (Mapping, Sequence)):
        raise BadInput(f"outputs is {outputs!r}; give a list of names or a table, of {', '.join(OUTPUTS)}")
    known(outputs, OUTPUTS, "outputs")
    given = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, True)
    return {name: plain(given.get(name, False)) for name in OUTPUTS}


def _names(given: Any, names: tuple[str, ...], what: str) -> tuple[str, ...]:
    if isinstance(given, bool):
        return names if given else ()
    if not isinstance(given, list):
        raise BadInput(f"outputs {what} is {given!r}; give true, or a list of {', '.join(names)}")
    known(given, names, f"outputs {what}")
    return tuple(name for name in names if name in given)


def _times(given: Any, last: float) -> tuple[float, ...]:
    try:
        times = sorted({float(t) for t in given})
    except (TypeError, ValueError):
        raise BadInput(f"outputs distance is {given!r}; give true, or a list of times") from None
    outside = [t for t in times if not 0 <= t <= last]
    if outside or not times:
        raise BadInput(f"outputs distance is {given!r}; the times must lie between 0 and {last:g}")
    return tuple(times)
