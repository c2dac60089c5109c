"""The README's Python blocks run as they stand."""

from __future__ import annotations

import pathlib
import re

import pytest

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_blocks_run(number, capsys):
    exec(compile(BLOCKS[number], f"README.md, block {number + 1}", "exec"), {"__name__": "readme"})
    shown = capsys.readouterr().out
    assert "nan" not in shown  # NumPy prints a lower-case one; reports have a column NaN
    for comment in re.findall(r"print\(error\)  # (.*)", BLOCKS[number]):
        assert shown.strip() == comment


def test_the_readme_shows_what_there_is():
    from opselect.learners import LEARNERS
    from opselect_envs import TASKS

    assert len(BLOCKS) >= 6
    assert all(f"`{name}`" in README for name in LEARNERS)
    assert all(f"opselect/{name}-v0" in README for name in TASKS)
    for path in re.findall(r"`(scripts/\w+\.py)`", README):
        assert (pathlib.Path(__file__).parents[1] / path).exists()
