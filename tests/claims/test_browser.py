"""The claims' report in a real Chromium: verdicts on the first screen, every picture drawn, nothing cut off."""

import pytest

from tests.claims.test_report import findings
from tests.labels import overlapping

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """The report on a phone, with the addresses that it asked for and its complaints."""
    from metastable.claims import report as claims

    folder = tmp_path_factory.mktemp("claims")
    report = claims.write(findings(folder, "FAIL"), folder / "report.html")
    context = browser.new_context(viewport={"width": 380, "height": 720}, offline=True)
    page, requests, complaints = context.new_page(), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: line.type == "error" and complaints.append(line.text))
    page.goto(report.as_uri())
    page.wait_for_selector(".js-plotly-plot .cartesianlayer path.js-line")
    yield page, requests, complaints
    context.close()


@pytest.mark.parametrize("width", [380, 800, 1400])
def test_the_page_fits_and_draws_without_complaint_or_network(opened, width):
    page, requests, complaints = opened
    page.set_viewport_size({"width": width, "height": 720})
    page.wait_for_function(
        """() => [...document.querySelectorAll('.js-plotly-plot')].every(plot =>
            Math.abs(plot.querySelector('.main-svg').getBoundingClientRect().width - plot.offsetWidth) < 2)"""
    )
    page.evaluate("scrollTo(0, 0)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    verdict = page.locator(".claims .status").first
    assert verdict.inner_text() == "✗ FAIL"
    assert verdict.bounding_box()["y"] < 720
    box = page.locator("#figure-two-tokens-0 .main-svg").first.bounding_box()
    assert box["width"] > 300
    names = page.locator("#figure-two-tokens-0 .legendtext").all_text_contents()
    assert names == ["measured", "predicted", "allowed"]
    assert _inside(page, "#figure-two-tokens-0 .legend", box)
    page.locator(".claims a").first.click()
    assert page.url.endswith("#two-tokens")
    assert overlapping(page) == []
    assert not complaints
    assert [url for url in requests if not url.startswith("file:")] == []


def _inside(page, selector, box):
    part = page.locator(selector).first.bounding_box()
    return part["x"] >= box["x"] and part["y"] + part["height"] <= box["y"] + box["height"] + 1
