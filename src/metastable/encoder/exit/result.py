"""The result of `exit_layer`: the layer, the numbers behind it, words, files."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from metastable import files
from metastable.encoder.audit import frame, records
from metastable.encoder.exit.labelled import FOLDS, Label
from metastable.encoder.exit.per_text import DELTA, PerText, needed
from metastable.encoder.exit.probes import Probe
from metastable.encoder.exit.scores import SCORES, Interval, first_score
from metastable.encoder.exit.selection import FIRST
from metastable.encoder.load import Encoder
from metastable.encoder.texts import unknown_tokens

SCHEMA = "metastable.exit/1"
PROBE_SCHEMA = "metastable.probe/1"
NAMES = {"accuracy": "accuracy", "macro_f1": "macro-F₁", "spearman": "Spearman correlation", "r2": "R²"}
"""The scores in words."""
USE = "outputs = weight · ((embedding − mean)/deviation) + bias"


@dataclass(frozen=True)
class Speed:
    """How many times faster the first layers are than all of them: the median and the range over pairs of passes."""

    ratio: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class Exit:
    """The exit layer of an encoder for a task. Made by `exit_layer`, or read from its folder by `Exit.load`.

    depth : L, the number of layers of the encoder
    task : "classes" or "numbers"
    layer : the chosen layer; fold_layers : the layers that the same rule chose without each fold
    baseline : the score without a model: the share of the most frequent class, or 0
    layers : a row for each depth 0, …, L: scores with intervals, differences to full depth, the score that chose the
        layer (chosen_by) and the penalty of the probe
    rules : the same scores for the rule ("earliest"), the best inner layer ("best") and full depth ("full"), from
        predictions of texts that had no part in the choice
    speed : None if full depth is chosen
    per_text : exits per text; None if they were not tried
    probe : of the chosen layer, trained on all texts
    encoder : the whole encoder; None after `load`
    """

    name: str
    family: str
    fingerprint: str
    depth: int
    pooling: str
    task: str
    classes: tuple[Label, ...]
    loss: float
    seed: int
    counts: dict[str, int]
    made: dict[str, str]
    layer: int
    fold_layers: tuple[int, ...]
    baseline: float
    layers: pd.DataFrame
    rules: pd.DataFrame
    speed: Speed | None
    per_text: PerText | None
    probe: Probe
    encoder: Encoder | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"Exit({self.name!r}, {self.family}, layer {self.layer} of {self.depth}, {self.counts['texts']} texts)"

    @property
    def score(self) -> str:
        """The name of the score that chose the layer."""
        return first_score(self.task)

    def of_rule(self, rule: str, score: str | None = None, difference: bool = False) -> Interval:
        """A score of a rule ("earliest", "best" or "full"), or its difference to full depth, with its interval."""
        row = self.rules.set_index("rule").loc[rule]
        return _ends(row, (score or self.score) + ("_difference" if difference else ""))

    def of_depth(self, depth: int, score: str | None = None, difference: bool = False) -> Interval:
        """A score of a depth, or its difference to full depth, with its interval."""
        row = self.layers.set_index("depth").loc[depth]
        return _ends(row, (score or self.score) + ("_difference" if difference else ""))

    @property
    def verdict(self) -> str:
        """What the intervals say.

        "unpredictable" : neither the rule nor full depth is better than the baseline
        "needed" : the layers before the last one are worse than full depth, or the exit loses more than `loss`
        "kept" : full depth is chosen, but the best earlier layer may be as good
        "enough" : the loss of the exit is at most `loss`
        "undecided" : it may be larger
        """
        if max(self.of_rule(rule)[1] for rule in ("earliest", "full")) <= self.baseline:
            return "unpredictable"
        if self.layer == self.depth:
            return "needed" if self.of_depth(self.best_earlier, difference=True)[2] < 0 else "kept"
        _, low, high = self.exit_difference
        return "needed" if high < -self.loss else "enough" if low >= -self.loss else "undecided"

    @property
    def by_rule(self) -> bool:
        """Whether the exit is judged by the rule, with the layer of each fold, or by the chosen layer alone.

        The one whose interval reaches lower is taken. They are the same if all folds chose the same layer.
        """
        rule, layer = self.of_rule("earliest", difference=True), self.of_depth(self.layer, difference=True)
        return rule[1] <= layer[1]

    @property
    def exit_score(self) -> Interval:
        return self.of_rule("earliest") if self.by_rule else self.of_depth(self.layer)

    @property
    def exit_difference(self) -> Interval:
        """To full depth."""
        return self.of_rule("earliest", difference=True) if self.by_rule else self.of_depth(self.layer, difference=True)

    @property
    def best_earlier(self) -> int:
        """The layer with the best score among the layers before the last one."""
        table = self.layers[(self.layers["depth"] >= FIRST) & (self.layers["depth"] < self.depth)]
        return int(table.loc[table[self.score].idxmax(), "depth"])

    @property
    def truncates(self) -> bool:
        """Whether a truncated model is written."""
        return self.verdict in ("enough", "undecided")

    def headline(self) -> str:
        """The result in one sentence."""
        name, verdict = NAMES[self.score], self.verdict
        place, full = f"ayer {self.layer} of {self.depth}", self.of_rule("full")
        if verdict == "unpredictable":
            value, low, high = map(three, full)
            base = f"the share of the most frequent class, {three(self.baseline)}" if self.classes else "0"
            return (
                f"No layer can be chosen: {name} at full depth is {value}, 95 % interval {low} to {high}, not above "
                f"{base}."
            )
        if self.layer == self.depth:
            best = self.best_earlier
            own, change = self.of_depth(best)[0], self.of_depth(best, difference=True)
            start = f"Full depth is {'needed' if verdict == 'needed' else 'chosen'}"
            numbers = f"layer {best} of {self.depth}, the best of the others, has {name} {three(own)}, full depth"
            return f"{start}: {numbers} {three(full[0])}; {_change(change)}."
        numbers = f"{name} {three(self.exit_score[0])}, at full depth {three(full[0])}; {_change(self.exit_difference)}"
        if verdict == "needed":
            return f"Full depth is needed: an exit at l{place} has {numbers}."
        if verdict == "enough":
            return f"L{place} is enough: {numbers}."
        return f"L{place} may be enough, but a loss above {self.loss:g} is not excluded: {numbers}."

    def sentences(self) -> list[str]:
        """The result in words, the headline first."""
        said = [self.headline(), self._agreement(), *self._saving(), *self._others(), self._per_text()]
        return [*said, *unknown_tokens(self.counts)]

    def _agreement(self) -> str:
        same = sum(chosen == self.layer for chosen in self.fold_layers)
        if same == FOLDS:
            return f"All {FOLDS} outer folds chose layer {self.layer}."
        others = Counter(chosen for chosen in self.fold_layers if chosen != self.layer)
        rest = ", ".join(f"{count} chose layer {layer}" for layer, count in sorted(others.items()))
        found = f"{same} of {FOLDS} outer folds chose layer {self.layer}, {rest}"
        if self.layer == self.depth or self.verdict == "unpredictable":
            return f"{found}."
        which = "the layer that each fold chose" if self.by_rule else f"layer {self.layer} in all folds"
        return f"{found}; the numbers above are those of {which}, whose interval reaches lower."

    def _saving(self) -> list[str]:
        if self.speed is None or not self.truncates:
            return ["No truncated model is written."]
        gone, speed = self.depth - self.layer, self.speed
        return [
            f"The exit saves {gone} of {self.depth} layers ({100 * gone / self.depth:.0f} %). A pass is "
            f"{speed.ratio:.2f} times as fast (median of {speed.pairs} pairs of passes, range {speed.low:.2f} to "
            f"{speed.high:.2f})."
        ]

    def _others(self) -> list[str]:
        found = []
        second = next(name for name in SCORES[self.task] if name != self.score)
        own, full = self.of_rule("earliest", second)[0], self.of_rule("full", second)[0]
        change = _change(self.of_rule("earliest", second, difference=True))
        name = NAMES[second][0].upper() + NAMES[second][1:]
        found.append(f"{name} of the rule is {three(own)}, at full depth {three(full)} ({change}).")
        best = self.of_rule("best")[0]
        change = _change(self.of_rule("best", difference=True))
        found.append(f"The layer that is best on inner folds has {NAMES[self.score]} {three(best)} ({change}).")
        if self.verdict != "unpredictable" and self.of_depth(0, difference=True)[1] >= -self.loss:
            change = _change(self.of_depth(0, difference=True))
            found.append(
                f"Token embeddings without any layer have {NAMES[self.score]} {three(self.of_depth(0)[0])} ({change}): "
                "this task does not need an encoder."
            )
        return found

    def _per_text(self) -> str:
        if self.task == "numbers":
            return "Exits per text need probabilities of classes, so they are not offered for a regression."
        found = self.per_text
        if found is None:
            many = needed(self.loss)
            if math.isinf(many):
                return "Exits per text were not tried: no number of texts can promise a loss of 0."
            least = (
                f"about {FOLDS * int(many)} labelled texts or documents are needed to promise a loss of {self.loss:g}"
            )
            return f"Exits per text were not tried: {least}."
        saved, fixed = (f"{value:.2f}" for value in (found.saved, found.fixed))
        low, high = (signed(end, 2) for end in found.gain[1:])
        gain = f"{signed(found.gain[0], 2)}, 95 % interval {low} to {high}"
        if not found.offered:
            why = f"they save {saved} layers per text, it saves {fixed} ({gain})"
            return f"Exits per text do not beat the fixed layer: {why}."
        return (
            f"Exits per text save {saved} layers per text, the fixed layer {fixed} ({gain}); their accuracy is "
            f"{three(found.accuracy)}, that of the fixed layer {three(found.fixed_accuracy)}. With probability "
            f"{100 * (1 - DELTA):g} % they lose at most {self.loss:g} of accuracy on texts like these. "
            "A text needs all layers up to its exit."
        )

    def report(self, path: str | Path) -> Path:
        """Write everything as one HTML file that needs no network."""
        from metastable.encoder.exit.report import write

        return write(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Everything except the probes and the encoder, for JSON, with the verdict and the sentences."""
        plain = {name: value for name, value in vars(self).items() if name not in ("probe", "encoder")}
        tables = {name: records(plain[name]) for name in ("layers", "rules")}
        speed = None if self.speed is None else vars(self.speed)
        exits = None
        if self.per_text is not None:
            exits = {name: value for name, value in vars(self.per_text).items() if name != "probes"}
        words = {"score": self.score, "verdict": self.verdict, "sentences": self.sentences()}
        return {"schema": SCHEMA, **plain, **words, **tables, "speed": speed, "per_text": exits}

    @classmethod
    def load(cls, path: str | Path) -> Exit:
        """The result in a folder, or in a file exit.json with probe.json beside it."""
        return files.read_result(
            path,
            "exit",
            SCHEMA,
            lambda saved, folder: cls._from_dict(saved, json.loads((folder / "probe.json").read_text("utf-8"))),
        )

    @classmethod
    def _from_dict(cls, saved: dict[str, Any], probe: dict[str, Any]) -> Exit:
        plain = {name: saved[name] for name in cls.__dataclass_fields__ if name not in ("probe", "encoder")}
        plain |= {name: tuple(saved[name]) for name in ("classes", "fold_layers")}
        plain |= {name: frame(saved[name]) for name in ("layers", "rules")}
        plain["speed"] = None if saved["speed"] is None else Speed(**saved["speed"])
        if saved["per_text"] is not None:
            exits = tuple(Probe.from_dict(one) for one in probe["per_text"])
            given = {**saved["per_text"], "gain": tuple(saved["per_text"]["gain"]), "probes": exits}
            plain["per_text"] = PerText(**given)
        return cls(**plain, probe=Probe.from_dict(probe))

    def save(self, folder: str | Path) -> dict[str, Path]:
        """Write the folder model (see `truncates`), report.html, layers.csv, probe.json and exit.json.

        Each of them is written completely or not at all, and exit.json is the last one. A result that was read from
        files has no encoder and writes no model.
        """
        out = Path(folder)
        with files.writing(out):
            out.mkdir(parents=True, exist_ok=True)
        written: dict[str, Path] = {}
        if self.encoder is not None:
            written |= self._save_model(out / "model", self.encoder)
        written |= {"probe": out / "probe.json", "layers": out / "layers.csv"}
        files.write_json(written["probe"], self._probe())
        files.write_text(written["layers"], self.layers.to_csv(index=False))
        written |= {"report": self.report(out / "report.html"), "exit": out / "exit.json"}
        files.write_json(written["exit"], self.to_dict())
        return written

    def _save_model(self, folder: Path, encoder: Encoder) -> dict[str, Path]:
        if not self.truncates:
            # The model of an earlier result in this folder would be taken for the one of this result.
            if (folder.parent / "exit.json").is_file():
                shutil.rmtree(folder, ignore_errors=True)
            return {}
        from metastable.encoder.compress.saving import save_model
        from metastable.encoder.compress.surgery import first_layers

        save_model(first_layers(encoder, self.layer), folder, encoder, self.card())
        return {"model": folder}

    def card(self) -> list[str]:
        """The lines of the README of the truncated model."""
        return [
            f"# {self.name}, the first {self.layer} of {self.depth} layers",
            "",
            f"The last {self.depth - self.layer} of {self.depth} layers were removed with `metastable exit`. "
            "No weight was changed.",
            "",
            *(f"- {sentence}" for sentence in self.sentences()[:4]),
            "",
            f"The numbers hold for a linear probe on embeddings ({self.pooling} pooling), trained on "
            f"{self.counts['texts']} labelled texts, and for texts like these. Other tasks were not measured.",
        ]

    def _probe(self) -> dict[str, Any]:
        about = {"schema": PROBE_SCHEMA, "model": self.name, "layer": self.layer, "pooling": self.pooling, "use": USE}
        exits = () if self.per_text is None else self.per_text.probes
        return {**about, **self.probe.to_dict(), "per_text": [probe.to_dict() for probe in exits]}


def _ends(row: Any, name: str) -> Interval:
    return float(row[name]), float(row[f"{name}_low"]), float(row[f"{name}_high"])


def three(x: float) -> str:
    """Three decimals."""
    return f"{round(x, 3) + 0.0:.3f}".replace("-", "−")


def signed(x: float, digits: int = 3) -> str:
    """Three decimals, or as many as wanted, with a sign."""
    # Adding 0 turns −0 into 0.
    return f"{round(x, digits) + 0.0:+.{digits}f}".replace("-", "−")


def _change(ends: Interval) -> str:
    value, low, high = ends
    return f"difference {signed(value)}, 95 % interval {signed(low)} to {signed(high)}"
