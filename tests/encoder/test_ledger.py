"""Forecasts against literal formulas and transformers, what they must not depend on, and their scores."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import t as student

import metastable as ms
from metastable.encoder.compress.surgery import without_layers
from metastable.encoder.fold import fold
from metastable.encoder.forecasts import STEP, all_heads, attention_alone, joined, of_length, of_loop, of_removal
from metastable.encoder.hooks import read
from metastable.encoder.ledger import FEWEST, REMOVED, Ledger, ledger, scored
from metastable.encoder.load import load
from metastable.encoder.statistics import mean_cosine
from metastable.encoder.texts import batches, beginnings
from tests.conftest import WORDS
from tests.encoder.models import CASES, tiny

TEXTS = [" ".join(WORDS[(7 * i) % 50 : (7 * i) % 50 + 9 + i % 6]) for i in range(10)]
CLOUDS = ["hidden_cosine", "effective_rank"]


def made(case, tokenizer, **changes):
    return load(tiny(case, **changes), tokenizer=tokenizer)


def curve(found: Ledger, key, series):
    rows = found.curves[(found.curves["key"] == key) & (found.curves["series"] == series)]
    return rows["value"].to_numpy()


def entry(found: Ledger, key):
    return found.entries.set_index("key").loc[key]


def tokens_at(encoder, batch, depth):
    seen = []
    read(encoder, batch, "exclude", (depth,), lambda there: seen.append(there.tokens))
    return seen[0]


@pytest.mark.parametrize("case", ["bert", "modernbert-biased", "deberta-v2", "distilbert"])
def test_attention_alone_against_loops_over_tokens(case, tokenizer):
    encoder = made(case, tokenizer).private()
    batch = next(batches(tokenizer, TEXTS[:3], 32, 4))
    tokens = tokens_at(encoder, batch, 1)
    layer, norm = encoder.anatomy.layers[1], encoder.anatomy.sites[2].norm
    text, here = 1, batch.mask[1]
    z, hidden = tokens.z[text][here].double(), tokens.hidden[text][here].double()
    delta = torch.zeros_like(z)
    for head in (fold(layer, h) for h in range(layer.heads)):
        for i in range(len(z)):
            scores = head.scale * torch.stack([(head.query @ z[i]) @ (head.key @ z[j]) for j in range(len(z))])
            delta[i] += head.output @ sum(w * (head.value @ z[j]) for j, w in enumerate(scores.softmax(0)))
    assert torch.allclose(all_heads(layer, tokens.z, batch.mask)[text][here].double(), delta, atol=1e-4)

    def standardised(row):
        return (row - row.mean()) / row.std(correction=0)

    if layer.pre_norm:
        expected = torch.stack([row + update for row, update in zip(hidden, delta, strict=True)])
        moved = expected
    else:
        rho = hidden.std(dim=1, correction=0)
        moved = torch.stack([z[i] + delta[i] / rho[i] for i in range(len(z))])
        expected = torch.stack([norm.gain * standardised(row) + norm.offset for row in moved])
    states, unit = next(iter(attention_alone(encoder.anatomy, tokens, batch.mask, 1)))
    assert torch.allclose(states[text][here].double(), expected, atol=1e-4)
    directions = torch.stack([standardised(row) / math.sqrt(layer.width) for row in moved])
    assert torch.allclose(unit[text][here].double(), directions, atol=1e-4)


def test_layers_of_attention_alone_are_forecast(tokenizer):
    """Without perceptron and biases, and with plain normalisations, the forecast is the encoder."""
    encoder = made("bert", tokenizer)
    with torch.no_grad():
        for block in encoder.anatomy.blocks:
            block.outer.weight.zero_()
            for linear in block.maps:
                linear.bias.zero_()
        for name, weight in encoder.model.named_parameters():
            if "LayerNorm" in name:
                weight.fill_(1.0 if name.endswith("weight") else 0.0)
    found = ledger(encoder, TEXTS)
    for key in CLOUDS:
        assert entry(found, key)["skill"] > 0.999
        assert entry(found, key)["verdict"] == "better"


def test_the_forecast_over_depth_is_made_without_the_later_perceptrons(tokenizer):
    encoder, other = made("bert", tokenizer), made("bert", tokenizer)
    with torch.no_grad():
        # The middle of three layers is depth 1.
        for block in other.anatomy.blocks[1:]:
            for linear in (block.inner, block.outer):
                linear.weight.mul_(-2)
                linear.bias.add_(1)
            block.output.bias.add_(1)
    one, two = ledger(encoder, TEXTS), ledger(other, TEXTS)
    for key in CLOUDS:
        for series in ("seen", "forecast"):
            assert np.array_equal(curve(one, key, series), curve(two, key, series))
        assert abs(entry(one, key)["measured"] - entry(two, key)["measured"]) > 1e-3


def test_the_forecast_for_whole_texts_is_made_without_their_second_halves(tokenizer):
    encoder = made("roberta", tokenizer)
    halves = [text.split()[: math.ceil(len(text.split()) / 2)] for text in TEXTS]
    rest = [len(text.split()) - len(half) for text, half in zip(TEXTS, halves, strict=True)]
    changed = [" ".join([*half, *[WORDS[3]] * count]) for half, count in zip(halves, rest, strict=True)]
    one, two = (entry(ledger(encoder, texts), "length") for texts in (TEXTS, changed))
    assert one["forecast"] == two["forecast"]
    assert abs(one["measured"] - two["measured"]) > 1e-4


def test_the_measured_values_are_those_of_the_audit(tokenizer):
    audit = ms.audit(tiny("electra"), TEXTS, tokenizer=tokenizer, beside_random=False)
    for key in CLOUDS:
        curves = [*curve(audit.ledger, key, "seen"), *curve(audit.ledger, key, "measured")]
        assert audit.layers[key].tolist() == pytest.approx(curves, rel=1e-5)
    assert entry(audit.ledger, "length")["measured"] == pytest.approx(audit.layers["hidden_cosine"].iloc[-1], rel=1e-5)


@pytest.mark.parametrize("case", ["bert", "modernbert-biased"])
def test_removal_against_a_smaller_encoder_and_derivatives(case, tokenizer):
    encoder = made(case, tokenizer).private()
    found = ledger(encoder, TEXTS)
    layer = 1
    smaller = without_layers(encoder, [layer])
    effects, responses = [], []
    for batch in batches(tokenizer, TEXTS[:REMOVED], 32, 1):

        def embedding(model, batch=batch):
            return model(**batch.inputs).last_hidden_state.mean(dim=1).double()

        with torch.no_grad():
            full, less = embedding(encoder.model), embedding(smaller.model)
        effects.append(1 - torch.cosine_similarity(full, less).item())
        states: dict[str, torch.Tensor] = {}

        def keep(module, given, output, states=states):
            states["before"], states["after"] = given[0], output

        handle = encoder.anatomy.blocks[layer].module.register_forward_hook(keep)
        with torch.no_grad():
            encoder.model(**batch.inputs)
        handle.remove()

        def later(after, batch=batch, states=states):
            for step in encoder.anatomy.steps[layer + 1 :]:
                after = step(after, batch.mask)
            return encoder.anatomy.last_hidden(after).mean(dim=1)

        with torch.enable_grad():
            towards = states["before"] - states["after"]
            _, change = torch.autograd.functional.jvp(later, states["after"], towards)
        responses.append(1 - torch.cosine_similarity(full, full + change.double()).item())
    assert curve(found, "removal", "measured")[layer] == pytest.approx(np.mean(effects), rel=1e-4)
    assert curve(found, "removal", "forecast")[layer] == pytest.approx(np.mean(responses), rel=2 * STEP)


def test_no_baseline_of_a_removal_sees_other_texts(tokenizer):
    encoder = load(tiny("bert"), tokenizer=tokenizer).private()
    found = {}
    for size in (1, 5):
        parts = []
        for batch in batches(tokenizer, TEXTS[:5], 32, size):
            with torch.inference_mode():
                streams = [state.float() for state in encoder.model(**batch.inputs, output_hidden_states=True)[2]]
                parts.append(of_removal(encoder.anatomy, streams, batch.mask, [0, 1]))
        found[size] = joined(parts)
    for name, table in found[1].baselines.items():
        np.testing.assert_allclose(table, found[5].baselines[name], atol=1e-5, err_msg=name)


def test_a_geometric_sequence_is_forecast_exactly():
    start, size = np.array([[0.3], [0.5], [0.2]]), np.array([[0.4], [-0.1], [0.3]])
    course = start + size * 0.7 ** np.arange(13)
    found = of_loop(course[:, :5], 12)
    assert found.values == pytest.approx(course[:, 5:])
    assert found.places == tuple(range(5, 13))
    assert found.baselines["no change"] == pytest.approx(np.repeat(course[:, 4:5], 8, axis=1))
    # Growing steps would leave the interval of the dispersion; they are taken as constant.
    grown = of_loop(np.array([[0.1, 0.2, 0.4]] * 2), 9).values
    assert grown[0] == pytest.approx([0.6, 0.8, 1, 1, 1, 1, 1])
    line = of_loop(np.array([[0.1, 0.2, 0.3]] * 2), 5).baselines["the straight line"]
    assert line[0] == pytest.approx([0.4, 0.5, 0.6])


def test_the_loop_of_the_ledger_is_the_loop(tokenizer):
    encoder = made("albert", tokenizer)
    found = ledger(encoder, TEXTS, loops=7, layer=0)
    looped = ms.audit(tiny("albert"), TEXTS, tokenizer=tokenizer, loops=7, beside_random=False).loop
    course = [*curve(found, "loop", "seen"), *curve(found, "loop", "measured")]
    assert looped.curves["dispersion"].tolist() == pytest.approx(course, abs=1e-6)
    assert len(curve(found, "loop", "seen")) == 4
    assert any("loop" in words for words in ledger(encoder, TEXTS, loops=3, layer=0).left_out)


def test_the_change_for_a_doubling_is_the_mean_over_texts():
    quarter, half = np.array([0.1, 0.3, np.nan]), np.array([0.2, 0.5, 0.4])
    found = of_length(quarter, half, np.array([[4, 4, 1], [8, 16, 2], [16, 32, 8]]))
    # Changes for a doubling: 0.1 and 0.2/2.
    assert found.values[:, 0] == pytest.approx([0.3, 0.6, 0.6])
    assert found.baselines["no change"][:, 0] == pytest.approx(half)


def test_beginnings_keep_the_first_ordinary_tokens(tokenizer):
    batch = next(batches(tokenizer, [TEXTS[0], " ".join(WORDS[:5])], 32, 4))
    part = beginnings(tokenizer, batch, 0.5)
    for row, (ids, mask) in enumerate(zip(part.inputs["input_ids"], part.mask, strict=True)):
        whole = batch.inputs["input_ids"][row][batch.mask[row]].tolist()
        ordinary = whole[1:-1]
        assert ids[mask].tolist() == [whole[0], *ordinary[: math.ceil(len(ordinary) / 2)], whole[-1]]
        assert part.special[row][mask].tolist() == [True, *[False] * (int(mask.sum()) - 2), True]
    assert (part.inputs["input_ids"][~part.mask] == tokenizer.pad_token_id).all()
    assert (part.inputs["attention_mask"].bool() == part.mask).all()


def test_scores_against_the_definition():
    draw = np.random.default_rng(3)
    errors, weak, strong = draw.uniform(0.5, 1.5, 9), draw.uniform(2, 4, 9), draw.uniform(1, 3, 9)
    found = scored(errors, {"weak": weak, "strong": strong})
    assert found["baseline"] == "strong"
    assert found["skill"] == pytest.approx(1 - errors.mean() / strong.mean())
    others = [[j for j in range(9) if j != i] for i in range(9)]
    left = [math.log(errors[o].mean() / min(weak[o].mean(), strong[o].mean())) for o in others]
    spread = math.sqrt(8 / 9 * sum((r - np.mean(left)) ** 2 for r in left))
    middle, reach = math.log(errors.mean() / strong.mean()), student.ppf(0.975, 8) * spread
    assert found["skill_low"] == pytest.approx(1 - math.exp(middle + reach))
    assert found["skill_high"] == pytest.approx(1 - math.exp(middle - reach))


def test_verdicts():
    ones = np.ones(6)
    assert scored(0.5 * ones, {"b": ones})["verdict"] == "better"
    assert scored(2 * ones, {"b": ones})["verdict"] == "worse"
    assert scored(ones, {"b": ones})["verdict"] == "no better"
    mixed = scored(np.array([0.1, 3, 0.1, 3, 0.1, 3]), {"b": 2 * ones})
    assert mixed["skill"] > 0
    assert mixed["verdict"] == "no better"
    exact = scored(0 * ones, {"b": ones})
    assert exact["skill"] == pytest.approx(1)
    assert exact["verdict"] == "better"
    undefined = scored(ones, {"b": 0 * ones})
    assert undefined["verdict"] == "undefined"
    assert math.isnan(undefined["skill"])


def test_a_baseline_that_is_exact_but_for_one_text_has_no_exact_score():
    found = scored(np.full(6, 0.001), {"no change": np.array([0, 0, 0, 0, 0, 1.0])})
    assert found["baseline_error"] == pytest.approx(1 / 6)
    assert found["verdict"] == "no better"
    assert found["skill_low"] < 0 < found["skill_high"]


def test_the_interval_covers_the_skill():
    """The true skill is 0.2: the interval contains it in about 95 % of samples of 12 texts."""
    draw = np.random.default_rng(0)
    rounds = 400
    found = [
        scored(errors, {"b": baseline})
        for errors, baseline in zip(
            0.8 * draw.exponential(size=(rounds, 12)), draw.exponential(size=(rounds, 12)), strict=True
        )
    ]
    inside = np.mean([row["skill_low"] <= 0.2 <= row["skill_high"] for row in found])
    assert 0.90 <= inside <= 0.99


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("vit")])
def test_every_family_has_a_ledger(case, tokenizer):
    encoder = made(case, tokenizer)
    found = ledger(encoder, TEXTS)
    layers = len(encoder.anatomy.layers)
    keys = {"length"} | (set(CLOUDS) if layers > 1 else set())
    keys |= {"removal"} if layers > 1 and not encoder.anatomy.tied else set()
    assert set(found.entries["key"]) == keys
    assert bool(found.left_out) == (layers == 1 or encoder.anatomy.tied)
    numbers = found.entries.select_dtypes("number")
    assert np.isfinite(numbers.to_numpy()).all()
    assert len(found.sentences()) == len(keys)
    places = found.curves[(found.curves["key"] == "removal") & (found.curves["series"] == "measured")]["place"]
    assert list(places) == (list(range(layers - 1)) if "removal" in keys else [])


def test_the_ledger_is_part_of_an_audit(tokenizer, tmp_path):
    audit = ms.audit(tiny("bert"), TEXTS, tokenizer=tokenizer, beside_random=False)
    paths = audit.save(tmp_path)
    again = ms.Audit.load(tmp_path)
    pd.testing.assert_frame_equal(again.ledger.entries, audit.ledger.entries, check_dtype=False)
    pd.testing.assert_frame_equal(again.ledger.curves, audit.ledger.curves, check_dtype=False)
    assert again.ledger.sentences() == audit.ledger.sentences()
    assert 'id="ledger-table"' in paths["report"].read_text(encoding="utf-8")
    saved = json.loads(paths["audit"].read_text(encoding="utf-8"))
    for row in saved["ledger"]["entries"]:
        row["verdict"] = "skill" if row["skill_low"] > 0 else "no skill"
    paths["audit"].write_text(json.dumps(saved), encoding="utf-8")
    assert list(ms.Audit.load(tmp_path).ledger.entries["verdict"]) == list(audit.ledger.entries["verdict"])
    del saved["ledger"]
    paths["audit"].write_text(json.dumps(saved), encoding="utf-8")
    assert ms.Audit.load(tmp_path).ledger is None
    assert ledger(made("bert", tokenizer), TEXTS[: FEWEST - 1]) is None
    assert ms.audit(tiny("bert")).ledger is None


def test_copies_of_a_text_are_one_text(tokenizer):
    encoder = load(tiny("bert"), tokenizer=tokenizer)
    assert ledger(encoder, [TEXTS[0]] * 10) is None


def test_special_tokens_belong_to_the_cloud_if_asked(tokenizer):
    encoder = made("bert", tokenizer).private()
    found = ledger(encoder, TEXTS, special="include")
    last = []
    for batch in batches(tokenizer, TEXTS, 32, 4):
        hidden = torch.nn.functional.normalize(encoder.run(batch.inputs).last_hidden_state, dim=-1)
        last += mean_cosine(hidden, batch.mask).tolist()
    assert curve(found, "hidden_cosine", "measured")[-1] == pytest.approx(np.mean(last), rel=1e-5)
