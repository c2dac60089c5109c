"""Learners that differentiate through the reward: soft mixtures, Gumbel-softmax and straight-through."""

from __future__ import annotations

from opselect.estimators import (
    REBAR,
    DecoupledStraightThrough,
    EntmaxMixture,
    GappedStraightThrough,
    GumbelRao,
    GumbelSoftmax,
    GumbelSoftmaxStraightThrough,
    MinimumVariance,
    ReinMax,
    SoftMixture,
    SparsemaxMixture,
    StraightThrough,
)
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
    Learner("reinmax", ReinMax(), "hard samples with a gradient that is exact to second order", row_clip=_CLIP),
    Learner(
        "mve", MinimumVariance(), "hard samples with the least variance that is exact to second order", row_clip=_CLIP
    ),
    Learner(
        "gumbel-rao",
        GumbelRao(),
        "gumbel-softmax-st, averaged over the noise that leads to the same choice, annealed",
        temperature=_ANNEALED,
        row_clip=_CLIP,
    ),
    Learner(
        "gapped-straight-through",
        GappedStraightThrough(),
        "hard samples with the gradient of logits in which the sample leads by a gap",
        row_clip=_CLIP,
    ),
    Learner(
        "decoupled-st",
        DecoupledStraightThrough(),
        "gumbel-softmax-st with one temperature to sample and another for the gradient",
        row_clip=_CLIP,
    ),
    Learner("rebar", REBAR(), "reinforce with a relaxation as control variate", row_clip=_CLIP),
    Learner(
        "sparsemax-mixture",
        SparsemaxMixture(),
        "a mixture of few operations: sparsemax weights",
        entropy=Schedule(0.0, 0.0),
        row_clip=_CLIP,
    ),
    Learner(
        "entmax-mixture",
        EntmaxMixture(),
        "a mixture of few operations: 1.5-entmax weights",
        entropy=Schedule(0.0, 0.0),
        row_clip=_CLIP,
    ),
)
