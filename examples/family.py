"""A gallery of the family: one run on the circle for each member, drawn as angles over time.

    python examples/family.py docs/images/family

Writes one PNG for each member. Drawing needs a Chromium and the package playwright (`make setup` installs it).
"""

import math
import os
import shutil
import sys
from pathlib import Path

import metastable as ms
from metastable.theory.noise import critical_noise

HEAD = ms.Head.from_spectra([1.4, 0.7], [1.2, 0.5], angle=40.0)
OTHERS = [ms.Head.from_spectra([1.4, 0.7], [1.2, 0.5], seed=seed) for seed in (1, 2)]
IDENTITY = ms.Head.from_interaction([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]])
ELLIPSE = ms.Head.from_interaction([[1.0, 0.0], [0.0, 0.6]], [[1.0, 0.0], [0.0, 1.0]])
PERCEPTRON = ms.Perceptron.random(2, 32, seed=3, strength=2.0)
CRITICAL = critical_noise(5.0, 2)
# Name → block, inverse temperature, horizon, further arguments of `simulate`.
MEMBERS = {
    "post": (ms.Block(HEAD), 60.0, 12.0, {}),
    "several-heads": (ms.Block([HEAD, *OTHERS]), 60.0, 6.0, {}),
    "perceptron": (ms.Block(HEAD, PERCEPTRON), 60.0, 8.0, {}),
    "pre": (ms.Block(HEAD, norm="pre"), 60.0, 40.0, {}),
    "peri": (ms.Block(HEAD, norm="peri"), 60.0, 40.0, {}),
    "ngpt": (ms.Block(HEAD, norm="ngpt"), 60.0, 12.0, {}),
    "none": (ms.Block(HEAD, norm="none"), 4.0, 6.0, {}),
    "layers": (ms.Block(HEAD, PERCEPTRON, sequential=True), 60.0, 12.0, {"method": "layers", "step": 0.5}),
    "unnormalised": (ms.Block(IDENTITY, kernel="unnormalised"), 6.0, 1.0, {}),
    "sigmoid": (ms.Block(IDENTITY, kernel="sigmoid"), 6.0, 25.0, {}),
    "linear": (ms.Block(HEAD, kernel="linear"), 1.0, 12.0, {}),
    "causal": (ms.Block(IDENTITY, causal=True), 80.0, 30.0, {}),
    "leaders": (ms.Block(ELLIPSE, norm="none"), math.inf, 6.0, {"step": 0.02}),
    "noise-below": (ms.Block(IDENTITY, noise=0.7 * CRITICAL), 5.0, 60.0, {"step": 0.05}),
    "noise-above": (ms.Block(IDENTITY, noise=1.3 * CRITICAL), 5.0, 60.0, {"step": 0.05}),
}


def _title(block: ms.Block) -> str:
    return block.name.replace("softmax attention, one head, ", "").replace("attention, one head", "attention")


def main(folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    browser = os.environ.get("METASTABLE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page()
        for name, (block, beta, until, more) in MEMBERS.items():
            run = ms.simulate(block, ms.uniform(120, d=2, seed=1), beta, until, t_eval=121, progress=False, **more)
            figure = run.figure("angles").update_layout(
                width=560, height=340, title={"text": _title(block), "font": {"size": 15}}
            )
            page.set_viewport_size({"width": 560, "height": 340})
            page.set_content(figure.to_html(include_plotlyjs=True, config={"staticPlot": True}))
            page.locator(".plotly").first.screenshot(path=folder / f"{name}.png")
            print(f"{name}: {run}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "family"))
