"""REINFORCE less a relaxed control variate whose own gradient is added back: REBAR and RELAX.

    (f(D) - c(y')) grad log p(D) + grad c(y) - grad c(y')

with ``y = softmax(z / temperature)``, ``z = log p + Gumbel noise``, ``D = argmax z``, and y' made in the same way of
``z'``, a fresh z given D. Unbiased for every c, as ``E[c(y') grad log p(D) + grad c(y')] = grad E[c(y)]``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opselect._tensorflow import tf
from opselect.estimators.base import (
    Proposal,
    check_logits,
    check_losses,
    log_prob,
    log_probabilities,
    no_state,
)
from opselect.estimators.enumeration import check_at_once
from opselect.namespace import shape_of, xp
from opselect.numerics import check_temperature
from opselect.random import as_finite, as_seed, gumbel, uniform

__all__ = ["REBAR", "RELAX", "given_choice"]

Tensor = Any


def given_choice(log_p: Tensor, chosen: Tensor, noise: Tensor) -> Tensor:
    """Gumbel-perturbed log-probabilities [..., K] of which `chosen` is the largest, differentiable in `log_p`.

    ``z_D = G_D`` and ``z_k = -log(exp(-G_D) + exp(-G_k) / p_k)`` elsewhere: the law of ``log p + G`` given its argmax D
    (Tucker et al. 2017, appendix). Averaged over D, that of log p + G.

    Args:
        log_p: [..., K] normalised log-probabilities; -1e9 for probability 0.
        chosen: [..., K] one-hots of D.
        noise: [..., K] standard Gumbel draws, independent of D.
    """
    largest = tf.reduce_sum(chosen * noise, -1, keepdims=True)
    return tf.where(chosen > 0, largest, -xp.logaddexp(-noise - log_p, -largest))


def _noise(logits: Tensor, seed: Tensor, decision: int) -> Tensor:
    """Gumbel draws [2, ..., D, K]: of z, and of z given D."""
    check_logits(logits, seed, decision)
    return gumbel(seed, [2, *shape_of(logits)], axis=1)


@dataclass(frozen=True)
class REBAR:
    """REBAR (Tucker et al. 2017) with ``c = eta * f``; see the module for the formula. Unbiased for any eta.

    The surrogate's value is ``f(D) + eta (f(y) - f(y'))``, an unbiased estimate of the expected loss, as y and y' have
    the same law when D is averaged over.

    Requires of f: a gradient in the weights; 3 evaluations, at D, y and y'. ``eta = 0`` is REINFORCE.

    Attributes:
        eta: how much of the control variate is used; 0 to 1.
        temperature: of the relaxed weights y and y'.
    """

    eta: Any = 1.0
    temperature: Any = 0.5
    needs_relaxation = True
    needs_value = False
    sequential = False
    init = no_state

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def evaluations(self, operations: int, decisions: int) -> int:
        """3: D, y and y'."""
        return 3

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes D, y and y'; the last two carry their gradients."""
        check_at_once("rebar", decision)
        noise, log_p = _noise(logits, seed, decision), log_probabilities(logits)
        z = log_p + noise[0]
        hard = tf.one_hot(tf.argmax(z, -1), logits.shape[-1])
        both = tf.nn.softmax(tf.stack([z, given_choice(log_p, hard, noise[1])]) / self.temperature)
        return Proposal(tf.concat([hard[None], both], 0), logits, samples=1)

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: Any) -> tuple[Tensor, Any]:
        """Advantage: f(D) less eta * f(y')."""
        check_losses(losses, proposals)
        check_at_once("rebar", proposals=proposals)
        (proposal,) = proposals
        log_p = log_prob(Proposal(proposal.weights[:1], proposal.logits))[0]
        hard, soft, given = tf.unstack(losses)
        advantage = tf.stop_gradient(hard - self.eta * given)
        return hard + self.eta * (soft - given) + advantage * (log_p - tf.stop_gradient(log_p)), state


@dataclass(frozen=True)
class RELAX:
    """RELAX (Grathwohl et al. 2018): the control variate c is a small network that learns; see the module.

    ``c(y) = b + u . y + v . tanh(W y + w)`` of the relaxed weights of all D decisions together, one network per
    replica. Its parameters follow, by Adam, the gradient of the estimate's own squared norm, which is its variance but
    for a constant. They are read before they are updated, so every estimate is unbiased. It starts as REINFORCE, takes
    some hundred steps to be better and a thousand or two to be as good as it gets; losses should be of the order of 1
    or `learning_rate` scaled with them.

    Requires of f: nothing; 1 evaluation, at D. The parameters of c are the state, whose shape depends on D and K.

    Attributes:
        temperature: of the relaxed weights that c sees.
        hidden: the width of its hidden layer.
        learning_rate: of Adam on its parameters.
    """

    temperature: Any = 0.5
    hidden: int = 8
    learning_rate: float = 1e-2
    warm_up = 500  # batches before `opselect.gradient_report` measures it
    needs_relaxation = False
    needs_value = False
    sequential = False

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if not isinstance(self.hidden, int) or self.hidden < 1:
            raise ValueError(f"hidden must be an integer >= 1, got {self.hidden!r}")

    def init(self, logits: Tensor) -> Any:
        """(parameters, first moments, second moments, step), each with the replicas' axis for [R, B, D, K]."""
        d, k = logits.shape[-2:]
        replicas = logits.shape[:-2][:-1].as_list()
        draws = uniform(as_seed(0), [d * k + 1, self.hidden])  # some start that tells the hidden units apart
        into = tf.broadcast_to((2.0 * draws - 1.0) * 2.0 / math.sqrt(d), [*replicas, d * k + 1, self.hidden])
        out = tf.zeros([*replicas, d * k + 1 + self.hidden])
        zeros = (tf.zeros_like(into), tf.zeros_like(out))
        return (into, out), zeros, zeros, tf.zeros(replicas)

    def evaluations(self, operations: int, decisions: int) -> int:
        """1: the sample."""
        return 1

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes D; the record is the noise behind it and behind y'."""
        check_at_once("relax", decision)
        noise = _noise(logits, seed, decision)
        hard = tf.one_hot(tf.argmax(log_probabilities(logits) + noise[0], -1), logits.shape[-1])
        return Proposal(hard[None], logits, record=noise)

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: Any) -> tuple[Tensor, Any]:
        """The sample's loss with the estimate as its gradient, and c one step of Adam further."""
        check_losses(losses, proposals)
        check_at_once("relax", proposals=proposals)
        (proposal,) = proposals
        parameters = state[0]
        with tf.GradientTape() as of_parameters:
            of_parameters.watch(parameters)
            estimate = self._estimate(proposal, tf.stop_gradient(losses[0]), parameters)
            rows = tf.reduce_sum(tf.square(estimate), [-2, -1])
            size = tf.reduce_mean(rows, -1) if rows.shape.rank else rows  # [R], of independent replicas
        slopes = of_parameters.gradient(size, parameters)
        logits = as_finite(proposal.logits)  # less itself it is 0
        change = tf.stop_gradient(estimate) * (logits - tf.stop_gradient(logits))
        state = tf.nest.map_structure(tf.stop_gradient, self._adam(slopes, state))
        return losses[0] + tf.reduce_sum(change, [-2, -1]), state

    def _estimate(self, proposal: Proposal, loss: Tensor, parameters: Any) -> Tensor:
        """The gradient estimate [..., D, K], differentiable in the parameters."""
        chosen, noise = proposal.weights[0], proposal.record
        logits = tf.stop_gradient(tf.cast(proposal.logits, tf.float32))
        with tf.GradientTape() as of_logits:
            of_logits.watch(logits)
            log_p = log_probabilities(logits)
            soft = self._control(log_p + noise[0], parameters)
            given = self._control(given_choice(log_p, chosen, noise[1]), parameters)
            difference = soft - given
        return (loss - given)[..., None, None] * (chosen - tf.exp(log_p)) + of_logits.gradient(difference, logits)

    def _control(self, z: Tensor, parameters: Any) -> Tensor:
        """c [...] of perturbed log-probabilities [..., D, K]."""
        into, out = parameters
        weights = tf.nn.softmax(z / self.temperature)
        batch = shape_of(weights)[:-2]
        inputs = tf.reshape(weights, [*batch, 1, weights.shape[-2] * weights.shape[-1]])
        inputs = tf.concat([inputs, tf.ones_like(inputs[..., :1])], -1)
        if into.shape.rank > 2:  # one network per replica, shared by its rows
            into, out = into[:, None], out[:, None]
        features = tf.concat([inputs, tf.tanh(tf.linalg.matmul(inputs, into))], -1)[..., 0, :]
        return tf.reduce_sum(features * out, -1)

    def _adam(self, slopes: Any, state: Any) -> Any:
        """The next state."""
        parameters, first, second, step = state
        step = step + 1.0

        def per_replica(x: Tensor, like: Tensor) -> Tensor:
            return tf.reshape(x, [*x.shape, *[1] * (like.shape.rank - x.shape.rank)])

        first = tuple(0.9 * m + 0.1 * g for m, g in zip(first, slopes, strict=True))
        second = tuple(0.999 * v + 0.001 * tf.square(g) for v, g in zip(second, slopes, strict=True))
        rate = self.learning_rate * tf.sqrt(1.0 - 0.999**step) / (1.0 - 0.9**step)
        moved = tuple(
            x - per_replica(rate, x) * m / (tf.sqrt(v) + 1e-8)
            for x, m, v in zip(parameters, first, second, strict=True)
        )
        return moved, first, second, step
