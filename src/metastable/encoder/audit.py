"""The audit of an encoder: what the theory predicts for its heads, what it does on text, and where they differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metastable import files, notebook
from metastable.arrays import whole
from metastable.encoder.anatomy import GAP, Anatomy, Norm
from metastable.encoder.checks import AuditCheck, checks
from metastable.encoder.expression import parse
from metastable.encoder.ladder import Ladder, ladder
from metastable.encoder.ledger import Ledger, ledger
from metastable.encoder.load import Encoder, load, twin
from metastable.encoder.loop import Loop, loop
from metastable.encoder.measure import DEPTHS, HEADS, LAYER, Measurements, Meter, Tally, measure
from metastable.encoder.texts import blank, read_texts, unknown_tokens
from metastable.encoder.verdict import AuditVerdict, judge
from metastable.encoder.weights import Theories, Weights, layer_table, theories, weigh
from metastable.errors import BadInput
from metastable.versions import versions

SCHEMA = "metastable.audit/2"
TWIN_RUNGS = 8
"""The number of texts, the first ones, that the ladder of the random twin is measured on."""
TWIN_TEXTS = 24
"""The number of texts, the first ones, that the random twin is measured on."""
TWIN_BATCH = 8
"""Texts of a batch of the twin: few texts have less padding."""
LOOP_TEXTS = 64
"""The number of texts, the first ones, that a loop is measured on."""
PLAIN = ("name", "family", "fingerprint", "shape", "tied", "made")
"""Fields of an audit that are JSON already."""


@dataclass(frozen=True)
class Audit:
    """The findings about one encoder. Made by `audit`, or read from audit.json by `Audit.load`.

    heads : one row a head. The page Columns of the documentation, or `metastable audit --columns`, explains the columns
    layers : one row a depth: phase, prediction, totals over the heads, and on text the statistics of the tokens
    verdict : headline, a judgement for each depth, sentences, unusual heads
    twin, reference : audits for comparison: random weights of the same shape, and the reference of the user
    ladder : what of the theory survives in each layer; None without texts, or with very few
    ledger : forecasts with their scores; None without texts, or with very few
    """

    name: str
    family: str
    fingerprint: str
    shape: dict[str, int]
    tied: bool
    notes: tuple[str, ...]
    weights: Weights
    measured: Measurements | None
    twin: Audit | None = None
    reference: Audit | None = None
    loop: Loop | None = None
    ladder: Ladder | None = None
    ledger: Ledger | None = None
    made: dict[str, str] = field(default_factory=dict)
    anatomy: Anatomy | None = None

    @cached_property
    def heads(self) -> pd.DataFrame:
        if self.measured is None:
            return self.weights.heads
        text = self.measured.head_table()
        return self.weights.heads.merge(text, on=["layer", "head"], how="left", validate="one_to_one")

    @cached_property
    def verdict(self) -> AuditVerdict:
        if self.twin is None:
            return judge(self.heads, self.measured, tied=self.tied)
        return judge(self.heads, self.measured, self.twin.measured, self.twin.verdict.layers, self.tied)

    @cached_property
    def layers(self) -> pd.DataFrame:
        table = layer_table(self.weights.heads).rename(columns={"layer": "depth"})
        if self.measured is None:
            return table
        judged = pd.DataFrame([asdict(judgement) for judgement in self.verdict.layers])
        judged = judged.rename(columns={"sentence": "reason", "prediction": "outcome"})
        return judged.merge(table, on="depth", how="left").merge(self.measured.depth_table(), on="depth", how="left")

    def __repr__(self) -> str:
        size = f"{self.shape['layers']} layers of {self.shape['heads']} heads, width {self.shape['width']}"
        texts = "weights only" if self.measured is None else f"{self.measured.counts.texts} texts"
        return f"Audit({self.name!r}, {self.family}, {size}, {texts})"

    def _repr_html_(self) -> str:
        """The audit in a notebook: the headline, the checks that are not ok, and cosines over depth or β by head."""
        size = f"{self.shape['layers']} layers of {self.shape['heads']} heads, width {self.shape['width']}"
        texts = "weights only" if self.measured is None else f"{self.measured.counts.texts}"
        rows: dict[str, object] = {
            "encoder": f"{self.family}, {size}",
            "texts": texts,
            "finding": self.verdict.headline,
        }
        found = self.checks()
        rows["checks"] = f"{sum(check.status == 'ok' for check in found)} of {len(found)} ok"
        rows |= {check.name: f"{check.status}: {check.sentence}" for check in found if check.status != "ok"}
        if self.measured is None:
            drawn = notebook.grid(_by_head(self.heads, "beta"), "β by layer (down) and head (across)")
        else:
            label = "mean cosine of hidden states over depth"
            drawn = notebook.curve(self.layers["depth"], self.layers["hidden_cosine"], label, low=0.0)
        return notebook.table(f"Audit of {self.name}", rows, drawn)

    def checks(self) -> list[AuditCheck]:
        """A few numbers that matter to whoever ships the encoder, with what is usual and what to do."""
        return checks(self)

    def findings(self, expression: str) -> pd.DataFrame:
        """The rows that meet an expression such as "gap < 0.01": of layers if it names one of their columns."""
        return _meeting(expression, self.heads, self.layers)

    def report(self, path: str | Path) -> Path:
        """Write the audit as one HTML file that needs no network."""
        from metastable.encoder.report import write

        return write(self, path)

    def to_json(self, path: str | Path) -> Path:
        """Write everything as JSON; `Audit.load` reads it."""
        target = Path(path)
        files.write_text(target, files.to_json(self.to_dict(), indent=None))
        return target

    def to_dict(self) -> dict[str, Any]:
        """Everything except the reference, for JSON. NaN is null, and infinities are "inf" and "-inf"."""
        spectra = [
            {"layer": layer, "head": head, "M": _pairs(m), "V": _pairs(v)}
            for (layer, head), (m, v) in self.weights.spectra.items()
        ]
        judged = [asdict(judgement) for judgement in self.verdict.layers]
        verdict = {**vars(self.verdict), "layers": judged, "unusual": records(self.verdict.unusual)}
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in PLAIN},
            "notes": list(self.notes),
            "checks": [asdict(check) for check in self.checks()],
            "verdict": verdict,
            "heads": records(self.heads),
            "layers": records(self.layers),
            "weights": records(self.weights.heads),
            "spectra": spectra,
            "measured": None if self.measured is None else self.measured.to_dict(),
            "loop": None if self.loop is None else self.loop.to_dict(),
            "ladder": None if self.ladder is None else self.ladder.to_dict(),
            "ledger": None if self.ledger is None else self.ledger.to_dict(),
            "twin": None if self.twin is None else self.twin.to_dict(),
        }

    @classmethod
    def load(cls, path: str | Path) -> Audit:
        """The audit in a file audit.json, or in the folder of that file."""
        return files.read_result(path, "audit", SCHEMA, lambda saved, _: cls._checked(saved))

    @classmethod
    def _checked(cls, saved: dict[str, Any]) -> Audit:
        found = cls._from_dict(saved)
        _ = found.heads, found.layers, found.verdict, found.shape["layers"], found.name + found.family
        return found

    @classmethod
    def _from_dict(cls, saved: dict[str, Any]) -> Audit:
        spectra = {(s["layer"], s["head"]): (_complex(s["M"]), _complex(s["V"])) for s in saved["spectra"]}
        return cls(
            **{name: saved[name] for name in PLAIN},
            notes=tuple(saved["notes"]),
            weights=Weights(frame(saved["weights"]), spectra),
            measured=None if saved["measured"] is None else Measurements.from_dict(saved["measured"]),
            twin=None if saved["twin"] is None else cls._from_dict(saved["twin"]),
            loop=None if saved["loop"] is None else Loop.from_dict(saved["loop"]),
            ladder=None if saved["ladder"] is None else Ladder.from_dict(saved["ladder"]),
            # Files that were written before there was a ledger have none.
            ledger=None if saved.get("ledger") is None else Ledger.from_dict(saved["ledger"]),
        )

    def save(self, folder: str | Path) -> dict[str, Path]:
        """Write audit.json, heads.csv, layers.csv and report.html into a folder, each completely or not at all.

        audit.json is written first: a folder with this file may be written again.
        """
        from metastable.encoder.report import render

        contents = {
            "audit.json": files.to_json(self.to_dict(), indent=None),
            "heads.csv": self.heads.to_csv(index=False),
            "layers.csv": self.layers.to_csv(index=False),
            "report.html": render(self),
        }
        out = Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            files.write_text(out / name, content)
        return {name.partition(".")[0]: out / name for name in contents}


def _by_head(heads: pd.DataFrame, column: str) -> np.ndarray:
    """A column of a table of heads as an array, (layers, heads)."""
    return heads.pivot(index="layer", columns="head", values=column).sort_index().to_numpy(dtype=float)


def audit(
    model: Any,
    texts: str | Path | Iterable[str] | None = None,
    *,
    reference: Audit | str | Path | None = None,
    loops: int = 0,
    layer: int | None = None,
    special: str = "exclude",
    batch_size: int = 32,
    allow_pickle: bool = False,
    tokenizer: Any = None,
    seed: int = 0,
    beside_random: bool = True,
    fail_on: str | None = None,
    progress: Callable[[int], None] | None = None,
    tally: Tally = Meter.tally,
) -> Audit:
    """Audit an encoder: a folder, a hub id or a model of transformers.

    The model of a host program is not touched: the audit uses a copy of its modules that shares the weights.

    texts : a list, or a file with one text a line; without texts only the weights are read
    reference : another audit, shown in every figure for comparison
    loops, layer : apply a whole layer this many times, see `loop`; `layer` is required if layers are not shared
    special : "exclude" or "include", whether special tokens belong to the cloud of a text
    seed, beside_random : the seed of the twin with random weights, and whether there is a twin
    fail_on : an expression (see `Audit.findings`); one that does not fit the tables is refused before texts are read
    progress : called after each batch with the number of texts done
    tally : computes the sums over the texts, in this process or on workers
    """
    beside = Audit.load(reference) if isinstance(reference, (str, Path)) else reference
    encoder = load(model, allow_pickle=allow_pickle, tokenizer=tokenizer)
    if fail_on is not None:
        _meeting(fail_on, *_example(encoder.anatomy, texts is not None))
    if layer is not None and not loops:
        raise BadInput(f"layer is {layer}, but the number of loops is 0; give loops (--loop) too")
    seed = whole(seed, "seed", 0, "it must be a whole number, 0 or more")
    measured = other = known = random = None
    kept: list[str] = []
    if texts is not None:
        encoder.reads_text()
    with ThreadPoolExecutor(max_workers=1) as pool:
        # Both use one core.
        making = pool.submit(_random, encoder, seed) if beside_random else None
        known = None if texts is None else theories(encoder.anatomy)
        random = None if making is None else making.result()
    if texts is not None:
        given = read_texts(texts) if isinstance(texts, (str, Path)) else texts
        measured = measure(encoder, _keeping(given, kept), batch_size, special, progress, tally, known)
        if not measured.depths["mean_cosine"].count()[0]:
            raise BadInput(
                "the tokenizer makes one token of each text, so that there are no pairs of tokens to compare; give "
                "longer texts, or the encoder's own tokenizer (--tokenizer PATH)"
            )
    elif loops:
        raise BadInput("a loop needs texts; give texts (--texts FILE)")
    if random is not None:
        other = _twin(random, kept, min(batch_size, TWIN_BATCH), special) if known else _audit(random, None)
    looped = loop(encoder, kept[:LOOP_TEXTS], loops, layer, batch_size, special) if loops else None
    rungs = None if measured is None else ladder(encoder, kept)
    found = _audit(encoder, measured, other, beside, looped, rungs, known)
    if measured is None:
        return found
    again = {} if looped is None else {"loops": looped.steps, "layer": looped.layer}
    return replace(found, ledger=ledger(encoder, kept, special, **again))


def _random(encoder: Encoder, seed: int) -> Encoder:
    """The random twin. The fingerprints, which take as long to compute, are then known."""
    random = twin(encoder, seed)
    _ = encoder.fingerprint, random.fingerprint
    return random


def _twin(random: Encoder, texts: list[str], batch_size: int, special: str) -> Audit:
    """The audit of the random twin on the first texts."""
    known = theories(random.anatomy)
    on_text = measure(random, texts[:TWIN_TEXTS], batch_size, special, known=known)
    return _audit(random, on_text, rungs=ladder(random, texts[:TWIN_RUNGS]), known=known)


def _audit(
    encoder: Encoder,
    measured: Measurements | None,
    other: Audit | None = None,
    beside: Audit | None = None,
    looped: Loop | None = None,
    rungs: Ladder | None = None,
    known: Theories | None = None,
) -> Audit:
    layers, family = encoder.anatomy.layers, encoder.anatomy.family
    shape = {"layers": len(layers), "heads": layers[0].heads, "width": layers[0].width}
    warnings = [] if measured is None else unknown_tokens(vars(measured.counts))
    notes = [*warnings, *encoder.anatomy.notes, *_erased(encoder.anatomy)]
    if beside is not None and not (beside.family == family and shape.items() <= beside.shape.items()):
        notes.append(f"The reference {beside.name!r} is a {beside.family} of another kind or shape: compare with care.")
    residuals = None
    if measured is not None and any(layer.pre_norm for layer in layers):
        residuals = measured.layers["residual"].mean().tolist()
    return Audit(
        name=encoder.name,
        family=family,
        fingerprint=encoder.fingerprint,
        shape={**shape, "head_width": int(layers[0].query.weight.shape[1])},
        tied=encoder.anatomy.tied,
        notes=tuple(notes),
        weights=weigh(encoder.anatomy, residuals, known),
        measured=measured,
        twin=other,
        reference=beside,
        loop=looped,
        ladder=rungs,
        made=_made(measured),
        anatomy=encoder.anatomy,
    )


def _erased(anatomy: Anatomy) -> Iterator[str]:
    """Notes about features that normalisations with gains near 0 erase."""
    norms = {f"before layer {layer.index}": layer.norm for layer in anatomy.layers if layer.norm is not None}
    norms["after the last layer"] = Norm.of(anatomy.final)
    for where, norm in norms.items():
        count = int((~norm.seen).sum())
        if count:
            yield (
                f"The normalisation {where} erases {count} of {len(norm.gain)} features: their gains are more than "
                f"{GAP:g} times smaller than all others. They are not part of the tokens."
            )


def _meeting(expression: str, heads: pd.DataFrame, layers: pd.DataFrame) -> pd.DataFrame:
    """The rows that meet an expression: of layers if it names a column that only layers have, else of heads."""
    parsed = parse(expression)
    on_text = {*_with_ends((*HEADS, *DEPTHS, *LAYER)), "phase", "applicable", "random_share"}
    for name in parsed.columns:
        if name in on_text and name not in heads.columns and name not in layers.columns:
            raise BadInput(f"{name} in {expression!r} is measured on text; give texts (--texts FILE)")
    of_layers = any(name in layers.columns and name not in heads.columns for name in parsed.columns)
    return parsed.rows(layers if of_layers else heads)


def _example(anatomy: Anatomy, on_text: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables with the columns of the future audit, computed from one layer."""
    heads = weigh(replace(anatomy, layers=anatomy.layers[:1])).heads
    layers = layer_table(heads).rename(columns={"layer": "depth"})
    if on_text:
        of_heads, of_layers = (dict.fromkeys(_with_ends(names), 0.0) for names in (HEADS, (*DEPTHS, *LAYER)))
        heads = heads.assign(**of_heads, applicable=True, dim_E=1, random_share=0.0)
        layers = layers.assign(**of_layers, beta=0.0, phase="", outcome="", reason="")
    return heads, layers


def _with_ends(names: Iterable[str]) -> Iterator[str]:
    return (name + end for name in names for end in ("", "_low", "_high", "_slope"))


def _keeping(texts: Iterable[str], kept: list[str]) -> Iterator[str]:
    """The texts. The first ones are also kept for the twin and the loop."""
    for text in texts:
        if len(kept) < max(TWIN_TEXTS, LOOP_TEXTS) and isinstance(text, str) and not blank(text):
            kept.append(text)
        yield text


def _made(measured: Measurements | None) -> dict[str, str]:
    made = {**versions(), "transformers": metadata.version("transformers")}
    if measured is not None:
        counts = asdict(measured.counts)
        made |= {"texts": ", ".join(f"{name} {count}" for name, count in counts.items())}
        made |= {"special tokens": f"{measured.special}d from the clouds, always there to be attended to"}
    return made


def _pairs(values: np.ndarray) -> list[list[float]]:
    """Complex numbers as [real, imaginary]."""
    return [[float(v.real), float(v.imag)] for v in values]


def _complex(pairs: list[list[float]]) -> np.ndarray:
    return np.array([complex(*pair) for pair in pairs])


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table for JSON: NaN is null, and infinities are "inf" and "-inf". `frame` reads them."""
    return [{str(name): _plain(value) for name, value in row.items()} for row in table.to_dict("records")]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    words = {"inf": math.inf, "-inf": -math.inf}
    table = pd.DataFrame([{name: words.get(value, value) for name, value in row.items()} for row in rows])
    for column in table.columns:
        if table[column].isna().any():
            table[column] = table[column].astype(float)
    return table
