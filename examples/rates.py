"""How fast the zero-temperature law converges: tokens at rate c, the law at min(c, κ·dim E/p)."""

import math

import torch

import metastable as ms

head = ms.Head.from_spectra(interaction=[1.5, 0.6], value=[1.2, 0.5], seed=2)
theory = head.theory()
cloud = ms.graded(20_000, head, smallest=1e-30)
frames = ms.zero_temperature_flow(head, cloud, torch.tensor([10.0, 14.0]))
limit = cloud.moved_to(theory.limit(cloud.points))

print(f"token rate c = {theory.rate:.4f}, escape rate = {theory.escape_rate:.4f}")
for p in (1, 2):
    first, last = (ms.wasserstein(cloud.moved_to(x), limit, p=p).value for x in frames)
    print(f"W{p}: predicted {theory.law_rate(p):.4f}, measured {math.log(first / last) / 4:.4f}")
