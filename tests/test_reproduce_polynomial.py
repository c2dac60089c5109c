"""A part of the polynomial-programming table and the benchmark of the estimators, as their scripts run them."""

from __future__ import annotations

import importlib.util
import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
DATA = json.loads((ROOT / "tests" / "data" / "polynomial_programming.json").read_text())


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reinmax_tau1", "mve", "straight_through_gumbel_tau0.1"])
def test_published_losses(name):
    script, settings = load("reproduce_polynomial_programming"), DATA["settings"]
    history = script.train(
        script.ESTIMATORS[name], settings["outcome_values"], settings["c"], [1.5, 2.0], batch=8, epochs=50
    )
    assert history.shape == (50, 2, script.SEEDS)
    for i, power in enumerate(("1.5", "2.0")):
        assert history[-1, i].mean() == pytest.approx(DATA["published"][name][power], rel=0.1)
        assert history[-1, i].min() > DATA["floor"][power]
        assert history[0, i].mean() > 1.5 * history[-1, i].mean()


@pytest.mark.slow
def test_the_fixed_point_of_straight_through():
    """With outcomes 0 and 1 and a quadratic loss it stays where theta is the target t, at the loss t (1 - t)."""
    script = load("reproduce_polynomial_programming")
    history = script.train(script.ESTIMATORS["straight_through"], [0.0, 1.0], 0.45, [2.0], batch=64, epochs=20)
    assert history[-1].mean() == pytest.approx(0.45 * 0.55, rel=0.005)


@pytest.mark.slow
def test_the_script_prints_its_table(capsys):
    off = load("reproduce_polynomial_programming").main(share=0.02)
    printed = capsys.readouterr().out
    assert off > 5  # nothing is trained after one epoch
    assert all(name in printed for name in DATA["published"])
    assert f"{off} of 17 losses" in printed


@pytest.mark.slow
def test_the_benchmark_prints_its_ratios(capsys):
    benchmark = load("benchmarks/estimators")
    benchmark.ROUNDS = 12
    assert benchmark.main() > 0
    printed = capsys.readouterr().out
    assert "reinmax" in printed and "larger ratio" in printed
