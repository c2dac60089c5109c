"""What the consumers share, and what is told to whoever lacks them; runs without any of them."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts" / "consumers"


def load(name):
    spec = importlib.util.spec_from_file_location(f"consumers_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_without_stable_baselines3_the_adapter_says_what_to_install():
    done = run("import sys; sys.modules['stable_baselines3'] = None; import opselect_envs.sb3")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        "ImportError: opselect_envs.sb3 needs stable-baselines3, which is not installed; run: python -m pip install"
        " stable-baselines3 (and sb3-contrib for MaskablePPO)"
    )


def test_the_environments_import_no_consumer():
    code = "import sys, opselect_envs; print([m for m in ('stable_baselines3', 'torch') if m in sys.modules])"
    assert run(code).stdout.strip() == "[]"


@pytest.mark.parametrize(("environment", "masked"), [("ScalarOp", False), ("OpChain", True)])
def test_random_policies_score_zero(environment, masked):
    """Random among all operations, or, where the task masks, among those available: both are what 0 stands for."""
    common = load("common")
    draw = np.random.default_rng(0)

    def random(_, masks):
        return np.array([draw.choice(np.flatnonzero(mask) if masked else len(mask)) for mask in masks])

    assert common.evaluate(random, environment) == pytest.approx(0.0, abs=0.05)


def test_the_line_and_the_table(capsys):
    common, table = load("common"), load("table")
    assert common.report("gymnasium", "ScalarOp", "PPO, make_vec", 1_234_567, 8.04, 0.9876) == 0
    assert common.report("gymnasium", "OpChain", "luck", 10, 1.0, 0.2999) == 1
    shown = capsys.readouterr()
    assert "0.300 is below 0.3" in shown.err
    lines = [json.loads(line) for line in shown.out.splitlines()]
    assert lines[0] == {
        "consumer": "gymnasium",
        "version": gym.__version__,
        "environment": "opselect/ScalarOp-v0",
        "algorithm": "PPO, make_vec",
        "steps": 1_234_567,
        "seconds": 8.0,
        "score": 0.988,
    }
    rows = table.table([lines[0] | {"consumer": "ray", "version": "2.1+cpu"}]).splitlines()
    assert rows[0] == "| consumer | version | environment | trains | score against random |"
    assert rows[2] == ("| RLlib (Ray) | 2.1 | `opselect/ScalarOp-v0` | PPO, make_vec: 1,234,567 steps in 8 s | 0.99 |")


def test_every_script_is_run_by_ci():
    ci = (SCRIPTS.parents[1] / ".ci" / "consumers").read_text()
    names = {path.stem for path in SCRIPTS.glob("*.py")} - {"common"}
    assert len(names) >= 8
    assert {name for name in names if name not in ci} == set()
