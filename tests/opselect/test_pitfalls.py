"""Each known way to get a silent NaN, a dead gradient or a wrong sample with plain TensorFlow, and what happens here.

The numbers are those of the reference list of pitfalls, each from a public report. Every one is checked in eager mode,
in tf.function and under XLA; expected values are worked out by hand or with the math module.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import opselect
from opselect._tensorflow import keras, tf
from opselect.estimators import ESTIMATORS, GumbelSoftmax, InvalidShapeError, LeaveOneOut, Proposal
from opselect.estimators.base import categorical
from opselect.layers import OperationSelector
from opselect.models import SelectorModel
from opselect.policy import InvalidLogitsError, distribution
from opselect.random import as_seed, gumbel, sample_one_hot, uniform

NAN, INF = math.nan, math.inf


def finite(*arrays):
    return all(np.isfinite(a).all() for group in arrays for a in (group if isinstance(group, list) else [group]))


# --- 1 to 7: NaN gradients --------------------------------------------------------------------------------------------


def test_1_root_behind_where(derivatives):
    for function in (lambda x: opselect.where(x > 0, tf.sqrt, 0.0, x), opselect.sqrt):
        value, (first,), (second,) = derivatives(function, [0.0, -1.0, 4.0])
        np.testing.assert_allclose(value, [0, 0, 2])
        np.testing.assert_allclose(first, [0, 0, 0.25])
        np.testing.assert_allclose(second, [0, 0, -1 / 32])


def test_2_overflow_in_the_branch_not_taken(derivatives):
    value, (first,), (second,) = derivatives(
        lambda a: opselect.where(a < 15, a, lambda a: 10.0 ** tf.exp(a), a), [10.0, 1.0]
    )
    np.testing.assert_array_equal(value, [10, 1])
    np.testing.assert_array_equal(first, [1, 1])
    np.testing.assert_array_equal(second, [0, 0])


def test_3_division_behind_where(derivatives):
    for function in (
        lambda x, y: opselect.where(y == 0, 0.0, tf.divide, [x, y]),
        lambda x, y: opselect.divide(x, y),
    ):
        value, (dx, dy), second = derivatives(function, [3.0, 0.0, 1.0], [2.0, 0.0, 0.0])
        np.testing.assert_allclose(value, [1.5, 0, 0])
        np.testing.assert_allclose(dx, [0.5, 0, 0])
        np.testing.assert_allclose(dy, [-0.75, 0, 0])
        assert finite(second)


def test_4_inputs_are_made_safe_and_not_outputs(derivatives):
    # Masked by multiplication afterwards: 0 * inf with plain division.
    keep = tf.constant([1.0, 0.0])
    value, (dx, dy), _ = derivatives(lambda x, y: keep * opselect.divide(x, y), [3.0, 5.0], [2.0, 0.0])
    np.testing.assert_allclose(value, [1.5, 0])
    np.testing.assert_allclose(dx, [0.5, 0])
    np.testing.assert_allclose(dy, [-0.75, 0])


def test_5_powers_of_zero(derivatives):
    value, (dx, dy), second = derivatives(opselect.pow, [0, 0, 0, 0, -2, -2, 3.0], [0.5, 0, 2, -1, 3, 0.5, 2])
    np.testing.assert_allclose(value, [0, 1, 0, 0, -8, 0, 9], rtol=1e-6)
    np.testing.assert_allclose(dx, [0, 0, 0, 0, 12, 0, 6], rtol=1e-6)
    np.testing.assert_allclose(dy, [0, 0, 0, 0, 0, 0, 9 * math.log(3)], rtol=1e-6)
    assert finite(second)


def test_6_norm_of_zero(derivatives):
    value, (first,), (second,) = derivatives(
        lambda x: opselect.norm(x, axis=-1), [[0.0, 0], [3, 4], [1e-30, 0], [3e30, 4e30]]
    )
    np.testing.assert_allclose(value, [0, 5, 1e-30, 5e30], rtol=1e-6)
    np.testing.assert_allclose(first, [[0, 0], [0.6, 0.8], [1, 0], [0.6, 0.8]], rtol=1e-6)
    assert finite(second)


SINGULAR = {
    "log at 0": (tf.math.log, [0.0, 2.0], [0, 0.5]),
    "1/x at 0": (lambda x: 1 / x, [0.0, 2.0], [0, -0.25]),
    "exp of 1000": (tf.exp, [1e3, 1.0], [0, math.e]),
    "acos at 1": (tf.acos, [1.0, 0.6], [0, -1.25]),
    "asin at 1": (tf.asin, [1.0, 0.6], [0, 1.25]),
    "atanh at 1": (tf.atanh, [1.0, 0.6], [0, 1 / 0.64]),
    "acosh at 1": (tf.acosh, [1.0, 1.25], [0, 1 / 0.75]),
    "sinh of 1000": (tf.sinh, [1e3, 1.0], [0, math.cosh(1)]),
    "lgamma at 0": (tf.math.lgamma, [0.0, 2.0], [0, 1 - 0.5772156649]),
    "x % 0": (lambda x: tf.math.floormod(3.0, x), [0.0, 2.0], [0, -1.0]),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_7_singular_functions_behind_one_where(derivatives, name):
    function, x, gradient = SINGULAR[name]
    good = x[1]
    value, (first,), (second,) = derivatives(lambda x: opselect.where(x == good, function, 0.0, x), x)
    np.testing.assert_allclose(value, [0, float(function(tf.constant(good)))], rtol=1e-6)
    np.testing.assert_allclose(first, gradient, rtol=2e-6)
    assert finite(second)


GUARDED = {
    "log": (-103.0, 0.0, math.log(np.finfo(np.float32).tiny)),
    "exp": (0.0, 1e3, float(np.finfo(np.float32).max)),
    "expm1": (0.0, 1e3, float(np.finfo(np.float32).max)),
    "acos": (0.0, 1.0, 0.0),
    "asin": (0.0, 1.0, math.pi / 2),
    "acosh": (0.0, 1.0, 0.0),
    "atanh": (0.0, 1.0, math.atanh(1 - 2.0**-24)),
    "log1p": (0.0, -1.0, math.log(2.0**-24)),
    "sqrt": (0.0, 0.0, 0.0),
    "cbrt": (0.0, 0.0, 0.0),
    "sinh": (0.0, 1e3, float(np.finfo(np.float32).max) / 2),
    "cosh": (0.0, -1e3, float(np.finfo(np.float32).max) / 2),
}


@pytest.mark.parametrize("name", GUARDED)
def test_7_guarded_functions_at_the_edge(derivatives, name):
    _, x, expected = GUARDED[name]
    value, (first,), (second,) = derivatives(getattr(opselect, name), [x])
    np.testing.assert_allclose(value, [expected], rtol=1e-4)
    np.testing.assert_array_equal(first, [0])
    assert finite(second)


def test_7_remainder_of_zero(derivatives):
    value, (dx, dy), second = derivatives(opselect.mod, [3.0, 7.5, -7.5], [0.0, 2.0, 2.0])
    np.testing.assert_allclose(value, [0, 1.5, 0.5])
    np.testing.assert_allclose(dx, [0, 1, 1])
    np.testing.assert_allclose(dy, [0, -3, 4])
    assert finite(second)


# --- 8 to 11: choices without a gradient, or of nothing ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        (lambda x: tf.cast(tf.argmax(x), tf.float32), "argmax"),
        (lambda x: tf.one_hot(tf.argmax(x), 3), "argmax"),
        (lambda x: tf.cast(x > 0, tf.float32), "greater"),
        (tf.floor, "floor"),
    ],
)
def test_8_a_dead_gradient_is_named(function, operation):
    report = opselect.check_gradients(function, [0.3, -1.2, 2.5])
    assert not report.ok
    assert operation in str(report)


def test_8_and_has_a_replacement(derivatives):
    weights = tf.constant([1.0, 2.0, -3.0])
    for function in (
        opselect.one_hot_argmax,
        opselect.mask,
        opselect.with_surrogate_gradient(tf.floor, "identity"),
    ):
        _, (gradient,), _ = derivatives(lambda x, function=function: weights * function(x), [0.3, -1.2, 2.5])
        assert np.all(gradient != 0)
        assert finite(gradient)


@pytest.mark.parametrize("bad", [[NAN, 0.0, 1.0], [-INF, -INF, -INF], [INF, 0.0, 0.0]])
def test_9_and_10_logits_of_which_nothing_can_be_drawn(mode, in_mode, bad):
    draw = in_mode(lambda logits: sample_one_hot(distribution(logits), as_seed(0), 50))
    if mode == "eager":
        with pytest.raises(InvalidLogitsError, match="index"):
            draw(tf.constant([bad]))
    else:  # nothing can be raised in a compiled function, but what is drawn is always one of the operations
        np.testing.assert_array_equal(draw(tf.constant([bad])).numpy().sum(-1), 1.0)


def test_9_and_the_loss_shows_it(in_mode):
    def run(logits):
        estimator = ESTIMATORS["reinforce-rloo"]
        proposal = estimator.propose(logits, (), as_seed(0))
        losses = tf.reduce_sum(proposal.weights * tf.constant([1.0, 2.0, 3.0]), [-2, -1])
        return estimator.surrogate(losses, [proposal], ())[0]

    assert np.isfinite(in_mode(run)(tf.constant([[[0.5, 0.0, 1.0]]])).numpy()).all()
    assert np.isnan(in_mode(run)(tf.constant([[[NAN, 0.0, 1.0]]])).numpy()).all()


def test_11_argmax_of_nan_is_refused(mode, in_mode):
    choose = in_mode(opselect.one_hot_argmax)
    np.testing.assert_array_equal(choose(tf.constant([4.0, 5.5, 5.5])), [0, 1, 0])
    if mode == "xla":  # can't raise: the NaN is passed on
        assert np.isnan(choose(tf.constant([4.0, 5.5, NAN])).numpy()).all()
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
            choose(tf.constant([4.0, 5.5, NAN]))


def test_11_a_selector_does_not_choose_from_nan(in_mode):
    selector = OperationSelector(["neg", "exp"], "soft-mixture")
    selector.build((None, 1))
    result = in_mode(lambda x, features: selector(x, features=features))(tf.constant([[1.0], [2.0]]), [[1.0], [NAN]])
    assert np.isfinite(result[0])
    assert np.isnan(result[1])
    with pytest.raises(InvalidLogitsError, match="row 1"):
        selector.choices(tf.constant([[1.0], [2.0]]), features=tf.constant([[1.0], [NAN]]))


# --- 12 to 18: sampling -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_12_gumbel_noise_is_drawn_in_float32(in_mode, dtype):
    assert finite(in_mode(lambda s: gumbel(s, [200_000]))(as_seed(0)).numpy())
    logits = tf.zeros([20_000, 1, 3], dtype)
    weights = in_mode(lambda x: GumbelSoftmax().propose(x, (), as_seed(1)).weights)(logits).numpy()
    assert finite(weights)
    assert 0.3 < weights.mean() < 0.35


def test_13_low_temperature(in_mode):
    def run(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            weights = GumbelSoftmax(temperature=0.005).propose(logits, (), as_seed(2)).weights
            loss = tf.reduce_sum(weights * tf.range(8.0))
        return weights, tape.gradient(loss, logits)

    weights, gradient = in_mode(run)(tf.zeros([2_000, 1, 8]))
    assert finite(weights.numpy(), gradient.numpy())
    np.testing.assert_allclose(weights.numpy().sum(-1), 1, rtol=1e-5)


def test_14_entropy_with_an_impossible_outcome(derivatives):
    logits = [[0.0, 0.0, -INF], [0.5, -1.0, -INF]]
    value, (first,), (second,) = derivatives(opselect.softmax_entropy, logits)
    p = np.exp([0.5, -1.0]) / np.exp([0.5, -1.0]).sum()
    entropy = -(p * np.log(p)).sum()
    np.testing.assert_allclose(value, [math.log(2), entropy], rtol=1e-6)
    np.testing.assert_allclose(first[0], [0, 0, 0], atol=1e-7)
    np.testing.assert_allclose(first[1], [*(-p * (np.log(p) + entropy)), 0], rtol=1e-5)  # -p (log p + H)
    assert finite(second)


def test_15_positional_probabilities_are_not_read_as_logits(in_mode):
    # What is positional in this API is called logits, and probabilities are never taken.
    drawn = in_mode(lambda x: tf.reduce_mean(sample_one_hot(distribution(logits=x), as_seed(3), 20_000), 0))(
        tf.math.log([0.9, 0.05, 0.05])
    )
    np.testing.assert_allclose(drawn, [0.9, 0.05, 0.05], atol=0.01)
    with pytest.raises(TypeError, match="probs"):
        distribution(probs=[0.9, 0.05, 0.05])  # pyright: ignore[reportCallIssue]


def test_16_a_masked_operation_is_never_drawn(in_mode):
    allowed = tf.constant([[True, False, True]])
    drawn = in_mode(lambda x: sample_one_hot(categorical(distribution(x, allowed).logits), as_seed(4), 20_000))(
        tf.constant([[1.0, 8.0, -1.0]])
    ).numpy()
    assert drawn[:, 0, 1].sum() == 0
    np.testing.assert_allclose(drawn[:, 0, 0].mean(), 1 / (1 + math.exp(-2)), atol=0.01)
    with pytest.raises(InvalidLogitsError, match="mask leaves no operation"):
        distribution(tf.zeros([1, 3]), tf.constant([[False, False, False]]))


def test_17_a_seed_always_draws_the_same(in_mode):
    draw = in_mode(lambda: uniform(as_seed(5), [4]))
    np.testing.assert_array_equal(draw(), draw())
    np.testing.assert_array_equal(draw(), uniform(as_seed(5), [4]))  # 23: and in all three modes


def test_18_ranks_are_checked(in_mode):
    logits = tf.zeros([6, 1, 3])
    proposal = LeaveOneOut().propose(logits, (), as_seed(0))
    with pytest.raises(InvalidShapeError, match=r"\(4, 6, 1\).*\(4, 6, 1, 3\)"):
        in_mode(lambda f: LeaveOneOut().surrogate(f, [proposal], ())[0])(tf.zeros([4, 6, 1]))


def test_19_no_division_by_a_standard_deviation(in_mode):
    # Rewards [1, 0, 0, 0] with almost equal values: the advantage stays what leave-one-out says, f_j - mean of others.
    eye = tf.constant(np.eye(4, dtype=np.float32))[:, None, None, :]

    def gradient(losses):
        logits = tf.zeros([1, 1, 4])
        with tf.GradientTape() as tape:
            tape.watch(logits)
            surrogate, _ = LeaveOneOut().surrogate(losses[:, None], [Proposal(eye, logits)], ())
        return tape.gradient(surrogate, logits)

    # mean_j a_j (e_j - p) with a = [1, -1/3, -1/3, -1/3] and p = 1/4.
    found = in_mode(gradient)(tf.constant([1.0, 0, 0, 0])).numpy()[0, 0]
    np.testing.assert_allclose(found, [1 / 4, -1 / 12, -1 / 12, -1 / 12], rtol=1e-5)
    tiny = in_mode(gradient)(tf.constant([1e-6, 0, 0, 0])).numpy()[0, 0]
    np.testing.assert_allclose(tiny, found * 1e-6, rtol=1e-4)


# --- 20 to 22 ---------------------------------------------------------------------------------------------------------


def test_20_a_clip_can_pass_its_gradient_on(derivatives):
    def clip(x):
        return tf.clip_by_value(x, 0.0, 1.0)

    value, (first,), _ = derivatives(opselect.with_surrogate_gradient(clip, "identity"), [-2.0, 0.5, 3.0])
    np.testing.assert_array_equal(value, [0, 0.5, 1])
    np.testing.assert_array_equal(first, [1, 1, 1])


@pytest.mark.parametrize("eagerly", [True, False])
def test_21_the_hard_score_is_always_reported(eagerly):
    inputs = keras.Input((1,))
    selector = OperationSelector(["neg", "identity"], "soft-mixture")
    model = SelectorModel(inputs, selector(inputs))
    model.compile("sgd", "mse", run_eagerly=eagerly)
    # The mixture of x and -x at equal weights is 0, right on average and wrong for whichever is chosen.
    selector.head.bias.assign([1e-3, 0.0])
    selector.head.kernel.assign(np.zeros((1, 2)))
    x = np.array([[2.0], [2.0]], np.float32)
    report = model.evaluate(x, np.zeros_like(x), verbose=0, return_dict=True)
    assert report["hard_loss"] == pytest.approx(4.0)
    assert report["soft_loss"] == pytest.approx((2 * math.tanh(5e-4)) ** 2, rel=1e-3)
    assert report["gap"] == pytest.approx(report["hard_loss"] - report["soft_loss"], rel=1e-5)


def test_22_sparsemax_of_large_logits(derivatives):
    weights = tf.constant([1.0, 2.0, 4.0])
    value, (first,), _ = derivatives(
        lambda x: weights * opselect.sparsemax(x), [[1e8, 0.0, 1.0], [0.3, 0.0, 0.1], [0.5, -3.0, 0.1]]
    )
    # On the support, the projection is z - (sum z - 1) / size, and its Jacobian I - 1 / size.
    third = (1 - 0.4) / 3
    np.testing.assert_allclose(value[0], [1, 0, 0])
    np.testing.assert_allclose(value[1], weights * np.array([0.3 + third, third, 0.1 + third]), rtol=1e-6)
    np.testing.assert_allclose(value[2], weights * np.array([0.7, 0, 0.3]), rtol=1e-6)
    np.testing.assert_allclose(first[0], [0, 0, 0], atol=1e-7)
    np.testing.assert_allclose(first[1], np.array([1, 2, 4]) - 7 / 3, rtol=1e-5)
    np.testing.assert_allclose(first[2], [1 - 2.5, 0, 4 - 2.5], rtol=1e-5)
