"""`metastable compare`: which heads differ between two checkpoints of an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metastable.cli.exits import one_line_errors
from metastable.cli.options import AllowPickle, AsJson, Debug, Tokenizer


def compare(
    before: Annotated[str, typer.Argument(help="A checkpoint, as for audit.")],
    after: Annotated[str, typer.Argument(help="Another checkpoint of the same shape.")],
    texts: Annotated[str | None, typer.Option(help="Also compare the behaviour on these texts.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html and moved.csv.")] = Path("metastable-compare"),
    tokenizer: Tokenizer = None,
    allow_pickle: AllowPickle = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare two checkpoints of an encoder: rank the heads that moved in weights, spectrum and behaviour."""
    with one_line_errors(debug, resumes=False):
        from metastable import files
        from metastable.encoder.audit import audit
        from metastable.encoder.compare import compare as compared
        from metastable.encoder.compare import noisy_copy
        from metastable.encoder.load import load
        from metastable.encoder.report import write_comparison
        from metastable.encoder.texts import read_texts
        from metastable.progress import Texts

        files.folder_for(out, "moved.csv")
        # Standard input can be read only once, so both audits share the list.
        read = None if texts is None else list(read_texts(texts))
        encoders = [load(model, allow_pickle, tokenizer) for model in (before, after)]
        if read is not None:
            encoders.append(noisy_copy(encoders[0], encoders[1]))
        with Texts() as bar:
            audits = [audit(encoder, read, beside_random=False, progress=bar) for encoder in encoders]
        found = compared(*audits)
        page = write_comparison(found, (before, after), out / "report.html")
        files.write_text(out / "moved.csv", found.heads.to_csv(index=False))
        if as_json:
            moved = found.heads.loc[found.heads["moved"], ["rank", "layer", "head"]].to_dict("records")
            written = {"report": str(page), "moved": str(out / "moved.csv")}
            plain = {"schema": "metastable.compare/1", "moved": moved, "sentences": found.sentences()}
            print(files.to_json({**plain, "written": written}))
        else:
            print("\n".join([*found.sentences(), f"report: {page}"]))
