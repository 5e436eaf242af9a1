"""What a run found, as plain numbers for machines and as lines for people."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from metastable.run.run import Run

SCHEMA = "metastable.simulate/1"


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
