"""What a compression found, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from metastable.encoder.texts import unknown_tokens

if TYPE_CHECKING:
    from metastable.encoder.compress.result import Compression

PEER_SPEED, PEER_LOSS = 1.3, 0.02
"""An option beats int8 alone if it is this much faster and its mean cosine is lower by at most this."""
KINDS = ("layers", "heads", "neurons", "merge")
REPEATS = 5
"""Pairs of timings of the full and the smaller encoder."""
GOOD = 0.95
"""The mean cosine that the sentence about the fastest option asks for."""


def interval(row: Any, name: str, digits: int = 3) -> str:
    return f"{row[name]:.{digits}f} ({row[f'{name}_low']:.{digits}f} to {row[f'{name}_high']:.{digits}f})"


def sentences(found: Compression) -> list[str]:
    """The headline first."""
    ours = found.options[~found.options["baseline"].astype(bool)]
    alone = len(found.options) == 1
    said = [*_chosen(found), *([] if alone else [*_fastest(ours), *_peer(ours), *_rules(found)])]
    counts = found.counts
    used = f"{counts['fit']} texts to choose parts and to refit, {counts['select']} to select"
    said.append(f"The numbers are those of {counts['test']} other texts ({used}). Intervals are of 95 % over texts.")
    return [*said, *unknown_tokens(counts)]


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _gain(row: Any) -> str:
    """Speed and fidelity of an option, without intervals."""
    return f"{row['speed']:.2f} times as fast as the full encoder, with a mean cosine of {row['cosine']:.3f} to it"


def _details(row: Any) -> str:
    reach = f"{row['speed_low']:.2f} to {row['speed_high']:.2f} times as fast in {REPEATS} pairs of timings"
    near = f"{100 * row['nn_overlap']:.0f} % of the 10 nearest texts are the same"
    return (
        f"{_capital(row['recipe'])}: {reach}; mean cosine {interval(row, 'cosine')}, "
        f"10th percentile {row['cosine_p10']:.3f}; {near}; {row['megabytes']:.0f} MB."
    )


def _chosen(found: Compression) -> list[str]:
    if found.chosen is None:
        return [] if found.target is None else [f"No option meets the target {found.target}."]
    row = found.options.iloc[found.chosen]
    said = [f"{_capital(row['recipe'])}: {_gain(row)}.", _details(row)]
    return said if found.target is None else [*said, f"This option was chosen for the target {found.target}."]


def _fastest(ours: pd.DataFrame) -> list[str]:
    good = ours[ours["cosine_low"] >= GOOD]
    if not len(good):
        best = ours.loc[ours["cosine"].idxmax()]
        return [
            f"No option keeps a mean cosine of {GOOD:g} beyond its error. The closest is {best['recipe']}.",
            _details(best),
        ]
    row = good.loc[good["speed"].idxmax()]
    if row["speed"] <= 1:
        return [f"No option with a mean cosine of at least {GOOD:g} was faster than the full encoder on this machine."]
    said = f"The fastest option that keeps a mean cosine of {GOOD:g} is {row['recipe']}: {_gain(row)}."
    return [said, _details(row)]


def _peer(ours: pd.DataFrame) -> list[str]:
    alone = ours[ours["int8"].astype(bool) & ~ours[list(KINDS)].astype(bool).any(axis=1)]
    if not len(alone):
        return []
    peer = alone.iloc[0]
    faster = ours[(ours["speed"] >= PEER_SPEED * peer["speed"]) & (ours["cosine"] >= peer["cosine"] - PEER_LOSS)]
    what = f"int8 alone ({peer['speed']:.2f} times as fast, mean cosine {peer['cosine']:.3f})"
    if not len(faster):
        return [f"No option is {PEER_SPEED:g} times as fast as {what} at a mean cosine lower by at most {PEER_LOSS:g}."]
    row = faster.loc[faster["speed"].idxmax()]
    ratio = row["speed"] / peer["speed"]
    return [
        f"{_capital(row['recipe'])} is {ratio:.2f} times as fast as {what}, with a mean cosine of {row['cosine']:.3f}."
    ]


def _rules(found: Compression) -> list[str]:
    """One sentence a kind: the rule of the product against the baselines at the same amount."""
    said = []
    for kind in ("layers", "heads", "neurons"):
        others = [name for name in (*KINDS, "int8") if name != kind]
        rows = found.options[(found.options[kind] > 0) & ~found.options[others].astype(bool).any(axis=1)]
        compared = rows[rows["baseline"].astype(bool)]
        if not len(compared):
            continue
        own = rows[(rows["recipe"] == compared["recipe"].iloc[0]) & ~rows["baseline"].astype(bool)]
        if not len(own):
            continue
        mine = own.iloc[0]
        listed = ", ".join(f"{row['method']} {row['cosine']:.3f}" for _, row in compared.iterrows())
        best = compared.loc[compared["cosine"].idxmax()]
        beaten = best["cosine_low"] > mine["cosine_high"]
        verdict = f" The rule {best['method']} is better here." if beaten else ""
        own_rule = f"{mine['method']} {mine['cosine']:.3f}"
        said.append(f"{_capital(mine['recipe'])}, mean cosine by rule: {own_rule}; {listed}.{verdict}")
    return said


def card(found: Compression, row: pd.Series) -> list[str]:
    """The lines of the model card."""
    lines = [
        f"# {found.name}, compressed",
        "",
        f"Made from {found.name!r} ({found.depth} layers, {found.heads} heads and {found.neurons} neurons a layer): "
        f"{row['recipe']}.",
        "",
        "| measured on texts that no choice saw | value | 95 % interval |",
        "|---|---|---|",
    ]
    names = {
        "cosine": "mean cosine to the full encoder",
        "cosine_p10": "its 10th percentile",
        "nn_overlap": "same texts among the 10 nearest",
        "spearman": "rank correlation of similarities",
    }
    lines += [
        f"| {what} | {row[name]:.3f} | {row[f'{name}_low']:.3f} to {row[f'{name}_high']:.3f} |"
        for name, what in names.items()
    ]
    reach = f"{row['speed_low']:.2f} to {row['speed_high']:.2f} (range)"
    lines += [
        f"| speed against the full encoder | {row['speed']:.2f}× | {reach} |",
        f"| size of the weights | {row['megabytes']:.1f} MB | full: {found.full_megabytes:.1f} MB |",
        "",
        f"Texts: {found.counts['test']}, cut to {found.length} tokens, pooling {found.pooling}.",
        "",
    ]
    if found.needs_package:
        lines.append(
            "`AutoModel.from_pretrained` opens this folder. The measured speed needs `metastable.load_compressed`: "
            "plain transformers runs removed heads as zeros, merges no tokens and has no int8."
        )
    else:
        lines.append("`AutoModel.from_pretrained` opens this folder, with the measured speed and embeddings.")
    return lines
