"""The shape of the house: a room imports only from rooms to its left, files and functions stay short."""

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import metastable

SOURCE = Path(metastable.__file__).parent
ORDER = [
    *("errors", "arrays", "spectrum", "lipschitz", "verdict", "head", "theory", "cloud", "attention", "fields", "flow"),
    *("response", "merging", "transport", "phases", "plateau", "certificate", "observables", "store", "checkpoint"),
    *("run", "progress", "simulation", "meanfield", "claims", "encoder", "monitor"),
    *("figures", "report", "configuration", "summary", "scale", "commands", "commands_monitor", "commands_scale"),
    *("ending", "lab", "cli_scale", "cli_monitor", "cli_lab", "cli", "__main__"),
]
# Doors to the right, opened only when called: a head knows its theory, a run its pictures.
DOORS = {("head", "theory"), ("run", "figures"), ("run", "report"), ("verdict", "theory"), ("store", "run")}
DOORS |= {
    ("encoder", "report"),
    ("run", "meanfield"),
    ("store", "meanfield"),
    ("theory", "plateau"),
    ("plateau", "theory"),
}
FILES = sorted(SOURCE.rglob("*.py"))


def room(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("metastable."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.ImportFrom) and node.module == "metastable":
            yield from (alias.name for alias in node.names if alias.name in ORDER)


@pytest.mark.parametrize("path", [p for p in FILES if room(p) != "__init__"], ids=lambda p: str(p.relative_to(SOURCE)))
def test_rooms_import_from_their_left(path):
    here = room(path)
    assert here in ORDER, f"{here} has no place in the house"
    for there in imports(path):
        left = there == here or ORDER.index(there) < ORDER.index(here)
        assert left or (here, there) in DOORS, f"{here} imports from {there}, which is to its right"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_and_functions_are_short(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno - node.lineno <= 60, f"{node.name} is longer than a screen"


def test_docstring_examples_run():
    names = [m.name for m in pkgutil.walk_packages([str(SOURCE)], "metastable.") if not m.name.endswith("__main__")]
    results = [doctest.testmod(importlib.import_module(name)) for name in ("metastable", *names)]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) > 20


def test_every_public_name_can_be_imported():
    for name in metastable.__all__:
        assert getattr(metastable, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        metastable.simulat  # noqa: B018
