"""The comparison as a table in the terminal, and how its figures are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["LEGEND", "best_rows", "by_task", "human", "print_table"]

Row = Mapping[str, Any]
DASH = "-"
LEGEND = (
    "Score: 0 = uniform random, 1 = oracle; hard = argmax policy [95% interval over seeds], soft = what was trained;"
    " gap = soft - hard."
)
"""What the scores mean, in a line."""


def print_table(summary: Mapping[str, Sequence[Row]], console: Console | None = None) -> None:
    """Prints the summary of `opselect.comparison.summarise`, task by task, at most 80 columns wide.

    The best hard score of each task is bold; learners that do not apply have dashes, with the reason below.
    """
    console = Console() if console is None else console
    for task, rows in by_task(summary["rows"]).items():
        table = Table(
            title=Text(f"{task} ({_seeds(rows)})", style="bold"),
            title_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=0,
        )
        table.add_column("learner", overflow="fold")
        for name in ("hard score", "soft", "gap", "opt %", "evals", "to .95", "sec"):
            table.add_column(name, justify="right", no_wrap=True)
        best = best_rows(rows)
        for index, row in enumerate(rows):
            cells = [Text(cell) for cell in _cells(row)]
            if index in best:
                cells[0].stylize("bold")
                cells[1].stylize("bold")
            table.add_row(*cells)
        console.print(table)
        for row in rows:
            if "why_not" in row:
                console.print(Text(f"{row['learner']}: {row['why_not']}", style="dim"))
        console.print()
    console.print(Text(LEGEND, style="dim"))


def by_task(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each task, in order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["task"], []).append(row)
    return groups


def best_rows(rows: Sequence[Row]) -> set[int]:
    """The indices of the rows with the highest hard score: one, unless several are equal."""
    scores = [row["hard_score"]["iqm"] for row in rows]
    top = max((score for score in scores if score is not None), default=None)
    return {index for index, score in enumerate(scores) if score is not None and score == top}


def human(count: float | None) -> str:
    """A count in at most three digits and a unit: 512, 1.5k, 1.28M."""
    if count is None:
        return DASH
    rounded = float(f"{count:.3g}")
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(rounded) >= size:
            return f"{rounded / size:.3g}{unit}"
    return f"{rounded:.3g}"


def number(value: float, sign: str = "") -> str:
    """A score with three decimals, never a negative zero; with ``sign="+"`` a plus in front of positive ones."""
    return f"{round(value, 3) + 0.0:{sign}.3f}"


def seconds(duration: float | None) -> str:
    """A duration in seconds, with a decimal where it matters."""
    return DASH if duration is None else f"{duration:.1f}" if duration < 9.95 else f"{duration:.0f}"


def _cells(row: Row) -> list[str]:
    hard, soft, gap = row["hard_score"], row["soft_score"], row["gap"]
    if hard["iqm"] is None:
        return [row["learner"], *[DASH] * 7]
    return [
        row["learner"],
        f"{number(hard['iqm'])} [{number(hard['low'])},{number(hard['high'])}]",
        number(soft["iqm"]),
        number(gap["iqm"], sign="+"),
        f"{100 * row['optimal_rate']:.1f}",
        human(row["evaluations"]),
        "never" if row["steps_to_95"] is None else human(row["steps_to_95"]),
        seconds(row["seconds"]),
    ]


def _seeds(rows: Sequence[Row]) -> str:
    counts = sorted({row["seeds"] for row in rows if row["seeds"]})
    if not counts:
        return "no runs"
    return (
        f"{counts[0]} seed{'s' if counts[0] > 1 else ''}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    )
