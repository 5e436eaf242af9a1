"""Print tables of the measured ratios, in Markdown, from benchmarks/results/. The documentation site shows them."""

from __future__ import annotations

import json
from typing import Any

from measure import RESULTS

TITLES = {
    "flash": "the plain dense softmax of published scripts over `flash`, float32, d = 3, N = 20 000",
    "clusters": "`flash` in float32 over the tree, tokens in clusters, N = 10⁵",
    "certificate": "the tree at tolerance 1e-6 over the tree at 1.5e-5, N = 10⁶: an upper limit on what a sharper "
    "error bound could save",
    "family": "the field of a member of the family over that of one softmax head, by the tree, N = 10⁶",
    "spectrum": "dense over factored eigenvalues of 144 heads of width 768",
    "weights": "dense eigenvalues of M and V over the whole table of an audit, 144 heads of width 768",
    "audit": "audit of MiniLM over plain forward passes of the same texts",
    "monitor": "a forward pass of MiniLM with the monitor over one without",
    "sweep": "sweeps",
    "two_atoms": "one field evaluation at N = 10⁴ over exact W₂ to a two-atom law at N = 10⁶",
}
"""What is divided by what: the time of the first over that of the second."""
UNCLUSTERED = "`auto`, which looks for clusters, over the engine that it takes, uniform tokens, N = 32 000"
DETAILS = {
    "peak memory in bytes": "peak memory",
    "audit, 1000 sentences, against plain passes": "the whole audit, 1000 sentences",
    "measure, 40 texts of 512 tokens, against plain passes": "the statistics alone, 40 texts of 512 tokens",
    "200 points, 1 worker against 2": "200 points: 1 worker over 2 workers",
    "1 worker against a plain loop": "1 worker over a plain loop",
    "W2 at 1e6 (equal weights) against a field at 1e4 (torch.float32)": "equal weights, field in float32",
    "W2 at 1e6 (equal weights) against a field at 1e4 (torch.float64)": "equal weights, field in float64",
    "W2 at 1e6 (graded) against a field at 1e4 (torch.float32)": "graded weights, field in float32",
    "W2 at 1e6 (graded) against a field at 1e4 (torch.float64)": "graded weights, field in float64",
    "uniform, `auto` against its engine, d = 8": "d = 8",
    "uniform, `auto` against its engine, d = 16": "d = 16",
}
"""Words for rows of the records whose own words need the program beside them."""


def _row(title: str, row: dict[str, Any]) -> str:
    spread = f"{row['lowest']:.3g}–{row['highest']:.3g}, {row['repeats']} repeats" if "lowest" in row else ""
    what = row.get("what") or f"{row['setting']}, 32 texts of {row['n']} tokens, sinks: {row['sinks']}"
    detail = DETAILS.get(what, what) + (f", β = {row['beta']:g}" if "beta" in row else "")
    return f"| {UNCLUSTERED if '`auto`' in what else title} | {detail} | **{row['ratio']:.3g}×** | {spread} |"


def main() -> None:
    print("| time of … over time of … | detail | ratio | spread |\n|---|---|---|---|")
    for name, title in TITLES.items():
        for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]:
            if "ratio" in row:
                print(_row(title, row))
    rows = json.loads((RESULTS / "direct.json").read_text())["rows"]
    sizes = sorted({row["N"] for row in rows})
    print("\n| `flash` over `direct` | " + " | ".join(f"N = {size}" for size in sizes) + " |")
    print("|---|" + "---|" * len(sizes))
    for what in dict.fromkeys(row["what"] for row in rows):
        cells = (
            f"**{row['ratio']:.3g}×** ({row['lowest']:.3g}–{row['highest']:.3g})" for row in rows if row["what"] == what
        )
        print(f"| {what.removeprefix('flash/direct, ')} | " + " | ".join(cells) + " |")
    rows = [row for row in json.loads((RESULTS / "tree.json").read_text())["rows"] if "ratio" in row]
    betas = sorted({row["beta"] for row in rows})
    print("\n| `flash` over the tree, N = 10⁶ | " + " | ".join(f"β = {beta:g}" for beta in betas) + " |")
    print("|---|" + "---|" * len(betas))
    for what in dict.fromkeys(row["what"] for row in rows):
        found = [next(row for row in rows if (row["what"], row["beta"]) == (what, beta)) for beta in betas]
        cells = (f"**{row['ratio']:.3g}×** ({row['lowest']:.3g}–{row['highest']:.3g})" for row in found)
        print(f"| {what} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
