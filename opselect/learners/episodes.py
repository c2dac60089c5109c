"""Whole episodes of a gymnasium vector environment, one per row, and their returns.

Shapes: N rows, L steps of the longest episode, F features of an observation, K actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from opselect._tensorflow import tf
from opselect.policy import check_choice, distribution
from opselect.random import as_seed
from opselect_envs.naming import nearest

__all__ = ["Batch", "EnvironmentMismatchError", "actor", "make_environments", "play_episodes", "returns_to_go"]

Tensor = Any


class EnvironmentMismatchError(ValueError):
    """An environment or learner that can't be trained here; the message says why and what can."""


class Batch(NamedTuple):
    """One episode per row, padded to the longest."""

    observations: np.ndarray
    """[L, N, F] float32."""
    masks: np.ndarray
    """[L, N, K] bool: the actions that were allowed."""
    actions: np.ndarray
    """[L, N] int, 0-based."""
    rewards: np.ndarray
    """[L, N] float64, 0 after the end."""
    alive: np.ndarray
    """[L, N] bool: whether the step belongs to the row's episode."""
    truncated: np.ndarray
    """[N] bool: the episode was cut, not ended."""
    final: np.ndarray
    """[N, F] float32: the observation after the last step."""


def make_environments(env_id: str, rows: int) -> tuple[Any, int]:
    """The vector environment, and K.

    Raises:
        EnvironmentMismatchError: unknown id, or an action space that is not Discrete.
    """
    try:
        envs = gymnasium.make_vec(env_id, num_envs=rows)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        known = [i for i in gymnasium.registry if i.rpartition("/")[0] in ("", "opselect")]
        near = nearest(env_id.rpartition(":")[2], known)
        raise EnvironmentMismatchError(
            f"env: can't make {env_id!r} ({error}); the nearest known id is {near!r}"
        ) from error
    space = envs.single_action_space
    if not isinstance(space, gymnasium.spaces.Discrete):
        envs.close()
        raise EnvironmentMismatchError(
            f"env: {env_id!r} has the action space {space}; only Discrete can be trained here"
        )
    return envs, int(space.n)


def _flat(space: Any, observation: Any) -> np.ndarray:
    """One observation as a vector [F]."""
    return np.asarray(gymnasium.spaces.flatten(space, observation), np.float32)


def _flat_rows(envs: Any, observations: Any) -> np.ndarray:
    """A batch of observations as [N, F]; gymnasium's own wrapper refuses the SAME_STEP mode."""
    space = envs.single_observation_space
    if isinstance(space, gymnasium.spaces.Box):
        return np.array(observations, np.float32).reshape(envs.num_envs, -1)
    return np.stack([_flat(space, o) for o in gymnasium.vector.utils.iterate(envs.observation_space, observations)])


def actor(network: Callable[[Tensor], Tensor], greedy: bool) -> Callable[..., np.ndarray]:
    """Chooses actions [N] for observations [N, F] under masks [N, K]; refuses invalid logits and empty masks."""

    @tf.function(autograph=False, reduce_retracing=True)
    def choose(observations: Tensor, masks: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
        logits = network(observations)
        choice = distribution(logits, masks)
        return choice.mode() if greedy else choice.sample(seed=seed), logits

    def act(observations: np.ndarray, masks: np.ndarray, seed: int) -> np.ndarray:
        actions, logits = choose(tf.constant(observations), tf.constant(masks), as_seed(seed))
        check_choice(logits.numpy(), masks)  # inside the compiled function nothing can be raised
        return actions.numpy()

    return act


def _masks(infos: Mapping[str, Any], rows: int, actions: int) -> np.ndarray:
    mask = infos.get("action_mask")
    if mask is None:
        return np.ones((rows, actions), bool)
    given = np.asarray(infos.get("_action_mask", np.ones(rows, bool)), bool)
    return np.array(mask, bool).reshape(rows, actions) | ~given[:, None]  # rows that gave none may do anything


def play_episodes(envs: Any, act: Callable[..., np.ndarray], seed: int | None, longest: int) -> Batch:
    """Plays one episode in every row of a vector environment, from a reset to its first end.

    Works in every autoreset mode: what a row does after its first end is ignored.

    Args:
        envs: a gymnasium VectorEnv with Discrete actions; its observations are flattened.
        act: (observations [N, F], masks [N, K], step's seed) -> actions [N], 0-based.
        seed: seeds the environments and the actions.
        longest: cut episodes after this many steps.
    """
    n, space = envs.num_envs, envs.single_action_space
    first, k = int(space.start), int(space.n)
    mode = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    observations, infos = envs.reset(seed=seed)
    alive, truncated = np.ones(n, bool), np.zeros(n, bool)
    final = np.zeros((n, gymnasium.spaces.flatdim(envs.single_observation_space)), np.float32)
    steps: list[tuple[np.ndarray, ...]] = []
    while alive.any() and len(steps) < longest:
        now, masks = _flat_rows(envs, observations), _masks(infos, n, k)
        actions = act(now, masks, (0 if seed is None else seed) * 100_003 + len(steps))
        observations, rewards, ended, cut, infos = envs.step(actions + first)
        steps.append((now, masks, actions, np.where(alive, rewards, 0.0), alive.copy()))
        over = alive & (ended | cut)
        if over.any():
            last = _flat_rows(envs, observations)
            if mode == AutoresetMode.SAME_STEP:  # the returned observation is already the next episode's
                last[over] = np.stack([_flat(envs.single_observation_space, o) for o in infos["final_obs"][over]])
            final[over], truncated[over] = last[over], (cut & ~ended)[over]
            alive &= ~over
        if mode == AutoresetMode.DISABLED and (ended | cut).any():
            # Starts the next episode, so that stepping the row stays legal; what it does is ignored.
            observations, infos = envs.reset(options={"reset_mask": ended | cut})
    if alive.any():  # cut here: a truncation like any other
        final[alive], truncated[alive] = _flat_rows(envs, observations)[alive], True
    columns = [np.stack(column) for column in zip(*steps, strict=True)]
    return Batch(*columns, truncated=truncated, final=final)


def returns_to_go(rewards: np.ndarray, discount: float, after: np.ndarray) -> np.ndarray:
    """Discounted returns to go [L, N] of rewards [L, N].

    Args:
        rewards: [L, N], 0 after an episode's end.
        discount: gamma.
        after: [L, N], what follows each step: the bootstrapped value at the last step of a truncated episode, else 0.
    """
    result = np.zeros_like(rewards, np.float64)
    following = np.zeros(rewards.shape[1])
    for step in reversed(range(len(rewards))):
        following = rewards[step] + discount * (following + after[step])
        result[step] = following
    return result
