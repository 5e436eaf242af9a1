"""Figures as files for papers and slides: SVG, PDF or PNG, drawn on this machine without a network.

plotly draws in a browser. The package kaleido runs one, and so does playwright. Both use an installed Chromium or
Chrome. plotly.js comes from the installed package plotly.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote_to_bytes

import plotly.graph_objects as go

from metastable import files
from metastable.errors import BadInput, choice
from metastable.figures import look

FORMATS = ("svg", "pdf", "png")
SCALE = 3
"""Pixels of a PNG, and of a sphere inside an SVG or PDF, for each pixel of the figure: 288 for an inch."""
WIDTH, HEIGHT = 720.0, 450.0
"""The size of figures that have none, in pixels."""
ARGUMENTS = ("--enable-unsafe-swiftshader",)
"""Spheres are drawn without a graphics card."""
TO_IMAGE = "how => Plotly.toImage(document.querySelector('.js-plotly-plot'), how)"
INSTALL = "install one of them: pip install kaleido, or pip install playwright; both need a Chromium or Chrome"


def export(figure: go.Figure, path: str | Path, width: str | float | None = None) -> Path:
    """Write a figure as SVG, PDF or PNG, by the ending of the name. It needs a Chromium or Chrome, but no network.

    The figure itself is not changed. A PDF has one page of the size of the figure.

    width : if it is given, the figure is put in the style of papers first, see `paper`: "single", "double", or inches
    """
    target = Path(path)
    kind = choice(target.suffix.removeprefix(".").lower(), "the ending of the name", FORMATS)
    made = go.Figure(figure)
    look.still(made) if width is None else look.paper(made, width)
    made.update_layout(width=made.layout.width or WIDTH, height=made.layout.height or HEIGHT)
    image = _image(made, kind)
    with files.writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    files.write(target, lambda place: place.write_bytes(image))
    return target


def _image(figure: go.Figure, kind: str) -> bytes:
    """The file, by the first of the two packages that works."""
    failures = []
    for package, draw in (("kaleido", _by_kaleido), ("playwright", _by_playwright)):
        if importlib.util.find_spec(package) is None:
            failures.append(f"{package} is not installed")
            continue
        try:
            # A thread of its own, because a notebook runs an event loop in this one.
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(draw, figure, kind).result()
        except Exception as error:
            failures.append(f"{package} failed ({(str(error).splitlines() or [type(error).__name__])[0][:120]})")
    raise BadInput(f"the figure cannot be exported: {', and '.join(failures)}; {INSTALL}")


def _by_kaleido(figure: go.Figure, kind: str) -> bytes:
    import kaleido

    size = {"width": figure.layout.width, "height": figure.layout.height}
    scale = SCALE if kind == "png" else 1
    # MathJax would be fetched from the network.
    made = kaleido.calc_fig_sync(figure, opts={"format": kind, "scale": scale, **size}, kopts={"mathjax": False})
    return bytes(made)


def _by_playwright(figure: go.Figure, kind: str) -> bytes:
    from playwright.sync_api import sync_playwright

    width, height = figure.layout.width, figure.layout.height
    found = os.environ.get("METASTABLE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        # Chromium does not start with a sandbox for the administrator of a machine.
        administrator = hasattr(os, "geteuid") and os.geteuid() == 0
        arguments = [*ARGUMENTS, *(["--no-sandbox"] if administrator else [])]
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        try:
            page = browser.new_page()
            page.set_content(figure.to_html(include_plotlyjs=True))
            page.wait_for_selector(".js-plotly-plot .main-svg")
            how = {"format": "png" if kind == "png" else "svg", "width": width, "height": height}
            if kind == "png":
                how["scale"] = SCALE
            image = _decoded(page.evaluate(TO_IMAGE, how))
            if kind != "pdf":
                return image
            page.set_content(f"<style>body{{margin:0}}svg{{display:block}}</style>{image.decode()}")
            # A page that is a fraction of a pixel too short would get a second, empty page.
            return bytes(page.pdf(width=f"{width}px", height=f"{height + 0.5}px", print_background=True))
        finally:
            browser.close()


def _decoded(address: str) -> bytes:
    """The content of a data: URL."""
    head, _, body = address.partition(",")
    return base64.b64decode(body) if head.endswith(";base64") else unquote_to_bytes(body)
