"""Run the notebooks of this folder in place, so that they hold the outputs of the present code.

    python examples/notebooks/execute.py [NAME ...]

Needs nbclient and ipykernel (pip install -e '.[dev]'), and a Chromium or Chrome for the pictures.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
SECONDS = 600
"""Longest time of a cell."""


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with new outputs. Times, warnings and names of the machine are left out."""
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=SECONDS, resources={"metadata": {"path": str(path.parent)}}).execute()
    book.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            # Progress bars and warnings of libraries.
            cell.outputs = joined([output for output in cell.outputs if output.get("name") != "stderr"])
    return book


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """The outputs with printed lines that follow each other as one output: how they were split depends on time."""
    found: list[nbformat.NotebookNode] = []
    for output in outputs:
        if found and output.output_type == found[-1].output_type == "stream":
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def main(names: list[str]) -> None:
    for path in sorted(HERE.glob("*.ipynb")):
        if not names or path.stem in names:
            begin = time.perf_counter()
            nbformat.write(executed(path), path)
            print(f"{path.name}: {time.perf_counter() - begin:.0f} s, {path.stat().st_size // 1024} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
