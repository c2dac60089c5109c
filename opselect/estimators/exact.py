"""The exact gradient, by enumeration of every outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opselect._tensorflow import tf
from opselect.estimators.base import Proposal, check_logits, check_losses, log_prob, no_state
from opselect.estimators.enumeration import joint_vertices
from opselect.namespace import shape_of

__all__ = ["Exact"]

Tensor = Any


@dataclass(frozen=True)
class Exact:
    """All outcomes, weighted by their probability: ``sum_i p_i f(e_i)``. Unbiased, variance 0.

    Requires of f: nothing, but ``K**(D*T)`` evaluations per row. With T decisions it branches: decision t is proposed
    once per distinct past, so a chain costs 1 + K + K**2 ... policy calls.

    Attributes:
        cap: the most outcomes per row that are enumerated.
    """

    cap: int = 4096
    needs_relaxation = False
    needs_value = False
    sequential = True
    init = no_state

    def evaluations(self, operations: int, decisions: int) -> int:
        """K**decisions.

        Raises:
            ValueError: more than `cap`.
        """
        outcomes = operations**decisions
        if outcomes > self.cap:
            raise ValueError(
                f"exact: {operations}**{decisions} = {outcomes} outcomes are more than cap={self.cap}; "
                "use a sampling estimator such as 'reinforce-rloo', or raise cap"
            )
        return outcomes

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes each of the K**D outcomes once, for each past."""
        check_logits(logits, seed, decision)
        d, k = logits.shape[-2], logits.shape[-1]
        outcomes = self.evaluations(k, d)
        past = logits.shape[0] if decision else 1
        self.evaluations(past * outcomes, 1)
        batch = shape_of(logits)[1:-2] if decision else shape_of(logits)[:-2]
        vertices = joint_vertices(k, d).reshape([1, outcomes] + [1] * len(batch) + [d, k])
        weights = tf.broadcast_to(tf.constant(vertices), [past, outcomes, *batch, d, k])
        return Proposal(tf.reshape(weights, [past * outcomes, *batch, d, k]), logits, enumerated=True)

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: Any) -> tuple[Tensor, Any]:
        """The expected loss, folded from the last decision back to the first."""
        check_losses(losses, proposals)
        expected = losses
        for i in reversed(range(len(proposals))):
            p = tf.exp(log_prob(proposals[i]))
            weighted = p * tf.where(p > 0, expected, tf.zeros_like(expected))  # what can't happen may cost anything
            past = proposals[i - 1].weights.shape[0] if i else 1
            outcomes = weighted.shape[0] // past
            expected = tf.reduce_sum(tf.reshape(weighted, [past, outcomes, *shape_of(weighted)[1:]]), axis=1)
        return expected[0], state
