"""`metastable calibrate`: learn what an encoder does on clean texts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metastable.cli.exits import one_line_errors
from metastable.cli.options import AllowPickle, AsJson, BatchSize, Debug, Tokenizer, Watched
from metastable.errors import BadInput

if TYPE_CHECKING:
    from metastable.encoder.texts import Line
    from metastable.monitor.baseline import Baseline

REPEATED = 0.01
"""`calibrate` warns of a text that makes up a larger share of the clean texts."""


def calibrate(
    model: Watched,
    texts: Annotated[
        str,
        typer.Option(
            help="Clean texts: one a line, or .jsonl with a field text and perhaps document; - is standard input."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the baseline.")] = Path("metastable-baseline"),
    seed: Annotated[int, typer.Option(help="Seed of the split into texts to fit on and texts to compare with.")] = 0,
    batch_size: BatchSize = 32,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another baseline in that folder.")] = False,
    tokenizer: Tokenizer = None,
    allow_pickle: AllowPickle = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Learn what an encoder does on clean texts, as the baseline that `watch` compares with.

    The texts must be like those of the clean stream, and independent of each other. If several texts come from one
    document, give its name in the field document of .jsonl: a document is never split.
    """
    with one_line_errors(debug, resumes=False):
        from metastable.files import to_json
        from metastable.monitor.baseline import Baseline, check_writable
        from metastable.progress import Texts

        check_texts(texts)
        check_writable(out)  # before the work is done
        if not overwrite and (out / "baseline.json").exists():
            raise BadInput(f"--out {out} holds a baseline; --overwrite replaces it")
        unread: Counter[str] = Counter()
        usable, labelled = itertools.tee(_usable(texts, unread))
        try:
            # Some texts go through the model twice: to fit detectors, and to be scored by them.
            with Texts(what="passes of texts through the model") as bar:
                found = Baseline.fit(
                    model,
                    (line.text or "" for line in usable),
                    documents=(line.document for line in labelled),
                    seed=seed,
                    batch_size=batch_size,
                    progress=bar,
                    allow_pickle=allow_pickle,
                    tokenizer=tokenizer,
                )
        except BadInput as error:
            if unread:
                raise BadInput(f"{error} ({_listed(unread)})") from error
            raise
        found.save(out)
        left_out = unread + Counter(found.facts["left_out"])
        print(to_json(_plain(found, out, left_out)) if as_json else "\n".join(_lines(found, out, left_out)))


def check_texts(texts: str) -> None:
    if texts != "-" and (not Path(texts).exists() or Path(texts).is_dir()):
        raise BadInput(f"{texts} is no file; give a file with one text a line, or - for standard input")


def _usable(texts: str, unread: Counter[str]) -> Iterator[Line]:
    from metastable.encoder.texts import lines
    from metastable.monitor.monitor import kind

    for line in lines(texts):
        if line.text is None:
            unread[kind(line.reason or "")] += 1
        else:
            yield line


def _plain(found: Baseline, out: Path, left_out: Counter[str]) -> dict[str, Any]:
    """The baseline for machines."""
    return {
        "schema": "metastable.calibrate/1",
        "baseline": str(out),
        "encoder": found.encoder_name,
        "fingerprint": found.fingerprint,
        **found.facts,
        "left_out": dict(left_out),
        "settings": {
            name: {
                "detectors": list(scorer.setting.members),
                "calibration_texts": scorer.texts,
                "least_p_value": scorer.least,
                "least_p_marginal": 1 / (scorer.texts + 1),
            }
            for name, scorer in found.settings.items()
        },
    }


def _lines(found: Baseline, out: Path, left_out: Counter[str]) -> list[str]:
    """The baseline for a terminal."""
    from metastable.encoder.texts import unknown_tokens
    from metastable.monitor.split import SHARES

    facts = found.facts
    parts, lengths, documents, commonest = (facts[name] for name in ("parts", "lengths", "documents", "commonest"))
    lines = [
        f"{found.encoder_name} (weights {found.fingerprint[:12]}): {sum(parts.values())} clean texts, "
        f"{facts['tokens']} tokens, {lengths['least']} to {lengths['most']} per text, median {lengths['median']}",
        f"{parts['fit']} texts to fit detectors on, {parts['adjust']} for scales and lengths, "
        f"{parts['calibrate']} to rank new texts among",
    ]
    if documents is not None:
        lines.append(f"{sum(documents.values())} documents, {documents['calibrate']} of them to rank new texts among")
    lines.append("all guarantees are for texts that are independent of each other")
    if commonest > REPEATED:
        lines.append(
            f"warning: one text makes up {commonest:.1%} of the clean texts; if the stream repeats it less often, "
            f"p-values are off by up to {commonest / SHARES['calibrate']:.1%}"
        )
    for name, scorer in found.settings.items():
        lines.append(
            f"setting {name}: {', '.join(scorer.setting.members)}; the smallest possible p-value is "
            f"{scorer.least:.2g}, and {1 / (scorer.texts + 1):.2g} for the alarm"
        )
    lines += unknown_tokens(facts)
    if facts["cut"]:
        lines.append(f"cut to the model's limit: {facts['cut']}")
    if left_out:
        lines.append(f"left out: {_listed(left_out)}")
    return [*lines, f"baseline: {out}"]


def _listed(reasons: Counter[str]) -> str:
    return f"{reasons.total()} lines: " + ", ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
