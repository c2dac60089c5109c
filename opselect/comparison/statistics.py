"""Interquartile means, bootstrap intervals over seeds, and the summary of a comparison.

Shapes: R seeds, E evaluations along training. Final values are those of the last evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.stats

from opselect.experiments.results import RunResult

__all__ = ["THRESHOLD", "curves", "interval", "iqm", "steps_to", "summarise"]

THRESHOLD = 0.95
"""The hard score that `steps_to_95` waits for."""
_RESAMPLES = 9999
_NO_INTERVAL: dict[str, float | None] = {"iqm": None, "low": None, "high": None}


def iqm(values: npt.ArrayLike, axis: int = -1) -> Any:
    """The interquartile mean of Agarwal et al. (2021), "Deep RL at the Edge of the Statistical Precipice".

    The mean of what is left when the lowest and the highest quarter are dropped. A fractional quarter is rounded down,
    as in the paper's own code: floor(n / 4) values go at each end, so one of 5, two of 10, and none below 4, where
    this is the plain mean.

    Args:
        values: [..., n, ...], n >= 1 along `axis`.
        axis: the axis to take the mean over.

    Returns:
        float64, the shape of `values` without `axis`; a float for [n].
    """
    array = np.asarray(values, np.float64)
    if array.ndim == 0 or array.shape[axis] == 0:
        raise ValueError(f"values must hold at least one number along axis {axis}, got shape {array.shape}")
    mean = scipy.stats.trim_mean(array, proportiontocut=0.25, axis=axis)
    return float(mean) if array.ndim == 1 else mean


def interval(values: npt.ArrayLike, statistic: Callable[..., Any] = iqm, seed: int = 0) -> dict[str, float]:
    """A statistic over seeds with its 95% percentile-bootstrap interval.

    With few seeds such an interval is too narrow: R values have no more than R**R resamples.

    Args:
        values: [R] finite numbers, one per seed. One seed, or equal values, give an interval without width.
        statistic: called as ``statistic(resamples, axis=-1)``.
        seed: of the resampling; the same seed gives the same interval.

    Returns:
        {"iqm": the statistic of `values`, "low": float, "high": float}.
    """
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"values must have shape [R] with R >= 1, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"values must be finite, got {array[~np.isfinite(array)][0]} at {np.isfinite(array).argmin()}")
    if np.all(array == array[0]):  # nothing to resample, and a mean of equal values may be off by a rounding
        value = float(statistic(array[:1], axis=-1))
        return {"iqm": value, "low": value, "high": value}
    drawn = scipy.stats.bootstrap(
        (array,),
        statistic,
        n_resamples=_RESAMPLES,
        confidence_level=0.95,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return {"iqm": float(statistic(array, axis=-1)), "low": float(drawn.low), "high": float(drawn.high)}


def steps_to(result: RunResult, threshold: float = THRESHOLD) -> float | None:
    """The first evaluated step at which a seed's hard score reaches `threshold`: the median over seeds.

    None if half of the seeds or more never reach it. A whole number comes back as an int.
    """
    reached = np.asarray(result.hard) >= threshold  # [R, E]
    first = np.where(reached.any(-1), np.asarray(result.step)[reached.argmax(-1)], np.inf)
    median = float(np.median(first))
    if not np.isfinite(median):
        return None
    return int(median) if median.is_integer() else median


def summarise(
    results: Sequence[RunResult], inapplicable: Mapping[tuple[str, str], str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The table of a comparison, as plain JSON values: no NaN, no infinity, no NumPy scalars.

    Args:
        results: at most one per (task, learner).
        inapplicable: why learners do not apply to tasks: (task, learner) -> reason.

    Returns:
        {"rows": [...]}, tasks in the order given and learners in the order given within each. A row has "task",
        "learner", "seeds" (how many), "hard_score", "soft_score" and "gap" (soft - hard, seed by seed), each
        {"iqm", "low", "high"}, "optimal_rate" (IQM over seeds), "evaluations" (of the reward function, per seed),
        "steps_to_95" (see `steps_to`) and "seconds". Where a learner does not apply, or its scores are not finite, all
        figures are null and "why_not" says why.

    Raises:
        ValueError: two results, or a result and a reason, for one (task, learner); or a result of malformed shape.
    """
    reasons = dict(inapplicable or {})
    by_cell: dict[tuple[str, str], RunResult] = {}
    for result in results:
        cell = (result.task, result.learner)
        if cell in by_cell or cell in reasons:
            raise ValueError(f"results must be at most one per task and learner, got two for {cell}")
        _check_shapes(result)
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
    return {"rows": rows}


def _check_shapes(result: RunResult) -> None:
    expected = (len(result.seeds), len(result.step))
    for name in ("hard", "soft", "optimal"):
        if np.shape(getattr(result, name)) != expected:
            raise ValueError(
                f"{name} of {result.learner!r} on {result.task!r} must have shape [R, E] = {list(expected)},"
                f" got {list(np.shape(getattr(result, name)))}"
            )
    if 0 in expected:
        raise ValueError(f"the result of {result.learner!r} on {result.task!r} has no seeds or no evaluations")


def _row(result: RunResult) -> dict[str, Any]:
    hard, soft, optimal = (np.asarray(a, np.float64)[:, -1] for a in (result.hard, result.soft, result.optimal))
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
        _check_shapes(result)
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
