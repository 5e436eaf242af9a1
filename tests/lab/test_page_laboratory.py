"""The laboratory in a real Chromium: the numbers are those of `simulate`, and one time moves everything."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import metastable as ms
from metastable.lab.state import Controls, State, cloud_of, head_of
from tests.lab.conftest import SMALL

pytestmark = pytest.mark.browser


def simulated(controls):
    return ms.simulate(head_of(controls), cloud_of(controls), beta=controls.beta, until=controls.until, progress=False)


def small(**changes):
    return replace(Controls(n=60, until=4.0), **changes)


def shown(tab):
    """The run that the address bar says; the tests of a module share a page, in any order."""
    return simulated(State.from_query(tab.query()).controls)


@pytest.fixture(scope="module")
def tab(browser, lab):
    """One page for all tests that leave it as they found it, or say what they need of it."""
    from tests.lab.conftest import Tab

    tab = Tab(browser, lab, SMALL).done()
    yield tab
    assert tab.complaints == []
    assert lab.errors == []
    tab.close()


def test_it_opens_with_nothing_to_complain_of_and_asks_nobody_else(tab):
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith((tab.lab.url, "data:", "blob:"))] == []
    assert tab.page.title() == "metastable lab"
    assert tab.page.locator("#theory .headline").inner_text().startswith("Tokens")
    for name in ("sphere-1", "curve"):
        box = tab.page.locator(f"#box-{name} .main-svg").first.bounding_box()
        assert box["width"] > 350
        assert box["height"] > 350
    assert tab.page.locator("#box-sphere-2").is_hidden()


def test_the_curve_has_the_numbers_of_simulate(tab):
    times, distances = tab.curve()
    expected = shown(tab).distance()
    np.testing.assert_allclose(times, expected["time"].values, rtol=1e-12)
    np.testing.assert_allclose(distances, expected.values, rtol=1e-9)


def test_the_words_are_those_of_the_theory(tab):
    theory = shown(tab).theory()
    text = tab.page.locator("#theory").inner_text()
    assert f"{theory.gap:.3g}" in text
    assert f"{theory.rate:.3g}" in text
    for check in theory.verdict.checks:
        assert check.name in text


def test_moving_beta_changes_the_curve_to_the_right_numbers(tab):
    before = tab.curve()[1][-1]
    rail = tab.page.locator("#slide-beta").bounding_box()
    tab.page.mouse.click(rail["x"] + 0.72 * rail["width"], rail["y"] + rail["height"] / 2)
    tab.wait("() => document.getElementById('box-curve').dataset.stale")
    tab.done()
    beta = float(tab.page.input_value("#field-beta"))
    assert 1e3 < beta < 1e5
    assert State.from_query(tab.query()).controls.beta == beta
    after = tab.curve()[1][-1]
    assert abs(after - before) > 1e-6
    assert after == pytest.approx(float(shown(tab).distance()[-1]), rel=1e-9)


def test_the_right_end_of_the_slider_is_hardmax(tab):
    rail = tab.page.locator("#slide-beta").bounding_box()
    tab.page.mouse.click(rail["x"] + rail["width"] - 2, rail["y"] + rail["height"] / 2)
    tab.wait("() => document.getElementById('field-beta').value === 'inf'")
    tab.done()
    assert math.isinf(State.from_query(tab.query()).controls.beta)
    assert tab.curve()[1][-1] == pytest.approx(float(shown(tab).distance()[-1]), rel=1e-9)
    tab.put("beta", "100")
    tab.wait("() => Number(document.getElementById('slide-beta').value) < 500")
    tab.done()


def test_scrubbing_moves_tokens_and_cursor(tab):
    rail = tab.page.locator("#time").bounding_box()
    tab.page.mouse.click(rail["x"] + 0.5 * rail["width"], rail["y"] + rail["height"] / 2)
    tab.wait("() => lab.spheres[0].shown > 20 && !lab.painting")
    run = shown(tab)
    assert tab.time() == pytest.approx(2.0, abs=0.2)
    assert tab.cursor() == tab.time()
    at = int(np.argmin(np.abs(run.times.numpy() - tab.time())))
    np.testing.assert_allclose(np.sort(tab.tokens()), np.sort(run.frames[at, :, 0].numpy()), atol=1e-4)
    assert tab.page.locator("#now").inner_text() == f"t = {tab.time():.2f} of 4"


def test_the_keyboard_steps_and_plays(tab):
    page = tab.page
    page.locator("h1").click()
    page.keyboard.press("Home")
    tab.wait("() => lab.spheres[0].shown === 0 && !lab.painting")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    tab.wait("() => lab.spheres[0].shown === 2")
    page.keyboard.press("ArrowLeft")
    tab.wait("() => lab.spheres[0].shown === 1")
    page.keyboard.press("End")
    tab.wait("() => lab.spheres[0].shown === lab.spheres[0].times.length - 1")
    page.keyboard.press(" ")
    tab.wait("() => lab.player && lab.spheres[0].shown > 1 && lab.spheres[0].shown < 20")
    assert page.locator("#play").inner_text() == "❚❚ Pause"
    page.keyboard.press(" ")
    tab.wait("() => !lab.player && !lab.painting")
    stopped = tab.time()
    page.wait_for_timeout(400)
    assert tab.time() == stopped == tab.cursor()
    assert State.from_query(tab.query()).time == pytest.approx(stopped, abs=1e-6)


def test_the_button_plays_and_space_after_a_click_pauses(tab):
    tab.page.keyboard.press("Home")
    tab.page.click("#play")
    tab.wait("() => lab.player && lab.spheres[0].shown > 1")
    tab.page.keyboard.press(" ")
    tab.wait("() => !lab.player")


def test_typing_in_a_field_plays_nothing(tab):
    before = tab.time()
    tab.page.locator("#field-interaction").focus()
    tab.page.keyboard.press("End")
    tab.page.keyboard.press(" ")
    tab.page.keyboard.press("ArrowLeft")
    tab.page.keyboard.press("Home")
    assert tab.evaluate("lab.player") is None
    assert tab.time() == before
    tab.put("interaction", "1.5, 1, 0.6")
    tab.done()


def test_the_sphere_stays_as_it_was_turned(tab):
    box = tab.page.locator("#sphere-1 canvas").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    eye = "() => JSON.stringify(document.querySelector('#sphere-1 .js-plotly-plot')._fullLayout.scene.camera.eye)"
    before = tab.evaluate(eye)
    tab.page.mouse.move(x, y)
    tab.page.mouse.down()
    tab.page.mouse.move(x + 120, y + 20, steps=4)
    tab.page.mouse.up()
    tab.wait(f"before => ({eye})() !== before", before)
    turned = tab.evaluate(eye)
    tab.put("seed", int(tab.page.input_value("#field-seed")) + 1)
    tab.wait("() => document.getElementById('box-curve').dataset.stale")
    tab.done()
    assert tab.evaluate(eye) == turned


def test_a_new_dimension_keeps_what_eigenvalues_there_are(tab):
    tab.put("d", "2")
    tab.wait("() => document.getElementById('field-interaction').value === '1.5, 1' && lab.wanted === null")
    tab.done()
    assert tab.evaluate("document.querySelector('#sphere-1 .js-plotly-plot')._fullLayout.scene") is None
    tab.put("d", "5")
    tab.wait("() => document.getElementById('field-value').value.split(',').length === 5")
    tab.done()
    assert "projected from 5 to 3 dimensions" in tab.page.locator("#theory").inner_text().lower()
    assert State.from_query(tab.query()).controls.d == 5
    tab.put("d", "3")
    tab.done()


def test_pasted_matrices(tab):
    tab.page.select_option("#field-source", "matrices")
    tab.put("matrices", "")
    tab.wait("() => document.getElementById('problem-matrices').textContent")
    tab.put("matrices", "1.4 0.1\n0.1 0.7\n\n1.2 0.2\n0.2 0.5")
    tab.done()
    run = shown(tab)
    assert run.head.B.tolist() == [[1.4, 0.1], [0.1, 0.7]]
    assert run.head.V.tolist() == [[1.2, 0.2], [0.2, 0.5]]
    assert tab.curve()[1][-1] == pytest.approx(float(run.distance()[-1]), rel=1e-9)
    assert tab.problems() == []
    tab.page.select_option("#field-source", "spectra")
    tab.done()
