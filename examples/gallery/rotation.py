"""A complex eigenvalue makes tokens circle.

If the dominant eigenvalues of M are a complex pair, tokens keep turning and there is no limit. The verdict of the
head says so before any run.
"""

import metastable as ms

head = ms.Head.from_interaction([[1.0, 0.0], [0.0, 1.0]], [[0.6, -0.5], [0.9, 0.6]])
print(head.theory().no_limit)
run = ms.simulate(head, ms.uniform(40, d=2, seed=1), beta=20.0, until=15.0, t_eval=151)
figure = run.figure("angles").update_layout(width=720, height=380)
