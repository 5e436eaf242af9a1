"""The README: its program runs as it stands, its links lead somewhere, its commands are those of the Makefile."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_own_head_in_five_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(block, {})
    assert "assumptions: holds" in capsys.readouterr().out
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
    assert len([line for line in block.splitlines() if line and not line.startswith("import")]) == 5


def test_links_lead_to_files():
    links = re.findall(r"\]\(([^)\s]+)\)", README)
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link
    assert len(links) > 20


def test_commands_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, flags=re.MULTILINE))
    assert {"demo", "test", "setup", "docs"} <= named <= targets


def test_it_is_two_screens():
    assert len(README.splitlines()) <= 80
