"""The comparison of gradient estimators that `opselect gradients` prints: standard problems, and how cost grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opselect.estimators import ESTIMATORS
from opselect.gradients import GradientReport, gradient_report
from opselect.gradients.problems import PROBLEMS, sweeps

__all__ = ["study"]

SWEEP_SAMPLES = 4000


def study(
    problems: Sequence[str] | None = None,
    estimators: Sequence[str] | None = None,
    *,
    samples: int = 20_000,
    seed: int = 0,
    vary: bool = True,
    watch: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, GradientReport], list[dict[str, Any]]]:
    """Measures estimators on the standard problems.

    Args:
        problems: names in `PROBLEMS`; None for all.
        estimators: names in `ESTIMATORS`; None for all.
        samples: estimates per estimator and problem.
        seed: of all randomness.
        vary: whether K, D and the temperature are varied too, with `SWEEP_SAMPLES` estimates at most.
        watch: called with the name of what is measured next.

    Returns:
        The reports by problem, and plain rows: those of the reports, whose `vary` is None, and those of the sweeps,
        whose `vary` says what varies and `at` its value.
    """
    names = list(ESTIMATORS) if estimators is None else list(estimators)
    reports, rows = {}, []
    for name in list(PROBLEMS) if problems is None else problems:
        watch(name)
        problem = PROBLEMS[name]
        reports[name] = gradient_report(
            problem, problem.logits, {n: ESTIMATORS[n] for n in names}, samples=samples, seed=seed, problem=name
        )
        rows += [row.to_dict() | {"vary": None, "at": None} for row in reports[name].rows]
    for what, value, problem, chosen in sweeps(names) if vary else ():
        watch(problem.name)
        report = gradient_report(
            problem,
            problem.logits,
            chosen,
            samples=min(samples, SWEEP_SAMPLES),
            seed=seed,
            problem=problem.name,
            timing=False,
        )
        rows += [row.to_dict() | {"vary": what, "at": value} for row in report.rows]
    return reports, rows
