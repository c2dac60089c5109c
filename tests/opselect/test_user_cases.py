"""The exact values of the three questions that the package exists to answer, in the three modes.

The values are those of the questions as they were asked, worked out by hand from the formulas beside them.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import opselect
from opselect._tensorflow import tf

# --- A: a mask that can be trained through ----------------------------------------------------------------------------

X, W = [2.0, -1.0, 0.5], [0.3, -0.2, 0.1]


def test_mask_of_the_question(in_mode):
    value = in_mode(opselect.mask)(tf.constant([[0.0, 0.1], [0.9, 1.0]]))
    np.testing.assert_array_equal(value, [[0, 1], [1, 1]])


def sigmoid_slope(w):
    s = 1 / (1 + math.exp(-w))
    return s * (1 - s)


SLOPES = {
    "identity": lambda w: 1.0,
    "sigmoid": sigmoid_slope,
    "tanh": lambda w: 1 - math.tanh(w) ** 2,
    "clipped_identity": lambda w: float(abs(w) <= 1),
    "triangle": lambda w: max(0.0, 1 - abs(w)),
}


@pytest.mark.parametrize("surrogate", SLOPES)
def test_mask_gradients(derivatives, surrogate):
    value, (dx, dw), _ = derivatives(lambda x, w: x * opselect.mask(w, surrogate=surrogate), X, W)
    np.testing.assert_array_equal(value, [2.0, 0.0, 0.5])
    np.testing.assert_array_equal(dx, [1, 0, 1])
    np.testing.assert_allclose(dw, [x * SLOPES[surrogate](w) for x, w in zip(X, W, strict=True)], atol=1e-6)


def test_the_values_given_with_the_question(derivatives):
    _, (_, dw), _ = derivatives(lambda x, w: x * opselect.mask(w, surrogate="identity"), X, W)
    np.testing.assert_array_equal(dw, [2, -1, 0.5])
    _, (_, dw), _ = derivatives(lambda x, w: x * opselect.mask(w, surrogate="sigmoid"), X, W)
    np.testing.assert_allclose(dw, [0.48891662, -0.24751657, 0.12468802], atol=1e-6)


# --- C: a where that does not poison the gradient ---------------------------------------------------------------------

DIFF, SUM = [0.0, 1, 2, -2, 3, 0], [2.0, 4, 1, 0, 5, 0]
VALUE, D_DIFF, D_SUM = [0, 0.25, 2, -1, 0.6, 0], [0.5, 0.25, 1, 0, 0.2, 0], [0, -0.0625, -2, 0, -0.12, 0]

RATIOS = {
    "divide": lambda diff, total: opselect.divide(diff, total, fill=tf.sign(diff)),
    "where": lambda diff, total: opselect.where(total == 0, tf.sign(diff), tf.divide, [diff, total]),
    "where, by name": lambda diff, total: opselect.where(total == 0, tf.sign(diff), "div", [diff, total]),
    "nested where": lambda diff, total: opselect.where(
        total == 0,
        lambda d, t: opselect.where(d == 0, 0.0, lambda d: tf.stop_gradient(d / tf.abs(d)), d),
        lambda d, t: d / t,
        [diff, total],
    ),
}


@pytest.mark.parametrize("way", RATIOS)
def test_relative_difference(derivatives, way):
    value, (d_diff, d_sum), _ = derivatives(RATIOS[way], DIFF, SUM)
    np.testing.assert_allclose(value, VALUE, atol=1e-6)
    np.testing.assert_allclose(d_diff, D_DIFF, atol=1e-6)
    np.testing.assert_allclose(d_sum, D_SUM, atol=1e-6)


# --- B: a network that picks an operation: the mixture, the choice, and the gap between them --------------------------


def test_mixture_and_choice(in_mode):
    names, x, logits = ["square", "exp", "neg"], 1.5, [0.2, -0.4, 0.5]
    p = np.exp(logits) / np.exp(logits).sum()
    values = np.array([x**2, math.exp(x), -x])
    selector = opselect.layers.OperationSelector(names, "soft-mixture")
    selector.build((None, 1))
    selector.head.bias.assign(logits)
    selector.head.kernel.assign(np.zeros((1, 3)))
    soft = in_mode(lambda t: selector(t, training=True))(tf.constant([[x]]))
    hard = in_mode(lambda t: selector(t, training=False))(tf.constant([[x]]))
    np.testing.assert_allclose(soft, [[(p * values).sum()]], rtol=1e-6)
    np.testing.assert_allclose(hard, [[-x]], rtol=1e-6)
    assert selector.choices(tf.constant([[x]])).tolist() == [["neg"]]
    # The mixture's gradient in the logits: p_k (v_k - sum p v).
    with tf.GradientTape() as tape:
        y = selector(tf.constant([[x]]), training=True)
    np.testing.assert_allclose(tape.gradient(y, selector.head.bias), p * (values - (p * values).sum()), rtol=1e-5)
