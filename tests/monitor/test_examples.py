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
    """Runs the nightly job on texts; returns its exit code, its folder and what it printed."""

    def run(texts):
        (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
        arguments = [small, small_baseline_folder, tmp_path / "texts.txt", tmp_path / "out"]
        monkeypatch.setattr(sys, "argv", ["batch_job.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / "batch_job.py"), run_name="__main__")
        return ended.value.code, tmp_path / "out", capsys.readouterr().out

    return run


def test_a_nightly_job_on_clean_texts(job, stream):
    code, out, said = job(stream[:40])
    assert code == 0
    assert "40 texts" in said
    assert len((out / "records.jsonl").read_text().splitlines()) == 40
    assert json.loads((out / "summary.json").read_text())["alarm"]["raised"] is False


def test_a_nightly_job_on_other_texts(job, stream):
    code, out, _ = job([*stream[:5], *ODD * 15])
    assert code == 1
    with (out / "strange.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["text"] for row in rows} >= set(ODD)
    assert json.loads((out / "summary.json").read_text())["alarm"]["raised"] is True


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
