"""Check what `make package` built: `python -m tests.package FOLDER`.

The wheel holds the whole package and nothing else. Installed alone in a new environment, without any extra, it can be
imported without loading torch, computes, prints its help, and explains in one line which extra a command needs. With
each extra, what needs this extra works.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOR_DEVELOPMENT = {"dev", "docs", "package"}
NOT_PYTHON = (".j2", ".css", ".js", ".json", ".pyi", ".typed")

COMPUTE = """
import metastable as ms
head = ms.Head.from_spectra([1.5, 0.8], [1.2, 0.5], seed=0)
run = ms.simulate(head, ms.uniform(50, d=2, seed=0), beta=20.0, until=1.0, progress=False)
run.report("report.html")
assert abs(float(run.final.points.norm(dim=1).max()) - 1) < 1e-12
print("computed")
"""

IMPORT = """
import sys, time
began = time.perf_counter()
import metastable
print(f"{1000 * (time.perf_counter() - began):.0f} ms")
heavy = {"torch", "numpy", "scipy", "xarray", "plotly", "zarr", "numba"} & set(sys.modules)
assert not heavy, heavy
"""

NEEDS = {
    "audit anything": "'.[encoder]'",
    "lab": "'.[lab]'",
    "sweep problem.toml --workers 1": "'.[scale]'",
    "serve anything --baseline nowhere": "'.[serve]'",
}
"""Commands that need an extra, and what their message must name."""
NEEDS_BESIDE_ENCODER = {"calibrate model.onnx --texts texts.txt": "'.[onnx]'"}

WORKS = {
    "encoder": """
import metastable as ms, transformers
size = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=40)
audit = ms.audit(transformers.BertModel(transformers.BertConfig(**size)))
assert len(audit.heads) == 2
""",
    "lab": """
import metastable.lab.app
""",
    "monitor": """
from metastable.monitor.sinks import Prometheus
Prometheus()
""",
    "onnx": """
from metastable.encoder.onnx import _session
from metastable.errors import BadInput
from pathlib import Path
try:
    _session(Path("model.onnx"), "model.onnx")
except BadInput as error:
    assert "'.[onnx]'" not in str(error), error
""",
    "scale": """
import metastable as ms
if __name__ == "__main__":
    head = ms.Head.from_spectra([1.5, 0.8], [1.2, 0.5], seed=0)
    found = ms.sweep(head=head, axes={"beta": [5.0]}, n=20, d=2, until=1.0, out="sweep", workers=1, progress=False)
    assert found.sizes["beta"] == 1
""",
    "serve": """
import metastable.monitor.http_server, metastable.monitor.sinks, uvicorn
metastable.monitor.sinks.Prometheus()
""",
}
"""A program for each extra that users install."""


def sources() -> set[str]:
    """The files that belong into the wheel."""
    package = ROOT / "src" / "metastable"
    kept = (path for path in package.rglob("*") if path.is_file() and path.suffix in (".py", *NOT_PYTHON))
    return {f"metastable/{path.relative_to(package).as_posix()}" for path in kept}


def check_contents(folder: Path) -> Path:
    """Compare the archives with the source; the wheel."""
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as opened:
        inside = {name for name in opened.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert inside == sources(), f"the wheel differs from the source in {sorted(inside ^ sources())[:5]}"
    with tarfile.open(archive) as opened_archive:
        names = {name.split("/", 1)[-1] for name in opened_archive.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml"} <= names
    return wheel


def environment(folder: Path) -> Path:
    """A new environment; its Python."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def install(python: Path, what: str | Path) -> None:
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt", what)


def run(*command: str | Path, ok: int = 0, folder: Path | None = None) -> str:
    """Everything that a command prints, which must end with the exit code `ok`."""
    # A path to the checkout would hide what is missing in the wheel.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False)
    assert found.returncode == ok, f"{command}: {found.returncode}\n{found.stdout}\n{found.stderr}"
    return found.stdout + found.stderr


def check_installed(wheel: Path, folder: Path) -> str:
    """Use the wheel in a new environment that has no extra; the time of its import."""
    python = environment(folder / "venv")
    install(python, wheel)
    # The first import writes the bytecode.
    seconds = [run(python, "-c", IMPORT, folder=folder) for _ in range(2)][-1].strip()
    assert "computed" in run(python, "-c", COMPUTE, folder=folder)
    assert (folder / "report.html").stat().st_size > 100_000
    assert "simulate" in run(folder / "venv" / "bin" / "metastable", "--help", folder=folder)
    (folder / "problem.toml").write_text(
        'until = 1.0\n[head]\ninteraction = [1.5, 0.8]\nvalue = [1.2, 0.5]\n[cloud]\nlaw = "uniform"\n'
        "n = 20\n[axes]\nbeta = [5.0, 10.0]\n"
    )
    (folder / "texts.txt").write_text("One text.\n")
    (folder / "model.onnx").write_text("This is no model.")
    check_messages(python, NEEDS, folder)
    return seconds


def check_messages(python: Path, needs: dict[str, str], folder: Path) -> None:
    """A command whose extra is missing says so in one line."""
    for arguments, extra in needs.items():
        said = run(python, "-m", "metastable", *arguments.split(), ok=2, folder=folder)
        assert extra in said, f"metastable {arguments} says:\n{said}"
        assert len(said.strip().splitlines()) == 1, f"metastable {arguments} says more than one line:\n{said}"


def check_extras(wheel: Path, folder: Path) -> None:
    """Use each extra, in an environment that adds this extra to the one without extras."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(WORKS) == set(extras) - FOR_DEVELOPMENT
    (base,) = (folder / "venv" / "lib").glob("python*/site-packages")
    for extra, program in WORKS.items():
        python = environment(folder / extra)
        (own,) = (folder / extra / "lib").glob("python*/site-packages")
        (own / "without_extras.pth").write_text(f"{base}\n", encoding="utf-8")
        (folder / "works.py").write_text(program, encoding="utf-8")
        install(python, f"{wheel}[{extra}]")
        run(python, "works.py", folder=folder)
        if extra == "encoder":
            check_messages(python, NEEDS_BESIDE_ENCODER, folder)


def main() -> None:
    wheel = check_contents(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as folder:
        seconds = check_installed(wheel, Path(folder))
        check_extras(wheel, Path(folder))
    print(f"{wheel.name}: contents, import ({seconds}), command line, messages about extras and extras are right")


if __name__ == "__main__":
    main()
