"""The command line as a user meets it: listings, a small comparison, and one clear line for every mistake."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from opselect.cli import _gather_lists

ROOT = pathlib.Path(__file__).parents[1]


def in_a_new_process(*arguments):
    """What a user sees, TensorFlow's start included: nothing on stderr."""
    code = "from opselect.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    "command", ["compare", "report", "suite", "train", "tasks", "learners", "envs", "gradients", "doctor"]
)
def test_every_command_has_help(command, opselect):
    assert "Usage: opselect" in opselect(command, "--help").stdout


def test_the_suite_shows_what_learners_cannot_do(opselect, tmp_path):
    agents = tmp_path / "agents.jsonl"
    agents.write_text('{"agent": "PPO", "challenge": "basic-4", "score": 0.97, "low": 0.95, "high": 0.98}\n')
    arguments = (
        "suite", "--axes", "basic", "blending", "sparse", "--learners", "reinforce-rloo", "soft-mixture", "--quick",
        "--seeds", "5", "--steps", "40", "--beside", agents, "--out", tmp_path / "suite",
    )  # fmt: skip
    done = opselect(*arguments)
    assert re.search(r"basic-4 +0\.091 +0\.\d+ +0\.\d+ +0\.970", done.stdout)
    assert re.search(r"sparse-2 +0\.050 +-?0\.\d+ +- ", done.stdout)
    assert "sparse: nobody passes" in done.stdout
    told = json.loads((tmp_path / "suite" / "suite.json").read_text())
    assert {row["learner"] for row in told["axes"]} == {"reinforce-rloo", "soft-mixture", "PPO"}
    assert (tmp_path / "suite" / "suite.html").stat().st_size > 20_000
    again = opselect(*arguments)  # nothing is run twice
    assert again.stdout == done.stdout
    agents.write_text("{}")
    assert "line 1: needs" in opselect(*arguments, status=2).stderr
    assert "did you mean 'noise'" in opselect("suite", "--axes", "nose", status=2).stderr


def test_gradients_measures_draws_and_writes(opselect, tmp_path):
    done = opselect(
        "gradients", "--problem", "quadratic", "joint", "--estimators", "exact", "reinforce-rloo", "--quick",
        "--out", tmp_path,
    )  # fmt: skip
    assert "Use exact" in done.stdout
    rows = json.loads((tmp_path / "gradients.json").read_text())["rows"]
    assert {(row["problem"], row["estimator"]) for row in rows} == {
        (p, e) for p in ("quadratic", "joint") for e in ("exact", "reinforce-rloo")
    }
    keys = {"bias", "bias_se", "variance", "evaluations", "cosine", "zero_share", "nan_share", "microseconds"}
    assert all(keys <= set(row) for row in rows)
    rloo = next(row for row in rows if row["problem"] == "quadratic" and row["estimator"] == "reinforce-rloo")
    assert rloo["evaluations"] == 4
    assert rloo["variance"] == pytest.approx(2.577, rel=0.2)  # tests/data/estimator_golden.json, rloo_k4
    assert (tmp_path / "gradients.png").stat().st_size > 10_000
    assert "did you mean 'quadratic'" in opselect("gradients", "--problem", "quadrtic", status=2).stderr


def test_gradients_vary_with_what_is_varied():
    from opselect.estimators import ESTIMATORS
    from opselect.gradients.problems import SWEEPS, sweeps

    varied = list(sweeps(["reinforce", "gumbel-softmax", "reinmax"]))
    assert {what for what, *_ in varied} == set(SWEEPS)
    for what, value, problem, chosen in varied:
        assert len(problem.outputs) == len(problem.logits[0])
        if what == "operations":
            assert len(problem.outputs) == value
        if what == "decisions":
            assert len(problem.logits) == value
        if what == "temperature":
            assert "reinforce" not in chosen
            assert all(e.temperature == value for e in chosen.values())
    assert ESTIMATORS["gumbel-softmax"].temperature == 1.0


def test_listings(opselect):
    assert "OpChain" in opselect("tasks").stdout
    shown = opselect("learners").stdout
    from opselect.learners import LEARNERS

    assert all(name in shown for name in LEARNERS)
    assert "opselect_envs:opselect/ScalarOpGoal-v0" in opselect("envs").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["compare", "--tasks", "scalarop-goal"],
            "--tasks: unknown name 'scalarop-goal'; did you mean 'ScalarOpGoal'?",
        ),
        (["compare", "--learners", "reinforce-loo"], "unknown name 'reinforce-loo'; did you mean 'reinforce-rloo'?"),
        (["compare", "--quick", "--full"], "--quick and --full exclude each other"),
        (["compare", "--seeds", "0"], "--seeds: must be from 1 to 1000, got 0; the nearest valid value is 1"),
        (["compare", "--out", str(ROOT / "README.md" / "x")], "README.md is a file, not a folder"),
        (["report", "no/such/place"], "DIR: there is no directory no/such/place"),
        (["report", str(ROOT / "scripts")], "DIR: no results under"),
        (["train"], "give either --task or --env"),
        (["train", "--task", "OpChian"], "did you mean 'OpChain'?"),
        (["train", "--env", "CartPole-v1", "--learner", "soft-mixture"], "'soft-mixture' can't learn"),
        (["train", "--env", "CartPole-v9"], "nearest known id is 'CartPole-v1'"),
        (["train", "--env", "Pendulum-v1"], "only Discrete can be trained here"),
        (["train", "--task", "ScalarOp,OpChain"], "--task: takes one name, got 'ScalarOp,OpChain'"),
        (["train", "--task", "ScalarOp", "--learner", "exact,reinforce"], "--learner: takes one name"),
        (["train", "--task", "ScalarOp", "--out", str(ROOT / "README.md" / "p.keras")], "is a file, not a folder"),
        (["train", "--task", "ScalarOp", "--out", "policy.h5"], "--out: must end in .keras, got 'policy.h5'"),
    ],
)
def test_mistakes_get_one_clear_line(arguments, message, opselect):
    done = opselect(*arguments, status=2)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_unknown_command_or_option_names_the_nearest(opselect):
    assert "compare" in opselect("compair", status=2).stderr
    assert "--seeds" in opselect("compare", "--seed_count", "3", status=2).stderr


def test_list_options_take_words_commas_and_repetition():
    assert _gather_lists(["compare", "--tasks", "A", "B", "--seeds", "3"]) == [
        *("compare", "--tasks", "A,B", "--seeds", "3")
    ]
    assert _gather_lists(["--tasks", "A,B", "--tasks", "C"]) == ["--tasks", "A,B", "--tasks", "C"]
    assert _gather_lists(["--learners", "a", "b", "c"]) == ["--learners", "a,b,c"]


def without_seconds(summary):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in summary["rows"]]


def test_a_small_comparison_end_to_end(tmp_path, opselect):
    """Two runs of one seed agree bit for bit, and a third into the first's folder runs nothing again."""
    arguments = [
        "compare",
        "--tasks",
        "ScalarOp",
        "--learners",
        "exact",
        "soft-mixture",
        "--seeds",
        "2",
        "--steps",
        "60",
    ]
    shown = opselect(*arguments, "--out", tmp_path / "a").stdout
    assert re.search(r"exact\s+0\.9\d\d", shown)
    assert "Traceback" not in shown
    in_a_new_process(*arguments, "--out", tmp_path / "b")
    first, second = ((tmp_path / d / "summary.json").read_bytes() for d in "ab")
    rows = json.loads(first)["rows"]
    assert without_seconds(json.loads(second)) == without_seconds(json.loads(first))
    curves = [(tmp_path / d / "curves.csv").read_bytes() for d in "ab"]
    assert curves[0] == curves[1]
    opselect(*arguments, "--out", tmp_path / "a")
    assert (tmp_path / "a" / "summary.json").read_bytes() == first

    assert [(r["task"], r["learner"], r["seeds"]) for r in rows] == [
        ("ScalarOp", "exact", 2),
        ("ScalarOp", "soft-mixture", 2),
    ]
    table = pd.read_csv(tmp_path / "a" / "curves.csv")
    assert list(table.columns) == ["task", "learner", "seed", "step", "evaluations", "hard_score", "soft_score"]
    last = table[(table.learner == "exact") & (table.step == 60)]
    assert rows[0]["hard_score"]["iqm"] == pytest.approx(last.hard_score.mean())
    assert rows[0]["evaluations"] == 60 * 256 * 10
    assert 0.5 < rows[0]["hard_score"]["iqm"] < 1.0
    assert np.isfinite(rows[1]["gap"]["iqm"])
    assert "soft-mixture" in (tmp_path / "a" / "report.html").read_text()


def test_a_report_is_rebuilt_and_merged(tmp_path, opselect):
    """From one directory the same bytes; from two one comparison; what is damaged is named."""
    for name, learner in (("a", "exact"), ("b", "soft-mixture")):
        opselect(
            "compare", "--tasks", "ScalarOp", "ScalarOpGoal", "--learners", learner, "--seeds", 5, "--steps", 4,
            "--out", tmp_path / name,
        )  # fmt: skip
    a, b, both = (tmp_path / name for name in ("a", "b", "both"))
    written = {p.name: p.read_bytes() for p in a.iterdir() if p.is_file()}
    assert sorted(written) == ["comparison.json", "curves.csv", "report.html", "summary.json", "summary.md"]
    opselect("report", a)
    assert {p.name: p.read_bytes() for p in a.iterdir() if p.is_file()} == written

    done = opselect("report", a, b, "--out", both)
    assert re.search(r"Over all 2 tasks \S+ has the highest hard score", done.stdout)
    assert "note:" not in done.stdout
    summary = json.loads((both / "summary.json").read_text())
    assert summary["rows"][0] == json.loads(written["summary.json"])["rows"][0]
    assert {row["learner"] for row in summary["rows"]} == {"exact", "soft-mixture"}
    page = (both / "report.html").read_text()
    assert "--learners soft-mixture" in page.replace(",", " ")
    assert f"opselect report {a} {b} --out {both}" in page

    (damaged,) = (b / "cells").glob("ScalarOp-soft-mixture-*/result.npz")
    damaged.write_bytes(damaged.read_bytes()[:100])
    done = opselect("report", a, b, "--out", both)
    assert f"note: skipped: {damaged} is not a whole result" in done.stdout
    assert str(damaged) in (both / "report.html").read_text()


def test_training_a_task_says_its_score_last(tmp_path, opselect):
    done = opselect("train", "--task", "ScalarOp", "--steps", 60, "--seed", 3, "--out", tmp_path / "p.keras")
    assert re.fullmatch(r"score 0\.\d{4}", done.stdout.strip().splitlines()[-1])
    assert (tmp_path / "p.keras").exists()
    assert done.stderr == ""


def test_training_an_environment_says_its_return_last():
    shown = in_a_new_process("train", "--env", "CartPole-v1", "--learner", "reinforce-value", "--steps", 2000)
    assert re.fullmatch(r"return \d+\.\d", shown.strip().splitlines()[-1])


PATIENT = """
import dataclasses

import tensorflow as tf

HALF = 0.5


def ratio(diff, total):
    return tf.where(total == 0, 0.0, diff / total)


def root(x):
    return tf.where(x > 0, tf.sqrt(x), 0.0)


def wave(x, scale=2.0):
    return tf.sin(x) * scale


def wide(a, b, c, d):
    return a + b + c + d


def careless(x):
    return tf.reshape(x, [100])
"""


@pytest.fixture
def patient(tmp_path):
    path = tmp_path / "patient.py"
    path.write_text(PATIENT)
    return path


def test_the_doctor_probes_and_names_the_operation(patient, opselect):
    done = opselect("doctor", f"{patient}:ratio", status=1)
    shown = " ".join(done.stdout.split())
    assert "tf.divide (/)" in shown
    assert "patient.py:10: return tf.where(total == 0, 0.0, diff / total)" in shown
    assert "at (-2, 0), (-1, 0), (-0.5, 0)" in shown
    assert "note: diff, total probed at every combination of -2, -1, -0.5, 0, 0.5, 1, 2" in shown
    assert done.stderr == ""


def test_the_doctor_takes_inputs(patient, opselect):
    shown = opselect("doctor", f"{patient}:root", "--input", "[0.0, -1.0]", status=1).stdout
    assert re.search(r"x +NaN +XLA +tf\.sqrt", shown)
    assert "x[0] = 0, x[1] = -1" in shown
    assert "probed" not in shown
    assert "healthy" in opselect("doctor", f"{patient}:root", "--input", "[1.0, 4.0]").stdout
    assert "healthy" in opselect("doctor", f"{patient}:ratio", "--input", "1.0", "--input", "(2.0, 3.0)").stdout


def test_the_doctor_finds_nothing_in_a_healthy_function(patient, opselect):
    shown = opselect("doctor", f"{patient}:wave").stdout
    assert "wave: healthy (looked at x)" in shown
    assert "note: x probed at -2, -1, -0.5, 0, 0.5, 1, 2" in shown


@pytest.mark.parametrize(
    ("function", "inputs", "message"),
    [
        ("ratoi", [], "patient.py has no function 'ratoi'; did you mean 'ratio'?"),
        ("HALF", [], "'HALF' in patient.py is not a function, but float"),
        ("wide", [], "at most 3 can be probed; give --input for the first 1 or more"),
        ("root", ["[1.0]", "[2.0]"], "--input: given 2 times, but the function takes 1 (x)"),
        ("root", ["[0.0, -1.0"], "--input: '[0.0, -1.0' is no Python literal; the nearest valid form is '[0.0, -1.0]'"),
        ("root", ["0 -1"], "the nearest valid form is '[0.0, -1.0]'"),
        ("root", ["[0.0, -inf]"], "the nearest valid form is '[0.0, -1e999]'"),
        ("root", ["__import__('os').getcwd()"], "is no Python literal; the nearest valid form is '[0.0, 1.0]'"),
        ("careless", [], "careless: the function raised InvalidArgumentError at patient.py:26: return tf.reshape"),
        ("root", ["'text'"], "root: the function raised"),
    ],
)
def test_mistakes_in_what_the_doctor_is_given(function, inputs, message, patient, opselect):
    done = opselect("doctor", f"{patient}:{function}", *(w for i in inputs for w in ("--input", i)), status=2)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_mistakes_in_where_the_doctor_is_sent(patient, opselect):
    def said(target):
        done = opselect("doctor", target, status=2)
        assert len(done.stderr.strip().splitlines()) == 1
        return done.stderr

    assert f"the nearest valid form is '{patient}:FUNCTION'" in said(patient)
    assert f"there is no file '{patient.parent}/patent.py'; did you mean '{patient}'?" in said(
        f"{patient.parent}/patent.py:root"
    )
    patient.write_text("import numpy\n\nx = 1 / 0\n")
    assert "patient.py can't be imported: ZeroDivisionError at line 3: division by zero" in said(f"{patient}:root")
    patient.write_text("def f(x:\n    return x\n")
    assert "patient.py can't be imported: SyntaxError at line 1" in said(f"{patient}:f")
    patient.write_text("import nowhere_to_be_found\n")
    assert "ModuleNotFoundError at line 1: No module named 'nowhere_to_be_found'" in said(f"{patient}:f")
    patient.write_text("raise SystemExit(3)\n")
    assert "SystemExit at line 1: 3" in said(f"{patient}:f")
    patient.write_text("x = 1\n")
    assert "patient.py has no function 'f'; it defines none" in said(f"{patient}:f")
