"""Does a vector environment do what `SyncVectorEnv` of its single environment does? For any registered environment.

Gymnasium has a checker for single environments and none for vector environments, where rows, seeds, autoresets and the
masks of infos go wrong unseen. Shapes: B rows.

    from opselect_envs.conformance import check_vector_env

    check_vector_env("my_package:my/Env-v0", kwargs={"size": 5})
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from opselect_envs.naming import nearest

__all__ = ["CHECKS", "ConformanceError", "Problem", "check_vector_env"]

MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
_SYNC = "SyncVectorEnv"
_FEW = 12  # steps, where more of them show nothing new
_RESULT = ("observations", "rewards", "terminations", "truncations", "infos")


@dataclass(frozen=True)
class Problem:
    """What a check found: the first thing it found wrong in one autoreset mode."""

    check: str
    """One of `CHECKS`, or ``"spawn"``."""
    mode: str | None
    """``"NextStep"``, ``"SameStep"``, ``"Disabled"``, or None where it does not matter."""
    call: str
    """The last call that was made, such as ``"reset(seed=0)"`` or ``"step 3"``."""
    where: str
    """What is wrong, such as ``"infos['final_info']['score'][2]"``; empty when a call raised."""
    row: int | None
    """The first row in which it is wrong, or None when it concerns all of them."""
    message: str
    """How it is wrong, with both values."""
    cause: Exception | None = None
    """What the environment raised, if it did."""

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.check, self.mode, self.call) if part)
        row = "" if self.row is None else f", row {self.row}"
        return f"[{place}] {self.where}{row}: {self.message}" if self.where else f"[{place}] {self.message}"


class ConformanceError(AssertionError):
    """A vector environment does not conform. The message lists one `Problem` per check and autoreset mode."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All that was found, in the order of the checks."""
        return self.args

    def __str__(self) -> str:
        return "\n".join(["the vector environment does not conform:", *(f"  {p}" for p in self.problems)])


def check_vector_env(
    env_id: str | EnvSpec,
    *,
    kwargs: Mapping[str, Any] | None = None,
    num_envs: int = 5,
    steps: int = 50,
    seed: int = 0,
    ulps: int = 0,
    modes: Sequence[str | AutoresetMode] = MODES,
    checks: Collection[str] | None = None,
    violate_masks: bool = True,
    spawn: bool = False,
) -> list[str]:
    """Compares a vector environment with `SyncVectorEnv` of the single environment, bit for bit.

    In each autoreset mode, one after the other:

    * ``spaces``: the spaces are those of the single environment, batched; metadata names the mode, as does the
      attribute `autoreset_mode` if there is one, and is not shared between instances; the mode can be given as an
      `AutoresetMode` or as its value.
    * ``steps``: every reset and step returns what `SyncVectorEnv` returns: values, dtypes, shapes, types, all infos and
      their ``_key`` masks, final observations. Where infos have an ``action_mask``, the actions respect it, ignore it
      and violate it in turn. With DISABLED, rows are reset by ``reset_mask``, the running ones now and then too.
      Observations and final observations lie in the space and are finite, rewards are finite; at least one episode
      must end. What is handed in (actions, masks, seeds) is not written to.
    * ``seeds``: an int gives row i ``seed + i``, a list one seed per row, None (also in a list) goes on; seeding starts
      the same episodes whatever was before and in any instance; unseeded instances differ.
    * ``fresh``: nothing returned is overwritten later or shares memory with anything else returned, and writing to it
      changes nothing.
    * ``actions``: at states along the way, each action of a small space (of a large one the corners and samples), tried
      on copies, gives observations in the space and finite rewards.
    * ``pickle``: copies made by pickling, of the single environment too, go on where the original was.
    * ``spec``: the specs of both environments survive JSON, and what they make does the same.
    * ``render``: in every render mode but ``"human"``, frames [B] are those of the single environments (``ansi``: str;
      ``rgb_array``: [H, W, 3] uint8); None without a render mode.

    One liberty is allowed: when all rows end in one step of SAME_STEP, ``infos["final_obs"]`` may be one array
    [B, ...] (for composite spaces: a batch as of `observation_space`) in place of an object array of B of them.

    Args:
        env_id: an id, such as ``"module:id"``, or an `EnvSpec`, whose entry points may be classes; with a
            ``vector_entry_point``.
        kwargs: for `gym.make` and `gym.make_vec` both, such as ``max_episode_steps``.
        num_envs: B.
        steps: how many steps to compare in each mode. Some episodes must end before.
        seed: what resets are seeded with, and the agent that acts.
        ulps: by how many units in the last place, of their own dtype, floats may differ from `SyncVectorEnv`'s: 1 for
            an environment in which NumPy's loops over arrays round differently from those over one number. Copies of
            one environment must always be equal bit for bit; -0.0 is 1 from 0.0, NaN equals NaN.
        modes: the autoreset modes to check. An environment without an `autoreset_mode` argument has one only.
        checks: which of `CHECKS`; None: all.
        violate_masks: False if actions that ``action_mask`` forbids raise: they are never picked then.
        spawn: whether to compare `AsyncVectorEnv` with context ``"spawn"`` too, which takes seconds: the workers must
            find the single environment, and ``env_id`` must be of the form ``"module:id"`` or importing pickled
            entry points must register it. A script that asks for this needs ``if __name__ == "__main__":``.

    Returns:
        What could not be checked and why, such as that the environment cannot be pickled.

    Raises:
        ConformanceError: an `AssertionError` which names check, mode, step, key, row and both values; what the
            environment raised is its cause.
        ValueError: an unknown check or mode, or none; num_envs or steps below 1; kwargs that are not for the caller.
        gymnasium.error.Error, ImportError: there is no environment of that id, or no such module.
    """
    if num_envs < 1 or steps < 1:
        raise ValueError(f"num_envs and steps must be at least 1, got num_envs={num_envs!r} and steps={steps!r}")
    if isinstance(modes, str | AutoresetMode) or not modes:
        raise ValueError(
            f"modes must be a sequence of autoreset modes such as {[m.value for m in MODES]}, got {modes!r}"
        )
    known = [mode.value for mode in AutoresetMode]
    for mode in modes:
        if not isinstance(mode, AutoresetMode) and mode not in known:
            raise ValueError(f"modes must be among {known}, got {mode!r}; did you mean {nearest(mode, known)!r}?")
    if isinstance(checks, str) or (checks is not None and not checks and not spawn):
        raise ValueError(f"checks must be a collection of {', '.join(CHECKS)}, or None for all, got {checks!r}")
    for name in ("autoreset_mode", "num_envs", "render_mode"):
        if name in (kwargs or {}):
            raise ValueError(f"kwargs must not have {name!r}, which the checks choose themselves")
    for name in checks or ():
        if name not in CHECKS:
            near = nearest(name, CHECKS)
            raise ValueError(f"checks must be among {', '.join(CHECKS)}, got {name!r}; did you mean {near!r}?")
    _spec_of(env_id)  # a wrong id is no fault of an environment
    case = _Case(env_id, dict(kwargs or {}), num_envs, steps, seed, ulps, violate_masks)
    chosen = {name: check for name, check in CHECKS.items() if checks is None or name in checks}
    for mode in [AutoresetMode(mode) for mode in modes]:
        # Without an environment of that mode, every check would say the same.
        if _attempt(case, "spaces", mode, lambda case, mode: case.make(mode)):
            for name, check in chosen.items():
                _attempt(case, name, mode, check)
    if spawn:
        _attempt(case, "spawn", None, _check_spawn)
    if case.problems:
        raise ConformanceError(*case.problems) from next((p.cause for p in case.problems if p.cause), None)
    return list(dict.fromkeys(case.skipped))


# --- the frame of the checks ------------------------------------------------------------------------------------------


class _Difference(Exception):
    """Something is wrong at a place."""

    def __init__(self, where: str, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.where, self.message, self.row = where, message, row


class _Skip(Exception):
    """Something cannot be checked, which is no fault."""


class _Case:
    """What is checked, the environments made for it, and what was found."""

    def __init__(
        self,
        env_id: str | EnvSpec,
        kwargs: dict[str, Any],
        num_envs: int,
        steps: int,
        seed: int,
        ulps: int,
        violate_masks: bool,
    ) -> None:
        self.env_id, self.kwargs, self.num_envs, self.steps = env_id, kwargs, num_envs, steps
        self.seed, self.ulps, self.violate_masks = seed, ulps, violate_masks
        self.call = ""
        self.problems: list[Problem] = []
        self.skipped: list[str] = []
        self._made: list[Any] = []

    def make(self, mode: AutoresetMode, *, as_enum: bool = False, **more: Any) -> VectorEnv:
        """The vector environment."""
        given = mode if as_enum else mode.value
        self.call = f"make_vec(autoreset_mode={given!r})"
        make = functools.partial(
            gym.make_vec,
            self.env_id,
            num_envs=self.num_envs,
            vectorization_mode="vector_entry_point",
            **self.kwargs,
            **more,
        )
        if _takes_mode(self.env_id):
            return self.keep(make(autoreset_mode=given))
        self.call = "make_vec()"
        vector = self.keep(make())
        fixed = vector.metadata.get("autoreset_mode")
        if fixed != mode:
            if not isinstance(fixed, AutoresetMode):
                raise _Difference("metadata['autoreset_mode']", f"must be an AutoresetMode, got {fixed!r}")
            raise _Difference(
                "autoreset_mode",
                f"is no argument of the vector environment, whose metadata says {fixed.value!r}, so {mode.value!r}"
                f" cannot be had; modes=[{fixed.value!r}] checks what there is",
            )
        return vector

    def single(self, **more: Any) -> gym.Env:
        """The single environment."""
        # A passive checker between them would change nothing but the time it takes.
        env = gym.make(self.env_id, disable_env_checker=True, **self.kwargs, **more)
        env.metadata = dict(env.metadata)  # gymnasium 1.2's SyncVectorEnv writes to it
        return env

    def sync(self, mode: AutoresetMode, **more: Any) -> SyncVectorEnv:
        """What the vector environment is compared with."""
        return self.keep(SyncVectorEnv([functools.partial(self.single, **more)] * self.num_envs, autoreset_mode=mode))

    def keep(self, env: Any) -> Any:
        """Has an environment closed at the end of the check."""
        self._made.append(env)
        return env

    def close(self) -> None:
        """Closes all that was made."""
        self.call += ", then close()"
        while self._made:
            self._made.pop().close()


def _spec_of(env_id: str | EnvSpec) -> EnvSpec:
    if isinstance(env_id, EnvSpec):
        return env_id
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gym.spec(name)


def _takes_mode(env_id: str | EnvSpec) -> bool:
    """Whether the vector environment has an `autoreset_mode` argument; True if that cannot be told."""
    # Passing it to see what happens leaves behind an object half made, which complains when it is deleted.
    entry = _spec_of(env_id).vector_entry_point
    if entry is None:
        return True
    parameters = inspect.signature(load_env_creator(entry) if isinstance(entry, str) else entry).parameters
    return "autoreset_mode" in parameters or any(p.kind == p.VAR_KEYWORD for p in parameters.values())


def _attempt(
    case: _Case, name: str, mode: AutoresetMode | None, check: Callable[[_Case, AutoresetMode], object]
) -> bool:
    """Runs a check and notes what it found; returns whether that was nothing."""
    value = None if mode is None else mode.value
    problem = None
    for part in (lambda: check(case, mode or AutoresetMode.NEXT_STEP), case.close):
        try:
            part()
        except _Skip as skip:
            case.skipped.append(f"{name}: {skip}")
        except DependencyNotInstalled as error:
            case.skipped.append(f"{name}: {error}")
        except _Difference as found:
            problem = Problem(name, value, case.call, found.where, found.row, found.message)
        except Exception as error:
            # Not being able to close what went wrong before is no news.
            text = f"raised {type(error).__name__}: {error}"
            problem = problem or Problem(name, value, case.call, "", None, text, error)
    # Several checks may meet the same thing first.
    if problem and all(replace(problem, check=p.check, cause=p.cause) != p for p in case.problems):
        case.problems.append(problem)
    return problem is None


# --- comparing --------------------------------------------------------------------------------------------------------


def _compare(actual: Any, expected: Any, where: str, ulps: int, reference: str, row: int | None = None) -> None:
    """Raises unless both are equal in structure, types and values. The first axis of arrays is the row."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in expected:
            if key not in actual:
                raise _Difference(where, f"lacks the key {key!r}, which {reference} has: {_short(expected[key])}", row)
        for key in actual:
            if key not in expected:
                raise _Difference(where, f"has a key {key!r} that {reference} has not: {_short(actual[key])}", row)
        for key in expected:
            _compare(actual[key], expected[key], f"{where}[{key!r}]", ulps, reference, row)
    elif type(actual) is not type(expected):
        raise _Difference(
            where,
            f"is a {type(actual).__name__}, {_short(actual)}, but {reference} has a {type(expected).__name__},"
            f" {_short(expected)}",
            row,
        )
    elif isinstance(expected, tuple | list):
        if len(actual) != len(expected):
            raise _Difference(where, f"has {len(actual)} entries, but {reference} has {len(expected)}", row)
        for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
            _compare(a, b, f"{where}[{i}]", ulps, reference, row)
    elif isinstance(expected, np.ndarray):
        _compare_arrays(actual, expected, where, ulps, reference, row)
    elif actual != expected and not (actual != actual and expected != expected):
        raise _Difference(where, f"{_short(actual)}, but {reference} has {_short(expected)}", row)


def _compare_arrays(
    actual: np.ndarray, expected: np.ndarray, where: str, ulps: int, reference: str, row: int | None
) -> None:
    for what in ("dtype", "shape"):
        mine, theirs = getattr(actual, what), getattr(expected, what)
        if mine != theirs:
            raise _Difference(where, f"has {what} {mine}, but {reference} has {theirs}", row)
    if expected.dtype == object:
        for index in np.ndindex(expected.shape):
            place = index[0] if row is None and index else row
            _compare(actual[index], expected[index], _at(where, index), ulps, reference, place)
        return
    apart = _distance(actual, expected)
    wrong = np.argwhere(apart > np.uint64(ulps))
    if not len(wrong):
        return
    index = tuple(wrong[0].tolist())
    text = f"{actual[index]!s}, but {reference} has {expected[index]!s}"
    if expected.dtype.kind == "f" and apart[index] < 1000:
        text += f" (off by {apart[index]} ulps, {ulps} allowed)"
    if row is None and index:  # the array holds all rows
        row = index[0]
        same = [other for other in range(len(expected)) if not _distance(actual[row], expected[other]).any()]
        if expected.dtype.kind == "f" and same:
            text += f"; row {row} is row {same[0]} of {reference}"
    raise _Difference(_at(where, index), text, row)


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How many representable numbers apart two arrays [...] of one dtype are, uint64; for other than floats 0 or 1."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind == "c":
        return np.maximum(_distance(np.real(a), np.real(b)), _distance(np.imag(a), np.imag(b)))
    if a.dtype.kind != "f" or a.dtype.itemsize > 8:
        return ((a != b) & ~((a != a) & (b != b))).astype(np.uint64)
    bits = np.dtype(f"i{a.dtype.itemsize}")

    def place(x: np.ndarray) -> np.ndarray:
        signed = np.ascontiguousarray(x).reshape(x.shape).view(bits)
        signed = np.where(signed < 0, signed ^ np.iinfo(bits).max, signed).astype(np.int64)  # so -0.0 comes before 0.0
        return signed.view(np.uint64) ^ np.uint64(1 << 63)  # unsigned, as differences may be too large for int64

    first, second = place(a), place(b)
    return np.where((a != a) & (b != b), np.uint64(0), np.maximum(first, second) - np.minimum(first, second))


def _at(where: str, index: Sequence[int]) -> str:
    return where + str(list(index)) if index else where


def _short(value: Any, most: int = 100) -> str:
    text = " ".join((str(value) if isinstance(value, np.generic) else repr(value)).split())
    return text if len(text) <= most else text[: most - 4] + " ..."


def _leaves(value: Any, where: str) -> Iterator[tuple[str, np.ndarray]]:
    """All arrays in a result, and their places; those in an object array come before it."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, f"{where}[{key!r}]")
    elif isinstance(value, tuple | list):
        for i, part in enumerate(value):
            yield from _leaves(part, f"{where}[{i}]")
    elif isinstance(value, np.ndarray):
        if value.dtype == object:
            for index in np.ndindex(value.shape):
                yield from _leaves(value[index], _at(where, index))
        yield where, value


def _parts(result: Any) -> Iterator[tuple[str, Any]]:
    """What a reset (2) or step (5) returned, by name."""
    yield from zip(_RESULT if len(result) == 5 else (_RESULT[0], _RESULT[-1]), result, strict=True)


def _require_valid(vector: VectorEnv, result: tuple[Any, ...]) -> None:
    """Raises unless observations [B, ...] and final ones are in the space and finite, and rewards [B] finite."""
    single, infos = vector.single_observation_space, result[-1]
    _require_inside(single, list(iterate(vector.observation_space, result[0])), "observations", range(vector.num_envs))
    if len(result) == 5:
        bad = np.flatnonzero(~np.isfinite(result[1]))
        if len(bad):
            row = int(bad[0])
            raise _Difference(_at("rewards", [row]), f"{result[1][row]!s} is not finite", row)
    if "final_obs" in infos and "_final_obs" in infos:
        rows = np.flatnonzero(infos["_final_obs"]).tolist()
        final = infos["final_obs"]
        dense = not isinstance(final, np.ndarray) or final.dtype != object
        final = list(iterate(vector.observation_space, final)) if dense else final
        _require_inside(single, [final[row] for row in rows], "infos['final_obs']", rows)


def _require_inside(space: gym.Space, observations: Sequence[Any], where: str, rows: Sequence[int]) -> None:
    for row, observation in zip(rows, observations, strict=True):
        for place, array in _leaves(observation, _at(where, [row])):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                index = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
                raise _Difference(_at(place, index), f"{array[index]!s} is not finite", row)
        if observation in space:
            continue
        if isinstance(space, gym.spaces.Box) and np.shape(observation) == space.shape:
            outside = np.argwhere((observation < space.low) | (observation > space.high))
            if len(outside):
                index = tuple(outside[0].tolist())
                bounds = f"[{space.low[index]!s}, {space.high[index]!s}]"
                place = _at(_at(where, [row]), index)
                raise _Difference(place, f"{observation[index]!s} is not in {bounds}", row)
        raise _Difference(_at(where, [row]), f"{_short(observation)} is not in {space}", row)


# --- playing ----------------------------------------------------------------------------------------------------------


class _Agent:
    """Acts at random; masks [B, K] in infos, for a Discrete space, it respects, ignores and violates in turn."""

    def __init__(self, case: _Case, space: gym.Space) -> None:
        self.space = copy.deepcopy(space)
        self.space.seed(case.seed)
        self.rng = np.random.default_rng(case.seed)
        self.masks: list[Any] = [None] * case.num_envs
        self._violates = case.violate_masks

    def watch(self, infos: Mapping[str, Any]) -> None:
        """Takes the masks from infos."""
        masks, known = infos.get("action_mask"), infos.get("_action_mask")
        if isinstance(self.space, gym.spaces.Discrete) and isinstance(masks, np.ndarray) and known is not None:
            for row in np.flatnonzero(known):
                self.masks[row] = masks[row].astype(np.int8)

    def act(self) -> Any:
        """Actions [B]."""
        return self._batch([self._pick(mask) for mask in self.masks])

    def all_take(self, action: Any) -> Any:
        """Actions [B], all of them this one, except where it is forbidden and forbidden ones are never taken."""
        rows = [action] * len(self.masks)
        if not self._violates and isinstance(self.space, gym.spaces.Discrete):
            rows = [
                action if mask is None or mask[action - self.space.start] else self._pick(mask) for mask in self.masks
            ]
        return self._batch(rows)

    def repertoire(self, most: int = 32) -> list[Any]:
        """Every action of a small Discrete space, else corners and samples; at most that many."""
        space = self.space
        if isinstance(space, gym.spaces.Discrete) and space.n <= most:
            return [space.start + space.dtype.type(k) for k in range(int(space.n))]
        corners: list[Any] = []
        if isinstance(space, gym.spaces.Box):
            largest = np.finfo(space.dtype).max if space.dtype.kind == "f" else None
            corners = [np.clip(edge, -largest, largest) if largest else edge for edge in (space.low, space.high)]
            corners = [corner.astype(space.dtype) for corner in (*corners, np.clip(0, space.low, space.high))]
        elif isinstance(space, gym.spaces.MultiDiscrete):
            corners = [space.start, (space.start + space.nvec - 1).astype(space.dtype)]
        return corners + [space.sample() for _ in range(most // 2 - len(corners))]

    def _batch(self, rows: list[Any]) -> Any:
        return concatenate(self.space, rows, create_empty_array(self.space, len(rows), fn=np.zeros))

    def _pick(self, mask: Any) -> Any:
        if mask is None:
            return self.space.sample()
        chance = self.rng.random()
        if mask.any() and (chance < 0.6 or not self._violates):
            return self.space.sample(mask=mask)
        if chance < 0.8 and not mask.all():
            return self.space.sample(mask=1 - mask)
        return self.space.sample()


class _Pair:
    """Plays two vector environments side by side with the same calls, and compares whatever they return.

    `reference` is what the second one is called. What both are given are copies of their own, and what the first one
    got must not change; `after` is called with the results of both.
    """

    def __init__(
        self,
        case: _Case,
        mode: AutoresetMode,
        actual: VectorEnv,
        expected: VectorEnv,
        reference: str = _SYNC,
        *,
        after: Callable[[list[Any], Any, Any], None] | None = None,
    ) -> None:
        self.case, self.mode, self.actual, self.expected, self.reference = case, mode, actual, expected, reference
        self.ulps = case.ulps if reference == _SYNC else 0
        self.agent = _Agent(case, actual.single_action_space)
        self.over = np.zeros(case.num_envs, bool)
        self.taken = self.ended = 0
        self._after = after

    def reset(self, seed: int | list[int | None] | None = None, rows: np.ndarray | None = None) -> None:
        """Resets all rows, or some of them [B] bool."""
        given = [] if seed is None else [f"seed={seed}"]
        given += [] if rows is None else [f"reset_mask={rows.tolist()}"]
        self.case.call = f"reset({', '.join(given)})" + (f" after step {self.taken}" if self.taken else "")

        def call(env: VectorEnv, handed: list[Any]) -> Any:
            seeds, mask = handed
            # SyncVectorEnv takes the mask out of the options, which are therefore made anew for each.
            return env.reset(seed=seeds, options=None if mask is None else {"reset_mask": mask})

        self._both(call, [seed, rows])
        self.over &= False if rows is None else ~rows

    def step(self) -> None:
        """Takes one step, after the resets it needs."""
        self.settle()
        self.taken += 1
        self.case.call = f"step {self.taken}"
        _, _, terminated, truncated, _ = self._both(lambda env, handed: env.step(handed[0]), [self.agent.act()])
        self.over = terminated | truncated
        self.ended += int(self.over.sum())

    def settle(self) -> None:
        """Resets the rows that must be reset, now and then together with running ones."""
        rng, count = self.agent.rng, self.case.num_envs
        if self.mode == AutoresetMode.DISABLED and (self.over.any() or rng.random() < 0.1):
            rows = self.over | (rng.random(count) < 0.15)
            seeds = [None if rng.random() < 0.7 else int(rng.integers(1000)) for _ in range(count)]
            if rows.any():
                self.reset(seeds if rng.random() < 0.3 else None, rows)

    def _both(self, call: Callable[[VectorEnv, list[Any]], Any], given: list[Any]) -> tuple[Any, ...]:
        handed = copy.deepcopy(given)
        result = call(self.actual, handed)
        _compare(handed, given, "what was handed in", 0, "the caller")
        expected = call(self.expected, copy.deepcopy(given))
        if not isinstance(result, tuple) or len(result) != len(expected):
            raise _Difference("the result", f"must be a tuple of {len(expected)}, got {_short(result)}")
        self.agent.watch(expected[-1])
        for (name, mine), (_, theirs) in zip(_parts(result), _parts(expected), strict=True):
            if name == "infos" and isinstance(mine, dict):
                theirs = self._with_liberty(mine, theirs)
            _compare(mine, theirs, name, self.ulps, self.reference)
        if self._after is not None:
            self._after(handed, result, expected)
        return expected

    def _with_liberty(self, mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
        """Batches the final observations where the first environment did and may."""
        final, ours, space = theirs.get("final_obs"), mine.get("final_obs"), self.actual.single_observation_space
        sparse = isinstance(ours, np.ndarray) and ours.dtype == object
        if ours is None or sparse or not isinstance(final, np.ndarray) or final.dtype != object:
            return theirs
        if not theirs["_final_obs"].all():
            return theirs
        batch = concatenate(space, list(final), create_empty_array(space, len(final), fn=np.zeros))
        return {**theirs, "final_obs": batch}


# --- the checks -------------------------------------------------------------------------------------------------------


def _check_spaces(case: _Case, mode: AutoresetMode) -> None:
    vector, single = case.make(mode), case.keep(case.single())

    def require(what: str, value: Any, right: Any) -> None:
        if type(value) is not type(right) or value != right:
            raise _Difference(what, f"{_short(value)}, but it must be {_short(right)}")

    if not isinstance(vector, VectorEnv):
        raise _Difference("the vector environment", f"is a {type(vector).__name__} and no VectorEnv")
    require("num_envs", vector.num_envs, case.num_envs)
    for which in ("observation", "action"):
        space = getattr(single, f"{which}_space")
        require(f"single_{which}_space", getattr(vector, f"single_{which}_space"), space)
        require(f"{which}_space", getattr(vector, f"{which}_space"), batch_space(space, case.num_envs))
    require("render_mode", vector.render_mode, None)

    def require_mode(of: VectorEnv, right: AutoresetMode) -> None:
        require("metadata['autoreset_mode']", of.metadata.get("autoreset_mode"), right)
        if hasattr(of, "autoreset_mode"):
            require("autoreset_mode", of.autoreset_mode, right)  # pyright: ignore[reportAttributeAccessIssue]

    def rest(metadata: Mapping[str, Any]) -> dict[str, Any]:
        # A vector environment has no window to draw B environments in.
        drawn = [render_mode for render_mode in metadata.get("render_modes", []) if render_mode != "human"]
        return {key: value for key, value in metadata.items() if key != "autoreset_mode"} | {"render_modes": drawn}

    require_mode(vector, mode)
    require_mode(case.make(mode, as_enum=True), mode)
    _compare(rest(vector.metadata), rest(single.metadata), "metadata", 0, "the single environment")
    for other in MODES:
        if other != mode:
            try:
                twin = case.make(other)
            except _Difference:  # there is only one mode
                continue
            case.call = f"make_vec(autoreset_mode={mode.value!r}), then make_vec(autoreset_mode={other.value!r})"
            require_mode(vector, mode)
            require_mode(twin, other)


def _check_steps(case: _Case, mode: AutoresetMode) -> None:
    vector = case.make(mode)
    pair = _Pair(
        case, mode, vector, case.sync(mode), after=lambda _handed, result, _expected: _require_valid(vector, result)
    )
    pair.reset(seed=case.seed)
    for step in range(1, case.steps + 1):
        pair.step()
        if step == case.steps * 3 // 5:
            pair.reset()
        elif step == case.steps * 4 // 5:
            pair.reset(seed=case.seed + 1)
    if not pair.ended:
        raise _Difference(
            "terminations and truncations",
            f"no episode ended in {case.steps} steps, so nothing is known of ends: take more steps, or pass"
            " kwargs={'max_episode_steps': ...}",
        )


def _check_seeds(case: _Case, mode: AutoresetMode) -> None:
    rows, seed = case.num_envs, case.seed
    vector = case.make(mode)
    pair = _Pair(case, mode, vector, case.sync(mode))
    pair.reset(seed=seed)
    pair.step()
    some: list[int | None] = [None if row % 3 == 1 else seed + 100 - row for row in range(rows)]
    same: list[int | None] = [seed + 7] * rows
    for seeds in (None, some, None, same, seed + 3, None):
        pair.reset(seed=seeds)
        pair.step()
    used = _Pair(case, mode, vector, case.make(mode), "a new instance with the same seed")
    used.reset(seed=seed)
    for _ in range(min(case.steps, _FEW)):
        used.step()
    used.reset()

    def starts(env: VectorEnv, first: int | None) -> list[bytes]:
        case.call = f"reset(seed={first})"
        seeds = [first, None, None]  # several: few states to start from would give equal ones by chance
        return [a.tobytes() for s in seeds for _, a in _leaves(env.reset(seed=s)[0], "") if a.dtype != object]

    if starts(vector, seed) != starts(vector, seed + 1000):  # else nothing about a start is random
        first, second = (starts(case.make(mode), None) for _ in range(2))
        if first == second:
            raise _Difference("observations", "are the same in two instances that were never seeded")


def _check_fresh(case: _Case, mode: AutoresetMode) -> None:
    kept: list[tuple[str, np.ndarray]] = []  # of the environment that is written to
    watched: list[tuple[str, np.ndarray, bytes]] = []  # of the other
    dicts: list[dict[str, Any]] = []  # of the call before, to be emptied once it is known that they are not used again

    def after(handed: list[Any], result: Any, expected: Any) -> None:
        for name, part in _parts(result):
            if any(part is earlier for earlier in dicts):
                raise _Difference(name, "is the same dict that the call before returned")
            for where, array in _leaves(part, name):
                for earlier, other in kept:
                    if np.shares_memory(array, other):
                        raise _Difference(where, f"shares memory with {earlier}")
                kept.append((f"{where} of {case.call}", array))
        for name, part in _parts(expected):
            watched.extend(
                (f"{where} of {case.call}", array, array.tobytes())
                for where, array in _leaves(part, name)
                if array.dtype != object
            )
        for part in (*handed, *result):
            _meddle(part)
        for earlier in dicts:
            earlier.clear()
        dicts[:] = [part for part in result if isinstance(part, dict)]

    pair = _Pair(case, mode, case.make(mode), case.make(mode), "an instance that nobody wrote to", after=after)
    pair.reset(seed=case.seed)
    for _ in range(min(case.steps, _FEW)):
        pair.step()
    pair.reset()
    for where, array, content in watched:
        if array.tobytes() != content:
            raise _Difference(where, f"was overwritten by a later call and is now {_short(array)}")


def _meddle(value: Any) -> None:
    """Overwrites what may be overwritten."""
    for _, array in _leaves(value, ""):
        if array.flags.writeable:
            if array.dtype == object:
                array[...] = None
            elif array.dtype == bool:
                np.logical_not(array, out=array)
            elif array.dtype.kind in "iufc":
                array += array.dtype.type(1)


def _check_actions(case: _Case, mode: AutoresetMode) -> None:
    vector = case.make(mode)
    pair = _Pair(case, mode, vector, case.make(mode), "another instance")
    pair.reset(seed=case.seed)
    for _ in range(min(case.steps, _FEW)):
        pair.settle()
        call = case.call
        for action in pair.agent.repertoire():
            twin = _copied(copy.deepcopy, vector, "copied")
            case.call = f"{call}, then step with the action {_short(action)} in every row"
            _require_valid(vector, twin.step(pair.agent.all_take(action)))
        pair.step()


def _check_pickle(case: _Case, mode: AutoresetMode) -> None:
    vector = case.make(mode)
    pair = _Pair(case, mode, vector, case.make(mode), "another instance")
    pair.reset(seed=case.seed)
    for goal in (0, 1):  # before the first end of an episode, and just after one
        for _ in range(case.steps):
            if pair.ended >= goal and pair.taken:
                break
            pair.step()
        twin = case.keep(_copied(_pickled, vector, "pickled"))
        both = _Pair(case, mode, twin, vector, "the original")
        both.over, both.taken, both.agent.masks = pair.over.copy(), pair.taken, list(pair.agent.masks)
        for _ in range(min(case.steps, _FEW)):
            both.step()
        both.reset()
        both.step()
        pair.reset(seed=case.seed + 1)
    first, second = case.sync(mode), case.sync(mode)
    pair = _Pair(case, mode, first, second, "an environment that was not pickled")
    pair.reset(seed=case.seed)
    pair.step()
    first.envs = [_copied(_pickled, env, "pickled") for env in first.envs]
    for _ in range(min(case.steps, _FEW)):
        pair.step()


def _pickled(env: Any) -> Any:
    return pickle.loads(pickle.dumps(env))


def _copied(function: Callable[[Any], Any], env: Any, how: str) -> Any:
    try:
        return function(env)
    except (TypeError, AttributeError, pickle.PicklingError, NotImplementedError) as error:
        raise _Skip(f"{env} cannot be {how} ({type(error).__name__}: {error})") from error


def _check_spec(case: _Case, mode: AutoresetMode) -> None:
    if isinstance(case.env_id, EnvSpec) and any(map(callable, vars(case.env_id).values())):
        raise _Skip("an EnvSpec whose entry points are no strings has no JSON")
    vector, sync = case.make(mode), case.sync(mode)
    specs = []
    for env, which in ((vector, "the vector environment"), (sync.envs[0], "the single environment")):
        case.call = "spec.to_json()"
        if not isinstance(env.spec, EnvSpec):
            raise _Difference(f"spec of {which}", f"must be an EnvSpec, got {_short(env.spec)}")
        specs.append(EnvSpec.from_json(env.spec.to_json()))
    case.call = "make_vec(EnvSpec.from_json(spec.to_json()))"
    again = case.keep(gym.make_vec(specs[0]))
    _compare(again.num_envs, case.num_envs, "num_envs", 0, "the original")
    _compare(again.metadata, vector.metadata, "metadata", 0, "the original")
    envs = [functools.partial(gym.make, specs[1], disable_env_checker=True)] * case.num_envs
    for actual, expected in ((again, vector), (case.keep(SyncVectorEnv(envs, autoreset_mode=mode)), sync)):
        pair = _Pair(case, mode, actual, expected, "the environment whose spec was written")
        pair.reset(seed=case.seed)
        for _ in range(min(case.steps, _FEW)):
            pair.step()


def _check_render(case: _Case, mode: AutoresetMode) -> None:
    vector = case.make(mode)
    vector.reset(seed=case.seed)
    frames = vector.render()
    if frames is not None and tuple(frames) != (None,) * case.num_envs:  # SyncVectorEnv gives a None per row
        raise _Difference("render()", f"must be None without a render mode, got {_short(frames)}")
    for render_mode in vector.metadata.get("render_modes", []):
        if render_mode == "human":
            continue
        vector, sync = (make(mode, render_mode=render_mode) for make in (case.make, case.sync))
        _compare(vector.render_mode, render_mode, "render_mode", 0, "the caller")
        pair = _Pair(case, mode, vector, sync)
        pair.reset(seed=case.seed)
        for _ in range(min(case.steps, 3)):
            pair.step()
            case.call = f"{case.call}, render() with render_mode={render_mode!r}"
            frames: Any = vector.render()
            if not isinstance(frames, tuple) or len(frames) != case.num_envs:
                raise _Difference("render()", f"must be a tuple of {case.num_envs} frames, got {_short(frames)}")
            for row, (frame, right) in enumerate(zip(frames, sync.render() or (), strict=True)):
                _require_frame(render_mode, frame, row)
                _compare(frame, right, f"render()[{row}]", 0, _SYNC, row)
                _meddle(frame)
        case.call += " again, after writing to the frames"
        _compare(vector.render(), sync.render(), "render()", 0, _SYNC)


def _require_frame(render_mode: str, frame: Any, row: int) -> None:
    image = isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
    if (render_mode == "ansi" and not isinstance(frame, str)) or (render_mode == "rgb_array" and not image):
        right = "a str" if render_mode == "ansi" else "an array [H, W, 3] uint8"
        raise _Difference(f"render()[{row}]", f"must be {right}, got {_short(frame)}", row)


def _check_spawn(case: _Case, mode: AutoresetMode) -> None:
    case.num_envs = min(case.num_envs, 2)  # each is a process, and this is the last check
    # Not `case.single`: unpickling it would import this package, and with it register environments of a plain id.
    make = functools.partial(gym.make, case.env_id, disable_env_checker=True, **case.kwargs)
    case.call = "AsyncVectorEnv(..., context='spawn')"
    try:
        spawned = case.keep(AsyncVectorEnv([make] * case.num_envs, context="spawn", autoreset_mode=mode))
    except (EOFError, OSError) as error:
        raise _Difference(
            "the workers",
            f"ended at once ({type(error).__name__}); they print why. A new process must find {_short(case.env_id)}:"
            " an id of the form 'module:id' imports what registers it",
        ) from error
    pair = _Pair(case, mode, spawned, case.sync(mode))
    pair.reset(seed=case.seed)
    for _ in range(min(case.steps, _FEW)):
        pair.step()


CHECKS: dict[str, Callable[[_Case, AutoresetMode], None]] = {
    "spaces": _check_spaces,
    "steps": _check_steps,
    "seeds": _check_seeds,
    "fresh": _check_fresh,
    "actions": _check_actions,
    "pickle": _check_pickle,
    "spec": _check_spec,
    "render": _check_render,
}
"""The checks of `check_vector_env` by name; ``"spawn"`` has a flag of its own."""
