"""The comparison as tables in the terminal and in Markdown, and how its figures are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["LEGEND", "aggregate_rows", "best_rows", "by_task", "human", "number", "seconds", "table_cells"]

Row = Mapping[str, Any]
DASH = "-"
LEGEND = (
    "Score: 0 = uniform random, 1 = oracle; hard = argmax policy [95% interval over seeds], soft = what was trained;"
    " gap = soft - hard."
)
"""What the scores mean, in a line."""
HEADS = ("learner", "hard score", "soft", "gap", "opt %", "evals", "to .95", "sec")
"""The columns of a task's table."""
AGGREGATE_HEADS = ("learner", "hard score", "mean", "short", "=evals", "=sec", "runs")
"""The columns of the table over several tasks."""
AGGREGATE_LEGEND = (
    "hard score = interquartile mean of all runs [95% interval, stratified bootstrap]; mean = over tasks; short = by"
    " how much runs fall short of 1 on average; =evals, =sec: after the most evaluations, or seconds, that all reached."
)
"""What they mean, in a line."""


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


def table_cells(row: Row) -> list[str]:
    """A row of a task's table, as `HEADS` has it."""
    hard, soft, gap = row["hard_score"], row["soft_score"], row["gap"]
    if hard["iqm"] is None:
        return [row["learner"], *[DASH] * 7]
    return [
        row["learner"],
        _with_interval(hard),
        number(soft["iqm"]),
        number(gap["iqm"], sign="+"),
        f"{100 * row['optimal_rate']:.1f}",
        human(row["evaluations"]),
        "never" if row["steps_to_95"] is None else human(row["steps_to_95"]),
        seconds(row["seconds"]),
    ]


def aggregate_rows(summary: Mapping[str, Any], scope: str) -> list[Row]:
    """The rows over the scope's tasks, best first."""
    rows = [row for row in summary["aggregate"] if row["scope"] == scope]
    return sorted(rows, key=lambda row: -row["iqm"]["iqm"])


def aggregate_cells(row: Row) -> list[str]:
    """A row of the table over several tasks, as `AGGREGATE_HEADS` has it."""
    equal = (row["equal_evaluations"]["iqm"], row["equal_seconds"]["iqm"])
    return [
        row["learner"],
        _with_interval(row["iqm"]),
        number(row["mean"]["value"]),
        number(row["optimality_gap"]["value"]),
        *(DASH if value is None else number(value) for value in equal),
        str(row["runs"]),
    ]


def task_title(task: str, rows: Sequence[Row]) -> str:
    """The task and how many seeds its learners have."""
    counts = sorted({row["seeds"] for row in rows if row["seeds"]})
    if not counts:
        return f"{task} (no runs)"
    some = f"{counts[0]} seed{'s' if counts[0] > 1 else ''}"
    return f"{task} ({some if len(counts) == 1 else f'{counts[0]} to {counts[-1]} seeds'})"


def scope_title(summary: Mapping[str, Any], scope: str) -> str:
    """What a scope's tasks are, in words."""
    count = len(summary["scopes"][scope]["tasks"])
    if scope == "all":
        return f"all {count} tasks" if count > 1 else summary["scopes"][scope]["tasks"][0]
    return f"the {count} tasks that all learners have" if count > 1 else "the one task that all learners have"


def _with_interval(score: Mapping[str, float]) -> str:
    return f"{number(score['iqm'])} [{number(score['low'])},{number(score['high'])}]"
