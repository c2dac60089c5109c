"""What the contract costs: a training step with an estimator, as a ratio to the same step in plain TensorFlow.

Both are compiled by XLA and take turns; the step is that of a small policy, from the observations to Adam. By hand are
the fastest ways known: XLA's default generator takes ten times as long as Philox on a CPU where Gumbel noise is made
from it, and `tf.random.stateless_categorical` nearly doubles the step of ReinMax.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from opselect._tensorflow import keras, tf
from opselect.estimators import ESTIMATORS
from opselect.random import as_seed

ROWS, FEATURES, DECISIONS, OPERATIONS = 1024, 16, 4, 12
ROUNDS = 400

Weights = Callable[[Any, Any], Any]


def gumbel_by_hand(logits: Any, seed: Any) -> Any:
    """Straight-through Gumbel-softmax as one writes it: weights [B, D, K] for logits [B, D, K]."""
    draws = tf.random.stateless_uniform(logits.shape, seed, minval=1e-7, maxval=1.0, alg="philox")
    soft = tf.nn.softmax(logits - tf.math.log(-tf.math.log(draws)))
    hard = tf.one_hot(tf.argmax(soft, -1), OPERATIONS)
    return hard + soft - tf.stop_gradient(soft)


def reinmax_by_hand(logits: Any, seed: Any) -> Any:
    """ReinMax as in the algorithm of its paper, at temperature 1."""
    p = tf.nn.softmax(logits)
    draws = tf.random.stateless_uniform(logits.shape[:-1], seed, alg="philox")
    hard = tf.one_hot(tf.reduce_sum(tf.cast(tf.cumsum(p, -1) <= draws[..., None], tf.int32), -1), OPERATIONS)
    middle = (p + hard) / 2.0
    middle = tf.nn.softmax(tf.stop_gradient(tf.math.log(middle) - logits) + logits)
    soft = 2.0 * middle - p / 2.0
    return hard + soft - tf.stop_gradient(soft)


def training_step(name: str, by_hand: Weights | None) -> Callable[[Any], Any]:
    """One step with the estimator of that name, or with weights made by hand: a function of the seed."""
    estimator = ESTIMATORS[name]
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(ROWS, FEATURES)).astype(np.float32))
    values = tf.constant(rng.normal(size=(ROWS, DECISIONS, OPERATIONS)).astype(np.float32))
    policy = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(64, "tanh"), keras.layers.Dense(DECISIONS * OPERATIONS)]
    )
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(policy.trainable_variables)

    def objective(weights: Any) -> Any:
        return tf.square(tf.reduce_sum(weights * values, [-2, -1]) - 1.0)

    def run(seed: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.reshape(policy(x), [ROWS, DECISIONS, OPERATIONS])
            if by_hand is None:
                proposal = estimator.propose(logits, (), seed)
                surrogate, _ = estimator.surrogate(objective(proposal.weights), [proposal], ())
            else:
                surrogate = objective(by_hand(logits, seed))
            loss = tf.reduce_mean(surrogate)
        optimizer.apply(tape.gradient(loss, policy.trainable_variables))
        return loss

    return tf.function(run, jit_compile=True, autograph=False)


def seconds(*steps: Callable[[Any], Any]) -> list[float]:
    """The median of each; they take turns, so that a busy machine slows all of them."""
    taken: list[list[float]] = [[] for _ in steps]
    for i in range(ROUNDS):
        seed = as_seed(i)
        for which in range(len(steps)) if i % 2 else reversed(range(len(steps))):
            start = time.perf_counter()
            steps[which](seed).numpy()
            taken[which].append(time.perf_counter() - start)
    return [float(np.median(t[5:])) for t in taken]


def main() -> float:
    """Prints the table and returns the larger ratio."""
    print(f"{'':20}{'by hand ms':>12}{'opselect ms':>13}{'ratio':>8}")
    ratios = []
    for name, by_hand in (("gumbel-softmax-st", gumbel_by_hand), ("reinmax", reinmax_by_hand)):
        plain, ours = seconds(training_step(name, by_hand), training_step(name, None))
        ratios.append(ours / plain)
        print(f"{name:20}{1e3 * plain:12.3f}{1e3 * ours:13.3f}{ratios[-1]:8.2f}", flush=True)
    print(f"larger ratio: {max(ratios):.2f}")
    return max(ratios)


if __name__ == "__main__":
    main()
