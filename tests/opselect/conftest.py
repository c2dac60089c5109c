"""The three execution modes; and results as a training run leaves them, without the training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from opselect._tensorflow import keras, tf
from opselect.experiments.results import Picture, RunResult
from opselect_envs.dynamics import branches, one_hot, options, reward, step
from opselect_envs.references import best_reward
from opselect_envs.tasks import TASKS, Task


@pytest.fixture(autouse=True)
def repeatable():
    """Every test sees the same initial weights and the same order of rows, whichever ran before it."""
    keras.utils.set_random_seed(0)


def synthetic_result(
    task: str = "ScalarOp",
    learner: str = "exact",
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    final: float = 0.97,
    gap: float = 0.0,
    points: int = 8,
    total: int = 1000,
    rows: int = 256,
    parameters: Task | None = None,
) -> RunResult:
    """A learner whose hard score rises to about `final`, and whose choices are right in about that share of cases."""
    rng = np.random.default_rng([len(task), *map(ord, learner)])
    parameters = TASKS[task] if parameters is None else parameters
    rise = 1.0 - np.exp(-6.0 * np.arange(1, points + 1) / points)
    hard = final * rise + 0.01 * rng.standard_normal((len(seeds), points))
    steps = np.linspace(total / points, total, points).astype(int)
    return RunResult(
        task=task,
        learner=learner,
        config={
            "name": task,
            "task": parameters.to_dict(),
            "learner": {"name": learner, "hidden": [64, 64], "temperature": None},
            "seeds": list(seeds),
            "steps": total,
        },
        operations=list(parameters.names),
        seeds=list(seeds),
        step=steps,
        evaluations=steps * 512,
        hard=hard,
        soft=hard + gap + 0.005 * rng.standard_normal(hard.shape),
        optimal=np.clip(hard - 0.02, 0, 1),
        seconds=1.25,
        picture=_picture(parameters, rows, final, rng),
    )


def _picture(task: Task, rows: int, final: float, rng: np.random.Generator) -> Picture:
    data, start, k = task.data(), task.held_out(rows), len(task.ops)
    # Mistakes come in stretches of x, as those of a trained policy do.
    mistaken = np.sin(3.0 * start.value + rng.uniform(0, 6)) < -np.cos(np.pi * (1 - np.clip(final, 0, 1)))
    state, ideal, chosen, right = start, start, [], []
    for decision in range(task.horizon):
        ahead = options(np, task, data, ideal.value)
        right.append(best_reward(task, data, branches(ideal, ahead), task.horizon - decision - 1).argmax(-1))
        ideal = step(np, ahead, ideal, one_hot(right[-1], k))
        here = options(np, task, data, state.value)
        fallback = (here.available * rng.random(k)).argmax(-1)
        chosen.append(np.where(mistaken, fallback, right[-1]))
        state = step(np, here, state, one_hot(chosen[-1], k))
    rewards = reward(np, task, data, state)
    return Picture(start.value, start.target, np.stack(chosen, -1), np.stack(right, -1), rewards)


@pytest.fixture
def make_result() -> Callable[..., RunResult]:
    return synthetic_result


@pytest.fixture(params=["eager", "graph", "xla"])
def mode(request) -> str:
    """Each of the three modes that everything must hold in; they differ in what they let through."""
    return request.param


@pytest.fixture
def in_mode(mode) -> Callable:
    """Runs a function of tensors in the mode."""
    return lambda function: (
        function if mode == "eager" else tf.function(function, jit_compile=mode == "xla", autograph=False)
    )


@pytest.fixture
def derivatives(in_mode) -> Callable:
    """(function, *x) -> its value, the gradients of its sum, and the gradients of their sum, as NumPy arrays."""

    def run(function, *x):
        def all_of_them(*x):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    value = function(*x)
                first = inner.gradient(value, x, unconnected_gradients="zero")
            return value, first, outer.gradient(first, x, unconnected_gradients="zero")

        tensors = [v if tf.is_tensor(v) else tf.constant(v, tf.float32) for v in x]
        value, first, second = in_mode(all_of_them)(*tensors)
        return value.numpy(), [g.numpy() for g in first], [g.numpy() for g in second]

    return run


@pytest.fixture
def hessian() -> Callable:
    """(function of [N], x) -> its second derivatives [N, N] at x, in float64."""

    def run(function, x):
        x = tf.constant(x, tf.float64)
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = function(x)
            slope = inner.gradient(value, x)
        return outer.jacobian(slope, x, experimental_use_pfor=False).numpy()

    return run
