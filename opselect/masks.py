"""Hard masks, and any other step-like operation, with a gradient that training can use.

A step has no useful gradient: ``cast(x > 0)`` has none, ``floor`` and ``sign`` have 0. A *surrogate* puts the gradient
of a smooth function in its place. That is not the gradient of the loss that the hard step gives: training follows the
gradient of another function and may stop elsewhere. `mask_gap` shows the difference as a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from opselect._tensorflow import tf
from opselect.numerics import InvalidShapeError, check_temperature, is_known, straight_through
from opselect_envs.naming import nearest

__all__ = [
    "SURROGATES",
    "InvalidSurrogateError",
    "MaskGap",
    "Surrogate",
    "mask",
    "mask_gap",
    "one_hot_argmax",
    "soft_mask",
    "with_surrogate_gradient",
]

Tensor = Any
Surrogate = str | Callable[[Tensor], Tensor]
"""A name in `SURROGATES`, or a differentiable function whose gradient is used."""


class InvalidSurrogateError(ValueError):
    """A surrogate that is unknown, or whose result does not have the shape of the step's."""


def _triangle(u: Tensor) -> Tensor:
    inside = tf.clip_by_value(u, -1.0, 1.0)
    return inside - 0.5 * inside * tf.abs(inside)


# Each stands with its derivative in x at temperature T, where u = x / T.
SURROGATES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "identity": lambda x, temperature: x,  # 1
    "sigmoid": lambda x, temperature: tf.sigmoid(x / temperature),  # s (1 - s) / T, s = sigmoid(u)
    "tanh": lambda x, temperature: tf.tanh(x / temperature),  # (1 - tanh(u)**2) / T
    "clipped_identity": lambda x, temperature: tf.clip_by_value(x, -temperature, temperature),  # 1 where |u| <= 1
    "triangle": lambda x, temperature: _triangle(x / temperature),  # max(0, 1 - |u|) / T
    "softmax": lambda x, temperature: tf.nn.softmax(x / temperature),  # of the last axis: for a one-hot of argmax
}
"""The smooth functions whose gradients stand in for a step's: functions of x [...] and the temperature."""


def _surrogate(surrogate: Surrogate, x: Tensor, temperature: Any) -> Tensor:
    if callable(surrogate):
        return surrogate(x)
    if surrogate not in SURROGATES:
        near = nearest(str(surrogate), SURROGATES)
        raise InvalidSurrogateError(
            f"unknown surrogate {surrogate!r}; did you mean {near!r}? Known: {', '.join(SURROGATES)}, or a callable"
        )
    return SURROGATES[surrogate](x, temperature)


def _temperature(temperature: Any, dtype: Any) -> Tensor:
    check_temperature(temperature)
    return tf.cast(temperature, dtype)


def _floating(name: str, x: Any) -> Tensor:
    tensor = tf.convert_to_tensor(x)
    if tensor.dtype.is_floating:
        return tensor
    if tf.is_tensor(x) or isinstance(x, tf.Variable):
        raise TypeError(
            f"{name} must be floating point to have a gradient, got {tensor.dtype.name}; cast it to float32"
        )
    return tf.cast(tensor, tf.float32)


def mask(
    x: Any,
    threshold: Any = 0.0,
    surrogate: Surrogate = "sigmoid",
    temperature: Any = 1.0,
    *,
    hardness: Any = 1.0,
) -> Tensor:
    """1 where x > threshold and 0 elsewhere, with the surrogate's gradient in x and, negated, in the threshold.

    The gradient is not that of the loss you minimise, which is 0 almost everywhere: see `mask_gap`. A low temperature
    brings surrogate and step together, and leaves a gradient only close to the threshold.

    Args:
        x: [...] floating point.
        threshold: a number, or a tensor that broadcasts with x; it may be a variable to learn.
        surrogate: whose gradient is used, at ``u = (x - threshold) / temperature``: ``"identity"`` (1 everywhere),
            ``"sigmoid"`` (s(u) (1 - s(u)) / temperature), ``"tanh"`` ((1 - tanh(u)**2) / temperature),
            ``"clipped_identity"`` (1 where abs(u) <= 1), ``"triangle"`` (max(0, 1 - abs(u)) / temperature), or a
            differentiable function of ``x - threshold``.
        temperature: > 0, the width of the surrogate.
        hardness: from 0, the soft mask ``sigmoid(u)`` with its own gradient, to 1, the hard one; in between a convex
            combination of the two. Raise it during training to anneal from soft to hard.

    Returns:
        [...] of the dtype of x; NaN where x is NaN.

    Raises:
        InvalidSurrogateError: an unknown surrogate; the nearest name is suggested.
        InvalidShapeError: the threshold has more entries than x.
        ValueError: temperature is not positive, or hardness is outside [0, 1].
    """
    x = _floating("x", x)
    over = x - tf.cast(threshold, x.dtype)
    if x.shape.is_fully_defined() and over.shape != x.shape:
        raise InvalidShapeError(f"threshold has shape {tf.convert_to_tensor(threshold).shape}, more than x's {x.shape}")
    if is_known(hardness) and not 0.0 <= hardness <= 1.0:
        raise ValueError(
            f"hardness must be in [0, 1], got {hardness!r}; the nearest valid value is {int(hardness > 1)}"
        )
    temperature = _temperature(temperature, x.dtype)
    soft = tf.cast(_surrogate(surrogate, over, temperature), x.dtype)
    _require_shape(soft, over)
    hard = straight_through(tf.cast(over > 0, x.dtype), soft)
    if is_known(hardness) and hardness == 1.0:
        return hard
    share = tf.cast(hardness, x.dtype)
    return share * hard + (1.0 - share) * soft_mask(x, threshold, temperature)


def _require_shape(soft: Tensor, x: Tensor) -> None:
    if not soft.shape.is_compatible_with(x.shape):
        raise InvalidSurrogateError(f"surrogate must keep the shape {x.shape}, but returned {soft.shape}")


def soft_mask(x: Any, threshold: Any = 0.0, temperature: Any = 1.0) -> Tensor:
    """The soft mask ``sigmoid((x - threshold) / temperature)``, with its own gradient; [...] like x."""
    x = _floating("x", x)
    return tf.sigmoid((x - tf.cast(threshold, x.dtype)) / _temperature(temperature, x.dtype))


class MaskGap(NamedTuple):
    """A loss with the hard mask, with the soft one, and what hardening costs."""

    hard: Tensor
    soft: Tensor
    gap: Tensor


def mask_gap(loss: Callable[[Tensor], Any], x: Any, threshold: Any = 0.0, temperature: Any = 1.0) -> MaskGap:
    """Evaluates a loss at the hard and at the soft mask of x.

    Args:
        loss: from a mask [...] to a loss of any shape.
        x: [...].
        threshold: as in `mask`.
        temperature: as in `mask`.

    Returns:
        The hard loss, the soft loss, and gap = hard - soft: how much worse the hard mask is than what a soft one shows.
    """
    hard = tf.convert_to_tensor(loss(mask(x, threshold)))
    soft = tf.convert_to_tensor(loss(soft_mask(x, threshold, temperature)))
    return MaskGap(hard, soft, hard - soft)


def with_surrogate_gradient(
    fn: Callable[[Tensor], Tensor], surrogate: Surrogate = "identity", temperature: Any = 1.0
) -> Callable[[Tensor], Tensor]:
    """Gives a step-like function (floor, round, sign, a clip, a one-hot of argmax) the gradient of a smooth one.

        floor = with_surrogate_gradient(tf.floor, "identity")
        one_hot = with_surrogate_gradient(lambda x: tf.one_hot(tf.argmax(x, -1), 4), "softmax")

    Args:
        fn: from x [...] to any tensor; a boolean or integer result is cast to the dtype of x.
        surrogate: a name in `SURROGATES` (at ``x / temperature``), or a differentiable function of x whose result has
            the shape of fn's.
        temperature: > 0, the width of a named surrogate.

    Returns:
        A function with the value of `fn` and the gradient of the surrogate.

    Raises:
        InvalidSurrogateError: an unknown surrogate, or one of another shape than fn(x); names both shapes.
    """
    if not callable(surrogate) and surrogate not in SURROGATES:
        _surrogate(surrogate, None, 1.0)

    def stepped(x: Any) -> Tensor:
        x = _floating("x", x)
        hard = tf.cast(tf.stop_gradient(fn(x)), x.dtype)
        soft = tf.cast(_surrogate(surrogate, x, _temperature(temperature, x.dtype)), x.dtype)
        if not soft.shape.is_compatible_with(hard.shape):
            raise InvalidSurrogateError(f"surrogate returned shape {soft.shape}, but fn returned {hard.shape}")
        return straight_through(hard, soft)

    return stepped


def one_hot_argmax(logits: Any, surrogate: Surrogate = "softmax", temperature: Any = 1.0) -> Tensor:
    """The one-hot of the largest logit [..., K], with the softmax's gradient (or another surrogate's).

    The same choice in every mode: the first of the largest. NaN is refused where it can be (eagerly, and in graph mode
    by an assertion); XLA can't raise, so there the whole row is NaN.

    Raises:
        tf.errors.InvalidArgumentError: a logit is NaN.
        InvalidShapeError: K is not known.
        InvalidSurrogateError: an unknown surrogate, or one whose result has another shape.
    """
    logits = _floating("logits", logits)
    if logits.shape.rank is None or logits.shape[-1] is None:
        raise InvalidShapeError(f"logits must have a last axis of known length K, got shape {logits.shape}")
    missing = tf.reduce_any(tf.math.is_nan(logits), -1, keepdims=True)
    tf.debugging.Assert(~tf.reduce_any(missing), ["logits hold NaN, of which no argmax can be taken"])
    hard = tf.one_hot(
        tf.argmax(tf.where(missing, tf.zeros_like(logits), logits), -1), logits.shape[-1], dtype=logits.dtype
    )
    # An infinite logit is chosen, or never is; either way it has no gradient.
    finite = tf.clip_by_value(logits, logits.dtype.max * -1e-3, logits.dtype.max * 1e-3)
    soft = tf.cast(_surrogate(surrogate, finite, _temperature(temperature, logits.dtype)), logits.dtype)
    _require_shape(soft, logits)
    return tf.where(missing, tf.constant(float("nan"), logits.dtype), straight_through(hard, soft))
