"""Why attention and embeddings change between n₀ and n tokens: each change as a sum of named parts.

**Attention.** A document of n tokens is cut into pieces of n₀ tokens. For each head, the entropy goes in steps from
that of a piece alone to that of the whole document; each part is the difference of two steps:

- *more tokens*: every token of the piece gets the same multiplicity; the entropy grows by log(N/N₀), whatever the head;
- *near tokens*: they do not multiply (see `dilution`);
- *special tokens*: they do not multiply; what a head gains or loses because its sinks lose weight;
- *positions*: the piece is read at the positions that it has in the document instead of at the first ones;
- *other scores*: what is left. In the whole document tokens have other scores, because they have other contexts.

**Embeddings.** The mean cosine between embeddings of different documents goes in steps from n₀ to n tokens:

- *averaging*: the mean of the embeddings of all pieces instead of the embedding of the first piece. The mean over more
  content is closer to the corpus mean; an ideal encoder does this too;
- *positions*: pieces at the positions that they have in the document, after the special token at its beginning;
- *attention*: the whole document at once instead of pieces: tokens attend to other pieces too.

Encoders without a table of positions have no part *positions*.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metastable.encoder.length.intervals import jackknife
from metastable.encoder.length.rung import Floats, Rung, unit

ATTENTION = ("more tokens", "near tokens", "special tokens", "positions", "other scores")
EMBEDDINGS = ("averaging", "positions", "attention")


def attention_parts(early: Sequence[Rung], own: Sequence[Rung] | None, whole: Rung) -> dict[str, Floats]:
    """The parts of the change of the entropy, by name, each (documents, layers, heads).

    early, own : the pieces of all documents at the first and at their own positions, with the target n; own is None
        without a table of positions
    """
    alone = _mean([piece.heads["entropy"] for piece in early])
    steps = {name: _mean([piece.steps[name] for piece in early]) for name in ("all", "near", "atoms")}
    placed = steps["atoms"] if own is None else _mean([piece.steps["atoms"] for piece in own])
    path = [alone, steps["all"], steps["near"], steps["atoms"], placed, whole.heads["entropy"]]
    found = {name: after - before for name, before, after in zip(ATTENTION, path, path[1:], strict=False)}
    if own is None:
        del found["positions"]
    return found


def embedding_parts(
    early: Sequence[Rung], own: Sequence[Rung] | None, whole: Rung
) -> dict[str, tuple[float, float, float]]:
    """The parts of the change of the cosine between documents, each with its interval of 95 % over documents."""
    averaged = _mean([unit(piece.pooled) for piece in early])
    placed = None if own is None else _mean([unit(piece.pooled) for piece in own])
    path = [early[0].pooled, averaged, placed, whole.pooled]
    names = [name for name, after in zip(EMBEDDINGS, path[1:], strict=True) if after is not None]
    known = [embeddings for embeddings in path if embeddings is not None]
    similar = [leave_one_out(embeddings) for embeddings in known]
    return {
        name: jackknife(after[0] - before[0], after[1] - before[1])
        for name, before, after in zip(names, similar, similar[1:], strict=False)
    }


def leave_one_out(embeddings: Floats) -> tuple[float, Floats]:
    """The mean cosine over pairs of different documents, and the same without each document in turn, (documents,)."""
    directions = unit(embeddings)
    m = len(directions)
    gram = directions @ directions.T
    rows = gram.sum(axis=1) - gram.diagonal()
    total = rows.sum()
    return total / (m * (m - 1)), (total - 2 * rows) / ((m - 1) * (m - 2))


def agreement(early: Sequence[Rung], whole: Rung) -> Floats:
    """The cosine between the embedding of each document and the mean of the embeddings of its pieces, (documents,)."""
    averaged = _mean([unit(piece.pooled) for piece in early])
    return np.asarray((unit(averaged) * unit(whole.pooled)).sum(axis=1))


def _mean(parts: Sequence[Floats]) -> Floats:
    return np.asarray(np.mean(np.stack(parts), axis=0))
