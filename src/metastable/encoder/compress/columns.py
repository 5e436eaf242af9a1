"""What the columns of the options of a compression mean. NAME_low and NAME_high are ends of an interval."""

from __future__ import annotations

MEANINGS: dict[str, str] = {
    "recipe": "the option in words",
    "method": "the rule that chose the parts",
    "baseline": "whether the option is only for comparison",
    "layers": "how many layers are removed",
    "heads": "the share of all heads that is removed",
    "neurons": "the share of the neurons of each layer that is removed",
    "merge": "the share of the tokens of a text that is merged after half of the layers",
    "int8": "whether linear maps are in 8-bit integers",
    "healed": "whether maps beside a gap are refitted",
    "removed_layers": "the removed layers, counted from 0",
    "cosine": "mean cosine between the embeddings of a text by the smaller and by the full encoder; 95 % interval",
    "cosine_p10": "10th percentile of these cosines; 95 % interval",
    "nn_overlap": "share of the 10 nearest texts on which both encoders agree; 95 % interval",
    "spearman": "rank correlation of the similarities of texts in both encoders; 95 % interval",
    "speed": "time of the full encoder over that of the option: median, lowest and highest of the pairs of timings",
    "megabytes": "size in memory",
    "task": "Spearman's correlation of cosines and scores on the test pairs; 95 % interval",
    "task_difference": "the same less that of the full encoder; 95 % interval",
}
"""By column. The columns select_NAME are explained together."""
