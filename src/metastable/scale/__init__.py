"""Sweeps and corpora on Dask: on the cores of this machine, or on any Dask cluster.

`sweep` makes a labelled dataset: `plan` says which points there are, `points` computes one, `dataset` labels them,
`report` draws them. `corpora` measures and watches texts. Both run `tasks` on the workers of `cluster`.
"""
