"""The documentation site: Sphinx with MyST. `make docs` builds it to build/docs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

sys.path.insert(0, str(Path(__file__).parent))
import inserts

import metastable

project = "metastable"
author = copyright = "The metastable developers"
release = metastable.__version__
extensions = ["myst_parser"]
exclude_patterns = ["_static"]
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]
# Quotes and hyphens stay as they are typed: `--out` must not become –out.
smartquotes = False
html_theme = "furo"
html_title = "metastable"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
# Excerpts of results would be fetched, which a browser refuses for a page that was opened as a file.
html_show_search_summary = False
html_search_scorer = str(Path(__file__).parent / "search_scorer.js")
# Formulas are MathML, which browsers draw themselves: the site needs no network.
html_math_renderer = "mathml"
pygments_style, pygments_dark_style = "friendly", "native"
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"
linkcheck_timeout = 10

OUTSIDE = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")
# Pages of the site that hold a file from outside of docs/.
MOVED = {
    "studies/README.md": "evidence/studies",
    "benchmarks/detection/README.md": "evidence/detection_method",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "README.md": "index",
}


def _inside(app: Any, docname: str, source: list[str]) -> None:
    """Fill the inserts, and turn links to files outside of docs/ into pages of the site or into downloads."""
    base = Path(app.srcdir)
    here = (base / docname).parent
    origin = next((base.parent / path for path, page in MOVED.items() if page == docname and page != "index"), None)

    def linked(found: re.Match[str]) -> str:
        path, place = found[1], found[2] or ""
        for folder in (here, *([origin.parent] if origin else [])):
            target = (folder / path).resolve()
            if target.exists():
                break
        else:
            return found[0]
        if target.is_dir():
            return "](#folder)"
        if target.is_relative_to(base):
            return f"]({os.path.relpath(target, here)}{place})"
        outer = target.relative_to(base.parent).as_posix()
        if label := inserts.section(outer):
            return f"](#{label})"
        if outer in MOVED:
            return f"]({os.path.relpath(base / MOVED[outer], here)}.md{place})"
        return f"](<path:{os.path.relpath(target, here)}>)"

    text = OUTSIDE.sub(linked, inserts.filled(source[0]))
    # A folder has no page and is no download: its name is shown.
    source[0] = re.sub(r"\[`?([^\]`]*)`?\]\(#folder\)", r"`\1`", text)


def _filled(app: Any, env: Any, added: Any, changed: Any, removed: Any) -> list[str]:
    """Pages with inserts. They are read again in every build, because the code or a record may have changed."""
    return [name for name in env.found_docs if inserts.MARK.search(Path(env.doc2path(name)).read_text("utf-8"))]


APPLIED = re.compile(r"<mo>&ApplyFunction;</mo>(?=\s*<(?!mo stretchy))")
"""The invisible sign between a function and an argument without brackets, as in log β."""
BAR = '<mo stretchy="false">|</mo>'


def _mathml(self: Any, node: nodes.Element) -> None:
    """A formula as MathML, with the spaces of TeX, which browsers do not add."""
    formula = tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block))
    formula = APPLIED.sub('<mspace width="0.17em"/>', formula)
    formula = re.sub(r"(?<=</mi>)(\s*)(?=<mi>log</mi>)", r'\1<mspace width="0.17em"/>', formula)
    self.body.append(formula.replace(BAR, '<mo stretchy="false" lspace="0" rspace="0">|</mo>'))
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, Any]:
    app.connect("source-read", _inside)
    app.connect("env-get-outdated", _filled)
    app.add_html_math_renderer("mathml", (_mathml, None), (_mathml, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
