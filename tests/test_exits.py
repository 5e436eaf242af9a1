"""Exit codes and the one line that an error prints, as a shell sees them."""

import contextlib
import errno
import itertools
import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import metastable as ms
from metastable.cli.app import app
from metastable.cli.exits import one_line_errors, slow_machine_note
from metastable.errors import SchedulerLost
from tests.encoder import models


def ending(error, **options):
    """The exit code of a command that raises `error`."""
    with pytest.raises(typer.Exit) as caught, one_line_errors(debug=False, **options):
        raise error
    return caught.value.exit_code


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (ms.BadInput("beta is -1; give 0 or more"), 2, "beta is -1"),
        (ms.SimulationStopped("no longer finite at t = 3"), 1, "t = 3"),
        (SchedulerLost("the scheduler is gone"), 70, "gone"),
        (MemoryError(), 2, "memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), 2, "memory"),
        (OSError(28, "No space left on device", "/data/run.zarr"), 2, "/data/run.zarr"),
        (PermissionError(13, "Permission denied", "texts.txt"), 2, "texts.txt"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_expected_errors_have_their_codes(error, code, word, capfd):
    assert ending(error) == code
    said = capfd.readouterr().err
    assert word in said
    assert said.count("\n") == (code != 141)


@pytest.mark.parametrize("error", [ValueError("shapes differ"), KeyError("x"), RuntimeError("odd"), AssertionError()])
def test_an_internal_error_is_called_a_bug_with_its_place(error, capsys):
    assert ending(error) == 70
    said = capsys.readouterr().err
    assert type(error).__name__ in said
    assert str(error) in said
    assert "test_exits.py:" in said
    assert "in ending" in said
    assert "--debug" in said
    assert said.count("\n") == 1


def test_an_internal_value_error_of_a_command_is_no_bad_input(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ValueError("shapes differ")

    monkeypatch.setattr("metastable.run.simulation.simulate", fail)
    result = CliRunner().invoke(app, ["simulate", "--beta", "1", "--until", "1", "--out", str(tmp_path / "out")])
    assert result.exit_code == 70
    assert "bug" in result.stderr
    assert "in fail" in result.stderr


@pytest.mark.parametrize("command", ["simulate", "audit"])
def test_a_full_disk_is_named_with_the_path(command, tmp_path, monkeypatch):
    given = {
        "simulate": ["simulate", "--beta", "20", "--until", "1", "--n", "20", "--t-eval", "3"],
        "audit": ["audit", str(tmp_path / "model")],
    }
    if command == "audit":
        models.tiny("bert").save_pretrained(tmp_path / "model")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    result = CliRunner().invoke(app, [*given[command], "--out", str(tmp_path / "out")])
    assert result.exit_code == 2, result.output
    assert str(tmp_path / "out") in result.stderr
    assert "No space left" in result.stderr
    assert result.stderr.count("\n") == 1


def test_debug_raises_the_error_itself():
    with pytest.raises(ZeroDivisionError), one_line_errors(debug=True):
        1 / 0  # noqa: B018


def test_an_exit_code_that_a_command_chose_stays():
    assert ending(typer.Exit(1)) == 1


@pytest.mark.parametrize(
    ("wall", "cpu", "load", "said"),
    [(9.0, 3.0, 50.0, True), (4.0, 1.0, 50.0, False), (9.0, 8.0, 50.0, False), (9.0, 3.0, 0.0, False)],
)
def test_a_slow_machine_is_named_only_if_others_had_its_cores(wall, cpu, load, said, monkeypatch, capsys):
    with on_a_machine(monkeypatch, wall, cpu, load), slow_machine_note():
        pass
    shown = capsys.readouterr().err
    assert ("other programs" in shown) == said
    assert shown.count("\n") == said


@contextlib.contextmanager
def on_a_machine(monkeypatch, wall, cpu, load):
    """The clocks and the load average of two cores."""
    clocks = {"perf_counter": itertools.chain((0.0,), itertools.repeat(wall)), "process_time": iter((0.0, cpu))}
    with monkeypatch.context() as patched:
        for name, times in clocks.items():
            patched.setattr(f"metastable.cli.exits.time.{name}", lambda times=times: next(times))
        patched.setattr("os.getloadavg", lambda: (load, load, load))
        patched.setattr("os.cpu_count", lambda: 2)
        yield


def test_an_error_is_the_only_line_on_a_busy_machine_too(monkeypatch, capsys):
    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    machine = on_a_machine(monkeypatch, 9.0, 3.0, 50.0)
    with machine, pytest.raises(typer.Exit), one_line_errors(debug=False), slow_machine_note():
        monkeypatch.setattr(sys.stdout, "flush", full)
    monkeypatch.undo()
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "standard output cannot be written" in shown


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_that_is_not_utf8_is_replaced(encoding):
    """The descriptions of the columns have letters that neither encoding has."""
    given = [sys.executable, "-m", "metastable", "audit", "--columns", "x"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    shown = subprocess.run(given, capture_output=True, env=environment, check=False)
    assert shown.returncode == 0, shown.stderr
    assert b"?" in shown.stdout
    assert b"gap" in shown.stdout


@pytest.mark.parametrize("command", ["audit --columns x", pytest.param("claims --list", marks=pytest.mark.slow)])
def test_a_reader_that_goes_away_ends_the_command_quietly(command):
    given = f"{sys.executable} -m metastable {command} | true; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", given], capture_output=True, text=True, check=False)
    assert ended.returncode == 141
    assert ended.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_behind_standard_output_is_named(tmp_path):
    asked = ["simulate", "--beta", "5", "--until", "0.1", "--n", "9", "--json"]
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "metastable", *asked]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"standard output" in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("asked", ["--help", "--version", "simulate --help"])
def test_help_and_version_behind_a_full_disk_are_refused_in_one_line(asked):
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "metastable", *asked.split()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"standard output" in done.stderr


@pytest.mark.parametrize("asked", ["--help", "--version", "simulate --beta 5 --until 0.1 --n 9"])
def test_a_closed_standard_output_is_no_error(asked, tmp_path):
    command = [sys.executable, "-m", "metastable", *asked.split()]
    done = subprocess.run(command, stderr=subprocess.PIPE, cwd=tmp_path, preexec_fn=lambda: os.close(1))
    assert done.returncode == 0, done.stderr.decode()
    assert b"internal error" not in done.stderr
