"""Tables of features for the clean texts and for every shift, fitted on one split of documents, kept in the cache."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import shifts
import torch
from corpora import CACHE
from features import GROUPS, Features, Table, principal
from states import States, states
from torch import Tensor

from metastable.encoder.loading import Encoder
from metastable.encoder.measuring import Meter

FIT = 2000
"""Texts that covariances, rarity and neighbours are fitted on, at least; whole documents."""


def fit_split(domain: str) -> tuple[list[int], list[int], list[str]]:
    """Places among the clean texts: those to fit on and the rest, and the documents of the rest."""
    clean = shifts.parts(domain)["clean"]
    documents: dict[str, list[int]] = {}
    for place, text in enumerate(clean):
        documents.setdefault(text.document, []).append(place)
    order = sorted(documents)
    random.Random(0).shuffle(order)
    fit: list[int] = []
    rest: list[int] = []
    for document in order:
        (fit if len(fit) < min(FIT, len(clean) // 2) else rest).extend(documents[document])
    return fit, rest, [clean[place].document for place in rest]


def subspaces(encoder: Encoder, fit: States) -> dict[str, list[Tensor]]:
    """At the input of each layer: the span of its heads' E, a random and a principal subspace of the same rank."""
    found: dict[str, list[Tensor]] = {"E": [], "random": [], "PCA": []}
    chance = torch.Generator().manual_seed(0)
    for depth, lens in enumerate(Meter(encoder).lenses):
        left, sizes, _ = torch.linalg.svd(lens.prediction.basis.double(), full_matrices=False)
        e = left[:, sizes > 1e-6 * sizes[0]].float()
        rank = e.shape[1]
        found["E"].append(e)
        found["random"].append(torch.linalg.qr(torch.randn(len(e), rank, generator=chance)).Q)
        x = torch.from_numpy(fit.tokens[:, depth].astype(np.float32))
        found["PCA"].append(principal(x, rank))
    return found


class Tables:
    """Feature tables of one encoder and domain; everything is computed at the first asking."""

    def __init__(self, encoder: Encoder, domain: str) -> None:
        self.encoder, self.domain = encoder, domain
        self.texts = [text.text for text in shifts.parts(domain)["clean"]]
        self.fit, self.rest, self.documents = fit_split(domain)
        self._features: Features | None = None
        self._clean: States | None = None

    def clean(self) -> Table:
        """The clean texts that nothing was fitted on."""
        return self._table([self.texts[place] for place in self.rest], whole=True)

    def shifted(self, name: str) -> Table:
        return self._table(shifts.shift(name, self.domain, self.encoder))

    def _table(self, texts: list[str], whole: bool = False) -> Table:
        key = hashlib.sha256("\n".join([self.encoder.fingerprint, self.domain, *texts]).encode()).hexdigest()[:16]
        path = CACHE / f"table-{key}.npz"
        table: Table = {}
        if path.is_file():
            with np.load(path) as saved:
                table = {name: saved[name] for name in saved.files}
        absent = [name for name in GROUPS if name not in table]
        if absent:
            own = self._states().take(self.rest) if whole else states(self.encoder, texts)
            if self._features is None:
                fit = self._states().take(self.fit)
                self._features = Features(fit, lambda: subspaces(self.encoder, fit))
            table |= {"lengths": own.lengths} | {name: self._features.group(name, own) for name in absent}
            np.savez(path, allow_pickle=False, **table)
        return {name: table[name] for name in ("lengths", *GROUPS)}

    def _states(self) -> States:
        if self._clean is None:
            self._clean = states(self.encoder, self.texts)
        return self._clean
