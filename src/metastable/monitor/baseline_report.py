"""The page of a baseline as one HTML file that needs no network, and the warnings about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from metastable import figures
from metastable.encoder.texts import unknown_tokens
from metastable.monitor.coverage import THRESHOLDS, smallest_possible
from metastable.monitor.detectors import DETECTORS
from metastable.monitor.exposure import CALLED, EXPOSURE
from metastable.monitor.split import SHARES
from metastable.monitor.spoiling import KINDS
from metastable.report.page import figure_block, render_page, short_name, target_of, write_page

if TYPE_CHECKING:
    from metastable.monitor.baseline import Baseline

# A text that makes up a larger share of the clean texts is warned of.
REPEATED = 0.01
# A larger share of texts that were cut, or left out, is warned of.
MUCH = 0.05
PARTS = {"fit": "to fit detectors on", "adjust": "for scales and lengths", "calibrate": "to rank new texts among"}


def write(baseline: Baseline, path: str | Path) -> Path:
    """Write the page to `path`, completely or not at all. Missing folders are made."""
    return write_page(target_of(path), render(baseline))


def warnings(baseline: Baseline) -> list[str]:
    """What may make p-values wrong, one sentence each. Texts of too few documents are refused by `Split.check`."""
    facts, found = baseline.facts, []
    texts, commonest = sum(facts["parts"].values()), facts["commonest"]
    if commonest > REPEATED:
        found.append(
            f"one text makes up {commonest:.1%} of the clean texts; if the stream repeats it less often, p-values are "
            f"off by up to {commonest / SHARES['calibrate']:.1%}"
        )
    found += [sentence.removeprefix("Warning: ") for sentence in unknown_tokens(facts)]
    if facts["cut"] > MUCH * texts:
        found.append(f"{facts['cut']} of {texts} texts were cut to the model's limit; their ends were not read")
    left_out = sum(facts["left_out"].values())
    if left_out > MUCH * (texts + left_out):
        found.append(f"{left_out} of {texts + left_out} texts were left out; see the reasons")
    for name, rows in facts["coverage"].items():
        for row in rows:
            for t in THRESHOLDS:
                entry = row["p_marginal"][f"{t:g}"]
                if entry["off"]:
                    found.append(
                        f"setting {name}: {entry['share']:.1%} of clean texts of {row['least']} to {row['most']} "
                        f"tokens have p ≤ {t:g}; texts of this length are found strange too often"
                    )
    return found


def render(baseline: Baseline) -> str:
    """The page as HTML."""
    facts = baseline.facts
    histogram, documents = facts["lengths"]["histogram"], facts["documents"]
    later = sum(entry["texts"] for entry in baseline.accepted)
    parts = [
        (
            part,
            PARTS[part] + f", and {later} more that were accepted later" * (part == "calibrate" and bool(later)),
            facts["parts"][part],
            None if documents is None else documents[part],
        )
        for part in PARTS
    ]
    warned = [f"{sentence[0].upper()}{sentence[1:]}." for sentence in warnings(baseline)]
    return render_page(
        "baseline.html.j2",
        name=short_name(baseline.encoder_name),
        fingerprint=baseline.fingerprint[:12],
        facts=facts,
        texts=sum(facts["parts"].values()),
        headline=_headline(baseline, len(warned)),
        warnings=warned,
        parts=parts,
        documents=documents is not None,
        accepted=baseline.accepted,
        settings=[_setting(name, scorer) for name, scorer in baseline.settings.items()],
        thresholds=[f"{t:g}" for t in THRESHOLDS],
        coverage=facts["coverage"],
        unreachable=any(
            not entry.get("possible", True)
            for rows in facts["coverage"].values()
            for row in rows
            for entry in row["p_value"].values()
        ),
        percent=_hundredths,
        histogram=figure_block("lengths", figures.length_histogram(histogram["edges"], histogram["counts"])),
        left_out=sorted(facts["left_out"].items(), key=lambda item: -item[1]),
    )


def _headline(baseline: Baseline, warned: int) -> str:
    texts = sum(baseline.facts["parts"].values())
    checks = [rows for rows in baseline.facts["coverage"].values() if rows]
    later = sum(entry["texts"] for entry in baseline.accepted)
    told = f"A baseline of {texts} clean texts"
    if later:
        told += f" and {later} accepted later"
    # All settings are checked with the same texts, so the same thresholds are possible.
    if checks and (t := smallest_possible(checks[0])) is not None:
        shares = [rows[0]["p_value"][t]["share"] for rows in checks]
        low, high = _percent(min(shares)), _percent(max(shares))
        share = low if low == high else f"{low} to {high}"
        told += f": {share} of held-out clean texts have p ≤ {t}"
        if later:
            told += ", checked before those were accepted"
    if warned:
        told += f", and there {'is one warning' if warned == 1 else f'are {warned} warnings'}"
    return f"{told}."


def _percent(share: float) -> str:
    return f"{_hundredths(share)} %"


def _hundredths(share: float) -> str:
    """A share in per cent, without the sign."""
    return f"{100 * share:.{2 if share < 0.00995 else 1}f}"


def _detectors(setting: Any) -> list[tuple[str, str, str]]:
    """Rows of the table of a setting: a detector, why it finds a text strange, and its weight in the score."""
    own = {name: DETECTORS[name] for name in setting.members}
    unnamed = "; records do not name this detector"
    rows = [(n, d.words + unnamed * (not d.explains), setting.weights.get(n, 0.0)) for n, d in own.items()]
    if setting.exposed:
        kinds = f"{', '.join(list(KINDS)[:-1])} or {list(KINDS)[-1]}"
        words = (
            "it looks more like copies of clean texts that were spoilt on purpose than like clean texts. The copies "
            f"have {kinds}. The classifier reads the columns of {', '.join(setting.exposed)}"
        )
        rows.append((CALLED, words, setting.weights.get(EXPOSURE, 0.0)))
    return [(name, words, f"{weight:g}" if weight else "–") for name, words, weight in rows]


def _setting(name: str, scorer: Any) -> dict[str, Any]:
    return {
        "name": name,
        "texts": scorer.texts,
        "least": f"{scorer.least:.2g}",
        "least_marginal": f"{1 / (scorer.texts + 1):.2g}",
        "independent": scorer.independent_words,
        "detectors": _detectors(scorer.setting),
    }
