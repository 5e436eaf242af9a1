"""A simulation as one value: from tables and TOML, with other values, back to TOML, and as a program."""

import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import metastable as ms
from metastable.cli.app import app
from metastable.errors import BadInput
from metastable.problem import HEAD_CHANGES, LAWS, RUN_KEYS, build_head, law_parameters, script

SPECTRA = {"interaction": [1.5, 0.6], "value": [1.0, 0.7]}
PROBLEM = ms.Problem({**SPECTRA, "angle": 30.0}, {"law": "uniform", "n": 20, "seed": 3}, 50.0, 2.0, {"tol": 1e-5})


def solved(problem):
    return ms.simulate(problem.head, problem.cloud, **problem.arguments, progress=False)


def test_it_is_the_simulation_that_one_would_write():
    head = ms.Head.from_spectra([1.5, 0.6], [1.0, 0.7], angle=30.0)
    run = ms.simulate(head, ms.uniform(20, d=2, seed=3), beta=50.0, until=2.0, tol=1e-5, progress=False)
    assert torch.equal(solved(PROBLEM).frames, run.frames)


def test_replace_finds_the_table_of_each_name():
    other = PROBLEM.replace(beta=math.inf, tol=1e-4, n=7, angle=0.0, until=1.0, law="equally_spaced")
    assert (other.beta, other.until, other.options["tol"]) == (math.inf, 1.0, 1e-4)
    assert other.head_spec["angle"] == 0.0
    assert other.cloud_spec == {"law": "equally_spaced", "n": 7, "seed": 3}
    assert PROBLEM.cloud_spec["n"] == 20
    ready = PROBLEM.replace(head=PROBLEM.head, cloud=ms.uniform(5, d=2))
    assert len(ready.cloud) == 5
    for changes, word in (({"gap": 0.1}, "gap"), ({"n": 3}, "n cannot"), ({"bta": 3}, "'beta'")):
        with pytest.raises(BadInput, match=word):
            ready.replace(**changes)


@pytest.mark.parametrize("gap", [0.1, 0.75, 1.5])
def test_the_gap_is_that_of_b(gap):
    head = build_head({"gap": gap, "value": [1.0, 1.0, 1.0], "seed": 3})
    values = np.sort(np.linalg.eigvalsh(head.B.numpy()))
    np.testing.assert_allclose(values, [1 - gap, 1 - gap, 1], atol=1e-12)
    assert head.theory().gap == pytest.approx(gap)


@pytest.mark.parametrize("angle", [0.0, 30.0, 90.0])
def test_the_angle_is_that_between_the_leading_eigenvectors(angle):
    head = ms.Head.from_spectra([1.0, 0.5, 0.2], [2.0, 1.0, 0.3], angle=angle)
    first, second = (np.linalg.eigh(a.numpy())[1][:, -1] for a in (head.B, head.V))
    assert abs(first @ second) == pytest.approx(math.cos(math.radians(angle)), abs=1e-12)
    np.testing.assert_allclose(np.sort(np.linalg.eigvalsh(head.V.numpy())), [0.3, 1.0, 2.0])


def test_faults_are_named_by_their_field():
    wrong = PROBLEM.replace(beta=-1.0, until=0.0, n=0, seed=-3, angle=math.nan, tol=0.0)
    found = wrong.faults()
    assert found.keys() == {"beta", "until", "n", "seed", "angle", "tol"}
    for name, line in found.items():
        assert line.startswith(f"{name} is ")
        assert "\n" not in line
    assert PROBLEM.faults() == {}
    assert PROBLEM.replace(n=10**12).faults() == {}
    assert "d" in PROBLEM.replace(interaction=[1.0]).faults()["head"]
    assert "unifrom" in PROBLEM.replace(law="unifrom").faults()["law"]
    assert "kappa" in PROBLEM.replace(law="von_mises_fisher").faults()["law"]


def test_toml_with_a_byte_order_mark_and_files_beside_it(tmp_path):
    np.savez(tmp_path / "head.npz", interaction=np.diag([2.0, 1.0]), value=np.eye(2))
    np.save(tmp_path / "points.npy", np.eye(2))
    text = 'beta = inf\nuntil = 1\n[head]\nfile = "head.npz"\n[cloud]\nfile = "points.npy"\n'
    (tmp_path / "run.toml").write_text(text, encoding="utf-8-sig")
    found = ms.Problem.from_toml(tmp_path / "run.toml")
    assert found.beta == math.inf
    assert found.head.B.tolist() == [[2.0, 0.0], [0.0, 1.0]]
    assert len(found.cloud) == 2


@pytest.mark.parametrize(
    "problem",
    [
        PROBLEM,
        PROBLEM.replace(beta=math.inf, head={"gap": 0.5, "value": [1.0, 0.7], "seed": 3}),
        PROBLEM.replace(head={"interaction": [[1.0, 0.2], [0.0, 0.5]], "value": [[1.0, 0.0], [0.0, 2.0]]}),
        PROBLEM.replace(
            head=ms.Head([[1.0, 0.5]], [[0.3, 1.0]], [[1.0, 0.0], [0.0, 0.5]], offset=[0.1, 0.2]),
            cloud={"law": "mixture", "n": 9, "means": [[1.0, 0.0], [0.0, 1.0]], "kappas": 3.0},
        ),
        PROBLEM.replace(cloud={"law": "graded", "n": 9}),
        PROBLEM.replace(gamma=1.5),
    ],
)
def test_toml_and_program_give_the_same_run(problem, tmp_path):
    run = solved(problem)
    (tmp_path / "run.toml").write_text(problem.to_toml(), encoding="utf-8")
    assert torch.equal(solved(ms.Problem.from_toml(tmp_path / "run.toml")).frames, run.frames)
    space = {}
    body = problem.script("Made by a test.").split("print(")[0]
    exec(body.replace("ms.simulate(head, cloud, ", "ms.simulate(head, cloud, progress=False, "), space)
    assert torch.equal(space["run"].frames, run.frames)


def test_a_program_of_two_runs_runs(tmp_path, monkeypatch):
    program = script([PROBLEM, PROBLEM.replace(beta=5.0)], "Two runs.")
    assert program.count("from_spectra") == 1
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    assert sorted(path.name for path in tmp_path.glob("*.html")) == ["other.html", "run.html"]
    assert ms.Run.load(tmp_path / "other.zarr").beta == 5.0


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({**SPECTRA, "gap": 0.1}, "both gap and interaction"),
        ({**SPECTRA, "angle": 3.0, "seed": 1}, "does not take seed"),
        ({"interaction": [[1.0]], "value": [[1.0]], "angle": 3.0}, "angle needs a list"),
        ({"interaction": [1.0, 2.0], "value": [1.0, 2.0, 3.0], "angle": 3.0}, "value"),
        ({"gap": 0.1}, "needs value"),
        ({"gap": 0.5, "value": [1.0]}, "d ≥ 2"),
        ({"gap": 0.5, "value": [True, 2]}, "d ≥ 2 numbers"),
        ({**SPECTRA, "angle": None}, "angle is None"),
        ({"gap": math.inf, "value": [1.0, 0.5]}, "gap is inf"),
    ],
)
def test_heads_that_cannot_be_built(table, word):
    with pytest.raises(BadInput, match=word) as caught:
        build_head(table)
    assert "\n" not in str(caught.value)


GAMMA = PROBLEM.replace(gamma=2.0)


def test_gamma_is_beta_over_log_n():
    run = solved(GAMMA)
    assert run.beta == 2.0 * math.log(20)
    assert run.configuration["gamma"] == 2.0
    assert torch.equal(run.frames, solved(PROBLEM.replace(beta=2.0 * math.log(20))).frames)
    assert "gamma" not in solved(PROBLEM).configuration
    assert solved(GAMMA.replace(n=7)).beta == 2.0 * math.log(7)


def test_beta_and_gamma_replace_each_other():
    assert GAMMA.arguments == {"gamma": 2.0, "until": 2.0, "tol": 1e-5}
    assert GAMMA.replace(beta=3.0).arguments == {"beta": 3.0, "until": 2.0, "tol": 1e-5}
    assert GAMMA.replace(n=5).gamma == 2.0
    assert GAMMA.faults() == {}
    assert GAMMA.replace(gamma=-1.0).faults()["gamma"].startswith("gamma is -1.0; ")
    assert "both beta and gamma" in PROBLEM.replace(beta=1.0, gamma=2.0).faults()["beta"]
    assert "beta is missing" in PROBLEM.replace(beta=None).faults()["beta"]


@pytest.mark.parametrize(
    ("tables", "word"), [({}, "beta is missing"), ({"beta": 1.0, "gamma": 2.0}, "both beta and gamma")]
)
def test_tables_have_one_temperature(tables, word):
    with pytest.raises(BadInput, match=word) as caught:
        ms.Problem.from_tables({"until": 1.0, **tables})
    assert "\n" not in str(caught.value)


def test_a_flag_replaces_the_temperature_of_the_file(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text("beta = 5\nuntil = 1\nt_eval = 4\n[cloud]\nn = 30\n")

    def run(*flags):
        return CliRunner().invoke(app, ["simulate", str(config), *flags, "--json", "--out", str(tmp_path / "out")])

    found = json.loads(run("--gamma", "2").stdout)
    assert (found["beta"], found["gamma"]) == (2.0 * math.log(30), 2.0)
    assert json.loads(run("--beta", "3", "--overwrite").stdout)["gamma"] is None
    refused = run("--gamma", "2", "--beta", "3")
    assert refused.exit_code == 2
    assert "both beta and gamma are given" in refused.stderr


def test_no_argument_of_a_law_has_the_name_of_something_else():
    """`Problem.replace` and sweeps take all names alike, so a law's `angle` would change the head."""
    others = {*HEAD_CHANGES, *RUN_KEYS}
    assert not others & {name for law in LAWS for name in law_parameters(law)}


BLOCKS = {
    "one head, another norm": ({**SPECTRA, "angle": 30.0}, {"norm": "pre"}),
    "several heads of these spectra": ({**SPECTRA, "seed": 4}, {"heads": 3, "causal": True}),
    "heads one by one": ([{**SPECTRA, "angle": 30.0}, {**SPECTRA, "seed": 2}], {"kernel": "unnormalised"}),
    "a perceptron": (
        {**SPECTRA, "seed": 1},
        {"perceptron": 5, "perceptron_seed": 7, "strength": 0.5, "activation": "tanh", "sequential": True},
    ),
    "noise": ({**SPECTRA, "seed": 1}, {"noise": 0.25, "noise_seed": 9}),
}


def block_problem(name, law="uniform"):
    head, block = BLOCKS[name]
    return ms.Problem(
        head, {"law": law, "n": 12, "seed": 3} if law == "uniform" else {"law": law, "n": 12}, 4.0, 0.5, {}, None, block
    )


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_survives_toml_and_is_written_as_a_program(name, tmp_path):
    problem = block_problem(name)
    wanted = ms.simulate(problem.block, problem.cloud, **problem.arguments, progress=False)
    (tmp_path / "run.toml").write_text(problem.to_toml(), encoding="utf-8")
    again = ms.Problem.from_toml(tmp_path / "run.toml")
    assert again.block.options == problem.block.options
    assert torch.equal(ms.simulate(again.block, again.cloud, **again.arguments, progress=False).frames, wanted.frames)
    found = {}
    lines = [line for line in problem.script().splitlines() if ".save(" not in line and ".report(" not in line]
    exec("\n".join(lines), found)
    assert torch.equal(found["run"].frames, wanted.frames)


def test_a_program_of_several_heads_has_the_head_that_tokens_are_graded_for():
    problem = block_problem("heads one by one", law="graded")
    found = {}
    exec(
        "\n".join(line for line in problem.script().splitlines() if "simulate" not in line and "run" not in line), found
    )
    assert torch.equal(found["cloud"].points, problem.cloud.points)


def test_keys_of_a_block_are_replaced_and_checked():
    problem = block_problem("noise")
    assert problem.replace(noise=0.5, kernel="sigmoid").block.options["noise"] == 0.5
    assert problem.replace(heads=2).block.name.startswith("softmax attention, 2 heads")
    wrong = problem.replace(noise=-1.0, norm="layer", heads=0, perceptron=-2, activation="x", kernel="hard").faults()
    assert set(wrong) == {"noise", "norm", "heads", "perceptron", "activation", "kernel"}
    assert "norm 'post'" in problem.replace(norm="pre").faults()["noise"]
    for changes, word in (({"heads": 2, "angle": 3.0}, "angle"), ({"strength": 2.0}, "no perceptron")):
        with pytest.raises(BadInput, match=word):
            _ = problem.replace(**changes).block
    with pytest.raises(BadInput, match="2 heads are given one by one"):
        _ = block_problem("heads one by one").replace(heads=3).block
    ready = problem.replace(block=problem.block)
    with pytest.raises(BadInput, match="weights"):
        ready.replace(noise=0.1)
    with pytest.raises(BadInput, match="weights"):
        ready.to_toml()


def test_the_command_line_makes_a_block(tmp_path):
    flags = [
        "--causal",
        "--norm",
        "pre",
        "--heads",
        "2",
        "--perceptron",
        "4",
        "--beta",
        "3",
        "--until",
        "0.5",
        "--n",
        "8",
    ]
    found = CliRunner().invoke(app, ["simulate", *flags, "--json", "--out", str(tmp_path / "run")])
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    assert said["member"] == "softmax attention, 2 heads, causal, pre-LN, 4 neurons beside attention"
    assert "causal mask" in said["no_limit"]
    run = ms.Run.load(tmp_path / "run")
    assert run.block.options["causal"]
    assert said["member"] in (tmp_path / "run" / "report.html").read_text(encoding="utf-8").split("</title>")[0]
    (tmp_path / "two.toml").write_text(
        "beta = 3.0\nuntil = 1.0\n" + "[[head]]\ninteraction = [1.0, 0.5]\nvalue = [1.0, 0.3]\n" * 2
    )
    refused = CliRunner().invoke(app, ["simulate", str(tmp_path / "two.toml"), "--value", "1,2"])
    assert refused.exit_code == 2
    assert "several heads" in refused.output
