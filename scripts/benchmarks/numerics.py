"""What the safe functions cost: forward and gradient inside XLA, as a ratio to the plain TensorFlow expression."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import opselect
from opselect._tensorflow import tf

SIZE = 1_000_000
ROUNDS = 100


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of the sum of function's values, compiled."""

    def run(*x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(*x))
        return loss, tape.gradient(loss, x)

    return tf.function(run, jit_compile=True, autograph=False)


def seconds(plain: Callable[..., Any], ours: Callable[..., Any], x: tuple[Any, ...]) -> tuple[float, float]:
    """The median of each; the two take turns, so that a busy machine slows both."""
    taken: tuple[list[float], list[float]] = ([], [])
    for round_ in range(ROUNDS):
        for which in (0, 1) if round_ % 2 else (1, 0):
            start = time.perf_counter()
            (plain, ours)[which](*x)[0].numpy()
            taken[which].append(time.perf_counter() - start)
    return float(np.median(taken[0][5:])), float(np.median(taken[1][5:]))


def main() -> float:
    """Prints the table and returns the largest ratio."""
    rng = np.random.default_rng(0)
    x, y = (tf.constant(rng.normal(size=SIZE).astype(np.float32)) for _ in range(2))
    p = tf.constant(rng.uniform(0.01, 0.99, SIZE).astype(np.float32))
    more = p + 1.0
    rows = tf.reshape(x, [-1, 1000])
    pairs = {
        "where sqrt": (lambda x: tf.where(x > 0, tf.sqrt(x), 0.0), lambda x: opselect.where(x > 0, tf.sqrt, 0.0, x), x),
        "where log": (
            lambda x: tf.where(x > 0, tf.math.log(x), x),
            lambda x: opselect.where(x > 0, tf.math.log, x, x),
            x,
        ),
        "where exp/log": (
            lambda x: tf.where(x > 0, tf.math.log(x), tf.exp(x)),
            lambda x: opselect.where(x > 0, tf.math.log, tf.exp, x),
            x,
        ),
        "where x/y": (
            lambda x, y: tf.where(y > 0, x / y, 0.0),
            lambda x, y: opselect.where(y > 0, tf.divide, 0.0, [x, y]),
            (x, y),
        ),
        "divide": (tf.divide, opselect.divide, (x, y)),
        "pow": (tf.pow, opselect.pow, (p, y)),
        "mod": (tf.math.floormod, opselect.mod, (x, more)),
        "atan2": (tf.atan2, opselect.atan2, (x, y)),
        "hypot": (lambda x, y: tf.sqrt(x * x + y * y), opselect.hypot, (x, y)),
        "sqrt": (tf.sqrt, opselect.sqrt, p),
        "log": (tf.math.log, opselect.log, p),
        "log1p": (tf.math.log1p, opselect.log1p, p),
        "exp": (tf.exp, opselect.exp, x),
        "expm1": (tf.math.expm1, opselect.expm1, x),
        "sinh": (tf.sinh, opselect.sinh, x),
        "cosh": (tf.cosh, opselect.cosh, x),
        "asin": (tf.asin, opselect.asin, p),
        "acos": (tf.acos, opselect.acos, p),
        "acosh": (tf.acosh, opselect.acosh, more),
        "atanh": (tf.atanh, opselect.atanh, p),
        "cbrt": (lambda x: tf.sign(x) * tf.pow(tf.abs(x), 1 / 3), opselect.cbrt, x),
        "norm": (lambda x: tf.norm(x, axis=-1), lambda x: opselect.norm(x, axis=-1), rows),
        "logsumexp": (lambda x: tf.reduce_logsumexp(x, -1), lambda x: opselect.logsumexp(x, axis=-1), rows),
        "softmax_entropy": (
            lambda x: -tf.reduce_sum(tf.nn.softmax(x) * tf.nn.log_softmax(x), -1),
            opselect.softmax_entropy,
            rows,
        ),
    }
    print(f"{'':16}{'plain ms':>10}{'opselect ms':>13}{'ratio':>8}")
    ratios = []
    for name, (plain, ours, arguments) in pairs.items():
        arguments = arguments if isinstance(arguments, tuple) else (arguments,)
        one, other = seconds(compiled(plain), compiled(ours), arguments)
        ratios.append(other / one)
        print(f"{name:16}{1e3 * one:10.2f}{1e3 * other:13.2f}{ratios[-1]:8.2f}", flush=True)
    print(f"largest ratio: {max(ratios):.2f}, median {np.median(ratios):.2f}")
    return max(ratios)


if __name__ == "__main__":
    main()
