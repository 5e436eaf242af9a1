"""The audit's page in a real Chromium: the first screen, heat maps that open heads, phones, no network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metastable.encoder import report as page_of
from metastable.figures.look import number
from tests.encoder.test_report import EVIL, audited, by_weights, compared

pytestmark = pytest.mark.browser


class Tab:
    """A page with the network cut off, which remembers complaints and every request that was tried."""

    def __init__(self, browser, path, width, height, anchor=""):
        self.context = browser.new_context(viewport={"width": width, "height": height}, offline=True)
        self.page = self.context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda line: line.type == "error" and self.complaints.append(line.text))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"a dialog: {dialog.message}"))
        self.address = path.as_uri() + anchor
        self.page.goto(self.address)
        self.page.wait_for_function("() => document.querySelectorAll('#heat-map .main-svg').length > 0")
        self.page.wait_for_function("() => document.querySelectorAll('#spectrum .main-svg').length > 0")

    def outside(self):
        return [url for url in self.requests if url != self.address and not url.startswith(("data:", "blob:"))]

    def dominant(self):
        """(real, imaginary) parts of the marked eigenvalues of M in the open section."""
        return self.page.evaluate(
            """() => { const t = document.getElementById('spectrum').data[2];
                return Array.from(t.x).map((x, i) => [x, t.y[i]]); }"""
        )

    def click_cell(self, layer, head):
        self.page.locator("#heat-map").scroll_into_view_if_needed()
        x, y = self.page.evaluate(
            """([layer, head]) => {
                const plot = document.getElementById('heat-map'), box = plot.getBoundingClientRect();
                const {xaxis, yaxis} = plot._fullLayout;
                return [box.left + xaxis._offset + xaxis.d2p(head), box.top + yaxis._offset + yaxis.d2p(layer)];
            }""",
            [layer, head],
        )
        self.page.mouse.move(x, y)
        self.page.wait_for_timeout(200)
        self.page.mouse.click(x, y)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return page_of.write(audited(), tmp_path_factory.mktemp("audit") / "report.html")


@pytest.fixture
def opened(browser):
    tabs = []

    def open_(path, width=1280, height=720, anchor=""):
        tabs.append(Tab(browser, path, width, height, anchor))
        return tabs[-1]

    yield open_
    for tab in tabs:
        tab.context.close()


def leading(layer, head):
    """(real, |imaginary|) of M's dominant eigenvalue, from the table."""
    row = audited().heads.query(f"layer == {layer} and head == {head}").iloc[0]
    return row["leading"], row["frequency"]


def test_the_first_screen_shows_headline_phases_and_numbers(opened, report):
    tab = opened(report)
    for place in ("#headline", "#phases", "#model", ".numbers > div:last-child"):
        box = tab.page.locator(place).bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 720, f"{place} is below the first screen"
    assert tab.page.evaluate("window.scrollY") == 0
    assert tab.complaints == []
    assert tab.outside() == []


@pytest.mark.parametrize("place", [(4, 9), (2, 0)])
def test_a_click_on_a_cell_opens_that_head(opened, report, place):
    tab = opened(report)
    tab.click_cell(*place)
    tab.page.wait_for_function(
        "title => document.getElementById('head-title').textContent === title",
        arg=f"Layer {place[0]}, head {place[1]}",
    )
    real, imaginary = leading(*place)
    found = tab.dominant()
    assert found[0][0] == pytest.approx(real, rel=1e-4)
    assert max(abs(y) for _, y in found) == pytest.approx(imaginary, rel=1e-4, abs=1e-12)
    row = tab.page.locator("#head-numbers tbody tr", has_text="leading").first
    assert row.locator("td").first.inner_text() == number(real)
    tab.page.wait_for_function("() => Math.abs(document.getElementById('head').getBoundingClientRect().top) < 40")
    assert tab.page.evaluate("location.hash") == f"#layer-{place[0]}-head-{place[1]}"
    assert tab.page.locator("#head-checks tbody tr").count() == 9
    assert tab.complaints == []


def test_a_click_on_the_twin_opens_nothing(opened, report):
    tab = opened(report)
    before = tab.page.locator("#head-title").inner_text()
    tab.page.locator("#heat-map").scroll_into_view_if_needed()
    x, y = tab.page.evaluate(
        """() => { const plot = document.getElementById('heat-map'), box = plot.getBoundingClientRect();
            const {xaxis2, yaxis2} = plot._fullLayout;
            return [box.left + xaxis2._offset + xaxis2.d2p(7), box.top + yaxis2._offset + yaxis2.d2p(3)]; }"""
    )
    tab.page.mouse.click(x, y)
    tab.page.wait_for_timeout(400)
    assert tab.page.locator("#head-title").inner_text() == before
    assert tab.page.evaluate("location.hash") == ""


def test_another_column_is_drawn(opened, report):
    tab = opened(report)
    for column in ("beta", "entropy", "check_real"):
        tab.page.select_option("#column", column)
        tab.page.wait_for_function(
            "name => document.getElementById('heat-map-caption').textContent.startsWith(name + ':')", arg=column
        )
        shown = tab.page.evaluate("Array.from(document.getElementById('heat-map').data[0].customdata[3])")
        row = audited().heads.query("layer == 3")[column]
        assert shown == [value if isinstance(value, str) else number(value) for value in row]
    tab.click_cell(3, 4)
    tab.page.wait_for_function("() => document.getElementById('head-title').textContent === 'Layer 3, head 4'")
    assert tab.complaints == []


def test_heads_can_be_chosen_without_a_mouse_and_by_address(opened, report):
    tab = opened(report, anchor="#layer-1-head-8")
    assert tab.page.locator("#head-title").inner_text() == "Layer 1, head 8"
    tab.page.select_option("#of-layer", "3")
    tab.page.wait_for_function("() => document.getElementById('head-title').textContent === 'Layer 1, head 3'")
    assert tab.dominant()[0][0] == pytest.approx(leading(1, 3)[0], rel=1e-4)
    tab.page.locator("#unusual a").first.click()
    first = audited().verdict.unusual.iloc[0]
    title = f"Layer {first['layer']}, head {first['head']}"
    tab.page.wait_for_function("title => document.getElementById('head-title').textContent === title", arg=title)


@pytest.mark.parametrize("width", [390, 800, 1280])
@pytest.mark.parametrize("which", [audited, by_weights])
def test_nothing_is_wider_than_the_window(opened, tmp_path, width, which):
    tab = opened(page_of.write(which(), tmp_path / "report.html"), width, 844)
    assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    labels = ".annotation-text, .legendtext, .xtick text, .ytick text, .g-xtitle text, .g-ytitle text, .cbaxis text"
    cut = tab.page.evaluate(
        """labels => [...document.querySelectorAll('.js-plotly-plot')].flatMap(plot => {
            const f = plot.getBoundingClientRect();
            return [...plot.querySelectorAll(labels)].filter(e => {
                const b = e.getBoundingClientRect();
                const beyond = b.left < f.left - 1 || b.right > f.right + 1 || b.bottom > f.bottom + 1;
                return e.textContent.trim() && beyond;
            }).map(e => plot.id + ': ' + e.textContent);
        })""",
        labels,
    )
    assert cut == []
    assert tab.complaints == []


def test_markup_in_names_does_nothing(opened, tmp_path):
    evil = replace(audited(), name=EVIL, notes=(EVIL,), reference=replace(audited(), name=EVIL))
    tab = opened(page_of.write(evil, tmp_path / "report.html"))
    assert tab.page.locator("#model").inner_text() == EVIL
    assert tab.page.locator("main img").count() == 0
    tab.click_cell(0, 0)
    tab.page.wait_for_function("() => document.getElementById('head-title').textContent === 'Layer 0, head 0'")
    assert tab.complaints == []
    assert tab.outside() == []


def test_the_text_is_there_without_javascript(browser, report):
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("#headline").is_visible()
    assert page.locator("#layers tbody tr").count() == 7
    assert page.locator("#unusual li").count() > 0
    context.close()


def test_the_comparison_draws_and_fits_a_phone(browser, tmp_path):
    path = page_of.write_comparison(compared(), (EVIL, "after"), tmp_path / "compare.html")
    context = browser.new_context(viewport={"width": 390, "height": 844}, offline=True)
    page = context.new_page()
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: line.type == "error" and complaints.append(line.text))
    page.goto(path.as_uri())
    page.wait_for_function("() => document.querySelectorAll('#figure-comparison .main-svg').length > 0")
    assert page.locator("#figure-comparison .bars .point").count() == 4 * 20
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert complaints == []
    context.close()
