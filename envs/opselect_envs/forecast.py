"""The next episodes of a single environment, worked out together: on one row NumPy's calls cost far more than the work.

Shapes: n episodes, K operations, F features.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opselect_envs.dynamics import State
from opselect_envs.episodes import (
    STEP_KEYS,
    Data,
    Episodes,
    advance_all,
    begin,
    observations,
    report,
)
from opselect_envs.tasks import Task

__all__ = ["Forecast", "Level", "forecast", "most_rows"]

_CELLS = 200_000  # how many numbers a forecast holds at most, about
_MOST_OUTCOMES = 512  # with more per episode, too few of those worked out would ever be looked at


class Level(NamedTuple):
    """What one decision leads to: row i K + k is operation k at row i of the level before (first: in episode i)."""

    observations: np.ndarray
    """[n K, F] float32."""
    rewards: np.ndarray
    """[n K] float32, noise-free."""
    masks: np.ndarray | None
    """[n K, K] int8; None after the last decision, when all are ones."""
    over: np.ndarray
    """[n K] bool."""
    state: State
    """[n K]."""
    infos: dict[str, np.ndarray]
    """What ``info`` says besides the mask and the target, [n K] each."""


class Forecast(NamedTuple):
    """The starts of n episodes and, where those are few, all that can come of them."""

    episodes: Episodes
    observations: np.ndarray
    """[n, F] float32."""
    masks: np.ndarray
    """[n, K] int8."""
    targets: list[float]
    levels: list[Level]
    """One per decision, or none at all."""


def forecast(task: Task, data: Data, uniforms: np.ndarray, before: int) -> Forecast:
    """Works out the episodes that begin from draws [n, task.uniforms], `before` of which came before them."""
    n = len(uniforms)
    episodes = begin(task, data, uniforms, before + np.arange(n))
    told = report(episodes, np.zeros(n, bool))
    (seen,) = observations(task, data, episodes)
    levels, now = [], episodes
    for decision in range(task.horizon if _outcomes(task) <= _MOST_OUTCOMES else 0):
        now, over, rewards, regret = advance_all(task, data, now)
        (shown,) = observations(task, data, now)
        outcome = report(now, over, regret)
        masks = outcome["action_mask"] if decision + 1 < task.horizon else None
        levels.append(Level(shown, rewards, masks, over, now.state, {key: outcome[key] for key in STEP_KEYS}))
    return Forecast(episodes, seen, told["action_mask"], told["target"].tolist(), levels)


def _outcomes(task: Task) -> int:
    """How many states an episode can come to after its start: K + K**2 + ... + K**T."""
    return sum(len(task.ops) ** (decision + 1) for decision in range(task.horizon))


def most_rows(task: Task) -> int:
    """How many episodes are worth working out at a time."""
    outcomes, k = _outcomes(task), len(task.ops)
    if outcomes > _MOST_OUTCOMES:
        outcomes = 0
    width = task.observation_size * (1 + outcomes) + k * (1 + outcomes // k)
    return int(np.clip(_CELLS // width, 1, 128))
