"""Learners that differentiate through the reward: soft mixtures, Gumbel-softmax and straight-through."""

from __future__ import annotations

from opselect.estimators import GumbelSoftmax, GumbelSoftmaxStraightThrough, SoftMixture, StraightThrough
from opselect.learners.base import Learner
from opselect.learners.schedules import Schedule

# Without it the relaxations stay far behind: on OpChain after 800 steps, hard scores of 0.0 to 0.3 and not 0.4 to 0.7.
_CLIP = 0.1
_ANNEALED = Schedule(1.0, 0.3, shape="geometric")

LEARNERS = (
    # An entropy bonus would keep the mixture soft, and its hard choice poor.
    Learner(
        "soft-mixture",
        SoftMixture(),
        "the softmax-weighted mixture of all operations",
        entropy=Schedule(0.0, 0.0),
        row_clip=_CLIP,
    ),
    Learner(
        "gumbel-softmax",
        GumbelSoftmax(),
        "soft Gumbel samples, annealed",
        temperature=_ANNEALED,
        row_clip=_CLIP,
    ),
    Learner(
        "gumbel-softmax-st",
        GumbelSoftmaxStraightThrough(),
        "hard Gumbel samples with the soft ones' gradient, annealed",
        temperature=_ANNEALED,
        row_clip=_CLIP,
    ),
    Learner(
        "straight-through",
        StraightThrough(),
        "hard samples with the softmax's gradient",
        entropy=Schedule(0.03, 0.0, until=0.7),
        row_clip=_CLIP,
    ),
)
