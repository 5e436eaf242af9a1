"""The site without building it: links, code blocks, the reference and the gallery."""

import ast
import hashlib
import json
import re
import subprocess
import sys
import tomllib

import pytest

import metastable as ms
from tests.docs.pages import DOCS, ROOT, anchors, filled, inserts, pages, prose
from tests.encoder.models import tiny

LINK = re.compile(r"(?<!\\)\]\(<?([^)>\s]+)>?\)")
SOURCES = {
    DOCS / "evidence/studies.md": ROOT / "studies",
    DOCS / "evidence/detection_method.md": ROOT / "benchmarks/detection",
}
"""Pages that show a file from outside of docs/, and the folder that its links start from."""
SOURCES |= dict.fromkeys((DOCS / "changelog.md", DOCS / "contributing.md"), ROOT)

BLOCK = re.compile(
    r"(?:^<!-- (slow|given): ([^\n]+) -->\n)?^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?",
    flags=re.DOTALL | re.MULTILINE,
)
"""A block of Python, its mark, and what it prints if that is shown right below it."""
WIDEST = 116
"""Characters of code on a line of the site, see docs/_static/site.css."""
WIDTHS = (390, 800, 1008, 1024, 1100, 1280)
"""Widths of windows: a phone, tablets, both sides of the theme's breakpoints, a screen."""
RUN = [path for folder in ("start", "howto", "understand") for path in sorted((DOCS / folder).glob("*.md"))]


def blocks():
    """(mark, code, output) of the Python blocks that readers are told to run.

    Programs of examples/ have tests of their own.
    """
    for path in RUN:
        for number, (kind, _, code, output) in enumerate(BLOCK.findall(path.read_text(encoding="utf-8")), start=1):
            name = f"{path.relative_to(DOCS).with_suffix('')}-{number}"
            yield pytest.param(kind, code, output, id=name, marks=[pytest.mark.slow] if kind == "slow" else [])


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(DOCS)))
def test_links_lead_somewhere(path):
    labels = set().union(*map(anchors, pages()))
    for target in LINK.findall(prose(path)):
        if re.match(r"https?:|mailto:", target):
            continue
        file, _, place = target.partition("#")
        if not file:
            assert place in labels, f"{target}: there is no such label or heading"
            continue
        found = [folder / file for folder in (path.parent, SOURCES.get(path, path.parent)) if (folder / file).exists()]
        assert found, f"{target}: there is no such file"
        if place:
            assert place in anchors(found[0].resolve()), f"{target}: there is no such heading"


def test_the_version_is_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert version == ms.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_extras_are_installed_from_the_clone_because_the_package_is_not_published():
    folders = ("src", "docs", "examples", "benchmarks")
    files = [
        path
        for folder in folders
        for kind in ("py", "md", "yml", "yaml")
        for path in (ROOT / folder).rglob(f"*.{kind}")
    ]
    named = [
        path for path in (*files, ROOT / "README.md") if re.search(r"(?<!/)metastable\[\w", path.read_text("utf-8"))
    ]
    assert named == []


def test_every_python_of_the_classifiers_is_tested():
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    tested = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    assert re.findall(r'"(3\.\d+)"', tested) == named
    assert "bash .ci/run" in tested


def test_every_page_is_in_a_table_of_contents():
    listed = {DOCS / "index.md"}
    for path in pages():
        for names in re.findall(
            r"^```\{toctree\}\n(.*?)^```", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
        ):
            named = [
                line.split("<")[-1].rstrip(">") for line in names.splitlines() if line and not line.startswith(":")
            ]
            listed |= {(path.parent / f"{name}.md").resolve() for name in named}
    assert listed == set(pages())


@pytest.mark.parametrize(("kind", "code", "output"), list(blocks()))
def test_code_blocks_run_and_print_what_the_page_shows(kind, code, output, tmp_path, monkeypatch, request, capsys):
    monkeypatch.chdir(tmp_path)
    given = {}
    if kind == "given":
        texts = request.getfixturevalue("texts")
        given = {"model": tiny("bert"), "tokenizer": request.getfixturevalue("tokenizer"), "clean_texts": texts}
    exec(compile(code, "block", "exec"), given)
    if output:
        assert capsys.readouterr().out == output


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(DOCS)))
def test_code_fits_on_the_page(path):
    """Lines up to 116 characters fit at 1280 px. Longer ones are cut off, except where text and JSON are wrapped."""
    for language, code in re.findall(r"^```(\w*)\n(.*?)^```", filled(path), flags=re.DOTALL | re.MULTILINE):
        if language not in ("text", "json"):
            assert [line for line in code.splitlines() if len(line) > WIDEST] == []


def test_every_public_name_is_in_the_reference():
    names = [name for group in inserts().NAMES.values() for name in group]
    assert sorted(names) == sorted(inserts().public_names())
    shown = "".join(map(filled, (DOCS / "reference").glob("*.md")))
    for name in names:
        assert re.search(rf"\{{py:(class|function|exception)\}} {name}\b.*\n:module: metastable\n", shown), name


def test_every_command_with_every_option_is_in_the_reference():
    from typer.main import get_command

    from metastable.cli.app import app

    sections = re.split(r"^## metastable ", filled(DOCS / "reference" / "commands.md"), flags=re.MULTILINE)
    shown = {section.split("\n")[0]: section for section in sections[1:]}
    for name, command in get_command(app).commands.items():
        for parameter in command.params:
            for option in parameter.opts:
                word = option if option.startswith("-") else parameter.name.upper()
                assert word in shown[name], f"{name} {option}"


def test_every_schema_in_the_code_is_in_the_reference():
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    found = {name for text in sources for name in re.findall(r'"(metastable\.\w+/\d+)"', text)}
    assert found == set(inserts().SCHEMAS)


def test_every_field_of_a_record_and_every_detector_has_a_meaning():
    from metastable.monitor.detectors import DETECTORS

    page = filled(DOCS / "reference" / "columns.md")
    for name in DETECTORS:
        assert re.search(rf"^\| `{name}` \| \S+", page, flags=re.MULTILINE), name
    for name in ("p_value", "slice_log_e", "sha", "reason"):
        assert re.search(rf"^\| `{name}` \| \S+", page, flags=re.MULTILINE), name


def test_every_column_of_lengths_options_and_exits_has_a_meaning():
    from metastable.encoder.compress import columns as options
    from metastable.encoder.compress.result import COLUMNS, TASK_COLUMNS
    from metastable.encoder.exit import columns as exits
    from metastable.encoder.exit.scores import SCORES
    from metastable.encoder.length import columns as lengths
    from metastable.encoder.length.result import TABLES

    def told(columns):
        return [c for c in columns if not re.search("_(low|high)$|^select_", c)]

    assert {name: list(own) for name, own in lengths.MEANINGS.items()} == {
        name: told(own) for name, own in TABLES.items()
    }
    assert list(options.MEANINGS) == told([*COLUMNS, *TASK_COLUMNS])
    scores = [score for task in SCORES.values() for score in task]
    assert list(exits.MEANINGS) == ["depth", *scores, "chosen_by", "penalty"]


NAMES = inserts().gallery_names()


def test_there_are_pictures_enough_and_all_are_shown():
    assert len(NAMES) >= 24
    shown = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "gallery").glob("*.md"))
    for mark in ("gallery-grid", "gallery-page"):
        listed = " ".join(re.findall(rf"<!-- insert: {mark} (.*) -->", shown)).split()
        assert sorted(listed) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_program_of_the_gallery(name):
    """It is short, says what it draws, leaves a figure, and its picture was drawn by this very program."""
    source = (inserts().PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    title, about, code = inserts()._told(name)
    assert title
    assert len(about) > 40
    assert len(code.splitlines()) <= 36
    assert "figure" in {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    drawn = json.loads((inserts().PICTURES / "drawn.json").read_text(encoding="utf-8"))
    same = drawn[name] == hashlib.sha256(source.split('"""', 2)[2].strip().encode()).hexdigest()
    assert same, f"the program has changed: python examples/gallery/_draw.py {name}"
    assert (inserts().PICTURES / f"{name}.png").stat().st_size > 5000


def test_docstrings_become_markdown():
    doc = """Sum of W_p over |x|, an_example.

    Parameters
    ----------
    beta : inverse temperature, see `simulate`
        and *more*, 2*3*4
    a, b : numbers; c : a letter

    The formula is

        x' = P_x V m

    Examples
    --------
    >>> 1 + 1
    2
    """
    found = inserts().markdown(doc)
    assert "Sum of W<sub>p</sub> over \\|x\\|, an\\_example." in found
    assert (
        "- `beta`: inverse temperature, see {py:obj}`simulate <metastable.simulate>` and *more*, 2\\*3\\*4\n" in found
    )
    assert "\n- `a`, `b`: numbers\n- `c`: a letter" in found
    assert "```text\nx' = P_x V m\n```" in found
    assert "```python\n>>> 1 + 1\n2\n```" in found


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site; a warning is an error."""
    pytest.importorskip("sphinx", reason="`make docs` installs the tools of the site")
    folder = tmp_path_factory.mktemp("site")
    call = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", folder / "trees", DOCS, folder / "site"]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.mark.slow
def test_the_built_site_draws_formulas_and_needs_no_network(site):
    page = (site / "understand" / "projection.html").read_text(encoding="utf-8")
    assert "<math" in page
    scripts = re.findall(r'(?:src|href)="(https?://[^"]+)"', (site / "index.html").read_text(encoding="utf-8"))
    assert not [address for address in scripts if address.endswith((".js", ".css"))]


@pytest.mark.slow
@pytest.mark.browser
def test_no_page_is_wider_than_the_window(site, browser):
    page = browser.new_page()
    wide = []
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            if (found := page.evaluate("document.documentElement.scrollWidth")) > width:
                wide.append(f"{path.relative_to(site)} is {found} px wide in a window of {width} px")
    page.close()
    assert wide == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("metastability", "understand/plateau.html"),
        ("metastability", "understand/statements.html"),
        ("how to cite", "index.html"),
        ("figures for a paper", "howto/paper_figures.html"),
    ],
)
def test_search_finds_the_page_about_the_words_among_the_first(site, browser, words, page):
    context = browser.new_context(offline=True)
    tab, complaints = context.new_page(), []
    tab.on("console", lambda line: line.type == "error" and complaints.append(line.text))
    tab.goto(f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
    tab.wait_for_function("!document.querySelector('#search-progress')?.textContent.includes('Searching')")
    tab.wait_for_selector("#search-results li a")
    found = tab.evaluate("[...document.querySelectorAll('#search-results li a')].slice(0, 3).map(a => a.href)")
    context.close()
    assert (site / page).as_uri() in {address.split("#")[0].split("?")[0] for address in found}
    assert complaints == []
