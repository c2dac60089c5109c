"""What the figures allow to say, in sentences: about one task, and across tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opselect.comparison import MIN_SEEDS, pair_of
from opselect.report.tables import number

__all__ = ["MIN_SEEDS", "P_MEANS", "across", "describe", "listed", "scope_of", "verdict"]

Row = Mapping[str, Any]
P_MEANS = (
    "P: how probable it is that a run of the first learner scores higher than one of the second, averaged over tasks,"
    " with its 95% interval (with few seeds it is too narrow)."
)
"""What P means, in a line."""
_MANY = 4  # so many names are listed, more are counted


# --- across tasks -----------------------------------------------------------------------------------------------------


def scope_of(summary: Mapping[str, Any]) -> str | None:
    """Which of the summary's "scopes" speaks for the comparison: "all", else "common", else none."""
    return next((scope for scope in ("all", "common") if scope in summary.get("scopes", {})), None)


def across(summary: Mapping[str, Any]) -> list[str]:
    """Which learner is best over several tasks, whom it beats where, and who leads after equal budgets.

    Args:
        summary: from `opselect.comparison.summarise`.

    Returns:
        Sentences, the main one first; none where there are fewer than two tasks with scores.
    """
    scope = scope_of(summary)
    with_scores = {row["task"] for row in summary["rows"] if row["hard_score"]["iqm"] is not None}
    if len(with_scores) < 2:
        return []
    if scope is None:
        return ["No verdict across tasks: no task has scores of all learners, and no learner has scores on all tasks."]
    tasks = summary["scopes"][scope]["tasks"]
    rows = [row for row in summary["aggregate"] if row["scope"] == scope]
    judged = sorted((row for row in rows if row["seeds"] >= MIN_SEEDS), key=lambda row: -row["iqm"]["iqm"])
    if not judged:
        most = max(row["seeds"] for row in rows)
        return [
            f"No verdict across tasks: {most} {'seed is' if most == 1 else 'seeds are'} too few to tell learners apart."
            f" Run at least {MIN_SEEDS} (--seeds {MIN_SEEDS})."
        ]
    best = judged[0]["learner"]
    where = f"all {len(tasks)} tasks" if scope == "all" else f"the {len(tasks)} tasks that all learners have"
    if len(tasks) == 1:
        where = f"{tasks[0]}, the one task that all learners have,"
    runs = f"interquartile mean of {judged[0]['runs']} runs"
    if len(judged) > 1:
        said = [f"Over {where} {best} has the highest hard score: {_brackets(judged[0]['iqm'], 3)}, {runs}."]
    else:
        said = [f"Only {best} is judged over {where}: its hard score is {_brackets(judged[0]['iqm'], 3)}, {runs}."]
    others = [row["learner"] for row in judged[1:]]
    partly = [name for name in dict.fromkeys(row["learner"] for row in summary["rows"]) if name not in [best, *others]]
    said += _against(summary["pairs"], best, [*others, *partly], len(tasks))
    for kind, told in (("evaluations", "After equally many reward evaluations"), ("seconds", "After equal seconds")):
        said += _equal(judged, f"equal_{kind}", told)
    few = [row["learner"] for row in rows if row["seeds"] < MIN_SEEDS]
    if few:
        said.append(f"Not judged, for fewer than {MIN_SEEDS} seeds on some task: {listed(few)}.")
    unranked = [name for name in partly if name not in few]
    if unranked:
        said.append(f"Not ranked over {where}, for want of scores on some: {listed(unranked)}.")
    return said


def _against(pairs: Sequence[Row], best: str, others: Sequence[str], ranked: int) -> list[str]:
    """A sentence per learner that the best one was compared with; those beaten on every task share one."""
    beaten, said = [], []
    for other in others:
        pair = pair_of(pairs, best, other)
        if pair is None or not pair["by_task"]:
            continue
        if all(task["better"] == "x" for task in pair["by_task"]):
            beaten.append(pair)
        else:
            said.append(_pair(pair, ranked))
    if len(beaten) < 3:
        return [*said, *(_pair(pair, ranked) for pair in beaten)]
    least = min(beaten, key=lambda pair: pair["probability"]["value"])["probability"]
    names = listed([pair["y"] for pair in beaten])
    return [*said, f"{best} beats {names} on every task that both have, P = {_brackets(least, 2)} or more."]


def _pair(pair: Row, ranked: int) -> str:
    """The outcome of one pair; `ranked` is how many tasks the sentence before is about."""
    x, y, chance = pair["x"], pair["y"], f"P = {_brackets(pair['probability'], 2)}"
    outcomes: dict[str | None, list[str]] = {"x": [], "y": [], None: []}
    for task in pair["by_task"]:
        outcomes[task["better"]].append(task["task"])
    wins, losses, noise = outcomes["x"], outcomes["y"], outcomes[None]
    total = len(pair["by_task"])

    def on(some: Sequence[str]) -> str:
        if total == 1:
            return f"on {some[0]}"
        every = "both tasks" if total == 2 == ranked else f"all {total} tasks"
        shared = "" if total == ranked else " that both have"
        return f"on {every if len(some) == total else f'{len(some)} of {total} tasks'}{shared}"

    if not wins and not losses:
        every = on(noise)
        low, high = pair["probability"]["low"], pair["probability"]["high"]
        if low <= 0.5 <= high or total == 1:
            return f"The difference between {x} and {y} is within noise {every}, {chance}."
        higher = x if low > 0.5 else y
        return f"No single task tells {x} and {y} apart, but over all {total} {higher} tends to score higher, {chance}."

    if wins:
        text = f"{x} beats {y} {on(wins)}" + (f" and loses to it on {_some(losses)}" if losses else "")
    else:
        text = f"{x} loses to {y} {on(losses)}"
    return f"{text}, {chance}" + (f"; the difference on {_some(noise)} is within noise." if noise else ".")


def _equal(judged: Sequence[Row], key: str, told: str) -> list[str]:
    known = [row for row in judged if row[key]["iqm"] is not None]
    if len(known) < 2:
        return []
    best = max(known, key=lambda row: row[key]["iqm"])
    near = [row["learner"] for row in known if row is not best and row[key]["high"] >= best[key]["low"]]
    unknown = [row["learner"] for row in judged if row not in known]
    text = f"{told} (the most that all reached on a task) {best['learner']} leads, {_brackets(best[key], 3)}"
    if near:
        text += (
            f"; the interval{'s' if len(near) > 1 else ''} of {_some(near)} overlap{'' if len(near) > 1 else 's'} it"
        )
    if unknown:
        text += f"; {_some(unknown)} had no score that early"
    return [text + "."]


def _brackets(score: Mapping[str, float], digits: int) -> str:
    value, low, high = (round(score[name], digits) + 0.0 for name in (next(iter(score)), "low", "high"))
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _some(names: Sequence[str]) -> str:
    if len(names) <= _MANY:
        return listed(names)
    return f"{', '.join(names[: _MANY - 1])} and {len(names) - _MANY + 1} others"


# --- one task ---------------------------------------------------------------------------------------------------------


def verdict(rows: Sequence[Row], pairs: Sequence[Row] = ()) -> str:
    """Which learner is best by hard score, whether that is certain, and whose soft score misleads most.

    Args:
        rows: of one task, from `opselect.comparison.summarise`.
        pairs: the same summary's "pairs": what differs beyond noise.
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
    sentences = [*_best(judged, pairs), _gap(judged)]
    weak = [row["learner"] for row in judged if row["hard_score"]["low"] <= 0]
    if weak:
        sentences.append(f"Not clearly better than uniform random: {listed(weak)}.")
    few = [row["learner"] for row in ran if row["seeds"] < MIN_SEEDS]
    if few:
        sentences.append(f"Not judged, for fewer than {MIN_SEEDS} seeds: {listed(few)}.")
    return " ".join(sentences)


def _best(judged: Sequence[Row], pairs: Sequence[Row]) -> list[str]:
    best = max(judged, key=lambda row: row["hard_score"]["iqm"])
    others = [row["learner"] for row in judged if row is not best]
    if not others:
        return [f"Only {best['learner']} is judged: its hard score is {_interval(best['hard_score'])}."]
    first = f"Best hard score: {best['learner']}, {_interval(best['hard_score'])}."
    beaten = [name for name in others if _outcome(pairs, best["learner"], name, best["task"]) == "x"]
    ahead = [name for name in others if _outcome(pairs, best["learner"], name, best["task"]) == "y"]
    if ahead:  # an interquartile mean and ranks need not agree
        first += f" But runs of {listed(ahead)} mostly score higher than its."
    noise = [name for name in others if name not in beaten and name not in ahead]
    if not noise:
        return (
            [first, f"It beats {listed(beaten) if len(beaten) <= _MANY else 'every other learner'}."]
            if beaten
            else [first]
        )
    if len(noise) == len(others) > 1:
        return [first, "No other learner's difference from it is beyond noise, so these seeds single out none."]
    same = f"The difference from {listed(noise)} is within noise"
    rest = f"the other {len(beaten)}" if len(beaten) > 1 else "".join(beaten)
    return [first, f"{same}; it beats {rest}." if beaten else f"{same}."]


def _outcome(pairs: Sequence[Row], x: str, y: str, task: str) -> str | None:
    pair = pair_of(pairs, x, y)
    return next((one["better"] for one in pair["by_task"] if one["task"] == task), None) if pair else None


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
