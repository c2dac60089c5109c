"""Which gradient estimator suits an objective: bias, variance and cost of each, measured on the objective itself.

    report = gradient_report(lambda weights: tf.reduce_sum(weights * costs, -1) ** 2, logits)
    print(report)
    print(report.recommend())

Shapes: B rows, D decisions made at once per row, K operations, S evaluations per row of one estimate, N evaluations of
the objective in one call, M estimates made side by side, G groups that estimates are averaged in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from opselect.estimators import Estimator
from opselect.gradients.measure import measure
from opselect.gradients.names import named_estimators
from opselect.gradients.objective import Subject
from opselect.gradients.recommendation import FEW_OUTCOMES
from opselect.gradients.reference import enumerate_reference, sample_reference
from opselect.gradients.report import GradientReport
from opselect.gradients.row import ROUNDING, GradientRow, by_work

__all__ = ["FEW_OUTCOMES", "GradientReport", "GradientRow", "gradient_report"]

Tensor = Any


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
    given logits at a time, so its steady state is measured (`relax`, which improves ever more slowly, after 500). One
    with `needs_value` (`reinforce-value`) gets each row's expected loss: the best constant prediction. One that draws
    nothing is called once.

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
    named = named_estimators(estimators, cap)
    samples, seed, cap = _integer("samples", samples, 2), _integer("seed", seed), _integer("cap", cap, 1)
    subject = Subject.of(objective, logits, seed)
    outcomes = subject.operations**subject.decisions
    reference = enumerate_reference(subject) if outcomes <= cap else sample_reference(subject, samples, seed)
    rows = [
        measure(subject, reference, estimator, problem=problem, name=name, samples=samples, seed=seed, timing=timing)
        for name, estimator in named.items()
    ]
    rows.sort(key=lambda row: (row.reason is not None, bool(row.biased), *by_work(row)))
    return GradientReport(
        problem=problem,
        rows=tuple(rows),
        reference=reference.gradient.reshape(subject.shape),
        reference_se=float(np.sqrt(reference.error.mean())),
        enumerated=outcomes <= cap,
        gradient_norm=float(np.sqrt((reference.gradient**2).sum((1, 2)).mean())),
        rounding=ROUNDING * float(reference.scale.mean()),
        expected_loss=float(reference.expected.mean()),
        batch=subject.batch,
        decisions=subject.decisions,
        operations=subject.operations,
        outcomes=outcomes,
        samples=samples,
        seed=seed,
        compiled=subject.compiled,
    )


def _integer(name: str, value: Any, least: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or (least is not None and value < least):
        bound = "" if least is None else f" >= {least}"
        raise ValueError(f"{name} must be an integer{bound}, got {value!r}")
    return int(value)
