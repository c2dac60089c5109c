"""Gymnasium vector environments as stable-baselines3's `VecEnv`, which knows none of them.

    python -m pip install stable-baselines3 sb3-contrib

    from opselect_envs.sb3 import make_sb3_vec_env
    from sb3_contrib import MaskablePPO

    envs = make_sb3_vec_env("opselect/OpChain-v0", num_envs=256)
    MaskablePPO("MlpPolicy", envs).learn(100_000)

Shapes: B rows (environments side by side), K operations.
"""

# pyright: reportMissingImports=false
# stable-baselines3 needs torch; whoever wants it installs both.

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import UnregisteredEnv
from gymnasium.vector import AutoresetMode, VectorEnv

import opselect_envs  # registers our ids
from opselect_envs.naming import nearest

try:
    from stable_baselines3.common.env_util import is_wrapped
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "stable_baselines3":
        raise  # it is there, but something it needs is not
    raise ImportError(
        f"{opselect_envs.__name__}.sb3 needs stable-baselines3, which is not installed; run: python -m pip install"
        " stable-baselines3 (and sb3-contrib for MaskablePPO)",
        name=error.name,
    ) from error

__all__ = ["SB3VecEnv", "make_sb3_vec_env"]

_OF_A_ROW = {"observation_space": "single_observation_space", "action_space": "single_action_space"}
_LIFECYCLE = ("close", "reset", "step")
_FINAL = ("final_info", "final_obs")


class SB3VecEnv(VecEnv):
    """A gymnasium `VectorEnv` of B rows, as stable-baselines3 and sb3-contrib want it.

    The environment must reset its rows in the step that ends their episodes (SAME_STEP, the default of ours), because
    that is what stable-baselines3 counts on. A row's info holds what the vector environment tells of that row, and

    - ``"TimeLimit.truncated"``: whether the row's episode ended by truncation alone, for bootstrapping;
    - where an episode ended, ``"terminal_observation"``, and ``"episode"`` with its return, length and time, as from
      stable-baselines3's Monitor: training logs and `evaluate_policy` need no `VecMonitor` around.

    Args:
        envs: the vector environment; stays usable, but who steps both mixes up their episodes.

    Raises:
        TypeError: `envs` is no gymnasium `VectorEnv`.
        ValueError: it resets in another mode, or hands out the same observation array at every step.
    """

    def __init__(self, envs: VectorEnv) -> None:
        self.envs: Any = _valid(envs)
        self.spec = envs.spec
        self._per_row = hasattr(envs.unwrapped, "call")  # gymnasium's own hold one environment per row
        self._actions: Any = None
        self._returns = np.zeros(envs.num_envs)
        self._lengths = np.zeros(envs.num_envs, np.int64)
        self._started = time.perf_counter()
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> Any:
        """Starts an episode in every row, with what `seed` and `set_options` gave; returns observations [B, ...]."""
        seeds = None if all(s is None for s in self._seeds) else self._seeds
        options = self._options[0] or None
        observations, infos = self.envs.reset(seed=seeds, options=options)
        self._reset_seeds()
        self._reset_options()
        fresh = np.ones(self.num_envs, bool) if options is None else options.get("reset_mask", True)
        fresh = np.broadcast_to(fresh, self.num_envs)  # the other rows' episodes go on
        self._returns[fresh] = self._lengths[fresh] = 0
        self.reset_infos = [{} for _ in range(self.num_envs)]
        _hand_out(infos, self.reset_infos, np.ones(self.num_envs, bool))
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Remembers the actions [B, ...] for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Steps; returns ``(observations [B, ...], rewards [B] float32, done [B] bool, an info for each row)``."""
        observations, rewards, terminated, truncated, infos = self.envs.step(self._actions)
        done = terminated | truncated
        self._returns += rewards
        self._lengths += 1
        told: list[dict[str, Any]] = [{"TimeLimit.truncated": cut} for cut in (truncated & ~terminated).tolist()]
        _hand_out(infos, told, ~done)
        if np.count_nonzero(done):
            _hand_out(infos.get("final_info", {}), told, done)
            ended = np.flatnonzero(done)
            now = round(time.perf_counter() - self._started, 6)
            final, returns, lengths = infos["final_obs"], self._returns[ended].tolist(), self._lengths[ended].tolist()
            for row, total, length in zip(ended.tolist(), returns, lengths, strict=True):
                told[row]["terminal_observation"] = final[row]
                told[row]["episode"] = {"r": total, "l": length, "t": now}
                self.reset_infos[row] = {}
            _hand_out(infos, self.reset_infos, done)
            self._returns[ended] = self._lengths[ended] = 0
        return observations, np.asarray(rewards, np.float32), done, told

    def close(self) -> None:
        """Closes the vector environment."""
        self.envs.close()

    def set_options(self, options: dict[str, Any] | None = None) -> None:
        """What the next `reset` passes on, to all rows alike.

        Raises:
            ValueError: a list of options: a gymnasium vector environment takes one for all rows.
        """
        if options is not None and not isinstance(options, dict):
            raise ValueError(f"options must be one dict for all rows or None, got {options!r}")
        super().set_options(options)

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Each row's image, where the render mode is ``"rgb_array"``."""
        images = self.envs.render() if self.render_mode == "rgb_array" else None
        return [None] * self.num_envs if images is None else list(images)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The attribute for each of the rows `indices`, or all.

        Where one environment computes all rows, as ours does, they share its attributes; a tuple of B items, as
        ``np_random_seed`` is, holds one for each row.
        """
        if self._per_row:
            return self._chosen(self.envs.unwrapped.get_attr(attr_name), indices)
        name = _OF_A_ROW.get(attr_name, attr_name)
        value = getattr(self._owner(name), name)
        split = isinstance(value, tuple) and len(value) == self.num_envs
        return self._chosen(value if split else [value] * self.num_envs, indices)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets an attribute that there is.

        Raises:
            ValueError: for some rows only, where one environment computes all.
        """
        if self._per_row:
            values = list(self.envs.unwrapped.get_attr(attr_name))
            for row in self._rows(indices):
                values[row] = value
            self.envs.unwrapped.set_attr(attr_name, values)
        elif len(set(self._rows(indices))) != self.num_envs:
            raise ValueError(f"indices must be None, as all rows share {attr_name!r}, got {indices!r}")
        else:
            setattr(self._owner(attr_name), attr_name, value)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """What the method returns for each of the rows `indices`, or all: ``env_method("action_masks")``.

        Where one environment computes all rows, its method is called once, for all of them.

        Raises:
            ValueError: its result has not one item per row; or the method is one that `VecEnv` has for this.
        """
        if method_name in _LIFECYCLE:
            raise ValueError(f"method_name must not be {method_name!r}; call {type(self).__name__}.{method_name}()")
        if self._per_row:
            results: Any = self.envs.unwrapped.call(method_name, *method_args, **method_kwargs)
        else:
            results = getattr(self._owner(method_name), method_name)(*method_args, **method_kwargs)
            if results is None:
                results = [None] * self.num_envs
            if not hasattr(results, "__len__") or len(results) != self.num_envs:
                raise ValueError(
                    f"method_name must name a method with a result per row ({self.num_envs}), got {method_name!r},"
                    f" which returned {type(results).__name__}; did you mean 'action_masks'?"
                )
        return self._chosen(results, indices)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: Any = None) -> list[bool]:
        """Whether rows are in such a wrapper; in a Monitor always, as infos hold what a Monitor tells."""
        if issubclass(wrapper_class, Monitor):
            return [True for _ in self._rows(indices)]
        singles = getattr(self.envs.unwrapped, "envs", None)  # not to be seen where they are in other processes
        return [singles is not None and is_wrapped(singles[row], wrapper_class) for row in self._rows(indices)]

    def _rows(self, indices: Any) -> list[int]:
        return [int(row) for row in self._get_indices(int(indices) if isinstance(indices, np.integer) else indices)]

    def _chosen(self, values: Sequence[Any], indices: Any) -> list[Any]:
        return list(values) if indices is None else [values[row] for row in self._rows(indices)]

    def _owner(self, name: str) -> Any:
        """The outermost of the vector environment and what it wraps that has the attribute."""
        env: Any = self.envs
        while not hasattr(env, name):
            if env is env.unwrapped:
                near = nearest(name, [known for known in dir(env) if not known.startswith("_")])
                raise AttributeError(f"{type(env).__name__} has no attribute {name!r}; did you mean {near!r}?")
            env = env.env
        return env


def make_sb3_vec_env(env_id: str, num_envs: int = 1, *, seed: int | None = None, **kwargs: Any) -> SB3VecEnv:
    """Makes a vector environment for stable-baselines3.

    Args:
        env_id: ours, such as ``"opselect/ScalarOp-v0"``, or any id whose vector environment resets in mode SAME_STEP.
        num_envs: the rows B.
        seed: row i gets ``seed + i`` at the first reset; with None, what the learner's own seed makes of it.
        **kwargs: for `gymnasium.make_vec`: the task's parameters, `render_mode`, `max_episode_steps`, ...

    Raises:
        gymnasium.error.UnregisteredEnv: no such `env_id`; the nearest is suggested.
        ValueError: a seed that is no integer >= 0.
    """
    if "n_envs" in kwargs:  # which make_vec_env has
        raise TypeError(f"unknown argument n_envs={kwargs['n_envs']!r}; did you mean 'num_envs'?")
    try:
        envs = gym.make_vec(env_id, num_envs=num_envs, **kwargs)
    except UnregisteredEnv as error:
        near = nearest(env_id, gym.registry)
        raise type(error)(f"env_id must be registered, got {env_id!r}; did you mean {near!r}?") from error
    adapted = SB3VecEnv(envs)
    if seed is not None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise ValueError(f"seed must be an integer >= 0 or None, got {seed!r}")
        adapted.seed(int(seed))
    return adapted


def _valid(envs: Any) -> VectorEnv:
    if not isinstance(envs, VectorEnv):
        raise TypeError(
            f"envs must be a gymnasium VectorEnv, got {type(envs).__name__}; make one with"
            ' gymnasium.make_vec("opselect/ScalarOp-v0", num_envs=64), or all at once with make_sb3_vec_env'
        )
    mode = envs.metadata.get("autoreset_mode")
    if mode != AutoresetMode.SAME_STEP:
        shown = mode.value if isinstance(mode, AutoresetMode) else mode
        raise ValueError(
            f"envs must reset in autoreset_mode 'SameStep', got {shown!r}; make ours with autoreset_mode='SameStep',"
            " others with vectorization_mode='sync', vector_kwargs={'autoreset_mode': AutoresetMode.SAME_STEP}"
        )
    if getattr(envs.unwrapped, "copy", True) is False:
        raise ValueError("envs must be made with copy=True, got copy=False: learners keep the observations of a step")
    return envs


def _hand_out(infos: dict[str, Any], told: list[dict[str, Any]], rows: np.ndarray) -> None:
    """Puts what gymnasium's `infos` say of `rows` [B] bool, arrays [B, ...] by key, into the dicts of these rows."""
    for key, column in infos.items():
        if key in _FINAL or (key.startswith("_") and key[1:] in infos):  # such a mask tells which rows have the key
            continue
        known = infos.get(f"_{key}")
        where = np.flatnonzero(rows if known is None else rows & known)
        if isinstance(column, dict):
            nested: list[dict[str, Any]] = [{} for _ in told]
            _hand_out(column, nested, rows if known is None else rows & known)
            for row in where.tolist():
                told[row][key] = nested[row]
            continue
        every = len(where) == len(told)
        column = np.asarray(column)
        values = column if every else column[where]
        values = values.tolist() if values.ndim == 1 else list(values)
        for info, value in zip(told if every else [told[row] for row in where.tolist()], values, strict=True):
            info[key] = value
