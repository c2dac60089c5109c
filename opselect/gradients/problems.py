"""Standard problems on which gradient estimators are compared, and how they grow with K, D and the temperature."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opselect._tensorflow import tf
from opselect.estimators import ESTIMATORS, Estimator

__all__ = ["PROBLEMS", "SWEEPS", "Problem", "sweeps"]

Tensor = Any


@dataclass(frozen=True)
class Problem:
    """The loss ``abs(mean_d w_d . o - y)**power`` of the weights [..., D, K] that D decisions put on outputs o.

    Attributes:
        name: the plain name.
        summary: one line for listings.
        outputs: o [K].
        logits: [D, K].
        target: y.
        power: the exponent.
    """

    name: str
    summary: str
    outputs: tuple[float, ...]
    logits: tuple[tuple[float, ...], ...]
    target: float
    power: float = 2.0

    def __call__(self, weights: Tensor) -> Tensor:
        """Losses [...] of weights [..., D, K]."""
        mean = tf.reduce_mean(tf.reduce_sum(weights * tf.constant(self.outputs), -1), -1)
        return tf.pow(tf.abs(mean - self.target), self.power)


def _random(name: str, summary: str, operations: int, decisions: int, spread: float, power: float = 2.0) -> Problem:
    rng = np.random.default_rng([operations, decisions])
    outputs = tuple(float(o) for o in rng.uniform(-2.0, 2.0, operations))
    logits = tuple(tuple(float(x) for x in row) for row in rng.normal(0.0, spread, (decisions, operations)))
    return Problem(name, summary, outputs, logits, 1.0, power)


_OUTPUTS, _LOGITS = (1.0, 2.0, -1.0, 0.5), ((0.2, -0.3, 0.5, 0.0),)

PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        Problem("quadratic", "4 operations, a quadratic loss, an undecided policy", _OUTPUTS, _LOGITS, 2.0),
        Problem("steep", "the same with a loss of power 4, where tangents mislead", _OUTPUTS, _LOGITS, 2.0, 4.0),
        Problem("peaked", "the same loss, a policy that is almost certain", _OUTPUTS, ((4.0, 0.0, 1.0, 0.0),), 2.0),
        _random("wide", "32 operations", 32, 1, 1.0),
        _random("joint", "4 decisions among 3 operations at once, 81 outcomes", 3, 4, 0.5),
    )
}
"""The standard problems by name."""

SWEEPS: dict[str, tuple[float, ...]] = {
    "operations": (2, 4, 8, 16, 32),
    "decisions": (1, 2, 3, 4),
    "temperature": (0.1, 0.3, 1.0, 3.0),
}
"""What is varied in the pictures: K, D, and the temperature of the estimators that have one."""


def sweeps(names: Sequence[str]) -> Iterator[tuple[str, float, Problem, dict[str, Estimator]]]:
    """What to measure for the pictures: (what varies, its value, the problem, the estimators by name)."""
    chosen = {name: ESTIMATORS[name] for name in names}
    for k in SWEEPS["operations"]:
        yield "operations", k, _random(f"K = {k:g}", "", int(k), 1, 1.0), chosen
    for d in SWEEPS["decisions"]:
        yield "decisions", d, _random(f"D = {d:g}", "", 3, int(d), 0.5), chosen
    relaxed: dict[str, Any] = {name: e for name, e in chosen.items() if hasattr(e, "temperature")}
    for t in SWEEPS["temperature"] if relaxed else ():
        at = {}
        for name, e in relaxed.items():
            try:
                at[name] = dataclasses.replace(e, temperature=t)
            except ValueError:  # a temperature that the estimator does not admit
                continue
        yield "temperature", t, dataclasses.replace(PROBLEMS["quadratic"], name=f"temperature = {t:g}"), at
