"""Score-function estimators from antithetic pairs: two samples that avoid each other, each with the right law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opselect._tensorflow import tf
from opselect.estimators.base import Proposal, check_logits, check_losses, log_probabilities, no_state
from opselect.estimators.enumeration import check_at_once
from opselect.namespace import shape_of
from opselect.random import uniform

__all__ = ["DisARM"]

Tensor = Any


@dataclass(frozen=True)
class DisARM:
    """DisARM on a stick-breaking of the choice (Dong, Mnih & Tucker 2020 and 2021, "DisARM-SB").

    The operations, the likeliest first, are asked one after the other: operation k is taken if ``b_k = 1``, with
    ``P(b_k = 1) = sigmoid(a_k)``, ``a_k = l_k - logsumexp(l_{k+1..K})``. One sample D takes ``b_k = [u_k < sigmoid]``,
    the other, D', ``b'_k = [1 - u_k < sigmoid]``. The gradient in a_k is

        (f(D) - f(D')) / 2 * (b_k - b'_k) * sigmoid(|a_k|)

    and 0 where neither got as far as k. Unbiased: D and D' have the right law; DisARM is unbiased for independent
    binary choices, which the b_k of all D decisions are; and beyond the farther of D and D' the sign of ``b_k - b'_k``
    is a fair coin that f doesn't depend on. For K = 2 it is binary DisARM.

    Requires of f: nothing; 2 evaluations, whatever K and D.
    """

    needs_relaxation = False
    needs_value = False
    sequential = False
    init = no_state

    def evaluations(self, operations: int, decisions: int) -> int:
        """2: the pair."""
        return 2

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes an antithetic pair; the record is ``b - b'`` [..., D, K - 1] where either got, else 0."""
        check_at_once("disarm", decision)
        check_logits(logits, seed, decision)
        return self.pair(logits, uniform(seed, [*shape_of(logits)[:-1], logits.shape[-1] - 1]))

    def pair(self, logits: Tensor, draws: Tensor) -> Proposal:
        """The pair that uniform draws u [..., D, K - 1] give."""
        k, taken = logits.shape[-1], tf.sigmoid(tf.stop_gradient(_sticks(logits)))
        both = tf.stack([draws < taken, 1.0 - draws < taken])  # [2, ..., D, K - 1]
        last = tf.ones_like(both[..., :1])
        first = tf.argmax(tf.cast(tf.concat([both, last], -1), tf.int32), -1, output_type=tf.int32)  # [2, ..., D]
        reached = tf.range(k - 1) <= tf.reduce_max(first, 0)[..., None]
        signs = tf.cast(both[0], tf.float32) - tf.cast(both[1], tf.float32)
        operation = tf.reduce_sum(tf.one_hot(first, k, dtype=tf.int32) * _likeliest_first(logits), -1)
        return Proposal(tf.one_hot(operation, k), logits, record=tf.where(reached, signs, 0.0))

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: Any) -> tuple[Tensor, Any]:
        """Half the difference of the pair's losses, along the sticks that tell the two apart."""
        check_losses(losses, proposals)
        check_at_once("disarm", proposals=proposals)
        (proposal,) = proposals
        sticks = _sticks(proposal.logits)
        fixed = tf.stop_gradient(sticks)
        score = tf.reduce_sum(proposal.record * tf.sigmoid(tf.abs(fixed)) * (sticks - fixed), [-2, -1])
        return tf.reduce_mean(losses, 0) + tf.stop_gradient(losses[0] - losses[1]) / 2 * score, state


def _likeliest_first(logits: Tensor) -> Tensor:
    """The operations int32 [..., K] by falling logits: so D and D' differ most often where one holds the most."""
    return tf.argsort(tf.stop_gradient(tf.cast(logits, tf.float32)), direction="DESCENDING", stable=True)


def _sticks(logits: Tensor) -> Tensor:
    """``a_k = l_k - logsumexp(l_{k+1..K})`` [..., K - 1] of the operations in that order."""
    k = logits.shape[-1]
    ordered = tf.gather(log_probabilities(logits), _likeliest_first(logits), batch_dims=logits.shape.rank - 1)
    later = np.triu(np.ones((k - 1, k), bool), 1)
    tails = tf.where(later, ordered[..., None, :], -math.inf)  # [..., K - 1, K]
    return ordered[..., :-1] - tf.reduce_logsumexp(tails, -1)
