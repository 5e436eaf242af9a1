"""Check what `make package` built: `python -m tests.package FOLDER`.

The wheel holds the whole package and nothing else. Installed alone in a new environment, without any extra, it can be
imported, computes, prints its help, and explains in one line which extra a command needs.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_PYTHON = (".j2", ".css", ".js", ".json", ".pyi", ".typed")

COMPUTE = """
import metastable as ms
head = ms.Head.from_spectra([1.5, 0.8], [1.2, 0.5], seed=0)
run = ms.simulate(head, ms.uniform(50, d=2, seed=0), beta=20.0, until=1.0, progress=False)
run.report("report.html")
assert abs(float(run.final.points.norm(dim=1).max()) - 1) < 1e-12
print("computed")
"""

NEEDS = {
    "audit anything": "metastable[encoder]",
    "lab": "metastable[lab]",
    "sweep problem.toml --workers 1": "metastable[scale]",
    "serve anything --baseline nowhere": "metastable[serve]",
}
"""Commands that need an extra, and what their message must name."""


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


def check_installed(wheel: Path, folder: Path) -> None:
    """Use the wheel in a new environment that has no extra."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"

    def run(*command: str | Path, ok: int = 0) -> str:
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert found.returncode == ok, f"{command}: {found.returncode}\n{found.stdout}\n{found.stderr}"
        return found.stdout + found.stderr

    quietly = ("--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt")
    run(python, "-m", "pip", "install", *quietly, wheel)
    assert "computed" in run(python, "-c", COMPUTE)
    assert (folder / "report.html").stat().st_size > 100_000
    command = folder / "venv" / "bin" / "metastable"
    assert "simulate" in run(command, "--help")
    (folder / "problem.toml").write_text(
        'until = 1.0\n[head]\ninteraction = [1.5, 0.8]\nvalue = [1.2, 0.5]\n[cloud]\nlaw = "uniform"\n'
        "n = 20\n[axes]\nbeta = [5.0, 10.0]\n"
    )
    for arguments, extra in NEEDS.items():
        said = run(command, *arguments.split(), ok=2)
        assert extra in said, f"metastable {arguments} says:\n{said}"
        assert len(said.strip().splitlines()) == 1, f"metastable {arguments} says more than one line:\n{said}"


def main() -> None:
    wheel = check_contents(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as folder:
        check_installed(wheel, Path(folder))
    print(f"{wheel.name}: contents, import, command line and messages about extras are right")


if __name__ == "__main__":
    main()
