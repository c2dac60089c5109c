"""The next episodes of a single environment, worked out together: on one row NumPy's calls cost far more than the work.

Shapes: n episodes, K operations, F features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from opselect_envs.episodes import (
    Data,
    Episodes,
    advance,
    begin,
    observations,
    report,
    take,
)
from opselect_envs.tasks import Task

__all__ = ["Ends", "Forecast", "forecast", "most_rows"]

_CELLS = 200_000  # how many numbers a forecast holds at most, about
_MOST_OPERATIONS = 32  # with more, most of the ends worked out would never be looked at


class Ends(NamedTuple):
    """What each operation leads to in tasks of one decision: row i * K + k is operation k in episode i."""

    observations: np.ndarray
    """[n K, F] float32."""
    rewards: np.ndarray
    """[n K] float32, noise-free."""
    over: list[bool]
    values: list[float]
    alive: list[bool]
    infos: dict[str, list[Any]]
    """What ``info`` says besides the mask and the target."""


class Forecast(NamedTuple):
    """The starts of n episodes and, where that is little, all their ends."""

    episodes: Episodes
    observations: np.ndarray
    """[n, F] float32."""
    masks: np.ndarray
    """[n, K] int8."""
    targets: list[float]
    ends: Ends | None


def forecast(task: Task, data: Data, uniforms: np.ndarray, before: int) -> Forecast:
    """Works out the episodes that begin from draws [n, task.uniforms], `before` of which came before them."""
    n, k = len(uniforms), len(task.ops)
    episodes = begin(task, data, uniforms, before + np.arange(n))
    running = np.zeros(n, bool)
    told = report(episodes, running)
    (seen,) = observations(task, data, episodes)
    ends = None
    if task.horizon == 1 and k <= _MOST_OPERATIONS:
        after, over, rewards, regret = advance(
            task, data, take(episodes, np.repeat(np.arange(n), k)), np.tile(np.arange(k), n)
        )
        (final,) = observations(task, data, after)
        outcome = report(after, over, regret)
        infos = {key: values.tolist() for key, values in outcome.items() if key not in ("action_mask", "target")}
        ends = Ends(final, rewards, over.tolist(), after.state.value.tolist(), (after.state.alive != 0).tolist(), infos)
    return Forecast(episodes, seen, told["action_mask"], told["target"].tolist(), ends)


def most_rows(task: Task) -> int:
    """How many episodes are worth working out at a time."""
    k = len(task.ops)
    width = task.observation_size * (k if task.horizon == 1 and k <= _MOST_OPERATIONS else 1) + k
    return int(np.clip(_CELLS // width, 1, 128))
