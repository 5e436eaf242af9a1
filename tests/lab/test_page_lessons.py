"""The page teaches itself: it opens moving, says what is to be seen, and has examples and a tour."""

from __future__ import annotations

import pytest

from metastable.figures.distance import distance_curves
from metastable.figures.look import GREEN, PHASE_COLOURS
from metastable.lab.lessons import EXAMPLES, TOUR
from metastable.lab.moments import moments
from metastable.lab.state import State
from tests.lab.conftest import SMALL
from tests.lab.test_page_laboratory import shown, simulated
from tests.lab.test_page_looks import assert_fits, resized

pytestmark = pytest.mark.browser

COVER = """() => { const { x0, x1, visible } = document.querySelector('#curve .js-plotly-plot').layout.shapes
    .find(s => s.name === 'later'); return { x0, x1, visible }; }"""
TAILS = """() => document.querySelector('#sphere-1 .js-plotly-plot')._fullData.filter(t => t.name === 'tail')
    .map(t => [t.visible, Array.from(t.x || []).filter(Number.isFinite).length])"""


def test_it_opens_moving_and_ends_at_its_end(opened):
    tab = opened("n=60&until=4&d=2", reduced_motion="no-preference")
    tab.wait("() => lab.player && lab.spheres[0] && lab.spheres[0].shown > 1")
    assert State.from_query(tab.query()).interaction == (1.5, 1.0)
    tab.done()
    assert tab.evaluate(COVER)["visible"]
    tab.evaluate("lab.moveTo(3.8)")
    tab.wait("() => !lab.player && !lab.painting")
    assert tab.time() == 4
    cover = tab.evaluate(COVER)
    assert cover["x0"] == cover["x1"] == 4


@pytest.mark.slow
def test_it_goes_on_when_beta_is_dragged(opened):
    tab = opened("n=60&until=4", reduced_motion="no-preference")
    tab.wait(
        "() => lab.status === 'done' && lab.player && document.querySelector('#curve .js-plotly-plot').layout.shapes"
    )
    tab.page.locator("#slide-beta").evaluate(
        """e => { for (const p of [500, 520, 540]) { e.value = p;
            e.dispatchEvent(new Event('input', { bubbles: true })); } }"""
    )
    assert tab.evaluate("Boolean(lab.player)")
    tab.wait("() => lab.answered === lab.serial && lab.wanted")
    assert tab.evaluate("Boolean(lab.player)")
    tab.done()
    # It plays from its start to its end, then rests.
    tab.wait("() => lab.spheres[0].shown > 3 && lab.time < 3")
    assert tab.evaluate(COVER)["visible"]
    assert tab.evaluate("Boolean(lab.player)")
    assert float(tab.page.input_value("#field-beta")) > 100


def test_the_sentence_follows_the_time_and_trails_can_be_switched(tab):
    assert tab.evaluate("lab.player") is None
    assert not tab.evaluate(COVER)["visible"]
    run = shown(tab)
    expected = moments(run, distance_curves(run))
    for t in [expected[-1][0] + 0.1, 0.05, 2.0]:
        tab.evaluate("t => lab.moveTo(t)", t)
        now = tab.evaluate(
            "() => { const s = lab.spheres[0].times; return s.filter(t => t <= lab.time + 1e-9).pop(); }"
        )
        words = [words for begin, words in expected if begin <= now][-1]
        assert tab.text("moment") == words
    assert tab.text("gist") == tab.page.locator("#theory .headline").inner_text()
    for name in ("moment", "gist"):
        box = tab.page.locator(f"#{name}").bounding_box()
        assert 0 < box["y"] < box["y"] + box["height"] < 720
    tab.wait("() => !lab.painting")
    # Tails of seven frames for each of the 60 tokens.
    assert sum(count for _, count in tab.evaluate(TAILS)) == 7 * 60
    assert tab.evaluate(COVER)["x0"] == tab.time()
    tab.page.click("#trails")
    tab.wait(f"() => ({TAILS})().every(([visible]) => !visible)")
    assert tab.page.locator("#trails").get_attribute("aria-pressed") == "false"
    # Tails that are shown again belong to the time shown.
    tab.evaluate("lab.moveTo(0)")
    tab.page.click("#trails")
    tab.wait(f"() => !lab.painting && ({TAILS})().every(([visible]) => visible)")
    assert sum(count for _, count in tab.evaluate(TAILS)) == 60
    assert tab.text("note-sphere-1") == ""


@pytest.mark.slow
def test_what_is_not_drawn_is_said(tab):
    tab.show("n=1600&until=0.2&d=5").done()
    assert (
        tab.text("note-sphere-1")
        .replace("\u202f", " ")
        .startswith("1 500 of 1 600 tokens drawn; projected from 5 to 3")
    )


def test_examples_and_the_tour(tab):
    chosen = "() => document.getElementById('example').selectedOptions[0].textContent"
    assert tab.evaluate(chosen) == "own settings"
    tab.page.select_option("#example", label="Causal attention")
    tab.wait("() => lab.answered === lab.serial && lab.query === 'causal=yes'")
    assert tab.evaluate(chosen) == "Causal attention"
    tab.put("seed", "1")
    tab.wait("() => lab.query.includes('seed=1')")
    assert tab.evaluate(chosen) == "own settings"
    tab.page.locator("#tour-start").focus()
    for number, step in enumerate(TOUR, start=1):
        # The first press starts the tour and moves the focus to the button for the next step.
        tab.page.keyboard.press("Enter")
        assert tab.text("tour-title") == f"{number} of {len(TOUR)}: {step.title}"
        assert tab.text("tour-words") == step.words
        tab.wait("query => lab.answered === lab.serial && lab.query === query", step.state.to_query())
        assert tab.evaluate("document.activeElement.id") == "tour-next"
        if number == 3:
            tab.page.click("#tour-back")
            assert tab.text("tour-title").startswith("2 of")
            tab.page.locator("#tour-next").focus()
            tab.page.keyboard.press("Enter")
    assert tab.text("tour-next") == "Finish"
    tab.page.keyboard.press("Escape")
    assert tab.page.locator("#tour").is_hidden()
    assert tab.evaluate("document.activeElement.id") == "tour-start"
    assert tab.query().startswith(State.to_query(EXAMPLES["Rotation (no limit)"])[:20])


@pytest.mark.parametrize("parts", [(0.5,), pytest.param((0.0, 0.5, 1.0), marks=pytest.mark.slow)])
def test_no_step_of_the_tour_has_labels_that_overlap(tab, parts):
    """Each step is drawn into the figures of the step before it. parts : shares of the horizon that are looked at"""
    tab.page.click("#tour-start")
    for number, step in enumerate(TOUR, start=1):
        tab.wait("query => lab.answered === lab.serial && lab.query === query", step.state.to_query())
        tab.done()
        for width, height in ((390, 844), (1280, 720)):
            resized(tab, width, height)
            for part in parts:
                tab.evaluate("part => lab.moveTo(part * lab.until)", part)
                tab.wait("() => !lab.painting")
                assert_fits(tab)
        assert tab.page.locator("#tour").bounding_box()["y"] < 300
        bar = tab.page.locator("#time-bar").bounding_box()
        assert bar["y"] + bar["height"] <= 720
        if number == 3:
            the_bars_of_two_runs_can_be_seen(tab)
        tab.page.click("#tour-next")


def the_bars_of_two_runs_can_be_seen(tab):
    """They are high, in full colour and not under the cover of what comes later, and the words name the green."""
    bars = tab.evaluate(
        """() => { const plot = document.querySelector('#curve .js-plotly-plot'), {shapes, _size} = plot._fullLayout;
            const edge = plot.getBoundingClientRect().top + _size.t;
            return [...plot.querySelectorAll('.shapelayer path')].map(e => [shapes[e.dataset.index], e])
                .filter(([shape]) => shape.ysizemode === 'pixel').map(([shape, e]) => {
                    const box = e.getBoundingClientRect();
                    return [shape.name, box.height, edge - box.bottom, shape.fillcolor, shape.opacity]; }); }"""
    )
    assert [name for name, *_ in bars] == ["concentration", "plateau", "terminal"] * 2
    for name, height, above, colour, opacity in bars:
        assert height >= 14
        assert above >= 0
        assert colour == PHASE_COLOURS[name]
        assert opacity == 1
    assert PHASE_COLOURS["plateau"] == GREEN


def test_two_runs_keep_their_phases_and_explain_every_mark(tab):
    tab.show(f"{SMALL}&compare=beta&other=7").done()
    legend, symbols, bars = tab.evaluate(
        """() => { const plot = document.querySelector('#curve .js-plotly-plot');
            return [[...plot.querySelectorAll('.legendtext')].map(e => e.textContent),
                plot.data.filter(t => t.name.startsWith('phases')).flatMap(t => Array.from(t.marker.symbol)),
                plot.layout.shapes.filter(s => s.ysizemode === 'pixel')
                    .map(s => [s.name, s.line.color])]; }"""
    )
    runs = [distance_curves(simulated(one)).phases for one in State.from_query(tab.query()).runs()]
    marks = {"circle": "plateau begins", "diamond": "plateau ends"}
    assert {marks[symbol] for symbol in symbols} == {words for words in legend if words in marks.values()}
    assert len({colour for _, colour in bars}) == len(
        [one for one in runs if one.concentrated or one.course == "falling"]
    )
    for name, _ in bars:
        assert name in legend
    assert all(word in tab.text("moment") for word in ("β = 100: ", "β = 7: "))
