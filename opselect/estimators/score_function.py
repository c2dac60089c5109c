"""Score-function estimators: REINFORCE and its baselines. Any f will do; it is only ever evaluated at one-hots.

All estimate ``grad E[f(D)] = E[(f(D) - b) grad log p(D)]`` (Williams, "Simple statistical gradient-following
algorithms for connectionist reinforcement learning", 1992) and differ in the baseline b, which must not depend on the
sample it is subtracted from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from opselect._tensorflow import tf
from opselect.estimators.base import (
    InvalidShapeError,
    Proposal,
    check_losses,
    check_samples,
    draw_one_hots,
    log_prob,
    no_state,
    one_per_sample,
    propose_samples,
    score_function_surrogate,
)

__all__ = ["PPO", "Drawn", "LeaveOneOut", "MovingAverageReinforce", "Reinforce", "SelfCritical", "ValueReinforce"]

Tensor = Any


@dataclass(frozen=True)
class Reinforce:
    """REINFORCE without a baseline: ``f(D) grad log p(D)``. Unbiased; an offset in f inflates the variance.

    Attributes:
        samples: S, independent choices per row.
    """

    samples: int = 1
    needs_relaxation = False
    needs_value = False
    sequential = True
    init = no_state
    evaluations = one_per_sample
    propose = propose_samples

    def __post_init__(self) -> None:
        check_samples(self.samples)

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: Any) -> tuple[Tensor, Any]:
        """Advantage: the loss itself."""
        check_losses(losses, proposals)
        return score_function_surrogate(losses, [losses] * len(proposals), proposals), state


@dataclass(frozen=True)
class MovingAverageReinforce:
    """REINFORCE with the exponential moving average of past losses as baseline, one per replica; unbiased.

    Free, but lags behind the learner. The average is read before this batch updates it, and corrected for its start at
    zero as Adam's moments are.

    Attributes:
        samples: S, independent choices per row.
        decay: the weight of the past in the average, in [0, 1).
    """

    samples: int = 1
    decay: float = 0.9
    needs_relaxation = False
    needs_value = False
    sequential = True
    evaluations = one_per_sample
    propose = propose_samples

    def __post_init__(self) -> None:
        check_samples(self.samples)
        if not 0.0 <= self.decay < 1.0:
            raise ValueError(f"decay must be in [0, 1), got {self.decay!r}")

    def init(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(average, weight), each with the batch shape less its row axis: [R] for logits [R, B, D, K], else []."""
        shape = logits.shape[:-2][:-1]
        return tf.zeros(shape), tf.zeros(shape)

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: Any) -> tuple[Tensor, Any]:
        """Advantage: the loss less the average of earlier batches."""
        check_losses(losses, proposals)
        average, weight = state
        baseline = tf.math.divide_no_nan(average, weight)
        if losses.shape.rank >= 2:  # losses have rows
            baseline = baseline[..., None]
        advantage = losses - baseline
        surrogate = score_function_surrogate(losses, [advantage] * len(proposals), proposals)
        rows = [0, -1] if losses.shape.rank >= 2 else [0]
        mean = tf.reduce_mean(tf.stop_gradient(losses), axis=rows)
        keep = self.decay
        return surrogate, (keep * average + (1 - keep) * mean, keep * weight + (1 - keep))


@dataclass(frozen=True)
class ValueReinforce:
    """REINFORCE with a learned baseline c(x), regressed on the losses (Mnih & Gregor 2014); unbiased for any c.

    The caller puts its prediction in `Proposal.value`. The surrogate adds ``value_weight * (c - f)**2 / 2`` with f held
    constant: its gradient trains c, and its value is left out of the surrogate's.

    Attributes:
        samples: S, independent choices per row.
        value_weight: how strongly the regression counts in the surrogate.
    """

    samples: int = 1
    value_weight: float = 1.0
    needs_relaxation = False
    needs_value = True
    sequential = True
    init = no_state  # the baseline's parameters are the caller's
    evaluations = one_per_sample
    propose = propose_samples

    def __post_init__(self) -> None:
        check_samples(self.samples)

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: Any) -> tuple[Tensor, Any]:
        """Advantage at each decision: the loss less what was predicted before it."""
        check_losses(losses, proposals)
        advantages, regression = _against_values(losses, proposals)
        surrogate = score_function_surrogate(losses, advantages, proposals)
        return surrogate + self.value_weight * (regression - tf.stop_gradient(regression)), state


def _against_values(losses: Tensor, proposals: Sequence[Proposal]) -> tuple[list[Tensor], Tensor]:
    """(advantages [S, ...] per decision, ``(c - f)**2 / 2`` [...] summed over decisions) of learned baselines c."""
    advantages, regression = [], 0.0
    for p in proposals:
        if p.value is None:
            raise InvalidShapeError("a learned baseline needs Proposal.value, its prediction [...] or [S, ...]")
        value = p.value if p.value.shape.rank == losses.shape.rank else p.value[None]
        if value.shape[1:] != losses.shape[1:]:
            raise InvalidShapeError(f"value has shape {p.value.shape}, but losses have shape {losses.shape}")
        advantages.append(losses - value)
        regression += tf.reduce_mean(tf.square(value - tf.stop_gradient(losses)), axis=0) / 2
    return advantages, regression


class Drawn(NamedTuple):
    """What held when samples were drawn that are used again."""

    log_prob: Tensor
    """[S, ...], of the choices."""
    value: Tensor
    """[...] or [S, ...], what the baseline predicted."""


@dataclass(frozen=True)
class PPO:
    """The clipped surrogate of proximal policy optimisation (Schulman et al. 2017), for samples that are used again.

    ``max(r A, clip(r, 1 - clip, 1 + clip) A)`` with ``r = p(D) / p_old(D)`` and the advantage A against a learned
    baseline, as in `ValueReinforce`. On fresh samples r is 1, and the gradient is that of `ValueReinforce`; on samples
    of an older policy it is biased. Who uses samples again puts what held when they were drawn into `Proposal.record`,
    a `Drawn`: the advantages stay those of that time, while the baseline is fitted to the same losses.

    Attributes:
        clip: how far r may move from 1 before a sample has no say.
        epochs: how often the environment trainer uses each episode.
        samples: S, independent choices per row.
        value_weight: how strongly the regression of the baseline counts in the surrogate.
    """

    clip: float = 0.2
    epochs: int = 4
    samples: int = 1
    value_weight: float = 1.0
    needs_relaxation = False
    needs_value = True
    sequential = True
    init = no_state
    evaluations = one_per_sample
    propose = propose_samples

    def __post_init__(self) -> None:
        check_samples(self.samples)
        check_samples(self.epochs, name="epochs")
        if not 0.0 < self.clip < 1.0:
            raise ValueError(f"clip must be in (0, 1), got {self.clip!r}")

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: Any) -> tuple[Tensor, Any]:
        """The mean loss; its gradient is that of the clipped surrogate."""
        check_losses(losses, proposals)
        advantages, regression = _against_values(losses, proposals)
        change = self.value_weight * regression
        for advantage, p in zip(advantages, proposals, strict=True):
            log_p, drawn = log_prob(p), p.record
            if drawn is not None:
                ((advantage,), _) = _against_values(losses, [replace(p, value=drawn.value)])
            advantage = tf.stop_gradient(advantage)
            ratio = tf.exp(log_p - tf.stop_gradient(log_p if drawn is None else drawn.log_prob))
            clipped = tf.clip_by_value(ratio, 1.0 - self.clip, 1.0 + self.clip)
            change += tf.reduce_mean(tf.maximum(ratio * advantage, clipped * advantage), axis=0)
        return tf.reduce_mean(losses, axis=0) + (change - tf.stop_gradient(change)), state


@dataclass(frozen=True)
class SelfCritical:
    """REINFORCE with the loss of the greedy choice as baseline (Rennie et al. 2017); unbiased, S = 2.

    Can be worse than no baseline at all where the greedy choice is far from average.
    """

    needs_relaxation = False
    needs_value = False
    sequential = True
    init = no_state

    def evaluations(self, operations: int, decisions: int) -> int:
        """2: a sample and the greedy choice."""
        return 2

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Evaluation 0 follows samples, evaluation 1 the argmax."""
        greedy_logits = logits[1] if decision else logits
        greedy = tf.one_hot(tf.argmax(greedy_logits, -1), logits.shape[-1])
        sampled = draw_one_hots(logits[:1] if decision else logits, seed, 1, decision)
        return Proposal(tf.concat([sampled, greedy[None]], 0), logits, samples=1)

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: Any) -> tuple[Tensor, Any]:
        """Advantage: the sample's loss less the greedy loss; the greedy trajectory itself is not reinforced."""
        check_losses(losses, proposals)
        trajectories = [p.logits.shape.rank == p.weights.shape.rank for p in proposals]  # logits with an axis S
        sampled = [
            Proposal(p.weights[:1], p.logits[:1] if t else p.logits)
            for p, t in zip(proposals, trajectories, strict=True)
        ]
        advantage = losses[:1] - losses[1:]
        return score_function_surrogate(losses[:1], [advantage] * len(proposals), sampled), state


@dataclass(frozen=True)
class LeaveOneOut:
    """RLOO: each sample's baseline is the mean loss of the other S - 1 (Kool et al. 2019); unbiased.

    ``mean_j S/(S-1) (f_j - mean f) grad log p_j``. The default: no state, nothing to tune.

    Attributes:
        samples: S >= 2, independent choices per row.
    """

    samples: int = 4
    needs_relaxation = False
    needs_value = False
    sequential = True
    init = no_state
    evaluations = one_per_sample
    propose = propose_samples

    def __post_init__(self) -> None:
        check_samples(self.samples, least=2)

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: Any) -> tuple[Tensor, Any]:
        """Advantage: the loss less the mean of the others."""
        check_losses(losses, proposals)
        others = losses.shape[0] - 1
        if others < 1:
            raise InvalidShapeError(f"reinforce-rloo needs losses of at least 2 samples, got shape {losses.shape}")
        advantage = (losses - tf.reduce_mean(losses, axis=0)) * ((others + 1) / others)
        return score_function_surrogate(losses, [advantage] * len(proposals), proposals), state
