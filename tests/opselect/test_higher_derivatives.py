"""Second derivatives of score-function surrogates: those of the expected loss, when every outcome is listed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from opselect._tensorflow import tf
from opselect.estimators import (
    PPO,
    Exact,
    LeaveOneOut,
    MovingAverageReinforce,
    Proposal,
    Reinforce,
    SelfCritical,
    ValueReinforce,
)
from opselect.estimators.base import magic_box

# Two decisions, the second with logits of its own after each first one; and a weight behind the loss.
FIRST = [0.4, -0.7, 0.2]
SECOND = [[1.1, 0.0, -0.5], [-0.3, 0.6, 0.1], [0.2, -1.0, 0.9]]
COST = np.array([[1.0, -2.0, 0.5], [3.0, 0.7, -1.2], [0.1, 2.2, -0.4]])
WEIGHT = 0.8
PATHS = list(itertools.product(range(3), repeat=2))


def loss_at(cost, weight):
    """The loss of a path, with a mixed and a second derivative in the weight."""
    return tf.cast(cost, weight.dtype) * weight + tf.cast(cost, weight.dtype) ** 2 * weight**2


PARAMETERS = [*FIRST, *np.ravel(SECOND), WEIGHT]


def of_parameters(function):
    """A function of (first logits [3], second logits [3, 3], weight []) as one of all of them [13]."""
    return lambda x: function(x[:3], tf.reshape(x[3:12], [3, 3]), x[12])


def expected_loss(first, second, weight):
    p = tf.nn.softmax(first)[:, None] * tf.nn.softmax(second)
    return tf.reduce_sum(p * loss_at(COST, weight))


def mean_surrogate(estimator, samples, greedy=False, value=None, state=None):
    """The surrogate averaged over every tuple of sampled paths, as a function of the parameters."""
    tuples = np.array(list(itertools.product(range(len(PATHS)), repeat=samples)))  # [N, S]
    codes = np.array(PATHS)[tuples].swapaxes(0, 1)  # [S, N, 2]
    if greedy:
        best = [np.argmax(FIRST), np.argmax(SECOND[np.argmax(FIRST)])]
        codes = np.concatenate([codes, np.broadcast_to(best, [1, *codes.shape[1:]])])

    def mean(first, second, weight):
        first, second = tf.cast(first, tf.float32), tf.cast(second, tf.float32)
        p = tf.reshape(tf.nn.softmax(first)[:, None] * tf.nn.softmax(second), [-1])
        chance = tf.stop_gradient(tf.reduce_prod(tf.gather(p, tuples), 1))
        choice = tf.one_hot(codes, 3)[..., None, :]  # [S, N, 2, 1, 3]
        proposals = [
            Proposal(choice[:, :, 0], tf.broadcast_to(first, [len(tuples), 1, 3]), value),
            Proposal(choice[:, :, 1], tf.gather(second, codes[..., 0])[..., None, :], value),
        ]
        losses = loss_at(COST[codes[..., 0], codes[..., 1]], tf.cast(weight, tf.float32))
        start = estimator.init(proposals[0].logits) if state is None else state
        return tf.reduce_sum(chance * estimator.surrogate(losses, proposals, start)[0])

    return mean


CASES = {
    "reinforce": (Reinforce(), 1, {}),
    "ema": (MovingAverageReinforce(), 1, {"state": (tf.constant(0.7), tf.constant(0.5))}),
    "value": (ValueReinforce(), 1, {"value": tf.fill([9], 1.3)}),
    "ppo": (PPO(), 1, {"value": tf.fill([9], 1.3)}),
    "self-critical": (SelfCritical(), 1, {"greedy": True}),
    "rloo-2": (LeaveOneOut(2), 2, {}),
    "rloo-3": (LeaveOneOut(3), 3, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_of_dependent_decisions_are_unbiased(hessian, name):
    wanted = hessian(of_parameters(expected_loss), PARAMETERS)
    # Earlier with later logits, logits with the weight.
    assert np.abs(wanted[0, 3:12]).max() > 0.05 and np.abs(wanted[:12, 12]).max() > 0.1
    estimator, samples, extra = CASES[name]
    found = hessian(of_parameters(mean_surrogate(estimator, samples, **extra)), PARAMETERS)
    if name == "ppo":  # its ratio is the magic box of one decision, whose advantage is held constant
        found, wanted = found[:3, :3], wanted[:3, :3]
    np.testing.assert_allclose(found, wanted, atol=2e-6)


def test_exact_has_the_second_derivatives_of_the_expected_loss(hessian):
    def folded(first, second, weight):
        first, second = tf.cast(first, tf.float32), tf.cast(second, tf.float32)
        start = Exact().propose(first[None], (), None)
        later = Exact().propose(second[:, None], (), None, decision=1)
        losses = loss_at(COST.ravel(), tf.cast(weight, tf.float32))
        return Exact().surrogate(losses, [start, later], ())[0]

    np.testing.assert_allclose(
        hessian(of_parameters(folded), PARAMETERS), hessian(of_parameters(expected_loss), PARAMETERS), atol=2e-6
    )


def test_the_box_is_one_and_its_derivatives_are_those_of_p_over_p():
    x = tf.constant(-0.7)
    with tf.GradientTape() as third, tf.GradientTape() as second, tf.GradientTape() as first:
        for tape in (third, second, first):
            tape.watch(x)
        box = magic_box(3.0 * x)
        slope = first.gradient(box, x)
        bend = second.gradient(slope, x)
    assert [float(v) for v in (box, slope, bend, third.gradient(bend, x))] == [1.0, 3.0, 9.0, 27.0]
