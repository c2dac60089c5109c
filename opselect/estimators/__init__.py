"""Gradient estimators for categorical choices, one frozen dataclass each; see `opselect.estimators.base`."""

from __future__ import annotations

from typing import Any

from opselect.estimators.antithetic import DisARM
from opselect.estimators.base import Estimator, InvalidShapeError, Proposal
from opselect.estimators.control_variate import REBAR, RELAX
from opselect.estimators.enumeration import IndeCateR, OptimalReinforce
from opselect.estimators.exact import Exact
from opselect.estimators.relaxation import GumbelSoftmax, SoftMixture
from opselect.estimators.score_function import (
    PPO,
    Drawn,
    LeaveOneOut,
    MovingAverageReinforce,
    Reinforce,
    SelfCritical,
    ValueReinforce,
)
from opselect.estimators.second_order import MinimumVariance, ReinMax
from opselect.estimators.sparse import EntmaxMixture, SparsemaxMixture
from opselect.estimators.straight_through import (
    DecoupledStraightThrough,
    GappedStraightThrough,
    GumbelRao,
    GumbelSoftmaxStraightThrough,
    StraightThrough,
)
from opselect.estimators.without_replacement import SumAndSample, UnorderedSet
from opselect_envs.naming import nearest

ESTIMATORS: dict[str, Estimator] = {
    "exact": Exact(),
    "reinforce": Reinforce(),
    "reinforce-ema": MovingAverageReinforce(),
    "reinforce-value": ValueReinforce(),
    "reinforce-self-critical": SelfCritical(),
    "reinforce-rloo": LeaveOneOut(),
    "reinforce-optimal": OptimalReinforce(),
    "ppo": PPO(),
    "indecater": IndeCateR(),
    "sum-and-sample": SumAndSample(),
    "unordered-set": UnorderedSet(),
    "disarm": DisARM(),
    "rebar": REBAR(),
    "relax": RELAX(),
    "soft-mixture": SoftMixture(),
    "gumbel-softmax": GumbelSoftmax(),
    "gumbel-softmax-st": GumbelSoftmaxStraightThrough(),
    "straight-through": StraightThrough(),
    "gumbel-rao": GumbelRao(),
    "gapped-straight-through": GappedStraightThrough(),
    "decoupled-st": DecoupledStraightThrough(),
    "reinmax": ReinMax(),
    "mve": MinimumVariance(),
    "sparsemax-mixture": SparsemaxMixture(),
    "entmax-mixture": EntmaxMixture(),
}
"""Every estimator by its plain name, with its default parameters."""


def as_estimator(estimator: str | Estimator) -> Any:
    """Returns the estimator of that name with its default parameters, or the estimator itself.

    Raises:
        ValueError: an unknown name (the nearest known one is suggested), or something else than an estimator.
    """
    if isinstance(estimator, str):
        if estimator not in ESTIMATORS:
            near = nearest(estimator, ESTIMATORS)
            raise ValueError(f"unknown estimator {estimator!r}; did you mean {near!r}? Known: {', '.join(ESTIMATORS)}")
        return ESTIMATORS[estimator]
    if isinstance(estimator, type) or not isinstance(estimator, Estimator):
        raise ValueError(f"estimator must be a name or an estimator such as LeaveOneOut(samples=4), got {estimator!r}")
    return estimator


__all__ = [
    "ESTIMATORS",
    "PPO",
    "REBAR",
    "RELAX",
    "DecoupledStraightThrough",
    "DisARM",
    "Drawn",
    "EntmaxMixture",
    "Estimator",
    "Exact",
    "GappedStraightThrough",
    "GumbelRao",
    "GumbelSoftmax",
    "GumbelSoftmaxStraightThrough",
    "IndeCateR",
    "InvalidShapeError",
    "LeaveOneOut",
    "MinimumVariance",
    "MovingAverageReinforce",
    "OptimalReinforce",
    "Proposal",
    "ReinMax",
    "Reinforce",
    "SelfCritical",
    "SoftMixture",
    "SparsemaxMixture",
    "StraightThrough",
    "SumAndSample",
    "UnorderedSet",
    "ValueReinforce",
    "as_estimator",
]
