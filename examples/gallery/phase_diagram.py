"""A phase diagram.

A sweep over β gives one dataset. The colours are the phase at each time and β; the lines are what the theory says.
The sweep uses graded tokens, so the plateau ends somewhat too early.
"""

import tempfile

import metastable as ms
from metastable.figures import phase_diagram

head = ms.Head.from_spectra([1.0, 0.3], [1.2, 0.3], angle=65.0)
betas = [40.0, 57.0, 80.0, 113.0, 160.0, 226.0, 320.0]
with tempfile.TemporaryDirectory() as folder:
    data = ms.sweep(
        head=head,
        axes={"beta": betas},
        law="graded",
        n=300,
        until=20.0,
        tol=1e-3,
        t_eval=81,
        out=folder + "/sweep",
        workers=1,
    ).load()
figure = phase_diagram(data, theory=head.theory()).update_layout(width=720)
