"""The effects of length on workers: the result of one process."""

import pandas as pd
import pytest

import metastable as ms
from metastable.encoder.length.result import TABLES
from metastable.errors import BadInput
from metastable.scale.corpora import JobsOnWorkers
from tests.encoder.models import tiny, tokenizer
from tests.scale.corpus import sentences


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("encoder")
    tiny("bert", vocab_size=30522, max_position_embeddings=64).save_pretrained(made)
    tokenizer().save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def texts():
    words = " ".join(sentences(400)).split()
    return [" ".join(words[60 * i : 60 * (i + 1)]) for i in range(10)]


@pytest.mark.slow
def test_workers_find_what_one_process_finds(folder, texts, scheduler):
    alone = ms.length(str(folder), texts, batch_size=4)
    with JobsOnWorkers(scheduler) as work:
        spread = ms.length(str(folder), texts, batch_size=4, work=work)
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(spread, name), getattr(alone, name), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_another_encoder_on_the_same_workers(folder, texts, scheduler, tmp_path):
    """Workers load the encoder of each study."""
    tiny("bert", vocab_size=30522, max_position_embeddings=64, seed=1).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with JobsOnWorkers(scheduler) as work:
        first, second = (ms.length(str(path), texts, batch_size=4, work=work) for path in (folder, tmp_path))
    alone = ms.length(str(tmp_path), texts, batch_size=4)
    pd.testing.assert_frame_equal(second.heads, alone.heads, rtol=1e-4, atol=1e-5)
    assert not first.heads["entropy"].equals(second.heads["entropy"])


def test_a_model_that_workers_cannot_find_is_one_line(folder, texts, scheduler, monkeypatch):
    with JobsOnWorkers(scheduler) as work, pytest.raises(BadInput, match="every worker must find") as error:
        ms.length(tiny("bert", vocab_size=30522, max_position_embeddings=64), texts, tokenizer=tokenizer(), work=work)
    assert "\n" not in str(error.value)
