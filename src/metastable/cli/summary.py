"""What a run found, as plain numbers for machines and as lines for people."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from metastable.run.run import Run

SCHEMA = "metastable.simulate/1"
MOST_UNUSUAL = 5
PLACES = ("depth", "layer", "head")


def summarise(run: Run) -> dict[str, Any]:
    """The findings of a run; numbers that do not exist (no limit, never seen) are None."""
    th = run.theory
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "tokens": len(run.cloud),
        "dimension": run.cloud.dim,
        "beta": _plain(run.beta),
        "horizon": run.horizon,
        "law": run.cloud.law["law"],
        "steps": run.configuration.get("steps"),
        "evaluations": run.configuration.get("evaluations"),
        "engine": run.configuration.get("engine"),
        "merging": _merging(run),
        "assumptions": th.verdict.status,
        "unmet": th.verdict.unmet,
        "no_limit": th.no_limit,
        "gap": _plain(th.gap),
        "token_rate": _plain(th.rate),
        "law_rate": _plain(th.law_rate()),
    }
    if th.no_limit:
        return found
    if math.isinf(th.gap):
        everywhere = (
            "every direction is dominant: each token starts at its limit, and there are no phases to tell apart"
        )
        return {**found, "no_limit": everywhere, "final_distance": float(run.distance()[-1])}
    phases = run.phases()
    distance = run.distance()
    return {
        **found,
        "limit_dimension": th.dim,
        "least_distance": phases.least,
        "least_time": phases.least_time,
        "concentrated": phases.concentrated,
        "terminal": phases.terminal,
        "plateaus": [asdict(plateau) for plateau in phases.plateaus],
        "final_distance": float(distance[-1]),
        "distance_method": distance.attrs["method"],
        "noise_floor": run.noise_floor().mean,
        "sentences": list(phases.sentences),
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The summary for a terminal."""
    head = f"{found['tokens']} tokens, d = {found['dimension']}, beta = {found['beta']}, to t = {found['horizon']:g}"
    cost = f"{found['steps']} steps, {found['evaluations']} field evaluations ({found['engine']})"
    assumptions = "all hold" if not found["unmet"] else "not all hold: " + ", ".join(found["unmet"])
    text = [f"{head}: {cost}", f"assumptions of the theory: {assumptions}"]
    if found["merging"]:
        text.append(found["merging"]["sentence"])
    if "followed" in found:
        text.append(found["followed"])
    if found["no_limit"]:
        return [*text, found["no_limit"]]
    floor = f"noise floor {found['noise_floor']:.2g}: W2 of two independent samples of the limit law, for scale"
    return [*text, *found["sentences"], floor]


def _merging(run: Run) -> dict[str, Any] | None:
    """Distance, live tokens at the end, and bounds of the error; None for a run without merging."""
    if run.merged is None:
        return None
    error = run.merge_error()
    return {
        "distance": error.attrs["delta"],
        "live": int(error["live"][-1]),
        "largest_error": _plain(float(error["largest"][-1])),
        "final_error": _plain(float(error[-1])),
        "unknown_from": error.attrs["vacuous_after"],
        "sentence": run.merge_sentence(),
    }


def _plain(value: float) -> float | str:
    """JSON has no infinity."""
    return value if math.isfinite(value) else str(value)


def audit_lines(found: dict[str, Any]) -> list[str]:
    """An audit for a terminal."""
    audit, verdict = found["audit"], found["audit"].verdict
    out = [repr(audit), verdict.headline, *(f"  {sentence}" for sentence in verdict.sentences)]
    if len(verdict.unusual):
        out.append(f"unusual for this model: {len(verdict.unusual)} values, first")
        out += [f"  {sentence}" for sentence in verdict.unusual["sentence"].head(MOST_UNUSUAL)]
    if audit.loop is not None:
        out.append(audit.loop.sentence())
    if found["findings"] is not None:
        out.append(f"--fail-on is met by {len(found['findings'])} rows")
        out += [f"  {_place(row)}" for row in found["findings"].to_dict("records")[:MOST_UNUSUAL]]
    return [*out, f"report: {found['written']['report']}"]


def audit_json(found: dict[str, Any]) -> str:
    """An audit for machines: the verdict, where the tables are, and the rows that meet --fail-on."""
    saved = found["audit"].to_dict()
    plain = {name: saved[name] for name in ("schema", "name", "family", "fingerprint", "shape", "made", "verdict")}
    rows = None if found["findings"] is None else found["findings"].to_dict("records")
    findings = None if rows is None else [{key: row[key] for key in PLACES if key in row} for row in rows]
    return json.dumps({**plain, "findings": findings, "written": found["written"]}, indent=1, ensure_ascii=False)


def comparison_lines(found: dict[str, Any]) -> list[str]:
    """A comparison for a terminal."""
    return [*found["comparison"].sentences(), f"report: {found['written']['report']}"]


def comparison_json(found: dict[str, Any]) -> str:
    """A comparison for machines."""
    moved = found["comparison"].heads
    places = moved.loc[moved["moved"], ["rank", "layer", "head"]].to_dict("records")
    sentences = found["comparison"].sentences()
    plain = {"schema": "metastable.compare/1", "moved": places, "sentences": sentences, "written": found["written"]}
    return json.dumps(plain, indent=1, ensure_ascii=False)


def _place(row: dict[str, Any]) -> str:
    return ", ".join(f"{key} {row[key]}" for key in PLACES if key in row)
