"""Loading: what loads is whole and the same each time, and each bad input is one line that says what to do."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from metastable.encoder.families import FAMILIES
from metastable.encoder.load import load, twin
from metastable.errors import BadInput
from tests.encoder.models import CASES, inputs, minilm, tiny, tokenizer


@pytest.fixture(autouse=True)
def calls(monkeypatch, tmp_path_factory) -> list[Any]:
    """No network and an empty cache of the hub; what was asked of the network all the same."""
    asked: list[Any] = []

    def refused(*args: Any, **options: Any) -> None:
        asked.append(args)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
    return asked


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """A small BERT as save_pretrained writes it. Tests do not change it."""
    return saved(tiny("bert"), tmp_path_factory.mktemp("original"))


@pytest.fixture
def folder(original, tmp_path) -> Path:
    """A copy of it that a test may change."""
    return shutil.copytree(original, tmp_path / "bert")


def saved(model: Any, path: Path) -> Path:
    model.save_pretrained(path)
    return path


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_weights(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def refusal(model: Any, **options: Any) -> str:
    """The one line with which a model is refused."""
    with pytest.raises(BadInput) as caught:
        load(model, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    return text


def same_weights(model: Any, other: Any) -> bool:
    """All but the pooler, which a model with a task head may not have."""
    mine, theirs = (
        {name: weight for name, weight in m.state_dict().items() if not name.startswith("pooler")}
        for m in (model, other)
    )
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


# --- what loads ---------------------------------------------------------------------------------------------------


def test_the_real_encoder_loads_with_its_tokenizer_and_without_asking_the_network(calls):
    encoder = load(minilm())
    assert not calls
    assert encoder.name == str(minilm())
    # Its sentence-transformers files cut texts at 256 tokens.
    assert (encoder.limit, encoder.anatomy.limit) == (256, 512)
    assert len(encoder.anatomy.layers) == 6
    assert not encoder.model.training
    assert encoder.reads_text()("The ferry leaves.")["input_ids"] == tokenizer()("The ferry leaves.")["input_ids"]
    raw = load_file(minilm() / "model.safetensors")
    held = encoder.model.state_dict()
    assert all(torch.equal(held[name], weight) for name, weight in raw.items() if name in held)
    assert torch.equal(
        encoder.anatomy.layers[2].query.weight.reshape(384, 384), raw["encoder.layer.2.attention.self.query.weight"]
    )
    check_steps(encoder)


@pytest.mark.parametrize("case", CASES)
def test_every_family_comes_back_from_its_folder(case, tmp_path):
    model = tiny(case)
    encoder = load(str(saved(model, tmp_path / case)))
    assert encoder.anatomy.family == model.config.model_type
    assert same_weights(encoder.model, model)
    batch, mask = inputs(model)
    with torch.no_grad():
        expected = model(**batch).last_hidden_state
    assert float((check_steps(encoder) - expected)[mask].abs().max()) < 1e-4


def check_steps(encoder: Any) -> torch.Tensor:
    """The last hidden state of an encoder as loaded: with the fused attention of torch and in float32.

    The steps of its anatomy reproduce it.
    """
    batch, mask = inputs(encoder.model)
    with torch.no_grad():
        out = encoder.model(**batch, output_hidden_states=True)
        stream = out.hidden_states[0]
        for step in encoder.anatomy.steps:
            stream = step(stream, mask)
        found = encoder.anatomy.last_hidden(stream)
    assert float((found - out.last_hidden_state)[mask].abs().max()) < 1e-5
    return out.last_hidden_state


@pytest.mark.parametrize(
    ("case", "head"),
    [
        ("bert", "ForMaskedLM"),
        ("roberta", "ForSequenceClassification"),
        ("albert", "ForMaskedLM"),
        ("electra-mapped", "ForPreTraining"),
        ("deberta-v2", "ForTokenClassification"),
        ("modernbert", "ForMaskedLM"),
        ("vit", "ForImageClassification"),
    ],
)
def test_a_task_head_is_left_aside_in_folders_and_in_memory(case, head, tmp_path):
    model = tiny(case, head=head)
    assert model.base_model is not model
    from_folder = load(saved(model, tmp_path / "whole"))
    in_memory = load(model)
    assert in_memory.model is model.base_model
    assert same_weights(from_folder.model, model.base_model)
    assert from_folder.fingerprint == in_memory.fingerprint


def test_the_fingerprint_is_that_of_the_weights_alone(folder, tmp_path):
    first = load(folder).fingerprint
    assert load(folder).fingerprint == first
    assert len(first) == 64
    copied = shutil.copytree(folder, tmp_path / "copy")
    assert load(copied).fingerprint == first
    change_weights(copied, lambda held: {**held, "embeddings.LayerNorm.bias": held["embeddings.LayerNorm.bias"] + 1e-6})
    assert load(copied).fingerprint != first


def test_a_missing_pooler_is_no_matter_and_makes_no_new_fingerprint(folder):
    whole = load(folder).fingerprint
    change_weights(folder, lambda held: {name: held[name] for name in held if not name.startswith("pooler")})
    assert load(folder).fingerprint == load(folder).fingerprint == whole


def test_half_precision_is_read_as_float32(tmp_path):
    encoder = load(saved(tiny("bert").half(), tmp_path / "half"))
    assert {weight.dtype for weight in encoder.model.parameters()} == {torch.float32}


def test_shards_are_read(tmp_path):
    model = tiny("bert")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 1
    assert same_weights(load(tmp_path / "shards").model, model)
    next((tmp_path / "shards").glob("model-*.safetensors")).unlink()
    assert "lacks 1 of" in refusal(tmp_path / "shards")
    (tmp_path / "shards" / "model.safetensors.index.json").write_text("[")
    assert "index.json" in refusal(tmp_path / "shards")


def test_a_pickle_is_read_only_when_allowed(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert "--allow-pickle" in refusal(folder)
    assert same_weights(load(folder, allow_pickle=True).model, tiny("bert"))
    (folder / "pytorch_model.bin").write_bytes(b"garbage" * 50)
    assert "pytorch_model.bin of" in refusal(folder, allow_pickle=True)
    torch.save(weights, folder / "pytorch_model.bin")
    whole = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(whole[:-500])
    assert "damaged or cut off" in refusal(folder, allow_pickle=True)


def test_an_allowed_pickle_still_runs_no_code(folder, tmp_path):
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "ran"),))

    (folder / "model.safetensors").unlink()
    torch.save({"embeddings.word_embeddings.weight": Bomb()}, folder / "pytorch_model.bin")
    assert "holds more than weights; use safetensors" in refusal(folder, allow_pickle=True)
    assert not (tmp_path / "ran").exists()


def test_without_a_tokenizer_it_loads_and_text_says_so(folder):
    encoder = load(folder)
    assert encoder.tokenizer is None
    with pytest.raises(BadInput, match=r"no tokenizer beside its weights; save one there"):
        encoder.reads_text()
    # A tokenizer's settings without a vocabulary are no tokenizer either.
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    assert load(folder).tokenizer is None
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(BadInput, match="tokenizer cannot be loaded"):
        load(folder).reads_text()
    assert load(folder, tokenizer=tokenizer()).reads_text()("a") == tokenizer()("a")


def test_a_model_of_images_reads_no_text(tmp_path):
    encoder = load(saved(tiny("vit"), tmp_path / "vit"))
    assert encoder.tokenizer is None
    assert encoder.limit == 26
    with pytest.raises(BadInput, match="reads images"):
        encoder.reads_text()


def test_a_model_in_memory_is_used_as_it_is_or_copied():
    model = tiny("bert")
    encoder = load(model, tokenizer=tokenizer())
    assert encoder.model is model
    assert encoder.reads_text() is not tokenizer()
    with pytest.raises(BadInput, match="pass tokenizer="):
        load(model).reads_text()
    wide = tiny("bert").double()
    assert load(wide).fingerprint == encoder.fingerprint
    assert wide.dtype == torch.float64
    with torch.no_grad():
        wide.encoder.layer[1].attention.self.query.weight[3, 4] = 1e300
    assert "infinite in 1 of 1024 numbers" in refusal(wide)


LOADING = """
import sys
import metastable.cli.app as command
from metastable.encoder.load import load
assert "transformers" not in sys.modules
command.app = lambda: print(load(sys.argv[1]).name)
command.main()
"""
"""The entry point of the command line with its settings, and a command that only loads an encoder."""


def test_importing_takes_no_transformers_and_the_command_line_says_nothing_for_them(tmp_path):
    """In a process of its own: DeBERTa warns when it is imported, and an unused head gives a long report."""
    folder = saved(tiny("deberta-v2"), tmp_path / "deberta")
    change_weights(folder, lambda held: {**held, "another.head": torch.zeros(2)})
    command = [sys.executable, "-c", LOADING, str(folder)]
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("TRANSFORMERS_", "HF_HUB_"))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=unset)
    assert (done.stdout, done.stderr) == (f"{folder}\n", "")


def test_loading_leaves_everything_as_it_was(folder):
    change_weights(folder, lambda held: {name: held[name] for name in held if not name.startswith("pooler")})
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled(), torch.get_rng_state(), random.getstate()
    twin(load(folder))
    after = logging.get_verbosity(), logging.is_progress_bar_enabled(), torch.get_rng_state(), random.getstate()
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])
    assert before[3] == after[3]


@pytest.mark.parametrize("kind", ["dynamic", "float8", "integers", "named"])
def test_a_quantized_model_is_refused_in_one_line(kind, folder):
    model = tiny("bert")
    if kind == "dynamic":
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    elif kind == "float8":
        model = model.to(torch.float8_e4m3fn)
    elif kind == "integers":
        weight = model.encoder.layer[1].attention.self.query.weight
        model.encoder.layer[1].attention.self.query.weight = torch.nn.Parameter(weight.detach().char(), False)
    else:
        change_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
        model = folder
    with pytest.raises(BadInput, match=r"quantized|float8|int8"):
        load(model)


# --- the random twin ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("vit")])
def test_a_twin_is_what_transformers_draws_after_manual_seed_without_the_global_generator(case):
    model = tiny(case)
    before = torch.get_rng_state()
    found = twin(load(model), seed=5).model
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = transformers.AutoModel.from_config(model.config, dtype=torch.float32)
    assert same_weights(found, expected)


@pytest.mark.parametrize("case", ["bert", "albert", "deberta-v2", "modernbert", "vit"])
def test_a_twin_has_the_same_shape_and_random_weights(case):
    encoder = load(tiny(case), tokenizer=tokenizer())
    one, again, other = twin(encoder), twin(encoder, seed=0), twin(encoder, seed=1)
    assert one.fingerprint == again.fingerprint
    assert len({encoder.fingerprint, one.fingerprint, other.fingerprint}) == 3
    shapes = [{name: w.shape for name, w in e.model.named_parameters()} for e in (encoder, one)]
    assert shapes[0] == shapes[1]
    assert one.tokenizer is encoder.tokenizer
    assert not one.model.training
    assert one.anatomy.layers[0].site in set(one.model.modules())
    assert one.name == f"{encoder.name} (random weights)"
    spread = float(one.anatomy.layers[0].query.weight.std())
    assert 0.01 < spread < 0.03


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["./nothing/here", "/no/such/folder", "~nobody/model", "a b", "", " ", "a\0b", "../no/such/folder", "é"]
)
def test_a_path_that_does_not_exist(name):
    assert "does not exist" in refusal(name)


@pytest.mark.parametrize("name", ["owner/model", "no-such-model", "a--b", "x..y", "o/" + "m" * 200])
def test_a_hub_id_that_cannot_be_fetched(name):
    assert "folder" in refusal(name)


@pytest.mark.parametrize("name", ["own-encodr", "./own_encoder"])
def test_a_refused_name_is_told_the_installed_package_that_is_meant(name, folder, tmp_path, monkeypatch):
    package = tmp_path / "site" / "own_encoder"
    shutil.copytree(folder, package / "model")
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    assert "did you mean the installed package 'own_encoder'?" in refusal(name)
    said = refusal("something/else")
    assert "installed packages with an encoder: " in said
    assert "own_encoder" in said


def test_a_folder_is_loaded_without_asking_the_network(folder, calls, monkeypatch):
    load(folder)
    assert not calls
    assert "the hub cannot be reached" in refusal("owner/model")
    assert calls
    calls.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "switched off (HF_HUB_OFFLINE)" in refusal("owner/model")
    assert not calls


def test_a_hub_id_in_the_local_cache_loads_without_a_network(tmp_path, monkeypatch):
    """The cache as the hub's own client lays it out: models--owner--name/{refs, snapshots/<revision>}."""
    cache = tmp_path / "models--owner--name"
    revision = "0123456789abcdef0123456789abcdef01234567"
    saved(tiny("bert"), cache / "snapshots" / revision)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(revision)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    encoder = load("owner/name")
    assert encoder.name == "owner/name"
    assert same_weights(encoder.model, tiny("bert"))


def test_a_file_is_not_a_folder(folder):
    assert "is a file" in refusal(folder / "model.safetensors")


def test_a_folder_without_a_configuration(folder, tmp_path):
    assert "there is one in its folder 'bert'" in refusal(tmp_path)
    (folder / "config.json").unlink()
    assert "holds no config.json; give the folder" in refusal(folder)


@pytest.mark.parametrize(
    "text", ["not JSON", "{", "", "\udcff", "[" * 100_000, "[1]", "{}", '{"model_type": 3}', "null"]
)
def test_a_configuration_that_is_none(folder, text):
    (folder / "config.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    assert "config.json of" in refusal(folder)


@pytest.mark.parametrize("changes", [{"num_attention_heads": 5}, {"hidden_size": "wide"}, {"hidden_act": "nothing"}])
def test_a_configuration_that_makes_no_model(folder, changes):
    change_config(folder, **changes)
    line = refusal(folder)
    assert "cannot be built" in line
    assert str(next(iter(changes.values()))) in line


@pytest.mark.parametrize("case", ["bert", "albert", "deberta-v2"])
def test_a_model_without_layers(case, tmp_path):
    model = tiny(case, num_hidden_layers=0)
    assert "0 layers" in refusal(model)
    assert "0 layers" in refusal(saved(model, tmp_path / "empty"))


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "holds no weights" in refusal(folder)


@pytest.mark.parametrize("spoil", [lambda b: b[:-100], lambda b: b[:20], lambda b: b"", lambda b: b"x" * len(b)])
def test_damaged_safetensors(folder, spoil):
    path = folder / "model.safetensors"
    path.write_bytes(spoil(path.read_bytes()))
    line = refusal(folder)
    assert "model.safetensors of" in line
    assert "damaged or cut off" in line


def test_an_unknown_family_lists_the_known_ones(folder):
    change_config(folder, model_type="fnet")
    line = refusal(folder)
    assert "unknown family" in line
    assert all(family in line for family in FAMILIES)
    change_config(folder, model_type="<b>made up</b>")
    assert "'<b>made up</b>'" in refusal(folder)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gpt_neox"])
def test_a_decoder_says_that_the_theory_is_for_encoders(folder, family):
    change_config(folder, model_type=family)
    line = refusal(folder)
    assert "a decoder" in line
    assert "only encoders" in line


@pytest.mark.parametrize("family", ["t5", "bart", "marian", "pegasus"])
def test_an_encoder_with_a_decoder(folder, family):
    change_config(folder, model_type=family)
    assert "encoder with a decoder" in refusal(folder)


def test_real_models_of_other_kinds_in_memory():
    small = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 11, "bos_token_id": 1, "eos_token_id": 2}
    assert "a decoder" in refusal(transformers.GPT2Model(transformers.GPT2Config(**small)))
    assert "of type Linear" in refusal(torch.nn.Linear(2, 2))
    assert "of type int" in refusal(7)


def test_a_bert_set_up_as_a_decoder(folder):
    change_config(folder, is_decoder=True)
    assert "set up as a decoder" in refusal(folder)
    assert "set up as a decoder" in refusal(tiny("bert", is_decoder=True))


def test_relative_positions_that_transformers_dropped(folder):
    change_config(folder, position_embedding_type="relative_key")
    assert "'relative_key'" in refusal(folder)


def test_code_that_comes_with_a_model_is_never_run(folder):
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    change_config(folder, auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})
    assert "never run" in refusal(folder)
    change_config(folder, auto_map={"AutoConfig": "evil.Config", "AutoModelForMaskedLM": "evil.Model"})
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\n")
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.Tok", null]}}')
    assert same_weights(load(folder).model, tiny("bert"))


LOST = "encoder.layer.1.attention.self.query.weight"


def test_a_missing_weight_is_never_filled_with_random_numbers(folder):
    change_weights(folder, lambda held: {name: held[name] for name in held if name != LOST})
    assert f"1 missing, first {LOST}" in refusal(folder)


def test_a_weight_of_another_shape(folder):
    change_weights(folder, lambda held: {**held, LOST: torch.zeros(5, 5)})
    assert f"1 of other shapes, first {LOST}: (5, 5) for (32, 32)" in refusal(folder)


def test_more_layers_in_the_file_than_in_the_configuration(folder):
    change_config(folder, num_hidden_layers=2)
    assert "in layers that have no place for them, first encoder.layer.2." in refusal(folder)


def test_fewer_layers_in_the_file_than_in_the_configuration(folder):
    change_config(folder, num_hidden_layers=4)
    assert "16 missing, first encoder.layer.3." in refusal(folder)


def test_weights_of_another_family(folder):
    change_config(folder, model_type="distilbert")
    assert "do not fit" in refusal(folder)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_are_none(folder, number):
    def spoil(held):
        held[LOST][3, 4] = number
        return held

    change_weights(folder, spoil)
    line = refusal(folder)
    assert f"weight {LOST} of" in line
    assert "NaN or infinite in 1 of 1024 numbers" in line
