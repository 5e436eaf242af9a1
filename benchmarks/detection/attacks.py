"""Gradient-chosen changes (HotFlip: Ebrahimi et al., ACL 2018) against the sentence embedding of an encoder.

One swap at a time: with the gradient g_i of the aim at the input embedding of token i, the swap of token a for token b
changes the aim by about ⟨E_b − E_a, g_i⟩, and the best (i, b) is taken. Only whole words of one token are swapped for
such words, so the attacked string is read back by the tokenizer as the tokens that were chosen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from metastable.encoder.load import Encoder

Aim = Callable[[Tensor, Tensor], Tensor]
"""(embeddings (texts, d), numbers of the texts (texts,)) to what the attacker wants large, (texts,)."""


def embeddings(hidden: Tensor, mask: Tensor) -> Tensor:
    """Sentence embeddings as MiniLM makes them: the mean over all tokens, special ones too, on the unit sphere."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * weights).sum(dim=1) / weights.sum(dim=1), dim=-1)


@dataclass(frozen=True)
class Attacked:
    """The attacked texts, the words swapped in each, and the cosine of the embeddings before and after."""

    texts: list[str]
    swaps: list[int]
    cosines: list[float]


def words_of(encoder: Encoder, texts: Sequence[str] | None = None, least: int = 5) -> Tensor:
    """Tokens that may be swapped in: whole lower-case words; with texts, only those that occur there often enough."""
    tokenizer = encoder.reads_text()
    allowed = torch.zeros(len(tokenizer), dtype=torch.bool)
    for word, number in tokenizer.get_vocab().items():
        allowed[number] = word.isascii() and word.isalpha() and len(word) > 1
    if texts is not None:
        counts = torch.zeros(len(tokenizer), dtype=torch.long)
        for row in tokenizer(list(texts), add_special_tokens=False)["input_ids"]:
            counts.index_add_(0, torch.tensor(row, dtype=torch.long), torch.ones(len(row), dtype=torch.long))
        allowed &= counts >= least
    return allowed


def along_a_direction(count: int, width: int, seed: int) -> Aim:
    """⟨embedding, u⟩ with a random unit vector u for each text."""
    directions = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    directions = torch.nn.functional.normalize(directions, dim=-1)
    return lambda found, numbers: (found * directions[numbers]).sum(dim=-1)


def away(before: Tensor, seed: int) -> Aim:
    """1 − cos(embedding, embedding before), with a little of a random direction: the gradient is zero at the start."""
    nudge = along_a_direction(before.shape[0], before.shape[1], seed)
    return lambda found, numbers: 1 - (found * before[numbers]).sum(dim=-1) + 0.05 * nudge(found, numbers)


def against_a_probe(direction: Tensor, offset: float, before: Tensor) -> Aim:
    """The margin of a linear probe's wrong class: −y (⟨w, embedding⟩ + w₀), y the sign before the attack."""
    signs = torch.sign(before @ direction + offset)
    return lambda found, numbers: -signs[numbers] * (found @ direction + offset)


def towards(targets: Tensor) -> Aim:
    """⟨embedding, another text's embedding⟩, one target for each text, (texts, d)."""
    return lambda found, numbers: (found * targets[numbers]).sum(dim=-1)


def attack(
    encoder: Encoder, texts: Sequence[str], aim: Aim, allowed: Tensor, share: float, enough: float = float("inf")
) -> Attacked:
    """Swap at most `share` of each text's words (at least one), or until the aim is above `enough`.

    allowed : (vocabulary,) of bool, the tokens that may be swapped in.
    """
    tokenizer, model = encoder.reads_text(), encoder.model
    table = model.get_input_embeddings().weight.detach()
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    found: dict[int, tuple[str, int, float]] = {}
    for start in range(0, len(texts), 32):
        numbers = order[start : start + 32]
        inputs = tokenizer([texts[number] for number in numbers], return_tensors="pt", padding=True, truncation=True)
        work = _Batch(inputs, _swappable(tokenizer, inputs["input_ids"]), torch.tensor(numbers))
        budget = (share * work.free.sum(dim=1)).long().clamp_min(1)
        cosines, swaps = _climb(model, table, work, aim, allowed, budget, enough)
        for place, number in enumerate(numbers):
            ids = work.inputs["input_ids"][place][inputs["attention_mask"][place].bool()]
            text = tokenizer.decode(ids, skip_special_tokens=True)
            found[number] = (text, int(swaps[place]), float(cosines[place]))
    rows = [found[number] for number in range(len(texts))]
    return Attacked([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])


@dataclass
class _Batch:
    """inputs : of the model, changed as swaps are made; free : (texts, n), places that may still be swapped."""

    inputs: Any
    free: Tensor
    numbers: Tensor


def _swappable(tokenizer: Any, ids: Tensor) -> Tensor:
    """(texts, n) of bool: whole words of one token."""
    names = [tokenizer.convert_ids_to_tokens(row.tolist()) for row in ids]
    whole = torch.tensor([[name.isalpha() and name.isascii() for name in row] for row in names])
    goes_on = torch.tensor([[name.startswith("##") for name in row[1:]] + [False] for row in names])
    return whole & ~goes_on


def _climb(
    model: Any, table: Tensor, work: _Batch, aim: Aim, allowed: Tensor, budget: Tensor, enough: float
) -> tuple[Tensor, Tensor]:
    """Make the swaps in `work`; the cosine between the embeddings before and after, and the swaps made, (texts,)."""
    candidates = allowed.nonzero().flatten()
    swaps = torch.zeros_like(budget)
    before = None
    rows = torch.arange(len(budget))
    while True:
        ids, mask = work.inputs["input_ids"], work.inputs["attention_mask"]
        inputs = table[ids].requires_grad_(True)
        with torch.enable_grad():
            hidden = model(inputs_embeds=inputs, attention_mask=mask).last_hidden_state
            value = aim(embeddings(hidden, mask), work.numbers)
            (gradient,) = torch.autograd.grad(value.sum(), inputs)
        now = embeddings(hidden.detach(), mask)
        before = now if before is None else before
        going = (swaps < budget) & work.free.any(dim=1) & (value.detach() <= enough)
        if not going.any():
            return (now * before).sum(dim=-1), swaps
        gains = gradient @ table[candidates].T - (gradient * inputs.detach()).sum(dim=-1, keepdim=True)
        gains.masked_fill_(~work.free.unsqueeze(-1), -torch.inf)
        best = gains.flatten(1).argmax(dim=1)
        place, token = best // len(candidates), candidates[best % len(candidates)]
        ids[rows[going], place[going]] = token[going]
        work.free[rows[going], place[going]] = False
        swaps += going.long()


FLIPS = 6
"""Misspellings that are tried for a word."""


def misspell(encoder: Encoder, texts: Sequence[str], share: float, seed: int) -> Attacked:
    """Greedy character flips: the words with the largest gradients, each in the spelling that moves the text most.

    In `share` of each text's words of four letters or more (at least one) one letter is replaced, left out, doubled
    or swapped with its neighbour: of FLIPS such spellings the one after which the embedding is farthest from where it
    was is kept, one word after another. (TextBugger: Li et al., NDSS 2019, with letters only.)
    """
    chance = random.Random(seed)
    found, flips = [], []
    before = embedded(encoder, texts)
    for number, text in enumerate(texts):
        words = text.split()
        long = [place for place, word in enumerate(words) if len(word) > 3 and word.isalpha()]
        loud = _loudness(encoder, words)
        chosen = [place for _, place in sorted((-loud[p], p) for p in long)][: max(1, round(share * len(words)))]
        for place in chosen:
            tries = [[*words[:place], _flipped(words[place], chance), *words[place + 1 :]] for _ in range(FLIPS)]
            moved = embedded(encoder, [" ".join(other) for other in tries]) @ before[number]
            words = tries[int(moved.argmin())]
        found.append(" ".join(words))
        flips.append(len(chosen))
    cosines = (embedded(encoder, found) * before).sum(dim=-1)
    return Attacked(found, flips, cosines.tolist())


def _flipped(word: str, chance: random.Random) -> str:
    place = chance.randrange(len(word) - 1)
    kind = chance.randrange(4)
    letter = chance.choice("abcdefghijklmnopqrstuvwxyz")
    middle = (letter, "", 2 * word[place], word[place + 1] + word[place])[kind]
    return word[:place] + middle + word[place + (2 if kind == 3 else 1) :]


def _loudness(encoder: Encoder, words: list[str]) -> list[float]:
    """For each word, the longest gradient of |mean hidden state|² at its tokens' input embeddings."""
    inputs = encoder.reads_text()([words], is_split_into_words=True, return_tensors="pt", truncation=True)
    of_word = inputs.word_ids(0)
    table = encoder.model.get_input_embeddings().weight.detach()
    vectors = table[inputs["input_ids"]].requires_grad_(True)
    with torch.enable_grad():
        hidden = encoder.model(inputs_embeds=vectors, attention_mask=inputs["attention_mask"]).last_hidden_state
        (gradient,) = torch.autograd.grad(hidden.mean(dim=1).square().sum(), vectors)
    loud = [0.0] * len(words)
    for size, word in zip(gradient[0].norm(dim=-1).tolist(), of_word, strict=True):
        if word is not None:
            loud[word] = max(loud[word], size)
    return loud


def trigger(encoder: Encoder, texts: Sequence[str], allowed: Tensor, words: int, rounds: int, seed: int) -> list[str]:
    """A universal trigger (Wallace et al., EMNLP 2019): the words that, put before any text, move all one way.

    The aim is the mean of ⟨embedding, u⟩ over `texts` with one random direction u. In turn each of the words is
    replaced by the allowed one that raises the aim most to first order, summed over the texts.
    """
    tokenizer, model = encoder.reads_text(), encoder.model
    table = model.get_input_embeddings().weight.detach()
    direction = torch.randn(table.shape[1], generator=torch.Generator().manual_seed(seed))
    direction = direction / direction.norm()
    candidates = allowed.nonzero().flatten()
    own = torch.full((words,), tokenizer.convert_tokens_to_ids("the"))
    inputs = tokenizer(list(texts), return_tensors="pt", padding=True, truncation=True, max_length=64)
    for turn in range(rounds * words):
        ids = torch.cat([inputs["input_ids"][:, :1], own.expand(len(texts), -1), inputs["input_ids"][:, 1:]], dim=1)
        mask = torch.cat([torch.ones(len(texts), words, dtype=torch.long), inputs["attention_mask"]], dim=1)
        vectors = table[ids].requires_grad_(True)
        with torch.enable_grad():
            hidden = model(inputs_embeds=vectors, attention_mask=mask).last_hidden_state
            (gradient,) = torch.autograd.grad((embeddings(hidden, mask) @ direction).sum(), vectors)
        place = turn % words
        own[place] = candidates[(table[candidates] @ gradient[:, 1 + place].sum(dim=0)).argmax()]
    return [str(word) for word in tokenizer.convert_ids_to_tokens(own.tolist())]


def embedded(encoder: Encoder, texts: Sequence[str]) -> Tensor:
    """Sentence embeddings, (texts, d)."""
    found = []
    with torch.inference_mode():
        for start in range(0, len(texts), 32):
            part = list(texts[start : start + 32])
            inputs = encoder.reads_text()(part, return_tensors="pt", padding=True, truncation=True)
            found.append(embeddings(encoder.model(**inputs).last_hidden_state, inputs["attention_mask"]))
    return torch.cat(found).clone()
