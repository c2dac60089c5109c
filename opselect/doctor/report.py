"""What the doctor found, as data and as something to read."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["Finding", "GradientCheck", "WrongGradientError"]

_KINDS = {"none": "None", "zero": "zero", "nan": "NaN", "inf": "infinite", "output": "not finite"}
_MOST_ROWS = 12  # of the table
_MOST_TOLD = 5  # inputs with one culprit
_MODES = {"eager": "eager", "graph": "tf.function", "xla": "XLA"}


class WrongGradientError(ValueError):
    """A gradient is None, zero or not finite; the message is the report."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong with one input's gradient, or with one output.

    Attributes:
        input: the name of the input, of the variable, or of the output.
        kind: ``none``, ``zero`` (identically), ``nan``, ``inf``, or ``output`` for an output that is not finite.
        modes: where it shows, out of ``eager``, ``graph`` and ``xla``.
        operation: the culprit as users call it, such as ``tf.sqrt``; None where no operation is to blame.
        op_type: its type in TensorFlow, such as ``Sqrt``.
        op_name: its name in the traced function.
        line: the user's line that made it, as ``file:line: code``.
        context: the iteration of the loop in which it happens, or an empty string.
        operands: at a few offending places, the values of the operation's operands.
        positions: a few of the offending entries of the input (or output), as indices.
        values: the input's (or output's) values there.
        reason: one sentence: what happens.
        advice: one sentence: what to write instead.
    """

    input: str
    kind: str
    modes: tuple[str, ...]
    operation: str | None
    op_type: str | None
    op_name: str | None
    line: str | None
    context: str
    operands: tuple[tuple[float, ...], ...]
    positions: tuple[tuple[int, ...], ...]
    values: tuple[float, ...]
    reason: str
    advice: str

    @property
    def label(self) -> str:
        """The kind in a user's terms."""
        return _KINDS[self.kind]

    @property
    def where(self) -> str:
        """The modes in a user's terms."""
        return "every mode" if len(self.modes) == len(_MODES) else ", ".join(_MODES[m] for m in self.modes)

    def __str__(self) -> str:
        """The finding in a few sentences, one a line."""
        return _told([self])

    def _entries(self) -> str:
        entries = [
            (f"{self.input}[{', '.join(map(str, at))}]" if at else self.input) + f" = {number(value)}"
            for at, value in zip(self.positions, self.values, strict=True)
        ]
        return f" at {', '.join(entries)}" if entries else ""


@dataclasses.dataclass(frozen=True)
class GradientCheck:
    """What `check_gradients` found; print it.

    Attributes:
        function: what the function is called.
        checked: the names of the inputs and variables whose gradients were looked at.
        findings: what is wrong, in the order of the inputs, the outputs last.
        notes: what is worth knowing besides, such as why XLA can't compile the function.
    """

    function: str
    checked: tuple[str, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def raise_if_wrong(self) -> None:
        """Does nothing where all is well.

        Raises:
            WrongGradientError: something is wrong; the message is the whole report.
        """
        if not self.ok:
            raise WrongGradientError(str(self))

    def __str__(self) -> str:
        """A plain table of the findings, then each in a few sentences."""
        parts = [self._headline()]
        if self.findings:
            rows = [("input", "gradient", "modes", "operation", "line"), *self._rows()]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            table = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
            parts.append("\n".join([table[0], "-" * max(map(len, table)), *table[1:]]))
            parts += self._stories()
        if self.notes:
            parts.append("\n".join(f"note: {note}" for note in self.notes))
        return "\n\n".join(parts)

    def __rich__(self) -> Any:
        """The same for a terminal."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        parts: list[Any] = [Text(self._headline(), style="bold green" if self.ok else "bold red")]
        if self.findings:
            table = Table("input", "gradient", "modes", "operation", "line", box=None, header_style="bold")
            for row in self._rows():
                table.add_row(*map(Text, row))
            parts += [Text(), table]
            parts += [Text(f"\n{story}") for story in self._stories()]
        parts += [Text(f"{'' if i else chr(10)}note: {note}", style="dim") for i, note in enumerate(self.notes)]
        return Group(*parts)

    def _rows(self) -> list[tuple[str, ...]]:
        rows = [_row(f) for f in self.findings[:_MOST_ROWS]]
        more = len(self.findings) - len(rows)
        return [*rows, (f"... and {more} more", "", "", "", "")] if more else rows

    def _stories(self) -> list[str]:
        """Each finding in sentences, those of one culprit together."""
        groups: dict[tuple[Any, ...], list[Finding]] = {}
        for finding in self.findings:
            groups.setdefault((finding.kind, finding.line, finding.reason, finding.advice), []).append(finding)
        return [f"{i}. {_told(group)}" for i, group in enumerate(groups.values(), 1)]

    def _headline(self) -> str:
        checked = ", ".join(self.checked[:6]) + (", ..." if len(self.checked) > 6 else "")
        if not self.checked:
            return f"{self.function}: nothing to differentiate"
        if self.ok:
            return f"{self.function}: healthy (looked at {checked})"
        count = len(self.findings)
        return f"{self.function}: {count} {'thing is' if count == 1 else 'things are'} wrong (looked at {checked})"


def _told(findings: list[Finding]) -> str:
    """Findings that differ in their inputs only."""
    first = findings[0]
    subject = "the output" if first.kind == "output" else "the gradient"
    lines = [f"{f.input}: {subject} is {f.label} ({f.where}){f._entries()}." for f in findings[:_MOST_TOLD]]
    if len(findings) > _MOST_TOLD:
        lines.append(f"... and {len(findings) - _MOST_TOLD} more likewise.")
    lines.append(first.reason)
    if first.line:
        lines.append(f"  {first.line}")
    lines.append(f"Instead: {first.advice}.")
    return "\n   ".join(lines)


def number(value: Any) -> str:
    """A number in as few characters as tell it."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _row(finding: Finding) -> tuple[str, ...]:
    place = ":".join((finding.line or "").split(":")[:2])
    return finding.input, finding.label, finding.where, finding.operation or "-", place
