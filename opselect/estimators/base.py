"""The contract of a gradient estimator, and the pieces that several of them share.

Shapes: R replicas, B rows, D decisions made at once per row, K operations, S evaluations of the objective per row,
T decisions made one after the other. ``[...]`` stands for the batch: [], [B] or [R, B].

An estimator *proposes* weights on the simplex, the caller evaluates the objective f at them, the estimator *closes*:
``tape.gradient(surrogate, logits)`` is the gradient estimate. What lies behind f (a network, say) gets its ordinary
gradient through the same losses.

    proposal = estimator.propose(logits, state, seed)           # logits [..., D, K]
    losses = f(proposal.weights)                                # [S, ...]
    surrogate, state = estimator.surrogate(losses, [proposal], state)

When decisions depend on earlier ones, `propose` is called once per decision and `surrogate` gets all T proposals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from opselect._tensorflow import tf, tfp
from opselect.numerics import InvalidShapeError
from opselect.random import as_finite, sample_one_hot

__all__ = [
    "Estimator",
    "InvalidShapeError",
    "Proposal",
    "check_logits",
    "check_losses",
    "log_prob",
    "magic_box",
    "occupancy",
    "reinforced",
    "score_function_surrogate",
]

Tensor = Any
State = Any


@dataclass(frozen=True)
class Proposal:
    """Where an estimator wants the objective evaluated, and what it needs to close.

    Attributes:
        weights: [S, ..., D, K]; each row sums to 1. Differentiable for relaxations, one-hots otherwise.
        logits: the logits behind `weights`: [..., D, K] at the first decision, [S', ..., D, K] at later ones; S' is
            how many trajectories the previous decision left (S, or a divisor of S where an enumeration branches).
        value: what a learned baseline predicts for the loss: [...] or [S', ...]; set by the caller for estimators with
            `needs_value`.
        enumerated: whether `weights` lists every outcome once instead of samples.
        samples: how many of the S trajectories, from the first on, follow the policy; the others are probes, such as
            the greedy one. None: all.
        record: what else the estimator needs to close, such as the noise behind `weights`.
    """

    weights: Tensor
    logits: Tensor
    value: Tensor | None = None
    enumerated: bool = False
    samples: int | None = None
    record: Any = None


@runtime_checkable
class Estimator(Protocol):
    """What a gradient estimator offers; see the module's docstring for the shapes."""

    @property
    def needs_relaxation(self) -> bool:
        """Whether f is evaluated off the vertices of the simplex, so that f must be differentiable in the weights."""
        ...

    @property
    def needs_value(self) -> bool:
        """Whether `Proposal.value` must be filled in before `surrogate` is called."""
        ...

    @property
    def sequential(self) -> bool:
        """Whether `surrogate` accepts several proposals: decisions that depend on earlier ones."""
        ...

    def evaluations(self, operations: int, decisions: int) -> int:
        """S for K operations and `decisions` choices in all (D * T): how often f is evaluated per row."""
        ...

    def init(self, logits: Tensor) -> State:
        """The estimator's first state; ``()`` when it keeps nothing."""
        ...

    def propose(self, logits: Tensor, state: State, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes weights; at ``decision > 0`` the logits carry the leading axis of the trajectories so far."""
        ...

    def surrogate(self, losses: Tensor, proposals: Sequence[Proposal], state: State) -> tuple[Tensor, State]:
        """Turns losses [S, ...] into a surrogate [...]: its gradient is the estimate, its value the loss trained on."""
        ...


def check_logits(logits: Tensor, seed: Tensor, decision: int) -> None:
    """Checks ranks before any maths.

    Raises:
        InvalidShapeError: logits are not [..., D, K] with K >= 2, or the seed does not fit.
    """
    rank = logits.shape.rank
    if rank is None or rank < 2:
        raise InvalidShapeError(f"logits must be [..., D, K], got shape {logits.shape}; add an axis for D = 1 decision")
    if logits.shape[-1] is None or logits.shape[-1] < 2:
        raise InvalidShapeError(f"logits must offer at least K = 2 operations, got shape {logits.shape}")
    if decision and rank < 3:
        raise InvalidShapeError(f"logits must be [S, ..., D, K] at decision {decision}, got shape {logits.shape}")
    if seed is not None and seed.shape.rank == 2 and rank < (5 if decision else 4):
        raise InvalidShapeError(
            f"seed {seed.shape} has one pair per replica, but logits {logits.shape} have no replica axis [R, B, D, K]"
        )


def check_losses(losses: Tensor, proposals: Sequence[Proposal]) -> None:
    """Checks that losses are [S, ...] for the proposals' weights [S, ..., D, K], so nothing broadcasts silently.

    Raises:
        InvalidShapeError: names both shapes.
    """
    if isinstance(proposals, Proposal) or not proposals:
        raise InvalidShapeError("proposals must be a sequence of one Proposal per decision")
    wanted = proposals[-1].weights.shape[:-2]
    if losses.shape.rank != wanted.rank or not losses.shape.is_compatible_with(wanted):
        raise InvalidShapeError(
            f"losses have shape {losses.shape}, but weights {proposals[-1].weights.shape} ask for {wanted}"
        )


def check_samples(samples: Any, least: int = 1, name: str = "samples") -> None:
    """Checks a number of samples.

    Raises:
        ValueError: names the value.
    """
    if not isinstance(samples, int) or samples < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {samples!r}; the nearest valid value is {least}")


def draw_one_hots(logits: Tensor, seed: Tensor, samples: int, decision: int) -> Tensor:
    """One-hots [S, ..., D, K]: S fresh ones at the first decision, one per trajectory at later ones."""
    check_logits(logits, seed, decision)
    if decision:
        return sample_one_hot(categorical(logits), seed, None, axis=1)
    return sample_one_hot(categorical(logits), seed, samples)


# Methods that several estimators have: a class takes one by assignment, so nothing is inherited.


def no_state(self: Any, logits: Tensor) -> tuple[()]:
    """No state."""
    return ()


def one_per_sample(self: Any, operations: int, decisions: int) -> int:
    """S, the number of samples."""
    return self.samples


def propose_samples(self: Any, logits: Tensor, state: State, seed: Tensor, *, decision: int = 0) -> Proposal:
    """Samples S one-hots."""
    return Proposal(draw_one_hots(logits, seed, self.samples, decision), logits)


def mean_loss(self: Any, losses: Tensor, proposals: Sequence[Proposal], state: State) -> tuple[Tensor, State]:
    """The mean loss over the S evaluations; its gradient comes through the weights."""
    check_losses(losses, proposals)
    return tf.reduce_mean(losses, axis=0), state


def categorical(logits: Tensor) -> Any:
    """The distribution that operations are drawn from: a `tfp.distributions.Categorical` of the logits."""
    return tfp.distributions.Categorical(logits=logits)


def log_probabilities(logits: Tensor) -> Tensor:
    """The log-probabilities [..., K] float32 of the operations; finite, so that 0 * log p is 0 for masked ones."""
    return tf.nn.log_softmax(as_finite(logits))


def log_prob(proposal: Proposal) -> Tensor:
    """The log-probability [S, ...] of the proposed one-hots, summed over the D decisions."""
    logits = proposal.logits
    if logits.shape.rank == proposal.weights.shape.rank - 1:
        logits = logits[None]
    samples, parents = proposal.weights.shape[0], logits.shape[0]
    if parents not in (1, samples):
        if samples % parents:
            raise InvalidShapeError(f"logits {logits.shape} of {parents} trajectories do not fit {samples} proposals")
        logits = tf.repeat(logits, samples // parents, axis=0)
    return tf.reduce_sum(tf.stop_gradient(proposal.weights) * log_probabilities(logits), axis=[-2, -1])


def occupancy(proposals: Sequence[Proposal]) -> Tensor | float:
    """How much each trajectory so far counts in an average over trajectories: [S', ...] or 1; sums to 1 over S'."""
    reach: Tensor | None = None
    for p in proposals:
        if not p.enumerated:
            s = p.weights.shape[0]
            counted = s if p.samples is None else p.samples
            share = tf.constant([1.0 / counted] * counted + [0.0] * (s - counted))
            return tf.reshape(share, [s] + [1] * (p.weights.shape.rank - 3))
        here = tf.exp(tf.stop_gradient(log_prob(p)))
        reach = here if reach is None else here * tf.repeat(reach, here.shape[0] // reach.shape[0], axis=0)
    return 1.0 if reach is None else reach


def score_function_surrogate(losses: Tensor, advantages: Sequence[Tensor], proposals: Sequence[Proposal]) -> Tensor:
    """The surrogate [...] of a score-function estimator, averaged over the S samples.

    Its value is the mean loss; its gradient in the logits is ``mean_s sum_t advantage_ts * grad log p(choice_ts)``. Its
    second derivatives are unbiased as well, and so are those of a program's later decisions with its earlier ones.

    Args:
        losses: [S, ...].
        advantages: per decision, [S, ...]: the losses less baselines that are held constant.
        proposals: per decision.
    """
    total, past = losses, 1.0
    for advantage, proposal in zip(advantages, proposals, strict=True):
        log_p = log_prob(proposal)
        total += past * reinforced(losses, advantage, log_p)
        past *= magic_box(log_p)
    return tf.reduce_mean(total, axis=0)


def magic_box(log_p: Tensor) -> Tensor:
    """1, whose derivatives of every order are those of p over p: DiCE (Foerster et al. 2018). log_p: [...]."""
    return tf.exp(log_p - tf.stop_gradient(log_p))


def reinforced(losses: Tensor, advantage: Tensor, log_p: Tensor) -> Tensor:
    """0, with the gradient ``advantage * grad log p`` in the logits, and second derivatives that are unbiased too.

    Those of DiCE with its baseline (Foerster et al. 2018, Mao et al. 2019), also across logits and what is behind the
    losses.

    Args:
        losses: [...].
        advantage: [...], the losses less a baseline that is held constant.
        log_p: [...], the log-probability of what was sampled.
    """
    live = tf.stop_gradient(advantage) + (losses - tf.stop_gradient(losses))
    return live * (magic_box(log_p) - 1.0)
