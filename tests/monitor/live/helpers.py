"""What the tests of the monitor share."""

from __future__ import annotations

import numpy as np
import torch


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self, include_text=False):
        self.records, self.closed, self.kinds, self.include_text = [], 0, [], include_text

    def write(self, record):
        self.records.append(record)

    def close(self):
        self.closed += 1

    def failed(self, kind):
        self.kinds.append(kind)


def hooks(model):
    """Hooks of this package, and what is noted of hooks that are gone. transformers leaves some of its own."""
    found = 0
    for module in model.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks"):
            own = getattr(module, kind)
            found += sum(hook.__module__.startswith("metastable.") for hook in own.values())
            noted = ("with_kwargs", "always_called") if kind == "_forward_hooks" else ("with_kwargs",)
            found += sum(key not in own for name in noted for key in getattr(module, f"{kind}_{name}"))
        found += len(module._backward_hooks) + len(module._backward_pre_hooks)
    return found


def tensors(output):
    return [output.last_hidden_state, output.pooler_output]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def scored(monitor):
    return np.array([record.p_marginal for record in monitor.records])


class Boom(RuntimeError):
    pass


def boom(*given, **named):
    raise Boom("it broke\nbadly")
