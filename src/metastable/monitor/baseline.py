"""A baseline: what is normal for one encoder, learned from clean texts and saved.

A saved baseline is a folder of `baseline.json` (description) and `baseline.safetensors` (all arrays). The description
has a checksum of itself and of the arrays.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.arrays import whole
from metastable.encoder.hooks import Open, Passage, Reader, Watch
from metastable.encoder.identity import checksum, configuration, tokenization
from metastable.encoder.load import Encoder, load
from metastable.encoder.texts import TextCounts, batches
from metastable.errors import BadInput, choice
from metastable.files import read_folder, read_json, replacing, write, write_json
from metastable.monitor import passes
from metastable.monitor.coverage import coverage
from metastable.monitor.detectors import DETECTORS
from metastable.monitor.detectors.base import Detector, Taught
from metastable.monitor.exposure import called
from metastable.monitor.length_adjustment import shaped
from metastable.monitor.scoring import SETTINGS, ColumnTable, Scale, Scorer, Setting, Spoilt, wholes, within
from metastable.monitor.split import TOKENS, Split, digest, enough
from metastable.monitor.spoiling import spoilt, with_copies
from metastable.notebook import curve, table
from metastable.versions import versions

if TYPE_CHECKING:
    from metastable.monitor.review import Review

SCHEMA = "metastable.baseline/9"
FILES = ("baseline.json", "baseline.safetensors")
# The page that `calibrate` writes beside them.
REPORT = "report.html"

NO_TOKEN = "without a token of its own"
# Most bars in the histogram of lengths.
BARS = 40

# Spoilt copies that are made of a part: as many as `COPIES` for each text, but at most `MOST`.
COPIES, MOST = 3, 6000


@dataclass(eq=False, repr=False)
class Baseline:
    """What is normal for one encoder.

    encoder_name : the name of the encoder
    fingerprint, configuration, tokenizer : digests of the encoder's weights, configuration and tokenizer; see
        `identity`. None for a tokenizer that cannot be serialised.
    special : ids of the special tokens
    settings : the `Scorer` of each setting, by name
    facts : about the clean texts: `parts` (texts in each), `left_out` (by reason), `cut`, `tokens`, `lengths` (least,
        median and most tokens of a text, a histogram), `coverage` (false positives on clean texts by setting, see
        `monitor.coverage`), `documents` (in each part, None without labels), `commonest`
        (the share of the most frequent text), `seed`, `versions`
    arrays : what each detector learned, by the detector's name
    accepted : reviewed texts that joined the calibration texts later, one entry for each call of `accept`: `when`
        (UTC), `by`, `texts` (their number), `documents` (None without labels), `sha256` (of each text, see
        `split.digest`) and `warnings` (what spoke against it)
    known : (texts,), the `split.short_digest` of each clean text, so that `review` does not take it for a new one
    fitted : the `split.short_digest` of the label of each document that detectors or scales were fitted on

    A loaded baseline has its detectors after `check` has seen the encoder, because they read its layers.
    """

    encoder_name: str
    fingerprint: str
    configuration: str
    tokenizer: str | None
    special: tuple[int, ...]
    settings: dict[str, Scorer]
    facts: dict[str, Any]
    arrays: dict[str, dict[str, np.ndarray]]
    accepted: tuple[dict[str, Any], ...] = ()
    known: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    fitted: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    _detectors: dict[str, Detector] | None = field(default=None, init=False)

    def __repr__(self) -> str:
        settings = "; ".join(
            f"{name}: {', '.join(map(called, own.setting.terms))}" for name, own in self.settings.items()
        )
        later = sum(entry["texts"] for entry in self.accepted)
        texts = f"{sum(self.facts['parts'].values())} clean texts" + (f" and {later} accepted later" if later else "")
        return f"Baseline({self.encoder_name}, {texts}; {settings})"

    def _repr_html_(self) -> str:
        """The baseline in a notebook."""
        parts, lengths = self.facts["parts"], self.facts["lengths"]
        rows: dict[str, object] = {
            "clean texts": ", ".join(f"{count} to {part}" for part, count in parts.items()),
            "tokens of a text": f"{lengths['least']} to {lengths['most']}, median {lengths['median']}",
        }
        for name, scorer in self.settings.items():
            rows[f"setting {name}"] = (
                f"{', '.join(map(called, scorer.setting.terms))}; smallest p-value {scorer.least:.2g}"
            )
        histogram = lengths.get("histogram")
        drawn = (
            curve(histogram["edges"][:-1], histogram["counts"], "clean texts by number of tokens", low=0.0, ends=False)
            if histogram
            else ""
        )
        return table(f"Baseline of {self.encoder_name}", rows, drawn)

    @classmethod
    def fit(
        cls,
        model: Any,
        texts: Iterable[str],
        *,
        documents: Iterable[Any] | None = None,
        seed: int = 0,
        batch_size: int = 32,
        progress: Callable[[int, int], None] | None = None,
        allow_pickle: bool = False,
        tokenizer: Any = None,
    ) -> Baseline:
        """Learn what is normal from clean texts. They are read once and kept in temporary files, not in memory.

        The model is not touched: all passes run on modules of their own that share its weights.

        model : a folder, a hub id, an ONNX file, a model of transformers or sentence-transformers, or an `Encoder` from
            `load`
        texts : at least about 1400, as varied as the texts that the encoder will be watched on. Texts that cannot be
            used are left out and counted.
        documents : one label per text. Texts of one document are dependent and stay in one part; see `Split`.
        seed : decides which document goes to which part
        progress : called after each batch with the number of texts that went through the model so far, and with the
            number of all; texts that detectors are fitted on go through it more than once
        """
        whole(seed, "seed", 0, "it must be a whole number, 0 or more")
        whole(batch_size, "batch_size", 1, "it must be at least 1")
        encoder = load(model, allow_pickle, tokenizer, weights=False)
        encoder.reads_text()
        with Split(seed) as split:
            split.take(texts, documents)
            split.check()
            learning = _Learning(encoder.private(), split, batch_size, progress)
            arrays = learning.detectors()
            made_with = (encoder.name, encoder.fingerprint, configuration(encoder), tokenization(encoder))
            found = cls(*made_with, learning.special, {}, {}, arrays)
            found.check(encoder)
            found.settings = learning.scorers(found.detectors)
            learning.end()
            found.facts = {**learning.facts(), "seed": int(seed), "versions": versions()}
            found.known, found.fitted = (
                np.unique(np.array(own, dtype=np.uint64)) for own in (split.known, split.fitted)
            )
        return found

    def review(
        self,
        model: Any,
        texts: Iterable[str],
        *,
        documents: Iterable[Any] | None = None,
        batch_size: int = 32,
        progress: Callable[[int, int], None] | None = None,
        allow_pickle: bool = False,
        tokenizer: Any = None,
    ) -> Review:
        """What it would change to accept these texts as clean ones. The parameters are those of `fit`."""
        from metastable.monitor.review import Review

        encoder = load(model, allow_pickle, tokenizer, weights=False)
        self.check(encoder)
        encoder.reads_text()
        return Review.of(self, encoder, texts, documents, batch_size, progress)

    def accept(self, model: Any, texts: Iterable[str], by: str | None = None, **options: Any) -> Baseline:
        """A new baseline with reviewed texts among its calibration texts: `review(model, texts, …).accepted(by)`.

        See `metastable.monitor.review` for what is then promised.
        """
        return self.review(model, texts, **options).accepted(by)

    @property
    def detectors(self) -> dict[str, Detector]:
        """The fitted detectors by name."""
        if self._detectors is None:
            raise BadInput("the baseline has not seen its encoder yet; call check(encoder) first")
        return self._detectors

    def check(self, encoder: Encoder) -> None:
        """Refuse any encoder but the one that the baseline was made with, and prepare the detectors for it."""
        self._check_same("weights", self.fingerprint, encoder.fingerprint, encoder.name)
        self._check_same("configuration", self.configuration, configuration(encoder), encoder.name)
        other = tokenization(encoder)
        if self.tokenizer is not None and other is not None:
            self._check_same("tokenizer", self.tokenizer, other, encoder.name)
        if encoder.tokenizer is not None and (special := special_of(encoder.tokenizer)) != self.special:
            raise BadInput(
                f"the baseline has the special tokens {[*self.special]} and {encoder.name!r} has {[*special]}; "
                "calibrate again for this one"
            )
        if self._detectors is not None:
            return
        detectors = {name: DETECTORS[name](encoder) for name in self.arrays}
        for scorer in self.settings.values():
            scorer.check(detectors)
        for name, detector in detectors.items():
            detector.restore(self.arrays[name])
        self._detectors = detectors

    def _check_same(self, what: str, own: str, other: str, name: str) -> None:
        if own != other:
            raise BadInput(
                f"the baseline was made with {self.encoder_name!r} ({what} {own[:12]}), not with {name!r} "
                f"({what} {other[:12]}); calibrate again for this one"
            )

    def scorer(self, setting: str) -> Scorer:
        """The scorer of a setting; BadInput if there is no such setting."""
        return self.settings[choice(setting, "setting", self.settings)]

    def report(self, path: str | Path) -> Path:
        """Write a page about the baseline: what it is, and false positives on clean texts. It needs no network."""
        from metastable.monitor import baseline_report

        return baseline_report.write(self, path)

    @property
    def usual_lengths(self) -> tuple[int, int]:
        """The fewest and the most tokens of 99 % of the clean texts; see `TailAdjustment.usual`."""
        # All settings are adjusted on the same texts.
        return next(iter(self.settings.values())).scale.tail.usual

    def save(self, path: str | Path) -> None:
        """Write the baseline into a folder, completely or not at all. Only another baseline is replaced."""
        folder = Path(path).resolve()
        check_free(folder)
        with replacing(folder) as temporary:
            temporary.mkdir()
            self._write(temporary)

    def _write(self, folder: Path) -> None:
        from safetensors.numpy import save

        arrays = {f"detector.{d}.{k}": a for d, own in self.arrays.items() for k, a in own.items()}
        arrays |= {f"setting.{s}.{k}": a for s, scorer in self.settings.items() for k, a in scorer.to_arrays().items()}
        arrays |= {"known": self.known, "fitted": self.fitted}
        # safetensors takes the bytes as they lie in memory, whatever the strides.
        data = save({name: np.ascontiguousarray(a) for name, a in arrays.items()})
        write(folder / FILES[1], lambda file: file.write_bytes(data))
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "encoder": self.encoder_name,
            "fingerprint": self.fingerprint,
            "configuration": self.configuration,
            "tokenizer": self.tokenizer,
            "special": list(self.special),
            "facts": self.facts,
            "detectors": {name: sorted(own) for name, own in self.arrays.items()},
            "settings": {name: scorer.to_dict() for name, scorer in self.settings.items()},
            "accepted": list(self.accepted),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        write_json(folder / FILES[0], {**content, "checksum": checksum(content)})

    @classmethod
    def load(cls, path: str | Path) -> Baseline:
        """A saved baseline. Damage of any kind is a BadInput, and no code in the files is run.

        If `save` replaces it meanwhile, the old one or the new one is loaded.
        """
        return read_folder(Path(path), cls._read)

    @classmethod
    def _read(cls, path: Path) -> Baseline:
        content = _content(path)
        if content.get("schema") != SCHEMA:
            raise BadInput(f"{str(path)!r} has the schema {content.get('schema')!r}, not {SCHEMA!r}; calibrate again")
        try:
            arrays = _verified(path, content)
            names = content["encoder"], content["fingerprint"], content["configuration"]
            special, tokenizer, facts = wholes(content["special"], "special"), content["tokenizer"], content["facts"]
            used = {name: setting.only(content["detectors"]) for name, setting in SETTINGS.items()}
            settings = {
                name: Scorer.from_arrays(setting, content["settings"][name], within(arrays, f"setting.{name}."))
                for name, setting in used.items()
            }
            of_detectors = {name: within(arrays, f"detector.{name}.") for name in _members(used)}
            if (
                not isinstance(facts["parts"], dict)
                or not all(isinstance(word, str) for word in names)
                or not isinstance(tokenizer, str | None)
                or {name: sorted(own) for name, own in of_detectors.items()} != content["detectors"]
            ):
                raise ValueError("its names, facts or detectors are not what they should be")
            accepted = _accepted(content["accepted"])
            digests = (shaped(arrays, name, (-1,)) for name in ("known", "fitted"))
            return cls(*names, tokenizer, special, settings, facts, of_detectors, accepted, *digests)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            # The text of a KeyError is only the key.
            why = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:160]
            raise BadInput(f"the baseline {str(path)!r} is damaged ({why}); calibrate again") from error


class _Learning:
    """The passes of a private encoder over the parts of a split, in memory that barely grows with the texts.

    A text of the "adjust" or the "calibrate" part leaves a few numbers behind: its columns.

    special : ids of the special tokens
    coverage : false positives on clean texts, by setting; see `coverage`
    """

    def __init__(
        self, encoder: Encoder, split: Split, batch_size: int, progress: Callable[[int, int], None] | None
    ) -> None:
        self.encoder, self.split, self.batch_size, self.progress = encoder, split, batch_size, progress
        self.special = special_of(encoder.reads_text())
        readable = [name for name, kind in DETECTORS.items() if encoder.has_weights or not kind.needs_weights]
        self._settings = {name: setting.only(readable) for name, setting in SETTINGS.items()}
        self.coverage: dict[str, list[dict[str, Any]]] = {}
        self._done = 0
        # Texts that detectors are fitted on go through the model once for each stage, and once more beside their
        # spoilt copies.
        stages = max(DETECTORS[name].stages for name in _members(self._settings))
        self._passes = split.texts + (stages - 1) * split.counts["fit"] + (1 + COPIES) * self._taught + self._copies
        self._counts: dict[str, TextCounts] = {}
        self._lengths: Counter[int] = Counter()

    @property
    def _copies(self) -> int:
        """The number of spoilt copies of the "adjust" part."""
        return min(COPIES * self.split.counts["adjust"], MOST)

    @property
    def _taught(self) -> int:
        """The number of texts of the "fit" part that spoilt copies are made of."""
        return min(self.split.counts["fit"], MOST // COPIES)

    def _some(self, part: str, most: int) -> list[str]:
        """At most so many texts of a part, in an order that does not depend on the order in which they came."""
        return nsmallest(most, self.split.read(part), key=digest)

    def detectors(self) -> dict[str, dict[str, np.ndarray]]:
        """What each detector of the settings learns from the "fit" part, by its name."""
        found = {name: DETECTORS[name](self.encoder) for name in _members(self._settings)}
        for stage in range(max(detector.stages for detector in found.values())):
            learners = [detector for detector in found.values() if stage < detector.stages]
            self._pass("fit", learners, partial(passes.learning, learners, stage))
            self._check_tokens()
            for detector in learners:
                detector.settle(stage)
        self._teach([detector for detector in found.values() if isinstance(detector, Taught)])
        return {name: detector.to_arrays() for name, detector in found.items()}

    def _teach(self, learners: list[Taught]) -> None:
        """Fit detectors on texts of the "fit" part beside spoilt copies of them."""
        own, vocabulary = self._some("fit", self._taught), list(self.encoder.reads_text().get_vocab())
        texts, kinds = with_copies(own, own, vocabulary, COPIES * self._taught, self.split.seed)
        order = self._run(texts, learners, partial(passes.learning, learners, 0), TextCounts())
        for learner in learners:
            learner.teach(kinds[order])

    def _check_tokens(self) -> None:
        counts, d = self._counts["fit"], self.encoder.anatomy.layers[0].width
        tokens = counts.tokens - counts.special
        if tokens < TOKENS * d:
            more = -(-TOKENS * d * self.split.texts // max(tokens, 1))
            raise BadInput(
                f"the clean texts are too few: {tokens} tokens to fit {d} dimensions, which needs {TOKENS * d}; "
                f"give about {100 * (-(-more * 11 // 1000))} texts like these"
            )

    def scorers(self, detectors: Mapping[str, Detector]) -> dict[str, Scorer]:
        """Scales fitted on "adjust", calibrated on "calibrate"."""
        adjust = ColumnTable.joined(self._tables("adjust", detectors))
        calibrate = ColumnTable.joined(self._tables("calibrate", detectors))
        halves = np.frombuffer(self.split.halves, dtype=np.uint8)[self._order]
        owners = np.array(self.split.owners, dtype=np.uint64)[self._order]
        copies = self._spoilt(detectors)
        found = {}
        for name, setting in self._settings.items():
            scale = Scale.of(setting, detectors, adjust, copies)
            found[name] = Scorer.of(scale, calibrate, owners)
            self.coverage[name] = coverage(partial(Scorer.of, scale), calibrate, halves)
        return found

    def _spoilt(self, detectors: Mapping[str, Detector]) -> Spoilt:
        """The columns of spoilt copies of the "adjust" part."""
        texts = self._some("adjust", MOST)
        vocabulary = list(self.encoder.reads_text().get_vocab())
        made = spoilt(texts, texts, vocabulary, self._copies, self.split.seed)
        tables: list[ColumnTable] = []
        own, collect = [copy.text for copy in made], _collecting(detectors, tables)
        places = self._run(own, detectors.values(), collect, TextCounts())
        return Spoilt(ColumnTable.joined(tables), np.array([copy.kind for copy in made])[places])

    def _tables(self, part: str, detectors: Mapping[str, Detector]) -> list[ColumnTable]:
        """The columns of each batch of a part."""
        tables: list[ColumnTable] = []
        self._order = self._pass(part, detectors.values(), _collecting(detectors, tables))
        for own in tables:
            self._lengths.update(own.lengths.tolist())
        # Some texts turn out to be empty when they are tokenized.
        known = {part: self._counts[part].texts if part in self._counts else n for part, n in self.split.counts.items()}
        enough(known, self._left_out())
        return tables

    def _pass(self, part: str, detectors: Collection[Detector], open: Open) -> np.ndarray:
        """Returns the numbers of the texts within their part, in the order in which they were read."""
        counts = TextCounts()
        order = self._run(self.split.read(part), detectors, open, counts)
        counts.check_known()
        self._counts[part] = counts
        return order

    def _run(self, texts: Iterable[str], detectors: Collection[Detector], open: Open, counts: TextCounts) -> np.ndarray:
        """Run the encoder on texts; their numbers in the order in which they went through it."""
        encoder = self.encoder
        order: list[int] = []
        depths, projected = passes.depths(detectors), passes.projected(detectors)
        with Reader(encoder.model, encoder.anatomy, self.special, depths, open, projected=projected):
            for batch in batches(encoder.tokenizer, texts, encoder.limit, self.batch_size, counts):
                encoder.run(batch.inputs)
                order += batch.numbers.tolist()
                self._done += len(batch.numbers)
                if self.progress is not None:
                    self.progress(self._done, self._passes)
        return np.array(order, dtype=np.int64)

    def _left_out(self) -> Counter[str]:
        skipped = sum(counts.skipped for counts in self._counts.values())
        return self.split.left_out + Counter({NO_TOKEN: skipped})

    def end(self) -> None:
        """Report that all is done: some copies are equal to their text and were not made."""
        if self.progress is not None:
            self.progress(self._passes, self._passes)

    def facts(self) -> dict[str, Any]:
        """Facts about the texts, see `Baseline`."""
        return {
            "parts": {part: counts.texts for part, counts in self._counts.items()},
            "left_out": dict(sorted(self._left_out().items())),
            "documents": self.split.documents,
            "commonest": self.split.commonest.share,
            "cut": sum(counts.cut for counts in self._counts.values()),
            "tokens": sum(counts.tokens - counts.special for counts in self._counts.values()),
            "unknown": sum(counts.unknown for counts in self._counts.values()),
            "coverage": self.coverage,
            "lengths": _lengths(np.sort(np.fromiter(self._lengths.elements(), dtype=np.int64))),
        }


def _lengths(sorted_lengths: np.ndarray) -> dict[str, Any]:
    """Facts about lengths, for JSON: extremes, median and a histogram."""
    least, most, n = int(sorted_lengths[0]), int(sorted_lengths[-1]), len(sorted_lengths)
    edges = np.arange(least, most + 1 + (width := -(-(most + 1 - least) // BARS)), width)
    counts = np.histogram(sorted_lengths, edges - 0.5)[0]
    return {
        "least": least,
        "median": int(sorted_lengths[n // 2]),
        "most": most,
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
    }


def special_of(tokenizer: Any) -> tuple[int, ...]:
    """Ids of the special tokens of a tokenizer. An unknown word is a word."""
    return tuple(sorted(set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}))


def _members(settings: Mapping[str, Setting]) -> list[str]:
    """The names of the detectors that the settings use."""
    return list(dict.fromkeys(name for setting in settings.values() for name in setting.members))


def _collecting(detectors: Mapping[str, Detector], tables: list[ColumnTable]) -> Open:
    """Reads every pass with all detectors, and appends its columns to the tables."""

    def open(passage: Passage) -> Watch:
        return passes.reading(detectors, passage, lambda table, tokens: tables.append(table))

    return open


def check_free(folder: Path) -> None:
    """Refuse to replace anything but a baseline: other files in the folder would be lost."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise BadInput(f"{str(folder)!r} is a file; give a folder for the baseline")
    held = sorted(entry.name for entry in folder.iterdir())
    if other := [name for name in held if name not in (*FILES, REPORT)]:
        raise BadInput(f"the folder {str(folder)!r} holds {other[0]!r}, which is no part of a baseline; give another")
    # A damaged or an older baseline may be replaced.
    if held and not str(_content(folder).get("schema")).startswith(SCHEMA.partition("/")[0] + "/"):
        raise BadInput(f"{FILES[0]} in {str(folder)!r} is of something else; remove the folder first")


def check_writable(folder: Path) -> None:
    """Refuse, before any work is done, a folder that `Baseline.save` could not write.

    A folder is made and removed where the new one will be, under the temporary name that `save` uses. Whether the disk
    will have room is not checked.
    """
    try:
        folder = folder.resolve()
        check_free(folder)
        if os.path.ismount(folder):
            raise BadInput(f"{str(folder)!r} is a mount point, which cannot be replaced whole; give a folder inside it")
        place = next(parent for parent in folder.parents if parent.exists())
        trial = place / f".{folder.name}.tmp"
        shutil.rmtree(trial, ignore_errors=True)
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        why = f"a baseline cannot be written to {str(folder)!r}: {error.strerror or error}"
        raise BadInput(f"{why}; give another folder") from error


def _accepted(entries: Any) -> tuple[dict[str, Any], ...]:
    """The saved entries of accepted texts; ValueError if one is not what it should be."""
    for entry in entries:
        if (
            set(entry) != {"when", "by", "texts", "documents", "sha256", "warnings"}
            or not isinstance(entry["when"], str)
            or not isinstance(entry["by"], str | None)
            or not isinstance(entry["documents"], int | None)
            or not all(isinstance(words, str) for words in entry["warnings"])
            or len(entry["sha256"]) != entry["texts"]
            or not all(isinstance(one, str) and re.fullmatch("[0-9a-f]{64}", one) for one in entry["sha256"])
        ):
            raise ValueError("its accepted texts are not what they should be")
    return tuple(entries)


def _content(folder: Path) -> dict[str, Any]:
    path = folder / FILES[0]
    if not path.is_file():
        raise BadInput(f"{str(folder)!r} is no baseline: it holds no {FILES[0]}; give a folder that `calibrate` wrote")
    return read_json(path, "the description of a baseline", remedy="remove the folder and calibrate again")


def _verified(folder: Path, content: dict[str, Any]) -> dict[str, np.ndarray]:
    """The arrays, if the checksums of the description and of the arrays fit; ValueError otherwise."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as read

    if content.pop("checksum", None) != checksum(content):
        raise ValueError(f"{FILES[0]} was altered: its checksum is not the one it holds")
    try:
        data = (folder / FILES[1]).read_bytes()
        if hashlib.sha256(data).hexdigest() != content["sha256"]:
            raise ValueError(f"cut off or altered: its checksum is not the one in {FILES[0]}")
        return dict(read(data))
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"{FILES[1]}: {error}") from error
