"""The capability suite: its challenges, their exact references, and the scoring of any agent."""

from __future__ import annotations

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from opselect_envs.challenges import AXES, CHALLENGES
from opselect_envs.dynamics import options, reward
from opselect_envs.lookup import task_of
from opselect_envs.references import best_reward, fixed_rewards
from opselect_envs.suite import score, score_rewards
from opselect_envs.tasks import InvalidTaskError

NAMES = list(CHALLENGES)


def test_every_axis_has_challenges_and_one_for_a_quick_look():
    assert {c.axis for c in CHALLENGES.values()} == set(AXES)
    for axis in AXES:
        some = [c for c in CHALLENGES.values() if c.axis == axis]
        assert sum(c.quick for c in some) == 1
        assert [c.level for c in some] == sorted({c.level for c in some})
    assert (min(len(c.task.ops) for c in CHALLENGES.values()), max(len(c.task.ops) for c in CHALLENGES.values())) == (
        4,
        1024,
    )


@pytest.mark.parametrize("name", NAMES)
def test_gymnasiums_checker_accepts_every_id(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(f"opselect_envs:{CHALLENGES[name].id}").unwrapped)


@pytest.mark.parametrize("name", NAMES)
def test_the_references_are_in_order(name):
    expected = CHALLENGES[name].task.expected_rewards(noise=False)
    assert 0 < expected["random"] < expected["best_fixed"] < expected["oracle"] <= 1


@pytest.mark.parametrize("name", ["operations-16", "ties-8", "blending-40", "partial-8", "basic-4"])
def test_references_of_one_decision_by_plain_averages(name):
    """Over a fine grid of x, with the operations evaluated one by one."""
    task = CHALLENGES[name].task
    data = task.data()
    x = np.linspace(task.low, task.high, 200_001).astype(np.float32)[1::2]
    start = task.held_out(4)._replace(
        value=x, target=_targets(task, x), alive=np.ones_like(x), nuisance=np.ones_like(x)
    )
    choices = options(np, task, data, x)
    rewards = []
    for k, op in enumerate(task.ops):
        value, available = op(x), choices.available[:, k]
        rewards.append(available * np.exp(-np.abs(np.where(available > 0, value, 0) - start.target)))
    rewards = np.array(rewards, np.float64)
    expected = task.expected_rewards(noise=False)
    assert expected["oracle"] == pytest.approx(rewards.max(0).mean(), abs=2e-3)
    assert expected["random"] == pytest.approx(rewards.mean(), abs=2e-3)
    assert expected["best_fixed"] == pytest.approx(rewards.mean(1).max(), abs=2e-3)


def _targets(task, x):
    """What the rule's operation makes of x, a share of the way to what the next region's would."""
    regions = np.clip(np.searchsorted(task.edges, x, side="right") - 1, 0, task.regions - 1)
    rule = task.rule_indices()
    first, second = (np.array([task.ops[k](x) for k in rolled]) for rolled in (rule, np.roll(rule, -1)))
    rows = np.arange(len(x))
    a, b = first[regions, rows], second[regions, rows]
    return (a + task.blend * (b - a)).astype(np.float32)


def test_always_the_same_operation_in_a_chain_by_brute_force():
    task = CHALLENGES["horizon-3"].task
    data, start = task.data(), task.held_out(512)
    by_hand = []
    for op in task.ops:
        value, alive = start.value.astype(np.float32), np.ones(512, bool)
        for _ in range(3):
            after = op(value)
            # Outside the domain an operation gives its fill value; square, exp and inv may pass the limit.
            fine = op.domain(np, value) & (np.abs(after) <= task.value_limit)
            alive, value = alive & fine, np.where(fine, after, value)
        by_hand.append(np.mean(alive * np.exp(-np.abs(value - start.target)), dtype=np.float64))
    np.testing.assert_allclose(fixed_rewards(task, 512), by_hand, rtol=1e-5)
    assert max(by_hand) > 0.3
    assert reward(np, task, data, start).mean() < 1  # the start itself is no answer


def test_the_decoy_is_second_best_everywhere():
    for name in ("ties-4", "ties-8", "ties-16"):
        task = CHALLENGES[name].task
        x = np.linspace(-2, 2, 2001).astype(np.float32)
        values = options(np, task, task.data(), x).values
        errors = np.abs(values - _targets(task, x)[:, None])
        decoy = errors[:, -1]
        better = (errors[:, :-1] < decoy[:, None] - 1e-6).sum(1)
        assert (better <= 1).all() and (better == 1).mean() > 0.9
        assert np.abs(errors.min(1)).max() < 1e-6


# --- scoring ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in NAMES if CHALLENGES[n].task.horizon == 1])
def test_an_oracle_scores_one(name):
    """It reads x off the first feature, and looks at what each operation would earn."""
    task = CHALLENGES[name].task
    task = task.at(task.shift_after)
    start = task.held_out(512)

    def oracle(observations, masks):
        choices = options(np, task, task.data(), start.value)
        return np.where(choices.available > 0, -np.abs(choices.values - start.target[:, None]), -np.inf).argmax(1)

    found = score(CHALLENGES[name].id, oracle, episodes=512)
    assert found.score == pytest.approx(1.0, abs=2e-2 if task.blend else 1e-5)
    assert found.episodes == 512 and found.low <= found.score <= found.high


@pytest.mark.parametrize("name", ["basic-4", "horizon-3", "sparse-2", "operations-64", "noise-98"])
def test_a_random_agent_scores_zero_and_the_best_fixed_one_as_told(name):
    challenge = CHALLENGES[name]
    rng = np.random.default_rng(0)

    def random(observations, masks):
        weights = masks if challenge.task.mask_actions else np.ones_like(masks)
        return (rng.random(masks.shape) * weights).argmax(1)

    found = score(challenge.id, random)
    assert found.low - 0.02 < 0 < found.high + 0.02
    fixed = [score(name, lambda o, m, k=k: np.full(len(o), k)).score for k in range(len(challenge.task.ops))]
    assert max(fixed) == pytest.approx(found.best_fixed, abs=1e-6)


def test_scores_of_a_gym_environment_agree():
    """The same policy, played in the environment with its noise, has the same score within its interval."""

    def policy(observations, masks):
        return np.where(observations[:, 0] < 0, 3, 1)

    challenge = CHALLENGES["noise-50"]
    envs = gym.make_vec(f"opselect_envs:{challenge.id}", num_envs=20_000)
    observations, infos = envs.reset(seed=1)
    recorded = envs.step(policy(observations, infos["action_mask"]))[1]
    played, exact = score_rewards(challenge.id, recorded), score(challenge.id, policy)
    assert played.low < exact.score < played.high
    assert abs(exact.score) > 0.05


def test_a_shifting_rule_is_scored_after_the_shift():
    task = CHALLENGES["shifting-4"].task
    before, after = task.at(0), task.at(task.shift_after)
    assert before.rule == task.rule == 0 and after.rule == task.rule_after == 1
    assert (before.rule_indices() != after.rule_indices()).all()
    start = after.held_out(256)
    choices = options(np, after, after.data(), start.value)
    right = np.abs(choices.values - start.target[:, None]).argmin(1)
    assert score("shifting-4", lambda o, m: right, episodes=256).score == pytest.approx(1.0)


@pytest.mark.parametrize("shift_after", [10_000, 1_500])
def test_recorded_episodes_are_scored_by_the_rule_of_their_time(shift_after):
    env = gym.make("opselect_envs:opselect-suite/shifting-4-v0", shift_after=shift_after)
    rng, random, right = np.random.default_rng(0), [], []
    task = env.unwrapped.task
    for recorded in (random, right):
        observation, _ = env.reset(seed=0)
        for episode in range(3000):
            pick = int(rng.integers(4))
            if recorded is right:  # what the rule of that episode says of x in [-3, 3], in one of four regions
                pick = int(task.at(episode).rule_indices()[min(int(2.0 * (1.0 + observation[0])), 3)])
            recorded.append(env.step(pick)[1])
            observation, _ = env.reset()
    numbers = {"episodes": np.arange(3000), "shift_after": shift_after}
    found = score_rewards("shifting-4", random, **numbers)
    assert found.low < 0 < found.high
    assert score_rewards(CHALLENGES["shifting-4"], right, **numbers).score > 0.99
    with pytest.raises(ValueError, match=r"episodes must be given, as the rule of 'shifting-4' shifts after 10000"):
        score_rewards("shifting-4", random)
    with pytest.raises(ValueError, match="episodes must be 3000 integers, one per reward"):
        score_rewards("shifting-4", random, episodes=[1, 2])


def test_mistakes_are_named():
    with pytest.raises(InvalidTaskError, match="did you mean 'opselect-suite/noise-90-v0'"):
        score("opselect-suite/nose-90-v0", lambda o, m: o)
    with pytest.raises(
        ValueError, match=r"policy must return 8 integers in \[0, 3\], got int64 of shape \(8,\) from 7 to 7"
    ):
        score("basic-4", lambda o, m: np.full(len(o), 7), episodes=8)
    with pytest.raises(ValueError, match=r"got float64 of shape \(8, 13\)"):
        score("basic-4", lambda o, m: o.astype(float), episodes=8)
    with pytest.raises(ValueError, match="episodes must be an integer >= 2, got 1"):
        score("basic-4", lambda o, m: o, episodes=1)
    with pytest.raises(ValueError, match=r"rewards must be at least 2 numbers in \[0, 1\]"):
        score_rewards("basic-4", [0.5, 1.5])
    with pytest.raises(ValueError, match=r"got a tuple of 2; a stable-baselines3 model's first item is the actions"):
        score("basic-4", lambda o, m: (np.zeros(len(o), int), None), episodes=8)
    with pytest.raises(ValueError, match=r"policy must return 8 integers in \[0, 3\], got \[\[1\], \[1, 2\]\]"):
        score("basic-4", lambda o, m: [[1], [1, 2]], episodes=8)
    with pytest.raises(InvalidTaskError, match="env_id must be an id such as .*, got 3"):
        score(3, lambda o, m: o)
    assert task_of("opselect_envs:opselect-suite/basic-4-v0") is CHALLENGES["basic-4"].task
    assert task_of(CHALLENGES["basic-4"]) is CHALLENGES["basic-4"].task


def test_best_reward_of_blended_targets_is_below_one():
    task = CHALLENGES["blending-25"].task
    best = best_reward(task, task.data(), task.held_out(1000), 1)
    assert best.min() < 0.6 < best.max() < 1
    env = gym.make("opselect_envs:opselect-suite/blending-25-v0")
    regrets = []
    for seed in range(40):
        env.reset(seed=seed)
        results = [(env.reset(seed=seed), env.step(k))[1] for k in range(4)]
        top = max(r[1] for r in results)
        assert top < 1
        for _, got, *_, info in results:
            assert info["regret"] == pytest.approx(top - got, abs=1e-6)
            assert info["optimal"] == (got >= top - 1e-4)
            regrets.append(info["regret"])
    assert max(regrets) > 0.3
