"""Straight-through estimators and sparse mixtures against NumPy formulas, enumerated over the outcomes of each draw."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pathlib

import numpy as np
import pytest
from scipy import stats

from opselect._tensorflow import tf
from opselect.estimators import (
    ESTIMATORS,
    DecoupledStraightThrough,
    EntmaxMixture,
    GappedStraightThrough,
    GumbelRao,
    GumbelSoftmaxStraightThrough,
    MinimumVariance,
    ReinMax,
    SparsemaxMixture,
    StraightThrough,
)
from opselect.random import as_seed, substream

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "data" / "estimator_golden.json").read_text())
PROBLEMS = GOLDEN["problems"]
IDS = [f"K{len(p['outputs'])}-q{p['power']}-y{p['target']}" for p in PROBLEMS]
every_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
NAMES = [
    "straight-through",
    "gumbel-rao",
    "gapped-straight-through",
    "decoupled-st",
    "reinmax",
    "mve",
    "sparsemax-mixture",
    "entmax-mixture",
]
SAMPLING = NAMES[:-2]
LOGITS = np.array([0.4, -1.1, 0.9, 0.0, -0.3])


def softmax(logits):
    e = np.exp(np.asarray(logits, np.float64) - np.max(logits, -1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def jacobian(p):
    return np.diag(p) - np.outer(p, p)


def estimates(estimator, f, logits, rows, seed=3):
    """Estimates [N, K] and the one-hots [N, K] behind them, for N rows with the logits [K]."""
    logits = tf.broadcast_to(tf.constant(logits, tf.float32), [rows, 1, len(logits)])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        proposal = estimator.propose(logits, (), as_seed(seed))
        surrogate, _ = estimator.surrogate(f(proposal.weights), [proposal], ())
    return tape.gradient(surrogate, logits).numpy()[:, 0].astype(np.float64), proposal.weights.numpy()[0, :, 0]


def by_outcome(estimator, f, logits, rows=4096):
    """The estimate for each outcome [K, K], of an estimator with no other noise."""
    gradients, one_hots = estimates(estimator, f, logits, rows)
    result = np.zeros([len(logits)] * 2)
    for k in range(len(logits)):
        here = gradients[one_hots[:, k] == 1]
        assert len(here), f"outcome {k} was not drawn"
        np.testing.assert_allclose(here, here[:1].repeat(len(here), 0), atol=1e-6 * np.abs(here).max())
        result[k] = here[0]
    return result


def matrices(estimator, logits, rows=4096):
    """S [outcome, i, k]: what an estimator sends to logit k for a unit of slope in the weight i."""
    k = len(logits)
    return np.stack([by_outcome(estimator, lambda w, i=i: w[..., 0, i], logits, rows) for i in range(k)], 1)


def golden_objective(problem):
    outputs = tf.constant(problem["outputs"], tf.float32)
    return lambda w: tf.abs(tf.linalg.matvec(w, outputs)[..., 0] - problem["target"]) ** problem["power"]


def golden_slopes(problem):
    """The gradient of f at each vertex [K, K]."""
    o, q = np.array(problem["outputs"]), problem["power"]
    residual = o - problem["target"]
    return (q * np.abs(residual) ** (q - 1) * np.sign(residual))[:, None] * o


# --- second order -----------------------------------------------------------------------------------------------------


@every_problem
def test_reinmax_golden(problem):
    golden, p = problem["estimators"]["reinmax_tau1"], np.array(problem["probabilities"])
    g = by_outcome(ReinMax(), golden_objective(problem), problem["logits"])
    mean = p @ g
    scale = max(1.0, np.abs(g).max())
    np.testing.assert_allclose(mean, golden["mean"], atol=1e-5 * scale)
    np.testing.assert_allclose(p @ ((g - mean) ** 2).sum(1), golden["variance"], rtol=1e-5, atol=1e-5 * scale**2)
    if problem["power"] == 2.0:
        np.testing.assert_allclose(mean, problem["true_gradient"], atol=1e-5 * scale)


@pytest.mark.parametrize("temperature", [1.0, 1.5, 4.0])
def test_reinmax_formula(temperature):
    """[2 J(q) - J(p) / 2] d, which is [diag p + diag D - p D^T - D p^T] d / 2 at temperature 1."""
    p, tempered = softmax(LOGITS), softmax(LOGITS / temperature)
    wanted = []
    for one_hot in np.eye(5):
        wanted.append(2 * jacobian((tempered + one_hot) / 2) - jacobian(p) / 2)
        if temperature == 1.0:
            closed = np.diag(p) + np.diag(one_hot) - np.outer(p, one_hot) - np.outer(one_hot, p)
            np.testing.assert_allclose(wanted[-1], closed / 2, atol=1e-15)
    np.testing.assert_allclose(matrices(ReinMax(temperature), LOGITS), wanted, atol=1e-6)


@pytest.mark.parametrize("kind", [ReinMax, MinimumVariance])
def test_second_order_estimators_are_exact_for_quadratic_objectives(kind):
    rng = np.random.default_rng(5)
    square, linear = 0.3 * rng.normal(size=(5, 5)), rng.normal(size=5)
    b, a = tf.constant(square, tf.float32), tf.constant(linear, tf.float32)
    p = softmax(LOGITS)
    g = by_outcome(kind(), lambda w: tf.reduce_sum((tf.matmul(w, b) + a) * w, [-2, -1]), LOGITS)
    wanted = jacobian(p) @ (np.diag(square) + linear)  # f at the vertices
    assert np.abs(wanted).max() > 0.2
    np.testing.assert_allclose(p @ g, wanted, atol=1e-6)
    st = by_outcome(StraightThrough(), lambda w: tf.reduce_sum((tf.matmul(w, b) + a) * w, [-2, -1]), LOGITS)
    mixture = jacobian(p) @ ((square + square.T) @ p + linear)
    np.testing.assert_allclose(p @ st, mixture, atol=1e-6)
    assert np.abs(mixture - wanted).max() > 5e-3


def least_variance(p):
    """S [x, i, k] by least squares: of all solutions of the conditions on p_x S_ik(x), the one of least E|S|^2."""
    n = len(p)
    rows, right = [], []
    for i, x in itertools.combinations_with_replacement(range(n), 2):
        row = np.zeros((n, n))  # [x, i]
        row[x, i] += p[x]
        row[i, x] += p[i]
        rows.append(row)
        right.append(jacobian(p)[i] if i == x else np.zeros(n))
    for i in range(n):
        row = np.zeros((n, n))
        row[:, i] = p
        rows.append(row)
        right.append(jacobian(p)[i])
    scale = np.repeat(np.sqrt(p)[:, None], n, 1).ravel()  # minimum norm in sqrt(p_x) S(x)
    solution = np.linalg.lstsq(np.reshape(rows, (len(rows), -1)) / scale, np.array(right), rcond=1e-12)[0]
    return (solution / scale[:, None]).reshape(n, n, n)


@pytest.mark.parametrize(
    "logits", [LOGITS, np.zeros(4), np.array([2.5, 0.0, -2.0]), np.array([0.0, 3.0, 3.0, 0.0, 1.0, -1.0])]
)
def test_mve_is_the_least_variance_of_its_family(logits):
    p = softmax(logits)
    ours, wanted = matrices(MinimumVariance(), logits, rows=20_000), least_variance(p)
    np.testing.assert_allclose(ours, wanted, atol=2e-6)
    np.testing.assert_allclose(np.einsum("x,xik->ik", p, ours), jacobian(p), atol=2e-6)
    reinmax = matrices(ReinMax(), logits, rows=20_000)
    variance, other = (np.einsum("x,xik,xik->", p, s, s) for s in (ours, reinmax))
    assert variance < other + 1e-6 and (variance < 0.99 * other or np.ptp(logits) < 1)


def test_mve_of_two_operations_is_reinmax():
    for logits in ([0.3, -0.8], [2.0, -3.0]):
        ours, reinmax = (matrices(e, np.array(logits), 20_000) for e in (MinimumVariance(), ReinMax()))
        np.testing.assert_allclose(ours, reinmax, atol=1e-6)


def test_mve_stays_accurate_for_peaked_policies():
    """Float32 against the same formula in float64, with probabilities down to 1e-26."""
    logits = np.array([0.0, -1.0, -20.0, -60.0, 1.0])
    p = softmax(logits)
    resistance = p[:, None] * p / (p[:, None] + p)
    laplacian = np.diag(resistance.sum(1)) - resistance
    scaled = np.linalg.inv(laplacian / np.sqrt(np.outer(p, p)) + np.sqrt(np.outer(p, p)))
    u = scaled @ (jacobian(p) / np.sqrt(p)[:, None]) / np.sqrt(p)[:, None] / 2
    slopes = np.array([0.5, -1.0, 2.0, 3.0, 1.5])
    gradients, one_hots = estimates(
        MinimumVariance(), lambda w: tf.linalg.matvec(w, tf.constant(slopes, tf.float32))[..., 0], logits, 2000
    )
    for x in (0, 1, 4):
        s = (p / (p + p[x]))[:, None] * (u - u[x])
        s[x] = jacobian(p)[x] / (2 * p[x])
        here = gradients[one_hots[:, x] == 1]
        np.testing.assert_allclose(here, np.tile(slopes @ s, (len(here), 1)), atol=2e-6)


# --- Gumbel noise, gaps and temperatures ------------------------------------------------------------------------------

ROWS = 60_000


def four_errors(a, b):
    """Whether two samples [N, K] have the same mean, within four standard errors."""
    return np.all(np.abs(a.mean(0) - b.mean(0)) < 4 * np.sqrt(a.var(0) / len(a) + b.var(0) / len(b)) + 1e-7)


@pytest.mark.parametrize("problem", [PROBLEMS[0], PROBLEMS[5]], ids=[IDS[0], IDS[5]])
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_gumbel_rao_has_the_mean_of_straight_through_gumbel_softmax_and_less_variance(problem, temperature):
    f, logits = golden_objective(problem), problem["logits"]
    plain, _ = estimates(GumbelSoftmaxStraightThrough(temperature), f, logits, ROWS, seed=1)
    variances = [plain.var(0).sum()]
    for inner in (2, 8, 32):
        rao, _ = estimates(GumbelRao(temperature, inner), f, logits, ROWS, seed=2)
        assert four_errors(rao, plain)
        variances.append(rao.var(0).sum())
    assert variances == sorted(variances, reverse=True)
    assert variances[-1] < 0.9 * variances[0]
    # Var = Var E[.|D] + E Var[.|D] / inner, so four times the draws leave a quarter of the second part.
    between = (4 * variances[2] - variances[1]) / 3
    np.testing.assert_allclose(variances[3], between + (variances[1] - between) / 16, rtol=0.1)


def test_gumbel_rao_with_one_draw_is_straight_through_gumbel_softmax():
    f, logits = golden_objective(PROBLEMS[0]), PROBLEMS[0]["logits"]
    plain, plain_hard = estimates(GumbelSoftmaxStraightThrough(0.7), f, logits, ROWS, seed=1)
    rao, hard = estimates(GumbelRao(0.7, inner=1), f, logits, ROWS, seed=2)
    for k in (0, 2, 3):  # outcome 1 has no slope
        a, b = plain[plain_hard[:, k] == 1], rao[hard[:, k] == 1]
        for i in range(4):
            assert stats.ks_2samp(a[:, i], b[:, i]).pvalue > 1e-4


def test_gumbel_rao_is_not_differentiated_through_the_conditional_noise():
    """E J(y) / temperature given D, y = softmax((logits + G) / temperature), by rejection in NumPy."""
    rng = np.random.default_rng(0)
    z = LOGITS + rng.gumbel(size=(400_000, 5))
    s = [by_mean(z[z.argmax(1) == x] / 0.5) / 0.5 for x in range(5)]
    rao, hard = estimates(GumbelRao(0.5, 400), lambda w: w[..., 0, 2], LOGITS, 3000)
    for x in range(5):
        wanted, error = s[x][2], 0.02
        np.testing.assert_allclose(rao[hard[:, x] == 1].mean(0), wanted, atol=error * np.abs(s[x]).max())


def by_mean(z):
    y = softmax(z)
    return np.diag(y.mean(0)) - y.T @ y / len(y)


@pytest.mark.parametrize(("gap", "temperature"), [(1.0, 1.0), (0.0, 0.5), (2.5, 2.0)])
def test_gapped_straight_through_formula(gap, temperature):
    wanted = []
    for x in range(5):
        shifted = LOGITS.copy()
        shifted[x] = LOGITS.max()
        for j in set(range(5)) - {x}:
            shifted[j] -= max(LOGITS[j] - LOGITS.max() + gap, 0.0)
        wanted.append(jacobian(softmax(shifted / temperature)) / temperature)
    np.testing.assert_allclose(matrices(GappedStraightThrough(gap, temperature), LOGITS), wanted, atol=1e-6)


def test_decoupled_at_equal_temperatures_is_straight_through_gumbel_softmax_draw_by_draw():
    f, logits = golden_objective(PROBLEMS[5]), np.array(PROBLEMS[5]["logits"])
    for temperature in (1.0, 0.5, 3.0):
        ours, hard = estimates(DecoupledStraightThrough(temperature, temperature), f, logits, 500)
        plain, plain_hard = estimates(GumbelSoftmaxStraightThrough(1.0), f, logits / temperature, 500)
        np.testing.assert_array_equal(hard, plain_hard)
        np.testing.assert_allclose(ours, plain / temperature, rtol=1e-5, atol=1e-5)
        assert np.abs(ours).max() > 0.1


def test_decoupled_samples_at_one_temperature_and_differentiates_at_the_other():
    f = golden_objective(PROBLEMS[0])
    logits = np.array(PROBLEMS[0]["logits"])
    ours, hard = estimates(DecoupledStraightThrough(2.0, forward_temperature=0.4), f, logits, ROWS)
    p = softmax(logits / 0.4)
    assert np.all(np.abs(hard.mean(0) - p) < 4 * np.sqrt(p * (1 - p) / ROWS))
    g = np.random.default_rng(1).gumbel(size=(ROWS, 4))
    y, d = softmax(logits / 2.0 + g), golden_slopes(PROBLEMS[0])[(logits / 0.4 + g).argmax(1)]
    assert four_errors(ours, y * (d - (y * d).sum(1, keepdims=True)) / 2.0)


# --- sparse mixtures --------------------------------------------------------------------------------------------------


def projection(z, power):
    """The weights max(z - t, 0)**power of sum 1, by bisection: sparsemax for 1, 1.5-entmax of 2 z for 2."""
    low, high = z.max() - 1.0, z.max()
    for _ in range(100):
        t = (low + high) / 2
        low, high = (t, high) if (np.maximum(z - t, 0) ** power).sum() > 1 else (low, t)
    return np.maximum(z - low, 0) ** power


MIXTURES = {SparsemaxMixture: lambda z: projection(z, 1), EntmaxMixture: lambda z: projection(z / 2, 2)}


@pytest.mark.parametrize("kind", MIXTURES)
@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("index", range(len(PROBLEMS)))
def test_sparse_mixtures(kind, temperature, index):
    problem = PROBLEMS[index]
    o = np.array(problem["outputs"])
    logits = np.array(problem["logits"]) + 0.013 * np.arange(len(o))  # off the kinks, where one leaves the support

    def loss(z):
        return abs(MIXTURES[kind](z / temperature) @ o - problem["target"]) ** problem["power"]

    wanted = np.array([(loss(logits + h) - loss(logits - h)) / 2e-5 for h in 1e-5 * np.eye(len(o))])
    weights = MIXTURES[kind](logits / temperature)
    ours, proposed = estimates(kind(temperature), golden_objective(problem), logits, 1)
    np.testing.assert_allclose(proposed[0], weights, atol=1e-6)
    np.testing.assert_array_equal(proposed[0] == 0, weights == 0)
    np.testing.assert_allclose(ours[0], wanted, rtol=1e-4, atol=2e-5 * max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("kind", MIXTURES)
def test_a_dropped_operation_gets_no_gradient(kind):
    logits = np.array([0.0, 3.0, 2.8, 2.5, -1e9])
    ours, weights = estimates(kind(), lambda w: tf.square(1.0 - w[..., 0, 0] - w[..., 0, 2]), logits, 1)
    np.testing.assert_array_equal(weights[0] == 0, [True, False, False, False, True])
    np.testing.assert_array_equal(ours[0] == 0, [True, False, False, False, True])


# --- every mode and shape ---------------------------------------------------------------------------------------------


def run(estimator, logits, seed, decision=0):
    """Weights, and the gradient in the logits of a cubic objective."""
    slopes = tf.constant([0.1, 1.0, -1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        proposal = estimator.propose(logits, (), seed, decision=decision)
        losses = tf.reduce_sum(proposal.weights * slopes, [-2, -1]) ** 3
        surrogate, _ = estimator.surrogate(losses, [proposal], ())
    return proposal.weights, tape.gradient(surrogate, logits)


def rows(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_masked_operations_are_never_drawn_and_nothing_is_nan(name, dtype, in_mode):
    logits = rows((2, 50, 3, 4))
    logits[..., 1] = -1e9  # -inf in float16
    logits[0, :, 0, :3] = -1e9  # a single operation is left
    with np.errstate(over="ignore"):
        logits = tf.constant(logits.astype(dtype))
    weights, gradient = in_mode(lambda x, s: run(ESTIMATORS[name], x, s))(logits, tf.constant([[1, 2], [3, 4]]))
    assert weights.dtype == tf.float32 and gradient.dtype == dtype
    np.testing.assert_array_equal(weights[..., 1], 0)
    np.testing.assert_array_equal(weights[0, 0, :, 0, 3], 1)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[..., 1], 0)
    assert np.abs(gradient[0, :, 0]).max() < 1e-6 < np.abs(gradient[1]).max()
    np.testing.assert_allclose(
        tf.reduce_sum(tf.cast(gradient, tf.float32), -1), 0, atol=0.1 if dtype == "float16" else 1e-4
    )


@pytest.mark.parametrize("name", NAMES)
def test_extreme_logits_are_finite(name, in_mode):
    logits = tf.constant([[[1e4, -1e4, 0.0, 1e4]], [[0.0, 1e-30, 80.0, -80.0]], [[-1e9, -1e9, -1e9, -1e9]]])
    weights, gradient = in_mode(lambda x, s: run(ESTIMATORS[name], x, s))(logits, as_seed(1))
    assert np.isfinite(weights).all() and np.isfinite(gradient).all()
    np.testing.assert_allclose(tf.reduce_sum(weights, -1), 1.0, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_unknown_batch_size(name, mode):
    estimator, logits = ESTIMATORS[name], tf.constant(rows((7, 2, 4)))
    traced = tf.function(
        lambda x, s: run(estimator, x, s),
        input_signature=[tf.TensorSpec([None, 2, 4]), tf.TensorSpec([2], tf.int32)],
        jit_compile=mode == "xla",
        autograph=False,
    )
    for ours, wanted in zip(traced(logits, as_seed(1)), run(estimator, logits, as_seed(1)), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_replica_trains_as_it_would_alone(name):
    estimator, logits = ESTIMATORS[name], tf.constant(rows((2, 5, 2, 4)))
    seeds = tf.constant([[1, 2], [3, 4]])
    weights, gradient = run(estimator, logits, seeds)
    for r in range(2):
        alone, slope = run(estimator, logits[r : r + 1], seeds[r : r + 1])
        np.testing.assert_allclose(weights[:, r], alone[:, 0], atol=1e-6)
        np.testing.assert_allclose(gradient[r], slope[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_decisions_one_after_the_other(name, in_mode):
    """The second decision sees the first one's weights, and its gradient reaches the first logits through them."""
    estimator = ESTIMATORS[name]
    table = tf.constant(rows((4, 4), 3))

    def chain(first, seed):
        with tf.GradientTape() as tape:
            tape.watch(first)
            one = estimator.propose(first, (), seed)
            second = tf.matmul(one.weights, table)  # [S, B, 1, K]
            two = estimator.propose(second, (), seed + 1, decision=1)
            losses = tf.reduce_sum(two.weights * tf.constant([0.0, 1.0, 2.0, 5.0]), [-2, -1])
            surrogate, _ = estimator.surrogate(losses, [one, two], ())
        return two.weights, tape.gradient(surrogate, first)

    weights, gradient = in_mode(chain)(tf.constant(rows((6, 1, 4))), as_seed(2))
    assert weights.shape == (1, 6, 1, 4) and gradient.shape == (6, 1, 4)
    assert np.isfinite(gradient).all() and np.abs(gradient).max() > 1e-3
    alone, _ = run(estimator, tf.constant(rows((3, 6, 1, 4))), as_seed(2), decision=1)
    assert alone.shape == (3, 6, 1, 4)


@pytest.mark.parametrize("name", SAMPLING)
def test_samples_follow_the_policy(name):
    _, one_hots = estimates(ESTIMATORS[name], lambda w: w[..., 0, 0], LOGITS, ROWS)
    p = softmax(LOGITS)
    assert np.all(np.abs(one_hots.mean(0) - p) < 4 * np.sqrt(p * (1 - p) / ROWS))


@pytest.mark.parametrize("kind", [StraightThrough, ReinMax, MinimumVariance, GumbelRao, GappedStraightThrough])
def test_several_samples_are_averaged(kind):
    f = golden_objective(PROBLEMS[0])
    many, _ = estimates(kind(samples=16), f, PROBLEMS[0]["logits"], 20_000)
    one, _ = estimates(kind(), f, PROBLEMS[0]["logits"], ROWS, seed=4)
    assert kind(samples=16).evaluations(4, 1) == 16
    assert four_errors(many, one)
    np.testing.assert_allclose(many.var(0).sum(), one.var(0).sum() / 16, rtol=0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ReinMax(temperature=0.5), "temperature must be >= 1, got 0.5"),
        (lambda: GumbelRao(temperature=0), "temperature must be > 0, got 0"),
        (lambda: GumbelRao(inner=0), "inner must be an integer >= 1, got 0"),
        (lambda: GappedStraightThrough(gap=-1.0), "gap must be >= 0, got -1.0"),
        (lambda: DecoupledStraightThrough(forward_temperature=-1.0), "forward_temperature must be > 0, got -1.0"),
        (lambda: MinimumVariance(samples=0), "samples must be an integer >= 1, got 0"),
        (lambda: EntmaxMixture(temperature=0.0), "temperature must be > 0, got 0.0"),
    ],
)
def test_wrong_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["gumbel-softmax-st", "gumbel-rao"])
def test_noise_of_a_decision_is_not_that_of_the_next(name):
    """Two decisions that have nothing to do with each other: E[3 (D2_0 - D2_2) grad (D1_0 - D1_2)] = 0, row by row."""
    replicas = 200_000
    seeds = tf.constant(np.random.default_rng(0).integers(-(2**31), 2**31, (replicas, 2)), tf.int32)
    estimator = dataclasses.replace(ESTIMATORS[name], **({"inner": 1} if name == "gumbel-rao" else {}))
    first, second = tf.zeros([replicas, 1, 1, 3]), tf.zeros([1, replicas, 1, 1, 3])
    with tf.GradientTape() as tape:
        tape.watch(first)
        one = estimator.propose(first, (), substream(seeds, 0))
        two = estimator.propose(second, (), substream(seeds, 1), decision=1)
        product = [tf.reduce_sum(p.weights * [1.0, 0.0, -1.0], [-2, -1]) for p in (one, two)]
        surrogate, _ = estimator.surrogate(3.0 * product[0] * product[1], [one, two], ())
    gradients = tape.gradient(surrogate, first).numpy()[:, 0, 0].astype(np.float64)
    error = gradients.std(0) / math.sqrt(replicas)
    assert (np.abs(gradients.mean(0)) < 4.5 * error).all() and error.min() > 1e-4


def test_samples_are_those_of_the_policy_at_any_temperature():
    logits = tf.broadcast_to(tf.constant([[-1.0, 0.0, 1.0]]), [100_000, 1, 3])
    drawn = GumbelSoftmaxStraightThrough(temperature=1e8).propose(logits, (), as_seed(1)).weights
    np.testing.assert_allclose(
        tf.reduce_mean(drawn, [0, 1, 2]), np.exp([-1, 0, 1]) / np.exp([-1, 0, 1]).sum(), atol=0.01
    )
