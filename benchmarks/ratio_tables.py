"""Print tables of the measured ratios, in Markdown, from benchmarks/results/. The documentation site shows them."""

from __future__ import annotations

import json

from measure import RESULTS

TITLES = {
    "flash": "`flash` against the plain dense softmax of published scripts, float32, d = 3, N = 20 000",
    "clusters": "the tree for clusters at N = 10⁵, against `flash` in float32",
    "family": "the field of a member of the family at N = 10⁶ by the tree, against that of one softmax head",
    "spectrum": "eigenvalues of 144 heads of width 768, factored against dense",
    "weights": "audit: the table of 144 heads of width 768, against dense eigenvalues of M and V",
    "audit": "audit of MiniLM: its time over that of plain forward passes",
    "monitor": "a forward pass of MiniLM with the monitor over one without",
    "sweep": "sweeps",
    "two_atoms": "one field evaluation at N = 10⁴ against exact W₂ to a two-atom law at N = 10⁶",
}


def main() -> None:
    print("| what | detail | ratio | spread |\n|---|---|---|---|")
    for name, title in TITLES.items():
        for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]:
            if "ratio" not in row:
                continue
            spread = f"{row['lowest']:.3g}–{row['highest']:.3g}, {row['repeats']} repeats" if "lowest" in row else ""
            detail = row.get("what") or f"{row['setting']}, 32 texts of {row['n']} tokens, sinks: {row['sinks']}"
            detail += f", β = {row['beta']:g}" if "beta" in row else ""
            print(f"| {title} | {detail} | **{row['ratio']:.3g}×** | {spread} |")
    rows = json.loads((RESULTS / "direct.json").read_text())["rows"]
    sizes = sorted({row["N"] for row in rows})
    print("\n| `direct` against `flash` | " + " | ".join(f"N = {size}" for size in sizes) + " |")
    print("|---|" + "---|" * len(sizes))
    for what in dict.fromkeys(row["what"] for row in rows):
        cells = (
            f"**{row['ratio']:.3g}×** ({row['lowest']:.3g}–{row['highest']:.3g})" for row in rows if row["what"] == what
        )
        print(f"| {what.removeprefix('flash/direct, ')} | " + " | ".join(cells) + " |")
    rows = [row for row in json.loads((RESULTS / "tree.json").read_text())["rows"] if "ratio" in row]
    betas = sorted({row["beta"] for row in rows})
    print("\n| `tree` against `flash` at N = 10⁶ | " + " | ".join(f"β = {beta:g}" for beta in betas) + " |")
    print("|---|" + "---|" * len(betas))
    for what in dict.fromkeys(row["what"] for row in rows):
        found = [next(row for row in rows if (row["what"], row["beta"]) == (what, beta)) for beta in betas]
        cells = (f"**{row['ratio']:.3g}×** ({row['lowest']:.3g}–{row['highest']:.3g})" for row in found)
        print(f"| {what} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
