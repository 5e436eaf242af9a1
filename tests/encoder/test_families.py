"""Every family: what is read out of the weights must compute what the model itself computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from metastable.encoder.anatomy import Anatomy, AttentionLayer, Norm
from metastable.encoder.families import FAMILIES, anatomy
from metastable.encoder.fold import fold
from metastable.errors import BadInput
from tests.encoder.models import CASES, inputs, minilm, tiny

# The last linear map of the attention, by what its name in the model ends with: its output is the layer's update.
UPDATES = ("attention.output.dense", "attention.out_lin", "attention.dense", "attn.o", "attn.Wo", "attention.o_proj")
# What feeds the attention, by name: its first argument is x, whatever the family.
READERS = ("self.query", "self.query_proj", "q_lin", "attention.query", "attn.q", "attn.Wqkv", "q_proj")


class Watched:
    """One forward pass of a model with everything that the tests compare with, in the order of the calls."""

    def __init__(self, model: Any, parts: Anatomy) -> None:
        self.site_calls: dict[nn.Module, list[Tensor]] = {layer.site: [] for layer in parts.layers}
        self.updates: list[Tensor] = []
        self.read: list[Tensor] = []
        self.final: list[Tensor] = []
        self.streams: list[Tensor] = []
        handles = [site.register_forward_pre_hook(self._keep(calls)) for site, calls in self.site_calls.items()]
        handles.append(parts.final.register_forward_hook(lambda m, a, out: self.final.append(out)))
        for name, module in model.named_modules():
            if name.endswith(UPDATES) and isinstance(module, nn.Linear):
                handles.append(module.register_forward_hook(lambda m, a, out: self.updates.append(out)))
            if name.endswith(READERS) and isinstance(module, nn.Linear):
                handles.append(module.register_forward_pre_hook(self._keep(self.read, text_only=True)))
        batch, self.mask = inputs(model)
        with torch.no_grad():
            out = model(**batch, output_attentions=True, output_hidden_states=True)
        for handle in handles:
            handle.remove()
        self.attentions, self.hidden_states, self.last = out.attentions, out.hidden_states, out.last_hidden_state

    @staticmethod
    def _keep(into: list[Tensor], text_only: bool = False) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            # Relative positions go through the projections too, as a batch of one.
            if not text_only or len(args[0]) > 1:
                into.append(args[0])

        return hook

    def tokens(self, layer: AttentionLayer) -> Tensor:
        """z of a layer (x where it has no normalisation), by its site and call."""
        h = self.site_calls[layer.site][layer.call]
        return h if layer.norm is None else layer.norm.standardise(h)


def attention_of(layer: AttentionLayer, z: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(probabilities (texts, heads, n, n), update (texts, n, d)) by the folded heads alone, in float64."""
    z = z.double()
    heads = [fold(layer, head) for head in range(layer.heads)]

    def projected(name: str) -> Tensor:
        """q, k or v of all heads, (texts, heads, n, width)."""
        return torch.stack([z @ getattr(head, name).T + getattr(head, f"{name}_offset") for head in heads], dim=1)

    if layer.scores is None:
        # The offset of the keys adds a constant for each query, which the softmax does not see.
        keys = torch.stack([z @ head.key.T for head in heads], dim=1)
        scores = layer.scale * projected("query") @ keys.transpose(-1, -2)
    else:
        scores = layer.scores(projected("query"), projected("key"))
    probabilities = scores.masked_fill(~mask[:, None, None, :], float("-inf")).softmax(dim=-1).nan_to_num()
    output = torch.stack([head.output for head in heads])
    update = (probabilities @ projected("value") @ output.transpose(1, 2)).sum(dim=1)
    return probabilities, update + layer.output_bias.double()


def worst(found: Tensor, expected: Tensor, mask: Tensor) -> float:
    """The largest difference over real tokens: `mask` is (texts, n), the token axis the last but one."""
    difference = (found - expected).abs().double()
    difference = difference.amax(dim=(1, -1)) if difference.ndim == 4 else difference.amax(dim=-1)
    return float(difference[mask].max())


def check(model: Any, tolerance: float) -> Watched:
    parts = anatomy(model)
    seen = Watched(model, parts)
    assert len(parts.layers) == len(parts.steps) == len(seen.attentions) == len(seen.updates) == len(seen.read)
    for layer, probabilities, update, x in zip(parts.layers, seen.attentions, seen.updates, seen.read, strict=True):
        z = seen.tokens(layer)
        again = z if layer.norm is None else layer.norm.gain * z + layer.norm.offset
        assert worst(again, x, seen.mask) < tolerance
        found = attention_of(layer, z, seen.mask)
        assert worst(found[0], probabilities, seen.mask) < tolerance
        assert worst(found[1], update, seen.mask) < tolerance
    return seen


@pytest.mark.parametrize("case", CASES)
def test_folded_heads_reproduce_attention_and_updates(case):
    check(tiny(case).double(), 1e-5)


@pytest.mark.parametrize("case", ["bert", "albert", "mpnet", "deberta-v2-shared", "modernbert", "vit"])
def test_folded_heads_reproduce_a_float32_model(case):
    check(tiny(case, seed=3), 1e-5)


def test_folded_heads_reproduce_a_real_encoder():
    model = transformers.AutoModel.from_pretrained(minilm(), attn_implementation="eager", dtype=torch.float64)
    seen = check(model.eval(), 1e-5)
    assert len(seen.attentions) == 6
    assert seen.attentions[0].shape[1] == 12


@pytest.mark.parametrize("case", CASES)
def test_steps_reproduce_the_last_hidden_state(case):
    model = tiny(case).double()
    parts = anatomy(model)
    seen = Watched(model, parts)
    assert torch.equal(seen.final[-1][seen.mask], seen.last[seen.mask])
    hidden = seen.hidden_states[0]
    for layer, step in zip(parts.layers, parts.steps, strict=True):
        h = seen.site_calls[layer.site][layer.call]
        stream = h if layer.pre_norm or layer.norm is None else layer.site(h).detach()
        assert worst(stream, hidden, seen.mask) < 1e-5
        with torch.no_grad():
            hidden = step(hidden, seen.mask)
    assert worst(parts.last_hidden(hidden), seen.last, seen.mask) < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_steps_do_not_look_at_padding(case):
    model = tiny(case).double()
    parts = anatomy(model)
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(2, 17, 32, generator=generator, dtype=torch.float64)
    mask = torch.arange(17) < torch.tensor([[17], [5]])
    with torch.no_grad():
        alone, among = hidden[1:, :5], hidden
        for step in parts.steps:
            alone, among = step(alone, mask[1:, :5]), step(among, mask)
    assert torch.isfinite(among).all()
    assert float((alone[0] - among[1, :5]).abs().max()) < 1e-5


def unfolded_gain(layer: AttentionLayer) -> AttentionLayer:
    return replace(layer, norm=replace(layer.norm, gain=torch.ones_like(layer.norm.gain)))


def without_offset(layer: AttentionLayer) -> AttentionLayer:
    return replace(layer, norm=replace(layer.norm, offset=torch.zeros_like(layer.norm.offset)))


def without_bias(layer: AttentionLayer) -> AttentionLayer:
    return replace(layer, query=replace(layer.query, bias=torch.zeros_like(layer.query.bias)))


@pytest.mark.parametrize("spoil", [unfolded_gain, without_offset, without_bias])
def test_the_comparison_notices_a_wrong_folding(spoil):
    model = tiny("bert").double()
    parts = anatomy(model)
    seen = Watched(model, parts)
    layer = parts.layers[1]
    found = attention_of(spoil(layer), seen.tokens(layer), seen.mask)
    assert worst(found[0], seen.attentions[1], seen.mask) > 1e-2
    assert worst(found[1], seen.updates[1], seen.mask) > 1e-2


@pytest.mark.parametrize(
    ("case", "index"),
    [
        ("mpnet", 1),
        ("deberta-v2", 1),
        ("deberta-v2-c2p", 0),
        ("deberta-v2-p2c", 0),
        ("modernbert", 0),
        ("modernbert", 1),
    ],
)
def test_scores_without_the_positional_terms_are_not_those_of_the_model(case, index):
    model = tiny(case).double()
    parts = anatomy(model)
    seen = Watched(model, parts)
    layer = parts.layers[index]
    assert layer.unfolded
    found, _ = attention_of(replace(layer, scores=None), seen.tokens(layer), seen.mask)
    assert worst(found, seen.attentions[index], seen.mask) > 1e-2


def test_scores_are_minus_infinity_exactly_outside_the_window():
    parts = anatomy(tiny("modernbert"))
    q = torch.randn(2, 4, 15, 8, generator=torch.Generator().manual_seed(0))
    distance = (torch.arange(15)[:, None] - torch.arange(15)).abs()
    for layer, reach in zip(parts.layers, (15, 3, 3), strict=True):
        assert torch.equal(torch.isinf(layer.scores(q, q))[0, 0], distance > reach)


def test_what_cannot_be_folded_is_named():
    parts = {case: anatomy(tiny(case)) for case in CASES}
    names = {case: [layer.unfolded for layer in parts[case].layers] for case in CASES}
    assert names["modernbert"] == [("rotary positions",)] + 2 * [("rotary positions", "sliding window")]
    assert set(names["mpnet"]) == {("relative position bias",)}
    assert set(names["deberta-v2"]) == {("content-to-position scores", "position-to-content scores")}
    assert set(names["deberta-v2-p2c"]) == {("position-to-content scores",)}
    for case in ("bert", "roberta", "distilbert", "albert", "electra", "vit", "deberta-v2-plain"):
        assert set(names[case]) == {()}
    for case in names:
        mapped = case in ("albert", "albert-groups", "electra-mapped")
        assert bool(parts[case].notes) == (any(names[case]) or mapped)


def test_albert_counts_the_calls_of_its_shared_layers():
    one, grouped = anatomy(tiny("albert")), anatomy(tiny("albert-groups"))
    assert one.tied
    assert not grouped.tied
    assert not anatomy(tiny("bert")).tied
    assert [layer.call for layer in one.layers] == [0, 0, 1]
    assert [layer.norm is None for layer in one.layers] == [True, False, False]
    # Three layers of two blocks each: the groups in use are 0, 0, 1.
    assert [layer.call for layer in grouped.layers] == [0, 0, 0, 1, 1, 0]
    assert len({layer.site for layer in grouped.layers[1:]}) == 3


def test_where_updates_are_added():
    assert [layer.pre_norm for layer in anatomy(tiny("modernbert")).layers] == [False, True, True]
    assert all(layer.pre_norm for layer in anatomy(tiny("vit")).layers)
    assert not any(layer.pre_norm for layer in anatomy(tiny("bert")).layers)
    assert [anatomy(tiny(case)).pre_norm for case in ("modernbert-one", "vit", "bert")] == [True, True, False]


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith(("vit", "modernbert", "deberta"))])
def test_the_limit_is_the_longest_text_that_the_model_takes(case):
    model = tiny(case)
    limit = anatomy(model).limit
    assert limit == 64
    with torch.no_grad():
        assert model(torch.full((1, limit), 5)).last_hidden_state.shape == (1, limit, 32)
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, limit + 1), 5))


def test_the_limit_of_images_is_their_patches_and_one():
    assert anatomy(tiny("vit")).limit == 26


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False}])
def test_every_kind_of_layer_normalisation_is_read(options):
    module = nn.LayerNorm(24, eps=1e-3, **options).double()
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(0.5, 1.0, generator=torch.Generator().manual_seed(4))
    h = torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    norm = Norm.of(module)
    assert torch.allclose(norm.gain * norm.standardise(h) + norm.offset, module(h), atol=1e-12)


def test_an_unknown_family_says_which_are_known():
    config = transformers.FNetConfig(hidden_size=8, num_hidden_layers=1, intermediate_size=8, vocab_size=11)
    with pytest.raises(BadInput, match="'fnet' is not known") as caught:
        anatomy(transformers.FNetModel(config))
    assert all(family in str(caught.value) for family in FAMILIES)
    assert {CASES[case][0] for case in CASES} >= {"Bert", "ViT"}
