"""Statistics over several tasks at once, with stratified bootstrap intervals.

Seeds are resampled within each task, never across tasks, as in Agarwal et al. (2021), "Deep Reinforcement Learning at
the Edge of the Statistical Precipice" (arXiv:2108.13264): tasks are chosen, seeds are drawn.

Shapes: T tasks; R_t seeds of task t, which may differ between tasks; G points of a curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.stats

from opselect.comparison.statistics import iqm

__all__ = [
    "TAUS",
    "improvement",
    "iqm_over_tasks",
    "mean_over_tasks",
    "optimality_gap",
    "probability_of_improvement",
    "profile",
    "stratified_interval",
]

_RESAMPLES = 1999
TAUS = np.arange(101) / 100
"""[101], the scores at which performance profiles are read."""
Strata = Sequence[npt.ArrayLike]


def stratified_interval(
    strata: Strata, statistic: Callable[[Sequence[np.ndarray]], Any], seed: int = 0
) -> dict[str, Any]:
    """A statistic of several samples with its 95% percentile interval; each sample is resampled by itself.

    Args:
        strata: one array [..., R_t] per stratum, finite, R_t >= 1; of one seed there is nothing to resample. The same
            seeds are drawn for all leading places, so a seed keeps its whole curve.
        statistic: takes such a list and reduces the last axes: [..., R_t] each -> [...].
        seed: of the resampling; the same seed gives the same interval.

    Returns:
        {"value", "low", "high"}, floats or arrays [...].

    Raises:
        ValueError: no stratum, an empty one, or a number that is not finite.
    """
    arrays = [np.asarray(stratum, np.float64) for stratum in strata]
    if not arrays or any(a.ndim == 0 or a.shape[-1] == 0 for a in arrays):
        raise ValueError(f"strata must be arrays [..., R] with R >= 1, got shapes {[a.shape for a in arrays]}")
    if not all(np.isfinite(a).all() for a in arrays):
        raise ValueError("strata must be finite")
    value = statistic(arrays)
    # Of one seed, or of seeds that are all equal, every resample is the same; scipy refuses the former.
    moving = [i for i, a in enumerate(arrays) if a.shape[-1] > 1 and not np.all(a == a[..., :1])]
    if not moving:
        return _named(value, value, value)

    def of_resamples(*drawn: np.ndarray, axis: int = -1) -> Any:
        lead = drawn[0].shape[:-1]  # [..., resamples]
        all_of_them: list[np.ndarray] = [np.broadcast_to(a[..., None, :], (*lead, a.shape[-1])) for a in arrays]
        for i, sample in zip(moving, drawn, strict=True):
            all_of_them[i] = sample
        return statistic(all_of_them)

    found = scipy.stats.bootstrap(
        tuple(arrays[i] for i in moving),
        of_resamples,
        n_resamples=_RESAMPLES,
        batch=200,
        confidence_level=0.95,
        vectorized=True,
        axis=-1,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return _named(value, found.low, found.high)


def _named(value: Any, low: Any, high: Any) -> dict[str, Any]:
    named = {"value": value, "low": low, "high": high}
    return {k: float(v) if np.ndim(v) == 0 else np.asarray(v) for k, v in named.items()}


def iqm_over_tasks(strata: Sequence[np.ndarray]) -> Any:
    """The interquartile mean of the runs of all tasks, pooled: [..., R_t] each -> [...].

    As in Agarwal et al. (2021), where every task has equally many seeds; here a task with more of them weighs more.
    """
    return iqm(np.concatenate(list(strata), -1))


def mean_over_tasks(strata: Sequence[np.ndarray]) -> Any:
    """The mean over tasks of the mean over seeds: [..., R_t] each -> [...]."""
    return np.mean([np.mean(s, -1) for s in strata], axis=0)


def optimality_gap(strata: Sequence[np.ndarray]) -> Any:
    """By how much runs fall short of the oracle's score of 1: the mean over tasks and seeds of ``max(0, 1 - score)``.

    Agarwal et al. (2021), section 4.3, with the target 1. [..., R_t] each -> [...].
    """
    return mean_over_tasks([np.maximum(0.0, 1.0 - np.asarray(s)) for s in strata])


def improvement(x: npt.ArrayLike, y: npt.ArrayLike) -> Any:
    """The share of pairs in which a score of x is higher than one of y; ties count half: [..., R], [..., S] -> [...].

    Mann and Whitney's U over ``R S``.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    pairs = x.shape[-1] * y.shape[-1]
    return (pairs + np.sum(np.sign(x[..., :, None] - y[..., None, :]), (-2, -1))) / (2 * pairs)


def probability_of_improvement(x: Strata, y: Strata, seed: int = 0) -> dict[str, float]:
    """P(X > Y): how probable it is that a run of X scores higher than one of Y, averaged over tasks.

    Agarwal et al. (2021), section 4.3. The interval is a stratified bootstrap: the seeds of each task, of X and of Y,
    are resampled by themselves.

    Args:
        x: final scores of X, [R_t] per task.
        y: final scores of Y on the same tasks, [S_t] per task.
        seed: of the resampling.

    Returns:
        {"value", "low", "high"}; 0.5 where neither is better.
    """
    if len(x) != len(y):
        raise ValueError(f"x and y must have the same tasks, got {len(x)} and {len(y)}")

    def averaged(strata: Sequence[np.ndarray]) -> Any:
        return np.mean([improvement(strata[i], strata[len(x) + i]) for i in range(len(x))], axis=0)

    return stratified_interval([*x, *y], averaged, seed)


def profile(strata: Strata, seed: int = 0) -> dict[str, Any]:
    """The performance profile: the share of runs that score more than tau, averaged over tasks, for each of `TAUS`.

    Dolan and More (2002); as a score distribution in Agarwal et al. (2021), section 4.2. The band is a stratified
    bootstrap, at each tau by itself.

    Args:
        strata: final scores [R_t] per task.
        seed: of the resampling.

    Returns:
        {"value", "low", "high"}, each [G], from tau = 0 to 1.
    """
    above = [np.asarray(s, np.float64) > TAUS[:, None] for s in strata]
    return stratified_interval(above, mean_over_tasks, seed)
