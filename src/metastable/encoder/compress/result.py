"""The result of `compress`: a table of options, the chosen one, words and files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from metastable import files
from metastable.encoder.audit import frame, records
from metastable.encoder.compress.fidelity import LEAST_PERCENTILE, METRICS
from metastable.encoder.compress.recipe import Recipe
from metastable.encoder.compress.saving import SETTINGS, save_model
from metastable.encoder.compress.surgery import UNCUT, Removal, plain_form
from metastable.encoder.exit.scores import Interval
from metastable.encoder.expression import Expression, parse
from metastable.errors import BadInput, suggestion

if TYPE_CHECKING:
    from metastable.encoder.compress.build import Builder

SCHEMA = "metastable.compress/1"


def _ends(*names: str) -> tuple[str, ...]:
    return tuple(name + end for name in names for end in ("", "_low", "_high"))


COLUMNS = (
    *("recipe", "method", "baseline", "layers", "heads", "neurons", "merge", "int8", "healed"),
    "removed_layers",
    *_ends(*METRICS, "speed"),
    "megabytes",
    *(f"select_{name}" for name in METRICS),
)
"""The columns of `options`. `removed_layers` has the numbers of the layers that went, counted from 0, such as "2, 4".
`speed` is the time of the full encoder over that of the option, `select_NAME` the lower end of the interval on
*select*. A lower end that is not known is NaN."""
TASK = ("task", "task_difference")
"""The score on the pairs of the user, and its difference to that of the full encoder."""
TASK_COLUMNS = (*_ends(*TASK), *(f"select_{name}" for name in TASK))
"""The columns of `options` that follow if there are scored pairs."""
TARGETS = (*METRICS, "speed", "megabytes", *TASK)
"""The columns that a target may name."""


def condition(target: str, pairs: bool) -> Expression:
    """A target as an expression; BadInput if it names anything but `TARGETS`. Hyphens in names are underscores.

    pairs : whether there are scored pairs, which the columns `TASK` need
    """
    plain = target
    if share := re.search(r"(\d+\.?\d*|\.\d+)\s*%", target):
        raise BadInput(f"target {target!r} has a percent sign; write {float(share[1]) / 100:g}")
    for name in TARGETS:
        plain = plain.replace(name.replace("_", "-"), name)
    found = parse(plain, "cosine >= 0.97 and speed >= 1.5")
    for name in found.columns:
        if name not in TARGETS:
            raise BadInput(f"target {target!r}: there is no column {name!r}; {suggestion(name, TARGETS)}")
        if name in TASK and not pairs:
            raise BadInput(f"target {target!r}: the column {name!r} needs scored pairs; give them (--pairs FILE.jsonl)")
    if not found.columns:
        raise BadInput(f"target {target!r} names no column; name one of {', '.join(TARGETS)}")
    return found


def check_percentile(wanted: Expression, select: int) -> None:
    """BadInput for a condition on the 10th percentile if the number of texts to choose by is too small."""
    if "cosine_p10" in wanted.columns and select < LEAST_PERCENTILE:
        raise BadInput(
            f"target {wanted.text!r}: {select} texts to choose by are too few for a lower end of 'cosine_p10', which "
            f"needs {LEAST_PERCENTILE}; give more texts (about 250, at a smaller --length if they are long)"
        )


def removed_layers(removals: Iterable[Removal]) -> list[str]:
    """The column of this name."""
    return [", ".join(map(str, sorted(removal.layers))) for removal in removals]


@dataclass(frozen=True)
class Compression:
    """What can be removed from one encoder, and at what loss. Made by `compress`, or read by `Compression.load`.

    options : a row a recipe, see `COLUMNS`: fidelity on *test* with intervals of 95 %, speed against the full encoder
        (median and range of pairs), size in memory. With scored pairs, `TASK_COLUMNS` follow. The columns select_… are
        those that choices were made by
    removals : what goes, one entry a row
    chosen : the number of the chosen row; None without a target, or if no row meets it
    depth, heads, neurons : of the full encoder: layers, heads of a layer, neurons of a layer
    full_task : the score of the full encoder on the test pairs with its interval; None without pairs
    full_select_task : the same on the select pairs
    """

    name: str
    family: str
    fingerprint: str
    pooling: str
    length: int
    depth: int
    heads: int
    neurons: int
    full_megabytes: float
    counts: dict[str, int]
    made: dict[str, str]
    target: str | None
    options: pd.DataFrame
    removals: list[Removal]
    chosen: int | None = None
    full_task: Interval | None = None
    full_select_task: Interval | None = None
    builder: Builder | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        many = f"{len(self.options)} option{'s' * (len(self.options) != 1)}, test on {self.counts['test']} texts"
        return f"Compression({self.name!r}, {self.family}, {many})"

    @property
    def pairs_choose(self) -> bool:
        """Whether layers are chosen by scored pairs: they are not if the full encoder's own score may be 0."""
        # Earlier versions chose by all pairs and wrote no score on the select pairs.
        return self.full_task is not None and (self.full_select_task is None or self.full_select_task[1] > 0)

    def choose(self, target: str) -> Compression:
        """The same result with the row that a target chooses.

        The lower ends of the intervals on *select* stand for the metrics: a choice by the means would mostly take
        options that are lucky there.
        """
        pairs = self.full_task is not None
        wanted = condition(target, pairs)
        check_percentile(wanted, self.counts["select"])
        measured = (*METRICS, *TASK) if pairs else METRICS
        table = self.options.assign(**{name: self.options[f"select_{name}"] for name in measured})
        rows = wanted.rows(table[~table["baseline"].astype(bool)])
        if not len(rows):
            return replace(self, target=target, chosen=None)
        best = "task_difference" if self.pairs_choose else "cosine"
        by = "speed" if any(name in measured for name in wanted.columns) else best
        return replace(self, target=target, chosen=int(rows[by].idxmax()))

    @property
    def met(self) -> bool:
        """Whether the chosen option meets the target with its numbers on *test*; False if there is no such option."""
        if self.chosen is None or self.target is None:
            return False
        wanted = condition(self.target, self.full_task is not None)
        return bool(len(wanted.rows(self.options.iloc[[self.chosen]])))

    def front(self) -> pd.DataFrame:
        """The options that no other option beats in both speed and cosine, from slow to fast, baselines left out."""
        ours = self.options[~self.options["baseline"].astype(bool)].sort_values("speed", ascending=False)
        best = ours["cosine"].cummax()
        return ours[(ours["cosine"] >= best) & ~ours["cosine"].duplicated()].iloc[::-1]

    def sentences(self) -> list[str]:
        """What was found, in words."""
        from metastable.encoder.compress.words import sentences

        return sentences(self)

    def report(self, path: str | Path) -> Path:
        """Write everything as one HTML file that needs no network."""
        from metastable.encoder.compress.report import write

        return write(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        left_out = ("options", "removals", "builder")
        plain = {name: value for name, value in vars(self).items() if name not in left_out}
        return {
            "schema": SCHEMA,
            **plain,
            "sentences": self.sentences(),
            "options": records(self.options),
            "removals": [removal.to_dict() for removal in self.removals],
        }

    @classmethod
    def load(cls, path: str | Path) -> Compression:
        """The result in a file compress.json, or in the folder of that file. It can be reported, but not made again."""
        return files.read_result(path, "compress", SCHEMA, lambda saved, _: cls._from_dict(saved))

    @classmethod
    def _from_dict(cls, saved: dict[str, Any]) -> Compression:
        scores = ("full_task", "full_select_task")
        plain = {each.name: saved[each.name] for each in fields(cls) if each.name not in (*scores, "builder")}
        plain["removals"] = [Removal.from_dict(removal) for removal in saved["removals"]]
        options = frame(saved["options"])
        # Files of earlier versions have neither pairs nor removed layers, and −1 for an end that is not known.
        if "removed_layers" not in options:
            options.insert(COLUMNS.index("removed_layers"), "removed_layers", removed_layers(plain["removals"]))
        ends = ["cosine_p10_low", "select_cosine_p10"]
        plain["options"] = options.assign(**{name: options[name].replace(-1.0, np.nan) for name in ends})
        known: dict[str, Any] = {name: tuple(saved[name]) for name in scores if saved.get(name) is not None}
        return cls(**plain, **known)

    def save(self, folder: str | Path) -> dict[str, Path]:
        """Write the folder model if an option is chosen, report.html, options.csv and, last, compress.json.

        Each of them is written completely or not at all. A result that was read from files writes no model.
        """
        out = Path(folder)
        with files.writing(out):
            out.mkdir(parents=True, exist_ok=True)
        written: dict[str, Path] = {}
        if self.builder is not None:
            if self.chosen is not None:
                written["model"] = self.save_model(out / "model")
            elif (out / "model" / SETTINGS).is_file():
                # The model of an earlier result would be taken for that of this one.
                shutil.rmtree(out / "model", ignore_errors=True)
        written |= {"options": out / "options.csv", "compress": out / "compress.json"}
        written["report"] = self.report(out / "report.html")
        files.write_text(written["options"], self.options.to_csv(index=False))
        files.write_text(written["compress"], files.to_json(self.to_dict(), indent=None))
        return written

    def save_model(self, folder: str | Path) -> Path:
        """Write the chosen smaller encoder as a folder for `AutoModel.from_pretrained` and `load_compressed`."""
        if self.chosen is None:
            raise BadInput("no option is chosen; give amounts, or a target that an option meets")
        if self.builder is None:
            raise BadInput("a result that was read from a file cannot make the model; run compress again")
        row = self.options.iloc[self.chosen]
        recipe = self.recipe(self.chosen)
        made = self.builder.removed(recipe, self.removals[self.chosen])
        settings = {
            "schema": SCHEMA,
            "source": {"name": self.name, "fingerprint": self.fingerprint},
            "heads": _by_place(made.removal),
            "merge": {"after": made.after, "share": recipe.merge} if recipe.merge else None,
            "int8": recipe.int8,
        }
        from metastable.encoder.compress.words import card

        save_model(plain_form(made.even, made.removal), Path(folder), self.builder.full, card(self, row), settings)
        return Path(folder)

    def recipe(self, number: int) -> Recipe:
        """The recipe of a row that is no baseline."""
        row = self.options.iloc[number]
        return Recipe(
            int(row["layers"]), float(row["heads"]), float(row["neurons"]), float(row["merge"]), bool(row["int8"])
        )

    @property
    def needs_package(self) -> bool:
        """Whether the speed of the chosen option needs `load_compressed`. Plain transformers runs the full shapes."""
        if self.chosen is None:
            return False
        recipe = self.recipe(self.chosen)
        return bool(recipe.merge or recipe.int8 or (recipe.heads and self.family not in UNCUT))


def _by_place(removal: Removal) -> dict[str, list[int]]:
    """Removed heads by the place of their layer in the smaller encoder."""
    gone = sorted(removal.layers)
    return {str(layer - sum(other < layer for other in gone)): list(some) for layer, some in removal.heads.items()}
