"""The gymnasium environments: the API to the letter. `check_vector_env` holds single and vector environments equal."""

from __future__ import annotations

import functools
import itertools
import math
import subprocess
import sys
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.utils import seeding
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import opselect_envs
from opselect_envs import InvalidTaskError, OpSelectEnv, OpSelectVectorEnv, Task, episodes
from opselect_envs.conformance import check_vector_env
from opselect_envs.dynamics import observe, reset
from opselect_envs.streams import Streams
from opselect_envs.tasks import OPTIMAL_REGRET

IDS = ["opselect/ScalarOp-v0", "opselect/ScalarOpGoal-v0", "opselect/OpChain-v0"]
MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
# Some variety of parameters: (id, kwargs).
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("opselect/ScalarOp-v0", {}),
    ("opselect/ScalarOp-v0", {"reward_noise": 0.3, "regions": 5, "rule": 3, "frequencies": 2}),
    ("opselect/ScalarOpGoal-v0", {"reward": "sparse"}),
    ("opselect/ScalarOpGoal-v0", {"operations": ["sqrt", "neg", "exp"], "low": 0.0, "high": 5.0, "reward_noise": 1.0}),
    ("opselect/OpChain-v0", {}),
    ("opselect/OpChain-v0", {"max_episode_steps": 2}),
    ("opselect/OpChain-v0", {"horizon": 5, "reward_noise": 0.5, "value_limit": 20.0, "max_episode_steps": 4}),
    ("opselect/ScalarOp-v0", {"blend": 0.4, "distractors": 3}),
    ("opselect/ScalarOp-v0", {"rule_after": 5, "shift_after": 3, "reward_noise": 0.5}),
]


def some_actions(rng: np.random.Generator, masks: np.ndarray) -> np.ndarray:
    """[B] actions: mostly available ones, now and then any at all."""
    scores = rng.random(masks.shape) + np.where(rng.random(len(masks)) < 0.8, 1.0, 0.0)[:, None] * masks
    return scores.argmax(-1)


# --- registration -----------------------------------------------------------------------------------------------------


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.parametrize(
    "code",
    [
        "env = gym.make('opselect_envs:opselect/ScalarOp-v0')",
        "import opselect_envs; env = gym.make('opselect/ScalarOp-v0')",
        "env = gym.make_vec('opselect_envs:opselect/ScalarOp-v0', num_envs=3)",
        "import opselect_envs; env = gym.make_vec('opselect/ScalarOp-v0', num_envs=3)",
    ],
)
def test_registration_in_a_fresh_process_without_tensorflow(code: str) -> None:
    out = run(
        f"import sys, gymnasium as gym\n{code}\nobs, info = env.reset(seed=0)\n"
        "heavy = {'tensorflow', 'keras', 'torch', 'jax', 'matplotlib', 'scipy', 'pandas', 'opselect'}\n"
        "print(obs.shape, sorted(heavy & set(sys.modules)))"
    )
    assert out.split(") ")[1].strip() == "[]"
    assert out.startswith("(13,)" if "make(" in code else "(3, 13)")


@pytest.mark.parametrize("env_id", IDS)
def test_every_id_has_the_standard_task(env_id: str) -> None:
    name = env_id.split("/")[1].removesuffix("-v0")
    env, vector = gym.make(env_id), gym.make_vec(env_id, num_envs=2)
    assert isinstance(env.unwrapped, OpSelectEnv)
    assert isinstance(vector, OpSelectVectorEnv)
    assert env.unwrapped.task == vector.task == opselect_envs.TASKS[name]
    expected = env.unwrapped.task.expected_rewards()
    assert 0.1 < expected["random"] < 0.6 < expected["oracle"] == 1.0


@pytest.mark.parametrize(("env_id", "kwargs"), VARIANTS)
def test_specs_in_json_hold_the_whole_task(env_id: str, kwargs: dict[str, Any]) -> None:
    env = gym.make(env_id, **kwargs)
    spec = EnvSpec.from_json(env.spec.to_json())
    again = gym.make(spec)
    assert again.unwrapped.task == env.unwrapped.task
    assert spec.max_episode_steps == kwargs.get("max_episode_steps")

    vector = gym.make_vec(env_id, num_envs=3, autoreset_mode="NextStep", **kwargs)
    again = gym.make_vec(EnvSpec.from_json(vector.spec.to_json()))
    assert again.num_envs == 3
    assert again.task == vector.task
    assert again.autoreset_mode == AutoresetMode.NEXT_STEP


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("kwargs", [{}, {"reward_noise": 0.5, "reward": "sparse"}])
def test_gymnasiums_checker(env_id: str, kwargs: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(env_id, **kwargs).unwrapped)


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [gym.make, gym.make_vec])
@pytest.mark.parametrize(
    ("env_id", "kwargs", "message"),
    [
        (IDS[0], {"reward": "denses"}, r"reward must be 'dense' or 'sparse', got 'denses'; did you mean 'dense'\?"),
        (IDS[0], {"operations": ["sin", "coss"]}, r"unknown operation 'coss'; did you mean 'cos'\?"),
        (IDS[0], {"region": 9}, r"unknown parameter region=9; did you mean 'regions'\?"),
        (IDS[0], {"horizon": 3}, r"unknown parameter horizon=3"),
        (IDS[1], {"goal": False}, r"unknown parameter goal=False"),
        (IDS[2], {"horizon": 0}, r"horizon must be an integer in \[1, 64\], got 0"),
        (IDS[2], {"rule": 1}, r"rule must be None with horizon 3"),
        (IDS[0], {"task": "ScalarOps"}, r"unknown task 'ScalarOps'; did you mean 'ScalarOp'\?"),
    ],
)
def test_bad_parameters(make: Any, env_id: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(env_id, **kwargs)


def test_an_unknown_parameter_is_a_type_error_too() -> None:
    """TorchRL's GymEnv tries `frameskip` first, and gives it up for a TypeError in these words."""
    for make in (gym.make, gym.make_vec):
        with pytest.raises(TypeError, match="unexpected keyword argument 'frameskip'"):
            make(IDS[0], frameskip=1)


def test_bad_parameters_of_the_shells() -> None:
    with pytest.raises(ValueError, match=r"render_mode must be one of \['ansi', 'rgb_array'\] or None, got 'rgb'"):
        OpSelectEnv(render_mode="rgb")
    with pytest.raises(ValueError, match=r"autoreset_mode must be .* got 'Same'; nearest: 'SameStep'"):
        OpSelectVectorEnv(autoreset_mode="Same")
    with pytest.raises(ValueError, match="num_envs must be an integer of at least 1, got 0"):
        OpSelectVectorEnv(num_envs=0)
    with pytest.raises(ValueError, match=r"max_episode_steps must be an integer >= 1, .* got 0"):
        OpSelectVectorEnv(max_episode_steps=0)
    with pytest.raises(InvalidTaskError, match="low must be below high"):
        OpSelectEnv("ScalarOp", low=4.0)


def test_a_task_object_can_be_given() -> None:
    task = Task(operations=("neg", "square"), low=-1.0, high=1.0, rule=("square", "neg"))
    env = OpSelectEnv(task, frequencies=1)
    assert env.task.names == ("neg", "square")
    assert env.observation_space.shape == (3,)
    assert env.action_space.n == 2


def test_default_autoreset_and_metadata() -> None:
    vector = gym.make_vec(IDS[0], num_envs=2)
    assert vector.autoreset_mode == vector.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert "autoreset_mode" not in OpSelectVectorEnv.metadata
    assert vector.single_observation_space == gym.make(IDS[0]).observation_space
    assert vector.single_action_space == gym.make(IDS[0]).action_space
    assert vector.observation_space.shape == (2, 13)
    assert vector.action_space == gym.spaces.MultiDiscrete([10, 10])


# --- what an episode says ---------------------------------------------------------------------------------------------


def test_one_decision_by_hand() -> None:
    env = gym.make(IDS[0], operations=["neg", "square", "sqrt"], rule=["neg", "square"], low=-2.0, high=2.0)
    formulas = [lambda x: -x, lambda x: x * x, math.sqrt]
    seen = set()
    for seed in range(40):
        obs, info = env.reset(seed=seed)
        x = -2 + 4 * float(seeding.np_random(seed)[0].random(2, dtype=np.float32)[0])
        assert obs[0] == pytest.approx(x / 2, abs=1e-6)
        target = -x if x < 0 else x * x
        assert info["target"] == pytest.approx(target, abs=1e-6)
        assert info["action_mask"].tolist() == [1, 1, int(x > 0)]
        pick = seed % 3
        _, reward, terminated, truncated, info = env.step(pick)
        assert terminated is True
        assert truncated is False
        assert type(reward) is float
        assert info["action_mask"].tolist() == [1, 1, 1]
        if pick == 2 and x < 0:  # not available: over, without reward
            expected = 0.0
        else:
            error = abs(formulas[pick](x) - target)
            expected = math.exp(-error)
            assert info["error"] == pytest.approx(error, abs=2e-6)
        assert reward == pytest.approx(expected, rel=1e-5)
        assert info["regret"] == pytest.approx(1 - expected, abs=2e-6)
        assert info["optimal"] is (info["regret"] <= OPTIMAL_REGRET)
        seen.add((pick, x < 0, info["optimal"]))
    assert {(0, True, True), (1, False, True), (2, True, False), (2, False, False)} <= seen


def test_a_chain_by_hand() -> None:
    env = gym.make(IDS[2], operations=["neg", "square", "sqrt"], horizon=2, low=-2.0, high=2.0).unwrapped
    # From x, two decisions: -x, x*x or sqrt(x), twice; sqrt only of what is positive.
    ops = [lambda v: -v, lambda v: v * v, lambda v: math.sqrt(v) if v > 0 else None]
    total = []
    for seed in range(60):
        _, info = env.reset(seed=seed)
        x = -2 + 4 * float(seeding.np_random(seed)[0].random(dtype=np.float32))
        target = info["target"]
        first, second = seed % 3, seed // 3 % 3

        def worth(v: float | None, y: float = target) -> float:
            return 0.0 if v is None else math.exp(-abs(v - y))

        value = ops[first](x)
        assert info["action_mask"].tolist() == [1, 1, int(x > 0)]
        _, reward, terminated, _, info = env.step(first)
        if value is None:
            assert (reward, terminated) == (0.0, True)
            assert info["regret"] == pytest.approx(1)
            continue
        assert (reward, terminated) == (0.0, False)
        still = max(worth(op(value)) for op in ops)
        assert info["regret"] == pytest.approx(1 - still, abs=1e-5)
        assert info["error"] == pytest.approx(abs(value - target), abs=1e-5)
        assert info["action_mask"].tolist() == [1, 1, int(value > 0)]
        _, reward, terminated, _, info = env.step(second)
        assert terminated is True
        assert reward == pytest.approx(worth(ops[second](value)), rel=1e-4, abs=1e-6)
        assert info["regret"] == pytest.approx(still - reward, abs=1e-5)
        total.append(reward)
    assert 0 < np.mean(total) < 1


@pytest.mark.parametrize("horizon", [1, 3, 6])  # the last has too many paths: all regret comes at the end
def test_regrets_add_up_to_what_the_oracle_would_have_had(horizon: int) -> None:
    env = gym.make(IDS[2], horizon=horizon).unwrapped
    deferred = 6 ** (horizon - 1) > episodes.REGRET_PATHS
    assert deferred == (horizon == 6)
    rng = np.random.default_rng(0)
    early = 0.0
    for seed in range(30):
        env.reset(seed=seed)
        regrets, over, reward = [], False, 0.0
        while not over:
            action = some_actions(rng, env.action_masks()[None])[0]
            _, reward, over, _, info = env.step(int(action))
            if deferred and not over:  # not known yet, and not claimed
                assert "error" in info and "regret" not in info and "optimal" not in info
                continue
            regrets.append(info["regret"])
            assert info["regret"] >= 0
            assert info["optimal"] is (info["regret"] <= OPTIMAL_REGRET)
        assert sum(regrets) == pytest.approx(1 - reward, abs=1e-6)
        early += sum(regrets[:-1])
    assert (early > 0) == (horizon == 3)


def test_the_oracle_and_the_random_agent_earn_what_the_task_says() -> None:
    for env_id in IDS:
        vector = gym.make_vec(env_id, num_envs=4096)
        vector.reset(seed=0)
        rng, returns = np.random.default_rng(0), np.zeros(4096)
        for _ in range(vector.task.horizon):
            masks = vector.action_masks() if vector.task.mask_actions else np.ones((4096, vector.single_action_space.n))
            returns += vector.step((rng.random(masks.shape) * masks).argmax(-1))[1]
        if vector.task.horizon == 1:
            assert returns.mean() == pytest.approx(vector.task.expected_rewards()["random"], abs=0.02)
            assert vector.task.score(returns.mean()) == pytest.approx(0.0, abs=0.05)
    vector = gym.make_vec(IDS[0], num_envs=64)
    _, infos = vector.reset(seed=0)
    for _ in range(5):  # the oracle, from the targets
        choices = vector._episodes.choices
        distance = np.abs(choices.values - infos["target"][:, None]) + 9 * (choices.available == 0)
        _, rewards, _, _, infos = vector.step(distance.argmin(-1))
        assert (rewards == 1).all()
        assert infos["final_info"]["optimal"].all()


def test_reward_noise_hits_the_final_reward_only() -> None:
    vector = gym.make_vec(IDS[2], num_envs=2000, reward_noise=0.25)
    vector.reset(seed=0)
    stay = np.zeros(2000, int)
    for _ in range(2):
        assert (vector.step(stay)[1] == 0).all()
    _, rewards, _, _, infos = vector.step(stay)  # three negations: -x
    clean = np.exp(-infos["final_info"]["error"])
    noisy = ~np.isclose(rewards, clean, atol=1e-6)
    assert noisy.mean() == pytest.approx(0.25, abs=0.03)
    assert rewards[noisy].mean() == pytest.approx(0.5, abs=0.05)
    # Regret is what the choice cost, whatever the noise said.
    assert infos["final_info"]["regret"].max() <= 1


def test_sparse_rewards_are_zero_or_one() -> None:
    vector = gym.make_vec(IDS[1], num_envs=500, reward="sparse")
    vector.reset(seed=0)
    _, rewards, _, _, infos = vector.step(np.full(500, 8))
    assert set(rewards.tolist()) == {0.0, 1.0}
    np.testing.assert_array_equal(infos["final_info"]["optimal"], rewards == 1)


CATALOGUE = list(opselect_envs.operations.UNARY)
HOLES = ["neg", "inv", "log", "sqrt", "tan", "acosh"]


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        (IDS[0], {}),
        (IDS[0], {"operations": CATALOGUE, "value_limit": 1e6, "low": -30.0, "high": 100.0, "rule": 3}),
        (IDS[1], {"operations": CATALOGUE, "value_limit": 5.0, "reward": "sparse"}),
        (IDS[1], {"operations": ["sqrt", "neg", "exp"], "low": 0.0, "high": 85.0, "value_limit": 1e30}),
        (IDS[2], {}),
        (IDS[2], {"horizon": 2, "operations": CATALOGUE, "value_limit": 1e6}),
        (IDS[2], {"horizon": 4, "operations": HOLES, "value_limit": 5.0}),
        (IDS[2], {"horizon": 3, "operations": [*HOLES, "exp", "cube"], "value_limit": 1e30}),
    ],
)
def test_any_action_at_any_reachable_state_stays_finite_and_in_bounds(env_id: str, kwargs: dict[str, Any]) -> None:
    """All K**T sequences of operations, from inputs on a fine grid and at the edges: 0, the borders, the last floats.

    The environment plays as always; only what its random streams give it is chosen.
    """
    task = gym.make(env_id, **kwargs).unwrapped.task
    size = len(task.ops)
    paths = np.array(list(itertools.product(range(size), repeat=task.horizon)))  # [K**T, T]
    zero = np.float32(-task.low / (task.high - task.low))
    edges = (task.edges - np.float32(task.low)) / np.float32(task.high - task.low)
    special = np.concatenate([edges, [0.0, zero, 2.0**-24, 2.0**-12]]).astype(np.float32)
    special = np.concatenate([special, np.nextafter(special, 0), np.nextafter(special, 1)])
    grid = np.linspace(0, 1, max(5, 20_000 // len(paths)), dtype=np.float32)
    draws = np.unique(np.clip(np.concatenate([special, grid]), 0, np.float32(1 - 2.0**-24)))
    uniforms = np.random.default_rng(0).random((len(draws), task.uniforms), dtype=np.float32)
    uniforms[:, 0] = draws
    uniforms[::7, 1:] = 0.0  # which operations lead to the target: also the first and the last available ones
    uniforms[3::7, 1:] = np.float32(1 - 2.0**-24)

    starts, picks = np.repeat(uniforms, len(paths), 0), np.tile(paths, (len(draws), 1))  # [B, ...]
    vector = gym.make_vec(env_id, num_envs=len(starts), **kwargs)
    assert isinstance(vector, OpSelectVectorEnv)
    vector._streams.draw = lambda count, rows=None: starts[:, :count] if rows is None else starts[rows, :count]
    obs, infos = vector.reset()
    gone_wrong = 0
    for decision in range(task.horizon):
        assert obs in vector.observation_space
        require_sane(infos, vector.action_masks())
        actions = picks[:, decision]
        allowed = infos["action_mask"][np.arange(len(actions)), actions] == 1
        obs, rewards, terminated, truncated, infos = vector.step(actions)
        assert ((rewards >= 0) & (rewards <= 1)).all()
        assert (rewards[~allowed] == 0).all()
        assert terminated[~allowed].all()
        assert not truncated.any()
        gone_wrong += int((~allowed).sum())
        if terminated.any():
            require_sane(infos["final_info"])
            final = np.stack([*infos["final_obs"][terminated]])
            assert ((final >= -1) & (final <= 1)).all()  # false for NaN
            assert final.dtype == np.float32
    assert obs in vector.observation_space
    require_sane(infos, vector.action_masks())
    assert gone_wrong > 0


def require_sane(infos: dict[str, Any], masks: np.ndarray | None = None) -> None:
    """Numbers [B] are finite, regrets in [0, 1], and no mask [B, K] forbids everything."""
    for key, value in infos.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and key != "final_obs":
            assert np.isfinite(value).all(), key
    regret = infos.get("regret", np.zeros(1))
    assert ((regret >= 0) & (regret <= 1)).all()
    assert infos["action_mask"].dtype == np.int8
    assert infos["action_mask"][infos["_action_mask"]].any(-1).all()
    if masks is not None:
        np.testing.assert_array_equal(masks, infos["action_mask"])


def test_masks_are_truthful() -> None:
    env = gym.make(IDS[2]).unwrapped
    rng = np.random.default_rng(0)
    ends = 0
    for seed in range(60):
        _, info = env.reset(seed=seed)
        for t in range(3):
            np.testing.assert_array_equal(env.action_masks(), info["action_mask"])
            assert env.action_masks().dtype == bool
            mask, action = info["action_mask"], int(rng.integers(6))
            _, reward, terminated, _, info = env.step(action)
            assert terminated == (t == 2 or not mask[action])
            if terminated:
                assert reward == 0 or mask[action]
                assert info["action_mask"].all()
                ends += not mask[action]
                break
    assert ends > 5


# --- misuse -----------------------------------------------------------------------------------------------------------


def test_invalid_actions() -> None:
    env = gym.make(IDS[0]).unwrapped
    env.reset(seed=0)
    for action in (10, -1, 1.5, None, "sin", np.array([1, 2]), np.float32(2)):
        with pytest.raises(InvalidAction, match=r"action must be an integer in \[0, 9\], got "):
            env.step(action)
    for action in (3, np.int64(3), np.array(3), np.uint8(3)):
        env.reset(seed=0)
        env.step(action)
    vector = gym.make_vec(IDS[0], num_envs=3)
    vector.reset(seed=0)
    with pytest.raises(InvalidAction, match=r"actions\[1\] must be an integer in \[0, 9\], got 10"):
        vector.step(np.array([0, 10, -1]))
    with pytest.raises(InvalidAction, match=r"actions must be integers of shape \(3,\), got int64 of shape \(2,\)"):
        vector.step(np.array([0, 1]))
    with pytest.raises(InvalidAction, match=r"actions must be integers of shape \(3,\), got float64 of shape \(3,\)"):
        vector.step(np.zeros(3))
    vector.step([0, 1, 2])


def test_stepping_what_is_not_running() -> None:
    env, vector = gym.make(IDS[0]).unwrapped, gym.make_vec(IDS[0], num_envs=3, autoreset_mode="Disabled")
    for call in (lambda: env.step(0), env.action_masks, lambda: vector.step([0, 0, 0]), vector.action_masks):
        with pytest.raises(ResetNeeded, match=r"before reset\(\)"):
            call()
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(ResetNeeded, match="after the end of an episode"):
        env.step(0)
    vector.reset(seed=0)
    vector.step([0, 0, 0])
    with pytest.raises(ResetNeeded, match=r"rows \[0, 1, 2\] are over and autoreset_mode is Disabled"):
        vector.step([0, 0, 0])


def test_bad_resets() -> None:
    vector = gym.make_vec(IDS[0], num_envs=3)
    with pytest.raises(ResetNeeded, match="first reset"):
        vector.reset(options={"reset_mask": np.array([True, False, False])})
    with pytest.raises(ValueError, match="seed must hold num_envs=3 seeds, got 2"):
        vector.reset(seed=[1, 2])
    vector.reset(seed=0)
    for mask in ([True] * 3, np.ones(2, bool), np.ones(3), np.zeros(3, bool)):
        with pytest.raises(ValueError, match=r"options\['reset_mask'\] must be a bool array of shape \(3,\)"):
            vector.reset(options={"reset_mask": mask})


# --- random streams ---------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 5),
    steps=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 31)), min_size=1, max_size=80),
    seed=st.integers(0, 1000),
)
def test_streams_are_the_generators_own(rows: int, steps: list[tuple[int, int]], seed: int) -> None:
    streams = Streams(rows, 7)
    streams.block = 11  # so that blocks run out often
    streams._common = 11
    streams._at[:] = 11
    streams.seed([seed + i for i in range(rows)], np.arange(rows))
    generators = [seeding.np_random(seed + i)[0] for i in range(rows)]
    for count, bits in steps:
        some = np.flatnonzero([bits >> i & 1 for i in range(rows)])
        if len(some) in (0, rows):
            expected = [g.random(count, dtype=np.float32) for g in generators]
            np.testing.assert_array_equal(streams.draw(count), expected)
        elif bits == 5:  # reseeding some
            streams.seed([9] * rows, some)
            for i in some:
                generators[i] = seeding.np_random(9)[0]
        else:
            expected = [generators[i].random(count, dtype=np.float32) for i in some]
            np.testing.assert_array_equal(streams.draw(count, some), expected)


def test_seeds() -> None:
    """What `check_vector_env` does not ask for: the property, NumPy's integers, rows that differ without a seed."""
    vector = gym.make_vec(IDS[0], num_envs=3)
    first, _ = vector.reset(seed=7)
    assert vector.np_random_seed == (7, 8, 9)
    second, _ = vector.reset()
    assert vector.np_random_seed == (7, 8, 9)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(vector.reset(seed=np.int64(7))[0], first)
    np.testing.assert_array_equal(vector.reset(seed=[None, np.int64(8), None])[0][1], first[1])
    unseeded = [gym.make_vec(IDS[0], num_envs=2).reset()[0] for _ in range(2)]
    assert len({row.tobytes() for obs in unseeded for row in obs}) == 4


@pytest.mark.parametrize("seed", ["123", 1.5, True, [1, 2.5, 3], [4, 5, -1], [1, 2]])
def test_a_bad_seed_is_refused_and_nothing_seeded(seed: Any) -> None:
    vector = gym.make_vec(IDS[0], num_envs=3)
    vector.reset(seed=7)
    following = gym.make_vec(IDS[0], num_envs=3)
    following.reset(seed=7)
    with pytest.raises((gym.error.Error, ValueError), match="seed must "):
        vector.reset(seed=seed)
    assert vector.np_random_seed == (7, 8, 9)
    np.testing.assert_array_equal(vector.reset()[0], following.reset()[0])


def test_actions_of_rows_that_are_over_do_not_matter() -> None:
    vector = gym.make_vec(IDS[0], num_envs=2, autoreset_mode="NextStep")
    vector.reset(seed=0)
    vector.step(np.array([0, 1]))
    _, rewards, over, _, _ = vector.step(np.array([-1, 99]))  # both begin anew
    assert rewards.tolist() == [0.0, 0.0] and not over.any()
    with pytest.raises(InvalidAction, match=r"actions\[0\] must be an integer in \[0, 9\], got -1"):
        vector.step(np.array([-1, 0]))


def test_a_render_mode_set_in_mid_episode_holds_from_the_next_one_on() -> None:
    vector, env = gym.make_vec(IDS[2], num_envs=1).unwrapped, gym.make(IDS[2]).unwrapped
    for one in (vector, env):
        one.reset(seed=0)
        one.render_mode = "ansi"
        one.step([0] if one is vector else 0)
    assert vector.render() == ("not started",) and env.render() == "not started"
    vector.reset(seed=0), env.reset(seed=0)
    vector.step(np.array([0])), env.step(0)
    assert vector.render() == (env.render(),) and "neg -> " in env.render()


@pytest.mark.parametrize("operations", [4, 100, 600])  # all ends worked out, in one or several blocks; none
def test_what_is_worked_out_beforehand_is_what_happens(operations: int) -> None:
    names = [f"shift({c:g})" for c in 0.25 * np.arange(operations)]
    env = gym.make(IDS[0], operations=names, value_limit=200.0).unwrapped
    task, rng = env.task, np.random.default_rng(0)
    for episode in range(150):
        observation, info = env.reset(seed=3 if episode == 0 else None)
        x = 3.0 * float(observation[0])
        pick = int(rng.integers(operations))
        *_, after = env.step(pick)
        assert after["error"] == pytest.approx(abs(x + 0.25 * pick - info["target"]), abs=1e-4)
    assert (len(env._forecast.levels) > 0) == (operations < 512) and len(task.ops) == operations


# --- the vector environment against SyncVectorEnv ---------------------------------------------------------------------


@pytest.mark.parametrize(("env_id", "kwargs"), VARIANTS)
def test_row_i_is_the_single_environment_seeded_seed_plus_i(env_id: str, kwargs: dict[str, Any]) -> None:
    """Bit for bit, in all autoreset modes: steps, infos, ends, seeds, fresh arrays, pickles, specs and pictures.

    No ulp is needed with NumPy 1.26 and 2.4 under AVX-512, AVX2 or SSE (set `NPY_DISABLE_CPU_FEATURES` to try): NumPy's
    loops that are used here round each number of an array as they round one alone.
    """
    assert check_vector_env(f"opselect_envs:{env_id}", kwargs=kwargs, num_envs=5, steps=40, seed=11) == []


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("num_envs", [1, 2, 17, 40])  # around the lengths of vector registers
def test_any_number_of_rows(env_id: str, num_envs: int) -> None:
    operations = list(opselect_envs.operations.UNARY)
    options = {"checks": ["steps", "seeds"], "steps": 6, "modes": ["SameStep"], "seed": num_envs}
    check_vector_env(env_id, kwargs={"operations": operations}, num_envs=num_envs, **options)


@pytest.mark.parametrize("name", [name for name in opselect_envs.CHALLENGES if not name.endswith("-1024")])
def test_the_challenges_of_the_suite(name: str) -> None:
    options = {"checks": ["steps", "fresh"], "steps": 12, "num_envs": 3, "modes": ["SameStep"]}
    check_vector_env(opselect_envs.CHALLENGES[name].id, **options)


def test_spawned_workers() -> None:
    check_vector_env("opselect_envs:opselect/OpChain-v0", checks=[], spawn=True)


@pytest.mark.parametrize("mode", MODES)
def test_the_masks_of_the_rows(mode: AutoresetMode) -> None:
    """`action_masks` is not of gymnasium's API; what infos say of masks is compared elsewhere."""
    rows, rng = 7, np.random.default_rng(0)
    ours, sync = both(IDS[2], {}, mode, rows)
    ours.reset(seed=11), sync.reset(seed=11)
    over, some_over = np.zeros(rows, bool), 0
    for _ in range(40):
        if mode == AutoresetMode.DISABLED and over.any():
            for env in (ours, sync):
                env.reset(options={"reset_mask": over.copy()})
        masks = ours.action_masks()
        np.testing.assert_array_equal(masks, np.stack(sync.call("action_masks")))
        actions = some_actions(rng, masks)
        over = np.logical_or(*ours.step(actions)[2:4])
        sync.step(actions)
        some_over += 0 < over.sum() < rows
    assert some_over > 5


def both(
    env_id: str, kwargs: dict[str, Any], mode: AutoresetMode, rows: int
) -> tuple[OpSelectVectorEnv, SyncVectorEnv]:
    ours = gym.make_vec(env_id, num_envs=rows, autoreset_mode=mode.value, **kwargs)
    assert isinstance(ours, OpSelectVectorEnv)
    return ours, SyncVectorEnv([functools.partial(gym.make, env_id, **kwargs)] * rows, autoreset_mode=mode)


def test_the_dense_final_observations_are_those_of_the_rows() -> None:
    ours, sync = both(IDS[1], {}, AutoresetMode.SAME_STEP, 5)
    ours.reset(seed=0), sync.reset(seed=0)
    mine, theirs = (env.step(np.arange(5))[4] for env in (ours, sync))
    assert mine["final_obs"].dtype == np.float32
    assert theirs["final_obs"].dtype == object
    np.testing.assert_array_equal(mine["final_obs"], np.stack(theirs["final_obs"]))


def test_truncation_is_ours_to_do() -> None:
    vector = gym.make_vec(IDS[2], num_envs=4, max_episode_steps=2, horizon=4, autoreset_mode="Disabled")
    vector.reset(seed=0)
    stay = np.zeros(4, int)  # neg is always available
    assert not vector.step(stay)[3].any()
    obs, rewards, terminated, truncated, infos = vector.step(stay)
    assert truncated.all()
    assert not terminated.any()
    assert (rewards == 0).all()
    assert obs[:, -4:].tolist() == [[0, 0, 1, 0]] * 4  # the third decision would follow
    assert not infos["action_mask"].all()  # and what would be available is told
    assert gym.make_vec(IDS[2], num_envs=1, max_episode_steps=-1)._limit == math.inf
    both_at_once = gym.make_vec(IDS[2], num_envs=1, max_episode_steps=3)
    both_at_once.reset(seed=0)
    for _ in range(2):
        both_at_once.step([0])
    _, _, terminated, truncated, _ = both_at_once.step([0])
    assert terminated.all()
    assert truncated.all()


# --- rendering --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", IDS)
def test_text(env_id: str) -> None:
    env = gym.make(env_id, render_mode="ansi")
    env.reset(seed=1)
    text = env.render()
    assert isinstance(text, str)
    assert text.startswith("x = ")
    name = env.unwrapped.task.names[0]
    _, _, _, _, info = env.step(0)
    assert f"| {name} -> " in env.render()
    assert f"error {info['error']:.5g}" in env.render()
    env.reset(seed=1)
    assert env.render() == text


def test_text_of_an_unavailable_pick() -> None:
    env = gym.make(IDS[0], render_mode="ansi", operations=["neg", "sqrt"], low=-2.0, high=-1.0, rule=["neg"])
    env.reset(seed=1)
    env.step(1)
    assert "sqrt is not available at -1." in env.render()


@pytest.mark.parametrize(
    ("env_id", "kwargs"), [*VARIANTS, (IDS[0], {"operations": list(opselect_envs.operations.UNARY)})]
)
def test_pictures(env_id: str, kwargs: dict[str, Any]) -> None:
    env = gym.make(env_id, render_mode="rgb_array", **kwargs)
    env.reset(seed=2)
    before = env.render()
    assert before.dtype == np.uint8
    assert before.shape == (360, 560, 3)
    before[...] = 0  # a copy
    before = env.render()
    assert len(np.unique(before.reshape(-1, 3), axis=0)) > len(env.unwrapped.task.names[:16])
    env.step(0)
    after = env.render()
    assert (before != after).any()


def test_a_hit_is_green_and_a_miss_red() -> None:
    green, red = (20, 150, 60), (215, 40, 40)
    for pick, colour, other in ((0, green, red), (1, red, green)):
        env = gym.make(IDS[0], render_mode="rgb_array", operations=["neg", "sin"], rule=["neg"])
        env.reset(seed=2)
        env.step(pick)
        image = env.render().reshape(-1, 3)
        assert (image == colour).all(-1).sum() > 60
        assert not (image == other).all(-1).any()


# --- working ahead ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("opselect/ScalarOp-v0", {}),
        ("opselect/ScalarOp-v0", {"reward_noise": 0.5, "distractors": 2}),
        ("opselect/ScalarOp-v0", {"rule_after": 3, "shift_after": 9}),
        ("opselect/OpChain-v0", {"reward_noise": 0.5}),
        ("opselect-suite/operations-64-v0", {"reward_noise": 0.5}),
    ],
)
def test_an_abandoned_episode_does_not_change_what_follows(env_id: str, kwargs: dict[str, Any]) -> None:
    """The single environment works episodes out in blocks; its stream is what draws one by one would be."""
    env = gym.make(env_id, **kwargs).unwrapped
    task, rng = env.task, np.random.default_rng(0)
    stream = seeding.np_random(7)[0]
    observation, info = env.reset(seed=7)
    noisy = 0
    for episode in range(60):
        draws = stream.random((1, task.uniforms), dtype=np.float32)
        now = task.at(episode)
        state = reset(np, now, now.data(), draws)
        np.testing.assert_array_equal(observation, observe(np, now, now.data(), state, 0)[0])
        assert info["target"] == float(state.target[0])
        over = rng.random() < 0.3  # left without a step
        while not over:
            _, reward, over, _, info = env.step(int(rng.integers(len(task.ops))))
            if over and task.reward_noise:
                noise = stream.random(2, dtype=np.float32)
                if noise[0] < task.reward_noise:
                    assert reward == float(noise[1])
                    noisy += 1
        observation, info = env.reset()
    assert noisy > 8 or not task.reward_noise


def test_a_generator_of_ones_own() -> None:
    env = gym.make("opselect/ScalarOp-v0").unwrapped
    env.reset(seed=0)
    env.np_random = np.random.default_rng(5)
    expected = -3 + 6 * float(np.random.default_rng(5).random(dtype=np.float32))
    observation, _ = env.reset()
    assert observation[0] == pytest.approx(expected / 3, abs=1e-6)
