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


def calibrate(
    model: Watched,
    texts: Annotated[
        str,
        typer.Option(
            help="Clean texts: one a line, or .jsonl with a field text and perhaps document; - is standard input."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the baseline and report.html.")] = Path("metastable-baseline"),
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
    document, give its name in the field document of .jsonl: a document is never split. A page about the baseline is
    written into its folder: report.html.
    """
    with one_line_errors(debug, resumes=False):
        from metastable.files import to_json
        from metastable.monitor.baseline import REPORT, Baseline, check_writable
        from metastable.progress import Texts

        check_texts(texts)
        check_writable(out)  # before the work is done
        if not overwrite and (out / "baseline.json").exists():
            raise BadInput(f"--out {out} holds a baseline; --overwrite replaces it")
        unread: Counter[str] = Counter()
        usable, labelled = itertools.tee(usable_lines(texts, unread))
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
                raise BadInput(f"{error} ({listed(unread)})") from error
            raise
        found.facts["left_out"] = dict(unread + Counter(found.facts["left_out"]))
        found.save(out)
        found.report(out / REPORT)
        print(to_json(_plain(found, out)) if as_json else "\n".join(_lines(found, out)))


def check_texts(texts: str) -> None:
    if texts != "-" and (not Path(texts).exists() or Path(texts).is_dir()):
        raise BadInput(f"{texts} is no file; give a file with one text a line, or - for standard input")


def usable_lines(texts: str, unread: Counter[str]) -> Iterator[Line]:
    from metastable.encoder.texts import lines
    from metastable.monitor.record import kind

    for line in lines(texts):
        if line.text is None:
            unread[kind(line.reason or "")] += 1
        else:
            yield line


def _plain(found: Baseline, out: Path) -> dict[str, Any]:
    """The baseline for machines."""
    return {
        "schema": "metastable.calibrate/1",
        "baseline": str(out),
        "encoder": found.encoder_name,
        "fingerprint": found.fingerprint,
        "report": str(out / "report.html"),
        **found.facts,
        "settings": {
            name: {
                "detectors": list(scorer.setting.members),
                "calibration_texts": scorer.texts,
                "independent_texts": scorer.independent,
                "least_p_value": scorer.least,
                "least_p_marginal": 1 / (scorer.texts + 1),
            }
            for name, scorer in found.settings.items()
        },
    }


def _lines(found: Baseline, out: Path) -> list[str]:
    """The baseline for a terminal."""
    from metastable.monitor.baseline_report import warnings
    from metastable.monitor.coverage import smallest_possible
    from metastable.monitor.exposure import called

    facts = found.facts
    parts, lengths, documents, left_out = (facts[name] for name in ("parts", "lengths", "documents", "left_out"))
    lines = [
        f"{found.encoder_name} (weights {found.fingerprint[:12]}): {sum(parts.values())} clean texts, "
        f"{facts['tokens']} tokens, {lengths['least']} to {lengths['most']} per text, median {lengths['median']}",
        f"{parts['fit']} texts to fit detectors on, {parts['adjust']} for scales and lengths, "
        f"{parts['calibrate']} to rank new texts among",
    ]
    if documents is not None:
        lines.append(f"{sum(documents.values())} documents, {documents['calibrate']} of them to rank new texts among")
    lines.append("all guarantees are for texts that are independent of each other")
    for name, scorer in found.settings.items():
        lines.append(
            f"setting {name}: {', '.join(map(called, scorer.setting.terms))}; the smallest possible p-value is "
            f"{scorer.least:.2g}, and {1 / (scorer.texts + 1):.2g} for the alarm"
        )
        if documents is not None:
            lines.append(f"setting {name}: {scorer.independent_words}")
    for name, rows in facts["coverage"].items():
        if (t := smallest_possible(rows)) is not None:
            share = rows[0]["p_value"][t]
            lines.append(
                f"setting {name}: {share['share']:.2%} of held-out clean texts have p ≤ {t} "
                f"({share['low']:.2%} to {share['high']:.2%})"
            )
    lines += [f"warning: {sentence}" for sentence in warnings(found)]
    if facts["cut"]:
        lines.append(f"cut to the model's limit: {facts['cut']}")
    if left_out:
        lines.append(f"left out: {listed(Counter(left_out))}")
    return [*lines, f"baseline: {out}", f"page: {out / 'report.html'}"]


def listed(reasons: Counter[str]) -> str:
    total = reasons.total()
    parts = ", ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
    return f"{total} line{'' if total == 1 else 's'}: {parts}"
