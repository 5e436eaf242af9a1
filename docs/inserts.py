"""Parts of the site that are made from the code and the records: Markdown text, one function each.

A page has the comment `<!-- insert: NAME -->`, or `<!-- insert: NAME ARGUMENT -->`, on a line of its own or in a
sentence; `conf.py` puts the text there. This module needs the package alone, not the tools of the site, so that tests
can read it.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import re
import runpy
import sys
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import metastable as ms

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PROGRAMS = ROOT / "examples" / "gallery"
PICTURES = DOCS / "images" / "gallery"
RECORDS = ROOT / "benchmarks" / "results"

NAMES: dict[str, tuple[str, ...]] = {
    "heads": ("Head", "Block", "Perceptron"),
    "clouds": ("Cloud", "uniform", "graded", "equally_spaced", "fibonacci", "von_mises_fisher", "mixture"),
    "theory": (
        *("Theory", "BlockTheory", "Verdict", "AssumptionCheck", "Spectrum", "Forecast", "FixedPoints", "Basins"),
    ),
    "runs": (
        "simulate",
        "Run",
        "Phases",
        "mean_field",
        "MeanFieldRun",
        "MeanFieldPhases",
        "Problem",
        "sweep",
    ),
    "flows": (
        *("attend", "attend_with_bound", "BoundedMean", "velocity", "value_flow", "zero_temperature_flow"),
        *("wasserstein", "Distance", "NoiseFloor"),
    ),
    "encoders": (
        *("audit", "Audit", "compare", "Comparison", "length", "Length", "compress", "Compression", "load_compressed"),
        *("AuditCheck", "AuditVerdict", "Advice", "Recipe"),
        *("merge_tokens", "TokenMerging", "exit_layer", "Exit", "callback", "History"),
    ),
    "monitor": ("Baseline", "Monitor", "Record", "MonitorCounts", "Alarm", "Review", "Window"),
    "errors": ("BadInput", "SimulationStopped"),
}
"""The public names, in the order of the reference."""

SCHEMAS: dict[str, tuple[str, str]] = {
    "metastable.run/1": (
        "run.json",
        "a run: head or block, law, β, horizon, solver and versions; the frames are in run.zarr",
    ),
    "metastable.mean_field/1": ("run.json", "a run of the mean-field equation"),
    "metastable.simulate/1": ("simulate --json", "the phases, distances and paths of a run"),
    "metastable.sweep/1": ("sweep.json", "the description of a sweep: axes, head, tokens, solver, outputs, versions"),
    "metastable.claims/1": ("claims.json", "every claim with its checks, tables and pictures"),
    "metastable.audit/2": ("audit.json", "an audit: all tables, the verdict and the twin"),
    "metastable.loop/1": ("audit.json, key loop", "one layer applied again and again"),
    "metastable.compare/1": ("compare --json", "the heads that moved, and the sentences of the comparison"),
    "metastable.length/2": ("length.json", "all tables of a study of lengths"),
    "metastable.compress/1": ("compress.json", "the options of a compression; also beside a smaller model"),
    "metastable.exit/1": ("exit.json", "scores by depth, the chosen layer and its loss"),
    "metastable.probe/1": ("probe.json", "the linear probe of the chosen layer, with its weights"),
    "metastable.history/1": ("audit-history.jsonl", "first line of a history; one line per record and depth follows"),
    "metastable.baseline/9": ("baseline.json", "a baseline; its arrays are in safetensors files beside it"),
    "metastable.calibrate/1": ("calibrate --json", "what a calibration made"),
    "metastable.recalibrate/1": ("recalibrate --json", "the effect of reviewed texts on a baseline"),
    "metastable.watch/1": ("watch --json, summary.json", "a watched stream: counts, alarms, the change"),
}
"""What each schema is found in, and what it holds."""


def public_names() -> list[str]:
    """The names in the stub file of the package."""
    stub = (ROOT / "src/metastable/__init__.pyi").read_text(encoding="utf-8")
    return re.findall(r"^from \S+ import \w+ as (\w+)$", stub, flags=re.MULTILINE)


def row(*cells: Any) -> str:
    """A row of a table."""
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    names = list(head)
    return "\n".join([row(*names), row(*["---"] * len(names)), *(row(*cells) for cells in rows)])


# ---------------------------------------------------------------------------------------------- names of the package

SPECIAL = re.compile(r"([\\*_<>\[\]$|{}#~])")
EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})(?=[^\s*])([^*]*[^\s*])\1(?![\w*])")
SCRIPT = re.compile(
    r"\^(?P<up>\{[^{}]*\}|\([^()]*\)|[−-]?[\w½∞]+(?:\.\d+)?)|(?<=(?<![A-Za-z0-9_])\w)_(?P<down>\{[^{}]*\}|[\w∞#](?!\w))"
)
"""A raised or lowered part of a formula in plain text: e^{βt}, β^(−1/2), 10^6, W_p, x_{ij}."""
ITEM = re.compile(r"^(?P<names>[\w\"'*][^:`]{0,80}?) : (?P<text>.*)$")
"""A line `name : meaning` of a docstring."""


def escaped(text: str) -> str:
    """Plain words of a docstring as Markdown, literal outside of `code`; βt of e^{βt} is raised, p of W_p lowered."""
    parts = re.split(r"(``[^`]+``|`[^`]+`)", text)
    return "".join(_linked(part) if part.startswith("`") else _literal(part) for part in parts)


def _linked(code: str) -> str:
    """A link to the reference for `Name`, `name` and `Class.member` of the package; other code as it is."""
    name, _, member = code.strip("`").removesuffix("()").partition(".")
    if name not in _public():
        return code
    found = getattr(ms, name)
    if member and not (inspect.isclass(found) and member in {each for _, each, _ in _members(found)}):
        return code
    return f"{{py:obj}}`{code.strip('`')} <metastable.{name}{'.' * bool(member)}{member}>`"


@cache
def _public() -> frozenset[str]:
    return frozenset(public_names())


def _literal(text: str) -> str:
    """Text outside of code: *words* stay emphasised, every other sign with a meaning in Markdown is shown as it is."""
    out, end = "", 0
    for found in EMPHASIS.finditer(text):
        out += f"{_plain(text[end : found.start()])}{found[1]}{_plain(found[2])}{found[1]}"
        end = found.end()
    return out + _plain(text[end:])


def _plain(text: str) -> str:
    out, end = [], 0
    for found in SCRIPT.finditer(text):
        tag, inner = ("sup", found["up"]) if found["up"] else ("sub", found["down"])
        inner = inner[1:-1] if inner[0] in "{(" else inner
        out += [SPECIAL.sub(r"\\\1", text[end : found.start()]), f"<{tag}>", _plain(inner), f"</{tag}>"]
        end = found.end()
    return "".join([*out, SPECIAL.sub(r"\\\1", text[end:])])


def markdown(doc: str) -> str:
    """A docstring of the package as Markdown.

    Known are paragraphs, numpy's sections, lines `name : meaning` with indented continuations, lists, examples with
    >>> and indented formulas.
    """
    lines, out, at, section = inspect.cleandoc(doc).splitlines(), [], 0, ""

    def indented(first: int) -> int:
        """The end of the block of indented lines, with blank lines inside, that begins at `first`."""
        end = first
        while end < len(lines) and (lines[end].startswith("  ") or (not lines[end] and _goes_on(lines, end))):
            end += 1
        return end

    while at < len(lines):
        line = lines[at]
        if at + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[at + 1]):
            out += ["", f"**{line}**", ""]
            at, section = at + 2, line
        elif line.lstrip().startswith(">>>"):
            end = next((i for i in range(at, len(lines)) if not lines[i].strip()), len(lines))
            out += ["", "```python", *(inspect.cleandoc("\n".join(lines[at:end])).splitlines()), "```", ""]
            at = end
        elif ITEM.match(line):
            end = indented(at + 1)
            whole = " ".join(part.strip() for part in lines[at:end])
            # A short entry may stand on the same line: `name : meaning; other : meaning`.
            for entry in re.split(r"; (?=\w+(?:, \w+)* : )", whole):
                listed, _, text = entry.partition(" : ")
                names = ", ".join(f"`{name.strip()}`" for name in listed.split(","))
                out += [f"- {names}: {escaped(text)}"]
            at = end
        elif section == "Returns" and line[:1].isalpha() and lines[at + 1 : at + 2] and lines[at + 1].startswith("  "):
            end = indented(at + 1)
            out += [f"`{line}`: " + escaped(" ".join(part.strip() for part in lines[at + 1 : end]))]
            at = end
        elif line.startswith("    "):
            end = indented(at)
            out += ["", "```text", *(part[4:] for part in lines[at:end]), "```", ""]
            at = end
        else:
            if line and out and out[-1].startswith("- ") and not line.startswith("- "):
                out += [""]
            out += [("- " + escaped(line[2:])) if line.startswith("- ") else escaped(line)]
            at += 1
    return "\n".join(out)


def _goes_on(lines: list[str], blank: int) -> bool:
    return (
        blank + 1 < len(lines)
        and lines[blank + 1].startswith("    ")
        and not lines[blank + 1].strip().startswith(">>>")
    )


def signature(called: Any) -> str:
    """The arguments of a function without the types, which the stub file and the help of an editor show."""
    try:
        found = inspect.signature(called)
    except (TypeError, ValueError):
        return "()"
    given = [
        p.replace(annotation=inspect.Parameter.empty, default=p.empty if p.default is p.empty else _Shown(p.default))
        for p in found.parameters.values()
        if p.name not in ("self", "cls") and not p.name.startswith("_")
    ]
    return str(found.replace(parameters=given, return_annotation=inspect.Signature.empty))


class _Shown:
    """A default value as the reference shows it: without addresses, and short."""

    def __init__(self, value: Any) -> None:
        text = value.__name__ if inspect.isroutine(value) or inspect.isclass(value) else repr(value)
        self.text = (
            "…" if " at 0x" in text or "<lambda>" in text or len(text) > 40 else text.replace("mappingproxy({})", "{}")
        )

    def __repr__(self) -> str:
        return self.text


def _members(cls: type) -> list[tuple[str, str, Any]]:
    """(kind, name, object) of the documented public members of a class, its own and inherited ones of the package."""
    found: dict[str, tuple[str, Any]] = {}
    for base in cls.__mro__:
        if not base.__module__.startswith("metastable"):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in found:
                continue
            if isinstance(member, (classmethod, staticmethod)):
                kind, shown = ("classmethod" if isinstance(member, classmethod) else "staticmethod"), member.__func__
            elif inspect.isfunction(member):
                kind, shown = "method", member
            elif isinstance(member, property) or hasattr(member, "attrname"):
                kind, shown = "property", getattr(member, "fget", None) or getattr(member, "func", None)
            else:
                continue
            if inspect.getdoc(shown):
                found[name] = (kind, shown)
    return [(kind, name, shown) for name, (kind, shown) in found.items()]


def python(group: str) -> str:
    """The reference of the public names of a group, from their docstrings."""
    return "\n\n".join(_entry(name, getattr(ms, name)) for name in NAMES[group])


def module(name: str, *names: str) -> str:
    """The reference of names of a module that users import themselves."""
    found = importlib.import_module(name)
    parts = [_entry(each, getattr(found, each), name) for each in names or sorted(found.__all__)]
    return "\n\n".join(part for part in parts if part)


def _entry(name: str, found: Any, package: str = "metastable") -> str:
    if not callable(found):
        return ""
    module = f"`from {package} import {name}`" + f", in `{found.__module__}`" * (found.__module__ != package)
    if not inspect.isclass(found):
        text = f"{module}\n\n{markdown(found.__doc__ or '')}"
        return _directive("function", name, signature(found), text, package)
    kind = "exception" if issubclass(found, BaseException) else "class"
    parts = [module, markdown(found.__doc__ or "")]
    for what, member, shown in _members(found):
        arguments = "" if what == "property" else signature(shown)
        parts.append(
            _directive(
                what, f"{name}.{member}", arguments, markdown(inspect.getdoc(shown) or ""), package, fence="::::"
            )
        )
    made = signature(found)
    # Results are made by functions: their many fields are explained in the docstring.
    if kind == "exception" or (is_dataclass(found) and (len(made) > 90 or "<factory>" in made)):
        made = ""
    return _directive(kind, name, made, "\n\n".join(parts), package)


def _directive(kind: str, name: str, arguments: str, text: str, package: str, fence: str = ":::::") -> str:
    level = "##" if package == "metastable" else "###"
    heading = f"{level} {name}\n\n" if "." not in name else ""
    return f"{heading}{fence}{{py:{kind}}} {name}{arguments}\n:module: {package}\n\n{text}\n{fence}"


# ----------------------------------------------------------------------------------------------------- the command line


def commands() -> str:
    """Every command with its arguments and options, from the application itself."""
    import typer

    from metastable.cli.app import app

    group: Any = typer.main.get_command(app)
    text = ["`metastable --version` prints the version.\n"]
    for name, command in group.commands.items():
        places = [p for p in command.params if not p.opts[0].startswith("-")]
        options = [p for p in command.params if p.opts[0].startswith("-") and not p.hidden]
        usage = " ".join(["metastable", name, *(_place(p) for p in places), "[OPTIONS]"])
        text += [
            f"## metastable {name}",
            "",
            f"```text\n{usage}\n```",
            "",
            escaped(_said(command.help)),
        ]
        if command.epilog:
            text += ["", "Example:", "", f"```bash\n{command.epilog.removeprefix('Example:').strip()}\n```"]
        if places:
            text += [
                "",
                table(["argument", "meaning"], ([f"`{p.name.upper()}`", escaped(_said(p.help))] for p in places)),
            ]
        text += [
            "",
            table(
                ["option", "meaning", "default"], ([_option(p), escaped(_said(p.help)), _default(p)] for p in options)
            ),
            "",
        ]
    return "\n".join(text)


def _said(text: str | None) -> str:
    """A help text as a terminal shows it: there a backslash keeps [axes] from being read as a colour."""
    return inspect.cleandoc(text or "").replace("\\[", "[")


def _place(parameter: Any) -> str:
    name = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _option(parameter: Any) -> str:
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag:
        return f"`{names}`"
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    word = parameter.metavar or {"Path": "PATH", "int": "N", "float": "NUMBER"}.get(
        getattr(kind, "__name__", ""), "TEXT"
    )
    return f"`{names} {word}`"


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    return "" if value in (None, False, "", (), []) or callable(value) else f"`{value}`"


# ------------------------------------------------------------------------------------------------ columns and files


def columns(which: str) -> str:
    """A table of columns, from the table in the code that the reports use."""
    from metastable.encoder import columns as audit
    from metastable.encoder.compare import COLUMNS as COMPARED
    from metastable.encoder.compress.columns import MEANINGS as OPTIONS
    from metastable.encoder.exit.columns import MEANINGS as DEPTHS
    from metastable.encoder.history.record import COLUMNS as HISTORY
    from metastable.encoder.length.columns import MEANINGS as LENGTHS
    from metastable.scale.dataset import WORDS

    two = {
        "layers": audit.LAYER_COLUMNS,
        "compare": COMPARED,
        "history": HISTORY,
        "compress": OPTIONS,
        "exit": DEPTHS,
    }
    three = {"heads": audit.COLUMNS, "text": audit.TEXT}
    if which in two:
        return table(["column", "meaning"], ([f"`{name}`", escaped(what)] for name, what in two[which].items()))
    if which in three:
        rows = ([f"`{name}`", *map(escaped, what)] for name, what in three[which].items())
        return table(["column", "meaning and unit", "usual values"], rows)
    if which == "sweep":
        rows = ([f"`{name}`", escaped(what), escaped(unit)] for name, (what, unit) in WORDS.items())
        return table(["axis or variable", "meaning", "unit"], rows)
    if which == "length":
        parts = []
        for name, own in LENGTHS.items():
            rows = ([f"`{column}`", escaped(what)] for column, what in own.items())
            parts.append(f"**{name}.csv**\n\n{table(['column', 'meaning'], rows)}")
        return "\n\n".join(parts)
    if which == "record":
        return _record()
    raise KeyError(which)


def _record() -> str:
    from metastable.monitor.record import WRITTEN, Record

    meanings: dict[str, str] = {}
    for item in re.findall(r"^ *- (`.*)$", markdown(Record.__doc__ or ""), flags=re.MULTILINE):
        names, _, what = item.partition(": ")
        meanings |= {name.strip("` "): what for name in names.split(",")}
    meanings |= {
        "reason": "the finding in words",
        "line": "number of the line in the file or pipe",
        "id": "`id` of the text, if it has one",
        "slice_log_e": "evidence of the alarm of this slice after this text",
        "slice_alarm": "whether this very text raised the alarm of this slice",
    }
    return table(["field", "meaning"], ([f"`{name}`", meanings[name]] for name in WRITTEN))


def schemas() -> str:
    """The schemas of the JSON files; `tests/docs` checks that none in the code is missing."""
    rows = ([f"`{name}`", f"`{place}`", what] for name, (place, what) in SCHEMAS.items())
    return table(["schema", "found in", "what it holds"], rows)


def detectors() -> str:
    """The detectors of each setting of the monitor."""
    from metastable.monitor import detectors as room
    from metastable.monitor.scoring import SETTINGS

    rows = []
    for name, detector in room.DETECTORS.items():
        used = [setting.name for setting in SETTINGS.values() if name in setting.members]
        first = inspect.cleandoc(sys.modules[detector.__module__].__doc__ or detector.__doc__ or "").split("\n\n")[0]
        rows.append([f"`{name}`", escaped(" ".join(first.split())), ", ".join(used) or "none"])
    return table(["detector", "what it measures", "settings"], rows)


# ------------------------------------------------------------------------------------------------------------ evidence


def claims() -> str:
    """Every claim: its statement, its recorded outcome, and the derivation in the docstring of its file."""
    from metastable import claims as room

    text = []
    for group, names in room.GROUPS.items():
        text += [f"## {group}", ""]
        for name in names:
            found = room.find(name)
            module = importlib.import_module(f"metastable.claims.{name.replace('-', '_')}")
            text += [f"({label(name)})=", f"### {name}: {escaped(found.title)}", "", escaped(found.statement), ""]
            for size, rows in _outcomes().items():
                if row := rows.get(name):
                    headline = escaped(row["headline"])
                    text += [f"**{row['outcome']}** at the {size} size, {row['checks']}: {headline}.", ""]
            text += [
                markdown(module.__doc__ or ""),
                "",
                f"Run it: `metastable claims {name}`. Source: `claims/{name.replace('-', '_')}.py`.",
                "",
            ]
    return "\n".join(text)


def outcomes() -> str:
    """The recorded outcomes of every claim in a table."""
    from metastable.claims import NAMES

    sizes = {size: rows for size, rows in _outcomes().items() if rows}
    head = [heading for size in sizes for heading in (f"outcome at the {size} size", "checks passed")]
    rows = (
        [
            f"[{name}](#{label(name)})",
            *(found[name][key] if name in found else "" for found in sizes.values() for key in ("outcome", "checks")),
        ]
        for name in NAMES
    )
    return table(["claim", *head], rows)


def outcome(claim: str) -> str:
    """The recorded outcome of a claim, to follow its link in a sentence."""
    found = {size: rows[claim] for size, rows in _outcomes().items() if claim in rows}
    return "".join(f", {row['outcome']} ({row['checks']} at the {size} size)" for size, row in found.items())


def full_size() -> str:
    """That the full size of the claims was never recorded, as long as this is so."""
    return "" if _outcomes()["full"] else "The full size has not been recorded yet."


def _outcomes() -> dict[str, dict[str, Any]]:
    """The records of benchmarks/claims.py by size and name; a size that was never run has none."""
    found: dict[str, dict[str, Any]] = {}
    for size, name in {"quick": "claims", "full": "claims_full"}.items():
        path = RECORDS / f"{name}.json"
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
        found[size] = {row["name"]: row for row in rows}
    return found


def label(claim: str) -> str:
    """The label of the section about a claim."""
    return f"claim-{claim}"


def section(path: str) -> str:
    """The label of the section that shows a program of the gallery or a claim, by the path of its file; else empty.

    Pages link to the file, so that the link also works where a page is read as a file.
    """
    folder, _, file = path.rpartition("/")
    name = file.removesuffix(".py")
    if folder == "examples/gallery" and name in gallery_names():
        return f"gallery-{name}"
    if folder == "src/metastable/claims":
        from metastable import claims as room

        claim = name.replace("_", "-")
        return label(claim) if claim in room.NAMES else ""
    return ""


def ratios() -> str:
    """The tables of measured ratios, as benchmarks/ratio_tables.py prints them from the records."""
    program, printed, before = ROOT / "benchmarks" / "ratio_tables.py", io.StringIO(), set(sys.modules)
    sys.path.insert(0, str(program.parent))
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(program), run_name="__main__")
    finally:
        sys.path.remove(str(program.parent))
        if "measure" not in before:
            sys.modules.pop("measure", None)
    return printed.getvalue()


def measured(name: str) -> str:
    """A sentence about a recorded time: the record of benchmarks/NAME.py."""
    rows = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    first = rows[0]
    if name == "million":
        return (
            f"A complete run ({first['what']}) with its distance curve took {first['seconds']:.0f} seconds and "
            f"{first['peak_gib']:.1f} GiB on two cores (`benchmarks/million.py`)."
        )
    if name == "family":
        causal = next(row for row in rows if row["what"] == "causal")
        others = max(row["ratio"] for row in rows if row is not causal)
        return (
            f"At a million tokens a step with the mask takes {causal['ratio']:.0f} times as long as without it "
            f"({causal['lowest']:.1f} to {causal['highest']:.1f}). Other members that the tree serves take at most "
            f"{others:.1f} times as long per head as one softmax head (`benchmarks/family.py`)."
        )
    if name == "callback":
        middle, low, high = (f"{100 * first[key]:.2f}" for key in ("overhead", "overhead_lowest", "overhead_highest"))
        return (
            f"At the default interval of {first['every']} steps, one record and one page take {middle} % ({low} to "
            f"{high} %) of the time of the training: MiniLM, batches of {first['batch']} texts of {first['n']} tokens, "
            "two cores (`benchmarks/callback.py`)."
        )
    if name == "lab":
        frames, complete = (row["seconds"] for row in rows)
        return (
            f"A run of 5000 tokens (d = 3, β = 100) shows its first frames after {frames:.1f} s and is complete after "
            f"{complete:.1f} s (`benchmarks/lab.py`: server only, two cores, without the browser's drawing)."
        )
    if name == "serve":
        cells = (
            [
                row["setting"],
                f"{row['rate']:.1f}",
                f"{row['answered']} of {row['sent']}",
                f"{1000 * row['latency_p50']:.0f} ms",
                f"{1000 * row['latency_p99']:.0f} ms",
            ]
            for row in rows
        )
        return table(["setting", "requests per second", "answered", "median latency", "99th percentile"], cells)
    raise KeyError(name)


def whole(path: str) -> str:
    """A Markdown file outside of docs/ as it is, without its first heading."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.sub(r"\A# .*\n", "", text)


def program(path: str) -> str:
    """A program of the repository."""
    kind = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml"}[Path(path).suffix]
    return f"```{kind}\n{(ROOT / path).read_text(encoding='utf-8').rstrip()}\n```"


# ------------------------------------------------------------------------------------------------------------- gallery


def gallery_names() -> list[str]:
    return sorted(path.stem for path in PROGRAMS.glob("*.py") if not path.stem.startswith("_"))


def _told(name: str) -> tuple[str, str, str]:
    """(title, text, program without its docstring) of a program of the gallery."""
    source = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    doc, code = re.fullmatch(r'"""(.*?)"""\n+(.*)', source, flags=re.DOTALL).groups()  # type: ignore[union-attr]
    title, _, text = doc.partition("\n\n")
    return title.strip().rstrip("."), " ".join(text.split()), code.rstrip()


def gallery_page(*names: str) -> str:
    """Pictures of the gallery, each with its text and its program below it."""
    text = []
    for name in names:
        title, about, code = _told(name)
        text += [f"(gallery-{name})=", f"## {title}", "", about, "", f"![{title}](../images/gallery/{name}.png)", ""]
        text += [f"```python\n{code}\n```", ""]
    return "\n".join(text)


def gallery_grid(*names: str) -> str:
    """Small pictures that lead to the programs."""
    cards = [f"[![{_told(name)[0]}](../images/gallery/{name}.png) {_told(name)[0]}](#gallery-{name})" for name in names]
    return ":::{container} grid\n" + "\n\n".join(cards) + "\n:::"


INSERTS: dict[str, Callable[..., str]] = {
    "python": python,
    "module": module,
    "commands": commands,
    "columns": columns,
    "schemas": schemas,
    "detectors": detectors,
    "claims": claims,
    "outcomes": outcomes,
    "outcome": outcome,
    "full-size": full_size,
    "ratios": ratios,
    "measured": measured,
    "whole": whole,
    "program": program,
    "gallery-page": gallery_page,
    "gallery-grid": gallery_grid,
}
MARK = re.compile(r"<!-- insert: ([\w-]+) ?(.*?) ?-->")


def filled(text: str) -> str:
    """A page with every insert in its place."""
    return MARK.sub(lambda found: INSERTS[found[1]](*found[2].split()), text)
