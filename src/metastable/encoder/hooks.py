"""The one reader of hidden states: hooks on the modules of an encoder that read its tokens and change nothing.

A depth is the input of a layer (0, …, L − 1) or the output of the encoder (L). At each depth the layer reads
x = γ⊙z + b, where z is normalised to length √d (up to eps). The token of the theory is x̂ = z/√d, which is affine in x.
Everything that is linear in x̂ can therefore be computed from x itself, without a second standardisation:

    x̂ = scale⊙v + shift,   v = x,   scale = 1/(γ√d),   shift = −b/(γ√d).

Some trained gains erase features (see `Norm.seen`), and the remaining part of z has any length. There x̂ is the
remaining part divided by its length, as in the audit, and v = x̂. The same holds where no normalisation precedes a
layer (the first layer of ALBERT). `lenses` returns this map for each depth.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from metastable.encoder.anatomy import Anatomy, LayerModules, Norm
from metastable.encoder.load import Encoder
from metastable.encoder.statistics import mean_over
from metastable.encoder.texts import Batch


@dataclass(frozen=True)
class DepthTokens:
    """The tokens of a batch at one depth as the audit needs them, in float32; padding is 0.

    z : (texts, n, d), the standardised stream; x itself where no normalisation precedes the layer
    unit : (texts, n, d), x̂ = z/|z|, without the features that the gain of the normalisation erases
    length : (texts, n), the length |z| of the part that `unit` keeps; 1 for padding
    stream : (texts, n), |C h|, the length of the stream before standardisation, without its mean over features
    hidden : (texts, n, d), the hidden state as the model passes it on: γz + b, or h in a pre-norm encoder
    """

    z: Tensor
    unit: Tensor
    length: Tensor
    stream: Tensor
    hidden: Tensor

    @classmethod
    def of(cls, h: Tensor, norm: Norm | None, mask: Tensor, pre_norm: bool = False) -> DepthTokens:
        # Some models write NaN into padding. `where` also makes the copy that the model cannot overwrite.
        h = torch.where(mask.unsqueeze(-1), h.detach().float(), 0.0)
        if norm is None:
            z = h
            size, stream = (torch.linalg.vector_norm(part, dim=-1) for part in (h, h - h.mean(dim=-1, keepdim=True)))
        else:
            z, _, inverse = torch.native_layer_norm(h, h.shape[-1:], None, None, norm.eps)
            size = torch.linalg.vector_norm(z, dim=-1)
            stream = size / inverse.squeeze(-1)
        visible = z
        if norm is not None and not bool((seen := norm.seen).all()):
            # Erased features are no part of a token, but z keeps them: heads read all of z.
            visible = z * seen
            size = torch.linalg.vector_norm(visible, dim=-1)
        length = torch.where(mask, size.clamp_min(1e-30), 1.0)
        unit = visible * length.reciprocal().unsqueeze(-1)
        hidden = h if norm is None or pre_norm else torch.addcmul(norm.offset.to(z), norm.gain.to(z), z)
        return cls(z, unit, length, stream, hidden)


@dataclass(frozen=True)
class Attended:
    """What the attention of one layer computed in a forward pass; padding holds any value.

    query, key : (texts, n, heads·k), W_q x + b_q and W_k x + b_k, the heads side by side
    mean : (texts, n, heads·r), Σ_j a_ij v_j of each head
    update : (texts, n, d), what the heads together add to the stream
    """

    query: Tensor
    key: Tensor
    mean: Tensor
    update: Tensor

    @classmethod
    def of(cls, block: LayerModules, seen: Mapping[nn.Module, tuple[Tensor, Tensor]]) -> Attended:
        """seen : what `caught` found for `linears` and `output` of the block"""
        outputs = [seen[linear][1] for linear in block.linears]
        query, key, _ = outputs if len(outputs) > 1 else outputs[0].chunk(3, dim=-1)
        return cls(query, key, *seen[block.output])


@contextmanager
def caught(modules: Iterable[nn.Module]) -> Iterator[dict[nn.Module, tuple[Tensor, Tensor]]]:
    """Input and output of modules of a private encoder: of their first call in this context, or since a `clear()`."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def catch(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        # DeBERTa applies the maps of queries and keys to positions too, after it has applied them to tokens.
        seen.setdefault(module, (arguments[0], output))

    handles = [module.register_forward_hook(catch) for module in dict.fromkeys(modules)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Lens:
    """x̂ = scale⊙v + shift, both (d,). `left` is None where v = x; else v = x̂ ∝ left[0]⊙x + left[1], of length 1."""

    scale: Tensor
    shift: Tensor
    left: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, norm: Norm | None, d: int) -> Lens:
        ones, zeros = torch.ones(d, dtype=torch.float32), torch.zeros(d, dtype=torch.float32)
        if norm is None:
            return cls(ones, zeros, (ones, zeros))
        gain, offset = (part.detach().float().cpu().expand(d) for part in (norm.gain, norm.offset))
        seen = norm.seen.cpu().expand(d).bool()
        scale = torch.where(seen, d**-0.5 / torch.where(seen, gain, 1.0), 0.0)
        shift = -offset * scale
        return cls(scale, shift) if bool(seen.all()) else cls(ones, zeros, (scale, shift))

    def view(self, x: Tensor) -> Tensor:
        """v, from x (…, d)."""
        if self.left is None:
            return x
        scale, shift = self.left
        found = torch.addcmul(shift.to(x), scale.to(x), x)
        return found.mul_(torch.linalg.vecdot(found, found).clamp_min(1e-30).rsqrt_().unsqueeze(-1))

    def of_view(self, v: Tensor) -> Tensor:
        """x̂ from v, or the mean of x̂ from a mean of v: (…, d)."""
        return torch.addcmul(self.shift.to(v), self.scale.to(v), v)

    def __call__(self, x: Tensor) -> Tensor:
        """x̂ from x."""
        return self.of_view(self.view(x))


def lenses(anatomy: Anatomy) -> list[Lens]:
    """The lens of each depth 0, …, L."""
    return [Lens.of(site.norm, anatomy.layers[0].width) for site in anatomy.sites]


@dataclass(frozen=True)
class Passage:
    """The input of one forward pass: a batch of texts as tokens.

    ids : (texts, n), token ids
    mask : (texts, n) of bool, False for padding
    chosen : (texts, n) of bool, tokens that are neither padding nor special
    """

    ids: Tensor
    mask: Tensor
    chosen: Tensor

    @classmethod
    def of(cls, ids: Tensor, mask: Tensor | None, special: Tensor) -> Passage:
        """special : (k,), ids of the special tokens; it may include the padding token."""
        tokens = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        return cls(ids, tokens, tokens & ~torch.isin(ids, special.to(ids.device)))

    @cached_property
    def counts(self) -> Tensor:
        """The number of chosen tokens of each text, (texts,)."""
        return self.chosen.sum(dim=1)

    @cached_property
    def unpadded(self) -> bool:
        """Whether no text has padding."""
        return bool(self.mask.all())

    @cached_property
    def start(self) -> int | None:
        """Where the chosen tokens of all texts start, if each text has them in one run from there; None otherwise."""
        there = self.chosen.any(dim=0)
        start = int(there.to(torch.uint8).argmax()) if bool(there.any()) else 0
        place = torch.arange(self.chosen.shape[1], device=self.chosen.device) - start
        run = (place >= 0) & (place < self.counts.unsqueeze(1))
        return start if torch.equal(run, self.chosen) else None


@dataclass(frozen=True)
class Depth:
    """The tokens of a passage at one depth, during the forward pass. The model may overwrite them later.

    index : 0, …, L
    x : (texts, n, d), float32, as the layer reads them; padding holds any value, even NaN
    lens : the map from x to x̂
    before : (texts, n, d), the input of the normalisation that wrote x; None where there is no normalisation
    projected : W_q x + b_q and W_k x + b_k as the layer computed them, the heads side by side, (texts, n, heads·k)
        each; None unless the reader was asked for them and the layer computed them in float32
    """

    index: int
    x: Tensor
    lens: Lens
    passage: Passage
    before: Tensor | None = None
    norm: Norm | None = None
    pre_norm: bool = False
    projected: tuple[Tensor, Tensor] | None = None

    @cached_property
    def v(self) -> Tensor:
        """The view that x̂ is affine in, (texts, n, d); padding holds any value."""
        return self.lens.view(self.x)

    @cached_property
    def mean(self) -> Tensor:
        """The mean of v over the chosen tokens of each text, (texts, d); 0 without any."""
        return mean_over(self.v, self.passage.chosen)

    @cached_property
    def unit(self) -> Tensor:
        """x̂, (texts, n, d); 0 for padding."""
        return torch.where(self.passage.mask.unsqueeze(-1), self.lens.of_view(self.v), 0.0)

    @cached_property
    def tokens(self) -> DepthTokens:
        """The same tokens as the audit needs them, which costs more. They may be kept."""
        source = self.x if self.before is None else self.before
        return DepthTokens.of(source, self.norm, self.passage.mask, self.pre_norm)


class Watch(Protocol):
    """What is done during one forward pass."""

    def visit(self, depth: Depth) -> None:
        """Called at each wanted depth, in order."""

    def close(self) -> None:
        """Called after a pass that reached every wanted depth."""


Open = Callable[[Passage], Watch | None]
"""Called when a pass begins, with its input. None means that the pass is not read."""


class Unreadable(Exception):
    """A forward pass that cannot be read, with the reason. The model itself may be correct."""


class Reader:
    """Hooks on the modules of an encoder, as a context manager.

    The state of a pass belongs to its thread, and passes may be nested.

    special : ids of the special tokens
    depths : the depths that are read
    projected : those of these depths whose layer's queries and keys are wanted too, see `Depth.projected`. Such a depth
        is visited when the layer has computed them.
    open : see `Open`; it is called for the passes of all threads
    failed : called with an error in the hooks, which then leave the pass alone; without it errors are raised
    passage : the input of every pass, where the caller knows it; else it is read from input_ids and attention_mask
    entry : the module whose calls are the passes, if it is not the model itself, see `sentence.entry_of`
    """

    def __init__(
        self,
        model: Any,
        anatomy: Anatomy,
        special: Collection[int],
        depths: Collection[int],
        open: Open,
        failed: Callable[[Exception], None] | None = None,
        passage: Passage | None = None,
        entry: nn.Module | None = None,
        projected: Collection[int] = (),
    ) -> None:
        self.model, self.depths = model, frozenset(depths)
        self._anatomy, self._projected = anatomy, self.depths.intersection(projected)
        self.entry: Any = model if entry is None else entry
        self.special = torch.tensor(sorted(special), dtype=torch.long)
        self.lenses, self._sites = lenses(anatomy), anatomy.sites
        self._open, self._failed, self._given = open, failed, passage
        self._signature = inspect.signature(self.entry.forward)
        self._local = threading.local()
        self._handles: list[Any] = []

    def __enter__(self) -> Reader:
        # A shared module is the site of several depths, one for each call.
        calls: dict[nn.Module, dict[int, int]] = defaultdict(dict)
        for index, site in enumerate(self._sites):
            calls[site.module][site.call] = index
        add = self._handles.append
        try:
            for module, by_call in calls.items():
                if self.depths.intersection(by_call.values()):
                    normalises = self._sites[min(by_call.values())].norm is not None
                    register = module.register_forward_hook if normalises else module.register_forward_pre_hook
                    add(register(self._guarded(partial(self._pass_site, by_call)), with_kwargs=True))
            for linear, by_call in self._linears().items():
                add(linear.register_forward_hook(self._guarded(partial(self._pass_linear, by_call))))
            add(self.entry.register_forward_pre_hook(self._guarded(self._begin), with_kwargs=True))
            add(self.entry.register_forward_hook(self._guarded(self._end), always_call=True))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _begin(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        state, stack = _PassState(_frames()), self._stack()
        # torch does not call the end hook after a KeyboardInterrupt. A nested pass begins deeper than its outer pass.
        while stack and stack[-1].frames >= state.frames:
            stack.pop()
        stack.append(state)
        state.passage = self._given or self._passage(module, arguments, named)
        state.watch = self._open(state.passage)

    def _passage(self, module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Passage:
        if module.training:
            raise Unreadable("the model is in training mode; call model.eval()")
        given = self._signature.bind_partial(*arguments, **named).arguments
        # The modules of sentence-transformers take one dictionary.
        given = {**given.get("kwargs", {}), **given.get("features", {}), **given}
        ids, mask = given.get("input_ids"), given.get("attention_mask")
        if not isinstance(ids, Tensor) or ids.ndim != 2:
            raise Unreadable("the pass has no input_ids of shape (texts, n), so its special tokens are not known")
        if mask is not None and mask.shape != ids.shape:
            raise Unreadable(f"the attention mask has shape {tuple(mask.shape)} for input_ids {tuple(ids.shape)}")
        return Passage.of(ids, mask, self.special)

    def _pass_site(
        self,
        by_call: dict[int, int],
        module: nn.Module,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        output: Any = None,
    ) -> None:
        """Visit the depth that this call of a module is the site of. A normalisation has an output.

        by_call : the depth by the number of the call
        """
        stack = self._stack()
        state = stack[-1] if stack else _PassState()
        if state.watch is None or state.passage is None:
            return
        index = by_call.get(state.calls[module])
        state.calls[module] += 1
        if index is None or index not in self.depths:
            return
        self._visit_waiting(state)
        # Without a watch the other hooks leave the pass alone. The watch is put back if nothing is raised here.
        watch, state.watch = state.watch, None
        first: Tensor = arguments[0] if arguments else next(iter(named.values()))
        x, before = (first, None) if output is None else (output, first)
        if x.shape[:2] != state.passage.mask.shape:
            raise Unreadable(f"tokens at depth {index} have shape {tuple(x.shape)}: the model unpads its batches")
        site = self._sites[index]
        state.waiting = Depth(index, x.float(), self.lenses[index], state.passage, before, site.norm, site.pre_norm)
        state.watch = watch
        if index not in self._projected:
            self._visit_waiting(state)

    def _linears(self) -> dict[nn.Module, dict[int, int]]:
        """The linear maps of wanted queries and keys, with the depth by the number of the call.

        DeBERTa applies these maps to positions too, after it has applied them to tokens; its layers share no maps.
        """
        calls: Counter[nn.Module] = Counter()
        found: dict[nn.Module, dict[int, int]] = defaultdict(dict)
        for depth, block in enumerate(self._anatomy.blocks if self._projected else ()):
            for linear in _query_and_key(block):
                if depth in self._projected:
                    found[linear][calls[linear]] = depth
                calls[linear] += 1
        return found

    def _pass_linear(self, by_call: dict[int, int], module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        """Take the queries or keys of the depth that waits for them, and visit it when both are there."""
        stack = self._stack()
        state = stack[-1] if stack else _PassState()
        depth, waiting = by_call.get(state.calls[module]), state.waiting
        state.calls[module] += 1
        if waiting is None or waiting.index != depth:
            return
        state.projected[module] = output
        linears = _query_and_key(self._anatomy.blocks[depth])
        if not all(linear in state.projected for linear in linears):
            return
        outputs = [state.projected[linear] for linear in linears]
        query, key = outputs if len(outputs) > 1 else outputs[0].chunk(3, dim=-1)[:2]
        if query.dtype == key.dtype == torch.float32 and query.shape[:2] == key.shape[:2] == waiting.x.shape[:2]:
            state.waiting = replace(waiting, projected=(query, key))
        self._visit_waiting(state)

    def _visit_waiting(self, state: _PassState) -> None:
        """Visit the depth that waits for queries and keys, if there is one, with what is there of them."""
        depth, watch = state.waiting, state.watch
        if depth is None or watch is None:
            return
        # As above: the watch is put back if nothing is raised.
        state.waiting = state.watch = None
        state.projected.clear()
        watch.visit(depth)
        state.seen += 1
        state.watch = watch

    def _end(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        stack = self._stack()
        state = stack.pop() if stack else _PassState()
        # Without an output the model itself failed, which is not reported here.
        if state.watch is None or output is None:
            return
        self._visit_waiting(state)
        if state.seen != len(self.depths):
            raise Unreadable(f"the pass reached {state.seen} of {len(self.depths)} depths")
        state.watch.close()

    def _stack(self) -> list[_PassState]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[_PassState] = self._local.stack
        return stack

    def _guarded(self, hook: Callable[..., None]) -> Callable[..., None]:
        """The hook without gradients and in full precision. It raises nothing if `failed` is set."""

        def guarded(module: nn.Module, *rest: Any) -> None:
            # A traced or compiled model would contain the work of the hooks for good.
            if torch.compiler.is_compiling() or torch.jit.is_tracing():
                return
            device = next(self.model.parameters()).device.type
            try:
                with torch.no_grad(), torch.autocast(device, enabled=False):
                    hook(module, *rest)
            except Exception as error:
                if self._failed is None:
                    raise
                self._failed(error)

        return guarded


def read(encoder: Encoder, batch: Batch, special: str, depths: Collection[int], visit: Visit) -> None:
    """Run one forward pass of a private encoder (see `Encoder.private`) and call `visit` at the depths, in order.

    special : "exclude" or "include", whether special tokens are chosen
    """
    # Images have no token ids.
    ids, device = batch.inputs.get("input_ids", batch.mask), encoder.device
    passage = Passage(ids.to(device), batch.mask.to(device), batch.chosen(special).to(device))
    watch = _Visiting(visit)
    with Reader(encoder.model, encoder.anatomy, (), depths, lambda _: watch, passage=passage):
        encoder.run(batch.inputs)


def embedded(encoder: Encoder, batch: Batch) -> Tensor:
    """The stream before the first layer of a private encoder, (texts, n, d): the pass ends there."""

    def stop(module: nn.Module, arguments: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        raise _Embedded(arguments[0] if arguments else named["hidden_states"])

    handle = encoder.anatomy.blocks[0].module.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        encoder.run(batch.inputs)
    except _Embedded as found:
        return found.hidden
    finally:
        handle.remove()
    raise AssertionError("the pass did not reach the first layer")


class _Embedded(Exception):
    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


Visit = Callable[[Depth], None]


@dataclass
class _Visiting:
    """A watch that is one function."""

    visit: Visit

    def close(self) -> None:
        pass


@dataclass
class _PassState:
    """The state of one forward pass.

    frames : the depth of Python's stack at its beginning
    seen : the number of depths that were visited
    calls : how often each site, and each linear map of queries or keys, was called
    waiting : the depth that waits for queries and keys
    projected : those that are there, by their linear map
    """

    frames: int = 0
    passage: Passage | None = None
    watch: Watch | None = None
    seen: int = 0
    calls: Counter[nn.Module] = field(default_factory=Counter)
    waiting: Depth | None = None
    projected: dict[nn.Module, Tensor] = field(default_factory=dict)


def _query_and_key(block: LayerModules) -> tuple[nn.Linear, ...]:
    """The linear maps of a layer's queries and keys, or the one map that also makes its values."""
    return block.linears[:2] if len(block.linears) > 1 else block.linears


def _frames() -> int:
    frame, count = sys._getframe(), 0
    while frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count
