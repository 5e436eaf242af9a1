"""A layer of an encoder as a block: one discrete layer of a run is the layer of the model itself."""

import math
import re
from pathlib import Path

import pytest
import torch
import transformers

import metastable as ms
from metastable.errors import BadInput
from tests.encoder.models import inputs, minilm, tiny

# The normalisation whose output layer l reads, and that whose output it writes, for post-norm families.
NORMS = {
    "bert": lambda m, i: m.embeddings.LayerNorm if i == 0 else m.encoder.layer[i - 1].output.LayerNorm,
    "distilbert": lambda m, i: m.embeddings.LayerNorm if i == 0 else m.transformer.layer[i - 1].output_layer_norm,
    "albert": lambda m, i: m.encoder.albert_layer_groups[0].albert_layers[0].full_layer_layer_norm,
}
NORMS |= dict.fromkeys(["roberta", "electra"], NORMS["bert"])


def layer_of_a_run(block, x, radius=1.0):
    """The state after one discrete layer, (n, d)."""
    settings = {"method": "layers", "step": 1.0, "radius": radius, "engine": "dense", "progress": False}
    run = ms.simulate(block, ms.Cloud(x), block.beta, 1.0, **settings)
    return run.final.points if run.radii is None else run.radii[-1].unsqueeze(1) * run.final.points


def hidden_states(model, given):
    with torch.no_grad():
        return [h.double() for h in model(**given, output_hidden_states=True).hidden_states]


def check_post_norm(model, norms, layer, given, mask):
    block = ms.Block.from_encoder(model, layer)
    before, after = norms(model, layer), norms(model, layer + 1)
    states = hidden_states(model, given)
    for text in range(len(mask)):
        seen = mask[text]
        z = (states[layer][text, seen] - before.bias) / before.weight
        x = layer_of_a_run(block, z.detach() / math.sqrt(block.dim))
        found = math.sqrt(block.dim) * x * after.weight + after.bias
        assert float((found - states[layer + 1][text, seen]).detach().abs().max()) < 1e-5


@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("case", sorted(NORMS))
def test_a_post_norm_layer(case, layer):
    model = tiny(case).double()
    check_post_norm(model, NORMS[case], layer, *inputs(model))


def test_the_first_layer_and_a_trained_encoder():
    model = transformers.AutoModel.from_pretrained(minilm(), local_files_only=True).double().eval()
    for layer in (0, 3, 5):
        check_post_norm(model, NORMS["bert"], layer, *inputs(model))


@pytest.mark.parametrize("layer", [0, 2])
def test_a_pre_norm_layer_up_to_the_mean_over_features(layer):
    model = tiny("vit").double()
    given, _ = inputs(model)
    states = []
    hooks = [m.register_forward_hook(lambda _m, a, out: states.append((a[0], out))) for m in model.layers]
    with torch.no_grad():
        model(**given)
    for hook in hooks:
        hook.remove()
    before, after = (h[0] if isinstance(h, tuple) else h for h in states[layer])
    block = ms.Block.from_encoder(model, layer)
    h, wanted = ((s - s.mean(dim=-1, keepdim=True))[0] / math.sqrt(block.dim) for s in (before, after))
    found = layer_of_a_run(block, h, radius=h.norm(dim=1))
    assert float((found - wanted).abs().max()) * math.sqrt(block.dim) < 1e-5


def test_what_cannot_be_folded_is_refused_in_one_line():
    with pytest.raises(BadInput, match="relative position bias"):
        ms.Block.from_encoder(tiny("mpnet"), 0)
    with pytest.raises(BadInput, match="later layer"):
        ms.Block.from_encoder(tiny("albert"), 0)
    with pytest.raises(BadInput, match="layers 0 to 2"):
        ms.Block.from_encoder(tiny("bert"), 3)


def test_the_block_of_a_layer_survives_a_file(tmp_path):
    model = tiny("bert")
    block = ms.Block.from_encoder(model, 1)
    cloud = ms.uniform(20, block.dim, seed=0)
    run = ms.simulate(block, cloud, block.beta, 3.0, method="layers", progress=False)
    run.save(tmp_path / "run.zarr")
    again = ms.Run.load(tmp_path / "run.zarr")
    repeated = ms.simulate(again.block, again.cloud, again.block.beta, 3.0, method="layers", progress=False)
    assert torch.equal(repeated.frames, run.frames)
    assert again.block.name == block.name


def test_the_example_of_the_page_is_the_layer():
    page = (Path(__file__).parents[2] / "docs" / "family.md").read_text(encoding="utf-8")
    [code] = [part for part in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "from_encoder" in part]
    made = {}
    exec(code.replace('"bert-base-uncased"', repr(str(minilm()))), made)
    assert float((made["found"] - made["states"][4][0]).detach().abs().max()) < 1e-5
