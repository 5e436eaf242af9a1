"""The audit's figures and page: numbers equal to those of the tables, words, escaping, what is missing."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from metastable import figures
from metastable.encoder import report as page
from metastable.encoder.audit import audit
from metastable.encoder.columns import CHECKS, COLUMNS, meaning
from metastable.encoder.fold import fold
from metastable.errors import BadInput
from metastable.figures import curves, heads
from metastable.figures.look import caption, number
from metastable.figures.spectrum import spectrum_panels
from tests.encoder import models
from tests.encoder.audits import EVIL, audited, by_weights, compared, full, looped, rendered


class Reader(HTMLParser):
    """Every element with its attributes, and the text of those with an id."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self._inside: list[tuple[str, str | None]] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "br", "input"):
            self._inside.append((tag, dict(attributes).get("id")))

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for _, name in self._inside:
            if name:
                self.text[name] = self.text.get(name, "") + data


@cache
def read(which=audited) -> Reader:
    return Reader(rendered(which))


@cache
def data(reader: Reader) -> dict:
    return json.loads(reader.text["audit-data"])


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_first_screen_says_what_the_verdict_says():
    reader = read()
    headline = audited().verdict.headline
    assert words(reader.text["headline"]) == headline[0].upper() + headline[1:]
    strip = words(reader.text["phases"])
    for judgement in audited().verdict.layers:
        mark = {"met": "✓", "missed": "✗", "not applicable": "–"}[judgement.prediction]
        assert re.search(rf"(?<!\d){judgement.depth}\s{mark}", strip)
        assert judgement.phase in strip


def test_key_numbers_are_those_of_the_tables_with_the_twin_beside():
    found = {n["name"]: n for n in page._key_numbers(audited())}
    cosine = audited().layers["mean_cosine"]
    assert found["mean cosine of tokens"]["value"] == f"{number(cosine[0])} → {number(cosine[6])}"
    other = audited().twin.layers["mean_cosine"]
    assert found["mean cosine of tokens"]["beside"] == [
        ("random weights", f"{number(other[0])} → {number(other[6])}"),
    ]
    spent = np.nansum([audited().measured.layers["update_length"].mean()[layer] for layer in range(6)])
    assert found["time spent"]["value"] == number(float(spent))
    table = audited().weights.heads
    concentrating = sum(p.startswith("concentrates") for p in table["prediction"])
    assert found["heads that concentrate"]["value"] == f"{concentrating} of 72"
    needed = [x for x in table["layers_to_concentrate"] if math.isfinite(x)]
    assert found["layers needed"]["value"] == number(float(np.median(needed)))
    html = rendered()
    for n in found.values():
        assert f'<dd class="value">{n["value"]}</dd>' in html


def test_the_table_of_layers_has_the_numbers_of_the_audit():
    text = words(read().text["layers"])
    for _, row in audited().layers.iterrows():
        shown = f"{number(row['mean_cosine'])}{number(row['mean_cosine_low'])} to {number(row['mean_cosine_high'])}"
        assert shown in text
        assert number(row["effective_rank"]) in text
    assert "random " + number(audited().twin.layers["mean_cosine"][3]) in text


def test_every_head_has_its_numbers_checks_and_spectrum():
    found = data(read())
    assert len(found["heads"]) == 72
    names = [column["name"] for column in found["columns"]]
    for head, (_, row) in zip(found["heads"], audited().heads.iterrows(), strict=True):
        assert (head["layer"], head["head"]) == (row["layer"], row["head"])
        values = dict(zip(names, head["values"], strict=True))
        for name in ("beta", "gap", "rate", "entropy", "approach", "alignment"):
            assert values[name][0] == number(row[name])
        low, high = number(row["entropy_low"]), number(row["entropy_high"])
        assert values["entropy"][1] == f"{low} to {high}"
        assert values["complex"] == ["yes" if row["complex"] else "no"]
        assert head["checks"] == [row[column] for column in CHECKS.values()]


@pytest.mark.parametrize("place", [(0, 2), (3, 6), (5, 11)])
def test_the_spectrum_on_the_page_is_that_of_the_raw_weights(place):
    """Dense eigenvalues of the d×d matrix M = V Bᵀ, against the dots and the marked dominant ones."""
    layer, head = place
    small, _ = fold(audited().anatomy.layers[layer], head).theory_head()
    dense = np.linalg.eigvals((small.V @ small.B.T).double().numpy())
    drawn = next(h for h in data(read())["heads"] if (h["layer"], h["head"]) == place)["spectrum"][0]
    first = np.array(drawn["first"][0]) + 1j * np.array(drawn["first"][1])
    leading = dense[np.argsort(-dense.real)][: len(first)]
    assert sorted(first.real) == pytest.approx(sorted(leading.real), rel=1e-3)
    assert sorted(first.imag) == pytest.approx(sorted(leading.imag), rel=1e-3, abs=1e-9)
    every = np.concatenate([drawn["rest"][0], drawn["first"][0]])
    assert len(every) == 32
    assert sum(every) == pytest.approx(float(dense.real.sum()), rel=1e-2)
    assert drawn["kernel"] == [[0.0], [0.0]]


def test_every_column_has_a_heat_map_with_its_values():
    found = data(read())
    table = audited().heads
    left_out = [c for c in table if c not in found["maps"]]
    assert all(c in ("layer", "head", "unfolded") or c.endswith(("_low", "_high")) for c in left_out)
    for name in ("beta", "entropy", "rate", "second"):
        drawn = found["maps"][name]["data"][0]
        for _, row in table.iterrows():
            z = drawn["z"][row["layer"]][row["head"]]
            value = row[name]
            size = name in ("beta", "rate")
            if size and value <= 0:
                assert z is None
            else:
                assert z == pytest.approx(math.log10(value) if size else value, abs=1e-5)
            assert drawn["customdata"][row["layer"]][row["head"]] == number(value)
    choices = [a["value"] for tag, a in read().elements if tag == "option" and "value" in a]
    assert choices == list(found["maps"])


def test_what_has_no_place_on_the_scale_is_written_in_its_cell():
    table = pd.DataFrame({"layer": [0, 0, 0, 1, 1, 1], "head": [0, 1, 2, 0, 1, 2]})
    table["gap"] = [0.1, 10.0, 0.0, math.nan, math.inf, -0.5]
    figure = page.heat_map(table, "gap")
    cells, signs = figure.data
    assert [list(line) for line in cells.z] == [[-1.0, 1.0, None], [None, None, None]]
    assert dict(zip(zip(signs.y, signs.x, strict=True), signs.text, strict=True)) == {
        (0, 2): "0",
        (1, 0): "–",
        (1, 1): "∞",
        (1, 2): "<0",
    }
    assert "White cells" in caption(figure)
    table["gap"] = 1.0
    assert len(page.heat_map(table, "gap").data) == 1


def test_words_get_discrete_colours_the_same_for_the_twin():
    table = pd.DataFrame({"layer": [0, 0], "head": [0, 1], "terminal": ["narrows", "circles"]})
    other = table.assign(terminal=["spreads", "narrows"])
    figure = page.heat_map(table, "terminal", other)
    names = list(figure.layout.coloraxis.colorbar.ticktext)
    own, twins = (trace.z[0] for trace in figure.data)
    assert [names[int(i)] for i in own] == ["narrows", "circles"]
    assert [names[int(i)] for i in twins] == ["spreads", "narrows"]
    scale = figure.layout.coloraxis.colorscale
    assert len({colour for _, colour in scale}) == 3


def test_medians_leave_out_what_means_none():
    table = pd.DataFrame({"rate": [0.0, 0.2, 0.4, math.inf], "alignment": [0.0, 0.2, math.nan, 0.4]})
    assert heads.median_of(table["rate"], True) == "0.3 (2 of 4 heads)"
    assert heads.median_of(table["alignment"]) == "0.2 (3 of 4 heads)"
    assert heads.median_of(pd.Series([0.0, 0.0]), True) == "0"
    assert heads.median_of(pd.Series([math.nan, 0.0]), True) == "–"
    assert heads.median_of(pd.Series([True, True, False])) == "yes (67 %)"


def test_dominant_eigenvalues_are_marked_and_the_kernel_where_it_dominates():
    pair, real, below = (
        np.array([1 + 2j, 1 - 2j, 0.5]),
        np.array([0.3, 0.1, -4]),
        np.array([-1.0, -0.5 + 1j, -0.5 - 1j]),
    )
    m, v = spectrum_panels(pair, real, 10)
    assert m["first"] == [[1.0, 1.0], [2.0, -2.0]]
    assert "1 ± 2i" in m["heading"]
    assert v["first"] == [[0.3], [0.0]]
    m, v = spectrum_panels(below, below, 10)
    assert m["first"] == [[0.0], [0.0]]
    assert m["kernel"] == [[], []]
    whole = spectrum_panels(below, below, 3)[0]
    assert whole["first"] == [[-0.5, -0.5], [1.0, -1.0]]
    figure = figures.eigenvalues(pair, real, EVIL, 10)
    assert figure.layout.yaxis.scaleanchor == "x"
    assert figure.layout.yaxis2.scaleanchor == "x2"
    assert "<img" not in figure.layout.title.text
    zero = spectrum_panels(np.zeros(2), np.zeros(2), 2)[0]
    assert zero["first"] == [[0.0, 0.0], [0.0, 0.0]]


def test_depth_curves_show_interval_twin_reference_and_lengths():
    shown = replace(audited(), reference=replace(audited(), name=EVIL))
    others = {"random weights, same shape": shown.twin.layers, shown.reference.name: shown.reference.layers}
    parts = audited().measured.depths["mean_cosine"].by_length()
    classes = {n: (int(part.count().max()), part.mean()) for n, part in parts.items()}
    figure = figures.depth_curves(shown.layers, ["mean_cosine"], others, {"mean_cosine": classes})
    lines = {trace.name: trace for trace in figure.data}
    assert list(lines["this model"].y) == list(audited().layers["mean_cosine"])
    assert list(lines["this model, low"].y) == list(audited().layers["mean_cosine_low"])
    assert list(lines["random weights, same shape"].y) == list(audited().twin.layers["mean_cosine"])
    assert not any("<img" in str(trace.to_plotly_json()) for trace in figure.data)
    classes = [trace for trace in figure.data if trace.legendgroup == "lengths"]
    assert len(classes) == min(len(parts), curves.WIDTHS)
    assert {tuple(trace.y) for trace in classes} <= {tuple(part.mean()) for part in parts.values()}
    slope = audited().layers["mean_cosine_slope"].iloc[-1]
    assert f"mean cosine {'+' if slope >= 0 else ''}{number(slope)} (depth 6)" in caption(figure)
    assert "for each doubling of n" in lines["this model"].customdata[0]


def test_lengths_count_every_text():
    figure = figures.lengths(audited().measured.lengths)
    assert sum(figure.data[0].y) == 5
    assert figure.data[0].y[0] == 1, "Rain. is the shortest"
    long = dict.fromkeys(range(5, 505), 2)
    assert len(figures.lengths(long).data[0].y) <= curves.BINS
    assert sum(figures.lengths(long).data[0].y) == 1000


def test_weights_alone_make_a_page_too():
    reader = read(by_weights)
    assert "need texts" in reader.text["phases"]
    found = data(reader)
    assert "entropy" not in found["maps"]
    assert len(found["heads"]) == 72
    html = rendered(by_weights)
    assert "figure-depth" not in html
    assert "figure-lengths" not in html
    assert "of the weights alone" in html


def test_markup_in_names_and_notes_stays_text():
    reader = read(full)
    assert not any(tag == "img" for tag, _ in reader.elements)
    assert not any(name.startswith("on") for _, attributes in reader.elements for name in attributes)
    assert reader.text["model"] == EVIL
    assert reader.text["notes"] == EVIL
    assert len(data(reader)["heads"]) == 72
    assert EVIL in data(reader)["heads"][0]["sentence"]
    scripts = [[tag for tag, _ in page.elements].count("script") for page in (reader, read())]
    assert scripts[0] == scripts[1] + 1  # that of the loop's figure


def test_nothing_is_fetched_and_the_page_is_light():
    html = rendered()
    assert len(html.encode()) < 8e6
    for tag, attributes in read().elements:
        assert tag not in ("link", "iframe", "img")
        assert not {"src", "srcset"} & set(attributes)


def test_how_it_was_made_counts_texts_and_names_columns():
    html = words(re.sub("<[^>]*>", " ", rendered().split("How this audit was made")[-1]))
    assert "texts measured 5" in html
    assert "skipped, no word in them 1" in html
    assert audited().fingerprint in html
    assert "do not belong to the cloud" in html
    for name in (*COLUMNS, "entropy", "predicted_approach"):
        assert f" {name} " in html, f"{name} is not explained"
    unexplained = [c for c in audited().heads if meaning(c) == (c.replace("_", " "), "")]
    assert [c for c in unexplained if not c.endswith(("_low", "_high"))] == []


def test_unusual_heads_are_told_and_linked():
    reader = read()
    links = [a["href"] for tag, a in reader.elements if tag == "a" and a.get("href", "").startswith("#layer")]
    table = audited().verdict.unusual
    assert links == [f"#layer-{r.layer}-head-{r.head}" for r in table.head(page.UNUSUAL).itertuples()]
    assert len(links) > 0
    places = {h["place"]: h["unusual"] for h in data(reader)["heads"]}
    assert sum(map(len, places.values())) == len(table)


@pytest.mark.parametrize("trained_depth", [None, 3])
def test_a_loop_is_drawn_with_its_trained_depth(trained_depth):
    loop = looped()
    figure = figures.loop_curves(loop.curves, loop.layer, trained_depth, loop.angle)
    lines = [trace for trace in figure.data if trace.name == "looped"]
    assert len(lines) == 5
    assert list(lines[0].y) == list(loop.curves["mean_cosine"])
    assert len(figure.layout.shapes) == (5 if trained_depth is not None else 0)


def test_a_loop_is_part_of_the_page():
    assert 'id="figure-loop"' in rendered(full)
    assert words(read(full).text["looped"])[1:] == f"{words(full().loop.sentence())[1:]}."
    assert "the trained depth (3)" in full().loop.sentence()


def test_a_comparison_is_drawn_and_written(tmp_path):
    figure = figures.comparison(compared().heads)
    table = compared().heads
    bars = {trace.name: trace for trace in figure.data if trace.type == "bar"}
    assert list(bars["B"].x) == list(table["interaction_change"].head(heads.RANKED))
    row = table.iloc[5]
    z = next(trace for trace in figure.data if trace.type == "heatmap").z[row["layer"]][row["head"]]
    assert z == pytest.approx(row["spectral_movement"], abs=1e-5)
    written = page.write_comparison(compared(), (EVIL, "after"), tmp_path / "new" / "compare.html")
    reader = Reader(written.read_text(encoding="utf-8"))
    assert not any(tag == "img" for tag, _ in reader.elements)
    assert words(reader.text["headline"]).startswith("B and V changed")
    assert number(row["spectral_movement"]) in reader.text["heads"]


def test_a_folder_is_no_file(tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="is a folder"):
        page.write(audited(), tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(page, "render", lambda _: rendered(by_weights))
    written = page.write(by_weights(), tmp_path / "a" / "report.html")
    assert written.read_text(encoding="utf-8") == rendered(by_weights)


@pytest.mark.parametrize("case", ["modernbert-one", "albert", "deberta-v2", "vit"])
def test_other_families_beside_a_reference_with_more_layers(case):
    small = audit(models.tiny(case))
    reader = Reader(page.render(replace(small, reference=by_weights())))
    assert len(data(reader)["heads"]) == len(small.heads)
    assert beside(reader, "beta")[-1] == f"reference: {number(float(audited().heads['beta'].median()))}"
    for note in small.notes:
        assert words(note) in words(reader.text["notes"])


def test_a_reference_with_fewer_layers():
    reference = by_weights().reference
    assert reference.shape["layers"] < by_weights().shape["layers"]
    assert beside(read(by_weights), "beta")[-1] == f"reference: {number(float(reference.heads['beta'].median()))}"


def beside(reader: Reader, column: str) -> list[str]:
    """The medians of other models in the tables of heads."""
    return next(found for found in data(reader)["columns"] if found["name"] == column)["beside"]
