"""The page of `ms.compress`: every option, words, what the picture shows and leaves out, a real Chromium."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from plotly.offline import get_plotlyjs

import metastable as ms
from metastable.encoder.compress import report as page
from metastable.encoder.compress import words
from metastable.encoder.compress.result import TASK
from metastable.figures import compress as drawn
from metastable.figures.look import caption
from tests.encoder.audits import EVIL
from tests.encoder.models import tiny
from tests.encoder.test_audit_browser import Tab
from tests.encoder.test_report import Reader
from tests.labels import overlapping


@pytest.fixture(scope="module")
def study(whole):
    """All options of a small encoder, with wide numbers of a plausible size; row 3 is the chosen one."""
    random = np.random.default_rng(0)
    options, n = whole.options.copy(), len(whole.options)
    cosine = 0.9 + 0.09 * random.random(n)
    middles = {"cosine": cosine, "cosine_p10": cosine - 0.05, "nn_overlap": cosine - 0.2, "spearman": cosine - 0.1}
    for name, middle in {**middles, "speed": 1 + 3 * random.random(n)}.items():
        options[name], options[f"{name}_low"], options[f"{name}_high"] = middle, 0.98 * middle, 1.005 * middle
    options["megabytes"] = 1234.5
    return replace(whole, options=options, chosen=3, full_megabytes=2345.6)


@pytest.fixture(scope="module")
def single(tokenizer, many_texts):
    """Amounts were given: one option, which is the chosen one."""
    return ms.compress(tiny("bert"), many_texts, tokenizer=tokenizer, length=24, heads=0.25)


@pytest.fixture(scope="module")
def scored(study):
    """The same study with the columns of scored pairs."""
    options = study.options.copy()
    for name in TASK:
        middle = options["cosine"] - (0.1 if name == "task" else 0.95)
        options[name], options[f"{name}_low"], options[f"{name}_high"] = middle, middle - 0.012, middle + 0.011
        options[f"select_{name}"] = middle - 0.02
    counts = study.counts | {"select_pairs": 751, "test_pairs": 749}
    return replace(study, options=options, counts=counts, full_task=(0.8203, 0.8051, 0.8349), target="speed > 0")


@pytest.mark.slow
def test_scores_on_pairs_are_in_the_table_and_in_the_words(scored, study):
    html = page.render(scored)
    baseline = scored.options["baseline"].astype(bool)
    for text, (_, row) in zip(map(plain, rows(html, "options")), scored.options[~baseline].iterrows(), strict=True):
        assert f"{row['task']:.3f} {row['task_low']:.3f}–{row['task_high']:.3f}" in text
        assert f"{abs(row['task_difference']):.3f}" in text
    said, shown = " ".join(scored.sentences()), Reader(html).text
    chosen = scored.options.iloc[scored.chosen]
    for number in ("749", "0.820", f"{chosen['task']:.3f}"):
        assert number in said
        assert number in shown["found"]
    assert "751" in shown["pairs"]
    assert "pairs" not in Reader(page.render(study)).text


def test_a_difference_of_nothing_has_no_minus(scored):
    options = scored.options.assign(task_difference=-0.0001, task_difference_low=-0.0002)
    assert "−0.000" not in page.render(replace(scored, options=options))


def test_warnings_stand_before_the_headline(scored):
    doubtful = replace(
        scored,
        counts=scored.counts | {"tokens": 110, "special": 10, "unknown": 20},
        full_select_task=(0.01, -0.1, 0.1),
    )
    html = page.render(doubtful)
    warned = doubtful.sentences()[:2]
    assert "20%" in warned[0]
    assert "751 select pairs" in warned[1]
    assert html.index('id="warnings"') < html.index('id="headline"')
    assert all(said in Reader(html).text["warnings"] for said in warned)
    assert Reader(html).text["headline"] == doubtful.sentences()[2]
    card = words.card(doubtful, doubtful.options.iloc[0])
    assert [line for line in card if line][1:3] == warned
    assert 'id="warnings"' not in page.render(scored)


def test_too_few_texts_for_an_end(study):
    """The page and the card give the upper end only, and say why."""
    options = study.options.assign(cosine_p10_low=np.nan, cosine_p10_high=0.9623)
    few = replace(study, options=options)
    html = page.render(few)
    assert all("at most 0.962" in plain(row) for row in rows(html, "options"))
    assert "nan" not in plain("".join(rows(html, "options")))
    why = f"{study.counts['test']} texts are too few"
    assert why in " ".join(Reader(html).text["sizes"].split())
    (line,) = [line for line in words.card(few, options.iloc[0]) if "10th percentile" in line]
    assert "at most 0.962" in line
    assert why in line
    assert why not in " ".join(Reader(page.render(study)).text["sizes"].split())


def test_removed_layers_are_named(study):
    """In the row of the table, in the card and in the sentences about an option."""
    options = study.options.assign(removed_layers="2, 4").head(1).assign(recipe="2 layers removed, int8", layers=2)
    two = replace(study, options=options, removals=study.removals[:1], chosen=0)
    assert two.sentences()[0].startswith("Layers 2 and 4 removed, int8: ")
    assert "layers 2, 4" in plain(rows(page.render(two), "options")[0])
    assert any("layers 0 to 2: 2, 4." in line for line in words.card(two, options.iloc[0]))
    row = study.options.iloc[0]
    assert row["removed_layers"] == str(study.removals[0].layers[0])
    assert f"layer {row['removed_layers']} " in plain(rows(page.render(study), "options")[0])


def with_baselines(study, cosines):
    """The same study, whose first options for comparison have these mean cosines."""
    options = study.options.copy()
    at = options.index[options["baseline"].astype(bool)][: len(cosines)]
    for end in ("", "_low", "_high"):
        options.loc[at, f"cosine{end}"] = cosines
    return replace(study, options=options), at


def picture(study):
    return drawn.fidelity_front(study.options, study.front(), study.chosen)


def points(figure):
    """(speed, cosine) of the options in a picture."""
    names = {name for name, *_ in drawn.KINDS.values()}
    return [(x, y) for part in figure.data if part.name in names for x, y in zip(part.x, part.y, strict=True)]


def rows(html, table):
    """The HTML of the rows of a table."""
    inside = re.search(rf'<table class="options" id="{table}">.*?<tbody>(.*?)</tbody>', html, re.DOTALL)
    return re.findall(r"<tr.*?</tr>", inside[1], re.DOTALL)


def plain(html):
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_every_option_is_in_a_table_with_its_numbers(study):
    html = page.render(study)
    baseline = study.options["baseline"].astype(bool)
    for table, options in (("options", study.options[~baseline]), ("baselines", study.options[baseline])):
        found = rows(html, table)
        assert len(found) == len(options)
        for text, (_, row) in zip(map(plain, found), options.iterrows(), strict=True):
            assert row["recipe"] in text
            assert f"{row['speed']:.2f}× {row['speed_low']:.2f}–{row['speed_high']:.2f}" in text
            for name in ("cosine", "cosine_p10", "nn_overlap", "spearman"):
                assert f"{row[name]:.3f} {row[f'{name}_low']:.3f}–{row[f'{name}_high']:.3f}" in text


@pytest.mark.parametrize("chosen", [0, 3, None])
def test_the_chosen_row_and_no_other_is_marked(study, chosen):
    html = page.render(replace(study, chosen=chosen))
    marked = [place for place, row in enumerate(rows(html, "options")) if 'class="chosen"' in row]
    assert marked == ([] if chosen is None else [chosen])
    assert sum(">chosen<" in row for table in ("options", "baselines") for row in rows(html, table)) == len(marked)
    figure = picture(replace(study, chosen=chosen))
    rings = [(part.x[0], part.y[0]) for part in figure.data if part.name == "chosen"]
    assert rings == [tuple(study.options.iloc[place][["speed", "cosine"]]) for place in marked]
    assert len(figure.layout.annotations) == len(marked)


@pytest.mark.parametrize("cosines", [(), (0.84,), (0.5, 0.3), (-0.9, 0.5, 0.4, 0.3)])
def test_every_option_is_inside_the_axes_or_named_under_the_picture(study, cosines):
    """Many low ones are all drawn; a few are named where they would squeeze the others."""
    study, at = with_baselines(study, cosines)
    figure = picture(study)
    left_out = list(at) if len(cosines) == 2 else []
    shown = study.options.drop(index=left_out)
    assert sorted(points(figure)) == sorted(zip(shown["speed"], shown["cosine"], strict=True))
    for axis, name in ((figure.layout.xaxis, "speed"), (figure.layout.yaxis, "cosine")):
        assert axis.range[0] < min(shown[f"{name}_low"].min(), 1.0)
        assert axis.range[1] > max(shown[f"{name}_high"].max(), 1.0)
    assert ("Below the picture" in caption(figure)) == bool(left_out)
    for _, row in study.options.loc[left_out].iterrows():
        named = f"{row['recipe']} ({row['method']}) at {row['speed']:.2f}× and {row['cosine']:.3f}"
        assert named in caption(figure)


def test_bars_show_the_range_of_speed_and_the_interval_of_the_cosine(study):
    names = {name: kind for kind, (name, *_) in drawn.KINDS.items()}
    parts = [part for part in picture(study).data if part.name in names]
    assert {names[part.name] for part in parts} == set(drawn.KINDS)
    for part in parts:
        for values, bar, column in ((part.x, part.error_x, "speed"), (part.y, part.error_y, "cosine")):
            expected = study.options.set_index(column).loc[list(values)]
            np.testing.assert_allclose(values + bar.array, expected[f"{column}_high"])
            np.testing.assert_allclose(values - bar.arrayminus, expected[f"{column}_low"])
            assert bar.thickness >= 1.5
    assert len({(part.marker.symbol, part.marker.color) for part in parts}) == len(parts)


def test_a_line_needs_two_options_and_says_what_overlap_means(study):
    joined = picture(study)
    assert joined.data[0].name == "best measured"
    assert "overlap" in caption(joined)
    alone = drawn.fidelity_front(study.options, study.front().iloc[:1])
    assert "best measured" not in [part.name for part in alone.data]
    assert "line" not in caption(alone)


def test_one_option_has_numbers_and_no_picture(single, study):
    html = page.render(single)
    shown = Reader(html).text
    assert 'id="figure-front"' not in html
    assert "picture" not in shown["lead"]
    assert "int8" not in shown["lead"]
    assert "key" not in shown
    row = single.options.iloc[0]
    for value in (f"{row['speed']:.2f}×", f"{row['cosine']:.3f}", f"{row['nn_overlap']:.3f}"):
        assert value in shown["only"]
    assert len(rows(html, "options")) == 1
    several = page.render(study)
    assert 'id="figure-front"' in several
    assert "only" not in Reader(several).text


def test_the_first_screen_explains_its_words(study):
    html = page.render(study)
    shown = Reader(html).text
    assert "1 means equal" in shown["lead"]
    assert "8 bits" in shown["key"]
    assert "For comparison" in shown["key"]
    assert (
        html.index('id="headline"') < html.index('id="lead"') < html.index('id="key"') < html.index('id="figure-front"')
    )
    good = study.options[~study.options["baseline"].astype(bool) & (study.options["cosine"] >= 0.95)]["nn_overlap"]
    assert f"{100 * good.min():.0f} to {100 * good.max():.0f} % of the 10 nearest" in shown["lead"]
    worse = study.options.assign(cosine=0.5)
    assert "nearest" not in Reader(page.render(replace(study, options=worse))).text["lead"]


def test_the_page_says_refitted_and_claims_nothing_of_the_theory(study):
    assert study.options["method"].str.contains("not (?:healed|refitted)").any()
    html = page.render(study).replace(get_plotlyjs(), "")
    text = html.split("</style>", 1)[1]
    assert "healed" not in text
    assert "not refitted" in text
    assert "theory helps" not in text
    assert "Short texts" in text
    assert f"10 nearest of {study.counts['fit']} other texts" in " ".join(text.split())


def test_sizes_are_those_in_memory_and_the_note_says_what_is_smaller_on_disk(study):
    html = page.render(study)
    assert "<th>MB in memory</th>" in html
    note = " ".join(Reader(html).text["sizes"].split())
    assert "2345.6 MB in memory" in note
    assert "Only removed layers and neurons make the file on disk smaller. int8 and removed heads save" in note
    assert "ms.load_compressed" in note
    uncut = " ".join(Reader(page.render(replace(study, family="mpnet"))).text["sizes"].split())
    assert "Removed heads save neither memory nor time" in uncut


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("/home/me/models/mine", "mine"),
        ("/home/me/models/mine/", "mine"),
        (r"C:\models\mine", "mine"),
        ("sentence-transformers/all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
        ("/", "/"),
    ],
)
def test_a_path_is_shown_by_its_last_folder(name, short, study):
    shown = Reader(page.render(replace(study, name=name)))
    assert page.short_name(name) == shown.text["model"] == short
    (model,) = [attributes for _, attributes in shown.elements if attributes.get("id") == "model"]
    assert model.get("title", short) == name or name == short
    assert ("title" in model) == (name != short)


def test_markup_in_names_stays_text(study):
    html = page.render(replace(study, name=EVIL, family=EVIL))
    assert EVIL not in html
    assert Reader(html).text["model"] == EVIL


def test_no_sentence_is_said_twice(study):
    said = re.findall(r"<li>(.*?)</li>", page.render(study), re.DOTALL)
    assert len(said) == len(set(said)) == len(set(study.sentences()[1:]))


SPILLED = """() => [...document.querySelectorAll('main *:not(svg *)')].filter(e => {
    const b = e.getBoundingClientRect();
    const hidden = !b.width || e.closest('thead') && getComputedStyle(e.closest('thead')).position === 'absolute';
    const spilled = e.matches('.options th, .options td') && e.scrollWidth > e.clientWidth;
    return !hidden && (b.right > window.innerWidth + 1 || b.left < -1 || spilled);
}).map(e => e.tagName + ': ' + e.textContent.slice(0, 40))"""
"""Elements that reach beyond the window, and cells whose text reaches into the next one."""


@pytest.mark.browser
@pytest.mark.parametrize("which", ["study", "scored", "single"])
def test_the_page_fits_every_screen(which, browser, request, tmp_path):
    result = request.getfixturevalue(which)
    path = result.report(tmp_path / "report.html")
    tab = Tab(browser, path, 1366, 768, [] if which == "single" else ["#figure-front"], "")
    for part in tab.page.locator("summary").all()[1:]:
        part.click()
    for width in (1366, 1024, 800, 770, 700, 390):
        tab.resize(width)
        assert tab.fits(), f"the page is wider than {width} pixels"
        assert tab.cut() == []
        assert tab.page.evaluate(SPILLED) == [], f"at {width} pixels"
        assert overlapping(tab.page) == []
        wanted = "grid" if width <= 760 else "table-row"
        assert tab.page.evaluate("getComputedStyle(document.querySelector('#options tbody tr')).display") == wanted
    assert tab.page.locator("#options tr.chosen").count() == 1
    label = "getComputedStyle(document.querySelector('#options tbody td'), '::before').content"
    assert "speed" in tab.page.evaluate(label)
    assert tab.complaints == []
    assert tab.outside() == []
    tab.context.close()


@pytest.mark.browser
def test_headline_and_picture_are_on_the_first_screen(browser, study, tmp_path):
    tab = Tab(browser, study.report(tmp_path / "report.html"), 1366, 768, ["#figure-front"], "")
    box = tab.page.locator("#figure-front .main-svg").first.bounding_box()
    assert box["y"] + box["height"] < 768 + 40
    assert box["width"] > 1100
    assert box["width"] == pytest.approx(tab.page.locator("#options").bounding_box()["width"], abs=4)
    lines = tab.page.evaluate(
        "new Set([...document.querySelectorAll('.legendtext')].map(e => Math.round(e.getBoundingClientRect().y))).size"
    )
    assert lines == 1
    tab.context.close()
