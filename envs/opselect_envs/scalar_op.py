"""The gymnasium environments: an Env and a NumPy VectorEnv around the tasks of `opselect_envs.tasks`.

Both are shells: the dynamics are in `tasks`, the bookkeeping in `episodes`. Shapes: B rows, K operations, T decisions.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium.error import Error, InvalidAction, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from opselect_envs import rendering
from opselect_envs.dynamics import noisy_reward
from opselect_envs.episodes import (
    STEP_KEYS,
    Episodes,
    advance,
    begin,
    data_of,
    merge,
    observations,
    report,
    take,
    tells_every_regret,
)
from opselect_envs.forecast import Forecast, forecast, most_rows
from opselect_envs.lookup import task_with
from opselect_envs.naming import nearest
from opselect_envs.streams import Ahead, Streams
from opselect_envs.tasks import Task

__all__ = ["OpSelectEnv", "OpSelectVectorEnv"]

Info = dict[str, Any]
_METADATA: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}
_NOISE_DRAWS = 2  # what `noisy_reward` takes


def _check_render_mode(render_mode: str | None) -> str | None:
    modes = _METADATA["render_modes"]
    if render_mode is not None and render_mode not in modes:
        near = nearest(render_mode, modes)
        raise ValueError(f"render_mode must be one of {modes} or None, got {render_mode!r}; did you mean {near!r}?")
    return render_mode


def _spaces(task: Task) -> tuple[gym.spaces.Box, gym.spaces.Discrete]:
    return gym.spaces.Box(-1.0, 1.0, (task.observation_size,), np.float32), gym.spaces.Discrete(len(task.ops))


class OpSelectEnv(gym.Env[np.ndarray, np.int64]):
    """One episode at a time of choosing operations.

    An action is an index into the task's operations. One decision ends an episode of ``ScalarOp`` and ``ScalarOpGoal``,
    `horizon` decisions one of ``OpChain``; picking an operation that is not available ends any episode at once without
    reward (except for the task's noise). The reward comes with the last decision.

    Observations are [task.observation_size] float32 in [-1, 1]. ``info`` holds ``action_mask`` ([K] int8, what is
    available at the state observed) and ``target``; after a step also ``error`` (the distance to the target),
    ``regret`` (the reward that the decision gave away: over an episode that is not truncated they sum to the oracle's
    noise-free reward minus its own) and ``optimal`` (whether it gave away none). In a chain with more than
    `episodes.REGRET_PATHS` paths after the first decision, the last two are of the whole episode and come at its end.
    Where the rule shifts, `shift_after` counts the episodes begun since the environment was last seeded.

    Args:
        task: the name of a standard task or of a challenge of the suite, or a `Task`.
        render_mode: ``"ansi"``, ``"rgb_array"`` or None.
        **parameters: what differs from that task: operations, low, high, regions, rule, reward, reward_noise,
            tolerance, value_limit, frequencies, mask_actions, blend, distractors, rule_after, shift_after and, for
            chains, horizon; see `Task`.

    Raises:
        InvalidTaskError: an unknown or bad parameter.
    """

    metadata = _METADATA.copy()

    def __init__(self, task: str | Task = "ScalarOp", *, render_mode: str | None = None, **parameters: Any) -> None:
        self.task = task_with(task, parameters)
        self.render_mode = _check_render_mode(render_mode)
        self.observation_space, self.action_space = _spaces(self.task)
        self._data = data_of(self.task)
        self._ahead: Ahead | None = None
        self._forecast: Forecast | None = None
        self._first, self._next = 0, 0  # where in the stream the forecast begins; its row that comes next
        self._rows = 1  # how many episodes the forecast works out
        self._free = np.ones(len(self.task.ops), np.int8)  # the mask when nothing is left to choose
        self._stride = self.task.uniforms + (_NOISE_DRAWS if self.task.reward_noise > 0 else 0)
        self._count = 0  # episodes begun since it was seeded
        self._row = 0  # of the forecast, the episode's
        self._decision, self._place = 0, 0  # decisions taken; where the forecast has the episode, in the level of these
        self._episode: Episodes | None = None  # as it is now, unless the forecast holds that
        self._mask: np.ndarray | None = None  # [K] int8, once reset
        self._over = True
        self._trail: rendering.Trail | None = None  # of an episode that began with a render mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, Info]:
        """Starts an episode; returns the observation and ``info``. No options are known; they are ignored."""
        super().reset(seed=seed)
        if seed is not None:
            self._count = 0
        upcoming = self._upcoming()
        self._row = self._place = self._next
        self._next, self._decision = self._next + 1, 0
        self._stream.take(self.task.uniforms)
        self._count += 1
        self._episode, self._over = None, False
        mask = self._mask = upcoming.masks[self._row].copy()
        self._trail = None
        if self.render_mode is not None:
            value = float(upcoming.episodes.state.value[self._row])
            self._trail = rendering.Trail([value], upcoming.targets[self._row])
        return upcoming.observations[self._row].copy(), {
            "action_mask": mask.copy(),
            "target": upcoming.targets[self._row],
        }

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Picks an operation.

        Raises:
            InvalidAction: the action is no integer in [0, K).
            ResetNeeded: the episode is over.
        """
        forecast = self._forecast
        if self._over or forecast is None or self._mask is None:
            raise ResetNeeded("step() was called before reset(), or after the end of an episode; call reset() first")
        pick = self._valid(action)
        if not forecast.levels:
            return self._decide(forecast, pick)
        level = forecast.levels[self._decision]
        place = self._place = self._place * len(self._free) + pick
        self._decision += 1
        self._over = over = level.over.item(place)
        reward = self._noisy(level.rewards[place : place + 1])
        mask = self._mask = self._free if level.masks is None else level.masks[place]
        if self._trail is not None:
            self._trail.add(pick, level.state.value.item(place), level.state.alive.item(place) != 0)
        info = {"action_mask": mask.copy(), "target": forecast.targets[self._row]}
        for key, values in level.infos.items():
            info[key] = values.item(place)
        return level.observations[place].copy(), reward, over, False, info

    def _decide(self, forecast: Forecast, pick: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Where too much could come of an episode to work it out beforehand."""
        before = self._episode or take(forecast.episodes, np.array([self._row]))
        after, over, rewards, regret = advance(self.task, self._data, before, np.array([pick], np.int64))
        self._episode, self._over = after, bool(over[0])
        reward = self._noisy(rewards)
        if self._trail is not None:
            self._trail.add(pick, float(after.state.value[0]), bool(after.state.alive[0]))
        info = _row_of(report(after, over, regret))
        if not self._over and not tells_every_regret(self.task):
            del info["regret"], info["optimal"]
        self._mask = info["action_mask"].copy()
        return observations(self.task, self._data, after)[0][0], reward, self._over, False, info

    def action_masks(self) -> np.ndarray:
        """[K] bool: which operations are available now (for MaskablePPO); all of them when the episode is over."""
        if self._mask is None:
            raise ResetNeeded("action_masks() was called before reset()")
        return self._mask.astype(bool)

    def render(self) -> Any:
        """The episode so far: a string, an image [H, W, 3] uint8, or None without a render mode."""
        if self.render_mode is None:
            return None
        now = self.task.at(self._count - 1)
        return (rendering.ansi if self.render_mode == "ansi" else rendering.rgb_array)(now, self._trail)

    @property
    def _stream(self) -> Ahead:
        if self._ahead is None or self._ahead.generator is not self.np_random:  # seeded, or replaced
            self._ahead, self._forecast = Ahead(self.np_random), None
        return self._ahead

    def _upcoming(self) -> Forecast:
        """The forecast whose row `_next` is the episode that begins now."""
        stream = self._stream
        if self._forecast is not None and stream.used == self._first + self._next * self._stride:
            if self._next < self._rows:
                return self._forecast
            self._rows = min(4 * self._rows, most_rows(self.task))
        else:  # seeded, or an episode was abandoned and what it would have drawn was not: that may go on
            self._rows = max(1, self._rows // 4)
        draws = stream.upcoming(self._rows * self._stride).reshape(self._rows, self._stride)[:, : self.task.uniforms]
        self._forecast = forecast(self.task, self._data, draws, self._count)
        self._first, self._next = stream.used, 0
        return self._forecast

    def _noisy(self, rewards: np.ndarray) -> float:
        if self._over and self.task.reward_noise > 0:
            rewards = noisy_reward(np, self._data, rewards, self._stream.take(_NOISE_DRAWS)[None])
        return float(rewards[0])

    def _valid(self, action: Any) -> int:
        try:
            pick = operator.index(action)
        except TypeError:
            pick = -1
        if not 0 <= pick < len(self.task.ops):
            raise InvalidAction(f"action must be an integer in [0, {len(self.task.ops) - 1}], got {action!r}")
        return pick


def _row_of(infos: dict[str, np.ndarray]) -> Info:
    return {key: value[0].item() if value.ndim == 1 else value[0] for key, value in infos.items()}


class OpSelectVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """B episodes side by side, in NumPy.

    Row i is what an `OpSelectEnv` seeded ``seed + i`` does, and what is returned is laid out as by `SyncVectorEnv`,
    with one liberty taken for speed: when all rows end at the same step of mode SAME_STEP, ``infos["final_obs"]`` is
    one float32 array [B, observation_size] and not an object array of B arrays.

    Args:
        task: the name of a standard task or of a challenge of the suite, or a `Task`.
        num_envs: B.
        render_mode: ``"ansi"``, ``"rgb_array"`` or None.
        autoreset_mode: what happens to rows that are over. SAME_STEP by default: with NEXT_STEP every second step of a
            one-decision task would be spent on resets.
        max_episode_steps: episodes are truncated after so many steps; None or -1: never.
        **parameters: as for `OpSelectEnv`.
    """

    metadata = _METADATA.copy()

    def __init__(
        self,
        task: str | Task = "ScalarOp",
        *,
        num_envs: int = 1,
        render_mode: str | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP,
        max_episode_steps: int | None = None,
        **parameters: Any,
    ) -> None:
        if not _is_integer(num_envs) or num_envs < 1:
            raise ValueError(f"num_envs must be an integer of at least 1, got {num_envs!r}")
        self.task = task_with(task, parameters)
        self.render_mode = _check_render_mode(render_mode)
        self.num_envs = int(num_envs)
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {**type(self).metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space, self.single_action_space = _spaces(self.task)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        unlimited = max_episode_steps is None or max_episode_steps == -1
        if not unlimited and not (_is_integer(max_episode_steps) and max_episode_steps >= 1):
            raise ValueError(
                f"max_episode_steps must be an integer >= 1, or None for no limit, got {max_episode_steps!r}"
            )
        self._limit = np.inf if unlimited else max_episode_steps
        self._data = data_of(self.task)
        self._count = np.zeros(self.num_envs, np.int64)  # episodes begun in each row since it was seeded
        self._streams = Streams(self.num_envs, max(self.task.uniforms, _NOISE_DRAWS))
        self._episodes: Episodes | None = None
        self._terminated = np.zeros(self.num_envs, bool)
        self._over = np.zeros(self.num_envs, bool)  # terminated or truncated, and not reset since
        self._trails: dict[int, rendering.Trail] = {}  # by row, of episodes that began with a render mode

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The seed of each row's generator, as of `SyncVectorEnv`; None before the first reset."""
        return tuple(self._streams.seeds)

    @property
    def np_random(self) -> tuple[np.random.Generator | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Each row's generator. They are ahead of the environment, which draws in blocks."""
        return tuple(self._streams.generators)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, Info]:
        """Starts an episode in every row, or in those of ``options["reset_mask"]`` ([B] bool).

        Args:
            seed: row i gets ``seed + i``, or ``seed[i]`` of a sequence; with None its random stream goes on.
            options: only ``"reset_mask"`` is known.

        Returns:
            ``(observations [B, observation_size] float32, infos)``.

        Raises:
            gymnasium.error.Error: a seed is no integer >= 0; nothing was seeded then.
        """
        if options is not None and not isinstance(options, dict):
            raise ValueError(f"options must be a dict or None, got {options!r}")
        mask = None if options is None else options.get("reset_mask")
        rows = None if mask is None else _rows(self._valid_mask(mask))
        if self._episodes is None and rows is not None:
            raise ResetNeeded("the first reset() must not leave out rows with a reset_mask")
        seeds = self._valid_seeds(seed)
        every = np.arange(self.num_envs) if rows is None else rows
        self._streams.seed(seeds, every)
        self._count[[row for row in every.tolist() if seeds[row] is not None]] = 0
        self._begin(rows)
        fresh = np.ones(self.num_envs, bool) if mask is None else mask
        return observations(self.task, self._data, self._running)[0], _masked(self._report(), fresh)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Info]:
        """Picks an operation in every row.

        Args:
            actions: [B] integers in [0, K).

        Returns:
            ``(observations [B, observation_size] float32, rewards [B] float64, terminated [B] bool, truncated [B] bool,
            infos)``.

        Raises:
            InvalidAction: an action is no integer in [0, K); the message names its row.
            ResetNeeded: before the first reset, or a row is over and `autoreset_mode` is DISABLED.
        """
        self._require_reset("step")
        played = ~self._over
        actions = self._valid_actions(actions, played)
        if np.count_nonzero(self._over):
            if self.autoreset_mode == AutoresetMode.DISABLED:
                raise ResetNeeded(
                    f"rows {_short(self._over)} are over and autoreset_mode is Disabled: first call"
                    ' reset(options={"reset_mask": terminated | truncated})'
                )
            self._begin(_rows(self._over))  # NEXT_STEP: these rows begin anew, whatever their action
        rewards, regret = np.zeros(self.num_envs), np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        if np.count_nonzero(played):
            rows = _rows(played)
            where = slice(None) if rows is None else rows
            rewards[where], terminated[where], truncated[where], regret[where] = self._play(actions, rows)
        over = terminated | truncated
        self._terminated, self._over = terminated.copy(), over.copy()  # a reset writes to them

        told, every = self._report(regret), np.ones(self.num_envs, bool)
        if self.autoreset_mode != AutoresetMode.SAME_STEP or not np.count_nonzero(over):
            now = observations(self.task, self._data, self._running)[0]
            return now, rewards, terminated, truncated, self._infos(told, every, played, terminated)
        final_info = self._infos(dict(told), over, over, terminated)
        infos: Info = {"final_info": final_info, "_final_info": over.copy(), "_final_obs": over.copy()}
        rows = _rows(over)
        ended = self._running if rows is None else take(self._running, rows)
        self._begin(rows)
        final, now = observations(self.task, self._data, ended, self._running)
        infos["final_obs"] = final
        if rows is not None:
            infos["final_obs"] = np.full(self.num_envs, None, object)
            infos["final_obs"][rows] = [*final]
        infos |= self._infos(told | self._report(), every, played & ~over, terminated)
        return now, rewards, terminated, truncated, infos

    def action_masks(self) -> np.ndarray:
        """[B, K] bool: which operations are available now; all of them in rows that are over."""
        self._require_reset("action_masks")
        return self._report()["action_mask"].astype(bool)

    def render(self) -> tuple[Any, ...] | None:
        """Per row what `OpSelectEnv.render` returns."""
        if self.render_mode is None:
            return None
        draw = rendering.ansi if self.render_mode == "ansi" else rendering.rgb_array
        now = (self.task.at(int(count) - 1) for count in self._count)
        return tuple(draw(task, self._trails.get(row)) for row, task in enumerate(now))

    # --- the rows [R] of the following are indices, or None for all ---------------------------------------------------

    def _begin(self, rows: np.ndarray | None) -> None:
        where = slice(None) if rows is None else rows
        part = begin(self.task, self._data, self._streams.draw(self.task.uniforms, rows), self._count[where])
        self._count[where] += 1
        if rows is None or self._episodes is None:
            self._episodes = part
            self._terminated, self._over = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        else:
            self._episodes = merge(self._episodes, rows, part)
            self._terminated[rows] = self._over[rows] = False
        if self.render_mode is not None:
            for i, row in enumerate(range(self.num_envs) if rows is None else rows):
                self._trails[row] = rendering.Trail([float(part.state.value[i])], float(part.state.target[i]))

    def _play(self, actions: np.ndarray, rows: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """One decision; returns the rows' rewards, terminated, truncated and regrets, each [R]."""
        before = self._running if rows is None else take(self._running, rows)
        actions = actions if rows is None else actions[rows]
        after, terminated, rewards, regret = advance(self.task, self._data, before, actions)
        if self.task.reward_noise > 0 and terminated.any():
            ended = np.flatnonzero(terminated)
            every = rows is None and len(ended) == self.num_envs
            uniforms = self._streams.draw(_NOISE_DRAWS, None if every else ended if rows is None else rows[ended])
            rewards[ended] = noisy_reward(np, self._data, rewards[ended], uniforms)
        self._episodes = after if rows is None else merge(self._running, rows, after)
        if self.render_mode is not None:
            for i, row in enumerate(range(self.num_envs) if rows is None else rows):
                if row in self._trails:  # not if the mode was set after the episode began
                    self._trails[row].add(int(actions[i]), float(after.state.value[i]), bool(after.state.alive[i]))
        return rewards, terminated, after.decision >= self._limit, regret

    def _report(self, regret: np.ndarray | None = None) -> dict[str, np.ndarray]:
        return report(self._running, self._terminated, regret)

    def _infos(
        self, told: dict[str, np.ndarray], rows: np.ndarray, stepped: np.ndarray, terminated: np.ndarray
    ) -> Info:
        """Lays out a report on `rows` [B] bool; what belongs to a step is known of the rows `stepped` [B] bool."""
        of_step = {key: told.pop(key) for key in STEP_KEYS if key in told}
        infos = _masked(told, rows)
        if of_step and not tells_every_regret(self.task):
            infos |= _masked({"error": of_step.pop("error")}, stepped)
            stepped = stepped & terminated
        return infos | _masked(of_step, stepped)

    # --- checking what is handed in -----------------------------------------------------------------------------------

    @property
    def _running(self) -> Episodes:
        assert self._episodes is not None
        return self._episodes

    def _require_reset(self, method: str) -> None:
        if self._episodes is None:
            raise ResetNeeded(f"{method}() was called before reset()")

    def _valid_seeds(self, seed: Any) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if _is_integer(seed):
            seeds = [int(seed) + i for i in range(self.num_envs)]
        elif isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str | bytes):
            if len(seed) != self.num_envs:
                raise ValueError(f"seed must hold num_envs={self.num_envs} seeds, got {len(seed)}")
            seeds = list(seed)
        else:
            raise Error(f"seed must be an integer >= 0, a sequence of {self.num_envs} of them or None, got {seed!r}")
        for row, s in enumerate(seeds):
            if s is not None and not (_is_integer(s) and s >= 0):
                raise Error(f"seed must be an integer >= 0 or None, got {s!r} for row {row}")
        return [None if s is None else int(s) for s in seeds]

    def _valid_mask(self, mask: Any) -> np.ndarray:
        if not isinstance(mask, np.ndarray) or mask.shape != (self.num_envs,) or mask.dtype != bool or not mask.any():
            raise ValueError(
                f"options['reset_mask'] must be a bool array of shape ({self.num_envs},) with a True, got {mask!r}"
            )
        return mask

    def _valid_actions(self, actions: Any, played: np.ndarray) -> np.ndarray:
        array = np.asarray(actions)
        if array.shape != (self.num_envs,) or array.dtype.kind not in "iu":
            raise InvalidAction(
                f"actions must be integers of shape ({self.num_envs},), got {array.dtype} of shape {array.shape}"
            )
        highest = len(self.task.ops) - 1
        if array.min() < 0 or array.max() > highest:
            wrong = np.flatnonzero(((array < 0) | (array > highest)) & played)  # the others' actions are not looked at
            if len(wrong):
                row = int(wrong[0])
                raise InvalidAction(f"actions[{row}] must be an integer in [0, {highest}], got {array[row]}")
        return array


def _is_integer(value: Any) -> TypeGuard[int | np.integer]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _rows(mask: np.ndarray) -> np.ndarray | None:
    return None if np.count_nonzero(mask) == len(mask) else np.flatnonzero(mask)


def _short(mask: np.ndarray, most: int = 10) -> str:
    rows = np.flatnonzero(mask).tolist()
    return str(rows) if len(rows) <= most else f"{rows[:most]} and {len(rows) - most} more"


def _masked(values: dict[str, np.ndarray], rows: np.ndarray) -> Info:
    """Lays infos [B] out as gymnasium does when only `rows` [B] bool have them: zeros elsewhere, ``_key`` tells."""
    count = np.count_nonzero(rows)
    if count == len(rows):
        return values | {f"_{key}": rows.copy() for key in values}
    if not count:
        return {}
    infos: Info = {}
    for key, value in values.items():
        infos[key], infos[f"_{key}"] = np.zeros_like(value), rows.copy()
        infos[key][rows] = value[rows]
    return infos


def _autoreset_mode(mode: str | AutoresetMode) -> AutoresetMode:
    known = [m.value for m in AutoresetMode]
    if not isinstance(mode, AutoresetMode) and mode not in known:
        near = nearest(mode, known)
        raise ValueError(f"autoreset_mode must be an AutoresetMode or one of {known}, got {mode!r}; nearest: {near!r}")
    return AutoresetMode(mode)
