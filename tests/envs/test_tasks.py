"""What a task poses, against values worked out by hand and against explicit loops in plain Python."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opselect_envs import OPERATIONS, TASKS, InvalidOperationError, InvalidTaskError, Operation, Task
from opselect_envs.dynamics import (
    State,
    noisy_reward,
    observe,
    one_hot,
    options,
    quasi_random,
    reset,
    reward,
    start,
    step,
)
from opselect_envs.lookup import as_task
from opselect_envs.references import best_reward, fixed_rewards, random_reward
from opselect_envs.tasks import OPTIMAL_REGRET

# The operations of the standard tasks in plain Python: (formula, whether x is in the domain).
PLAIN: dict[str, tuple[Callable[[float], float], Callable[[float], bool]]] = {
    "sin": (math.sin, lambda x: True),
    "cos": (math.cos, lambda x: True),
    "square": (lambda x: x * x, lambda x: True),
    "exp": (math.exp, lambda x: x <= 88),
    "log": (math.log, lambda x: x > 0),
    "sqrt": (math.sqrt, lambda x: x > 0),
    "inv": (lambda x: 1 / x, lambda x: x != 0),
    "tanh": (math.tanh, lambda x: True),
    "neg": (lambda x: -x, lambda x: True),
    "asin": (math.asin, lambda x: abs(x) < 1),
}


def plain_choices(task: Task, x: float) -> list[float | None]:
    """The value of each operation at x, None where it is not available."""
    values: list[float | None] = []
    for name in task.names:
        formula, defined = PLAIN[name]
        value = formula(x) if defined(x) else None
        values.append(value if value is not None and abs(value) <= task.value_limit else None)
    return values


def plain_paths(task: Task, x: float, decisions: int) -> Iterator[float | None]:
    """Where every sequence of operations leads from x; None for those that are not available throughout."""
    for path in itertools.product(range(len(task.names)), repeat=decisions):
        value: float | None = x
        for k in path:
            value = None if value is None else plain_choices(task, value)[k]
        yield value


def uniforms_for(task: Task, x: float, *path: float) -> np.ndarray:
    """Draws [1, 1 + T] from which `reset` starts at x."""
    return np.float32([[(x - task.low) / (task.high - task.low), *(path or (0.5,) * task.horizon)]])


# Regions of width 1 from -2 to 2: -x | x*x | sin(x) | sqrt(x).
RULED = Task(operations=("neg", "square", "sin", "sqrt"), low=-2.0, high=2.0, rule=("neg", "square", "sin", "sqrt"))


# --- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "target"),
    [(-1.5, 1.5), (-0.5, 0.25), (0.5, math.sin(0.5)), (1.44, 1.2), (-2.0, 2.0), (1.0, 1.0), (-1.0, 1.0)],
)
def test_the_rule_says_what_is_right_where(x: float, target: float) -> None:
    state = reset(np, RULED, RULED.data(), uniforms_for(RULED, x))
    assert state.value[0] == pytest.approx(x, abs=1e-6)
    assert state.target[0] == pytest.approx(target, abs=1e-6)
    assert state.alive[0] == 1.0


@pytest.mark.parametrize("k", range(4))
def test_the_dense_reward_falls_with_the_distance(k: int) -> None:
    data = RULED.data()
    state, choices = start(np, RULED, data, uniforms_for(RULED, 0.5))
    values = [-0.5, 0.25, math.sin(0.5), math.sqrt(0.5)]
    np.testing.assert_allclose(choices.values[0], values, rtol=1e-6)
    after = step(np, choices, state, np.eye(4, dtype=np.float32)[[k]])
    assert after.value[0] == pytest.approx(values[k])
    expected = math.exp(-abs(values[k] - math.sin(0.5)))
    assert reward(np, RULED, data, after)[0] == pytest.approx(expected, rel=1e-6)
    assert (expected == 1.0) == (k == 2)


def test_an_error_of_one_costs_at_least_two_thirds_of_the_reward() -> None:
    data = RULED.data()
    state = State(np.float32([0.0, 1.0, 3.0]), np.float32([1.0, 3.0, 3.0]), *np.ones((2, 3), np.float32))
    np.testing.assert_allclose(reward(np, RULED, data, state), [1 / math.e, math.e**-2, 1.0], rtol=1e-6)


def test_an_operation_that_is_not_available_takes_the_reward() -> None:
    data = RULED.data()
    state, choices = start(np, RULED, data, uniforms_for(RULED, -0.25))  # sqrt is not defined here
    assert choices.available.tolist() == [[1, 1, 1, 0]]
    assert choices.values[0, 3] == np.float32(-0.25)  # the state stays
    after = step(np, choices, state, np.eye(4, dtype=np.float32)[[3]])
    assert after.alive[0] == 0
    assert reward(np, RULED, data, after)[0] == 0


def test_a_mixture_blends_values_and_keeps_the_available_share() -> None:
    state, choices = start(np, RULED, RULED.data(), uniforms_for(RULED, -0.5))
    after = step(np, choices, state, np.float32([[0.25, 0.25, 0.25, 0.25]]))
    assert after.value[0] == pytest.approx((0.5 + 0.25 + math.sin(-0.5) - 0.5) / 4, rel=1e-6)
    assert after.alive[0] == 0.75


def test_the_sparse_reward_and_its_relative_tolerance() -> None:
    task = dataclasses.replace(RULED, reward="sparse", tolerance=0.01)
    value = np.float32([1.0, 1.015, 1.025, 9.0, 9.09, 9.12])
    target = np.float32([1.0, 1.0, 1.0, 9.0, 9.0, 9.0])
    state = State(value, target, *np.ones((2, 6), np.float32))
    assert reward(np, task, task.data(), state).tolist() == [1, 1, 0, 1, 1, 0]  # within 0.02 of 1, within 0.1 of 9


def test_values_beyond_the_limit_are_not_available() -> None:
    task = dataclasses.replace(TASKS["OpChain"], value_limit=9.0)
    choices = options(np, task, task.data(), np.float32([2.9, 3.1, 0.1, 0.2]))
    available = dict(zip(task.names, choices.available.T.tolist(), strict=True))
    assert available["square"] == [1, 0, 1, 1]  # 8.41, 9.61, ...
    assert available["exp"] == [0, 0, 1, 1]  # 18.2, ...
    assert available["inv"] == [1, 1, 0, 1]  # ..., 10, 5


def test_reward_noise_replaces_a_share_of_the_rewards() -> None:
    task = dataclasses.replace(RULED, reward_noise=0.25)
    uniforms = np.float32([[0.2, 0.9], [0.3, 0.9], [0.24, 0.1]])
    clean = np.float32([0.5, 0.5, 0.5])
    np.testing.assert_array_equal(noisy_reward(np, task.data(), clean, uniforms), np.float32([0.9, 0.5, 0.1]))


def test_a_target_without_a_rule_is_drawn_among_the_available_operations() -> None:
    task = Task(operations=("neg", "square", "sqrt", "exp"), low=-2.0, high=2.0, rule=None, goal=True)
    data = task.data()
    # At 1.44 all four are available, at -1.44 all but sqrt: a quarter and a third of the draws each.
    for x, draws in (
        (1.44, {0.1: -1.44, 0.3: 1.44**2, 0.6: 1.2, 0.9: math.exp(1.44)}),
        (-1.44, {0.1: 1.44, 0.4: 1.44**2, 0.9: math.exp(-1.44)}),
    ):
        for u, target in draws.items():
            assert reset(np, task, data, uniforms_for(task, x, u)).target[0] == pytest.approx(target, rel=1e-6)


def test_a_chains_target_is_where_its_path_leads() -> None:
    task = Task(operations=("neg", "square", "increment"), low=0.5, high=2.0, horizon=3, goal=True, rule=None)
    state = reset(np, task, task.data(), uniforms_for(task, 1.5, 0.9, 0.5, 0.1))  # increment, square, neg
    assert state.target[0] == pytest.approx(-(2.5**2))


def test_observations() -> None:
    task = dataclasses.replace(RULED, frequencies=2)
    state = reset(np, task, task.data(), uniforms_for(task, 0.5))
    quarter = math.pi / 4  # x is 1/4 in units of the half range
    expected = [0.25, math.sin(quarter), math.cos(quarter), math.sin(2 * quarter), math.cos(2 * quarter)]
    np.testing.assert_allclose(observe(np, task, task.data(), state, 0)[0], expected, atol=1e-6)

    goal = dataclasses.replace(task, goal=True, frequencies=0)
    assert goal.observation_size == 2
    squashed = math.asinh(math.sin(0.5)) / math.asinh(100)
    np.testing.assert_allclose(observe(np, goal, goal.data(), state, 0)[0], [0.25, squashed], atol=1e-6)

    chain = dataclasses.replace(TASKS["OpChain"], frequencies=0)
    assert chain.observation_size == 5
    state = State(np.float32([2.0, -3.0]), np.float32([0.5, 50.0]), *np.ones((2, 2), np.float32))
    squash = [[math.asinh(v) / math.asinh(100) for v in pair] for pair in ((2.0, 0.5), (-3.0, 50.0))]
    for decision, flags in ((1, [[0, 1, 0], [0, 1, 0]]), (np.array([0, 2]), [[1, 0, 0], [0, 0, 1]])):
        seen = observe(np, chain, chain.data(), state, decision)
        np.testing.assert_allclose(seen[:, :2], squash, atol=1e-6)
        assert seen[:, 2:].tolist() == flags
        assert seen.dtype == np.float32
        assert seen.flags.c_contiguous


def test_one_hot() -> None:
    np.testing.assert_array_equal(one_hot(np.array([2, 0]), 3), np.float32([[0, 0, 1], [1, 0, 0]]))
    assert one_hot(np.array([[1], [0]]), 4).shape == (2, 1, 4)


def test_many_regions_are_found_like_few() -> None:
    task = Task(operations=("neg", "square"), low=0.0, high=3.0, regions=600, rule=0)  # beyond the counted ones
    x = np.linspace(0, 1, 5000, endpoint=False, dtype=np.float32)
    state = reset(np, task, task.data(), np.stack([x, x], -1))
    rule = task.rule_indices()
    assert rule is not None
    right = rule[np.minimum((state.value.astype(np.float64) * 200 + 1e-4).astype(int), 599)]
    inside = np.abs(state.value * 200 - np.rint(state.value * 200)) > 1e-3
    expected = np.where(right == 0, -state.value, state.value**2)
    np.testing.assert_array_equal(state.target[inside], expected[inside])
    assert set(rule.tolist()) == {0, 1}


# --- rules ------------------------------------------------------------------------------------------------------------


def test_a_seeded_rule_is_fixed_and_uses_every_operation_it_can() -> None:
    task = TASKS["ScalarOp"]
    assert len(task.names) >= 8
    assert task.regions >= 8
    rule = task.rule_indices()
    assert rule is not None
    assert rule.tolist() == dataclasses.replace(task).rule_indices().tolist()
    assert set(rule.tolist()) == set(range(len(task.names)))
    assert all(a != b for a, b in itertools.pairwise(rule.tolist()))
    partial = {"log", "sqrt", "asin"}  # operations undefined on part of the range
    assert partial <= {task.names[k] for k in rule}
    edges = task.edges
    for region, k in enumerate(rule.tolist()):
        for x in np.linspace(edges[region], edges[region + 1], 50).tolist():
            assert plain_choices(task, x)[k] is not None
    other = dataclasses.replace(task, rule=1).rule_indices()
    assert other.tolist() != rule.tolist()


def test_an_explicit_rule_sets_the_regions() -> None:
    assert RULED.regions == 4
    assert RULED.rule_indices().tolist() == [0, 1, 2, 3]
    assert RULED.edges.tolist() == [-2, -1, 0, 1, 2]
    listed = dataclasses.replace(RULED, rule=["sin", "neg"])
    assert listed.regions == 2
    assert listed.rule == ("sin", "neg")


def test_every_input_lies_in_range_even_if_the_sum_rounds() -> None:
    task = Task(operations=("neg", "sqrt"), low=0.1, high=0.7, rule=("sqrt",))
    top = np.float32([[1 - 2.0**-24, 0.5]])
    assert reset(np, task, task.data(), top).value[0] <= np.float32(0.7)


# --- scores -----------------------------------------------------------------------------------------------------------


def test_random_reward_of_a_ruled_task_by_brute_force() -> None:
    total, points = 0.0, 20_000
    for i in range(points):  # the midpoint rule; each region's border falls between two points
        x = -2 + 4 * (i + 0.5) / points
        choices = plain_choices(RULED, x)
        right = choices[int(x + 2)]
        assert right is not None
        total += sum(math.exp(-abs(c - right)) for c in choices if c is not None) / 4
    expected = RULED.expected_rewards()
    assert expected["random"] == pytest.approx(total / points, abs=2e-4)
    assert expected["oracle"] == 1.0
    assert RULED.score(expected["random"]) == pytest.approx(0.0)
    assert RULED.score(1.0) == pytest.approx(1.0)
    halfway = (1 + total / points) / 2
    assert RULED.score(halfway) == pytest.approx(0.5, abs=5e-4)


def test_random_reward_of_a_goal_task_by_brute_force() -> None:
    task = TASKS["ScalarOpGoal"]
    total, points = 0.0, 6_000
    for i in range(points):
        x = -3 + 6 * (i + 0.5) / points
        available = [c for c in plain_choices(task, x) if c is not None]
        # Every available value is as likely to be the target; a random agent picks among all ten.
        for target in available:
            total += sum(math.exp(-abs(c - target)) for c in available) / 10 / len(available)
    assert task.expected_rewards()["random"] == pytest.approx(total / points, abs=3e-3)


def test_noise_moves_the_expectations_and_not_the_score() -> None:
    task = dataclasses.replace(RULED, reward_noise=0.4)
    clean, noisy = RULED.expected_rewards(), task.expected_rewards()
    assert noisy["oracle"] == pytest.approx(0.6 * 1 + 0.4 / 2)
    assert noisy["random"] == pytest.approx(0.6 * clean["random"] + 0.4 / 2)
    assert task.score(0.8) == pytest.approx(1.0)


@pytest.mark.parametrize("masked", [True, False])
def test_chain_references_by_explicit_loops(masked: bool) -> None:
    task = Task(
        operations=("neg", "sqrt", "square", "exp"),
        low=-2.0,
        high=2.0,
        horizon=2,
        goal=True,
        rule=None,
        value_limit=20.0,
        mask_actions=masked,
    )
    data = task.data()
    starts = [(-1.5, 4.0), (-0.3, 0.6), (1.7, 2.0), (0.4, -1.0)]
    state = State(*(np.float32(a) for a in zip(*starts, strict=True)), *np.ones((2, 4), np.float32))

    def worth(value: float | None, target: float) -> float:
        return 0.0 if value is None else math.exp(-abs(value - target))

    def expected_random(value: float, target: float, left: int) -> float:
        if left == 0:
            return worth(value, target)
        following = [0.0 if c is None else expected_random(c, target, left - 1) for c in plain_choices(task, value)]
        picked = sum(c is not None for c in plain_choices(task, value)) if masked else 4
        return sum(following) / picked

    for left in (0, 1, 2):
        best = [max(worth(v, y) for v in plain_paths(task, x, left)) for x, y in starts]
        random = [expected_random(x, y, left) for x, y in starts]
        assert all(0 < r < 1 for r in random)
        np.testing.assert_allclose(best_reward(task, data, state, left), best, rtol=2e-5)
        np.testing.assert_allclose(random_reward(task, data, state, left), random, rtol=2e-5)
    dead = state._replace(alive=np.zeros(4, np.float32))
    assert best_reward(task, data, dead, 2).tolist() == [0, 0, 0, 0]


def test_chain_expectation_is_the_mean_over_the_held_out_set() -> None:
    task = dataclasses.replace(TASKS["OpChain"], horizon=2)
    expected = random_reward(task, task.data(), task.held_out(4096), 2)
    assert task.expected_rewards()["random"] == pytest.approx(float(np.mean(expected, dtype=np.float64)))
    assert task.expected_rewards(512)["random"] == pytest.approx(task.expected_rewards()["random"], abs=0.02)


def test_too_many_paths_are_refused() -> None:
    task = dataclasses.replace(TASKS["OpChain"], horizon=9)
    state = task.held_out(2)
    with pytest.raises(ValueError, match=r"6\*\*9 = 10077696 paths are too many to enumerate"):
        best_reward(task, task.data(), state, 9)
    with pytest.raises(ValueError, match="too many"):
        random_reward(task, task.data(), state, 9)


@pytest.mark.parametrize("name", TASKS)
def test_held_out_is_fixed_spread_and_reachable(name: str) -> None:
    task = TASKS[name]
    first, again = task.held_out(512), dataclasses.replace(task).held_out(512)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == np.float32
    assert first.value.min() >= task.low
    assert first.value.max() <= task.high
    counts, _ = np.histogram(first.value, 8, (task.low, task.high))
    assert counts.min() >= 60  # 64 each
    np.testing.assert_array_equal(task.held_out(100).value, first.value[:100])
    assert (best_reward(task, task.data(), first, task.horizon) >= 1 - OPTIMAL_REGRET).all()


def test_quasi_random_points() -> None:
    golden = (math.sqrt(5) - 1) / 2
    np.testing.assert_allclose(quasi_random(3, 1)[:, 0], [(0.5 + golden * n) % 1 for n in (1, 2, 3)], rtol=1e-12)
    plastic = 1.32471795724474602596
    expected = [[(0.5 + n / plastic) % 1, (0.5 + n / plastic**2) % 1] for n in (1, 2)]
    np.testing.assert_allclose(quasi_random(2, 2), expected, rtol=1e-12)


# --- any task ---------------------------------------------------------------------------------------------------------

_PARTIAL = [name for name, op in OPERATIONS.items() if op.arity == 1 and name != "neg"]


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    names = draw(st.lists(st.sampled_from(_PARTIAL), min_size=1, max_size=6, unique=True))
    low = draw(st.floats(-4, 3.5, width=32))
    horizon = draw(st.integers(1, 3))
    ruled = horizon == 1 and draw(st.booleans())
    return Task(
        operations=(*names, "neg"),  # neg is available everywhere
        low=low,
        high=low + draw(st.floats(0.125, 4, width=32)),
        horizon=horizon,
        goal=not ruled,
        rule=draw(st.integers(0, 100)) if ruled else None,
        reward=draw(st.sampled_from(["dense", "sparse"])),
        value_limit=draw(st.sampled_from([10.0, 100.0, 1e6])),
        frequencies=draw(st.integers(0, 8)),
    )


@settings(deadline=None, max_examples=80)
@given(task=tasks(), seed=st.integers(0, 2**32 - 1))
def test_any_task_is_well_posed(task: Task, seed: int) -> None:
    data, rng = task.data(), np.random.default_rng(seed)
    uniforms = rng.random((64, task.uniforms), dtype=np.float32)
    uniforms[0], uniforms[1] = 0.0, 1 - 2.0**-24
    state = reset(np, task, data, uniforms)
    assert state.value.min() >= np.float32(task.low)
    assert state.value.max() <= np.float32(task.high)
    assert (best_reward(task, data, state, task.horizon) == 1).all()
    for decision in range(task.horizon):
        seen = observe(np, task, data, state, decision)
        assert seen.shape == (64, task.observation_size)
        assert np.abs(seen).max() <= 1  # false for NaN
        choices = options(np, task, data, state.value)
        assert np.abs(choices.values).max() <= task.value_limit
        assert choices.available.max(-1).min() == 1
        state = step(np, choices, state, one_hot(rng.integers(0, len(task.ops), 64), len(task.ops)))
        rewards = reward(np, task, data, state)
        assert ((rewards >= 0) & (rewards <= 1)).all()
        assert rewards.dtype == np.float32


# --- refusals ---------------------------------------------------------------------------------------------------------

_TWO = ("neg", "sin")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"low": 2.0, "high": 1.0}, r"low must be below high in float32, got low=2\.0 and high=1\.0"),
        ({"low": 1.0, "high": 1.0 + 1e-12}, r"low must be below high in float32"),
        ({"low": "a"}, r"low must be a number in \[-1e\+30, 1e\+30\], got 'a'"),
        ({"high": math.inf}, r"high must be a number .* got inf; the nearest valid value is 1e\+30"),
        ({"low": math.nan}, r"low must be a number .* got nan"),
        ({"horizon": 0}, r"horizon must be an integer in \[1, 64\], got 0; the nearest valid value is 1"),
        ({"horizon": 2.0}, r"horizon must be an integer in \[1, 64\], got 2\.0"),
        ({"regions": 5000}, r"regions must be an integer in \[1, 4096\], got 5000; the nearest valid value is 4096"),
        ({"frequencies": -1}, r"frequencies must be an integer in \[0, 16\], got -1; the nearest valid value is 0"),
        ({"reward_noise": 1.5}, r"reward_noise must be a number in \[0, 1\], got 1\.5; the nearest valid value is 1"),
        ({"tolerance": -0.1}, r"tolerance must be a number in \[0, 1e\+30\], got -0\.1"),
        ({"reward": "spars"}, r"reward must be 'dense' or 'sparse', got 'spars'; did you mean 'sparse'\?"),
        (
            {"value_limit": 1.0},
            r"value_limit must be a number in \[2, 1e\+30\], got 1\.0; the nearest valid value is 2\.0",
        ),
        ({"mask_actions": "no"}, r"mask_actions must be True or False, got 'no'"),
        ({"rule": -1}, r"rule must be a seed >= 0, got -1; the nearest valid one is 0"),
        ({"rule": "sin"}, r"rule must be a seed, a sequence of operation names or None, got 'sin'"),
        ({"rule": 1.5}, r"rule must be a seed, a sequence of operation names or None, got 1\.5"),
        ({"rule": ("neg", "sine")}, r"rule names 'sine', which is not among the operations; nearest: 'sin'"),
        ({"rule": 0, "horizon": 2}, r"rule must be None with horizon 2: a chain's targets are drawn"),
        (
            {"operations": ("neg", "sqrt"), "rule": ("sqrt", "neg")},
            r"rule gives region 0, x in \[-2, 0\], the operation 'sqrt', .* available are \['neg'\]",
        ),
        (
            {"operations": ("log", "sqrt")},
            r"none of \['log', 'sqrt'\] is available everywhere in region 0, x in \[-2, -1\.5\]",
        ),
        ({"operations": ("log", "sqrt"), "rule": None, "goal": True}, r"none of \['log', 'sqrt'\] is available at -2"),
        (
            {"operations": ("sqrt", "inv"), "rule": None, "goal": True, "horizon": 2},
            r"none of \['sqrt', 'inv'\] is available at \S+, which the task can reach",
        ),
    ],
)
def test_ill_posed_tasks_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(InvalidTaskError, match=message):
        Task(**({"operations": _TWO, "low": -2.0, "high": 2.0, "rule": 0} | changes))
    assert issubclass(InvalidTaskError, ValueError)


def test_unknown_operations_and_tasks_suggest_the_nearest() -> None:
    with pytest.raises(InvalidOperationError, match="unknown operation 'sine'; did you mean 'sin'"):
        Task(operations=("neg", "sine"), low=-1.0, high=1.0)
    with pytest.raises(InvalidOperationError, match="'add' takes 2 operands where 1 is needed"):
        Task(operations=("neg", "add"), low=-1.0, high=1.0)
    with pytest.raises(InvalidTaskError, match="unknown task 'OpChains'; did you mean 'OpChain'"):
        as_task("OpChains")
    assert as_task("OpChain") is TASKS["OpChain"]
    assert as_task(RULED) is RULED


def test_tasks_compare_hash_print_and_pickle() -> None:
    twin = Task(operations=["neg", "square", "sin", "sqrt"], low=-2.0, high=2.0, rule=["neg", "square", "sin", "sqrt"])
    assert twin == RULED
    assert hash(twin) == hash(RULED)
    assert pickle.loads(pickle.dumps(RULED)) == RULED
    assert pickle.loads(pickle.dumps(RULED)).ops == RULED.ops
    assert RULED.to_dict()["operations"] == ["neg", "square", "sin", "sqrt"]
    assert Task(**RULED.to_dict()) == RULED
    assert Task(**TASKS["OpChain"].to_dict()) == TASKS["OpChain"]


def test_a_task_with_a_users_operation() -> None:
    leaky = Operation(
        "leaky", 1, lambda xp, x: xp.maximum(x, 0.25 * x), lambda xp, x: xp.abs(x) <= 1e9, 1.0, "leaky({0})"
    )
    task = Task(operations=("neg", leaky), low=-2.0, high=2.0, rule=("leaky", "neg"))
    state = reset(np, task, task.data(), uniforms_for(task, -1.0))
    assert state.target[0] == -0.25
    assert task.names == ("neg", "leaky")


def test_a_hole_in_the_rules_operation_is_filled_by_another() -> None:
    """1/x is undefined in |x| < 0.01, which is finer than the grid that checks the rule here."""
    task = Task(("neg", "inv"), low=-10.0, high=8.0, rule=("inv",))
    x = np.array([0.001, -0.004, 2.0], np.float32)
    uniforms = np.stack([(x + 10.0) / 18.0, np.full(3, 0.5)], -1).astype(np.float32)
    state = reset(np, task, task.data(), uniforms)
    np.testing.assert_allclose(state.target, [-state.value[0], -state.value[1], 0.5], rtol=1e-4)
    assert best_reward(task, task.data(), state, 1).tolist() == [1.0, 1.0, 1.0]


def test_the_sampled_random_agent_agrees_with_the_enumerated_one() -> None:
    from opselect_envs.references import _random_play

    for name in ("ScalarOpGoal", "OpChain"):
        exact = TASKS[name].expected_rewards()["random"]
        assert abs(_random_play(TASKS[name], 1 << 16) - exact) < 0.006


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Task(("neg", "exp"), low=0.0, high=1.0, rule=None), "rule must be a seed.* when goal is False"),
        (lambda: Task(("neg", "exp"), low=0.0, high=1.0, rule=()), "rule must name at least one operation"),
        (lambda: Task(5, low=0.0, high=1.0), "operations must be a sequence of operations, got 5"),
        (lambda: Task(("identity", "abs"), low=0.5, high=1.0).score(1.0), "both expect the reward 1"),
        (lambda: Task(("neg", "exp"), low=0.0, high=1.0, reward_noise=1.0).score(0.5), "reward_noise .1. hides"),
        (
            lambda: Task(("neg", dataclasses.replace(OPERATIONS["square"], symbol="s")), low=0.0, high=1.0),
            "operation 'square': the catalogue has that name",
        ),
    ],
)
def test_tasks_that_are_not_well_posed_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# --- distractors, shifts and blends -----------------------------------------------------------------------------------


def test_distractors_are_seen_and_mean_nothing() -> None:
    task = dataclasses.replace(RULED, distractors=3, frequencies=2)
    plain = dataclasses.replace(RULED, frequencies=2)
    assert (task.uniforms, plain.uniforms) == (3, 2)
    assert (task.observation_size, plain.observation_size) == (20, 5)
    draws = np.random.default_rng(0).random((20_000, 3), np.float32)
    state = reset(np, task, task.data(), draws)
    without = reset(np, plain, plain.data(), draws[:, :2])
    np.testing.assert_array_equal(state.target, without.target)
    seen = observe(np, task, task.data(), state, 0)
    np.testing.assert_array_equal(seen[:, :5], observe(np, plain, plain.data(), without, 0))
    spread = 2 * draws[:, 2].astype(np.float64)
    for i, factor in enumerate((1, 3, 5)):
        scaled = (factor * spread) % 2 - 1
        np.testing.assert_allclose(seen[:, 5 * (i + 1)], scaled, atol=2e-6)
        np.testing.assert_allclose(seen[:, 5 * (i + 1) + 1], np.sin(np.pi * scaled), atol=2e-5)
    correlations = np.corrcoef(np.concatenate([seen.T, [state.target]]))
    assert np.abs(correlations[5:20, [*range(5), 20]]).max() < 0.03  # distractors against what matters
    assert np.abs(seen).max() <= 1


def test_a_rule_that_shifts() -> None:
    task = Task(
        ("neg", "square"), low=-1.0, high=1.0, rule=("neg", "square"), rule_after=("square", "neg"), shift_after=5
    )
    assert task.at(4) == Task(("neg", "square"), low=-1.0, high=1.0, rule=("neg", "square"))
    assert task.at(5).rule == ("square", "neg") and task.at(5).rule_after is None
    assert task.static_key() == task.at(0).static_key() == task.at(9).static_key()
    assert Task(**task.to_dict()) == task and pickle.loads(pickle.dumps(task)) == task
    steady = dataclasses.replace(task, rule_after=None, shift_after=0)
    assert steady.at(10**9) is steady


def test_a_blended_target() -> None:
    task = Task(("neg", "square", "exp"), low=-1.0, high=2.0, rule=("neg", "square", "exp"), blend=0.25)
    state = reset(np, task, task.data(), np.float32([[0.5 / 3, 0.9], [1.5 / 3, 0.9], [2.5 / 3, 0.9]]))
    x = [-0.5, 0.5, 1.5]
    np.testing.assert_allclose(state.value, x, atol=1e-6)
    expected = [
        0.75 * 0.5 + 0.25 * 0.25,
        0.75 * 0.25 + 0.25 * math.exp(0.5),
        0.75 * math.exp(1.5) + 0.25 * -1.5,  # the last region's neighbour is the first
    ]
    np.testing.assert_allclose(state.target, expected, rtol=1e-5)


def test_a_blend_with_what_is_not_available_is_none() -> None:
    task = Task(("neg", "sqrt"), low=-1.0, high=1.2, rule=("neg", "sqrt"), blend=0.5)
    state = reset(np, task, task.data(), np.float32([[0.5 / 2.2, 0.5], [1.5 / 2.2, 0.5]]))
    np.testing.assert_allclose(state.target, [0.5, 0.5 * math.sqrt(0.5) + 0.5 * -0.5], rtol=1e-5)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"blend": 1.5}, r"blend must be a number in \[0, 1\], got 1.5; the nearest valid value is 1.0"),
        ({"distractors": -1}, r"distractors must be an integer in \[0, 256\], got -1; the nearest valid value is 0"),
        ({"rule_after": ("neg",)}, "rule_after must have as many regions as rule, 4, got 1"),
        ({"rule_after": -2}, "rule_after must be a seed >= 0, got -2; the nearest valid one is 0"),
        ({"shift_after": 3}, "shift_after=3 needs a rule_after, but that is None"),
        (
            {"rule_after": ("neg", "negg", "neg", "sin")},
            "names 'negg', which is not among the operations; nearest: 'neg'",
        ),
        ({"rule": None, "goal": True, "blend": 0.5}, "blend=0.5 needs a rule, but rule is None"),
        ({"rule": None, "goal": True, "rule_after": 1}, "rule_after=1 needs a rule"),
    ],
)
def test_bad_shifts_and_blends(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTaskError, match=message):
        dataclasses.replace(RULED, **parameters)


def test_the_best_fixed_operation() -> None:
    """Each region's own operation is right in a quarter of the range; the rest by numerical integration."""
    x = np.linspace(-2, 2, 400_002)[1::2]
    right = np.select([x < -1, x < 0, x < 1], [-x, x**2, np.sin(x)], np.sqrt(np.abs(x)))
    rewards = [np.exp(-np.abs(f - right)).mean() for f in (-x, x**2, np.sin(x))]
    rewards.append(np.where(x > 0, np.exp(-np.abs(np.sqrt(np.abs(x)) - right)), 0).mean())
    np.testing.assert_allclose(fixed_rewards(RULED, 1 << 16), rewards, atol=5e-4)
    assert RULED.expected_rewards(1 << 16)["best_fixed"] == pytest.approx(max(rewards), abs=5e-4)
