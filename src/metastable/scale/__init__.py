"""Sweeps and corpora on Dask: on the cores of this machine, or on any Dask cluster. Nothing finished is lost.

`plan` says which points there are, `points` computes one, `journal` keeps it, `dataset` makes one labelled dataset of
all, `cluster` starts or finds the workers, and `sweep` leads.
"""
