"""Polynomial programming: the published last-epoch losses of five straight-through estimators, trained anew.

L independent categorical variables z_l minimise ``E mean_l |z_l - c|**power``. The powers and seeds of an estimator are
replicas of one compiled loop. Exit status 1 where a loss is more than 10% off the published one.

    uv run python scripts/reproduce_polynomial_programming.py
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from opselect._tensorflow import keras, tf
from opselect.estimators import (
    Estimator,
    GumbelRao,
    GumbelSoftmaxStraightThrough,
    MinimumVariance,
    ReinMax,
    StraightThrough,
)
from opselect.random import as_seed, fold_in, uniform

PUBLISHED = pathlib.Path(__file__).parents[1] / "tests" / "data" / "polynomial_programming.json"
SEEDS = 3
ESTIMATORS = {
    "straight_through": StraightThrough(),
    "reinmax_tau1": ReinMax(),
    "straight_through_gumbel_tau0.1": GumbelSoftmaxStraightThrough(temperature=0.1),
    "gumbel_rao20_tau0.1": GumbelRao(temperature=0.1, inner=20),
    "mve": MinimumVariance(),
}


def train(
    estimator: Estimator,
    values: Sequence[float],
    target: float,
    powers: Sequence[float],
    *,
    batch: int,
    epochs: int,
    steps: int = 200,
    latent: int = 128,
    rate: float = 1e-3,
) -> np.ndarray:
    """Trains R = len(powers) * SEEDS replicas; returns their mean losses in each epoch [epochs, powers, SEEDS]."""
    replicas = len(powers) * SEEDS
    outcomes, power = tf.constant(values), tf.repeat(tf.constant(powers), SEEDS)[:, None, None]
    seeds = tf.stack([as_seed(r + 1) for r in range(replicas)])
    logits = tf.Variable(0.02 * uniform(seeds, [replicas, latent, len(values)]) - 0.01)
    optimizer = keras.optimizers.Adam(rate, epsilon=1e-8)
    optimizer.build([logits])

    def step(i: Any, total: Any) -> Any:
        with tf.GradientTape() as tape:
            rows = tf.broadcast_to(logits[:, None], [replicas, batch, *logits.shape[1:]])
            proposal = estimator.propose(rows, (), fold_in(seeds, i))
            z = tf.linalg.matvec(proposal.weights, outcomes)  # [S, R, B, L]
            losses = tf.reduce_mean(tf.abs(z - target) ** power, -1)
            surrogate, _ = estimator.surrogate(losses, [proposal], ())
            mean = tf.reduce_mean(surrogate, -1)
        optimizer.apply_gradients([(tape.gradient(mean, logits), logits)])
        return i + 1, total + mean

    @tf.function(jit_compile=True, autograph=False)
    def epoch(start: Any) -> Any:
        end = start + steps
        return tf.while_loop(lambda i, _: i < end, step, [start, tf.zeros([replicas])])[1] / steps

    history = [epoch(tf.constant(i * steps)).numpy() for i in range(epochs)]
    return np.reshape(history, [epochs, len(powers), SEEDS])


def main(share: float = 1.0) -> int:
    """Trains everything, prints measured against published, and returns how many losses are off; for `share` of it."""
    data = json.loads(PUBLISHED.read_text())
    settings, powers = data["settings"], [1.5, 2.0, 3.0]
    off, start = 0, time.perf_counter()
    print(f"{'':32}" + "".join(f"{f'power {p}':>31}" for p in powers))
    print(f"{'':32}" + f"{'published':>11}{'measured':>11}{'ratio':>9}" * len(powers))
    for name, estimator in ESTIMATORS.items():
        history = train(
            estimator,
            settings["outcome_values"],
            settings["c"],
            powers,
            batch=settings["batch"],
            epochs=max(1, round(share * settings["epochs"])),
            steps=settings["steps_per_epoch"],
            latent=settings["L"],
            rate=settings["learning_rate"],
        )
        cells = ""
        for power, measured in zip(powers, history[-1].mean(-1), strict=True):
            published = data["published"][name][str(power)]
            off += abs(measured / published - 1.0) > data["tolerance_relative"]
            cells += f"{published:11.5f}{measured:11.5f}{measured / published:9.3f}"
        print(f"{name:32}{cells}", flush=True)
    print(f"{'lowest possible':32}" + "".join(f"{data['floor'][str(p)]:11.5f}{'':20}" for p in powers))
    # Two outcomes 0 and 1: straight-through stays where theta = 0.45, with the loss 0.45 * 0.55.
    for name, published in (("straight_through", 0.2475), ("reinmax_tau1", 0.2038)):
        epochs = max(1, round(share * 40))
        measured = train(ESTIMATORS[name], [0.0, 1.0], 0.45, [2.0], batch=64, epochs=epochs)[-1].mean()
        off += abs(measured / published - 1.0) > data["tolerance_relative"]
        print(f"{f'two outcomes, {name}':32}{published:11.5f}{measured:11.5f}{measured / published:9.3f}", flush=True)
    print(f"{off} of 17 losses are more than 10% off; {time.perf_counter() - start:.0f} s")
    return off


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
