"""The report in a real Chromium: it draws, it moves, it fits, and it asks the network for nothing."""

import pytest

import metastable as ms
from tests.labels import move, overlapping
from tests.problems import circle_head

pytestmark = pytest.mark.browser

WIDTHS = (380, 800, 1400)
# Where the first tokens of each colour are.
POSITIONS = """document.getElementById('figure-sphere')._fullData
    .filter(t => t.mode === 'markers').map(t => Array.from(t.x).slice(0, 50))"""
FIGURES = ("distance", "sphere", "spectrum", "observables")


def circle():
    head = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5))
    return ms.simulate(head, ms.graded(150, head), beta=100.0, until=20.0, t_eval=21)


def ball():
    head = ms.Head.from_spectra([1.5, 1.0, 0.6], [1.2, 0.9, 0.5], seed=0)
    return ms.simulate(head, ms.graded(120, head), beta=100.0, until=12.0, t_eval=13)


def rotation():
    head = ms.Head.from_interaction([[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[1, -0.8, 0], [0.8, 1, 0], [0, 0, 0.3]])
    return ms.simulate(head, ms.uniform(60, 3), beta=50.0, until=5.0, t_eval=5)


@pytest.fixture(scope="module", params=[circle, ball], ids=lambda make: make.__name__)
def report(request, tmp_path_factory):
    return request.param().report(tmp_path_factory.mktemp("report") / "report.html")


class Tab:
    """A page with the network cut off, which remembers complaints and every request that was tried."""

    def __init__(self, browser, path, width):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
        self.page = self.context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda line: line.type == "error" and self.complaints.append(line.text))
        self.address = path.as_uri()
        self.page.goto(self.address)
        self.page.wait_for_function(
            "n => document.querySelectorAll('.js-plotly-plot .main-svg').length >= n", arg=len(FIGURES)
        )

    def positions(self):
        return self.page.evaluate(f"JSON.stringify({POSITIONS})")

    def time(self):
        return self.page.locator("#figure-sphere .slider-label", has_text="time t = ").text_content()

    def picture(self):
        """What is to be seen of the moving tokens, as pixels."""
        return self.page.locator("#figure-sphere").screenshot()


@pytest.fixture(scope="module")
def tab(browser, report):
    """A page that was opened at the width of a phone and then widened."""
    tab = Tab(browser, report, 380)
    tab.at_once = overflow(tab.page)
    resize(tab.page, 1000)
    yield tab
    tab.context.close()


def resize(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_function(
        """() => [...document.querySelectorAll('.js-plotly-plot')].every(plot =>
            Math.abs(plot.querySelector('.main-svg').getBoundingClientRect().width - plot.offsetWidth) < 2)"""
    )


def test_all_figures_are_drawn_without_complaint_or_network(tab):
    assert_drawn(tab)
    tab.page.wait_for_timeout(400)
    assert tab.time().startswith("time t = 0 of "), "nothing moves before it is asked to"
    assert tab.complaints == []


def test_a_phone_gets_the_right_layout_at_once(tab):
    assert tab.at_once == []


def test_a_head_without_a_limit_is_drawn_and_fits_a_phone(browser, tmp_path):
    tab = Tab(browser, rotation().report(tmp_path / "report.html"), 380)
    assert_drawn(tab, 200)
    assert "no limit law" in tab.page.locator("h1#headline").inner_text()
    assert overflow(tab.page) == []
    tab.context.close()


def assert_drawn(tab, least=300):
    page = tab.page
    assert page.locator(".js-plotly-plot").count() == len(FIGURES)
    for kind in FIGURES:
        box = page.locator(f"#figure-{kind} .main-svg").first.bounding_box()
        assert box["width"] > least
        assert box["height"] > least
    for kind in ("distance", "observables"):
        lines = page.evaluate(f"document.getElementById('figure-{kind}')._fullData.length")
        assert lines >= 2
        assert page.locator(f"#figure-{kind} .cartesianlayer path.js-line").count() == lines
    assert page.locator("#figure-spectrum .scatterlayer path.point").count() >= 2
    assert tab.complaints == []
    assert [url for url in tab.requests if url != tab.address and not url.startswith(("data:", "blob:"))] == []


def test_the_tokens_are_to_be_seen(tab):
    """As SVG on the circle; on the sphere by WebGL, so the pixels are counted."""
    page = tab.page
    if page.evaluate("document.getElementById('figure-sphere')._fullLayout.scene === undefined"):
        assert page.locator("#figure-sphere .scatterlayer path.point").count() == 150
        return
    colours = page.evaluate(
        """async () => {
            const url = await Plotly.toImage('figure-sphere', {format: 'png', width: 400, height: 600});
            const image = new Image();
            await new Promise(done => { image.onload = done; image.src = url; });
            const canvas = document.createElement('canvas');
            canvas.width = 400; canvas.height = 600;
            const pen = canvas.getContext('2d');
            pen.drawImage(image, 0, 0);
            const dots = pen.getImageData(60, 150, 280, 280).data;
            const colours = new Set();
            for (let i = 0; i < dots.length; i += 4) colours.add(dots[i] + ',' + dots[i + 1] + ',' + dots[i + 2]);
            return colours.size;
        }"""
    )
    assert colours > 50


def test_the_headline_is_there(tab):
    text = tab.page.locator("h1#headline").inner_text()
    assert "Tokens concentrated by t = " in text
    assert tab.page.locator("h1").count() == 1


def test_the_slider_moves_the_tokens(tab):
    page = tab.page
    page.locator("#figure-sphere").scroll_into_view_if_needed()
    before, picture = tab.positions(), tab.picture()
    rail = page.locator("#figure-sphere .slider-rail-touch-rect").bounding_box()
    page.mouse.click(rail["x"] + 0.9 * rail["width"], rail["y"] + rail["height"] / 2)
    page.wait_for_function(f"before => JSON.stringify({POSITIONS}) !== before", arg=before)
    assert not tab.time().startswith("time t = 0 of ")
    page.wait_for_timeout(300)
    assert tab.picture() != picture
    assert tab.complaints == []


def test_play_and_pause(tab):
    page = tab.page
    rail = page.locator("#figure-sphere .slider-rail-touch-rect").bounding_box()
    page.mouse.click(rail["x"] + 2, rail["y"] + rail["height"] / 2)
    page.wait_for_timeout(300)
    before = tab.positions()
    page.locator("#figure-sphere .updatemenu-button", has_text="Play").click()
    page.wait_for_function(f"before => JSON.stringify({POSITIONS}) !== before", arg=before)
    page.locator("#figure-sphere .updatemenu-button", has_text="Pause").click()
    page.wait_for_timeout(200)
    paused = tab.positions()
    # Longer than two frames of the animation.
    page.wait_for_timeout(400)
    assert tab.positions() == paused
    assert tab.complaints == []


@pytest.mark.parametrize("width", WIDTHS)
def test_everything_fits_the_window(tab, width):
    resize(tab.page, width)
    assert overflow(tab.page) == []
    assert overlapping(tab.page) == []


@pytest.mark.parametrize(
    ("moved", "onto"),
    [
        ("#figure-distance .g-ytitle text", "#figure-distance .ytick text"),
        ("#figure-distance .legendtext", "#figure-distance .g-xtitle text"),
        ("#figure-distance .annotation-text", "#figure-distance .xtick text"),
        ("h1", "#figure-spectrum .xtick text"),
    ],
)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_label_on_top_of_another_is_found(tab, moved, onto, width):
    resize(tab.page, width)
    before = overlapping(tab.page)
    move(tab.page, moved, onto)
    try:
        assert len(overlapping(tab.page)) > len(before)
    finally:
        tab.page.evaluate("moved => { document.querySelector(moved).style.translate = ''; }", moved)


def overflow(page):
    """Elements that are wider than the window, and labels of figures that are cut off."""
    outside = page.evaluate(
        """() => [document.documentElement].filter(e => e.scrollWidth > window.innerWidth).map(() => "the page")
            .concat([...document.querySelectorAll('main *:not(svg *)')]
                .filter(e => e.getBoundingClientRect().right > window.innerWidth + 0.5 && e.offsetWidth > 1)
                .map(e => e.outerHTML.slice(0, 80)))"""
    )
    labels = ".annotation-text, .legendtext, .xtick text, .ytick text, .g-xtitle text, .g-ytitle text"
    cut = page.evaluate(
        """labels => [...document.querySelectorAll('.js-plotly-plot')].flatMap(plot => {
            const f = plot.getBoundingClientRect();
            const beyond = b => b.left < f.left - 1 || b.right > f.right + 1 || b.top < f.top - 1
                || b.bottom > f.bottom + 1;
            return [...plot.querySelectorAll(labels)]
                .filter(e => e.textContent.trim() && beyond(e.getBoundingClientRect()))
                .map(e => plot.id + ': ' + e.textContent);
        })""",
        labels,
    )
    return outside + cut
