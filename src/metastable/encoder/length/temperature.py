"""A temperature remedy: the scores of every layer multiplied by a factor, on a private model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from metastable.encoder.anatomy import AttentionLayer
from metastable.encoder.load import Encoder


@contextmanager
def sharpened(encoder: Encoder, factor: float) -> Iterator[None]:
    """Within this context the queries of every layer of a private encoder are multiplied by `factor`.

    So are their scores, except for biases that depend on positions alone. The factor 1 changes nothing.
    """
    if factor == 1:
        yield
        return
    with ExitStack() as stack:
        for module, rows in {_query_map(encoder.model, layer) for layer in encoder.anatomy.layers}:
            hook = module.register_forward_hook(_scaling(factor, rows))
            stack.callback(hook.remove)
        yield


def _scaling(factor: float, rows: int) -> Any:
    def scaled(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        found = output.clone()
        found[..., :rows] *= factor
        return found

    return scaled


def _query_map(model: Any, layer: AttentionLayer) -> tuple[nn.Module, int]:
    """The linear map that computes the queries of a layer, and how many of its first outputs are queries.

    `AttentionLayer.query` is a view of the weights of that map, which may compute keys and values too.
    """
    weight = layer.query.weight
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.weight.data_ptr() == weight.data_ptr():
            return module, weight.shape[0] * weight.shape[1]
    raise AssertionError(f"layer {layer.index} has no linear map of its queries")
