"""The gradient that estimates are compared with: by enumeration, or a long average."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from opselect.gradients.objective import Subject, draw, generator

__all__ = ["GROUPS", "Reference", "enumerate_reference", "sample_reference"]

Array = np.ndarray

GROUPS = 64
"""Estimates are averaged in so many groups, whose scatter shows how errors spread over the entries."""
_IMPOSSIBLE = 1e-6  # outcomes this rare don't count as possibly missed


@dataclass(frozen=True)
class Reference:
    """The reference gradient in float64, and what else is known of the losses.

    Attributes:
        gradient: [B, D, K].
        error: [B], the squared standard error, summed over entries.
        groups: [G or 1, B, D, K], averages of independent groups.
        expected: [B], the expected loss.
        scale: [B], the root-mean-square loss.
        largest: [B], the largest absolute loss that is not next to impossible.
    """

    gradient: Array
    error: Array
    groups: Array
    expected: Array
    scale: Array
    largest: Array

    def of_rows(self, rows: Array) -> Reference:
        """That of the rows for which `rows` [B] holds."""
        names = ("gradient", "error", "expected", "scale", "largest")
        return dataclasses.replace(
            self, groups=self.groups[:, rows], **{name: getattr(self, name)[rows] for name in names}
        )


def enumerate_reference(subject: Subject) -> Reference:
    """The exact gradient, by all K**D outcomes.

    Raises:
        ValueError: a loss that is not finite at an outcome of positive probability.
    """
    p, d, k = subject.probabilities, subject.decisions, subject.operations
    expected, square, centre, largest = (np.zeros(subject.batch) for _ in range(4))
    weighted = np.zeros_like(p)
    for start in range(0, k**d, subject.chunk):
        outcomes = np.arange(start, min(start + subject.chunk, k**d))
        codes = np.stack(np.unravel_index(outcomes, (k,) * d), axis=-1)  # [N, D]
        hard = np.broadcast_to(subject.one_hots(codes)[:, None], (len(codes), *p.shape))
        chance = (hard * p).sum(-1).prod(-1)  # [N, B]
        losses = subject.evaluate(hard)
        if bad := _not_finite(losses, chance > 0):
            raise ValueError(f"objective is {losses[bad]} at outcome {codes[bad[0]].tolist()}, so there is no gradient")
        losses = np.where(chance > 0, losses, 0.0)
        if start == 0:  # less rounding in differences of losses
            centre = losses[0]
        expected += (chance * losses).sum(0)
        square += (chance * losses**2).sum(0)
        largest = np.maximum(largest, np.where(chance > _IMPOSSIBLE, np.abs(losses), 0.0).max(0))
        weighted += np.einsum("nb,nbdk->bdk", chance * (losses - centre), hard)
    gradient = weighted - p * (expected - centre)[:, None, None]
    return Reference(gradient, np.zeros(subject.batch), gradient[None], expected, np.sqrt(square), largest)


def sample_reference(subject: Subject, samples: int, seed: int) -> Reference:
    """An unbiased average over some ``8 * samples`` evaluations: each decision enumerated given samples of the others.

    Raises:
        ValueError: a loss that is not finite at an outcome of positive probability.
    """
    p, d, k = subject.probabilities, subject.decisions, subject.operations
    size = math.ceil(max(8 * samples / (d * k), 2 * GROUPS) / GROUPS)
    rng = generator(seed, 1)
    groups = np.zeros((GROUPS, *p.shape))
    squares, expected, square, largest = (np.zeros(subject.batch) for _ in range(4))
    step = max(1, subject.chunk // k)
    for group in groups:
        for start in range(0, size, step):
            n = min(step, size - start)
            hard = subject.one_hots(draw(rng, p, n))  # [n, B, D, K]
            estimate = np.empty(hard.shape)
            for decision in range(d):
                branch = np.repeat(hard[None], k, axis=0)  # [K, n, B, D, K]
                branch[:, :, :, decision] = np.eye(k)[:, None, None]
                losses = subject.evaluate(branch.reshape(k * n, *p.shape)).reshape(k, n, -1)
                chance = p[:, decision].T[:, None]  # [K, 1, B]
                if bad := _not_finite(losses, chance > 0):
                    raise ValueError(
                        f"objective is {losses[bad]} at an outcome with choice {bad[0]} of decision {decision}, so"
                        " there is no gradient"
                    )
                losses = np.where(chance > 0, losses, 0.0)
                mean = (chance * losses).sum(0)  # [n, B]
                estimate[:, :, decision] = np.moveaxis(chance * (losses - mean), 0, -1)
                expected += mean.sum(0) / (d * size * GROUPS)
                square += (chance * losses**2).sum((0, 1)) / (d * size * GROUPS)
                largest = np.maximum(largest, np.where(chance > _IMPOSSIBLE, np.abs(losses), 0.0).max((0, 1)))
            group += estimate.sum(0) / size
            squares += (estimate**2).sum((0, 2, 3))
    gradient, n = groups.mean(0), size * GROUPS
    variance = np.maximum(squares / n - (gradient**2).sum((1, 2)), 0.0) * n / (n - 1)
    return Reference(gradient, variance / n, groups, expected, np.sqrt(square), largest)


def _not_finite(losses: Array, possible: Array) -> tuple[int, ...] | None:
    """The first index of a possible loss that is not finite."""
    bad = np.argwhere(possible & ~np.isfinite(losses))
    return tuple(int(i) for i in bad[0]) if len(bad) else None
