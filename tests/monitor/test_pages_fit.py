"""The pages of `watch` and of `calibrate` in a real Chromium: drawn, complete at every width, without a network."""

import pytest

from metastable.monitor.alarm import Alarm
from metastable.monitor.report import write_stream
from tests.encoder.test_audit_browser import Tab
from tests.labels import move, overlapping
from tests.monitor.streams import TEXTS, rejected, rows_of, shifted, write_folder

pytestmark = pytest.mark.browser

WIDTHS = (1366, 800, 390)
LONG = "Unbreakable" + "word" * 60 + " and a sentence of the usual length, which was quoted because it is strange."


def fits(tab):
    for part in tab.page.locator("summary").all():
        part.click()
    for width in WIDTHS:
        tab.resize(width)
        assert tab.fits(), f"the page is wider than {width} pixels"
        assert tab.cut() == []
        assert overlapping(tab.page) == [], f"at {width} pixels"
    assert tab.complaints == []
    assert tab.outside() == []


def rows_with_an_alarm():
    return rows_of(shifted(400, 250), tokens=lambda line: [{"text": "word", "value": 3.0}])


@pytest.fixture
def opened(browser):
    tabs = []

    def opened(path, plots):
        tabs.append(Tab(browser, path, 1366, 900, plots, ""))
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.context.close()


@pytest.mark.parametrize("kind", ["alarm", "no alarm", "short", "rejected"])
def test_the_page_of_a_stream_fits(opened, tmp_path, kind):
    rows = {
        "alarm": rows_with_an_alarm,
        "no alarm": lambda: rows_of(shifted(3000, 3000)),
        "short": lambda: rows_of([0.5, 0.002, 0.9]),
        "rejected": lambda: [*rows_of(shifted(50, 20)), *(rejected(line) for line in range(51, 60))],
    }[kind]()
    quoted = {row["sha"]: LONG for row in rows if row["p_value"] is not None and row["p_value"] <= 0.01}
    fits(opened(write_stream(write_folder(tmp_path, rows, texts=quoted)), ["#figure-timeline"]))


def test_the_page_of_slices_and_episodes_fits(opened, tmp_path):
    rows = rows_with_an_alarm()
    own = {name: Alarm(TEXTS) for name in ("a customer with a long name, number 1", "b")}
    for place, row in enumerate(rows):
        name = list(own)[place % 2]
        row |= {"slice": name, "slice_log_e": float(own[name].evidence(row["p_marginal"])[-1]), "episode": 1}
        row["slice_alarm"] = own[name].raised_at == own[name].count
    fits(opened(write_stream(write_folder(tmp_path, rows)), ["#figure-timeline"]))


def test_no_table_hides_columns(opened, tmp_path, small_baseline):
    """Long names of slices wrap, and on a phone the table of coverage becomes a list."""
    rows = rows_with_an_alarm()
    for place, row in enumerate(rows):
        row |= {"slice": ("a" * 60, "a customer with a long name, number 1", 7)[place % 3], "slice_log_e": 0.1}
        row |= {"slice_alarm": place in (100, 101, 102, 103, 107), "episode": 1}
    pages = {
        write_stream(write_folder(tmp_path, rows)): ["#figure-timeline"],
        small_baseline.report(tmp_path / "baseline.html"): [],
    }
    wider = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"
    for path, plots in pages.items():
        tab = opened(path, plots)
        for width in WIDTHS:
            tab.resize(width)
            assert tab.page.evaluate(wider) == [], f"at {width} pixels"


def test_texts_on_top_of_each_other_are_found(opened, tmp_path):
    """The negative control of the tests above."""
    tab = opened(write_stream(write_folder(tmp_path, rows_with_an_alarm())), ["#figure-timeline"])
    assert overlapping(tab.page) == []
    move(tab.page, "h1", "main p")
    assert overlapping(tab.page) != []


def test_the_page_of_a_baseline_fits(opened, tmp_path, small_baseline):
    path = small_baseline.report(tmp_path / "report.html")
    fits(opened(path, []))
