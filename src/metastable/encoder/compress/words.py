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
    """The headline first. Options are chosen by the numbers on *select*, and all numbers are those of *test*."""
    ours = found.options[~found.options["baseline"].astype(bool)]
    alone = len(found.options) == 1
    said = _chosen(found) if alone or found.target is not None else _fastest(ours)
    said += [] if alone else [*_peer(ours), *_rules(found)]
    counts = found.counts
    used = (
        f"{counts['fit']} texts to choose parts, to refit and as the pool for neighbours, {counts['select']} to select"
    )
    said.append(
        f"The numbers are those of {counts['test']} other texts ({used}), of {counts['texts']} different texts in all. "
        "Intervals are of 95 % over texts."
    )
    return [*said, *unknown_tokens(counts)]


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _gain(row: Any) -> str:
    """Speed and fidelity of an option, without intervals."""
    return f"{row['speed']:.1f} times as fast as the full encoder, with a mean cosine of {row['cosine']:.3f} to it"


def _details(row: Any) -> str:
    reach = f"Speed {row['speed_low']:.2f} to {row['speed_high']:.2f} in {REPEATS} pairs of timings"
    near = f"{100 * row['nn_overlap']:.0f} % of the 10 nearest texts are the same"
    return (
        f"{reach}; mean cosine {interval(row, 'cosine')}, 10th percentile {row['cosine_p10']:.3f}; {near}; "
        f"{row['megabytes']:.0f} MB in memory."
    )


def _chosen(found: Compression) -> list[str]:
    if found.chosen is None:
        return [f"No option meets the target {found.target} on the texts that choices are made by."]
    row = found.options.iloc[found.chosen]
    said = [f"{_capital(row['recipe'])}: {_gain(row)}.", _details(row)]
    if found.target is None:
        return said
    if found.met:
        return [*said, f"It was chosen for the target {found.target}, and meets it on the test texts too."]
    return [*said, f"It was chosen for the target {found.target}, but does not meet it on the test texts."]


def _fastest(ours: pd.DataFrame) -> list[str]:
    good = ours[(ours["select_cosine"] >= GOOD) & (ours["speed_low"] > 1)]
    if not len(good):
        best = ours.loc[ours["select_cosine"].idxmax()]
        return [
            f"No option is surely faster than the full encoder and keeps a mean cosine of {GOOD:g}. The most faithful "
            f"one is {best['recipe']}: {_gain(best)}.",
            _details(best),
        ]
    row = good.loc[good["speed"].idxmax()]
    which = f"The fastest option with a mean cosine of {GOOD:g} or more"
    if row["cosine"] < GOOD:
        which = f"The fastest option that was chosen for a mean cosine of {GOOD:g}"
    return [f"{which} is {row['recipe']}: {_gain(row)}.", _details(row)]


def _peer(ours: pd.DataFrame) -> list[str]:
    alone = ours[ours["int8"].astype(bool) & ~ours[list(KINDS)].astype(bool).any(axis=1)]
    if not len(alone):
        return []
    peer = alone.iloc[0]
    what = f"Int8 alone is {peer['speed']:.1f} times as fast, with a mean cosine of {peer['cosine']:.3f}."
    near = ours["select_cosine"] >= peer["select_cosine"] - PEER_LOSS
    faster = ours[(ours["speed"] >= PEER_SPEED * peer["speed"]) & near]
    if not len(faster):
        rest = f"No other option is {PEER_SPEED:g} times as fast as this and loses at most {PEER_LOSS:g} more."
        return [f"{what} {rest}"]
    row = faster.loc[faster["speed"].idxmax()]
    ratio = row["speed"] / peer["speed"]
    return [f"{what} {_capital(row['recipe'])} is {ratio:.1f} times as fast as this, with {row['cosine']:.3f}."]


def _rules(found: Compression) -> list[str]:
    """One sentence a kind: the rule of the product against the baselines at the same amount."""
    said = []
    for kind in ("layers", "heads", "neurons"):
        others = [name for name in (*KINDS, "int8") if name != kind]
        rows = found.options[(found.options[kind] > 0) & ~found.options[others].astype(bool).any(axis=1)]
        compared = rows[rows["baseline"].astype(bool)]
        own = rows[rows["recipe"].isin(compared["recipe"]) & ~rows["baseline"].astype(bool)]
        if len(own):
            said.append(_compared(own.iloc[0], compared))
    return said


def _compared(mine: pd.Series, others: pd.DataFrame) -> str:
    listed = ", ".join(
        f"{row['method'].replace(', not', ' but not')} {row['cosine']:.3f}" for _, row in others.iterrows()
    )
    words = f"{_capital(mine['recipe'])}: mean cosine {mine['cosine']:.3f} by the rule {mine['method']}; by others: "
    words += f"{listed}."
    best = others.loc[others["cosine"].idxmax()]
    if best["cosine_low"] > mine["cosine_high"]:
        return f"{words} Here the choice by {best['method']} is better."
    alike = others[(others["cosine_high"] >= mine["cosine_low"]) & (others["cosine_low"] <= mine["cosine_high"])]
    if len(alike):
        return (
            f"{words} Within the error, {' and '.join(alike['method'])} {'does' if len(alike) == 1 else 'do'} as well."
        )
    return words


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
        "nn_overlap": f"same texts among the 10 nearest of {found.counts['fit']}",
        "spearman": "rank correlation of similarities",
    }
    lines += [
        f"| {what} | {row[name]:.3f} | {row[f'{name}_low']:.3f} to {row[f'{name}_high']:.3f} |"
        for name, what in names.items()
    ]
    reach = f"{row['speed_low']:.2f} to {row['speed_high']:.2f} (range)"
    lines += [
        f"| speed against the full encoder | {row['speed']:.2f}× | {reach} |",
        f"| weights in memory | {row['megabytes']:.1f} MB | full: {found.full_megabytes:.1f} MB |",
        "",
        f"Texts: {found.counts['test']}, cut to {found.length} tokens, pooling {found.pooling}.",
        "",
    ]
    if found.needs_package:
        lines.append(
            "The table is that of `metastable.load_compressed`. `AutoModel.from_pretrained` opens this folder too, but "
            "runs removed heads as zeros, merges no tokens and has no int8: it is slower and larger, and where tokens "
            "are merged or int8 is used, its embeddings differ a little. Do not mix the two in one index."
        )
    else:
        lines.append("`AutoModel.from_pretrained` opens this folder, with the measured speed and embeddings.")
    return [*lines, ""]
