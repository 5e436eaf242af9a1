"""Every token as a line.

On the circle a token is an angle. Each line is one token, coloured by its start. The lines join at ±e, rest for a
moment, and then move on together to the dominant direction of V. So few tokens cannot hold the plateau for long.
"""

import metastable as ms

head = ms.Head.from_spectra([1.4, 0.5], [1.2, 0.6], angle=60.0)
run = ms.simulate(head, ms.equally_spaced(72), beta=200.0, until=16.0, t_eval=121)
figure = run.figure("angles").update_layout(width=720, height=380)
