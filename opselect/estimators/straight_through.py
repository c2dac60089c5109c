"""Straight-through estimators: f is evaluated at one-hots, the gradient goes back as if they were soft. Biased."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opselect._tensorflow import tf
from opselect.estimators.base import (
    Proposal,
    check_samples,
    draw_one_hots,
    log_probabilities,
    mean_loss,
    no_state,
    one_per_sample,
)
from opselect.estimators.relaxation import perturbed
from opselect.namespace import shape_of, xp
from opselect.numerics import check_temperature, is_known, straight_through
from opselect.random import as_finite, fold_in, uniform

__all__ = [
    "DecoupledStraightThrough",
    "GappedStraightThrough",
    "GumbelRao",
    "GumbelSoftmaxStraightThrough",
    "StraightThrough",
    "softmax_vjp",
    "with_vjp",
]

Tensor = Any


def softmax_vjp(probabilities: Tensor, upstream: Tensor) -> Tensor:
    """``[diag q - q q^T] upstream`` for q, upstream [..., K]: what the softmax with value q sends back."""
    return probabilities * (upstream - tf.reduce_sum(probabilities * upstream, -1, keepdims=True))


def with_vjp(hard: Tensor, logits: Tensor, vjp: Callable[[Tensor], Tensor]) -> Tensor:
    """The one-hots `hard` [S, ..., D, K]; `vjp` turns their gradient into that of the logits, one for each sample."""

    @tf.custom_gradient
    def forward(broadcast: Tensor) -> Any:
        return tf.identity(hard), vjp

    return forward(tf.broadcast_to(tf.cast(logits, tf.float32), shape_of(hard)))


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
        noisy = perturbed(logits, seed, self.samples, decision)
        hard = tf.one_hot(tf.argmax(noisy, -1), logits.shape[-1])
        return Proposal(straight_through(hard, tf.nn.softmax(noisy / self.temperature)), logits)


@dataclass(frozen=True)
class GumbelRao:
    """Straight-through Gumbel-softmax without the noise that D does not depend on (Paulus et al. 2020).

    The estimate is the mean over `inner` draws of Gumbel noise G, given that ``argmax(logits + G)`` is D, of
    ``J(softmax((logits + G) / temperature)) / temperature grad f(D)``: the same mean as the straight-through
    Gumbel-softmax, less variance, and the same S evaluations. G given D depends on the logits, yet is not
    differentiated. Requires of f: a gradient at the vertices.

    Attributes:
        temperature: of the relaxed samples behind the gradient.
        inner: how many draws are averaged; 1 is the straight-through Gumbel-softmax.
        samples: S, independent samples per row.
    """

    temperature: Any = 0.5
    inner: int = 10
    samples: int = 1
    needs_relaxation = True
    needs_value = False
    sequential = True
    init = no_state
    evaluations = one_per_sample
    surrogate = mean_loss

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        check_samples(self.inner, name="inner")
        check_samples(self.samples)

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes one-hots that carry the averaged gradient."""
        hard = draw_one_hots(logits, seed, self.samples, decision)
        shape = [self.inner, *shape_of(hard)]
        # By exponential races: the winner's time is that of the whole race, the others' come after it.
        inner = fold_in(seed, 0)  # no substream: the next decision's seed is one
        time = -tf.math.log(uniform(inner, shape, axis=2 if seed.shape.rank == 2 else 0))
        log_p = log_probabilities(tf.stop_gradient(logits))
        won = tf.math.log(tf.reduce_sum(hard * time, -1, keepdims=True))
        others = xp.logaddexp(tf.math.log(time) - log_p, won)
        # tf.nn.softmax takes no more than five axes.
        odds = tf.exp(tf.where(hard > 0, 0.0, (won - others) / self.temperature))
        soft = odds / tf.reduce_sum(odds, -1, keepdims=True)

        def vjp(upstream: Tensor) -> Tensor:
            return tf.reduce_mean(softmax_vjp(soft, upstream), 0) / self.temperature

        return Proposal(with_vjp(hard, logits, vjp), logits)


@dataclass(frozen=True)
class GappedStraightThrough:
    """The softmax of logits that are shifted until D leads by a gap, instead of Gumbel noise (Fan et al. 2022).

    The logit of D is raised to the largest one m, the others are lowered to at most ``m - gap``; with q the softmax of
    the result over the temperature, the estimate is ``J(q) / temperature grad f(D)``. S evaluations.
    Requires of f: a gradient at the vertices.

    Attributes:
        gap: by how much D leads, at least 0.
        temperature: of the softmax behind the gradient.
        samples: S, independent samples per row.
    """

    gap: Any = 1.0
    temperature: Any = 1.0
    samples: int = 1
    needs_relaxation = True
    needs_value = False
    sequential = True
    init = no_state
    evaluations = one_per_sample
    surrogate = mean_loss

    def __post_init__(self) -> None:
        if is_known(self.gap) and not self.gap >= 0.0:
            raise ValueError(f"gap must be >= 0, got {self.gap!r}")
        check_temperature(self.temperature)
        check_samples(self.samples)

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes one-hots that carry the gradient of the shifted softmax."""
        hard = draw_one_hots(logits, seed, self.samples, decision)
        lead = as_finite(tf.stop_gradient(logits))
        lead -= tf.reduce_max(lead, -1, keepdims=True)
        soft = tf.nn.softmax(tf.where(hard > 0, 0.0, tf.minimum(lead, -self.gap)) / self.temperature)
        return Proposal(with_vjp(hard, logits, lambda g: softmax_vjp(soft, g) / self.temperature), logits)


@dataclass(frozen=True)
class DecoupledStraightThrough:
    """Straight-through Gumbel-softmax that samples at one temperature and differentiates at another (Shah et al. 2024).

    Forward ``argmax(logits / forward_temperature + G)``, backward ``softmax(logits / temperature + G)`` with the same
    noise: a temperature divides the logits only, since under ``(logits + G) / temperature`` the argmax would not depend
    on it. At equal temperatures it is `GumbelSoftmaxStraightThrough` of the divided logits. S evaluations.
    Requires of f: a gradient at the vertices. Away from forward temperature 1 the samples are not the policy's.

    Attributes:
        temperature: of the gradient; higher spreads it over the operations.
        forward_temperature: of the samples; higher explores more.
        samples: S, independent samples per row.
    """

    temperature: Any = 2.0
    forward_temperature: Any = 1.0
    samples: int = 1
    needs_relaxation = True
    needs_value = False
    sequential = True
    init = no_state
    evaluations = one_per_sample
    surrogate = mean_loss

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        check_temperature(self.forward_temperature, "forward_temperature")
        check_samples(self.samples)

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes one-hots of one temperature that carry the relaxed samples' gradient of another."""
        divided = tf.cast(logits, tf.float32)
        soft = tf.nn.softmax(perturbed(divided / self.temperature, seed, self.samples, decision))
        # The same seed draws the same noise.
        sharp = perturbed(tf.stop_gradient(divided) / self.forward_temperature, seed, self.samples, decision)
        hard = tf.one_hot(tf.argmax(sharp, -1), logits.shape[-1])
        return Proposal(straight_through(hard, soft), logits)
