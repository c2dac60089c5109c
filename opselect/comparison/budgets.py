"""Scores after a budget of reward evaluations or of seconds, and curves of them over several tasks.

Shapes: R seeds, E evaluations along training, G budgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from opselect.comparison.stratified import iqm_over_tasks, stratified_interval
from opselect.experiments.results import RunResult

__all__ = ["KINDS", "Budget", "common_budget", "efficiency", "score_at", "spent"]

Budget = Literal["evaluations", "seconds"]
KINDS: tuple[Budget, ...] = ("evaluations", "seconds")
_POINTS = 50


def spent(result: RunResult, kind: Budget) -> np.ndarray:
    """What had been spent at each evaluation: [E] float64.

    Evaluations of the reward function are counted per seed. Seconds are those of all seeds together. Only their total
    is measured, so they are taken to be proportional to the steps done: compilation, too, is spread over the whole run.
    """
    if kind == "evaluations":
        return np.asarray(result.evaluations, np.float64)
    step = np.asarray(result.step, np.float64)
    return float(result.seconds) * step / step[-1]


def score_at(result: RunResult, kind: Budget, budgets: npt.ArrayLike) -> np.ndarray:
    """Each seed's hard score after these budgets: [G] -> [G, R].

    Between two evaluations of the policy it is interpolated linearly; after the last one training is over and the score
    stays. Before the first one nothing is known.

    Raises:
        ValueError: a budget was used up before the first evaluation.
    """
    budgets, at = np.atleast_1d(np.asarray(budgets, np.float64)), spent(result, kind)
    if budgets.min() < at[0]:
        raise ValueError(
            f"budgets must be at least {at[0]:g} {kind}, those before the first score; got {budgets.min()}"
        )
    return np.stack([np.interp(budgets, at, seed) for seed in np.asarray(result.hard, np.float64)], -1)


def common_budget(results: Sequence[RunResult], kind: Budget) -> float:
    """The largest budget that all these runs of one task reached: the least of what they spent in all."""
    return min(float(spent(result, kind)[-1]) for result in results)


def efficiency(results: Sequence[RunResult], kind: Budget, seed: int = 0) -> dict[str, Any]:
    """One learner's interquartile mean over tasks and seeds of the hard score against what was spent on each task.

    The curve begins where every task has had its first evaluation. A task whose training is over keeps its last score,
    so the curve ends at the largest budget of any task.

    Args:
        results: of one learner, one per task.
        kind: "evaluations" of the reward function, per seed, or "seconds" (see `spent`).
        seed: of the resampling.

    Returns:
        {"at": [G] increasing, "iqm": [G], "low": [G], "high": [G]} as lists, with a stratified bootstrap's interval;
        G is at most 50, and the points are evaluations of some task.
    """
    begins = max(float(spent(result, kind)[0]) for result in results)
    every = np.unique(np.concatenate([spent(result, kind) for result in results]))
    every = every[every >= begins]
    at = every[np.unique(np.linspace(0, len(every) - 1, min(len(every), _POINTS)).round().astype(int))]
    found = stratified_interval([score_at(result, kind, at) for result in results], iqm_over_tasks, seed)
    curves = {"iqm": found["value"], "low": found["low"], "high": found["high"]}
    return {"at": at.tolist()} | {name: np.asarray(values).tolist() for name, values in curves.items()}
