"""Selection and elementary functions whose value and gradient are never NaN for numbers that are not NaN.

``tf.where(x > 0, tf.sqrt(x), 0.0)`` evaluates the square root everywhere, and ``0 * inf = NaN`` reaches the gradient
from the branch that was not taken. `where` gives each branch its operands only where it is selected.

The functions here follow one convention, in eager mode, ``tf.function`` and XLA, for first and higher derivatives:

- inside its domain a function has the value and the derivatives of the TensorFlow function of that name;
- beyond the edge of its domain it keeps the value it has at the nearest number inside, and its gradient is 0
  (``log(0)`` is the logarithm of the smallest normal number, ``exp(1000)`` is the largest number, ``sqrt(-1)`` is 0);
- where the derivative is infinite, as that of sqrt or norm at 0, the gradient is 0;
- at a pole (a division by 0, 0 to a negative power) the value is `fill`, and the gradient is 0;
- a derivative too large for the dtype saturates at a value that a million such may be added of without overflow;
- a NaN that is put in comes out as the value, so that it is seen, and stays out of the gradient.

Gradients are those of tapes and `tf.gradients`. TensorFlow's forward mode (`tf.autodiff.ForwardAccumulator`) ignores
gradients that are defined by hand, so there all of this holds for the value alone.

Formulas are those of the catalogue, `opselect_envs.OPERATIONS`, which the environments run too; `apply` evaluates an
operation of the catalogue, or one's own, with the domain that the operation declares.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from opselect._tensorflow import keras, tf
from opselect.namespace import xp
from opselect_envs.operations import OPERATIONS, Operation, as_operation, evaluate

__all__ = [
    "InvalidShapeError",
    "acos",
    "acosh",
    "apply",
    "asin",
    "atan2",
    "atanh",
    "cbrt",
    "check_temperature",
    "cosh",
    "divide",
    "entmax15",
    "exp",
    "expm1",
    "hypot",
    "is_known",
    "log",
    "log1p",
    "logsumexp",
    "mod",
    "norm",
    "pow",
    "sinh",
    "softmax_entropy",
    "sparsemax",
    "sqrt",
    "straight_through",
    "where",
]

Tensor = Any


class InvalidShapeError(ValueError):
    """Arguments whose ranks or shapes do not fit each other, or would broadcast into something that is not meant."""


# --- selection --------------------------------------------------------------------------------------------------------


def where(
    condition: Any,
    on_true: Any,
    on_false: Any,
    operands: Any = (),
    *,
    stand_in: Any = None,
) -> Tensor:
    """Selects between two branches; neither the value nor the gradient of the branch not taken can leak.

    A branch that is callable gets the operands where it is selected, and elsewhere a stand-in: values that the operands
    have at a place where the branch *is* selected, so it need not be defined anywhere else. It must work elementwise
    (or row by row, for a condition [B, 1]): a mean over all of its operands would average stand-ins too. Branches may
    call `where` themselves: compute the inner condition from the branch's own arguments, which are safe.

        where(x > 0, tf.sqrt, 0.0, x)
        where(y == 0, 0.0, lambda x, y: x / y, [x, y])

    Args:
        condition: [...] bool, or a callable of the operands that returns it.
        on_true: a callable of the operands, an operation (by catalogue name or as an `Operation`, which is evaluated as
            in `apply`), or a tensor that broadcasts with the condition.
        on_false: likewise.
        operands: a tensor, or a sequence of tensors, that broadcast with the condition. Where the condition has fewer
            rows than an operand has entries ([B, 1] and [B, N]), whole rows are selected and stood in for.
        stand_in: a number, or one per operand, to stand in for operands where a branch is not selected. Needed only by
            a branch that uses *other* trainable tensors than its operands, for batches where it is selected nowhere:
            they get 0 times its slope at the stand-in, which is 1/2 (1/4 for a second operand, ...) when nothing else
            is known. A captured tensor that has entries of its own per element belongs into `operands`.

    Returns:
        A tensor of the shape that condition, operands and results broadcast to.

    Raises:
        InvalidShapeError: names both shapes that do not broadcast.
        TypeError: the condition is not boolean.
    """
    several = isinstance(operands, list | tuple)
    arrays = [tf.convert_to_tensor(v) for v in (operands if several else [operands])]
    if callable(condition):
        condition = condition(*arrays)
    condition = tf.convert_to_tensor(condition)
    if condition.dtype != tf.bool:
        raise TypeError(f"condition must be boolean, got {condition.dtype.name}; write a comparison such as x > 0")
    for i, v in enumerate(arrays):
        _check_broadcast(f"operands[{i}]" if several else "operands", v, condition)
    given = None if stand_in is None else list(stand_in) if isinstance(stand_in, list | tuple) else [stand_in]
    if given is not None and len(given) == 1:
        given = given * len(arrays)
    if given is not None and len(given) != len(arrays):
        raise ValueError(f"stand_in must be one number or one per operand ({len(arrays)}), got {stand_in!r}")

    def result_of(branch: Any, selected: Tensor, name: str) -> Any:
        if isinstance(branch, str | Operation):
            if not arrays:
                raise ValueError(f"{name} is an operation, so operands must be given")
            return apply(branch, *arrays)  # finite everywhere, so there is nothing to keep from it
        if not callable(branch):
            return branch
        if not arrays:
            raise ValueError(f"{name} is callable, so operands must be given")
        found = _stand_ins(selected, arrays) if given is None else given
        pairs = zip(arrays, found, strict=True)
        return branch(*(tf.where(selected, v, tf.stop_gradient(tf.cast(s, v.dtype))) for v, s in pairs))

    results = [result_of(on_true, condition, "on_true"), result_of(on_false, ~condition, "on_false")]
    first, second = _same_dtype(results)
    for name, result in (("on_true", first), ("on_false", second)):
        _check_broadcast(name, result, condition)
    _check_broadcast("on_true", first, second, "on_false")
    return tf.where(condition, first, second)


def _constant(value: float, like: Tensor) -> Tensor:
    return tf.constant(value, like.dtype)


def _same_dtype(results: Sequence[Any]) -> list[Tensor]:
    """Numbers and NumPy arrays take the dtype of the other result."""
    dtypes = [r.dtype for r in map(_value, results) if tf.is_tensor(r)]
    if len(dtypes) == 2 and dtypes[0] != dtypes[1]:
        raise TypeError(f"on_true is {dtypes[0].name} and on_false is {dtypes[1].name}; cast one of them")
    dtype = dtypes[0] if dtypes else tf.float32 if any(isinstance(r, float) for r in results) else None
    return [r if tf.is_tensor(r) else tf.convert_to_tensor(r, dtype) for r in map(_value, results)]


def _value(x: Any) -> Any:
    """A tensor for a variable, TensorFlow's or Keras'; anything else as it is."""
    return tf.convert_to_tensor(x) if isinstance(x, tf.Variable | keras.Variable) else x


def _check_broadcast(name: str, value: Tensor, other: Tensor, other_name: str = "condition") -> None:
    try:
        tf.broadcast_static_shape(value.shape, other.shape)
    except ValueError:
        raise InvalidShapeError(
            f"{name} has shape {tuple(value.shape)} and {other_name} has shape {tuple(other.shape)},"
            " which do not broadcast"
        ) from None


def _stand_ins(selected: Tensor, operands: Sequence[Tensor]) -> list[Tensor]:
    """For each operand, what it holds at one place where `selected` is true (the same place for all of them)."""
    rank = selected.shape.rank
    if rank is not None and any(_has_rows(v, selected) for v in operands):
        return _stand_in_rows(selected, operands)
    for v in operands:
        if not (v.dtype.is_floating or v.dtype.is_integer):
            raise TypeError(f"operands must be real numbers, got {v.dtype.name}")
    operands = [tf.stop_gradient(v) for v in operands]
    size = selected.shape.num_elements() or 0
    if size < _GLANCE**2 or any(v.shape != selected.shape for v in operands):
        return _largest_selected(selected, operands)[0]
    # Most batches have such a place among some entries of theirs, which spares a pass over all of them.
    some = [tf.reshape(v, [-1])[:: size // _GLANCE] for v in (selected, *operands)]
    found, somewhere = _largest_selected(some[0], some[1:])
    return tf.cond(somewhere, lambda: found, lambda: _largest_selected(selected, operands)[0])


_GLANCE = 256  # how many entries are looked at first


def _largest_selected(selected: Tensor, operands: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """(an entry of each operand, all from one place that is selected and finite; whether there is such a place).

    The largest first operand, of those places the largest second one, and so on: cheaper than a gather at an index.
    """
    for v in operands:
        selected = selected & tf.math.is_finite(v) if v.dtype.is_floating else selected
    found: list[Tensor] = []
    somewhere: Tensor = False
    for i, v in enumerate(operands):
        lowest = tf.constant(v.dtype.min, v.dtype)
        largest = tf.reduce_max(tf.where(selected, v, lowest))
        selected = selected & (v == largest)
        somewhere = largest > lowest if i == 0 else somewhere  # XLA reduces numbers faster than booleans
        found.append(tf.where(somewhere, largest, _default(v, i)))
    return found, somewhere


def _default(operand: Tensor, index: int) -> Tensor:
    """Stands in for an operand that is selected nowhere: 1/2, 1/4, ... so that x - y and x / y are defined; 1."""
    return tf.constant(2.0 ** -(1 + index) if operand.dtype.is_floating else 1, operand.dtype)


def _has_rows(operand: Tensor, selected: Tensor) -> bool:
    """Whether an operand is longer than the condition along some axis, so that rows are selected."""
    if operand.shape.rank is None:
        return False
    if operand.shape.rank > selected.shape.rank:
        return True
    pairs = zip(reversed(operand.shape.as_list()), reversed(selected.shape.as_list()), strict=False)
    return any(long is not None and long > 1 and short == 1 for long, short in pairs)


def _stand_in_rows(selected: Tensor, operands: Sequence[Tensor]) -> list[Tensor]:
    shape, rank = tf.shape(selected), selected.shape.rank
    flat = tf.reshape(selected, [-1])
    # One more entry, as the argmax of nothing is an error.
    index = tf.argmax(tf.concat([tf.cast(flat, tf.int32), [0]], 0), output_type=tf.int32)
    place = []
    for axis in reversed(range(rank)):
        length = tf.maximum(shape[axis], 1)
        place.append(index % length)
        index = index // length

    def row_of(v: Tensor) -> Tensor:
        for back, at in enumerate(place, start=1):  # from the last axis on
            if back <= v.shape.rank and selected.shape[-back] != 1:
                axis = v.shape.rank - back
                v = tf.gather(v, tf.minimum(at, tf.shape(v)[axis] - 1)[None], axis=axis)
        return v

    found = []
    for i, v in enumerate(operands):
        if v.shape.num_elements() == 0:
            found.append(_default(v, i))
        elif v.shape.is_fully_defined():
            found.append(tf.where(tf.reduce_any(flat), row_of(v), _default(v, i)))
        else:  # an empty batch has no row to take
            none = functools.partial(tf.fill, [1] * v.shape.rank, _default(v, i))
            found.append(tf.cond(tf.reduce_any(flat), functools.partial(row_of, v), none))
    return found


# --- functions that saturate ------------------------------------------------------------------------------------------


def _limit(dtype: Any) -> float:
    """Where derivatives saturate: a million of them may be added in float32 and float64 without overflow."""
    return float(dtype.max) ** 0.84


def _clip(x: Tensor, bound: float | None = None) -> Tensor:
    bound = _limit(x.dtype) if bound is None else bound
    return tf.clip_by_value(x, _constant(-bound, x), _constant(bound, x))


@tf.custom_gradient
def _product(a: Tensor, b: Tensor) -> Any:
    """The product of any a and a finite b: never NaN unless a is, nor are its derivatives of any order."""
    bounded = _clip(a, a.dtype.max)

    def gradient(upstream: Tensor) -> Any:
        first, second = _here(bounded, b)
        return _product(upstream, second), _product(upstream, first)

    return _clip(bounded * b), gradient


def _here(*x: Tensor) -> list[Tensor]:
    """The tensors, in the graph that is being built.

    A gradient that is a custom gradient itself must close over no others: within ``tf.cond``, ``tf.while_loop`` and
    what is made of them TensorFlow finds only those when it differentiates again, and a tape watches only those.
    """
    return [tf.identity(v) for v in x]


def _saturating(function: Callable[..., Tensor], *, regular: bool = False) -> Callable[..., Tensor]:
    """An elementwise function of tensors of one shape, with finite derivatives of every order.

    `function` must be defined wherever it is called, with derivatives that are finite up to overflow. If it is
    `regular`, neither its value nor its first derivative overflows, and they need no clipping.
    """
    return _differentiable(function if regular else _clipped(function), function, regular)


def _differentiable(value: Callable[..., Tensor], function: Callable[..., Tensor], regular: bool) -> Any:
    """`value`, with the gradient of `function`."""

    @tf.custom_gradient
    def saturated(*x: Tensor) -> Any:
        def gradient(upstream: Tensor) -> Any:
            here, gradients = _here(*x), []
            for i in range(len(x)):
                slope = functools.partial(_slope, function, i)
                finite = slope if regular else functools.partial(_finite_slope, slope)
                gradients.append(_product(upstream, _differentiable(finite, slope, False)(*here)))
            return gradients if len(x) > 1 else gradients[0]

        return value(*x), gradient

    return saturated


def _clipped(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *x: _clip(function(*x), x[0].dtype.max)


def _slope(function: Callable[..., Tensor], index: int, *x: Tensor) -> Tensor:
    """The partial derivative of an elementwise function, by TensorFlow's formula."""
    with tf.GradientTape() as tape:
        tape.watch(x[index])
        value = function(*x)
    return tape.gradient(value, x[index], unconnected_gradients="zero")


def _finite_slope(slope: Callable[..., Tensor], *x: Tensor) -> Tensor:
    """A slope in bounds, and 0 where TensorFlow's formula gives 0 * inf = NaN."""
    derivative = slope(*x)
    return _clip(tf.where(tf.math.is_nan(derivative), tf.zeros_like(derivative), derivative))


def _floating(*x: Any) -> list[Tensor]:
    """Tensors of one floating-point dtype, that of the first floating tensor, else float32; two of them must fit."""
    x = tuple(map(_value, x))
    typed = [v.dtype for v in x if tf.is_tensor(v)]
    typed += [tf.as_dtype(v.dtype) for v in x if isinstance(v, np.ndarray)]
    dtype = next((d for d in typed if d.is_floating), tf.float32)
    tensors = [v if tf.is_tensor(v) and v.dtype == dtype else _cast(v, dtype) for v in x]
    if len(tensors) == 2:
        _check_broadcast("the first operand", tensors[0], tensors[1], "the second")
    return tensors


def _cast(x: Any, dtype: Any) -> Tensor:
    tensor = tf.convert_to_tensor(x)
    if tensor.dtype.is_complex:
        raise TypeError(f"arguments must be real numbers, got {tensor.dtype.name}")
    if tensor.dtype.is_floating and tensor.dtype != dtype and tf.is_tensor(x):
        raise TypeError(f"arguments have dtypes {dtype.name} and {tensor.dtype.name}; cast one of them")
    return tf.cast(tensor, dtype)


def apply(operation: str | Operation, *x: Any) -> Tensor:
    """Evaluates an operation, of the catalogue or one's own, where its domain admits the operands; its fill elsewhere.

    Args:
        operation: a catalogue name such as ``"log"``, or an `opselect_envs.Operation`.
        *x: `operation.arity` floating-point tensors that broadcast.

    Returns:
        A finite tensor of the shape that the operands broadcast to. Its gradient is 0 outside the domain.

    Raises:
        opselect_envs.InvalidOperationError: an unknown name (the nearest is suggested), a wrong operation or arity.
    """
    return evaluate(xp, _saturated(as_operation(operation)), *_floating(*x))[0]


@functools.lru_cache(maxsize=1024)
def _saturated(operation: Operation) -> Operation:
    function = _saturating(functools.partial(operation.apply, xp))

    def elementwise(_: Any, *x: Tensor) -> Tensor:
        return function(*_broadcast(*x))

    return dataclasses.replace(operation, apply=elementwise)


def _broadcast(*x: Tensor) -> Sequence[Tensor]:
    """The operands, broadcast to one shape."""
    if len(x) == 1 or all(v.shape == x[0].shape and v.shape.is_fully_defined() for v in x):
        return x
    shape = functools.reduce(tf.broadcast_dynamic_shape, [tf.shape(v) for v in x])
    return [tf.broadcast_to(v, shape) for v in x]


# --- functions of one number, continued beyond the edges of their domain ----------------------------------------------


def _continued(name: str, low: Callable[[Any], float], high: Callable[[Any], float], inside: str, summary: str) -> Any:
    """The catalogue's formula between two bounds, each a function of the dtype; `inside` says which bound is inside."""
    function = _saturating(functools.partial(OPERATIONS[name].apply, xp), regular=True)
    above = tf.greater_equal if "[" in inside else tf.greater
    below = tf.less_equal if "]" in inside else tf.less

    def continued(x: Any) -> Tensor:
        (x,) = _floating(x)
        least, most = _constant(low(x.dtype), x), _constant(high(x.dtype), x)
        within = above(x, least) & below(x, most)
        return function(tf.where(within, x, tf.stop_gradient(tf.clip_by_value(x, least, most))))

    continued.__name__ = continued.__qualname__ = name
    continued.__doc__ = f"{summary}\n\n    Args:\n        x: [...] floating point.\n    "
    return continued


def _largest(dtype: Any) -> float:
    return float(dtype.max)


def _lowest(dtype: Any) -> float:
    return float(dtype.min)


def _smallest_normal(dtype: Any) -> float:
    return float(ml_dtypes.finfo(dtype.as_numpy_dtype).smallest_normal)


def _below_one(dtype: Any) -> float:
    return float(np.nextafter(dtype.as_numpy_dtype(1.0), dtype.as_numpy_dtype(0.0)))


def _above_minus_one(dtype: Any) -> float:
    return -_below_one(dtype)


def _log_largest(dtype: Any) -> float:
    """Just below the logarithm of the largest number, so that the exponential is finite after rounding."""
    return float(np.nextafter(dtype.as_numpy_dtype(np.log(float(dtype.max))), dtype.as_numpy_dtype(0.0)))


def _minus_log_largest(dtype: Any) -> float:
    return -_log_largest(dtype)


def _number(value: float) -> Callable[[Any], float]:
    return lambda dtype: value


_EXPONENTS = (_minus_log_largest, _log_largest)
_UNIT = (_number(-1.0), _number(1.0))
sqrt = _continued("sqrt", _number(0.0), _largest, "(]", "The square root; 0 below 0, with gradient 0 at 0 and below.")
log = _continued(
    "log", _smallest_normal, _largest, "[]",
    "The logarithm; that of the smallest normal number below it (-87.3 in float32), with gradient 0 there.",
)  # fmt: skip
log1p = _continued(
    "log1p", _above_minus_one, _largest, "[]",
    "log(1 + x); at and below -1 its value at the next number above -1 (-16.6 in float32), with gradient 0.",
)  # fmt: skip
exp = _continued("exp", _lowest, _log_largest, "[]", "The exponential; the largest number where it would overflow.")
expm1 = _continued("expm1", _lowest, _log_largest, "[]", "exp(x) - 1; the largest number where it would overflow.")
sinh = _continued("sinh", *_EXPONENTS, "[]", "The hyperbolic sine; continued by a constant where it would overflow.")
cosh = _continued("cosh", *_EXPONENTS, "[]", "The hyperbolic cosine; continued by a constant where it would overflow.")
asin = _continued("asin", *_UNIT, "()", "The arc sine; -pi/2 below and pi/2 above its domain, gradient 0 at -1 and 1.")
acos = _continued("acos", *_UNIT, "()", "The arc cosine; pi below and 0 above its domain, gradient 0 at -1 and 1.")
acosh = _continued("acosh", _number(1.0), _largest, "(]", "The inverse of cosh; 0 below 1, with gradient 0 at 1.")
atanh = _continued(
    "atanh", _above_minus_one, _below_one, "[]",
    "The inverse of tanh; at and beyond -1 and 1 its value at the next number inside (8.7 in float32), gradient 0.",
)  # fmt: skip


def cbrt(x: Any) -> Tensor:
    """The cubic root of x [...], negative for negative x; gradient 0 at 0."""
    (x,) = _floating(x)
    edge = tf.sign(x) * float(x.dtype.max) ** (1 / 3)  # of an infinite x; 0 and NaN stay what they are
    return _selected(_nonzero(x) & ~tf.math.is_inf(x), _CBRT, 1.0, edge, x)


def _nonzero(x: Tensor) -> Tensor:
    """Whether x is not 0; denormals count as 0, since TensorFlow flushes them in some kernels only."""
    # Not ~(abs(x) < tiny): the graph optimiser turns that into >=, and a NaN into a 0.
    return (tf.abs(x) >= _constant(_smallest_normal(x.dtype), x)) | tf.math.is_nan(x)


# --- functions of two numbers -----------------------------------------------------------------------------------------


def _selected(inside: Tensor, function: Callable[..., Tensor], anchor: float, outside: Any, *x: Tensor) -> Tensor:
    """`function` where `inside` (of the shape that the operands broadcast to), `outside` elsewhere."""
    value = function(*_broadcast(*(tf.where(inside, v, _constant(anchor, v)) for v in x)))
    outside = tf.cast(outside, value.dtype)
    _check_broadcast("fill", outside, value, "the result")
    if value.shape.is_fully_defined() and tf.broadcast_static_shape(outside.shape, value.shape) != value.shape:
        raise InvalidShapeError(f"fill has shape {tuple(outside.shape)}, more than the result's {tuple(value.shape)}")
    return tf.where(inside, value, outside)


_CBRT = _saturating(functools.partial(OPERATIONS["cbrt"].apply, xp))
_DIVIDE = _saturating(functools.partial(OPERATIONS["div"].apply, xp))
_POW = _saturating(functools.partial(OPERATIONS["pow"].apply, xp))
_ATAN2 = _saturating(functools.partial(OPERATIONS["atan2"].apply, xp))
_MOD = _saturating(tf.math.floormod)  # exact for large quotients, which the catalogue's formula leaves out


@tf.custom_gradient
def _hypot(x: Tensor, y: Tensor) -> Any:
    large, small = tf.maximum(tf.abs(x), tf.abs(y)), tf.minimum(tf.abs(x), tf.abs(y))
    missing = tf.math.is_nan(x) | tf.math.is_nan(y)  # maximum and minimum pass a NaN on in some modes only
    inside = ~missing & (large >= _smallest_normal(x.dtype)) & (large <= x.dtype.max)
    # Squares of a ratio neither overflow nor vanish; outside it is 0.
    ratio = tf.where(inside, small, tf.zeros_like(small)) / tf.where(inside, large, tf.ones_like(large))
    square = 1.0 + ratio * ratio
    # large * sqrt(square), as a quotient: XLA keeps those, and the gradient then reads the value, not x and y.
    half = tf.where(large > 1.0, _constant(0.5, x), _constant(1.0, x))  # large * square could overflow
    total = half * tf.where(missing, x + y, large) * square
    value = _clip(total / (half * tf.sqrt(square)), x.dtype.max)

    def gradient(upstream: Tensor) -> Any:
        here = _here(x, y)
        length = _hypot(*here)
        inside = (length >= _smallest_normal(x.dtype)) & (length < x.dtype.max)
        return [_product(upstream, tf.where(inside, divide(v, length), tf.zeros_like(v))) for v in here]

    return value, gradient


def divide(x: Any, y: Any, *, fill: Any = 0.0) -> Tensor:
    """x / y, and `fill` with gradient 0 where y is 0 (or both are infinite).

    Args:
        x: [...].
        y: [...], broadcasts with x.
        fill: the value where y is 0: a number or a tensor that broadcasts, such as ``tf.sign(x)``. It is a constant.
    """
    x, y = _floating(x, y)
    inside = _nonzero(y) & ~(tf.math.is_inf(x) & tf.math.is_inf(y))
    return _selected(inside, _DIVIDE, 1.0, tf.stop_gradient(fill), x, y)


def pow(x: Any, y: Any, *, fill: Any = 0.0) -> Tensor:
    """x to the power y.

    0 to the power 0 is 1, with gradient 0; 0 to a power between 0 and 1 is 0, with gradient 0; a negative x has integer
    powers, whose gradient in y is 0. `fill`, with gradient 0, stands where there is no real power: 0 to a negative
    one, or a negative x to one that is not whole.

    Args:
        x: [...].
        y: [...], broadcasts with x.
        fill: a number or a tensor that broadcasts.
    """
    x, y = _floating(x, y)
    zero, whole = ~_nonzero(x), y == tf.floor(y)
    inside = tf.where(zero, (y == 0) | (y >= 1), (x > 0) | whole) | tf.math.is_nan(x) | tf.math.is_nan(y)
    outside = tf.where(zero & (y > 0), _constant(0.0, x), tf.cast(tf.stop_gradient(fill), x.dtype))
    # A whole power of a negative number has no gradient in y; rounding it spares XLA, where -1 ** 1e-45 is NaN.
    return _selected(inside, _POW, 1.0, outside, x, tf.where(x < 0, tf.stop_gradient(tf.floor(y)), y))


def mod(x: Any, y: Any, *, fill: Any = 0.0) -> Tensor:
    """The remainder of x / y, with the sign of y, as Python's %; `fill` where y is 0 or an operand is infinite.

    Args:
        x: [...].
        y: [...], broadcasts with x.
        fill: a number or a tensor that broadcasts.
    """
    x, y = _floating(x, y)
    inside = _nonzero(y) & ~(tf.math.is_inf(x) | tf.math.is_inf(y))
    return _selected(inside, _MOD, 1.0, tf.stop_gradient(fill), x, y)


def atan2(y: Any, x: Any) -> Tensor:
    """The angle of the point (x, y), as `tf.atan2`; 0 with gradient 0 at the origin. [...] and [...] broadcast."""
    y, x = _floating(y, x)
    return _selected(_nonzero(x) | _nonzero(y), _ATAN2, 1.0, 0.0, y, x)


def hypot(x: Any, y: Any) -> Tensor:
    """sqrt(x**2 + y**2) without overflow; gradient 0 at the origin. [...] and [...] broadcast."""
    return _hypot(*_broadcast(*_floating(x, y)))


# --- functions of a row -----------------------------------------------------------------------------------------------


def norm(x: Any, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
    """The Euclidean norm along `axis` (of all entries by default), scaled so that squares neither overflow nor vanish.

    Args:
        x: [...].
        axis: the axis or axes of the vectors.
        keepdims: whether they stay, with length 1.

    Returns:
        The norms; the gradient at a zero vector is 0, and so is the second derivative.
    """
    (x,) = _floating(x)
    axes = _all_axes(x) if axis is None else axis
    x, missing = _put_aside_nan(x, axes)

    @tf.custom_gradient
    def length(x: Tensor) -> Any:
        top = tf.maximum(tf.reduce_max(tf.abs(x), axes, keepdims=True), 0.0)  # of no entries at all, too
        inside = (top >= _smallest_normal(x.dtype)) & (top <= x.dtype.max)
        scale = tf.where(inside, top, tf.ones_like(top))
        value = scale * tf.sqrt(tf.reduce_sum(tf.square(x / scale), axes, keepdims=True))
        value = _clip(tf.where(inside, value, top), x.dtype.max)  # a zero or infinite vector's is its maximum

        def gradient(upstream: Tensor) -> Tensor:
            (here,) = _here(x)
            inside_here, zero = tf.identity(inside), tf.zeros_like(here)
            direction = tf.where(inside_here, divide(here, length(here)), zero)
            return _product(tf.broadcast_to(upstream, tf.shape(here)), direction)

        return value, gradient

    value = tf.where(missing, _constant(np.nan, x), length(x))
    return value if keepdims else tf.squeeze(value, axes)


def _all_axes(x: Tensor) -> list[int]:
    if x.shape.rank is None:
        raise InvalidShapeError("x has an unknown rank; give the axis")
    return list(range(x.shape.rank))


def _put_aside_nan(x: Tensor, axis: Any) -> tuple[Tensor, Tensor]:
    """(x with zeros in rows that hold a NaN, which rows do): modes differ in how a NaN goes through a maximum."""
    # A sum keeps a NaN in every mode; 0 * x would make one of an infinity. XLA sums floats faster than it ors booleans.
    marks = tf.where(tf.math.is_nan(x), tf.ones_like(x), tf.zeros_like(x))
    missing = tf.reduce_sum(marks, axis, keepdims=True) > 0
    return tf.where(missing, tf.zeros_like(x), x), missing


def _shifted(x: Tensor, axis: Any) -> tuple[Tensor, Tensor]:
    """(x - max, max) along `axis`; a row whose maximum is infinite becomes 0 at the maximum and -inf elsewhere."""
    top = tf.stop_gradient(tf.reduce_max(x, axis, keepdims=True))
    infinite = tf.math.is_inf(top)
    extreme = tf.where(x == top, _constant(0.0, x), _constant(-np.inf, x))
    return tf.where(infinite, extreme, x - tf.where(infinite, tf.zeros_like(top), top)), top


def logsumexp(x: Any, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) along `axis`; entries of -inf count as nothing, a row of them gives -inf with gradient 0.

    Args:
        x: [...].
        axis: the axis or axes that are summed; all of them by default.
        keepdims: whether they stay, with length 1.
    """
    (x,) = _floating(x)
    axes = _all_axes(x) if axis is None else axis
    x, missing = _put_aside_nan(x, axes)
    shifted, top = _shifted(x, axes)
    value = tf.math.log(tf.reduce_sum(tf.exp(shifted), axes, keepdims=True)) + top  # the sum is at least 1
    value = tf.where(missing, _constant(np.nan, x), value)
    return value if keepdims else tf.squeeze(value, axes)


def softmax_entropy(logits: Any, axis: int = -1) -> Tensor:
    """The entropy, in nats, of the categorical distribution with these logits.

    A logit of -inf is an outcome of probability 0: it adds nothing, and its gradient is 0. A row of nothing but -inf
    counts as uniform; infinite logits share all of the probability.

    Args:
        logits: [..., K].
        axis: the axis of the K outcomes.

    Returns:
        [...], between 0 and log K.
    """
    (given,) = _floating(logits)
    wide = tf.cast(given, tf.float32) if given.dtype.size < 4 else given  # half precision can't count to K
    wide, missing = _put_aside_nan(wide, axis)
    shifted, _ = _shifted(wide, axis)
    possible = shifted > -np.inf
    finite = tf.where(possible, shifted, tf.zeros_like(shifted))
    weight = tf.where(possible, tf.exp(finite), tf.zeros_like(finite))
    total = tf.reduce_sum(weight, axis, keepdims=True)
    mean = tf.reduce_sum(weight / total * finite, axis)
    entropy = tf.math.log(tf.squeeze(total, axis)) - mean
    return tf.cast(tf.where(tf.squeeze(missing, axis), _constant(np.nan, entropy), entropy), given.dtype)


def _weights(projection: Callable[..., Tensor], logits: Any, axis: int) -> Tensor:
    """A projection of the logits less their maximum, in float32 at least: half precision can't count to K."""
    (logits,) = _floating(logits)
    wide, missing = _put_aside_nan(tf.cast(logits, tf.float32) if logits.dtype.size < 4 else logits, axis)
    weights = projection(_shifted(wide, axis)[0], axis)
    return tf.cast(tf.where(missing, _constant(np.nan, weights), weights), logits.dtype)


def sparsemax(logits: Any, axis: int = -1) -> Tensor:
    """The Euclidean projection of the logits onto the simplex: a softmax with exact zeros (Martins & Astudillo 2016).

    Exact for logits of any size; `keras.activations.sparsemax` overflows from about 1e8 on.

    Args:
        logits: [..., K]; -inf is an outcome of probability 0.
        axis: the axis of the K outcomes.

    Returns:
        [..., K] weights that sum to 1, with the gradient of the projection.
    """
    return _weights(_sparsemax, logits, axis)


def _sparsemax(shifted: Tensor, axis: int) -> Tensor:
    # Only the K largest can matter: with a gap of 1 below the maximum a logit has weight 0.
    z = tf.where(shifted > -1.0, shifted, -tf.ones_like(shifted))
    order = tf.sort(z, axis, direction="DESCENDING")
    count = tf.math.cumsum(tf.ones_like(order), axis)
    support = tf.stop_gradient(order) * count > tf.math.cumsum(tf.stop_gradient(order), axis) - 1.0
    size = tf.reduce_sum(tf.cast(support, z.dtype), axis, keepdims=True)
    excess = tf.reduce_sum(tf.where(support, order, tf.zeros_like(order)), axis, keepdims=True) - 1.0
    return tf.nn.relu(z - excess / size)


def entmax15(logits: Any, axis: int = -1) -> Tensor:
    """The 1.5-entmax of the logits: between softmax and sparsemax, smooth inside its support (Peters et al. 2019).

    The weights are ``max(z / 2 - t, 0) ** 2`` with the threshold t that makes them sum to 1, found exactly by sorting.

    Args:
        logits: [..., K]; -inf is an outcome of probability 0.
        axis: the axis of the K outcomes.

    Returns:
        [..., K] weights that sum to 1; an outcome 2 or more below the largest logit has none, and no gradient.
    """
    return _weights(_entmax15, logits, axis)


def _entmax15(shifted: Tensor, axis: int) -> Tensor:
    # The threshold is at least -1 where the maximum is 0, so what lies lower can be moved up to it.
    z = tf.where(shifted > -2.0, shifted / 2.0, -tf.ones_like(shifted))

    @tf.custom_gradient
    def threshold(z: Tensor) -> Any:
        order = tf.sort(z, axis, direction="DESCENDING")
        count = tf.math.cumsum(tf.ones_like(order), axis)
        mean = tf.math.cumsum(order, axis) / count
        scatter = tf.math.cumsum(tf.square(order), axis) - count * tf.square(mean)
        candidates = mean - tf.sqrt(tf.nn.relu((1.0 - scatter) / count))
        size = tf.reduce_sum(tf.cast(candidates <= order, z.dtype), axis, keepdims=True)
        value = tf.reduce_sum(tf.where(count == size, candidates, tf.zeros_like(order)), axis, keepdims=True)
        root = tf.nn.relu(z - value)  # one Newton step takes the rounding of the running sums away
        value += (tf.reduce_sum(tf.square(root), axis, keepdims=True) - 1.0) / (
            2.0 * tf.reduce_sum(root, axis, keepdims=True)
        )

        def gradient(upstream: Tensor) -> Tensor:
            (here,) = _here(z)
            root = tf.nn.relu(here - threshold(here))  # sum(root ** 2) = 1 keeps its value
            return upstream * root / tf.reduce_sum(root, axis, keepdims=True)

        return value, gradient

    return tf.square(tf.nn.relu(z - threshold(z)))


# --- what masks and estimators share -------------------------------------------------------------------------------


def check_temperature(temperature: Any, name: str = "temperature") -> None:
    """A number must be positive; a symbolic tensor (a schedule's value in a compiled loop) is taken as it is.

    Raises:
        ValueError: names the value.
    """
    if is_known(temperature) and not temperature > 0.0:
        raise ValueError(f"{name} must be > 0, got {temperature!r}")


def is_known(value: Any) -> bool:
    """Whether a value is a number that can be checked now: of Python, NumPy or an eager tensor."""
    if tf.is_tensor(value):
        return not isinstance(value, tf.Variable) and value.shape.rank == 0 and hasattr(value, "numpy")
    return isinstance(value, int | float | np.number)


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of `hard` [...] with the gradient of `soft` [...]: exactly that value, unlike ``(hard + soft) - soft``.

    A NaN in `soft` is passed on, so that it is seen; an infinite one has no gradient.
    """
    soft = tf.where(tf.math.is_inf(soft), tf.zeros_like(soft), soft)
    return hard + (soft - tf.stop_gradient(soft))
