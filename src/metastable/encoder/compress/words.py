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


def signed(number: float) -> str:
    """A difference: three digits after a sign that is as wide as +."""
    return f"{number:+.3f}".replace("-", "−")


def interval(row: Any, name: str, digits: int = 3) -> str:
    return f"{row[name]:.{digits}f} ({row[f'{name}_low']:.{digits}f} to {row[f'{name}_high']:.{digits}f})"


def sentences(found: Compression) -> list[str]:
    """The headline first. Options are chosen by the numbers on *select*, and all numbers are those of *test*."""
    ours = found.options[~found.options["baseline"].astype(bool)]
    alone = len(found.options) == 1
    if alone or found.target is not None:
        said, row = _chosen(found)
    else:
        said, row = _fastest(ours)
    said += [*_task(found, row), *([] if alone else [*_peer(ours), *_rules(found)])]
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


def _task(found: Compression, row: Any) -> list[str]:
    """The scores on the pairs of the user: of the full encoder, of one option, and without one layer."""
    if found.full_task is None:
        return []
    counts, options = found.counts, found.options
    one_layer = options[~options["baseline"].astype(bool) & (options["recipe"] == "1 layer removed")]
    # A headline without an option, or about another one, is followed by the option that pairs have chosen the parts of.
    rows = [*([] if row is None else [row]), *(other for _, other in one_layer.iterrows())]
    parts = {
        other["recipe"]: f"with {other['recipe']} {other['task']:.3f} (difference {signed(other['task_difference'])}, "
        f"{signed(other['task_difference_low'])} to {signed(other['task_difference_high'])})"
        for other in rows
    }
    full = f"On your {counts['test_pairs']} test pairs the full encoder reaches {found.full_task[0]:.3f}"
    said = ["; ".join([full, *parts.values()]) + "."]
    if (options["method"] == "greedy").any():
        said.append(f"Layers were chosen by the score on your other {counts['select_pairs']} pairs.")
    return said


def _chosen(found: Compression) -> tuple[list[str], Any]:
    """Sentences about the chosen option, and its row."""
    if found.chosen is None:
        return [f"No option meets the target {found.target} on the texts that choices are made by."], None
    row = found.options.iloc[found.chosen]
    said = [f"{_capital(row['recipe'])}: {_gain(row)}.", _details(row)]
    if found.target is None:
        return said, row
    if found.met:
        return [*said, f"It was chosen for the target {found.target}, and meets it on the test texts too."], row
    return [*said, f"It was chosen for the target {found.target}, but does not meet it on the test texts."], row


def _fastest(ours: pd.DataFrame) -> tuple[list[str], Any]:
    """Sentences about the fastest faithful option, and its row."""
    good = ours[(ours["select_cosine"] >= GOOD) & (ours["speed_low"] > 1)]
    if not len(good):
        best = ours.loc[ours["select_cosine"].idxmax()]
        none = f"No option is surely faster than the full encoder and keeps a mean cosine of {GOOD:g}."
        return [f"{none} The most faithful one is {best['recipe']}: {_gain(best)}.", _details(best)], best
    row = good.loc[good["speed"].idxmax()]
    which = f"The fastest option with a mean cosine of {GOOD:g} or more"
    if row["cosine"] < GOOD:
        which = f"The fastest option that was chosen for a mean cosine of {GOOD:g}"
    return [f"{which} is {row['recipe']}: {_gain(row)}.", _details(row)], row


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
            # Pairs choose layers, not heads and neurons.
            by_task = kind == "layers" and found.full_task is not None
            said.append(_compared(own.iloc[0], compared, "task" if by_task else "cosine"))
    return said


def _compared(mine: pd.Series, others: pd.DataFrame, by: str) -> str:
    listed = ", ".join(f"{row['method'].replace(', not', ' but not')} {row[by]:.3f}" for _, row in others.iterrows())
    what = "score on your pairs" if by == "task" else "mean cosine"
    words = f"{_capital(mine['recipe'])}: {what} {mine[by]:.3f} by the rule {mine['method']}; by others: {listed}."
    best = others.loc[others[by].idxmax()]
    if best[f"{by}_low"] > mine[f"{by}_high"]:
        return f"{words} Here the choice by {best['method']} is better."
    alike = others[(others[f"{by}_high"] >= mine[f"{by}_low"]) & (others[f"{by}_low"] <= mine[f"{by}_high"])]
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
    if found.full_task is not None:
        many = f"{found.counts['test_pairs']} scored pairs"
        change = [signed(row[f"task_difference{end}"]) for end in ("", "_low", "_high")]
        lines += [
            f"| correlation with the scores of {many} | {row['task']:.3f} | {row['task_low']:.3f} to "
            f"{row['task_high']:.3f} |",
            f"| its difference to the full encoder ({found.full_task[0]:.3f}) | {change[0]} | {change[1]} to "
            f"{change[2]} |",
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
