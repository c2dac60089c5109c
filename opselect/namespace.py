"""TensorFlow as an array namespace, so that operations and tasks run from the one definition that NumPy runs.

`xp` has the NumPy names that `opselect_envs` uses. Every function keeps the dtype of its array arguments, and every
function is connected to its input: a step such as ``floor`` has the gradient 0, never None.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np

from opselect._tensorflow import tf
from opselect_envs.operations import (
    InvalidOperationError,
    Operation,
    check_operation,
    evaluate,
    first_point,
    probe_points,
)

__all__ = ["check_gradient", "shape_of", "xp"]

Tensor = Any


def _step(function: Any) -> Any:
    """A piecewise constant function whose gradient is 0 instead of None."""

    @tf.custom_gradient
    def forward(x: Tensor) -> Any:
        return function(x), tf.zeros_like

    return forward


def _cbrt(x: Tensor) -> Tensor:
    root = tf.sign(x) * tf.pow(tf.abs(x), tf.constant(1.0 / 3.0, x.dtype))
    return root - (root * root * root - x) / (3.0 * root * root)  # one Newton step, to the last bits


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    # For a matrix b. TensorFlow's own matmul, where it broadcasts b over [S, 1, N, M] on a CPU with oneDNN, writes past
    # the end of its memory (TensorFlow 2.21).
    return tf.tensordot(a, b, 1)


def _stack(parts: list[Tensor], axis: int) -> Tensor:
    if axis != -1:
        return tf.stack(parts, axis)
    # Whole parts one after the other, seen from the side. XLA lays an array out in the order of its axes, so putting
    # parts beside each other would write, and later read, one number at a time.
    rank = parts[0].shape.rank
    return tf.transpose(tf.stack(parts, 0), [*range(1, rank + 1), 0])


def _logaddexp(a: Tensor, b: Tensor) -> Tensor:
    return a + tf.math.softplus(b - a)  # its gradient at a = b is 1/2, unlike that of max + log1p


xp = SimpleNamespace(
    abs=tf.abs,
    arccos=tf.acos,
    arccosh=tf.acosh,
    arcsin=tf.asin,
    arcsinh=tf.asinh,
    arctan=tf.atan,
    arctan2=tf.atan2,
    arctanh=tf.atanh,
    cbrt=_cbrt,
    ceil=_step(tf.math.ceil),
    clip=tf.clip_by_value,
    concatenate=tf.concat,
    cos=tf.cos,
    cosh=tf.cosh,
    cumsum=tf.cumsum,
    exp=tf.exp,
    expm1=tf.math.expm1,
    floor=_step(tf.floor),
    full_like=lambda x, fill: tf.fill(tf.shape(x), tf.cast(fill, x.dtype)),
    log=tf.math.log,
    log1p=tf.math.log1p,
    logaddexp=_logaddexp,
    matmul=_matmul,
    maximum=tf.maximum,
    minimum=tf.minimum,
    ones_like=tf.ones_like,
    power=tf.pow,
    round=_step(tf.round),
    sign=_step(tf.sign),
    sin=tf.sin,
    sinh=tf.sinh,
    sqrt=tf.sqrt,
    stack=_stack,
    sum=tf.reduce_sum,
    tan=tf.tan,
    tanh=tf.tanh,
    where=tf.where,
    zeros_like=tf.zeros_like,
)
"""The TensorFlow namespace that `Operation.apply`, `Operation.domain` and the functions of a task accept as ``xp``."""


def shape_of(tensor: Tensor) -> list[Any]:
    """The lengths of a tensor's axes: integers where they are known, scalar tensors where they are not (a batch)."""
    lengths = tensor.shape.as_list()
    if None not in lengths:
        return lengths
    known = tf.shape(tensor)
    return [known[i] if n is None else n for i, n in enumerate(lengths)]


@functools.lru_cache(maxsize=1024)
def check_gradient(operation: Operation) -> Operation:
    """Repeats `opselect_envs.operations.check_operation` with TensorFlow's values and exact gradients.

    Raises:
        InvalidOperationError: names the operation and the offending x.
    """
    check_operation(operation)
    points = probe_points(operation.arity)
    inputs = [tf.constant(p) for p in points]
    with tf.GradientTape() as tape:
        for x in inputs:
            tape.watch(x)
        try:
            value, _ = evaluate(xp, operation, *inputs)
        except Exception as error:
            raise InvalidOperationError(
                f"operation {operation.name!r}: failed with TensorFlow arrays: {error!r}; write it with functions of xp"
            ) from error
    gradients = tape.gradient(value, inputs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    for what, result in [("value", value), *(("gradient", g) for g in gradients)]:
        wrong = ~np.isfinite(result.numpy())
        if wrong.any():
            raise InvalidOperationError(
                f"operation {operation.name!r}: its domain admits {first_point(points, wrong)},"
                f" where its {what} is not finite"
            )
    return operation
