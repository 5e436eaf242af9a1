"""Sharpened attention is the attention of scores times a factor."""

import pytest
import torch

from metastable.encoder.length.temperature import sharpened
from tests.encoder.length.conftest import encoder
from tests.encoder.length.test_rung import inputs

FACTOR = 1.7


@pytest.mark.parametrize("case", ["bert", "modernbert", "albert"])
def test_scores_are_multiplied(case, meter, documents):
    """In the first layer: softmax(factor·s) is proportional to the power `factor` of softmax(s)."""
    own, some = meter(case), inputs(documents.first(2).prefixes(40))
    with torch.no_grad():
        plain = encoder(case)(**some, output_attentions=True).attentions[0]
        with sharpened(own.encoder, FACTOR):
            found = own.encoder.model(**some, output_attentions=True).attentions[0]
    power = plain**FACTOR
    torch.testing.assert_close(found, power / power.sum(dim=-1, keepdim=True), atol=1e-5, rtol=1e-4)


def test_every_layer_is_sharpened_and_the_model_is_as_before(meter, documents):
    own, some = meter("mpnet"), inputs(documents.first(2).prefixes(40))
    scaled = encoder("mpnet")
    with torch.no_grad():
        for layer in scaled.encoder.layer:
            layer.attention.attn.q.weight.mul_(FACTOR)
            layer.attention.attn.q.bias.mul_(FACTOR)
        plain = own.encoder.model(**some).last_hidden_state
        with sharpened(own.encoder, FACTOR):
            found = own.encoder.model(**some).last_hidden_state
        torch.testing.assert_close(found, scaled(**some).last_hidden_state, atol=1e-5, rtol=1e-4)
        assert torch.equal(own.encoder.model(**some).last_hidden_state, plain)
