"""Texts of many lengths without a file and a small encoder on the disk."""

from __future__ import annotations

import random

from tests.encoder import models

WORDS = ["the", "a", "ferry", "island", "bridge", "river", "committee", "report", "harbour", "rain", "winter", "music"]
WORDS += ["engine", "market", "teacher", "garden", "paper", "leaves", "reads", "closes", "opens", "carries", "sings"]
WORDS += ["sells", "finds", "before", "after", "under", "against", "slowly", "often", "never", "green", "old", "quiet"]


def sentences(count, seed=0, longest=14):
    """Texts of one to `longest` words; every fortieth is blank, and a few are far longer than the others."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        length = 60 if number % 211 == 7 else rng.randint(1, longest)
        found.append("" if number % 40 == 11 else " ".join(rng.choices(WORDS, k=length)).capitalize() + ".")
    return found


def write(path, texts):
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def save_small(folder):
    """A tiny BERT with the real tokenizer."""
    models.tiny("bert", vocab_size=30522).save_pretrained(folder)
    models.tokenizer().save_pretrained(folder)
    return folder
