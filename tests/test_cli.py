"""The command line as a person, a pipe and a script meet it."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import metastable as ms
from metastable.cli.app import app

QUICK = ["--beta", "20", "--until", "1", "--n", "40", "--t-eval", "4"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "metastable", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_a_run_leaves_three_things_and_a_summary_or_strict_json(tmp_path):
    out = tmp_path / "out"
    result = invoke(*QUICK, "--out", out)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir(out)) == ["report.html", "run.json", "run.zarr"]
    assert "40 tokens, d = 3, beta = 20" in result.stdout
    assert "report:" in result.stdout
    found = json.loads(invoke(*QUICK, "--json", "--out", out).stdout)
    assert found["schema"] == "metastable.simulate/1"
    assert found["tokens"] == 40
    assert found["loaded"]
    assert found["merging"] is None
    run = ms.Run.load(found["run"])
    assert len(run.times) == 4
    assert found["least_distance"] == pytest.approx(run.phases().least)
    assert found["noise_floor"] > 0


@pytest.mark.parametrize(
    "extra",
    [
        ["--interaction", "1,1,1", "--value", "1,1,1"],
        ["--interaction", "1,1,1", "--value", "-1,-2,-3"],
        ["--beta", "inf"],
        ["--beta", "0"],
    ],
)
def test_special_cases_are_reported_and_not_crashed(tmp_path, extra):
    result = invoke(*QUICK, *extra, "--json", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_rotating_head_says_that_there_is_no_limit(tmp_path):
    config = tmp_path / "rotating.toml"
    config.write_text(
        "beta = 5\nuntil = 1\nt_eval = 4\n[head]\ninteraction = [[1, 0], [0, 1]]\nvalue = [[0.1, -1], [1, 0.1]]\n"
        '[cloud]\nlaw = "equally_spaced"\nn = 20\n'
    )
    result = invoke(config, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "rotate there for ever" in result.stdout


def test_flags_override_the_file_and_a_second_call_resumes(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(
        "beta = 5\nuntil = 1\nt_eval = 4\n[head]\ninteraction = [1.0, 2.0]\nvalue = [1.0, 2.0]\n[cloud]\nn = 30\n"
    )
    out = tmp_path / "out"
    assert invoke(config, "--beta", "7", "--out", out).exit_code == 0
    assert ms.Run.load(out).beta == 7
    assert invoke(config, "--beta", "7", "--out", out).exit_code == 0
    refused = invoke(config, "--out", out)
    assert refused.exit_code == 2
    assert "holds another run" in refused.stderr
    assert invoke(config, "--out", out, "--overwrite").exit_code == 0
    assert ms.Run.load(out).beta == 5


def test_heads_and_clouds_from_files(tmp_path):
    np.savez(tmp_path / "head.npz", query=np.eye(2), key=np.eye(2), value=np.diag([2.0, 1.0]))
    np.savez(tmp_path / "cloud.npz", points=np.eye(2), weights=[1.0, 3.0])
    config = tmp_path / "run.toml"
    config.write_text('beta = 5\nuntil = 1\nt_eval = 3\n[head]\nfile = "head.npz"\n[cloud]\nfile = "cloud.npz"\n')
    result = invoke(config, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert ms.Run.load(tmp_path / "out").cloud.weights.tolist() == pytest.approx([0.25, 0.75])


def test_merging_by_flag_and_by_file(tmp_path):
    shown = invoke(*QUICK, "--until", "60", "--merge", "1e-3", "--out", tmp_path / "flag")
    assert shown.exit_code == 0, shown.output
    assert "merging at distance 0.001 left" in shown.stdout
    config = tmp_path / "run.toml"
    config.write_text("beta = 20\nuntil = 60\nt_eval = 4\nmerge = 1e-3\n[cloud]\nn = 40\n")
    found = json.loads(invoke(config, "--json", "--out", tmp_path / "file").stdout)
    run = ms.Run.load(tmp_path / "file")
    assert torch.equal(run.frames, ms.Run.load(tmp_path / "flag").frames)
    assert run.configuration["merge"] == found["merging"]["distance"] == 1e-3
    assert found["merging"]["live"] == int(run.merge_error()["live"][-1]) < 40
    assert 0 <= found["merging"]["final_error"] <= found["merging"]["largest_error"] < 1
    assert found["merging"]["unknown_from"] is None
    assert run.merge_sentence() in (tmp_path / "file" / "report.html").read_text()
    assert found["loaded"] is False
    assert "--merge" in CliRunner().invoke(app, ["simulate", "--help"]).output


BAD_FLAGS = [
    (["--merge", "-1"], "merge is -1.0"),
    (["--merge", "1e-3", "--beta", "inf"], "merge needs a finite beta"),
    (["--seed", "99999999999999999999999"], "it must be below 2⁶³"),
    (["--n", "100000000000000"], "not enough memory"),
    (["--beta", "-1"], "beta is -1.0; the inverse temperature must be 0 or more"),
    (["--beta", "nan"], "beta is nan"),
    (["--until", "0"], "until is 0.0"),
    (["--engine", "warp"], "engine is 'warp'; choose one of auto, dense, flash, direct, tree"),
    (["--law", "unifrom"], "law is 'unifrom'; did you mean 'uniform'?"),
    (["--n", "0"], "n is 0"),
    (["--n", "-5"], "n is -5"),
    (["--interaction", "1,x"], "--interaction is '1,x'; give numbers with commas"),
    (["--interaction", "1,2", "--value", "1,2,3"], "value has shape (3,), expected a vector of 2 numbers"),
    (["--head", "missing.npz"], "cannot read missing.npz"),
    (["--method", "magic"], "method is 'magic'"),
    (["--step", "0.1"], "step= is for the methods"),
    (["--law", "fibonacci", "--interaction", "1,2", "--value", "1,2"], "must agree"),
]


@pytest.mark.parametrize(("flags", "message"), BAD_FLAGS)
def test_bad_flags_end_in_one_line_and_code_2_and_leave_nothing(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    result = invoke(*QUICK, *flags, "--out", "out")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


BAD_TOML = [
    ("beta = 5\nuntil = 1\n[cloud]\nlaw = ['uniform']\nn = 5", "law is ['uniform']"),
    ("beta = 5\nuntil = 1\nengine = ['dense']\n[cloud]\nn = 5", "engine is ['dense']"),
    ("beta = 5\nuntil = 1\n[cloud]\nlaw = 'graded'\nn = 5\nsmallest = 'a'", "smallest is 'a'"),
    ("beta = 5\nuntil = 1\n[head]\ninteraction = [1.0, 2.0]\nvalue = [1.0, 2.0]\nseed = 'a'", "seed is 'a'"),
    ("beta = 5\nuntl = 3", "unknown key 'untl'; did you mean 'until'?"),
    ("beta = 5", "until is missing"),
    ("beta = 5\nuntil = 1\n[head]\ninteracton = [1.0, 2.0]\nvalue = [1.0]", "unknown key 'interacton'; did you mean"),
    ("beta = 5\nuntil = 1\n[head]\ninteraction = [1.0, 2.0]", "[head] needs value"),
    (
        "beta = 5\nuntil = 1\n[head]\ninteraction = [1.0]\nvalue = [[1.0]]",
        "both be lists (spectra) or both be matrices",
    ),
    ("beta = 5\nuntil = 1\n[cloud]\nlaw = 'uniform'\nn = 10\nseeed = 3", "unknown key 'seeed'; did you mean 'seed'?"),
    ("beta = 5\nuntil = 1\n[cloud]\nlaw = 'von_mises_fisher'\nn = 10", "needs mean, kappa"),
    ("beta = 5\nuntil = 1\n[cloud]\nn = 10\nd = 7", "d is 7 but the head has d = 3"),
    ("beta = 5\nuntil = 1\nhead = 3", "head must be a table"),
    ("beta = 'hot'\nuntil = 1\n[cloud]\nn = 10", "beta is 'hot'"),
    ("beta = ", "cannot read"),
    ("beta = 5\nuntil = 1\n[cloud]\nn = 'many'", "n is 'many'"),
    ("beta = 5\nuntil = 1\nt_eval = 'all'\n[cloud]\nn = 5", "t_eval is 'all'"),
    ("beta = 5\nuntil = 1\n[head]\nfile = 3", "file is 3"),
    ("beta = 5\nuntil = 1\n[head]\nquery = [[1.0, 0.0]]\nkey = [[1.0, 0.0]]", "[head] needs value"),
    ("beta = 5\nuntil = 1\n[head]\ninteraction = []\nvalue = []", "interaction is []"),
]


@pytest.mark.parametrize(("text", "message"), BAD_TOML)
def test_bad_files_end_in_one_line_and_code_2_and_leave_nothing(tmp_path, text, message):
    config = tmp_path / "run.toml"
    config.write_text(text)
    result = invoke(config, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == ["run.toml"]


def test_missing_file_damaged_run_and_file_in_the_way(tmp_path):
    assert "cannot read" in invoke(tmp_path / "none.toml", "--out", tmp_path / "out").stderr
    (tmp_path / "plain").write_text("")
    blocked = invoke(*QUICK, "--out", tmp_path / "plain")
    assert blocked.exit_code == 2
    assert "is a file; give a folder" in blocked.stderr
    (tmp_path / "broken" / "run.zarr").mkdir(parents=True)
    damaged = invoke(*QUICK, "--out", tmp_path / "broken")
    assert damaged.exit_code == 2
    assert "is not a complete run" in damaged.stderr


def test_a_run_that_stops_is_a_finding(tmp_path):
    np.savez(tmp_path / "huge.npz", query=np.eye(2) * 1e200, key=np.eye(2) * 1e200, value=np.eye(2))
    result = invoke(*QUICK, "--head", tmp_path / "huge.npz", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "no longer finite" in result.stderr


def test_debug_shows_the_traceback(tmp_path):
    result = invoke("--beta", "-1", "--until", "1", "--debug", "--out", tmp_path / "out")
    assert isinstance(result.exception, ms.BadInput)


def test_help_needs_no_heavy_import_and_shows_an_example():
    """Time is not asserted; what makes it slow is."""
    code = """
import sys
sys.argv = ["metastable", "simulate", "--help"]
from metastable.cli.app import main
try:
    main()
except SystemExit:
    pass
print("HEAVY", sorted({"torch", "numpy", "scipy", "xarray", "plotly", "zarr", "numba"} & set(sys.modules)))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "HEAVY []" in shown
    assert "Example" in shown


@pytest.mark.slow
def test_in_a_pipe_there_is_no_bar_and_no_colour(tmp_path):
    result = command("simulate", *QUICK, "--out", tmp_path / "out")
    assert result.returncode == 0
    # On a busy machine the command says so, in one line.
    assert [line for line in result.stderr.splitlines() if "other programs slowed" not in line] == []
    assert "\x1b" not in result.stdout + result.stderr


def test_version():
    assert command("--version").stdout.strip() == ms.__version__


EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(tmp_path, monkeypatch, capsys):
    """Runs an example in this process, in an empty folder; returns what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.strip()

    return run


@pytest.mark.parametrize(
    "name", ["distance_and_terms.py", "own_head.py", "rates.py", pytest.param("real_head.py", marks=pytest.mark.slow)]
)
def test_examples_run(name, example):
    assert example(name)


@pytest.mark.slow
def test_the_example_of_a_fine_tuning_writes_its_page(tmp_path, example):
    assert "collapses" in example("fine_tuning.py")
    assert (tmp_path / "fine-tuning" / "report.html").exists()


@pytest.mark.slow
def test_the_example_of_a_live_monitor_tells_shuffled_words_from_clean_texts(tmp_path, example):
    assert example("demo_texts.py")
    lines = (tmp_path / "demo-texts" / "clean.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "clean.jsonl").write_text("".join(lines[:1500]), encoding="utf-8")
    said = example("live_monitor.py", tmp_path / "clean.jsonl")
    raised = int(said.split("-- alarm at text ")[1].split(":")[0])
    assert 100 < raised <= 200, said


@pytest.mark.slow
def test_the_gallery_has_the_pictures_that_the_page_of_the_family_shows(tmp_path, example):
    assert example("family.py", tmp_path)
    page = (EXAMPLES.parent / "docs" / "family.md").read_text(encoding="utf-8")
    assert {path.name for path in tmp_path.glob("*.png")} == set(re.findall(r"images/family/([\w-]+\.png)", page))


def test_every_example_is_run():
    tested = {"demo_texts.py", "live_monitor.py", "fine_tuning.py", "distance_and_terms.py", "family.py"}
    tested |= {"own_head.py", "rates.py", "real_head.py"}
    # tests/monitor/test_examples.py
    tested |= {"batch_job.py", "fastapi_service.py"}
    # tests/docs/test_pictures.py
    tested |= {"concentration.py", "screenshots.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested
