"""Every operation at every kind of input: finite in eager mode, tf.function and XLA, and equal to NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from opselect._tensorflow import tf
from opselect.namespace import check_gradient, xp
from opselect_envs.operations import (
    BINARY,
    OPERATIONS,
    UNARY,
    InvalidOperationError,
    Operation,
    evaluate,
    probes,
)

MODES = ("eager", "graph", "xla")
TINY = float(np.finfo(np.float32).tiny)
N = 64  # one shape for all generated inputs, so that each mode is compiled once

extremes = st.sampled_from([float(p) for p in probes()])
floats = st.one_of(extremes, st.floats(width=32, allow_nan=True, allow_infinity=True))
batches = hnp.arrays(np.float32, (N,), elements=floats)


def in_mode(function, mode):
    return function if mode == "eager" else tf.function(function, jit_compile=mode == "xla", autograph=False)


def derivatives(names):
    """x -> (values, defined, first and second derivatives), each stacked over the named operations."""

    def run(*x):
        values, domains, firsts, seconds = [], [], [], []
        for name in names:
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    value, defined = evaluate(xp, OPERATIONS[name], *x)
                first = inner.gradient(value, x, unconnected_gradients="zero")
            second = outer.gradient(first, x, unconnected_gradients="zero")
            values.append(value)
            domains.append(defined)
            firsts.append(tf.stack(first))
            seconds.append(tf.stack(second))
        return tf.stack(values), tf.stack(domains), tf.stack(firsts), tf.stack(seconds)

    return run


COMPILED = {
    (arity, mode): in_mode(derivatives(names), mode) for arity, names in ((1, UNARY), (2, BINARY)) for mode in MODES
}


def check_finite(arity, mode, *x):
    names = UNARY if arity == 1 else BINARY
    value, _, first, second = COMPILED[arity, mode](*map(tf.constant, x))
    for what, result in (("value", value), ("gradient", first), ("second derivative", second)):
        for name, of_one in zip(names, result.numpy(), strict=True):
            bad = ~np.isfinite(of_one).reshape(-1, N).all(0)
            assert not bad.any(), f"{name}: {what} not finite at {[v[bad][:3] for v in x]} in {mode} mode"


# An example is a batch of 64 inputs. Eager mode runs the same kernels as graph mode, more slowly: fewer examples.
EXAMPLES = {"eager": 20, "graph": 150, "xla": 150}


@pytest.mark.parametrize("mode", MODES)
def test_unary_operations_are_finite_everywhere(mode):
    @settings(max_examples=EXAMPLES[mode], deadline=None)
    @given(x=batches)
    def check(x):
        check_finite(1, mode, x)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_binary_operations_are_finite_everywhere(mode):
    @settings(max_examples=EXAMPLES[mode], deadline=None)
    @given(x=batches, y=batches)
    def check(x, y):
        check_finite(2, mode, x, y)

    check()


@pytest.mark.parametrize("mode", MODES)
def test_every_probe_and_pair_of_probes_is_finite(mode):
    x = probes()
    padded = np.concatenate([x, np.zeros(-len(x) % N, np.float32)])
    for block in padded.reshape(-1, N):
        check_finite(1, mode, block)
    rng = np.random.default_rng(0)
    for _ in range(10 if mode == "eager" else 60):
        check_finite(2, mode, rng.choice(x, N), rng.choice(x, N))


def normal(x):
    """Not a denormal: TensorFlow flushes those to zero and NumPy does not."""
    return (x == 0) | (np.abs(x) >= TINY) | ~np.isfinite(x)


@pytest.mark.parametrize("mode", ["graph", "xla"])
@settings(max_examples=60, deadline=None)
@given(x=batches)
def test_numpy_and_tensorflow_evaluate_the_same_definition(mode, x):
    x = np.where(normal(x), x, np.float32(0.5))
    values, defined, *_ = (r.numpy() for r in COMPILED[1, mode](tf.constant(x)))
    for i, name in enumerate(UNARY):
        with np.errstate(all="raise", under="ignore"):  # nothing is evaluated outside its domain
            value, domain = evaluate(np, OPERATIONS[name], x)
        borderline = np.zeros(N, bool)
        if name == "tan":  # |cos x| against its bound, to float32's precision
            borderline = (
                np.abs(np.abs(np.cos(x.astype(np.float64), where=np.isfinite(x), out=np.ones(N))) - 1e-2) < 1e-5
            )
        np.testing.assert_array_equal(domain[~borderline], defined[i][~borderline], err_msg=name)
        tolerance = 2e-4 if name == "tan" else 3e-6
        np.testing.assert_allclose(values[i][~borderline], value[~borderline], rtol=tolerance, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("mode", MODES)
def test_binary_operations_agree_with_numpy(mode):
    rng = np.random.default_rng(5)
    for scale in (1.0, 3.0, 100.0):
        x, y = (rng.normal(0, scale, N).astype(np.float32) for _ in range(2))
        values, defined, *_ = (r.numpy() for r in COMPILED[2, mode](tf.constant(x), tf.constant(y)))
        for i, name in enumerate(BINARY):
            value, domain = evaluate(np, OPERATIONS[name], x, y)
            np.testing.assert_array_equal(domain, defined[i], err_msg=name)
            np.testing.assert_allclose(values[i], value, rtol=2e-5, atol=2e-5 * scale, err_msg=name)


# The derivative of each operation at an ordinary point, written down independently.
DERIVATIVES = {
    "identity": (1.7, lambda x: 1.0),
    "neg": (1.7, lambda x: -1.0),
    "abs": (-1.7, lambda x: -1.0),
    "square": (-1.7, lambda x: 2 * x),
    "cube": (-1.7, lambda x: 3 * x * x),
    "sqrt": (1.7, lambda x: 0.5 / math.sqrt(x)),
    "cbrt": (-1.7, lambda x: 1 / (3 * abs(x) ** (2 / 3))),
    "inv": (-1.7, lambda x: -1 / x**2),
    "exp": (1.7, math.exp),
    "expm1": (1.7, math.exp),
    "log": (1.7, lambda x: 1 / x),
    "log1p": (1.7, lambda x: 1 / (1 + x)),
    "sin": (1.7, math.cos),
    "cos": (1.7, lambda x: -math.sin(x)),
    "tan": (0.7, lambda x: 1 / math.cos(x) ** 2),
    "asin": (0.7, lambda x: 1 / math.sqrt(1 - x * x)),
    "acos": (0.7, lambda x: -1 / math.sqrt(1 - x * x)),
    "atan": (1.7, lambda x: 1 / (1 + x * x)),
    "sinh": (1.7, math.cosh),
    "cosh": (1.7, math.sinh),
    "tanh": (0.7, lambda x: 1 - math.tanh(x) ** 2),
    "asinh": (1.7, lambda x: 1 / math.sqrt(x * x + 1)),
    "acosh": (1.7, lambda x: 1 / math.sqrt(x * x - 1)),
    "atanh": (0.7, lambda x: 1 / (1 - x * x)),
    "sigmoid": (0.7, lambda x: math.exp(-x) / (1 + math.exp(-x)) ** 2),
    "softplus": (0.0, lambda x: 0.5),
    "relu": (1.7, lambda x: 1.0),
    "gaussian": (0.7, lambda x: -2 * x * math.exp(-x * x)),
    "increment": (1.7, lambda x: 1.0),
    "decrement": (1.7, lambda x: 1.0),
    "double": (1.7, lambda x: 2.0),
    "half": (1.7, lambda x: 0.5),
    "sign": (1.7, lambda x: 0.0),
    "floor": (1.7, lambda x: 0.0),
    "ceil": (1.7, lambda x: 0.0),
    "round": (1.7, lambda x: 0.0),
}


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_the_derivatives(mode):
    assert set(DERIVATIVES) == set(UNARY)
    for name, (point, derivative) in DERIVATIVES.items():
        x = np.full(N, point, np.float32)
        _, _, first, _ = COMPILED[1, mode](tf.constant(x))
        gradient = first.numpy()[UNARY.index(name), 0, 0]
        assert gradient == pytest.approx(derivative(point), rel=1e-5), name


def test_a_step_has_gradient_zero_and_not_none():
    x = tf.constant([0.3, 1.7])
    for name in ("floor", "ceil", "round", "sign"):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = OPERATIONS[name].apply(xp, x)
        np.testing.assert_array_equal(tape.gradient(y, x), [0.0, 0.0])


@pytest.mark.parametrize("mode", MODES)
def test_stacks_and_products_are_numpys(mode):
    rng = np.random.default_rng(0)
    many, few = rng.normal(size=(9, 1, 12, 8)).astype(np.float32), rng.normal(size=(8, 3)).astype(np.float32)
    compute = in_mode(lambda a, b: (xp.stack([a, -a, 2.0 * a], -1), xp.stack([a, -a], 0), xp.matmul(a, b)), mode)
    last, first, product = compute(tf.constant(many), tf.constant(few))
    np.testing.assert_array_equal(last, np.stack([many, -many, 2.0 * many], -1))
    np.testing.assert_array_equal(first, np.stack([many, -many], 0))
    np.testing.assert_allclose(product, many @ few, rtol=1e-5, atol=1e-5)


def user_operation(**changes):
    definition = {
        "name": "mine",
        "arity": 1,
        "apply": lambda xp, x: xp.exp(-xp.abs(x)),
        "domain": lambda xp, x: xp.abs(x) <= 1e30,
        "anchor": 1.0,
        "symbol": "mine({0})",
    }
    return Operation(**(definition | changes))


def test_a_users_operation_is_accepted():
    assert check_gradient(user_operation()).name == "mine"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # |x|**0.95 has an infinite slope at 0 that difference quotients can't tell from a kink; the gradient can.
        ({"apply": lambda xp, x: xp.power(xp.abs(x), 0.95 + xp.zeros_like(x))}, r"'mine'.*x = \S+, where its gradient"),
        ({"apply": lambda xp, x: xp.fabs(x)}, r"'mine'.*TensorFlow.*fabs"),
        ({"domain": lambda xp, x: x >= 0, "apply": lambda xp, x: xp.sqrt(x)}, r"'mine'.*x = (inf|0\.0)"),
    ],
)
def test_a_wrong_operation_is_refused_by_name_and_input(changes, message):
    with pytest.raises(InvalidOperationError, match=message):
        check_gradient(user_operation(**changes))
