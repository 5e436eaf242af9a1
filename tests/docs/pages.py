"""The pages of the documentation, read without the tools of the site."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@cache
def inserts():
    """The module docs/inserts.py."""
    spec = importlib.util.spec_from_file_location("inserts", DOCS / "inserts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages():
    return sorted(DOCS.rglob("*.md"))


@cache
def filled(path):
    """The text of a page as the site shows it, with its inserts."""
    return inserts().filled(path.read_text(encoding="utf-8"))


@cache
def prose(path):
    """The text of a page without code and formulas."""
    text = re.sub(r"^```.*?^```", "", filled(path), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", "", text, flags=re.DOTALL)


@cache
def anchors(path):
    """The anchors of the headings of a page, as MyST and GitHub make them, and the labels of the page."""
    found = set(re.findall(r"^\((.+)\)=$", prose(path), flags=re.MULTILINE))
    for heading in re.findall(r"^#{1,4} (.+)$", prose(path), flags=re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", re.sub(r"[`*\\]", "", heading.lower())).replace(" ", "-")
        found.add(plain)
    return found
