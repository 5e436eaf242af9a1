"""The first screens of reports, for the documentation.

    python examples/screenshots.py FOLDER=NAME … docs/images/reports    # FOLDER/report.html becomes NAME.png

`make demo` makes the reports. Needs a Chromium and the package playwright (`make setup` installs it).
"""

import os
import shutil
import sys
from pathlib import Path


def main(reports: dict[str, Path], out: Path) -> None:
    from playwright.sync_api import sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    browser = os.environ.get("METASTABLE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    arguments = ["--no-sandbox", "--enable-unsafe-swiftshader"]
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=browser, args=arguments).new_page()
        page.set_viewport_size({"width": 1120, "height": 720})
        for name, folder in reports.items():
            page.goto((folder / "report.html").resolve().as_uri())
            page.wait_for_timeout(1500)
            page.screenshot(path=out / f"{name}.png")
            print(out / f"{name}.png")


if __name__ == "__main__":
    *pairs, target = sys.argv[1:]
    main({pair.partition("=")[2]: Path(pair.partition("=")[0]) for pair in pairs}, Path(target))
