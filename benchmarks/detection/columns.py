"""The library's detectors, fitted on one split of a domain's documents, and their columns for texts, kept in the cache.

What was computed by other code is computed again: the key of a file in the cache holds the source of the detectors.
"""

from __future__ import annotations

import ast
import hashlib
import json
import random
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import shifts
import torch
from detectors import DETECTORS
from packages import CACHE
from torch import Tensor

import metastable.monitor
from metastable.encoder.hooks import Open, Passage, Reader, Watch
from metastable.encoder.load import Encoder
from metastable.encoder.measure import Meter
from metastable.encoder.texts import batches
from metastable.monitor import passes
from metastable.monitor.baseline import special_of
from metastable.monitor.detectors.base import Detector, Gathering, Taught, adding, chosen_units
from metastable.monitor.detectors.token_mahalanobis import TokenMahalanobis
from metastable.monitor.moments import Moments
from metastable.monitor.scoring import ColumnTable
from metastable.monitor.spoiling import spoilt, with_copies

FIT = 2000
"""Texts that detectors are fitted on, at least, as whole documents; half of the clean texts where these are few."""

COPIES = 2
"""Spoilt copies of each clean text that no detector was fitted on."""

TAUGHT = 3
"""Spoilt copies of each text that detectors are fitted on, as in the library."""

SUBSPACES = ("E", "random", "PCA")
ALL_DEPTHS = "token-mahalanobis, all depths"


def inside(subspace: str) -> str:
    """The name of the token distances within a subspace."""
    return f"token-mahalanobis in {subspace}"


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


def run(encoder: Encoder, texts: Sequence[str], depths: Collection[int], open: Open) -> list[int]:
    """One pass over texts; the places of the texts in the order in which they went through."""
    reader = Reader(encoder.model, encoder.anatomy, special_of(encoder.reads_text()), depths, open)
    places: list[int] = []
    with torch.inference_mode(), reader:
        for batch in batches(encoder.tokenizer, texts, encoder.limit, 32):
            encoder.model(**batch.inputs)
            places += batch.numbers.tolist()
    return places


class Columns:
    """Columns of one encoder in one domain; everything is computed at the first asking.

    ablations : whether the distances in subspaces and at all depths are there too
    """

    def __init__(self, encoder: Encoder, domain: str, ablations: bool = True) -> None:
        self.encoder, self.domain, self.ablations = encoder, domain, ablations
        self.texts = [text.text for text in shifts.parts(domain)["clean"]]
        self.fit, self.rest, self.documents = fit_split(domain)
        self._fitted: dict[str, Detector] | None = None

    def blank(self) -> dict[str, Detector]:
        """Unfitted detectors by name: what their columns are, without what is in them."""
        found = {name: kind(self.encoder) for name, kind in DETECTORS.items()}
        if self.ablations:
            layers = len(self.encoder.anatomy.layers)
            found[ALL_DEPTHS] = _named(TokenMahalanobis(self.encoder, range(layers + 1)), ALL_DEPTHS)
            for subspace in SUBSPACES:
                name = inside(subspace)
                found[name] = _named(TokenMahalanobis(self.encoder, range(layers)), name)
        return found

    def clean(self) -> ColumnTable:
        """The clean texts that nothing was fitted on."""
        return self.table([self.texts[place] for place in self.rest])

    def spoilt(self) -> tuple[ColumnTable, np.ndarray, np.ndarray]:
        """Spoilt copies of these texts: their columns, their kinds, and the place of the text of each."""
        texts, others = ([self.texts[place] for place in places] for places in (self.rest, self.fit))
        vocabulary = list(self.encoder.reads_text().get_vocab())
        made = spoilt(texts, others, vocabulary, COPIES * len(texts), seed=0)
        table = self.table([copy.text for copy in made])
        return table, np.array([copy.kind for copy in made]), np.array([copy.source for copy in made])

    def table(self, texts: Sequence[str]) -> ColumnTable:
        """The columns of texts, in their order."""
        given = [self.encoder.fingerprint, self.domain, str(self.ablations), code(), *texts]
        path = CACHE / f"columns-{hashlib.sha256(json.dumps(given).encode()).hexdigest()[:16]}.npz"
        if not path.is_file():
            found = self._read(texts)
            partial = path.with_suffix(".partial.npz")
            np.savez(partial, allow_pickle=False, **{"lengths": found.lengths, **found.columns})
            partial.rename(path)
        with np.load(path) as saved:
            return ColumnTable({name: saved[name] for name in saved.files if name != "lengths"}, saved["lengths"])

    def _read(self, texts: Sequence[str]) -> ColumnTable:
        detectors = self._detectors()
        tables: list[ColumnTable] = []

        def open(passage: Passage) -> Watch:
            return passes.reading(detectors, passage, lambda table, tokens: tables.append(table))

        places = run(self.encoder, texts, {d for own in detectors.values() for d in own.depths}, open)
        if len(places) != len(texts):
            raise SystemExit(f"{len(texts) - len(places)} texts of {self.domain} have no token of their own")
        return ColumnTable.joined(tables)[np.argsort(places)]

    def _detectors(self) -> dict[str, Detector]:
        if self._fitted is None:
            own = [self.texts[place] for place in self.fit]
            found = self.blank()
            if self.ablations:
                for subspace, bases in subspaces(self.encoder, own).items():
                    name = inside(subspace)
                    found[name] = _named(TokenMahalanobis(self.encoder, range(len(bases)), bases), name)
            _learn(self.encoder, own, list(found.values()))
            self._fitted = found
        return self._fitted


def _named(detector: Detector, name: str) -> Detector:
    detector.name = name  # type: ignore[misc]
    return detector


def _learn(encoder: Encoder, texts: Sequence[str], detectors: list[Detector]) -> None:
    for stage in range(max(detector.stages for detector in detectors)):
        learners = [detector for detector in detectors if stage < detector.stages]

        def open(passage: Passage, stage: int = stage, learners: list[Detector] = learners) -> Watch:
            return passes.learning(learners, stage, passage)

        run(encoder, texts, {depth for detector in learners for depth in detector.depths}, open)
        for detector in learners:
            detector.settle(stage)
    taught = [detector for detector in detectors if isinstance(detector, Taught)]
    vocabulary = list(encoder.reads_text().get_vocab())
    both, kinds = with_copies(texts, texts, vocabulary, TAUGHT * len(texts), seed=1)
    depths = {depth for detector in taught for depth in detector.depths}
    order = run(encoder, both, depths, lambda passage: passes.learning(taught, 0, passage))
    for detector in taught:
        detector.teach(kinds[order])


def subspaces(encoder: Encoder, texts: Sequence[str]) -> dict[str, dict[int, Tensor]]:
    """At the input of each layer: the span of its heads' E, a random and a principal subspace of the same rank.

    By name and depth, orthonormal (d, rank). Principal directions are those of the texts' tokens x̂.
    """
    lenses = Meter(encoder).lenses
    moments = {depth: Moments(encoder.anatomy.layers[0].width) for depth in range(len(lenses))}
    run(encoder, texts, moments, lambda passage: Gathering(chosen_units, adding(moments)))
    found: dict[str, dict[int, Tensor]] = {name: {} for name in SUBSPACES}
    chance = torch.Generator().manual_seed(0)
    for depth, lens in enumerate(lenses):
        left, sizes, _ = torch.linalg.svd(lens.prediction.basis.double(), full_matrices=False)
        e = left[:, sizes > 1e-6 * sizes[0]].float()
        rank = e.shape[1]
        found["E"][depth] = e
        found["random"][depth] = torch.linalg.qr(torch.randn(len(e), rank, generator=chance)).Q
        found["PCA"][depth] = torch.linalg.eigh(moments[depth].covariance).eigenvectors[:, -rank:].float()
    return found


@cache
def code() -> str:
    """SHA-256 of all that columns are made by, as syntax: comments, docstrings and line breaks do not matter."""
    room = Path(metastable.monitor.__file__).parent
    hooks = room.parent / "encoder" / "hooks.py"
    own = Path(__file__).with_name("detectors.py")
    files = [
        *(room / name for name in ("moments.py", "exposure.py", "spoiling.py")),
        hooks,
        own,
        *sorted((room / "detectors").glob("*.py")),
    ]
    return hashlib.sha256("".join(_syntax(file.read_text(encoding="utf-8")) for file in files).encode()).hexdigest()


def _syntax(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                part for part in body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]
    return ast.dump(tree)
