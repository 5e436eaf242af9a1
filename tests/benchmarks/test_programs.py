"""Every benchmark program can be imported: its imports from the package still exist."""

import importlib.util
import sys

import pytest

from tests.benchmarks.modules import ROOT

FOLDER = ROOT / "benchmarks"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_program_can_be_imported(path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    try:
        spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
        program = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, program)
        spec.loader.exec_module(program)
        assert program.__doc__
    finally:
        # Names such as `measure` must not hide modules of other tests.
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(FOLDER)):
                del sys.modules[name]
