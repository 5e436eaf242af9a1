"""Three phases in one curve.

The distance W₂ from the law of the tokens to the limit law falls (concentration), stays small (plateau), and rises
again (terminal phase). The run solves the mean-field equation, which is the limit of infinitely many tokens.
"""

import metastable as ms

head = ms.Head.from_spectra([1.4, 0.5], [1.2, 0.6], angle=60.0)
run = ms.mean_field(head, "uniform", beta=300.0, until=30.0, tol=1e-2)
print(*run.phases().sentences, sep="\n")
figure = run.figure("distance").update_layout(width=720)
