"""The check of vector environments: what conforms passes, and each of many deliberate faults is named."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import InvalidAction
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from opselect_envs import OpSelectEnv, OpSelectVectorEnv
from opselect_envs.conformance import CHECKS, ConformanceError, Problem, check_vector_env

TAXI = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gym.registry)
CHAIN = "opselect_envs:opselect/OpChain-v0"
NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
Result = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


def spec_of(vector: Any, single: Any = None, env_id: str = "opselect/OpChain-v0", **kwargs: Any) -> EnvSpec:
    """The spec of an environment, with another vector environment, and another single one."""
    spec = gym.spec(env_id)
    return replace(
        spec,
        vector_entry_point=vector,
        entry_point=spec.entry_point if single is None else single,
        kwargs={**spec.kwargs, **kwargs},
    )


def problems(spec: str | EnvSpec, **options: Any) -> tuple[Problem, ...]:
    with pytest.raises(ConformanceError) as raised:
        check_vector_env(spec, **options)
    for problem in raised.value.problems:
        assert str(problem) in str(raised.value)
    return raised.value.problems


# --- what is wrong with the vector environments that follow is their name ---------------------------------------------


class FinalObsOfTheNextEpisode(OpSelectVectorEnv):
    def step(self, actions: np.ndarray) -> Result:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        for row in np.flatnonzero(terminated | truncated):
            infos["final_obs"][row] = obs[row].copy()
        return obs, rewards, terminated, truncated, infos


class DenseFinalObsWithUnendedRows(OpSelectVectorEnv):
    def step(self, actions: np.ndarray) -> Result:
        *result, infos = super().step(actions)
        final = infos.get("final_obs")
        if final is not None and final.dtype == object:
            infos["final_obs"] = np.stack([np.zeros_like(result[0][0]) if f is None else f for f in final])
        return *result, infos


class DenseFinalObsOfOtherRows(OpSelectVectorEnv):
    def step(self, actions: np.ndarray) -> Result:
        *result, infos = super().step(actions)
        if infos.get("_final_obs", np.zeros(1)).all():
            infos["final_obs"] = np.stack([*infos["final_obs"][::-1]])
        return *result, infos


class NoFinalInfo(OpSelectVectorEnv):
    def step(self, actions: np.ndarray) -> Result:
        *result, infos = super().step(actions)
        return *result, {key: value for key, value in infos.items() if "final_info" not in key}


class InfosOfTheStepBefore(OpSelectVectorEnv):
    told: dict[str, Any] | None = None

    def step(self, actions: np.ndarray) -> Result:
        *result, infos = super().step(actions)
        told, self.told = self.told or infos, infos
        return *result, {**infos, "target": told["target"].copy()}


class NoMaskKey(OpSelectVectorEnv):
    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        obs, infos = super().reset(**kwargs)
        del infos["_action_mask"]
        return obs, infos


class KnownInEveryRow(OpSelectVectorEnv):
    """The mask of an info says True of rows that were not reset."""

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        obs, infos = super().reset(**kwargs)
        return obs, {**infos, "_target": np.ones(self.num_envs, bool)}


class RowsMixedUp(OpSelectVectorEnv):
    def step(self, actions: np.ndarray) -> Result:
        obs, *rest = super().step(actions)
        return np.roll(obs, 1, axis=0), *rest


class NanReward(OpSelectVectorEnv):
    def step(self, actions: np.ndarray) -> Result:
        obs, rewards, terminated, *rest = super().step(actions)
        rewards[terminated & (actions == 3)] = np.nan
        return obs, rewards, terminated, *rest


class SingleRewards(OpSelectVectorEnv):
    def step(self, actions: np.ndarray) -> Result:
        obs, rewards, *rest = super().step(actions)
        return obs, rewards.astype(np.float32), *rest


class OneUlpOff(OpSelectVectorEnv):
    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        obs, infos = super().reset(**kwargs)
        obs[2, 1] = np.nextafter(obs[2, 1], np.float32(0))
        return obs, infos


class OneBuffer(OpSelectVectorEnv):
    def step(self, actions: np.ndarray) -> Result:
        obs, *rest = super().step(actions)
        if not hasattr(self, "buffer"):
            self.buffer = np.empty_like(obs)
        np.copyto(self.buffer, obs)
        return self.buffer, *rest


class OneMaskForTwoKeys(OpSelectVectorEnv):
    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        obs, infos = super().reset(**kwargs)
        return obs, {**infos, "_target": infos["_action_mask"]}


class WhatIsReturnedIsTheState(OpSelectVectorEnv):
    def step(self, actions: np.ndarray) -> Result:
        obs, rewards, terminated, *rest = super().step(actions)
        self._over = self._terminated = terminated
        return obs, rewards, terminated, *rest


class WritesToTheActions(OpSelectVectorEnv):
    def step(self, actions: np.ndarray) -> Result:
        result = super().step(actions)
        actions[result[2]] = 0
        return result


class WritesToTheMask(OpSelectVectorEnv):
    def reset(self, *, options: dict[str, Any] | None = None, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        result = super().reset(options=options, **kwargs)
        if options is not None:
            options["reset_mask"][:] = False
        return result


class OneSeedForAll(OpSelectVectorEnv):
    def reset(self, *, seed: Any = None, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return super().reset(seed=[seed] * self.num_envs if isinstance(seed, int) else seed, **kwargs)


class StartsOverUnseeded(OpSelectVectorEnv):
    def reset(self, *, seed: Any = None, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.last = seed if seed is not None else getattr(self, "last", None)
        return super().reset(seed=self.last, **kwargs)


class NoneInAListStartsOver(OpSelectVectorEnv):
    def reset(self, *, seed: Any = None, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return super().reset(seed=[s or 0 for s in seed] if isinstance(seed, list) else seed, **kwargs)


class AlwaysTheSameUnseeded(OpSelectVectorEnv):
    def reset(self, *, seed: Any = None, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return super().reset(seed=0 if seed is None and self._episodes is None else seed, **kwargs)


class UnseededNoise(OpSelectVectorEnv):
    def step(self, actions: np.ndarray) -> Result:
        obs, rewards, *rest = super().step(actions)
        return obs, rewards + 1e-3 * np.random.default_rng().random(self.num_envs), *rest


class KeepsWhatItHadBeforeTheSeed(OpSelectVectorEnv):
    steps = 0

    def step(self, actions: np.ndarray) -> Result:
        obs, rewards, *rest = super().step(actions)
        self.steps += 1
        return obs, rewards * (self.steps <= 12), *rest


class AnotherModeInMetadata(OpSelectVectorEnv):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.metadata = {**self.metadata, "autoreset_mode": NEXT}


class TheModeAsAString(OpSelectVectorEnv):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode.value}


class OneMetadataForAll(OpSelectVectorEnv):
    shared: dict[str, Any] = OpSelectVectorEnv.metadata.copy()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shared["autoreset_mode"] = self.autoreset_mode
        self.metadata = self.shared


class WiderSpace(OpSelectVectorEnv):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.single_observation_space = gym.spaces.Box(-2, 2, self.single_observation_space.shape, np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)


class SpaceOfOneRow(OpSelectVectorEnv):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.action_space = self.single_action_space


class PlaysOnInsteadOfResetting(OpSelectVectorEnv):
    """NEXT_STEP: the first action after an end is taken at once, where it should be passed over."""

    def step(self, actions: np.ndarray) -> Result:
        if self._over.any():
            self._begin(np.flatnonzero(self._over))
        return super().step(actions)


class ResetsAllRows(OpSelectVectorEnv):
    def reset(self, *, options: dict[str, Any] | None = None, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return super().reset(**kwargs)


class NeverTruncates(OpSelectVectorEnv):
    def __init__(self, *args: Any, max_episode_steps: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class TruncatesInPlaceOfTerminating(OpSelectVectorEnv):
    def step(self, actions: np.ndarray) -> Result:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        return obs, rewards, truncated, terminated, infos


class RaisesAtTheUnavailable(OpSelectVectorEnv):
    def step(self, actions: np.ndarray) -> Result:
        if not self.action_masks()[np.arange(self.num_envs), actions].all():
            raise InvalidAction("not available")
        return super().step(actions)


class ForgetsItsPlaceWhenPickled(OpSelectVectorEnv):
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_over": np.zeros(self.num_envs, bool)}


class ListOfPictures(OpSelectVectorEnv):
    def render(self) -> Any:
        frames = super().render()
        return None if frames is None else list(frames)


class PictureOfTheFirstRow(OpSelectVectorEnv):
    def render(self) -> Any:
        frames = super().render()
        return None if frames is None else frames[:1] * self.num_envs


class PaintedOver(OpSelectVectorEnv):
    """Returns the picture that it keeps."""

    def render(self) -> Any:
        if self.render_mode != "rgb_array":
            return super().render()
        kept = self.__dict__.setdefault("kept", {})
        state = tuple((len(t.picks), t.values[0]) for t in self._trails.values())
        return kept.setdefault(state, super().render())


class DrawsUnasked(OpSelectVectorEnv):
    def render(self) -> Any:
        return super().render() or ()


class SameDictAgain(OpSelectVectorEnv):
    def step(self, actions: np.ndarray) -> Result:
        *result, infos = super().step(actions)
        self.infos = vars(self).get("infos", {})
        self.infos.update(infos)
        return (*result, self.infos)


ROW = r"\[\d\], row \d: "
CELL = r"\[\d, \d+\], row \d: "
MUTANTS: list[tuple[type[OpSelectVectorEnv], AutoresetMode, str, str]] = [
    # (fault, autoreset mode, the check that finds it, what it says)
    (FinalObsOfTheNextEpisode, SAME, "steps", r"step \d+\] infos\['final_obs'\]\[\d\]\[\d+\], row \d: .*but SyncVec"),
    (DenseFinalObsWithUnendedRows, SAME, "steps", r"infos\['final_obs'\]: has dtype float32, .* has object"),
    (DenseFinalObsOfOtherRows, SAME, "steps", r"infos\['final_obs'\]\[0, 0\], row 0: .*; row 0 is row \d of SyncVec"),
    (NoFinalInfo, SAME, "steps", r"infos: lacks the key 'final_info', which SyncVectorEnv has: \{'action_mask': "),
    (InfosOfTheStepBefore, SAME, "steps", rf"infos\['target'\]{ROW}[-.\d]+, but SyncVectorEnv has [-.\d]+"),
    (NoMaskKey, NEXT, "steps", r"reset\(seed=0\)\] infos: lacks the key '_action_mask', which SyncVectorEnv has: a"),
    (KnownInEveryRow, DISABLED, "steps", rf"reset_mask=.*\] infos\['_target'\]{ROW}True, but .* has False"),
    (RowsMixedUp, NEXT, "steps", r"step 1\] observations\[0, 0\], row 0: .*; row 0 is row 4 of SyncVectorEnv"),
    (NanReward, SAME, "steps", rf"step \d+\] rewards{ROW}nan, but SyncVectorEnv has [.\d]+"),
    (SingleRewards, NEXT, "steps", r"step 1\] rewards: has dtype float32, but SyncVectorEnv has float64"),
    (OneUlpOff, NEXT, "steps", r"observations\[2, 1\], row 2: .* but .* \(off by 1 ulps, 0 allowed\)"),
    (OneBuffer, NEXT, "fresh", r"step 2\] observations: shares memory with observations of step 1"),
    (SameDictAgain, NEXT, "fresh", r"step 2\] infos: is the same dict that the call before returned"),
    (OneMaskForTwoKeys, NEXT, "fresh", r"infos\['_target'\]: shares memory with infos\['_action_mask'\] of reset\("),
    (WhatIsReturnedIsTheState, NEXT, "fresh", r"step 2\] .*, but an instance that nobody wrote to has"),
    (WritesToTheActions, SAME, "steps", rf"what was handed in\[0\]{ROW}0, but the caller has [1-5]"),
    (WritesToTheMask, DISABLED, "steps", rf"what was handed in\[1\]{ROW}False, but the caller has True"),
    (OneSeedForAll, SAME, "steps", r"reset\(seed=0\)\] observations\[1, \d+\], row 1: .*; row 1 is row 0 of SyncVec"),
    (StartsOverUnseeded, SAME, "seeds", r"reset\(\) after step 1\] observations\[0, \d+\], row 0: "),
    (
        NoneInAListStartsOver,
        SAME,
        "seeds",
        r"reset\(seed=\[100, None, .*\) after step \d\] observations\[1, .*row 1",
    ),
    (AlwaysTheSameUnseeded, SAME, "seeds", r"observations: are the same in two instances that were never seeded"),
    (UnseededNoise, NEXT, "steps", r"step 1\] rewards\[0\], row 0: "),
    (KeepsWhatItHadBeforeTheSeed, SAME, "seeds", rf"rewards{ROW}0.0, but a new instance with the same seed has"),
    (AnotherModeInMetadata, SAME, "spaces", r"metadata\['autoreset_mode'\]: <.*NEXT_STEP: .* it must be <.*SAME_STEP"),
    (TheModeAsAString, SAME, "spaces", r"metadata\['autoreset_mode'\]: 'SameStep', but it must be <Auto.*SAME_STEP"),
    (
        OneMetadataForAll,
        SAME,
        "spaces",
        r", then make_vec\(.*\] metadata\['autoreset_mode'\]: .* must be <.*SAME_STEP",
    ),
    (WiderSpace, NEXT, "spaces", r"single_observation_space: Box\(-2.0, 2.0, .*, but it must be Box\(-1.0, 1.0"),
    (SpaceOfOneRow, NEXT, "spaces", r"\] action_space: Discrete\(6\), but it must be MultiDiscrete\(\[6 6 6 6 6\]\)"),
    (PlaysOnInsteadOfResetting, NEXT, "steps", rf"step \d+\] observations{CELL}"),
    (ResetsAllRows, DISABLED, "steps", rf"reset\(.*reset_mask=\[.*\) after step \d+\] observations{CELL}"),
    (NeverTruncates, NEXT, "steps", rf"step 2\] truncations{ROW}False, but SyncVectorEnv has True"),
    (TruncatesInPlaceOfTerminating, NEXT, "steps", rf"terminations{ROW}False, but SyncVectorEnv has True"),
    (RaisesAtTheUnavailable, NEXT, "steps", r"step \d+\] raised InvalidAction: not available"),
    (ForgetsItsPlaceWhenPickled, NEXT, "pickle", r"step \d+\] .*, but the original has "),
    (
        ListOfPictures,
        SAME,
        "render",
        r"step 1, render\(\) with .*\] render\(\): must be a tuple of 5 frames, got \['",
    ),
    (PictureOfTheFirstRow, SAME, "render", r"render\(\)\[1\], row 1: 'x = .*', but SyncVectorEnv has 'x = "),
    (PaintedOver, SAME, "render", r"again, after writing to the frames\] render\(\)\[0\]\[.*: 0, but Sync.* has 255"),
    (DrawsUnasked, SAME, "render", r"render\(\): must be None without a render mode, got \(\)"),
]


@pytest.mark.filterwarnings("ignore:.*is not an instance of AutoresetMode")  # gymnasium finds that as well
@pytest.mark.parametrize(("fault", "mode", "check", "message"), MUTANTS, ids=[m[0].__name__ for m in MUTANTS])
def test_a_fault_is_named(fault: type[OpSelectVectorEnv], mode: AutoresetMode, check: str, message: str) -> None:
    limit = {"max_episode_steps": 2} if fault is NeverTruncates else {}
    with pytest.raises(ConformanceError, match=message) as raised:
        check_vector_env(spec_of(fault), kwargs=limit, modes=[mode], checks=[check], steps=40)
    [problem] = raised.value.problems
    assert (problem.check, problem.mode) == (check, mode.value)
    if problem.row is not None:
        assert 0 <= problem.row < 5
    if fault is RaisesAtTheUnavailable:
        assert isinstance(raised.value.__cause__, InvalidAction)


def test_the_faults_are_of_their_own_making() -> None:
    """What the faults are made from conforms, as a class in place of a string too; only JSON can't have that."""
    skipped = check_vector_env(spec_of(OpSelectVectorEnv), steps=40)
    assert skipped == ["spec: an EnvSpec whose entry points are no strings has no JSON"]
    assert check_vector_env(CHAIN, steps=40) == []


def test_the_reference_itself_conforms() -> None:
    class Sync(SyncVectorEnv):
        def __init__(self, num_envs: int = 1, autoreset_mode: str = "NextStep", render_mode: str | None = None, **more):
            make = functools.partial(OpSelectEnv, render_mode=render_mode, **more)
            super().__init__([make] * num_envs, autoreset_mode=AutoresetMode(autoreset_mode))
            # Before 1.3, gymnasium writes its mode into the metadata that every OpSelectEnv shares.
            self.metadata = dict(self.metadata)

    checks = ["spaces", "steps", "seeds", "fresh", "actions", "render"]
    assert check_vector_env(spec_of(Sync), num_envs=3, steps=20, checks=checks) == []


def test_actions_that_are_never_allowed_need_not_be_taken() -> None:
    spec = spec_of(RaisesAtTheUnavailable)
    checks = [check for check in CHECKS if check not in ("spec", "render")]
    assert check_vector_env(spec, violate_masks=False, checks=checks, modes=["SameStep"]) == []
    assert {p.check for p in problems(spec, checks=["steps", "actions"], modes=["SameStep"])} == {"steps", "actions"}


# --- faults of both environments, which comparing does not show -------------------------------------------------------


def faulty(change: Any) -> dict[str, Any]:
    """A single and a vector environment whose steps are changed alike, by `change(observation, reward, action)`."""

    class Single(OpSelectEnv):
        def step(self, action: Any) -> tuple[Any, ...]:
            obs, reward, *rest = super().step(action)
            return *change(obs, np.float64(reward), np.int64(action)), *rest

    class Vector(OpSelectVectorEnv):
        def step(self, actions: np.ndarray) -> Result:
            obs, rewards, *rest = super().step(actions)
            rows = [change(*row) for row in zip(obs, rewards, actions, strict=True)]
            return np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows]), *rest

    return {"single": Single, "vector": Vector}


@pytest.mark.parametrize(
    ("change", "check", "message"),
    [
        (
            lambda obs, reward, action: (obs * 2, reward),
            "steps",
            r"observations\[0\]\[\d+\], row 0: .* is not in \[",
        ),
        (
            lambda obs, reward, action: (obs + np.float32(np.nan), reward),
            "steps",
            r"observations\[0\]\[0\], row 0: nan",
        ),
        (lambda obs, reward, action: (obs, reward - np.inf), "steps", r"rewards\[0\], row 0: -inf is not finite"),
        (
            lambda obs, reward, action: (obs, np.where(action == 5, np.inf, reward)[()]),
            "actions",
            r"reset\(seed=0\), then step with the action 5 in every row\] rewards\[0\], row 0: inf is not finite",
        ),
    ],
)
def test_values_must_be_finite_and_in_bounds(change: Any, check: str, message: str) -> None:
    with pytest.raises(ConformanceError, match=message):
        check_vector_env(spec_of(**faulty(change)), checks=[check], modes=["NextStep"], steps=20)


def test_final_observations_must_be_in_bounds() -> None:
    class Single(OpSelectEnv):
        def step(self, action: Any) -> tuple[Any, ...]:
            obs, *rest = super().step(action)
            return obs * 3 if rest[1] else obs, *rest

    class Vector(OpSelectVectorEnv):
        def step(self, actions: np.ndarray) -> Result:
            *result, infos = super().step(actions)
            if "final_obs" in infos:
                infos["final_obs"] = np.array([None if f is None else f * 3 for f in infos["final_obs"]] + [0], object)[
                    :-1
                ]
            return *result, infos

    found = problems(spec_of(Vector, Single), checks=["steps"], modes=["SameStep"])
    assert found[0].where.startswith("infos['final_obs'][")
    assert "is not in [-1.0, 1.0]" in found[0].message


# --- options and errors -----------------------------------------------------------------------------------------------


def test_ulps_and_signs_of_zero() -> None:
    options: dict[str, Any] = {"checks": ["steps"], "modes": ["NextStep"], "steps": 20}
    assert check_vector_env(spec_of(OneUlpOff), ulps=1, **options) == []
    negated = {"vector": faulty(lambda obs, reward, action: (obs, -reward))["vector"]}
    spec = spec_of(**negated, single=faulty(lambda obs, reward, action: (obs, 0.0 - reward))["single"])
    [problem] = problems(spec, **options)
    assert "-0.0, but SyncVectorEnv has 0.0 (off by 1 ulps, 0 allowed)" in problem.message
    assert check_vector_env(spec, ulps=1, **options) == []


def test_all_that_is_wrong_is_listed_once() -> None:
    found = problems(spec_of(SingleRewards), checks=["steps", "seeds", "render"], steps=10)
    assert [(p.check, p.mode, p.where) for p in found] == [
        ("steps", "NextStep", "rewards"),
        ("steps", "SameStep", "rewards"),
        ("steps", "Disabled", "rewards"),
    ]


def test_an_episode_must_end() -> None:
    long = {"horizon": 9, "operations": ["neg", "sin"]}
    [problem] = problems(CHAIN, kwargs=long, steps=5, checks=["steps"], modes=[SAME])
    assert "no episode ended in 5 steps" in problem.message


def test_specs_that_json_cannot_hold() -> None:
    [problem] = problems(CHAIN, kwargs={"low": np.float32(-2)}, checks=["spec"], modes=[SAME])
    assert "raised TypeError: Object of type float32 is not JSON serializable" in str(problem)


# What gymnasium leaves behind complains when it is deleted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_id_that_no_new_process_knows() -> None:
    [problem] = problems("opselect/OpChain-v0", checks=[], spawn=True)
    assert (problem.check, problem.mode) == ("spawn", None)
    assert "A new process must find 'opselect/OpChain-v0': an id of the form 'module:id'" in problem.message


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r"checks must be among spaces, .*, got 'step'; did you mean 'steps'\?"):
        check_vector_env(CHAIN, checks=["step"])
    with pytest.raises(ValueError, match="num_envs and steps must be at least 1, got num_envs=0"):
        check_vector_env(CHAIN, num_envs=0)
    with pytest.raises(ValueError, match=r"modes must be among .*, got 'sameStep'; did you mean 'SameStep'\?"):
        check_vector_env(CHAIN, modes=["sameStep"])
    for nothing in ({"modes": []}, {"modes": "SameStep"}, {"checks": []}, {"checks": "steps"}):
        with pytest.raises(ValueError, match=rf"{next(iter(nothing))} must be a (sequence|collection) of .*, got "):
            check_vector_env(CHAIN, **nothing)
    with pytest.raises(ValueError, match="kwargs must not have 'render_mode'"):
        check_vector_env(CHAIN, kwargs={"render_mode": "ansi"})
    with pytest.raises(gym.error.Error, match="OpChane"):
        check_vector_env("opselect_envs:opselect/OpChane-v0")
    [first, *_] = problems("Pendulum-v1", checks=["steps"], modes=["NextStep"])  # it has no vector environment
    assert "doesn't have a vector entry point" in first.message


# --- environments of others -------------------------------------------------------------------------------------------


def sync(env_id: str, num_envs: int, autoreset_mode: str, **kwargs: Any) -> SyncVectorEnv:
    def make() -> gym.Env:
        env = gym.make(env_id, disable_env_checker=True, **kwargs)
        env.metadata = dict(env.metadata)  # gymnasium 1.2's SyncVectorEnv has all instances share it
        return env

    return SyncVectorEnv([make] * num_envs, autoreset_mode=autoreset_mode)


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("CartPole-v1", {"max_episode_steps": 12}),
        ("Pendulum-v1", {"max_episode_steps": 10}),  # actions are a Box
        ("Blackjack-v1", {}),  # observations are a Tuple
        (TAXI, {"max_episode_steps": 10}),  # masks in infos; observations are integers
    ],
)
def test_sync_vector_env_conforms_to_itself(env_id: str, kwargs: dict[str, Any]) -> None:
    spec = spec_of(functools.partial(sync, env_id), env_id=env_id)
    # Making a Taxi takes long.
    checks = ["steps"] if env_id == TAXI else [check for check in CHECKS if check not in ("spaces", "render")]
    skipped = check_vector_env(spec, kwargs=kwargs, steps=30, num_envs=3, checks=checks)
    assert {reason.split(":")[0] for reason in skipped} <= {"spec", "pickle"}


def test_what_is_found_in_gymnasiums_cart_pole() -> None:
    """It draws all rows from one generator, so row i isn't the environment seeded seed + i, and knows one mode only."""
    found = problems(
        "CartPole-v1", kwargs={"max_episode_steps": 12}, checks=["spaces", "steps", "seeds", "fresh", "pickle"]
    )
    assert [(p.check, p.mode) for p in found] == [("steps", "NextStep"), ("spaces", "SameStep"), ("spaces", "Disabled")]
    assert found[0].call == "reset(seed=0)"
    assert found[0].where.startswith("observations[0, ")
    assert "metadata says 'NextStep', so 'SameStep' cannot be had" in found[1].message


class SeededCartPole(CartPoleVectorEnv):
    """Gymnasium's, with one generator per row."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed or [None] * self.num_envs
        if not hasattr(self, "generators"):
            self.generators: list[Any] = [None] * self.num_envs
        for row, one in enumerate(seeds):
            if one is not None or self.generators[row] is None:
                self.generators[row] = seeding.np_random(one)[0]
        super().reset()
        return self._start(np.arange(self.num_envs)), {}

    def step(self, action: np.ndarray) -> Result:
        ended = np.flatnonzero(self.prev_done)
        _, *rest = super().step(action)
        return self._start(ended), *rest

    def _start(self, rows: np.ndarray) -> np.ndarray:
        for row in rows:
            self.state[:, row] = self.generators[row].uniform(-0.05, 0.05, size=(4,))
        return self.state.T.astype(np.float32)


class ConformingCartPole(SeededCartPole):
    def step(self, action: np.ndarray) -> Result:
        obs, rewards, *rest = super().step(action)
        return obs, rewards.astype(np.float64) + 0.0, *rest  # -0.0 + 0.0 is 0.0


def test_a_cart_pole_that_conforms() -> None:
    """What else is wrong with it are the rewards: float32, and -0.0 for 0.0. The dynamics are equal bit for bit."""
    options: dict[str, Any] = {
        "modes": ["NextStep"],
        "steps": 60,
        "checks": ["spaces", "steps", "seeds", "fresh", "pickle"],
    }
    for kwargs in ({}, {"max_episode_steps": 12, "sutton_barto_reward": True}):
        found = problems(spec_of(SeededCartPole, env_id="CartPole-v1"), kwargs=kwargs, **options)
        assert [(p.where, p.message) for p in found] == [
            ("rewards", "has dtype float32, but SyncVectorEnv has float64")
        ]
        assert check_vector_env(spec_of(ConformingCartPole, env_id="CartPole-v1"), kwargs=kwargs, **options) == []


class Compass(gym.Env[dict[str, Any], np.ndarray]):
    """Composite observations, Box actions, nested infos, some of them in some steps only."""

    metadata = {"render_modes": []}  # noqa: RUF012
    observation_space = gym.spaces.Dict(
        {"at": gym.spaces.Box(-9, 9, (2,), np.float64), "way": gym.spaces.Tuple([gym.spaces.Discrete(5)] * 2)}
    )
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-1, 1, 2)
        return self._observe(), {"name": "start"}

    def step(self, action: np.ndarray) -> Any:
        self.at = np.clip(self.at + action, -9, 9)
        far = bool(np.abs(self.at).max() > 2)
        info = {"deep": {"norm": np.linalg.norm(self.at), "deeper": {"at": self.at.copy()}}, "maybe": float("nan")}
        return self._observe(), float(self.at.sum()), far, False, info | ({"far": "yes"} if far else {})

    def _observe(self) -> dict[str, Any]:
        return {"at": self.at.copy(), "way": tuple(np.int64(abs(x) % 5) for x in self.at)}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (None, ""),
        (lambda obs, infos: obs["at"].__setitem__((3, 1), 0.5), r"observations\['at'\]\[3, 1\], row 3: 0.5, but Sync"),
        (lambda obs, infos: obs["way"][1].__setitem__(2, 4), r"observations\['way'\]\[1\]\[2\], row 2: 4, but Sync"),
        (
            lambda obs, infos: infos["deep"]["deeper"]["at"].__setitem__((0, 0), np.nan),
            r"infos\['deep'\]\['deeper'\]\['at'\]\[0, 0\], row 0: nan, but",
        ),
        (
            lambda obs, infos: infos.__setitem__("maybe", np.zeros(4)),
            r"infos\['maybe'\]\[0\], row 0: 0.0, but .* has nan",
        ),
        (lambda obs, infos: infos["deep"].pop("_norm"), r"infos\['deep'\]: lacks the key '_norm'"),
    ],
)
def test_composite_spaces_and_nested_infos(spoil: Any, message: str) -> None:
    class Spoilt(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            result = super().step(actions)
            if spoil is not None:
                spoil(result[0], result[-1])
            return result

    def vector(num_envs: int, autoreset_mode: str) -> SyncVectorEnv:
        make = functools.partial(gym.make, EnvSpec("Compass-v0", Compass), disable_env_checker=True)
        return Spoilt([make] * num_envs, autoreset_mode=autoreset_mode)

    spec = EnvSpec("Compass-v0", entry_point=Compass, vector_entry_point=vector)
    checks = ["steps", "seeds", "fresh", "actions", "pickle"]
    if spoil is None:
        [skipped] = check_vector_env(spec, checks=checks, num_envs=4)
        assert skipped.startswith("pickle: Spoilt(Compass-v0, num_envs=4) cannot be pickled (AttributeError: ")
    else:
        with pytest.raises(ConformanceError, match=message):
            check_vector_env(spec, checks=["steps"], modes=["NextStep"], num_envs=4)


def test_final_observations_of_composite_spaces_may_be_batched() -> None:
    class Batched(SyncVectorEnv):
        wrong = 0.0

        def step(self, actions: Any) -> Any:
            *result, infos = super().step(actions)
            if infos.get("_final_obs", np.zeros(1)).all():
                final = infos["final_obs"]
                infos["final_obs"] = {
                    "at": np.stack([f["at"] for f in final]) + self.wrong,
                    "way": tuple(np.array([f["way"][i] for f in final]) for i in range(2)),
                }
            return *result, infos

    class Wrong(Batched):
        wrong = 1.0

    for kind in (Batched, Wrong):

        def vector(num_envs: int, autoreset_mode: str, kind: Any = kind) -> SyncVectorEnv:
            make = functools.partial(gym.make, EnvSpec("Compass-v0", Compass), disable_env_checker=True)
            return kind([make] * num_envs, autoreset_mode=autoreset_mode)

        spec = EnvSpec("Compass-v0", entry_point=Compass, vector_entry_point=vector)
        options: dict[str, Any] = {"checks": ["steps", "fresh"], "num_envs": 2, "steps": 30, "modes": ["SameStep"]}
        if kind is Batched:
            assert check_vector_env(spec, **options) == []
        else:
            assert "infos['final_obs']['at'][0, 0]" in str(problems(spec, **options)[0])
