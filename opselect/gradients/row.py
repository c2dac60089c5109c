"""What was measured of one gradient estimator."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

__all__ = ["ROUNDING", "GradientRow", "by_work", "share_text"]

ROUNDING = 64 * 2.0**-24
"""float32 rounding errors, relative to losses and gradients."""


@dataclass(frozen=True)
class GradientRow:
    """What was measured of one estimator. Figures are None where it does not apply; then `reason` says why.

    Over B rows, `bias` is the root of the mean square; every other figure is the mean. Estimates with a NaN or an
    infinite entry count in `nan_share` and nowhere else.

    Attributes:
        problem: the objective's name.
        estimator: the estimator's name.
        bias: ``||mean estimate - reference||_2``. Its expectation is above 0 for an unbiased estimator, too:
            ``E[bias**2] = ||true bias||**2 + bias_se**2``, so compare it with `bias_se`, or see `biased`.
        bias_se: ``sqrt(sum_k Var[g_k] / n + r**2 + (3 R / n)**2 + rounding**2)``, the root-mean-square norm of the
            noise, which is never less than the standard error of the norm. r is the reference's standard error;
            R stands for the estimate at an outcome too rare to be drawn n times: ``sqrt(2 D) max |f|`` bounds a
            score-function estimate without a baseline, the longest estimate seen is taken for a relaxation, 0 where
            nothing is drawn.
        variance: the total variance ``sum_k Var[g_k]`` of a single estimate.
        evaluations: S, of the objective per row and estimate.
        cosine: the mean cosine of single estimates with the reference; an estimate of zero counts as 0. None where
            the reference is zero.
        zero_share: the share of estimates that are zero, to within float32 rounding: no longer than 2**-18 of the
            longest one of their row.
        nan_share: the share of estimates with an entry that is NaN or infinite.
        microseconds: the median time of one call for the given logits: propose, evaluate, close, differentiate.
        reason: why the estimator does not apply; None where it does.
        biased: whether a test finds a bias at level 1e-4. It compares ``bias**2`` with what noise alone makes of it, a
            chi-square scaled to have that mean and variance (Satterthwaite); below rounding errors nothing is found.
        bias_low, bias_high: a 95% interval of the true bias, ``bias**2 - bias_se**2 +- 1.96 se`` under the root; it
            holds the bias more often than that where the bias is small.
        variance_se: the standard error of `variance`.
        cosine_of_mean: the cosine of the mean estimate with the reference.
        estimates: n, how many estimates were made; 1 for an estimator that draws nothing.
        enumerated: whether it evaluates every outcome, so that its S is K**D.
        needs_gradient: whether the objective must have a gradient in the weights.
        needs_value: whether a baseline must be learned; the figures are those of a perfect one.
    """

    problem: str
    estimator: str
    bias: float | None = None
    bias_se: float | None = None
    variance: float | None = None
    evaluations: int | None = None
    cosine: float | None = None
    zero_share: float | None = None
    nan_share: float | None = None
    microseconds: float | None = None
    reason: str | None = None
    biased: bool | None = None
    bias_low: float | None = None
    bias_high: float | None = None
    variance_se: float | None = None
    cosine_of_mean: float | None = None
    estimates: int = 0
    enumerated: bool = False
    needs_gradient: bool = False
    needs_value: bool = False

    @property
    def work(self) -> float:
        """``variance * evaluations``: the squared error that one evaluation buys, inf where there is none."""
        if self.reason is not None or self.variance is None or self.evaluations is None:
            return math.inf
        return self.variance * self.evaluations

    def to_dict(self) -> dict[str, Any]:
        """The attributes as plain JSON values; None, never NaN, where there is no figure."""
        return dataclasses.asdict(self)


def by_work(row: GradientRow) -> tuple[float, int]:
    """The order of rows: by `work`, then by how few evaluations one estimate takes."""
    return row.work, row.evaluations or 0


def share_text(share: float | None) -> str:
    """A share in percent; "<1%" and ">99%" where rounding would make it none or all, "-" for None."""
    if share is None:
        return "-"
    return "<1%" if 0.0 < share < 0.01 else ">99%" if 0.99 < share < 1.0 else f"{share:.0%}"
