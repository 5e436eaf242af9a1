"""The examples of a service and of a nightly job, on the small encoder."""

import csv
import json
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.monitor.conftest import ODD

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture
def job(small, small_baseline_folder, tmp_path, monkeypatch, capsys):
    """Runs the nightly job on lines; returns its exit code, its folder and what it printed and complained."""

    def run(lines, baseline=small_baseline_folder):
        (tmp_path / "texts.txt").write_bytes(b"\n".join(lines))
        arguments = [small, baseline, tmp_path / "texts.txt", tmp_path / "out"]
        monkeypatch.setattr(sys, "argv", ["batch_job.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / "batch_job.py"), run_name="__main__")
        return ended.value.code, tmp_path / "out", capsys.readouterr()

    return run


def encoded(texts):
    return [text.encode() for text in texts]


def rows_of(out):
    return [json.loads(line) for line in (out / "records.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_nightly_job_on_clean_texts_with_and_without_a_bad_line_in_one_folder(job, stream):
    clean = encoded(stream[:40])
    code, out, said = job([*clean[:10], b"caf\xe9", *clean[10:]])
    assert code == 2
    assert "41 texts, 1 rejected" in said.out
    bad = rows_of(out)[10]
    assert (bad["line"], bad["status"]) == (11, "rejected")
    assert "0xe9" in bad["reason"]
    code, out, said = job(clean)
    assert (code, said.err) == (0, "")
    assert "40 texts, 0 rejected" in said.out
    assert [row["line"] for row in rows_of(out)] == list(range(1, 41))
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["finished"], summary["scored"], summary["alarm"]["raised"]) == (True, 40, False)


def test_a_nightly_job_on_other_texts(job, stream):
    code, out, _ = job(encoded([*stream[:5], *ODD * 15]))
    assert code == 1
    with (out / "strange.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert {row["text"] for row in found} >= set(ODD)
    expected = [row for row in rows_of(out) if row["p_value"] <= 0.01]
    expected.sort(key=lambda row: (row["p_value"], -row["score"], row["line"]))
    assert [int(row["line"]) for row in found] == [row["line"] for row in expected]
    assert json.loads((out / "summary.json").read_text())["alarm"]["raised"] is True


def test_a_nightly_job_without_a_baseline_is_one_line(job, stream, tmp_path):
    code, out, said = job(encoded(stream[:3]), baseline=tmp_path / "missing")
    assert code == 2
    assert said.err.count("\n") == 1
    assert "missing" in said.err
    assert not out.exists()


def test_a_service_with_fastapi(small, small_baseline_folder, stream, tmp_path, monkeypatch):
    from fastapi.testclient import TestClient
    from sentence_transformers import SentenceTransformer

    monkeypatch.chdir(tmp_path)
    # Without files of its own, sentence-transformers takes the mean over tokens.
    shutil.copytree(small, tmp_path / "model")
    monkeypatch.setenv("METASTABLE_MODEL", str(tmp_path / "model"))
    monkeypatch.setenv("METASTABLE_BASELINE", str(small_baseline_folder))
    app = runpy.run_path(str(EXAMPLES / "fastapi_service.py"))["app"]
    expected = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(stream[:3])
    with TestClient(app) as client:
        answer = client.post("/embed", json={"texts": stream[:3]})
        assert answer.status_code == 200
        np.testing.assert_allclose(answer.json(), expected, atol=1e-6)
        assert client.get("/health").json()["scored"] == 3
        assert 'metastable_texts_total{monitor="1",status="scored"} 3.0' in client.get("/metrics").text
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [row["tokens"] for row in rows] == [[]] * 3
