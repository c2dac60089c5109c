"""The capability suite for any agent: its challenges, and the score of a policy or of recorded episodes.

An agent needs neither TensorFlow nor `opselect` for it::

    from opselect_envs.suite import CHALLENGES, score
    print(score(CHALLENGES["noise-90"].id, lambda observations, masks: my_policy(observations)))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from opselect_envs.challenges import AXES, CHALLENGES, Axis, Challenge
from opselect_envs.dynamics import quasi_random
from opselect_envs.episodes import action_mask, advance, begin, observations
from opselect_envs.lookup import task_of
from opselect_envs.tasks import Task

__all__ = ["AXES", "CHALLENGES", "Axis", "Challenge", "Policy", "Score", "score", "score_rewards"]

Policy = Callable[[np.ndarray, np.ndarray], Any]
"""Observations [N, F] float32 and masks [N, K] int8 -> actions [N], integers in [0, K)."""


class Score(NamedTuple):
    """How an agent does. Scores are normalised: 0 picks uniformly at random, 1 is the oracle."""

    score: float
    low: float
    """The lower end of the 95% interval, from the spread of the episodes' rewards."""
    high: float
    """Its upper end."""
    best_fixed: float
    """The score of always picking the one operation that is best so: what an agent gets without looking."""
    mean_reward: float
    episodes: int


def score(env_id: str | Challenge, policy: Policy, episodes: int = 4096) -> Score:
    """Scores a policy on the fixed, evenly spread episodes that the package's own learners are scored on.

    There is no reward noise in them, and where the rule shifts they follow the rule after the shift.

    Args:
        env_id: an id of this package, a task's name or a challenge.
        policy: ``policy(observations [N, F] float32, masks [N, K] int8) -> actions [N]``, integers in [0, K). It is
            called once per decision with all episodes that are not over; a mask is 1 where an operation is available.
        episodes: how many.

    Raises:
        InvalidTaskError: there is no such environment.
        ValueError: the policy's actions have a wrong shape or are out of range.
    """
    task = task_of(env_id)
    task = task.at(task.shift_after)
    if isinstance(episodes, bool) or not isinstance(episodes, int | np.integer) or episodes < 2:
        raise ValueError(f"episodes must be an integer >= 2, got {episodes!r}; the nearest is 2")
    data = task.data()
    under_way = begin(task, data, quasi_random(episodes, task.uniforms).astype(np.float32))
    rewards, over = np.zeros(episodes), np.zeros(episodes, bool)
    while not over.all():
        (seen,) = observations(task, data, under_way)
        masks = action_mask(under_way, over)
        actions = np.zeros(episodes, np.int64)
        actions[~over] = _checked(policy(seen[~over], masks[~over]), int((~over).sum()), len(task.ops))
        under_way, ended, clean, _ = advance(task, data, under_way, actions)
        rewards[ended & ~over] = clean[ended & ~over]
        over |= ended
    return _score_of([(task, rewards)], noise=False)


def score_rewards(
    env_id: str | Challenge,
    rewards: Sequence[float] | np.ndarray,
    *,
    episodes: Sequence[int] | np.ndarray | None = None,
    shift_after: int | None = None,
) -> Score:
    """Scores recorded episodes.

    Args:
        env_id: the id of the environment that they were recorded in, a task's name or a challenge.
        rewards: [N], each episode's reward (the sum of its steps'), with the environment's noise.
        episodes: [N], only where the rule shifts: how many episodes its row of the environment had begun before, since
            it was last seeded. ``range(N)`` for N episodes of one environment from its seed on. Each reward is compared
            with what can be had under the rule of that time.
        shift_after: the environment's, if it was made with another than the id's.

    Raises:
        InvalidTaskError: there is no such environment.
        ValueError: fewer than two rewards, or one outside [0, 1]; episodes missing where the rule shifts, or not N.
    """
    values = np.asarray(rewards, np.float64)
    if values.ndim != 1 or len(values) < 2 or not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"rewards must be at least 2 numbers in [0, 1], one per episode; got {rewards!r}")
    task = task_of(env_id)
    if shift_after is not None:
        task = replace(task, shift_after=shift_after)
    if task.rule_after is None:
        return _score_of([(task, values)], noise=True)
    if episodes is None:
        raise ValueError(
            f"episodes must be given, as the rule of {env_id!r} shifts after {task.shift_after} episodes of each row:"
            " range(N) for N episodes of one environment from its seed on"
        )
    numbers = np.asarray(episodes)
    if numbers.shape != values.shape or numbers.dtype.kind not in "iu":
        raise ValueError(f"episodes must be {len(values)} integers, one per reward, got {episodes!r}")
    late = numbers >= task.shift_after
    parts = [(task.at(0), values[~late]), (task.at(task.shift_after), values[late])]
    return _score_of([(rule, some) for rule, some in parts if len(some)], noise=True)


def _checked(actions: Any, rows: int, k: int) -> np.ndarray:
    wanted = f"policy must return {rows} integers in [0, {k - 1}], got"
    if isinstance(actions, tuple):
        raise ValueError(
            f"{wanted} a tuple of {len(actions)}; a stable-baselines3 model's first item is the actions:"
            " lambda observations, masks: model.predict(observations)[0]"
        )
    try:
        array = np.asarray(actions)
    except ValueError:  # of rows of several lengths
        raise ValueError(f"{wanted} {actions!r}") from None
    if array.shape != (rows,) or array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= k:
        told = f" from {array.min()} to {array.max()}" if array.size and array.dtype.kind in "iuf" else ""
        raise ValueError(f"{wanted} {array.dtype} of shape {array.shape}{told}")
    return array


def _score_of(parts: Sequence[tuple[Task, np.ndarray]], noise: bool) -> Score:
    """The score of rewards under one rule, or before and after a shift."""
    every = np.concatenate([rewards for _, rewards in parts])
    scores = np.concatenate([task.score(rewards, noise=noise) for task, rewards in parts])
    fixed = [task.score(task.expected_rewards(noise=noise)["best_fixed"], noise=noise) for task, _ in parts]
    best_fixed = float(np.average(fixed, weights=[len(rewards) for _, rewards in parts]))
    mean, error = float(scores.mean()), float(scores.std(ddof=1) / np.sqrt(len(scores)))
    return Score(mean, mean - 1.96 * error, mean + 1.96 * error, best_fixed, float(every.mean()), len(every))
