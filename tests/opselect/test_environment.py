"""REINFORCE on gymnasium environments: rollouts in every autoreset mode, returns, bootstrapping, and learning."""

from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from opselect._tensorflow import keras
from opselect.estimators import LeaveOneOut
from opselect.learners.base import TrainingDivergedError
from opselect.learners.environment import EnvironmentSettings, _seed, _Trainer, train_environment
from opselect.learners.episodes import (
    Batch,
    EnvironmentMismatchError,
    _masks,
    actor,
    play_episodes,
    returns_to_go,
)
from opselect.policy import InvalidLogitsError


class Corridor(gymnasium.Env):
    """Walks right with action 4; ends at `length` with reward 10, is cut after `limit` steps; reward 1 a step."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, length=4, limit=6):
        self.length, self.limit = length, limit
        self.observation_space = gymnasium.spaces.Box(-1.0, 100.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2, start=3)

    def observe(self):
        return np.array([self.place, self.count], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.count = 0, 0
        return self.observe(), {}

    def step(self, action):
        assert action in (3, 4)
        self.place += int(action == 4)
        self.count += 1
        ended = self.place == self.length
        return self.observe(), 10.0 if ended else 1.0, ended, self.count == self.limit, {}


def vector(mode, lengths=(2, 4, 9)):
    return SyncVectorEnv([lambda n=n: Corridor(n) for n in lengths], autoreset_mode=mode)


def always_right(observations, masks, seed):
    return np.ones(len(observations), int)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_one_episode_per_row_in_every_autoreset_mode(mode):
    batch = play_episodes(vector(mode), always_right, seed=0, longest=100)
    assert batch.alive.sum(0).tolist() == [2, 4, 6]
    assert batch.rewards.sum(0).tolist() == [1 + 10, 3 + 10, 6]
    assert batch.truncated.tolist() == [False, False, True]
    # The final observation is the episode's own, not the next one's first.
    assert batch.final.tolist() == [[2, 2], [4, 4], [6, 6]]
    assert batch.observations[3, 1].tolist() == [3, 3]
    assert batch.masks.shape == (6, 3, 2)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_an_episode_without_end_is_cut_as_a_truncation(mode):
    batch = play_episodes(vector(mode), lambda o, m, s: np.zeros(len(o), int), seed=0, longest=3)
    assert batch.truncated.all()
    assert batch.alive.sum(0).tolist() == [3, 3, 3]
    assert batch.final.tolist() == [[0, 3]] * 3


def test_iterations_do_not_replay_each_others_episodes():
    """Vector environments seed row i with seed + i, so consecutive seeds would share all rows but one."""
    envs = gymnasium.make_vec("opselect_envs:opselect/ScalarOp-v0", num_envs=16)
    starts = []
    for iteration in range(20):
        observations, _ = envs.reset(seed=_seed(3, iteration, 0))
        starts += observations[:, 0].tolist()
    for index in range(5):
        observations, _ = envs.reset(seed=_seed(3, index, 1))
        starts += observations[:, 0].tolist()
    assert len(set(starts)) == 25 * 16


def test_undiscounted_returns_keep_their_size():
    from opselect.estimators import Reinforce

    agent = trainer(Reinforce(), discount=1.0, longest=50)
    batch = play_episodes(agent.envs, always_right, seed=0, longest=50)
    np.testing.assert_allclose(agent._losses(batch)[0], [-11 / 50, -13 / 50, -6 / 50])


def test_rows_without_a_mask_may_do_anything():
    infos = {"action_mask": np.array([[1, 0], [0, 0]], np.int8), "_action_mask": np.array([True, False])}
    assert _masks(infos, 2, 2).tolist() == [[True, False], [True, True]]
    assert _masks({}, 1, 2).tolist() == [[True, True]]


def test_invalid_logits_are_refused_while_playing():
    act = actor(lambda o: o * np.float32(np.nan), greedy=False)
    with pytest.raises(InvalidLogitsError, match="logits hold nan"):
        act(np.ones((3, 2), np.float32), np.ones((3, 2), bool), 0)
    with pytest.raises(InvalidLogitsError, match="mask leaves no operation"):
        actor(lambda o: o, greedy=True)(np.ones((1, 2), np.float32), np.zeros((1, 2), bool), 0)


def test_a_budget_smaller_than_an_iteration_still_takes_a_forward_step():
    settings = EnvironmentSettings(steps=5, rows=2, hidden=(4,))
    trained = train_environment("CartPole-v1", "reinforce-self-critical", seed=0, settings=settings)
    assert len(trained.history) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 0}, "rows must be an integer >= 1, got 0"),
        ({"discount": 1.5}, r"discount must be in \[0, 1\], got 1.5"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EnvironmentSettings(**settings)


def test_returns_to_go_by_hand():
    rewards = np.array([[1.0, 2.0], [3.0, 0.0], [5.0, 0.0]])
    after = np.array([[0.0, 7.0], [0.0, 0.0], [0.0, 0.0]])  # the second episode was truncated after one step
    wanted = [[1 + 0.5 * 3 + 0.25 * 5, 2 + 0.5 * 7], [3 + 0.5 * 5, 0.0], [5.0, 0.0]]
    np.testing.assert_allclose(returns_to_go(rewards, 0.5, after), wanted)


def trainer(name_estimator, **settings):
    return _Trainer(
        "corridor", vector(AutoresetMode.SAME_STEP), 2, name_estimator, EnvironmentSettings(**settings), 0, 1000
    )


def test_only_a_truncated_episode_is_bootstrapped_and_only_with_a_value():
    from opselect.estimators import Reinforce, ValueReinforce

    batch = play_episodes(vector(AutoresetMode.SAME_STEP), always_right, seed=0, longest=100)
    plain = trainer(Reinforce(), discount=0.9)._losses(batch)
    valued = trainer(ValueReinforce(), discount=0.9)
    kernel, bias = valued.critic.layers[-1].kernel, valued.critic.layers[-1].bias
    kernel.assign(kernel * 0)
    bias.assign(bias * 0 - 0.4)  # predicts the loss -0.4 everywhere: a value of 0.4 / (1 - 0.9) = 4
    losses = valued._losses(batch)
    np.testing.assert_allclose(losses[:, :2], plain[:, :2])
    np.testing.assert_allclose(plain[5, 2], -0.1 * 1.0)
    np.testing.assert_allclose(losses[5, 2], -0.1 * (1.0 + 0.9 * 4.0), rtol=1e-6)
    np.testing.assert_allclose(losses[0, 2] - plain[0, 2], -0.1 * 0.9**6 * 4.0, rtol=1e-5)


def test_padding_after_an_episodes_end_has_no_say():
    """The leave-one-out gradient with padded rows equals the one computed without any padding, by hand."""
    agent = trainer(LeaveOneOut(2), entropy=0.0, hidden=())
    batch = play_episodes(vector(AutoresetMode.SAME_STEP), always_right, seed=0, longest=100)
    kernel = agent.network.layers[-1].kernel
    kernel.assign(np.array([[[0.3, -0.2], [0.1, 0.4]]], np.float32))
    captured = {}
    agent.optimizer.apply = lambda gradients: captured.setdefault("gradient", gradients)
    agent._update = agent._update_step  # eagerly
    agent._learn(batch, None, 0.0)
    losses, wanted = agent._losses(batch), np.zeros((2, 2))
    for row in range(3):
        for t in range(int(batch.alive[:, row].sum())):
            others = [losses[t, j] for j in range(3) if j != row]  # 0 once over
            o = batch.observations[t, row].astype(np.float64)
            logits = o @ np.array([[0.3, -0.2], [0.1, 0.4]])
            p = np.exp(logits) / np.exp(logits).sum()
            score = np.eye(2)[batch.actions[t, row]] - p
            wanted += (losses[t, row] - np.mean(others)) * np.outer(o, score)
    np.testing.assert_allclose(captured["gradient"][0].numpy()[0], wanted / batch.alive.sum(), rtol=1e-4)
    assert np.abs(wanted).max() > 0.1


@pytest.mark.parametrize(
    "learner", ["reinforce", "reinforce-ema", "reinforce-value", "ppo", "reinforce-self-critical", "reinforce-rloo"]
)
def test_learners_improve_on_cartpole(learner):
    settings = EnvironmentSettings(steps=12_000, rows=8, hidden=(32,))
    trained = train_environment("CartPole-v1", learner, seed=1, settings=settings)
    first = np.mean([r for _, r in trained.history[:3]])
    last = np.mean([r for _, r in trained.history[-5:]])
    assert first < 40.0
    assert last > 1.8 * first
    assert trained.history[-1][0] >= 12_000
    assert isinstance(trained.policy, keras.Model)


def test_a_loss_that_is_not_finite_is_reported():
    agent = trainer(LeaveOneOut(2), hidden=())
    agent.network.layers[-1].kernel.assign(np.full((1, 2, 2), np.nan, np.float32))
    batch = play_episodes(vector(AutoresetMode.SAME_STEP), always_right, seed=0, longest=100)
    with pytest.raises(TrainingDivergedError, match="corridor: the loss of seed 0 was not finite"):
        agent._learn(batch, None, 0.0)


def test_training_is_reproducible():
    settings = EnvironmentSettings(steps=1000, rows=4, hidden=(8,))
    histories = [
        train_environment("CartPole-v1", "reinforce-value", seed=s, settings=settings).history for s in (3, 3, 4)
    ]
    assert histories[0] == histories[1]
    assert histories[0] != histories[2]


def test_masks_of_the_packages_own_environments_are_kept():
    settings = EnvironmentSettings(steps=600, rows=8, hidden=(8,))
    trained = train_environment("opselect_envs:opselect/OpChain-v0", "reinforce-rloo", seed=0, settings=settings)
    envs = gymnasium.make_vec("opselect_envs:opselect/OpChain-v0", num_envs=16)
    rng = np.random.default_rng(0)

    def legal(observations, masks, seed):
        assert masks.any(1).all()
        return np.array([rng.choice(np.flatnonzero(m)) for m in masks])

    batch = play_episodes(envs, legal, seed=0, longest=10)
    assert not batch.masks.all()
    assert batch.alive.sum(0).tolist() == [3] * 16  # an unavailable operation would have ended an episode
    assert 0.0 < trained.evaluate(episodes=50) <= 1.0


@pytest.mark.parametrize(
    ("env", "learner", "message"),
    [
        ("CartPole-v7", "reinforce", "CartPole-v1"),
        ("Pendulum-v1", "reinforce", r"'Pendulum-v1' has the action space Box.*only Discrete"),
        ("CartPole-v1", "soft-mixture", "'soft-mixture' can't learn.*nearest that can is 'reinforce"),
        ("CartPole-v1", "exact", "'exact' can't learn"),
        ("no_such_package:Some-v0", "reinforce", "can't make 'no_such_package:Some-v0'"),
    ],
)
def test_what_cannot_be_trained_is_refused(env, learner, message):
    with pytest.raises(EnvironmentMismatchError, match=message):
        train_environment(env, learner)


def test_batches_are_plain_arrays():
    batch = play_episodes(vector(AutoresetMode.NEXT_STEP), always_right, seed=0, longest=100)
    assert isinstance(batch, Batch)
    assert {f: getattr(batch, f).dtype for f in ("rewards", "alive")} == {"rewards": np.float64, "alive": np.bool_}
    assert dataclasses.asdict(EnvironmentSettings())["discount"] == 0.99


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["reinforce-value", "ppo"])
def test_cartpole_is_solved(learner):
    assert train_environment("CartPole-v1", learner, seed=0).evaluate(100, seed=10_000) >= 475.0
