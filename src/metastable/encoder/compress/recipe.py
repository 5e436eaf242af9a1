"""Recipes: how much of what goes, and by which rule the parts are chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from metastable.errors import BadInput

OURS = "gradient"
"""The rule for heads and neurons; layers go one after the other, each time the one that is missed least."""
RULES = {
    "layers": ("greedy", "influence", "last", "random"),
    "heads": (OURS, "update", "magnitude", "random"),
    "neurons": (OURS, "update", "magnitude", "random"),
}
"""The rules by which parts can be chosen; the first one is that of the product, the others are baselines."""


@dataclass(frozen=True)
class Recipe:
    """What a compression removes, merges and quantises.

    layers : a number; heads, neurons, merge : shares, of the heads of all layers that stay, of the neurons of each
        layer, of the tokens of a text after half of the layers
    int8 : whether linear maps are quantised
    rule : None for the rules of the product, else that of a baseline for the only kind that goes
    healed : whether maps are refitted afterwards
    """

    layers: int = 0
    heads: float = 0.0
    neurons: float = 0.0
    merge: float = 0.0
    int8: bool = False
    rule: str | None = None
    healed: bool = True

    @property
    def name(self) -> str:
        """In words, without the rule."""
        gone = [f"{self.layers} layer{'s' if self.layers > 1 else ''}"] if self.layers else []
        gone += [f"{100 * getattr(self, kind):.3g} % of {kind}" for kind in ("heads", "neurons") if getattr(self, kind)]
        parts = [f"{', '.join(gone[:-1])}{' and ' if gone[1:] else ''}{gone[-1]} removed"] if gone else []
        parts += [f"{100 * self.merge:g} % of tokens merged"] if self.merge else []
        return ", ".join([*parts, *(["int8"] if self.int8 else [])]) or "nothing"

    @property
    def method(self) -> str:
        """How the parts were chosen, in words."""
        if not (self.layers or self.heads or self.neurons):
            return ""
        kind = "layers" if self.layers else "heads" if self.heads else "neurons"
        rule = self.rule or RULES[kind][0]
        return rule if self.healed else f"{rule}, not refitted"

    @property
    def baseline(self) -> bool:
        """Whether this is only for comparison."""
        return self.rule is not None or not self.healed

    def check(self, depth: int) -> None:
        """BadInput for amounts that leave nothing."""
        if not 0 <= self.layers < depth:
            raise BadInput(f"layers is {self.layers}; it must be from 0 to {depth - 1}, and one layer must stay")
        for name in ("heads", "neurons", "merge"):
            share = getattr(self, name)
            if not 0 <= share < 1:
                raise BadInput(f"{name} is {share:g}; it must be a share from 0 to below 1, such as 0.25 or 25%")
        if self.merge and depth - self.layers < 2:
            raise BadInput("tokens are merged after half of the layers; at least two layers must stay")


def plan(depth: int, layers: bool = True, tied: bool = False) -> list[Recipe]:
    """All recipes of a study for an encoder with `depth` layers, baselines at the end.

    layers : whether layers can be removed
    tied : whether all layers share their weights: then there is nothing to choose between layers, and nothing to refit
    """
    most = min(max(1, depth // 3), depth - 1) if layers else 0
    single = [
        *(Recipe(layers=count) for count in range(1, most + 1)),
        *(Recipe(heads=share) for share in (0.125, 0.25, 0.5)),
        *(Recipe(neurons=share) for share in (0.125, 0.25, 0.5)),
        Recipe(int8=True),
    ]
    merged = [Recipe(merge=0.25), Recipe(merge=0.5)] if depth > 1 else []
    both = Recipe(heads=0.25, neurons=0.25)
    mixed = [both, *([replace(both, layers=1)] if most else [])]
    with_int8 = [
        *(Recipe(layers=count, int8=True) for count in range(1, most + 1)),
        Recipe(heads=0.25, int8=True),
        Recipe(neurons=0.25, int8=True),
        *(replace(recipe, int8=True) for recipe in mixed),
        *([Recipe(merge=0.25, int8=True)] if merged else []),
        *([Recipe(layers=1, merge=0.25, int8=True)] if merged and most and depth > 2 else []),
    ]
    compared = [
        replace(base, rule=rule)
        for kind, base in (
            ("layers", Recipe(layers=1)),
            ("heads", Recipe(heads=0.25)),
            ("neurons", Recipe(neurons=0.25)),
        )
        if kind != "layers" or (most and not tied)
        for rule in RULES[kind][1:]
    ]
    unhealed = [replace(base, healed=False) for base in (Recipe(layers=1), Recipe(heads=0.25), Recipe(neurons=0.25))]
    unhealed = [] if tied else unhealed if most else unhealed[1:]
    return [*single, *merged, *mixed, *with_int8, *compared, *unhealed]
