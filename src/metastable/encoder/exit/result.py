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
from metastable.decimals import decimals, signed
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
    first : the earliest layer that can be an exit; more than 1 if the first layers belong together
    baseline : the score without a model: the share of the most frequent class, or 0
    layers : a row for each depth 0, …, L: scores with intervals, differences to full depth, the score that chose the
        layer (chosen_by) and the penalty of the probe. Intervals of differences are those of the paired bootstrap, 1.5
        times as wide, because the probes themselves vary. Depth 0 has no layer and is never chosen.
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
    first: int = FIRST
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
        return self._of_exit()

    @property
    def exit_difference(self) -> Interval:
        """To full depth."""
        return self._of_exit(difference=True)

    def _of_exit(self, score: str | None = None, difference: bool = False) -> Interval:
        if self.by_rule:
            return self.of_rule("earliest", score, difference)
        return self.of_depth(self.layer, score, difference)

    @property
    def best_earlier(self) -> int:
        """The layer with the best score among the exits before the last layer."""
        table = self.layers[(self.layers["depth"] >= self.first) & (self.layers["depth"] < self.depth)]
        return int(table.loc[table[self.score].idxmax(), "depth"])

    @property
    def truncates(self) -> bool:
        """Whether a truncated model is written."""
        return self.verdict in ("enough", "undecided")

    def headline(self) -> str:
        """The result in one sentence."""
        verdict, place = self.verdict, f"ayer {self.layer} of {self.depth}"
        if verdict == "unpredictable":
            value, low, high = map(three, self.of_rule("full"))
            base = f"the share of the most frequent class, {three(self.baseline)}" if self.classes else "0"
            return (
                f"No layer can be chosen: {NAMES[self.score]} at full depth is {value} (95 % interval {low} to "
                f"{high}). That is not clearly above {base}."
            )
        numbers = self._compared(self.score)
        if self.layer == self.depth:
            start = f"Full depth is {'needed' if verdict == 'needed' else 'chosen'}"
            return f"{start}: at the best earlier layer, layer {self.best_earlier} of {self.depth}, {numbers}."
        if verdict == "needed":
            return f"Full depth is needed: after l{place}, {numbers}."
        if verdict == "enough":
            return f"L{place} is enough: {numbers}."
        return f"L{place} may be enough, but a loss above {self.loss:g} is not excluded: {numbers}."

    def _compared(self, score: str) -> str:
        """A score of the exit, or of the best earlier layer if full depth is chosen, and that of full depth."""
        if self.layer == self.depth:
            own, change = (self.of_depth(self.best_earlier, score, difference) for difference in (False, True))
        else:
            own, change = (self._of_exit(score, difference) for difference in (False, True))
        full = three(self.of_rule("full", score)[0])
        return f"{NAMES[score]} is {three(own[0])}, and {full} at full depth ({_change(change)})"

    def sentences(self) -> list[str]:
        """The result in words, the headline first."""
        said = [self._saving()]
        if self.verdict != "unpredictable":
            said = [self._agreement(), *said, *self._others(), *self._no_layer()]
        return [self.headline(), *said, self._per_text(), *unknown_tokens(self.counts)]

    def _agreement(self) -> str:
        repeated = f"The choice was repeated {FOLDS} times, each time without a fifth of the texts"
        counts = Counter(self.fold_layers)
        if counts[self.layer] == FOLDS:
            return f"{repeated}: it was layer {self.layer} each time."
        layers = [self.layer, *sorted(set(counts) - {self.layer})]
        shares = [f"layer {layer} in {counts[layer]} of {FOLDS}" for layer in layers]
        found = f"{repeated}: it was {', '.join(shares[:-1])} and {shares[-1]} repetitions."
        return found if self.layer == self.depth else f"{found} {self._quoted()}"

    def _quoted(self) -> str:
        """Which of the two estimates the headline has; see `by_rule`."""
        if self.by_rule:
            this = "In the scores above, each text is predicted from the layer that was chosen without it."
            that, change = f"With layer {self.layer} for all texts", self.of_depth(self.layer, difference=True)
        else:
            this = f"The scores above are those of layer {self.layer} for all texts."
            that = "If each text is predicted from the layer that was chosen without it"
            change = self.of_rule("earliest", difference=True)
        return f"{this} {that}, the {_change(change, ' is')}. The headline has the interval that starts lower."

    def _saving(self) -> str:
        if self.speed is None or not self.truncates:
            return "No truncated model is written."
        gone, speed = self.depth - self.layer, self.speed
        return (
            f"The exit saves {gone} of {self.depth} layers ({100 * gone / self.depth:.0f} %). A pass is "
            f"{speed.ratio:.2f} times as fast (median of {speed.pairs} pairs of passes, range {speed.low:.2f} to "
            f"{speed.high:.2f})."
        )

    def _others(self) -> list[str]:
        second = next(name for name in SCORES[self.task] if name != self.score)
        found = [f"For the same predictions, {self._compared(second)}."]
        if self.loss > 0:
            best, change = self.of_rule("best")[0], _change(self.of_rule("best", difference=True), " to full depth")
            found.append(
                f"If the layer with the best score is chosen, and not the earliest one at most {self.loss:g} below it, "
                f"{NAMES[self.score]} is {three(best)} ({change})."
            )
        return found

    def _no_layer(self) -> list[str]:
        """What depth 0 says about the task, if it is as good as full depth and as a choice of the best layer."""
        own, change = self.of_depth(0), self.of_depth(0, difference=True)
        sure, better = change[1] >= -self.loss, change[0] >= 0
        close = own[0] >= self.of_rule("best")[0] - self.loss
        if not close or not (sure or better):
            return []
        numbers = f"{NAMES[self.score]} {three(own[0])} ({_change(change, ' to full depth')})"
        need = "barely needs" if sure else "may barely need"
        return [f"The embeddings before the first layer have {numbers}: this task {need} the encoder."]

    def _per_text(self) -> str:
        if self.task == "numbers":
            return "Exits per text need probabilities of classes, so they are not offered for a regression."
        found = self.per_text
        if found is None:
            many = needed(self.loss)
            if math.isinf(many):
                return "Exits per text were not tried: no number of texts can promise a loss of 0."
            unit = "documents" if self.counts["documents"] else "texts"
            least = f"about {FOLDS * int(many)} labelled {unit} are needed to promise a loss of at most {self.loss:g}"
            return f"Exits per text were not tried: {least}."
        gain = (
            f"Exits per text save {found.saved:.2f} layers per text, and the fixed layer saves {found.fixed:.2f} "
            f"({_change(found.gain, digits=2)})"
        )
        if found.gain[1] <= 0:
            return f"{gain}. They are not offered, because they do not clearly save more."
        if not found.offered:
            return (
                f"{gain}. They are not offered, because no threshold passed the test that keeps their loss of accuracy "
                f"at or below {self.loss:g}."
            )
        return (
            f"{gain}. The accuracy of exits per text is {three(found.accuracy)}, that of the fixed layer "
            f"{three(found.fixed_accuracy)}. With probability {100 * (1 - DELTA):g} % exits per text are at most "
            f"{self.loss:g} below full depth on texts like these. Each text still needs all layers up to its own exit."
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
        plain = {name: saved[name] for name in cls.__dataclass_fields__ if name not in ("probe", "encoder", "first")}
        plain |= {"first": saved.get("first", FIRST)}
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
        each = [{"layer": self.first + place, **probe.to_dict()} for place, probe in enumerate(exits)]
        return {**about, **self.probe.to_dict(), "per_text": each}


def _ends(row: Any, name: str) -> Interval:
    return float(row[name]), float(row[f"{name}_low"]), float(row[f"{name}_high"])


def three(x: float) -> str:
    """Three decimals."""
    return decimals(x, 3)


def _change(ends: Interval, to: str = "", digits: int = 3) -> str:
    value, low, high = (signed(end, digits) for end in ends)
    return f"difference{to} {value}, 95 % interval {low} to {high}"
