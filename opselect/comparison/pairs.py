"""Which of two learners is better, task by task and over all of them, and how sure that is."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.stats

from opselect.comparison.statistics import MIN_SEEDS, iqm
from opselect.comparison.stratified import probability_of_improvement

__all__ = ["LEVEL", "compare_pairs", "flipped", "pair_of", "rank_test"]

LEVEL = 0.05
"""The share of false differences that is accepted among those that are claimed."""
Pair = Mapping[str, Any]


def rank_test(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """The two-sided p-value of Mann and Whitney's (1947) U test of final scores x [R] and y [S].

    Exact where one of them has up to eight seeds and there are no ties, else asymptotic, corrected for ties.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if np.ptp(np.concatenate([x, y])) == 0:  # 0 / 0 in the correction for ties
        return 1.0
    return float(scipy.stats.mannwhitneyu(x, y, alternative="two-sided").pvalue)


def compare_pairs(scores: Mapping[tuple[str, str], npt.ArrayLike]) -> list[dict[str, Any]]:
    """Every pair of learners, on the tasks that both have with at least `MIN_SEEDS` seeds.

    A task's difference counts where the p-value of `rank_test`, adjusted over all pairs and tasks given here (Benjamini
    and Hochberg, 1995), is at most `LEVEL`: of the differences that are claimed, about one in twenty may be false.

    Args:
        scores: (task, learner) -> final hard scores [R], finite.

    Returns:
        For learners x and y in the order given: "x", "y"; "probability", that x scores higher, averaged over tasks,
        {"value", "low", "high"}, null without tasks (see `probability_of_improvement`); "by_task", a list of {"task",
        "difference" (of the IQMs, x - y), "probability" (the same on this task), "p" (adjusted), "better" ("x", "y", or
        null within noise)}; "too_few_seeds", tasks on which nothing is claimed.
    """
    tasks, learners = (list(dict.fromkeys(cell[i] for cell in scores)) for i in (0, 1))
    arrays = {cell: np.asarray(values, np.float64) for cell, values in scores.items()}
    pairs: list[dict[str, Any]] = []
    for x, y in itertools.combinations(learners, 2):
        both = [task for task in tasks if (task, x) in arrays and (task, y) in arrays]
        few = [task for task in both if min(len(arrays[task, x]), len(arrays[task, y])) < MIN_SEEDS]
        judged = [task for task in both if task not in few]
        by_task = [_on_task(task, arrays[task, x], arrays[task, y]) for task in judged]
        over_all = probability_of_improvement([arrays[t, x] for t in judged], [arrays[t, y] for t in judged]) \
            if judged else {"value": None, "low": None, "high": None}  # fmt: skip
        pairs.append({"x": x, "y": y, "probability": over_all, "by_task": by_task, "too_few_seeds": few})
    tests = [on_task for pair in pairs for on_task in pair["by_task"]]
    if tests:
        adjusted = scipy.stats.false_discovery_control([test["p"] for test in tests], method="bh")
        for test, p in zip(tests, adjusted, strict=True):
            test["p"] = float(p)
            higher = "x" if test["probability"]["value"] > 0.5 else "y"
            test["better"] = higher if p <= LEVEL else None
    return pairs


def _on_task(task: str, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    return {
        "task": task,
        "difference": iqm(x) - iqm(y),
        "probability": probability_of_improvement([x], [y]),
        "p": rank_test(x, y),
        "better": None,
    }


def pair_of(pairs: Sequence[Pair], x: str, y: str) -> Pair | None:
    """The pair of x and y, seen from x; None if they were not compared."""
    for pair in pairs:
        if (pair["x"], pair["y"]) == (x, y):
            return pair
        if (pair["x"], pair["y"]) == (y, x):
            return flipped(pair)
    return None


def flipped(pair: Pair) -> dict[str, Any]:
    """The same pair, seen from the other learner."""
    other = {"x": "y", "y": "x", None: None}
    return {
        "x": pair["y"],
        "y": pair["x"],
        "probability": _complement(pair["probability"]),
        "by_task": [
            on_task
            | {
                "difference": -on_task["difference"],
                "probability": _complement(on_task["probability"]),
                "better": other[on_task["better"]],
            }
            for on_task in pair["by_task"]
        ],
        "too_few_seeds": pair["too_few_seeds"],
    }


def _complement(probability: Mapping[str, float | None]) -> dict[str, float | None]:
    value, low, high = (probability[name] for name in ("value", "low", "high"))
    if value is None or low is None or high is None:
        return dict(probability)
    return {"value": 1 - value, "low": 1 - high, "high": 1 - low}
