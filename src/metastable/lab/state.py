"""The state of the page: its fields with their readers, defaults and limits, and the simulations they describe.

A state is written in three forms, and each form restores it exactly: the texts of the page's fields, the query of a
link, and `State` itself. A text that cannot be read is kept in `State.unread`, and `problems` says what to enter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, get_origin, get_type_hints
from urllib.parse import parse_qsl, urlencode

from metastable.block import KERNELS, NORMS
from metastable.errors import BadInput
from metastable.lab.encoders import MOST_TEXTS, TEXTS, EncoderCache
from metastable.lab.matrices import parse_matrices
from metastable.problem import Problem

LAWS = {
    "uniform": "uniform",
    "graded": "graded weights",
    "fibonacci": "Fibonacci lattice (d = 3)",
    "equally_spaced": "equally spaced (d = 2)",
    "von_mises_fisher": "one von Mises–Fisher cluster",
    "mixture": "three clusters",
    "tokens": "tokens of the encoder",
}
"""Initial laws and their labels."""
TRAINED_LAWS = ("tokens", "uniform")
"""Initial laws for a head of a trained encoder."""
LAW_DIMENSION = {"fibonacci": 3, "equally_spaced": 2}
"""Laws that exist in one dimension only."""
COMPARISONS = {
    "": "one run only",
    "beta": "two temperatures β",
    "n": "two numbers of tokens N",
    "weights": "equal and graded weights",
}
"""What two runs may differ in, with labels."""
MASKS = {"no": "all tokens", "yes": "earlier tokens only (causal)"}
"""Whether attention is causal, with labels."""
MOST_HEADS, MOST_NEURONS = 8, 256
DIMENSIONS = (2, 32)
MOST_TOKENS = 20_000
LARGEST_SEED = 2**53 - 1
"""The largest integer that JavaScript represents exactly."""
LONGEST_QUERY = 250_000
"""The largest number of characters of a link's query."""
FRAMES_BYTES = 64 * 2**20
"""The memory for the frames of one run. A tab keeps several arrays of this size."""
ALL_FRAMES, FEW_FRAMES, FEWEST_FRAMES = 101, 51, 21
MANY_TOKENS = 2000
"""Runs with more tokens and runs of trained heads save few frames: each saved time ends a step, and steps are slow."""
TOLERANCE_OF_MANY = 1e-5
"""The tolerance of runs with more tokens than that: two samples of that size differ by a thousand times as much."""
MOST_NUMBERS = FRAMES_BYTES // (8 * FEWEST_FRAMES)
"""The largest N·d."""


class FieldReader(NamedTuple):
    """How to read the text of a field: `read` raises ValueError if the text is wrong, and `hint` says what to enter."""

    read: Callable[[str], Any]
    hint: str = ""


def _number(kind: Callable[[str], Any], low: float, high: float, limits: str = "") -> FieldReader:
    limits = limits or f"from {low} to {high}".replace("-", "\u2212")
    hint = f"enter {'a whole number' if kind is int else 'a number'} {limits}"
    return FieldReader(lambda text: _within(kind(text), low, high), hint)


def _choice(names: Iterable[str]) -> FieldReader:
    known = {name: name for name in names}
    return FieldReader(known.__getitem__, f"choose one of {', '.join(known).strip(', ').replace('_', ' ')}")


def _within(value: Any, low: float, high: float) -> Any:
    if not low <= value <= high:
        raise ValueError
    return value


def _real(text: str) -> float:
    return float(text.replace("\u2212", "-").replace("∞", "inf"))


def _beta(text: str) -> float:
    value = _real(text)
    return value if value == math.inf else _within(value, 0.0, 1e6)


def _eigenvalues(text: str) -> tuple[float, ...]:
    return tuple(_within(_real(part), -100.0, 100.0) for part in re.split(r"[\s,;]+", text.strip(" ,;")))


def _pair(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    layer, head = map(int, text.split(","))
    return layer, head


EIGENVALUES = FieldReader(_eigenvalues, "enter numbers from −100 to 100, as 1.5, 1.0, 0.6")


@dataclass(frozen=True)
class State:
    """The state of the page: its fields with their readers and defaults. Those up to `until` describe a simulation.

    d, interaction, value, angle : see `Head.from_spectra`
    matrices : B and V, see `parse_matrices`; replaces the four above
    trained : MODEL:layer:head; replaces the five above, and one unit of time is one layer
    heads : the number of heads; the first is the head above, further ones have its spectra and random axes
    kernel, causal, norm, perceptron, noise : the other parts of a block, see `Block` and `problem.build_block`
    law, n, seed : the initial law of the tokens, see `LAWS`
    beta : inverse temperature; inf is hardmax
    until : the horizon
    compare, other : a second run with another β or N, or with graded weights (see `COMPARISONS`); `other` is the text
        of the second β or N
    view : "laboratory" or "audit"
    model, corpus, twin, column, head, sample : of the audit: its model and its texts, one on a line, whether the random
        twin is shown, the column of the table, (layer, head), and the number of the text that a head is shown on
    time : the position of the time slider
    unread : (name, text) of each field whose text cannot be read; the field itself has its default value
    """

    d: Annotated[int, _number(int, *DIMENSIONS)] = 3
    interaction: Annotated[tuple[float, ...], EIGENVALUES] = (1.5, 1.0, 0.6)
    value: Annotated[tuple[float, ...], EIGENVALUES] = (1.2, 0.9, 0.5)
    angle: Annotated[float, _number(_real, -360, 360)] = 35.0
    matrices: Annotated[str, FieldReader(str, "paste B, an empty line, and V")] = ""
    trained: Annotated[str, FieldReader(str, "enter MODEL:layer:head")] = ""
    heads: Annotated[int, _number(int, 1, MOST_HEADS)] = 1
    kernel: Annotated[str, _choice(KERNELS)] = "softmax"
    causal: Annotated[str, _choice(MASKS)] = "no"
    norm: Annotated[str, _choice(NORMS)] = "post"
    perceptron: Annotated[int, _number(int, 0, MOST_NEURONS)] = 0
    noise: Annotated[float, _number(_real, 0, 10)] = 0.0
    law: Annotated[str, _choice(LAWS)] = "uniform"
    n: Annotated[int, _number(int, 1, MOST_TOKENS)] = 1000
    seed: Annotated[int, _number(int, 0, LARGEST_SEED)] = 0
    beta: Annotated[float, FieldReader(_beta, "enter a number from 0 to 1000000, or inf")] = 100.0
    until: Annotated[float, _number(_real, math.ulp(0.0), 1000, "above 0, at most 1000")] = 15.0
    compare: Annotated[str, _choice(COMPARISONS)] = ""
    other: Annotated[str, FieldReader(str)] = ""
    view: Annotated[str, _choice(("laboratory", "audit"))] = "laboratory"
    model: Annotated[str, FieldReader(str)] = ""
    corpus: Annotated[str, FieldReader(str)] = "\n".join(TEXTS)
    twin: Annotated[str, _choice(("yes", "no"))] = "yes"
    column: Annotated[str, FieldReader(str)] = ""
    head: Annotated[tuple[int, int] | None, FieldReader(_pair, "enter a layer and a head, as 3,7")] = None
    sample: Annotated[int, _number(int, 0, MOST_TEXTS - 1)] = 0
    time: Annotated[float, _number(_real, 0, 1000)] = 0.0
    theme: Annotated[str, _choice(("light", "dark"))] = "light"
    unread: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> State:
        """The state with these texts in its fields. Other names are ignored."""
        found: dict[str, Any] = {}
        unread: list[tuple[str, str]] = []
        for name, spec in FIELDS.items():
            if name in texts:
                try:
                    found[name] = spec.read(texts[name])
                except (ValueError, KeyError, OverflowError):
                    unread.append((name, texts[name]))
        return cls(**found, unread=tuple(unread))

    def texts(self) -> dict[str, str]:
        return {name: _written(getattr(self, name)) for name in FIELDS} | dict(self.unread)

    @classmethod
    def from_query(cls, query: str) -> State:
        """The state of a link, with or without its question mark.

        Eigenvalues that it does not give fit its d, and a second value that it does not give is that of the page.
        """
        try:
            if len(query) > LONGEST_QUERY:
                raise ValueError
            texts = dict(parse_qsl(query.removeprefix("?"), keep_blank_values=True))
            return cls.from_texts({**_spectra_of(texts.get("d", "")), **_other_of(texts), **texts})
        except ValueError as error:
            raise BadInput("the link is too long; the page shows its defaults") from error

    def to_query(self) -> str:
        """The state as `name=value&…`: only the fields that differ from their defaults.

        >>> State(d=2, interaction=(1.5, 0.6), value=(1.2, 0.9), beta=math.inf, compare="n", other="500").to_query()
        'd=2&interaction=1.5,0.6&beta=inf&compare=n&other=500'
        """
        texts = self.texts()
        defaults = State().texts() | _spectra_of(texts["d"]) | _other_of(texts)
        pairs = [(name, text) for name, text in texts.items() if text != defaults[name]]
        return urlencode(pairs, safe=",:/", errors="replace")

    @classmethod
    def from_page(cls, given: Mapping[str, Any]) -> State:
        """The state of the page's fields. Only the chosen source of the head counts, and its field must be filled."""
        texts = {name: str(given[name] or "").strip() for name in FIELDS if name in given}
        source = given.get("source")
        texts |= {name: "" for name in ("matrices", "trained") if name != source}
        if texts.get("compare") not in ("beta", "n"):
            texts["other"] = ""
        state = cls.from_texts(texts)
        if source in ("matrices", "trained") and not getattr(state, source):
            state = replace(state, unread=(*state.unread, (source, "")))
        return state

    def to_page(self) -> dict[str, str]:
        """The texts for the page's fields: `from_page` restores this state from them."""
        texts = {name: text for name, text in self.texts().items() if name not in ("time", "theme")}
        # Buttons and lists set these, so a user could not correct them.
        texts |= {name: _written(getattr(self, name)) for name in ("view", "head", "twin", "sample")}
        lists = {name: texts[name].replace(",", ", ") for name in ("interaction", "value")}
        return {**texts, **lists, "source": self.source}

    @property
    def source(self) -> str:
        """How the head is given: "trained", "matrices" or "spectra"."""
        return next((name for name in ("trained", "matrices") if getattr(self, name)), "spectra")

    @property
    def address(self) -> tuple[str, int, int]:
        """(model, layer, head) of a trained head."""
        from metastable.encoder.trained_head import parse_address

        return parse_address(self.trained)

    def runs(self) -> list[State]:
        """The states of the runs to show: one, or the two to compare. They differ from this state in nothing else."""
        first = replace(self, **{name: getattr(State(), name) for name in VIEW_FIELDS})
        if self.compare == "weights":
            return [first, replace(first, law="graded")]
        if self.compare in ("beta", "n"):
            return [first, State.from_texts({**first.texts(), self.compare: self.other})]
        return [first]

    @property
    def key(self) -> str:
        """A text that is the same for two states if and only if they have the same runs."""
        return " ".join(run.to_query() for run in self.runs())


FIELDS: dict[str, FieldReader] = {
    name: kind.__metadata__[0]
    for name, kind in get_type_hints(State, include_extras=True).items()
    if get_origin(kind) is Annotated
}
"""All fields of the page and of a link."""
VIEW_FIELDS = (
    *("compare", "other", "view", "time", "theme"),
    *("model", "corpus", "twin", "column", "head", "sample"),
)
"""The fields that do not describe a simulation."""


def _spectra_of(d: str) -> dict[str, str]:
    """The texts of the default eigenvalues for the dimension in a text; none if it is no dimension.

    The last eigenvalues are left out, or 0.8 times the last one is appended, as the page does when d is typed.
    """
    try:
        dim = FIELDS["d"].read(d)
    except ValueError:
        return {}
    found = {}
    for name in ("interaction", "value"):
        numbers = list(getattr(State(), name))
        while len(numbers) < dim:
            numbers.append(float(f"{0.8 * numbers[-1]:.3g}"))
        found[name] = _written(tuple(numbers[:dim]))
    return found


def _other_of(texts: Mapping[str, str]) -> dict[str, str]:
    """The text of the second value where two temperatures or two numbers of tokens are compared.

    It is a tenth of β or a quarter of N, or a larger value if these are small, as on the page where the comparison is
    chosen. A value that cannot be read has no second value.
    """
    compare = texts.get("compare")
    if compare not in ("beta", "n"):
        return {}
    try:
        first = FIELDS[compare].read(texts.get(compare, _written(getattr(State(), compare))))
    except (ValueError, OverflowError):
        return {}
    if compare == "n":
        return {"other": str((first + 2) // 4 if first > 400 else 1000)}
    return {"other": _written(float(f"{min(first, 1e6) / 10:.3g}")) if first > 10 else "100"}


def problems(state: State) -> dict[str, str]:
    """The error message of each wrong field; empty if the runs can start. No model is loaded."""
    first, *others = state.runs()
    found = _problems(first)
    if state.compare == "weights" and state.law != "uniform":
        found.setdefault("compare", "equal and graded weights are compared for the uniform law; choose it")
    for other in others:
        new = [line for name, line in _problems(other).items() if name not in found]
        if new:
            found["compare" if state.compare == "weights" else "other"] = new[0]
    return found


def check(state: State) -> None:
    """Raise BadInput if a field is wrong."""
    for name, line in problems(state).items():
        raise BadInput(f"{name}: {line}")


def _problems(state: State) -> dict[str, str]:
    """`problems` of a state with one run."""
    found = {name: f"{_shown(text)}: {FIELDS[name].hint}" for name, text in state.unread}
    known = [law for law in LAWS if law != "tokens"]
    try:
        if state.source == "trained":
            state.address  # noqa: B018  (raises BadInput)
            known = list(TRAINED_LAWS)
            for name in (*_block(state), *(["heads"] if state.heads > 1 else [])):
                found.setdefault(name, "a trained head is followed alone; use eigenvalues or matrices for a block")
            if state.n < 2:
                found.setdefault("n", "a trained head needs at least 2 tokens")
        else:
            _check_size(state, found)
    except BadInput as error:
        found.setdefault(state.source, str(error))
    if state.law not in known:
        found.setdefault("law", f"{state.law}: {_choice(known).hint}")
    if not found and state.source != "trained":
        # For example: graded tokens of a head without a dominant direction.
        wrong = problem_of(state).faults()
        # The field "head" is that of the audit, and eigenvalues have two fields.
        source = "matrices" if state.source == "matrices" else "interaction"
        found |= {name if name in FIELDS and name != "head" else source: line for name, line in wrong.items()}
    return found


def _check_size(state: State, found: dict[str, str]) -> None:
    """Add to `found` what the dimension of the head rules out."""
    dim, (low, high) = _dimension(state), DIMENSIONS
    if not low <= dim <= high:
        found.setdefault("matrices", f"B and V are {dim}×{dim}; the size must be from {low} to {high}")
    if state.source == "matrices" and state.heads > 1:
        found.setdefault("heads", "pasted matrices are one head; enter 1, or give eigenvalues")
    for name in ("interaction", "value") if state.source == "spectra" and "d" not in found else ():
        count = len(getattr(state, name))
        if count != dim:
            found.setdefault(name, f"{count} given, but d = {dim} needs {dim}")
    if state.n * dim > MOST_NUMBERS:
        found.setdefault("n", f"at most {MOST_NUMBERS // dim} tokens fit into memory for d = {dim}")
    if LAW_DIMENSION.get(state.law, dim) != dim:
        found.setdefault("law", f"{state.law.replace('_', ' ')} needs d = {LAW_DIMENSION[state.law]}, but d is {dim}")


def _dimension(state: State) -> int:
    """d of a head that is not trained."""
    return len(parse_matrices(state.matrices)[0]) if state.source == "matrices" else state.d


def problem_of(state: State, encoders: EncoderCache | None = None, frames: int = ALL_FRAMES) -> Problem:
    """The simulation of a state with one run, with at most so many frames. A trained head is loaded."""
    count = min(_frames(state), frames)
    options: dict[str, Any] = {} if count == ALL_FRAMES else {"t_eval": count}
    beta, until = float(state.beta), float(state.until)
    if state.source == "trained":
        from metastable.encoder.trained_head import prepare

        texts = TEXTS if state.law == "tokens" else None
        encoder = (encoders or EncoderCache()).load(state.address[0])
        ready = prepare(state.trained, texts, state.law, state.n, until, beta, seed=state.seed, encoder=encoder)
        if ready.head.dim * len(ready.cloud) > MOST_NUMBERS:
            fewer = f"use at most {MOST_NUMBERS // ready.head.dim} tokens"
            raise BadInput(f"{len(ready.cloud)} tokens in d = {ready.head.dim} need too much memory; {fewer}")
        return ready.replace(**options)
    if state.n > MANY_TOKENS:
        options["tol"] = TOLERANCE_OF_MANY
    cloud = {"law": state.law, "n": state.n, **_law_arguments(state)}
    head: Any
    if state.source == "matrices":
        B, V = parse_matrices(state.matrices)
        head = {"interaction": B, "value": V}
    else:
        spectra = {"interaction": list(state.interaction), "value": list(state.value)}
        head = {**spectra, "angle": state.angle}
        if state.heads > 1:
            head = [head, *({**spectra, "seed": number} for number in range(1, state.heads))]
    return Problem(head, cloud, beta, until, options, block_spec=_block(state))


def _block(state: State) -> dict[str, Any]:
    """The [block] table of a state: what differs from the model of the paper, besides the number of heads."""
    plain = State()
    names = [name for name in ("kernel", "norm", "perceptron", "noise") if getattr(state, name) != getattr(plain, name)]
    causal = {"causal": True} if state.causal == "yes" else {}
    return {**{name: getattr(state, name) for name in names}, **causal}


def common_frames(states: Sequence[State]) -> int:
    """The number of frames for runs that are compared: one time slider moves them all."""
    return min(map(_frames, states))


def _law_arguments(state: State) -> dict[str, Any]:
    """The arguments of an initial law besides n, d and the head.

    von Mises–Fisher: mean direction (1, …, 1), κ = 2d. Mixture: proportions ½, 3/10, 1/5 around three directions with
    coordinates ±1, which are orthogonal if 4 divides d, κ = 4d.
    """
    d, seed = _dimension(state), {"seed": state.seed}
    if state.law == "von_mises_fisher":
        return {"mean": [1.0] * d, "kappa": 2.0 * d, **seed}
    if state.law == "mixture":
        signs = ([1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0], [-1.0, -1.0, 1.0, 1.0])
        means = [[pattern[i % 4] for i in range(d)] for pattern in signs]
        return {"means": means, "kappas": 4.0 * d, "proportions": [0.5, 0.3, 0.2], **seed}
    return {} if state.law in LAW_DIMENSION else seed


def _frames(state: State) -> int:
    """The number of frames of a run: fewer where they would take long or much memory."""
    if state.source == "trained":
        return FEW_FRAMES
    count = FEW_FRAMES if state.n > MANY_TOKENS else ALL_FRAMES
    return min(count, FRAMES_BYTES // (8 * state.n * _dimension(state)))


def _written(value: Any) -> str:
    """The shortest text from which the same value is read."""
    if isinstance(value, tuple):
        return ",".join(_written(part) for part in value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return "" if value is None else str(value)


def _shown(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line[:30] + "…" * (len(one_line) > 30) or "empty"
