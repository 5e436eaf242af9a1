"""What the statistics on text mean, in a sentence each, for reports and messages."""

from __future__ import annotations

TEXT: dict[str, tuple[str, str]] = {
    "mean_cosine": (
        "mean cosine between two tokens of a text, the normalisation's gain and offset taken off",
        "rises with depth",
    ),
    "hidden_cosine": (
        "the same between hidden states as the model returns them, gains and offsets on",
        "rises with depth",
    ),
    "mean_square_cosine": (
        "mean squared cosine of two tokens: near 1 on one line, whatever the side",
        "rises with depth",
    ),
    "effective_rank": ("how many directions the tokens of a text use: 1 to the number of tokens", "falls with depth"),
    "dispersion": ("1 − |mean token|²: 0 all in one point, 1 spread out", "falls with depth"),
    "energy": ("interaction energy, (1/β) log mean e^{β(cos − 1)}: at most 0, which is one point", "rises with depth"),
    "update_length": ("length of the attention update relative to the token: the time spent", "0.05 to 1 a layer"),
    "entropy": ("attention entropy over log n: 0 looks at one token, 1 at all alike", "0.3 to 0.95"),
    "logit_gap": ("largest minus mean score, over log n: above 1 the best token outweighs the rest", "0.5 to 3"),
    "special_share": ("share of attention on special tokens such as [CLS] and [SEP]", "0.1 to 0.8"),
    "share_in_E": ("share of the tokens' energy in E, the eigenspace that theory sends them to", "near random_share"),
    "random_share": ("the share of energy that a random space of the dimension of E would hold", "dim E/(d − 1)"),
    "maximiser_angle": ("degrees between the best point of the sphere and the best actual token", "30 to 90"),
    "distance_before": ("W₂ from the tokens before the layer to the law that theory predicts, two atoms", "1 to 1.4"),
    "distance_after": ("the same from the tokens after the layer: smaller means prediction approached", "1 to 1.4"),
    "approach": ("how much nearer the layer brought the tokens to that law: distance before − after", "−0.05 to 0.05"),
    "predicted_approach": ("the same by this head alone at zero temperature, as theory has it", "0 to 0.2"),
    "residual": ("root mean square of what the update is added to", "near the normalisation's gain"),
    "applicable": ("the predicted law is two atoms, so that the distance to it was measured", "yes for about half"),
    "dim_E": ("dimension of the space that theory sends tokens to; 0 for none", "1 or 2"),
}
"""Statistics on text, of depths, layers and heads: name → (meaning and unit, what to expect)."""
