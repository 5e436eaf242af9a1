"""The page of a watched stream: what it says for every kind of stream, what it quotes, and how large it gets."""

import html
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from metastable.figures.monitor import BINS, MARKED
from metastable.monitor.episodes import Episodes, Place, persistence
from metastable.monitor.groups import MOST, groups
from metastable.monitor.report import _depths, draw, headline, marked, render, slice_name, tiles, write_stream
from metastable.monitor.watched import StreamFacts, WatchedFile, WatchedRows
from tests.monitor.streams import TEXTS, rejected, rows_of, shifted, write_folder

FACTS = StreamFacts(calibration_texts=TEXTS, threshold=5.3, lengths=(5, 60))


def watched(rows, facts=FACTS):
    return WatchedRows(rows, facts)


def page_text(page):
    """The words of a page without plotly, scripts and tags."""
    body = page[page.index("<body>") :]
    return html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<script.*?</script>", " ", body, flags=re.S)))


@pytest.fixture(scope="module")
def changed():
    return watched(rows_of(shifted(200, 120)))


def test_a_stream_with_an_alarm(changed):
    strange = int((shifted(200, 120) <= 0.01).sum())
    change, at = changed.change(), changed.alarms[0]
    assert 120 < at < 140
    assert change.begin.low <= 121 <= change.begin.high
    words = headline(changed, change)
    assert f"{strange} of 200" in words
    assert f"alarm was raised at text {at}" in words
    assert f"about text {change.begin.text}" in words
    found = tiles(changed, change)
    assert found["strange"][0] == str(strange)
    assert "about 2 expected" in found["strange"][1]
    assert str(change.begin.low) in found["change"][1]


def test_the_timeline_has_every_text_and_the_reason_of_strange_ones(changed):
    p = shifted(200, 120)
    figure = draw(changed, changed.change())
    traces = {trace.name.partition(",")[0]: trace for trace in figure.data if trace.x is not None and len(trace.x) > 1}
    odd = traces["strange text"]
    assert list(odd.x) == [int(i) + 1 for i in np.flatnonzero(p <= 0.01)]
    assert list(odd.y) == [float(value) for value in p[p <= 0.01]]
    assert list(odd.text) == [f"reason {x}" for x in odd.x]
    assert len(traces["ordinary text"].x) == int((p > 0.01).sum())
    log_e = [changed.row(i)["log_e"] for i in range(200)]
    np.testing.assert_allclose(traces["evidence"].y, np.array(log_e) / np.log(10))
    begin = changed.change().begin
    bands = {(shape.x0, shape.x1) for shape in figure.layout.shapes if shape.type == "rect"}
    assert bands == {(begin.low - 0.5, begin.high + 0.5)}


KINDS = {
    "nothing": ([], "stream is empty"),
    "one rejected": ([rejected(1)], "only text was rejected"),
    "all rejected": ([rejected(1), rejected(2, "is not UTF-8 (byte 1)")], "all 2 texts were rejected"),
    "one ordinary": (rows_of([0.5]), "only scored text is not strange"),
    "one strange": (rows_of([0.002]), "only scored text is strange"),
    "no alarm": (rows_of(shifted(60, 60, seed=5)), "No alarm"),
    "rejected between": ([*rows_of([0.4, 0.3]), rejected(3), *rows_of([0.2])], "of 3 scored texts"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_stream_has_a_page(kind):
    rows, words = KINDS[kind]
    own = watched(rows)
    page = render(own)
    assert words in page_text(page)
    assert own.change() is None
    assert ('id="figure-timeline"' in page) == (own.scored > 0)
    assert ("Rejected texts" in page_text(page)) == bool(len(own.rejected))
    assert own.reasons().total() == sum(row["status"] == "rejected" for row in rows)


def test_the_parts_before_and_after_the_change_are_compared(changed):
    page = page_text(render(changed))
    begin = changed.change().begin.text
    p = shifted(200, 120)
    before, after = int((p[: begin - 1] <= 0.01).sum()), int((p[begin - 1 :] <= 0.01).sum())
    strange = re.search(r"strange\s+(\d+) \(\S+ %\)\s+(\d+) \(\S+ %\)", page)
    assert [int(n) for n in strange.groups()] == [before, after]
    texts = re.search(r"texts\s+(\d+) to (\d+)\s+(\d+) to (\d+)\s+scored", page)
    assert [int(n) for n in texts.groups()] == [1, begin - 1, begin, 200]


def test_rejected_texts_are_counted_in_their_part():
    rows = rows_of(shifted(200, 120))
    for row in rows[150:]:
        row["line"] += 3
    own = watched([*rows[:150], *(rejected(line) for line in (151, 152, 153)), *rows[150:]])
    found = re.search(r"rejected\s+(\d+)\s+(\d+)", page_text(render(own)).partition("Before and after")[2])
    assert [int(n) for n in found.groups()] == [0, 3]


TRICKY = "A <script>alert(1)</script> text & </script> with zebra in it"


def test_texts_are_quoted_escaped_and_their_words_marked(tmp_path):
    rows = rows_of(shifted(60, 40), tokens=lambda line: [{"text": "zebra", "value": 3.0}], reason=lambda line: TRICKY)
    odd = [row for row in rows if row["p_value"] <= 0.01]
    folder = write_folder(tmp_path, rows, texts={odd[0]["sha"]: TRICKY})
    page = write_stream(folder).read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert "A &lt;script&gt;alert(1)&lt;/script&gt; text &amp; &lt;/script&gt; with <mark>zebra</mark> in it" in page
    # Every script of the page ends where it should: as many ends as beginnings.
    assert page.count("<script") == page.count("</script>")


def test_a_private_page_has_no_word_of_any_text(tmp_path):
    """Neither from the texts that a folder may still hold nor from records, which have none."""
    rows = rows_of(shifted(60, 40), tokens=lambda line: [])
    odd = [row for row in rows if row["p_value"] <= 0.01]
    for row in rows:
        row["tokens"] = []
    page = write_stream(write_folder(tmp_path, rows, private=True, texts={odd[0]["sha"]: TRICKY})).read_text()
    assert "zebra" not in page
    assert f"text {odd[0]['line']}" in page_text(page)


def test_words_are_marked_once_and_in_view():
    assert marked("art in the heart", ["art"]) == "<mark>art</mark> in the heart"
    assert marked("Heart", ["art"]) == "He<mark>art</mark>"
    assert marked("b a", ["a", "b", "c", ""]) == "<mark>b</mark> <mark>a</mark>"
    long = "x " * 1000 + "zebra " + "y " * 1000
    found = marked(long, ["zebra"], 200)
    assert "<mark>zebra</mark>" in found
    assert len(found) < 250


CAUSES = [
    ([{"text": "Москва", "value": 3.0}], 20, "Cyrillic script"),
    ([{"text": "東京", "value": 3.0}], 20, "CJK script"),
    ([{"text": "1999", "value": 3.0}], 20, "digits"),
    ([{"text": "→", "value": 3.0}], 20, "symbols"),
    ([{"text": "word", "value": 3.0}], 4, "very short"),
    ([{"text": "word", "value": 3.0}], 61, "very long"),
    ([{"text": "word", "value": 3.0}], 60, "place-surprise, from depth 2"),
    ([], 20, "place-surprise, from depth 2"),
]


def test_groups_are_by_cause():
    p = np.full(100, 0.5)
    p[10:90] = 1 / (TEXTS + 1)
    rows = rows_of(p, tokens=lambda line: CAUSES[line % 8][0], n=lambda line: CAUSES[line % 8][1])
    found = {group.name: len(group.members) for group in groups(watched(rows))}
    assert found == {name: 20 if name.startswith("place") else 10 for _, _, name in CAUSES}


def test_texts_like_spoilt_ones_are_grouped_by_the_kind():
    rows = rows_of(np.full(30, 1 / (TEXTS + 1)), detector=lambda line: "exposure", first_layer=lambda line: line % 5)
    for row in rows:
        row["like"] = "repeated words" if row["line"] <= 12 else "typing errors" if row["line"] <= 29 else None
    own = watched(rows)
    found = {group.name: (len(group.members), group.sentence) for group in groups(own)}
    assert [count for count, _ in found.values()] == [17, 12, 1]
    assert found["like repeated words"][1].startswith("12 texts look most like clean texts with repeated words")
    assert "1 text looks" in found["like spoilt texts"][1]
    page = page_text(render(own))
    assert "exposure" not in page
    assert re.search(r"strange to classifier of spoilt texts\s+30", page)


def sliced(rows, value):
    """Rows with slices: value(line), and evidence that raises the alarm of "partner" at its third text."""
    for row in rows:
        row |= {"slice": value(row["line"]), "slice_log_e": 0.5, "slice_alarm": False}
    partner = [row for row in rows if row["slice"] == "partner"]
    partner[2]["slice_alarm"] = True
    return rows, partner[2]["line"]


def test_the_alarm_of_a_slice_is_told_where_the_whole_stream_has_none():
    p = np.full(100, 0.5)
    p[[39, 59]] = 1 / (TEXTS + 1)
    rows, line = sliced(rows_of(p), lambda line: "partner" if line % 20 == 0 else "<b>web</b>" if line % 3 else None)
    own = watched(rows, StreamFacts(calibration_texts=TEXTS, threshold=5.3, sliced_by="source"))
    assert (line, own.alarms) == (60, [])
    words = headline(own, None)
    assert words == "The slice ‘partner’ raised the alarm at text 60, and the stream as a whole raised none."
    found = tiles(own, None)
    assert found["slices with an alarm"] == ("1 of 3", "‘partner’ at text 60")
    page = render(own)
    assert "<b>web" not in page[page.index("<body>") :]
    text = page_text(page)
    assert "No alarm" not in text
    table = text.partition("strange  alarm")[2]
    assert re.search(r"‘partner’\s+5\s+2 \(40 %\)\s+at text 60\s", table)
    web = sum(line % 20 != 0 and line % 3 != 0 for line in range(1, 101))
    assert re.search(rf"‘<b>web</b>’\s+{web}\s+0 \(0 %\)\s+none\s", table)
    assert re.search(rf"texts without a value\s+{95 - web}\s+0 \(0 %\)\s+none\s", table)
    lines = [shape.x0 for shape in draw(own, None).layout.shapes if shape.type == "line" and shape.x0 == shape.x1]
    assert lines == [60]


def test_slices_without_an_alarm_give_no_alarm():
    rows, line = sliced(rows_of(np.full(100, 0.5)), lambda line: "partner")
    rows[line - 1]["slice_alarm"] = False
    own = watched(rows)
    assert headline(own, None).startswith("No alarm")
    assert tiles(own, None)["slices with an alarm"][0] == "0 of 1"


@pytest.mark.parametrize("shift_ends", [False, True])
def test_all_alarms_of_a_stream_with_episodes_are_told(shift_ends):
    """The reference is what the monitor itself says of its episodes."""
    p = shifted(200, 100)
    if shift_ends:
        # The texts after the alarm at text 112 are clean.
        p[112:] = shifted(88, 88, seed=3)
    episodes = Episodes(TEXTS, 0.01, reset_after=30)
    evidence = episodes.take(p, p <= 0.01, [Place(i + 1, i + 1) for i in range(len(p))])
    rows = rows_of(p)
    for place, row in enumerate(rows):
        row |= {"log_e": float(evidence.log_e[place]), "episode": int(evidence.episode[place])}
        row["alarm"] = place in evidence.rows
    facts = StreamFacts(calibration_texts=TEXTS, threshold=episodes.alarm.threshold, reset_after=30)
    own, true = watched(rows, facts), episodes.to_dict()["alarms"]
    assert len(true) == (1 if shift_ends else 3)
    assert [(one.number, one.texts, one.strange, one.persists) for one in own.raised()] == [
        (one["line"], one["after"]["texts"], one["after"]["strange"], one["after"]["persists"]) for one in true
    ]
    restarts = np.flatnonzero(np.diff(evidence.episode)) + 2
    assert [one.restart for one in own.raised() if one.restart is not None] == restarts.tolist()
    page, numbers = page_text(render(own)), [one["line"] for one in true]
    assert "E starts again from 1" in page
    words, found = headline(own, None), tiles(own, None)
    true_words = [persistence(one["after"]["persists"], one["after"]["log_e"]) for one in true]
    assert [one.persistence for one in own.raised()] == true_words
    if shift_ends:
        assert f"raised at text {numbers[0]}" in words
        assert "no sign that the shift persisted" in page
        assert f"started again at text {restarts[0]}" in page
        assert found["shift persisted"][0] == "no sign of it"
    else:
        listed = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
        assert words == f"{len(numbers)} alarms were raised, the first at text {numbers[0]}."
        assert f"at texts {listed}" in page
        assert "The shift persist" in page
        assert found["alarms"][0] == str(len(numbers))
        name = "shift persisted" if own.raised()[-1].ended else "shift persists"
        assert found[name][0] == "yes"


def test_evidence_above_1_is_not_no_sign():
    """An alarm, then texts of which a few are strange, as in a weak shift."""
    threshold = Episodes(TEXTS, 0.01).alarm.threshold
    for clean, ended, persists in (
        (8, True, "It is not certain that the shift persisted"),
        (7, False, "not certain yet"),
    ):
        p = np.array([*[0.001] * 4, *[0.003] * 2, *[0.5] * clean])
        episodes = Episodes(TEXTS, 0.01, reset_after=12)
        evidence = episodes.take(p, p <= 0.01, [Place(i + 1, i + 1) for i in range(len(p))])
        alarm = episodes.first.place.text
        rows = rows_of(p)
        for place, row in enumerate(rows):
            row |= {"episode": int(evidence.episode[place]), "alarm": place in evidence.rows}
        facts = StreamFacts(calibration_texts=TEXTS, threshold=threshold, reset_after=len(p) - alarm + (not ended))
        own = watched(rows, facts)
        (one,) = own.raised()
        assert (one.persistence, one.ended) == ("not certain", ended)
        assert persists in page_text(render(own))
        assert tiles(own, None)["shift persisted" if ended else "shift persists"][0] == "not certain"


def test_a_change_at_the_first_text_has_no_part_before_it():
    own = watched(rows_of(np.full(60, 1 / (TEXTS + 1))))
    assert own.change().begin.text == 1
    assert "before" not in page_text(render(own)).lower()


def test_with_several_alarms_the_first_change_is_estimated():
    """Two shifts with clean texts between them are not one change from the first to the last shifted text."""
    p = shifted(600, 600)
    p[150:230], p[400:470] = shifted(600, 0, 5)[150:230], shifted(600, 0, 6)[400:470]
    episodes = Episodes(TEXTS, 0.01, reset_after=60)
    evidence = episodes.take(p, p <= 0.01, [Place(i + 1, i + 1) for i in range(len(p))])
    rows = rows_of(p)
    for place, row in enumerate(rows):
        row |= {"episode": int(evidence.episode[place]), "alarm": place in evidence.rows}
    own = watched(rows, replace(FACTS, reset_after=60))
    change = own.change()
    assert len(own.alarms) > 1
    last = own.considered
    assert {row["episode"] for row in rows[:last]} == {1}
    assert rows[last]["episode"] == 2
    assert change.begin.low <= 151 <= change.begin.high
    assert change.end is None or change.end.text <= last
    assert headline(own, change).endswith(f", and the first change began at about text {change.begin.text}.")
    assert str(change.begin.low) in tiles(own, change)["first change"][1]
    page = page_text(render(own))
    assert f"estimated from the texts up to text {last}, where the episode of the first alarm ends" in page
    assert "place of the first change." in page
    end = last if change.end is None else change.end.text
    assert re.search(rf"1 to {change.begin.text - 1}\s+{change.begin.text} to {end}\s+{end + 1} to 600", page)
    one = watched(rows_of(shifted(200, 120)))
    assert one.considered == 200
    assert "first change" not in page_text(render(one)).replace("it is the first change", "")


def test_the_figure_of_depths_has_the_medians_of_the_parts_and_of_strange_texts(changed):
    """P-values of depths that are known by construction; a page of records without them has no such figure."""
    p = shifted(200, 120)
    rows = rows_of(p)
    for place, row in enumerate(rows):
        row["p_by_depth"] = {"0": 0.9, "2": 0.5 if place < 100 else 0.1, "5": float(p[place])}
    own = watched(rows)
    np.testing.assert_allclose(own.p_by_depth[:, 2], p, rtol=1e-6)
    assert own.depths == (0, 2, 5)
    begin = own.change().begin.text - 1
    page = render(own)
    assert "Where texts become unusual" in page
    block = _depths(own, {"before": slice(0, 100), "after": slice(100, 200)})
    assert block["before"] == pytest.approx({0: 0.9, 2: 0.5, 5: float(np.median(p[:100]))})
    assert block["after"][2] == pytest.approx(0.1)
    assert block["strange texts"][5] == pytest.approx(float(np.median(p[p <= 0.01])))
    assert begin > 100
    assert "Where texts become unusual" not in render(changed)
    for row in rows[:120]:
        del row["p_by_depth"]
    partly = watched(rows)
    assert np.isnan(partly.p_by_depth[:120]).all()
    np.testing.assert_allclose(partly.p_by_depth[120:, 2], p[120:], rtol=1e-6)
    assert set(_depths(partly, {"before": slice(0, 100), "after": slice(100, 200)})) == {"after", "strange texts"}
    assert "Where texts become unusual" in render(partly)


def test_a_row_that_fits_no_column_is_damaged_and_the_others_stay_aligned():
    rows = rows_of(np.linspace(0.1, 0.9, 9))
    rows[4] |= {"first_layer": 70000}
    for row in rows:
        row["p_by_depth"] = {"0": row["p_value"]}
    own = watched(rows)
    assert (own.damaged, own.scored) == (1, 8)
    np.testing.assert_allclose(own.p_by_depth[:, 0], own.columns.p_value, rtol=1e-6)
    assert len(own.columns.slice) == 8
    assert "1 line of the records is damaged" in page_text(render(own))


def test_the_numbers_of_one_text_and_the_words_of_the_terminal():
    page = page_text(render(watched(rows_of([0.002]))))
    assert "1 to 1" not in page
    assert "each of them" not in page
    assert "this text is strange" in page
    own = watched(rows_of(np.full(10, 0.9)), replace(FACTS, threshold=math.log(200)))
    assert re.fullmatch(r"E = 0\.\d+, at most 1; alarm at 200", tiles(own, None)["alarm"][1])
    for written, words in (
        ("Москва", "words of this text are in Cyrillic"),
        ("1999", "words of this text are numbers"),
    ):
        rows = rows_of([0.002], tokens=lambda line, written=written: [{"text": written, "value": 3.0}])
        assert words in groups(watched(rows))[0].sentence
    for n, words in ((3, "This text is shorter than"), (90, "This text is longer than")):
        rows = rows_of([0.002], n=lambda line, n=n: n)
        assert groups(watched(rows))[0].sentence.startswith(words)


def test_a_number_and_a_string_are_two_slices():
    rows = rows_of(np.full(20, 0.5))
    for place, row in enumerate(rows):
        row |= {"slice": (7, "7")[place % 2], "slice_log_e": 0.0, "slice_alarm": False}
    own = watched(rows)
    assert sorted(slice_name(one) for one in own.slices) == ["7", "‘7’"]
    assert "numbers do not" in page_text(render(own))
    for row in rows:
        row["slice"] = str(row["slice"])
    assert "numbers do not" not in page_text(render(watched(rows)))


def test_many_groups_become_few_and_lose_no_text():
    p = np.full(200, 1 / (TEXTS + 1))
    rows = rows_of(p, first_layer=lambda line: line % 12)
    found = groups(watched(rows))
    assert len(found) == MOST
    members = np.concatenate([group.members for group in found])
    assert sorted(members.tolist()) == list(range(200))


def test_a_script_that_is_usual_in_the_stream_is_no_cause():
    rows = rows_of(shifted(200, 200))
    for row in rows:
        row["tokens"] = [{"text": "Москва", "value": 1.0}]
    assert [group.name for group in groups(watched(rows))] == ["place-surprise, from depth 2"]


def test_a_long_stream_has_a_small_page():
    small, large = (watched(rows_of(shifted(n, n // 2))) for n in (100, 20_000))
    figure = draw(large, large.change())
    assert max(len(trace.x) for trace in figure.data) <= max(BINS, MARKED)
    marked_texts = next(trace for trace in figure.data if trace.name.startswith("strange"))
    assert len(marked_texts.x) == MARKED
    assert f"{MARKED} of the {int(large.strange.sum())}" in figure.layout.meta["caption"]
    assert len(render(large)) < len(render(small)) + 200_000
    band = next(trace for trace in figure.data if trace.name == "median")
    p = shifted(20_000, 10_000)
    edges = np.linspace(0, 20_000, BINS + 1).round().astype(int)
    assert list(band.y)[:3] == [float(np.median(p[edges[i] : edges[i + 1]])) for i in range(3)]


def test_the_page_of_an_interrupted_stream_says_so(tmp_path):
    page = write_stream(write_folder(tmp_path, rows_of([0.4, 0.6, 0.2]), finished=False)).read_text(encoding="utf-8")
    assert "first 3 texts" in page_text(page)


def test_a_file_that_grows_is_replaced_and_is_torn(tmp_path):
    rows = rows_of(shifted(30, 20))
    lines = [json.dumps(row) + "\n" for row in rows]
    path = tmp_path / "out" / "records.jsonl"
    found = WatchedFile(path.parent)
    assert not found.update()
    path.parent.mkdir()
    path.write_text("".join(lines[:10]) + lines[10][:30])
    assert found.update()
    assert not found.update()
    assert found.scored == 10
    path.write_text("".join(lines[:20]))
    assert found.update()
    assert found.scored == 20
    assert [found.row(i) for i in range(20)] == rows[:20]
    # Another stream, longer than this one.
    other = [json.dumps({**row, "sha": "other"}) + "\n" for row in rows]
    path.unlink()
    path.write_text("".join(other))
    assert found.update()
    assert (found.records, found.row(0)["sha"]) == (30, "other")
    # Rows that are no records are counted and cost nothing else.
    with path.open("a") as file:
        file.write('{"status": "scored"}\n[1]\nnonsense\n')
    assert found.update()
    assert (found.damaged, found.scored) == (3, 30)
    path.unlink()
    assert found.update()
    assert found.records == 0
