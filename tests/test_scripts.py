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
