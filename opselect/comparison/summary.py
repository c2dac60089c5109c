"""The summary of a comparison: its table, and what holds across tasks.

Shapes: R seeds, E evaluations along training, N held-out episodes, T decisions, K operations. Final values are those of
the last evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from opselect.comparison.budgets import KINDS, common_budget, efficiency, score_at, spent
from opselect.comparison.pairs import compare_pairs
from opselect.comparison.statistics import interval, iqm, steps_to
from opselect.comparison.stratified import (
    TAUS,
    iqm_over_tasks,
    mean_over_tasks,
    optimality_gap,
    profile,
    stratified_interval,
)
from opselect.experiments.results import RunResult

__all__ = ["check_result", "curves", "summarise"]

Summary = dict[str, Any]
_NO_INTERVAL: dict[str, float | None] = {"iqm": None, "low": None, "high": None}


def summarise(results: Sequence[RunResult], inapplicable: Mapping[tuple[str, str], str] | None = None) -> Summary:
    """A comparison as plain JSON values: no NaN, no infinity, no NumPy scalars; equal results give equal summaries.

    What depends on measured time is below a key with "seconds" in its name, and nothing else is.

    Args:
        results: at most one per (task, learner).
        inapplicable: why learners do not apply to tasks: (task, learner) -> reason.

    Returns:
        "rows": tasks in the order given and learners in the order given within each. A row has "task",
        "learner", "seeds" (how many), "hard_score", "soft_score" and "gap" (soft - hard, seed by seed), each
        {"iqm", "low", "high"}, "optimal_rate" (IQM over seeds), "evaluations" (of the reward function, per seed),
        "steps_to_95" (see `steps_to`) and "seconds". Where a learner does not apply, or its scores are not finite, all
        figures are null and "why_not" says why.

        "scopes": the sets of tasks that statistics across tasks are about, each with the learners that have scores on
        all of them: {"all": {"tasks", "learners"}, "common": ...}. "all" is missing where no learner has every task;
        "common", the tasks that every learner has, where there are none or it is the same.

        "aggregate": per scope and learner the hard score over the scope's tasks: "iqm" of all runs, "mean" and
        "optimality_gap"; "equal_evaluations" and "equal_seconds", the IQM after the budget that all reached on each
        task (null where unknown); "seeds" (the fewest) and "runs". Each with its stratified bootstrap interval.

        "pairs": see `opselect.comparison.pairs.compare_pairs`. "profiles": per scope and learner the share of runs
        above each "tau", see `profile`. "efficiency": {"evaluations": [...], "seconds": [...]}, per scope and learner a
        curve, see `efficiency`. "budgets": the same two keys, per task and learner the hard score at the task's
        "budget".

    Raises:
        ValueError: two results, or a result and a reason, for one (task, learner); or see `check_result`.
    """
    reasons = dict(inapplicable or {})
    by_cell: dict[tuple[str, str], RunResult] = {}
    for result in results:
        cell = (result.task, result.learner)
        if cell in by_cell or cell in reasons:
            raise ValueError(f"results must be at most one per task and learner, got two for {cell}")
        check_result(result)
        by_cell[cell] = result
    cells = [*by_cell, *reasons]
    tasks, learners = (list(dict.fromkeys(cell[i] for cell in cells)) for i in (0, 1))
    rows = []
    for task in tasks:
        for learner in learners:
            if (task, learner) in by_cell:
                rows.append(_row(by_cell[task, learner]))
            elif (task, learner) in reasons:
                rows.append(_empty_row(task, learner, 0, reasons[task, learner]))
    order = [(task, learner) for learner in learners for task in tasks if (task, learner) in by_cell]
    usable = {cell: by_cell[cell] for cell in order if np.isfinite(_finals(by_cell[cell])).all()}
    return {"rows": rows} | _across(usable, tasks, learners)


def check_result(result: RunResult) -> None:
    """Refuses a result that no training run leaves, such as one of a foreign file.

    Scores may be NaN: that is told where they are shown.

    Raises:
        ValueError: a shape, a type or a range that is not what `RunResult` promises; the message names it.
    """
    what = f"the result of {result.learner!r} on {result.task!r}"
    texts = [result.task, result.learner, *result.operations]
    if not all(isinstance(text, str) for text in texts) or not isinstance(result.config, Mapping):
        raise ValueError(f"{what} must have names and a configuration")
    if not all(isinstance(seed, int | np.integer) and abs(seed) < 2**63 for seed in result.seeds):
        raise ValueError(f"seeds of {what} must be integers, got {result.seeds}")
    expected = (len(result.seeds), len(result.step))
    for name in ("hard", "soft", "optimal"):
        if np.shape(getattr(result, name)) != expected:
            raise ValueError(
                f"{name} of {result.learner!r} on {result.task!r} must have shape [R, E] = {list(expected)},"
                f" got {list(np.shape(getattr(result, name)))}"
            )
    if 0 in expected:
        raise ValueError(f"{what} has no seeds or no evaluations")
    arrays = ("hard", "soft", "optimal", "step", "evaluations")
    if not all(np.asarray(getattr(result, name)).dtype.kind in "iuf" for name in arrays):
        raise ValueError(f"{what} must hold numbers")
    for name in ("step", "evaluations"):
        values = np.asarray(getattr(result, name), np.float64)
        if values.shape != expected[1:] or not values[0] > 0 or not (np.diff(values) > 0).all():
            raise ValueError(f"{name} of {what} must be [E] = {expected[1]} increasing positive numbers")
    if not isinstance(result.seconds, int | float | np.number) or not 0 < float(result.seconds) < np.inf:
        raise ValueError(f"seconds of {what} must be positive, got {result.seconds}")
    picture = result.picture
    count = len(np.atleast_1d(picture.x))
    decisions = np.shape(picture.choice)[-1] if np.ndim(picture.choice) else 0
    shapes = {
        "x": (count,),
        "target": (count,),
        "reward": (count,),
        "choice": (count, decisions),
        "right": (count, decisions),
    }
    for name, shape in shapes.items():
        values = np.asarray(getattr(picture, name))
        if values.shape != shape or 0 in shape or values.dtype.kind not in "iuf":
            raise ValueError(
                f"picture.{name} of {what} must be numbers of shape {list(shape)}, got {list(values.shape)}"
            )
    chosen = np.concatenate([np.ravel(picture.choice), np.ravel(picture.right)])
    if chosen.min() < -1 or np.min(picture.choice) < 0 or chosen.max() >= len(result.operations):
        raise ValueError(f"picture of {what} must name some of its {len(result.operations)} operations")

    _check_task(result.config.get("task"), what)


def _check_task(task: Any, what: str) -> None:
    """What the report says of a task, where it is known: a foreign one may say anything."""
    if not isinstance(task, Mapping):
        return
    ends, numbers = [task.get(name) for name in ("low", "high")], [task.get(name, 1) for name in ("horizon", "regions")]
    reals = [x for x in ends if x is not None]
    if not all(isinstance(x, int | float) for x in (*reals, *numbers)) or not np.isfinite(reals).all():
        raise ValueError(f"the task of {what} must have numbers for low, high, horizon and regions")
    if ("low" in task or "high" in task) and (len(reals) < 2 or not reals[0] < reals[1]):
        raise ValueError(f"the task of {what} must reach from low up to high, got {ends}")
    if not isinstance(task.get("operations", []), list | tuple):
        raise ValueError(f"the task of {what} must have a list of operations")


def _finals(result: RunResult) -> np.ndarray:
    """[3, R]: hard, soft, optimal."""
    return np.stack([np.asarray(a, np.float64)[:, -1] for a in (result.hard, result.soft, result.optimal)])


# --- across tasks -----------------------------------------------------------------------------------------------------


def _across(usable: Mapping[tuple[str, str], RunResult], tasks: Sequence[str], learners: Sequence[str]) -> Summary:
    """All that is not about one task alone; `usable` holds what has finite final scores, learner by learner."""
    finals = {cell: _finals(result)[0] for cell, result in usable.items()}
    budgets = {kind: _budgets(usable, tasks, kind) for kind in KINDS}
    scopes = _scopes(usable, tasks, learners)
    aggregate, profiles = [], []
    curves: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for scope, about in scopes.items():
        for learner in about["learners"]:
            runs = [usable[task, learner] for task in about["tasks"]]
            strata = [finals[task, learner] for task in about["tasks"]]
            place = {"scope": scope, "learner": learner}
            row = place | {"seeds": min(map(len, strata)), "runs": sum(map(len, strata))}
            row |= {
                "iqm": _as_iqm(stratified_interval(strata, iqm_over_tasks)),
                "mean": stratified_interval(strata, mean_over_tasks),
                "optimality_gap": stratified_interval(strata, optimality_gap),
            }
            for kind in KINDS:
                at = [budgets[kind][task, learner][1] for task in about["tasks"]]
                known = [scores for scores in at if scores is not None]
                complete = len(known) == len(at)
                found = _as_iqm(stratified_interval(known, iqm_over_tasks)) if complete else dict(_NO_INTERVAL)
                row[f"equal_{kind}"] = found
                if all(np.isfinite(run.hard).all() for run in runs):
                    curves[kind].append(place | efficiency(runs, kind))
            aggregate.append(row)
            shares = {name: np.asarray(v).tolist() for name, v in profile(strata).items()}
            profiles.append(place | {"tau": TAUS.tolist()} | shares)
    return {
        "scopes": scopes,
        "aggregate": aggregate,
        "pairs": compare_pairs(finals),
        "profiles": profiles,
        "efficiency": curves,
        "budgets": {kind: [row for row, _ in budgets[kind].values()] for kind in KINDS},
    }


def _scopes(usable: Mapping[tuple[str, str], Any], tasks: Sequence[str], learners: Sequence[str]) -> dict[str, Summary]:
    having = [learner for learner in learners if any((task, learner) in usable for task in tasks)]
    some = [task for task in tasks if any((task, learner) in usable for learner in having)]
    common = [task for task in some if all((task, learner) in usable for learner in having)]
    complete = [learner for learner in having if all((task, learner) in usable for task in some)]
    scopes = {"all": {"tasks": some, "learners": complete}} if complete else {}
    return scopes | ({"common": {"tasks": common, "learners": having}} if common and common != some else {})


def _budgets(
    usable: Mapping[tuple[str, str], RunResult], tasks: Sequence[str], kind: Any
) -> dict[tuple[str, str], tuple[dict[str, Any], np.ndarray | None]]:
    """(task, learner) -> its row, and its scores [R] at the task's budget, None where they are not known."""
    found = {}
    for task in tasks:
        some = {learner: result for (of, learner), result in usable.items() if of == task}
        if not some:
            continue
        budget = common_budget(list(some.values()), kind)
        for learner, result in some.items():
            first, scores, why = float(spent(result, kind)[0]), None, ""
            if first > budget:
                why = f"its first score came after {first:.3g} {kind}"
            elif not np.isfinite(result.hard).all():
                why = "scores were not finite along the way"
            else:
                scores = score_at(result, kind, budget)[0]
            row: dict[str, Any] = {"task": task, "learner": learner, "budget": budget}
            row["score"] = dict(_NO_INTERVAL) if scores is None else interval(scores)
            found[task, learner] = (row | ({"why_not": why} if why else {}), scores)
    return found


def _as_iqm(found: Mapping[str, Any]) -> dict[str, Any]:
    return {"iqm": found["value"], "low": found["low"], "high": found["high"]}


# --- the table --------------------------------------------------------------------------------------------------------


def _row(result: RunResult) -> dict[str, Any]:
    hard, soft, optimal = _finals(result)
    broken = ~np.isfinite(hard + soft + optimal)
    if broken.any():
        seeds = [seed for seed, bad in zip(result.seeds, broken, strict=True) if bad]
        return _empty_row(result.task, result.learner, len(result.seeds), f"scores are not finite for seeds {seeds}")
    return {
        "task": result.task,
        "learner": result.learner,
        "seeds": len(result.seeds),
        "hard_score": interval(hard),
        "soft_score": interval(soft),
        "gap": interval(soft - hard),
        "optimal_rate": iqm(optimal),
        "evaluations": int(result.evaluations[-1]),
        "steps_to_95": steps_to(result),
        "seconds": float(result.seconds),
    }


def _empty_row(task: str, learner: str, seeds: int, reason: str) -> dict[str, Any]:
    return {
        "task": task,
        "learner": learner,
        "seeds": seeds,
        "hard_score": dict(_NO_INTERVAL),
        "soft_score": dict(_NO_INTERVAL),
        "gap": dict(_NO_INTERVAL),
        "optimal_rate": None,
        "evaluations": None,
        "steps_to_95": None,
        "seconds": None,
        "why_not": reason,
    }


def curves(results: Sequence[RunResult]) -> pd.DataFrame:
    """The learning curves as a tidy table: one line per task, learner, seed and evaluation.

    Returns:
        Columns task, learner, seed, step, evaluations (per seed, so far), hard_score and soft_score, in the order of
        `results`, then of seeds, then of steps.
    """
    parts = []
    for result in results:
        check_result(result)
        seeds, points = len(result.seeds), len(result.step)
        parts.append(
            pd.DataFrame(
                {
                    "task": result.task,
                    "learner": result.learner,
                    "seed": np.repeat(np.asarray(result.seeds, np.int64), points),
                    "step": np.tile(np.asarray(result.step, np.int64), seeds),
                    "evaluations": np.tile(np.asarray(result.evaluations, np.int64), seeds),
                    "hard_score": np.asarray(result.hard, np.float64).reshape(-1),
                    "soft_score": np.asarray(result.soft, np.float64).reshape(-1),
                }
            )
        )
    columns = ["task", "learner", "seed", "step", "evaluations", "hard_score", "soft_score"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
