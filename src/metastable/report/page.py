"""What all pages share: the templates, and writing a page whole or not at all."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from metastable.errors import BadInput
from metastable.figures.look import number, raised
from metastable.run import storage as store


def pages() -> Environment:
    """The templates, with everything escaped and nothing missing tolerated."""
    found = Environment(loader=PackageLoader("metastable.report"), autoescape=True, undefined=StrictUndefined)
    found.filters["number"] = number
    found.filters["formula"] = formula
    return found


def formula(text: str) -> Markup:
    """Text with its powers and indices raised and lowered."""
    return Markup(raised(text))


def target_of(path: str | Path) -> Path:
    """Where a report will be written, its folder made; what cannot be is refused before the work of making a page."""
    target = Path(path)
    if target.is_dir():
        raise BadInput(f"{target} is a folder; give the name of a file, such as {target / 'report.html'}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write {target}: {error.strerror or error}") from error
    return target


def write_page(target: Path, html: str) -> Path:
    """Write a page, whole or not at all."""
    try:
        store.write_text(target, html)
    except OSError as error:
        raise BadInput(f"cannot write {target}: {error.strerror or error}") from error
    return target
