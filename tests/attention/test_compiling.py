"""The first use of the tree engine: both processes compile for the types that are used, and nothing twice."""

import os
import subprocess
import sys

import numpy as np
import pytest

from metastable.attention.tree import Tree, compile_kernels
from metastable.attention.tree.descent import descend

FRESH = """
from metastable.attention.tree import compile_kernels
from metastable.attention.tree.boxes import fit_below
from metastable.attention.tree.descent import descend, evaluate
{before}
compile_kernels()
for kernel in (descend, evaluate, fit_below):
    print(len(kernel.signatures), sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))
"""


@pytest.mark.slow
def test_the_types_compiled_for_are_those_that_are_used(monkeypatch):
    def no_process(*_, **__):
        raise OSError

    monkeypatch.setattr(subprocess, "Popen", no_process)
    compile_kernels()
    for d in (1, 2, 3, 4):
        points = np.random.default_rng(0).standard_normal((50, d))
        Tree(points).attend(points, 1e-3)
        Tree(points, np.linspace(-3, 0, 50)).attend(points[::-1], 1e-6, paired=True)
    assert len(descend.signatures) == 1


def compiled_afresh(folder, before=""):
    """(signatures, kernels found on disk, kernels compiled here) of descend, evaluate and fit_below."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    program = [sys.executable, "-c", FRESH.format(before=before)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    return [tuple(int(word) for word in line.split()) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_the_second_process_compiles_its_part_and_the_first_the_rest(tmp_path):
    assert compiled_afresh(tmp_path) == [(1, 0, 1), (1, 1, 0), (1, 1, 0)]


@pytest.mark.slow
def test_without_a_second_process_the_first_compiles_everything(tmp_path):
    none = "import sys; sys.executable = '/nowhere/python'"
    assert compiled_afresh(tmp_path, none) == [(1, 0, 1), (1, 0, 1), (1, 0, 1)]
