"""How a baseline, a monitor and a record look in a notebook: small tables in HTML, with everything escaped."""

from __future__ import annotations

import html
from collections.abc import Mapping

STYLE = "text-align:left;vertical-align:top"


def table(title: str, rows: Mapping[str, object]) -> str:
    """A title and a table of names and values.

    >>> table("a <b>", {"p": 0.5})
    '<table><caption style="text-align:left;vertical-align:top"><b>a &lt;b&gt;</b></caption><tr><th \
style="text-align:left;vertical-align:top">p</th><td style="text-align:left;vertical-align:top">0.5</td></tr></table>'
    """
    cells = "".join(
        f'<tr><th style="{STYLE}">{html.escape(name)}</th><td style="{STYLE}">{html.escape(str(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f'<table><caption style="{STYLE}"><b>{html.escape(title)}</b></caption>{cells}</table>'
