"""Straight-through estimators of second order: unbiased for quadratic f, from one evaluation at a one-hot.

Such an estimator returns ``S(D)^T grad f(D)`` for the sampled one-hot D, with matrices S(x) [K, K] such that, J being
the softmax's Jacobian, ``p_x S_ik(x) + p_i S_xk(i) = delta_ix J_ik`` and ``sum_x p_x S_ik(x) = J_ik``. The first holds
for all quadratic terms, the second for linear ones. ReinMax is one member, and there is one of least variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opselect._tensorflow import tf
from opselect.estimators.base import (
    Proposal,
    check_samples,
    draw_one_hots,
    mean_loss,
    no_state,
    one_per_sample,
)
from opselect.estimators.straight_through import softmax_vjp, with_vjp
from opselect.namespace import shape_of
from opselect.numerics import is_known
from opselect.random import as_finite

__all__ = ["MinimumVariance", "ReinMax"]

Tensor = Any


@dataclass(frozen=True)
class ReinMax:
    """ReinMax, Heun's method for the gradient (Liu et al. 2023, "Bridging discrete and backpropagation").

    With ``q = (softmax(logits / temperature) + D) / 2`` the estimate is ``[2 J(q) - J(p) / 2] grad f(D)``; at
    temperature 1 that is ``[diag p + diag D - p D^T - D p^T] grad f(D) / 2``, unbiased for quadratic f. S evaluations.
    Requires of f: a gradient at the vertices.

    Attributes:
        temperature: at least 1; higher trades bias for variance.
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
        if is_known(self.temperature) and not self.temperature >= 1.0:
            raise ValueError(f"temperature must be >= 1, got {self.temperature!r}; below it ReinMax is unstable")
        check_samples(self.samples)

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes one-hots that carry ReinMax's gradient."""
        hard = draw_one_hots(logits, seed, self.samples, decision)
        constant = as_finite(tf.stop_gradient(logits))
        p, tempered = tf.nn.softmax(constant), tf.nn.softmax(constant / self.temperature)

        def vjp(upstream: Tensor) -> Tensor:
            return 2.0 * softmax_vjp((tempered + hard) / 2.0, upstream) - softmax_vjp(p, upstream) / 2.0

        return Proposal(with_vjp(hard, logits, vjp), logits)


@dataclass(frozen=True)
class MinimumVariance:
    """MVE, the second-order straight-through estimator of least variance (Hooper & Shekhovtsov, AISTATS 2026).

    Among the S(x) of this module it minimises ``sum_x p_x |S(x)|^2``: the limit of infinite prior curvature in the
    paper. The conditions fix ``S_x(x) = J_x / 2 p_x`` and leave ``p_x S_i(x)`` antisymmetric in (i, x): a flow that
    takes J_i / 2 out of each node i. Of least energy, it is the current of an electrical network,
    ``S_i(x) = p_i / (p_i + p_x) (u_i - u_x)`` with ``L u = J / 2`` and L the Laplacian of the conductances
    ``p_i p_j / (p_i + p_j)``. For K = 2 it is ReinMax. S evaluations, and a K x K solve for each.
    Requires of f: a gradient at the vertices.

    Attributes:
        samples: S, independent samples per row.
    """

    samples: int = 1
    needs_relaxation = True
    needs_value = False
    sequential = True
    init = no_state
    evaluations = one_per_sample
    surrogate = mean_loss

    def __post_init__(self) -> None:
        check_samples(self.samples)

    def propose(self, logits: Tensor, state: Any, seed: Tensor, *, decision: int = 0) -> Proposal:
        """Proposes one-hots that carry the gradient of least variance."""
        hard = draw_one_hots(logits, seed, self.samples, decision)
        constant = as_finite(tf.stop_gradient(logits))
        inverse, p = _inverse_laplacian(constant), tf.nn.softmax(constant)

        def vjp(upstream: Tensor) -> Tensor:
            chosen = tf.reduce_sum(hard * p, -1, keepdims=True)
            slope = upstream - tf.reduce_sum(hard * upstream, -1, keepdims=True)  # 0 at the chosen one
            current = tf.sqrt(p) / (p + chosen) * slope
            back = tf.reduce_sum(tf.sqrt(p) * current, -1, keepdims=True) / tf.sqrt(chosen)
            return tf.sqrt(p) * tf.linalg.matvec(inverse, current - hard * back) / 2.0

        return Proposal(with_vjp(hard, logits, vjp), logits)


def _inverse_laplacian(logits: Tensor) -> Tensor:
    """The inverse [..., K, K] of the Laplacian of conductances ``p_i p_j / (p_i + p_j)``, over ``sqrt(p_i p_j)``.

    Its null vector sqrt(p) gets the eigenvalue 1. The others are between 1 and K, whatever the logits, because
    ``p_j / (p_i + p_j) >= p_j``: elimination needs no pivots, and no p is divided by.
    """
    root = tf.sqrt(tf.nn.softmax(logits))
    rate = tf.sigmoid(logits[..., None, :] - logits[..., :, None])  # p_j / (p_i + p_j)
    conductance = tf.sqrt(rate * tf.linalg.matrix_transpose(rate))
    degree = tf.reduce_sum(rate, -1)  # i = j counts 1/2 here and in the conductance
    matrix = tf.linalg.diag(degree) - conductance + root[..., None, :] * root[..., :, None]
    # Gauss-Jordan: for many small matrices several times as fast as tf.linalg.inv under XLA.
    eye = tf.eye(logits.shape[-1])
    rows = tf.concat([matrix, tf.broadcast_to(eye, shape_of(matrix))], -1)
    for i in range(logits.shape[-1]):
        pivot = rows[..., i : i + 1, :] / rows[..., i : i + 1, i : i + 1]
        rows -= (rows[..., i : i + 1] - eye[:, i : i + 1]) * pivot
    return rows[..., logits.shape[-1] :]
