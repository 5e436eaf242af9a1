"""A simulation as one value: block, starting law, inverse temperature, horizon and options of the solver.

In TOML:

    beta = 100.0              # or gamma = 2.0: beta = gamma log N for N tokens
    until = 20.0              # also tol, t_eval, method, step, engine, merge, as in `simulate`

    [head]
    interaction = [1.5, 0.6]  # a list: the spectrum of a symmetric B; a list of lists: B itself
    value = [1.0, 0.7]        # the same for V
    seed = 0                  # of the random eigenvectors; or angle = 30.0, in degrees, between those of B and V
    # gap = 0.5 in place of interaction: the spectrum 1, 0.5, ..., 0.5
    # or query, key, value (, output, offset) as matrices, or file = "head.npz" with arrays of those names
    # several heads: [[head]] once for each

    [block]                   # optional: another member of the family, see `Block`
    norm = "pre"              # also kernel, causal, sequential, noise, noise_seed
    heads = 3                 # random heads of these spectra, with the seeds seed, seed + 1, ...
    perceptron = 64           # neurons of a random perceptron; also perceptron_seed, strength and activation

    [cloud]
    law = "graded"            # uniform, graded, fibonacci, equally_spaced, von_mises_fisher, mixture
    n = 1000                  # further keys are the arguments of that law
    # or file = "points.npy" (N×d), or "points.npz" with points and weights
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import tomllib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from metastable import block as family
from metastable import cloud as laws
from metastable.arrays import finite, inverse_temperature, positive, real, seeded, whole
from metastable.block import Block, Perceptron
from metastable.cloud import Cloud
from metastable.errors import BadInput, choice, suggestion
from metastable.head import MATRICES, Head

# The two ways to state the inverse temperature; a simulation has exactly one of them.
TEMPERATURES = ("beta", "gamma")
OPTIONS = ("tol", "t_eval", "method", "step", "engine", "merge", "radius")
RUN_KEYS = (*TEMPERATURES, "until", *OPTIONS)
HEAD_KEYS = ("interaction", "value", "gap", "angle", "seed", *MATRICES, "file")
# The keys of a head that `Problem.replace` changes; its `seed` is that of the cloud.
HEAD_CHANGES = ("gap", "angle", "interaction", "value")
TABLES = ("head", "cloud", "block")
# The keys of a random perceptron in a [block] table, and the arguments of `Perceptron.random` that they are.
PERCEPTRON_KEYS = {"perceptron_seed": "seed", "strength": "strength", "activation": "activation"}
BLOCK_KEYS = (*family.OPTIONS, "heads", "perceptron", *PERCEPTRON_KEYS)
LAWS: dict[str, Callable[..., Cloud]] = {
    "uniform": laws.uniform,
    "graded": laws.graded,
    "fibonacci": laws.fibonacci,
    "equally_spaced": laws.equally_spaced,
    "von_mises_fisher": laws.von_mises_fisher,
    "mixture": laws.mixture,
}


def law_parameters(law: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a law by name; BadInput for an unknown law."""
    return inspect.signature(LAWS[choice(law, "law", LAWS)]).parameters


SMALL = 64
"""The tokens of the small cloud on which `faults` tries a law."""
LAW_KEYS = ("law", *sorted({name for law in LAWS for name in law_parameters(law)} - {"head"}))
# The longest line of a program that `script` writes.
WIDEST = 110


@dataclass(frozen=True)
class Problem:
    """A simulation: `simulate(problem.block, problem.cloud, **problem.arguments)` computes it.

    Parameters
    ----------
    head_spec : a [head] table as in TOML (see the module), a list of such tables, or a Head
    cloud_spec : a [cloud] table as in TOML, or a Cloud
    beta : inverse temperature; inf is hardmax. None if gamma is given
    until : the time at which the simulation ends
    options : further arguments of `simulate`: tol, t_eval, method, step, engine, merge, radius
    gamma : β = γ log N for a cloud of N tokens, in place of beta
    block_spec : a [block] table as in TOML, or a Block, whose heads then replace `head_spec`

    The block and the cloud are built when they are asked for. `faults` lists everything that is wrong.

    Examples
    --------
    >>> table = {"interaction": [1.5, 0.6], "value": [1.0, 0.7], "angle": 30.0}
    >>> problem = Problem(table, {"law": "uniform", "n": 100}, beta=50.0, until=10.0)
    >>> problem.cloud
    Cloud(100 tokens, d=2, equal weights, float64, uniform)
    >>> problem.replace(beta=-1.0, n=0).faults()["n"]
    'n is 0; a cloud needs a whole number of tokens, 1 or more'
    """

    head_spec: Head | dict[str, Any] | list[dict[str, Any]]
    cloud_spec: Cloud | dict[str, Any]
    beta: float | None
    until: float
    options: dict[str, Any] = field(default_factory=dict)
    gamma: float | None = None
    block_spec: Block | dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> Problem:
        """A problem from the tables of a TOML file."""
        refuse_unknown(tables, (*RUN_KEYS, *TABLES), "the simulation")
        one_temperature(tables)
        if "until" not in tables:
            raise BadInput("until is missing; give it as a flag (--until) or in the TOML file")
        options = {key: tables[key] for key in OPTIONS if key in tables}
        head, cloud = tables.get("head", {}), tables.get("cloud", {})
        block = tables.get("block", {})
        return cls(head, cloud, tables.get("beta"), tables["until"], options, tables.get("gamma"), block)

    @classmethod
    def from_toml(cls, path: str | Path) -> Problem:
        """A problem from a TOML file; paths in the file are relative to its folder."""
        return cls.from_tables(read_toml(path))

    def replace(self, **changes: Any) -> Problem:
        """The same problem with other values: beta, gamma, until, an option, a key of the law, the head or the block.

        `beta` and `gamma` replace each other. `seed` is the seed of the cloud. `head`, `cloud` and `block` replace the
        whole specification.
        """
        fields: dict[str, Any] = {}
        block = changes.pop("block", self.block_spec)
        head, cloud, options = changes.pop("head", self.head_spec), changes.pop("cloud", self.cloud_spec), {}
        for name, value in changes.items():
            if name in TEMPERATURES:
                fields = {**dict.fromkeys(TEMPERATURES), **fields, name: value}
            elif name == "until":
                fields[name] = value
            elif name in OPTIONS:
                options[name] = value
            elif name in BLOCK_KEYS:
                if isinstance(block, Block):
                    raise BadInput(f"{name} cannot change a block that is given as weights; give its parts in a table")
                block = {**block, name: value}
            elif name in HEAD_CHANGES:
                if not isinstance(head, dict):
                    given = "as matrices" if isinstance(head, Head) else "as a list"
                    raise BadInput(f"{name} cannot change a head that is given {given}; give the head as spectra")
                head = {**head, name: value}
            else:
                refuse_unknown([name], (*LAW_KEYS, *RUN_KEYS, *HEAD_CHANGES, *BLOCK_KEYS), "the simulation")
                if isinstance(cloud, Cloud):
                    raise BadInput(f"{name} cannot change a cloud that is given as points; give the cloud as a law")
                cloud = {**cloud, name: value}
        options = {**self.options, **options}
        specs = {"head_spec": head, "cloud_spec": cloud, "block_spec": block}
        return dataclasses.replace(self, **specs, options=options, **fields)

    @cached_property
    def block(self) -> Block:
        if isinstance(self.block_spec, Block):
            return self.block_spec
        return build_block(self.block_spec, self.head_spec)

    @property
    def head(self) -> Head:
        """The first head of the block: the one that the law "graded" is graded for."""
        return self.block.heads[0]

    @cached_property
    def cloud(self) -> Cloud:
        return self.cloud_spec if isinstance(self.cloud_spec, Cloud) else build_cloud(self.cloud_spec, self.head)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `simulate` besides the block and the cloud."""
        given = {name: value for name in TEMPERATURES if (value := getattr(self, name)) is not None}
        return {**given, "until": self.until, **self.options}

    def faults(self) -> dict[str, str]:
        """What is wrong, one line for each field; empty if everything can be built. No large cloud is built.

        A fault of the block as a whole is under "head", one of the law under "law".
        """
        tables = [spec for spec in (self.head_spec, self.cloud_spec, self.block_spec) if isinstance(spec, dict)]
        found: dict[str, str] = {}

        def attempt(name: str, make: Callable[[], object]) -> None:
            try:
                make()
            except BadInput as error:
                found.setdefault(name, str(error))

        attempt("beta", lambda: one_temperature(self.arguments))
        for table in (self.arguments, *tables):
            for name, value in table.items():
                attempt(name, lambda name=name, value=value: check_value(name, value))  # type: ignore[misc]
        block = self.block_spec
        if not found and isinstance(block, dict):
            attempt("noise", lambda: family.strength(block.get("noise", 0.0), block.get("norm", "post")))
        if not found:
            attempt("head", lambda: self.block)
        if not found and isinstance(self.cloud_spec, dict):
            n = self.cloud_spec.get("n")
            small = {**self.cloud_spec, "n": min(n, SMALL)} if n else self.cloud_spec
            attempt("law", lambda: self._check_order(build_cloud(small, self.head)))
        if not found and self.beta == math.inf and self.block.kernel != "softmax":
            found["kernel"] = f"beta is inf and the kernel {self.block.kernel}; only softmax has a limit at beta = inf"
        return found

    def _check_order(self, cloud: Cloud) -> None:
        if self.block.causal and not cloud.equal_weights:
            raise BadInput("a causal mask needs tokens in an order, and tokens of unequal weight have none")

    def to_tables(self) -> dict[str, Any]:
        """The tables from which `from_tables` makes the same problem."""
        if isinstance(self.cloud_spec, Cloud):
            raise BadInput("a cloud that is given as points has no table; save the points and give their file")
        if isinstance(self.block_spec, Block):
            raise BadInput("a block that is given as weights has no table; save its run instead")
        head: Any = self.head_spec
        if isinstance(head, Head):
            head = {name: part.tolist() for name, part in head.matrices.items()}
        head = dict(head) if isinstance(head, dict) else [dict(table) for table in head]
        block = {"block": dict(self.block_spec)} if self.block_spec else {}
        return {**self.arguments, "head": head, "cloud": dict(self.cloud_spec), **block}

    def to_toml(self) -> str:
        """The text of a TOML file from which `from_toml` makes the same problem."""
        tables = self.to_tables()
        parts = {name: tables.pop(name) for name in TABLES if name in tables}
        lines = [f"{key} = {_toml(value)}" for key, value in tables.items()]
        for name, part in parts.items():
            several = isinstance(part, list)
            for table in part if several else [part]:
                title = f"[[{name}]]" if several else f"[{name}]"
                lines += ["", title, *(f"{key} = {_toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"

    def script(self, about: str = "A simulation.") -> str:
        """A Python program that computes the run, saves it as run.zarr and writes its report to run.html."""
        return script([self], about)


def read_toml(path: str | Path, further: Iterable[str] = ()) -> dict[str, Any]:
    """The tables of a TOML file with known keys only; `further` are keys that a simulation does not have."""
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {path}: {error}") from error
    refuse_unknown(tables, (*RUN_KEYS, *TABLES, *further), str(path))
    for name in TABLES:
        found = tables.get(name, {})
        several = found if name == "head" and isinstance(found, list) else [found]
        for table in several:
            if not isinstance(table, dict):
                raise BadInput(f"{path}: {name} must be a table, [{name}]")
            if "file" in table:
                if not isinstance(table["file"], str):
                    raise BadInput(f"file is {table['file']!r}; it must be a path in quotes")
                table["file"] = str(path.parent / table["file"])
    return tables


def one_temperature(given: Container[str]) -> None:
    """Raise BadInput unless exactly one of the names beta and gamma is given."""
    if all(name in given for name in TEMPERATURES):
        raise BadInput("both beta and gamma are given; gamma means beta = gamma log N: give one of them")
    if not any(name in given for name in TEMPERATURES):
        raise BadInput("beta is missing; give beta, or gamma for beta = gamma log N")


def log_scaling(gamma: Any) -> float:
    """γ of β = γ log N as a float in [0, ∞)."""
    rule = "it must be a finite number, 0 or more, for beta = gamma log N"
    return real(gamma, "gamma", rule, allowed=math.isfinite)


def resolved_beta(beta: Any, gamma: Any, n: int) -> float:
    """β itself, or β = γ log n for n tokens; BadInput unless exactly one of the two is given."""
    one_temperature([name for name, value in (("beta", beta), ("gamma", gamma)) if value is not None])
    if gamma is None:
        return inverse_temperature(beta)
    scaled = log_scaling(gamma) * math.log(n)
    if math.isinf(scaled):
        raise BadInput(
            f"gamma is {gamma!r}; gamma log N is too large for {n} tokens: give a smaller one, or beta = inf"
        )
    return scaled


CHECKS: dict[str, Callable[[Any], object]] = {
    "beta": inverse_temperature,
    "gamma": log_scaling,
    "n": laws.token_count,
    "seed": seeded,
    "kappa": laws.concentration,
    "law": lambda value: choice(value, "law", LAWS),
    "kernel": lambda value: choice(value, "kernel", family.KERNELS),
    "norm": lambda value: choice(value, "norm", family.NORMS),
    "activation": lambda value: choice(value, "activation", family.ACTIVATIONS),
    "heads": lambda value: whole(value, "heads", 1, "a block needs a whole number of heads, 1 or more"),
    "perceptron": lambda value: whole(value, "perceptron", 0, "it is a number of neurons, 0 or more"),
    "noise": family.strength,
}


def check_value(name: str, value: Any) -> None:
    """Raise BadInput for a value that no simulation can have under this name."""
    if name in CHECKS:
        CHECKS[name](value)
    elif name in ("until", "tol", "step", "merge"):
        positive(value, name)
    elif name in ("angle", "gap"):
        finite(value, name)


def build_block(table: Mapping[str, Any], heads: Head | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Block:
    """A block from a [block] table and a [head] table, several of them, or a head.

    heads : so many heads with the spectra of the [head] table; the i-th has the seed of the table plus i
    perceptron : the number of neurons of a random perceptron; see `Perceptron.random` for its other keys
    """
    refuse_unknown(table, BLOCK_KEYS, "[block]")
    for name, value in table.items():
        check_value(name, value)
    count = table.get("heads", 1)
    made: list[Head]
    if isinstance(heads, Head):
        made = [heads]
    elif isinstance(heads, Mapping):
        made = [build_head(one) for one in _with_seeds(heads, count)]
    else:
        made = [build_head(one) for one in heads]
    if "heads" in table and count != len(made):
        raise BadInput(f"heads is {count}, but {len(made)} heads are given one by one; leave heads out")
    options = {name: table[name] for name in family.OPTIONS if name in table}
    return Block(made, _perceptron(table, made[0].dim), **options)


def _with_seeds(table: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    if count == 1:
        return [dict(table)]
    if any(name in table for name in ("query", "key", "file", "angle")):
        raise BadInput(f"heads is {count}; several heads are drawn from spectra without an angle, or given one by one")
    return [{**table, "seed": table.get("seed", 0) + i} for i in range(count)]


def _perceptron(table: Mapping[str, Any], d: int) -> Perceptron | None:
    given = {new: table[old] for old, new in PERCEPTRON_KEYS.items() if old in table}
    if table.get("perceptron"):
        return Perceptron.random(d, table["perceptron"], **given)
    if given and "perceptron" not in table:
        first = next(name for name in PERCEPTRON_KEYS if name in table)
        raise BadInput(f"[block] has {first} but no perceptron; give its number of neurons (perceptron = 64)")
    return None


def build_head(table: Mapping[str, Any]) -> Head:
    """A head from a [head] table.

    gap : g makes the spectrum of B (1, 1 − g, …, 1 − g), as long as `value`. The gap of B is g, and so is that of
        M = V Bᵀ if V is the identity
    angle : see `Head.from_spectra`; without it the eigenvectors of B and V are random, drawn from `seed`
    """
    refuse_unknown(table, HEAD_KEYS, "[head]")
    if "file" in table:
        _allow(table, ("file",), "[head] with file")
        return _head_from_file(table["file"])
    if "query" in table or "key" in table:
        _require(table, ("query", "key", "value"), "[head]")
        _allow(table, MATRICES, "[head] with query and key")
        return Head(**table)
    given = _without_gap(table)
    _require(given, ("interaction", "value"), "[head]")
    interaction, value = given.pop("interaction"), given.pop("value")
    if "angle" in given:
        _allow(given, ("angle",), "[head] with angle")
        spectra_of_both = (_spectrum(interaction, "interaction", "angle"), _spectrum(value, "value", "angle"))
        return Head.from_spectra(*spectra_of_both, angle=finite(given["angle"], "angle"))
    spectra = [_is_flat(interaction, "interaction"), _is_flat(value, "value")]
    if all(spectra):
        _allow(given, ("seed",), "[head] with interaction")
        return Head.from_spectra(interaction, value, **given)
    if any(spectra):
        raise BadInput("[head] interaction and value must both be lists (spectra) or both be matrices")
    _allow(given, (), "[head] with matrices")
    return Head.from_interaction(interaction, value)


def build_cloud(table: Mapping[str, Any], head: Head) -> Cloud:
    """A cloud from a [cloud] table; d and head are filled in from the head."""
    if "file" in table:
        _allow(table, ("file",), "[cloud] with file")
        return cloud_from_file(table["file"])
    law = choice(table.get("law", "uniform"), "[cloud] law", LAWS)
    given = {key: value for key, value in table.items() if key != "law"}
    if given.pop("d", head.dim) != head.dim:
        raise BadInput(f"[cloud] d is {table['d']} but the head has d = {head.dim}; they must agree")
    wanted = law_parameters(law)
    filled = {name: value for name, value in (("d", head.dim), ("head", head)) if name in wanted}
    refuse_unknown(given, [name for name in wanted if name not in filled], f"[cloud] with law = {law!r}")
    _require({**given, **filled}, [n for n, p in wanted.items() if p.default is p.empty], f"[cloud] with law = {law!r}")
    return LAWS[law](**given, **filled)


def cloud_from_file(path: str) -> Cloud:
    """A cloud from a .npy file of points (N×d), or from a .npz file of points and weights."""
    arrays = _load_arrays(path)
    refuse_unknown(arrays, ("points", "weights"), path)
    _require(arrays, ("points",), path)
    return Cloud(arrays["points"], arrays.get("weights"))


def script(problems: Sequence[Problem], about: str, names: Sequence[str] = ("run", "other")) -> str:
    """A Python program that computes the runs of these problems; each is saved and has a report, under its name."""
    lines: list[str] = []
    for problem, name in zip(problems, names, strict=False):
        settings = ", ".join(f"{key}={_python(value)}" for key, value in problem.arguments.items())
        made = [*_head_lines(problem), f"cloud = {_cloud_line(problem)}"]
        # Lines that both runs share, such as those of the head, are written once.
        model = "head" if problem.block.plain else "block"
        lines += [*(line for line in made if line not in lines), f"{name} = ms.simulate({model}, cloud, {settings})"]
    used = names[: len(problems)]
    lines.append(f"print({', '.join(used)})")
    lines += [f'{name}.save("{name}.zarr")' for name in used]
    lines += [f'{name}.report("{name}.html")' for name in used]
    body = "\n".join(lines)
    imports = [f"import {module}\n" for module, mark in (("math", "math."), ("numpy as np", "np.")) if mark in body]
    return "\n".join([f'"""{about}"""', "", *imports, "import metastable as ms", "", body, ""])


def _head_lines(problem: Problem) -> list[str]:
    """Lines that make `head`, and `block` if the block is more than this head."""
    if isinstance(problem.block_spec, Block):
        raise BadInput("a block that is given as weights cannot be written as a program; save its run instead")
    spec, table = problem.head_spec, problem.block_spec
    specs: list[Any] = spec if isinstance(spec, list) else [spec]
    if isinstance(spec, dict):
        specs = _with_seeds(spec, table.get("heads", 1))
    found = [_lines_of_head(one, head) for one, head in zip(specs, problem.block.heads, strict=True)]
    if problem.block.plain:
        return found[0]
    lines, names = [], []
    for number, (*before, made) in enumerate(found):
        name = "head" if len(found) == 1 else f"head{number}"
        lines += [*before, made.replace("head =", f"{name} =", 1)]
        names.append(name)
    if (
        len(found) > 1
        and isinstance(problem.cloud_spec, dict)
        and "head" in law_parameters(problem.cloud_spec.get("law", "uniform"))
    ):
        lines.append("head = head0")
    parts = [f"[{', '.join(names)}]"]
    perceptron = {new: table[old] for old, new in PERCEPTRON_KEYS.items() if old in table}
    if problem.block.perceptron is not None:
        given = "".join(f", {name}={_python(value)}" for name, value in perceptron.items())
        lines.append(f"perceptron = ms.Perceptron.random({problem.block.dim}, {table['perceptron']}{given})")
        parts.append("perceptron")
    parts += [f"{name}={_python(table[name])}" for name in family.OPTIONS if name in table]
    return [*lines, f"block = ms.Block({', '.join(parts)})"]


def _lines_of_head(spec: Head | Mapping[str, Any], head: Head) -> list[str]:
    table = {} if isinstance(spec, Head) else _without_gap(spec)
    if "interaction" in table and _is_flat(table["interaction"], "interaction"):
        turned = f"angle={table['angle']!r}" if "angle" in table else f"seed={table.get('seed', 0)!r}"
        return [f"head = ms.Head.from_spectra({table['interaction']!r}, {table['value']!r}, {turned})"]
    if bool((head.query == torch.eye(head.dim)).all()) and head.output is None and head.offset is None:
        matrices, call = {"B": head.key, "V": head.value}, "ms.Head.from_interaction(B, V)"
    else:
        matrices = head.matrices
        call = f"ms.Head({', '.join(f'{name}={name}' for name in matrices)})"
    return [*(f"{name} = {_rows(part.tolist())}" for name, part in matrices.items()), f"head = {call}"]


def _cloud_line(problem: Problem) -> str:
    if isinstance(problem.cloud_spec, Cloud):
        raise BadInput("a cloud that is given as points cannot be written as a program; save the points to a file")
    table = {"law": "uniform", **problem.cloud_spec}
    if "file" in table:
        stars = "**" if str(table["file"]).endswith(".npz") else ""
        return f"ms.Cloud({stars}np.load({table['file']!r}))"
    given = {"d": str(problem.head.dim), "head": "head"} | {name: _python(value) for name, value in table.items()}
    return f"ms.{table['law']}({', '.join(f'{n}={given[n]}' for n in law_parameters(table['law']) if n in given)})"


def _rows(matrix: list[Any]) -> str:
    if len(repr(matrix)) <= WIDEST:
        return repr(matrix)
    return "\n".join(["[", *(f"    {row!r}," for row in matrix), "]"])


def _python(value: Any) -> str:
    if isinstance(value, float) and math.isinf(value):
        return "math.inf"
    if isinstance(value, list) and len(value) > 3 and all(item == value[0] for item in value):
        return f"[{value[0]!r}] * {len(value)}"
    return repr(value)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON writes strings, booleans and finite numbers as TOML does.
    return str(value) if isinstance(value, float) else json.dumps(value)


def _without_gap(table: Mapping[str, Any]) -> dict[str, Any]:
    """A [head] table with the spectrum of B that `gap` stands for."""
    given = dict(table)
    if "gap" in given:
        if "interaction" in given:
            raise BadInput("[head] has both gap and interaction; gap makes the interaction 1, 1 − gap, …: give one")
        _require(given, ("value",), "[head]")
        count = len(_spectrum(given["value"], "value", "gap"))
        given["interaction"] = [1.0] + [1.0 - finite(given.pop("gap"), "gap")] * (count - 1)
    return given


def _spectrum(value: Any, name: str, because: str) -> list[float]:
    numbers = isinstance(value, (list, tuple)) and all(
        isinstance(number, (int, float)) and not isinstance(number, bool) for number in value
    )
    if not numbers or len(value) < 2:
        raise BadInput(f"[head] {name} is {value!r}; {because} needs a list of d ≥ 2 numbers there, a spectrum")
    return [float(number) for number in value]


def _head_from_file(path: str) -> Head:
    arrays = _load_arrays(path)
    refuse_unknown(arrays, (*MATRICES, "interaction"), path)
    if "interaction" in arrays:
        _require(arrays, ("value",), path)
        return Head.from_interaction(arrays["interaction"], arrays["value"])
    _require(arrays, ("query", "key", "value"), path)
    return Head(**arrays)


def _load_arrays(path: str) -> dict[str, np.ndarray]:
    try:
        loaded = np.load(path, allow_pickle=False)
        return {"points": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise BadInput(f"cannot read {path} as a .npy or .npz file: {error}") from error


def refuse_unknown(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise BadInput for the first name that is not known, with the closest known name."""
    names = list(known)
    for key in given:
        if key not in names:
            raise BadInput(f"{where}: unknown key {key!r}; {suggestion(key, names)}")


def _allow(table: Iterable[str], allowed: Iterable[str], where: str) -> None:
    for key in table:
        if key not in allowed:
            raise BadInput(f"{where} does not take {key}; remove it")


def _require(table: Iterable[str], keys: Iterable[str], where: str) -> None:
    missing = [key for key in keys if key not in table]
    if missing:
        raise BadInput(f"{where} needs {', '.join(missing)}")


def _is_flat(value: Any, name: str) -> bool:
    if not isinstance(value, (list, tuple)) or not value:
        raise BadInput(f"[head] {name} is {value!r}; give a list of numbers or a matrix")
    return not isinstance(value[0], (list, tuple))
