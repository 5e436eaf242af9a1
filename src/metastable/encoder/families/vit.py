"""ViT: pre-norm, patches of an image as tokens, absolute positions, everything folds."""

from __future__ import annotations

from typing import Any

from metastable.encoder.anatomy import Anatomy
from metastable.encoder.families.stack import Parts, stack


def vit(model: Any) -> Anatomy:
    """`ViTModel`: each layer normalises the stream h and adds its update to h. A last normalisation follows."""

    def parts(block: Any) -> Parts:
        inner = block.attention
        linears = (inner.q_proj, inner.k_proj, inner.v_proj)
        neurons = (block.mlp.fc1, block.mlp.fc2)
        before, middle = block.layernorm_before, block.layernorm_after
        return Parts(inner, linears, inner.o_proj, neurons, inner.scaling, before=before, middle=middle)

    limit = model.embeddings.position_embeddings.shape[1]
    return stack(model, model.layers, None, parts, final=model.layernorm, limit=limit)
