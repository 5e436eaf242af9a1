"""What the columns of the layers of an early exit mean. NAME_low and NAME_high are ends of a 95 % interval."""

from __future__ import annotations

MEANINGS: dict[str, str] = {
    "depth": "the number of layers before the probe; depth 0 has none and is never chosen",
    "accuracy": "share of the texts whose class is predicted, by cross-validation",
    "macro_f1": "mean over the classes of the F1 score",
    "spearman": "rank correlation of predictions and labels, where labels are numbers",
    "r2": "1 − squared error/variance of the labels, where labels are numbers",
    "chosen_by": "the score that chose the layer, from all texts",
    "penalty": "the penalty of the probe",
}
"""By column. NAME_difference is the score less that of full depth; its interval is made 1.5 times as wide."""
