"""The comparison in the terminal, at most 80 columns wide, and the same as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opselect.report.tables import (
    AGGREGATE_HEADS,
    AGGREGATE_LEGEND,
    HEADS,
    LEGEND,
    aggregate_cells,
    aggregate_rows,
    best_rows,
    by_task,
    scope_title,
    table_cells,
    task_title,
)
from opselect.report.verdict import P_MEANS, across, verdict

__all__ = ["markdown", "print_table"]

Row = Mapping[str, Any]
Summary = Mapping[str, Any]


def print_table(summary: Summary, console: Console | None = None) -> None:
    """Prints the summary of `opselect.comparison.summarise`, task by task, then over all tasks, and the verdict.

    The best hard score of each table is bold; learners that do not apply have dashes, with the reason below.
    """
    console = Console() if console is None else console
    for task, rows in by_task(summary["rows"]).items():
        best = best_rows(rows)
        _print(console, task_title(task, rows), HEADS, [table_cells(row) for row in rows], best)
        for row in rows:
            if "why_not" in row:
                console.print(Text(f"{row['learner']}: {row['why_not']}", style="dim"))
        console.print()
    for scope in _scopes(summary):
        rows = aggregate_rows(summary, scope)
        title = scope_title(summary, scope)
        _print(console, title[0].upper() + title[1:], AGGREGATE_HEADS, [aggregate_cells(row) for row in rows], {0})
        console.print()
    said = across(summary)
    for sentence in said:
        console.print(Text(sentence))
    if said:
        console.print()
    for line in (LEGEND, *([AGGREGATE_LEGEND] if _scopes(summary) else []), *([P_MEANS] if said else [])):
        console.print(Text(line, style="dim"))


def _print(console: Console, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], best: set[int]) -> None:
    table = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=0,
    )
    table.add_column(heads[0], overflow="fold")
    for name in heads[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for index, row in enumerate(rows):
        cells = [Text(cell) for cell in row]
        if index in best:
            cells[0].stylize("bold")
            cells[1].stylize("bold")
        table.add_row(*cells)
    console.print(table)


def _scopes(summary: Summary) -> list[str]:
    """The scopes worth a table: those of several tasks."""
    return [name for name, about in summary.get("scopes", {}).items() if len(about["tasks"]) > 1]


def markdown(summary: Summary, commands: Sequence[str], problems: Sequence[str] = ()) -> str:
    """The same tables and verdicts as Markdown.

    Args:
        summary: from `opselect.comparison.summarise`.
        commands: what reproduces the results.
        problems: a sentence for each thing that went wrong.
    """
    parts = ["# Which learner selects the right operation?"]
    if problems:
        parts += ["## What went wrong", "\n".join(f"- {_escaped(problem)}" for problem in problems)]
    said = across(summary)
    if said:
        parts += ["## Across tasks", "\n".join(f"- {_escaped(sentence)}" for sentence in said), _escaped(P_MEANS)]
    for scope in _scopes(summary):
        title = scope_title(summary, scope)
        rows = aggregate_rows(summary, scope)
        parts += [f"### {title[0].upper() + title[1:]}", _table(AGGREGATE_HEADS, map(aggregate_cells, rows), {0})]
        parts.append(_escaped(AGGREGATE_LEGEND))
    parts += ["## Task by task"]
    for task, rows in by_task(summary["rows"]).items():
        parts += [f"### {_escaped(task_title(task, rows))}", _escaped(verdict(rows, summary.get("pairs", ())))]
        parts.append(_table(HEADS, map(table_cells, rows), best_rows(rows)))
        reasons = [f"- {_escaped(row['learner'])}: {_escaped(row['why_not'])}" for row in rows if "why_not" in row]
        if reasons:
            parts.append("\n".join(reasons))
    known = "\n".join(f"    {' '.join(line.split())}" for line in commands) or "The command is not known."
    parts += [_escaped(LEGEND), "## How to reproduce", known]
    return "\n\n".join(parts) + "\n"


def _table(heads: Sequence[str], rows: Any, best: set[int]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    for index, row in enumerate(rows):
        cells = [_escaped(cell) for cell in row]
        if index in best:
            cells[:2] = [f"**{cell}**" for cell in cells[:2]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Text that Markdown leaves as it is: names are the user's, and may hold anything."""
    flat = " ".join(text.split()).replace("](", "]\\(")  # a bracket alone makes no link
    return re.sub(r"[`*<|]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", flat)  # an underscore inside a word is one
