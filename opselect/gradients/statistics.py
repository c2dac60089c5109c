"""Bias, variance and direction of estimates, and a test for bias."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import chdtrc

from opselect.gradients.reference import GROUPS, Reference
from opselect.gradients.row import ROUNDING

__all__ = ["figures"]

Array = np.ndarray

_SIGNIFICANCE = 1e-4  # of the test for bias: one false alarm in a thousand reports of ten estimators


def figures(
    blocks: Iterable[tuple[Array, Array]], reference: Reference, *, draws: bool, relaxed: bool
) -> dict[str, Any]:
    """The measured attributes of a `GradientRow`, in float64.

    Args:
        blocks: gradients [M, B, D, K] and the group [M] of each, as of `Runner.estimates`.
        reference: what they are compared with.
        draws: whether the estimates are random.
        relaxed: whether they are those of a relaxation.
    """
    sums = _Sums.of(blocks, reference.gradient)
    shares = {
        "estimates": sums.total,
        "zero_share": float((sums.zero / sums.total).mean()),
        "nan_share": float(1.0 - (sums.count / sums.total).mean()),
    }
    usable = sums.count >= (2 if draws else 1)
    if not usable.any():
        return {**shares, "reason": "its gradients are NaN or infinite"}
    sums, reference = sums.of_rows(usable), reference.of_rows(usable)
    n, target = sums.count, reference.gradient
    offset = sums.groups.sum(0) / n[:, None, None]
    delta = sums.pivot + offset - target  # [B, D, K]
    mean = delta + target
    mean_deviation = sums.square / n
    variance = np.maximum(mean_deviation - (offset**2).sum((1, 2)), 0.0) * (n / np.maximum(n - 1, 1))
    spread = np.maximum(sums.fourth / n - mean_deviation**2, 0.0) / n
    size = np.sqrt((variance + (mean**2).sum((1, 2))).mean())
    rounding = ROUNDING * (float(reference.scale.mean()) + float(size))
    unseen = None
    if draws:  # an outcome of probability below some 3 / n may never have been drawn: it may lie along the bias
        longest = sums.longest if relaxed else math.sqrt(2 * delta.shape[1]) * reference.largest
        unseen = float(((3 * longest / n) ** 2).mean())
    noise = float((variance / n + reference.error).mean())
    norm = np.linalg.norm(target, axis=(1, 2))
    directed = norm > np.maximum(ROUNDING * reference.scale, 3 * np.sqrt(reference.error))  # rows with a direction
    along = _cosine(mean, target, np.linalg.norm(mean, axis=(1, 2)) * norm)
    return {
        **shares,
        **_bias(delta, noise, unseen, rounding, _grouped(sums, reference, draws)),
        "variance": float(variance.mean()),
        "variance_se": float(np.sqrt(spread.sum()) / len(n)),
        "cosine": float((sums.cosine / n)[directed].mean()) if directed.any() else None,
        "cosine_of_mean": float(along[directed].mean()) if directed.any() else None,
    }


_PIVOT = 100  # estimates whose mean is the pivot: fourth powers need one close to the mean


@dataclass(frozen=True)
class _Sums:
    """Sums over estimates without a NaN or an infinite entry; deviations are from `pivot`, about the mean.

    A pivot, so that nothing cancels in the variance.
    """

    total: int  # of all estimates
    pivot: Array  # [B, D, K]
    groups: Array  # [G, B, D, K], of deviations
    sizes: Array  # [G, B], how many in each
    count: Array  # [B], how many in all
    zero: Array  # [B], how many are zero, to within rounding of the longest
    cosine: Array  # [B], with the reference
    square: Array  # [B], of the deviation's squared length
    fourth: Array  # [B], of its square
    longest: Array  # [B], the largest length, of estimates themselves

    @staticmethod
    def of(blocks: Iterable[tuple[Array, Array]], target: Array) -> _Sums:
        norm = np.linalg.norm(target, axis=(1, 2))
        blocks = iter(blocks)
        first: list[tuple[Array, Array]] = []
        while sum(len(g) for g, _ in first) < _PIVOT and (block := next(blocks, None)) is not None:
            first.append(block)
        some = np.concatenate([g for g, _ in first]).astype(np.float64)
        seen: Any = np.isfinite(some).all((2, 3))
        pivot = np.where(seen[:, :, None, None], some, 0.0).sum(0) / np.maximum(seen.sum(0), 1)[:, None, None]
        cosine, square, fourth = (np.zeros(len(target)) for _ in range(3))
        lengths: list[Array] = []
        sums, sizes = np.zeros((GROUPS, *target.shape)), np.zeros((GROUPS, len(target)))
        for raw, group in itertools.chain(first, blocks):
            g = raw.astype(np.float64)
            finite: Any = np.isfinite(g).all((2, 3))  # [M, B]
            g = np.where(finite[:, :, None, None], g, 0.0)
            length = np.linalg.norm(g, axis=(2, 3))
            lengths.append(np.where(finite, length, np.nan))
            cosine += _cosine(g, target, length * norm).sum(0)
            deviation = np.where(finite, ((g - pivot) ** 2).sum((2, 3)), 0.0)
            square += deviation.sum(0)
            fourth += (deviation**2).sum(0)
            np.add.at(sums, group, np.where(finite[:, :, None, None], g - pivot, 0.0))
            np.add.at(sizes, group, finite.astype(np.float64))
        each = np.concatenate(lengths)
        count, longest = (~np.isnan(each)).sum(0), np.nanmax(each, axis=0, initial=0.0)
        # Not `== 0`: some of TensorFlow's kernels for softmax give a certain winner the weight 1 - 2**-24.
        zero = (each <= ROUNDING * longest).sum(0)
        return _Sums(len(each), pivot, sums, sizes, count, zero, cosine, square, fourth, longest)

    def of_rows(self, rows: Array) -> _Sums:
        """Those of the rows for which `rows` [B] holds."""
        each = (self.count, self.zero, self.cosine, self.square, self.fourth, self.longest)
        return _Sums(
            self.total, self.pivot[rows], self.groups[:, rows], self.sizes[:, rows], *(array[rows] for array in each)
        )


def _cosine(a: Array, b: Array, lengths: Array) -> Array:
    """The cosine [...] of a and b [..., D, K], given the product of their lengths; 0 where that is 0."""
    return (a * b).sum((-2, -1)) / np.where(lengths > 0, lengths, 1.0)


def _bias(delta: Array, noise: float, unseen: float | None, rounding: float, groups: Array | None) -> dict[str, Any]:
    """The size of a bias `delta` [B, D, K], a test and an interval; see `GradientRow`.

    Args:
        delta: mean estimate less reference.
        noise: the expectation of ``||delta||**2`` per row without a bias.
        unseen: the same of outcomes that may never have been drawn; None where nothing is.
        rounding: the norm of rounding errors.
        groups: as of `_grouped`.
    """
    bias_square = float((delta**2).sum() / len(delta))
    spread_square, along_delta = _noise_shape(groups, delta, noise)
    if unseen is not None:
        spread_square = (math.sqrt(spread_square) + unseen) ** 2
        along_delta += unseen * bias_square
        noise += unseen
    half = 1.96 * math.sqrt(4 * along_delta + 2 * spread_square)
    centre = max(0.0, bias_square - noise)
    freedom = noise**2 / spread_square if spread_square > 0 else 1.0
    chance = float(chdtrc(freedom, freedom * bias_square / noise)) if noise > 0 else 0.0
    return {
        "bias": math.sqrt(bias_square),
        "bias_se": math.sqrt(noise + rounding**2),
        "biased": math.sqrt(bias_square) > rounding and chance < _SIGNIFICANCE,
        "bias_low": math.sqrt(max(0.0, centre - half)),
        "bias_high": math.sqrt(centre + half) + rounding,
    }


def _grouped(sums: _Sums, reference: Reference, draws: bool) -> Array | None:
    """Independent estimates [G, B * D * K] of the bias, or None where there is nothing to spread."""
    refs = reference.groups
    if not draws:
        return None if len(refs) < 2 else (sums.pivot - refs).reshape(len(refs), -1)
    full = (sums.sizes > 0).all(1)
    if full.sum() < 4:
        return None
    means = sums.groups[full] / sums.sizes[full][:, :, None, None]
    # One group of estimates less one of the reference: their noise adds up as it does in the whole.
    refs = refs[full] if len(refs) > 1 else refs
    return (means + sums.pivot - refs).reshape(len(means), -1)


def _noise_shape(groups: Array | None, delta: Array, noise: float) -> tuple[float, float]:
    """Of the covariance C of the bias's noise: tr C**2 and delta' C delta, averaged over rows as the bias is.

    The shape is the groups'; the size is `noise` = tr C, known better. tr C**2 from G groups is the unbiased one of
    Bai & Saranadasa (1996). Without groups, all noise is taken to lie along the bias, the cautious choice.
    """
    rows, flat = len(delta), delta.reshape(-1)
    worst = noise * float((flat**2).sum()) / rows
    if groups is None or noise == 0:
        return noise**2, worst
    m = len(groups)
    centred = groups - groups.mean(0)
    gram = centred @ centred.T / (m - 1)
    trace = float(np.trace(gram))
    if trace <= 0:
        return noise**2, worst
    squared = (m - 1) ** 2 / ((m - 2) * (m + 1)) * (float((gram**2).sum()) - trace**2 / (m - 1))
    share = min(1.0, max(squared / trace**2, 1.0 / max(1, flat.size)))  # 1 / degrees of freedom
    along = float(((centred @ flat) ** 2).sum()) / (m - 1) / trace
    return share * noise**2, min(worst, along * noise / rows)
