"""The command line, for the tests that use it."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest


class Done(NamedTuple):
    stdout: str
    stderr: str


@pytest.fixture
def opselect(monkeypatch, capsys):
    """Runs the command in this process: TensorFlow takes ten seconds to start in a new one."""
    from opselect.cli import main  # not above: the environments are tested without what it needs

    def call(*arguments, status=0):
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr(sys, "argv", ["opselect", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main()
        done = Done(*capsys.readouterr())
        assert (exit_.value.code or 0) == status, done
        assert "Traceback" not in done.stderr
        return done

    return call
