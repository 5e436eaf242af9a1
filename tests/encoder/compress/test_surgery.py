"""Removal: exact identities for every family, and folders that plain transformers opens."""

import pytest
import torch
from transformers import AutoModel

from metastable import BadInput
from metastable.encoder.compress import surgery
from metastable.encoder.compress.saving import save_model
from metastable.encoder.compress.surgery import Removal
from metastable.encoder.load import load
from tests.encoder.models import CASES, inputs, tiny

LAYERS = [case for case in CASES if case not in ("albert-groups", "modernbert-one")]


def last(encoder, model):
    given, mask = inputs(model)
    return encoder.run(given).last_hidden_state[mask]


@pytest.mark.parametrize("case", CASES)
def test_the_first_layers_return_the_hidden_state_of_that_depth(case):
    model = tiny(case)
    encoder = load(model)
    if not surgery.removable_layers(encoder.anatomy, model.config):
        with pytest.raises(BadInput, match="cannot be removed"):
            surgery.without_layers(encoder, [0])
        return
    count = 2
    given, mask = inputs(model)
    with torch.inference_mode():
        hidden = model(**given, output_hidden_states=True).hidden_states[count]
    found = surgery.first_layers(encoder, count)
    expected = found.anatomy.last_hidden(hidden)[mask] if found.anatomy.pre_norm else hidden[mask]
    torch.testing.assert_close(last(found, model), expected, rtol=1e-4, atol=1e-5)
    assert len(encoder.anatomy.blocks) == 3


@pytest.mark.parametrize("case", LAYERS)
def test_a_middle_layer_goes_and_plain_transformers_opens_the_rest(case, tmp_path):
    model = tiny(case)
    encoder = load(model)
    gone = surgery.removable_layers(encoder.anatomy, model.config)[-2 if case != "deberta-v2-conv" else -1]
    gone = gone if not encoder.anatomy.tied else 2
    found = surgery.without_layers(encoder, [gone])
    save_model(found, tmp_path / "model", encoder, ["# smaller"])
    given, mask = inputs(model)
    with torch.inference_mode():
        opened = AutoModel.from_pretrained(tmp_path / "model").eval()(**given).last_hidden_state[mask]
    torch.testing.assert_close(opened, last(found, model), rtol=1e-4, atol=1e-5)
    kept = [step for layer, step in enumerate(encoder.anatomy.steps) if layer != gone]
    assert len(found.anatomy.steps) == len(kept)


def mean_ablated(encoder, given, units, mean, layer, which):
    """The full model with some inputs of one map replaced by their means, by a hook."""
    linear = getattr(encoder.anatomy.blocks[layer], which)

    def replaced(module, arguments):
        a = arguments[0].clone()
        a[..., units] = mean[units]
        return (a,)

    handle = linear.register_forward_pre_hook(replaced)
    try:
        return encoder.run(given).last_hidden_state
    finally:
        handle.remove()


@pytest.mark.parametrize("case", [case for case in CASES if "albert" not in case and case != "modernbert"])
def test_removed_heads_and_neurons_are_replaced_by_their_means(case):
    """Even and cut form equal the full encoder whose units are replaced by their means, for any means."""
    model = tiny(case)
    encoder = load(model).private()
    given, mask = inputs(model)
    block, heads, cells = encoder.anatomy.blocks[0], (1, 2), (0, 5, 7)
    width = block.output.in_features // encoder.anatomy.layers[0].heads
    draw = torch.Generator().manual_seed(0)
    for which, units, gone in (
        ("output", [h * width + i for h in heads for i in range(width)], Removal(heads={0: heads})),
        ("outer", list(cells), Removal(neurons={0: cells})),
    ):
        linear = getattr(block, which)
        mean = (
            torch.randn(linear.in_features, generator=draw)
            if linear.bias is not None
            else torch.zeros(linear.in_features)
        )
        expected = mean_ablated(encoder, given, units, mean, 0, which)[mask]
        even = encoder.separate()
        if which == "output":
            surgery.remove_heads(even, 0, heads, mean)
        else:
            surgery.remove_neurons(even, 0, cells, mean)
        torch.testing.assert_close(even.run(given).last_hidden_state[mask], expected, rtol=1e-4, atol=2e-5)
        cut = surgery.cut(even, gone)
        torch.testing.assert_close(cut.run(given).last_hidden_state[mask], expected, rtol=1e-4, atol=2e-5)
        smaller = which == "outer" or encoder.anatomy.family not in surgery.UNCUT
        count = [sum(p.numel() for p in found.model.parameters()) for found in (even, cut)]
        assert (count[1] < count[0]) == smaller


@pytest.mark.parametrize("case", ["bert", "distilbert", "modernbert"])
def test_plain_transformers_opens_fewer_neurons(case, tmp_path):
    model = tiny(case)
    encoder = load(model)
    even, gone = encoder.separate(), tuple(range(10))
    for layer in range(3):
        surgery.remove_neurons(even, layer, gone, torch.zeros(encoder.anatomy.blocks[0].outer.in_features))
    plain = surgery.plain_form(even, Removal(neurons=dict.fromkeys(range(3), gone)))
    save_model(plain, tmp_path / "model", encoder, ["# smaller"])
    given, mask = inputs(model)
    opened = AutoModel.from_pretrained(tmp_path / "model").eval()
    assert sum(p.numel() for p in opened.parameters()) < sum(p.numel() for p in model.parameters())
    with torch.inference_mode():
        torch.testing.assert_close(opened(**given).last_hidden_state[mask], last(even, model), rtol=1e-4, atol=1e-5)


def test_the_model_of_the_host_is_not_changed():
    model = tiny("bert")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    encoder = load(model)
    even = surgery.without_layers(encoder, [1])
    surgery.remove_heads(even, 0, (0,), torch.ones(32))
    surgery.cut(even, Removal(layers=(1,), heads={0: (0,)}))
    assert model.config.num_hidden_layers == 3
    assert len(model.encoder.layer) == 3
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])


def test_a_removal_survives_json():
    removal = Removal((1, 4), {0: (2,), 3: (0, 1)}, {2: (5, 6, 7)})
    assert Removal.from_dict(removal.to_dict()) == removal


def test_all_layers_cannot_go():
    with pytest.raises(BadInput, match="one must stay"):
        surgery.without_layers(load(tiny("bert")), [0, 1, 2])
