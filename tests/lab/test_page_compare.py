"""Two runs side by side under one time."""

from __future__ import annotations

import numpy as np
import pytest

from metastable.lab.state import State
from tests.lab.conftest import SMALL
from tests.lab.test_page_laboratory import simulated, small

pytestmark = pytest.mark.browser


def titles(tab):
    return [tab.page.locator(f"#title-sphere-{i}").inner_text() for i in (1, 2)]


def test_two_temperatures(opened):
    tab = opened(SMALL).done()
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
    assert (state.compare, state.other) == ("beta", 7.0)
    assert_together(tab)
    assert "β = 7: " in tab.page.locator("#theory").inner_text()
    tab.page.select_option("#field-compare", "")
    tab.wait("() => !lab.spheres[1]")
    tab.done()
    assert tab.page.locator("#box-sphere-2").is_hidden()
    assert tab.curve() is not None


def assert_together(tab):
    """One slider moves both spheres and the cursor; turning one sphere turns the other."""
    tab.page.locator("h1").click()
    tab.page.keyboard.press("End")
    tab.wait("() => !lab.painting && lab.spheres.every(s => s.shown === s.times.length - 1)")
    for which, beta in ((1, 100.0), (2, 7.0)):
        final = simulated(small(beta=beta)).frames[-1, :, 0].numpy()
        np.testing.assert_allclose(np.sort(tab.tokens(which)), np.sort(final), atol=1e-4)
    assert tab.cursor() == 4.0
    box = tab.page.locator("#sphere-1 canvas").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.page.mouse.move(x, y)
    tab.page.mouse.down()
    tab.page.mouse.move(x + 90, y + 30, steps=4)
    tab.page.mouse.up()
    tab.wait(
        """() => { const eye = which => JSON.stringify(
                document.querySelector(`#sphere-${which} .js-plotly-plot`)._fullLayout.scene.camera.eye);
            return eye(1) === eye(2); }"""
    )


def test_equal_and_graded_weights_and_two_numbers_of_tokens(opened):
    tab = opened(f"{SMALL}&compare=weights").done()
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
