"""Which gradient estimator suits an objective: bias, variance and cost of each, measured on the objective itself.

    report = gradient_report(lambda weights: tf.reduce_sum(weights * costs, -1) ** 2, logits)
    print(report)
    print(report.recommend())

Shapes: B rows, D decisions made at once per row, K operations, S evaluations per row of one estimate, N evaluations of
the objective in one call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaincc

from opselect._tensorflow import tf
from opselect.estimators import ESTIMATORS, Estimator, Exact, InvalidShapeError
from opselect.random import as_seed
from opselect_envs.naming import nearest

__all__ = ["FEW_OUTCOMES", "GradientReport", "GradientRow", "gradient_report"]

Tensor = Any
Array = np.ndarray

FEW_OUTCOMES = 16
"""Up to so many outcomes, enumerating them all is always called affordable."""
_WORTH_ENUMERATING = 0.1  # else so large a squared error, relative to the gradient's, must be left by sampling as much
_SIGNIFICANCE = 1e-4  # of the test for bias: one false alarm in a thousand reports of ten estimators
_RESOLVED = 0.05  # a relaxation passes as unbiased only if its bias is surely below this share of the gradient
_ROUNDING = 64 * 2.0**-24  # float32 rounding errors, relative to losses and gradients
_IMPOSSIBLE = 1e-6  # outcomes this rare don't count as possibly missed
_GROUPS = 64  # estimates are averaged in so many groups, whose scatter shows how errors spread over the entries
_CALL_ROWS = 2**14  # the most evaluations (N * B) in one call of the objective, and the most weights,
_CALL_FLOATS = 2**20  # as long as one estimate fits
_WARM_UP = 64  # batches before a stateful estimator is measured, unless its `decay` says otherwise
_TIMED_SECONDS = 0.2


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
            score-function estimate, the longest estimate seen is taken for a relaxation, 0 where nothing is drawn.
        variance: the total variance ``sum_k Var[g_k]`` of a single estimate.
        evaluations: S, of the objective per row and estimate.
        cosine: the mean cosine of single estimates with the reference; an estimate of zero counts as 0. None where
            the reference is zero.
        zero_share: the share of estimates that are exactly zero in all entries.
        nan_share: the share of estimates with an entry that is NaN or infinite.
        microseconds: the median time of one call for the given logits: propose, evaluate, close, differentiate.
        reason: why the estimator does not apply; None where it does.
        biased: whether a test finds a bias at level 1e-4. It compares ``bias**2`` with what noise alone makes of it, a
            chi-square scaled to have that mean and variance (Satterthwaite); below rounding errors nothing is found.
        bias_low, bias_high: a 95% interval of the true bias, ``bias**2 - bias_se**2 +- 1.96 se`` under the root.
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


@dataclass(frozen=True, eq=False)
class GradientReport:
    """Every estimator on one objective; see `gradient_report`.

    Attributes:
        problem: the objective's name.
        rows: one per estimator: the unbiased ones first, each part in the order of ``variance * evaluations``, and
            those that do not apply last.
        reference: the gradient that estimates are compared with, float64, the shape of the logits.
        reference_se: the root-mean-square norm of its error per row; 0 where it was enumerated.
        enumerated: whether the reference is the sum over all outcomes.
        gradient_norm: the reference's norm, root-mean-square over rows.
        rounding: below this norm a gradient or a bias can't be told from float32 rounding errors of the losses.
        expected_loss: mean over rows.
        batch, decisions, operations: B, D and K.
        outcomes: K**D.
        samples, seed: as given.
        compiled: whether the objective ran inside a compiled `tf.function`.
    """

    problem: str
    rows: tuple[GradientRow, ...]
    reference: Array
    reference_se: float
    enumerated: bool
    gradient_norm: float
    rounding: float
    expected_loss: float
    batch: int
    decisions: int
    operations: int
    outcomes: int
    samples: int
    seed: int
    compiled: bool

    def __getitem__(self, estimator: str) -> GradientRow:
        """The row of an estimator, by name; a KeyError names the nearest one."""
        for row in self.rows:
            if row.estimator == estimator:
                return row
        known = [row.estimator for row in self.rows]
        raise KeyError(f"no estimator {estimator!r} in this report; did you mean {nearest(estimator, known)!r}?")

    @property
    def vanishing(self) -> bool:
        """Whether the reference can't be told from zero: within rounding, or 3 of its standard errors."""
        return self.gradient_norm <= max(self.rounding, 3 * self.reference_se)

    @property
    def recommended(self) -> str | None:
        """The name of the estimator that `recommend` names, or None if none applies."""
        chosen = self._choose()
        return None if chosen is None else chosen.estimator

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values: no NaN, no NumPy scalars."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain["rows"] = [row.to_dict() for row in self.rows]
        plain["reference"] = self.reference.tolist()
        return {**plain, "recommended": self.recommended, "recommendation": self.recommend()}

    def recommend(self) -> str:
        """Which estimator to use and why, in one sentence.

        It is the unbiased one of least ``variance * evaluations``. Enumeration, which has no variance, is named only
        where it is affordable: up to 16 outcomes, or where the next best would still be off by more than 10% of the
        squared gradient after as many evaluations. A relaxation passes as unbiased if no bias was found and the bias
        is surely below 5% of the gradient; one whose mean is not even known to the size of the gradient passes only if
        there is no other. A biased estimator whose mean points the same way (cosine above 0.99) is
        mentioned if at equal evaluations its mean-squared error is less than half.
        """
        chosen = self._choose()
        if chosen is None:
            first = f" {self._footnotes()[0]}"
            return f"None of these estimators applies to {self.problem}:{first}."
        text = self._why_vanishing(chosen) if self.vanishing else self._why(chosen) + self._but_for(chosen)
        return text + self._warnings(chosen) + "."

    def _sound(self) -> list[GradientRow]:
        """Those that apply; with NaN gradients only if there are no others."""
        applicable = [row for row in self.rows if row.reason is None]
        return [row for row in applicable if not row.nan_share] or applicable

    def _unbiased(self) -> list[GradientRow]:
        limit = max(_RESOLVED * self.gradient_norm, self.rounding)
        rows = [r for r in self._sound() if not r.biased and (not r.needs_gradient or (r.bias_high or 0.0) <= limit)]
        return [r for r in rows if self._resolved(r)] or rows

    def _resolved(self, row: GradientRow) -> bool:
        """Whether there were enough estimates to see a bias as large as the gradient."""
        return (row.bias_se or 0.0) <= max(self.gradient_norm, self.rounding)

    def _sampling(self, unbiased: Iterable[GradientRow]) -> GradientRow | None:
        return min((r for r in unbiased if not r.enumerated), key=_order, default=None)

    def _choose(self) -> GradientRow | None:
        unbiased = self._unbiased()
        if not unbiased:
            return min(self._sound(), key=lambda row: self._squared_error(row, row.evaluations or 1), default=None)
        best, sampling = min(unbiased, key=_order), self._sampling(unbiased)
        few = (best.evaluations or 0) <= FEW_OUTCOMES
        if best.enumerated and sampling is not None and not few and self._left(sampling, best) <= _WORTH_ENUMERATING:
            return sampling
        return best

    def _left(self, row: GradientRow, other: GradientRow) -> float:
        """The squared error, relative to the gradient's square, of `row` after as many evaluations as `other` takes."""
        return row.work / ((other.evaluations or 1) * max(self.gradient_norm, self.rounding, 1e-300) ** 2)

    def _squared_error(self, row: GradientRow, evaluations: int) -> float:
        bias = max(0.0, (row.bias or 0.0) ** 2 - (row.bias_se or 0.0) ** 2)
        return bias + row.work / evaluations

    def _why(self, chosen: GradientRow) -> str:
        name, unbiased = chosen.estimator, self._unbiased()
        if chosen not in unbiased:
            return (
                f"Use {name} with care: none is known to be unbiased, and with a bias of {self._relative(chosen)} and"
                f" {_times(chosen)} it has the smallest mean-squared error"
            )
        sampling = self._sampling(unbiased)
        if chosen.enumerated:
            few = (chosen.evaluations or 0) <= FEW_OUTCOMES
            verdict = "affordable" if few else "worth it"
            text = f"Use {name}: its {self._power()} evaluations per row are {verdict} and leave no variance"
            if sampling is None:
                return text
            left = math.sqrt(self._left(sampling, chosen))
            text += f", while {sampling.estimator} would be off by {left:.0%} of the gradient after as many evaluations"
            if chosen.microseconds is not None and sampling.microseconds is not None:
                text += f" (a call takes {chosen.microseconds:.0f} and {sampling.microseconds:.0f} us)"
            return text
        if chosen.estimates == 1:
            return f"Use {name}: no bias and no variance here, from {_times(chosen)}"
        bias = "unbiased"
        if chosen.needs_gradient:
            most = (chosen.bias_high or 0.0) / max(self.gradient_norm, 1e-300)
            bias = f"no bias found (it is below {most:.1%} of the gradient),"
        text = f"Use {name}: {bias} with the least variance x evaluations ({chosen.variance:.3g} x {_times(chosen)})"
        if chosen.needs_value:
            text += " once its baseline is learned"
            free = self._sampling(r for r in unbiased if not r.needs_value)
            if free is not None:
                text += f" ({free.estimator} needs none: {free.variance:.3g} x {free.evaluations})"
        exact = next((r for r in unbiased if r.enumerated), None)
        if exact is not None:
            left = math.sqrt(self._left(chosen, exact))
            return text + (
                f", and the {self._power()} evaluations of {exact.estimator} are not worth it, as with so many it is"
                f" off by no more than {left:.1%} of the gradient"
            )
        if any(r.reason is not None and "cap=" in r.reason for r in self.rows):
            text += f", where {self._power()} outcomes are too many to enumerate"
        return text

    def _but_for(self, chosen: GradientRow) -> str:
        """A biased one that points the same way and errs less, if there is one."""
        unbiased = self._unbiased()
        if chosen not in unbiased:
            return ""
        others = [r for r in self._sound() if r not in unbiased and (r.cosine_of_mean or 0.0) > 0.99]
        if chosen.enumerated:
            if (chosen.evaluations or 0) <= FEW_OUTCOMES:
                return ""
            others = [r for r in others if 4 * (r.evaluations or 1) <= (chosen.evaluations or 1)]
            if not others:
                return ""
            other = min(others, key=lambda r: self._squared_error(r, r.evaluations or 1))
            return (
                f"; if those are too many, {other.estimator} takes {_times(other)}, with a bias of"
                f" {self._relative(other)} and a variance of {other.variance:.3g}"
            )
        budget = chosen.evaluations or 1
        other = min(others, key=lambda r: self._squared_error(r, budget), default=None)
        if other is None or self._squared_error(other, budget) >= 0.5 * self._squared_error(chosen, budget):
            return ""
        ratio = self._squared_error(chosen, budget) / self._squared_error(other, budget)
        return (
            f"; {other.estimator} has a {ratio:.3g} times smaller mean-squared error at equal evaluations, but a bias"
            f" of {self._relative(other)} that no averaging removes (cosine of its mean {other.cosine_of_mean:.3f})"
        )

    def _why_vanishing(self, chosen: GradientRow) -> str:
        if self.gradient_norm <= self.rounding:
            size = self.rounding / _ROUNDING
            cause, remedy = (
                f"float32 rounding of losses of size {size:.2g}",
                "try other logits, or losses less a constant",
            )
        else:
            cause, remedy = "its standard error", "try other logits, or more samples"
        text = (
            f"The reference gradient is zero to within {cause} at these logits (norm {self.gradient_norm:.2g}), so no"
            f" direction can be judged: {remedy}"
        )
        kind = "unbiased ones" if chosen in self._unbiased() else "applicable ones"
        return text + f"; of the {kind}, {chosen.estimator} has the least variance x evaluations ({chosen.work:.3g})"

    def _warnings(self, chosen: GradientRow) -> str:
        text = ""
        if not self.vanishing and (chosen.zero_share or 0.0) >= 0.1:
            text += f"; {chosen.zero_share:.0%} of its gradients are exactly zero"
        if not self.vanishing and not self._resolved(chosen):
            text += f"; but {self.samples} samples are few: its mean is known to +-{chosen.bias_se:.2g} only"
        if chosen.nan_share:
            text += f"; {_share(chosen.nan_share)} of its gradients are NaN or infinite"
        broken = [r for r in self.rows if r.nan_share and r is not chosen]
        if broken:
            text += "; avoid " + ", ".join(f"{r.estimator} ({_share(r.nan_share)} NaN)" for r in broken)
        return text

    def _relative(self, row: GradientRow) -> str:
        return f"{(row.bias or 0.0) / max(self.gradient_norm, 1e-300):.2g} of the gradient"

    def _power(self) -> str:
        return f"{self.operations}" if self.decisions == 1 else f"{self.operations}**{self.decisions} = {self.outcomes}"

    def _title(self) -> str:
        kind = "enumerated" if self.enumerated else f"sampled, +-{self.reference_se:.2g}"
        rows = f", B={self.batch}" if self.batch > 1 else ""
        return (
            f"{self.problem}: K={self.operations}, D={self.decisions}{rows}; reference gradient of norm"
            f" {self.gradient_norm:.4g} ({kind}); {self.samples} estimates, seed {self.seed}"
        )

    def _footnotes(self) -> list[str]:
        pairs = ((row.estimator, row.reason) for row in self.rows if row.reason is not None)
        return [f"{name}: {reason.removeprefix(name + ': ')}" for name, reason in pairs]

    def __str__(self) -> str:
        """The table as plain text, what does not apply below it, and the recommendation."""
        lines = [_COLUMNS, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
        table = [
            " ".join(
                cell.ljust(w) if not i else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        return "\n".join([self._title(), *table, _LEGEND, *self._footnotes(), self.recommend()])

    def __rich__(self) -> Any:
        """The same for a terminal, with the recommended estimator in bold."""
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
        for i, name in enumerate(_COLUMNS):
            table.add_column(name, justify="right" if i else "left", no_wrap=bool(i), overflow="fold")
        recommended = self.recommended
        for row in self.rows:
            style = "dim" if row.reason is not None else "bold" if row.estimator == recommended else ""
            table.add_row(*(Text(cell, style=style) for cell in _cells(row)))
        notes = [Text(line, style="dim") for line in (_LEGEND, *self._footnotes())]
        return Group(Text(self._title(), style="bold"), table, *notes, Text(self.recommend()))


_COLUMNS = ("estimator", "bias", "+-", "var", "evals", "cos", "mean", "zero", "NaN", "us")
_LEGEND = "* biased; cos: of single estimates with the reference, mean: of their mean; us: microseconds per call"


def _cells(row: GradientRow) -> tuple[str, ...]:
    def figure(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return (
        row.estimator,
        figure(row.bias, ".3g") + ("*" if row.biased else ""),
        figure(row.bias_se, ".1g"),
        figure(row.variance, ".3g"),
        figure(row.evaluations, "d"),
        figure(row.cosine, ".2f"),
        figure(row.cosine_of_mean, ".3f"),
        _share(row.zero_share),
        _share(row.nan_share),
        figure(row.microseconds, ".0f"),
    )


def _share(share: float | None) -> str:
    if share is None:
        return "-"
    # Neither 0 nor 1 is what a share is rounded to.
    return "<1%" if 0.0 < share < 0.01 else ">99%" if 0.99 < share < 1.0 else f"{share:.0%}"


def _times(row: GradientRow) -> str:
    return f"{row.evaluations} evaluation{'s' if row.evaluations != 1 else ''}"


def _order(row: GradientRow) -> tuple[float, int]:
    return row.work, row.evaluations or 0


def gradient_report(
    objective: Callable[[Tensor], Any],
    logits: Any,
    estimators: str | Estimator | Iterable[str | Estimator] | Mapping[str, Estimator] | None = None,
    *,
    samples: int = 20_000,
    seed: int = 0,
    cap: int = 4096,
    problem: str = "objective",
    timing: bool = True,
) -> GradientReport:
    """Measures gradient estimators of ``E[objective(D)]``, D ~ softmax(logits), against the exact gradient.

    The reference is the sum ``sum_i p_i (f_i - E f) (e_i - p)`` over all K**D outcomes in float64 if those are at most
    `cap`. Otherwise it is sampled, with about ``8 * samples`` evaluations: each decision in turn is enumerated while
    the others are sampled, ``p_dk (E[f | d=k] - E f)`` (De Smet et al., "Differentiable sampling of categorical
    distributions using the CatLog-derivative trick", 2023), and its error is part of every ``bias_se``.

    An estimator is measured as it is used: proposed, evaluated, closed and differentiated, many times side by side and
    independently. One with a state (`reinforce-ema`) is warmed up first, in many chains that each see one batch of the
    given logits at a time, so its steady state is measured. One with `needs_value` (`reinforce-value`) gets each row's
    expected loss: the best constant prediction. One that draws nothing is called once.

    Args:
        objective: from weights [N, *logits.shape] float32, whose last axis sums to 1, to losses [N], or [N, B] for
            logits [B, D, K]; of any real type. Score-function estimators pass one-hots, relaxations soft weights. It
            may be a black box: what can't be compiled is run eagerly, on eager tensors, and what has no gradient in the
            weights leaves relaxations without figures. It must return the same losses for the same weights.
        logits: finite; [K] for one decision, [D, K] for D of them, [B, D, K] for several rows, whose gradients are
            taken row by row.
        estimators: names in `opselect.estimators.ESTIMATORS`, estimators, or both, or a mapping from any names to
            estimators; None for all of `ESTIMATORS`.
        samples: how many estimates per estimator, at least 2 (a few more are made to fill the last call).
        seed: of all randomness: the same seed gives the same figures, except `microseconds`. An estimator's figures do
            not depend on which others are measured.
        cap: the most outcomes that are enumerated: by the reference, and by 'exact' where it is given by name.
        problem: a name for the objective, for titles and rows.
        timing: whether `microseconds` is measured; it takes about as long as tracing each estimator once more.

    Returns:
        A `GradientReport`. An estimator that does not apply has a row with the `reason`.

    Raises:
        InvalidShapeError: logits or losses of the wrong shape, named.
        ValueError: an unknown estimator (the nearest name is given), two of one name, logits that are not finite,
            losses that are not finite at an outcome of positive probability, or that differ from call to call.
        TypeError: losses that are not real numbers; something that is not an estimator.
    """
    chosen = _named(estimators, cap)
    if isinstance(samples, bool) or not isinstance(samples, int | np.integer) or samples < 2:
        raise ValueError(f"samples must be an integer >= 2, got {samples!r}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise ValueError(f"seed must be an integer, got {seed!r}")
    if isinstance(cap, bool) or not isinstance(cap, int | np.integer) or cap < 1:
        raise ValueError(f"cap must be an integer >= 1, got {cap!r}")
    samples, seed, cap = int(samples), int(seed), int(cap)
    subject = _Subject.of(objective, logits, seed)
    outcomes = subject.operations**subject.decisions
    reference = _enumerate(subject) if outcomes <= cap else _sample_reference(subject, samples, seed)
    rows = [_row(subject, reference, problem, n, e, samples, seed, timing) for n, e in chosen.items()]
    rows.sort(key=lambda row: (row.reason is not None, bool(row.biased), *_order(row)))
    return GradientReport(
        problem=problem,
        rows=tuple(rows),
        reference=reference.gradient.reshape(subject.shape),
        reference_se=float(np.sqrt(reference.error.mean())),
        enumerated=outcomes <= cap,
        gradient_norm=_rms(reference.gradient),
        rounding=_ROUNDING * float(reference.scale.mean()),
        expected_loss=float(reference.expected.mean()),
        batch=subject.batch,
        decisions=subject.decisions,
        operations=subject.operations,
        outcomes=outcomes,
        samples=samples,
        seed=seed,
        compiled=subject.compiled,
    )


def _named(estimators: Any, cap: int) -> dict[str, Estimator]:
    """Names and estimators of what `gradient_report` accepts."""
    if estimators is None:
        estimators = tuple(ESTIMATORS)
    if isinstance(estimators, Mapping):
        named = [(str(name), e) for name, e in estimators.items()]
    else:
        if isinstance(estimators, str | Estimator):
            estimators = (estimators,)
        named = [_by_name(e, cap) if isinstance(e, str) else (_name_of(e), e) for e in estimators]
    if not named:
        raise ValueError("estimators must name at least one")
    for name, e in named:
        if isinstance(e, type) or not isinstance(e, Estimator):
            raise TypeError(f"estimators must be names or Estimator instances, got {e!r} for {name!r}")
    result = dict(named)
    if len(result) < len(named):
        twice = next(n for i, (n, _) in enumerate(named) if n in {m for m, _ in named[:i]})
        raise ValueError(f"estimators must have different names, got {twice!r} twice; use a mapping to name them")
    return result


def _by_name(name: str, cap: int) -> tuple[str, Estimator]:
    if name not in ESTIMATORS:
        raise ValueError(f"unknown estimator {name!r}; did you mean {nearest(name, ESTIMATORS)!r}?")
    estimator = ESTIMATORS[name]
    return name, dataclasses.replace(estimator, cap=cap) if isinstance(estimator, Exact) else estimator


def _name_of(estimator: Any) -> str:
    """Its name in the registry, or its class with the parameters that are not defaults."""
    for name, known in ESTIMATORS.items():
        if type(known) is type(estimator) and repr(known) == repr(estimator):
            return name
    if not dataclasses.is_dataclass(estimator):
        return type(estimator).__name__
    changed = [
        f"{field.name}={getattr(estimator, field.name)!r}"
        for field in dataclasses.fields(estimator)
        if repr(getattr(estimator, field.name)) != repr(field.default)
    ]
    return f"{type(estimator).__name__}({', '.join(changed)})"


# --- the objective ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Subject:
    """An objective at given logits, and what is known of it."""

    objective: Callable[[Tensor], Any]
    shape: tuple[int, ...]  # the user's
    logits: Array  # [B, D, K] float32
    probabilities: Array  # [B, D, K] float64
    compiled: bool = False
    no_gradient: str | None = None  # why relaxations don't apply

    @property
    def batch(self) -> int:
        return self.logits.shape[0]

    @property
    def decisions(self) -> int:
        return self.logits.shape[1]

    @property
    def operations(self) -> int:
        return self.logits.shape[2]

    @property
    def chunk(self) -> int:
        """How many N go into one call."""
        return max(1, min(_CALL_ROWS // self.batch, _CALL_FLOATS // self.logits.size))

    @staticmethod
    def of(objective: Callable[[Tensor], Any], logits: Any, seed: int) -> _Subject:
        """Checks the logits and tries the objective out."""
        array = np.asarray(logits, np.float32)
        if array.ndim not in (1, 2, 3) or array.size == 0:
            raise InvalidShapeError(f"logits must be [K], [D, K] or [B, D, K], got shape {array.shape}")
        if array.shape[-1] < 2:
            raise InvalidShapeError(f"logits must offer at least K = 2 operations, got shape {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"logits must be finite, got {array[~np.isfinite(array)][0]}")
        full = array.reshape((1,) * (3 - array.ndim) + array.shape)
        shifted = np.exp(full.astype(np.float64) - full.max(-1, keepdims=True))
        subject = _Subject(objective, array.shape, full, shifted / shifted.sum(-1, keepdims=True))
        # N differs from B, D and K, so no axis can be taken for another.
        n = next(n for n in itertools.count(3) if n not in array.shape)
        rng = np.random.default_rng(_words(seed, 0))
        hard = subject.one_hots(_draw(rng, subject.probabilities, n))
        first, again = subject.evaluate(hard), subject.evaluate(hard)
        if not _alike(first, again):
            raise ValueError(
                "objective returned different losses for the same weights; hold its noise fixed (a constant seed, no"
                " dropout), or no bias can be told from it"
            )
        soft = np.broadcast_to(subject.probabilities, (n, *full.shape)).astype(np.float32)
        try:
            at_soft: Array | None = subject.evaluate(soft)
        except Exception:  # a black box may accept one-hots only
            at_soft = None
        # At soft weights, too: a graph may simplify a NaN away that eager mode shows.
        compiled = subject.compiles_to(hard, first) and (at_soft is None or subject.compiles_to(soft, at_soft))
        return dataclasses.replace(subject, compiled=compiled, no_gradient=subject.why_no_gradient(soft))

    def losses(self, weights: Tensor) -> Tensor:
        """Losses [N, B] or [N] of weights [N, *shape], eagerly or in a graph, checked."""
        losses = tf.convert_to_tensor(self.objective(weights))
        if not (losses.dtype.is_floating or losses.dtype.is_integer or losses.dtype.is_bool):
            raise TypeError(f"objective must return real losses, got dtype {losses.dtype.name}")
        wanted = [weights.shape[0], self.batch] if len(self.shape) == 3 else [weights.shape[0]]
        if not losses.shape.is_compatible_with(wanted):
            letters = "[N, B]" if len(self.shape) == 3 else "[N]"
            raise InvalidShapeError(
                f"objective returned losses of shape {losses.shape} for weights {weights.shape}; they must be"
                f" {letters} = {tuple(wanted)}"
            )
        return tf.ensure_shape(losses, wanted)  # a py_function's shape is only known at run time

    def evaluate(self, weights: Array) -> Array:
        """Losses [N, B] float64 of weights [N, B, D, K], eagerly, in as many calls as it takes."""
        parts = [
            self.losses(tf.constant(weights[i : i + self.chunk].reshape(-1, *self.shape), tf.float32)).numpy()
            for i in range(0, len(weights), self.chunk)
        ]
        return np.concatenate(parts).astype(np.float64).reshape(len(weights), self.batch)

    def one_hots(self, codes: Array) -> Array:
        """One-hots [..., K] of choices [...]."""
        return np.eye(self.operations, dtype=np.float32)[codes]

    def losses_in_step(self, weights: Tensor) -> Tensor:
        """Losses float32, where what can't be compiled runs eagerly within a graph."""
        if self.compiled or tf.executing_eagerly():
            return tf.cast(self.losses(weights), tf.float32)
        losses = tf.py_function(lambda w: tf.cast(self.losses(w), tf.float32), [weights], tf.float32)
        return tf.ensure_shape(losses, [weights.shape[0], *([self.batch] if len(self.shape) == 3 else [])])

    def compiles_to(self, weights: Array, losses: Array) -> bool:
        """Whether the objective gives the same losses inside a `tf.function`, as Python side effects might not."""
        inputs = tf.constant(weights.reshape(-1, *self.shape))
        try:
            compiled = tf.function(self.losses, autograph=False).get_concrete_function(inputs)(inputs)
        except Exception:  # whatever a black box raises on a symbolic tensor
            return False
        return _alike(compiled.numpy().astype(np.float64).reshape(losses.shape), losses)

    def why_no_gradient(self, weights: Array) -> str | None:
        """Why the objective can't be differentiated at soft weights, or None if it can."""
        inputs = tf.constant(weights.reshape(-1, *self.shape))
        try:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                losses = self.losses(inputs)
            gradient = tape.gradient(losses, inputs) if losses.dtype.is_floating else None
        except Exception as error:
            return f"the objective fails at soft weights ({_first_line(error)})"
        return "the objective has no gradient in the weights" if gradient is None else None


def _alike(a: Array, b: Array) -> bool:
    finite = np.abs(b[np.isfinite(b)])
    return np.allclose(a, b, rtol=1e-4, atol=1e-6 * float(finite.max(initial=0.0)), equal_nan=True)


def _first_line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:200]}"


def _words(seed: int, stream: int) -> list[int]:
    """Entropy for NumPy's generators, which take no negative seed."""
    return [seed & 0x7FFFFFFF, (seed >> 31) & 0x7FFFFFFF, stream]


def _draw_seed(rng: np.random.Generator) -> Tensor:
    """A fresh seed pair [2] int32."""
    return tf.constant(rng.integers(-(2**31), 2**31, size=2), tf.int32)


def _draw(rng: np.random.Generator, probabilities: Array, count: int) -> Array:
    """Choices [count, B, D] by inverse transform; none of probability 0."""
    cumulative = probabilities.cumsum(-1)
    u = rng.random((count, *probabilities.shape[:-1], 1))
    return (cumulative / cumulative[..., -1:] <= u).sum(-1)


# --- the reference ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reference:
    gradient: Array  # [B, D, K]
    error: Array  # [B], the squared standard error, summed over entries
    groups: Array  # [G or 1, B, D, K], averages of independent groups
    expected: Array  # [B]
    scale: Array  # [B], the root-mean-square loss
    largest: Array  # [B], the largest absolute loss that is not next to impossible


def _enumerate(subject: _Subject) -> _Reference:
    """The exact gradient, by all K**D outcomes."""
    p = subject.probabilities
    expected, square = np.zeros(subject.batch), np.zeros(subject.batch)
    weighted, centre, largest = np.zeros_like(p), np.zeros(subject.batch), np.zeros(subject.batch)
    outcomes = itertools.product(range(subject.operations), repeat=subject.decisions)
    first = True
    while block := list(itertools.islice(outcomes, subject.chunk)):
        codes = np.array(block)  # [N, D]
        hard = np.broadcast_to(subject.one_hots(codes)[:, None], (len(codes), *p.shape))
        chance = (hard * p).sum(-1).prod(-1)  # [N, B]
        losses = subject.evaluate(hard)
        if bad := _not_finite(losses, chance > 0):
            raise ValueError(f"objective is {losses[bad]} at outcome {codes[bad[0]].tolist()}, so there is no gradient")
        losses = np.where(chance > 0, losses, 0.0)
        if first:  # less rounding in differences of losses
            centre, first = losses[0].copy(), False
        expected += (chance * losses).sum(0)
        square += (chance * losses**2).sum(0)
        largest = np.maximum(largest, np.where(chance > _IMPOSSIBLE, np.abs(losses), 0.0).max(0))
        weighted += np.einsum("nb,nbdk->bdk", chance * (losses - centre), hard)
    gradient = weighted - p * (expected - centre)[:, None, None]
    return _Reference(gradient, np.zeros(subject.batch), gradient[None], expected, np.sqrt(square), largest)


def _sample_reference(subject: _Subject, samples: int, seed: int) -> _Reference:
    """An unbiased average: each decision enumerated given samples of the others."""
    p, d, k = subject.probabilities, subject.decisions, subject.operations
    size = math.ceil(max(8 * samples / (d * k), 2 * _GROUPS) / _GROUPS)
    rng = np.random.default_rng(_words(seed, 1))
    groups = np.zeros((_GROUPS, *p.shape))
    squares, expected, square, largest = (np.zeros(subject.batch) for _ in range(4))
    step = max(1, subject.chunk // k)
    for g in range(_GROUPS):
        for start in range(0, size, step):
            n = min(step, size - start)
            hard = subject.one_hots(_draw(rng, p, n))  # [n, B, D, K]
            estimate = np.empty(hard.shape)
            for decision in range(d):
                branch = np.repeat(hard[None], k, axis=0)  # [K, n, B, D, K]
                branch[:, :, :, decision] = np.eye(k)[:, None, None]
                losses = subject.evaluate(branch.reshape(k * n, *p.shape)).reshape(k, n, -1)
                chance = p[:, decision].T[:, None]  # [K, 1, B]
                possible = np.broadcast_to(chance > 0, losses.shape)
                if bad := _not_finite(losses, possible):
                    raise ValueError(
                        f"objective is {losses[bad]} at an outcome with choice {bad[0]} of decision {decision}, so"
                        " there is no gradient"
                    )
                losses = np.where(possible, losses, 0.0)
                mean = (chance * losses).sum(0)  # [n, B]
                estimate[:, :, decision] = np.moveaxis(chance * (losses - mean), 0, -1)
                expected += mean.sum(0) / (d * size * _GROUPS)
                square += (chance * losses**2).sum((0, 1)) / (d * size * _GROUPS)
                largest = np.maximum(largest, np.where(chance > _IMPOSSIBLE, np.abs(losses), 0.0).max((0, 1)))
            groups[g] += estimate.sum(0) / size
            squares += (estimate**2).sum((0, 2, 3))
    gradient, n = groups.mean(0), size * _GROUPS
    variance = np.maximum(squares / n - (gradient**2).sum((1, 2)), 0.0) * n / (n - 1)
    return _Reference(gradient, variance / n, groups, expected, np.sqrt(square), largest)


def _not_finite(losses: Array, possible: Any) -> tuple[int, ...] | None:
    """The first index of a possible loss that is not finite."""
    bad = np.argwhere(possible & ~np.isfinite(losses))
    return tuple(int(i) for i in bad[0]) if len(bad) else None


def _rms(gradient: Array) -> float:
    """The root-mean-square norm over rows of [B, D, K]."""
    return float(np.sqrt((gradient**2).sum((-2, -1)).mean()))


# --- the estimators ---------------------------------------------------------------------------------------------------


class _InapplicableError(Exception):
    """Why an estimator does not apply to the objective."""


@contextlib.contextmanager
def _foreign_code() -> Iterator[None]:
    """Around an estimator and the objective, which may raise anything at weights they were not written for."""
    try:
        yield
    except _InapplicableError:
        raise
    except Exception as error:
        raise _InapplicableError(f"failed with {_first_line(error)}") from error


def _row(
    subject: _Subject,
    reference: _Reference,
    problem: str,
    name: str,
    estimator: Estimator,
    samples: int,
    seed: int,
    timing: bool,
) -> GradientRow:
    """Measures one estimator, or says why it can't be."""
    row = GradientRow(
        problem, name, needs_gradient=bool(estimator.needs_relaxation), needs_value=bool(estimator.needs_value)
    )
    try:
        evaluations = int(estimator.evaluations(subject.operations, subject.decisions))
    except ValueError as error:
        return dataclasses.replace(row, reason=str(error))
    row = dataclasses.replace(row, evaluations=evaluations)
    if estimator.needs_relaxation and subject.no_gradient is not None:
        return dataclasses.replace(row, reason=f"needs a relaxation, but {subject.no_gradient}")
    # By name, so that what is measured beside it makes no difference.
    stream = np.random.default_rng(_words(seed, zlib.crc32(name.encode())))
    try:
        runner = _Runner(subject, estimator, reference.expected)
        draws = runner.draws()
        figures = _statistics(
            runner.estimates(stream, samples if draws else 1, evaluations), reference, draws, row.needs_gradient
        )
        row = dataclasses.replace(row, enumerated=runner.enumerated, **figures)
        if timing:
            row = dataclasses.replace(row, microseconds=runner.microseconds())
    except _InapplicableError as error:
        return dataclasses.replace(row, reason=str(error))
    return row


class _Runner:
    """Makes estimates of one estimator: M at a time, as M replicas of the given batch."""

    def __init__(self, subject: _Subject, estimator: Estimator, expected: Array) -> None:
        self.subject, self.estimator = subject, estimator
        self.value = tf.constant(expected, tf.float32)
        self.compiled = True
        self.enumerated = self.stateful = False

    def logits(self, replicas: int) -> Tensor:
        return tf.broadcast_to(tf.constant(self.subject.logits), [replicas, *self.subject.logits.shape])

    def draws(self) -> bool:
        """Whether an estimate depends on the seed or on a state; read off the graph, as samples may coincide."""
        logits = self.logits(1)
        with _foreign_code():
            state = self.estimator.init(logits)
        self.stateful = bool(tf.nest.flatten(state))

        def propose(seed: Tensor) -> Tensor:
            proposal = self.estimator.propose(logits, state, seed)
            self.enumerated = bool(proposal.enumerated)
            return proposal.weights

        try:
            graph = tf.function(propose, autograph=False).get_concrete_function(tf.TensorSpec([2], tf.int32))
        except Exception:  # an estimator that can't be traced, or not be used
            with _foreign_code():
                propose(as_seed(0))
            return True
        return self.stateful or bool(graph.inputs[0].consumers())

    def step(self, replicas: int) -> Callable[..., tuple[Tensor, Any]]:
        """From (seed [2], state) to (gradients [M, B, D, K], state)."""
        subject, estimator = self.subject, self.estimator

        def step(seed: Tensor, state: Any) -> tuple[Tensor, Any]:
            logits = self.logits(replicas)
            with tf.GradientTape() as tape:
                tape.watch(logits)
                proposal = estimator.propose(logits, state, seed)
                if estimator.needs_value:
                    value = tf.broadcast_to(self.value, [replicas, subject.batch])
                    proposal = dataclasses.replace(proposal, value=value)
                evaluations = proposal.weights.shape[0]
                weights = tf.reshape(proposal.weights, [evaluations * replicas, *subject.shape])
                losses = tf.reshape(subject.losses_in_step(weights), [evaluations, replicas, subject.batch])
                surrogate, state = estimator.surrogate(losses, [proposal], state)
            gradient = tape.gradient(surrogate, logits)
            if gradient is None:
                raise _InapplicableError("its surrogate does not depend on the logits")
            return gradient, state

        concrete: list[Any] = []

        def try_compiled(seed: Tensor, state: Any) -> tuple[Tensor, Any]:
            if self.compiled:
                try:
                    if not concrete:  # traced once and by hand: a tf.function per estimator would warn of retracing
                        concrete.append(tf.function(step, autograph=False).get_concrete_function(seed, state))
                    return concrete[0](seed, state)
                except Exception:  # its gradient can't be compiled, say; what is really wrong shows again
                    self.compiled = False
            with _foreign_code():
                return step(seed, state)

        return try_compiled

    def estimates(self, stream: np.random.Generator, count: int, evaluations: int) -> Iterator[tuple[Array, Array]]:
        """Blocks of gradients [M, B, D, K] and the group in [0, 1) that each of the M belongs to."""
        most = max(1, self.subject.chunk // evaluations)
        if self.stateful:
            # Many short chains: each pays for its own warm-up, but chains are independent.
            most = min(most, max(2 * _GROUPS, math.ceil(count / _WARM_UP)))
        calls = math.ceil(count / most)
        replicas = math.ceil(count / calls)
        step, state = self.step(replicas), self.estimator.init(self.logits(replicas))
        for _ in range(self.warm_up() if self.stateful else 0):
            _, state = step(_draw_seed(stream), state)
        for call in range(calls):
            gradient, new = step(_draw_seed(stream), state)
            state = new if self.stateful else state
            yield gradient.numpy(), (call + calls * np.arange(replicas)) / (calls * replicas)

    def warm_up(self) -> int:
        """Batches until an average with the estimator's `decay` has forgotten 99.9% of its start."""
        decay = getattr(self.estimator, "decay", None)
        if not isinstance(decay, float) or not 0.0 < decay < 1.0:
            return _WARM_UP
        return min(1000, math.ceil(math.log(1e-3) / math.log(decay)))

    def microseconds(self) -> float:
        """The median time of a call for one batch, after a first call that traces."""
        step, state = self.step(1), self.estimator.init(self.logits(1))
        seed = as_seed(0)
        step(seed, state)[0].numpy()
        times: list[float] = []
        end = time.perf_counter() + _TIMED_SECONDS
        while len(times) < 3 or (time.perf_counter() < end and len(times) < 200):
            start = time.perf_counter()
            step(seed, state)[0].numpy()
            times.append(time.perf_counter() - start)
        return 1e6 * float(np.median(times))


def _statistics(
    blocks: Iterator[tuple[Array, Array]], reference: _Reference, draws: bool, relaxed: bool
) -> dict[str, Any]:
    """The measured attributes of a `GradientRow`, in float64."""
    target = reference.gradient
    batch = len(target)
    norm = np.sqrt((target**2).sum((1, 2)))
    directed = norm > np.maximum(_ROUNDING * reference.scale, 3 * np.sqrt(reference.error))  # rows with a direction
    pivot: Array | None = None  # deviations from about the mean: no cancellation in the variance
    total, count, zero, cosine, square, fourth, longest = (np.zeros(batch) for _ in range(7))
    sums, sizes = np.zeros((_GROUPS, *target.shape)), np.zeros((_GROUPS, batch))
    for raw, place in blocks:
        g = raw.astype(np.float64)
        finite: Any = np.isfinite(g).all((2, 3))  # [M, B]
        g = np.where(finite[:, :, None, None], g, 0.0)
        seen = finite.sum(0)
        if pivot is None:
            pivot = g.sum(0) / np.maximum(seen, 1)[:, None, None]
        length = np.sqrt((g**2).sum((2, 3)))
        longest = np.maximum(longest, length.max(0))
        zero += (finite & (length == 0)).sum(0)
        along = (g * target).sum((2, 3)) / np.where(length * norm > 0, length * norm, 1.0)
        cosine += along.sum(0)
        deviation = np.where(finite, ((g - pivot) ** 2).sum((2, 3)), 0.0)
        square += deviation.sum(0)
        fourth += (deviation**2).sum(0)
        total += len(g)
        count += seen
        group = (place * _GROUPS).astype(int)
        np.add.at(sums, group, np.where(finite[:, :, None, None], g - pivot, 0.0))
        np.add.at(sizes, group, finite.astype(np.float64))
    figures: dict[str, Any] = {
        "estimates": int(total[0]),
        "zero_share": float((zero / total).mean()),
        "nan_share": float(1.0 - (count / total).mean()),
    }
    usable = count >= (2 if draws else 1)
    if pivot is None or not usable.any():
        return {**figures, "reason": "its gradients are NaN or infinite"}
    n = count[usable]
    offset = sums.sum(0)[usable] / n[:, None, None]
    delta = pivot[usable] + offset - target[usable]  # [B', D, K]
    mean_deviation = square[usable] / n
    variance = np.maximum(mean_deviation - (offset**2).sum((1, 2)), 0.0) * (n / np.maximum(n - 1, 1))
    spread = np.maximum(fourth[usable] / n - mean_deviation**2, 0.0) / n
    mean = delta + target[usable]
    size = np.sqrt((variance + (mean**2).sum((1, 2))).mean())
    rounding = _ROUNDING * (float(reference.scale[usable].mean()) + float(size))
    bias_square = float((delta**2).sum() / len(n))
    noise = float((variance / n + reference.error[usable]).mean())
    groups = _grouped(sums, sizes, pivot, reference, usable, draws)
    spread_square, along_delta = _noise_shape(groups, delta, noise)
    if draws:  # an outcome of probability below some 3 / n may never have been drawn: it may lie along the bias
        size_unseen = longest if relaxed else math.sqrt(2 * delta.shape[1]) * reference.largest
        unseen = float(((3 * size_unseen[usable] / n) ** 2).mean())
        spread_square = (math.sqrt(spread_square) + unseen) ** 2
        along_delta += unseen * bias_square
        noise += unseen
    half = 1.96 * math.sqrt(4 * along_delta + 2 * spread_square)
    centre = max(0.0, bias_square - noise)
    freedom = noise**2 / spread_square if spread_square > 0 else 1.0
    chance = float(gammaincc(freedom / 2, freedom * bias_square / noise / 2)) if noise > 0 else 0.0
    good = directed[usable]
    length = np.sqrt((mean**2).sum((1, 2)))
    along = (mean * target[usable]).sum((1, 2)) / np.where(length * norm[usable] > 0, length * norm[usable], 1.0)
    return {
        **figures,
        "bias": math.sqrt(bias_square),
        "bias_se": math.sqrt(noise + rounding**2),
        "biased": math.sqrt(bias_square) > rounding and chance < _SIGNIFICANCE,
        "bias_low": math.sqrt(max(0.0, centre - half)),
        "bias_high": math.sqrt(centre + half) + rounding,
        "variance": float(variance.mean()),
        "variance_se": float(np.sqrt(spread.sum()) / len(n)),
        "cosine": float((cosine[usable] / n)[good].mean()) if good.any() else None,
        "cosine_of_mean": float(along[good].mean()) if good.any() else None,
    }


def _grouped(
    sums: Array, sizes: Array, pivot: Array, reference: _Reference, usable: Array, draws: bool
) -> Array | None:
    """Independent estimates [G, B' * D * K] of the bias, or None where there is nothing to spread."""
    refs = reference.groups[:, usable]
    if not draws:
        return None if len(refs) < 2 else (pivot[usable] - refs).reshape(len(refs), -1)
    full = (sizes[:, usable] > 0).all(1)
    if full.sum() < 4:
        return None
    means = sums[full][:, usable] / sizes[full][:, usable, None, None]
    # One group of estimates less one of the reference: their noise adds up as it does in the whole.
    refs = refs[full] if len(refs) > 1 else refs
    return (means + pivot[usable] - refs).reshape(int(full.sum()), -1)


def _noise_shape(groups: Array | None, delta: Array, noise: float) -> tuple[float, float]:
    """Of the covariance C of the bias's noise: tr C**2 and delta' C delta, averaged over rows as the bias is.

    The shape is the groups'; the size is `noise` = tr C, known better. tr C**2 from G groups is the unbiased one of
    Bai & Saranadasa (1996). Without groups, all noise is taken to lie along the bias, the cautious choice.
    """
    rows, flat = len(delta), delta.reshape(-1)
    worst = noise * float((flat**2).sum()) / rows
    if groups is None or noise == 0:
        return noise**2, worst
    m = len(groups)
    centred = groups - groups.mean(0)
    gram = centred @ centred.T / (m - 1)
    trace = float(np.trace(gram))
    if trace <= 0:
        return noise**2, worst
    squared = (m - 1) ** 2 / ((m - 2) * (m + 1)) * (float((gram**2).sum()) - trace**2 / (m - 1))
    share = min(1.0, max(squared / trace**2, 1.0 / max(1, flat.size)))  # 1 / degrees of freedom
    along = float(((centred @ flat) ** 2).sum()) / (m - 1) / trace
    return share * noise**2, min(worst, along * noise / rows)
