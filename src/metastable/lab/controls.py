"""Everything that decides a run on the page, and the call of `simulate` that it stands for.

A head is given in one of three ways: by eigenvalues, by pasted matrices, or as MODEL:layer:head of a trained encoder.
By eigenvalues b and v and an angle φ it is, with R the rotation by φ in the plane of the first two axes, the other
axes fixed,

    B = diag(b),     V = R diag(v) Rᵀ,     R = [cos φ  −sin φ; sin φ  cos φ] ⊕ I.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import problem as configuration
from metastable.cloud import Cloud
from metastable.errors import BadInput
from metastable.head import Head
from metastable.lab.matrices import parse_matrices
from metastable.lab.trained import TEXTS, encoder

if TYPE_CHECKING:
    from metastable.problem import Problem

LAWS = {
    "uniform": "random, everywhere alike",
    "graded": "weighted, crowded where the plateau is decided",
    "fibonacci": "an even lattice (d = 3)",
    "equally_spaced": "evenly around the circle (d = 2)",
    "von_mises_fisher": "random, around one direction",
    "mixture": "random, around three directions",
    "tokens": "a trained encoder's own tokens",
}
"""The starting laws, with a word on each."""
OF_A_TRAINED_HEAD = ("tokens", "uniform")
FRAMES_BYTES = 64 * 2**20
ALL_FRAMES, FEW_FRAMES, FEWEST_FRAMES = 101, 51, 21
MANY_TOKENS = 2000
"""With more tokens, and for a trained head, few frames: a step ends at every saved time, and steps are dear then."""
MOST_NUMBERS = FRAMES_BYTES // (8 * FEWEST_FRAMES)
"""The largest N·d: a page keeps several runs in memory, each with the frames at zero temperature beside its own."""


@dataclass(frozen=True)
class Controls:
    """Everything that decides a run, and nothing else.

    d, interaction, value, angle : dimension, eigenvalues of B and of V, degrees between their frames (see above)
    matrices : B and V themselves, see `parse_matrices`; then the four above do not count
    trained : MODEL:layer:head; then neither those nor `matrices` count, and a unit of time is a layer
    law, n, seed : where the tokens start, see `LAWS`
    beta : inverse temperature; inf is hardmax
    until : the horizon
    """

    d: int = 3
    interaction: tuple[float, ...] = (1.5, 1.0, 0.6)
    value: tuple[float, ...] = (1.2, 0.9, 0.5)
    angle: float = 35.0
    matrices: str = ""
    trained: str = ""
    law: str = "uniform"
    n: int = 1000
    seed: int = 0
    beta: float = 100.0
    until: float = 15.0


@dataclass(frozen=True)
class Call:
    """`simulate(head, cloud, **arguments)`."""

    head: Head
    cloud: Cloud
    arguments: dict[str, Any]


def call_of(controls: Controls, most: int = ALL_FRAMES) -> Call:
    """What `simulate` is called with, with at most so many frames; a model is loaded if there is one."""
    if controls.trained:
        ready = _follow(controls)
        head, cloud = ready.head, ready.cloud
    else:
        head = head_of(controls)
        cloud = cloud_of(controls, head)
    if head.dim * len(cloud) > MOST_NUMBERS:
        fewer = f"take at most n = {MOST_NUMBERS // head.dim}"
        raise BadInput(f"{len(cloud)} tokens in d = {head.dim} need too much memory for a page; {fewer}")
    return Call(head, cloud, arguments(controls, None if controls.trained else head.dim, most))


def head_of(controls: Controls) -> Head:
    if controls.trained:
        return _follow(controls).head
    if controls.matrices:
        return Head.from_interaction(*parse_matrices(controls.matrices))
    # `scripts` writes the same steps into its program, so that both have the same bits.
    B, angle, R = np.diag(np.array(controls.interaction, dtype=float)), np.radians(controls.angle), np.eye(controls.d)
    R[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return Head.from_interaction(B, R @ np.diag(np.array(controls.value, dtype=float)) @ R.T)


def cloud_of(controls: Controls, head: Head | None = None) -> Cloud:
    if controls.trained:
        return _follow(controls).cloud
    head = head or head_of(controls)
    return configuration.build_cloud({"law": controls.law, **law_arguments(controls, head.dim)}, head)


def law_arguments(controls: Controls, d: int) -> dict[str, Any]:
    """What a law is called with on the page, but for d and the head: the one place where it is written.

    von Mises-Fisher: around (1, …, 1), κ = 2d. Mixture: shares ½, 3/10, 1/5 around three directions of coordinates ±1,
    which are orthogonal where 4 divides d, κ = 4d.
    """
    n, seed = {"n": controls.n}, {"seed": controls.seed}
    if controls.law == "von_mises_fisher":
        return {**n, "mean": [1.0] * d, "kappa": 2.0 * d, **seed}
    if controls.law == "mixture":
        signs = ([1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0], [-1.0, -1.0, 1.0, 1.0])
        means = [[pattern[i % 4] for i in range(d)] for pattern in signs]
        return {**n, "means": means, "kappas": 4.0 * d, "proportions": [0.5, 0.3, 0.2], **seed}
    return n if controls.law in ("fibonacci", "equally_spaced") else {**n, **seed}


def arguments(controls: Controls, dim: int | None, most: int = ALL_FRAMES) -> dict[str, Any]:
    """The further arguments of `simulate`, with at most so many frames.

    dim : None for a trained head, whose dimension is not known before it is loaded
    """
    count = min(frames(controls, dim), most)
    fewer = {} if count == ALL_FRAMES else {"t_eval": count}
    return {"beta": float(controls.beta), "until": float(controls.until), **fewer}


def common_frames(compared: Sequence[Controls]) -> int:
    """As many frames as each of these runs can have: one time slider moves them all."""
    return min(frames(one, None if one.trained else head_of(one).dim) for one in compared)


def frames(controls: Controls, dim: int | None) -> int:
    """How many frames a run saves: fewer than usual where they would take long or fill the memory."""
    count = FEW_FRAMES if dim is None or controls.n > MANY_TOKENS else ALL_FRAMES
    if dim is not None:
        count = min(count, FRAMES_BYTES // (8 * controls.n * dim))
    return count


def _follow(controls: Controls) -> Problem:
    from metastable.encoder.trained_head import parse_address, prepare

    loaded = encoder(parse_address(controls.trained)[0])
    texts = TEXTS if controls.law == "tokens" else None
    return prepare(
        controls.trained, texts, controls.law, controls.n, controls.until, controls.beta,
        seed=controls.seed, encoder=loaded,
    )  # fmt: skip
