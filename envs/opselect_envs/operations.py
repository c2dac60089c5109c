"""Scalar operations, each written once: its formula, its domain and a stand-in for inputs outside it.

An `Operation` is evaluated through an array namespace ``xp`` (NumPy, or `opselect.namespace.xp` for TensorFlow), so
both libraries run the same definition. Outside its domain an operation is never evaluated: `evaluate` puts the anchor
in the input's place *before* the formula and the fill value in the output's place *after* it. Masking only the output
would leave ``0 * inf = NaN`` in the gradient.

Domains are chosen for float32, the narrowest type the package computes in: inside them the value and its first two
derivatives are finite. Float32 denormals count as zero, because TensorFlow flushes them.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opselect_envs.naming import nearest

__all__ = [
    "BINARY",
    "FAMILIES",
    "OPERATIONS",
    "UNARY",
    "Bound",
    "Family",
    "InvalidOperationError",
    "Operation",
    "as_operation",
    "as_operations",
    "catalogued",
    "check_operation",
    "evaluate",
    "evaluate_together",
    "first_point",
    "probe_points",
    "probes",
    "together",
]

Array = Any
LARGEST = 3.4e38  # just below the largest float32
_E = np.e


class InvalidOperationError(ValueError):
    """An operation that is unknown, malformed, or not finite inside its own domain."""


@dataclass(frozen=True)
class Operation:
    """A scalar operation with the set of inputs where it may be evaluated.

    Attributes:
        name: the plain name, such as ``"log"``.
        arity: 1 or 2, how many operands `apply` and `domain` take.
        apply: ``apply(xp, *x) -> array``; elementwise, shape-preserving, written with functions of ``xp`` only.
        domain: ``domain(xp, *x) -> bool array``; true where `apply` and its derivatives are finite in float32. It must
            be false for NaN and infinite inputs: write ``abs(x) <= bound`` rather than ``x != 0``.
        anchor: a point well inside the domain (used for each operand) that stands in for inputs outside it.
        symbol: how the operation prints, with ``{0}`` and ``{1}`` for its operands, such as ``"log({0})"``.
        fill: the value given to inputs outside the domain.
    """

    name: str
    arity: int
    apply: Callable[..., Array]
    domain: Callable[..., Array]
    anchor: float
    symbol: str
    fill: float = 0.0

    def __call__(self, *x: Array) -> Array:
        """Evaluates on NumPy arrays (any shapes that broadcast); outside the domain the result is `fill`."""
        arrays = [np.asarray(v) for v in x]
        if len(arrays) == self.arity:  # numbers and integer arrays become float64
            arrays = [a if np.issubdtype(a.dtype, np.floating) else a.astype(np.float64) for a in arrays]
        return np.array(evaluate(np, self, *arrays)[0])  # never the caller's own array

    def __str__(self) -> str:
        return self.symbol.format("x", "y")

    def __reduce_ex__(self, protocol: Any) -> Any:
        if catalogued(self.name) is self:  # by name: formulas are lambdas, which pickle refuses
            return as_operation, (self.name,)
        return super().__reduce_ex__(protocol)


def evaluate(
    xp: Any, operation: Operation, *x: Array, extent: tuple[float, float] | None = None
) -> tuple[Array, Array]:
    """Evaluates an operation where it is defined, and nowhere else.

    Args:
        xp: NumPy or `opselect.namespace.xp`.
        operation: what to evaluate.
        *x: `operation.arity` floating-point arrays whose shapes broadcast to one shape [...].
        extent: the least and the greatest x, if known; may save NumPy from looking at every x.

    Returns:
        ``(value [...], defined [...] bool)``; `value` is finite everywhere and is `operation.fill` where not `defined`.
    """
    if len(x) != operation.arity:
        raise InvalidOperationError(f"operation {operation.name!r} takes {operation.arity} operand(s), got {len(x)}")
    domain = operation.domain
    if extent and isinstance(domain, _Within) and domain.low <= extent[0] and extent[1] <= domain.high:
        return operation.apply(xp, *x), np.isfinite(x[0])
    defined = domain(xp, *x)
    if xp is np and len(x) == 1 and np.count_nonzero(defined) == np.size(defined):  # there is nothing to guard against
        return operation.apply(np, *x), defined
    safe = [xp.where(defined, v, xp.full_like(v, operation.anchor)) for v in x]
    value = operation.apply(xp, *safe)
    return xp.where(defined, value, xp.full_like(value, operation.fill)), defined


# --- domains ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Within:
    low: float
    high: float

    def __call__(self, xp: Any, x: Array) -> Array:
        return (x >= self.low) & (x <= self.high)


def _magnitude(low: float, high: float) -> Callable[..., Array]:
    return lambda xp, x: (xp.abs(x) >= low) & (xp.abs(x) <= high)


def _both(bound: float) -> Callable[..., Array]:
    return lambda xp, x, y: (xp.abs(x) <= bound) & (xp.abs(y) <= bound)


_FINITE = _Within(-LARGEST, LARGEST)
# Beyond this a float32 is spaced by more than 0.004 and the period of sin is no longer resolved well.
_PERIODIC = _Within(-6e4, 6e4)


def _tan_domain(xp: Any, x: Array) -> Array:
    periodic = _PERIODIC(xp, x)
    return periodic & (xp.abs(xp.cos(xp.where(periodic, x, xp.zeros_like(x)))) >= 1e-2)


def _mul_domain(xp: Any, x: Array, y: Array) -> Array:
    one = xp.ones_like(y)
    finite = _both(LARGEST)(xp, x, y)
    bound = 3e38 / xp.maximum(xp.abs(xp.where(finite, y, one)), one)
    return finite & (xp.abs(x) <= bound)


def _div_domain(xp: Any, x: Array, y: Array) -> Array:
    # x/y, x/y**2 and x/y**3 (the second derivative) all stay below the largest float32.
    small = xp.minimum(xp.abs(y), xp.ones_like(y))
    room = 1e38 * small * small * small
    return (xp.abs(y) >= 1e-12) & (xp.abs(y) <= LARGEST) & (xp.abs(x) <= room)


def _pow_domain(xp: Any, x: Array, y: Array) -> Array:
    inside = (x >= 1e-6) & (x <= 1e6) & (xp.abs(y) <= 100.0)
    log_x = xp.log(xp.where(inside, x, xp.ones_like(x)))
    return inside & (xp.abs(xp.where(inside, y, xp.zeros_like(y)) * log_x) <= 40.0)


def _mod_domain(xp: Any, x: Array, y: Array) -> Array:
    # Past a quotient of 1e4 the remainder keeps fewer than four digits in float32.
    return (xp.abs(y) >= 1e-6) & (xp.abs(y) <= 1e30) & (xp.abs(x) <= 1e4 * xp.minimum(xp.abs(y), xp.full_like(y, 1e30)))


def _polar_domain(xp: Any, x: Array, y: Array) -> Array:
    largest = xp.maximum(xp.abs(x), xp.abs(y))
    return (largest >= 1e-8) & _both(1e16)(xp, x, y)


# --- formulas that need more than one call ----------------------------------------------------------------------------


def _sigmoid(xp: Any, x: Array) -> Array:
    return xp.exp(-xp.logaddexp(xp.zeros_like(x), -x))  # keeps its relative precision for very negative x


def _mod(xp: Any, x: Array, y: Array) -> Array:
    return x - y * xp.floor(x / y)  # the sign of y, as Python's %; one formula, so both libraries round alike


_DEFINITIONS: tuple[Operation, ...] = (
    Operation("identity", 1, lambda xp, x: x + 0.0, _FINITE, 1.0, "{0}"),
    Operation("neg", 1, lambda xp, x: -x, _FINITE, 1.0, "-{0}"),
    Operation("abs", 1, lambda xp, x: xp.abs(x), _FINITE, 1.0, "|{0}|"),
    Operation("square", 1, lambda xp, x: x * x, _Within(-1e19, 1e19), 1.0, "{0}²"),
    Operation("cube", 1, lambda xp, x: x * x * x, _Within(-6e12, 6e12), 1.0, "{0}³"),
    Operation("sqrt", 1, lambda xp, x: xp.sqrt(x), _Within(1e-24, LARGEST), 1.0, "√{0}"),
    Operation("cbrt", 1, lambda xp, x: xp.cbrt(x), _magnitude(1e-18, LARGEST), 1.0, "∛{0}"),
    Operation("inv", 1, lambda xp, x: 1.0 / x, _magnitude(1e-12, LARGEST), 1.0, "1/{0}"),
    Operation("exp", 1, lambda xp, x: xp.exp(x), _Within(-LARGEST, 88.0), 0.0, "exp({0})"),
    Operation("expm1", 1, lambda xp, x: xp.expm1(x), _Within(-LARGEST, 88.0), 0.0, "exp({0})-1"),
    Operation("log", 1, lambda xp, x: xp.log(x), _Within(1e-18, LARGEST), 1.0, "log({0})"),
    Operation("log1p", 1, lambda xp, x: xp.log1p(x), _Within(-1.0 + 2.0**-20, LARGEST), 0.0, "log(1+{0})"),
    Operation("sin", 1, lambda xp, x: xp.sin(x), _PERIODIC, 0.0, "sin({0})"),
    Operation("cos", 1, lambda xp, x: xp.cos(x), _PERIODIC, 0.0, "cos({0})"),
    Operation("tan", 1, lambda xp, x: xp.tan(x), _tan_domain, 0.0, "tan({0})"),
    Operation("asin", 1, lambda xp, x: xp.arcsin(x), _Within(-1 + 2.0**-20, 1 - 2.0**-20), 0.0, "asin({0})"),
    Operation("acos", 1, lambda xp, x: xp.arccos(x), _Within(-1 + 2.0**-20, 1 - 2.0**-20), 0.0, "acos({0})"),
    Operation("atan", 1, lambda xp, x: xp.arctan(x), _Within(-1e18, 1e18), 0.0, "atan({0})"),
    Operation("sinh", 1, lambda xp, x: xp.sinh(x), _Within(-88.0, 88.0), 0.0, "sinh({0})"),
    Operation("cosh", 1, lambda xp, x: xp.cosh(x), _Within(-88.0, 88.0), 0.0, "cosh({0})"),
    Operation("tanh", 1, lambda xp, x: xp.tanh(x), _FINITE, 0.0, "tanh({0})"),
    Operation("asinh", 1, lambda xp, x: xp.arcsinh(x), _Within(-1e18, 1e18), 0.0, "asinh({0})"),
    Operation("acosh", 1, lambda xp, x: xp.arccosh(x), _Within(1 + 2.0**-20, 1e18), 2.0, "acosh({0})"),
    Operation("atanh", 1, lambda xp, x: xp.arctanh(x), _Within(-1 + 2.0**-20, 1 - 2.0**-20), 0.0, "atanh({0})"),
    Operation("sigmoid", 1, _sigmoid, _FINITE, 0.0, "sigmoid({0})"),
    Operation("softplus", 1, lambda xp, x: xp.logaddexp(xp.zeros_like(x), x), _FINITE, 0.0, "softplus({0})"),
    Operation("relu", 1, lambda xp, x: xp.maximum(x, xp.zeros_like(x)), _FINITE, 1.0, "relu({0})"),
    Operation("sign", 1, lambda xp, x: xp.sign(x), _FINITE, 1.0, "sign({0})"),
    Operation("floor", 1, lambda xp, x: xp.floor(x), _FINITE, 0.5, "floor({0})"),
    Operation("ceil", 1, lambda xp, x: xp.ceil(x), _FINITE, 0.5, "ceil({0})"),
    Operation("round", 1, lambda xp, x: xp.round(x), _FINITE, 0.25, "round({0})"),
    Operation("gaussian", 1, lambda xp, x: xp.exp(-x * x), _Within(-1e18, 1e18), 0.0, "exp(-{0}²)"),
    Operation("increment", 1, lambda xp, x: x + 1.0, _FINITE, 1.0, "{0}+1"),
    Operation("decrement", 1, lambda xp, x: x - 1.0, _FINITE, 1.0, "{0}-1"),
    Operation("double", 1, lambda xp, x: x + x, _Within(-1.7e38, 1.7e38), 1.0, "2{0}"),
    Operation("half", 1, lambda xp, x: 0.5 * x, _FINITE, 1.0, "{0}/2"),
    Operation("add", 2, lambda xp, x, y: x + y, _both(1.7e38), 1.0, "{0}+{1}"),
    Operation("sub", 2, lambda xp, x, y: x - y, _both(1.7e38), 1.0, "{0}-{1}"),
    Operation("mul", 2, lambda xp, x, y: x * y, _mul_domain, 1.0, "{0}*{1}"),
    Operation("div", 2, lambda xp, x, y: x / y, _div_domain, 1.0, "{0}/{1}"),
    Operation("pow", 2, lambda xp, x, y: xp.power(x, y), _pow_domain, 1.0, "{0}^{1}"),
    Operation("max", 2, lambda xp, x, y: xp.maximum(x, y), _both(LARGEST), 1.0, "max({0},{1})"),
    Operation("min", 2, lambda xp, x, y: xp.minimum(x, y), _both(LARGEST), 1.0, "min({0},{1})"),
    Operation("mod", 2, _mod, _mod_domain, 1.0, "{0} mod {1}"),
    Operation("hypot", 2, lambda xp, x, y: xp.sqrt(x * x + y * y), _polar_domain, 1.0, "hypot({0},{1})"),
    Operation("atan2", 2, lambda xp, x, y: xp.arctan2(x, y), _polar_domain, 1.0, "atan2({0},{1})"),
)

OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _DEFINITIONS}
UNARY: tuple[str, ...] = tuple(name for name, operation in OPERATIONS.items() if operation.arity == 1)
BINARY: tuple[str, ...] = tuple(name for name, operation in OPERATIONS.items() if operation.arity == 2)


# --- families ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """A function of a family with its parameters filled in: `Operation.apply` and `.domain` of the family's members."""

    function: Callable[..., Array]
    parameters: tuple[float, ...]

    def __call__(self, xp: Any, x: Array) -> Array:
        """``function(xp, x, *parameters)``."""
        return self.function(xp, x, *self.parameters)


@dataclass(frozen=True)
class Family:
    """Unary operations that differ in parameters alone, such as ``shift(0.5)``; many are evaluated in one go.

    Attributes:
        name: the plain name, such as ``"shift"``.
        parameters: their names.
        apply: ``apply(xp, x, *parameters) -> array``; the parameters are numbers, or NumPy arrays that broadcast to x.
        domain: ``domain(xp, x, *parameters) -> bool array``, as of `Operation`.
        symbol: how a member prints, with ``{0}`` for the operand and the parameters by name.
        anchor: inside the domain of every member.
        largest: the largest size of a parameter.
    """

    name: str
    parameters: tuple[str, ...]
    apply: Callable[..., Array]
    domain: Callable[..., Array]
    symbol: str
    anchor: float = 0.0
    largest: float = 1e6

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.parameters)})"

    def __call__(self, *parameters: float) -> Operation:
        """The member with these parameters, which are taken as float32.

        Raises:
            InvalidOperationError: not as many as there must be, or one that is out of range.
        """
        values = tuple(float(np.float32(p)) for p in parameters)
        if len(values) != len(self.parameters):
            raise InvalidOperationError(f"{self} takes {len(self.parameters)} parameter(s), got {parameters}")
        for name, value in zip(self.parameters, values, strict=True):
            if not abs(value) <= self.largest:
                raise InvalidOperationError(
                    f"{self}: {name} must be in [{-self.largest:g}, {self.largest:g}], got {value!r}"
                )
        return _member(self, values)


def _bounded(xp: Any, x: Array, *_: Array) -> Array:
    return xp.abs(x) <= 1e30


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("shift", ("c",), lambda xp, x, c: x + c, _bounded, "{0}+({c})"),
        Family("scale", ("c",), lambda xp, x, c: x * c, _bounded, "{c}*{0}"),
        Family("affine", ("a", "b"), lambda xp, x, a, b: x * a + b, _bounded, "{a}*{0}+({b})"),
        Family(
            "wave",
            ("f",),
            lambda xp, x, f: xp.sin(x * f),
            lambda xp, x, f: xp.abs(x) <= 6e4 / np.maximum(np.abs(f), 1.0),  # where a float32 still resolves the period
            "sin({f}*{0})",
            largest=1e4,
        ),
    )
}


@functools.lru_cache(maxsize=8192)
def _member(family: Family, parameters: tuple[float, ...]) -> Operation:
    shown = [str(np.float32(p)).removesuffix(".0") for p in parameters]
    named = dict(zip(family.parameters, shown, strict=True))
    return Operation(
        name=f"{family.name}({','.join(shown)})",
        arity=1,
        apply=Bound(family.apply, parameters),
        domain=Bound(family.domain, parameters),
        anchor=family.anchor,
        symbol=family.symbol.format("{0}", **named),
    )


def together(operations: Sequence[Operation]) -> tuple[tuple[Operation, ...], ...]:
    """Splits operations into runs that `evaluate_together` takes: neighbours of one family, or one operation alone."""

    def formula(operation: Operation) -> Any:
        apply, domain = operation.apply, operation.domain
        if isinstance(apply, Bound) and isinstance(domain, Bound):
            return apply.function, domain.function, operation.anchor, operation.fill
        return operation.name

    return tuple(tuple(run) for _, run in itertools.groupby(operations, formula))


def evaluate_together(xp: Any, operations: Sequence[Operation], x: Array) -> tuple[Array, Array]:
    """`evaluate` for n members of one family at once.

    Args:
        xp: NumPy or `opselect.namespace.xp`.
        operations: the members, one of the runs of `together`.
        x: [...].

    Returns:
        ``(values, defined)``: [n, ...] for NumPy, which is fast along memory, and [..., n] otherwise.
    """
    apply, domain = operations[0].apply, operations[0].domain
    assert isinstance(apply, Bound) and isinstance(domain, Bound)
    parameters = np.array([op.apply.parameters for op in operations], np.float32).T  # pyright: ignore[reportFunctionMemberAccess]
    if xp is np:
        parameters = parameters.astype(x.dtype).reshape(*parameters.shape, *[1] * np.ndim(x))
        wide = np.broadcast_to(x, (len(operations), *np.shape(x)))
    else:
        wide = x[..., None] + xp.zeros_like(x[..., None]) * parameters[0]
    joint = Operation(
        operations[0].name,
        1,
        lambda xp, x: apply.function(xp, x, *parameters),
        lambda xp, x: domain.function(xp, x, *parameters),
        operations[0].anchor,
        "",
        operations[0].fill,
    )
    return evaluate(xp, joint, wide)


# --- looking up and checking ------------------------------------------------------------------------------------------

_CALL = re.compile(r"\s*(\w+)\s*\(([^()]*)\)\s*")


def catalogued(name: str) -> Operation | None:
    """The catalogue's operation or the family's member of that name, such as ``"log"`` or ``"shift(0.5)"``, or None.

    Raises:
        InvalidOperationError: a family's name with parameters that it does not take.
    """
    call = _CALL.fullmatch(name)
    if call is None or call[1] not in FAMILIES:
        return OPERATIONS.get(name)
    family = FAMILIES[call[1]]
    try:
        values = [float(part) for part in call[2].split(",")]
    except ValueError:
        raise InvalidOperationError(f"{family} takes numbers, got {name!r}") from None
    return family(*values)


def as_operation(operation: str | Operation) -> Operation:
    """Returns the catalogue's operation of that name, or the user's own after `check_operation`.

    Raises:
        InvalidOperationError: the name is unknown (the nearest known name is suggested), or the operation is wrong.
    """
    if isinstance(operation, Operation):
        known = catalogued(operation.name)
        if known is None:
            check_operation(operation)
        elif known is not operation:
            raise InvalidOperationError(
                f"operation {operation.name!r}: the catalogue has that name; give yours another"
            )
        return operation
    known = catalogued(operation) if isinstance(operation, str) else None
    if known is None:
        names = [*OPERATIONS, *map(str, FAMILIES.values())]
        raise InvalidOperationError(
            f"unknown operation {operation!r}; did you mean {nearest(operation, names)!r}? Known: {', '.join(names)}"
        )
    return known


def as_operations(operations: Iterable[str | Operation], *, arity: int | None = None) -> tuple[Operation, ...]:
    """Looks up several operations; with `arity`, all must take that many operands.

    Raises:
        InvalidOperationError: an unknown or wrong operation, fewer than two, a repeated name, or a wrong arity.
    """
    if isinstance(operations, str) or not isinstance(operations, Iterable):
        raise InvalidOperationError(f"operations must be a sequence of operations, got {operations!r}")
    found = tuple(as_operation(operation) for operation in operations)
    names = [operation.name for operation in found]
    if len(found) < 2:
        raise InvalidOperationError(f"operations must hold at least 2 operations to choose from, got {names}")
    for name, count in collections.Counter(names).items():
        if count > 1:
            raise InvalidOperationError(f"operations holds {name!r} more than once: {names}")
    for operation in found:
        if arity is not None and operation.arity != arity:
            fitting = UNARY if arity == 1 else BINARY
            near = nearest(operation.name, fitting)
            raise InvalidOperationError(
                f"operation {operation.name!r} takes {operation.arity} operands where {arity} is needed;"
                f" the nearest fitting name is {near!r}"
            )
    return found


def probes() -> np.ndarray:
    """Inputs [N] float32 at which an operation is most likely to be wrong, and ordinary ones."""
    tiny = np.array([1e-45, 1e-40, 1.2e-38, 1e-30, 1e-20, 1e-12, 1e-7, 1e-3], np.float64)
    large = np.array([1e3, 1e4, 1e6, 1e12, 1e18, 1e19, 1e30, 1e38, 3.4e38], np.float64)
    special = np.array([0.0, 0.5, 1.0, 1.5, 2.0, _E, 3.0, np.pi / 2, np.pi, 80.0, 87.0, 88.0, 88.5, 89.0, 100.0])
    near = np.concatenate([special * (1 + 2.0**-23), special * (1 - 2.0**-23)])
    grid = np.concatenate([np.linspace(0, 4, 33), np.logspace(-10, 10, 41)])
    positive = np.concatenate([tiny, large, special, near, grid])
    values = np.concatenate([positive, -positive, [np.inf, -np.inf, np.nan]]).astype(np.float32)
    return np.unique(values)


def probe_points(arity: int) -> list[np.ndarray]:
    """`probes` for one operand, or all pairs of them for two: `arity` arrays [N]."""
    if arity == 1:
        return [probes()]
    return [grid.ravel() for grid in np.meshgrid(probes(), probes(), indexing="ij")]


def first_point(points: Sequence[np.ndarray], bad: np.ndarray) -> str:
    """The first bad point, as it is shown in a message."""
    first = int(np.flatnonzero(bad)[0])
    return ", ".join(f"{name} = {float(p[first])!r}" for name, p in zip("xy", points, strict=False))


@functools.lru_cache(maxsize=1024)
def check_operation(operation: Operation) -> Operation:
    """Refuses an operation whose domain admits a value or a slope that is not finite in float32.

    Probes extremes, denormals, infinities, NaN and ordinary values. The slope is probed with NumPy alone, by difference
    quotients that shrink towards the point; `opselect.namespace.check_gradient` repeats it with exact derivatives.

    Raises:
        InvalidOperationError: names the operation and the offending x.
    """
    label = f"operation {operation.name!r}"
    if operation.arity not in (1, 2):
        raise InvalidOperationError(f"{label}: arity must be 1 or 2, got {operation.arity!r}")
    if not np.isfinite(operation.anchor) or not np.isfinite(operation.fill):
        raise InvalidOperationError(
            f"{label}: anchor and fill must be finite, got {operation.anchor!r} and {operation.fill!r}"
        )
    points = probe_points(operation.arity)
    with np.errstate(all="ignore"):
        try:
            defined = operation.domain(np, *points)
            anchored = operation.domain(np, *(np.full(1, operation.anchor, np.float32) for _ in points))
        except Exception as error:
            raise InvalidOperationError(f"{label}: domain(numpy, x) failed with {error!r}") from error
        if np.shape(defined) != points[0].shape or np.asarray(defined).dtype != bool:
            raise InvalidOperationError(f"{label}: domain must return booleans of the shape of x, got {defined!r}")
        if not np.all(anchored):
            raise InvalidOperationError(f"{label}: its anchor {operation.anchor!r} is outside its own domain")
        admitted = defined & ~np.logical_and.reduce([np.isfinite(p) for p in points])
        if np.any(admitted):
            where = first_point(points, admitted)
            raise InvalidOperationError(f"{label}: its domain admits {where}, which is not a finite number")
        inside = [p[defined] for p in points]
        try:
            value = np.asarray(operation.apply(np, *inside))
        except Exception as error:
            raise InvalidOperationError(f"{label}: apply(numpy, x) failed with {error!r}") from error
        if value.shape != inside[0].shape:
            raise InvalidOperationError(
                f"{label}: apply must be elementwise, but shape {inside[0].shape} became {value.shape}"
            )
        wrong = ~np.isfinite(value)
        if np.any(wrong):
            where = first_point(inside, wrong)
            raise InvalidOperationError(
                f"{label}: its domain admits {where}, where its value is {float(value[wrong][0])}"
            )
        singular = _singular(operation, inside)
        if np.any(singular):
            where = first_point(inside, singular)
            raise InvalidOperationError(f"{label}: its domain admits {where}, where its gradient is not finite")
    return operation


def _singular(operation: Operation, points: Sequence[np.ndarray]) -> np.ndarray:
    """Where the slope grows without bound (a kink or a jump has none, and is fine): difference quotients in float64."""
    wide = [np.where(np.abs(p) < np.finfo(np.float32).tiny, 0.0, p).astype(np.float64) for p in points]
    base = np.asarray(operation.apply(np, *wide), np.float64)
    singular = np.zeros(base.shape, bool)
    for axis, side in ((a, s) for a in range(len(wide)) for s in (-1.0, 1.0)):
        slopes, changes = [], []
        # All steps are finer than float32 is spaced, so a kink at another float32 lies outside them.
        for exponent in (-26, -31, -36, -41):
            step = side * np.maximum(np.abs(wide[axis]), 1e-30) * 2.0**exponent
            moved = [p + step if i == axis else p for i, p in enumerate(wide)]
            change = np.abs(np.asarray(operation.apply(np, *moved), np.float64) - base)
            changes.append(change)
            slopes.append(change / np.abs(step))
        # At a singularity |step|**a, a < 1, the slope grows while the change itself vanishes; a jump (floor, sign)
        # keeps its change, a kink (abs, max) its slope, and rounding noise is too small to count.
        audible = changes[-1] > 1e-12 * np.maximum(np.abs(base), 1e-12)
        vanishing = np.logical_and.reduce([b < 0.9 * a for a, b in itertools.pairwise(changes)])
        growing = np.logical_and.reduce([b > 1.2 * a for a, b in itertools.pairwise(slopes)])
        overflowing = slopes[-1] > np.finfo(np.float32).max
        singular |= audible & vanishing & (growing | overflowing)
    return singular
