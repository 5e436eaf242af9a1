"""What the columns of the audit's tables mean, their units and usual values.

One layer is one unit of time.
"""

from __future__ import annotations

CHECKS = {
    "B invertible": "check_interaction",
    "λ₁ real": "check_real",
    "λ₁ semisimple": "check_semisimple",
    "gap > 0": "check_gap",
    "Re λ₁ > 0 if B is singular": "check_positive",
    "M near normal": "check_normal",
    "eigenbasis conditioned": "check_eigenbasis",
    "terminal phase of V": "check_terminal",
    "scores linear": "check_linear",
}
"""The assumptions of the theory (see `theory.assumptions`) and the columns that hold their status."""

COLUMNS: dict[str, tuple[str, str]] = {
    "layer": ("the attention layer, counted from 0 in the order of depth", "0 to layers − 1"),
    "head": ("the head in its layer, counted from 0", "0 to heads − 1"),
    "beta": ("β = d‖B‖₂, the effective inverse temperature on unit tokens", "70 to 900 for width 384"),
    "leading": ("Re λ₁, the largest real part of the eigenvalues of M, per layer", "0.01 to 0.2; above 1 is rare"),
    "frequency": ("|Im λ₁| in radians per layer; 0 if λ₁ is real", "0 in about half of the heads"),
    "gap": ("g = Re λ₁ − Re λ₂, per layer; 0 if every eigenvalue is dominant", "0.001 to 0.1"),
    "dim": ("dim E: 1 for two atoms ±e, 2 for the plane of a complex pair, large if B's kernel dominates", "1 or 2"),
    "multiplicity": ("algebraic multiplicity of λ₁; a complex pair counts 2", "1 or 2"),
    "second": ("Re λ₂, the largest real part after the dominant group, per layer", "below leading, 0 or more"),
    "complex": ("λ₁ is one of a complex pair, so that tokens rotate", "true for about half of the heads"),
    "negative": ("Re λ₁ is not positive: the kernel of B dominates, and tokens do not concentrate", "false"),
    "nonnormality": ("‖Π‖₂ of the spectral projector: 1 if it is orthogonal, large if it is oblique", "1 to 30"),
    "eigenbasis_condition": ("condition number of the unit eigenvectors of the k×k problem of M", "20 to 500"),
    "rate": ("c = g/|Bᵀe|: a token approaches E like exp(−ct), t in layers; 0 without a limit", "0.01 to 0.5"),
    "layers_to_concentrate": ("log β/c: layers until a token is about 1/β from E; inf without a limit", "10 to 500"),
    "value_leading": ("largest real part of V's eigenvalues: the rate at which clusters narrow, per layer", "0 to 2"),
    "value_frequency": ("|Im| of the dominant eigenvalue of V, radians per layer; 0 if it is real", "0 in most heads"),
    "value_gap": ("gap of the dominant group of V, per layer; 0 if every eigenvalue is dominant", "0.01 to 0.5"),
    "value_norm": ("‖V‖₂, the longest step per layer relative to the token", "0.5 to 4"),
    "value_rank": (
        "effective rank of V by its squared singular values: 1 to the width of a head",
        "0.8 to 0.95 of the width of a head",
    ),
    "terminal": ("what V alone does to late clusters: narrows, spreads, circles or neither", "narrows or circles"),
    "offset": ("|a|/‖B‖ on unit tokens: how far the scores are from linear; 0 without biases", "below 0.1"),
    "gain_spread": ("std γ/|mean γ| of the normalisation before the layer; 0 if γ is constant", "below 0.3"),
    "residual": (
        "ρ, the root mean square of the stream that updates are added to; V is divided by it",
        "1 where it was not measured",
    ),
    "unfolded": ("score terms that are not in B and a, separated by commas; empty if none", "empty for BERT"),
    "alignment": ("|cos| between the lines E of M and of V; nan unless both are lines", "below 0.5; 1/√d by chance"),
    **{
        column: (f"status of the assumption {name!r}: holds, doubtful or fails", "holds")
        for name, column in CHECKS.items()
    },
    "prediction": ("where the zero-temperature flow takes tokens, in words", "two points or rotates"),
}
"""Columns of heads that the weights give: name → (meaning and unit, usual values)."""

LAYER_COLUMNS: dict[str, str] = {
    "layer": "the attention layer, counted from 0",
    "heads": "the number of heads",
    "beta_median": "median of β over the heads",
    "beta_low": "smallest β",
    "beta_high": "largest β",
    "real": "number of heads with a real positive λ₁, which concentrate tokens",
    "complex": "number of heads that rotate tokens",
    "negative": "number of heads that do not concentrate tokens",
    "rate_median": "median rate, per layer, over the heads that have one; 0 if none has one",
    "value_norm_sum": "Σ‖V‖₂ over heads, an upper bound of the update relative to the token",
    "strongest": "the head with the largest ‖V‖₂",
}
"""Columns of layers that the weights give."""

LOGARITHMIC = (
    *("beta", "leading", "frequency", "gap", "nonnormality", "eigenbasis_condition", "rate", "offset"),
    *("value_leading", "value_frequency", "value_gap", "value_norm"),
)
"""Columns of sizes. Heads are compared by the logarithm of these columns. 0 means "none" there and is left out."""
SIZES = frozenset(LOGARITHMIC) | {"layers_to_concentrate"}
"""Columns that are drawn on a logarithmic scale."""

TEXT: dict[str, tuple[str, str]] = {
    "mean_cosine": ("mean cosine between two tokens, without gains and offsets of the norms", "rises with depth"),
    "hidden_cosine": ("mean cosine between two returned hidden states, with gains and offsets", "rises with depth"),
    "largest_share": ("share of the energy of the tokens in their largest feature", "below 0.1"),
    "cosine_without": ("mean cosine between two tokens without the largest feature", "near mean_cosine"),
    "hidden_largest_share": ("share of the energy of the hidden states in their largest feature", "below 0.1"),
    "hidden_cosine_without": ("mean cosine of hidden states without their largest feature", "near hidden_cosine"),
    "mean_square_cosine": ("mean squared cosine between two tokens: 1 if all lie on one line", "rises with depth"),
    "effective_rank": ("effective number of directions of a text's tokens: 1 to their number", "falls with depth"),
    "dispersion": ("1 − |mean token|²: 0 if all tokens are one point, 1 if they are spread out", "falls with depth"),
    "energy": ("interaction energy (1/β) log mean e^{β(cos − 1)}: at most 0; 0 for one point", "rises with depth"),
    "update_length": ("length of the attention update relative to the token: the layer's time", "0.05 to 1 per layer"),
    "entropy": ("attention entropy over log n: 0 if one token gets it all, 1 if all get the same", "0.3 to 0.95"),
    "logit_gap": ("(largest − mean score)/log n: above 1 the best token outweighs all others together", "0.5 to 3"),
    "special_share": ("share of attention on special tokens such as [CLS] and [SEP]", "0.1 to 0.8"),
    "share_in_E": ("share of the energy of the tokens in E, the eigenspace of the theory's limit", "near random_share"),
    "random_share": ("share of the energy in a random subspace of the dimension of E", "dim E/(d − 1)"),
    "maximiser_angle": ("degrees between the point of the sphere and the token with the largest score", "30 to 90"),
    "distance_before": ("W₂ from the tokens before the layer to the predicted law of two atoms", "1 to 1.4"),
    "distance_after": ("W₂ from the tokens after the layer to the same law", "1 to 1.4"),
    "approach": ("distance_before − distance_after: how much closer the layer brought the tokens", "−0.05 to 0.05"),
    "predicted_approach": ("approach predicted for this head alone at zero temperature", "0 to 0.2"),
    "residual": ("root mean square of the stream that the update is added to", "near the normalisation's gain"),
    "applicable": ("the predicted law is two atoms, so that the distance to it was measured", "yes for about half"),
    "dim_E": ("dimension of the space that the theory sends tokens to; 0 for none", "1 or 2"),
}
"""Statistics on text, of depths, layers and heads: name → (meaning and unit, usual values)."""


def meaning(column: str) -> tuple[str, str]:
    """(meaning and unit, usual values) of a column of heads. The slope of a statistic has the column NAME_slope."""
    known = {**TEXT, **COLUMNS}
    if column in known:
        return known[column]
    of = known.get(column.removesuffix("_slope"))
    if of is None:
        return column.replace("_", " "), ""
    return f"change for each doubling of the number of tokens n, of: {of[0]}", "near 0 if n does not matter"
