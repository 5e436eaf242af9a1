"""What a sweep computes: its axes, its fixed values, its outputs, and the simulation and the seed of every point.

Points are the product of the axes, numbered in C order: the last axis moves fastest. Everything that decides a result
is in `Plan.description`. Its SHA-256 is the identity of the sweep: a journal and a dataset belong to one identity.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from metastable import files
from metastable.arrays import positive
from metastable.block import Block
from metastable.cloud import Cloud
from metastable.errors import BadInput, choice
from metastable.head import Head
from metastable.problem import (
    BLOCK_KEYS,
    HEAD_CHANGES,
    HEAD_KEYS,
    LAW_KEYS,
    LAWS,
    OPTIONS,
    RUN_KEYS,
    Problem,
    check_value,
    cloud_from_file,
    law_parameters,
    one_temperature,
    refuse_unknown,
)
from metastable.run import storage as store
from metastable.run.simulation import saved_times
from metastable.versions import versions

SCHEMA = "metastable.sweep/1"
# The arguments of `simulate` that `mean_field` takes.
MEAN_FIELD_KEYS = ("beta", "until", "tol", "t_eval", "mean_field")
WITHOUT_N = "a mean field has no number of tokens N, so gamma (beta = gamma log N) has no meaning there; give beta"
# What cannot be an axis, and why.
REFUSED = {"t_eval": "every point is saved at the same times", "d": "the head has the dimension"}
AXES = tuple(key for key in (*RUN_KEYS, *LAW_KEYS, *HEAD_CHANGES, *BLOCK_KEYS) if key not in REFUSED)
# Axes whose values are words, axes whose values are true and false, and axes whose values are lists.
WORDS = ("law", "method", "engine", "kernel", "norm", "activation")
FLAGS = ("causal", "sequential")
LISTS = ("interaction", "value", "mean", "means", "kappas", "proportions")
PHASES = ("concentrated", "terminal", "least", "least_time", "course")
OBSERVABLES = ("log_energy", "mean_cosine", "effective_rank", "clusters")
OUTPUTS = ("distance", "phases", "observables")
# Saved times unless t_eval is given.
FRAMES = 101


@dataclass(frozen=True)
class Plan:
    """A sweep whose description was checked.

    base : the simulation at the first value of every axis; its head and cloud are tables, or a Head and a Cloud
    axes : the values of each axis, in order
    run : the fixed arguments of `simulate`, or with `mean_field` those of `mean_field`
    times : the dimension "time" of the dataset; values at times that a point does not reach are NaN
    distance, phases, observables : the outputs
    """

    base: Problem
    axes: dict[str, list[Any]]
    run: dict[str, Any]
    times: tuple[float, ...]
    distance: bool
    phases: tuple[str, ...]
    observables: tuple[str, ...]

    @property
    def mean_field(self) -> bool:
        return bool(self.run.get("mean_field"))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(values) for values in self.axes.values())

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def columns(self) -> list[tuple[str, int]]:
        """The numbers of a point, in order: the name of an output and how many numbers it has."""
        over_time = [*(["distance"] if self.distance else []), *self.observables]
        return [*((name, len(self.times)) for name in over_time), *((name, 1) for name in self.phases)]

    def values(self, index: int) -> dict[str, Any]:
        """The value on each axis at point `index`."""
        places = np.unravel_index(index, self.shape)
        return {name: values[int(i)] for (name, values), i in zip(self.axes.items(), places, strict=True)}

    def problem(self, index: int) -> Problem:
        """The simulation at a point."""
        found = self.base.replace(**self.values(index))
        if isinstance(found.cloud_spec, Cloud):
            return found
        seed = self.cloud_seed(index)
        law = {key: value for key, value in found.cloud_spec.items() if key != "seed"}
        return found.replace(cloud=law if seed is None else {**law, "seed": seed})

    def cloud_seed(self, index: int) -> int | None:
        """The seed of the tokens at a point; None if nothing is drawn.

        It depends on the given seed, on the law and on the arguments of the law, and on nothing else. So points that
        differ in β, in the head or in the solver start from the same tokens, and their difference is not sampling
        noise. A result does not depend on the order of points, on workers or on restarts.
        """
        if isinstance(self.base.cloud_spec, Cloud):
            return None
        values = self.values(index)
        law = {"law": "uniform", **self.base.cloud_spec, **{key: values[key] for key in LAW_KEYS if key in values}}
        if "seed" not in law_parameters(law["law"]):
            return None
        words = json.dumps({"seed": 0, **law, "d": self._dimension(values)}, sort_keys=True)
        return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") >> 1

    def _dimension(self, values: dict[str, Any]) -> int:
        """d, without building the head, which may fail at this point."""
        if not isinstance(self.base.head_spec, dict) or isinstance(self.base.block_spec, Block):
            return self.base.block.dim
        value = {**self.base.head_spec, **values}["value"]
        return len(value[0]) if isinstance(value[0], list) else len(value)

    @cached_property
    def description(self) -> dict[str, Any]:
        """Everything that decides the results, as JSON: the content of sweep.json and of the dataset's attributes."""
        head: Any = self.base.head_spec
        if isinstance(head, Head):
            head = {**store.head_to_json(head), "dtype": str(head.dtype).removeprefix("torch.")}
        block: Any = self.base.block_spec
        if isinstance(block, Block):
            block = {**block.to_json(), "dtype": str(block.dtype).removeprefix("torch.")}
        cloud: Any = self.base.cloud_spec
        if isinstance(cloud, Cloud):
            points, weights = (a.cpu().numpy() for a in (cloud.points, cloud.log_weights))
            cloud = {**cloud.law, "sha256": hashlib.sha256(points.tobytes() + weights.tobytes()).hexdigest()}
        parts = {
            "axes": self.axes,
            # Points are numbered by the order of the axes.
            "order": list(self.axes),
            # Values of axes belong to the axes.
            "head": _without(head, self.axes),
            # A sweep without a block has the identity that it had before there were blocks.
            **({"block": found} if (found := _without(block, self.axes)) else {}),
            "cloud": {key: value for key, value in cloud.items() if key not in self.axes},
            "run": self.run,
            "outputs": {
                "distance": self.distance,
                "times": list(self.times),
                "phases": list(self.phases),
                "observables": list(self.observables),
            },
        }
        return {"schema": SCHEMA, **json.loads(files.to_json(plain(parts))), "versions": versions()}

    @cached_property
    def identity(self) -> str:
        """SHA-256 of the description."""
        return files.sha256(self.description)


def _without(table: Any, axes: Mapping[str, Any]) -> Any:
    """A table, or several, without the keys that are axes; the seed of a head is not the seed of the tokens."""
    if isinstance(table, list):
        return [_without(one, axes) for one in table]
    return {key: value for key, value in table.items() if key not in axes or key == "seed"}


def make(
    axes: Mapping[str, Any],
    head: Any,
    cloud: Cloud | Mapping[str, Any],
    run: Mapping[str, Any],
    outputs: Mapping[str, Any] | Sequence[str] | None = None,
    block: Block | Mapping[str, Any] | None = None,
) -> Plan:
    """A plan from what a user gave, or BadInput. `head`, `cloud`, `block` are tables as in `problem`, or the things."""
    if not isinstance(axes, Mapping) or not axes:
        raise BadInput(f'axes is {axes!r}; give at least one axis with its values, as {{"beta": [10, 100]}}')
    refuse_unknown(axes, (*AXES, *REFUSED), "axes")
    for name, why in REFUSED.items():
        if name in axes:
            raise BadInput(f"{name} cannot be an axis: {why}")
    listed = {name: _axis_values(name, values) for name, values in axes.items()}
    head = head if isinstance(head, Head) else plain(head or {})
    block = block if isinstance(block, Block) else dict(plain(block or {}))
    cloud = cloud if isinstance(cloud, Cloud) else dict(plain(cloud))
    fixed = {key: plain(value) for key, value in run.items() if value is not None}
    refuse_unknown(fixed, (*RUN_KEYS, "mean_field"), "the sweep")
    if not isinstance(fixed.get("mean_field", False), bool):
        raise BadInput(f"mean_field is {fixed['mean_field']!r}; give true or false")
    if fixed.get("mean_field"):
        if "n" in listed:
            raise BadInput("a mean field has no number of tokens; remove the axis n")
        if "gamma" in (*fixed, *listed):
            raise BadInput(WITHOUT_N)
        refuse_unknown([*fixed, *(key for key in listed if key in RUN_KEYS)], MEAN_FIELD_KEYS, "a sweep of mean fields")
        # Only the law counts there, and not how many tokens are drawn from it.
        cloud = cloud if isinstance(cloud, Cloud) else {"n": 1, **cloud}
    given = {"head": head, "cloud": cloud, "block": block}
    tables = {name: part if isinstance(part, dict) else {} for name, part in given.items()}
    for name in listed:
        # The seed of the head is not the seed of the tokens.
        elsewhere = name in tables["cloud"] or name in tables["block"]
        if name in fixed or elsewhere or (name in HEAD_CHANGES and name in tables["head"]):
            raise BadInput(f"{name} is both an axis and a fixed value; remove one of the two")
    for name, value in (*fixed.items(), *(item for table in tables.values() for item in table.items())):
        check_value(name, value)
    if fixed.get("mean_field") and (block or any(name in BLOCK_KEYS for name in listed)):
        raise BadInput("a mean field is solved for one softmax head on the sphere; remove the block, or mean_field")
    one_temperature((*fixed, *listed))
    if "until" not in fixed and "until" not in listed:
        raise BadInput("until is missing; give it a value or make it an axis")
    if not isinstance(block, Block):
        head = _checked_head(head, listed)
    elif head or any(name in (*HEAD_CHANGES, *BLOCK_KEYS) for name in listed):
        raise BadInput(
            "the block is given as weights, so that nothing can change its heads; remove the head and its axes"
        )
    _check_law(cloud, listed)
    options = {key: value for key, value in fixed.items() if key in OPTIONS}
    base = Problem(head, cloud, fixed.get("beta"), fixed.get("until", 1.0), options, fixed.get("gamma"), block)
    base = base.replace(**{name: values[0] for name, values in listed.items()})
    base = _with_files_read(base, listed)
    last = max(positive(until, "until") for until in listed.get("until", [fixed.get("until")]))
    if outputs is None:
        # Many members of the family have no limit law, and so no distance and no phases.
        blocks = bool(block) or not listed.keys().isdisjoint(BLOCK_KEYS)
        outputs = OUTPUTS if blocks else ("distance", "phases")
    return Plan(base, listed, fixed, **_chosen_outputs(outputs, fixed.get("t_eval", FRAMES), last))


def _axis_values(name: str, given: Any) -> list[Any]:
    """The values of an axis: all numbers, all words or all lists; BadInput for values that cannot be labels."""
    values = plain(given)
    if not isinstance(values, list) or not values:
        raise BadInput(f"axis {name} is {given!r}; give a list of values")
    if any(isinstance(value, float) and math.isnan(value) for value in values):
        raise BadInput(f"axis {name} is {given!r}; nan is no value of a parameter")
    kinds = {_kind(value) for value in values}
    if kinds == {"flag"} and name in FLAGS:
        return values
    if len(kinds) > 1 or kinds & {"other", "flag"}:
        raise BadInput(f"axis {name} is {given!r}; its values must be all numbers, all words or all lists")
    if (kinds == {"word"} and name not in WORDS) or (kinds == {"list"} and name not in LISTS):
        raise BadInput(f"axis {name} is {given!r}; its values must be numbers")
    if kinds == {"number"}:
        if any(isinstance(value, int) and abs(value) >= 2**63 for value in values):
            raise BadInput(f"axis {name} holds a whole number of more than 63 bits; use smaller numbers")
        if not all(isinstance(value, int) for value in values):
            # Adding 0 turns -0 into 0, which is the same label.
            values = [float(value) + 0.0 for value in values]
    if any(isinstance(value, list) and len(value) < 2 for value in values):
        raise BadInput(f"axis {name} is {given!r}; each of its values must be a list of d ≥ 2 numbers")
    for value in values:
        check_value(name, value)
    if len({json.dumps(value) for value in values}) < len(values):
        raise BadInput(f"axis {name} holds a value twice; its values are labels and must differ")
    return values


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, (int, float)):
        return "number"
    return "word" if isinstance(value, str) else "list" if isinstance(value, list) else "other"


def plain(value: Any) -> Any:
    """The same value in Python's own dicts, lists, numbers and strings."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [plain(item) for item in value]
    return value


def _checked_head(head: Any, axes: dict[str, list[Any]]) -> Any:
    moved = [name for name in axes if name in HEAD_CHANGES]
    if not isinstance(head, dict) or {"file", "query", "key"} & set(head):
        if moved:
            raise BadInput(
                f"the axis {moved[0]} changes the head, so the head cannot be given as matrices; "
                'give it as spectra, head={"interaction": [...], "value": [...]}'
            )
        return head
    refuse_unknown(head, HEAD_KEYS, "[head]")
    given = {*head, *axes}
    if "gap" in given and "interaction" in given:
        raise BadInput("both gap and interaction are given; gap makes the interaction 1, 1 − gap, …: give one of them")
    for needed in ("interaction", "value"):
        if needed not in given and not (needed == "interaction" and "gap" in given):
            raise BadInput(f"the head needs {needed}; give head, or a [head] table with interaction and value")
    return head


def _check_law(cloud: Cloud | dict[str, Any], axes: dict[str, list[Any]]) -> None:
    moved = [name for name in axes if name in LAW_KEYS]
    if isinstance(cloud, Cloud) or "file" in cloud:
        if moved:
            raise BadInput(f"the axis {moved[0]} changes the tokens, but they are given as points; remove one of both")
        return
    names = axes.get("law", [cloud.get("law", "uniform")])
    laws = {name: law_parameters(choice(name, "law", LAWS)) for name in names}
    takes = {parameter for parameters in laws.values() for parameter in parameters} | {"law", "d"}
    refuse_unknown([*cloud, *moved], sorted(takes - {"head"}), f"tokens with law = {', '.join(names)}")
    for name, parameters in laws.items():
        required = [a for a, p in parameters.items() if p.default is p.empty and a not in ("d", "head")]
        missing = [a for a in required if a not in cloud and a not in axes]
        if missing:
            where = "in [cloud], as an argument in Python, or as an axis"
            raise BadInput(f"tokens with law = {name!r} need {', '.join(missing)}; give it {where}")


def _with_files_read(base: Problem, axes: dict[str, list[Any]]) -> Problem:
    """The problem with the contents of its files, which workers may not see."""
    if isinstance(base.cloud_spec, dict) and "file" in base.cloud_spec:
        base = base.replace(cloud=cloud_from_file(base.cloud_spec["file"]))
    if any(name in HEAD_CHANGES for name in axes):
        return base
    d = base.cloud_spec.dim if isinstance(base.cloud_spec, Cloud) else base.cloud_spec.get("d", base.head.dim)
    if d != base.head.dim:
        raise BadInput(f"d is {d} but the head has d = {base.head.dim}; they must agree")
    return base.replace(head=base.head) if isinstance(base.head_spec, dict) and "file" in base.head_spec else base


def _chosen_outputs(outputs: Mapping[str, Any] | Sequence[str], t_eval: Any, last: float) -> dict[str, Any]:
    """The fields times, distance, phases and observables of a plan."""
    if isinstance(outputs, str) or not isinstance(outputs, (Mapping, Sequence)):
        raise BadInput(f"outputs is {outputs!r}; give a list of names or a table, of {', '.join(OUTPUTS)}")
    refuse_unknown(outputs, OUTPUTS, "outputs")
    given = plain(outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, True))
    distance = given.get("distance", False)
    if isinstance(distance, bool):
        times = saved_times(t_eval, last)
    else:
        try:
            times = tuple(sorted({float(t) for t in distance}))
        except (TypeError, ValueError):
            raise BadInput(f"outputs distance is {distance!r}; give true, or a list of times") from None
        if not times or not all(0 <= t <= last for t in times):
            raise BadInput(f"outputs distance is {distance!r}; the times must lie between 0 and {last:g}")
    found: dict[str, Any] = {"times": times, "distance": distance is not False}
    for what, names in (("phases", PHASES), ("observables", OBSERVABLES)):
        wanted = given.get(what, False)
        if isinstance(wanted, bool):
            wanted = names if wanted else ()
        elif not isinstance(wanted, list):
            raise BadInput(f"outputs {what} is {wanted!r}; give true, or a list of {', '.join(names)}")
        refuse_unknown(wanted, names, f"outputs {what}")
        found[what] = tuple(name for name in names if name in wanted)
    if not (found["distance"] or found["phases"] or found["observables"]):
        raise BadInput(f"the sweep has no outputs; choose some of {', '.join(OUTPUTS)}")
    return found
