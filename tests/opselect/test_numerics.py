"""Selection and guarded functions: TensorFlow's inside the domain, finite everywhere, no leak from a branch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opselect
from opselect._tensorflow import keras, tf
from opselect.numerics import InvalidShapeError, straight_through
from opselect_envs import InvalidOperationError, Operation
from opselect_envs.operations import BINARY, UNARY, probes

INF, NAN = math.inf, math.nan

# --- no NaN gradient, whatever the nest -------------------------------------------------------------------------------

leaves = st.sampled_from(["x", "y", "w"]) | st.sampled_from([0.0, 1.0, -2.5, 1e30])


def nests(inner):
    """One level more: an operation, or a where whose branches are nests of its operands."""
    return st.one_of(
        st.tuples(st.sampled_from(UNARY), inner),
        st.tuples(st.sampled_from(BINARY), inner, inner),
        st.tuples(st.just("where"), inner, st.sampled_from([0.0, 1.0]), inner, inner, inner, inner),
    )


def evaluate(nest, x, y, w):
    """A nest at operands x and y, with a parameter w that branches use without being given it."""
    if isinstance(nest, str):
        return {"x": x, "y": y, "w": w + 0.0 * x}[nest] if nest != "w" else tf.ones_like(x) * w
    if isinstance(nest, float):
        return tf.fill(tf.shape(x), nest)
    if nest[0] == "where":
        _, tested, bound, on_true, on_false, first, second = nest
        operands = [evaluate(first, x, y, w), evaluate(second, x, y, w)]
        return opselect.where(
            evaluate(tested, x, y, w) > bound,
            lambda x, y: evaluate(on_true, x, y, w),
            lambda x, y: evaluate(on_false, x, y, w),
            operands,
        )
    return opselect.apply(nest[0], *(evaluate(n, x, y, w) for n in nest[1:]))


def check_nests(in_mode, examples, rows):
    extremes = np.concatenate([probes()[np.isfinite(probes())], [INF, -INF, 0.0, -0.0, 1e-45]]).astype(np.float32)

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.recursive(leaves, nests, max_leaves=12), st.integers(0, 2**32 - 1))
    def check(nest, seed):
        rng = np.random.default_rng(seed)
        x, y = (np.where(rng.random(rows) < 0.6, rng.choice(extremes, rows), rng.normal(0, 3, rows)) for _ in range(2))

        def run(x, y, w):
            with tf.GradientTape() as tape:
                tape.watch((x, y, w))
                value = evaluate(nest, x, y, w)
            return tape.gradient(value, (x, y, w), unconnected_gradients="zero")

        found = in_mode(run)(*(tf.constant(v, tf.float32) for v in (x, y, 1.5)))
        for name, gradient in zip("xyw", found, strict=True):
            wrong = np.isnan(gradient.numpy())
            assert not wrong.any(), f"NaN in the gradient of {name} at {x[wrong][:3]}, {y[wrong][:3]}"

    check()


def test_no_nest_has_a_nan_gradient(in_mode):
    check_nests(in_mode, 10, 256)


@pytest.mark.slow
def test_no_nest_has_a_nan_gradient_in_20_000_cases(in_mode):
    check_nests(in_mode, 120, 256)  # 30,720 inputs


# --- where ------------------------------------------------------------------------------------------------------------


def test_a_branch_sees_its_operands_only_where_it_is_selected(in_mode):
    seen = []

    def log(x):
        if tf.executing_eagerly():
            seen.append(x.numpy())
        return tf.math.log(x)

    value = in_mode(lambda x: opselect.where(x > 0, log, -1.0, x))(tf.constant([0.0, 4.0, -3.0, 2.0]))
    np.testing.assert_allclose(value, [-1, math.log(4), -1, math.log(2)], rtol=1e-6)
    for x in seen:
        assert np.all(x > 0)


def test_nothing_leaks_into_what_a_branch_captures(derivatives):
    # d/dw of sum over x > 0 of w log x + log(w + x); x = 0 and x = -1 are not selected.
    def function(w, x):
        return opselect.where(x > 0, lambda x: w * tf.math.log(x) + tf.math.log(w + x - 1.0), 0.0, x)

    _, (dw, dx), (second, _) = derivatives(function, 1.0, [0.0, -1.0, 2.0, 5.0])
    np.testing.assert_allclose(dw, math.log(2) + math.log(5) + 1 / 2 + 1 / 5, rtol=1e-6)
    np.testing.assert_allclose(dx, [0, 0, 1 / 2 + 1 / 2, 1 / 5 + 1 / 5], rtol=1e-6)
    assert np.isfinite(second)


@pytest.mark.parametrize("places", ["many", "one", "none"])
def test_large_operands_stand_in_for_themselves_too(in_mode, places):
    # Of so many entries only some are looked at first; "one" is not among them.
    x = np.full((300, 300), -1.0, np.float32)
    x.flat[{"many": slice(0, None, 7), "one": 12_345, "none": []}[places]] = 4.0
    selected = np.count_nonzero(x == 4.0)

    def gradients(w, x, y):
        with tf.GradientTape() as tape:
            tape.watch((w, x, y))
            # The root is real only where x > y, so stand-ins must come from one place.
            value = opselect.where(x > y, lambda x, y: w * tf.sqrt(x - y), 0.0, [x, y])
        return tf.reduce_sum(value), tape.gradient(value, (w, x, y))

    loss, (dw, dx, dy) = in_mode(gradients)(*map(tf.constant, (np.float32(1.5), x, np.zeros_like(x))))
    np.testing.assert_allclose([loss, dw], [1.5 * 2.0 * selected, 2.0 * selected], rtol=1e-6)
    np.testing.assert_allclose(dx, np.where(x == 4.0, 1.5 / 4.0, 0.0), rtol=1e-6)
    np.testing.assert_allclose(dy, -dx.numpy())


def test_a_given_stand_in_serves_where_nothing_is_selected(derivatives):
    def function(w, x, stand_in=None):
        return opselect.where(x > 2, lambda x: w * tf.acosh(x), 0.0, x, stand_in=stand_in)

    _, (dw, _), _ = derivatives(lambda w, x: function(w, x, 3.0), 1.0, [0.0, 1.0])
    assert dw == 0


def test_operands_stand_in_together(derivatives):
    # sqrt(x - y) is real only for pairs: an x and a y of different places would not do.
    def function(w, x, y):
        return opselect.where(x > y, lambda x, y: w * tf.sqrt(x - y), 0.0, [x, y])

    _, (dw, dx, dy), _ = derivatives(function, 1.0, [1.0, 9.0, 3.0, 0.0], [2.0, 5.0, 2.0, 0.0])
    np.testing.assert_allclose(dw, 2 + 1)
    np.testing.assert_allclose(dx, [0, 0.25, 0.5, 0])
    np.testing.assert_allclose(dy, [0, -0.25, -0.5, 0])


def test_whole_rows_are_selected(derivatives):
    x = np.array([[0.0, 0, 0], [3, 0, 4], [0, 0, 0], [0, 5, 12]], np.float32)

    def function(x):
        some = tf.reduce_any(x != 0, -1, keepdims=True)
        return opselect.where(some, lambda x: tf.norm(x, axis=-1, keepdims=True), -1.0, x)

    value, (gradient,), _ = derivatives(function, x)
    np.testing.assert_allclose(value, [[-1], [5], [-1], [13]])
    np.testing.assert_allclose(gradient[1], [0.6, 0, 0.8], rtol=1e-6)
    np.testing.assert_allclose(gradient[3], [0, 5 / 13, 12 / 13], rtol=1e-6)
    np.testing.assert_array_equal(gradient[[0, 2]], 0)


@pytest.mark.parametrize("shapes", [((4, 1), (3,)), ((3,), (4, 1)), ((), (4, 3)), ((4, 3), ()), ((2, 1, 3), (4, 1))])
def test_broadcasting_is_numpys(in_mode, shapes):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=s).astype(np.float32) for s in shapes)
    expected = np.where(x > y, x * y, x - y)
    value = in_mode(lambda x, y: opselect.where(x > y, lambda x, y: x * y, lambda x, y: x - y, [x, y]))(
        tf.constant(x), tf.constant(y)
    )
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_nested_where_with_branches_of_their_own(derivatives):
    def function(x):
        return opselect.where(
            x > 0,
            lambda x: opselect.where(x > 1, tf.math.log, tf.sqrt, x),
            lambda x: opselect.where(x < -1, lambda x: 1 / (x + 1), 0.0, x),
            x,
        )

    value, (first,), _ = derivatives(function, [4.0, 0.25, 0.0, -1.0, -3.0])
    np.testing.assert_allclose(value, [math.log(4), 0.5, 0, 0, -0.5], rtol=1e-6)
    np.testing.assert_allclose(first, [0.25, 1, 0, 0, -0.25], rtol=1e-6)


def test_operations_and_conditions_that_are_callable(in_mode):
    twice = Operation("twice", 1, lambda xp, x: x + x, lambda xp, x: xp.abs(x) <= 1e30, 1.0, "2{0}")
    value = in_mode(lambda x: opselect.where(lambda x: x > 0, "log", twice, x))(tf.constant([-1.0, math.e]))
    np.testing.assert_allclose(value, [-2, 1], rtol=1e-6)


def test_unknown_lengths_of_a_batch():
    @tf.function(input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None, 1])])
    def run(x, y):
        value = opselect.where(y > 0, lambda x, y: tf.math.log(y) + x, 0.0, [x, y])
        return value + opselect.divide(x, y) + opselect.norm(x) + opselect.logsumexp(x)

    x, y = np.ones((3, 2), np.float32), np.array([[0.0], [1.0], [math.e]], np.float32)
    norms = math.sqrt(6) + math.log(6 * math.e)
    np.testing.assert_allclose(run(x, y), norms + np.array([[0.0] * 2, [2] * 2, [2 + 1 / math.e] * 2]), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: opselect.where([True, False], tf.sqrt, 0.0, tf.zeros(3)), InvalidShapeError, r"\(3,\).*\(2,\)"),
        (lambda: opselect.where([True, False], tf.zeros(3), 0.0), InvalidShapeError, r"on_true.*\(3,\).*\(2,\)"),
        (
            lambda: opselect.where(True, tf.zeros(3), tf.zeros(2)),
            InvalidShapeError,
            r"on_true has shape \(3,\) and on_false has shape \(2,\)",
        ),
        (lambda: opselect.where(1.0, 0.0, 1.0), TypeError, "boolean"),
        (lambda: opselect.where(True, tf.sqrt, 0.0), ValueError, "on_true is callable, so operands"),
        (lambda: opselect.where(True, "sqrt", 0.0), ValueError, "on_true is an operation, so operands"),
        (lambda: opselect.where(True, "sqr", 0.0, 1.0), InvalidOperationError, "'sqrt'"),
        (lambda: opselect.where(True, tf.add, 0.0, [1.0, 2.0], stand_in=[1.0, 2.0, 3.0]), ValueError, "stand_in"),
        (lambda: opselect.divide(tf.zeros(2), tf.zeros(2, tf.float64)), TypeError, "float32 and float64"),
        (lambda: opselect.apply("div", 1.0), InvalidOperationError, "2 operand"),
        (lambda: opselect.divide([1.0, 2.0], [1.0, 0.0], fill=[[1.0], [2.0]]), InvalidShapeError, r"fill .*\(2, 1\)"),
        (
            lambda: opselect.where(True, tf.sqrt, tf.constant([1.0], tf.float64), [1.0]),
            TypeError,
            "on_true is float32 and on_false is float64",
        ),
        (lambda: opselect.where([True], tf.identity, True, [[True]]), TypeError, "real numbers, got bool"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


# --- guarded functions ------------------------------------------------------------------------------------------------

PLAIN = {
    "acos": (tf.acos, (-0.99, 0.99)),
    "acosh": (tf.acosh, (1.01, 50.0)),
    "asin": (tf.asin, (-0.99, 0.99)),
    "atanh": (tf.atanh, (-0.99, 0.99)),
    "cosh": (tf.cosh, (-20.0, 20.0)),
    "exp": (tf.exp, (-70.0, 70.0)),
    "expm1": (tf.math.expm1, (-10.0, 70.0)),
    "log": (tf.math.log, (1e-10, 1e2)),
    "log1p": (tf.math.log1p, (-0.99, 100.0)),
    "sinh": (tf.sinh, (-20.0, 20.0)),
    "sqrt": (tf.sqrt, (1e-20, 1e20)),
    "cbrt": (lambda x: tf.sign(x) * tf.abs(x) ** (1 / 3), (-50.0, 50.0)),
    "divide": (tf.divide, (-5.0, 5.0), (0.1, 5.0)),
    "pow": (tf.pow, (0.1, 5.0), (-3.0, 3.0)),
    "mod": (tf.math.floormod, (-50.0, 50.0), (0.7, 5.0)),
    "atan2": (tf.atan2, (-5.0, 5.0), (0.1, 5.0)),
    "hypot": (lambda x, y: tf.sqrt(x * x + y * y), (-5.0, 5.0), (0.1, 5.0)),
}


# One compilation per function adds up.
XLA_IS_SLOW = pytest.mark.parametrize(
    "mode", ["eager", "graph", pytest.param("xla", marks=pytest.mark.slow)], indirect=True
)


@XLA_IS_SLOW
@pytest.mark.parametrize("name", PLAIN)
def test_inside_the_domain_value_and_derivatives_are_tensorflows(derivatives, name):
    plain, *ranges = PLAIN[name]
    rng = np.random.default_rng(1)
    # In float64 TensorFlow's formulas serve as the reference; ours are checked in float32 against them.
    x = [rng.uniform(*r, 64).astype(np.float32) for r in ranges]
    value, first, second = derivatives(getattr(opselect, name), *x)
    expected, exact, exact_second = derivatives(plain, *(tf.constant(v, tf.float64) for v in x))
    np.testing.assert_allclose(value, expected, rtol=2e-5)
    for found, wanted in zip(first, exact, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6 * np.abs(wanted).max())
    for found, wanted in zip(second, exact_second, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(d, marks=pytest.mark.slow) for d in ("float16", "bfloat16", "float64"))]
)
@pytest.mark.parametrize("name", PLAIN)
def test_finite_everywhere_in_every_dtype(derivatives, name, dtype):
    x = np.concatenate([probes()[np.isfinite(probes())], [INF, -INF]])
    rng = np.random.default_rng(2)
    operands = [x] if len(PLAIN[name]) == 2 else [rng.choice(x, 1000), rng.choice(x, 1000)]
    for arrays in derivatives(getattr(opselect, name), *(tf.cast(tf.constant(v), dtype) for v in operands)):
        for array in arrays if isinstance(arrays, list) else [arrays]:
            wrong = ~np.isfinite(array.astype(np.float64))
            assert not wrong.any(), [o[wrong][:5] for o in operands]


@XLA_IS_SLOW
@pytest.mark.parametrize("name", PLAIN)
def test_a_nan_is_passed_on_and_stays_out_of_the_gradient(derivatives, name):
    binary = len(PLAIN[name]) == 3
    for x in [[NAN, 0.5], [0.5, 0.5]], [[0.5, 0.5], [NAN, 0.5]]:
        value, first, _ = derivatives(getattr(opselect, name), *(x if binary else [[NAN, 0.5]]))
        assert np.isnan(value[0])
        assert np.isfinite(value[1])
        for gradient in first:
            assert np.isfinite(gradient).all()


ROWS = {
    "norm": lambda x: opselect.norm(x, axis=-1),
    "logsumexp": lambda x: opselect.logsumexp(x, axis=-1),
    "softmax_entropy": opselect.softmax_entropy,
    "sparsemax": opselect.sparsemax,
    "entmax15": opselect.entmax15,
}


@pytest.mark.parametrize("name", ROWS)
def test_a_nan_in_a_row_is_seen_and_stays_in_its_row(derivatives, name):
    x = [[1.0, NAN, 0.0], [INF, NAN, 0.0], [1.0, 2.0, 0.5]]
    value, (gradient,), second = derivatives(ROWS[name], x)
    assert np.isnan(value[:2]).all()
    assert np.isfinite(value[2]).all()
    assert np.isfinite(gradient).all()
    assert np.isfinite(second).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("project", [opselect.sparsemax, opselect.entmax15])
def test_sparse_weights_of_many_outcomes_in_half_precision(project, dtype):
    logits = tf.cast(np.random.default_rng(0).normal(size=4096) * 0.05, dtype)
    weights = project(logits)
    assert weights.dtype == logits.dtype
    assert np.sum(weights.numpy().astype(np.float64)) == pytest.approx(1.0, abs=0.05)


def test_numbers_and_arrays_are_taken(in_mode):
    assert float(opselect.divide(1, 4)) == 0.25
    np.testing.assert_allclose(opselect.pow(np.array([2.0, 3.0]), 2), [4, 9])
    np.testing.assert_allclose(opselect.divide(tf.constant([1, 2]), tf.constant([2.0, 0.0]), fill=-7.0), [0.5, -7])


def test_hypot_neither_overflows_nor_vanishes(derivatives):
    x, y = [3e38, -2e-38, 3e20, 1.0, 2e38, 0.0, INF, 5.0], [0.0, 4e-38, 4e20, 1e-20, 3.3e38, 0.0, 1.0, NAN]
    value, (dx, dy), _ = derivatives(opselect.hypot, x, y)
    largest = np.finfo(np.float32).max
    np.testing.assert_allclose(value, [3e38, math.hypot(2e-38, 4e-38), 5e20, 1.0, largest, 0, largest, NAN], rtol=3e-7)
    np.testing.assert_allclose(dx, [1, -1 / math.sqrt(5), 0.6, 1, 0, 0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(dy, [0, 2 / math.sqrt(5), 0.8, 1e-20, 0, 0, 0, 0], rtol=1e-6)


def test_norm_and_logsumexp_along_axes(in_mode):
    x = np.random.default_rng(3).normal(size=(2, 3, 4)).astype(np.float32)
    for axis in (None, 0, -1, (0, 2), [1, 2]):
        axes = tuple(axis) if isinstance(axis, list) else axis
        for keepdims in (False, True):
            norm = in_mode(lambda x, a=axis, k=keepdims: opselect.norm(x, axis=a, keepdims=k))(x)
            np.testing.assert_allclose(norm, np.sqrt((x**2).sum(axes, keepdims=keepdims)), rtol=1e-6)
            total = in_mode(lambda x, a=axis, k=keepdims: opselect.logsumexp(x, axis=a, keepdims=k))(x)
            np.testing.assert_allclose(total, np.log(np.exp(x).sum(axes, keepdims=keepdims)), rtol=1e-5, atol=1e-6)


def test_logsumexp_with_infinite_entries(derivatives):
    value, (first,), (second,) = derivatives(
        lambda x: opselect.logsumexp(x, axis=-1), [[0.0, -INF], [-INF, -INF], [1e30, 0.0], [1.0, 3.0]]
    )
    np.testing.assert_allclose(value, [0, -INF, 1e30, 3 + math.log1p(math.exp(-2))], rtol=1e-6)
    p = 1 / (1 + math.exp(2))
    np.testing.assert_allclose(first, [[1, 0], [0, 0], [1, 0], [p, 1 - p]], rtol=1e-6)
    assert np.isfinite(second).all()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=6))
def test_sparsemax_is_the_projection(logits):
    # The projection onto the simplex satisfies: w >= 0, sum w = 1, and z - w is constant on the support, larger off it.
    z = np.array(logits, np.float32)
    w = opselect.sparsemax(z).numpy().astype(np.float64)
    assert w.min() >= 0
    assert w.sum() == pytest.approx(1, abs=1e-5)
    threshold = (z - w)[w > 0]
    assert np.ptp(threshold) < 2e-5
    assert np.all(z[w == 0] <= threshold.max() + 2e-5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=6))
def test_entmax15_weights(logits):
    # w = max(z / 2 - t, 0)**2 for one t: w >= 0, sum w = 1, and z / 2 - sqrt(w) is t on the support, at most t off it.
    z = np.array(logits, np.float32)
    w = opselect.entmax15(z).numpy().astype(np.float64)
    assert w.min() >= 0
    assert w.sum() == pytest.approx(1, abs=1e-5)
    threshold = (z / 2 - np.sqrt(w))[w > 0]
    assert np.ptp(threshold) < 2e-5
    assert np.all(z[w == 0] / 2 <= threshold.max() + 2e-5)


def test_entmax15_derivatives(derivatives):
    weights = np.array([1.0, 2.0, 4.0, -1.0])
    rows = np.array([[0.3, 0.0, 0.1, -0.5], [0.5, -3.0, 0.1, 0.4], [1e8, 0.0, 1.0, -1e9], [0.0, -INF, 1.0, 0.9]])
    value, (first,), (second,) = derivatives(lambda x: tf.constant(weights, tf.float32) * opselect.entmax15(x), rows)
    np.testing.assert_array_equal((value == 0)[1:], [[0, 1, 0, 0], [0, 1, 1, 1], [0, 1, 0, 0]])
    for i, row in enumerate(rows):
        s = np.sqrt(np.maximum(value[i] / weights, 0).astype(np.float64))
        jacobian = np.diag(s) - np.outer(s, s) / s.sum()
        np.testing.assert_allclose(first[i], jacobian @ weights, atol=2e-6)
        if not np.isfinite(row).all() or row.max() > 1e6:
            np.testing.assert_allclose(second[i][s == 0], 0, atol=1e-6)
            assert np.isfinite(second[i]).all()
            continue
        # The gradient of the sum of the gradients is the Hessian times 1; a shift of all logits changes nothing.
        np.testing.assert_allclose(second[i], 0, atol=2e-5)


def test_entmax15_second_derivative(in_mode):
    def hessian_row(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = opselect.entmax15(x)[0]
            first = inner.gradient(value, x)[1]
        return outer.gradient(first, x)

    z = np.array([0.3, 0.0, 0.1, -5.0])
    h = 1e-3 * np.eye(4)

    def first(z):  # d w_0 / d z_1 = - s_0 s_1 / sum(s)
        low, high = z.max() / 2 - 1, z.max() / 2
        for _ in range(60):
            t = (low + high) / 2
            low, high = (t, high) if (np.maximum(z / 2 - t, 0) ** 2).sum() > 1 else (low, t)
        s = np.maximum(z / 2 - t, 0)
        return -s[0] * s[1] / s.sum()

    wanted = [(first(z + e) - first(z - e)) / 2e-3 for e in h]
    assert np.abs(wanted).max() > 0.05
    np.testing.assert_allclose(in_mode(hessian_row)(tf.constant(z, tf.float32)), wanted, atol=1e-4)


def test_entmax15_along_another_axis_and_in_half_precision(in_mode):
    x = np.random.default_rng(1).normal(size=(3, 4, 2)).astype(np.float32)
    middle = in_mode(lambda x: opselect.entmax15(x, axis=1))(x).numpy()
    last = opselect.entmax15(x.transpose(0, 2, 1)).numpy()
    np.testing.assert_allclose(middle, last.transpose(0, 2, 1), atol=1e-6)
    half = in_mode(opselect.entmax15)(tf.constant(x, tf.float16))
    assert half.dtype == tf.float16
    np.testing.assert_allclose(half, opselect.entmax15(x), atol=4e-3)


def test_apply_is_the_catalogues_operation(in_mode):
    from opselect_envs import OPERATIONS

    x = np.array([-2.0, 0.0, 0.3, 4.0], np.float32)
    for name in ("log", "sqrt", "inv", "asin", "cube"):
        np.testing.assert_allclose(
            in_mode(lambda x, n=name: opselect.apply(n, x))(x), OPERATIONS[name](x), rtol=1e-6, atol=1e-7
        )


def test_straight_through_is_exactly_the_hard_value(derivatives):
    hard = tf.constant([1.0, 0.0, 3.0])
    value, (gradient,), _ = derivatives(lambda x: straight_through(hard, 3.0 * x), [1e8, 0.1, INF])
    np.testing.assert_array_equal(value, [1, 0, 3])
    np.testing.assert_array_equal(gradient, [3, 3, 0])


def test_edges_of_shape_and_dtype(in_mode):
    np.testing.assert_array_equal(in_mode(lambda x: opselect.norm(x, axis=-1))(tf.zeros([2, 0])), [0, 0])
    # Nothing is selected: integers stand in with 0, which is an index into every table.
    table = tf.constant([5.0, 6.0])
    looked_up = in_mode(lambda i: opselect.where(i >= 0, lambda i: tf.gather(table, i), -1.0, i))
    np.testing.assert_array_equal(looked_up(tf.constant([-1, -1])), [-1, -1])
    np.testing.assert_array_equal(looked_up(tf.constant([-1, 1])), [-1, 6])
    rows = in_mode(lambda x: opselect.where(tf.ones([tf.shape(x)[0], 1], tf.bool), tf.sqrt, 0.0, x))
    assert rows(tf.zeros([0, 2])).shape == (0, 2)


def test_what_is_captured_is_safe_where_two_operands_are_selected_nowhere(derivatives):
    def function(w, x, y):
        return opselect.where(x > y, lambda x, y: w * tf.math.log(x - y), 0.0, [x, y])

    _, (dw, _, _), _ = derivatives(function, 2.0, [0.0, 1.0], [1.0, 7.0])
    assert dw == 0


def test_variables_of_both_kinds():
    for variable in (tf.Variable([4.0], dtype=tf.float64), keras.Variable([4.0], dtype="float64")):
        with tf.GradientTape() as tape:
            y = opselect.sqrt(variable) + opselect.where([True], variable, 0.0)
        assert y.dtype == tf.float64
        source = variable.value if isinstance(variable, keras.Variable) else variable
        np.testing.assert_allclose(tape.gradient(y, source), [1.25])


# --- inside what TensorFlow builds of functions: cond, loops ----------------------------------------------------------

NESTED = {  # of positive x, with its first and second derivatives
    "sqrt": (opselect.sqrt, lambda x: 0.5 / math.sqrt(x), lambda x: -0.25 * x**-1.5),
    "divide": (lambda x: opselect.divide(2.0, x), lambda x: -2 / x**2, lambda x: 4 / x**3),
    "pow": (lambda x: opselect.pow(3.0, x), lambda x: 3**x * math.log(3), lambda x: 3**x * math.log(3) ** 2),
    "atan2": (lambda x: opselect.atan2(1.0, x), lambda x: -1 / (1 + x * x), lambda x: 2 * x / (1 + x * x) ** 2),
    "hypot": (lambda x: opselect.hypot(1.0, x), lambda x: x / math.hypot(1, x), lambda x: math.hypot(1, x) ** -3),
    "apply": (lambda x: opselect.apply("div", 2.0, x), lambda x: -2 / x**2, lambda x: 4 / x**3),
    "norm squared": (lambda x: opselect.norm(x, axis=-1, keepdims=True) ** 2, lambda x: 2 * x, lambda x: 2.0),
    "where": (
        lambda x: opselect.where(x > 0, lambda x: opselect.divide(1.0, x), 0.0, x),
        lambda x: -1 / x**2,
        lambda x: 2 / x**3,
    ),
}
AROUND = {
    "cond": lambda function: lambda x: tf.cond(x[0] > 0, lambda: function(x * 1.0), lambda: x),
    "loop": lambda function: (
        lambda x: tf.while_loop(
            lambda i, y: i < 2, lambda i, y: (i + 1, function(x) + 0.0 * y), (0, x), maximum_iterations=2
        )[1]
    ),
    "map": lambda function: lambda x: tf.map_fn(lambda row: function(row[None])[0], x),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(
    "name", [n if n in ("sqrt", "divide", "norm squared") else pytest.param(n, marks=pytest.mark.slow) for n in NESTED]
)
def test_both_derivatives_pass_through_branches_and_loops(derivatives, mode, name, around):
    if mode == "eager" and around == "loop":
        pytest.skip("an eager loop is none to TensorFlow")
    function, slope, curvature = NESTED[name]
    _, (first,), (second,) = derivatives(AROUND[around](function), [1.5])
    np.testing.assert_allclose(first, [slope(1.5)], rtol=2e-6)
    np.testing.assert_allclose(second, [curvature(1.5)], rtol=1e-5)


@pytest.mark.parametrize("keepdims", [False, True])
def test_second_derivatives_of_functions_of_a_norm(derivatives, keepdims):
    # ||x||**2 and (||x|| - 1)**2, per row: gradient penalties.
    x = np.array([[3.0, 4.0], [0.0, 0.0], [-5.0, 12.0]])
    _, (first,), (second,) = derivatives(lambda x: opselect.norm(x, axis=1, keepdims=keepdims) ** 2, x)
    np.testing.assert_allclose(first, 2 * x, rtol=1e-6)
    np.testing.assert_allclose(second, np.where(x == 0, 0.0, 2.0), rtol=1e-5)
    _, (first,), _ = derivatives(lambda x: (opselect.norm(x, axis=1, keepdims=keepdims) - 1.0) ** 2, x)
    length = np.array([5.0, 1.0, 13.0])[:, None]
    np.testing.assert_allclose(first, 2 * (length - 1) * x / length, rtol=1e-6)


def test_integers_are_defined_where_nothing_is_selected(in_mode):
    x = tf.constant([0, 0])
    assert in_mode(lambda x: opselect.where(x != 0, lambda x: 6 // x, -1, x))(x).numpy().tolist() == [-1, -1]


def test_complex_numbers_are_refused():
    for call in (lambda z: opselect.norm(z), lambda z: opselect.divide(z, z), lambda z: opselect.sqrt(z)):
        with pytest.raises(TypeError, match="arguments must be real numbers, got complex64"):
            call(tf.constant([3.0 + 4.0j], tf.complex64))


def test_the_entropy_of_many_outcomes_in_half_precision(in_mode):
    entropy = in_mode(opselect.softmax_entropy)(tf.zeros([70_000], tf.float16))
    assert entropy.dtype == tf.float16 and float(entropy) == pytest.approx(math.log(70_000), abs=0.01)


@pytest.mark.parametrize("function", [opselect.divide, opselect.pow, opselect.mod, opselect.atan2, opselect.hypot])
def test_shapes_that_do_not_fit_are_both_named(function):
    with pytest.raises(
        InvalidShapeError, match=r"the first operand has shape \(2, 3\) and the second has shape \(4,\)"
    ):
        function(tf.ones([2, 3]), tf.ones([4]))
