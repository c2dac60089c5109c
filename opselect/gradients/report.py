"""Every gradient estimator on one objective: the table, as data, as plain text and on a terminal."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from opselect.gradients.recommendation import choose, explain
from opselect.gradients.row import GradientRow, share_text
from opselect_envs.naming import nearest

__all__ = ["GradientReport"]

Array = np.ndarray

_COLUMNS = ("estimator", "bias", "+-", "var", "evals", "cos", "mean", "zero", "NaN", "us")
_LEGEND = "* biased; cos: of single estimates with the reference, mean: of their mean; us: microseconds per call"


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
        rows = {row.estimator: row for row in self.rows}
        if estimator not in rows:
            raise KeyError(f"no estimator {estimator!r} in this report; did you mean {nearest(estimator, rows)!r}?")
        return rows[estimator]

    @property
    def vanishing(self) -> bool:
        """Whether the reference can't be told from zero: within rounding, or 3 of its standard errors."""
        return self.gradient_norm <= max(self.rounding, 3 * self.reference_se)

    @property
    def notes(self) -> list[str]:
        """Why each estimator that does not apply doesn't, its name first."""
        pairs = ((row.estimator, row.reason) for row in self.rows if row.reason is not None)
        return [f"{name}: {reason.removeprefix(name + ': ')}" for name, reason in pairs]

    @property
    def recommended(self) -> str | None:
        """The name of the estimator that `recommend` names, or None if none applies."""
        chosen = choose(self)
        return None if chosen is None else chosen.estimator

    def recommend(self) -> str:
        """Which estimator to use and why, in one sentence.

        It is the unbiased one of least ``variance * evaluations``. Enumeration, which has no variance, is named only
        where it is affordable: up to 16 outcomes, or where the next best would still be off by more than 10% of the
        squared gradient after as many evaluations. A relaxation passes as unbiased if no bias was found and the bias
        is surely below 5% of the gradient; one whose mean is not even known to the size of the gradient passes only if
        there is no other. A biased estimator whose mean points the same way (cosine above 0.99) is
        mentioned if at equal evaluations its mean-squared error is less than half.
        """
        return explain(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values: no NaN, no NumPy scalars."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain["rows"] = [row.to_dict() for row in self.rows]
        plain["reference"] = self.reference.tolist()
        return {**plain, "recommended": self.recommended, "recommendation": self.recommend()}

    def _title(self) -> str:
        kind = "enumerated" if self.enumerated else f"sampled, +-{self.reference_se:.2g}"
        rows = f", B={self.batch}" if self.batch > 1 else ""
        return (
            f"{self.problem}: K={self.operations}, D={self.decisions}{rows}; reference gradient of norm"
            f" {self.gradient_norm:.4g} ({kind}); {self.samples} estimates, seed {self.seed}"
        )

    def __str__(self) -> str:
        """The table as plain text, what does not apply below it, and the recommendation."""
        lines = [_COLUMNS, *(_cells(row) for row in self.rows)]
        first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
        table = [
            " ".join([name.ljust(first), *(cell.rjust(w) for cell, w in zip(cells, widths, strict=True))])
            for name, *cells in lines
        ]
        return "\n".join([self._title(), *table, _LEGEND, *self.notes, self.recommend()])

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
        notes = [Text(line, style="dim") for line in (_LEGEND, *self.notes)]
        return Group(Text(self._title(), style="bold"), table, *notes, Text(self.recommend()))


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
        share_text(row.zero_share),
        share_text(row.nan_share),
        figure(row.microseconds, ".0f"),
    )
