"""Links, bad input, interrupted runs, tabs beside each other: the page shows the answer to its controls, or none."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from metastable.lab.state import State
from tests.lab.conftest import LONG, SMALL, until
from tests.lab.test_page_laboratory import simulated, small

pytestmark = pytest.mark.browser

STALE = "() => ['sphere-1', 'curve', 'theory'].every(name => document.getElementById(`box-${name}`).dataset.stale)"


def status(tab, query, name=None):
    """The status of a tab's run on the server."""
    return tab.lab.runs.progress(name or tab.name(), State.from_query(query).key).status


WRONG = [("n", "sixty"), ("beta", "-1"), ("value", "1, 2"), ("until", "")]


def test_bad_input_is_told_beside_its_field_and_nothing_runs(tab):
    looked = tab.name(), State.from_query(SMALL).key
    before = tab.lab.runs.progress(*looked).version
    for name, text in WRONG:
        field, place = (tab.page.locator(f"#{kind}-{name}") for kind in ("field", "problem"))
        right = field.input_value()
        tab.put(name, text)
        tab.wait("name => document.getElementById(`problem-${name}`).textContent", name)
        assert len(tab.problems()) == 1
        assert field.get_attribute("aria-invalid") == "true"
        assert field.get_attribute("aria-describedby") == f"problem-{name}"
        assert place.get_attribute("aria-live") == "polite"
        assert 0 < place.bounding_box()["y"] - field.bounding_box()["y"] < 80
        assert tab.evaluate(STALE)
        # The server has answered these fields, and started nothing.
        assert tab.evaluate("lab.answered === lab.serial")
        assert tab.lab.runs.progress(*looked).version == before
        tab.put(name, right)
        tab.done()
        assert tab.problems() == []
        assert field.get_attribute("aria-invalid") is None


def test_a_link_restores_the_exact_state(tab, opened):
    state = State(2, (1.4, 0.7), (1.2, 1 / 3), 41.5, law="graded", n=80, seed=3, beta=math.inf, until=3.3)
    state = replace(state, compare="n", other="50", time=1.1)
    first = tab.show(state.to_query()).done()
    assert State.from_query(first.query()) == replace(state, time=pytest.approx(1.1))
    assert first.page.input_value("#field-beta") == "inf"
    assert first.page.locator("#box-sphere-2").is_visible()
    assert first.time() == pytest.approx(1.1, abs=0.07)
    link = first.evaluate("location.href").removeprefix(first.lab.url + "?")
    second = opened(link).done()
    assert State.from_query(second.query()) == State.from_query(first.query())
    assert second.curve("W₂, N = 80") == first.curve("W₂, N = 80")
    assert second.tokens() == first.tokens()


def test_a_link_that_cannot_be_read_says_so_and_runs_nothing(opened):
    tab = opened("n=many&beta=10&head=x")
    tab.wait("() => document.getElementById('problem-n').textContent")
    assert "many" in tab.problem("n")
    assert tab.page.input_value("#field-n") == "many"
    assert tab.page.input_value("#field-beta") == "10"
    assert tab.evaluate(STALE)
    assert status(tab, tab.query()) == status(tab, "beta=10") == "unknown"
    tab.put("n", "60")
    tab.done()
    assert tab.problems() == []


def test_a_run_shows_its_progress_and_can_be_stopped_and_run_again(tab):
    tab.show(LONG).running()
    assert tab.page.locator("#progress").is_visible()
    tab.wait("() => /t = .* of 1000/.test(document.getElementById('status').textContent)")
    assert tab.page.locator("#download-data").is_disabled()
    tab.page.click("#stop")
    tab.wait("() => lab.status === 'stopped'")
    assert status(tab, LONG) == "stopped"
    assert tab.evaluate("document.getElementById('box-curve').dataset.stale")
    tab.page.click("#run")
    tab.running()
    assert status(tab, LONG) == "running"
    tab.lab.runs.forget(tab.name())
    # The server has forgotten the run, and the page starts it again.
    until(lambda: status(tab, LONG) == "running")


def test_changing_a_control_in_mid_run_ends_it(tab):
    tab.show(LONG).running()
    tab.put("n", "abc")
    until(lambda: status(tab, LONG) == "stopped")
    tab.put("n", "150")
    tab.page.click("#run")
    tab.running()
    tab.put("n", "60")
    tab.wait(STALE)
    tab.put("until", "4")
    tab.put("beta", "100")
    tab.done()
    assert status(tab, LONG) == "unknown"
    assert tab.curve()[1][-1] == pytest.approx(float(simulated(small()).distance()[-1]), rel=1e-9)
    assert len(tab.tokens()) == 60


def test_a_stop_right_after_a_change_holds(tab):
    tab.show(LONG).running()
    # Both in one step of the page's script: the change is not sent yet when the run is stopped.
    tab.evaluate(
        """() => { const seed = document.getElementById('field-seed'), stop = document.getElementById('stop');
            lab.put('seed', '1'); seed.dispatchEvent(new Event('input', { bubbles: true }));
            stop.disabled = false; stop.click(); }"""
    )
    until(lambda: status(tab, LONG) == "stopped")
    # Longer than the page waits before it sends a change.
    tab.wait("start => performance.now() > start + 700", tab.evaluate("performance.now()"))
    assert status(tab, f"{LONG}&seed=1") == "unknown"
    assert tab.evaluate("lab.status") == "stopped"


def test_what_is_shown_is_never_an_older_answer(tab):
    """Many quick changes: whenever a figure is not greyed, it was made for the fields as they stand."""
    tab.evaluate(
        """() => { window.wrong = []; window.watched = 0; window.watching = true;
            const watch = () => {
                for (const name of ['sphere-1', 'curve']) {
                    const plot = document.querySelector(`#${name} .js-plotly-plot`);
                    const shown = new URLSearchParams(plot.layout.meta.key).get('seed') || '0';
                    const wanted = document.getElementById('field-seed').value;
                    if (!document.getElementById(`box-${name}`).dataset.stale && shown !== wanted)
                        window.wrong.push([name, shown, wanted]);
                }
                window.watched += 1;
                if (window.watching) requestAnimationFrame(watch);
            };
            watch(); }"""
    )
    waits = ["window.watched > before + 2", "lab.answered === lab.serial", "lab.wanted", "lab.status === 'done'"]
    for seed in range(1, 6):
        tab.put("seed", seed)
        # The next change comes at another stage of the answer to this one.
        tab.wait(f"before => {waits[seed % 4]}", tab.evaluate("window.watched"))
    tab.done()
    tab.evaluate("window.watching = false")
    assert tab.evaluate("window.wrong") == []
    assert State.from_query(tab.query()).seed == 5


@pytest.mark.slow
def test_two_tabs_do_not_disturb_each_other_and_one_that_is_reloaded_or_closed_frees_its_run(tab, opened):
    other = opened(LONG).running()
    tab.page.bring_to_front()
    assert status(tab, SMALL) == "done"
    tab.put("seed", "5")
    tab.done()
    assert tab.curve()[1][-1] == pytest.approx(float(simulated(small(seed=5)).distance()[-1]), rel=1e-9)
    assert status(other, LONG) == "running"
    other.page.bring_to_front()
    former = other.name()
    other.page.reload()
    other.running()
    assert other.query().startswith(LONG)
    until(lambda: status(tab, LONG, former) == "unknown")
    assert status(other, LONG) == "running"
    name = other.name()
    other.page.close()
    until(lambda: status(tab, LONG, name) == "unknown")


@pytest.mark.slow
def test_controls_that_were_lost_on_the_way_are_sent_again(tab):
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
    tab.page.unroute("**/_dash-update-component**")
    tab.evaluate("lab.patience = 10000")
    assert lost


def test_a_copied_link_is_of_the_fields_as_they_stand(tab):
    tab.page.click("#copy-link")
    tab.wait("url => navigator.clipboard.readText().then(text => text === url)", f"{tab.lab.url}?{SMALL}")
    # The link has a change that is not sent yet.
    tab.put("seed", 9)
    tab.page.click("#copy-link")
    tab.wait("() => navigator.clipboard.readText().then(text => text.includes('seed=9'))")


@pytest.mark.slow
def test_matrices_that_are_too_long_for_a_link_can_be_taken_home(tab):
    tab.show("n=20&until=1").done()
    rows = "\n".join(" ".join(f"{math.sin(i * 32 + j + 1):.17f}" for j in range(32)) for i in range(32))
    tab.page.select_option("#field-source", "matrices")
    tab.page.fill("#field-matrices", f"{rows}\n\n{rows}")
    tab.wait("() => lab.query.includes('matrices') && lab.status === 'done'")
    with tab.page.expect_download() as waited:
        tab.page.click("#download-script")
    assert "B = [" in waited.value.path().read_text(encoding="utf-8")


@pytest.mark.slow
def test_matrices_begin_with_what_the_fields_say(tab):
    tab.show("n=40&until=1&angle=30").done()
    before = tab.curve()
    tab.page.select_option("#field-source", "matrices")
    tab.wait("() => lab.query.includes('matrices') && lab.status === 'done'")
    tab.done()
    np.testing.assert_allclose(tab.curve(), before, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_laws_that_the_head_cannot_have_cannot_be_chosen(tab):
    refused = "() => [...document.getElementById('field-law').options].filter(o => o.disabled).map(o => o.value)"
    assert set(tab.evaluate(refused)) == {"tokens", "equally_spaced"}
    tab.put("d", 2)
    tab.wait("() => lab.query.includes('d=2') && lab.status === 'done'")
    assert set(tab.evaluate(refused)) == {"tokens", "fibonacci"}


def test_a_click_on_the_curve_moves_the_time_and_the_wheel_scrolls(tab):
    box = tab.page.locator("#curve .nsewdrag").first.bounding_box()
    tab.click_figure("curve", box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.wait("() => Math.abs(lab.time - 2) < 0.3")
    place = tab.page.locator("#sphere-1").bounding_box()
    tab.page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    tab.page.mouse.wheel(0, 300)
    tab.wait("() => window.scrollY > 50")
    tab.evaluate("window.scrollTo(0, 0)")


def test_a_theme_that_changes_while_the_answer_is_on_its_way(tab):
    late = """() => { lab.changeTheme('dark', true);
        const answer = { key: lab.wanted, status: 'done', version: 10 ** 9, fraction: 1, message: '', names: [] };
        dash_clientside.lab.answer({ ...answer, spheres: [], curve: null, theme: 'light', scale: lab.scale, asked: 0 });
        return lab.polling && lab.seen === -1; }"""
    assert tab.evaluate(late)
    tab.wait("() => document.querySelector('#curve .js-plotly-plot').layout.paper_bgcolor === '#1B1F24'")
    tab.evaluate("lab.changeTheme('light', false); lab.themeChosen = false; lab.address()")


@pytest.mark.slow
def test_what_can_be_taken_home(tab):
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
    name = waited.value.suggested_filename
    assert name.isascii()
    assert name.endswith("-compare-weights.html")
    page = waited.value.path().read_text(encoding="utf-8")
    for headline in tab.page.locator("#theory .headline").all_inner_texts():
        assert headline in page
