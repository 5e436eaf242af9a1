"""How the page looks: sizes, themes, what can be read by whom."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from metastable.lab.lessons import EXAMPLES
from metastable.lab.state import State
from tests.lab.conftest import SMALL
from tests.labels import move, overlapping

pytestmark = pytest.mark.browser

CONTRAST = """() => {
    const parse = text => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
    const light = rgb => { const [r, g, b] = rgb.slice(0, 3).map(c => (c /= 255) <= 0.04045 ? c / 12.92
        : ((c + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
        if (c[3] === 1) return c; } return [255, 255, 255, 1]; };
    const wrong = [];
    for (const e of document.querySelectorAll('#lab *:not(svg *):not(option)')) {
        const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
        if (!own || !e.checkVisibility({visibilityProperty: true}) || e.closest('.js-plotly-plot, :disabled')) continue;
        const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) wrong.push([e.outerHTML.slice(0, 90), (a + 0.05) / (b + 0.05)]);
    }
    return wrong; }"""


LEAST_PANEL = 80
"""The least height of a panel of curves, in pixels."""


def resized(tab, width, height):
    tab.page.set_viewport_size({"width": width, "height": height})
    tab.wait(
        """() => [...document.querySelectorAll('.js-plotly-plot')].filter(plot => plot.offsetWidth).every(plot => {
            const {width, height} = plot.querySelector('.main-svg').getBoundingClientRect();
            return Math.abs(width - plot.offsetWidth) < 2 && Math.abs(height - plot.offsetHeight) < 2; })"""
    )


def assert_fits(tab):
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    outside = tab.evaluate(
        """() => [...document.querySelectorAll('#lab *:not(svg *)')]
            .filter(e => e.checkVisibility() && e.offsetWidth > 1 && !e.closest('.modebar-container')
                && e.getBoundingClientRect().right > window.innerWidth + 0.5)
            .map(e => e.outerHTML.slice(0, 90))"""
    )
    assert outside == []
    cut = tab.evaluate(
        """() => [...document.querySelectorAll('.js-plotly-plot')].filter(p => p.checkVisibility()).flatMap(plot => {
            const f = plot.getBoundingClientRect();
            return [...plot.querySelectorAll('.annotation-text, .legendtext, .xtick text, .ytick text')].filter(e => {
                const b = e.getBoundingClientRect();
                const beyond = b.left < f.left - 1 || b.right > f.right + 1 || b.bottom > f.bottom + 1;
                return e.textContent.trim() && beyond;
            }).map(e => e.textContent); })"""
    )
    assert cut == []
    assert overlapping(tab.page) == []
    if tab.evaluate("document.documentElement.dataset.view") == "laboratory":
        assert_curves_have_space(tab)


def assert_curves_have_space(tab):
    """Each panel of curves is high, no name of a panel lies in another one, and the legend needs no scroll bar."""
    heights, inside, bars = tab.evaluate(
        """() => { const plot = document.querySelector('#curve .js-plotly-plot'), {_plots, _size} = plot._fullLayout;
            const panels = Object.values(_plots).map(({xaxis, yaxis}) =>
                ({left: xaxis._offset, right: xaxis._offset + xaxis._length, top: yaxis._offset,
                  bottom: yaxis._offset + yaxis._length}));
            const frame = plot.getBoundingClientRect();
            const names = [...plot.querySelectorAll('.annotation')].filter(
                e => plot._fullLayout.annotations[e.dataset.index].yref === 'paper');
            const lies = names.filter(e => { const b = e.querySelector('.annotation-text').getBoundingClientRect();
                return panels.some(p => b.right - frame.left > p.left + 1 && b.left - frame.left < p.right - 1
                    && b.bottom - frame.top > p.top + 5 && b.top - frame.top < p.bottom - 5); });
            return [panels.map(p => p.bottom - p.top), lies.map(e => e.textContent),
                [...plot.querySelectorAll('.scrollbar')].map(e => e.getBoundingClientRect().height)]; }"""
    )
    assert min(heights) >= LEAST_PANEL
    assert inside == []
    assert max(bars, default=0) == 0


def test_the_page_fits_every_window(tab):
    for width, height in ((1280, 720), (1920, 1080)):
        sphere_curve_and_time_are_seen_without_scrolling(tab, width, height)
    a_phone_has_one_column_and_no_horizontal_scrolling(tab)


def test_longer_words_move_no_figure(tab):
    """The sphere is drawn in the size that it had at first, so its box must keep it."""
    words = {
        "moment": "Leaving: tokens move away from the two points +e and −e; V pulls them towards ±v, its dominant "
        "direction.",
        "gist": "Tokens concentrated by t = 4.33, stayed for 6.5 time units near distance 0.159 from the limit law, "
        "and left for the terminal phase at t = 10.8.",
    }
    height = "() => document.getElementById('box-sphere-1').getBoundingClientRect().height"
    before = tab.evaluate(height)
    for name, text in words.items():
        tab.evaluate("([name, text]) => { document.getElementById(name).textContent = text; }", [name, text])
    assert tab.evaluate(height) == before


def sphere_curve_and_time_are_seen_without_scrolling(tab, width, height):
    resized(tab, width, height)
    assert_fits(tab)
    boxes = {name: tab.page.locator(f"#{name}").bounding_box() for name in ("box-sphere-1", "box-curve", "time-bar")}
    for name, box in boxes.items():
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= height, f"{name} is not to be seen whole"
    assert boxes["box-sphere-1"]["y"] == boxes["box-curve"]["y"]
    assert boxes["box-curve"]["x"] >= boxes["box-sphere-1"]["x"] + boxes["box-sphere-1"]["width"]


def a_phone_has_one_column_and_no_horizontal_scrolling(tab):
    resized(tab, 390, 844)
    assert_fits(tab)
    names = ("box-sphere-1", "box-curve", "controls", "box-theory")
    boxes = [tab.page.locator(f"#{name}").bounding_box() for name in names]
    for above, below in pairwise(boxes):
        assert below["y"] >= above["y"] + above["height"]
    bar = tab.page.locator("#time-bar").bounding_box()
    assert bar["y"] + bar["height"] <= 844, "the time is at hand beside the sphere"
    tab.page.click("#view-audit")
    assert_fits(tab)
    assert overlapping(tab.page) == []
    tab.page.click("#view-laboratory")


ROTATION = State(n=60, until=4.0, beta=20.0, matrices="1 0 0\n0 1 0\n0 0 1\n\n0.8 -1 0\n1 0.8 0\n0 0 0.4").to_query()
COMPARED = ("n=60&until=4&compare=beta&other=10", "n=60&until=4&compare=n&other=30", "n=60&until=4&d=2&causal=yes")


@pytest.mark.parametrize("query", [*COMPARED, ROTATION])
def test_labels_of_comparisons_and_of_blocks_do_not_overlap(tab, query):
    tab.show(query).done()
    # The tour takes about 90 pixels of the height.
    for width, height in ((1280, 720), (1280, 630), (390, 844)):
        resized(tab, width, height)
        assert_fits(tab)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(EXAMPLES))
def test_labels_of_the_examples_do_not_overlap(tab, name):
    tab.show(replace(EXAMPLES[name], n=60).to_query()).done()
    for width, height in ((1280, 720), (390, 844)):
        resized(tab, width, height)
        assert_fits(tab)


def test_a_button_on_top_of_another_is_found(tab):
    for button, onto in (("trails", "stop"), ("view-audit", "view-laboratory"), ("play", "now")):
        move(tab.page, f"#{button}", f"#{onto}")
        assert overlapping(tab.page) != []
        tab.evaluate("id => { document.getElementById(id).style.translate = ''; }", button)
    assert overlapping(tab.page) == []


def test_everything_can_be_read_and_set_by_everybody(tab):
    everything_that_can_be_set_has_a_label(tab)
    what_has_the_focus_is_to_be_seen(tab)
    light_and_dark_can_be_read_and_the_switch_changes_the_figures(tab)


def everything_that_can_be_set_has_a_label(tab):
    nameless = tab.evaluate(
        """() => [...document.querySelectorAll('#lab input, #lab select, #lab textarea')]
            .filter(e => !e.labels.length && !e.getAttribute('aria-label')).map(e => e.id)"""
    )
    assert nameless == []
    assert tab.evaluate("document.documentElement.lang") == "en"


def what_has_the_focus_is_to_be_seen(tab):
    for name in ("play", "field-n", "field-law", "time", "slide-beta"):
        tab.page.locator("h1").click()
        tab.page.locator(f"#{name}").focus()
        tab.page.keyboard.press("Shift+Tab")
        tab.page.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.id") == name
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def light_and_dark_can_be_read_and_the_switch_changes_the_figures(tab):
    assert tab.evaluate("document.documentElement.dataset.theme") == "light"
    assert tab.evaluate(CONTRAST) == []
    ground = "document.querySelector('#curve .js-plotly-plot').layout.paper_bgcolor"
    assert tab.evaluate(ground) == "white"
    tab.page.click("#theme")
    tab.wait(f"() => {ground} !== 'white'")
    assert tab.evaluate(CONTRAST) == []
    assert tab.query().endswith("theme=dark")
    tab.page.click("#theme")
    tab.wait(f"() => {ground} === 'white'")


def test_who_prefers_dark_gets_dark_and_a_link_that_says_light_is_light(opened):
    tab = opened(SMALL, color_scheme="dark").done()
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    assert "theme" not in tab.query()
    tab.page.goto(f"{tab.lab.url}?{SMALL}&theme=light")
    tab.done()
    assert tab.evaluate("document.documentElement.dataset.theme") == "light"
    assert tab.query().endswith("theme=light")
