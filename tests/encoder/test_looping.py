"""Layers applied again and again, against the model's own modules called in a loop, and planted layers."""

import json
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoModel

from metastable.encoder import families
from metastable.encoder.load import Encoder, load
from metastable.encoder.loop import clusters, loop
from metastable.encoder.measure import measure
from metastable.errors import BadInput
from tests.encoder import models

SENTENCES = [*models.TEXTS, "Dogs bark at night, and the neighbours complain about it every single morning."]
READS_TEXT = [case for case in models.CASES if not case.startswith("vit")]


@cache
def encoder():
    return load(models.minilm())


@cache
def small(case):
    """A random encoder of a family that reads the real tokenizer's ids."""
    model = models.tiny(case, vocab_size=30522)
    return Encoder(case, model, models.tokenizer(), families.anatomy(model))


class Planted(Encoder):
    def private(self):
        return self


def planted(*steps):
    """The real encoder with other first layers, which act on its tokens as they are: nothing is normalised."""
    model, anatomy = encoder().model, encoder().anatomy
    sites = [block.attention.self for block in model.encoder.layer]
    bare = tuple(replace(layer, site=site, norm=None) for layer, site in zip(anatomy.layers, sites, strict=True))
    anatomy = replace(anatomy, layers=bare, steps=(*steps, *anatomy.steps[len(steps) :]))
    return Planted("planted", model, encoder().tokenizer, anatomy)


def mean_of(x, mask):
    weight = mask.unsqueeze(-1).float()
    return (x * weight).sum(dim=1, keepdim=True) / weight.sum(dim=1, keepdim=True)


def contraction(x, mask):
    """Every token three tenths of the way to the mean of its text."""
    return x + 0.3 * (mean_of(x, mask) - x)


def rotation(x, mask):
    turn = torch.linalg.matrix_exp(0.3 * skew(x.shape[-1]))
    return x @ turn.T


def identity(x, mask):
    return x


@cache
def skew(d):
    a = torch.randn(d, d, generator=torch.Generator().manual_seed(3))
    return (a - a.T) / d**0.5


class Slow:
    """Statistics of one text's ordinary tokens, by loops."""

    def __init__(self, z):
        unit = np.array([row / math.sqrt((row**2).sum()) for row in z.double().numpy()])[1:-1]
        m = len(unit)
        cosines = [unit[i] @ unit[j] for i in range(m) for j in range(m) if i != j]
        self.unit = unit
        self.mean_cosine = sum(cosines) / len(cosines) if cosines else math.nan
        self.dispersion = 1 - (unit.mean(axis=0) ** 2).sum()
        self.clusters = grouped(unit, 20.0)


def grouped(unit, angle):
    """Number of groups, by flooding from token to token."""
    left, count = set(range(len(unit))), 0
    while left:
        count += 1
        reached = [left.pop()]
        while reached:
            i = reached.pop()
            near = {j for j in left if math.degrees(math.acos(min(1.0, unit[i] @ unit[j]))) < angle}
            left -= near
            reached += near
    return count


def written(x, norm):
    return (x - norm.bias.detach()) / norm.weight.detach()


def averages(per_text, name):
    """Mean over texts at each step, NaN left out."""
    return np.nanmean([[getattr(s, name) for s in steps] for steps in per_text], axis=0)


def moved(per_text):
    return np.mean([[np.linalg.norm(b.unit - a.unit, axis=1).mean() for a, b in pairwise(s)] for s in per_text], axis=0)


def test_a_layer_of_the_real_encoder_against_its_own_module():
    model = AutoModel.from_pretrained(models.minilm(), attn_implementation="eager", local_files_only=True)
    block, norms = model.encoder.layer[3], [model.encoder.layer[i].output.LayerNorm for i in (2, 3)]
    per_text = []
    for text in SENTENCES:
        ids = models.tokenizer()(text, return_tensors="pt")
        with torch.no_grad():
            x = model(**ids, output_hidden_states=True).hidden_states[3]
            steps = [Slow(written(x, norms[0])[0])]
            for _ in range(30):
                x = block(x)
                steps.append(Slow(written(x, norms[1])[0]))
        per_text.append(steps)
    found = loop(encoder(), SENTENCES, 30, layer=3)
    for name in ("mean_cosine", "dispersion", "clusters"):
        np.testing.assert_allclose(found.curves[name], averages(per_text, name), atol=2e-4, err_msg=name)
    np.testing.assert_allclose(found.curves["change"][:-1], moved(per_text), atol=2e-4)
    assert math.isnan(found.curves["change"].iloc[-1])
    assert found.trained_depth is None
    assert (found.texts, found.layer, found.steps, found.stopped) == (4, 3, 30, None)


def test_a_tied_encoder_beyond_its_depth_against_its_own_module():
    made = small("albert")
    model, block = made.model, made.model.encoder.albert_layer_groups[0].albert_layers[0]
    per_text = []
    for text in SENTENCES:
        ids = models.tokenizer()(text, return_tensors="pt")
        with torch.no_grad():
            x = model.encoder.embedding_hidden_mapping_in(model.embeddings(ids["input_ids"]))
            steps = [Slow(x[0])]
            for depth in range(1, 13):
                x = block(x)
                steps.append(Slow(written(x, block.full_layer_layer_norm)[0]))
                if depth == 3:
                    assert torch.allclose(x, model(**ids).last_hidden_state, atol=1e-5)
        per_text.append(steps)
    found = loop(made, SENTENCES, 12)
    for name in ("mean_cosine", "dispersion"):
        np.testing.assert_allclose(found.curves[name], averages(per_text, name), atol=2e-4, err_msg=name)
    np.testing.assert_allclose(found.curves["change"][:-1], moved(per_text), atol=2e-4)
    assert found.trained_depth == 3
    assert f"{averages(per_text, 'mean_cosine')[3]:.2f} at the trained depth (3)" in found.sentence()


@pytest.mark.parametrize("case", READS_TEXT)
@pytest.mark.parametrize("layer", [0, -1])
def test_every_family_starts_where_measuring_does(case, layer):
    """Steps 0 and 1 of a loop are the depths before and after the layer, as the audit measures them."""
    made = small(case)
    layer %= len(made.anatomy.layers)
    if made.anatomy.tied and layer:
        layer = 0
    found = loop(made, SENTENCES, 1, layer=None if made.anatomy.tied else layer).curves
    depths = measure(made, SENTENCES).depth_table()
    for name in ("mean_cosine", "effective_rank", "dispersion"):
        np.testing.assert_allclose(found[name], depths[name][layer : layer + 2], rtol=1e-3, atol=1e-4, err_msg=name)


def test_the_real_encoder_starts_where_measuring_does():
    """Its last normalisation has gains of 1e-33, which still can be read back."""
    depths = measure(encoder(), SENTENCES).depth_table()
    for layer in (0, 5):
        found = loop(encoder(), SENTENCES, 1, layer=layer).curves
        for name in ("mean_cosine", "effective_rank", "dispersion"):
            np.testing.assert_allclose(found[name], depths[name][layer : layer + 2], rtol=1e-4, err_msg=name)
    assert found["energy"][0] == pytest.approx(depths["energy"][5], rel=1e-4)


def test_a_planted_contraction_concentrates():
    found = loop(planted(contraction), SENTENCES, 40, layer=0)
    expected = []
    for text in SENTENCES:
        ids = models.tokenizer()(text, return_tensors="pt")
        with torch.no_grad():
            x = encoder().model.embeddings(ids["input_ids"])[0].double()
        centre = x.mean(dim=0)
        expected.append([Slow(centre + 0.7**t * (x - centre)) for t in range(41)])
    np.testing.assert_allclose(found.curves["dispersion"], averages(expected, "dispersion"), atol=1e-5)
    assert found.phases.course == "settled"
    assert 2 < found.phases.concentrated < 12
    assert found.phases.terminal is None
    assert found.curves["clusters"].iloc[-1] == 1
    assert "down to one point" in found.sentence()
    assert "no new spreading seen up to step 40" in found.sentence()
    assert "tokens are at rest" in found.sentence()


def test_a_planted_contraction_that_is_not_finished_says_so():
    found = loop(planted(contraction), SENTENCES, 3, layer=0)
    assert found.phases.concentrated is None
    assert found.phases.course == "falling"
    assert "still coming together at step 3" in found.sentence()


def test_a_planted_rotation_moves_and_does_not_concentrate():
    found = loop(planted(rotation), SENTENCES, 40, layer=0)
    np.testing.assert_allclose(found.curves["mean_cosine"], found.curves["mean_cosine"][0], atol=1e-4)
    assert found.phases.course == "still"
    assert found.phases.concentrated is None
    assert found.curves["change"][:-1].min() > 0.1
    assert "no concentration seen up to step 40" in found.sentence()
    assert "a step moves a token by" in found.sentence()


def test_a_planted_identity_does_nothing():
    found = loop(planted(identity), SENTENCES, 10, layer=0)
    assert (found.curves["change"][:-1] == 0).all()
    assert found.curves["dispersion"].nunique() == 1
    assert found.phases.concentrated is None
    assert "no concentration seen" in found.sentence()
    assert "tokens are at rest" in found.sentence()


def test_a_planted_repulsion_spreads():
    def gathered(x, mask):
        return mean_of(x, mask) + 0.1 * (x - mean_of(x, mask))

    def repulsion(x, mask):
        return x + 0.1 * (x - mean_of(x, mask))

    found = loop(planted(gathered, repulsion), SENTENCES, 40, layer=1)
    assert "do not concentrate but spread" in found.sentence()
    assert found.phases.terminal is not None


def test_tokens_that_come_together_and_part_again():
    calls = []

    def breathing(x, mask):
        calls.append(1)
        return contraction(x, mask) if len(calls) <= 15 else x + 0.5 * (x - mean_of(x, mask))

    found = loop(planted(breathing), SENTENCES[:1], 30, layer=0)
    assert 15 < found.phases.terminal < 30
    assert f"spread again from step {math.ceil(found.phases.terminal)}" in found.sentence()


def test_numbers_that_are_no_longer_finite_stop_the_loop():
    found = loop(planted(lambda x, mask: x * 1e15), SENTENCES, 10, layer=0, batch_size=1)
    # At 1e30 the numbers are finite still, but their squares are not, and a length in float32 is lost.
    assert found.stopped == len(found.curves) == 2
    assert found.curves["mean_cosine"].notna().all()
    assert f"not finite at step {found.stopped} of 10" in found.sentence()
    with pytest.raises(BadInput, match=r"the input of layer 1 .* is not finite"):
        loop(planted(lambda x, mask: x * math.inf), SENTENCES, 10, layer=1)


def test_a_text_that_stops_later_than_another_counts_no_further():
    def explodes_for_long_texts(x, mask):
        return x * (math.inf if mask.shape[1] > 10 else 1.0)

    found = loop(planted(explodes_for_long_texts), SENTENCES, 5, layer=0, batch_size=1)
    assert (found.stopped, found.steps, found.texts) == (1, 0, 4)
    assert found.tallies["dispersion"].count()[0] == 4
    assert "not finite at step 1 of 5" in found.sentence()
    assert "no phases" in found.sentence()
    json.dumps(found.to_dict(), allow_nan=False)


def test_batches_and_special_tokens():
    together, alone = (loop(encoder(), SENTENCES, 4, layer=2, batch_size=size) for size in (32, 1))
    np.testing.assert_allclose(together.curves["mean_cosine"], alone.curves["mean_cosine"], atol=1e-5)
    included = loop(encoder(), SENTENCES, 4, layer=2, special="include")
    assert abs(included.curves["mean_cosine"] - together.curves["mean_cosine"]).max() > 1e-3
    assert (together.curves["mean_cosine_low"] < together.curves["mean_cosine"]).all()
    assert together.curves["effective_rank_slope"][0] > 0
    assert not torch.is_inference_mode_enabled()


def test_clusters_are_chains_of_near_tokens():
    degrees = [0, 15, 30, 45, 90, 105, 200]
    unit = torch.tensor([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in degrees])[None]
    everyone = torch.ones(1, 7, dtype=torch.bool)
    assert clusters(unit, everyone, 20.0).tolist() == [3]
    assert clusters(unit, everyone, 14.0).tolist() == [7]
    without = torch.tensor([[True, False, True, True, True, True, False]])
    assert clusters(unit, without, 20.0).tolist() == [3]
    cloud = torch.nn.functional.normalize(torch.randn(5, 40, 3, generator=torch.Generator().manual_seed(0)), dim=-1)
    counts = clusters(cloud, torch.ones(5, 40, dtype=torch.bool), 20.0).tolist()
    assert counts == [grouped(c.double().numpy(), 20.0) for c in cloud]


def test_a_long_chain_in_any_order_is_one_cluster():
    """Two chains of 150 tokens, 0.9 degrees apart, in disorder; links are shorter than 1 degree."""
    degrees = torch.cat([0.9 * torch.arange(150), 180 + 0.9 * torch.arange(150)])
    shuffled = degrees[torch.randperm(300, generator=torch.Generator().manual_seed(0))].deg2rad().double()
    unit = torch.stack([shuffled.cos(), shuffled.sin()], dim=1)[None]
    assert clusters(unit, torch.ones(1, 300, dtype=torch.bool), 1.0).tolist() == [2]
    assert clusters(unit, torch.ones(1, 300, dtype=torch.bool), 0.8).tolist() == [300]
    missing = (shuffled.rad2deg() - 45).abs() > 0.1
    assert clusters(unit, missing[None], 1.0).tolist() == [3]


def test_what_a_loop_says_of_itself():
    found = loop(small("albert"), SENTENCES, 6)
    said = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert said["schema"] == "metastable.loop/1"
    assert said["trained_depth"] == 3
    assert said["curves"]["step"] == list(range(7))
    assert said["curves"]["change"][-1] is None
    assert said["phases"]["curve"] == "dispersion"
    assert said["sentence"] == found.sentence()
    assert found.floor == pytest.approx(min(1 / found.beta, 0.01))


@pytest.mark.parametrize(
    ("made", "change", "line"),
    [
        ("minilm", {"layer": None}, r"needs the layer to repeat.* layers 0 to 5"),
        ("minilm", {"layer": 6}, r"layer is 6; .* has layers 0 to 5"),
        ("minilm", {"layer": -1}, r"layer is -1; .* has layers 0 to 5"),
        ("albert", {"layer": 1}, "all layers of 'albert' are the same"),
        ("minilm", {"steps": 0}, "steps is 0; a loop takes 1 step or more"),
        ("minilm", {"special": "some"}, "special is 'some'"),
        ("minilm", {"texts": [" ", ""]}, "all 2 texts are blank"),
        ("minilm", {"texts": []}, "no text to measure: there are none"),
    ],
)
def test_bad_input_is_one_line(made, change, line):
    arguments = {"texts": SENTENCES, "steps": 2, "layer": None if made == "albert" else 0, **change}
    with pytest.raises(BadInput, match=line) as error:
        loop(encoder() if made == "minilm" else small(made), **arguments)
    assert "\n" not in str(error.value)
