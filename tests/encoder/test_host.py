"""The library inside a host program: audits and baselines leave the host's model alone and do not see its traffic."""

from __future__ import annotations

import copy
import random
import threading
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import torch

import metastable as ms
from metastable.encoder.load import load
from metastable.encoder.loop import loop
from metastable.encoder.trained_head import tokens_of
from tests.encoder import models

TEXTS = [
    f"{who} {what} {when}."
    for who in ("The ferry", "A doctor")
    for what in ("left", "slept")
    for when in ("late", "at noon")
]


def own_model():
    found = models.tiny("bert", vocab_size=30522)
    found.encoder.layer[1].train()
    return found


@pytest.fixture
def model():
    """A model of the host with a vocabulary of its own, in training mode in one of its parts."""
    return own_model()


@pytest.fixture(scope="module")
def alone(tokenizer):
    """The tables of an audit of that model with nothing beside it."""
    return audited(own_model(), tokenizer)


@pytest.fixture(scope="module")
def tokenizer():
    return models.tokenizer()


def state(model):
    """Flags and hooks of all modules, by name."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return {
        name: (module.training, *(tuple(getattr(module, kind)) for kind in kinds))
        for name, module in model.named_modules()
    }


@contextmanager
def traffic(model, tokenizer):
    """A host thread that calls the model all the time. Its errors and changes of the model are raised."""
    before, errors, stop, calls = state(model), [], threading.Event(), [0]
    inputs = tokenizer(["The host sends this text.", "And this one."], padding=True, return_tensors="pt")

    def run():
        try:
            while not stop.is_set():
                with torch.no_grad():
                    model(**inputs)
                assert state(model) == before
                calls[0] += 1
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield calls
    finally:
        stop.set()
        thread.join()
    assert not errors, errors
    assert state(model) == before
    assert calls[0] > 0


def audited(model, tokenizer):
    found = ms.audit(model, TEXTS, tokenizer=tokenizer, loops=2, layer=1)
    return found.heads, found.layers, found.loop.curves


def assert_same(tables, others):
    for one, other in zip(tables, others, strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_an_audit_beside_the_hosts_own_passes(model, tokenizer, alone):
    with traffic(model, tokenizer):
        assert_same(alone, audited(model, tokenizer))


def test_audits_of_one_model_at_once(model, tokenizer, alone):
    found = []
    threads = [threading.Thread(target=lambda: found.append(audited(model, tokenizer))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    for tables in found:
        assert_same(alone, tables)


def test_a_baseline_does_not_learn_the_hosts_traffic(model, tokenizer, tmp_path):
    words, chance = [text.lower() for text in " ".join(models.TEXTS).split()], random.Random(0)
    texts = [" ".join(chance.choices(words, k=chance.randint(3, 10))) for _ in range(1500)]

    def fitted(name):
        ms.Baseline.fit(model, texts, tokenizer=tokenizer).save(tmp_path / name)
        (arrays,) = (tmp_path / name).glob("*.safetensors")
        return arrays.read_bytes()

    alone = fitted("alone")
    with traffic(model, tokenizer):
        assert fitted("beside") == alone


def test_measurements_of_one_encoder_in_several_threads(model, tokenizer):
    """Loops and clouds of tokens too."""
    encoder = load(model, tokenizer=tokenizer)

    def measured():
        cloud = tokens_of(encoder, TEXTS, 2)
        return cloud.points.numpy(), loop(encoder, TEXTS, 2, layer=0).curves.to_numpy()

    alone = measured()
    with traffic(model, tokenizer):
        beside = measured()
    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_private_encoder_shares_weights_and_nothing_else(model, tokenizer):
    seen = []
    handle = model.encoder.layer[0].register_forward_hook(lambda *_: seen.append("host"))
    private = load(model, tokenizer=tokenizer).private()
    assert all(a is b for a, b in zip(model.parameters(), private.model.parameters(), strict=True))
    assert all(a is b for a, b in zip(model.buffers(), private.model.buffers(), strict=True))
    assert not set(map(id, model.modules())) & set(map(id, private.model.modules()))
    assert not any(module.training for module in private.model.modules())
    private.run(dict(tokenizer(TEXTS[:2], return_tensors="pt", padding=True)))
    assert not seen
    handle.remove()


def test_hidden_states_can_be_asked_of_a_private_encoder(model, tokenizer):
    """transformers notes on the model that its hooks are installed, and the copy has none of them."""
    inputs = tokenizer(TEXTS[:1], return_tensors="pt")
    model.eval()
    with torch.no_grad():
        expected = model(**inputs, output_hidden_states=True).hidden_states
        found = load(model).private().model(**inputs, output_hidden_states=True).hidden_states
    assert len(found) == len(expected) == 4
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_the_tokenizer_of_the_host_stays_as_it_is(model):
    own = copy.deepcopy(models.tokenizer())
    own("A text.", truncation=True, max_length=7, padding="max_length")
    before = own.backend_tokenizer.truncation, own.backend_tokenizer.padding
    ms.audit(model, ["word " * 100, *TEXTS], tokenizer=own, beside_random=False)
    assert (own.backend_tokenizer.truncation, own.backend_tokenizer.padding) == before


@pytest.mark.parametrize("mode", ["autocast", "float64", "gradients"])
def test_modes_of_the_host_change_no_number(model, tokenizer, alone, mode):
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "autocast"):
            torch.set_default_dtype(torch.float64 if mode == "float64" else torch.float32)
            found = audited(model, tokenizer)
            assert torch.is_autocast_enabled("cpu") == (mode == "autocast")
            assert torch.get_default_dtype() == (torch.float64 if mode == "float64" else torch.float32)
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same(alone, found)
    assert all(weight.grad is None for weight in model.parameters())


def test_a_half_precision_model_stays_what_it_is(tokenizer):
    model = models.tiny("bert", vocab_size=30522).to(torch.bfloat16)
    whole = copy.deepcopy(model).float()
    found = audited(model, tokenizer)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert_same(audited(whole, tokenizer), found)


def test_the_number_of_threads_stays_after_audits_at_once(model):
    before, found = torch.get_num_threads(), []
    try:
        torch.set_num_threads(2)

        begun = threading.Barrier(4)

        def audits():
            # A thread that first asks for its number while another thread sets one would take that.
            torch.get_num_threads()
            begun.wait()
            ms.audit(model, beside_random=False)
            found.append(torch.get_num_threads())

        threads = [threading.Thread(target=audits) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert [*found, torch.get_num_threads()] == [2] * 6
    finally:
        torch.set_num_threads(before)
