"""Type checkers and editors see the signatures of every public name, although names are imported lazily."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import metastable

ROOT = Path(__file__).parent.parent
STUB = Path(metastable.__file__).with_suffix(".pyi")

PROGRAM = """
import metastable as ms
head = ms.Head.from_spectra(interaction=[1.5, 1.0], value=[1.2, 0.9], seed=0)
run = ms.simulate(head, ms.uniform(20, d=2, seed=0), beta=5.0, until=1.0)
reveal_type(head)
reveal_type(run)
reveal_type(ms.wasserstein(run.final, run.cloud).value)
reveal_type(ms.audit)
reveal_type(ms.Baseline.fit)
ms.simulate(head, "not a cloud", beta=5.0, until=1.0)
"""


def test_mypy_sees_the_types_of_a_user_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # With the project's own settings and cache, so that `make lint` has done most of the work.
    found = subprocess.run(
        [sys.executable, "-m", "mypy", str(program)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(STUB.parent.parent)},
    )
    revealed = [line for line in found.stdout.splitlines() if "Revealed type" in line]
    assert len(revealed) == 5, found.stdout + found.stderr
    assert "Head" in revealed[0]
    assert "Run" in revealed[1]
    assert "float" in revealed[2]
    assert "def (" in revealed[3]
    assert "Baseline" in revealed[4]
    assert not any("Any" in line.split("Revealed type is")[1] for line in revealed[:3])
    assert any("error" in line and "simulate" in line for line in found.stdout.splitlines())


def test_every_name_in_the_stub_can_be_imported_and_says_where_it_lives():
    names = [alias.asname for node in ast.parse(STUB.read_text()).body
             if isinstance(node, ast.ImportFrom) for alias in node.names]  # fmt: skip
    assert sorted(names) == sorted(metastable.__all__)
    for name in names:
        assert getattr(metastable, name).__module__.startswith("metastable.")


# Working parts of results are for people who write detectors or integrators, who import them from their modules.
# An Interval is a tuple of three numbers.
PARTS = {"Detector", "Examiner", "Frames", "Scorer", "Interval"}


def test_what_public_names_return_can_be_imported():
    """The classes of this package in the return types of public functions, methods and properties."""
    public = {getattr(metastable, name) for name in metastable.__all__}
    hidden = set()
    for found in public:
        members = [found]
        if inspect.isclass(found):
            # The functions that Python 3.14 makes for annotations have names with underscores here only.
            members = [member for name, member in inspect.getmembers_static(found) if not name.startswith("_")]
        for member in members:
            function = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
            if not inspect.isfunction(function) or function.__name__.startswith("_"):
                continue
            assert "return" in function.__annotations__, function
            module = ast.parse(Path(inspect.getsourcefile(function)).read_text(encoding="utf-8"))
            own = {
                alias.asname or alias.name
                for node in ast.walk(module)
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("metastable")
                for alias in node.names
            } | {node.name for node in module.body if isinstance(node, ast.ClassDef)}
            named = set(re.findall(r"\b[A-Z]\w+", str(function.__annotations__["return"])))
            hidden |= {
                (name, function.__qualname__) for name in named & own if name not in {*metastable.__all__, *PARTS}
            }
    assert not hidden
