"""Episodes of a task under way, side by side: what the gymnasium environments wrap.

The single environment is a batch of one row, so both shells run the same code. Shapes: B rows, K operations,
T decisions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from opselect_envs.dynamics import Options, State, branches, observe, one_hot, options, reward, start, step
from opselect_envs.references import best_reward
from opselect_envs.tasks import OPTIMAL_REGRET, Task

__all__ = [
    "REGRET_PATHS",
    "STEP_KEYS",
    "Episodes",
    "action_mask",
    "advance",
    "advance_all",
    "begin",
    "data_of",
    "merge",
    "observations",
    "report",
    "take",
    "tells_every_regret",
]

Data = dict[str, Any]
REGRET_PATHS = 1000
"""A chain whose decisions after the first have more paths than this tells its regret at its end only, as a whole."""
STEP_KEYS = ("error", "optimal", "regret")
"""What ``info`` has after a step only."""


class Episodes(NamedTuple):
    """B episodes under way."""

    state: State
    """Value, target and alive, each [B] float32."""
    choices: Options
    """What the operations would do, [B, K]; not kept up to date in episodes that are over."""
    decision: np.ndarray
    """[B] int64: how many decisions were taken."""
    best: np.ndarray
    """[B] float64: the highest noise-free reward that could still be reached."""


def begin(task: Task, data: Data, uniforms: np.ndarray, episode: np.ndarray | None = None) -> Episodes:
    """Starts episodes from uniform draws [B, task.uniforms] float32 in [0, 1).

    Where the task's rule shifts, `episode` [B] says how many came before in each row, and `data` (of `data_of`) holds
    what is different after the shift.
    """
    if "later" in data and episode is not None:
        late = np.flatnonzero(episode >= task.shift_after)
        if len(late) == len(episode):
            return begin(task, data["later"], uniforms)
        begun = begin(task, data, uniforms)
        return merge(begun, late, begin(task, data["later"], uniforms[late])) if len(late) else begun
    state, choices = start(np, task, data, uniforms)
    rows = len(state.value)
    # Every target can be reached, unless it is blended.
    best = best_reward(task, data, state, task.horizon).astype(np.float64) if task.blend else np.ones(rows)
    return Episodes(state, choices, np.zeros(rows, np.int64), best)


def data_of(task: Task) -> Data:
    """`Task.data`, with that of the task after its shift as ``"later"``."""
    shifts = task.rule_after is not None
    return task.data() | ({"later": task.at(task.shift_after).data()} if shifts else {})


def advance(
    task: Task, data: Data, episodes: Episodes, actions: np.ndarray
) -> tuple[Episodes, np.ndarray, np.ndarray, np.ndarray]:
    """Takes one decision in every episode.

    Args:
        task: what is posed.
        data: `data_of(task)`.
        episodes: B episodes, none of them over.
        actions: [B] integers below K.

    Returns:
        ``(episodes, terminated [B] bool, reward [B] float32, regret [B] float64)``; the reward is noise-free, and 0
        before the end. The regrets of an episode that is played to its end sum to the oracle's noise-free reward
        minus its own; where not `tells_every_regret`, that of a decision before the end is 0.
    """
    state = step(np, episodes.choices, episodes.state, one_hot(actions, len(task.ops)))
    return _arrived(task, data, state, episodes, 1)


def advance_all(task: Task, data: Data, episodes: Episodes) -> tuple[Episodes, np.ndarray, np.ndarray, np.ndarray]:
    """Takes every decision in every episode: `advance` of B K rows, of which row b K + k takes operation k in row b.

    An episode that is over may be among them; what follows it has no meaning.
    """
    state = State(*(np.ascontiguousarray(a).reshape(-1) for a in branches(episodes.state, episodes.choices)))
    state = state._replace(value=state.value + np.float32(0.0))  # the sum that `step` takes has no -0.0
    return _arrived(task, data, state, episodes, len(task.ops))


def _arrived(
    task: Task, data: Data, state: State, episodes: Episodes, copies: int
) -> tuple[Episodes, np.ndarray, np.ndarray, np.ndarray]:
    """What `advance` returns, of states [B copies] that a decision in each of B episodes led to."""
    before, decision = np.repeat(episodes.best, copies), np.repeat(episodes.decision + 1, copies)
    terminated = (decision >= task.horizon) | (state.alive == 0)
    clean = reward(np, task, data, state)
    if np.count_nonzero(terminated) == len(terminated):  # several times as fast as `all`
        choices, best = episodes.choices, clean.astype(np.float64)
        if copies > 1:
            nothing = np.broadcast_to(np.float32(0.0), (len(decision), len(task.ops)))
            choices = Options(nothing, nothing)
    else:
        clean = np.where(terminated, clean, np.float32(0.0))
        choices = options(np, task, data, state.value)
        best = np.where(terminated, clean, before)
        if tells_every_regret(task):
            remaining = np.where(terminated, 0, task.horizon - decision)
            for left in np.unique(remaining[~terminated]):
                rows = np.flatnonzero(remaining == left)
                best[rows] = best_reward(task, data, State(*(a[rows] for a in state)), int(left))
    regret = np.maximum(before - best, 0.0)
    return Episodes(state, choices, decision, best), terminated, clean, regret


def tells_every_regret(task: Task) -> bool:
    """Whether the regret of each decision is worked out; else only that of whole episodes."""
    return len(task.ops) ** (task.horizon - 1) <= REGRET_PATHS


def observations(task: Task, data: Data, *batches: Episodes) -> list[np.ndarray]:
    """The observations [B, task.observation_size] float32 of each batch of B episodes, as new C-contiguous arrays."""
    # One evaluation for all batches: for up to some thousand rows, half the time is spent on calling NumPy.
    state, decision = batches[0].state, batches[0].decision
    if len(batches) > 1:
        state = State(*(np.concatenate(a) for a in zip(*(b.state for b in batches), strict=True)))
        decision = np.concatenate([b.decision for b in batches])
    # After the last decision there is no next one: the final observation shows the last.
    rows = observe(np, task, data, state, np.minimum(decision, task.horizon - 1) if task.horizon > 1 else 0)
    ends = np.cumsum([len(b.decision) for b in batches]).tolist()
    return [rows[end - len(b.decision) : end] for end, b in zip(ends, batches, strict=True)]


def action_mask(episodes: Episodes, over: np.ndarray) -> np.ndarray:
    """[B, K] int8: 1 where the operation is available; all ones in episodes that are `over`. No row is all zeros."""
    if np.count_nonzero(over) == len(over):
        return np.ones(episodes.choices.available.shape, np.int8)
    available = episodes.choices.available != 0
    # Gymnasium and MaskablePPO take an all-zero mask without a word, so a state that offers nothing masks nothing.
    free = over | ~available.any(-1)
    if np.count_nonzero(free):
        available = available | free[:, None]
    return np.ascontiguousarray(available).view(np.int8)


def report(episodes: Episodes, terminated: np.ndarray, regret: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """What ``info`` says, an array of B rows per key: after a reset without `regret` [B], after a decision with it."""
    state = episodes.state
    info = {"action_mask": action_mask(episodes, terminated), "target": state.target.astype(np.float64)}
    if regret is not None:
        info["error"] = np.abs(state.value - state.target).astype(np.float64)
        info["optimal"] = regret <= OPTIMAL_REGRET
        info["regret"] = regret
    return info


def take(episodes: Episodes, rows: np.ndarray) -> Episodes:
    """Copies some rows [R] of the episodes."""
    return _zipped(lambda a: a[rows], episodes)


def merge(episodes: Episodes, rows: np.ndarray, part: Episodes) -> Episodes:
    """A copy of the episodes in which some rows [R] are those of `part`."""

    def put(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a = a.copy(order="K")
        a[rows] = b
        return a

    return _zipped(put, episodes, part)


def _zipped(function: Any, *episodes: Episodes) -> Episodes:
    state = State(*(function(*a) for a in zip(*(e.state for e in episodes), strict=True)))
    choices = Options(*(function(*a) for a in zip(*(e.choices for e in episodes), strict=True)))
    decision = function(*(e.decision for e in episodes))
    return Episodes(state, choices, decision, function(*(e.best for e in episodes)))
