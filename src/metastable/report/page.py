"""What all reports share: templates, figures as HTML, and writing a page completely or not at all."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from metastable import files
from metastable.errors import BadInput
from metastable.figures.look import CONFIG, caption, number, raised, untitled

LONGEST = 120
"""A longer value in a table is cut after this many characters."""


def render_page(template: str, **values: Any) -> str:
    """A page as HTML that needs no network: plotly.js is part of it. Values are escaped, and none may be missing."""
    templates = Environment(loader=PackageLoader("metastable.report"), autoescape=True, undefined=StrictUndefined)
    templates.filters["number"] = number
    templates.filters["formula"] = lambda text: Markup(raised(text))
    return templates.get_template(template).render(plotly=Markup(get_plotlyjs()), **values)


def figure_block(kind: str, figure: go.Figure) -> dict[str, Any]:
    """Title, caption and HTML of a figure, for a template. The element has the id figure-`kind`."""
    title = figure.layout.title.text
    html = untitled(figure).to_html(
        full_html=False,
        include_plotlyjs=False,
        auto_play=False,
        config=CONFIG,
        div_id=f"figure-{kind}",
        default_width="100%",
    )
    return {"title": title, "caption": caption(figure), "html": Markup(html)}


def table_rows(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values for a table: numbers with three digits, long texts cut."""
    return [(str(name), _short(value)) for name, value in values.items()]


def _short(value: Any) -> str:
    if isinstance(value, float):
        return number(value) if math.isfinite(value) else str(value)
    text = str(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"


def target_of(path: str | Path) -> Path:
    """The path of a report, with its folder made. A path that cannot be written is refused before the page is made."""
    target = Path(path)
    if target.is_dir():
        raise BadInput(f"{target} is a folder; give the name of a file, such as {target / 'report.html'}")
    with files.writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    return target


def write_page(target: Path, html: str) -> Path:
    """Write a page completely or not at all."""
    files.write_text(target, html)
    return target


def short_name(name: str) -> str:
    """The last folder of an absolute path; every other name as it is."""
    kind = PureWindowsPath if PureWindowsPath(name).is_absolute() else PurePosixPath
    return (kind(name).name or name) if kind(name).is_absolute() else name
