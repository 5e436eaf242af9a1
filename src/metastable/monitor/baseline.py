"""What an encoder does on clean texts: fitted detectors, scales, calibration; learned from a stream of texts, saved.

A saved baseline is a folder of `baseline.json` (what it is) and `baseline.safetensors` (all arrays), the one with the
checksum of the other and one of itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metastable import files
from metastable.arrays import whole
from metastable.encoder.load import Encoder, load
from metastable.errors import BadInput
from metastable.monitor.alarm import Alarm
from metastable.monitor.calibrate import Learning, special_of
from metastable.monitor.detectors import DETECTORS
from metastable.monitor.detectors.base import Detector
from metastable.monitor.identity import checksum, configuration, tokenization
from metastable.monitor.scoring import SETTINGS, Scorer, wholes, within
from metastable.monitor.split import Split
from metastable.run import storage as store

SCHEMA = "metastable.baseline/2"
FILES = ("baseline.json", "baseline.safetensors")


class Baseline:
    """What is normal for one encoder.

    encoder_name, fingerprint : of the encoder; the latter is of its weights
    configuration, tokenizer : digests of the encoder's, see `identity`; None for a tokenizer that has none
    special : numbers of the tokens that are no words
    settings : by name, the `Scorer` of each setting
    facts : about the texts it was made of: `parts` (texts in each), `left_out` (by reason), `cut`, `tokens`, `lengths`
        (least, median and most tokens of a text), `documents` (in each part, None without labels), `commonest` (see
        `Split`), `seed`, `versions`

    A loaded baseline has its detectors once `check` has seen the encoder: they read its layers.
    """

    def __init__(
        self,
        encoder_name: str,
        fingerprint: str,
        configuration: str,
        tokenizer: str | None,
        special: tuple[int, ...],
        settings: dict[str, Scorer],
        facts: dict[str, Any],
        arrays: dict[str, dict[str, np.ndarray]],
    ) -> None:
        """arrays : by the name of a detector, what it learned."""
        self.encoder_name, self.fingerprint, self.special = encoder_name, fingerprint, special
        self.configuration, self.tokenizer = configuration, tokenizer
        self.settings, self.facts = settings, facts
        self._arrays = arrays
        self._detectors: dict[str, Detector] | None = None

    @classmethod
    def fit(
        cls,
        model: Any,
        texts: Iterable[str],
        *,
        documents: Iterable[Any] | None = None,
        seed: int = 0,
        batch_size: int = 32,
        progress: Callable[[int], None] | None = None,
        allow_pickle: bool = False,
        tokenizer: Any = None,
    ) -> Baseline:
        """Learn what is normal from clean texts, read once and kept in temporary files, not in memory.

        model : a folder, a hub id, a model of transformers, or an `Encoder` as `load` gives it
        texts : about 1400 at least; they should be what the encoder is to be watched on, in all its variety. Unusable
            ones are left out and counted.
        documents : one label a text; texts of one document are dependent and stay in one part. See `Split`.
        seed : decides which document goes to which part
        progress : called after each batch with the number of texts that went through the model so far; texts that
            detectors are fitted on go through it more than once
        """
        whole(seed, "seed", 0, "it must be a whole number, 0 or more")
        whole(batch_size, "batch_size", 1, "it must be at least 1")
        encoder = model if isinstance(model, Encoder) else load(model, allow_pickle, tokenizer)
        encoder.reads_text()
        with Split(seed) as split:
            split.take(texts, documents)
            split.check()
            learning = Learning(encoder, split, batch_size, progress)
            arrays = learning.detectors()
            made_with = (encoder.name, encoder.fingerprint, configuration(encoder), tokenization(encoder))
            found = cls(*made_with, learning.special, {}, {}, arrays)
            found.check(encoder)
            found.settings = learning.scorers(SETTINGS, found.detectors)
            found.facts = {**learning.facts(), "seed": int(seed), "versions": store.versions()}
        return found

    @property
    def detectors(self) -> dict[str, Detector]:
        """By name, fitted."""
        if self._detectors is None:
            raise BadInput("the baseline has not seen its encoder yet; call check(encoder) first")
        return self._detectors

    def check(self, encoder: Encoder) -> None:
        """Refuse any encoder but the one that the baseline was made with; make the detectors ready for that one."""
        self._check_same("weights", self.fingerprint, encoder.fingerprint, encoder.name)
        self._check_same("configuration", self.configuration, configuration(encoder), encoder.name)
        other = tokenization(encoder)
        if self.tokenizer is not None and other is not None:
            self._check_same("tokenizer", self.tokenizer, other, encoder.name)
        if encoder.tokenizer is not None and (special := special_of(encoder.tokenizer)) != self.special:
            raise BadInput(
                f"the baseline knows the special tokens {[*self.special]} and {encoder.name!r} has {[*special]}; "
                "calibrate again for this one"
            )
        if self._detectors is not None:
            return
        detectors = {name: DETECTORS[name].blank(encoder) for name in self._arrays}
        for scorer in self.settings.values():
            scorer.check(detectors)
        for name, detector in detectors.items():
            detector.restore(self._arrays[name])
        self._detectors = detectors

    def _check_same(self, what: str, own: str, other: str, name: str) -> None:
        if own != other:
            raise BadInput(
                f"the baseline was made with {self.encoder_name!r} ({what} {own[:12]}), not with {name!r} "
                f"({what} {other[:12]}); calibrate again for this one"
            )

    def alarm(self, setting: str = "light", alpha: float = 0.01, delta: float | None = None) -> Alarm:
        """A new alarm for the p-values of a setting (`Judged.p_alarm`)."""
        if setting not in self.settings:
            raise BadInput(f"setting is {setting!r}; the baseline has {', '.join(sorted(self.settings))}")
        return self.settings[setting].alarm(alpha, delta)

    def save(self, path: str | Path) -> None:
        """Write the baseline into a folder, whole or not at all. Only another baseline is replaced."""
        folder = Path(path).resolve()
        check_free(folder)
        temporary = _beside(folder, "tmp")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            self._write(temporary)
            _exchange(temporary, folder)
        except OSError as error:
            why = f"the baseline cannot be written to {str(path)!r}: {error.strerror or error}"
            raise BadInput(f"{why}; free some space or give another folder") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _write(self, folder: Path) -> None:
        from safetensors.numpy import save

        arrays = {f"detector.{d}.{k}": a for d, own in self._arrays.items() for k, a in own.items()}
        arrays |= {f"setting.{s}.{k}": a for s, scorer in self.settings.items() for k, a in scorer.to_arrays().items()}
        # safetensors takes the bytes as they lie in memory, whatever the strides.
        data = save({name: np.ascontiguousarray(a) for name, a in arrays.items()})
        with open(folder / FILES[1], "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "encoder": self.encoder_name,
            "fingerprint": self.fingerprint,
            "configuration": self.configuration,
            "tokenizer": self.tokenizer,
            "special": list(self.special),
            "facts": self.facts,
            "detectors": {name: sorted(own) for name, own in self._arrays.items()},
            "settings": {name: scorer.to_dict() for name, scorer in self.settings.items()},
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        content["checksum"] = checksum(content)
        files.write_text(folder / FILES[0], json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Baseline:
        """A saved baseline. Damage of any kind is one line, and no code in it is run."""
        folder = Path(path)
        content = _description(folder)
        arrays = _tensors(folder, content)
        try:
            settings = {
                name: Scorer.from_arrays(name, kept, within(arrays, f"setting.{name}."))
                for name, kept in content["settings"].items()
            }
            encoder, fingerprint, configured = (content[name] for name in ("encoder", "fingerprint", "configuration"))
            special, tokenizer, facts = wholes(content["special"], "special"), content["tokenizer"], content["facts"]
            of_detectors = _of_detectors(content["detectors"], arrays)
            if (
                not isinstance(facts, dict)
                or not all(isinstance(word, str) for word in (encoder, fingerprint, configured))
                or not isinstance(tokenizer, str | None)
                or set(settings) != set(SETTINGS)
                or not set(of_detectors) <= set(DETECTORS)
            ):
                raise ValueError("its names, facts, settings or detectors are not what they should be")
            return cls(encoder, fingerprint, configured, tokenizer, special, settings, facts, of_detectors)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise BadInput(f"the baseline {str(path)!r} is damaged ({_line(error)}); calibrate again") from error


def _of_detectors(names: Mapping[str, list[str]], arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    found = {detector: within(arrays, f"detector.{detector}.") for detector in names}
    for detector, wanted in names.items():
        if missing := sorted(set(wanted) - set(found[detector])):
            raise BadInput(f"no array {missing[0]!r} of {detector}")
    return found


def check_free(folder: Path) -> None:
    """Refuse to write over anything but a baseline: what else is in the folder would be gone with it."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise BadInput(f"{str(folder)!r} is a file; give a folder for the baseline")
    held = sorted(entry.name for entry in folder.iterdir())
    if other := [name for name in held if name not in FILES]:
        raise BadInput(f"the folder {str(folder)!r} holds {other[0]!r}, which is no part of a baseline; give another")
    if held:
        try:
            content = _content(folder)
        except BadInput as error:
            raise BadInput(f"{error}; to write a new baseline there, remove the folder first") from error
        # A damaged or an older one may be replaced.
        if not str(content.get("schema")).startswith(SCHEMA.partition("/")[0] + "/"):
            raise BadInput(f"{FILES[0]} in {str(folder)!r} is of something else; remove the folder first")


def check_writable(folder: Path) -> None:
    """Refuse, before any work is done, a folder that `Baseline.save` could not write; nothing is left behind.

    A folder is made where the new one would be, under the name that `save` uses, and removed. What cannot be known is
    whether the disk will have room.
    """
    try:
        folder = folder.resolve()
        check_free(folder)
        if os.path.ismount(folder):
            raise BadInput(f"{str(folder)!r} is a mount point, which cannot be replaced whole; give a folder inside it")
        place = next(parent for parent in folder.parents if parent.exists())
        trial = place / _beside(folder, "tmp").name
        shutil.rmtree(trial, ignore_errors=True)
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        why = f"a baseline cannot be written to {str(folder)!r}: {error.strerror or error}"
        raise BadInput(f"{why}; give another folder") from error


def _beside(folder: Path, ending: str) -> Path:
    return folder.with_name(f".{folder.name}.{os.getpid()}.{ending}")


def _exchange(new: Path, folder: Path) -> None:
    """Put a new folder in the place of another. Whatever happens in between, one of the two is there afterwards."""
    old = _beside(folder, "old")
    try:
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(folder, old)
        os.replace(new, folder)
    finally:
        if old.exists() and not folder.exists():
            os.replace(old, folder)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)


def _description(folder: Path) -> dict[str, Any]:
    """baseline.json, of this schema and as it was written."""
    content, name = _content(folder), repr(str(folder))
    if content.get("schema") != SCHEMA:
        raise BadInput(f"{name} has the schema {content.get('schema')!r}, not {SCHEMA!r}; calibrate again")
    kept = content.pop("checksum", None)
    try:
        own = checksum(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{FILES[0]} of {name} cannot be read ({_line(error)}); calibrate again") from error
    if own != kept:
        raise BadInput(f"{FILES[0]} of {name} was altered: its checksum is not the one it holds; calibrate again")
    return content


def _content(folder: Path) -> dict[str, Any]:
    path, name = folder / FILES[0], repr(str(folder))
    if not path.is_file():
        raise BadInput(f"{name} is no baseline: it holds no {FILES[0]}; give a folder that `calibrate` wrote")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{FILES[0]} of {name} cannot be read ({_line(error)}); calibrate again") from error
    if not isinstance(content, dict):
        raise BadInput(f"{FILES[0]} of {name} has the schema None, not {SCHEMA!r}; calibrate again")
    return content


def _tensors(folder: Path, content: Mapping[str, Any]) -> dict[str, np.ndarray]:
    from safetensors.numpy import load as read

    name = f"{FILES[1]} of {str(folder)!r}"
    try:
        data = (folder / FILES[1]).read_bytes()
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror or error}; calibrate again") from error
    if hashlib.sha256(data).hexdigest() != content.get("sha256"):
        raise BadInput(f"{name} is cut off or altered: its checksum is not the one in {FILES[0]}; calibrate again")
    try:
        return dict(read(data))
    except Exception as error:
        raise BadInput(f"{name} holds no tensors ({_line(error)}); calibrate again") from error


def _line(error: BaseException) -> str:
    """On one line; a KeyError alone would only be a word."""
    words = " ".join(str(error).split())
    return f"no {words}" if isinstance(error, KeyError) else words[:160] or type(error).__name__
