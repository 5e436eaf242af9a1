"""The rooms of the package: a room imports only from rooms above it."""

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import metastable

SOURCE = Path(metastable.__file__).parent
ORDER = [
    *(
        "errors",
        "versions",
        "addresses",
        "decimals",
        "notebook",
        "arrays",
        "files",
        "progress",
        "head",
        "block",
        "cloud",
        "problem",
        "theory",
    ),
    *("attention", "flow", "transport", "run", "figures", "report", "claims", "encoder", "monitor", "scale", "lab"),
    *("cli", "__main__"),
]
# Doors that lead down, opened only when called: a head and a block know their theory, a block can be read from an
# encoder, and a run knows its pictures.
DOORS = {("head", "theory"), ("block", "theory"), ("block", "encoder"), ("run", "figures"), ("run", "report")}
FILES = sorted(SOURCE.rglob("*.py"))


def room(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("metastable."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.ImportFrom) and node.module == "metastable":
            yield from (alias.name for alias in node.names if alias.name in ORDER)
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("metastable."))


@pytest.mark.parametrize("path", [p for p in FILES if room(p) != "__init__"], ids=lambda p: str(p.relative_to(SOURCE)))
def test_rooms_import_from_above(path):
    here = room(path)
    assert here in ORDER, f"{here} has no place in ORDER"
    for there in imports(path):
        above = there == here or ORDER.index(there) < ORDER.index(here)
        assert above or (here, there) in DOORS, f"{here} imports from {there}, which is below it"


def test_docstring_examples_run():
    names = [m.name for m in pkgutil.walk_packages([str(SOURCE)], "metastable.") if not m.name.endswith("__main__")]
    results = [doctest.testmod(importlib.import_module(name)) for name in ("metastable", *names)]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) > 20


def test_every_public_name_can_be_imported():
    for name in metastable.__all__:
        assert getattr(metastable, name) is not None
    with pytest.raises(AttributeError, match="simulat"):
        metastable.simulat  # noqa: B018
