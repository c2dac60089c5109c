"""A worker of `training.py`: the same REINFORCE written directly in JAX, for this one task.

    python -m pip install "jax[cpu]" gymnasium
    python scripts/benchmarks/training_jax.py REPLICAS SAMPLES [--categorical]

One jitted scan over steps, vmapped over seeds. Inputs, rule, operations and rewards are those of
`opselect_envs.dynamics`, in the fewest operations that JAX needs for them. A choice is drawn by inverse transform: a
step then takes half the time or less of that with `jax.random.categorical`, which makes K Gumbel variates for each
choice and which ``--categorical`` has.

Shapes: B rows, S samples, F features, K operations.
"""

# pyright: reportMissingImports=false
# jax is in a virtual environment of its own.

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import training_common as common
from jax import lax, random

Array = Any

RULE = jnp.asarray(common.TASK.rule_indices())
REGIONS, LOW, HIGH, LIMIT = common.TASK.regions, common.TASK.low, common.TASK.high, common.TASK.value_limit


def inside(function: Callable[[Array], Array], domain: Callable[[Array], Array], anchor: float) -> Any:
    """The function inside its domain, NaN outside it."""
    return lambda x: jnp.where(domain(x), function(jnp.where(domain(x), x, anchor)), jnp.nan)


OPERATIONS: dict[str, Callable[[Array], Array]] = {
    "sin": jnp.sin,
    "cos": jnp.cos,
    "square": jnp.square,
    "exp": jnp.exp,
    "log": inside(jnp.log, lambda x: x >= 1e-18, 1.0),
    "sqrt": inside(jnp.sqrt, lambda x: x >= 1e-24, 1.0),
    "inv": inside(lambda x: 1.0 / x, lambda x: jnp.abs(x) >= 1e-12, 1.0),
    "tanh": jnp.tanh,
    "neg": jnp.negative,
    "asin": inside(jnp.arcsin, lambda x: jnp.abs(x) < 1.0, 0.0),
}
assert tuple(OPERATIONS) == common.TASK.names


def features(x: Array) -> Array:
    """[B, F]: x in [-1, 1], and its Fourier features by doubling the angle."""
    scaled = x / HIGH
    parts = [scaled]
    sine, cosine = jnp.sin(jnp.pi * scaled), jnp.cos(jnp.pi * scaled)
    for octave in range(common.TASK.frequencies):
        if octave:
            sine, cosine = 2.0 * sine * cosine, 1.0 - 2.0 * sine * sine
        parts += [sine, cosine]
    return jnp.stack(parts, -1)


def rewards_of(x: Array) -> Array:
    """[B, K]: the reward of each operation."""
    values = jnp.stack([operation(x) for operation in OPERATIONS.values()], -1)
    region = jnp.clip(((x - LOW) * (REGIONS / (HIGH - LOW))).astype(jnp.int32), 0, REGIONS - 1)
    target = jnp.sum(jnp.where(RULE[region][:, None] == jnp.arange(len(OPERATIONS)), values, 0.0), -1, keepdims=True)
    return jnp.where(jnp.abs(values) <= LIMIT, jnp.exp(-jnp.abs(values - target)), 0.0)


def initial(key: Array) -> list[tuple[Array, Array]]:
    """Glorot-uniform kernels, the last one small, and biases of zero."""
    widths = [common.TASK.observation_size, *common.HIDDEN, len(OPERATIONS)]
    parameters = []
    for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        bound = (6.0 / (inputs + outputs)) ** 0.5 * (0.01 if i == len(common.HIDDEN) else 1.0)
        kernel = random.uniform(random.fold_in(key, i), (inputs, outputs), minval=-bound, maxval=bound)
        parameters.append((kernel, jnp.zeros(outputs)))
    return parameters


def network(parameters: list[tuple[Array, Array]], hidden: Array) -> Array:
    """[B, F] -> [B, K]."""
    *layers, (kernel, bias) = parameters
    for weights, offsets in layers:
        hidden = jnp.tanh(hidden @ weights + offsets)
    return hidden @ kernel + bias


def trainer(samples: int, categorical: bool) -> Any:
    """A compiled function (keys, state, (steps, learning rates, entropy weights)) -> (state, mean rewards)."""
    rows = common.ROWS

    def one_step(key: Array, state: Any, now: Any) -> Any:
        parameters, first, second = state
        i, learning_rate, entropy_weight = now
        for_x, for_choices = random.split(random.fold_in(key, i))
        x = random.uniform(for_x, (rows,), minval=LOW, maxval=HIGH)
        rewards, seen = rewards_of(x), features(x)

        def objective(parameters: Any) -> Any:
            log_p = jax.nn.log_softmax(network(parameters, seen))
            p = jnp.exp(log_p)
            if categorical:
                chosen = random.categorical(for_choices, lax.stop_gradient(log_p), shape=(samples, rows))
            else:
                below = jnp.cumsum(lax.stop_gradient(p), -1)
                draws = random.uniform(for_choices, (samples, rows, 1)) * below[:, -1:]
                chosen = jnp.minimum(jnp.sum(below <= draws, -1), len(OPERATIONS) - 1)
            row = jnp.arange(rows)
            got = rewards[row, chosen]
            others = (jnp.sum(got, 0) - got) / (samples - 1) if samples > 1 else 1.0  # the loss is 1 - reward
            entropy = -jnp.sum(p * log_p, -1)
            gain = jnp.mean((got - others) * log_p[row, chosen]) + entropy_weight * jnp.mean(entropy)
            return -gain, jnp.mean(got)

        gradient, mean = jax.grad(objective, has_aux=True)(parameters)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
        rate = learning_rate * jnp.sqrt(1.0 - 0.999 ** (i + 1)) / (1.0 - 0.9 ** (i + 1))
        parameters = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-7), parameters, first, second)
        return (parameters, first, second), mean

    def train(key: Array, state: Any, steps: Any) -> Any:
        return lax.scan(lambda state, now: one_step(key, state, now), state, steps)

    return jax.jit(jax.vmap(train, in_axes=(0, 0, None)), donate_argnums=1)


def main(replicas: int, samples: int, categorical: bool) -> None:
    """Serves."""
    train = trainer(samples, categorical)
    keys: Any = None
    state: Any = None
    done = 0

    def restart(seed: int) -> None:
        nonlocal keys, state, done
        keys = jax.vmap(random.key)(jnp.arange(seed, seed + replicas))
        parameters = jax.vmap(initial)(keys)
        state, done = (parameters, *(jax.tree.map(jnp.zeros_like, parameters) for _ in range(2))), 0

    def advance(short: bool) -> int:
        nonlocal state, done
        count = common.BLOCK if short else max(common.BLOCK, 500 // replicas)
        steps = (np.arange(done, done + count), *common.schedules(done, count))
        state, _ = jax.block_until_ready(train(keys, state, steps))
        done += count
        return count * replicas * common.ROWS * samples

    judge = jax.jit(jax.vmap(network, in_axes=(0, None)))

    def score() -> float:
        return float(np.mean([common.score_of(logits) for logits in judge(state[0], common.OBSERVATIONS)]))

    common.serve(restart, advance, score)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), "--categorical" in sys.argv)
