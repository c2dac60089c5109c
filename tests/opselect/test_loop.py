"""The training loop: the environments' dynamics, the right gradient, independent replicas, bitwise resumption."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from opselect._tensorflow import tf
from opselect.estimators import Exact, GumbelSoftmax, LeaveOneOut, SelfCritical
from opselect.estimators.base import occupancy
from opselect.experiments.config import PRESETS, RunConfig, cells
from opselect.experiments.results import RunResult
from opselect.experiments.run import play, run
from opselect.learners import LEARNERS, Learner
from opselect.learners.loop import Loop, TrainingDivergedError, loop_for
from opselect.learners.rollout import Greedy, rollout
from opselect.learners.schedules import Schedule
from opselect.namespace import xp
from opselect.policy import clip_gradient
from opselect_envs import dynamics
from opselect_envs.challenges import CHALLENGES
from opselect_envs.dynamics import State, noisy_reward, observe, options, reset, reward, step
from opselect_envs.operations import Operation
from opselect_envs.tasks import TASKS, Task

SMALL = Task(operations=("square", "log", "neg"), low=-2.0, high=2.0, regions=4, frequencies=2)
TINY_CHAIN = Task(
    operations=("neg", "square", "sqrt"), low=-2.0, high=2.0, horizon=2, goal=True, rule=None, frequencies=1,
    mask_actions=True,
)  # fmt: skip
RLOO = dataclasses.replace(LEARNERS["reinforce-rloo"], rows=32, hidden=(16,), chain_rows=16, chain_hidden=(16,))
CHUNK = 10


def small_loop(replicas=3, task=SMALL, learner=RLOO):
    return loop_for(task, learner, replicas, CHUNK)


# --- one definition of the dynamics -----------------------------------------------------------------------------------


POSED = TASKS | {name: CHALLENGES[name].task for name in ("operations-64", "blending-40", "distractors-4")}


@pytest.mark.parametrize("name", POSED)
@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_the_graph_plays_the_same_task_as_numpy(name, mode):
    task, rng = POSED[name], np.random.default_rng(3)
    data = task.data()
    tensors = {k: tf.constant(v) for k, v in data.items()}
    uniforms = rng.random((500, task.uniforms), np.float32)
    picks = rng.integers(0, len(task.ops), (500, task.horizon))
    noise = rng.random((500, 2), np.float32)
    weights = np.eye(len(task.ops), dtype=np.float32)[picks]

    def episode(space, values, uniforms, weights, noise):
        state = reset(space, task, values, uniforms)
        trace = [state.value, state.target]
        for t in range(task.horizon):
            observation = observe(space, task, values, state, t)
            choices = options(space, task, values, state.value)
            state = step(space, choices, state, weights[:, t])
            trace += [observation, choices.available, state.value, state.alive]
        clean = reward(space, task, values, state)
        return [*trace, clean, noisy_reward(space, values, clean, noise)]

    wanted = episode(np, data, uniforms, weights, noise)
    run_in_graph = tf.function(lambda *a: episode(xp, tensors, *a), jit_compile=mode == "xla", autograph=False)
    got = run_in_graph(*map(tf.constant, (uniforms, weights, noise)))
    assert wanted[-2].max() > 0.6
    assert 0.05 < wanted[-2].mean() < 0.95
    for a, b in zip(wanted, got, strict=True):
        # A chain such as exp(exp(1/x)) magnifies the last bit of its first value.
        assert np.isclose(b, a, rtol=2e-5, atol=2e-5).mean() > 0.995
        np.testing.assert_allclose(b, a, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("task", [SMALL, TINY_CHAIN], ids=["scalar", "chain"])
def test_greedy_rollouts_agree_with_playing_in_numpy(task):
    loop = small_loop(task=task)
    loop.restart([4, 5, 6])
    start = task.held_out(200)
    judged = loop.evaluate(task, [4, 5, 6], 1, 10, 200)
    for r in range(3):
        _, rewards, _ = play(task, lambda o, r=r: loop.policy(r)(o).numpy(), start)
        assert judged.hard[r] == pytest.approx(rewards.mean(), abs=1e-5)
        assert judged.optimal[r] == pytest.approx((1 - rewards <= 1e-4).mean(), abs=1e-6)


def test_what_the_oracle_plays_reaches_every_target():
    for task in TASKS.values():
        start = task.held_out(300)
        _, _, right = play(task, lambda o, task=task: np.zeros((len(o), len(task.ops))), start)
        data, state = task.data(), start
        for t in range(task.horizon):
            choices = options(np, task, data, state.value)
            state = step(np, choices, state, np.eye(len(task.ops), dtype=np.float32)[right[:, t]])
        np.testing.assert_allclose(reward(np, task, data, state), 1.0, atol=1e-5)


# --- the gradient -----------------------------------------------------------------------------------------------------


def expected_reward_by_hand(task, logits_of, start):
    """E[reward] of a stochastic policy, mean over episodes, by loops over all choices; float64 probabilities."""
    data, total = task.data(), 0.0
    for i in range(len(start.value)):
        one = State(*(a[i : i + 1] for a in start))
        for picks in itertools.product(range(len(task.ops)), repeat=task.horizon):
            state, probability = one, 1.0
            for t, pick in enumerate(picks):
                choices = options(np, task, data, state.value)
                logits = logits_of(observe(np, task, data, state, t)).astype(np.float64)[0]
                if task.mask_actions:
                    logits = np.where(choices.available[0] > 0, logits, -np.inf)
                p = np.exp(logits - logits.max())
                probability *= (p / p.sum())[pick]
                state = step(np, choices, state, np.eye(len(task.ops), dtype=np.float32)[[pick]])
            total += probability * float(reward(np, task, data, state)[0])
    return total / len(start.value)


@pytest.mark.parametrize("task", [SMALL, TINY_CHAIN], ids=["scalar", "chain"])
def test_the_exact_learners_gradient_is_the_slope_of_the_expected_reward(task):
    rng = np.random.default_rng(0)
    size, k = task.observation_size, len(task.ops)
    kernel, bias = rng.normal(0, 0.5, (size, k)), rng.normal(0, 0.5, k)
    start = task.held_out(12)
    weights = [tf.constant(kernel[None], tf.float32), tf.constant(bias[None, None], tf.float32)]
    tensors = {name: tf.constant(v) for name, v in task.data().items()}
    with tf.GradientTape() as tape:
        tape.watch(weights)
        played = rollout(
            lambda o: tf.tensordot(o, weights[0][0], 1) + weights[1],
            Exact(), (), task, tensors, State(*(tf.constant(a[None]) for a in start)), tf.zeros([1, 2], tf.int32),
        )  # fmt: skip
        surrogate, _ = Exact().surrogate(1.0 - played.rewards, played.proposals, ())
        expected = 1.0 - tf.reduce_mean(surrogate)
    gradient = [
        g.numpy().reshape(v.shape) for g, v in zip(tape.gradient(expected, weights), (kernel, bias), strict=True)
    ]

    def value(kernel, bias):
        return expected_reward_by_hand(task, lambda o: o @ kernel + bias, start)

    assert float(expected) == pytest.approx(value(kernel, bias), abs=1e-5)
    h = 1e-4
    for j in range(k):
        unit = np.eye(k)[j]
        slope = (value(kernel, bias + h * unit) - value(kernel, bias - h * unit)) / (2 * h)
        assert gradient[1][j] == pytest.approx(slope, abs=2e-5)
    assert np.abs(gradient[1]).max() > 1e-3
    i, j = np.unravel_index(np.abs(gradient[0]).argmax(), kernel.shape)
    unit = np.zeros_like(kernel)
    unit[i, j] = h
    slope = (value(kernel + unit, bias) - value(kernel - unit, bias)) / (2 * h)
    assert gradient[0][i, j] == pytest.approx(slope, abs=2e-5)


def test_entropy_is_weighted_by_the_states_the_policy_reaches():
    task, start = TINY_CHAIN, TINY_CHAIN.held_out(6)
    tensors = {name: tf.constant(v) for name, v in task.data().items()}
    bias = np.array([0.7, -0.4, 0.2])

    def played(estimator):
        episodes = State(*(tf.constant(a[None]) for a in start))
        policy = lambda o: tf.broadcast_to(tf.constant(bias, tf.float32), [*o.shape[:-1], 3])  # noqa: E731
        return rollout(policy, estimator, (), task, tensors, episodes, tf.constant([[1, 2]]))

    def entropy(available):
        p = np.exp(np.where(available > 0, bias, -np.inf))
        p /= p.sum()
        return -(p[p > 0] * np.log(p[p > 0])).sum(), p

    data, wanted = task.data(), []
    for i in range(6):
        first = options(np, task, data, start.value[i : i + 1])
        spread, p = entropy(first.available[0])
        for k in np.flatnonzero(p):
            second = options(np, task, data, first.values[0, k : k + 1])
            spread += p[k] * entropy(second.available[0])[0]
        wanted.append(spread / 2)
    np.testing.assert_allclose(played(Exact()).entropy[0], wanted, rtol=1e-5)
    np.testing.assert_allclose(played(LeaveOneOut(4000)).entropy[0], wanted, rtol=0.05)
    # The greedy trajectory of the self-critical baseline is a probe, not a state the policy reaches by sampling.
    sampled = played(SelfCritical())
    alone = occupancy(sampled.proposals)
    np.testing.assert_array_equal(np.ravel(alone), [1.0, 0.0])


def test_options_that_are_known_already_change_nothing():
    """Where episodes were just drawn, their first options are handed on, not worked out again."""
    draws = np.random.default_rng(1).random((2, 9, TINY_CHAIN.uniforms), np.float32)
    tensors = {name: tf.constant(v) for name, v in TINY_CHAIN.data().items()}
    begun, first = dynamics.start(xp, TINY_CHAIN, tensors, tf.constant(draws))

    def rewards(**known):
        policy = lambda o: tf.tile(o[..., :1], [1, 1, 1, 3]) * [1.0, -2.0, 0.5]  # noqa: E731
        seeds = tf.constant([[1, 2], [3, 4]])
        return rollout(policy, LeaveOneOut(5), (), TINY_CHAIN, tensors, begun, seeds, **known).rewards.numpy()

    np.testing.assert_array_equal(rewards(first=first), rewards())
    assert 0.1 < rewards().mean() < 0.9


# --- training ---------------------------------------------------------------------------------------------------------


def trained(loop, seeds, chunks, task=SMALL, total=40):
    loop.restart(seeds)
    for c in range(chunks):
        loop.run(task, seeds, CHUNK * c, CHUNK, total)
    return loop.state()


def test_training_is_reproducible_and_resumes_bit_for_bit():
    loop, seeds = small_loop(), [1, 2, 3]
    once = trained(loop, seeds, 4)
    halfway = trained(loop, seeds, 2)
    trained(loop, [7, 8, 9], 1)  # something else in between
    loop.load(halfway)
    for c in (2, 3):
        loop.run(SMALL, seeds, CHUNK * c, CHUNK, 40)
    for name, value in loop.state().items():
        np.testing.assert_array_equal(value, once[name], err_msg=name)
    assert any((once[n] != halfway[n]).any() for n in once)


def test_a_seed_learns_the_same_whichever_it_is_beside():
    together = trained(small_loop(3), [1, 2, 3], 2)
    alone = trained(small_loop(1), [2], 2)
    for name in (n for n in alone if n.startswith("parameter")):
        np.testing.assert_allclose(together[name][1], alone[name][0], rtol=1e-4, atol=1e-5, err_msg=name)
        assert np.abs(together[name][0] - alone[name][0]).max() > 1e-3


def test_tasks_of_one_shape_share_a_compiled_loop_but_not_their_rule():
    other = dataclasses.replace(SMALL, rule=("neg", "square"), low=-1.0)
    assert loop_for(other, RLOO, 3, CHUNK) is small_loop()
    traces = small_loop()._train.experimental_get_tracing_count()
    assert traces <= 1
    first, second = trained(small_loop(), [1, 2, 3], 2), trained(small_loop(), [1, 2, 3], 2, task=other)
    assert small_loop()._train.experimental_get_tracing_count() == 1
    assert np.abs(first["parameter/0"] - second["parameter/0"]).max() > 1e-3
    with pytest.raises(ValueError, match="another shape"):
        small_loop().run(TINY_CHAIN, [1, 2, 3], 0, 1, 1)


def test_a_loss_that_is_not_finite_is_reported_with_its_seed():
    loop = small_loop()
    loop.restart([1, 2, 3])
    state = loop.state()
    state["parameter/0"][1] = np.nan
    loop.load(state)
    with pytest.raises(TrainingDivergedError, match=r"reinforce-rloo: the loss of seed\(s\) \[2\]"):
        loop.run(SMALL, [1, 2, 3], 0, CHUNK, 40)


def test_a_foreign_checkpoint_is_refused():
    loop = small_loop()
    loop.restart([1, 2, 3])
    state = loop.state()
    with pytest.raises(ValueError, match="has shape"):
        loop.load(state | {"parameter/0": np.zeros(3)})
    with pytest.raises(ValueError, match="checkpoint holds"):
        loop.load({"a": np.zeros(3)})


def test_reward_noise_slows_learning_but_leaves_the_score_clean():
    noisy = dataclasses.replace(SMALL, reward_noise=1.0)
    assert noisy.static_key() != SMALL.static_key()
    loop = Loop(noisy, RLOO, 1, 1)
    loop.restart([1])
    judged = loop.evaluate(noisy, [1], 1, 1, 100)
    clean = small_loop(1)
    clean.restart([1])
    assert judged.hard[0] == pytest.approx(clean.evaluate(SMALL, [1], 1, 1, 100).hard[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("task", [SMALL, dataclasses.replace(TINY_CHAIN, frequencies=6)], ids=["scalar", "chain"])
def test_every_learner_beats_uniform_random(name, task, tmp_path):
    learner = dataclasses.replace(LEARNERS[name], hidden=(32,), chain_hidden=(32,), rows=64, chain_rows=64)
    if learner.why_not(task) is not None:
        pytest.skip(learner.why_not(task))
    result = run(RunConfig("t", task, learner, (0, 1, 2), steps=400, points=2, held_out=500), tmp_path)
    assert result.hard[:, -1].mean() > 0.15
    if name in ("exact", "reinforce-rloo"):
        assert result.hard[:, -1].min() > (0.9 if task is SMALL else 0.75)


# --- schedules and runs -----------------------------------------------------------------------------------------------


def test_a_relaxations_gradient_is_clipped_row_by_row():
    logits = tf.constant(np.random.default_rng(0).normal(size=(2, 1, 4, 3)), tf.float32)
    slopes = tf.constant(np.random.default_rng(1).normal(0, 3, (2, 1, 4, 3)), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        # The mean over S = 2 trajectories and B = 4 rows.
        objective = tf.reduce_mean(tf.reduce_sum(clip_gradient(logits, 2.0 / 8) * slopes, -1))
    norms = np.linalg.norm(slopes, axis=-1, keepdims=True)
    assert 0 < (norms > 2.0).sum() < 8
    np.testing.assert_allclose(tape.gradient(objective, logits), slopes * np.minimum(1, 2 / norms) / 8, rtol=1e-5)


def test_schedules():
    np.testing.assert_allclose(Schedule(1.0, 0.0, until=0.5).values(0, 5, 8), [1, 0.75, 0.5, 0.25, 0])
    np.testing.assert_allclose(Schedule(1.0, 0.01, shape="geometric").values(0, 3, 2), [1, 0.1, 0.01], rtol=1e-6)
    np.testing.assert_allclose(Schedule(2.0, 0.0, shape="cosine").values(0, 3, 2), [2, 1, 0], atol=1e-7)
    whole = Schedule(1.0, 0.2, until=0.7).values(0, 20, 20)
    np.testing.assert_array_equal(Schedule(1.0, 0.2, until=0.7).values(7, 5, 20), whole[7:12])
    with pytest.raises(ValueError, match="shape must be"):
        Schedule(1, 0, shape="step")
    with pytest.raises(ValueError, match="needs positive ends"):
        Schedule(1, 0, shape="geometric")
    with pytest.raises(ValueError, match="temperature must stay above 0"):
        Learner("x", GumbelSoftmax(), "", temperature=Schedule(1.0, 0.0))
    with pytest.raises(ValueError, match="has none"):
        Learner("x", LeaveOneOut(), "", temperature=Schedule(1.0, 0.5))


CONFIG = RunConfig("small", SMALL, RLOO, (1, 2, 3), steps=4 * CHUNK, points=4, held_out=200)


class Cut(Exception):
    pass


def cut_after(steps):
    def progress(done, _):
        if done >= steps:
            raise Cut

    return progress


def assert_same(a: RunResult, b: RunResult):
    for name in ("step", "evaluations", "hard", "soft", "optimal"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    np.testing.assert_array_equal(a.picture.choice, b.picture.choice)
    assert a.config == b.config


def test_a_run_that_was_cut_off_ends_as_if_it_had_not_been(tmp_path):
    whole = run(CONFIG, tmp_path / "whole")
    for steps in (10, 20, 30):
        with pytest.raises(Cut):
            run(CONFIG, tmp_path / "cut", cut_after(steps))
    seen = []
    resumed = run(CONFIG, tmp_path / "cut", lambda done, _: seen.append(done))
    assert seen == [40]  # only what was missing
    assert_same(resumed, whole)
    assert_same(run(CONFIG, tmp_path / "cut", cut_after(0)), whole)  # complete: nothing is run
    assert whole.evaluations.tolist() == [10 * 32 * 4, 20 * 32 * 4, 30 * 32 * 4, 40 * 32 * 4]
    assert whole.picture.choice.shape == whole.picture.right.shape == (200, 1)


def test_damaged_files_are_set_aside_and_done_again(tmp_path):
    whole = run(CONFIG, tmp_path / "whole")
    with pytest.raises(Cut):
        run(CONFIG, tmp_path / "cut", cut_after(20))
    checkpoint = tmp_path / "cut" / "checkpoint.npz"
    checkpoint.write_bytes(checkpoint.read_bytes()[:500])
    (tmp_path / "cut" / "result.npz").write_bytes(b"not a result")
    assert_same(run(CONFIG, tmp_path / "cut"), whole)
    assert {p.name for p in (tmp_path / "cut").glob("*.damaged")} == {"checkpoint.npz.damaged", "result.npz.damaged"}


def test_a_folder_is_never_taken_for_another_configurations(tmp_path):
    run(CONFIG, tmp_path / "done")
    other = dataclasses.replace(CONFIG, seeds=(4, 5, 6))
    assert_same(run(other, tmp_path / "done"), run(other, tmp_path / "fresh"))
    assert (tmp_path / "done" / "result.npz.damaged").exists()  # it is kept, and the log says so
    with pytest.raises(Cut):
        run(CONFIG, tmp_path / "cut", cut_after(20))
    assert_same(run(other, tmp_path / "cut"), run(other, tmp_path / "fresh"))
    assert (tmp_path / "cut" / "checkpoint.npz.damaged").exists()


def test_a_refused_checkpoint_changes_nothing():
    loop = small_loop()
    loop.restart([1, 2, 3])
    before = loop.state()
    foreign = {name: value + 1 for name, value in before.items()}
    foreign["parameter/3"] = np.zeros(7)
    with pytest.raises(ValueError, match="parameter/3 has shape"):
        loop.load(foreign)
    for name, value in loop.state().items():
        np.testing.assert_array_equal(value, before[name])


def test_large_seeds_have_streams_of_their_own():
    from opselect.learners.loop import _seed_pairs

    pairs = {tuple(p) for p in _seed_pairs([0, 1, 2**31, 2**31 + 1, 2**40]).numpy().tolist()}
    assert len(pairs) == 5


def test_a_run_that_makes_no_sense_is_refused_before_it_trains():
    sparse = dataclasses.replace(SMALL, reward="sparse")
    with pytest.raises(ValueError, match="'soft-mixture' does not apply to this task: a sparse reward"):
        RunConfig("x", sparse, LEARNERS["soft-mixture"], (0,), 10)
    with pytest.raises(ValueError, match="uniform-random agent both expect the reward 1"):
        RunConfig("x", Task(("identity", "abs"), low=0.5, high=1.0), RLOO, (0,), 10)
    with pytest.raises(ValueError, match="seeds must be integers"):
        RunConfig("x", SMALL, RLOO, (0.5,), 10)
    assert RunConfig("x", SMALL, RLOO, tuple(np.arange(2)), 10).to_dict()["seeds"] == [0, 1]


def test_a_users_operations_are_told_apart_by_their_code():
    def config(function):
        mine = Operation("mine", 1, function, lambda xp, x: xp.abs(x) <= 1e3, 1.0, "mine({0})")
        return RunConfig("x", Task(("neg", mine), low=0.5, high=2.0, regions=2), RLOO, (0,), 10)

    folders = {config(f).folder for f in (lambda xp, x: x + x, lambda xp, x: x * x, lambda xp, x: x * 3.0)}
    assert len(folders) == 3
    assert config(lambda xp, x: x + x).folder in folders


def test_a_long_chain_runs_without_enumerating_its_paths(tmp_path):
    task = Task(TINY_CHAIN.operations, low=-2.0, high=2.0, horizon=12, goal=True, rule=None, frequencies=1,
                mask_actions=True)  # fmt: skip
    learner = dataclasses.replace(RLOO, estimator=LeaveOneOut(2), chain_rows=4, chain_hidden=(4,))
    result = run(RunConfig("long", task, learner, (0,), 2, points=1, held_out=50, xla=False), tmp_path)
    assert result.picture.choice.shape == (50, 12)
    assert (result.picture.right[:, 0] == -1).all()


def test_cells_say_what_does_not_apply(monkeypatch):
    sparse = dataclasses.replace(SMALL, reward="sparse")
    monkeypatch.setitem(TASKS, "Sparse", sparse)
    long = dataclasses.replace(TASKS["OpChain"], horizon=6)
    monkeypatch.setitem(TASKS, "Long", long)
    runs, inapplicable = cells(["Sparse", "Long"], ["exact", "soft-mixture"], PRESETS["quick"], seeds=2, first_seed=5)
    assert [(r.name, r.learner.name, r.seeds) for r in runs] == [
        ("Sparse", "exact", (5, 6)),
        ("Long", "soft-mixture", (5, 6)),
    ]
    assert inapplicable["Sparse", "soft-mixture"] == "a sparse reward has no gradient to follow"
    assert "46656 outcomes are more than cap=4096" in inapplicable["Long", "exact"]


def test_a_configuration_names_its_folder_by_all_that_matters():
    names = {
        c.folder
        for c in (
            CONFIG,
            dataclasses.replace(CONFIG, steps=41),
            dataclasses.replace(CONFIG, seeds=(1, 2)),
            dataclasses.replace(CONFIG, task=dataclasses.replace(SMALL, tolerance=0.1)),
            dataclasses.replace(CONFIG, learner=dataclasses.replace(RLOO, estimator=LeaveOneOut(3))),
        )
    }
    assert len(names) == 5
    with pytest.raises(ValueError, match="seeds must be distinct"):
        dataclasses.replace(CONFIG, seeds=(1, 1))
    with pytest.raises(ValueError, match="steps must be an integer >= 1, got 0"):
        dataclasses.replace(CONFIG, steps=0)


def test_greedy_is_the_argmax():
    logits = tf.constant([[[0.0, 2.0, 1.0]]])
    np.testing.assert_array_equal(Greedy().propose(logits, (), None).weights, [[[[0.0, 1.0, 0.0]]]])


def test_a_users_estimator_is_told_apart_by_its_code():
    """Else a run after a change of the code would return what the old code did."""

    def of(factor):
        @dataclasses.dataclass(frozen=True)
        class Mine(type(LEARNERS["reinforce"].estimator)):
            def surrogate(self, losses, proposals, state):
                surrogate, state = super().surrogate(losses, proposals, state)
                return surrogate * factor, state

        return Mine

    def config(estimator):
        learner = dataclasses.replace(LEARNERS["reinforce"], estimator=estimator)
        return RunConfig("Small", SMALL, learner, (0,), 10)

    @dataclasses.dataclass(frozen=True)
    class Other(type(LEARNERS["reinforce"].estimator)):
        def surrogate(self, losses, proposals, state):
            surrogate, state = super().surrogate(losses, proposals, state)
            return surrogate / 2.0, state

    Other.__name__ = "Mine"
    first, again, other = config(of(2.0)()), config(of(2.0)()), config(Other())
    assert first.folder == again.folder
    assert first.folder != other.folder
    assert "code" not in RunConfig("Small", SMALL, RLOO, (0,), 10).to_dict()["learner"]["estimator"]
