"""The catalogue under NumPy, against formulas of Python's math module, and what a user may add to it."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from opselect_envs import FAMILIES, OPERATIONS, Family, InvalidOperationError, Operation, check_operation
from opselect_envs.operations import (
    BINARY,
    UNARY,
    as_operation,
    as_operations,
    evaluate,
    evaluate_together,
    probes,
    together,
)

# What each operation is, in plain Python, with ordinary points at which the value is not 0.
UNARY_FORMULAS = {
    "identity": (lambda x: x, [-1.7, 0.3, 5.0]),
    "neg": (lambda x: 0.0 - x, [-1.7, 0.3, 5.0]),
    "abs": (math.fabs, [-1.7, 0.3, 5.0]),
    "square": (lambda x: x**2, [-1.7, 0.3, 5.0]),
    "cube": (lambda x: x**3, [-1.7, 0.3, 5.0]),
    "sqrt": (math.sqrt, [0.04, 0.3, 5.0]),
    "cbrt": (lambda x: math.copysign(abs(x) ** (1 / 3), x), [-27.0, 0.3, 5.0]),
    "inv": (lambda x: x**-1, [-1.7, 0.3, 5.0]),
    "exp": (math.exp, [-1.7, 0.3, 5.0]),
    "expm1": (lambda x: math.exp(x) - 1, [-1.7, 0.3, 5.0]),
    "log": (math.log, [0.04, 0.3, 5.0]),
    "log1p": (lambda x: math.log(1 + x), [-0.7, 0.3, 5.0]),
    "sin": (math.sin, [-1.7, 0.3, 5.0]),
    "cos": (math.cos, [-1.7, 0.3, 5.0]),
    "tan": (lambda x: math.sin(x) / math.cos(x), [-1.7, 0.3, 5.0]),
    "asin": (math.asin, [-0.9, 0.3, 0.99]),
    "acos": (math.acos, [-0.9, 0.3, 0.99]),
    "atan": (math.atan, [-1.7, 0.3, 5.0]),
    "sinh": (lambda x: (math.exp(x) - math.exp(-x)) / 2, [-1.7, 0.3, 5.0]),
    "cosh": (lambda x: (math.exp(x) + math.exp(-x)) / 2, [-1.7, 0.3, 5.0]),
    "tanh": (lambda x: 1 - 2 / (math.exp(2 * x) + 1), [-1.7, 0.3, 5.0]),
    "asinh": (lambda x: math.log(x + math.sqrt(x * x + 1)), [-1.7, 0.3, 5.0]),
    "acosh": (lambda x: math.log(x + math.sqrt(x * x - 1)), [1.1, 2.3, 5.0]),
    "atanh": (lambda x: math.log((1 + x) / (1 - x)) / 2, [-0.9, 0.3, 0.99]),
    "sigmoid": (lambda x: 1 / (1 + math.exp(-x)), [-1.7, 0.3, 5.0]),
    "softplus": (lambda x: math.log(1 + math.exp(x)), [-1.7, 0.3, 5.0]),
    "relu": (lambda x: x if x > 0 else 0.0, [0.04, 0.3, 5.0]),
    "sign": (lambda x: math.copysign(1.0, x), [-1.7, 0.3, 5.0]),
    "floor": (math.floor, [-1.7, -0.3, 5.6]),
    "ceil": (math.ceil, [-1.7, 0.3, 5.6]),
    "round": (round, [-1.7, 2.5, 3.5]),
    "gaussian": (lambda x: math.e ** -(x**2), [-1.7, 0.3, 2.0]),
    "increment": (lambda x: x + 1, [-1.7, 0.3, 5.0]),
    "decrement": (lambda x: x - 1, [-1.7, 0.3, 5.0]),
    "double": (lambda x: 2 * x, [-1.7, 0.3, 5.0]),
    "half": (lambda x: x / 2, [-1.7, 0.3, 5.0]),
}
BINARY_FORMULAS = {
    "add": (lambda x, y: x + y, [(-1.7, 0.4), (2.5, 3.0)]),
    "sub": (lambda x, y: x - y, [(-1.7, 0.4), (2.5, 3.0)]),
    "mul": (lambda x, y: x * y, [(-1.7, 0.4), (2.5, 3.0)]),
    "div": (lambda x, y: x / y, [(-1.7, 0.4), (2.5, 3.0)]),
    "pow": (lambda x, y: math.exp(y * math.log(x)), [(1.7, -0.4), (2.5, 3.0)]),
    "max": (lambda x, y: x if x > y else y, [(-1.7, 0.4), (2.5, 3.0)]),
    "min": (lambda x, y: x if x < y else y, [(-1.7, 0.4), (2.5, 3.0)]),
    "mod": (lambda x, y: x % y, [(-1.7, 0.4), (2.5, 3.0), (7.3, -2.0)]),
    "hypot": (math.hypot, [(-1.7, 0.4), (2.5, 3.0)]),
    "atan2": (math.atan2, [(-1.7, 0.4), (2.5, -3.0)]),
}
# A point outside the domain of each operation that has such points among ordinary numbers.
OUTSIDE = {"sqrt": -0.5, "log": -0.5, "log1p": -1.5, "asin": 1.5, "acos": -1.5, "acosh": 0.5, "atanh": 2.0, "inv": 0.0}


def test_the_catalogue_is_the_tested_one() -> None:
    assert set(UNARY_FORMULAS) == set(UNARY)
    assert set(BINARY_FORMULAS) == set(BINARY)
    assert len(UNARY) >= 24
    assert len(BINARY) >= 6
    assert list(OPERATIONS) == [operation.name for operation in OPERATIONS.values()]


@pytest.mark.parametrize("name", UNARY)
def test_unary_values(name: str) -> None:
    formula, points = UNARY_FORMULAS[name]
    expected = [float(formula(x)) for x in points]
    assert all(value != 0 for value in expected)
    np.testing.assert_allclose(OPERATIONS[name](points), expected, rtol=1e-12)
    single = OPERATIONS[name](np.array(points, np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=2e-6)


@pytest.mark.parametrize("name", BINARY)
def test_binary_values(name: str) -> None:
    formula, points = BINARY_FORMULAS[name]
    expected = [float(formula(x, y)) for x, y in points]
    assert all(value != 0 for value in expected)
    x, y = np.array(points).T
    np.testing.assert_allclose(OPERATIONS[name](x, y), expected, rtol=1e-12)
    np.testing.assert_allclose(OPERATIONS[name](x.astype(np.float32), y.astype(np.float32)), expected, rtol=2e-6)
    grid = OPERATIONS[name](x[:, None], y)  # broadcasts
    assert grid.shape == (len(points), len(points))
    np.testing.assert_array_equal(np.diag(grid), OPERATIONS[name](x, y))


@pytest.mark.parametrize("name", OPERATIONS)
def test_finite_at_the_extremes_and_never_evaluated_outside_the_domain(name: str) -> None:
    operation = OPERATIONS[name]
    points = [probes()]
    if operation.arity == 2:
        points = [grid.ravel() for grid in np.meshgrid(points[0], points[0])]
    with np.errstate(invalid="ignore"):  # a domain may compare with NaN
        defined = operation.domain(np, *points)
    inside = [p[defined] for p in points]
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        operation.apply(np, *inside)  # inside, nothing overflows or divides by zero
    value = operation(*points)
    assert value.dtype == np.float32
    assert np.isfinite(value).all()
    assert (value[~defined] == operation.fill).all()
    assert defined.any()


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside_the_domain(name: str) -> None:
    filled = dataclasses.replace(OPERATIONS[name], fill=7.5)
    inside = UNARY_FORMULAS[name][1][1]
    value, defined = evaluate(np, filled, np.array([OUTSIDE[name], inside]))
    assert defined.tolist() == [False, True]
    assert value[0] == 7.5
    assert value[1] == pytest.approx(UNARY_FORMULAS[name][0](inside))


@pytest.mark.parametrize("name", OPERATIONS)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_any_float_gives_a_finite_value(name: str, data: st.DataObject) -> None:
    floats = st.floats(width=32)
    operation = OPERATIONS[name]
    x = [np.array([data.draw(floats)], np.float32) for _ in range(operation.arity)]
    value, defined = evaluate(np, operation, *x)
    assert np.isfinite(value).all()
    assert defined[0] or value[0] == operation.fill


@pytest.mark.parametrize("name", UNARY)
@settings(deadline=None, max_examples=50)
@given(x=arrays(np.float32, st.integers(1, 20), elements=st.floats(-50, 50, width=32)))
def test_shortcuts_change_nothing(name: str, x: np.ndarray) -> None:
    # With a NaN among the inputs, and without knowing their extent, every input is guarded.
    guarded = [a[1:] for a in evaluate(np, OPERATIONS[name], np.concatenate([np.float32([np.nan]), x]))]
    plain = evaluate(np, OPERATIONS[name], x)
    told = evaluate(np, OPERATIONS[name], x, extent=(float(x.min()), float(x.max())))
    for expected, a, b in zip(guarded, plain, told, strict=True):
        np.testing.assert_array_equal(a, expected)
        np.testing.assert_array_equal(b, expected)
        assert a.dtype == b.dtype == expected.dtype


def test_wrong_number_of_operands() -> None:
    with pytest.raises(InvalidOperationError, match=r"'add' takes 2 operand\(s\), got 1"):
        OPERATIONS["add"](1.0)
    with pytest.raises(InvalidOperationError, match=r"'sin' takes 1 operand\(s\), got 2"):
        OPERATIONS["sin"](1.0, 2.0)


def test_printing() -> None:
    assert str(OPERATIONS["log"]) == "log(x)"
    assert str(OPERATIONS["max"]) == "max(x,y)"


def test_copies_and_pickles_of_the_catalogue_are_the_catalogue() -> None:
    for operation in OPERATIONS.values():
        assert pickle.loads(pickle.dumps(operation)) is operation
        assert copy.deepcopy(operation) is operation


# --- a user's own -----------------------------------------------------------------------------------------------------


def shifted_square(xp, x):  # at module level, so that it can be pickled
    return x * x + 2.0


def moderate(xp, x):
    return xp.abs(x) <= 1e18


OWN = Operation("shifted_square", 1, shifted_square, moderate, 1.0, "{0}²+2")


def test_a_users_operation() -> None:
    assert check_operation(OWN) is OWN
    assert as_operation(OWN) is OWN
    assert OWN(3.0) == 11.0
    assert as_operations(["sin", OWN]) == (OPERATIONS["sin"], OWN)
    assert pickle.loads(pickle.dumps(OWN)) == OWN


def test_the_result_is_never_the_callers_array() -> None:
    same = Operation("same", 1, lambda xp, x: x, moderate, 1.0, "{0}")
    x = np.array([1.0, 2.0])
    result = same(x)
    assert result.tolist() == [1.0, 2.0]
    assert not np.shares_memory(result, x)


def _own(**changes: object) -> Operation:
    return dataclasses.replace(OWN, name="mine", **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # the value is not finite: log at 0, 1/x at 0, exp above 88.7
        (
            {"apply": lambda xp, x: xp.log(x), "domain": lambda xp, x: (x >= 0) & (x < 1e9)},
            r"domain admits x = -?0\.0, where its value is -inf",
        ),
        (
            {"apply": lambda xp, x: 1.0 / x, "domain": lambda xp, x: xp.abs(x) < 1e9},
            r"domain admits x = -?(0\.0|1e-4\d|1\.4\d*e-45|9\.99\d*e-41), where its value is -?inf",
        ),
        (
            {"apply": lambda xp, x: xp.exp(x), "domain": lambda xp, x: xp.abs(x) < 1e9},
            r"domain admits x = 8[89]\.\d+, where its value is inf",
        ),
        (
            {"apply": lambda xp, x: xp.arcsin(x), "domain": lambda xp, x: xp.abs(x) <= 1.6},
            r"domain admits x = -1\.5[\d]*, where its value is nan",
        ),
        # the value is finite, its slope is not: sqrt at 0, asin at -1
        (
            {"apply": lambda xp, x: xp.sqrt(x), "domain": lambda xp, x: (x >= 0) & (x < 1e30)},
            r"domain admits x = -?0\.0, where its gradient is not finite",
        ),
        (
            {"apply": lambda xp, x: xp.arcsin(x), "domain": lambda xp, x: xp.abs(x) <= 1, "anchor": 0.0},
            r"domain admits x = -1\.0, where its gradient is not finite",
        ),
        # the domain lets through what is not a number
        ({"domain": lambda xp, x: x != 0}, r"domain admits x = -inf, which is not a finite number"),
        ({"domain": lambda xp, x: ~(xp.abs(x) > 1e9)}, r"domain admits x = nan, which is not a finite number"),
        # malformed
        ({"domain": lambda xp, x: x}, r"domain must return booleans of the shape of x"),
        ({"domain": lambda xp, x: True}, r"domain must return booleans of the shape of x"),
        ({"domain": lambda xp, x: xp.no_such_function(x)}, r"domain\(numpy, x\) failed with AttributeError"),
        ({"apply": lambda xp, x: xp.sum(x)}, r"apply must be elementwise, but shape \(\d+,\) became \(\)"),
        ({"apply": lambda xp, x: x["a"]}, r"apply\(numpy, x\) failed with IndexError"),
        ({"arity": 3}, r"arity must be 1 or 2, got 3"),
        ({"anchor": 1e30}, r"its anchor 1e\+30 is outside its own domain"),
        ({"anchor": math.nan}, r"anchor and fill must be finite, got nan and 0\.0"),
        ({"fill": math.inf}, r"anchor and fill must be finite, got 1\.0 and inf"),
    ],
)
def test_a_wrong_operation_is_refused_by_name_and_point(changes: dict, message: str) -> None:
    with pytest.raises(InvalidOperationError, match="operation 'mine': .*" + message):
        as_operation(_own(**changes))


def test_a_wrong_binary_operation_names_both_operands() -> None:
    ratio = Operation("ratio", 2, lambda xp, x, y: x / y, lambda xp, x, y: (abs(x) < 9) & (abs(y) < 9), 1.0, "{0}/{1}")
    with pytest.raises(
        InvalidOperationError, match=r"operation 'ratio': its domain admits x = \S+, y = \S+, where its value"
    ):
        check_operation(ratio)


@pytest.mark.parametrize(
    "kink", [lambda xp, x: xp.abs(x), lambda xp, x: xp.floor(x), lambda xp, x: xp.maximum(x, 0.1 * x)]
)
def test_kinks_and_jumps_are_no_singularities(kink: object) -> None:
    assert check_operation(_own(apply=kink)).name == "mine"


@pytest.mark.parametrize(
    ("name", "nearest"), [("sine", "sin"), ("logg", "log"), ("sigmoide", "sigmoid"), ("divide", "div")]
)
def test_an_unknown_name_suggests_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(InvalidOperationError, match=f"unknown operation {name!r}; did you mean {nearest!r}"):
        as_operation(name)


def test_what_a_choice_of_operations_must_be() -> None:
    with pytest.raises(InvalidOperationError, match="must be a sequence of operations, got 'sin'"):
        as_operations("sin")
    with pytest.raises(InvalidOperationError, match=r"at least 2 operations to choose from, got \['sin'\]"):
        as_operations(["sin"])
    with pytest.raises(InvalidOperationError, match="holds 'sin' more than once"):
        as_operations(["sin", "cos", "sin"])
    with pytest.raises(InvalidOperationError, match="'add' takes 2 operands where 1 is needed; the nearest fitting"):
        as_operations(["sin", "add"], arity=1)


# --- families ---------------------------------------------------------------------------------------------------------

MEMBERS = ["shift(0.5)", "shift(-2)", "scale(3)", "affine(2,-1)", "wave(7.5)", "wave(0.25)"]
FAMILY_FORMULAS: dict[str, Callable[..., float]] = {
    "shift": lambda x, c: x + c,
    "scale": lambda x, c: c * x,
    "affine": lambda x, a, b: a * x + b,
    "wave": lambda x, f: math.sin(f * x),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_members_of_families(name: str) -> None:
    family, numbers = name[:-1].split("(")
    parameters = [float(n) for n in numbers.split(",")]
    points = [-2.0, -0.75, 0.3, 1.5]
    expected = [FAMILY_FORMULAS[family](x, *parameters) for x in points]
    operation = as_operation(name)
    np.testing.assert_allclose(operation(points), expected, rtol=1e-12)
    assert operation is as_operation(name.replace("(", " ( ")) is FAMILIES[family](*parameters)
    assert pickle.loads(pickle.dumps(operation)) is operation
    assert operation.name == name
    check_operation(operation)


def test_every_family_is_tried() -> None:
    assert set(FAMILY_FORMULAS) == set(FAMILIES) == {name.split("(")[0] for name in MEMBERS}


def test_members_print_their_parameters() -> None:
    assert [str(as_operation(n)) for n in MEMBERS[:4]] == ["x+(0.5)", "x+(-2)", "3*x", "2*x+(-1)"]
    assert as_operation("shift(1e-5)").name == "shift(1e-05)"
    assert as_operation(f"shift({1 / 3})").name == "shift(0.33333334)"


@pytest.mark.parametrize("shape", [(7,), (3, 7), ()])
def test_members_evaluated_together_are_the_same_to_the_bit(shape: tuple[int, ...]) -> None:
    operations = as_operations(["shift(0.5)", "shift(-2)", "neg", "wave(7.5)", "wave(1e4)", "shift(3)", "exp"])
    x = np.random.default_rng(0).uniform(-20, 20, shape).astype(np.float32)
    runs = together(operations)
    assert [len(run) for run in runs] == [2, 1, 2, 1, 1]
    for run in runs[::2][:2]:
        values, defined = evaluate_together(np, run, x)
        assert values.shape == (len(run), *shape) and values.dtype == np.float32
        for row, ok, operation in zip(values, defined, run, strict=True):
            alone, alone_ok = evaluate(np, operation, x)
            np.testing.assert_array_equal(row, alone)
            np.testing.assert_array_equal(ok, alone_ok)
    assert shape == () or not evaluate_together(np, runs[2], x)[1].all()  # |x| <= 6 for wave(1e4)


def test_a_family_of_ones_own() -> None:
    ramp = Family("ramp", ("k",), lambda xp, x, k: xp.maximum(x * k, 0.0 * x), lambda xp, x, k: xp.abs(x) <= 9, "ramp")
    two = ramp(2)
    assert two([3.0, -3.0, 10.0]).tolist() == [6.0, 0.0, 0.0]
    assert as_operation(two) is two is ramp(2.0)
    with pytest.raises(InvalidOperationError, match="operation 'shift\\(1\\)': the catalogue has"):
        as_operation(Family("shift", ("c",), lambda xp, x, c: x, lambda xp, x, c: xp.abs(x) < 1, "{0}")(1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shift(a)", r"shift\(c\) takes numbers, got 'shift\(a\)'"),
        ("shift()", r"shift\(c\) takes numbers, got 'shift\(\)'"),
        ("affine(1)", r"affine\(a, b\) takes 2 parameter\(s\), got \(1.0,\)"),
        ("scale(1e7)", r"scale\(c\): c must be in \[-1e\+06, 1e\+06\], got 10000000.0"),
        ("scale(nan)", r"scale\(c\): c must be in \[-1e\+06, 1e\+06\], got nan"),
        ("shfit(1)", r"unknown operation 'shfit\(1\)'; did you mean 'shift\(c\)'"),
        ("shift", r"unknown operation 'shift'; did you mean 'shift\(c\)'"),
    ],
)
def test_members_that_do_not_exist(name: str, message: str) -> None:
    with pytest.raises(InvalidOperationError, match=message):
        as_operation(name)
