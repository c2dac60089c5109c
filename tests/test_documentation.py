"""The Python blocks of the README and of the documentation run as they stand, and print what is shown below them."""

from __future__ import annotations

import pathlib
import re
import sys
import types
from dataclasses import dataclass

import pytest

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
GUIDE = "\n".join(text for name, text in PAGES.items() if not name.startswith("docs/api/"))
_BLOCK = re.compile(r'^```python\n(.*?)^```$(?:\n\n```text title="Output"\n(.*?)^```$)?', re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A Python block, and the output shown below it (None: none is shown)."""

    page: str
    line: int
    code: str
    output: str | None

    def run(self, namespace):
        # As many lines as are above it, so that a traceback tells the line of the page.
        exec(compile("\n" * self.line + self.code, ROOT / self.page, "exec"), namespace)


def blocks_of(page, text):
    return [Block(page, text[: m.start(1)].count("\n"), m[1], m[2]) for m in _BLOCK.finditer(text)]


def scripts():
    """A block of the README stands alone; those of a page of the documentation build on one another."""
    for block in blocks_of("README.md", README):
        yield pytest.param([block], id=f"README.md:{block.line}")
    for page, text in PAGES.items():
        if blocks := blocks_of(page, text):
            yield pytest.param(blocks, id=page)


def assert_shows(shown, expected):
    """What was printed is what is shown: "..." stands for anything, numbers may differ by 2%, spaces do not count."""
    words = " ".join(expected.split())
    parts = [re.escape(part) for part in _NUMBER.sub("\0", words).split("\0")]
    pattern = f"({_NUMBER.pattern})".join(parts).replace(re.escape("..."), ".*?").replace(r"\ ", r"\s*")
    found = re.fullmatch(rf"\s*{pattern}\s*", shown, re.DOTALL)
    assert found, f"shown in the page:\n{expected}\nprinted:\n{shown}"
    numbers = [float(n) for n in _NUMBER.findall(words)]
    assert [float(n) for n in found.groups()] == pytest.approx(numbers, rel=0.02, abs=2e-3)


@pytest.mark.parametrize("blocks", list(scripts()))
def test_python_blocks_run(blocks, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where they may write
    module = types.ModuleType("documentation")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look for their module
    for block in blocks:
        block.run(vars(module))
        shown = capsys.readouterr().out
        assert "nan" not in shown  # NumPy prints a lower-case one; reports have a column NaN
        for comment in re.findall(r"print\(error\)  # (.*)", block.code):
            assert shown.strip() == comment
        if block.output is not None:
            assert_shows(shown, block.output)


def test_shown_output_is_compared():
    assert_shows("a  1.001 b\nmodel.py:7 c", "a 1.0 b\n...:7 c")
    for wrong in ("a 1.1 b\nmodel.py:7 c", "a 1.0 b\nmodel.py:7 d", "a x b\nmodel.py:7 c"):
        with pytest.raises(AssertionError):
            assert_shows(wrong, "a 1.0 b\n...:7 c")


@pytest.mark.parametrize("text", [README, GUIDE], ids=["README.md", "docs"])
def test_they_show_what_there_is(text):
    from opselect.learners import LEARNERS
    from opselect_envs import TASKS

    assert len(_BLOCK.findall(text)) >= 6
    assert [name for name in LEARNERS if f"`{name}`" not in text] == []
    assert [name for name in TASKS if f"opselect/{name}-v0" not in text] == []
    for path in re.findall(r"`(scripts/[\w/]+\.py)`", text):
        assert (ROOT / path).exists(), path


def test_the_guide_has_every_command_option_and_axis():
    import typer

    from opselect.cli import app
    from opselect_envs.challenges import AXES
    from opselect_envs.operations import FAMILIES

    assert [name for name in (*AXES, *FAMILIES) if f"`{name}" not in GUIDE] == []
    page, group = PAGES["docs/cli.md"], typer.main.get_command(app)
    for name, command in group.commands.items():
        sections = re.findall(rf"^## `opselect {name}`$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
        assert len(sections) == 1, f"docs/cli.md needs a section on opselect {name}"
        options = {option for p in command.params for option in p.opts if option.startswith("--")} - {"--help"}
        shown = set(re.findall(r"^\| `(--[\w-]+)", sections[0], re.MULTILINE))
        assert shown == options - {"--problems"}, name


def test_the_reference_has_every_public_module():
    import opselect

    reference = "\n".join(text for name, text in PAGES.items() if name.startswith("docs/api/"))
    shown = re.findall(r"^::: ([\w.]+)$", reference, re.MULTILINE)
    assert len(shown) == len(set(shown))
    for name in (*opselect._SUBMODULES, "_envs"):
        module = f"opselect{name}" if name == "_envs" else f"opselect.{name}"
        assert any(other == module or other.startswith(f"{module}.") for other in shown) or name == "namespace", module
