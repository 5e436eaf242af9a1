"""Reading the tokens of a running encoder: hooks on its modules that change nothing, for fitting and for live models.

At each depth a layer reads x = γ⊙z + b, with z normalised to length √d (but for eps). The theory's token is
x̂ = z/√d, which is affine in x; so whatever is linear in x̂ can be computed from x itself, without standardising again:

    x̂ = scale⊙v + shift,   v = x,   scale = 1/(γ√d),   shift = −b/(γ√d).

Some trained gains erase features (see `Norm.seen`), and what is left of z has any length. There x̂ is what is left,
divided by its length, as in the audit, and v = x̂, for one pass more over the tokens; else that length would drown all
other differences. The same holds where no normalisation stands before a layer (the first one of ALBERT). `lenses` gives
all this for each depth.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from metastable.encoder.anatomy import Anatomy, AttentionLayer, Norm
from metastable.encoder.hooks import Tokens


@dataclass(frozen=True)
class Lens:
    """x̂ = scale⊙v + shift, both (d,). `left` is None where v = x; else v = x̂ ∝ left[0]⊙x + left[1], of length 1."""

    scale: Tensor
    shift: Tensor
    left: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, norm: Norm | None, d: int) -> Lens:
        ones, zeros = torch.ones(d), torch.zeros(d)
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
    """Of depths 0, …, L: the input of each layer, and the last hidden state."""
    d = anatomy.layers[0].width
    last = Norm.of(anatomy.final) if isinstance(anatomy.final, nn.LayerNorm) else None
    return [Lens.of(norm, d) for norm in (*(layer.norm for layer in anatomy.layers), last)]


@dataclass(frozen=True)
class Passage:
    """What goes into one forward pass: a batch of texts as tokens.

    ids : (texts, n), numbers in the vocabulary
    mask : (texts, n) of bool, False for padding
    chosen : (texts, n) of bool, tokens that are neither padding nor special
    """

    ids: Tensor
    mask: Tensor
    chosen: Tensor

    @classmethod
    def of(cls, ids: Tensor, mask: Tensor | None, special: Tensor) -> Passage:
        """special : (k,), numbers of the special tokens; padding among them does no harm."""
        tokens = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        return cls(ids, tokens, tokens & ~torch.isin(ids, special.to(ids.device)))

    @cached_property
    def counts(self) -> Tensor:
        """The number n of each text's chosen tokens, (texts,)."""
        return self.chosen.sum(dim=1)


@dataclass(frozen=True)
class Depth:
    """The tokens of a passage at one depth, while the model is there; nothing of it may be kept.

    index : 0, …, L
    x : (texts, n, d), float32, as the layer reads them; padding holds anything, even NaN
    lens : from x to x̂
    before : (texts, n, d), what the normalisation made x from; None where there is none
    """

    index: int
    x: Tensor
    lens: Lens
    passage: Passage
    before: Tensor | None = None
    norm: Norm | None = None
    pre_norm: bool = False

    @cached_property
    def v(self) -> Tensor:
        """What x̂ is affine in, (texts, n, d): x itself, or x̂ where some features are erased. Padding holds anything."""
        return self.lens.view(self.x)

    @cached_property
    def unit(self) -> Tensor:
        """x̂, (texts, n, d); 0 where there is padding."""
        return torch.where(self.passage.mask.unsqueeze(-1), self.lens.of_view(self.v), 0.0)

    @cached_property
    def tokens(self) -> Tokens:
        """The audit's view of the same tokens, which costs more."""
        source = self.x if self.before is None else self.before
        return Tokens.of(source, self.norm, self.passage.mask, self.pre_norm)


class Watch(Protocol):
    """What is done during one forward pass."""

    def visit(self, depth: Depth) -> None:
        """Called at the wanted depths, in order."""

    def close(self) -> None:
        """Called after a pass that came by all wanted depths."""


Open = Callable[[Passage], Watch | None]
"""Called when a pass begins, with what goes in; None leaves the pass alone."""


class Unreadable(Exception):
    """A pass that cannot be scored, with the reason: the model itself may well be fine."""


class Reader:
    """Hooks on an encoder's modules. Passes in several threads, and passes within passes, do not disturb each other.

    failed : called with what went wrong in the hooks, which then leave the pass alone; without it errors are raised.
    """

    def __init__(
        self,
        model: Any,
        anatomy: Anatomy,
        special: Collection[int],
        depths: Collection[int],
        open: Open,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self.model, self.anatomy, self.depths = model, anatomy, frozenset(depths)
        self.special = torch.tensor(sorted(special), dtype=torch.long)
        self.lenses = lenses(anatomy)
        self._final = Norm.of(anatomy.final) if isinstance(anatomy.final, nn.LayerNorm) else None
        self._open, self._failed = open, failed
        self._signature = inspect.signature(model.forward)
        self._local = threading.local()
        self._handles: list[Any] = []

    def __enter__(self) -> Reader:
        sites: dict[nn.Module, list[AttentionLayer]] = defaultdict(list)
        for layer in self.anatomy.layers:
            sites[layer.site].append(layer)
        add = self._handles.append
        try:
            for site, layers in sites.items():
                if all(layer.index not in self.depths for layer in layers):
                    continue
                add(self._at(site, layers))
            if len(self.anatomy.layers) in self.depths:
                add(self.anatomy.final.register_forward_hook(self._within(self._last), with_kwargs=True))
            add(self.model.register_forward_pre_hook(self._guarded(self._begin), with_kwargs=True))
            add(self.model.register_forward_hook(self._guarded(self._end), always_call=True))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _at(self, site: nn.Module, layers: list[AttentionLayer]) -> Any:
        by_call = {layer.call: layer for layer in layers}
        if layers[0].norm is None:

            def enter(state: _State, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
                layer = by_call.get(state.count(module))
                if layer is not None:
                    self._visit(state, layer.index, _first(arguments, named), None, None, layer.pre_norm)

            return site.register_forward_pre_hook(self._within(enter), with_kwargs=True)

        def leave(state: _State, module: nn.Module, arguments: Any, named: dict[str, Any], output: Any) -> None:
            layer = by_call.get(state.count(module))
            if layer is not None:
                before = _first(arguments, named)
                self._visit(state, layer.index, _tensor(output), before, layer.norm, layer.pre_norm)

        return site.register_forward_hook(self._within(leave), with_kwargs=True)

    def _last(self, state: _State, module: nn.Module, arguments: Any, named: dict[str, Any], output: Any) -> None:
        # A shared module is called many times, and its last call counts.
        state.last = (_tensor(output), None if self._final is None else _first(arguments, named))

    def _begin(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        state, stack = _State(_frames()), self._stack()
        # torch ends no pass that KeyboardInterrupt broke off. A pass within another one lies deeper than that.
        while stack and stack[-1].frames >= state.frames:
            stack.pop()
        stack.append(state)
        state.watch = self._open(self._passage(module, arguments, named, state))

    def _passage(self, module: Any, arguments: tuple[Any, ...], named: dict[str, Any], state: _State) -> Passage:
        if module.training:
            raise Unreadable("the model is in training mode; call model.eval()")
        given = self._signature.bind_partial(*arguments, **named).arguments
        given = {**given.get("kwargs", {}), **given}
        ids, mask = given.get("input_ids"), given.get("attention_mask")
        if not isinstance(ids, Tensor) or ids.ndim != 2:
            raise Unreadable("the pass has no input_ids of shape (texts, n), so its special tokens are not known")
        if mask is not None and mask.shape != ids.shape:
            raise Unreadable(f"the attention mask has shape {tuple(mask.shape)} for input_ids {tuple(ids.shape)}")
        state.passage = Passage.of(ids, mask, self.special)
        return state.passage

    def _visit(
        self, state: _State, index: int, x: Tensor, before: Tensor | None, norm: Norm | None, pre_norm: bool
    ) -> None:
        if state.watch is None or state.passage is None or index not in self.depths:
            return
        if x.shape[:2] != state.passage.ids.shape:
            raise Unreadable(f"tokens at depth {index} have shape {tuple(x.shape)}: the model unpads its batches")
        state.seen += 1
        state.watch.visit(Depth(index, x.float(), self.lenses[index], state.passage, before, norm, pre_norm))

    def _end(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        stack = self._stack()
        state = stack.pop() if stack else _State()
        # Without an output the model itself broke the pass off, which is not ours to report.
        if state.watch is None or output is None:
            return
        if state.last is not None:
            self._visit(state, len(self.anatomy.layers), *state.last, self._final, False)
        if state.seen != len(self.depths):
            raise Unreadable(f"the pass came by {state.seen} of {len(self.depths)} depths")
        state.watch.close()

    def _stack(self) -> list[_State]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[_State] = self._local.stack
        return stack

    def _within(self, hook: Callable[..., None]) -> Callable[..., None]:
        """A hook inside a pass that is watched. Once one fails, the others leave the pass alone."""

        def within(module: nn.Module, *rest: Any) -> None:
            stack = self._stack()
            if not stack or stack[-1].watch is None:
                return
            state = stack[-1]
            try:
                hook(state, module, *rest)
            except Exception:
                state.watch = None
                raise

        return self._guarded(within)

    def _guarded(self, hook: Callable[..., None]) -> Callable[..., None]:
        """The hook without gradients and in full precision, and with `failed` never raising."""

        def guarded(module: nn.Module, *rest: Any) -> None:
            # What is traced or compiled would carry the hooks' work for ever.
            if torch.compiler.is_compiling() or torch.jit.is_tracing():
                return
            try:
                with torch.no_grad(), torch.autocast(_device(module), enabled=False):
                    hook(module, *rest)
            except Exception as error:
                if self._failed is None:
                    raise
                self._failed(error)

        return guarded


class _State:
    """Of one forward pass. frames : how deep in Python it began."""

    def __init__(self, frames: int = 0) -> None:
        self.frames = frames
        self.passage: Passage | None = None
        self.watch: Watch | None = None
        self.seen = 0
        self.last: tuple[Tensor, Tensor | None] | None = None
        self._calls: dict[nn.Module, int] = defaultdict(int)

    def count(self, module: nn.Module) -> int:
        """How often the module has been called in this pass before."""
        self._calls[module] += 1
        return self._calls[module] - 1


def _frames() -> int:
    frame, count = sys._getframe(), 0
    while frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count


def _device(module: nn.Module) -> str:
    weight = next(module.parameters(), None)
    return "cpu" if weight is None else weight.device.type


def _first(arguments: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    found: Tensor = arguments[0] if arguments else next(iter(named.values()))
    return found


def _tensor(output: Any) -> Tensor:
    found: Tensor = output if isinstance(output, Tensor) else output[0]
    return found
