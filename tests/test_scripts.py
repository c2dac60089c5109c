"""The example scripts run, shortened."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

SCRIPTS = pathlib.Path(__file__).parents[1] / "scripts"


def load(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_reinforce(capsys):
    score = load("train_reinforce").main(steps=200)
    assert 0.9 < score <= 1.0
    assert capsys.readouterr().out.count("right:") == 12


@pytest.mark.slow
def test_relaxation(capsys):
    load("train_relaxation").main(steps=20)
    assert "gap" in capsys.readouterr().out


@pytest.mark.slow
def test_environment(capsys):
    result = load("train_environment").main("CartPole-v1", steps=2000)
    assert result > 5.0
    assert capsys.readouterr().out.strip().endswith(f"return {result:.1f}")


@pytest.mark.slow
def test_tutorial(tmp_path, capsys):
    """A selector of eight operations inside a larger model comes to 0.98 of the oracle, by both ways of training."""
    scores = load("tutorial_selector").main(str(tmp_path))
    assert set(scores) == {"reinforce-rloo", "gumbel-softmax"}
    assert min(scores.values()) > 0.98
    assert (tmp_path / "selector.png").stat().st_size > 10_000
    assert "gap" in capsys.readouterr().out


@pytest.mark.slow
def test_benchmarks_print_their_ratios(capsys):
    benchmark = load("benchmarks/numerics")
    benchmark.SIZE, benchmark.ROUNDS = 10_000, 12
    benchmark.main()
    assert "largest ratio" in capsys.readouterr().out
