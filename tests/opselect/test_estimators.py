"""Bias and variance of every estimator against exact figures, by enumerating all outcomes wherever they can be.

`tests/data/estimator_golden.json` holds closed-form sums in float64, computed independently of this package (see its
note); the problems are f(w) = |w.o - y|**q over K operations with outputs o.
"""

from __future__ import annotations

import itertools
import json
import pathlib

import numpy as np
import pytest

from opselect._tensorflow import tf
from opselect.estimators import (
    ESTIMATORS,
    PPO,
    Drawn,
    Estimator,
    Exact,
    GumbelSoftmax,
    GumbelSoftmaxStraightThrough,
    InvalidShapeError,
    LeaveOneOut,
    MovingAverageReinforce,
    Proposal,
    Reinforce,
    SelfCritical,
    SoftMixture,
    StraightThrough,
    ValueReinforce,
)
from opselect.estimators.base import occupancy
from opselect.numerics import straight_through
from opselect.random import as_seed

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "data" / "estimator_golden.json").read_text())
PROBLEMS = GOLDEN["problems"]
IDS = [f"K{len(p['outputs'])}-q{p['power']}-y{p['target']}" for p in PROBLEMS]
every_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)


def objective(problem):
    """f [S, ..., D, K] -> [S, ...] of a golden problem (D = 1)."""
    outputs = tf.constant(problem["outputs"], tf.float32)

    def f(weights):
        return tf.pow(tf.abs(tf.reduce_sum(weights * outputs, [-2, -1]) - problem["target"]), problem["power"])

    return f


def logits_of(problem):
    return tf.constant([problem["logits"]], tf.float32)  # [D = 1, K]


def tuples(problem, samples):
    """All K**S tuples of one-hots [N, S, 1, K] and their probabilities [N]."""
    k, p = len(problem["outputs"]), np.array(problem["probabilities"])
    codes = np.array(list(itertools.product(range(k), repeat=samples)))
    return np.eye(k, dtype=np.float32)[codes][:, :, None, :], p[codes].prod(1)


def estimate(estimator, f, logits, weights_of, state=None, value=None):
    """The gradient estimates [N, K] for N proposals whose weights [S, N, 1, K] are made by weights_of(logits)."""
    with tf.GradientTape() as tape:
        tape.watch(logits)
        weights = tf.convert_to_tensor(weights_of(logits))
        rows = tf.broadcast_to(logits, [weights.shape[1], 1, logits.shape[-1]])
        proposal = Proposal(weights, rows, value=value)
        state = estimator.init(rows) if state is None else state
        surrogate, _ = estimator.surrogate(f(weights), [proposal], state)
    return tape.jacobian(surrogate, logits).numpy()[:, 0]


def check_against(golden, gradients, probabilities):
    """Compares mean and variance, as enumerated, with the golden ones at 1e-5 of their own size."""
    gradients = gradients.astype(np.float64)
    mean = (probabilities[:, None] * gradients).sum(0)
    variance = (probabilities * ((gradients - mean) ** 2).sum(1)).sum()
    scale = max(1.0, np.abs(gradients).max())
    np.testing.assert_allclose(mean, golden["mean"], atol=1e-5 * scale, rtol=1e-5)
    np.testing.assert_allclose(variance, golden["variance"], atol=1e-5 * scale**2, rtol=1e-5)


@every_problem
def test_exact_gradient(problem):
    logits = logits_of(problem)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        proposal = Exact().propose(logits, (), as_seed(0))
        surrogate, _ = Exact().surrogate(objective(problem)(proposal.weights), [proposal], ())
    np.testing.assert_allclose(surrogate, problem["expected_loss"], rtol=1e-5)
    gradient = tape.gradient(surrogate, logits).numpy()[0]
    np.testing.assert_allclose(gradient, problem["true_gradient"], atol=1e-5, rtol=1e-5)


@every_problem
def test_reinforce(problem):
    weights, p = tuples(problem, 1)
    gradients = estimate(Reinforce(), objective(problem), logits_of(problem), lambda _: weights.swapaxes(0, 1))
    check_against(problem["estimators"]["reinforce"], gradients, p)


@every_problem
def test_moving_average_at_the_mean_is_the_mean_baseline(problem):
    weights, p = tuples(problem, 1)
    # A state of weight w and average w * E[f] reads as the baseline E[f].
    state = (tf.constant(0.5 * problem["expected_loss"], tf.float32), tf.constant(0.5))
    gradients = estimate(
        MovingAverageReinforce(), objective(problem), logits_of(problem), lambda _: weights.swapaxes(0, 1), state
    )
    check_against(problem["estimators"]["reinforce_mean_baseline"], gradients, p)


@every_problem
@pytest.mark.parametrize(
    ("golden", "baseline"),
    [("reinforce_mean_baseline", "mean"), ("reinforce_optimal_baseline", "optimal")],
)
def test_value_baseline_at_a_constant(problem, golden, baseline):
    weights, p = tuples(problem, 1)
    losses = np.array(problem["losses"])
    score = ((np.eye(len(p)) - np.array(problem["probabilities"])) ** 2).sum(1)
    constant = problem["expected_loss"] if baseline == "mean" else (p * score * losses).sum() / (p * score).sum()
    value = tf.fill([len(p)], tf.constant(constant, tf.float32))
    gradients = estimate(
        ValueReinforce(), objective(problem), logits_of(problem), lambda _: weights.swapaxes(0, 1), value=value
    )
    check_against(problem["estimators"][golden], gradients, p)


@every_problem
def test_self_critical(problem):
    weights, p = tuples(problem, 1)
    greedy = np.eye(len(p), dtype=np.float32)[np.argmax(problem["logits"])]
    both = np.stack([weights[:, 0], np.broadcast_to(greedy, weights[:, 0].shape)])
    gradients = estimate(SelfCritical(), objective(problem), logits_of(problem), lambda _: both)
    check_against(problem["estimators"]["reinforce_self_critical"], gradients, p)


@every_problem
@pytest.mark.parametrize("samples", [2, 3, 4])
def test_leave_one_out(problem, samples):
    weights, p = tuples(problem, samples)
    gradients = estimate(LeaveOneOut(samples), objective(problem), logits_of(problem), lambda _: weights.swapaxes(0, 1))
    check_against(problem["estimators"][f"rloo_k{samples}"], gradients, p)


@every_problem
def test_straight_through(problem):
    weights, p = tuples(problem, 1)
    gradients = estimate(
        StraightThrough(),
        objective(problem),
        logits_of(problem),
        lambda logits: straight_through(tf.constant(weights.swapaxes(0, 1)), tf.nn.softmax(logits)),
    )
    check_against(problem["estimators"]["straight_through_softmax"], gradients, p)


@every_problem
def test_soft_mixture(problem):
    gradients = estimate(
        SoftMixture(), objective(problem), logits_of(problem), lambda logits: tf.nn.softmax(logits)[None, None]
    )
    check_against(problem["estimators"]["soft_mixture"], gradients, np.ones(1))


# --- what can't be enumerated: sampled, within 4 standard errors ------------------------------------------------------

ROWS = 40_000


def sampled_gradients(estimator, problem, jit, rows=ROWS, replicas=1):
    """Estimates [rows, K] through `propose`, as a learner would."""
    f = objective(problem)
    base = tf.constant(problem["logits"], tf.float32)
    k = base.shape[0]

    @tf.function(jit_compile=jit, autograph=False)
    def gradients(seed):
        logits = tf.broadcast_to(base, [replicas, rows, 1, k])
        with tf.GradientTape() as tape:
            tape.watch(logits)
            state = estimator.init(logits)
            proposal = estimator.propose(logits, state, seed)
            if estimator.needs_value:
                value = tf.fill([replicas, rows], tf.constant(problem["expected_loss"], tf.float32))
                proposal = Proposal(proposal.weights, proposal.logits, value=value)
            surrogate, _ = estimator.surrogate(f(proposal.weights), [proposal], state)
        return tape.gradient(surrogate, logits)

    seed = tf.stack([as_seed(7 + r) for r in range(replicas)])
    return gradients(seed).numpy()[..., 0, :].reshape(-1, k).astype(np.float64)


SAMPLED = {
    "exact": ("exact", ESTIMATORS["exact"]),
    "reinforce": ("reinforce", ESTIMATORS["reinforce"]),
    "reinforce-ema": ("reinforce", ESTIMATORS["reinforce-ema"]),  # its first baseline is 0
    "reinforce-value": ("reinforce_mean_baseline", ESTIMATORS["reinforce-value"]),
    "ppo": ("reinforce_mean_baseline", ESTIMATORS["ppo"]),  # its samples are fresh here
    "reinforce-self-critical": ("reinforce_self_critical", ESTIMATORS["reinforce-self-critical"]),
    "reinforce-rloo": ("rloo_k4", ESTIMATORS["reinforce-rloo"]),
    "soft-mixture": ("soft_mixture", ESTIMATORS["soft-mixture"]),
    "straight-through": ("straight_through_softmax", ESTIMATORS["straight-through"]),
    "reinmax": ("reinmax_tau1", ESTIMATORS["reinmax"]),
}


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("name", SAMPLED)
def test_propose_draws_what_surrogate_expects(name, jit):
    problem = PROBLEMS[0]
    golden_name, estimator = SAMPLED[name]
    golden = problem["estimators"][golden_name]
    g = sampled_gradients(estimator, problem, jit)
    error = np.sqrt(g.var(0) / len(g)) + 1e-6
    assert np.all(np.abs(g.mean(0) - golden["mean"]) < 4 * error)
    squared = ((g - golden["mean"]) ** 2).sum(1)
    assert abs(squared.mean() - golden["variance"]) < 4 * squared.std() / np.sqrt(len(g)) + 1e-6


def gumbel_gradients_by_hand(problem, temperature, hard, rows, seed):
    """The Gumbel-softmax gradient in NumPy from its formula: (diag(y) - y y^T) f'(w) / tau, w = y or its argmax."""
    rng = np.random.default_rng(seed)
    logits, o = np.array(problem["logits"]), np.array(problem["outputs"])
    z = (logits + rng.gumbel(size=(rows, len(o)))) / temperature
    y = np.exp(z - z.max(1, keepdims=True))
    y /= y.sum(1, keepdims=True)
    w = np.eye(len(o))[y.argmax(1)] if hard else y
    residual = w @ o - problem["target"]
    slope = problem["power"] * np.abs(residual) ** (problem["power"] - 1) * np.sign(residual)
    d = slope[:, None] * o
    return y * (d - (y * d).sum(1, keepdims=True)) / temperature


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "straight-through"])
@pytest.mark.parametrize("problem", [PROBLEMS[0], PROBLEMS[5]], ids=[IDS[0], IDS[5]])
def test_gumbel_softmax(problem, hard, temperature):
    kind = GumbelSoftmaxStraightThrough if hard else GumbelSoftmax
    ours = sampled_gradients(kind(temperature=temperature), problem, jit=False)
    wanted = gumbel_gradients_by_hand(problem, temperature, hard, 10 * ROWS, seed=3)
    error = np.sqrt(ours.var(0) / len(ours) + wanted.var(0) / len(wanted))
    assert np.all(np.abs(ours.mean(0) - wanted.mean(0)) < 4 * error + 1e-6)
    squared, wanted_squared = ((ours - wanted.mean(0)) ** 2).sum(1), ((wanted - wanted.mean(0)) ** 2).sum(1)
    error = np.sqrt(squared.var() / len(squared) + wanted_squared.var() / len(wanted_squared))
    assert abs(squared.mean() - wanted_squared.mean()) < 4 * error


def test_straight_through_gumbel_forward_is_a_categorical_sample_at_any_temperature():
    logits = tf.broadcast_to(tf.constant(PROBLEMS[5]["logits"], tf.float32), [100_000, 1, 6])
    for temperature in (0.1, 10.0):
        estimator = GumbelSoftmaxStraightThrough(temperature=temperature)
        frequency = estimator.propose(logits, (), as_seed(5)).weights.numpy()[0, :, 0].mean(0)
        p = np.array(PROBLEMS[5]["probabilities"])
        assert np.all(np.abs(frequency - p) < 4 * np.sqrt(p * (1 - p) / 100_000))


def test_mean_of_straight_through_is_the_mixture_gradient_for_quadratic_losses():
    for problem in (p for p in PROBLEMS if p["power"] == 2.0):
        estimators = problem["estimators"]
        np.testing.assert_allclose(
            estimators["straight_through_softmax"]["mean"], estimators["soft_mixture"]["mean"], atol=1e-9
        )
        weights, p = tuples(problem, 1)
        gradients = estimate(
            StraightThrough(),
            objective(problem),
            logits_of(problem),
            lambda logits, w=weights: straight_through(tf.constant(w.swapaxes(0, 1)), tf.nn.softmax(logits)),
        )
        np.testing.assert_allclose(p @ gradients, estimators["soft_mixture"]["mean"], atol=2e-5)


# --- several decisions ------------------------------------------------------------------------------------------------


def chain_loss(weights, tables):
    """A loss of T dependent decisions: the state picks the row of the next table. weights: T arrays [S, K]."""
    state = np.zeros(weights[0].shape[0], int)
    total = np.zeros(weights[0].shape[0])
    for w, table in zip(weights, tables, strict=True):
        choice = w.argmax(1)
        total += table[state, choice]
        state = choice
    return total.astype(np.float32)


def chain(estimator, theta, tables, seed, samples_state=()):
    """Rolls T decisions out, the logits of decision t being row ``state`` of theta[t] [K, K]; the gradient in theta."""
    with tf.GradientTape() as tape:
        tape.watch(theta)
        state = tf.zeros([1], tf.int32)
        proposals, chosen = [], []
        for t in range(len(tables)):
            logits = tf.gather(theta[t], state)[:, None, :]  # [S', 1, K]
            proposal = estimator.propose(logits if t else logits[0], samples_state, as_seed([seed, t]), decision=t)
            branch = proposal.weights.shape[0] // (proposals[-1].weights.shape[0] if t else proposal.weights.shape[0])
            chosen = [tf.repeat(c, branch, axis=0) for c in chosen] + [proposal.weights[:, 0]]
            state = tf.argmax(proposal.weights[:, 0], -1, output_type=tf.int32)
            proposals.append(proposal)
        losses = tf.constant(chain_loss([c.numpy() for c in chosen], tables))
        surrogate, _ = estimator.surrogate(losses, proposals, samples_state)
    return tape.gradient(surrogate, theta).numpy(), float(surrogate), proposals


@pytest.fixture
def small_chain():
    rng = np.random.default_rng(11)
    theta = rng.normal(size=(3, 3, 3)).astype(np.float32)
    return theta, [rng.normal(size=(3, 3)) for _ in range(3)]


def chain_gradient_by_hand(theta, tables):
    """sum over all paths of p(path) loss(path) (sum_t grad log p_t), in float64."""
    theta = theta.astype(np.float64)
    p = np.exp(theta) / np.exp(theta).sum(-1, keepdims=True)
    gradient, expected = np.zeros_like(theta), 0.0
    for path in itertools.product(range(3), repeat=3):
        state, probability, loss, score = 0, 1.0, 0.0, np.zeros_like(theta)
        for t, choice in enumerate(path):
            probability *= p[t, state, choice]
            loss += tables[t][state, choice]
            score[t, state] += np.eye(3)[choice] - p[t, state]
            state = choice
        gradient += probability * loss * score
        expected += probability * loss
    return gradient, expected


def test_exact_enumerates_dependent_decisions(small_chain):
    theta, tables = small_chain
    gradient, value, proposals = chain(Exact(), tf.constant(theta), tables, seed=0)
    wanted, expected = chain_gradient_by_hand(theta, tables)
    assert [p.weights.shape[0] for p in proposals] == [3, 9, 27]
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, wanted, atol=1e-6)
    np.testing.assert_allclose(tf.reduce_sum(occupancy(proposals)), 1.0, rtol=1e-6)


@pytest.mark.parametrize("estimator", [Reinforce(2000), LeaveOneOut(2000)], ids=["reinforce", "rloo"])
def test_sampled_chains_agree_with_the_exact_gradient(small_chain, estimator):
    theta, tables = small_chain
    wanted, _ = chain_gradient_by_hand(theta, tables)
    draws = np.stack([chain(estimator, tf.constant(theta), tables, seed=s)[0] for s in range(20)])
    error = draws.std(0, ddof=1) / np.sqrt(len(draws)) + 1e-6
    assert np.abs(wanted).max() > 0.1
    assert np.all(np.abs(draws.mean(0) - wanted) < 5 * error)


def test_self_critical_chain_keeps_the_greedy_path_apart(small_chain):
    theta, tables = small_chain
    _, _, proposals = chain(SelfCritical(), tf.constant(theta), tables, seed=3)
    state = 0
    for t, p in enumerate(proposals):
        greedy = int(theta[t, state].argmax())
        np.testing.assert_array_equal(p.weights[1, 0], np.eye(3)[greedy])
        state = greedy


def test_logits_may_carry_the_trajectories_at_the_first_decision_too():
    """An environment's rollouts start from different states, so their logits have the axis S from the start."""
    rng = np.random.default_rng(4)
    logits = tf.constant(rng.normal(size=(2, 5, 1, 3)), tf.float32)
    weights, losses = tf.one_hot(rng.integers(0, 3, (2, 5, 1)), 3), tf.constant(rng.normal(size=(2, 5)), tf.float32)
    p, advantage = tf.nn.softmax(logits).numpy(), losses.numpy() - losses.numpy()[::-1]
    for estimator, share in ((SelfCritical(), [1.0, 0.0]), (LeaveOneOut(2), [0.5, 0.5])):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            surrogate, _ = estimator.surrogate(losses, [Proposal(weights, logits)], ())
        wanted = (np.array(share)[:, None] * advantage)[..., None, None] * (weights - p)
        np.testing.assert_allclose(tape.gradient(surrogate, logits), wanted, atol=1e-6)


def test_exact_sums_over_joint_decisions():
    rng = np.random.default_rng(2)
    logits, cost = rng.normal(size=(2, 3)), rng.normal(size=(3, 3))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    x = tf.constant(logits, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(x)
        proposal = Exact().propose(x, (), as_seed(0))
        losses = tf.einsum("sa,sb,ab->s", proposal.weights[:, 0], proposal.weights[:, 1], tf.constant(cost, tf.float32))
        surrogate, _ = Exact().surrogate(losses, [proposal], ())
    np.testing.assert_allclose(surrogate, p[0] @ cost @ p[1], rtol=1e-5)
    jacobian = [np.diag(row) - np.outer(row, row) for row in p]
    wanted = np.stack([jacobian[0] @ (cost @ p[1]), jacobian[1] @ (p[0] @ cost)])
    np.testing.assert_allclose(tape.gradient(surrogate, x), wanted, atol=1e-6)


# --- state, parameters behind f, errors -------------------------------------------------------------------------------


def test_moving_average_is_read_before_it_is_updated_and_kept_per_replica():
    estimator = MovingAverageReinforce(decay=0.75)
    logits = tf.zeros([2, 3, 1, 4])
    state = estimator.init(logits)
    weights = tf.one_hot(tf.zeros([1, 2, 3, 1], tf.int32), 4)
    losses = tf.constant([[[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]])
    baselines = []
    for _ in range(3):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            surrogate, new = estimator.surrogate(losses, [Proposal(weights, logits)], state)
        # d log p(0) / d logit 0 = 1 - 1/4
        advantage = tape.gradient(surrogate, logits).numpy()[..., 0, 0] / 0.75
        baselines.append((losses.numpy()[0] - advantage)[:, 0])
        state = new
    np.testing.assert_allclose(baselines, [[0, 0], [2, 20], [2, 20]], atol=1e-5)


def test_parameters_behind_the_objective_get_their_ordinary_gradient():
    scale = tf.Variable(1.5)
    for name, estimator in ESTIMATORS.items():
        logits = tf.constant(np.random.default_rng(0).normal(size=(5, 1, 3)), tf.float32)
        with tf.GradientTape() as tape:
            proposal = estimator.propose(logits, estimator.init(logits), as_seed(1))
            if estimator.needs_value:
                proposal = Proposal(proposal.weights, logits, value=tf.ones([5]))
            outputs = tf.reduce_sum(proposal.weights * tf.constant([1.0, 2.0, 4.0]), [-2, -1])
            surrogate, _ = estimator.surrogate(scale * outputs, [proposal], estimator.init(logits))
            total = tf.reduce_sum(surrogate)
        # The surrogate's value is the loss trained on, which is linear in scale.
        np.testing.assert_allclose(tape.gradient(total, scale), total / 1.5, rtol=1e-5, err_msg=name)
        assert 5.0 < total / 1.5 < 20.0, name


@every_problem
def test_clipped_surrogate_on_samples_of_an_older_policy(problem):
    """For each outcome: r A s inside the clip or where the clip would make things worse, else 0."""
    weights, _ = tuples(problem, 1)
    k, clip, drawn_value = len(problem["outputs"]), 0.1, problem["expected_loss"]
    p, advantage = np.array(problem["probabilities"]), np.array(problem["losses"]) - drawn_value
    # The first outcome has moved as far as the clip lets it, the others hardly.
    old = np.log(p) + np.where(np.arange(k) == 0, 0.3 * np.sign(advantage[0]), 0.05)
    logits = logits_of(problem)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        rows = tf.broadcast_to(logits, [k, 1, k])
        proposal = Proposal(
            tf.constant(weights.swapaxes(0, 1)),
            rows,
            value=tf.fill([k], tf.constant(-99.0)),  # what the baseline says by now does not matter
            record=Drawn(tf.constant(old[None], tf.float32), tf.fill([k], tf.constant(drawn_value, tf.float32))),
        )
        surrogate, _ = PPO(clip=clip).surrogate(objective(problem)(proposal.weights), [proposal], ())
    found = tape.jacobian(surrogate, logits).numpy()[:, 0]
    ratio = p / np.exp(old)
    held = ((advantage > 0) & (ratio < 1 - clip)) | ((advantage < 0) & (ratio > 1 + clip))
    expected = np.where(held, 0.0, ratio * advantage)[:, None] * (np.eye(k) - p)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert held.tolist() == [True] + [False] * (k - 1)


def test_value_baseline_is_regressed_on_the_losses():
    value = tf.Variable([0.5, -1.0])
    logits = tf.zeros([2, 1, 3])
    weights = tf.one_hot([[[0], [1]]], 3)
    with tf.GradientTape() as tape:
        surrogate, _ = ValueReinforce(value_weight=2.0).surrogate(
            tf.constant([[2.0, 3.0]]), [Proposal(weights, logits, value=tf.identity(value))], ()
        )
    np.testing.assert_allclose(tape.gradient(surrogate, value), [2 * (0.5 - 2), 2 * (-1 - 3)], rtol=1e-6)
    np.testing.assert_allclose(surrogate, [2.0, 3.0])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_registry_entries_work_in_every_mode_and_shape(name):
    estimator = ESTIMATORS[name]
    assert isinstance(estimator, Estimator)
    results = {}
    for mode in ("eager", "graph", "xla"):

        def run(logits, seed):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                proposal = estimator.propose(logits, estimator.init(logits), seed)
                if estimator.needs_value:
                    proposal = Proposal(proposal.weights, logits, value=tf.zeros([2, 3]))
                losses = tf.reduce_sum(proposal.weights * tf.constant([0.1, 1.0, -1.0, 2.0]), [-2, -1])
                surrogate, _ = estimator.surrogate(losses, [proposal], estimator.init(logits))
            return proposal.weights, surrogate, tape.gradient(surrogate, logits)

        if mode != "eager":
            run = tf.function(run, jit_compile=mode == "xla", autograph=False)
        logits = tf.constant(np.random.default_rng(1).normal(size=(2, 3, 2, 4)), tf.float32)
        weights, surrogate, gradient = run(logits, tf.constant([[1, 2], [3, 4]]))
        assert weights.shape == (estimator.evaluations(4, 2), 2, 3, 2, 4)
        np.testing.assert_allclose(tf.reduce_sum(weights, -1), 1.0, rtol=1e-5)
        assert surrogate.shape == (2, 3)
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 1e-3
        np.testing.assert_allclose(tf.reduce_sum(gradient, -1), 0.0, atol=1e-5)
        results[mode] = weights, gradient
    for mode in ("graph", "xla"):
        for a, b in zip(results["eager"], results[mode], strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5)


def test_wrong_shapes_are_refused_by_name():
    with pytest.raises(InvalidShapeError, match=r"logits must be \[..., D, K\], got shape \(4,\)"):
        Reinforce().propose(tf.zeros([4]), (), as_seed(0))
    with pytest.raises(InvalidShapeError, match="at least K = 2"):
        SoftMixture().propose(tf.zeros([4, 1]), (), as_seed(0))
    with pytest.raises(InvalidShapeError, match="no replica axis"):
        Reinforce().propose(tf.zeros([3, 1, 4]), (), tf.zeros([3, 2], tf.int32))
    proposal = Reinforce().propose(tf.zeros([5, 1, 4]), (), as_seed(0))
    with pytest.raises(InvalidShapeError, match=r"losses have shape \(1, 5, 1\)"):
        Reinforce().surrogate(tf.zeros([1, 5, 1]), [proposal], ())
    with pytest.raises(InvalidShapeError, match="sequence"):
        Reinforce().surrogate(tf.zeros([1, 5]), proposal, ())
    with pytest.raises(InvalidShapeError, match="needs Proposal.value"):
        ValueReinforce().surrogate(tf.zeros([1, 5]), [proposal], ())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeaveOneOut(1), "samples must be an integer >= 2, got 1"),
        (lambda: GumbelSoftmax(temperature=0.0), "temperature must be > 0, got 0.0"),
        (lambda: MovingAverageReinforce(decay=1.0), r"decay must be in \[0, 1\), got 1.0"),
        (lambda: Exact(cap=100).evaluations(6, 3), r"6\*\*3 = 216 outcomes are more than cap=100"),
    ],
)
def test_wrong_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
