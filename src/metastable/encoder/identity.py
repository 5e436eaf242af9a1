"""What decides an encoder's hidden states besides its weights: digests of its configuration and its tokenizer."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from metastable.encoder.load import Encoder

FORWARD = (
    "activation",
    "attention_head_size",
    "conv_act",
    "conv_kernel_size",
    "hidden_act",
    "hidden_activation",
    "inner_group_num",
    "layer_norm_eps",
    "layer_types",
    "local_attention",
    "max_position_embeddings",
    "max_relative_positions",
    "model_type",
    "n_heads",
    "n_layers",
    "norm_eps",
    "norm_rel_ebd",
    "num_attention_heads",
    "num_hidden_groups",
    "num_hidden_layers",
    "pad_token_id",
    "pos_att_type",
    "position_biased_input",
    "position_buckets",
    "relative_attention",
    "relative_attention_num_buckets",
    "rope_parameters",
    "share_att_key",
    "use_task_id",
)
"""Fields of a configuration that can change the hidden states at equal weights, over all known text encoders.

Left out: what the shapes of the weights determine, dropout (off), task heads and poolers, output flags, names,
versions. This is a list of what counts, because new versions of transformers often add fields of the other kind.
"""


def checksum(content: Any) -> str:
    """SHA-256 of JSON with sorted keys and no spaces; ValueError for numbers that are not finite."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_name)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _name(value: object) -> str:
    """The name of an activation that is a function or a class."""
    return str(getattr(value, "__name__", type(value).__name__))


def configuration(encoder: Encoder) -> str:
    """A digest of the configuration's fields in `FORWARD`; a field that is None counts as absent."""
    found = encoder.model.config.to_dict()
    return checksum({name: found[name] for name in FORWARD if found.get(name) is not None})


def tokenization(encoder: Encoder) -> str | None:
    """A digest of the tokenizer without truncation and padding, which each call sets; None if it cannot be serialised.

    Only tokenizers of the package tokenizers can be serialised. That does not change the tokenizer.
    """
    backend = getattr(encoder.tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    content = json.loads(backend.to_str())
    return checksum({name: value for name, value in content.items() if name not in ("truncation", "padding")})
