"""Score-function estimators that avoid evaluating an outcome twice. Several decisions at once count as a single one.

The D decisions of a row have ``K**D`` joint outcomes, which are listed up to a cap: only joint outcomes can be told
apart by draws without replacement, and the likeliest ones hold less and less of the whole as D grows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opselect._tensorflow import tf
from opselect.estimators.base import Proposal, check_logits, check_losses, check_samples, log_prob, no_state, reinforced
from opselect.estimators.enumeration import (
    check_at_once,
    joint_index,
    joint_log_probabilities,
    joint_outcomes,
    joint_vertices,
)
from opselect.namespace import shape_of
from opselect.random import gumbel

__all__ = ["SumAndSample", "UnorderedSet"]

Tensor = Any
_TINY = 1e-30  # stands in for probability 0 where a probability divides


def _with_distinct(logits: Tensor, index: Tensor, possible: Tensor, listed: bool) -> Proposal:
    """Proposes the joint outcomes at `index` [..., S]; one of probability 0 gives way to the first, which is not."""
    index = tf.where(possible, index, index[..., :1])
    vertices = tf.constant(joint_vertices(logits.shape[-1], logits.shape[-2]))
    index = tf.transpose(index, [index.shape.rank - 1, *range(index.shape.rank - 1)])
    return Proposal(tf.gather(vertices, index), logits, enumerated=listed)


def _coefficients(proposal: Proposal) -> tuple[Tensor, Tensor, Tensor]:
    """(p, elsewhere, repeats): probability of each proposed outcome [S, ...], of all others [...], and which repeat."""
    index, joint = joint_index(proposal.weights), tf.stop_gradient(joint_log_probabilities(proposal.logits))
    member = tf.reduce_max(tf.one_hot(index, joint.shape[-1]), 0)
    # Summed, since 1 less the sum of the proposed ones would cancel where they hold nearly everything.
    elsewhere = tf.reduce_sum(tf.exp(joint) * (1.0 - member), -1)
    repeats = tf.concat([tf.zeros_like(index[:1], tf.bool), index[1:] == index[:1]], 0)
    p = tf.where(repeats, 0.0, tf.exp(tf.stop_gradient(log_prob(proposal))))
    return p, elsewhere, repeats


def _weighted(losses: Tensor, coefficients: Tensor, advantages: Tensor, proposal: Proposal) -> Tensor:
    """The surrogate ``sum_s coefficient_s (f_s + advantage_s log p_s)``, in gradients."""
    total = losses + reinforced(losses, advantages, log_prob(proposal))
    return tf.reduce_sum(tf.stop_gradient(coefficients) * total, 0)


@dataclass(frozen=True)
class SumAndSample:
    """The likeliest outcomes summed, the rest sampled: ``sum_a p_a f_a s_a + (1 - sum_a p_a) f_i s_i``, i of the rest.

    ``s = grad log p``; Liu et al. 2019, "Rao-Blackwellized stochastic gradients for discrete distributions". Unbiased;
    its variance vanishes as the policy becomes sure. D decisions are one decision among ``K**D``.

    Requires of f: nothing; top + samples evaluations.

    Attributes:
        top: how many of the likeliest outcomes are summed.
        samples: how many of the others are drawn, with replacement; their mean counts.
        cap: the most joint outcomes per row that are listed.
    """

    top: int = 1
    samples: int = 1
    cap: int = 4096
    needs_relaxation = False
    needs_value = False
    sequential = False
    init = no_state

    def __post_init__(self) -> None:
        check_samples(self.samples)
        check_samples(self.top, name="top")

    def evaluations(self, operations: int, decisions: int) -> int:
        """top + samples; a ValueError if nothing is left to sample, or above `cap`."""
        outcomes = joint_outcomes("sum-and-sample", operations, decisions, self.cap)
        if self.top >= outcomes:
            raise ValueError(f"sum-and-sample: top={self.top} must be less than the {outcomes} outcomes")
        return self.top + self.samples

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes the `top` likeliest outcomes and `samples` of the others."""
        check_at_once("sum-and-sample", decision)
        check_logits(logits, seed, decision)
        evaluations = self.evaluations(logits.shape[-1], logits.shape[-2])
        joint = tf.stop_gradient(joint_log_probabilities(logits))
        _, top = tf.math.top_k(joint, self.top)  # [..., top]
        summed = tf.reduce_max(tf.one_hot(top, joint.shape[-1]), -2)
        rest = tf.where(summed > 0, -float("inf"), joint)
        # A draw is the largest of the log-probabilities with Gumbel noise.
        noise = gumbel(seed, [*shape_of(rest)[:-1], self.samples, rest.shape[-1]])
        drawn = tf.argmax(rest[..., None, :] + noise, -1, output_type=tf.int32)  # [..., samples]
        index = tf.concat([top, drawn], -1)
        possible = tf.gather(joint, index, batch_dims=joint.shape.rank - 1) > math.log(_TINY)
        return _with_distinct(logits, index, possible, self.samples == 1 and evaluations == joint.shape[-1])

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: Any) -> tuple[Tensor, Any]:
        """Advantage: the loss itself."""
        check_losses(losses, proposals)
        check_at_once("sum-and-sample", proposals=proposals)
        (proposal,) = proposals
        top = Proposal(proposal.weights[: self.top], proposal.logits)
        p, rest, repeats = _coefficients(top)
        _, _, unused = _coefficients(proposal)  # a draw that repeats the first outcome had none to draw
        share = tf.where(unused[self.top :], 0.0, rest / self.samples)
        coefficients = tf.concat([tf.where(repeats, 0.0, p), share], 0)
        return _weighted(losses, coefficients, losses, proposal), state


@dataclass(frozen=True)
class UnorderedSet:
    """k distinct outcomes S drawn without replacement, with a built-in baseline (Kool et al. 2020).

    ``sum_{s in S} grad p_s R(S, s) (f_s - sum_{t in S} p_t R_s(S, t) f_t)``, where ``R(S, s) = P(S - s without s) /
    P(S)``, and R_s is the same once s is taken out, with ``R_s(S, s) = 1``. It is REINFORCE on the first of the draws,
    averaged over their order. Unbiased, and exact once S holds every outcome. D decisions are one decision among
    ``K**D``.

    Requires of f: nothing; k evaluations. Closing takes ``2**k`` subsets.

    Attributes:
        samples: k >= 2, at most 8; all outcomes where there are fewer.
        cap: the most joint outcomes per row that are listed.
    """

    samples: int = 4
    cap: int = 4096
    needs_relaxation = False
    needs_value = False
    sequential = False
    init = no_state

    def __post_init__(self) -> None:
        check_samples(self.samples, least=2)
        if self.samples > 8:
            raise ValueError(f"samples must be at most 8, as 2**samples subsets are summed, got {self.samples}")

    def evaluations(self, operations: int, decisions: int) -> int:
        """k, or K**decisions if that is less; a ValueError above `cap`."""
        return min(self.samples, joint_outcomes("unordered-set", operations, decisions, self.cap))

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes the k largest of the log-probabilities with Gumbel noise."""
        check_at_once("unordered-set", decision)
        check_logits(logits, seed, decision)
        evaluations = self.evaluations(logits.shape[-1], logits.shape[-2])
        joint = tf.stop_gradient(joint_log_probabilities(logits))
        _, index = tf.math.top_k(joint + gumbel(seed, shape_of(joint)), evaluations)
        possible = tf.gather(joint, index, batch_dims=joint.shape.rank - 1) > math.log(_TINY)
        return _with_distinct(logits, index, possible, evaluations == joint.shape[-1])

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: Any) -> tuple[Tensor, Any]:
        """Advantage: the loss less the estimate of the expected loss from S, given that s is in it."""
        check_losses(losses, proposals)
        check_at_once("unordered-set", proposals=proposals)
        (proposal,) = proposals
        p, elsewhere, _ = _coefficients(proposal)
        rest = self._of_the_rest(tf.unstack(tf.maximum(p, _TINY)), elsewhere)
        k = losses.shape[0]
        first = [rest[frozenset([s])] / rest[frozenset()] for s in range(k)]
        fixed, advantages = tf.stop_gradient(losses), []
        for s in range(k):
            expected = p[s] * fixed[s]
            for t in set(range(k)) - {s}:
                expected += p[t] * rest[frozenset([s, t])] / rest[frozenset([s])] * fixed[t]
            advantages.append(fixed[s] - expected)
        return _weighted(losses, p * tf.stack(first), tf.stack(advantages), proposal), state

    @staticmethod
    def _of_the_rest(p: list[Tensor], elsewhere: Tensor) -> dict[frozenset[int], Tensor]:
        """For each subset C of the draws, the probability of drawing the others, in any order, once C is taken out.

        ``q(C) = sum_{b not in C} p_b / (1 - p(C)) q(C + b)``, ``q(S) = 1``.
        """
        everything = frozenset(range(len(p)))
        rest = {everything: tf.ones_like(elsewhere)}
        for size in reversed(range(len(p))):
            for taken in map(frozenset, itertools.combinations(range(len(p)), size)):
                others = sorted(everything - taken)
                left = elsewhere + tf.add_n([p[b] for b in others])
                rest[taken] = tf.add_n([p[b] * rest[taken | {b}] for b in others]) / left
        return rest
