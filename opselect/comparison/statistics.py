"""Interquartile means, bootstrap intervals over seeds, and how long a score takes.

Shapes: R seeds, E evaluations along training. Final values are those of the last evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.stats

from opselect.experiments.results import RunResult

__all__ = ["MIN_SEEDS", "THRESHOLD", "interval", "iqm", "steps_to"]

THRESHOLD = 0.95
"""The hard score that `steps_to_95` waits for."""
MIN_SEEDS = 5
"""Fewer seeds than this say nothing about a difference between learners."""
_RESAMPLES = 9999


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
