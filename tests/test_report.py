import dataclasses
import importlib.metadata
import math
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

import metastable as ms
from metastable import report
from metastable.errors import BadInput
from metastable.figures.distance import DistanceCurves, distance_curves
from metastable.report.sentences import afterwards, assumptions, headline, key_numbers
from metastable.run.observables import mean_cosine
from metastable.theory.phases import Phases, Plateau
from tests.problems import circle_head

HEAD = circle_head(0.3, (1.4, 0.7), -0.5, (1.2, 0.5))
ROTATING = ms.Head.from_interaction(torch.eye(3), [[1.0, -0.8, 0.0], [0.8, 1.0, 0.0], [0.0, 0.0, 0.3]])
NEVER_CLOSED = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Text by element id, all attributes, and whether every tag is closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.attributes, self.text, self.ids = [], [], [], []
        self.rows = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, key, value) for key, value in attrs]
        self.ids += [value for key, value in attrs if key == "id"]
        if tag == "tr":
            self.rows.append([])
        if tag not in NEVER_CLOSED:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" not in self.open and "style" not in self.open and data.strip():
            self.text.append(data.strip())
            if "tr" in self.open:
                self.rows[-1].append(data.strip())

    @property
    def words(self):
        return " ".join(self.text)


@pytest.fixture(scope="module")
def run():
    return ms.simulate(HEAD, ms.graded(150, HEAD), beta=100.0, until=20.0, t_eval=81)


@pytest.fixture(scope="module")
def measured(run):
    return distance_curves(run)


@pytest.fixture(scope="module")
def rotating():
    return ms.simulate(ROTATING, ms.uniform(30, 3), beta=10.0, until=1.0, t_eval=3)


@pytest.fixture(scope="module")
def file(run, tmp_path_factory):
    """The report of the run, in folders that did not exist."""
    target = tmp_path_factory.mktemp("report") / "a" / "b" / "report.html"
    assert run.report(str(target)) == target
    return target


@pytest.fixture(scope="module")
def html(file):
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_the_file_is_written_where_asked_and_nothing_beside_it(file):
    assert [p.name for p in file.parent.iterdir()] == ["report.html"]
    assert file.stat().st_size < 9e6


def test_a_folder_is_refused_before_any_work(tmp_path):
    with pytest.raises(BadInput, match=r"is a folder; give the name of a file, such as .*report\.html") as caught:
        report.write(None, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_path_below_a_file_is_refused(tmp_path):
    (tmp_path / "taken").write_text("x")
    with pytest.raises(BadInput, match="cannot write"):
        report.write(None, tmp_path / "taken" / "report.html")


def test_a_failure_leaves_the_old_report(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "render", lambda run: "the new one")
    target = tmp_path / "report.html"
    target.write_text("the old one")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(BadInput, match="No space left on device"):
        report.write(None, target)
    assert target.read_text() == "the old one"


def test_the_page_is_whole(page):
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))


def test_nothing_is_loaded_from_anywhere(html, page):
    loading = [(t, k, v) for t, k, v in page.attributes if k in ("src", "href", "srcset", "action", "data")]
    assert loading == []
    assert ("meta", "http-equiv", "Content-Security-Policy") in page.attributes
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_plotly_is_inlined_once(html):
    assert html.count("plotly.js v") == 1


def test_it_begins_with_what_happened(run, measured, page):
    sentence = headline(run, measured)
    assert sentence in page.words
    phases = run.phases()
    for value in (phases.concentrated, phases.terminal, phases.terminal - phases.concentrated, phases.least):
        assert f"{value:.3g}" in sentence
    assert page.text.index(sentence) < 4


def test_the_parts_come_in_order(page):
    heads = [
        "tokens N",
        "Distance to the limit law over time",
        "Tokens on the circle",
        "Eigenvalues of M and V",
        "Assumptions of the theory",
        "Observables over time",
        "How this run was made",
        "Glossary",
    ]
    places = [page.text.index(h) for h in heads]
    assert places == sorted(places)
    for kind in ("distance", "sphere", "spectrum", "observables"):
        assert f"figure-{kind}" in page.ids


def test_each_assumption_has_status_number_and_sentence(run, page):
    for check in run.theory().verdict.checks:
        (row,) = [row for row in page.rows if row and row[0] == check.name]
        assert row[1] == f"✓ {check.status}"
        assert row[3] == check.sentence


def test_a_failed_assumption_is_marked_by_word_symbol_and_colour(rotating):
    text = report.render(rotating)
    assert '<td class="status fails">✗ fails</td>' in text
    assert '<td class="status doubtful">? doubtful</td>' in text
    assert "no limit point" in Page(text).words


def test_how_the_run_was_made_is_told(run, page):
    rows = {row[0]: row[1:] for row in page.rows if len(row) == 2}
    assert rows["method"] == ["dopri5"]
    assert rows["law"] == ["graded"]
    assert rows["saved"] == ["81 times from 0 to 20"]
    assert rows["torch"] == [importlib.metadata.version("torch")]
    assert rows["metastable"] == [ms.__version__]
    assert rows["steps"] == [str(run.configuration["steps"])]


def test_what_users_supply_is_escaped_and_cut(rotating):
    evil = "<script>alert(1)</script>"
    cloud = rotating.cloud.moved_to(rotating.cloud.points)
    cloud.law = {"law": evil, "<b>key</b>": "<img src=x onerror=alert(2)>", "means": list(range(5000))}
    other = dataclasses.replace(rotating, cloud=cloud, configuration={**rotating.configuration, "note": evil})
    text = report.render(other)
    for bad in (evil, "<b>key", "<img"):
        assert bad not in text[text.index("</head>") :]
    assert "&lt;script&gt;alert(1)" in text
    Page(text)
    assert "0, 1, 2" in text
    assert "4999" not in text[text.index("How this run was made") :]


def phased(measured, *args, **more):
    return dataclasses.replace(measured, phases=Phases(*args, **more))


def test_headlines_for_all_courses(run, measured):
    def said(*args, **more):
        return headline(run, phased(measured, *args, **more))

    def holds(text, *words):
        assert all(word in text for word in words), text
        assert "(" not in text
        assert text.count(".") - sum(word.count(".") for word in words) == 1, "one sentence"

    holds(said(3.1, 9.3, 20.0, 0.12, 5.0, ()), "t = 3.1", "6.2 time units", "0.12", "t = 9.3")
    holds(said(3.1, None, 20.0, 0.12, 5.0, ()), "t = 3.1", "0.12", "no terminal phase", "t = 20")
    holds(said(None, None, 20.0, 0.12, 20.0, (), course="falling"), "still concentrating", "t = 20", "0.12")
    holds(said(None, None, 20.0, 0.12, 20.0, (), course="one time"), "one time", "0.12", "t = 20")
    first, last = (f"{abs(mean_cosine(run.at(i))):.3g}" for i in (0, -1))
    still = said(None, None, 20.0, 0.12, 20.0, (), course="still")
    assert all(word in still for word in ("0.12", "t = 20", "mean cosine", last)), (still, first)


def test_the_headline_of_a_head_without_a_limit_is_the_reason(rotating):
    curves = distance_curves(rotating)
    assert rotating.theory().no_limit in headline(rotating, curves)
    assert [n.name for n in key_numbers(rotating, curves)][:2] == ["tokens N", "dimension d"]


def test_the_headline_of_a_head_without_a_gap_says_that_tokens_start_at_their_limit():
    head = ms.Head.from_interaction(torch.eye(2), torch.eye(2))
    run = ms.simulate(head, ms.uniform(20, 2), beta=5.0, until=2.0, t_eval=3)
    assert "every token starts at its limit" in headline(run, distance_curves(run))
    assert f"{float(run.distance()[-1]):.3g}" in headline(run, distance_curves(run))


def test_a_later_rest_is_told_only_if_there_was_one(run, measured):
    def told(*plateaus, terminal=9.0):
        return afterwards(run, phased(measured, 3.0, terminal, 20.0, 0.1, 5.0, plateaus))

    assert told() == ""
    assert told(Plateau(3.0, 8.0, 0.1)) == ""
    late, early = told(Plateau(11.0, 20.0, 0.2)), told(Plateau(8.5, 15.0, 0.2))
    assert all(word in late for word in ("distance 0.2", "from t = 11", "to the end"))
    assert all(word in early for word in ("distance 0.2", "to t = 15"))
    assert "from" not in early
    assert afterwards(run, DistanceCurves()) == ""


def test_tokens_that_left_without_the_distance_rising_are_told_of():
    """±e and ±v lie near each other: all tokens end at ±v, and the distance to ±e hardly tells."""
    angle = np.radians(35.0)
    R = np.eye(3)
    R[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    head = ms.Head.from_interaction(np.diag([1.5, 1.0, 0.8]), R @ np.diag([1.2, 0.9, 0.72]) @ R.T)
    run = ms.simulate(head, ms.uniform(120, 3), beta=100.0, until=15.0, t_eval=31)
    found = distance_curves(run)
    assert found.phases.terminal is None
    told = afterwards(run, found)
    e, v = head.theory().basis[:, 0], head.theory().terminal.basis[:, 0]
    share = ((run.frames[-1] @ v.double()).abs() > (run.frames[-1] @ e.double()).abs()).double().mean()
    assert share > 0.9
    assert f"{100 * share:.0f} % of the tokens are nearer to ±v" in told
    early = ms.simulate(head, ms.uniform(120, 3), beta=100.0, until=4.0, t_eval=31)
    assert afterwards(early, distance_curves(early)) == ""


def test_a_still_distance_is_told_with_what_the_tokens_did():
    cloud = ms.uniform(40, 3, seed=1)
    w, x = cloud.weights, cloud.points
    pairs = [(w[i] * w[j], x[i] @ x[j]) for i in range(40) for j in range(40) if i != j]
    slow = float(sum(a * b for a, b in pairs) / sum(a for a, _ in pairs))
    assert mean_cosine(cloud) == pytest.approx(slow, abs=1e-12)


def test_assumptions_are_counted():
    assert "All 8" in assumptions(HEAD.theory().verdict)
    text = assumptions(ROTATING.theory().verdict)
    assert all(word in text for word in ("8", "2 fail", "λ₁ real", "terminal phase of V", "1 is doubtful"))


def test_key_numbers_are_those_of_run_and_theory(run, measured):
    found = {n.name: n.value for n in key_numbers(run, measured)}
    th = run.theory()
    assert found["tokens N"] == "150"
    assert found["least distance"] == f"{run.phases().least:.3g}"
    assert found["noise floor"] == f"{run.noise_floor().mean:.3g}"
    assert found["token rate c"] == f"{th.rate:.3g}"
    assert found["law rate"] == f"{th.law_rate():.3g}"
    assert found["Lipschitz constant L"] == f"{th.lipschitz:.3g}"
    assert found["bound useful for"] == f"t < {measured.vacuous_from:.3g}"
    assert found["inverse temperature β"] == "100"


def test_infinite_numbers_are_written_as_such():
    head = ms.Head(torch.eye(3)[:2], torch.eye(3)[:2], torch.diag(torch.tensor([2.0, 1.0, 0.5])))
    run = ms.simulate(head, ms.uniform(20, 3), beta=math.inf, until=1.0, t_eval=3, step=0.1)
    found = {n.name: n.value for n in key_numbers(run, distance_curves(run))}
    assert found["inverse temperature β"] == "∞"
    assert found["Lipschitz constant L"] == "∞"
    assert found["bound useful for"] == "none"
    assert "not defined" in report.render(run)
