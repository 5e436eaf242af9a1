"""`metastable recalibrate`: accept reviewed texts as clean ones."""

from __future__ import annotations

import getpass
import hashlib
import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metastable.cli.calibrate import check_texts, listed, usable_lines
from metastable.cli.exits import EXIT_BAD_INPUT, complain, one_line_errors
from metastable.cli.options import AllowPickle, AsJson, BatchSize, Debug, Tokenizer, Watched
from metastable.errors import BadInput

if TYPE_CHECKING:
    from metastable.monitor.review import Review

SCHEMA = "metastable.recalibrate/1"


def recalibrate(
    model: Watched,
    baseline: Annotated[Path, typer.Option(help="The folder that `calibrate` wrote, of the same encoder.")],
    texts: Annotated[
        str,
        typer.Option(
            help="Reviewed texts: one a line, or .jsonl with a field text and perhaps document; - is standard input."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the new baseline and its report.html. Without it, the old one is replaced."),
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Who accepts the texts, for the record. Your login name unless given.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Accept the texts without a question.")] = False,
    batch_size: BatchSize = 32,
    tokenizer: Tokenizer = None,
    allow_pickle: AllowPickle = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Accept reviewed texts into the clean texts of a baseline. The effect is shown first.

    The scores of the texts join those that new texts are ranked among. The detectors stay as they were fitted. P-values
    are then for a stream that has as large a share of such texts as the calibration texts have. So give a random
    sample of the new clean texts, not only those that the monitor found strange.

    The baseline keeps a record: when, by whom, and a SHA-256 of each text. Texts that the baseline knows are left
    out, and so are texts of documents that the detectors were fitted on.

    On a terminal, you are asked. In a pipe nothing is written without --yes.

    Exit code: 0 if the texts were accepted, 2 if nothing was written.
    """
    with one_line_errors(debug, resumes=False):
        from metastable.files import to_json
        from metastable.monitor.baseline import REPORT, Baseline, check_writable
        from metastable.monitor.review import check_name
        from metastable.progress import Texts

        who = _login() if by is None else by
        check_name(who)
        check_texts(texts)
        target = baseline if out is None else out
        replaces = target.resolve() == baseline.resolve()
        check_writable(target)  # before the work is done
        if not replaces and (target / "baseline.json").exists():
            raise BadInput(f"--out {target} holds another baseline; give a new folder")
        known = Baseline.load(baseline)
        before = _digest(baseline)
        unread: Counter[str] = Counter()
        usable, labelled = itertools.tee(usable_lines(texts, unread))
        try:
            with Texts(what="texts through the model") as bar:
                review = known.review(
                    model,
                    (line.text or "" for line in usable),
                    documents=(line.document for line in labelled),
                    batch_size=batch_size,
                    progress=bar,
                    allow_pickle=allow_pickle,
                    tokenizer=tokenizer,
                )
        except BadInput as error:
            if unread:
                raise BadInput(f"{error} (left out before: {listed(unread)})") from error
            raise
        if not as_json:
            print("\n".join(_lines(review, unread)))
        agreed = yes or (not as_json and _asked(review.texts, target, texts))
        if agreed:
            if replaces and _digest(baseline) != before:
                raise BadInput(f"{baseline} was changed by another process meanwhile; start again")
            found = review.accepted(who)
            found.save(target)
            found.report(target / REPORT)
        if as_json:
            left_out = dict(unread + Counter(review.left_out))
            made = {"written": agreed, "report": str(target / REPORT) if agreed else None}
            print(
                to_json({"schema": SCHEMA, "baseline": str(target), **made, **review.to_dict(), "left_out": left_out})
            )
        elif agreed:
            print(f"baseline: {target}\npage: {target / REPORT}")
        if not agreed:
            complain("nothing is written: the texts were not accepted; --yes accepts them")
            raise typer.Exit(EXIT_BAD_INPUT)


def _digest(baseline: Path) -> str:
    return hashlib.sha256((baseline / "baseline.json").read_bytes()).hexdigest()


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        raise BadInput("your login name is not known; say with --by who accepts the texts") from None


def _asked(texts: int, target: Path, source: str) -> bool:
    """Whether a person says yes. Nobody is asked if texts came through standard input, or if there is no terminal."""
    if source == "-" or not (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return typer.confirm(f"accept {'this text' if texts == 1 else f'these {texts} texts'} into {target}?", err=True)
    except typer.Abort:
        print(file=sys.stderr)  # the question has no answer that ends its line
        return False


def _lines(review: Review, unread: Counter[str]) -> list[str]:
    """The effect for a terminal."""
    from metastable.monitor.review import ALPHA

    own = review.baseline
    one = review.texts == 1
    lines = [
        f"{own.encoder_name} (weights {own.fingerprint[:12]}): {review.texts} new text{'' if one else 's'} to accept",
        f"calibration texts: {review.before} → {review.after}; {review.share:.1%} of them would be accepted texts",
    ]
    if review.documents is not None:
        lines[0] += f", of {review.documents} document{'' if review.documents == 1 else 's'}"
    if review.repeated:
        lines.insert(1, f"left out because the baseline knows them or they occur twice: {review.repeated}")
    if left_out := unread + Counter(review.left_out):
        lines.append(f"left out: {listed(left_out)}")
    for name, effect in review.effects.items():
        lines.append(
            f"setting {name}, p ≤ {ALPHA:g}: a text is strange if its score is above "
            f"{_score(effect.threshold_before)} → {_score(effect.threshold_after)}; strange among the new texts: "
            f"{effect.strange_before} → {effect.strange_after}"
        )
    lines += [f"warning: {words}" for words in review.warnings]
    return [*lines, f"p-values are then for a stream with {review.share:.1%} texts like the accepted ones"]


def _score(threshold: float | None) -> str:
    return "every score" if threshold is None else f"{threshold:.2f}"
