"""The weights-only table of the 144 heads of a 12-layer encoder of width 768 against dense eigenvalues of M and V."""

from __future__ import annotations

import torch
from measure import ratios, record
from transformers import BertConfig, BertModel

from metastable.encoder.families import anatomy
from metastable.encoder.fold import fold
from metastable.encoder.weights import weigh

FEW = 4


def main() -> None:
    # One thread for both: a dense 768×768 problem gains nothing from a second, and the table takes one anyway.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = anatomy(BertModel(BertConfig(vocab_size=10)))
    places = [(layer, head) for layer in encoder.layers for head in range(layer.heads)]
    few = places[:: len(places) // FEW]

    def dense() -> list[tuple[torch.Tensor, torch.Tensor]]:
        heads = [fold(layer, head).theory_head()[0] for layer, head in few]
        return [(torch.linalg.eigvals(head.M), torch.linalg.eigvals(head.V)) for head in heads]

    table = weigh(encoder).heads.set_index(["layer", "head"])
    differences = [
        abs(table.loc[(layer.index, head), name] - float(values.real.max()))
        for (layer, head), pair in zip(few, dense(), strict=True)
        for name, values in zip(("leading", "value_leading"), pair, strict=True)
    ]
    row = ratios(dense, lambda: weigh(encoder).heads, repeats=3)
    # The dense side does a few of the 144 heads, all of one size; its time is scaled to 144.
    scale = len(places) / len(few)
    for key in ("slow_seconds", "ratio", "lowest", "highest"):
        row[key] *= scale
    record("weights", [{"what": "table", "heads": len(places), **row, "largest_difference": max(differences)}])


if __name__ == "__main__":
    main()
