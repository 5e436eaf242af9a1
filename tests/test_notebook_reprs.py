"""What notebooks show of objects: the values are those of the object, everything is escaped, the size is bounded."""

import html
import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import pytest
import torch

import metastable as ms
from metastable import notebook
from metastable.encoder.compare import Comparison
from metastable.monitor.record import Record
from tests.encoder.models import tiny

EVIL = "<script>alert(1)</script>"
HEAD = ms.Head.from_spectra([1.4, 0.5], [1.2, 0.6], angle=60.0)
ROTATING = ms.Head.from_interaction(torch.eye(3), [[1.0, -0.8, 0.0], [0.8, 1.0, 0.0], [0.0, 0.0, 0.3]])


def cells(found):
    """The rows of the table, after checks that hold for everything that a notebook shows."""
    shown = found._repr_html_()
    assert len(shown) < 60_000
    assert "<script" not in shown
    assert not re.findall(r"""(?:src|href|url)\s*[=(]""", shown)
    assert set(re.findall(r"https?://[^\s\"]+", shown)) <= {"http://www.w3.org/2000/svg"}
    assert "nan" not in "".join(pictures(shown))
    for picture in pictures(shown):
        assert ElementTree.fromstring(picture)[0].get("fill") == "#FFFFFF"
    rows = re.findall(r"<tr><th[^>]*>(.*?)</th><td[^>]*>(.*?)</td></tr>", shown)
    return {html.unescape(name): html.unescape(value) for name, value in rows}


def pictures(shown):
    return re.findall(r"<svg.*?</svg>", shown, flags=re.DOTALL)


def dots(shown):
    return shown.count('r="2.5"')


def test_head_and_theory():
    th = HEAD.theory()
    for found in (HEAD, th):
        rows = cells(found)
        assert float(rows["gap"]) == pytest.approx(th.gap, rel=1e-3)
        assert float(rows["rate"]) == pytest.approx(th.rate, rel=1e-3)
        assert rows["dim E"] == "1"
        assert rows["assumptions"] == th.verdict.status
        assert len(pictures(found._repr_html_())) == 1
    assert cells(HEAD)["d"] == "2"


@pytest.mark.parametrize(
    "head",
    [
        ROTATING,
        ms.Head.from_interaction(torch.zeros(3, 3), torch.eye(3)),
        ms.Head.from_interaction(torch.eye(3), torch.zeros(3, 3)),
        ms.Head.from_interaction(torch.eye(2), torch.eye(2)),
        ms.Head(torch.eye(3)[:1], torch.eye(3)[:1], torch.eye(3), offset=[0.1, 0.0, 0.0]),
    ],
    ids=["rotating", "B = 0", "V = 0", "identity", "factored with offset"],
)
def test_heads_without_a_usual_limit(head):
    th = head.theory()
    assert cells(th)["limit"] == (th.no_limit or cells(th)["limit"])
    assert cells(head)["assumptions"] == th.verdict.status
    assert len(cells(th.verdict)) == len(th.verdict.checks)


def test_a_large_head_is_not_decomposed():
    large = ms.Head(*3 * [torch.eye(600)])
    assert cells(large)["d"] == "600"
    assert large._theory is None


def test_the_verdict_has_a_row_and_a_light_for_each_assumption():
    verdict = ROTATING.theory().verdict
    rows = cells(verdict)
    assert list(rows) == [check.name for check in verdict.checks]
    assert all(rows[check.name].startswith(check.status) for check in verdict.checks)
    assert verdict._repr_html_().count(f'fill="{notebook.RED}"') == sum(c.status == "fails" for c in verdict.checks)


def test_clouds_of_every_size():
    rows = cells(ms.uniform(40, d=2, seed=7))
    assert (rows["tokens"], rows["d"], rows["weights"], rows["law"]) == ("40", "2", "equal", "uniform (seed = 7)")
    assert dots(ms.uniform(40, d=2)._repr_html_()) == 40
    huge = ms.uniform(200_000, d=5)
    assert cells(huge)["tokens"] == "200000"
    assert dots(huge._repr_html_()) == notebook.MOST
    assert cells(ms.Cloud([[1.0, 0.0, 0.0]]))["tokens"] == "1"
    weighted = ms.Cloud([[1.0, 0.0], [0.0, 1.0]], weights=[3, 1], law={"law": EVIL})
    assert cells(weighted)["weights"] == "0.25 to 0.75"
    assert cells(weighted)["law"] == EVIL
    # On the circle, points are where they are: (1, 0) is on the right.
    assert f'cx="{notebook.SIDE - notebook.EDGE:.1f}" cy="{notebook.SIDE / 2:.1f}"' in weighted._repr_html_()


def test_runs():
    run = ms.simulate(HEAD, ms.graded(100, HEAD), beta=50.0, until=12.0, t_eval=25, progress=False)
    rows, found = cells(run), run.distance().values
    assert rows["β"] == "50"
    first, last = (float(value) for value in re.findall(r"[\d.e-]+(?= at)", rows["W₂ to the limit law"]))
    assert (first, last) == pytest.approx((found[0], found[-1]), rel=1e-3)
    assert rows["phases"] == "; ".join(run.phases().sentences)
    assert len(pictures(run._repr_html_())) == 2
    points = re.search(r'polyline points="(.*?)"', run._repr_html_()).group(1).split()
    heights = [-float(point.split(",")[1]) for point in points]
    assert len(points) == len(found)
    assert np.corrcoef(heights, found)[0, 1] > 0.9999
    turning = ms.simulate(ROTATING, ms.uniform(20, 3), beta=5.0, until=1.0, t_eval=3, progress=False)
    assert cells(turning)["limit"] == ROTATING.theory().no_limit
    assert "mean" not in cells(turning)
    assert cells(ms.mean_field(HEAD, "uniform", beta=20.0, until=2.0, tol=0.05))["d"] == "2"


def test_audit_and_comparison(texts, tokenizer):
    model = tiny("bert")
    audit = ms.audit(model, beside_random=False)
    rows = cells(audit)
    assert rows["finding"] == audit.verdict.headline
    assert audit._repr_html_().count("<rect x=") == len(audit.heads)
    read = ms.audit(model, texts[:6], tokenizer=tokenizer, beside_random=False)
    rows = cells(read)
    ok = sum(check.status == "ok" for check in read.checks())
    assert rows["checks"] == f"{ok} of {len(read.checks())} ok"
    assert rows["texts"] == "6"
    found = ms.compare(audit, audit)
    rows = cells(found)
    assert (rows["heads"], rows["moved"]) == (str(len(audit.heads)), "0")
    assert rows["1"] == found.sentences()[0]


def test_a_comparison_without_heads_is_drawn():
    names = ("layer", "head", "interaction_change", "value_change", "offset_change", "spectral_movement")
    empty = pd.DataFrame({name: pd.Series(dtype=float) for name in names})
    empty = empty.assign(moved=pd.Series(dtype=bool), prediction_changed=pd.Series(dtype=bool))
    assert cells(Comparison(empty))["heads"] == "0"


def test_records_and_markup():
    rows = cells(Record("scored", 0.004, 0.003, 5.0, 2, (), "place-surprise", n=7, because=EVIL))
    assert (rows["p-value"], rows["tokens"]) == ("0.004", "7")
    assert cells(Record.rejected(EVIL))["reason"] == EVIL
    for p in (1.0, 1e-9):
        tiny_or_one = Record("scored", p_value=p, detector="concentration", because="x")
        assert float(cells(tiny_or_one)["p-value"]) == pytest.approx(p)
        assert len(pictures(tiny_or_one._repr_html_())) == 1


def test_thumbnails_of_odd_numbers():
    nothing = [[], [math.nan], [math.nan, math.inf], [1.0], [2.0, 2.0], [1e300, -1e300, 0.0]]
    for values in nothing:
        made = [
            notebook.curve(range(len(values)), values, EVIL),
            notebook.plane(values, 1),
            notebook.grid([values], EVIL),
        ]
        made.append(notebook.tokens(np.reshape([*values, *values], (-1, 2))))
        for picture in made:
            ElementTree.fromstring(picture)
            assert "<script" not in picture
            assert "nan" not in picture
            assert "inf" not in re.sub(r"<t.*?</t\w+>", "", picture)
    assert len(notebook.table("x" * 10**6, {"y": "z" * 10**6})) < 2000
