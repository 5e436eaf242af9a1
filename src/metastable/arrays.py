"""Arrays and numbers that users pass in: checks with clear messages, and work in the calling thread."""

from __future__ import annotations

import math
import numbers
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metastable.errors import BadInput

Array = Any
"""Anything that `torch.as_tensor` takes: tensors, numpy arrays, nested lists."""

SERIAL_ELEMENTS = 2**15
"""torch computes most elementwise operations and reductions of up to this many elements in the calling thread."""
SERIAL_FUNCTION = 2**11
"""torch computes exponentials and logarithms of up to this many elements in the calling thread."""
SERIAL_MULTIPLICATIONS = 2**18
"""OpenBLAS, which numpy uses, forms a matrix product of up to this many multiplications in the calling thread."""


def tensor(a: Array, name: str, finite: bool = True) -> Tensor:
    """A real tensor, float32 if it was that and float64 otherwise; BadInput names the argument."""
    try:
        t = (a if isinstance(a, Tensor) else torch.from_numpy(_plain(a))).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{name} is not an array of numbers: {str(error).splitlines()[0]}") from error
    if t.layout != torch.strided or t.is_quantized or t.is_meta:
        kind = "a quantized" if t.is_quantized else "a meta" if t.is_meta else "a sparse"
        raise BadInput(f"{name} is {kind} tensor; give an ordinary tensor or a numpy array")
    if t.is_complex():
        raise BadInput(f"{name} is complex; heads and tokens are real")
    t = t if t.is_floating_point() and t.dtype in (torch.float32, torch.float64) else t.to(torch.float64)
    if finite and not bool(torch.isfinite(t).all()):
        place = (~torch.isfinite(t)).nonzero()[0].tolist()
        found = f"{float(t[tuple(place)])} at {place}"
        raise BadInput(f"{name} holds a number that is not finite ({found}); check how it was made")
    return t


def _plain(a: Array) -> np.ndarray:
    """A numpy array that torch can share: native byte order, contiguous, writable. Lists of floats become float64."""
    found = np.asarray(a)
    return np.require(found, found.dtype.newbyteorder("="), requirements=("C", "A", "W"))


def moved(t: Tensor, dtype: torch.dtype | None, device: Any) -> Tensor:
    """`t` in another dtype or on another device; BadInput if there is no such device."""
    try:
        return t.to(dtype=dtype, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"device is {str(device)!r}, which cannot be used here: {reason}; use 'cpu'") from error


def matrix(a: Array, name: str) -> Tensor:
    t = tensor(a, name)
    if t.ndim != 2 or 0 in t.shape:
        raise BadInput(f"{name} has shape {tuple(t.shape)}, expected two dimensions, none of them empty")
    return t


def vector(a: Array, name: str, length: int | None) -> Tensor:
    t = tensor(a, name)
    if t.ndim != 1 or len(t) == 0 or (length is not None and len(t) != length):
        wanted = "a vector" if length is None else f"a vector of {length} numbers"
        raise BadInput(f"{name} has shape {tuple(t.shape)}, expected {wanted}")
    return t


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product a @ b of two matrices. numpy computes small products on the CPU, in the calling thread.

    torch's BLAS starts its threads even for a 500×4 by 4×4 product. That is slow, and on a busy machine very slow.
    """
    small = a.shape[0] * a.shape[1] * b.shape[1] <= SERIAL_MULTIPLICATIONS
    if not small or a.device.type != "cpu" or a.requires_grad or b.requires_grad:
        return a @ b
    # As in torch, numbers that are not finite pass through without a warning.
    with np.errstate(all="ignore"):
        return torch.from_numpy(a.numpy() @ b.numpy())


def exp_(a: Tensor) -> Tensor:
    """The exponential of every element, in place. numpy computes small arrays on the CPU, in the calling thread.

    torch's own exponential starts threads from 2048 elements on.
    """
    if a.numel() > SERIAL_ELEMENTS or a.device.type != "cpu":
        return a.exp_()
    array = a.numpy()
    with np.errstate(all="ignore"):
        np.exp(array, out=array)
    return a


def serial(a: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """`function`, such as torch.log, of every element of a vector; for small ones on the CPU in the calling thread.

    The result is the same, bit for bit. torch's own logarithm and exponential start threads above 2048 elements.
    """
    if a.numel() > SERIAL_ELEMENTS or a.device.type != "cpu":
        return function(a)
    return torch.cat([function(part) for part in a.split(SERIAL_FUNCTION)])


def shape_of(t: Tensor) -> str:
    return "×".join(str(n) for n in t.shape)


def real(
    value: Any, name: str, rule: str, least: float = 0.0, allowed: Callable[[float], bool] = lambda number: True
) -> float:
    """A number ≥ `least` that is `allowed`, from any kind of real scalar. NaN is refused. `rule` ends the message."""
    plain = value.item() if isinstance(value, Tensor) and value.ndim == 0 else value
    try:
        found = float(plain) if isinstance(plain, numbers.Real) and not isinstance(plain, bool) else math.nan
    except OverflowError:
        found = math.nan
    if not (found >= least and allowed(found)):
        raise BadInput(f"{name} is {plain!r}; {rule}")
    return found


def positive(value: Any, name: str) -> float:
    """A finite number above 0."""
    return real(value, name, "it must be a finite number above 0", allowed=lambda number: 0 < number < math.inf)


def finite(value: Any, name: str) -> float:
    """A finite number."""
    return real(value, name, "it must be a finite number", least=-math.inf, allowed=math.isfinite)


def inverse_temperature(beta: Any) -> float:
    """β as a float in [0, ∞]."""
    return real(beta, "beta", "the inverse temperature must be 0 or more (inf is hardmax)")


def whole(value: Any, name: str, least: int, rule: str) -> int:
    """A whole number ≥ `least`, from any kind of integer; `rule` ends the message."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < least:
        raise BadInput(f"{name} is {value!r}; {rule}")
    if int(value) >= 2**63:
        raise BadInput(f"{name} is {value!r}; it must be below 2⁶³")
    return int(value)


def seeded(seed: Any) -> torch.Generator:
    """A random generator of its own, so that the host's generators stay as they are."""
    return torch.Generator().manual_seed(whole(seed, "seed", 0, "it must be a whole number, 0 or more"))


def set_own_threads(count: int, others: int) -> None:
    """Let torch use `count` threads in this thread. Threads that start later use `others`.

    The number is a setting of each thread. A thread takes the number that was set last in the process when it first
    needs one. So this thread asks for its number before it sets it, and another thread is the last to set one. A thread
    of the host that first needs a number between these two moments takes `count`; torch has no way to prevent that.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)
    last = threading.Thread(target=torch.set_num_threads, args=(others,))
    last.start()
    last.join()
