"""The callback in real trainings by the Trainer of transformers."""

import json
import logging

import pytest
import torch
import transformers

import metastable as ms
from metastable.encoder.history.history import FILE
from tests.encoder.models import tiny

pytest.importorskip("accelerate", reason="the Trainer needs accelerate")


class Rows(torch.utils.data.Dataset):
    """Random texts of nine tokens with labels."""

    def __init__(self, count=32):
        draw = torch.Generator().manual_seed(0)
        self.ids = torch.randint(5, 80, (count, 9), generator=draw)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, place):
        return {"input_ids": self.ids[place], "labels": int(self.ids[place].sum() % 2)}


def classifier():
    return tiny("bert", head="ForSequenceClassification", hidden_dropout_prob=0.2)


def trainer(model, out, tokenizer, callbacks=(), steps=4, **more):
    settings = {"max_steps": steps, "logging_steps": 1, "per_device_train_batch_size": 4, "save_strategy": "no", **more}
    arguments = transformers.TrainingArguments(
        output_dir=str(out), use_cpu=True, report_to=[], disable_tqdm=True, learning_rate=1e-3, seed=3, **settings
    )
    return transformers.Trainer(
        model,
        arguments,
        train_dataset=Rows(),
        eval_dataset=Rows(4),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )


def losses(done):
    return [row["loss"] for row in done.state.log_history if "loss" in row]


def test_a_training_is_the_same_with_and_without_the_callback(texts, tokenizer, tmp_path):
    plain, watched = classifier(), classifier()
    without = trainer(plain, tmp_path / "a", tokenizer)
    without.train()
    callback = ms.callback(texts[:6], every=2)
    with_it = trainer(watched, tmp_path / "b", tokenizer, [callback])
    with_it.train()
    assert losses(with_it) == losses(without)
    assert len(losses(without)) == 4
    for one, two in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, two)
    assert callback.failures == 0
    assert callback.history.steps == [0, 2, 4]
    folder = tmp_path / "b" / "metastable-history"
    assert (folder / "report.html").exists()
    assert ms.History.load(folder).table.equals(callback.history.table)


@pytest.mark.slow
def test_a_training_that_continues_from_a_checkpoint_continues_its_history(texts, tokenizer, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 3, "steps": 5}
    trainer(classifier(), tmp_path, tokenizer, [ms.callback(texts[:6], every=1)], **saving).train()
    callback = ms.callback(texts[:6], every=1)
    again = trainer(classifier(), tmp_path, tokenizer, [callback], **saving)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert callback.failures == 0
    assert callback.history.steps == [0, 1, 2, 3, 4, 5]
    lines = (tmp_path / "metastable-history" / FILE).read_text().splitlines()
    assert [json.loads(line).get("step") for line in lines] == [None, 0, 1, 2, 3, 4, 5, None, 4, 5]


def test_the_end_of_a_training_is_recorded(texts, tokenizer, tmp_path):
    callback = ms.callback(texts[:6], tokenizer=tokenizer, out=tmp_path / "own", every=100)
    trainer(classifier(), tmp_path / "out", None, [callback], steps=2).train()
    assert callback.history.steps == [0, 2]
    assert (tmp_path / "own" / "report.html").exists()


def test_weights_that_are_put_back_at_the_end_are_not_recorded(texts, tokenizer, tmp_path):
    callback = ms.callback(texts[:6], every=2)
    saving = dict.fromkeys(("save_strategy", "eval_strategy"), "steps") | dict.fromkeys(("save_steps", "eval_steps"), 1)
    trainer(
        classifier(),
        tmp_path,
        tokenizer,
        [callback],
        steps=3,
        load_best_model_at_end=True,
        save_total_limit=1,
        **saving,
    ).train()
    assert callback.failures == 0
    assert callback.history.steps == [0, 2]
    assert (tmp_path / "metastable-history" / "report.html").exists()


def test_a_model_that_cannot_be_recorded_is_trained_all_the_same(texts, tmp_path, caplog):
    callback = ms.callback(texts[:6])
    with caplog.at_level(logging.ERROR):
        done = trainer(classifier(), tmp_path, None, [callback], steps=2)
        done.train()
    assert len(losses(done)) == 2
    assert callback.history is None
    assert callback.failures == 1
    assert len([r for r in caplog.records if r.name.startswith("metastable")]) == 1


def test_wrong_arguments_are_refused_before_the_training(texts):
    with pytest.raises(ms.BadInput):
        ms.callback([])
    with pytest.raises(ms.BadInput):
        ms.callback(texts[:6], every=0)
