"""A causal mask: the first token leads.

Token i attends to the tokens before it. The first token (black) never moves here, because V = I. The others form
clusters, which join the leader one after another, the last ones much later.
"""

import metastable as ms

identity = [[1.0, 0.0], [0.0, 1.0]]
block = ms.Block(ms.Head.from_interaction(identity, identity), causal=True)
run = ms.simulate(block, ms.uniform(80, d=2, seed=1), beta=25.0, until=30.0, t_eval=121)
figure = run.figure("angles").update_layout(width=720, height=380)
