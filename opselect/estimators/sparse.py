"""Sparse mixtures: as the soft mixture, with operations whose weight is exactly zero. Biased; f needs a gradient.

A dropped operation gets no gradient, so it only comes back when the others' logits fall.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opselect.estimators.base import Proposal, mean_loss, no_state
from opselect.estimators.relaxation import SoftMixture, propose_mixture
from opselect.numerics import check_temperature, entmax15, sparsemax

__all__ = ["EntmaxMixture", "SparsemaxMixture"]

Tensor = Any


@dataclass(frozen=True)
class SparsemaxMixture:
    """The mixture ``f(sum_k w_k e_k)`` with ``w = sparsemax(logits / temperature)`` (Martins & Astudillo 2016).

    On the support of w, of size n, the gradient is ``(I - 1/n) grad f(w) / temperature``; off it, 0. One evaluation.
    Requires of f: a gradient in the weights.

    Attributes:
        temperature: divides the logits; a logit that lies it or more below the largest is dropped.
    """

    temperature: Any = 1.0
    needs_relaxation = True
    needs_value = False
    sequential = True
    init = no_state
    evaluations = SoftMixture.evaluations
    surrogate = mean_loss

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes the projection of the logits onto the simplex."""
        return propose_mixture(sparsemax, self.temperature, logits, seed, decision)


@dataclass(frozen=True)
class EntmaxMixture:
    """The mixture ``f(sum_k w_k e_k)`` with ``w = 1.5-entmax(logits / temperature)`` (Peters et al. 2019).

    With ``s = sqrt(w)`` the gradient is ``[diag s - s s^T / sum(s)] grad f(w) / temperature``, so it fades out towards
    the edge of the support. One evaluation. Requires of f: a gradient in the weights.

    Attributes:
        temperature: divides the logits; a logit that lies twice it or more below the largest is dropped.
    """

    temperature: Any = 1.0
    needs_relaxation = True
    needs_value = False
    sequential = True
    init = no_state
    evaluations = SoftMixture.evaluations
    surrogate = mean_loss

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes the 1.5-entmax of the logits."""
        return propose_mixture(entmax15, self.temperature, logits, seed, decision)
