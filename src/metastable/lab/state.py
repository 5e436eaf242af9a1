"""The whole page as one value: what a link restores, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from metastable.lab.controls import Controls, cloud_of, head_of
from metastable.lab.problems import controls_problems

__all__ = ["Controls", "State", "cloud_of", "head_of", "problems", "second"]

COMPARED = {"": "", "beta": "second β", "n": "second N", "weights": ""}
"""What two runs may differ in, and what the field `other` then is."""
VIEWS = ("laboratory", "audit")
THEMES = ("light", "dark")
LONGEST_QUERY = 250_000


@dataclass(frozen=True)
class State:
    """All that is to be seen on the page.

    controls : the run; with `compare` the first of two
    compare, other : "beta" or "n" with the second β or N, or "weights": equal weights against graded ones
    view : "laboratory" or "audit"; model, column and head (layer, head) are those of the audit
    time : where the slider stands
    unread : what a link said that could not be read, (field, line) each; the field has its default then
    """

    controls: Controls = field(default_factory=Controls)
    compare: str = ""
    other: float | None = None
    view: str = "laboratory"
    model: str = ""
    column: str = ""
    head: tuple[int, int] | None = None
    time: float = 0.0
    theme: str = "light"
    unread: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def to_query(self) -> str:
        """The state as `name=value&…`, without a question mark: what differs from the default, exactly.

        >>> State(Controls(d=2, interaction=(1.5, 0.6), beta=math.inf), compare="n", other=500).to_query()
        'd=2&interaction=1.5,0.6&beta=inf&compare=n&other=500'
        """
        said, usual = _flat(self), _flat(State())
        pairs = [(name, _written(value)) for name, value in said.items() if value != usual[name]]
        return urlencode(pairs, safe=",:/", errors="replace")

    @classmethod
    def from_query(cls, query: str) -> State:
        """The state that a link says, with or without its question mark. Names that are not known do not count."""
        try:
            if len(query) > LONGEST_QUERY:
                raise ValueError
            given = dict(parse_qsl(query.removeprefix("?"), keep_blank_values=True))
        except ValueError:
            return cls(unread=(("link", "the link is too long to be read; the page shows its defaults"),))
        unread: list[tuple[str, str]] = []
        found: dict[str, Any] = {}
        for name, reader in READERS.items():
            if name in given:
                try:
                    found[name] = reader(given[name])
                except (ValueError, OverflowError):
                    shown = given[name] if len(given[name]) <= 30 else f"{given[name][:30]}…"
                    unread.append((name, f"the link says {shown!r}, which cannot be read"))
        own = {name: found.pop(name) for name in CONTROLS if name in found}
        return cls(controls=Controls(**own), **found, unread=tuple(unread))


CONTROLS = tuple(f.name for f in fields(Controls))


def problems(of: Controls | State) -> dict[str, str]:
    """Field → one line on what is wrong with it; empty if all is well.

    Of a state also: what its link could not say ("link" stands for the whole of it), and what is wrong with the second
    run, beside `other` or `compare`.
    """
    if isinstance(of, Controls):
        return controls_problems(of)
    own = controls_problems(of.controls)
    return {**_comparison(of, own), **own, **dict(of.unread)}


def _comparison(state: State, own: dict[str, str]) -> dict[str, str]:
    if state.compare not in COMPARED:
        return {"compare": f"choose one of {', '.join(name for name in COMPARED if name)}, or nothing"}
    if state.compare == "weights" and state.controls.law != "uniform":
        return {"compare": "equal against graded weights: the law must be uniform, and the second run is graded"}
    beside = "other" if COMPARED[state.compare] else "compare"
    other = second(state)
    if other is None:
        return {} if not state.compare else {"other": f"give the {COMPARED[state.compare]}"}
    new = {name: line for name, line in controls_problems(other).items() if name not in own}
    return {beside: next(iter(new.values()))} if new else {}


def second(state: State) -> Controls | None:
    """The run to show beside the first, None if there is none or nothing to tell them apart."""
    if state.compare == "weights":
        return replace(state.controls, law="graded")
    if state.other is None or not COMPARED.get(state.compare):
        return None
    if state.compare == "beta":
        return replace(state.controls, beta=state.other)
    whole = math.isfinite(state.other) and state.other == int(state.other)
    # What is no whole number is refused later, by its own line.
    return replace(state.controls, n=int(state.other) if whole else state.other)  # type: ignore[arg-type]


def _flat(state: State) -> dict[str, Any]:
    own = {name: getattr(state.controls, name) for name in CONTROLS}
    rest = {f.name: getattr(state, f.name) for f in fields(state) if f.name not in ("controls", "unread")}
    return {**own, **rest}


def _written(value: Any) -> str:
    """The shortest text from which the same value is read."""
    if isinstance(value, tuple | list):
        return ",".join(_written(part) for part in value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return "" if value is None else str(value)


def _float(text: str) -> float:
    return float(text.replace("\u2212", "-").replace("∞", "inf"))


def _floats(text: str) -> tuple[float, ...]:
    return tuple(_float(part) for part in text.split(",")) if text else ()


def _int(text: str) -> int:
    return int(text)


def _pair(text: str) -> tuple[int, int]:
    first, second = (int(part) for part in text.split(","))
    return first, second


def _finite(text: str) -> float:
    found = _float(text)
    if not math.isfinite(found):
        raise ValueError
    return found


def _optional(reader: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: reader(text) if text else None


def _one_of(known: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise ValueError
        return text

    return read


READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("d", "n", "seed"), _int),
    **dict.fromkeys(("interaction", "value"), _floats),
    **dict.fromkeys(("angle", "beta", "until"), _float),
    **dict.fromkeys(("matrices", "trained", "law", "compare", "model", "column"), str),
    "other": _optional(_float),
    "view": _one_of(VIEWS),
    "head": _optional(_pair),
    "time": _finite,
    "theme": _one_of(THEMES),
}
"""How each field of a link is read."""
