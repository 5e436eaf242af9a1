"""Draw the pictures of the gallery: docs/images/gallery/NAME.png for each program, or for the programs that are named.

    python examples/gallery/_draw.py [NAME ...]

A program of the gallery leaves a plotly figure in the variable `figure`. Drawing needs a Chromium and the package
playwright (`make setup` installs it). `drawn.json` has a digest of the program that drew each picture; a test
compares it, so that a program cannot change without its picture.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import shutil
import sys
import time
from pathlib import Path

import plotly.graph_objects as go
import plotly.io as pio

HERE = Path(__file__).parent
# WebGL, for spheres, without a graphics card.
ARGUMENTS = ["--no-sandbox", "--enable-unsafe-swiftshader"]
PICTURES = HERE.parents[1] / "docs" / "images" / "gallery"


TO_IMAGE = "how => Plotly.toImage(document.querySelector('.js-plotly-plot'), how)"
LOOK = {
    "colorway": ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"],
    "font": {"family": "DejaVu Sans, Arial, sans-serif", "size": 13, "color": "#222"},
    "margin": {"l": 70, "r": 20, "t": 40, "b": 55},
}
"""Layout of figures that have none of their own: colours that colour-blind readers can tell apart, narrow margins."""


def digest(program: Path) -> str:
    """SHA-256 of a program without its docstring: other words need no other picture."""
    return hashlib.sha256(program.read_text(encoding="utf-8").split('"""', 2)[2].strip().encode()).hexdigest()


def main(names: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    pio.templates["gallery"] = go.layout.Template(layout=LOOK)
    pio.templates.default = "plotly_white+gallery"
    PICTURES.mkdir(parents=True, exist_ok=True)
    record = PICTURES / "drawn.json"
    drawn = json.loads(record.read_text()) if record.exists() else {}
    programs = {path.stem: path for path in sorted(HERE.glob("*.py")) if not path.stem.startswith("_")}
    browser = os.environ.get("METASTABLE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=browser, args=ARGUMENTS).new_page()
        for name in names or list(programs):
            begin = time.perf_counter()
            figure = runpy.run_path(str(programs[name]))["figure"]
            width, height = figure.layout.width, figure.layout.height
            page.set_content(figure.to_html(include_plotlyjs=True))
            page.wait_for_selector(".js-plotly-plot .main-svg")
            # toImage waits until spheres are drawn; a screenshot of the image is half as large as the image.
            image = page.evaluate(TO_IMAGE, {"format": "png", "width": width, "height": height})
            page.set_content(f'<img src="{image}">')
            picture = PICTURES / f"{name}.png"
            page.locator("img").screenshot(path=picture)
            drawn[name] = digest(programs[name])
            print(f"{name}: {time.perf_counter() - begin:.1f} s, {picture.stat().st_size // 1024} kB", flush=True)
    kept = {name: drawn[name] for name in sorted(drawn) if name in programs}
    record.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
