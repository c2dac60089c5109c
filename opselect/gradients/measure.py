"""The row of one gradient estimator."""

from __future__ import annotations

import dataclasses
import zlib

from opselect.estimators import Estimator
from opselect.gradients.objective import Subject, generator
from opselect.gradients.reference import Reference
from opselect.gradients.row import GradientRow
from opselect.gradients.runner import InapplicableError, Runner
from opselect.gradients.statistics import figures

__all__ = ["measure"]


def measure(
    subject: Subject,
    reference: Reference,
    estimator: Estimator,
    *,
    problem: str,
    name: str,
    samples: int,
    seed: int,
    timing: bool,
) -> GradientRow:
    """Measures one estimator, or says why it can't be; see `gradient_report` for the arguments."""
    row = GradientRow(
        problem, name, needs_gradient=bool(estimator.needs_relaxation), needs_value=bool(estimator.needs_value)
    )
    try:
        evaluations = int(estimator.evaluations(subject.operations, subject.decisions))
    except ValueError as error:
        return dataclasses.replace(row, reason=str(error))
    row = dataclasses.replace(row, evaluations=evaluations)
    if row.needs_gradient and subject.no_gradient is not None:
        return dataclasses.replace(row, reason=f"needs a relaxation, but {subject.no_gradient}")
    # By name, so that what is measured beside it makes no difference.
    stream = generator(seed, zlib.crc32(name.encode()))
    try:
        runner = Runner(subject, estimator, reference.expected)
        blocks = runner.estimates(stream, samples if runner.draws else 1, evaluations)
        measured = figures(blocks, reference, draws=runner.draws, relaxed=row.needs_gradient)
        row = dataclasses.replace(row, enumerated=runner.enumerated, **measured)
        if timing:
            row = dataclasses.replace(row, microseconds=runner.microseconds())
    except InapplicableError as error:
        return dataclasses.replace(row, reason=str(error))
    return row
