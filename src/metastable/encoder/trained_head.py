"""A simulation of one trained head, MODEL:layer:head, from the encoder's own tokens or from the uniform law.

The head acts alone: dx̂/dt = P_x̂ V Σ_j a_ij x̂_j, a_ij = softmax_j β⟨B̂ᵀx̂_i + â, x̂_j⟩, with B̂, â, β and V as in `fold`.
**One unit of time is one layer.** The simulation leaves out the other heads, the constant part of the layer's
update (its biases), the MLP and the positions in the scores. Each token sees all tokens of the cloud, also those of
other texts.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any

import torch

from metastable.arrays import whole
from metastable.cloud import Cloud, uniform
from metastable.encoder.fold import fold
from metastable.encoder.hooks import Depth, read
from metastable.encoder.load import Encoder, load
from metastable.encoder.loop import layer_of
from metastable.encoder.statistics import Sample
from metastable.encoder.texts import batches
from metastable.errors import BadInput, choice
from metastable.head import Head
from metastable.problem import Problem
from metastable.run.observables import mean_cosine
from metastable.run.run import Run
from metastable.run.simulation import simulate

LAWS = ("tokens", "uniform")
TIMES = 3.0
"""The default horizon in units of log β/c, the number of layers that the theory needs to concentrate tokens."""
LONGEST = 100.0
"""The longest default horizon, in layers: some heads need thousands."""
BATCH = 32
"""Texts in a batch."""


def parse_address(text: str) -> tuple[str, int, int]:
    """MODEL:layer:head → (model, layer, head). The name of a model may contain colons.

    >>> parse_address("C:/models/minilm:3:11")
    ('C:/models/minilm', 3, 11)
    """
    wanted = "give MODEL:layer:head, such as 'owner/name:3:7'"
    parts = text.rsplit(":", 2)
    if len(parts) < 3 or not parts[0].strip():
        raise BadInput(f"{text!r} is not the address of a head; {wanted}")
    for name, part in zip(("layer", "head"), parts[1:], strict=True):
        if not (part.isascii() and part.isdigit() and len(part) < 10):
            raise BadInput(f"{name} is {part!r} in {text!r}; it must be a whole number from 0; {wanted}")
    return parts[0], int(parts[1]), int(parts[2])


def head_of(encoder: Encoder, layer: int, head: int, residual: float | None = None) -> tuple[Head, float]:
    """One head on unit tokens with ‖B‖₂ = 1 and one layer as the unit of time, and its β (see `fold`).

    residual : ρ, the measured root mean square of the stream that updates are added to. By default the weights of a
        post-norm layer give ρ, and ρ = 1 in a pre-norm layer.
    """
    found = layer_of(encoder, layer)
    which = f"layer {layer} of {encoder.name!r} has heads 0 to {found.heads - 1}"
    if whole(head, "head", 0, which) >= found.heads:
        raise BadInput(f"head is {head}; {which}")
    return fold(found, head, residual).theory_head()


def full_support(d: int, n: int, seed: int = 0) -> Cloud:
    """`n` independent tokens from the uniform law on the unit sphere of mean-zero vectors of R^d, S^(d−2)."""
    n = whole(n, "n", 1, "a cloud needs a whole number of tokens, 1 or more")
    d = whole(d, "d", 3, "mean-zero vectors make a sphere from d = 3 on")
    seed = whole(seed, "seed", 0, "it must be a whole number, 0 or more")
    points = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    law = {"law": "uniform on mean-zero vectors", "n": n, "d": d, "seed": seed}
    return Cloud(points - points.mean(dim=1, keepdim=True), law=law)


def tokens_of(
    encoder: Encoder, texts: Iterable[str], layer: int, special: str = "exclude", most: int = 4000, seed: int = 0
) -> Cloud:
    """The encoder's own unit tokens x̂ = z/|z| at the input of a layer, over all texts, with equal weights.

    Tokens have mean zero over features, except if no normalisation precedes the layer. If there are more than `most`
    tokens, a uniform random sample of them is returned; memory does not grow with the number of texts. The cloud's
    `law` describes the origin of the tokens. For a pre-norm layer it has `residual`: ρ over all tokens, the root mean
    square over features of the stream h that updates are added to, without its mean over features.
    """
    found, private = layer_of(encoder, layer), encoder.private()
    most = whole(most, "most", 2, "at least 2 tokens make a cloud")
    kept = Sample(most, found.width, whole(seed, "seed", 0, "it must be a whole number, 0 or more"))
    count, squares = 0, 0.0

    def visit(depth: Depth) -> None:
        nonlocal squares
        tokens, chosen = depth.tokens, depth.passage.chosen
        kept.add(tokens.unit[chosen])
        squares += float(tokens.stream[chosen].double().square().sum())

    for batch in batches(encoder.reads_text(), texts, encoder.limit, BATCH):
        count += len(batch.numbers)
        read(private, batch, special, (layer,), visit)
    if kept.seen < 2:
        raise BadInput(f"the texts hold {kept.seen} tokens; a cloud needs at least 2: give a text with words in it")
    law = {"law": "tokens", **_origin(encoder, layer), "n": len(kept.rows), "d": found.width, "seed": seed}
    law |= {"texts": count, "tokens": kept.seen, "special": special}
    if found.pre_norm:
        law["residual"] = math.sqrt(squares / (kept.seen * found.width))
    return Cloud(kept.rows.double(), law=law)


def _origin(encoder: Encoder, layer: int) -> dict[str, Any]:
    return {"model": encoder.name, "fingerprint": encoder.fingerprint, "layer": layer}


def prepare(
    address: str,
    texts: Iterable[str] | None = None,
    law: str | None = None,
    n: int = 1000,
    until: float | None = None,
    beta: float | None = None,
    *,
    special: str = "exclude",
    seed: int = 0,
    allow_pickle: bool = False,
    encoder: Encoder | None = None,
) -> Problem:
    """The simulation of a folded head, started from its tokens. The law of the cloud names the model and the layer.

    law : "tokens", at most n of the encoder's own tokens at that layer, which needs `texts`; or "uniform", n tokens
        from the uniform law on the sphere of the tokens. The default is "tokens" if there are texts.
    until : in layers. The default is 3 log β/c but at most 100, and 100 if the theory has no rate.
    beta : inverse temperature; the default is that of the head
    encoder : the model of the address, if it is already loaded

    ρ of a pre-norm layer is measured on the texts. Without texts ρ = 1, and the unit of time is not one layer.
    """
    model, layer, head = parse_address(address)
    n = whole(n, "n", 2, "at least 2 tokens make a cloud")
    law = choice(law or ("uniform" if texts is None else "tokens"), "law", LAWS)
    if law == "tokens" and texts is None:
        raise BadInput("law is 'tokens', the encoder's own, and there are no texts; give texts or take law 'uniform'")
    encoder = encoder or load(model, allow_pickle)
    head_of(encoder, layer, head)  # refuse a wrong number before the texts are read
    found = layer_of(encoder, layer)
    own = None
    if texts is not None and (law == "tokens" or found.pre_norm):
        own = tokens_of(encoder, texts, layer, special, most=n, seed=seed)
    residual = own.law["residual"] if own is not None and found.pre_norm else None
    folded, effective = head_of(encoder, layer, head, residual)
    if own is not None and law == "tokens":
        cloud = own
    elif found.norm is not None:
        cloud = full_support(found.width, n, seed)
    else:
        cloud = uniform(n, found.width, seed)
    cloud.law |= {**_origin(encoder, layer), "head": head, "effective_beta": effective, "address": address}
    cloud.law |= {"left_out": list(found.unfolded), "residual": fold(found, head, residual).residual}
    beta = effective if beta is None else beta
    return Problem(folded, cloud, beta, default_horizon(folded, beta) if until is None else until)


def default_horizon(head: Head, beta: float) -> float:
    """min(3 log β/c, 100), in layers; 100 if the theory has no rate c, or if β ≤ 1."""
    rate = head.theory().rate
    if not (0 < rate < math.inf and beta > 1):
        return LONGEST
    return min(TIMES * math.log(min(beta, 1e300)) / rate, LONGEST)


def follow(address: str, texts: Iterable[str] | None = None, **arguments: Any) -> Run:
    """Simulate one head of a trained encoder. `arguments` are those of `prepare` and those of `simulate`."""
    own = {name: arguments.pop(name) for name in inspect.signature(prepare).parameters if name in arguments}
    problem = prepare(address, texts, **own)
    return simulate(problem.block, problem.cloud, **problem.arguments, **arguments)


def sentence(run: Run) -> str:
    """The head of a run, what the theory predicts for it and what the run did, in words with numbers."""
    from metastable.report.sentences import ending

    law, theory = run.cloud.law, run.head.theory()
    if "address" not in law:
        raise BadInput("this run did not start from a head of a trained encoder; make one with follow")
    where = "the encoder's own" if law["law"] == "tokens" else "uniform on the sphere"
    start = f"head {law['head']} of layer {law['layer']} of {law['model']}, {len(run.cloud)} tokens, {where}"
    parts = [f"{start}, beta = {run.beta:.4g}, {run.horizon:.4g} layers"]
    if not run.block.plain:
        parts.append(f"this is {run.block.name}, and not the head alone that the theory is about")
    elif theory.no_limit:
        parts.append(f"theory: {theory.no_limit}")
    else:
        dated = 0 < theory.rate < math.inf and 1 < run.beta < math.inf
        needed = f", about {math.log(run.beta) / theory.rate:.3g} layers" if dated else ""
        limit = "two points" if theory.dim == 1 else f"a sphere in {theory.dim} dimensions"
        parts.append(f"theory: tokens go to {limit} at rate {theory.rate:.3g} a layer{needed}")
        found = run.phases()
        told = f"by W2 to the limit law, {'; '.join(found.sentences)}"
        if found.course == "still" and found.concentrated is None:
            level = f"within a factor {found.factor:g} of {found.least:.3g}"
            told = f"the limit law was not approached: W2 to it stays {level}"
            if ended := ending(run):
                told = f"{ended.rstrip('.')}. W2 to the limit law stays {level}"
        parts.append(f"run: {told}")
    first, last = (mean_cosine(run.at(i)) for i in (0, -1))
    moved = float(torch.linalg.vector_norm(run.frames[-1] - run.frames[0], dim=1).mean())
    parts.append(f"mean token cosine {first:.3f} → {last:.3f}, tokens moved by {moved:.3g} on average")
    parts.append(_shares(run))
    if run.head.offset is not None:
        ratio = theory.verdict["scores linear"].number
        parts.append(f"the run includes the score offset a (|a|/‖B‖ = {ratio:.2g}), which is not part of the theory")
    if law["left_out"]:
        parts.append(f"not part of the run: {', '.join(law['left_out'])}")
    return ". ".join(part[0].upper() + part[1:] for part in parts) + "."


def _shares(run: Run) -> str:
    """The share of the energy of the tokens in the dominant eigenspaces of M and of V, at the start and at the end."""
    theory, named = run.head.theory(), []
    if theory.attention.rotates or not theory.no_limit:
        named.append(("the dominant eigenspace of M", theory.basis))
    named.append(("that of V" if named else "the dominant eigenspace of V", theory.terminal.basis))
    words = []
    for name, basis in named:
        first, last = (float((run.frames[i] @ basis.to(run.frames)).square().sum(dim=1).mean()) for i in (0, -1))
        words.append(f"in {name} (dim {basis.shape[1]}) {first:.3f} → {last:.3f}")
    return f"share of tokens {', '.join(words)}"
