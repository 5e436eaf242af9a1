"""The commands of docs/clusters.md, as they stand there, with a loopback address in the place of the LAN's."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from metastable.cli.app import app
from metastable.encoder.audit import Audit
from metastable.encoder.load import load
from metastable.encoder.measure import measure
from metastable.scale.dataset import Places
from metastable.scale.dataset import load as open_sweep
from tests.scale.corpus import save_small, sentences, write

PAGE = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
COMMANDS = [line.partition("#")[0].strip() for kind, block in BLOCKS if not kind for line in block.splitlines()]
SCRIPT = next(block for kind, block in BLOCKS if kind == "python" and "ms.sweep(" in block)
BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}
SWEEP = """
until = 1.0
t_eval = 3
[axes]
beta = [1.0, 10.0]
[head]
interaction = [1.5, 0.6]
value = [1.0, 0.7]
[cloud]
n = 10
"""


def command(beginning, *words, port=8786):
    """The one command of the page that begins so and holds these words, for this machine."""
    found = [line for line in COMMANDS if line.startswith(beginning) and all(word in line for word in words)]
    assert len(found) == 1, found
    return shlex.split(found[0].replace("192.168.1.10", "127.0.0.1").replace("8786", str(port)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where somebody follows the page: a sweep, an encoder and texts."""
    place = tmp_path_factory.mktemp("page")
    (place / "my_sweep.toml").write_text(SWEEP, encoding="utf-8")
    save_small(place / "my-encoder")
    write(place / "corpus.txt", sentences(600))
    return place


@pytest.fixture(scope="module")
def port(folder):
    """A scheduler and workers, started by the page's commands."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = {"env": ENVIRONMENT, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen(command(name, port=port), **quiet) for name in ("dask scheduler", "dask worker")]
    yield port
    for process in reversed(started):
        process.terminate()
    for process in started:
        process.wait(60)


def run(words, folder, monkeypatch):
    monkeypatch.chdir(folder)
    ended = CliRunner().invoke(app, words[1:])
    assert ended.exit_code == 0, ended.output
    return ended


@pytest.mark.slow
def test_a_sweep_on_the_cluster_of_the_page(folder, port, monkeypatch):
    ended = run(command("metastable sweep", "--scheduler", port=port), folder, monkeypatch)
    assert "dashboard: http://127.0.0.1" in ended.stderr
    assert open_sweep(Places(folder / "sweep"))["status"].values.tolist() == [0, 0]


@pytest.mark.slow
def test_an_audit_on_the_cluster_of_the_page(folder, port, monkeypatch):
    run(command("metastable audit", "--scheduler", port=port), folder, monkeypatch)
    alone = measure(load(str(folder / "my-encoder")), sentences(600)).to_dict()
    assert Audit.load(folder / "audit").measured.to_dict() == alone


@pytest.mark.slow
def test_the_script_of_the_page_runs(folder):
    (folder / "script.py").write_text(SCRIPT.replace('out="sweep"', 'out="scripted"'), encoding="utf-8")
    words = [sys.executable, "script.py"]
    ended = subprocess.run(words, env=ENVIRONMENT, cwd=folder, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert open_sweep(Places(folder / "scripted"))["status"].values.tolist() == [0, 0]


def test_every_command_of_the_page_is_one_of_the_command_line():
    known = {name: {o for p in made.params for o in p.opts} for name, made in get_command(app).commands.items()}
    lines = [line for line in COMMANDS if line.startswith("metastable ")]
    assert len(lines) == 7
    for line in lines:
        _, name, *words = shlex.split(line.partition(">")[0])
        assert {word for word in words if word.startswith("--")} <= known[name], line


def test_the_page_is_short():
    assert PAGE.count("\n") <= 150
