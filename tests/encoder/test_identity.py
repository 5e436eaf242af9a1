"""A baseline knows its encoder by more than its weights: by what its configuration and its tokenizer change."""

import copy
import json

import pytest
import torch
import transformers

from metastable.encoder.identity import FORWARD, configuration, tokenization
from metastable.encoder.load import load
from metastable.errors import BadInput
from metastable.monitor.baseline import Baseline
from tests.encoder.models import CASES, tiny, tokenizer

SHAPES = {
    *("attention_bias", "dim", "embedding_size", "hidden_dim", "hidden_size", "intermediate_size", "mlp_bias"),
    *("norm_bias", "task_type_vocab_size", "type_vocab_size", "vocab_size"),
}
"""The weights say these already."""
INDIFFERENT = {
    *("_name_or_path", "architectures", "dtype", "transformers_version", "initializer_range", "return_dict"),
    *("initializer_cutoff_factor", "id2label", "label2id", "problem_type", "output_attentions", "output_hidden_states"),
    *("attention_dropout", "attention_probs_dropout_prob", "dropout", "embedding_dropout", "hidden_dropout_prob"),
    *("mlp_dropout", "pooler_dropout", "qa_dropout", "seq_classif_dropout", "summary_last_dropout"),
    *("classifier_activation", "classifier_bias", "classifier_dropout", "classifier_dropout_prob"),
    *("classifier_pooling", "decoder_bias", "legacy", "pooler_hidden_act", "pooler_hidden_size", "sparse_prediction"),
    *("sparse_pred_ignore_index", "summary_activation", "summary_type", "summary_use_proj", "tie_word_embeddings"),
    *("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id", "chunk_size_feed_forward", "use_cache"),
    *("deterministic_flash_attn", "gradient_checkpointing", "sinusoidal_pos_embds"),
    *("add_cross_attention", "is_decoder", "is_encoder_decoder", "position_embedding_type"),
}
"""Names, dropout, heads, poolers, flags; how a sum is cut up; and what `load` refuses to be otherwise."""

SIZES = {"vocab_size": 30522, "max_position_embeddings": 128, "num_hidden_layers": 2}


def changed(encoder, **fields):
    """The same weights under a configuration with other fields."""
    config = transformers.BertConfig(**{**encoder.model.config.to_dict(), **fields})
    model = transformers.BertModel(config).eval()
    model.load_state_dict(encoder.model.state_dict())
    return load(model, tokenizer=encoder.tokenizer)


@pytest.fixture(scope="module")
def encoder():
    return load(tiny("bert", **SIZES), tokenizer=tokenizer())


@pytest.fixture(scope="module")
def known(encoder):
    """As `Baseline.fit` begins it."""
    special = tuple(sorted(set(encoder.tokenizer.all_special_ids) - {encoder.tokenizer.unk_token_id}))
    made = (encoder.name, encoder.fingerprint, configuration(encoder), tokenization(encoder))
    return Baseline(*made, special, {}, {}, {})


def last(encoder):
    inputs = encoder.tokenizer("The ferry to the island leaves at noon.", return_tensors="pt")
    with torch.no_grad():
        return encoder.model(**inputs).last_hidden_state


@pytest.mark.parametrize("case", [case for case, (family, _) in CASES.items() if family != "ViT"])
def test_every_field_of_every_family_is_placed(case):
    """A field that a new version of transformers brings fails here until someone says what it does."""
    fields = set(tiny(case).config.to_dict())
    assert fields - set(FORWARD) - SHAPES - INDIFFERENT == set()
    assert not set(FORWARD) & (SHAPES | INDIFFERENT)


@pytest.mark.parametrize("fields", [{"num_attention_heads": 2}, {"hidden_act": "relu"}, {"layer_norm_eps": 0.1}])
def test_the_same_weights_that_compute_something_else_are_refused(known, encoder, fields):
    other = changed(encoder, **fields)
    assert other.fingerprint == encoder.fingerprint
    assert not torch.allclose(last(other), last(encoder), atol=1e-4)
    with pytest.raises(BadInput, match=r"\(configuration [0-9a-f]{12}\), not with .*calibrate again") as error:
        known.check(other)
    assert "\n" not in str(error.value)


def test_the_same_computation_under_another_name_is_accepted(known, encoder):
    labels = {"id2label": {0: "no", 1: "yes", 2: "perhaps"}, "label2id": {"no": 0, "yes": 1, "perhaps": 2}}
    flags = {"_name_or_path": "elsewhere", "hidden_dropout_prob": 0.5, "output_hidden_states": True, "use_cache": False}
    other = changed(encoder, **labels, **flags)
    assert torch.allclose(last(other), last(encoder), atol=1e-5)
    known.check(other)


def test_another_tokenizer_is_refused(known, encoder):
    cased = tokenizer()
    content = json.loads(cased.backend_tokenizer.to_str())
    content["normalizer"]["lowercase"] = False
    cased = transformers.PreTrainedTokenizerFast(
        tokenizer_object=type(cased.backend_tokenizer).from_str(json.dumps(content)), **cased.special_tokens_map
    )
    assert cased("Rain")["input_ids"] != encoder.tokenizer("Rain")["input_ids"]
    with pytest.raises(BadInput, match=r"\(tokenizer [0-9a-f]{12}\), not with .*calibrate again") as error:
        known.check(load(encoder.model, tokenizer=cased))
    assert "\n" not in str(error.value)


def test_truncation_and_padding_are_no_matter_and_stay_as_they_are(known, encoder):
    used = copy.deepcopy(tokenizer())
    used(["one text", "another text that is longer"], padding="max_length", truncation=True, max_length=6)
    before = used.backend_tokenizer.to_str()
    assert before != encoder.tokenizer.backend_tokenizer.to_str()
    known.check(load(encoder.model, tokenizer=used))
    assert used.backend_tokenizer.to_str() == before


def test_without_a_tokenizer_only_the_model_is_compared(known, encoder):
    assert tokenization(load(encoder.model)) is None
    known.check(load(encoder.model))


def test_other_special_tokens_are_refused(known, encoder):
    other = copy.deepcopy(tokenizer())
    other.mask_token = other.unk_token
    with pytest.raises(BadInput, match=r"special tokens \[0, 101, 102, 103\] and .* has \[0, 101, 102\]"):
        known.check(load(encoder.model, tokenizer=other))
