"""Relaxations: f is evaluated at soft weights and differentiated through them. Biased; f needs a gradient.

They optimise another objective than the one that is wanted, so always look at the hard score as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opselect._tensorflow import tf
from opselect.estimators.base import Proposal, check_logits, check_samples, mean_loss, no_state, one_per_sample
from opselect.namespace import shape_of
from opselect.numerics import check_temperature
from opselect.random import gumbel

__all__ = ["GumbelSoftmax", "SoftMixture", "perturbed", "propose_mixture"]

Tensor = Any


def perturbed(logits: Tensor, seed: Tensor, samples: int, decision: int) -> Tensor:
    """Logits with Gumbel noise [S, ..., D, K], in float32; their argmax is a sample, their softmax a relaxed one."""
    check_logits(logits, seed, decision)
    logits = tf.cast(logits, tf.float32)
    shape = shape_of(logits) if decision else [samples, *shape_of(logits)]
    noise = gumbel(seed, shape, axis=1 if seed.shape.rank == 2 else 0)
    return logits + noise


def propose_mixture(
    projection: Callable[[Tensor], Tensor], temperature: Any, logits: Tensor, seed: Tensor, decision: int
) -> Proposal:
    """Proposes the weights that a projection onto the simplex makes of ``logits / temperature``, in float32."""
    check_logits(logits, seed, decision)
    weights = projection(tf.cast(logits, tf.float32) / temperature)
    return Proposal(weights if decision else weights[None], logits)


@dataclass(frozen=True)
class SoftMixture:
    """The mixture ``f(sum_k p_k e_k)``, as in DARTS (Liu et al. 2019). No variance; a discretisation gap.

    Requires of f: a gradient in the weights.

    Attributes:
        temperature: divides the logits; lower is closer to a hard choice.
    """

    temperature: Any = 1.0
    needs_relaxation = True
    needs_value = False
    sequential = True
    init = no_state
    surrogate = mean_loss

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def evaluations(self, operations: int, decisions: int) -> int:
        """1, of all K operations."""
        return 1

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes the probabilities themselves."""
        return propose_mixture(tf.nn.softmax, self.temperature, logits, seed, decision)


@dataclass(frozen=True)
class GumbelSoftmax:
    """Soft samples ``softmax((logits + G) / temperature)`` (Jang et al. 2017; Maddison et al. 2017).

    Requires of f: a gradient in the weights. Bias falls and variance explodes as the temperature goes to 0.

    Attributes:
        temperature: of the relaxed samples.
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
        """Proposes relaxed samples."""
        noisy = perturbed(logits, seed, self.samples, decision)
        return Proposal(tf.nn.softmax(noisy / self.temperature), logits)
