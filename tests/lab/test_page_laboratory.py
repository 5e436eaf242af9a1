"""The laboratory in a real Chromium: the numbers are those of `simulate`, and one time moves all figures."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import metastable as ms
from metastable.lab.state import State, problem_of
from tests.lab.conftest import SMALL, until

pytestmark = pytest.mark.browser


def simulated(state):
    problem = problem_of(state)
    return ms.simulate(problem.head, problem.cloud, **problem.arguments, progress=False)


def small(**changes):
    return replace(State.from_query(SMALL), **changes)


def shown(tab):
    """The run that the address bar says."""
    return simulated(State.from_query(tab.query()).runs()[0])


def test_the_figures_and_words_of_a_run(tab):
    """One test of many steps: none of them changes the run."""
    it_asked_nobody_else_and_shows_everything(tab)
    run = shown(tab)
    the_curve_has_the_numbers_of_simulate(tab, run)
    the_words_are_those_of_the_theory(tab, run)
    scrubbing_moves_tokens_and_cursor(tab, run)
    the_keyboard_steps_and_plays(tab)
    the_button_plays_and_space_after_a_click_pauses(tab)
    typing_in_a_field_plays_nothing(tab)


def it_asked_nobody_else_and_shows_everything(tab):
    assert tab.opening
    assert [url for url in tab.opening if not url.startswith((tab.lab.url, "data:", "blob:"))] == []
    assert tab.page.title() == "metastable lab"
    assert tab.page.locator("#theory .headline").count() == 1
    for name in ("sphere-1", "curve"):
        box = tab.page.locator(f"#box-{name} .main-svg").first.bounding_box()
        assert box["width"] > 350
        assert box["height"] > 350
    assert tab.page.locator("#box-sphere-2").is_hidden()


def the_curve_has_the_numbers_of_simulate(tab, run):
    times, distances = tab.curve()
    expected = run.distance()
    np.testing.assert_allclose(times, expected["time"].values, rtol=1e-12)
    np.testing.assert_allclose(distances, expected.values, rtol=1e-9)


def the_words_are_those_of_the_theory(tab, run):
    theory = run.theory()
    text = tab.page.locator("#theory").inner_text()
    assert f"{theory.gap:.3g}" in text
    assert f"{theory.rate:.3g}" in text
    for check in theory.verdict.checks:
        assert check.name in text


def scrubbing_moves_tokens_and_cursor(tab, run):
    rail = tab.page.locator("#time").bounding_box()
    tab.page.mouse.click(rail["x"] + 0.5 * rail["width"], rail["y"] + rail["height"] / 2)
    tab.wait("() => lab.spheres[0].shown > 20 && !lab.painting")
    assert tab.time() == pytest.approx(2.0, abs=0.2)
    assert tab.cursor() == tab.time()
    at = int(np.argmin(np.abs(run.times.numpy() - tab.time())))
    np.testing.assert_allclose(np.sort(tab.tokens()), np.sort(run.frames[at, :, 0].numpy()), atol=1e-4)
    assert tab.page.locator("#now").inner_text() == f"t = {tab.time():.2f} of 4"


def the_keyboard_steps_and_plays(tab):
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
    page.keyboard.press(" ")
    tab.wait("() => !lab.player && !lab.painting")
    stopped = tab.time()
    # The address follows the time once it rests.
    tab.wait("t => Math.abs(Number(new URLSearchParams(location.search).get('time')) - t) < 1e-6", stopped)
    assert tab.time() == stopped == tab.cursor()


def the_button_plays_and_space_after_a_click_pauses(tab):
    tab.page.keyboard.press("Home")
    tab.page.click("#play")
    tab.wait("() => lab.player && lab.spheres[0].shown > 1")
    tab.page.keyboard.press(" ")
    tab.wait("() => !lab.player")


def typing_in_a_field_plays_nothing(tab):
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


def test_moving_beta_changes_the_curve_to_the_right_numbers_and_its_right_end_is_hardmax(tab):
    before = tab.curve()[1][-1]
    rail = tab.page.locator("#slide-beta").bounding_box()
    tab.page.mouse.click(rail["x"] + 0.72 * rail["width"], rail["y"] + rail["height"] / 2)
    tab.wait("() => document.getElementById('box-curve').dataset.stale")
    tab.done()
    beta = float(tab.page.input_value("#field-beta"))
    assert 1e3 < beta < 1e5
    assert State.from_query(tab.query()).beta == beta
    after = tab.curve()[1][-1]
    assert abs(after - before) > 1e-6
    assert after == pytest.approx(float(shown(tab).distance()[-1]), rel=1e-9)
    tab.page.mouse.click(rail["x"] + rail["width"] - 2, rail["y"] + rail["height"] / 2)
    tab.wait("() => document.getElementById('field-beta').value === 'inf'")
    tab.done()
    assert math.isinf(State.from_query(tab.query()).beta)
    assert tab.curve()[1][-1] == pytest.approx(float(shown(tab).distance()[-1]), rel=1e-9)
    tab.put("beta", "100")
    tab.wait("() => Number(document.getElementById('slide-beta').value) < 500")


@pytest.mark.slow
def test_the_sphere_stays_as_it_was_turned(tab):
    tab.turn_sphere()
    turned = tab.eye()
    tab.put("seed", 1)
    tab.wait("() => document.getElementById('box-curve').dataset.stale")
    tab.done()
    assert tab.eye() == turned


@pytest.mark.slow
def test_a_new_dimension_keeps_what_eigenvalues_there_are(tab):
    tab.put("d", "2")
    tab.wait("() => document.getElementById('field-interaction').value === '1.5, 1' && lab.wanted === null")
    tab.done()
    assert tab.evaluate("document.querySelector('#sphere-1 .js-plotly-plot')._fullLayout.scene") is None
    tab.put("d", "5")
    tab.wait("() => document.getElementById('field-value').value.split(',').length === 5")
    tab.done()
    assert "from 5 to 3 dimensions" in tab.text("theory").lower()
    assert State.from_query(tab.query()).d == 5


@pytest.mark.slow
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


def titles(tab):
    return [tab.page.locator(f"#title-sphere-{i}").inner_text() for i in (1, 2)]


def test_two_temperatures(tab):
    tab.page.select_option("#field-compare", "beta")
    tab.wait("() => lab.status === 'done' && lab.spheres[1]")
    tab.done()
    assert tab.page.input_value("#field-other") == "10"
    tab.put("other", "7")
    tab.wait("() => document.getElementById('title-sphere-2').textContent === 'β = 7'")
    tab.done()
    assert titles(tab) == ["β = 100", "β = 7"]
    for beta in (100.0, 7.0):
        line = tab.curve(f"W₂, β = {beta:g}")
        np.testing.assert_allclose(line[1], simulated(small(beta=beta)).distance().values, rtol=1e-9)
    state = State.from_query(tab.query())
    assert (state.compare, state.other) == ("beta", "7")
    assert_together(tab)
    assert "β = 7: " in tab.text("theory")
    tab.page.select_option("#field-compare", "")
    tab.wait("() => !lab.spheres[1]")
    tab.done()
    assert tab.page.locator("#box-sphere-2").is_hidden()
    assert tab.curve() is not None


def test_a_link_of_a_comparison_alone_fills_in_what_the_page_fills_in(tab):
    """Python and the page's script choose the same second value."""
    for query in ("compare=beta&beta=100", "compare=beta&beta=7", "compare=n&n=402", "compare=n&n=60"):
        changed = State.from_query(query)
        tab.show(f"{SMALL}&beta={changed.beta:g}&n={changed.n}")
        tab.page.select_option("#field-compare", changed.compare)
        assert tab.page.input_value("#field-other") == changed.other
    tab.show("")
    tab.evaluate("lab.pause()")


def test_figures_without_a_run_say_which_field_is_wrong(tab):
    tab.show(f"{SMALL}&compare=beta&other=")
    tab.wait("() => lab.answered === lab.serial && document.getElementById('problem-other').textContent")
    words = tab.evaluate("document.querySelector('#box-curve .veil').dataset.words")
    assert words == f"not computed. Second β: {tab.problem('other')}"
    tab.show(SMALL).done()


def assert_together(tab):
    """One slider moves both spheres and the cursor; turning one sphere turns the other."""
    tab.page.locator("h1").click()
    tab.page.keyboard.press("End")
    tab.wait("() => !lab.painting && lab.spheres.every(s => s.shown === s.times.length - 1)")
    for which, beta in ((1, 100.0), (2, 7.0)):
        final = simulated(small(beta=beta)).frames[-1, :, 0].numpy()
        np.testing.assert_allclose(np.sort(tab.tokens(which)), np.sort(final), atol=1e-4)
    assert tab.cursor() == 4.0
    tab.turn_sphere()
    until(lambda: tab.eye(1) == tab.eye(2))


@pytest.mark.slow
def test_equal_and_graded_weights_and_two_numbers_of_tokens(tab):
    tab.show(f"{SMALL}&compare=weights").done()
    assert titles(tab) == ["equal weights", "graded weights"]
    graded = simulated(small(law="graded")).distance()
    assert tab.curve("W₂, graded weights")[1][-1] == pytest.approx(float(graded[-1]), rel=1e-9)
    tab.page.select_option("#field-compare", "n")
    tab.put("other", "90")
    tab.wait("() => document.getElementById('title-sphere-2').textContent === 'N = 90'")
    tab.done()
    assert (len(tab.tokens(1)), len(tab.tokens(2))) == (60, 90)
    tab.put("other", "ninety")
    tab.wait("() => document.getElementById('problem-other').textContent")
    assert tab.problem("other").startswith("ninety: ")
