"""Straight-through estimators: f is evaluated at one-hots, the gradient goes back as if they were soft. Biased."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opselect._tensorflow import tf
from opselect.estimators.base import Proposal, check_samples, draw_one_hots, mean_loss, no_state, one_per_sample
from opselect.estimators.relaxation import check_temperature, gumbel_softmax
from opselect.numerics import straight_through

__all__ = ["GumbelSoftmaxStraightThrough", "StraightThrough"]

Tensor = Any


@dataclass(frozen=True)
class StraightThrough:
    """A categorical sample forward, the softmax backward: the estimate is ``J grad f(D)`` (Bengio et al. 2013).

    Requires of f: a gradient at the vertices. For quadratic f its mean is the soft mixture's gradient, and it is stuck
    where that is zero.

    Attributes:
        samples: S, independent samples per row.
    """

    samples: int = 1
    needs_relaxation = True
    needs_value = False
    sequential = True
    init = no_state
    evaluations = one_per_sample
    surrogate = mean_loss

    def __post_init__(self) -> None:
        check_samples(self.samples)

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes one-hots that carry the softmax's gradient."""
        hard = draw_one_hots(logits, seed, self.samples, decision)
        return Proposal(straight_through(hard, tf.nn.softmax(tf.cast(logits, tf.float32))), logits)


@dataclass(frozen=True)
class GumbelSoftmaxStraightThrough:
    """The argmax of a Gumbel-softmax sample forward, the sample itself backward (Jang et al. 2017).

    Requires of f: a gradient at the vertices. Forward it is an exact categorical sample at any temperature.

    Attributes:
        temperature: of the relaxed sample behind the gradient.
        samples: S, independent samples per row.
    """

    temperature: Any = 1.0
    samples: int = 1
    needs_relaxation = True
    needs_value = False
    sequential = True
    init = no_state
    evaluations = one_per_sample
    surrogate = mean_loss

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        check_samples(self.samples)

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes one-hots that carry the relaxed samples' gradient."""
        soft = gumbel_softmax(logits, self.temperature, seed, self.samples, decision)
        hard = tf.one_hot(tf.argmax(soft, -1), logits.shape[-1])
        return Proposal(straight_through(hard, soft), logits)
