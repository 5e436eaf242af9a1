"""The split of clean texts into the three parts of a baseline, in one pass over them and in bounded memory.

Detectors are fitted on "fit", lengths and scales on "adjust", p-values on "calibrate". No text may be in two parts: the
texts that a detector was fitted on are less anomalous to it than new ones, so p-values ranked among them would be too
small. The SHA-256 of a text's document decides its part, so the part depends neither on the order of the texts nor on
the other texts.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import IO, Any

from metastable.encoder.texts import blank, strings, unusable
from metastable.errors import BadInput
from metastable.monitor.conformal import needed

# The parts, and the share of documents that goes to each.
SHARES = {"fit": 0.4, "adjust": 0.2, "calibrate": 0.4}
# Calibration-conditional p-values are valid with probability 1 − DELTA over calibration sets.
DELTA = 0.1
# The smallest number of texts in each part.
# calibrate: with fewer, no text can have a calibration-conditional p-value of 0.01 or less.
# adjust: five numbers per column are regressed on length, and a score's tail is estimated from its upper tenth.
# fit: with fewer texts than about one per dimension, a covariance of pooled vectors is mostly its shrinkage target.
LEAST = {"fit": 400, "adjust": 150, "calibrate": needed(0.01, DELTA)}
# Tokens per dimension that "fit" needs. With T tokens in d dimensions, a new token has a Mahalanobis distance about
# 1/(1 − d/T) times too large: 5 % at 20.
TOKENS = 20
# Documents that "calibrate" needs, if texts have labels. Texts of one document are dependent, so m texts of few
# documents say less than m independent ones. With strong dependence within documents, 17 % of clean streams raised an
# alarm of α = 1 % for 20 documents of 30 texts, and none for 60 documents of 10 texts.
DOCUMENTS = 60
# Documents that are enough in all: of 200, fewer than `DOCUMENTS` go to "calibrate" once in a thousand times.
MANY = 200
# Most documents of a part that are counted; larger numbers are reported as this one.
COUNTED = 100_000
# Counters for texts that repeat: the count of a text is too small by at most 1/2001 of all texts.
COMMON = 2000

END: Any = object()


def digest(text: str) -> str:
    """SHA-256 of a text in UTF-8, its words joined by single spaces: texts that differ in white space are the same."""
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).hexdigest()


def short_digest(text: str) -> int:
    """The first 64 bits of `digest`."""
    return int(digest(text)[:16], 16)


def _digest(document: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\n{document}".encode("utf-8", "surrogatepass")).digest()


def half_of(document: str, seed: int) -> int:
    """0 or 1: a bit of SHA-256 of seed and document that `part_of` does not use."""
    return _digest(document, seed)[8] & 1


def part_of(document: str, seed: int) -> str:
    """The part of a document: where the first 64 bits of SHA-256 of seed and document, divided by 2⁶⁴, fall."""
    place = int.from_bytes(_digest(document, seed)[:8], "big") / 2**64
    for part, share in SHARES.items():
        if place < share:
            return part
        place -= share
    return "calibrate"


def labelled(texts: Iterable[str], documents: Iterable[Any] | None) -> Iterator[tuple[str, Any]]:
    """Each text with the label of its document, or None; BadInput unless there is one label for each text."""
    given = strings(texts)
    pairs = ((text, None) for text in given) if documents is None else zip_longest(given, documents, fillvalue=END)
    for number, (text, label) in enumerate(pairs):
        if text is END or label is END:
            fewer = "texts" if text is END else "documents"
            raise BadInput(f"there are only {number} {fewer}; documents must hold one label for each text")
        yield text, label


class Commonest:
    """How often the most frequent text occurs, with memory for `COMMON` texts (Misra and Gries 1982).

    A text without a counter takes a free one. If none is free, every counter goes down by 1. Each such step removes
    COMMON + 1 texts at once, so there are at most texts/(COMMON + 1) steps.
    """

    def __init__(self) -> None:
        self.texts = 0
        self._counts: dict[int, int] = {}

    def add(self, text: str) -> None:
        self.texts += 1
        key = hash(text)
        if key in self._counts or len(self._counts) < COMMON:
            self._counts[key] = self._counts.get(key, 0) + 1
        else:
            self._counts = {key: count - 1 for key, count in self._counts.items() if count > 1}

    @property
    def share(self) -> float:
        """The share of the most frequent text: exact for up to `COMMON` texts, else up to 1/2001 too small."""
        return max(self._counts.values(), default=0) / max(self.texts, 1)


class Split:
    """Clean texts in their parts, kept in temporary files that are removed when the context ends.

    A text's document is its label if `documents` are given, else the text itself up to white space, so equal texts are
    never in two parts. With labels, whole documents stay together, and a sentence that occurs in two documents may be
    in two parts. A document that makes up a share s of all texts makes up 2.5 s of the calibration texts, or nothing,
    and p-values are off by as much: little for s = 1 %, much for s = 20 %.

    counts : texts in each part
    left_out : texts that cannot be used, by reason
    commonest : the most frequent text, up to white space
    known : the `short_digest` of each text
    fitted : the `short_digest` of the label of each text with a label that is in "fit" or "adjust"
    halves : for each text of "calibrate", in order, the half that its document belongs to; see `coverage`
    owners : for each text of "calibrate", in order, the `short_digest` of its document
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.commonest = Commonest()
        self.halves = bytearray()
        self.owners = array("Q")
        self.known = array("Q")
        self.fitted = array("Q")
        self._labels: dict[str, set[int]] = {part: set() for part in SHARES}
        self._unlabelled: Counter[str] = Counter()
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> Split:
        for part in SHARES:
            # Files without a name where the system has them: not even a killed process leaves them behind.
            self._files[part] = tempfile.TemporaryFile(prefix="metastable-")
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    @property
    def texts(self) -> int:
        """The number of texts in all parts."""
        return sum(self.counts.values())

    @property
    def documents(self) -> dict[str, int] | None:
        """Documents in each part, up to `COUNTED`; a text without a label is a document. None without any labels."""
        if not any(self._labels.values()):
            return None
        return {part: min(len(own) + self._unlabelled[part], COUNTED) for part, own in self._labels.items()}

    def take(self, texts: Iterable[str], documents: Iterable[Any] | None = None) -> None:
        """Put all texts into their parts; `documents` gives one label per text."""
        for text, label in labelled(texts, documents):
            self._take(text, label)

    def _take(self, text: str, label: Any) -> None:
        if reason := "blank" if blank(text) else unusable(text):
            self.left_out[reason.partition(";")[0]] += 1
            return
        words = " ".join(text.split())
        document = words if label is None else str(label)
        part = part_of(document, self.seed)
        self.counts[part] += 1
        self.known.append(short_digest(text))
        self.commonest.add(words)
        if part == "calibrate":
            self.halves.append(half_of(document, self.seed))
            self.owners.append(short_digest(document))
        if label is None:
            self._unlabelled[part] += 1
        else:
            if part != "calibrate":
                self.fitted.append(short_digest(document))
            if len(self._labels[part]) < COUNTED:
                self._labels[part].add(hash(document))
        self._files[part].write(json.dumps(text, ensure_ascii=False).encode() + b"\n")

    def read(self, part: str) -> Iterator[str]:
        """The texts of a part in the order in which they came. Only one iteration over a part at a time."""
        file = self._files[part]
        file.seek(0)
        for line in file:
            yield json.loads(line)

    def check(self) -> None:
        """Refuse too few texts, and too few documents."""
        enough(dict(self.counts), self.left_out)
        documents = self.documents
        if documents is not None and documents["calibrate"] < DOCUMENTS:
            raise BadInput(
                f"{self.texts} clean texts are from too few documents: {sum(documents.values())}, and "
                f"{documents['calibrate']} of them to calibrate (needs {DOCUMENTS}), because texts of one document are "
                f"not independent of each other; give texts of about {MANY}"
            )


def enough(counts: dict[str, int], left_out: Counter[str]) -> None:
    """Refuse parts with too few texts: how many they have, how many they need, how many texts to give."""
    short = {part: least for part, least in LEAST.items() if counts.get(part, 0) < least}
    if not short:
        return
    found = ", ".join(f"{counts.get(part, 0)} to {part} (needs {least})" for part, least in short.items())
    unused = f" ({left_out.total()} could not be used)" if left_out else ""
    total = sum(counts.values())
    raise BadInput(f"{total} clean texts{unused} are too few: {found}; give about {wanted(counts)}")


def wanted(counts: dict[str, int]) -> int:
    """How many texts would be enough, in hundreds: by the shares, or by the counts if documents are large.

    A tenth more than the mean need leaves room for chance: three standard deviations at 1400 texts.
    """
    need = max(least / SHARES[part] for part, least in LEAST.items())
    total = sum(counts.values())
    if total >= need:
        # The count of a nearly empty part says little about its share.
        need = max(total * least / max(counts.get(part, 0), least / 10) for part, least in LEAST.items())
    return 100 * math.ceil(1.1 * need / 100)
