"""The example scripts run, shortened."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parents[1] / "scripts"


def load(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
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


@pytest.mark.slow
def test_training_twice_as_much_takes_at_most_twice_the_time(capsys):
    """Twice the seeds, the steps or the rows; with room for a busy machine."""
    benchmark = load("benchmarks/scaling")
    ratios, peak = benchmark.main(8, "--tasks", "ScalarOp", "--learners", "exact", "--steps", "10")
    assert set(ratios) == {"seeds", "steps", "rows"}
    assert max(ratios.values()) < 1.25 * benchmark.MOST
    assert 2e8 < peak < benchmark.MOST_MEMORY
    assert "largest ratio" in capsys.readouterr().out


@pytest.mark.slow
def test_training_speed_is_measured_without_the_other_frameworks(capsys, monkeypatch):
    """Those whose virtual environment is missing are named, with what makes it; ours learns to the score."""
    benchmark = load("benchmarks/training")
    monkeypatch.setattr(benchmark.Worker, "python", property(lambda w: pathlib.Path(w.environment or sys.executable)))
    assert benchmark.main(2, 1, (1,)) == {}
    shown = capsys.readouterr().out
    assert "python3 -m venv .venvs/jax && .venvs/jax/bin/python -m pip install 'jax[cpu]' gymnasium" in shown
    assert "python3 -m venv .venvs/torch" in shown
    _, speed, inputs, seconds, _ = re.search(r"(opselect, one seed) +(\S+) +(\S+) +(\S+) +(\S+)", shown).groups()
    assert float(speed.replace(",", "")) == pytest.approx(4 * float(inputs.replace(",", "")), rel=1e-4)
    assert 0.0 < float(seconds) < 10.0
