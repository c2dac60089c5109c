"""Gradient estimators for categorical choices, one frozen dataclass each; see `opselect.estimators.base`."""

from __future__ import annotations

from opselect.estimators.base import Estimator, InvalidShapeError, Proposal
from opselect.estimators.exact import Exact
from opselect.estimators.relaxation import GumbelSoftmax, SoftMixture
from opselect.estimators.score_function import (
    LeaveOneOut,
    MovingAverageReinforce,
    Reinforce,
    SelfCritical,
    ValueReinforce,
)
from opselect.estimators.straight_through import GumbelSoftmaxStraightThrough, StraightThrough

ESTIMATORS: dict[str, Estimator] = {
    "exact": Exact(),
    "reinforce": Reinforce(),
    "reinforce-ema": MovingAverageReinforce(),
    "reinforce-value": ValueReinforce(),
    "reinforce-self-critical": SelfCritical(),
    "reinforce-rloo": LeaveOneOut(),
    "soft-mixture": SoftMixture(),
    "gumbel-softmax": GumbelSoftmax(),
    "gumbel-softmax-st": GumbelSoftmaxStraightThrough(),
    "straight-through": StraightThrough(),
}
"""Every estimator by its plain name, with its default parameters."""

__all__ = [
    "ESTIMATORS",
    "Estimator",
    "Exact",
    "GumbelSoftmax",
    "GumbelSoftmaxStraightThrough",
    "InvalidShapeError",
    "LeaveOneOut",
    "MovingAverageReinforce",
    "Proposal",
    "Reinforce",
    "SelfCritical",
    "SoftMixture",
    "StraightThrough",
    "ValueReinforce",
]
