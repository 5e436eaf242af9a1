"""`metastable simulate`: follow a cloud of tokens under a head or a block and report the three phases."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metastable.cli.exits import one_line_errors, slow_machine_note
from metastable.cli.options import AsJson, Debug
from metastable.errors import BadInput

if TYPE_CHECKING:
    from metastable.problem import Problem
    from metastable.run.run import Run

SCHEMA = "metastable.simulate/1"
DEFAULT_HEAD = {"interaction": [1.5, 1.0, 0.6], "value": [1.2, 0.9, 0.5], "seed": 0}
DEFAULT_CLOUD = {"law": "uniform", "n": 1000}


def simulate(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; flags override its values.")] = None,
    beta: Annotated[float | None, typer.Option(help="Inverse temperature, 0 or more; inf is hardmax.")] = None,
    gamma: Annotated[
        float | None, typer.Option(help="In place of --beta: beta = gamma log N for N tokens, gamma 0 or more.")
    ] = None,
    until: Annotated[float | None, typer.Option(help="The time at which to stop.")] = None,
    interaction: Annotated[str | None, typer.Option(help="Eigenvalues of B, for example 1.5,1.0,0.6.")] = None,
    value: Annotated[str | None, typer.Option(help="Eigenvalues of V, for example 1.2,0.9,0.5.")] = None,
    head: Annotated[
        str | None,
        typer.Option(help="A .npz file with query, key and value; or MODEL:layer:head of a trained encoder."),
    ] = None,
    texts: Annotated[
        str | None, typer.Option(help="With MODEL:layer:head: start from the tokens of these texts.")
    ] = None,
    law: Annotated[
        str | None,
        typer.Option(
            help="uniform, graded, fibonacci (d = 3), equally_spaced (d = 2), von_mises_fisher or mixture; "
            "for a trained head tokens or uniform."
        ),
    ] = None,
    n: Annotated[int | None, typer.Option(help="Number of tokens.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the starting law.")] = None,
    kernel: Annotated[str | None, typer.Option(help="softmax, unnormalised, sigmoid or linear attention.")] = None,
    causal: Annotated[bool | None, typer.Option("--causal", help="Token i attends to tokens j <= i only.")] = None,
    norm: Annotated[
        str | None, typer.Option(help="post (tokens on the sphere), pre, peri, ngpt, or none with exp(-tV).")
    ] = None,
    noise: Annotated[float | None, typer.Option(help="Strength of a Brownian motion on the sphere.")] = None,
    noise_seed: Annotated[int | None, typer.Option(help="Seed of the noise.")] = None,
    heads: Annotated[int | None, typer.Option(help="Number of random heads that add, all of these spectra.")] = None,
    perceptron: Annotated[int | None, typer.Option(help="Number of neurons of a random perceptron.")] = None,
    sequential: Annotated[
        bool | None, typer.Option("--sequential", help="In layers, the perceptron follows attention.")
    ] = None,
    tol: Annotated[
        float | None, typer.Option(help="Largest error per step of dopri5; default 1e-6, above 100 000 tokens 1e-4.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="auto, dopri5, rk4, heun, euler or layers.")] = None,
    step: Annotated[float | None, typer.Option(help="Step of the fixed-step methods; the length of a layer.")] = None,
    t_eval: Annotated[int | None, typer.Option(help="Number of equally spaced times to save.")] = None,
    engine: Annotated[str | None, typer.Option(help="auto, dense, flash, direct or tree.")] = None,
    merge: Annotated[
        float | None, typer.Option(help="Merge tokens closer than this; the error is bounded and reported.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for run.zarr, run.json and report.html.")] = Path("metastable-run"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another run in that folder.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Follow a cloud of tokens under a head or a block and report the three phases.

    The run is saved while it is computed: the same command after an interruption resumes it.
    """
    flags = _given(beta=beta, gamma=gamma, until=until)
    flags |= _given(tol=tol, method=method, step=step, t_eval=t_eval, engine=engine, merge=merge)
    law_flags = _given(law=law, n=n, seed=seed)
    block_flags = _given(kernel=kernel, causal=causal, norm=norm, noise=noise, noise_seed=noise_seed, heads=heads)
    block_flags |= _given(perceptron=perceptron, sequential=sequential)
    with one_line_errors(debug), slow_machine_note():
        from metastable import files
        from metastable.run import storage
        from metastable.run.simulation import simulate as solve

        trained = head is not None and not head.endswith(".npz")
        if trained:
            problem = _trained_head(config, str(head), texts, {**flags, **law_flags, **block_flags})
        else:
            spectra = {
                name: _spectrum(name, text) for name, text in _given(interaction=interaction, value=value).items()
            }
            problem = _written_head(config, flags, {**spectra, **_given(file=head)}, law_flags, block_flags)
        if out.exists() and not out.is_dir():
            raise BadInput(f"--out {out} is a file; give a folder")
        target = storage.run_path(out)
        loaded = target.exists() and not overwrite
        run = solve(problem.block, problem.cloud, **problem.arguments, checkpoint=target, overwrite=overwrite)
        found = findings(run)
        if trained:
            from metastable.encoder.trained_head import sentence

            found["followed"] = sentence(run)
        report = run.report(out / "report.html")
        found |= {"loaded": loaded, "run": str(target), "report": str(report)}
        if as_json:
            print(files.to_json(found))
        else:
            print("\n".join(_lines(found)))


def _known(**numbers: float) -> dict[str, float | None]:
    """Numbers by name; None for those that are not known."""
    return {name: None if math.isnan(value) else value for name, value in numbers.items()}


def _given(**flags: Any) -> dict[str, Any]:
    """The flags that are on the command line."""
    return {name: value for name, value in flags.items() if value is not None}


def _written_head(
    config: Path | None, flags: dict[str, Any], head: dict[str, Any], law: dict[str, Any], block: dict[str, Any]
) -> Problem:
    """The simulation of the TOML file, if any, with the flags written over it."""
    from metastable.problem import TEMPERATURES, Problem, read_toml

    tables = read_toml(config) if config else {}
    if any(name in flags for name in TEMPERATURES):
        tables = {name: value for name, value in tables.items() if name not in TEMPERATURES}
    given: Any = tables.get("head") or DEFAULT_HEAD
    if isinstance(given, list) and head:
        raise BadInput(f"--{next(iter(head))} cannot change several heads of {config}; change the file")
    given = head if "file" in head else given if isinstance(given, list) else {**given, **head}
    cloud = {**(tables.get("cloud") or DEFAULT_CLOUD), **law}
    block = {**tables.get("block", {}), **block}
    return Problem.from_tables({**tables, **flags, "head": given, "cloud": cloud, "block": block})


def _trained_head(config: Path | None, address: str, texts: str | None, flags: dict[str, Any]) -> Problem:
    """The simulation of a head of a trained encoder, MODEL:layer:head. One unit of time is one layer."""
    from metastable.encoder import trained_head
    from metastable.encoder.texts import read_texts
    from metastable.problem import one_temperature, resolved_beta

    if config is not None:
        raise BadInput(f"--head {address} is a head of a trained encoder and takes flags only; leave out {config}")
    if "gamma" in flags:
        one_temperature(flags)
    chosen = {key: flags.pop(key) for key in ("beta", "until", "law", "n", "seed") if key in flags}
    problem = trained_head.prepare(address, None if texts is None else list(read_texts(texts)), **chosen)
    problem = problem.replace(**flags)
    if "gamma" in flags and "until" not in chosen:
        beta = resolved_beta(None, problem.gamma, len(problem.cloud))
        problem = problem.replace(until=trained_head.default_horizon(problem.head, beta))
    return problem


def _spectrum(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"--{name} is {text!r}; give numbers with commas, as 1.5,1.0,0.6") from None


def findings(run: Run) -> dict[str, Any]:
    """The findings of a run. Numbers that do not exist (no limit, phase not seen) are None."""
    from metastable.report.sentences import ending, gathering

    theory = run.theory()
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "tokens": len(run.cloud),
        "dimension": run.cloud.dim,
        "beta": run.beta,
        "gamma": run.configuration.get("gamma"),
        "horizon": run.horizon,
        "member": run.block.name,
        "plain": run.block.plain,
        "law": run.cloud.law["law"],
        "steps": run.configuration.get("steps"),
        "evaluations": run.configuration.get("evaluations"),
        "engine": run.configuration.get("engine"),
        "merging": _merging(run),
        "assumptions": theory.verdict.status,
        "unmet": theory.verdict.unmet,
        "no_limit": theory.no_limit,
        **_known(gap=theory.gap, token_rate=theory.rate, law_rate=theory.law_rate()),
    }
    if theory.no_limit:
        return found if run.block.plain else {**found, "sentences": [gathering(run)]}
    distance = run.distance()
    found["final_distance"] = float(distance[-1])
    if math.isinf(theory.gap):
        everywhere = "every direction is dominant: each token starts at its limit, so there are no phases"
        return {**found, "no_limit": everywhere}
    phases = run.phases()
    return {
        **found,
        "limit_dimension": theory.dim,
        "least_distance": phases.least,
        "least_time": phases.least_time,
        "concentrated": phases.concentrated,
        "terminal": phases.terminal,
        "plateaus": [asdict(plateau) for plateau in phases.plateaus],
        "distance_method": distance.attrs["method"],
        "noise_floor": run.noise_floor().mean,
        "sentences": [*filter(None, [ending(run)]), *phases.sentences],
    }


def _merging(run: Run) -> dict[str, Any] | None:
    """The merging distance, the tokens left at the end and bounds of the error; None for a run without merging."""
    if run.merged is None:
        return None
    error = run.merge_error()
    return {
        "distance": error.attrs["delta"],
        "live": int(error["live"][-1]),
        "largest_error": float(error["largest"][-1]),
        "final_error": float(error[-1]),
        "unknown_from": error.attrs["vacuous_after"],
        "sentence": run.merge_sentence(),
    }


def _lines(found: dict[str, Any]) -> list[str]:
    """The findings for a terminal."""
    text = [f"finished earlier, loaded from {found['run']}"] if found["loaded"] else []
    beta = found["beta"] if found["gamma"] is None else f"{found['beta']:.6g} = {found['gamma']:g} log N"
    size = f"{found['tokens']} tokens, d = {found['dimension']}, beta = {beta}, to t = {found['horizon']:g}"
    text.append(f"{size}: {found['steps']} steps, {found['evaluations']} field evaluations ({found['engine']})")
    if not found["plain"]:
        text.append(found["member"])
    unmet = ", ".join(found["unmet"])
    text.append(f"assumptions of the theory: {f'not all hold: {unmet}' if unmet else 'all hold'}")
    if found["merging"]:
        text.append(found["merging"]["sentence"])
    if "followed" in found:
        text.append(found["followed"])
    if found["no_limit"]:
        text.append(found["no_limit"])
        text += found.get("sentences", [])
    else:
        text += found["sentences"]
        text.append(f"noise floor {found['noise_floor']:.2g}: W2 of two independent samples of the limit law")
    return [*text, f"report: {found['report']}"]
