"""Which estimator a report recommends, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from opselect.gradients.row import ROUNDING, GradientRow, by_work, share_text

if TYPE_CHECKING:  # a report calls these functions
    from opselect.gradients.report import GradientReport

__all__ = ["FEW_OUTCOMES", "choose", "explain"]

FEW_OUTCOMES = 16
"""Up to so many outcomes, enumerating them all is always called affordable."""
_WORTH_ENUMERATING = 0.1  # else so large a squared error, relative to the gradient's, must be left by sampling as much
_RESOLVED = 0.05  # a relaxation passes as unbiased only if its bias is surely below this share of the gradient


def choose(report: GradientReport) -> GradientRow | None:
    """The row that `GradientReport.recommend` names, or None if no estimator applies."""
    unbiased = _unbiased(report)
    if not unbiased:
        return min(_sound(report), key=lambda row: _squared_error(row, row.evaluations or 1), default=None)
    best, sampling = min(unbiased, key=by_work), _sampling(unbiased)
    if sampling is None or not best.enumerated or _few(best):
        return best
    return sampling if _left(report, sampling, best) <= _WORTH_ENUMERATING else best


def explain(report: GradientReport) -> str:
    """The sentence of `GradientReport.recommend`."""
    chosen, unbiased = choose(report), _unbiased(report)
    if chosen is None:
        return f"None of these estimators applies to {report.problem}: {report.notes[0]}."
    if report.vanishing:
        clauses = _why_vanishing(report, chosen, unbiased)
    elif chosen not in unbiased:
        clauses = [
            f"Use {chosen.estimator} with care: none is known to be unbiased, and with a bias of"
            f" {_relative_bias(report, chosen)} and {_times(chosen)} it has the smallest mean-squared error"
        ]
    elif chosen.enumerated:
        clauses = [_why_enumerate(report, chosen, unbiased), *_fewer_evaluations(report, chosen, unbiased)]
    else:
        clauses = [_why_sample(report, chosen, unbiased), *_smaller_error(report, chosen, unbiased)]
    return "; ".join([*clauses, *_warnings(report, chosen)]) + "."


def _sound(report: GradientReport) -> list[GradientRow]:
    """Those that apply; with NaN gradients only if there are no others."""
    applicable = [row for row in report.rows if row.reason is None]
    return [row for row in applicable if not row.nan_share] or applicable


def _unbiased(report: GradientReport) -> list[GradientRow]:
    limit = max(_RESOLVED * report.gradient_norm, report.rounding)
    rows = [r for r in _sound(report) if not r.biased and (not r.needs_gradient or (r.bias_high or 0.0) <= limit)]
    return [r for r in rows if _resolved(report, r)] or rows


def _resolved(report: GradientReport, row: GradientRow) -> bool:
    """Whether there were enough estimates to see a bias as large as the gradient."""
    return (row.bias_se or 0.0) <= max(report.gradient_norm, report.rounding)


def _sampling(rows: Iterable[GradientRow]) -> GradientRow | None:
    """The best that does not enumerate."""
    return min((r for r in rows if not r.enumerated), key=by_work, default=None)


def _few(row: GradientRow) -> bool:
    return (row.evaluations or 0) <= FEW_OUTCOMES


def _left(report: GradientReport, row: GradientRow, other: GradientRow) -> float:
    """The squared error, relative to the gradient's square, of `row` after as many evaluations as `other` takes."""
    return row.work / ((other.evaluations or 1) * max(report.gradient_norm, report.rounding, 1e-150) ** 2)


def _squared_error(row: GradientRow, evaluations: int) -> float:
    bias = max(0.0, (row.bias or 0.0) ** 2 - (row.bias_se or 0.0) ** 2)
    return bias + row.work / evaluations


def _why_enumerate(report: GradientReport, chosen: GradientRow, unbiased: list[GradientRow]) -> str:
    verdict = "affordable" if _few(chosen) else "worth it"
    text = f"Use {chosen.estimator}: its {_outcomes(report)} evaluations per row are {verdict} and leave no variance"
    sampling = _sampling(unbiased)
    if sampling is None:
        return text
    left = math.sqrt(_left(report, sampling, chosen))
    text += f", while {sampling.estimator} would be off by {left:.0%} of the gradient after as many evaluations"
    if chosen.microseconds is not None and sampling.microseconds is not None:
        text += f" (a call takes {chosen.microseconds:.0f} and {sampling.microseconds:.0f} us)"
    return text


def _why_sample(report: GradientReport, chosen: GradientRow, unbiased: list[GradientRow]) -> str:
    if chosen.estimates == 1:
        return f"Use {chosen.estimator}: no bias and no variance here, from {_times(chosen)}"
    bias = "unbiased"
    if chosen.needs_gradient:
        most = (chosen.bias_high or 0.0) / report.gradient_norm
        bias = f"no bias found (it is below {most:.1%} of the gradient),"
    text = (
        f"Use {chosen.estimator}: {bias} with the least variance x evaluations"
        f" ({chosen.variance:.3g} x {_times(chosen)})"
    )
    if chosen.needs_value:
        text += " once its baseline is learned"
        free = _sampling(r for r in unbiased if not r.needs_value)
        if free is not None:
            text += f" ({free.estimator} needs none: {free.variance:.3g} x {free.evaluations})"
    exact = next((r for r in unbiased if r.enumerated), None)
    if exact is not None:
        left = math.sqrt(_left(report, chosen, exact))
        text += (
            f", and the {_outcomes(report)} evaluations of {exact.estimator} are not worth it, as with so many it is"
            f" off by no more than {left:.1%} of the gradient"
        )
    elif any(r.reason is not None and "cap=" in r.reason for r in report.rows):
        text += f", where {_outcomes(report)} outcomes are too many to enumerate"
    return text


def _same_way(report: GradientReport, unbiased: list[GradientRow]) -> list[GradientRow]:
    """Biased ones whose mean points along the gradient."""
    return [r for r in _sound(report) if r not in unbiased and (r.cosine_of_mean or 0.0) > 0.99]


def _fewer_evaluations(report: GradientReport, chosen: GradientRow, unbiased: list[GradientRow]) -> list[str]:
    """A biased one that takes at most a quarter of many evaluations, if there is one."""
    others = [r for r in _same_way(report, unbiased) if 4 * (r.evaluations or 1) <= (chosen.evaluations or 1)]
    if _few(chosen) or not others:
        return []
    other = min(others, key=lambda r: _squared_error(r, r.evaluations or 1))
    return [
        f"if those are too many, {other.estimator} takes {_times(other)}, with a bias of"
        f" {_relative_bias(report, other)} and a variance of {other.variance:.3g}"
    ]


def _smaller_error(report: GradientReport, chosen: GradientRow, unbiased: list[GradientRow]) -> list[str]:
    """A biased one with less than half the error at equal evaluations, if there is one."""
    budget = chosen.evaluations or 1
    other = min(_same_way(report, unbiased), key=lambda r: _squared_error(r, budget), default=None)
    if other is None or _squared_error(other, budget) >= 0.5 * _squared_error(chosen, budget):
        return []
    if _squared_error(other, budget) == 0:  # no variance, and a bias that is lost in the reference's error
        most = (other.bias_high or 0.0) / report.gradient_norm
        return [
            f"{other.estimator} has no variance here, but a bias of up to {most:.2g} of the gradient can't be ruled out"
        ]
    ratio = _squared_error(chosen, budget) / _squared_error(other, budget)
    return [
        f"{other.estimator} has a {ratio:.3g} times smaller mean-squared error at equal evaluations, but a bias of"
        f" {_relative_bias(report, other)} that no averaging removes (cosine of its mean {other.cosine_of_mean:.3f})"
    ]


def _why_vanishing(report: GradientReport, chosen: GradientRow, unbiased: list[GradientRow]) -> list[str]:
    cause, remedy = "its standard error", "more samples"
    if report.gradient_norm <= report.rounding:
        cause = f"float32 rounding of losses of size {report.rounding / ROUNDING:.2g}"
        remedy = "losses less a constant"
    kind = "unbiased" if chosen in unbiased else "applicable"
    return [
        f"The reference gradient is zero to within {cause} at these logits (norm {report.gradient_norm:.2g}), so no"
        f" direction can be judged: try other logits, or {remedy}",
        f"of the {kind} ones, {chosen.estimator} has the least variance x evaluations ({chosen.work:.3g})",
    ]


def _warnings(report: GradientReport, chosen: GradientRow) -> list[str]:
    clauses: list[str] = []
    if not report.vanishing:
        if (chosen.zero_share or 0.0) >= 0.1:
            clauses.append(f"{chosen.zero_share:.0%} of its gradients are zero")
        if not _resolved(report, chosen):
            clauses.append(f"but {report.samples} samples are few: its mean is known to +-{chosen.bias_se:.2g} only")
    if chosen.nan_share:
        clauses.append(f"{share_text(chosen.nan_share)} of its gradients are NaN or infinite")
    broken = [f"{r.estimator} ({share_text(r.nan_share)} NaN)" for r in report.rows if r.nan_share and r is not chosen]
    if broken:
        clauses.append("avoid " + ", ".join(broken))
    return clauses


def _relative_bias(report: GradientReport, row: GradientRow) -> str:
    return f"{(row.bias or 0.0) / report.gradient_norm:.2g} of the gradient"


def _outcomes(report: GradientReport) -> str:
    """K**D, as a reader would write it."""
    k, d = report.operations, report.decisions
    return f"{k}" if d == 1 else f"{k}**{d} = {report.outcomes}"


def _times(row: GradientRow) -> str:
    return f"{row.evaluations} evaluation{'s' if row.evaluations != 1 else ''}"
