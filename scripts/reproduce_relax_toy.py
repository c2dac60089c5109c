"""The toy problem of RELAX (Grathwohl et al. 2018): min over theta of E[(b - t)**2], b ~ Bernoulli(theta), t = 0.499.

uv run python scripts/reproduce_relax_toy.py

The two outcomes differ by 0.002, so a learner needs little variance to move to theta = 0 at all. The published figures
are one run of the authors' toy code (seed 42); here many runs go side by side. Exits with status 1 unless RELAX ends
below REINFORCE and REBAR, and those two are alike.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from opselect._tensorflow import tf
from opselect.estimators import ESTIMATORS
from opselect.random import as_seed, fold_in

TARGET, LEARNING_RATE, STEPS = 0.499, 0.01, 5000
PUBLISHED = {"reinforce": 0.192, "rebar": 0.190, "relax": 0.052}  # the final theta


def final_theta(name: str, *, runs: int, steps: int, seed: int = 0) -> np.ndarray:
    """The final theta [runs] of an estimator: batch 1, Adam, theta = 1/2 at first."""
    estimator = ESTIMATORS[name]
    seeds = tf.stack([as_seed([seed, run]) for run in range(runs)])

    def logits_of(x: Any) -> Any:
        return tf.stack([tf.zeros_like(x), x], -1)[:, None, None, :]  # [R, B = 1, D = 1, K = 2]

    def step(i: Any, x: Any, mean: Any, square: Any, state: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            proposal = estimator.propose(logits_of(x), state, fold_in(seeds, i))
            losses = tf.square(proposal.weights[..., 0, 1] - TARGET)
            surrogate, state = estimator.surrogate(losses, [proposal], state)
        gradient = tape.gradient(surrogate, x)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * tf.square(gradient)
        count = tf.cast(i + 1, tf.float32)
        rate = LEARNING_RATE * tf.sqrt(1.0 - 0.999**count) / (1.0 - 0.9**count)
        return i + 1, x - rate * mean / (tf.sqrt(square) + 1e-8), mean, square, state

    @tf.function(jit_compile=True, autograph=False)
    def train() -> Any:
        x = tf.zeros([runs])
        start = (tf.constant(0), x, x, x, estimator.init(logits_of(x)))
        return tf.while_loop(lambda i, *_: i < steps, step, start, maximum_iterations=steps)[1]

    return tf.sigmoid(train()).numpy()


def main(runs: int = 200, steps: int = STEPS) -> bool:
    """Prints the final thetas beside the published ones; returns whether REINFORCE ~ REBAR > RELAX, as published."""
    table = Table("estimator", "published", "mean", "standard error", "5% to 95%", title=f"final theta, {runs} runs")
    results = {name: final_theta(name, runs=runs, steps=steps) for name in PUBLISHED}
    mean = {name: theta.mean() for name, theta in results.items()}
    error = {name: theta.std(ddof=1) / np.sqrt(runs) for name, theta in results.items()}
    for name, theta in results.items():
        low, high = np.quantile(theta, [0.05, 0.95])
        figures = (PUBLISHED[name], mean[name], error[name])
        table.add_row(name, *(f"{x:.3f}" for x in figures), f"{low:.3f} to {high:.3f}")
    Console().print(table)
    alike = abs(mean["reinforce"] - mean["rebar"]) < 4 * np.hypot(error["reinforce"], error["rebar"])
    below = min(mean["reinforce"], mean["rebar"]) - mean["relax"] > 4 * max(error.values())
    print(f"REINFORCE ~ REBAR: {'yes' if alike else 'NO'}; both above RELAX: {'yes' if below else 'NO'}")
    return bool(alike and below)


if __name__ == "__main__":
    sys.exit(not main())
