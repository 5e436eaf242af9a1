"""Reviewed texts: the effect before, the calibration after, the record of who accepted what, and the promise."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import chain

import numpy as np
import pytest
from typer.testing import CliRunner

from metastable.cli.app import app
from metastable.errors import BadInput
from metastable.monitor.baseline import Baseline
from metastable.monitor.conformal import Calibration
from metastable.monitor.split import SHARES, digest, part_of
from tests.monitor.conftest import ODD
from tests.monitor.tables import table_of


@pytest.fixture(scope="module")
def reviewed(held_texts):
    """Ordinary texts and odd ones, as a reviewer may accept them."""
    return [*held_texts[:30], *ODD]


@pytest.fixture(scope="module")
def review(small_baseline, small_encoder, reviewed):
    return small_baseline.review(small_encoder, reviewed)


def test_progress_is_told_with_the_number_of_all_texts(small_baseline, small_encoder, reviewed):
    seen = []
    small_baseline.review(small_encoder, reviewed, batch_size=8, progress=lambda *done: seen.append(done))
    assert [total for _, total in seen] == [len(reviewed)] * len(seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == len(reviewed)


@pytest.mark.parametrize("setting", ["light", "full"])
def test_accepted_scores_join_the_calibration_and_nothing_else_changes(
    setting, small_baseline, small_encoder, review, reviewed
):
    own, new = small_baseline.settings[setting], review.accepted("Ada").settings[setting]
    table = table_of(small_encoder, small_baseline, reviewed)
    joined = np.sort(np.concatenate([own.calibration.scores, own.scale(table).total]))
    np.testing.assert_allclose(new.calibration.scores, joined, rtol=1e-4)
    assert new.by_depth.texts == new.texts == own.texts + len(reviewed)
    assert new.scale is own.scale
    effect = review.effects[setting]
    for scorer, found in ((own, effect.threshold_before), (new, effect.threshold_after)):
        # A score just above the threshold is strange, the threshold itself is not.
        assert scorer.ladder[scorer.calibration.ranks(np.nextafter(found, np.inf)) - 1] <= 0.01
        assert scorer.ladder[scorer.calibration.ranks(found) - 1] > 0.01
    assert effect.strange_before == int((own.assess(table).p_value <= 0.01).sum()) >= len(ODD)
    assert effect.strange_after == int((new.assess(table).p_value <= 0.01).sum())
    assert effect.highest_before == own.calibration.scores[-1]
    assert own.texts == small_baseline.settings[setting].texts


def test_the_record_says_who_accepted_what_when_and_holds_no_text(review, reviewed, small_encoder, tmp_path):
    found = review.accepted("Ada")
    (entry,) = found.accepted
    assert entry["by"] == "Ada"
    assert entry["texts"] == len(reviewed)
    assert entry["sha256"] == sorted(hashlib.sha256(" ".join(t.split()).encode()).hexdigest() for t in reviewed)
    when = datetime.fromisoformat(entry["when"])
    assert when.utcoffset() == timedelta(0)
    assert timedelta(0) <= datetime.now(UTC) - when < timedelta(minutes=5)
    found.save(tmp_path / "new")
    written = (tmp_path / "new" / "baseline.json").read_text()
    assert not any(word in written for word in " ".join(ODD).split())
    again = Baseline.load(tmp_path / "new")
    assert again.accepted == found.accepted
    assert "34 accepted later" in repr(again)
    again.check(small_encoder)
    more = again.accept(small_encoder, [*reviewed, "A new ordinary text about the budget."], by="Bob")
    assert [(one["by"], one["texts"]) for one in more.accepted] == [("Ada", 34), ("Bob", 1)]


def test_texts_that_were_accepted_before_or_cannot_be_used_are_left_out(review, reviewed, small_encoder):
    found = review.accepted(None)
    again = [f"  {reviewed[0].replace(' ', '   ')} ", reviewed[5], "", " ", "a\0b", "​", "A new text.", "A new  text."]
    second = found.review(small_encoder, again)
    assert second.texts == 1
    assert second.digests == (digest("A new text."),)
    assert second.repeated == 3
    assert sum(second.left_out.values()) == 4
    assert second.share == pytest.approx((len(reviewed) + 1) / second.after)
    with pytest.raises(BadInput, match="34 are known to the baseline or occur twice"):
        found.accept(small_encoder, reviewed)
    with pytest.raises(BadInput, match="no text to accept"):
        found.review(small_encoder, [])


def test_texts_that_the_baseline_was_made_of_are_not_new(small_baseline, small_encoder, clean):
    own = [text.text for text in clean[:20]]
    found = small_baseline.review(small_encoder, [*own, "A text that is new to it."])
    assert (found.texts, found.repeated) == (1, 20)


def test_texts_of_documents_that_were_fitted_on_are_left_out(small_baseline, small_encoder, clean, held_texts):
    """The baseline was made with labels: a new text of one of its documents is new only if it was calibrated on."""
    labels = {part: sorted({text.document for text in clean if part_of(text.document, 0) == part}) for part in SHARES}
    given = {label: f"A new text about {place} things." for place, label in enumerate(chain(*labels.values()))}
    some = {label: given[label] for part in SHARES for label in labels[part][:5]}
    found = small_baseline.review(small_encoder, some.values(), documents=some)
    assert found.texts == found.documents == 5
    assert found.left_out == {"of a document that the detectors were fitted on": 10}
    assert set(found.digests) == {digest(given[label]) for label in labels["calibrate"][:5]}
    # A label that no clean text has, and no label.
    other = small_baseline.review(small_encoder, held_texts[:6], documents=["new", "new", "newer", None, None, None])
    assert (other.texts, other.documents, other.largest, other.warnings) == (6, 5, 2, [])
    assert other.accepted("Ada").accepted[-1]["documents"] == 5
    assert small_baseline.review(small_encoder, held_texts[:6]).documents is None
    with pytest.raises(BadInput, match="only 2 documents"):
        small_baseline.review(small_encoder, held_texts[:6], documents=["a", "b"])


def test_a_large_document_is_warned_of(small_baseline, small_encoder, held_texts):
    found = small_baseline.review(small_encoder, held_texts[:30], documents=["one"] * 30)
    assert any("one document has 30 of" in words for words in found.warnings)


def test_texts_that_make_the_monitor_blind_are_warned_of(small_baseline, small_encoder, held_texts, review):
    assert small_baseline.review(small_encoder, held_texts[:30]).warnings == []
    assert all(effect.blind for effect in review.effects.values())
    assert any("blind" in words for words in review.warnings)
    many = small_baseline.review(small_encoder, held_texts[: review.before + 30])
    assert many.share > 0.5
    assert any("calibrate again with both kinds" in words for words in many.warnings)
    assert all(effect.strange_after < 0.01 * many.texts for effect in many.effects.values())


@pytest.mark.parametrize("by", ["", " ", "a\nb", 3])
def test_a_name_is_one_line(by, review):
    with pytest.raises(BadInput, match="give a name"):
        review.accepted(by)


def test_damaged_entries_are_refused(small_baseline_folder, tmp_path):
    from metastable.encoder.identity import checksum

    folder = shutil.copytree(small_baseline_folder, tmp_path / "old")
    content = json.loads((folder / "baseline.json").read_text())
    content.pop("checksum")

    def written(**change):
        new = {**content, **change}
        (folder / "baseline.json").write_text(json.dumps({**new, "checksum": checksum(new)}))
        return Baseline.load(folder)

    good = {"when": "2026-01-01T00:00:00+00:00", "by": None, "texts": 1, "documents": None, "sha256": ["0" * 64]}
    good["warnings"] = ["a reason not to"]
    assert written(accepted=[good]).accepted == (good,)
    for bad in (
        {"warnings": [3]},
        {"texts": 2},
        {"sha256": ["x" * 64]},
        {"by": 3},
        {"when": 0},
        {"documents": "a"},
        {"more": 1},
    ):
        with pytest.raises(BadInput, match="damaged"):
            written(accepted=[good | bad])


def test_new_texts_of_the_mixture_lose_at_most_two_ranks():
    """P(rank ≤ j) ≤ (j + 2)/n for fixed m and r, in simulation; before acceptance far more."""
    rng = np.random.default_rng(0)
    m, r, times = 30, 10, 4000
    n = m + r
    joined, old = np.zeros(n + 1), 0
    for _ in range(times):
        calm, strange = rng.normal(size=m), rng.normal(3, 1, size=r)
        new = rng.normal(3 * (rng.random() < r / n), 1)
        joined[Calibration(np.concatenate([calm, strange])).ranks(new) - 1] += 1
        old += Calibration(calm).p_values(new) <= 1 / (m + 1)
    share = np.cumsum(joined) / times
    j = np.arange(1, n + 2)
    slack = 4 * np.sqrt(0.25 / times)
    assert (share <= (j + 2) / n + slack).all()
    assert old / times > 3 / n + slack


def invoke(*arguments, stdin=None):
    return CliRunner().invoke(app, list(map(str, arguments)), input=stdin)


@pytest.fixture
def command(small, small_baseline_folder, reviewed, tmp_path):
    folder = shutil.copytree(small_baseline_folder, tmp_path / "baseline")
    texts = tmp_path / "reviewed.txt"
    texts.write_text("\n".join(reviewed), encoding="utf-8")
    return ["recalibrate", small, "--baseline", folder, "--texts", texts], folder


def contents(folder):
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def test_the_command_shows_the_effect_and_writes_only_with_yes(command, small, tmp_path, review):
    arguments, folder = command
    before = contents(folder)
    shown = invoke(*arguments)
    assert shown.exit_code == 2
    assert contents(folder) == before
    assert "34 new texts to accept" in shown.stdout
    assert f"calibration texts: {review.before} → {review.after}" in shown.stdout
    for name, effect in review.effects.items():
        words = f"{effect.threshold_before:.2f} → {effect.threshold_after:.2f}"
        assert re.search(f"setting {name}.*{words}.*{effect.strange_before} → {effect.strange_after}", shown.stdout)
    assert shown.stderr.count("\n") == 1
    assert "--yes" in shown.stderr
    elsewhere = invoke(*arguments, "--out", tmp_path / "new", "--by", "Ada", "--yes")
    assert elsewhere.exit_code == 0, elsewhere.output
    assert contents(folder) == before
    assert Baseline.load(tmp_path / "new").accepted[0]["by"] == "Ada"
    assert f"page: {tmp_path / 'new' / 'report.html'}" in elsewhere.stdout.splitlines()
    done = invoke(*arguments, "--yes", "--json", "--by", "Ada")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["schema"], found["written"], found["texts"]) == ("metastable.recalibrate/1", True, 34)
    assert contents(folder) != before
    page = (folder / "report.html").read_text(encoding="utf-8")
    (entry,) = Baseline.load(folder).accepted
    assert re.search(rf'(?s)id="accepted".*{re.escape(entry["when"])}.*>Ada<.*>34<', page)
    assert f"ranked among {review.after} clean texts" in page
    watched = invoke("watch", small, "--baseline", folder, stdin="\n".join(ODD))
    assert all(json.loads(line)["status"] == "scored" for line in watched.stdout.splitlines())
    again = invoke(*arguments, "--yes")
    assert again.exit_code == 2
    assert "no text to accept" in again.stderr


def test_what_cannot_be_accepted_is_one_line(command, small_baseline_folder, tmp_path):
    arguments, folder = command
    before = contents(folder)
    for more, words in (
        (["--by", "  "], "give a name"),
        (["--out", small_baseline_folder], "holds another baseline"),
        (["--texts", tmp_path / "missing"], "is no file"),
    ):
        result = invoke(*arguments, *more, "--yes")
        assert result.exit_code == 2
        assert words in result.stderr
        assert result.stderr.count("\n") == 1
        assert contents(folder) == before


def test_a_baseline_that_changed_meanwhile_is_not_replaced(command, monkeypatch):
    arguments, folder = command
    real = Baseline.review

    def slow(self, *given, **named):
        found = real(self, *given, **named)
        found.accepted("another").save(folder)
        return found

    monkeypatch.setattr(Baseline, "review", slow)
    result = invoke(*arguments, "--yes")
    assert result.exit_code == 2
    assert "changed by another process" in result.stderr
    assert [entry["by"] for entry in Baseline.load(folder).accepted] == ["another"]


KILLED = """
import os, signal, sys
from metastable.cli.app import app
rename = os.rename
def killed(*given):
    if AFTER:
        rename(*given)
    os.kill(os.getpid(), signal.SIGKILL)
os.rename = killed
app(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 1])
def test_kill_9_while_it_is_written_leaves_the_old_baseline_whole(after, command):
    arguments, folder = command
    before = contents(folder)
    code = KILLED.replace("AFTER", str(after))
    given = [sys.executable, "-c", code, *map(str, arguments), "--yes"]
    child = subprocess.run(given, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    assert folder.exists() != bool(after)
    assert Baseline.load(folder).accepted == ()
    assert contents(folder) == before


def test_lines_that_cannot_be_read_are_told_if_no_text_is_left(command):
    arguments, folder = command
    before = contents(folder)
    refused = invoke(*arguments[:-1], "-", "--yes", stdin="a \0 b\n\n")
    assert refused.exit_code == 2
    assert "there is no text to accept" in refused.stderr
    assert "left out before: 1 line: 1 × holds a NUL" in " ".join(refused.stderr.split())
    assert contents(folder) == before
