"""Stateless random numbers with one independent stream per replica, the same in eager mode, tf.function and XLA.

`tf.random.stateless_uniform` takes one seed per call, so replicas trained side by side could not keep streams of their
own, and its streams differ between XLA and the other modes. This is Threefry-2x32 with 20 rounds (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011), the generator that JAX uses, on plain integer operations.

A seed is a pair [2] int32, or one pair per replica [R, 2] int32.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from opselect._tensorflow import tf
from opselect.namespace import shape_of

__all__ = ["as_finite", "as_seed", "fold_in", "gumbel", "sample_one_hot", "substream", "threefry", "uniform"]

Tensor = Any
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_FEW = 32  # operations whose probabilities are added up one by one


def as_seed(seed: int | Sequence[int] | Tensor) -> Tensor:
    """Makes a seed pair [2] from an integer, or checks a pair [2] or [R, 2].

    Raises:
        ValueError: `seed` is neither.
    """
    if isinstance(seed, int | np.integer):
        seed = int(seed)
        return tf.constant([seed & 0x7FFFFFFF, (seed >> 31) & 0x7FFFFFFF], tf.int32)
    pairs: Any = tf.cast(tf.convert_to_tensor(seed), tf.int32)
    if pairs.shape.rank not in (1, 2) or pairs.shape[-1] != 2:
        raise ValueError(f"seed must be an integer, a pair [2] or pairs [R, 2]; got shape {pairs.shape}")
    return pairs


def threefry(key: tuple[Tensor, Tensor], counter: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Encrypts counters [...] uint32 under keys [...] uint32 (broadcast): two words [...] uint32 of random bits."""

    def rotate(x: Tensor, by: int) -> Tensor:
        left = tf.bitwise.left_shift(x, tf.constant(by, tf.uint32))
        return tf.bitwise.bitwise_or(left, tf.bitwise.right_shift(x, tf.constant(32 - by, tf.uint32)))

    third = tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(key[0], key[1]), tf.constant(_PARITY, tf.uint32))
    keys = (key[0], key[1], third)
    a, b = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            a = a + b
            b = tf.bitwise.bitwise_xor(rotate(b, by), a)
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + tf.constant(group + 1, tf.uint32)
    return a, b


def _key(seed: Tensor) -> tuple[Tensor, Tensor]:
    words = tf.bitcast(seed, tf.uint32)
    return words[..., 0], words[..., 1]


def fold_in(seed: Tensor, data: int | Tensor) -> Tensor:
    """A new seed of the same shape, determined by `seed` and the integer `data` (a step, a purpose)."""
    word = tf.bitcast(tf.cast(data, tf.int32), tf.uint32)
    # The high counter word keeps these streams apart from those of `uniform`.
    mixed = threefry(_key(seed), (word, tf.constant(0x80000000, tf.uint32)))
    return tf.bitcast(tf.stack(mixed, axis=-1), tf.int32)


def substream(seed: Tensor, index: int) -> Tensor:
    """The seed of a numbered stream beside others of the same seed, for a handful of fixed purposes within one step.

    It only moves the second word and leaves the mixing to Threefry: a much smaller graph than that of `fold_in`. Moves
    add up, so a substream of a substream may be another one: split a seed that was handed in by `fold_in`.
    """
    return seed + tf.constant([0, (index + 1) * 0x1E3779B9 & 0x7FFFFFFF], tf.int32)


def uniform(seed: Tensor, shape: Sequence[Any], *, axis: int = 0) -> Tensor:
    """Uniform draws float32 strictly inside (0, 1), so that their logarithms and logits are finite.

    Args:
        seed: [2], or [R, 2] for one stream per replica.
        shape: the shape of the draws; lengths are integers or scalar tensors.
        axis: with seed [R, 2], which axis of `shape` is the replicas' (its length must be R).
    """
    shape = list(shape)
    replicated = seed.shape.rank == 2
    if replicated and shape[axis] != seed.shape[0]:
        raise ValueError(f"axis {axis} of shape {shape} must have the {seed.shape[0]} replicas of seed")
    rest = shape[:axis] + shape[axis + 1 :] if replicated else shape
    count = 1
    for n in rest:
        count *= n
    half = (count + 1) // 2
    first, second = _key(seed)
    if replicated:
        first, second = first[:, None], second[:, None]
    index = tf.cast(tf.range(half), tf.uint32)
    bits = tf.concat(threefry((first, second), (index, tf.zeros_like(index))), -1)[..., :count]
    # 23 bits and a half: exact in float32, never 0 and never 1.
    high = tf.cast(tf.cast(tf.bitwise.right_shift(bits, tf.constant(9, tf.uint32)), tf.int32), tf.float32)
    draws = (high + 0.5) * 2.0**-23
    if not replicated:
        return tf.reshape(draws, shape)
    draws = tf.reshape(draws, [shape[axis], *rest])
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
    return tf.transpose(draws, order) if axis else draws


def gumbel(seed: Tensor, shape: Sequence[Any], *, axis: int = 0) -> Tensor:
    """Standard Gumbel draws, float32 whatever the model's precision (float16 noise is NaN once in 700 rows)."""
    return -tf.math.log(-tf.math.log(uniform(seed, shape, axis=axis)))


def as_finite(logits: Tensor) -> Tensor:
    """Logits in float32 of the same probabilities: -inf, as a mask is in float16, becomes -1e9."""
    return tf.maximum(tf.cast(logits, tf.float32), -1e9)


def sample_one_hot(distribution: Any, seed: Tensor, samples: int | None, *, axis: int = 0) -> Tensor:
    """Draws from a `tfp.distributions.Categorical` with one random stream per replica, as one-hots.

    The inverse transform of the distribution's probabilities: an operation of probability 0 is never drawn.

    Args:
        distribution: batch shape [...], K categories.
        seed: [2] or [R, 2].
        samples: S, how many draws per batch member, or None for one draw and no axis for it.
        axis: with seed [R, 2], which axis of the batch shape is the replicas'.

    Returns:
        [S, ..., K] float32 one-hots, or [..., K] when `samples` is None.
    """
    # As `log_probabilities` has them, and with the axis S, so that a compiled step works out one softmax for both.
    logits = as_finite(tf.stop_gradient(distribution.logits_parameter()))
    batch, operations = shape_of(logits)[:-1], logits.shape[-1]
    shape = batch if samples is None else [samples, *batch]
    draws = uniform(seed, shape, axis=axis if samples is None else axis + 1)
    probabilities = tf.nn.softmax(logits if samples is None else logits[None])
    # A draw is below 1 by more than half of float32's spacing, so a threshold is below the sum of all.
    if operations is not None and operations <= _FEW:
        # XLA's cumulative sum adds each prefix up anew and cannot be fused with what reads it.
        prefixes = list(itertools.accumulate(tf.unstack(probabilities, axis=-1)))
        threshold = draws * prefixes[-1]
        index = tf.add_n([tf.cast(p <= threshold, tf.int32) for p in prefixes[:-1]])
    else:
        cumulative = tf.cumsum(probabilities, axis=-1)
        threshold = draws * cumulative[..., -1]
        index = tf.reduce_sum(tf.cast(cumulative <= threshold[..., None], tf.int32), -1)
    return tf.one_hot(index, operations)
