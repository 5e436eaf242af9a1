"""What a compression found, in sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pandas as pd

from metastable.decimals import signed
from metastable.encoder.compress.pairs import LEAST_GROUPS, MOST
from metastable.encoder.compress.recipe import Recipe
from metastable.encoder.compress.result import TASK, condition
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


def ends(row: Any, name: str, digits: int = 3, between: str = " to ") -> str:
    """The ends of an interval. A lower end that is not known is NaN."""
    low, high = (row[f"{name}_{end}"] for end in ("low", "high"))
    return f"at most {high:.{digits}f}" if math.isnan(low) else f"{low:.{digits}f}{between}{high:.{digits}f}"


def few_texts(found: Compression) -> str:
    """Why the 10th percentile has no lower end; empty if it has one."""
    unknown = found.options["cosine_p10_low"].isna().any()
    return f"{found.counts['test']} texts are too few for a lower end" if unknown else ""


def option(row: Any) -> str:
    """The recipe in words, with the numbers of the layers instead of how many they are."""
    if not row["layers"]:
        return str(row["recipe"])
    plain = Recipe(layers=int(row["layers"])).name.removesuffix(" removed")
    *others, last = row["removed_layers"].split(", ")
    named = f"layers {', '.join(others)} and {last}" if others else f"layer {last}"
    return str(row["recipe"]).replace(plain, named, 1)


def warnings(found: Compression) -> list[str]:
    """What makes the numbers doubtful."""
    said = unknown_tokens(found.counts)
    score = found.full_select_task
    if score is not None and not found.pairs_choose:
        below = "is below 0" if score[2] < 0 else "cannot be told from 0"
        said.append(
            f"Warning: the full encoder's own score on your {found.counts['select_pairs']} select pairs {below} "
            f"({signed(score[0], 3)}, {signed(score[1], 3)} to {signed(score[2], 3)}), so the pairs do not choose "
            "layers. Check the scores: they must be higher for texts that are more alike."
        )
    return said


def sentences(found: Compression) -> list[str]:
    """Warnings, then the headline. Options are chosen by the numbers on *select*; all numbers are those of *test*."""
    return [*warnings(found), *findings(found)]


def findings(found: Compression) -> list[str]:
    """The sentences without the warnings, the headline first."""
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
    if (found.options["layers"] > 0).any():
        said[-1] += " Layers are counted from 0."
    return said


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _gain(row: Any) -> str:
    """Speed and fidelity of an option, without intervals."""
    return f"{row['speed']:.1f} times as fast as the full encoder, with a mean cosine of {row['cosine']:.3f} to it"


def _details(row: Any) -> str:
    reach = f"Speed {row['speed_low']:.2f} to {row['speed_high']:.2f} in {REPEATS} pairs of timings"
    near = f"{100 * row['nn_overlap']:.0f} % of the 10 nearest texts are the same"
    cosine = f"mean cosine {row['cosine']:.3f} ({ends(row, 'cosine')}), 10th percentile {row['cosine_p10']:.3f}"
    return f"{reach}; {cosine}; {near}; {row['megabytes']:.0f} MB in memory."


def _task(found: Compression, row: Any) -> list[str]:
    """The scores on the pairs of the user: of the full encoder, of one option, and without one layer."""
    if found.full_task is None:
        return []
    counts, options = found.counts, found.options
    one_layer = options[~options["baseline"].astype(bool) & (options["recipe"] == "1 layer removed")]
    # A headline without an option, or about another one, is followed by the option that pairs have chosen the parts of.
    rows = [*([] if row is None else [row]), *(other for _, other in one_layer.iterrows())]
    parts = {
        other["recipe"]: f"with {option(other)} {other['task']:.3f} (difference {signed(other['task_difference'], 3)}, "
        f"{signed(other['task_difference_low'], 3)} to {signed(other['task_difference_high'], 3)})"
        for other in rows
    }
    full = f"On your {counts['test_pairs']} test pairs the full encoder reaches {found.full_task[0]:.3f}"
    said = ["; ".join([full, *parts.values()]) + "."]
    if (used := counts["select_pairs"] + counts["test_pairs"]) < counts.get("pairs", used):
        said.append(
            f"Of your {counts['pairs']} pairs {used} were used. A half has at most {MOST}, and pairs that share texts, "
            f"directly or through others, are at most 1/{LEAST_GROUPS} of all."
        )
    if found.pairs_choose and (options["method"] == "greedy").any():
        said.append(f"Layers were chosen by the score on your other {counts['select_pairs']} pairs.")
    return said


def _chosen(found: Compression) -> tuple[list[str], Any]:
    """Sentences about the chosen option, and its row."""
    named = () if found.target is None else condition(found.target, found.full_task is not None).columns
    on_pairs, on_texts = any(name in TASK for name in named), any(name not in TASK for name in named)
    where = "texts and pairs" if on_pairs and on_texts else "pairs" if on_pairs else "texts"
    if found.chosen is None:
        return [f"No option meets the target {found.target} on the {where} that choices are made by."], None
    row = found.options.iloc[found.chosen]
    said = [f"{_capital(option(row))}: {_gain(row)}.", _details(row)]
    if found.target is None:
        return said, row
    if found.met:
        return [*said, f"It was chosen for the target {found.target}, and meets it on the test {where} too."], row
    return [*said, f"It was chosen for the target {found.target}, but does not meet it on the test {where}."], row


def _fastest(ours: pd.DataFrame) -> tuple[list[str], Any]:
    """Sentences about the fastest faithful option, and its row."""
    good = ours[(ours["select_cosine"] >= GOOD) & (ours["speed_low"] > 1)]
    if not len(good):
        best = ours.loc[ours["select_cosine"].idxmax()]
        none = f"No option is surely faster than the full encoder and keeps a mean cosine of {GOOD:g}."
        return [f"{none} The most faithful one is {option(best)}: {_gain(best)}.", _details(best)], best
    row = good.loc[good["speed"].idxmax()]
    which = f"The fastest option with a mean cosine of {GOOD:g} or more"
    if row["cosine"] < GOOD:
        which = f"The fastest option that was chosen for a mean cosine of {GOOD:g}"
    return [f"{which} is {option(row)}: {_gain(row)}.", _details(row)], row


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
    return [f"{what} {_capital(option(row))} is {ratio:.1f} times as fast as this, with {row['cosine']:.3f}."]


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
            by_task = kind == "layers" and found.pairs_choose
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
    gone = row["removed_layers"]
    lines = [
        f"# {found.name}, compressed",
        "",
        *(line for warning in warnings(found) for line in (warning, "")),
        f"Made from {found.name!r} ({found.depth} layers, {found.heads} heads and {found.neurons} neurons a layer): "
        f"{row['recipe']}." + (f" Removed of layers 0 to {found.depth - 1}: {gone}." if gone else ""),
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
    remarks = {"cosine_p10": f"; {few}" if (few := few_texts(found)) else ""}
    lines += [
        f"| {what} | {row[name]:.3f} | {ends(row, name)}{remarks.get(name, '')} |" for name, what in names.items()
    ]
    if found.full_task is not None:
        many = f"{found.counts['test_pairs']} scored pairs"
        change = [signed(row[f"task_difference{end}"], 3) for end in ("", "_low", "_high")]
        lines += [
            f"| correlation with the scores of {many} | {row['task']:.3f} | {ends(row, 'task')} |",
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
