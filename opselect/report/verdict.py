"""What the figures of one task allow to say, in a sentence or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opselect.report.tables import number

__all__ = ["MIN_SEEDS", "describe", "listed", "verdict"]

Row = Mapping[str, Any]
MIN_SEEDS = 5
"""Fewer seeds than this say nothing about a difference between learners."""


def verdict(rows: Sequence[Row]) -> str:
    """Which learner is best by hard score, whether that is certain, and whose soft score misleads most.

    Args:
        rows: of one task, from `opselect.comparison.summarise`.
    """
    ran = [row for row in rows if row["hard_score"]["iqm"] is not None]
    judged = [row for row in ran if row["seeds"] >= MIN_SEEDS]
    if not ran:
        return "No learner has scores here."
    if not judged:
        most = max(row["seeds"] for row in ran)
        return (
            f"No verdict: {most} {'seed is' if most == 1 else 'seeds are'} too few to tell learners apart."
            f" Run at least {MIN_SEEDS} (--seeds {MIN_SEEDS})."
        )
    sentences = [*_best(judged), _gap(judged)]
    weak = [row["learner"] for row in judged if row["hard_score"]["low"] <= 0]
    if weak:
        sentences.append(f"Not clearly better than uniform random: {listed(weak)}.")
    few = [row["learner"] for row in ran if row["seeds"] < MIN_SEEDS]
    if few:
        sentences.append(f"Not judged, for fewer than {MIN_SEEDS} seeds: {listed(few)}.")
    return " ".join(sentences)


def _best(judged: Sequence[Row]) -> list[str]:
    best = max(judged, key=lambda row: row["hard_score"]["iqm"])
    others = [row for row in judged if row is not best]
    if not others:
        return [f"Only {best['learner']} is judged: its hard score is {_interval(best['hard_score'])}."]
    first = f"Best hard score: {best['learner']}, {_interval(best['hard_score'])}."
    rivals = [row for row in others if row["hard_score"]["high"] >= best["hard_score"]["low"]]
    if not rivals:
        second = max(others, key=lambda row: row["hard_score"]["high"])["learner"]
        return [first, f"No other interval overlaps it; the nearest is that of {second}."]
    if len(rivals) == len(others) > 1:
        return [first, "All other intervals overlap it, so these seeds single out no learner."]
    whose = "interval" if len(rivals) == 1 else "intervals"
    names, verb = listed([row["learner"] for row in rivals]), "overlaps" if len(rivals) == 1 else "overlap"
    same = f"The {whose} of {names} {verb} it, so these seeds do not tell them apart"
    below = len(others) - len(rivals)
    return [first, f"{same}; the other {below} {'lies' if below == 1 else 'lie'} below." if below else f"{same}."]


def _gap(judged: Sequence[Row]) -> str:
    widest = max(judged, key=lambda row: abs(row["gap"]["iqm"]))
    gap, name = widest["gap"], widest["learner"]
    hard, soft = number(widest["hard_score"]["iqm"]), number(widest["soft_score"]["iqm"])
    size = f"{name}, {number(gap['iqm'], sign='+')}"
    if gap["low"] <= 0 <= gap["high"]:
        return f"Largest gap: {size}, not clearly different from 0."
    if gap["iqm"] > 0:
        return f"Largest gap: {size}: what it trains scores {soft}, but the operations it picks score {hard}."
    return f"Largest gap: {size}: the operations it picks score {hard}, more than what it trains, {soft}."


def _interval(score: Mapping[str, float]) -> str:
    value, low, high = (number(score[name]) for name in ("iqm", "low", "high"))
    return f"{value} (95% interval {low} to {high})"


def listed(names: Sequence[str]) -> str:
    """Names as a sentence has them: "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def describe(task: Any) -> str:
    """What a task asks, from its parameters (`opselect_envs.tasks.Task.to_dict`); empty when they are not known."""
    if not isinstance(task, Mapping) or not {"operations", "horizon", "goal", "low", "high"} <= set(task):
        return ""
    count, inputs = len(task["operations"]), f"x in [{task['low']:g}, {task['high']:g}]"
    if task["horizon"] > 1:
        asks = f"Apply {task['horizon']} of {count} operations, one after the other, to turn {inputs} into a target y"
        return f"{asks} that is shown." if task["goal"] else f"{asks} that is not shown."
    if task["goal"]:
        return f"Pick the one of {count} operations that turns {inputs} into the target y; both are shown."
    regions = f" with {task['regions']} regions" if task.get("rule") is not None and "regions" in task else ""
    return f"Pick the right one of {count} operations for {inputs}; a hidden rule{regions} says which. Only x is shown."
