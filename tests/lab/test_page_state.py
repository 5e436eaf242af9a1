"""Links, bad input, interrupted runs, tabs beside each other: the page shows the answer to its controls, or none."""

from __future__ import annotations

import math
import time
import zipfile

import numpy as np
import pytest

from metastable.lab.callbacks import key_of
from metastable.lab.state import Controls, State
from tests.lab.conftest import LONG, SMALL
from tests.lab.test_page_laboratory import simulated, small

pytestmark = pytest.mark.browser

STALE = "() => ['sphere-1', 'curve', 'theory'].every(name => document.getElementById(`box-${name}`).dataset.stale)"


def status(tab, query):
    """What the server thinks of a tab's run."""
    return tab.lab.runs.look(tab.evaluate("lab.tab"), key_of(State.from_query(query))).status


def running(tab):
    tab.wait("() => window.lab && lab.status === 'running' && lab.spheres[0]")
    return tab


def eventually(condition):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


WRONG = [
    ("n", "sixty", "sixty: give a whole number"),
    ("n", "50000", "20\u202f000"),
    ("beta", "-1", "give a number from 0"),
    ("value", "1, 2", "2 given, and d = 3 needs 3"),
    ("until", "", "empty: give a number"),
]


def test_bad_input_is_told_beside_its_field_and_nothing_runs(opened):
    tab = opened(SMALL).done()
    looked = tab.evaluate("lab.tab"), key_of(State.from_query(SMALL))
    before = tab.lab.runs.look(*looked).version
    for name, text, words in WRONG:
        field, place = (tab.page.locator(f"#{kind}-{name}") for kind in ("field", "problem"))
        right = field.input_value()
        tab.put(name, text)
        tab.wait("name => document.getElementById(`problem-${name}`).textContent", name)
        assert words in tab.problem(name)
        assert len(tab.problems()) == 1
        assert field.get_attribute("aria-invalid") == "true"
        assert field.get_attribute("aria-describedby") == f"problem-{name}"
        assert place.get_attribute("aria-live") == "polite"
        assert 0 < place.bounding_box()["y"] - field.bounding_box()["y"] < 80
        assert tab.evaluate(STALE)
        assert tab.page.locator("#box-curve .veil").get_attribute("data-words") == "not computed: see the marked field"
        tab.page.wait_for_timeout(300)
        assert tab.lab.runs.look(*looked).version == before
        tab.put(name, right)
        tab.done()
        assert tab.problems() == []
        assert field.get_attribute("aria-invalid") is None


def test_a_link_restores_the_exact_state(opened):
    controls = Controls(2, (1.4, 0.7), (1.2, 1 / 3), 41.5, law="graded", n=80, seed=3, beta=math.inf, until=3.3)
    state = State(controls, compare="n", other=50, time=1.1)
    first = opened(state.to_query()).done()
    assert State.from_query(first.query()) == State(controls, compare="n", other=50, time=pytest.approx(1.1))
    assert first.page.input_value("#field-beta") == "inf"
    assert first.page.locator("#box-sphere-2").is_visible()
    assert first.time() == pytest.approx(1.1, abs=0.07)
    link = first.evaluate("location.href").removeprefix(first.lab.url + "?")
    second = opened(link).done()
    assert State.from_query(second.query()) == State.from_query(first.query())
    assert second.curve("W₂, N = 80") == first.curve("W₂, N = 80")
    assert second.tokens() == first.tokens()


def test_the_link_can_be_copied(opened):
    tab = opened(SMALL, permissions=["clipboard-read", "clipboard-write"]).done()
    tab.page.click("#copy-link")
    tab.wait("() => document.getElementById('told').textContent === 'link copied'")
    assert tab.evaluate("navigator.clipboard.readText()") == f"{tab.lab.url}?{SMALL}"


def test_a_link_that_cannot_be_read_says_so_and_runs_nothing(opened):
    tab = opened("n=many&beta=10&head=x")
    tab.wait("() => document.getElementById('problem-n').textContent")
    assert "'many', which cannot be read" in tab.problem("n")
    assert tab.page.input_value("#field-beta") == "10"
    assert tab.evaluate(STALE)
    assert tab.lab.runs.look(tab.evaluate("lab.tab"), "beta=10").status == "unknown"
    tab.put("n", "60")
    tab.done()
    assert tab.problems() == []


def test_a_link_does_not_make_the_lab_read_a_model(opened):
    tab = opened("trained=/no/such/folder:0:0&n=60&until=1&law=uniform")
    tab.wait("() => window.lab && lab.status === 'asking'")
    assert "Run reads that model" in tab.page.locator("#status").inner_text()
    assert status(tab, tab.query()) == "unknown"
    tab.page.click("#run")
    tab.wait("() => lab.status === 'failed'")
    assert "/no/such/folder" in tab.page.locator("#status").inner_text()
    assert tab.evaluate(STALE)


def test_a_run_shows_its_progress_and_can_be_stopped_and_run_again(opened):
    tab = running(opened(LONG))
    assert tab.page.locator("#progress").is_visible()
    tab.wait("() => /t = .* of 1000/.test(document.getElementById('status').textContent)")
    assert tab.page.locator("#download-data").is_disabled()
    tab.page.click("#stop")
    tab.wait("() => lab.status === 'stopped'")
    assert status(tab, LONG) == "stopped"
    assert tab.page.locator("#status").inner_text().startswith("stopped at t = ")
    assert tab.evaluate("document.getElementById('box-curve').dataset.stale")
    tab.page.click("#run")
    running(tab)
    assert status(tab, LONG) == "running"


def test_changing_a_control_in_mid_run_cancels_it_and_shows_the_new_one(opened):
    tab = running(opened(LONG))
    tab.put("n", "60")
    tab.wait(STALE)
    tab.put("until", "4")
    tab.put("beta", "100")
    tab.done()
    assert status(tab, LONG) == "unknown"
    assert tab.curve()[1][-1] == pytest.approx(float(simulated(small()).distance()[-1]), rel=1e-9)
    assert len(tab.tokens()) == 60


def test_what_is_shown_is_never_an_older_answer(opened):
    """Many quick changes: whenever a figure is not greyed, it was made for the controls as they stand."""
    tab = opened(SMALL).done()
    tab.evaluate(
        """() => { window.wrong = [];
            const watch = () => {
                for (const name of ['sphere-1', 'curve']) {
                    const plot = document.querySelector(`#${name} .js-plotly-plot`);
                    const shown = new URLSearchParams(plot.layout.meta.key).get('seed') || '0';
                    const wanted = document.getElementById('field-seed').value;
                    if (!document.getElementById(`box-${name}`).dataset.stale && shown !== wanted)
                        window.wrong.push([name, shown, wanted]);
                }
                requestAnimationFrame(watch);
            };
            watch(); }"""
    )
    for seed in range(1, 7):
        tab.put("seed", seed)
        tab.page.wait_for_timeout(150 * seed)
    tab.done()
    assert tab.evaluate("window.wrong") == []
    assert State.from_query(tab.query()).controls.seed == 6


def test_reload_in_mid_run(opened):
    tab = running(opened(LONG))
    former = tab.evaluate("lab.tab")
    tab.page.reload()
    running(tab)
    assert tab.query().startswith(LONG)
    assert eventually(lambda: tab.lab.runs.look(former, key_of(State.from_query(LONG))).status == "unknown")
    assert status(tab, LONG) == "running"


def test_two_tabs_do_not_disturb_each_other_and_a_closed_one_frees_its_run(opened):
    first = opened(LONG)
    second = opened(SMALL, context=first.context).done()
    running(first)
    assert status(first, LONG) == "running"
    assert status(second, SMALL) == "done"
    second.put("seed", "5")
    second.done()
    assert status(first, LONG) == "running"
    name = first.evaluate("lab.tab")
    first.page.close()
    assert eventually(lambda: first.lab.runs.look(name, key_of(State.from_query(LONG))).status == "unknown")
    assert second.curve()[1][-1] == pytest.approx(float(simulated(small(seed=5)).distance()[-1]), rel=1e-9)


def test_a_run_that_the_server_forgot_is_run_again(opened):
    tab = running(opened(LONG))
    tab.lab.runs.forget(tab.evaluate("lab.tab"))
    assert eventually(lambda: status(tab, LONG) == "running")


def test_a_wrong_field_ends_the_run_under_way(opened):
    tab = running(opened(LONG))
    tab.put("n", "abc")
    assert eventually(lambda: status(tab, LONG) == "stopped")


def test_a_stop_right_after_a_change_holds(opened):
    tab = running(opened(LONG))
    tab.put("seed", 1)
    tab.evaluate("document.getElementById('stop').disabled = false")
    tab.page.click("#stop")
    time.sleep(2)
    assert status(tab, f"{LONG}&seed=1") == "unknown"
    assert tab.evaluate("lab.status") == "stopped"


def test_controls_that_were_lost_on_the_way_are_sent_again(opened):
    tab = opened(SMALL).done()
    lost = []

    def lose(route):
        if lost or "job.data" not in (route.request.post_data or ""):
            return route.continue_()
        lost.append(1)
        return route.fulfill(status=204)

    tab.page.route("**/_dash-update-component**", lose)
    tab.evaluate("lab.patience = 1500")
    tab.put("seed", 5)
    tab.wait("() => lab.query.includes('seed=5') && lab.status === 'done'")
    assert lost


def test_a_link_is_of_the_controls_as_they_stand(opened):
    tab = opened(SMALL).done()
    tab.put("seed", 9)
    tab.evaluate("() => { navigator.clipboard.writeText = async (text) => { lab.copied = text; }; lab.copyLink(); }")
    tab.wait("() => lab.copied")
    assert "seed=9" in tab.evaluate("lab.copied")


def test_matrices_that_are_too_long_for_a_link_can_be_taken_home(opened):
    tab = opened("n=20&until=1").done()
    rows = "\n".join(" ".join(f"{math.sin(i * 32 + j + 1):.17f}" for j in range(32)) for i in range(32))
    tab.page.select_option("#field-source", "matrices")
    tab.page.fill("#field-matrices", f"{rows}\n\n{rows}")
    tab.wait("() => lab.query.includes('matrices') && lab.status === 'done'")
    with tab.page.expect_download() as waited:
        tab.page.click("#download-script")
    assert "B = [" in waited.value.path().read_text(encoding="utf-8")


def test_matrices_begin_with_what_the_fields_say(opened):
    tab = opened("n=40&until=1&angle=30").done()
    before = tab.curve()
    tab.page.select_option("#field-source", "matrices")
    tab.wait("() => lab.query.includes('matrices') && lab.status === 'done'")
    tab.done()
    np.testing.assert_allclose(tab.curve(), before, rtol=1e-4, atol=1e-5)


def test_laws_that_the_head_cannot_have_cannot_be_chosen(opened):
    tab = opened(SMALL).done()
    refused = "() => [...document.getElementById('field-law').options].filter(o => o.disabled).map(o => o.value)"
    assert set(tab.evaluate(refused)) == {"tokens", "equally_spaced"}
    tab.put("d", 2)
    tab.wait("() => lab.query.includes('d=2') && lab.status === 'done'")
    assert set(tab.evaluate(refused)) == {"tokens", "fibonacci"}


def test_a_click_on_the_curve_moves_the_time_and_the_wheel_scrolls(opened):
    tab = opened(SMALL).done()
    box = tab.page.locator("#curve .nsewdrag").first.bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.page.wait_for_timeout(300)
    tab.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.wait("() => Math.abs(lab.time - 2) < 0.3")
    place = tab.page.locator("#sphere-1").bounding_box()
    tab.page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    tab.page.mouse.wheel(0, 300)
    tab.wait("() => window.scrollY > 50")


def test_a_theme_that_changes_while_the_answer_is_on_its_way(opened):
    tab = opened(SMALL).done()
    late = """() => { lab.changeTheme('dark', true);
        const answer = { key: lab.wanted, status: 'done', version: 10 ** 9, fraction: 1, message: '', names: [] };
        dash_clientside.lab.answer({ ...answer, spheres: [], curve: null, theme: 'light', scale: lab.scale, asked: 0 });
        return lab.polling && lab.seen === -1; }"""
    assert tab.evaluate(late)
    tab.wait("() => document.querySelector('#curve .js-plotly-plot').layout.paper_bgcolor === '#1B1F24'")


def test_what_can_be_taken_home(opened):
    tab = opened(SMALL).done()
    found = {}
    for kind in ("report", "script", "data"):
        with tab.page.expect_download() as waited:
            tab.page.click(f"#download-{kind}")
        found[kind] = waited.value
    assert [found[kind].suggested_filename.rsplit(".")[-1] for kind in found] == ["html", "py", "npz"]
    arrays, run = np.load(found["data"].path()), simulated(small())
    np.testing.assert_array_equal(arrays["frames"], run.frames.numpy())
    np.testing.assert_allclose(arrays["distance"], run.distance().values, rtol=1e-12)
    page = found["report"].path().read_text(encoding="utf-8")
    assert tab.page.locator("#theory .headline").inner_text() in page
    assert f"?{SMALL}" in found["script"].path().read_text(encoding="utf-8")
    tab.page.select_option("#field-compare", "weights")
    tab.wait("() => lab.spheres[1]")
    tab.done()
    with tab.page.expect_download() as waited:
        tab.page.click("#download-report")
    stem = waited.value.suggested_filename.removesuffix(".zip")
    assert stem.isascii()
    assert stem.endswith("-compare-weights")
    with zipfile.ZipFile(waited.value.path()) as archive:
        assert archive.namelist() == [f"{stem}-first.html", f"{stem}-second.html"]
