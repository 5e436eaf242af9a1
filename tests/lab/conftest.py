"""A lab that listens on a free port, and tabs of a real browser that record what went wrong in them."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from tests.conftest import launched_browser

SMALL = "n=60&until=4"
"""A state whose run takes no time."""
LONG = "n=150&beta=inf&until=1000"
"""A state whose run would take minutes, and has its first frames at once."""
STILL = {"reduced_motion": "reduce"}
"""Settings of a tab that plays nothing by itself."""
PATIENCE = 300.0
"""Seconds to wait for a condition, also on a busy machine."""


def until(condition):
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


class Lab:
    """A server in a thread of this process; `errors` are the lines that it logged."""

    def __init__(self):
        from metastable.lab.app import create, listen
        from metastable.lab.callbacks import Backend

        self.backend, self.errors = Backend(), []
        self.runs, self.audits = self.backend.runs, self.backend.audits
        app = create(self.backend)
        self.handler = logging.Handler(logging.ERROR)
        self.handler.emit = lambda record: self.errors.append(record.getMessage())
        self.loggers = [app.logger, logging.getLogger("werkzeug"), logging.getLogger("metastable")]
        for logger in self.loggers:
            logger.addHandler(self.handler)
        self.server = listen(app, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.port}/"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        self.backend.close()
        for logger in self.loggers:
            logger.removeHandler(self.handler)


class Tab:
    """A page of the lab. `complaints` are errors of its scripts, its console and its dialogs."""

    def __init__(self, context, lab, query=""):
        self.lab, self.context = lab, context
        self.page = context.new_page()
        self.page.set_default_timeout(1000 * PATIENCE)
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda line: line.type == "error" and self.complaints.append(line.text))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"a dialog: {dialog.message}"))
        self.page.goto(lab.url + (f"?{query}" if query else ""))
        # Dash builds the page after it is loaded.
        self.wait("() => window.lab && lab.fields.view")

    def evaluate(self, script, argument=None):
        return self.page.evaluate(script, argument)

    def wait(self, condition, argument=None):
        self.page.wait_for_function(condition, arg=argument)

    def done(self):
        """Wait until everything that is shown belongs to the fields."""
        self.wait("() => lab.status === 'done' && !document.querySelector('#laboratory [data-stale]')")
        return self

    def running(self):
        self.wait("() => lab.status === 'running' && lab.spheres[0]")
        return self

    def show(self, query):
        """Put the state of a link into the fields of this page, without loading it again."""
        from metastable.lab.state import State

        state = State.from_query(query)
        self.evaluate(
            """([fields, time]) => { for (const [name, text] of Object.entries(fields)) lab.put(name, text);
                lab.time = time; lab.setView(fields.view); lab.changed(0); }""",
            [state.to_page(), state.time],
        )
        return self

    def put(self, name, text):
        self.page.fill(f"#field-{name}", str(text))

    def click_figure(self, name, x, y):
        """Click into a figure. Plotly accepts a click where it has seen the mouse before."""
        plot = f"document.querySelector('#{name} .js-plotly-plot')"
        self.evaluate(
            f"() => {{ window.hovered = false; {plot}.once('plotly_hover', () => {{ window.hovered = true; }}); }}"
        )
        self.page.mouse.move(x - 3, y)
        self.page.mouse.move(x, y)
        self.wait("() => window.hovered")
        self.page.mouse.click(x, y)

    def eye(self, which=1):
        """The camera of a sphere."""
        plot = f"document.querySelector('#sphere-{which} .js-plotly-plot')"
        return self.evaluate(f"() => JSON.stringify({plot}._fullLayout.scene.camera.eye)")

    def turn_sphere(self):
        """Drag the first sphere until it turns: Plotly ignores a movement that ends before a frame is drawn."""
        box = self.page.locator("#sphere-1 canvas").first.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        before = self.eye()

        def turned():
            self.page.mouse.move(x, y)
            self.page.mouse.down()
            for i in range(1, 5):
                self.page.mouse.move(x + 25 * i, y)
                self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            self.page.mouse.up()
            return self.eye() != before

        until(turned)

    def curve(self, name="W₂ to the limit law"):
        """(times, distances) of a line of the distance figure, as the browser has them."""
        return self.evaluate(
            """name => { const plot = document.querySelector('#curve .js-plotly-plot');
                const line = plot.data.findIndex(trace => trace.name === name);
                return line < 0 ? null : [Array.from(plot._fullData[line].x), Array.from(plot._fullData[line].y)]; }""",
            name,
        )

    def tokens(self, which=1):
        """Where the tokens of a sphere are drawn: the first coordinate of all, in the order of their groups."""
        return self.evaluate(
            """which => document.querySelector(`#sphere-${which} .js-plotly-plot`)._fullData
                .filter(trace => trace.mode === 'markers').flatMap(trace => Array.from(trace.x))""",
            which,
        )

    def cursor(self):
        return self.evaluate(
            """() => document.querySelector('#curve .js-plotly-plot').layout.shapes.find(s => s.name === 'cursor').x0"""
        )

    def time(self):
        """The time of the frame that is shown."""
        return self.evaluate("() => { const s = lab.spheres[0]; return s.times[s.shown]; }")

    def text(self, name):
        return self.page.locator(f"#{name}").inner_text()

    def problem(self, name):
        return self.text(f"problem-{name}")

    def problems(self):
        return self.evaluate("() => [...document.querySelectorAll('.problem')].map(e => e.textContent).filter(Boolean)")

    def query(self):
        return self.evaluate("location.search").removeprefix("?")

    def name(self):
        return self.evaluate("lab.tab")


@pytest.fixture(scope="package")
def browser():
    with launched_browser() as browser:
        yield browser


@pytest.fixture(scope="package")
def lab():
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture(scope="package")
def context(browser):
    """All tabs without settings of their own share its cache."""
    permissions = ["clipboard-read", "clipboard-write"]
    context = browser.new_context(viewport={"width": 1280, "height": 720}, permissions=permissions, **STILL)
    yield context
    context.close()


@pytest.fixture
def opened(browser, context, lab):
    """Opens tabs; none of them may complain, nor the server."""
    tabs = []

    def open_(query="", **settings):
        still = {"viewport": {"width": 1280, "height": 720}, **STILL}
        own = browser.new_context(**{**still, **settings}) if settings else context
        tabs.append(Tab(own, lab, query))
        return tabs[-1]

    yield open_
    for tab in tabs:
        tab.page.close()
        if tab.context is not context:
            tab.context.close()
    complaints = [complaint for tab in tabs for complaint in tab.complaints] + lab.errors
    lab.errors.clear()
    assert complaints == []


@pytest.fixture(scope="package")
def _shared_tab(context, lab):
    tab = Tab(context, lab, SMALL).done()
    tab.opening = [*tab.requests]
    yield tab
    tab.page.close()


@pytest.fixture
def tab(_shared_tab, lab):
    """One page for many tests, with the small run at the start of each. `opening`: its requests when it was opened."""
    tab = _shared_tab
    tab.page.bring_to_front()
    tab.page.set_viewport_size({"width": 1280, "height": 720})
    tab.show(SMALL).done()
    tab.requests.clear()
    yield tab
    complaints = tab.complaints + lab.errors
    tab.complaints.clear()
    lab.errors.clear()
    assert complaints == []
