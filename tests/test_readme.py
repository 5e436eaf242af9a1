"""The README's Python blocks run as they stand, in order, in one namespace."""

import json
import re
import runpy
from pathlib import Path

import pytest

from tests.encoder.models import tiny

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_own_head_in_five_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[0], {})
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
    assert len([line for line in BLOCKS[0].splitlines() if line and not line.startswith("import")]) == 5


@pytest.mark.slow
def test_tour_of_the_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec(BLOCKS[0].splitlines()[0], namespace)
    exec(BLOCKS[1], namespace)
    assert namespace["run"].phases().terminal is not None


@pytest.mark.slow
def test_large_and_long_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec(BLOCKS[0].splitlines()[0], namespace)
    for block in BLOCKS[2:]:
        if "ms.audit" not in block and "ms.Monitor" not in block:
            exec(block, namespace)
    said = capsys.readouterr().out
    assert "MeanFieldPhases(" in said
    assert "the plateau of the uniform law at beta = 400 ends at" in said
    assert float(namespace["found"].bound.max()) <= 1e-3


def test_audit_of_a_real_encoder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in BLOCKS if "ms.audit" in block]
    exec(block, {})
    assert "mean cosine" in capsys.readouterr().out
    assert (tmp_path / "audit.html").stat().st_size > 1_000_000


def test_monitor_of_a_model_in_memory(tmp_path, monkeypatch, capsys, tokenizer, texts):
    """A small model: `examples/live_monitor.py` is tested on the real encoder."""
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in BLOCKS if "ms.Monitor" in block]
    exec(block, {"model": tiny("bert"), "tokenizer": tokenizer, "clean_texts": texts})
    assert "scored=1" in capsys.readouterr().out
    (record,) = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert record["status"] == "scored"


def test_tables_of_ratios_are_those_that_the_program_prints_from_the_records(monkeypatch, capsys):
    """Every row: a ratio in the wrong row fails too."""
    program = Path(__file__).parent.parent / "benchmarks" / "readme_table.py"
    monkeypatch.syspath_prepend(str(program.parent))
    runpy.run_path(str(program), run_name="__main__")
    printed = capsys.readouterr().out
    tables = printed.strip().split("\n\n")
    assert len(tables) == 3
    for table in tables:
        assert table in README, f"run {program.name} and paste what it prints into README.md"
    ratio = re.compile(r"\| \*\*[\d.e+]+×\*\*")
    assert len(ratio.findall(README)) == len(ratio.findall(printed)), "README.md quotes a ratio outside these tables"
