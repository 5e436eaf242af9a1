"""The notebooks in examples/notebooks are valid, have outputs that name no machine, and run without an error."""

import ast
import importlib.util
import json
import re
import socket

import pytest

from tests.conftest import chromium
from tests.docs.pages import ROOT

FOLDER = ROOT / "examples" / "notebooks"
NAMES = ("three_phases", "audit_of_an_encoder", "monitor_in_practice", "figures_of_the_paper")
PRIVATE = re.compile(r"(?<![\w.])(?:/(?:home|root|Users|work|tmp|usr|opt|var|mnt|private)/|[A-Z]:\\)")
"""The beginning of an absolute path."""


def saved(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def code(book):
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def shown(outputs):
    """Every text in the outputs of a cell."""
    for output in outputs:
        yield "".join(output.get("text", ""))
        yield from ("".join(content) for content in output.get("data", {}).values() if not isinstance(content, dict))


def test_these_are_the_notebooks():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_notebook_is_whole(name):
    path, book = FOLDER / f"{name}.ipynb", saved(name)
    if importlib.util.find_spec("nbformat") is not None:
        import nbformat

        nbformat.validate(nbformat.read(path, as_version=4))
    assert path.stat().st_size < 400_000
    assert (book["nbformat"], book["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert book["cells"][0]["cell_type"] == "markdown"
    assert "What to try next" in "".join(book["cells"][-1]["source"])
    counts = [cell["execution_count"] for cell in code(book)]
    assert counts == list(range(1, len(counts) + 1)), "run it again with examples/notebooks/execute.py"
    assert not any(output["output_type"] == "error" for cell in code(book) for output in cell["outputs"])
    assert sum(bool(cell["outputs"]) for cell in code(book)) >= len(counts) - 2
    pictures = [o for cell in code(book) for o in cell["outputs"] if "image/svg+xml" in o.get("data", {})]
    tables = [o for cell in code(book) for o in cell["outputs"] if "text/html" in o.get("data", {})]
    assert pictures or tables


@pytest.mark.parametrize("name", NAMES)
def test_cells_compile_and_use_public_names(name):
    for cell in code(saved(name)):
        tree = ast.parse("".join(cell["source"]))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                assert not node.attr.startswith("_")
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not any(alias.name.startswith("_") for alias in node.names)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_name_no_machine(name):
    machine = socket.gethostname()
    for cell in code(saved(name)):
        for text in shown(cell["outputs"]):
            assert not PRIVATE.search(text), PRIVATE.search(text)
            assert len(machine) < 4 or machine not in text


@pytest.mark.parametrize("name", NAMES)
def test_links_of_notebooks_lead_somewhere(name):
    for cell in saved(name)["cells"]:
        if cell["cell_type"] == "markdown":
            for target in re.findall(r"\]\(([^)]+)\)", "".join(cell["source"])):
                assert target.startswith("https://") or (FOLDER / target).exists(), target


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package)
    if chromium() is None:
        pytest.skip("no Chromium found")
    # Relative paths of the notebooks lead from examples/notebooks to the texts and the programs of the repository.
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    folder = tmp_path / "examples" / "notebooks"
    folder.mkdir(parents=True)
    for path in (ROOT / "examples").glob("*.*"):
        (folder.parent / path.name).symlink_to(path)
    (folder / f"{name}.ipynb").write_bytes((FOLDER / f"{name}.ipynb").read_bytes())
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    execute = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(execute)
    book = execute.executed(folder / f"{name}.ipynb")
    assert [cell.source for cell in book.cells] == ["".join(cell["source"]) for cell in saved(name)["cells"]]
    for old, new in zip(code(saved(name)), code(book), strict=True):
        assert [o["output_type"] for o in old["outputs"]] == [o["output_type"] for o in new["outputs"]]
