"""Dealing clean texts to the three parts of a baseline, in one pass over them and in no memory to speak of.

Detectors are fitted on "fit", lengths and scales on "adjust", p-values on "calibrate". No text may be in two of them: a
detector knows the texts that it was fitted on, finds them less strange than new ones, and p-values ranked among them
come out too small. A text goes where the SHA-256 of its document says, so its part depends neither on the order of the
texts nor on which others there are.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import IO, Any

from metastable.encoder.texts import blank, unusable
from metastable.errors import BadInput
from metastable.monitor.conformal import needed

SHARES = {"fit": 0.4, "adjust": 0.2, "calibrate": 0.4}
"""The parts, and the share of documents that goes to each."""

DELTA = 0.1
"""Of the calibration-conditional p-values: with probability 1 − δ over calibration sets they hold."""

LEAST = {"fit": 400, "adjust": 150, "calibrate": needed(0.01, DELTA)}
"""Texts that each part needs at least.

calibrate: below this no text, however strange, has a calibration-conditional p-value of 0.01 or less.
adjust: five numbers a column are regressed on length, and the tail of a score is read off its upper tenth: 15 texts.
fit: a covariance of pooled vectors, one a text, is still mostly its shrinkage target below a text a dimension or so.
"""

TOKENS = 20
"""Tokens for each dimension that "fit" needs at least: with T tokens in d dimensions a token that was not fitted on
has a Mahalanobis distance about 1/(1 − d/T) times too large, 5 % here."""

DOCUMENTS = 60
"""Documents that "calibrate" needs at least, where texts have labels.

Texts of one document are dependent, and m texts of few documents say less than m independent ones, which all promises
are for. Where scores within documents depended strongly on each other, 17 % of clean streams raised an alarm of
α = 1 % with 20 documents of 30 texts, and none with 60 of 10.
"""

MANY = 200
"""Documents that do in all: of 200, fewer than `DOCUMENTS` go to "calibrate" once in a thousand times."""

COUNTED = 100_000
"""Most documents of a part that are told apart; their number is never said to be more."""

COMMON = 2000
"""Counters for texts that repeat: a text's count is too small by at most 1/2001 of all texts."""

END = object()


def part_of(document: str, seed: int) -> str:
    """The part of a document: the first 64 bits of SHA-256 of seed and document, as a share of 2⁶⁴, fall into it."""
    digest = hashlib.sha256(f"{seed}\n{document}".encode("utf-8", "surrogatepass")).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    for part, share in SHARES.items():
        if place < share:
            return part
        place -= share
    return "calibrate"


class Commonest:
    """How often the most frequent of many texts occurs, in memory for `COMMON` of them (Misra and Gries 1982).

    A text without a counter takes a free one, and where there is none every counter goes down by 1: each such step
    takes away COMMON + 1 texts at once, so there are at most texts/(COMMON + 1) of them.
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
        """Of the most frequent text among all: exact for up to `COMMON` different ones, else up to 1/2001 too small."""
        return max(self._counts.values(), default=0) / max(self.texts, 1)


class Split:
    """Clean texts in their parts, kept in temporary files that are gone when the context ends, however it does.

    A text's document is its label where `documents` are given, else the text itself but for white space: equal texts
    are never in two parts then. With labels whole documents stay together, and a sentence that stands in two documents
    may be in two parts. A document that makes up a share of all texts makes up 2.5 times that of the calibration texts,
    or nothing, and p-values are off by as much: no matter for one in a hundred, much for one in five.

    counts : texts in each part
    left_out : texts that cannot be used, by reason
    commonest : the most frequent text, but for white space
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.commonest = Commonest()
        self._labels: dict[str, set[int]] = {part: set() for part in SHARES}
        self._unlabelled: Counter[str] = Counter()
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> Split:
        for part in SHARES:
            # Without a name wherever the system can: not even a killed process leaves it behind.
            self._files[part] = tempfile.TemporaryFile(prefix="metastable-")
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    @property
    def texts(self) -> int:
        """Of all parts."""
        return sum(self.counts.values())

    @property
    def documents(self) -> dict[str, int] | None:
        """In each part, up to `COUNTED`, a text without a label being one of its own; None where no text has one."""
        if not any(self._labels.values()):
            return None
        return {part: min(len(own) + self._unlabelled[part], COUNTED) for part, own in self._labels.items()}

    def take(self, texts: Iterable[str], documents: Iterable[Any] | None = None) -> None:
        """Deal all texts out; `documents` gives one label a text."""
        if isinstance(texts, str):
            raise BadInput(f"texts is one string, {texts[:20]!r}; give a list of strings or read_texts(path)")
        pairs = ((text, None) for text in texts) if documents is None else zip_longest(texts, documents, fillvalue=END)
        for number, (text, label) in enumerate(pairs):
            if text is END or label is END:
                fewer = "texts" if text is END else "documents"
                raise BadInput(f"there are only {number} {fewer}; documents must hold one label for each text")
            if not isinstance(text, str):
                raise BadInput(f"text {number} is of type {type(text).__name__}; texts must be strings")
            self._take(text, label)

    def _take(self, text: str, label: Any) -> None:
        if reason := "blank" if blank(text) else unusable(text):
            self.left_out[reason.partition(";")[0]] += 1
            return
        words = " ".join(text.split())
        document = words if label is None else str(label)
        part = part_of(document, self.seed)
        self.counts[part] += 1
        self.commonest.add(words)
        if label is None:
            self._unlabelled[part] += 1
        elif len(self._labels[part]) < COUNTED:
            self._labels[part].add(hash(document))
        self._files[part].write(json.dumps(text, ensure_ascii=False).encode() + b"\n")

    def read(self, part: str) -> Iterator[str]:
        """The texts of a part in the order in which they came; one reading of a part at a time."""
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
    """One line where a part has too few texts: how many it has, how many it needs, how many texts to give."""
    short = {part: least for part, least in LEAST.items() if counts.get(part, 0) < least}
    if not short:
        return
    found = ", ".join(f"{counts.get(part, 0)} to {part} (needs {least})" for part, least in short.items())
    unused = f" ({left_out.total()} could not be used)" if left_out else ""
    total = sum(counts.values())
    raise BadInput(f"{total} clean texts{unused} are too few: {found}; give about {wanted(counts)}")


def wanted(counts: dict[str, int]) -> int:
    """How many texts would do, in hundreds: by the shares, or by what the texts at hand gave where documents are large.

    A tenth more than the mean need, which leaves room for chance: at 1400 texts, three standard deviations and more.
    """
    need = max(least / SHARES[part] for part, least in LEAST.items())
    total = sum(counts.values())
    if total >= need:
        # A part that got next to nothing says little about how much more it would get.
        need = max(total * least / max(counts.get(part, 0), least / 10) for part, least in LEAST.items())
    return 100 * math.ceil(1.1 * need / 100)
