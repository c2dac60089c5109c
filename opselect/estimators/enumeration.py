"""Estimators that evaluate f at many outcomes of a decision, and the outcomes of D decisions taken as one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opselect._tensorflow import tf
from opselect.estimators.base import (
    Proposal,
    check_losses,
    check_samples,
    draw_one_hots,
    log_prob,
    log_probabilities,
    no_state,
    reinforced,
)
from opselect.namespace import shape_of

__all__ = [
    "IndeCateR",
    "OptimalReinforce",
    "check_at_once",
    "joint_index",
    "joint_log_probabilities",
    "joint_outcomes",
    "joint_vertices",
]

Tensor = Any


def check_at_once(name: str, decision: int = 0, proposals: Sequence[Proposal] | None = None) -> None:
    """Checks that an estimator of decisions made at once isn't asked to follow a sequence of them.

    Raises:
        ValueError: a later decision, or several proposals.
    """
    if decision or (proposals is not None and len(proposals) != 1):
        raise ValueError(
            f"{name} estimates the gradient of decisions made at once, not of one after the other; use an estimator"
            " whose `sequential` is True, such as 'reinforce-rloo'"
        )


def joint_outcomes(name: str, operations: int, decisions: int, cap: int) -> int:
    """K**D.

    Raises:
        ValueError: more than `cap`; names the estimator and D.
    """
    outcomes = operations**decisions
    if outcomes > cap:
        raise ValueError(
            f"{name} lists the joint outcomes of D = {decisions} decisions, but {operations}**{decisions} = {outcomes}"
            f" are more than cap={cap}; use 'reinforce-rloo', or 'indecater' for many decisions, or raise cap"
        )
    return outcomes


def joint_vertices(operations: int, decisions: int) -> np.ndarray:
    """Every outcome of D decisions, as one-hots [K**D, D, K] float32; the last decision varies fastest."""
    codes = np.array(list(itertools.product(range(operations), repeat=decisions)), np.int32)
    return np.eye(operations, dtype=np.float32)[codes]


def joint_log_probabilities(logits: Tensor) -> Tensor:
    """The log-probabilities [..., K**D] of all outcomes, in the order of `joint_vertices`; logits [..., D, K]."""
    log_p = log_probabilities(logits)
    total = log_p[..., 0, :]
    for d in range(1, logits.shape[-2]):
        pairs = total[..., :, None] + log_p[..., d, None, :]
        total = tf.reshape(pairs, [*shape_of(pairs)[:-2], pairs.shape[-2] * pairs.shape[-1]])
    return total


def joint_index(weights: Tensor) -> Tensor:
    """The place int32 [...] of one-hots [..., D, K] in the order of `joint_vertices`."""
    d, k = weights.shape[-2:]
    places = tf.constant([k ** (d - 1 - i) for i in range(d)], tf.int32)
    return tf.reduce_sum(tf.argmax(weights, -1, output_type=tf.int32) * places, -1)


@dataclass(frozen=True)
class OptimalReinforce:
    """REINFORCE with the best constant baseline: ``(f(D) - c) grad log p(D)``, ``c = E[|s|**2 f] / E[|s|**2]``.

    ``s = grad log p`` (Greensmith et al. 2004). Unbiased, as c is exact: all ``K**D`` outcomes are evaluated, yet the
    gradient is that of one sample. A diagnostic: the least variance that any constant baseline can reach. The
    surrogate's value, and the gradient of parameters behind f, are those of the exact expected loss.

    Requires of f: nothing, but ``K**D`` evaluations.

    Attributes:
        cap: the most outcomes per row that are enumerated.
    """

    cap: int = 4096
    needs_relaxation = False
    needs_value = False
    sequential = False
    init = no_state

    def evaluations(self, operations: int, decisions: int) -> int:
        """K**decisions; a ValueError above `cap`."""
        return joint_outcomes("reinforce-optimal", operations, decisions, self.cap)

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes every outcome; the record is the place [...] of the sampled one."""
        check_at_once("reinforce-optimal", decision)
        sampled = draw_one_hots(logits, seed, 1, decision)[0]
        d, k = logits.shape[-2:]
        outcomes, batch = self.evaluations(k, d), shape_of(logits)[:-2]
        vertices = tf.reshape(tf.constant(joint_vertices(k, d)), [outcomes] + [1] * len(batch) + [d, k])
        weights = tf.broadcast_to(vertices, [outcomes, *batch, d, k])
        # Not `enumerated`: the estimate is that of a sample, with its variance.
        return Proposal(weights, logits, record=joint_index(sampled))

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: Any) -> tuple[Tensor, Any]:
        """Advantage: the sample's loss less c."""
        check_losses(losses, proposals)
        check_at_once("reinforce-optimal", proposals=proposals)
        (proposal,) = proposals
        log_p, drawn = log_prob(proposal), tf.one_hot(proposal.record, losses.shape[0], axis=0)  # [S, ...] both
        p = tf.stop_gradient(tf.exp(log_p))
        probabilities = tf.stop_gradient(tf.exp(log_probabilities(proposal.logits)))
        size = p * tf.reduce_sum(tf.square(proposal.weights - probabilities), [-2, -1])  # p |s|**2
        losses = tf.where(p > 0, losses, tf.zeros_like(losses))  # what can't happen may cost anything
        fixed = tf.stop_gradient(losses)
        baseline = tf.math.divide_no_nan(tf.reduce_sum(size * fixed, 0), tf.reduce_sum(size, 0))
        expected = tf.reduce_sum(p * losses, 0)
        sampled = tf.reduce_sum(drawn * losses, 0)
        return expected + reinforced(sampled, sampled - baseline, tf.reduce_sum(drawn * log_p, 0)), state


@dataclass(frozen=True)
class IndeCateR:
    """``sum_d sum_k grad p(d = k) E[f with d = k]``: exact over each decision in turn, the others sampled.

    IndeCateR (De Smet et al. 2023). Unbiased, no score function; for D = 1 it is the exact gradient. The best unbiased
    choice for many decisions that are independent given x.

    Requires of f: nothing, but ``K * D * N`` evaluations.

    Attributes:
        samples: N, how often the other decisions are sampled.
    """

    samples: int = 1
    needs_relaxation = False
    needs_value = False
    sequential = False
    init = no_state

    def __post_init__(self) -> None:
        check_samples(self.samples)

    def evaluations(self, operations: int, decisions: int) -> int:
        """N * D * K."""
        return self.samples * decisions * operations

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes N samples, each with every decision in turn set to every operation: the order is N, D, K."""
        check_at_once("indecater", decision)
        sampled = draw_one_hots(logits, seed, self.samples, decision)  # [N, ..., D', K']
        d, k = logits.shape[-2:]
        weights = []
        for i, j in itertools.product(range(d), range(k)):
            here = tf.constant(np.arange(d) == i)[:, None]
            weights.append(tf.where(here, tf.one_hot(j, k), sampled))
        stacked = tf.stack(weights, 1)  # [N, D * K, ..., D', K']
        stacked = tf.reshape(stacked, [self.samples * d * k, *shape_of(logits)])
        return Proposal(stacked, logits, enumerated=d == 1 and self.samples == 1)

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: Any) -> tuple[Tensor, Any]:
        """The expected loss over each decision; the value is their mean, the gradient their sum."""
        check_losses(losses, proposals)
        check_at_once("indecater", proposals=proposals)
        (proposal,) = proposals
        d, k = proposal.logits.shape[-2:]
        by_choice = tf.reshape(losses, [losses.shape[0] // (d * k), d, k, *shape_of(losses)[1:]])
        by_choice = tf.reduce_mean(by_choice, 0)  # [D, K, ...]
        rank = by_choice.shape.rank
        p = tf.transpose(tf.exp(log_probabilities(proposal.logits)), [rank - 2, rank - 1, *range(rank - 2)])
        fixed = tf.stop_gradient(p)
        by_choice = tf.where(fixed > 0, by_choice, tf.zeros_like(by_choice))  # what can't happen may cost anything
        value = tf.reduce_sum(fixed * by_choice, [0, 1]) / d
        return value + tf.reduce_sum((p - fixed) * tf.stop_gradient(by_choice), [0, 1]), state
