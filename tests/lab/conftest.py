"""A lab that listens on a free port, and tabs of a real browser that remember what went wrong in them."""

from __future__ import annotations

import logging
import threading

import pytest

SMALL = "n=60&until=4"
"""A state whose run takes no time."""
LONG = "n=150&beta=inf&until=1000"
"""A state whose run would take minutes, and has its first frames at once."""


class Lab:
    """A server in a thread of this process; `errors` are the lines that it logged."""

    def __init__(self, idle=100.0):
        from metastable.lab.app import create, listen
        from metastable.lab.audits import Audits
        from metastable.lab.runs import Runs

        self.runs, self.audits, self.errors = Runs(idle=idle), Audits(), []
        app = create(self.runs, self.audits)
        for logger in (app.logger, logging.getLogger("werkzeug"), logging.getLogger("metastable")):
            logger.addHandler(_Keeping(self.errors))
        self.server = listen(app, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.runs.close()


class _Keeping(logging.Handler):
    def __init__(self, kept):
        super().__init__(logging.ERROR)
        self.kept = kept

    def emit(self, record):
        self.kept.append(record.getMessage())


class Tab:
    """A page of the lab. `complaints` are errors of its scripts, its console and its dialogs."""

    def __init__(self, browser, lab, query="", width=1280, height=720, context=None, **settings):
        self.lab, self.own = lab, context is None
        self.context = context or browser.new_context(viewport={"width": width, "height": height}, **settings)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda line: line.type == "error" and self.complaints.append(line.text))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"a dialog: {dialog.message}"))
        self.page.goto(lab.url + (f"?{query}" if query else ""))
        # Dash builds the page after it is loaded.
        self.page.wait_for_selector("#problem-n", state="attached")

    def evaluate(self, script, argument=None):
        return self.page.evaluate(script, argument)

    def wait(self, condition, argument=None):
        self.page.wait_for_function(condition, arg=argument)

    def done(self):
        """Wait until everything that is shown answers the controls."""
        self.wait("() => window.lab && lab.status === 'done' && !document.querySelector('#laboratory [data-stale]')")
        return self

    def put(self, name, text):
        self.page.fill(f"#field-{name}", str(text))

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

    def problem(self, name):
        return self.page.locator(f"#problem-{name}").inner_text()

    def problems(self):
        return self.evaluate("() => [...document.querySelectorAll('.problem')].map(e => e.textContent).filter(Boolean)")

    def query(self):
        return self.evaluate("location.search").removeprefix("?")

    def close(self):
        if self.own:
            self.context.close()
        elif not self.page.is_closed():
            self.page.close()


@pytest.fixture(scope="module")
def lab():
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture
def opened(browser, lab):
    """Opens tabs; none of them may have complained, nor the server."""
    tabs = []

    def open_(query="", **settings):
        tabs.append(Tab(browser, lab, query, **settings))
        return tabs[-1]

    yield open_
    complaints = [complaint for tab in tabs for complaint in tab.complaints]
    for tab in tabs:
        tab.close()
    assert complaints == []
    assert lab.errors == []
