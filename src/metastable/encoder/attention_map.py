"""What the tokens of one text attend to, in one head of an encoder."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from metastable.arrays import whole
from metastable.encoder.hooks import caught
from metastable.encoder.load import Encoder
from metastable.encoder.loop import layer_of
from metastable.encoder.texts import batches
from metastable.errors import BadInput


@dataclass(frozen=True)
class AttentionMap:
    """The attention of one head on one text.

    tokens : the n tokens as the tokenizer writes them, special tokens included
    attention : (n, n), a_ij = softmax_j(s_ij); row i says what token i attends to
    """

    tokens: list[str]
    attention: Tensor

    def strongest(self) -> list[tuple[str, str, float]]:
        """For each token: the token that it attends to most, and the share of its attention there."""
        shares, places = self.attention.max(dim=1)
        found = zip(self.tokens, places.tolist(), shares.tolist(), strict=True)
        return [(token, self.tokens[place], share) for token, place, share in found]


def attention_map(encoder: Encoder, text: str, layer: int, head: int) -> AttentionMap:
    """The attention of a head on a text, from the queries and keys of a forward pass of the whole encoder."""
    found, private, tokenizer = layer_of(encoder, layer), encoder.private(), encoder.reads_text()
    if whole(head, "head", 0, "heads are counted from 0") >= found.heads:
        raise BadInput(f"head is {head}; layer {layer} has heads 0 to {found.heads - 1}")
    batch = next(iter(batches(tokenizer, [text], encoder.limit, 1)), None)
    if batch is None:
        raise BadInput("the text has no tokens; give a text with words in it")
    block = private.anatomy.blocks[layer]
    with caught(block.linears) as seen:
        private.run(batch.inputs)
    outputs = [seen[linear][1] for linear in block.linears]
    query, key, _ = outputs if len(outputs) > 1 else outputs[0].chunk(3, dim=-1)
    q, k = (rows.unflatten(-1, (found.heads, -1)).transpose(1, 2) for rows in (query, key))
    scores = found.scale * (q @ k.transpose(-1, -2)) if found.scores is None else found.scores(q, k)
    ids = batch.inputs["input_ids"][0].tolist()
    return AttentionMap(tokenizer.convert_ids_to_tokens(ids), scores[0, head].softmax(dim=-1).cpu())
