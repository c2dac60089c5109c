"""Learners that differentiate through the reward: soft mixtures, Gumbel-softmax and straight-through."""

from __future__ import annotations

from opselect.estimators import GumbelSoftmax, GumbelSoftmaxStraightThrough, SoftMixture, StraightThrough
from opselect.learners.base import Learner
from opselect.learners.schedules import Schedule

LEARNERS = (
    Learner("soft-mixture", SoftMixture(), "the softmax-weighted mixture of all operations"),
    Learner(
        "gumbel-softmax",
        GumbelSoftmax(),
        "soft Gumbel samples, annealed",
        temperature=Schedule(1.0, 0.3, shape="geometric"),
    ),
    Learner(
        "gumbel-softmax-st",
        GumbelSoftmaxStraightThrough(),
        "hard Gumbel samples with the soft ones' gradient, annealed",
        temperature=Schedule(1.0, 0.3, shape="geometric"),
    ),
    Learner("straight-through", StraightThrough(), "hard samples with the softmax's gradient"),
)
