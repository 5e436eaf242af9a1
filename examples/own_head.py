"""Your own (Q, K, V): what the theory says, what a run does, and a report."""

import torch

import metastable as ms

Q, K, V = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
head = ms.Head(Q, K, V)
print(head.theory().verdict)
run = ms.simulate(head, ms.uniform(500, d=4, seed=0), beta=20.0, until=5.0)
print(run, "report:", run.report("own_head.html"))
