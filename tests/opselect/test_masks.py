"""Masks and surrogate gradients beyond the exact values of the question (see test_user_cases)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opselect
from opselect._tensorflow import tf
from opselect.masks import SURROGATES, InvalidSurrogateError
from opselect.numerics import InvalidShapeError

X = np.array([-3.0, -0.4, 0.1, 0.3, 2.5], np.float32)


def sigmoid(u):
    return 1 / (1 + np.exp(-u))


# The derivative of each surrogate in x, written down independently of its smooth function: at u = x / T.
SLOPES = {
    "identity": lambda u, t: np.ones_like(u),
    "sigmoid": lambda u, t: sigmoid(u) * (1 - sigmoid(u)) / t,
    "tanh": lambda u, t: (1 - np.tanh(u) ** 2) / t,
    "clipped_identity": lambda u, t: (np.abs(u) <= 1).astype(float),
    "triangle": lambda u, t: np.maximum(0, 1 - np.abs(u)) / t,
}


@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_gradients_in_x_and_in_a_learnable_threshold(derivatives, name, temperature):
    weights = np.array([1.0, -2.0, 3.0, 0.5, -1.0], np.float32)
    value, (dx, dt), second = derivatives(lambda x, t: weights * opselect.mask(x, t, name, temperature), X, 0.2)
    slopes = weights * SLOPES[name]((X - 0.2) / temperature, temperature)
    np.testing.assert_array_equal(value, weights * (X > 0.2))
    np.testing.assert_allclose(dx, slopes, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dt, -slopes.sum(), rtol=1e-5)
    assert all(np.isfinite(s).all() for s in second)


def test_a_threshold_per_column_and_one_that_is_learned():
    threshold = tf.Variable([0.0, 0.9])
    x = tf.constant([[0.5, 0.5], [-1.0, 1.0], [0.2, 0.7]])
    target = tf.constant([[1.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    optimizer = tf.keras.optimizers.SGD(0.5)
    for _ in range(20):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((opselect.mask(x, threshold) - target) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, threshold), threshold)])
    assert loss.numpy() == 0
    assert threshold.numpy()[1] < 0.5


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=5), st.floats(0.1, 3), st.floats(0, 1))
def test_hardness_goes_from_the_soft_mask_to_the_hard_one(x, temperature, hardness):
    x = np.array(x, np.float32)
    value = opselect.mask(x, 0.5, temperature=temperature, hardness=hardness).numpy()
    u = (x - np.float32(0.5)) / np.float32(temperature)
    expected = hardness * (x > 0.5) + (1 - hardness) * sigmoid(u.astype(np.float64))
    np.testing.assert_allclose(value, expected, atol=1e-5)
    np.testing.assert_allclose(opselect.mask(x, 0.5, temperature=temperature, hardness=0.0), sigmoid(u), atol=1e-5)
    np.testing.assert_allclose(opselect.soft_mask(x, 0.5, temperature), sigmoid(u), atol=1e-5)


def test_annealing_closes_the_gap(in_mode):
    x, w = tf.constant([2.0, -1.0, 0.5]), tf.constant([0.3, -0.2, 0.1])

    def loss(kept):
        return tf.reduce_sum(x * kept)

    hard, soft, gap = in_mode(lambda w: opselect.mask_gap(loss, w))(w)
    expected = 2 * sigmoid(0.3) - sigmoid(-0.2) + 0.5 * sigmoid(0.1)
    np.testing.assert_allclose([hard, soft, gap], [2.5, expected, 2.5 - expected], rtol=1e-6)
    gaps = [abs(float(opselect.mask_gap(loss, w, temperature=t).gap)) for t in (1.0, 0.1, 0.01)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-3


STEPS = {
    "floor": (tf.floor, "identity", np.floor, lambda x: np.ones_like(x)),
    "round": (tf.round, "identity", np.round, lambda x: np.ones_like(x)),
    "sign": (tf.sign, "tanh", np.sign, lambda x: 1 - np.tanh(x) ** 2),
    "sign, clipped": (tf.sign, "clipped_identity", np.sign, lambda x: (np.abs(x) <= 1).astype(float)),
    "comparison": (lambda x: x > 0.2, "sigmoid", lambda x: x > 0.2, lambda x: sigmoid(x) * (1 - sigmoid(x))),
    "own": (
        tf.floor,
        lambda x: x - tf.sin(2 * math.pi * x) / (2 * math.pi),
        np.floor,
        lambda x: 1 - np.cos(2 * np.pi * x),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_any_step_with_any_surrogate(derivatives, name):
    step, surrogate, value_of, slope_of = STEPS[name]
    function = opselect.with_surrogate_gradient(step, surrogate)
    value, (gradient,), _ = derivatives(lambda x: 3.0 * function(x), X)
    np.testing.assert_array_equal(value, 3.0 * value_of(X))
    np.testing.assert_allclose(gradient, 3.0 * slope_of(X.astype(np.float64)), rtol=1e-4, atol=1e-5)


def test_one_hot_of_argmax(derivatives):
    logits = np.array([[0.5, 2.0, -1.0], [1.0, 1.0, 0.0]], np.float32)
    weights = np.array([[1.0, -2.0, 0.5], [3.0, 1.0, 1.0]], np.float32)
    by_hand = opselect.with_surrogate_gradient(lambda x: tf.one_hot(tf.argmax(x, -1), 3), "softmax", 0.5)
    for function in (by_hand, lambda x: opselect.one_hot_argmax(x, temperature=0.5)):
        value, (gradient,), _ = derivatives(lambda x, function=function: weights * function(x), logits)
        np.testing.assert_array_equal(value, weights * [[0, 1, 0], [1, 0, 0]])
        p = np.exp(logits / 0.5) / np.exp(logits / 0.5).sum(-1, keepdims=True)
        expected = p * (weights - (p * weights).sum(-1, keepdims=True)) / 0.5  # J^T w of the softmax
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def test_nan_is_passed_on_and_infinity_is_masked(derivatives):
    value, (gradient,), _ = derivatives(opselect.mask, [math.nan, math.inf, -math.inf])
    assert np.isnan(value[0])
    np.testing.assert_array_equal(value[1:], [1, 0])
    np.testing.assert_array_equal(gradient[1:], [0, 0])


def test_the_dtype_is_kept():
    for dtype in ("float16", "bfloat16", "float64"):
        assert opselect.mask(tf.constant([1.0, -1.0], dtype)).dtype.name == dtype
    assert opselect.mask([1, -1]).dtype == tf.float32


def test_every_surrogate_is_documented():
    assert set(SLOPES) | {"softmax"} == set(SURROGATES)
    assert all(f'"{name}"' in opselect.mask.__doc__ for name in SLOPES)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: opselect.mask([1.0], surrogate="sigmoyd"), InvalidSurrogateError, "did you mean 'sigmoid'"),
        (lambda: opselect.mask([1.0], temperature=0.0), ValueError, "temperature must be > 0, got 0.0"),
        (lambda: opselect.mask([1.0], hardness=1.5), ValueError, r"hardness must be in \[0, 1\], got 1.5"),
        (lambda: opselect.mask([[1.0], [2.0]], threshold=[0.0, 1.0]), InvalidShapeError, r"threshold has shape \(2,\)"),
        (lambda: opselect.mask(tf.constant([1, 2])), TypeError, "x must be floating point .* int32"),
        (lambda: opselect.mask([1.0], surrogate=tf.reduce_sum), InvalidSurrogateError, "must keep the shape"),
        (lambda: opselect.with_surrogate_gradient(tf.floor, "idenity"), InvalidSurrogateError, "'identity'"),
        (
            lambda: opselect.with_surrogate_gradient(lambda x: tf.one_hot(tf.argmax(x), 4), "identity")([1.0, 2.0]),
            InvalidSurrogateError,
            r"returned shape \(2,\), but fn returned \(4,\)",
        ),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "make", [float, np.float32, np.float64, tf.constant], ids=["float", "float32", "float64", "eager"]
)
def test_ranges_are_checked_whatever_the_number_is_made_of(make):
    with pytest.raises(ValueError, match=r"temperature must be > 0"):
        opselect.mask([0.3, -0.2], temperature=make(0.0))
    with pytest.raises(ValueError, match=r"hardness must be in \[0, 1\]"):
        opselect.mask([0.3, -0.2], hardness=make(2.0))
    assert opselect.mask([0.3, -0.2], temperature=make(0.5), hardness=make(1.0)).numpy().tolist() == [1.0, 0.0]


def test_infinite_logits_are_chosen_or_never_are(in_mode):
    def run(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            chosen = opselect.one_hot_argmax(logits)
            loss = tf.reduce_sum(chosen * [3.0, 1.0, 2.0])
        return chosen, tape.gradient(loss, logits)

    logits = [[np.inf, 0, 0], [-np.inf, 0, 1], [-np.inf, -np.inf, -np.inf], [0.0, 1.0, 2.0]]
    chosen, gradient = in_mode(run)(tf.constant(logits, tf.float32))
    assert chosen.numpy().tolist() == [[1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]]
    assert np.isfinite(gradient).all() and not gradient[0].numpy().any() and gradient[1].numpy()[1:].all()
    p = np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum()
    np.testing.assert_allclose(gradient[3], p * (np.array([3, 1, 2]) - p @ [3, 1, 2]), rtol=1e-5)


def test_a_surrogate_of_another_shape_or_dtype():
    with pytest.raises(InvalidSurrogateError, match=r"surrogate must keep the shape \(1, 2\), but returned \(\)"):
        opselect.one_hot_argmax([[1.0, 2.0]], lambda x: tf.reduce_sum(x))
    half = opselect.mask(tf.constant([0.5, -1.0], tf.float16), surrogate=lambda x: tf.sin(tf.cast(x, tf.float32)))
    assert half.dtype == tf.float16 and half.numpy().tolist() == [1.0, 0.0]
