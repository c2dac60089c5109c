"""Exact references: what the oracle, a uniform-random agent and one that always picks the same operation earn.

By enumeration of what can be decided and quadrature over the episodes' starts. NumPy only. Shapes: [N] episodes,
K operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from opselect_envs.dynamics import Options, State, branches, draw, one_hot, options, reward, step

if TYPE_CHECKING:
    from opselect_envs.tasks import Task

__all__ = ["best_reward", "can_enumerate", "fixed_rewards", "oracle_reward", "random_reward", "random_reward_of"]

Array = Any
_LOOKAHEAD_CAP = 100_000  # paths per episode that `best_reward` and `random_reward` enumerate at most
_BLOCK = 2_000_000  # paths held in memory at a time


def can_enumerate(task: Task, remaining: int) -> bool:
    """Whether the K**remaining paths are few enough for `best_reward` and `random_reward`."""
    return len(task.ops) ** remaining <= _LOOKAHEAD_CAP


def best_reward(task: Task, data: Mapping[str, Array], state: State, remaining: int) -> np.ndarray:
    """The highest noise-free reward [N, ...] still reachable with `remaining` decisions, by enumeration of all paths.

    Raises:
        ValueError: there are too many, see `can_enumerate`.
    """
    return _lookahead(task, data, state, remaining, lambda values, _: values.max(-1))


def random_reward(task: Task, data: Mapping[str, Array], state: State, remaining: int) -> np.ndarray:
    """The expected noise-free reward [N, ...] of uniform-random choices from `state` on, by enumeration of all paths.

    Raises:
        ValueError: there are too many, see `can_enumerate`.
    """

    def mean(values: np.ndarray, choices: Options) -> np.ndarray:
        weights = _random_weights(task, choices)
        return (values * weights).sum(-1) / weights.sum(-1)

    return _lookahead(task, data, state, remaining, mean)


def _lookahead(
    task: Task,
    data: Mapping[str, Array],
    state: State,
    remaining: int,
    combine: Callable[[np.ndarray, Options], np.ndarray],
) -> np.ndarray:
    """The value [N, ...] of each state, when `combine` makes one of its K branches' values."""
    if not can_enumerate(task, remaining):
        paths = len(task.ops) ** remaining
        raise ValueError(f"horizon: {len(task.ops)}**{remaining} = {paths} paths are too many to enumerate")

    def value(state: State, remaining: int) -> np.ndarray:
        if remaining == 0:
            return reward(np, task, data, state)
        choices = options(np, task, data, state.value)
        return combine(value(branches(state, choices), remaining - 1), choices)

    rows = len(state.value)
    block = max(1, _BLOCK * rows // (max(1, state.value.size) * len(task.ops) ** remaining))
    parts = [value(State(*(a[i : i + block] for a in state)), remaining) for i in range(0, rows, block)]
    return np.concatenate(parts) if rows else value(state, remaining)


def _random_weights(task: Task, choices: Options) -> np.ndarray:
    """[..., K]: 1 for each operation that the uniform-random agent may pick."""
    return choices.available if task.mask_actions else np.ones_like(choices.available)


@functools.lru_cache(maxsize=256)
def oracle_reward(task: Task, rows: int) -> float:
    """The oracle's expected noise-free reward: 1, as every target can be reached, unless targets are blended."""
    if not task.blend:
        return 1.0
    return float(best_reward(task, task.data(), task.held_out(rows), task.horizon).astype(np.float64).mean())


@functools.lru_cache(maxsize=256)
def random_reward_of(task: Task, rows: int) -> float:
    """The uniform-random agent's expected noise-free reward; simulated where the paths are too many."""
    if can_enumerate(task, task.horizon):
        exact = random_reward(task, task.data(), task.held_out(rows), task.horizon)
        return float(exact.astype(np.float64).mean())
    return _random_play(task, max(rows, 1 << 16))


def _random_play(task: Task, rows: int) -> float:
    """The uniform-random agent's mean reward over `rows` simulated episodes."""
    rng, data = np.random.default_rng(0), task.data()
    block = max(1, _BLOCK // len(task.ops))
    total, every = 0.0, task.held_out(rows)
    for i in range(0, rows, block):
        state = State(*(a[i : i + block] for a in every))
        for _ in range(task.horizon):
            choices = options(np, task, data, state.value)
            picks = draw(np, _random_weights(task, choices), rng.random(len(state.value), np.float32))
            state = step(np, choices, state, picks)
        total += float(reward(np, task, data, state).astype(np.float64).sum())
    return total / rows


@functools.lru_cache(maxsize=256)
def fixed_rewards(task: Task, rows: int) -> tuple[float, ...]:
    """The expected noise-free reward of always picking operation k, for each of the K."""
    data, every, k = task.data(), task.held_out(rows), len(task.ops)
    block = max(1, _BLOCK // k ** min(task.horizon, 2))
    totals = np.zeros(k)
    for i in range(0, rows, block):
        state = State(*(a[i : i + block] for a in every))
        state = branches(state, options(np, task, data, state.value))
        for _ in range(task.horizon - 1):
            choices = options(np, task, data, state.value)  # [N, K, K]
            state = step(np, choices, state, np.broadcast_to(one_hot(np.arange(k), k), choices.values.shape))
        totals += reward(np, task, data, state).astype(np.float64).sum(0)
    return tuple((totals / rows).tolist())
