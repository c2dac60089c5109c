"""Plays a task inside the graph: the estimator proposes each decision, the task's own functions do the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from opselect._tensorflow import tf
from opselect.estimators import Proposal
from opselect.estimators.base import log_probabilities, occupancy
from opselect.namespace import xp
from opselect.policy import clip_gradient, mask_logits
from opselect.random import substream
from opselect_envs.dynamics import Options, State, observe, options, reward, step
from opselect_envs.tasks import Task

__all__ = ["Greedy", "Rollout", "rollout"]

Tensor = Any


class Rollout(NamedTuple):
    """What one pass over a batch gave."""

    rewards: Tensor
    """[S, R, B], noise-free."""
    proposals: Sequence[Proposal]
    """One per decision."""
    entropy: Tensor
    """[R, B]: the policy's entropy, averaged over decisions and over the states it reaches."""


@dataclasses.dataclass(frozen=True)
class Greedy:
    """Proposes the most likely operation: how a trained policy is judged. Not an estimator: it has no gradient."""

    needs_value = False

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """One-hots [1, ..., D, K] of the argmax."""
        hard = tf.one_hot(tf.argmax(logits, -1), logits.shape[-1])
        return Proposal(hard if decision else hard[None], logits)


def _branch(state: State, choices: Options, factor: int) -> tuple[State, Options]:
    """Repeats every trajectory for the outcomes that an enumeration tries next."""

    def repeat(x: Tensor) -> Tensor:
        return tf.repeat(x, factor, axis=0)

    return State(*map(repeat, state)), Options(*map(repeat, choices))


def rollout(
    policy: Callable[[Tensor], Tensor],
    estimator: Any,
    estimator_state: Any,
    task: Task,
    data: Mapping[str, Tensor],
    start: State,
    seeds: Tensor,
    critic: Callable[[Tensor], Tensor] | None = None,
    clip: float | None = None,
    first: Options | None = None,
) -> Rollout:
    """Plays episodes from `start` to their end.

    Args:
        policy: observations [S, R, B, F] -> logits [S, R, B, K].
        estimator: proposes the weights (an `Estimator`, or `Greedy`).
        estimator_state: its state.
        task: gives the static part of the dynamics.
        data: `Task.data` as tensors.
        start: episodes [R, B].
        seeds: [R, 2].
        critic: observations -> predicted losses [S, R, B], for estimators with `needs_value`.
        clip: the largest norm over K of the objective's gradient (its entropy included) in one decision's logits, or
            None.
        first: the options [R, B] at `start`, if they are known already, as they are where `start` was just drawn.
    """
    state = State(*(x[None] for x in start))
    proposals: list[Proposal] = []
    entropy = tf.zeros_like(start.value)
    for decision in range(task.horizon):
        if decision or first is None:
            choices = options(xp, task, data, state.value)
        else:
            choices = Options(*(x[None] for x in first))
        # What is seen of a state carries no gradient back to earlier choices: Fourier features would multiply it by up
        # to pi * 2**F at each decision and drown the part that goes through the operations.
        seen = state._replace(value=tf.stop_gradient(state.value))
        observations = observe(xp, task, data, seen, decision)
        logits = policy(observations)
        if task.mask_actions:
            logits = mask_logits(logits, choices.available)
        if clip is not None:
            # The loss is a mean over S and B, so a row's own gradient arrives divided by both.
            logits = clip_gradient(logits, clip / (logits.shape[0] * logits.shape[-2]))
        logits = logits[..., None, :]  # D = 1
        log_p = log_probabilities(logits)
        spread = -tf.reduce_sum(tf.exp(log_p) * log_p, [-2, -1])
        entropy += tf.reduce_sum(occupancy(proposals) * spread, 0) / task.horizon
        logits = logits if decision else logits[0]
        proposal = estimator.propose(logits, estimator_state, substream(seeds, decision), decision=decision)
        if estimator.needs_value:
            if critic is None:
                raise ValueError(f"critic must be given: {type(estimator).__name__} needs a value")
            value = critic(observations)
            proposal = dataclasses.replace(proposal, value=value if decision else value[0])
        proposals.append(proposal)
        trajectories, past = proposal.weights.shape[0], state.value.shape[0]
        if past not in (1, trajectories):
            state, choices = _branch(state, choices, trajectories // past)
        state = step(xp, choices, state, proposal.weights[..., 0, :])
        state = State(*(tf.broadcast_to(x, tf.shape(state.value)) for x in state))
    return Rollout(reward(xp, task, data, state), proposals, entropy)
