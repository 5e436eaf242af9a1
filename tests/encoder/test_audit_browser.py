"""The audit's page in a real Chromium: the first screen, heat maps that open heads, phones, no network."""

from __future__ import annotations

import pytest

from metastable.encoder import report as page_of
from metastable.figures.look import number
from tests.encoder.audits import EVIL, audited, by_weights, compared, full, rendered
from tests.labels import overlapping

pytestmark = pytest.mark.browser


class Tab:
    """A page with the network cut off, which remembers complaints and every request that was tried."""

    def __init__(self, browser, path, width, height, plots, anchor):
        self.context = browser.new_context(viewport={"width": width, "height": height}, offline=True)
        self.page = self.context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda line: line.type == "error" and self.complaints.append(line.text))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"a dialog: {dialog.message}"))
        self.address = path.as_uri()
        self.page.goto(self.address + anchor)
        for plot in plots:
            self.page.wait_for_function(f"() => document.querySelectorAll('{plot} .main-svg').length > 0")

    def outside(self):
        return [url for url in self.requests if url != self.address and not url.startswith(("data:", "blob:"))]

    def dominant(self):
        """(real, imaginary) parts of the marked eigenvalues of M in the open section."""
        return self.page.evaluate(
            """() => { const t = document.getElementById('spectrum').data[2];
                return Array.from(t.x).map((x, i) => [x, t.y[i]]); }"""
        )

    def click_cell(self, layer, head, panel=""):
        """Click on a cell of the heat map; panel "2" is the twin."""
        self.page.locator("#heat-map").scroll_into_view_if_needed()
        x, y = self.page.evaluate(
            """([layer, head, panel]) => {
                const plot = document.getElementById('heat-map'), box = plot.getBoundingClientRect();
                const {['xaxis' + panel]: x, ['yaxis' + panel]: y} = plot._fullLayout;
                return [box.left + x._offset + x.d2p(head), box.top + y._offset + y.d2p(layer)];
            }""",
            [layer, head, panel],
        )
        self.page.mouse.move(x, y)
        self.page.wait_for_timeout(200)
        self.page.mouse.click(x, y)

    def shows(self, layer, head):
        """Wait until the section of this head is open."""
        title = f"Layer {layer}, head {head}"
        self.page.wait_for_function("title => document.getElementById('head-title').textContent === title", arg=title)

    def resize(self, width):
        """Change the width of the window and wait until all plots have followed, also those in closed details."""
        self.page.set_viewport_size({"width": width, "height": 844})
        closed = self.page.locator("details:not([open])").element_handles()
        for details in closed:
            details.evaluate("details => { details.open = true; }")
        self.page.wait_for_function(
            """() => [...document.querySelectorAll('.js-plotly-plot')].every(
                plot => Math.abs(plot._fullLayout.width - plot.getBoundingClientRect().width) < 2)"""
        )
        for details in closed:
            details.evaluate("details => { details.open = false; }")

    def cut(self):
        """Labels of plots that reach beyond the frame of their plot."""
        labels = ".annotation-text, .legendtext, .xtick text, .ytick text, .g-xtitle text, .g-ytitle text, .cbaxis text"
        return self.page.evaluate(
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

    def fits(self):
        return self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """Opens a page of HTML in a tab of its own."""
    tabs = []

    def open_(html, width=1280, height=720, plots=("#heat-map", "#spectrum"), anchor=""):
        path = tmp_path_factory.mktemp("page") / "report.html"
        path.write_text(html, encoding="utf-8")
        tabs.append(Tab(browser, path, width, height, plots, anchor))
        return tabs[-1]

    yield open_
    for tab in tabs:
        tab.context.close()


@pytest.fixture(scope="module")
def desk(opened):
    """The report on a desktop screen, in one tab for many tests, with the boxes of the first screen as it opened."""
    tab = opened(rendered())
    places = ("#headline", "#model", "#checks li:last-child")
    tab.boxes = {place: tab.page.locator(place).bounding_box() for place in places}
    tab.scrolled = tab.page.evaluate("window.scrollY")
    return tab


@pytest.fixture
def tab(desk):
    yield desk
    assert desk.complaints == []
    assert desk.outside() == []


def leading(layer, head):
    """(real, |imaginary|) of M's dominant eigenvalue, from the table."""
    row = audited().heads.query(f"layer == {layer} and head == {head}").iloc[0]
    return row["leading"], row["frequency"]


def test_the_first_screen_shows_headline_and_checks(tab):
    for place, box in tab.boxes.items():
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 720, f"{place} is below the first screen"
    assert tab.scrolled == 0


@pytest.mark.parametrize("place", [(4, 9), (2, 0)])
def test_a_click_on_a_cell_opens_that_head(tab, place):
    tab.click_cell(*place)
    tab.shows(*place)
    real, imaginary = leading(*place)
    found = tab.dominant()
    assert found[0][0] == pytest.approx(real, rel=1e-4)
    assert max(abs(y) for _, y in found) == pytest.approx(imaginary, rel=1e-4, abs=1e-12)
    row = tab.page.locator("#head-numbers tbody tr", has_text="leading").first
    assert row.locator("td").first.inner_text() == number(real)
    tab.page.wait_for_function("() => Math.abs(document.getElementById('head').getBoundingClientRect().top) < 40")
    assert tab.page.evaluate("location.hash") == f"#layer-{place[0]}-head-{place[1]}"
    assert tab.page.locator("#head-checks tbody tr").count() == 9


def test_a_click_on_the_twin_opens_nothing(tab):
    before = tab.page.locator("#head-title").inner_text(), tab.page.evaluate("location.hash")
    tab.click_cell(3, 7, panel="2")
    tab.page.wait_for_timeout(200)
    assert (tab.page.locator("#head-title").inner_text(), tab.page.evaluate("location.hash")) == before
    assert before[0] != "Layer 3, head 7"


def test_another_column_is_drawn(tab):
    for column in ("beta", "entropy", "check_real"):
        tab.page.select_option("#column", column)
        tab.page.wait_for_function(
            "name => document.getElementById('heat-map-caption').textContent.startsWith(name + ':')", arg=column
        )
        shown = tab.page.evaluate("Array.from(document.getElementById('heat-map').data[0].customdata[3])")
        row = audited().heads.query("layer == 3")[column]
        assert shown == [value if isinstance(value, str) else number(value) for value in row]
    tab.click_cell(3, 4)
    tab.shows(3, 4)


def test_heads_can_be_chosen_without_a_mouse(tab):
    tab.page.select_option("#layer", "1")
    tab.page.select_option("#of-layer", "3")
    tab.shows(1, 3)
    assert tab.dominant()[0][0] == pytest.approx(leading(1, 3)[0], rel=1e-4)
    tab.page.locator("#unusual a").first.click()
    first = audited().verdict.unusual.iloc[0]
    tab.shows(first["layer"], first["head"])


@pytest.mark.parametrize("which", [audited, by_weights])
def test_nothing_is_wider_than_the_window(opened, which):
    tab = opened(rendered(which), 390, 844)
    for width in (390, 800, 1280):
        tab.resize(width)
        assert tab.fits(), f"the page is wider than {width} pixels"
        assert tab.cut() == []
        assert overlapping(tab.page) == []
    assert tab.complaints == []


def test_an_address_opens_its_head_and_markup_in_names_does_nothing(opened):
    tab = opened(rendered(full), anchor="#layer-1-head-8")
    assert tab.page.locator("#head-title").inner_text() == "Layer 1, head 8"
    assert tab.page.locator("#model").inner_text() == EVIL
    assert tab.page.locator("main img").count() == 0
    tab.click_cell(0, 0)
    tab.shows(0, 0)
    assert tab.complaints == []
    assert tab.outside() == []


def test_the_text_is_there_without_javascript(browser, desk):
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(desk.address)
    assert page.locator("#headline").is_visible()
    assert page.locator("#layers tbody tr").count() == 7
    assert page.locator("#unusual li").count() > 0
    context.close()


def test_the_comparison_draws_and_fits_a_phone(opened, tmp_path):
    html = page_of.write_comparison(compared(), (EVIL, "after"), tmp_path / "compare.html").read_text(encoding="utf-8")
    tab = opened(html, 390, 844, ["#figure-comparison"])
    assert tab.page.locator("#figure-comparison .bars .point").count() == 4 * 20
    assert overlapping(tab.page) == []
    assert tab.fits()
    assert tab.complaints == []
