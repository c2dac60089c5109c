"""The adapter does what stable-baselines3's own DummyVecEnv does with the same environments, only faster.

`.ci/consumers` runs this where stable-baselines3 and sb3-contrib are installed.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import time
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

pytest.importorskip("stable_baselines3")

from stable_baselines3 import A2C, DQN
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from opselect_envs.sb3 import SB3VecEnv, make_sb3_vec_env

ROWS, STEPS = 7, 25
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("opselect/ScalarOp-v0", {"reward_noise": 0.3}),
    ("opselect/OpChain-v0", {"mask_actions": False}),  # rows end at different steps
    ("opselect/OpChain-v0", {"horizon": 4, "max_episode_steps": 2, "mask_actions": False}),
]


class Counter(gym.Env[dict[str, np.ndarray], np.int64]):
    """Counts to the action or to 3; its observations and infos are nested, and some infos come only now and then."""

    observation_space = gym.spaces.Dict({"count": gym.spaces.Box(0.0, 9.0, (2,), np.float32)})
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = int(self.np_random.integers(2)) + (options or {}).get("more", 0)
        return self._seen(), {"begun": self.count}

    def step(self, action):
        self.count += 1
        info: dict[str, Any] = {"inner": {"count": self.count, "name": f"n{self.count}"}}
        if self.count % 2:
            info["odd"] = float(self.count)
        return self._seen(), float(self.count), self.count >= 3 or self.count == action, self.count == 2, info

    def action_masks(self):
        return np.arange(4) >= self.count

    def _seen(self):
        return {"count": np.full(2, self.count, np.float32)}


def same(a: Any, b: Any) -> None:
    """Values, keys and kinds of values are the same; whether a number is NumPy's is not of interest."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert np.asarray(a).dtype.kind == np.asarray(b).dtype.kind
        np.testing.assert_array_equal(a, b)


def dummy(make: Any, seed: int = 3) -> DummyVecEnv:
    envs = DummyVecEnv([make] * ROWS)
    envs.seed(seed)
    return envs


def without_time(infos: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {k: {s: x for s, x in v.items() if s != "t"} if k == "episode" else v for k, v in info.items()}
        for info in infos
    ]


def compare(ours: SB3VecEnv, theirs: DummyVecEnv) -> int:
    """Plays both with the same actions; returns how many episodes ended."""
    theirs = VecMonitor(theirs)
    draw, ended = np.random.default_rng(0), 0
    same(ours.reset(), theirs.reset())
    same(ours.reset_infos, theirs.unwrapped.reset_infos)
    for _ in range(STEPS):
        actions = draw.integers(ours.action_space.n, size=ROWS)
        seen, expected = ours.step(actions), theirs.step(actions)
        same(seen[0], expected[0])
        assert seen[1].dtype == np.float32
        np.testing.assert_array_equal(seen[1], expected[1])
        np.testing.assert_array_equal(seen[2], expected[2])
        for a, b in zip(without_time(seen[3]), without_time(expected[3]), strict=True):
            if "episode" in b:
                assert a["episode"] == {"r": pytest.approx(b["episode"]["r"], abs=1e-5), "l": b["episode"]["l"]}
                a["episode"] = b["episode"]
            same(a, b)
        same(ours.reset_infos, theirs.unwrapped.reset_infos)
        same(ours.env_method("action_masks"), theirs.env_method("action_masks"))
        same(ours.env_method("action_masks", indices=[2, 0]), theirs.env_method("action_masks", indices=[2, 0]))
        ended += int(seen[2].sum())
    return ended


@pytest.mark.parametrize(("env_id", "kwargs"), VARIANTS)
def test_our_environments(env_id: str, kwargs: dict[str, Any]) -> None:
    ours = make_sb3_vec_env(env_id, ROWS, seed=3, **kwargs)
    assert compare(ours, dummy(functools.partial(gym.make, env_id, **kwargs))) > ROWS


@pytest.mark.parametrize("make", [Counter, functools.partial(gym.make, "opselect/OpChain-v0", mask_actions=False)])
def test_gymnasiums_vector_environment(make: Any) -> None:
    ours = SB3VecEnv(SyncVectorEnv([make] * ROWS, autoreset_mode=AutoresetMode.SAME_STEP))
    ours.seed(3)
    assert compare(ours, dummy(make)) > ROWS


def test_truncation_is_told() -> None:
    envs = make_sb3_vec_env("opselect/OpChain-v0", 3, seed=0, max_episode_steps=1)
    envs.reset()
    _, _, done, infos = envs.step(np.array([int(mask.argmax()) for mask in envs.env_method("action_masks")]))
    assert done.all()
    assert [info["TimeLimit.truncated"] for info in infos] == [True] * 3
    assert [info["episode"]["l"] for info in infos] == [1] * 3
    assert infos[0]["terminal_observation"].shape == envs.observation_space.shape


def test_seeds_are_used_once() -> None:
    envs = make_sb3_vec_env("opselect/ScalarOp-v0", 5, seed=11)
    first, second = envs.reset(), envs.reset()
    assert not np.array_equal(first, second)
    assert list(envs.seed(11)) == [11, 12, 13, 14, 15]
    np.testing.assert_array_equal(envs.reset(), first)
    np.testing.assert_array_equal(envs.reset(), second)


def test_options_reach_the_environments() -> None:
    envs = SB3VecEnv(SyncVectorEnv([Counter] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    envs.seed(0)
    plain = envs.reset()["count"]
    envs.seed(0)
    envs.set_options({"more": 5})
    np.testing.assert_array_equal(envs.reset()["count"], plain + 5)
    envs.seed(0)
    np.testing.assert_array_equal(envs.reset()["count"], plain)
    with pytest.raises(ValueError, match=r"options must be one dict for all rows or None, got \[\{\}, \{\}\]"):
        envs.set_options([{}, {}])


def test_attributes_of_one_environment_for_all_rows() -> None:
    envs = make_sb3_vec_env("opselect/OpChain-v0", 4, seed=20)
    envs.reset()
    assert envs.has_attr("action_masks")
    assert not envs.has_attr("compute_reward")
    assert envs.get_attr("np_random_seed") == [20, 21, 22, 23]
    assert envs.get_attr("np_random_seed", 2) == [22]
    assert envs.get_attr("task", [0, 3]) == [envs.envs.task] * 2
    assert envs.get_attr("observation_space") == [envs.observation_space] * 4
    assert envs.get_attr("action_space", indices=1) == [envs.action_space]
    envs.set_attr("render_mode", "ansi")
    assert envs.get_attr("render_mode") == ["ansi"] * 4
    with pytest.raises(ValueError, match=r"indices must be None, as all rows share 'render_mode', got \[1\]"):
        envs.set_attr("render_mode", None, indices=[1])
    with pytest.raises(AttributeError, match="has no attribute 'action_mask'; did you mean 'action_masks'"):
        envs.get_attr("action_mask")


def test_attributes_of_an_environment_per_row() -> None:
    envs = SB3VecEnv(SyncVectorEnv([lambda: Monitor(Counter())] * 3, autoreset_mode=AutoresetMode.SAME_STEP))
    envs.reset()
    envs.set_attr("count", 7, indices=[0, 2])
    counts = envs.get_attr("count")
    assert (counts[0], counts[2]) == (7, 7)
    assert counts[1] < 2
    assert not envs.has_attr("nothing")
    assert envs.env_is_wrapped(Monitor) == [True] * 3
    assert envs.env_is_wrapped(gym.wrappers.TimeLimit, indices=[1]) == [False]


def test_wrappers_around() -> None:
    """Around the vector environment, and around the adapter."""
    base = gym.make_vec("opselect/OpChain-v0", num_envs=4)
    envs = SB3VecEnv(gym.wrappers.vector.RecordEpisodeStatistics(base))
    envs.seed(0)
    twin = make_sb3_vec_env("opselect/OpChain-v0", 4, seed=0)
    np.testing.assert_array_equal(envs.reset(), twin.reset())
    same(envs.env_method("action_masks"), twin.env_method("action_masks"))
    for _ in range(4):
        actions = np.array([int(mask.argmax()) for mask in twin.env_method("action_masks")])
        a, b = envs.step(actions), twin.step(actions)
        same(without_time(a[3]), without_time(b[3]))
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        VecMonitor(twin)
    normalised = VecNormalize(twin)
    normalised.reset()
    assert normalised.step(actions)[0].shape == (4, *twin.observation_space.shape)


def test_images() -> None:
    envs = make_sb3_vec_env("opselect/ScalarOp-v0", 3, seed=0, render_mode="rgb_array")
    envs.reset()
    images = envs.get_images()
    assert len(images) == 3
    assert envs.render().dtype == np.uint8
    assert make_sb3_vec_env("opselect/ScalarOp-v0", 3).get_images() == [None] * 3


def test_observations_are_not_overwritten() -> None:
    envs = make_sb3_vec_env("opselect/ScalarOp-v0", 3, seed=0)
    first = envs.reset()
    kept = first.copy()
    second, _, _, infos = envs.step(np.zeros(3, int))
    told = [info["terminal_observation"].copy() for info in infos]
    envs.step(np.zeros(3, int))
    np.testing.assert_array_equal(first, kept)
    assert not np.array_equal(first, second)
    same([info["terminal_observation"] for info in infos], told)


def test_learners_run_on_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        envs = make_sb3_vec_env("opselect/ScalarOp-v0", 8)
        model = A2C("MlpPolicy", envs, seed=1, device="cpu").learn(200)
        assert len(model.ep_info_buffer) == 100
        mean, deviation = evaluate_policy(model, envs, n_eval_episodes=40)
        assert 0.0 < mean < 1.0
        assert deviation > 0.0
        DQN("MlpPolicy", envs, learning_starts=16, device="cpu").learn(64)
    again = A2C("MlpPolicy", make_sb3_vec_env("opselect/ScalarOp-v0", 8), seed=1, device="cpu").learn(200)
    assert [e["r"] for e in again.ep_info_buffer] == [e["r"] for e in model.ep_info_buffer]


def test_maskable_ppo_never_leaves_the_masks() -> None:
    contrib = pytest.importorskip("sb3_contrib")
    envs = make_sb3_vec_env("opselect/OpChain-v0", 16, seed=0)
    model = contrib.MaskablePPO("MlpPolicy", envs, n_steps=12, batch_size=64, device="cpu").learn(16 * 12)
    # Whoever picks what is not available ends before the third decision.
    assert {episode["l"] for episode in model.ep_info_buffer} == {3}


def test_it_is_fast() -> None:
    """One step of many rows costs far less than as many steps of one row."""
    rows = 256
    seconds = []
    for envs in (
        make_sb3_vec_env("opselect/ScalarOp-v0", rows),
        DummyVecEnv([functools.partial(gym.make, "opselect/ScalarOp-v0")] * rows),
    ):
        envs.reset()
        actions, best = np.zeros(rows, int), np.inf
        for _ in range(5):
            started = time.perf_counter()
            envs.step(actions)
            best = min(best, time.perf_counter() - started)
        seconds.append(best)
    assert 3 * seconds[0] < seconds[1]


@pytest.mark.parametrize(
    ("envs", "error", "message"),
    [
        (lambda: gym.make("opselect/ScalarOp-v0"), TypeError, "envs must be a gymnasium VectorEnv, got OrderEnforcing"),
        (
            lambda: gym.make_vec("opselect/ScalarOp-v0", num_envs=2, autoreset_mode="Disabled"),
            ValueError,
            "autoreset_mode 'SameStep', got 'Disabled'; make ours with autoreset_mode='SameStep'",
        ),
        (lambda: SyncVectorEnv([Counter]), ValueError, "autoreset_mode 'SameStep', got 'NextStep'"),
        (
            lambda: SyncVectorEnv([Counter], copy=False, autoreset_mode=AutoresetMode.SAME_STEP),
            ValueError,
            "copy=True, got copy=False",
        ),
    ],
)
def test_environments_that_will_not_do(envs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SB3VecEnv(envs())


def test_wrong_arguments() -> None:
    with pytest.raises(gym.error.NameNotFound, match="got 'opselect/OpChan-v0'; did you mean 'opselect/OpChain-v0'"):
        make_sb3_vec_env("opselect/OpChan-v0")
    with pytest.raises(TypeError, match="unknown argument n_envs=3; did you mean 'num_envs'"):
        make_sb3_vec_env("opselect/OpChain-v0", n_envs=3)
    envs = make_sb3_vec_env("opselect/ScalarOp-v0", 2)
    with pytest.raises(ValueError, match=r"must not be 'reset'; call SB3VecEnv.reset\(\)"):
        envs.env_method("reset")
    with pytest.raises(ValueError, match=r"a result per row \(2\), got '__repr__', which returned str"):
        envs.env_method("__repr__")
