"""The monitor is a guest of the model: it changes nothing, and it leaves nothing behind."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertForSequenceClassification

from metastable.encoder.load import load
from metastable.errors import BadInput
from metastable.monitor.baseline import Baseline
from metastable.monitor.monitor import Monitor
from tests.monitor.live.helpers import Boom, Kept, boom, hooks, same, scored


def test_gradients_are_the_same_bit_for_bit(model, baseline, batch):
    def gradients():
        model.zero_grad()
        output = model(**batch)
        (output.last_hidden_state.square().mean() + output.pooler_output.sum()).backward()
        return [weight.grad.clone() for weight in model.parameters()]

    plain = gradients()
    with Monitor(model, baseline, "full") as monitor:
        watched = gradients()
    assert same(plain, watched)
    assert monitor.counts.scored == 6


def test_a_model_with_a_task_head(encoder, baseline, batch):
    whole = BertForSequenceClassification(copy.deepcopy(encoder.model.config)).eval()
    whole.bert.load_state_dict(encoder.model.state_dict())
    labels = torch.zeros(6, dtype=torch.long)
    plain = whole(**batch, labels=labels)
    with Monitor(whole, baseline) as monitor:
        watched = whole(**batch, labels=labels)
        assert hooks(whole) > 0
    assert same([plain.loss, plain.logits], [watched.loss, watched.logits])
    assert hooks(whole) == 0
    with Monitor(encoder.model, baseline) as bare:
        encoder.model(**batch)
    assert np.array_equal(scored(monitor), scored(bare))


def test_arguments_by_position_without_a_mask_and_hidden_states_asked_for(model, baseline, batch):
    ids = batch["input_ids"][:1, :9]
    with Monitor(model, baseline) as monitor:
        model(ids, torch.ones_like(ids))
        model(ids)
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    assert len(states) == 4
    assert len(set(scored(monitor))) == 1
    assert monitor.counts.scored == 3


def changed(model):
    with torch.no_grad():
        model.encoder.layer[1].output.dense.bias[5] += 1e-6
    return model


def in_place(model):
    model.compile()
    return model


def inner(model):
    model.encoder.layer[2] = torch.compile(model.encoder.layer[2])
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (torch.compile, "compiled"),
        (in_place, "compiled"),
        (inner, "compiled"),
        (lambda model: model.half(), r"is float16, .*; use model.float\(\)"),
        (lambda model: model.bfloat16(), r"is bfloat16, .*; use model.float\(\)"),
        (lambda model: model.double(), "is float64"),
        (lambda model: model.to("meta"), "not in memory"),
        (changed, "calibrate again"),
        (lambda model: nn.DataParallel(model), "DataParallel"),
    ],
)
def test_models_that_cannot_be_watched_are_refused_in_one_line(model, baseline, make, words):
    made = make(model)
    before = hooks(made)
    with pytest.raises(BadInput, match=words) as found, Monitor(made, baseline):
        pass
    assert "\n" not in str(found.value)
    assert hooks(made) == before


def test_a_weight_changed_between_two_uses_is_noticed(model, baseline, batch):
    monitor = Monitor(model, baseline)
    with monitor:
        model(**batch)
    changed(model)
    with pytest.raises(BadInput, match="calibrate again"), monitor:
        pass
    assert hooks(model) == 0


def test_hooks_come_and_go(encoder, baseline, batch):
    model = encoder.model
    first, second = Monitor(model, baseline), Monitor(model, baseline, "full")
    with first:
        one = hooks(model)
        assert one > 0
        with pytest.raises(BadInput, match="entered already"), first:
            pass
        assert hooks(model) == one
        second.__enter__()
        both = hooks(model)
        assert both > one
        model(**batch)
    # Left in the order in which they were entered, not the other way round.
    assert hooks(model) == both - one
    model(**batch)
    second.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert hooks(model) == 0
    model(**batch)
    assert (first.counts.scored, second.counts.scored) == (6, 12)
    with first:
        model(**batch)
    assert first.counts.scored == 12

    with pytest.raises(Boom), first:
        raise Boom
    assert hooks(model) == 0


def test_a_host_hook_of_its_own_stays(model, baseline, batch):
    seen = []
    handle = model.encoder.layer[1].register_forward_hook(lambda *given: seen.append(1))
    with Monitor(model, baseline):
        model(**batch)
    model(**batch)
    assert len(seen) == 2
    assert list(model.encoder.layer[1]._forward_hooks) == [handle.id]
    handle.remove()


def test_nothing_stays_behind(small, baseline_folder, batch):
    model = load(small).model
    monitor = Monitor(model, baseline_folder, sinks=[Kept()])
    with monitor:
        model(**batch)
        copied = copy.deepcopy(model)
    copied(**batch)
    assert monitor.counts.scored == 6
    assert torch.equal(copy.deepcopy(model)(**batch).last_hidden_state, model(**batch).last_hidden_state)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(**batch).last_hidden_state, model(**batch).last_hidden_state)
    torch.save(model, io.BytesIO())
    gone = [weakref.ref(monitor), weakref.ref(model), weakref.ref(monitor.baseline)]
    del monitor, model, copied, again
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3


def test_a_pass_leaves_no_tensor_of_the_model_behind(encoder, baseline, batch):
    """A thousand kept records must not keep a thousand hidden states."""
    seen = []
    handle = encoder.model.encoder.layer[2].register_forward_hook(lambda m, a, output: seen.append(weakref.ref(output)))
    with Monitor(encoder.model, baseline, "full") as monitor:
        encoder.model(**batch)
    handle.remove()
    gc.collect()
    assert monitor.counts.scored == 6
    assert [reference() for reference in seen] == [None]


def test_entering_a_monitor_that_fails_half_way_leaves_no_hook(model, baseline, monkeypatch):
    monkeypatch.setattr(type(model), "register_forward_hook", boom)
    with pytest.raises(Boom), Monitor(model, baseline):
        pass
    assert hooks(model) == 0
    monkeypatch.undo()
    with Monitor(model, baseline):
        assert hooks(model) > 0
    assert hooks(model) == 0


def test_a_model_in_training_mode_is_watched_itself_and_stays_in_it(model, baseline):
    """`load` makes a copy of it."""
    model.train()
    with Monitor(model, baseline):
        assert hooks(model) > 0
    assert model.training


def test_the_default_dtype_and_the_generators_of_the_host_do_not_matter(
    encoder, baseline, baseline_folder, stream, batch
):
    with Monitor(encoder.model, baseline, "full", tokenizer=encoder.tokenizer) as monitor:
        encoder.model(**batch)
        monitor.examine(stream[:3])
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    torch.set_default_dtype(torch.float64)
    try:
        restored = Baseline.load(baseline_folder)
        with Monitor(encoder.model, restored, "full", tokenizer=encoder.tokenizer) as other:
            encoder.model(**batch)
            other.examine(stream[:3])
    finally:
        torch.set_default_dtype(torch.float32)
    assert other.failures == {}
    assert [record.score for record in other.records] == [record.score for record in monitor.records]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


IMPORTS = """
import sys, warnings
import torch
from transformers import BertModel

model = BertModel.from_pretrained(sys.argv[1])
before = list(warnings.filters)
import metastable as ms
with ms.Monitor(model, sys.argv[2]) as monitor:
    model(torch.tensor([[101, 2000, 2001, 102]]))
assert monitor.counts.scored == 1
assert warnings.filters == before, warnings.filters
heavy = {"zarr", "numcodecs", "xarray", "pandas", "dask"}.intersection(sys.modules)
assert not heavy, heavy
"""


def test_a_host_that_imports_the_monitor_keeps_its_warning_filters_and_gets_no_libraries_for_arrays_on_disk(
    small, baseline_folder
):
    arguments = [sys.executable, "-c", IMPORTS, str(small), str(baseline_folder)]
    found = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
