"""The figures that the claims stand on, one PDF page each, in the style of a paper.

    python examples/paper/make.py --out figures [--full] [--width single] [CLAIM ...]

Without names, all claims are checked. The quick sizes take some minutes, the sizes of the paper (--full) hours. Every
finished claim is kept in FOLDER/findings, so that the next start only draws it again. Figures of more than two panels
have the width of two columns, so that they are not higher than a page. Drawing needs kaleido or
playwright, and a Chromium or Chrome, but no network. `captions.txt` has the title and the caption of each figure.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from metastable import claims, figures
from metastable.claims import report, running


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("claims", nargs="*", metavar="CLAIM", help=f"some of {', '.join(claims.NAMES)}")
    options.add_argument("--out", type=Path, default=Path("paper-figures"), metavar="FOLDER")
    options.add_argument("--full", action="store_true", help="the sizes of the paper instead of the quick ones")
    options.add_argument("--width", choices=("single", "double"), default="single", help="of a column")
    options.add_argument("--format", choices=("pdf", "svg", "png"), default="pdf")
    given = options.parse_args()

    captions = []
    for name in given.claims or claims.NAMES:
        found = running.run([name], given.full, None, given.out, jobs=1, watch=lambda shares: None)
        finding = found.found[name]
        print(f"{name}: {finding.outcome}, {finding.tally}", flush=True)
        for number, picture in enumerate(finding.pictures, start=1):
            path = given.out / f"{name}-{number}.{given.format}"
            many = len(picture.panels) > 2
            drawn = report.figure(picture, columns=2 if many else 1)
            figures.export(drawn, path, width="double" if many else given.width)
            captions.append(f"{path.name}\n{picture.title}\n{picture.caption}\n")
            print(f"  {path}: {picture.title}", flush=True)
    (given.out / "captions.txt").write_text("\n".join(captions), encoding="utf-8")


if __name__ == "__main__":
    main()
