"""What an encoder does on clean texts: fitted detectors, scales, calibration; learned from a stream of texts, saved.

A saved baseline is a folder of `baseline.json` (what it is) and `baseline.safetensors` (all arrays), the one with the
checksum of the other.
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

from metastable import store
from metastable.arrays import whole
from metastable.encoder.loading import Encoder, load
from metastable.errors import BadInput
from metastable.monitor.alarms import Alarm
from metastable.monitor.detectors import DETECTORS
from metastable.monitor.detectors.base import Detector
from metastable.monitor.learning import Learning
from metastable.monitor.scoring import SETTINGS, Scorer, within
from metastable.monitor.splitting import Split

SCHEMA = "metastable.baseline/1"
FILES = ("baseline.json", "baseline.safetensors")


class Baseline:
    """What is normal for one encoder.

    encoder_name, fingerprint : of the encoder
    special : numbers of the tokens that are no words
    settings : by name, the `Scorer` of each setting
    facts : about the texts it was made of: `parts` (texts in each), `left_out` (by reason), `cut`, `tokens`, `lengths`
        (least, median and most tokens of a text), `seed`, `versions`

    A loaded baseline has its detectors once `check` has seen the encoder: they read its layers.
    """

    def __init__(
        self,
        encoder_name: str,
        fingerprint: str,
        special: tuple[int, ...],
        settings: dict[str, Scorer],
        facts: dict[str, Any],
        arrays: dict[str, dict[str, np.ndarray]],
    ) -> None:
        """arrays : by the name of a detector, what it learned."""
        self.encoder_name, self.fingerprint, self.special = encoder_name, fingerprint, special
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
            found = cls(encoder.name, encoder.fingerprint, learning.special, {}, {}, arrays)
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
        if encoder.fingerprint != self.fingerprint:
            own, other = self.fingerprint[:12], encoder.fingerprint[:12]
            raise BadInput(
                f"the baseline was made with {self.encoder_name!r} (weights {own}), not with {encoder.name!r} "
                f"(weights {other}); calibrate again for this one"
            )
        if self._detectors is not None:
            return
        detectors = {name: DETECTORS[name].blank(encoder) for name in self._arrays}
        for name, detector in detectors.items():
            detector.restore(self._arrays[name])
        self._detectors = detectors

    def alarm(self, setting: str = "light", alpha: float = 0.01, delta: float | None = None) -> Alarm:
        """A new alarm for the p-values of a setting (`Judged.p_alarm`)."""
        if setting not in self.settings:
            raise BadInput(f"setting is {setting!r}; the baseline has {', '.join(sorted(self.settings))}")
        return self.settings[setting].alarm(alpha, delta)

    def save(self, path: str | Path) -> None:
        """Write the baseline into a folder, whole or not at all. Only another baseline is replaced."""
        folder = Path(path).resolve()
        check_free(folder)
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            self._write(temporary)
            if folder.exists():
                os.replace(folder, old)
            try:
                os.replace(temporary, folder)
            except OSError:
                if old.exists():
                    os.replace(old, folder)
                raise
        except OSError as error:
            why = f"the baseline cannot be written to {str(path)!r}: {error.strerror or error}"
            raise BadInput(f"{why}; free some space or give another folder") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)

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
        content = {
            "schema": SCHEMA,
            "encoder": self.encoder_name,
            "fingerprint": self.fingerprint,
            "special": list(self.special),
            "facts": self.facts,
            "detectors": {name: sorted(own) for name, own in self._arrays.items()},
            "settings": {name: scorer.to_dict() for name, scorer in self.settings.items()},
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        store.write_text(folder / FILES[0], json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

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
            special = tuple(map(int, content["special"]))
            of_detectors = _of_detectors(content["detectors"], arrays)
            if (
                not isinstance(content["facts"], dict)
                or not settings
                or not set(content["detectors"]) <= set(DETECTORS)
            ):
                raise ValueError("facts, settings or detectors are not what they should be")
            return cls(
                str(content["encoder"]), str(content["fingerprint"]), special, settings, content["facts"], of_detectors
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
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
            _description(folder)
        except BadInput as error:
            raise BadInput(f"{error}; to write a new baseline there, remove the folder first") from error


def _description(folder: Path) -> dict[str, Any]:
    """baseline.json, of this schema."""
    path, name = folder / FILES[0], repr(str(folder))
    if not path.is_file():
        raise BadInput(f"{name} is no baseline: it holds no {FILES[0]}; give a folder that `calibrate` wrote")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{FILES[0]} of {name} cannot be read ({_line(error)}); calibrate again") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise BadInput(f"{name} has the schema {schema!r}, not {SCHEMA!r}; calibrate again")
    return dict(content)


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
