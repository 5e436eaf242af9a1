"""The page of `ms.length`: numbers equal to those of the tables, words, escaping, what is missing, a real Chromium."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import metastable as ms
from metastable import figures
from metastable.encoder.length import report as page
from metastable.figures import length as drawn
from tests.conftest import WORDS
from tests.encoder.audits import EVIL
from tests.encoder.length.conftest import encoder
from tests.encoder.models import tiny
from tests.encoder.test_audit_browser import Tab
from tests.encoder.test_report import Reader
from tests.labels import overlapping


def texts(many, words):
    draw = random.Random(many)
    return [" ".join(draw.choices(WORDS, k=words)) for _ in range(many)]


@pytest.fixture(scope="module")
def glued(tokenizer, found):
    """Texts shorter than n₀, glued together, beside a reference with other lengths; markup in every name."""
    model = tiny("albert", max_position_embeddings=256)
    result = ms.length(model, texts(80, 40), tokenizer=tokenizer)
    assert (result.top, result.start, result.last) == (32, 64, 256)
    return replace(result, name=EVIL, family=EVIL, made={"torch": EVIL}, reference=replace(found, name=EVIL))


@pytest.fixture(scope="module")
def single(tokenizer):
    """One length only: most tables are empty."""
    return ms.length(tiny("bert", max_position_embeddings=40), texts(8, 40), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def relative(tokenizer, long_texts):
    """An encoder without a table of positions, with a few lengths and passages as queries."""
    return ms.length(encoder("modernbert"), long_texts, tokenizer=tokenizer, up_to=64)


@pytest.fixture(params=["found", "glued", "single", "relative"])
def any_result(request):
    return request.getfixturevalue(request.param)


def trace(figure, name):
    return next(part for part in figure.data if part.name == name)


def test_every_result_makes_a_page_without_holes(any_result):
    html = page.render(any_result)
    shown = Reader(html)
    assert shown.text["headline"].strip()
    assert not re.search(r">\s*(nan|None|inf)\b|\bnan (tokens|to)\b", html.split("</script>", 1)[1])
    ids = [attributes["id"] for _, attributes in shown.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    for tag, attributes in shown.elements:
        assert tag not in ("img", "link", "iframe")
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")


def test_a_loaded_result_makes_the_same_page(any_result, tmp_path):
    any_result.save(tmp_path)
    again = replace(ms.Length.load(tmp_path), reference=any_result.reference)
    first, second = page.render(any_result), page.render(again)
    assert first == second
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == first


def test_the_headline_is_the_first_sentence_about_the_safe_length(found, single, relative):
    safe = next(piece for piece in found.advice() if piece.topic == "safe length")
    for result, whole in ((found, safe.sentence), (single, single.sentences()[0]), (relative, relative.sentences()[0])):
        line = page.headline(result)
        assert whole.startswith(line.removesuffix("."))
        assert line.endswith(".")
        assert not re.search(r"[.;] ", line)


def test_every_piece_of_advice_and_every_sentence_is_on_the_page(any_result):
    shown = Reader(page.render(any_result))
    said = shown.text.get("advice", "") + shown.text["found"]
    for piece in any_result.advice():
        assert piece.value in shown.text["advice"]
    for sentence in any_result.sentences():
        assert said.count(sentence) == 1


def test_markup_in_names_stays_text(glued):
    html = page.render(glued)
    assert EVIL not in html
    assert Reader(html).text["model"] == EVIL


def test_what_was_not_measured_has_no_section(found, single, relative):
    sections = ("answers", "causes", "skill")
    shown = {name: Reader(page.render(result)).text for name, result in (("full", found), ("single", single))}
    assert all(name in shown["full"] for name in sections)
    assert not any(name in shown["single"] for name in sections)
    assert [*page._forecasts(single)] == []
    assert "ositions:" not in Reader(page.render(relative)).text["causes"]
    assert "ositions:" in shown["full"]["causes"]


def test_retrieval_is_drawn_as_it_is_in_the_table(found):
    by_length, by_way = page._answers(found)
    table = found.retrieval
    whole = table[table["way"] == "whole"]
    curve = trace(by_length, drawn.WHOLE)
    np.testing.assert_allclose(curve.x, whole["n"])
    np.testing.assert_allclose(curve.y, whole["mrr"])
    assert list(by_length.layout.xaxis.tickvals) == sorted(whole["n"])
    last = table[table["n"] == found.top]
    points = [(way.customdata[i], way.name, float(way.y[i])) for way in by_way.data for i in range(len(way.y))]
    assert len(points) == len(last)
    names = {"whole": drawn.WHOLE, "mean of chunks": "mean of chunks", "maximum over chunks": "closest chunk"}
    for row in last.itertuples():
        place = (
            "whole"
            if row.way == "whole"
            else row.way.removeprefix("scores ")
            if math.isnan(row.chunk)
            else f"{row.chunk:.0f}"
        )
        assert (place, names.get(row.way, "multiplied scores"), row.mrr) in points
    for part in by_way.data:
        ends = np.asarray(part.y) + np.asarray(part.error_y.array)
        rows = [next(r for r in last.itertuples() if r.mrr == y) for y in part.y]
        np.testing.assert_allclose(ends, [row.mrr_high for row in rows])
    assert by_length.layout.yaxis.range == by_way.layout.yaxis.range
    at = [x for part in by_way.data for x in part.x]
    assert len(set(at)) == len(at)


def test_attention_is_the_mean_over_heads_with_the_share_of_heads_in_the_band(glued):
    entropy = next(iter(page._attention(glued)))
    for source, name in (("prefix", drawn.WHOLE), ("glued", drawn.GLUED)):
        rows = [row for row in glued.heads.itertuples() if row.source == source]
        at = sorted({row.n for row in rows})
        curve = trace(entropy, name)
        assert list(curve.x) == at
        values = [[row.entropy for row in rows if row.n == n] for n in at]
        np.testing.assert_allclose(curve.y, [sum(some) / len(some) for some in values])
        np.testing.assert_allclose(trace(entropy, f"{name}, low").y, [np.percentile(some, 10) for some in values])
        np.testing.assert_allclose(trace(entropy, f"{name}, high").y, [np.percentile(some, 90) for some in values])
    limit = entropy.data[0]
    np.testing.assert_allclose(limit.y, np.log(np.asarray(limit.x, dtype=float)))
    reference = entropy.data[-1]
    assert reference.line.dash == "dash"
    assert list(reference.x) == [32, 64, 128]
    np.testing.assert_allclose(
        reference.y, [glued.reference.heads.query(f"n == {n}")["entropy"].mean() for n in reference.x]
    )


def test_the_map_of_heads_follows_the_measured_focus(any_result):
    """The words again, from the table of heads and not from the table of focus."""
    result = any_result
    figure = page._focus_map(result)
    words = [part.name for part in figure.data[1:]]
    source = "prefix" if result.last <= result.top else "glued"
    own = result.heads[result.heads["source"] == source]
    for (layer, head), rows in own.groupby(["layer", "head"]):
        focus = dict(zip(rows["n"], rows["focus"], strict=True))
        lost = [n for n in sorted(focus) if n > result.start and not focus[n]]
        word = words[int(figure.data[0].z[layer][head])]
        if not focus[result.start]:
            assert word == f"no focus at {result.start} tokens"
        elif lost:
            assert word == f"loses its focus at {lost[0]}"
        else:
            later = result.focus.query(f"layer == {layer} and head == {head}")["forecast_to_lose_later"].notna().item()
            assert word.startswith("forecast" if later else "keeps")


def test_heads_of_every_fate_have_colours_of_their_own(found):
    focus = found.focus.copy()
    focus["focus_at_start"] = focus.index > 0
    focus["loses_focus_at"] = [math.nan, 64, 128, math.nan, math.nan] + [math.nan] * (len(focus) - 5)
    focus["forecast_to_lose_later"] = [math.nan] * 3 + [256] + [math.nan] * (len(focus) - 4)
    figure = page._focus_map(replace(found, focus=focus))
    z = np.asarray(figure.data[0].z, dtype=float)
    assert z.ravel()[:6].tolist() == [0, 1, 2, 3, 4, 4]
    assert len({part.marker.color for part in figure.data[1:]}) == 5
    shown = Reader(page.render(replace(found, focus=focus))).text["all-heads"]
    for word in ("no focus at 32", "loses its focus at 64", "at 128", "forecast to lose it beyond 128", "keeps"):
        assert word in shown


@pytest.mark.parametrize(
    ("gap", "words"),
    [(0.0, "about 1 tokens"), (math.log(1234), "about 1\u202f200 tokens"), (25.0, "more than 1\u202f000\u202f000")],
)
def test_critical_lengths_are_words(gap, words):
    assert page.critical_length(gap).startswith(words)


def test_forecasts_are_drawn_against_measurements(found):
    (figure,) = page._forecasts(found)
    for n in (64, 128):
        rows = found.forecasts.query(f"n == {n} and statistic == 'entropy' and made_from == {found.start}")
        points = trace(figure, f"{n} tokens")
        np.testing.assert_allclose(points.x, rows["measured"])
        np.testing.assert_allclose(points.y, rows["forecast"])
        np.testing.assert_allclose(np.asarray(points.y) - np.asarray(points.error_y.arrayminus), rows["low"])
        assert points.visible == (True if n == 128 else "legendonly")
    assert next(a.sentence for a in found.advice() if a.topic == "forecasts") in figures.caption(figure)


def test_the_table_of_methods_has_losers_too(found):
    skill = found.skill.copy()
    rules = skill["method"] != "forecast"
    skill.loc[rules, ["skill", "skill_low", "skill_high"]] = [-0.5, -0.9, -0.1]
    lost = replace(found, skill=skill)
    cells = [cell for row in page._skill_table(lost)["rows"] for cell in row["cells"] if cell and cell["skill"]]
    assert cells
    assert {cell["better"] for cell in cells} == {False}
    shown = Reader(page.render(lost)).text["skill"]
    assert "✗ −0.50 (−0.90 to −0.10)" in shown
    for method in set(skill["method"]):
        assert method in shown


@pytest.mark.parametrize(("low", "high", "better"), [(0.1, 0.9, True), (-0.9, -0.1, False), (-0.1, 0.1, None)])
def test_a_skill_is_decided_by_its_interval(found, low, high, better):
    row = found.skill[found.skill["method"] == "no change"].iloc[0].copy()
    row[["skill_low", "skill_high"]] = low, high
    assert page._skill_cell(row)["better"] is better


def test_bars_lead_from_the_value_before_to_the_value_after(found):
    cosine, entropy = page._causes(found)
    known = found.documents.set_index("n")["document_cosine"]
    means = found.heads[found.heads["source"] == "prefix"].groupby("n")["entropy"].mean()
    for figure, after in ((cosine, known[found.top]), (entropy, means[found.top])):
        (bars,) = figure.data
        base = np.asarray(bars.base, dtype=float)
        ends = base + np.asarray(bars.x)
        np.testing.assert_allclose(base[1:-1], ends[:-2])
        assert ends[-2] == pytest.approx(after)
        assert bars.x[-1] == pytest.approx(after)
        assert base[0] == base[-1] == 0
    assert cosine.data[0].x[0] == pytest.approx(known[found.start], abs=1e-6)
    parts = found.causes.query(f"quantity == 'document_cosine' and n == {found.top}")
    np.testing.assert_allclose(
        np.asarray(cosine.data[0].x[1:-1]) - np.asarray(cosine.data[0].error_x.arrayminus[1:-1]), parts["change_low"]
    )


def test_lopsided_error_bars_end_where_the_interval_ends():
    steps = pd.DataFrame({"part": ["a"], "base": [1.0], "change": [0.5], "low": [0.4], "high": [0.9]})
    (bars,) = figures.waterfall("", "", steps, "x").data
    assert bars.error_x.array[0] == pytest.approx(0.4)
    assert bars.error_x.arrayminus[0] == pytest.approx(0.1)


def test_titles_follow_the_signs_of_the_changes(found):
    for low, high, words in ((0.8, 0.9, "become alike"), (-0.9, -0.8, "become less alike"), (-1.0, 1.0, "makes")):
        documents = found.documents.assign(document_cosine_low=-0.1, document_cosine_high=0.1)
        documents.loc[documents["n"] == found.top, ["document_cosine_low", "document_cosine_high"]] = low, high
        assert words in page.titles(replace(found, documents=documents))["causes"]
    for sign, spreads in ((1, True), (-1, False)):
        heads = found.heads.assign(entropy=sign * found.heads["n"])
        assert ("spreads" in page.titles(replace(found, heads=heads))["attention"]) == spreads


def test_depths_of_long_texts_are_those_of_glued_texts(glued):
    for figure, column in zip(page._depths(glued), page.DEPTHS, strict=True):
        names = ["32 tokens", *(f"{n} tokens, glued texts" for n in (64, 128, 256))]
        assert [part.name for part in figure.data] == names
        for part, n in zip(figure.data, (32, 64, 128, 256), strict=True):
            rows = glued.depths.query(f"n == {n} and source == '{'prefix' if n == 32 else 'glued'}'")
            np.testing.assert_allclose(part.y, rows[column])
    rows = page._phase_rows(glued)
    assert rows[2]["phases"] == list(glued.depths.query("n == 128 and source == 'glued'")["phase"])


def test_a_folder_is_refused_before_any_work(tmp_path):
    with pytest.raises(ms.BadInput, match="is a folder"):
        page.write(None, tmp_path)


@pytest.mark.browser
@pytest.mark.parametrize("which", ["found", "glued", "single"])
def test_the_page_draws_and_fits_every_screen(which, browser, request, tmp_path):
    path = request.getfixturevalue(which).report(tmp_path / "report.html")
    tab = Tab(browser, path, 1366, 768, ["#figure-attention-0", "#figure-depths-2"], "")
    assert tab.page.locator("#headline").is_visible()
    bottom = tab.page.evaluate("document.getElementById('phases').getBoundingClientRect().bottom + window.scrollY")
    assert bottom < 4.5 * 768, "the pictures take more than about four screens"
    for width in (390, 800, 1366):
        tab.resize(width)
        assert tab.fits(), f"the page is wider than {width} pixels"
        assert tab.cut() == []
        assert overlapping(tab.page) == []
    for kind in ("attention-0", "focus-0", "depths-1"):
        assert tab.page.locator(f"#figure-{kind} .main-svg").first.bounding_box()["width"] > 250
    tab.page.locator("summary", has_text="All heads").click()
    assert tab.page.locator("#all-heads tbody tr").first.is_visible()
    assert tab.fits()
    assert tab.complaints == []
    assert tab.outside() == []
    tab.context.close()
