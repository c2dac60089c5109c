"""The report against closed forms: the golden table, NumPy enumerations, and estimators whose figures are known."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import json
import math
import pathlib

import numpy as np
import pytest
import rich.console

from opselect._tensorflow import tf
from opselect.estimators import ESTIMATORS, GumbelSoftmax, InvalidShapeError, LeaveOneOut, MovingAverageReinforce
from opselect.gradients import gradient_report

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "data" / "estimator_golden.json").read_text())
PROBLEMS = GOLDEN["problems"]
IDS = [f"K{len(p['outputs'])}-q{p['power']}-y{p['target']}" for p in PROBLEMS]
GOLDEN_NAMES = {
    "exact": "exact",
    "reinforce": "reinforce",
    "reinforce-value": "reinforce_mean_baseline",
    "ppo": "reinforce_mean_baseline",
    "reinforce-self-critical": "reinforce_self_critical",
    "reinforce-rloo": "rloo_k4",
    "reinforce-optimal": "reinforce_optimal_baseline",
    "indecater": "exact",
    "sum-and-sample": "sum_and_sample_1_1",
    "soft-mixture": "soft_mixture",
    "straight-through": "straight_through_softmax",
    "reinmax": "reinmax_tau1",
}
SCORE_FUNCTIONS = [name for name, e in ESTIMATORS.items() if not e.needs_relaxation]


def report_on(objective, logits, estimators=None, **settings):
    return gradient_report(objective, logits, estimators, **{"timing": False, **settings})


def golden_objective(problem):
    outputs = tf.constant(problem["outputs"], tf.float32)
    return lambda weights: tf.abs(tf.linalg.matvec(weights, outputs) - problem["target"]) ** problem["power"]


@functools.cache
def golden_report(index):
    """That of a golden problem, shared by the tests that read figures off it."""
    problem = PROBLEMS[index]
    return report_on(golden_objective(problem), problem["logits"], list(GOLDEN_NAMES), samples=20_000, seed=4)


def without(report, *names):
    """The report as it is without some estimators: what is measured beside an estimator makes no difference to it."""
    return dataclasses.replace(report, rows=tuple(row for row in report.rows if row.estimator not in names))


def softmax(logits):
    e = np.exp(np.asarray(logits, np.float64) - np.max(logits, -1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def enumerate_reinforce(logits, loss):
    """Mean [D, K] and total variance of REINFORCE on loss(codes [D]), by all K**D outcomes."""
    p = softmax(logits)
    d, k = p.shape
    mean, square = np.zeros((d, k)), 0.0
    for codes in itertools.product(range(k), repeat=d):
        chance = math.prod(p[i, c] for i, c in enumerate(codes))
        g = loss(codes) * (np.eye(k)[list(codes)] - p)
        mean += chance * g
        square += chance * (g**2).sum()
    return mean, square - (mean**2).sum()


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(len(PROBLEMS)), ids=IDS)
def test_bias_and_variance_of_the_golden_table(index):
    problem, report = PROBLEMS[index], golden_report(index)
    np.testing.assert_allclose(report.reference, problem["true_gradient"], rtol=1e-5, atol=1e-6)
    assert report.expected_loss == pytest.approx(problem["expected_loss"], rel=1e-6)
    assert report.enumerated and report.reference_se == 0
    for name, golden_name in GOLDEN_NAMES.items():
        row, golden = report[name], problem["estimators"][golden_name]
        assert row.reason is None
        assert abs(row.bias - golden["bias"]) < 4.5 * row.bias_se, name
        assert row.bias_low <= golden["bias"] + 1e-6 and golden["bias"] <= row.bias_high * 1.2 + row.bias_se, name
        assert row.biased == (golden["bias"] > 1e-6), name
        rounding = 1e-6 * (1 + golden["variance"])
        assert abs(row.variance - golden["variance"]) < 4.5 * row.variance_se + rounding, name
        assert row.nan_share == 0
    assert report["exact"].variance == report["soft-mixture"].variance == 0
    assert report["exact"].bias < 1e-6 * max(problem["losses"])
    # 1 is the right answer only for the exact ones.
    assert report["exact"].cosine == pytest.approx(1.0, abs=1e-6)
    assert report["reinforce"].cosine < 0.999 < report["reinforce"].cosine_of_mean + 0.02


def test_cosine_and_shares_by_enumeration():
    problem = PROBLEMS[5]
    p, f, g = (np.array(problem[key]) for key in ("probabilities", "losses", "true_gradient"))
    report = golden_report(5)
    each = f[:, None] * (np.eye(6) - p)
    norm = np.linalg.norm(each, axis=1)
    cosine = np.where(norm > 0, each @ g / np.where(norm > 0, norm, 1) / np.linalg.norm(g), 0.0)
    wanted = p @ cosine
    error = np.sqrt((p @ cosine**2 - wanted**2) / 20_000)
    assert abs(report["reinforce"].cosine - wanted) < 4 * error
    # REINFORCE is zero where the loss is 0; leave-one-out where its four samples are the same operation.
    for name, share in (("reinforce", p[3]), ("reinforce-rloo", (p**4).sum())):
        assert abs(report[name].zero_share - share) < 4 * math.sqrt(share / 20_000), name


def test_moving_average_is_measured_in_its_steady_state():
    problem = PROBLEMS[0]
    p, f = np.array(problem["probabilities"]), np.array(problem["losses"])
    loss_variance = p @ f**2 - (p @ f) ** 2
    score = 1 - (p**2).sum()  # E ||e_i - p||**2
    for decay in (0.0, 0.5, 0.9):
        row = report_on(golden_objective(problem), problem["logits"], MovingAverageReinforce(decay=decay)).rows[0]
        # The baseline is independent of the sample, with mean E f and variance (1 - decay) / (1 + decay) Var f.
        wanted = problem["estimators"]["reinforce_mean_baseline"]["variance"]
        wanted += (1 - decay) / (1 + decay) * loss_variance * score
        assert abs(row.variance - wanted) < 4 * row.variance_se
        assert not row.biased and row.estimates >= 20_000
        assert row.estimator == ("reinforce-ema" if decay == 0.9 else f"MovingAverageReinforce(decay={decay})")


@pytest.mark.parametrize("logits", [np.zeros(8), np.linspace(-1, 1.5, 8)], ids=["uniform", "peaked"])
def test_a_cold_gumbel_softmax_is_mostly_stuck(logits):
    costs, temperature = np.linspace(-1, 2, 8).astype(np.float32), 0.01
    report = report_on(
        lambda w: tf.linalg.matvec(w, costs) ** 2, logits, {"cold": GumbelSoftmax(temperature=temperature)}, seed=1
    )
    # With a lead of gap / temperature the runner-up's weight is w = exp(-gap / temperature), and the gradient is of
    # length w times what depends on the two operations: zero to within rounding at w < 2**-18, give or take 2**5.
    p = softmax(logits)
    shares = [(p / (p + (1 - p) * np.exp(temperature * bits * math.log(2)))).sum() for bits in (23, 13)]
    error = 4 * math.sqrt(0.25 / 20_000)
    assert shares[0] - error < report["cold"].zero_share < shares[1] + error
    # The same in NumPy and float64, by sampling the formula.
    z = (logits + np.random.default_rng(0).gumbel(size=(20_000, 8))) / temperature
    w = softmax(z)
    value = w @ costs
    length = np.linalg.norm(2 * value[:, None] * w * (costs - value[:, None]) / temperature, axis=1)
    wanted = np.mean(length < 2.0**-18 * length.max())
    assert 0.8 < wanted < 0.95 and abs(report["cold"].zero_share - wanted) < 2 * error


def test_two_decisions_by_enumeration():
    rng = np.random.default_rng(3)
    logits, cost = rng.normal(size=(2, 3)), rng.normal(size=(3, 3))
    report = report_on(
        lambda w: tf.einsum("na,nb,ab->n", w[:, 0], w[:, 1], tf.constant(cost, tf.float32)), logits, samples=10_000
    )
    mean, variance = enumerate_reinforce(logits, lambda codes: cost[codes])
    np.testing.assert_allclose(report.reference, mean, atol=1e-6)
    assert report.outcomes == 9 and report["exact"].evaluations == 9 and report["exact"].enumerated
    assert abs(report["reinforce"].variance - variance) < 4 * report["reinforce"].variance_se
    assert not any(report[name].biased for name in SCORE_FUNCTIONS)
    # Multilinear f: the mixture's gradient is exact, and straight-through's mean, too.
    assert report["soft-mixture"].bias < 1e-6 and report["soft-mixture"].cosine == pytest.approx(1, abs=1e-6)
    assert not report["straight-through"].biased


def test_rows_are_averaged():
    rng = np.random.default_rng(4)
    logits, costs = rng.normal(size=(3, 2, 4)), rng.normal(size=(3, 2, 4)).astype(np.float32)
    f = lambda w: tf.reduce_sum(w * costs, [-2, -1]) ** 2  # noqa: E731
    report = report_on(f, logits, ["reinforce", "soft-mixture", "reinforce-ema", "exact"], samples=10_000)
    means, variances, mixture = [], [], []
    for row, cost in zip(logits, costs.astype(np.float64), strict=True):
        mean, variance = enumerate_reinforce(row, lambda codes, c=cost: sum(c[i, k] for i, k in enumerate(codes)) ** 2)
        means.append(mean)
        variances.append(variance)
        p = softmax(row)
        slope = 2 * (p * cost).sum() * cost
        mixture.append(p * (slope - (p * slope).sum(-1, keepdims=True)))
    np.testing.assert_allclose(report.reference, means, atol=1e-5)
    assert report.gradient_norm == pytest.approx(np.sqrt(np.mean([(m**2).sum() for m in means])), rel=1e-5)
    assert abs(report["reinforce"].variance - np.mean(variances)) < 4 * report["reinforce"].variance_se
    assert abs(report["reinforce"].bias) < 4 * report["reinforce"].bias_se
    biases = [((a - b) ** 2).sum() for a, b in zip(mixture, means, strict=True)]
    assert report["soft-mixture"].bias == pytest.approx(np.sqrt(np.mean(biases)), rel=1e-4)
    cosines = [(a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(mixture, means, strict=True)]
    assert report["soft-mixture"].cosine == pytest.approx(np.mean(cosines), abs=1e-5)
    assert report["exact"].bias < 1e-5 and not report["reinforce-ema"].biased


def test_above_the_cap_the_reference_is_sampled_and_its_error_counts():
    rng = np.random.default_rng(5)
    logits, costs = rng.normal(size=(10, 3)), rng.normal(size=(10, 3)).astype(np.float32)
    p = softmax(logits)
    # Separable: sum_d c_d. Its gradient is J_d c_d.
    separable = report_on(lambda w: tf.reduce_sum(w * costs, [-2, -1]), logits, ["exact", "reinforce"], samples=3_000)
    wanted = p * (costs - (p * costs).sum(-1, keepdims=True))
    np.testing.assert_allclose(separable.reference, wanted, atol=1e-5)
    assert not separable.enumerated and separable.outcomes == 3**10
    assert "59049 outcomes are more than cap=4096" in separable["exact"].reason
    assert separable["exact"].bias is None and separable["exact"].evaluations is None
    assert not separable["reinforce"].biased
    # Its square: the others' mean m_d enters, J_d (c_d**2 + 2 c_d m_d).
    square = lambda w: tf.reduce_sum(w * costs, [-2, -1]) ** 2  # noqa: E731
    report = report_on(square, logits, ["soft-mixture", "reinforce-rloo"], samples=3_000)
    means = (p * costs).sum(-1, keepdims=True)
    slope = costs**2 + 2 * costs * (means.sum() - means)
    wanted = p * (slope - (p * slope).sum(-1, keepdims=True))
    error = np.linalg.norm(report.reference - wanted)
    assert 0 < error < 3 * report.reference_se < 0.2 * report.gradient_norm
    # E (sum c)**2 = (E sum c)**2 + sum of variances
    expected = means.sum() ** 2 + ((p * costs**2).sum() - (means**2).sum())
    assert report.expected_loss == pytest.approx(expected, rel=0.02)
    mixture = 2 * means.sum() * costs
    mixture = p * (mixture - (p * mixture).sum(-1, keepdims=True))
    row = report["soft-mixture"]
    assert row.variance == 0 and row.bias_se == pytest.approx(report.reference_se, rel=1e-3)
    assert abs(row.bias - np.linalg.norm(mixture - wanted)) < 4 * row.bias_se
    assert row.biased and row.bias_low < np.linalg.norm(mixture - wanted) < row.bias_high
    assert not report["reinforce-rloo"].biased


def test_a_cap_below_k_to_the_d_agrees_with_enumeration():
    costs = np.random.default_rng(6).normal(size=(3, 4)).astype(np.float32)
    f = lambda w: tf.exp(tf.reduce_sum(w * costs, [-2, -1]))  # noqa: E731
    logits = np.linspace(-1, 1, 12).reshape(3, 4)
    enumerated, sampled = (report_on(f, logits, "exact", cap=cap, samples=5_000) for cap in (64, 63))
    assert enumerated.enumerated and not sampled.enumerated
    assert np.linalg.norm(enumerated.reference - sampled.reference) < 3 * sampled.reference_se
    assert "cap=63" in sampled["exact"].reason and enumerated["exact"].reason is None


@dataclasses.dataclass(frozen=True)
class OwnMean:
    """A known mistake: the baseline holds the sample it is subtracted from, which shrinks the gradient by 1 - 1/S."""

    samples: int = 4
    needs_relaxation = False
    needs_value = False
    sequential = True
    evaluations = LeaveOneOut.evaluations
    init = LeaveOneOut.init
    propose = LeaveOneOut.propose

    def surrogate(self, losses, proposals, state):
        surrogate, state = LeaveOneOut.surrogate(self, losses, proposals, state)
        return surrogate * (1 - 1 / self.samples), state


def test_a_shrunken_gradient_is_found_biased():
    problem = PROBLEMS[0]
    row = report_on(golden_objective(problem), problem["logits"], OwnMean()).rows[0]
    norm = np.linalg.norm(problem["true_gradient"])
    assert row.estimator == "OwnMean()" and row.biased
    assert abs(row.bias - norm / 4) < 4 * row.bias_se
    assert row.bias_low < norm / 4 < row.bias_high
    assert abs(row.variance - 9 / 16 * problem["estimators"]["rloo_k4"]["variance"]) < 4 * row.variance_se
    assert row.cosine_of_mean > 0.999


def test_the_test_for_bias_keeps_its_level():
    """The squared bias of an unbiased estimator is bias_se**2 on average, and the interval starts at 0."""
    problem = PROBLEMS[0]
    ratios = []
    for seed in range(8):
        report = report_on(golden_objective(problem), problem["logits"], "reinforce-rloo", samples=5_000, seed=seed)
        row = report.rows[0]
        assert not row.biased
        ratios.append((row.bias / row.bias_se) ** 2)
    assert 0.4 < np.mean(ratios) < 2.0


@pytest.mark.parametrize("name", ["reinforce", "reinforce-value", "reinforce-rloo", "reinforce-self-critical"])
def test_an_outcome_that_was_never_drawn_is_not_taken_for_bias(name):
    costs = tf.constant([1.0, 5.0, -3.0])
    for samples in (2, 1_000):  # of probability 1e-4: two draws out of three reports see neither
        row = report_on(lambda w: tf.linalg.matvec(w, costs), [9.0, 0.0, -0.5], name, samples=samples).rows[0]
        assert not row.biased and row.bias < 3 * row.bias_se


def test_rounding_is_not_bias():
    costs = np.array([0.0, 1.0, 3.0], np.float32)
    row = report_on(lambda w: 1000.0 + tf.linalg.matvec(w, costs), [0.5, -0.2, 0.1], "exact").rows[0]
    assert 0 < row.bias < row.bias_se < 0.01 and not row.biased


def test_the_same_seed_gives_the_same_figures_whatever_is_beside():
    problem, names = PROBLEMS[5], ["reinforce-ema", "gumbel-softmax-st"]
    f = golden_objective(problem)
    one, two = (report_on(f, problem["logits"], names, samples=3_000, seed=9) for _ in range(2))
    assert one.rows == two.rows and one.to_dict() == two.to_dict()
    alone = report_on(f, problem["logits"], "gumbel-softmax-st", samples=3_000, seed=9)
    assert alone.rows[0] == one["gumbel-softmax-st"]
    other = report_on(f, problem["logits"], names, samples=3_000, seed=10)
    assert all(other[name].bias != one[name].bias for name in names)


# --- black boxes and NaN ----------------------------------------------------------------------------------------------

TABLE = np.array([[0.0, 2.0, 1.0], [3.0, 0.5, -1.0]])


def plain_numpy(weights):
    return (np.asarray(weights, np.float64) * TABLE).sum((1, 2)) ** 2  # float64, no gradient


def numpy_function(weights):
    return tf.numpy_function(plain_numpy, [weights], tf.float64)


def one_hots_only(weights):
    values = weights.numpy()
    if not np.isin(values, (0.0, 1.0)).all():
        raise RuntimeError("not a choice")
    return plain_numpy(values)


@pytest.mark.parametrize("objective", [plain_numpy, numpy_function, one_hots_only])
def test_black_box(objective):
    logits = np.array([[0.3, -0.4, 0.1], [0.0, 0.5, -0.5]])
    names = list(ESTIMATORS) if objective is plain_numpy else ["exact", "reinforce", "straight-through"]
    report = report_on(objective, logits, names, samples=5_000)
    mean, variance = enumerate_reinforce(logits, lambda codes: TABLE[[0, 1], list(codes)].sum() ** 2)
    np.testing.assert_allclose(report.reference, mean, atol=1e-6)
    assert report.compiled == (objective is numpy_function)
    for name in names:
        row = report[name]
        if ESTIMATORS[name].needs_relaxation:
            wanted = "not a choice" if objective is one_hots_only else "no gradient in the weights"
            assert wanted in row.reason and row.bias is row.variance is row.cosine is None
        else:
            assert row.reason is None and not row.biased
    assert abs(report["reinforce"].variance - variance) < 4 * report["reinforce"].variance_se
    assert report.recommended == "exact"
    applies = [row.reason is None for row in report.rows]
    assert applies == sorted(applies, reverse=True) and sum(applies) == sum(name in SCORE_FUNCTIONS for name in names)


def test_what_runs_only_eagerly_is_differentiated_all_the_same():
    def objective(weights):
        assert float(tf.reduce_sum(weights)) > 0  # fails on a symbolic tensor
        return tf.reduce_sum(weights * tf.constant(TABLE, tf.float32), [1, 2]) ** 2

    def compiled(weights):
        return tf.reduce_sum(weights * tf.constant(TABLE, tf.float32), [1, 2]) ** 2

    names = ["soft-mixture", "reinforce-rloo", "gumbel-softmax"]
    one, two = (report_on(f, np.zeros((2, 3)), names, samples=2_000) for f in (objective, compiled))
    assert (one.compiled, two.compiled) == (False, True)
    for name in names:
        assert one[name].bias == pytest.approx(two[name].bias, rel=1e-3)
        assert one[name].variance == pytest.approx(two[name].variance, rel=1e-4)


def test_python_that_a_graph_would_freeze_is_run_eagerly():
    calls = []

    def objective(weights):
        calls.append(1)
        frozen = 0.0 if tf.executing_eagerly() else 1.0
        return tf.linalg.matvec(weights, tf.constant([1.0, 3.0])) + frozen

    report = report_on(objective, [0.0, 1.0], ["exact", "reinforce"], samples=100)
    assert not report.compiled and len(calls) > 3
    p = softmax([0.0, 1.0])
    np.testing.assert_allclose(report.reference, p * (np.array([1, 3]) - p @ [1, 3]), atol=1e-6)


def test_zero_one_losses():
    report = report_on(lambda w: np.asarray(w).argmax(-1) == 1, [0.0, 1.0, 0.5], ["exact", "reinforce-rloo"])
    p = softmax([0.0, 1.0, 0.5])
    np.testing.assert_allclose(report.reference, p[1] * (np.eye(3)[1] - p), atol=1e-7)
    assert not report["reinforce-rloo"].biased


def test_nan_off_the_vertices():
    costs = tf.constant([1.0, 2.0, -1.0, 0.5])
    logits = np.array([0.2, -0.3, 0.5, 0.0])

    def objective(weights):
        return tf.linalg.matvec(weights, costs) ** 2 + tf.sqrt(tf.reduce_max(weights, -1) - 0.75)

    estimators = {name: ESTIMATORS[name] for name in (*SCORE_FUNCTIONS, "soft-mixture")}
    estimators["cool"] = GumbelSoftmax(temperature=0.5)
    report = report_on(objective, logits, estimators, seed=3)
    mixture, cool = report["soft-mixture"], report["cool"]
    assert mixture.nan_share == 1 and "NaN" in mixture.reason and mixture.bias is None
    z = (logits + np.random.default_rng(0).gumbel(size=(200_000, 4))) / 0.5
    share = np.mean(softmax(z).max(-1) < 0.75)
    assert abs(cool.nan_share - share) < 4 * math.sqrt(share * (1 - share) * (1 / 20_000 + 1 / 200_000))
    assert cool.reason is None and math.isfinite(cool.bias) and math.isfinite(cool.variance)
    assert all(report[name].nan_share == 0 for name in SCORE_FUNCTIONS)
    assert report.recommended == "exact"
    assert "avoid" in report.recommend() and "soft-mixture (100% NaN)" in report.recommend()
    json.dumps(report.to_dict(), allow_nan=False)


def test_nan_at_an_outcome():
    table = np.array([1.0, np.nan, 2.0])
    f = lambda w: np.where(np.asarray(w) > 0, table, 0).sum(-1)  # noqa: E731
    with pytest.raises(ValueError, match=r"objective is nan at outcome \[1\]"):
        report_on(f, [0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="objective is nan at an outcome with choice 1 of decision 0"):
        report_on(f, [0.0, 0.0, 0.0], cap=2)
    # What is masked out is never chosen.
    report = report_on(f, [0.0, -1e9, 0.0], ["reinforce-rloo"], samples=1_000)
    np.testing.assert_allclose(report.reference, [-0.25, 0, 0.25], atol=1e-9)
    assert report["reinforce-rloo"].nan_share == 0 and not report["reinforce-rloo"].biased


# --- what it recommends -----------------------------------------------------------------------------------------------


LINEAR = ["exact", "reinforce-rloo", "soft-mixture", "straight-through", "gumbel-softmax"]


def test_recommends_the_mixture_for_a_linear_objective():
    costs = tf.constant(np.random.default_rng(0).normal(size=12), tf.float32)
    report = report_on(lambda w: tf.linalg.matvec(w, costs), np.linspace(-1, 1, 12), LINEAR, samples=5_000)
    # As the straight-through estimator does: a constant slope leaves no variance, in one evaluation instead of twelve.
    assert report.recommended == "soft-mixture"
    assert report.recommend() == "Use soft-mixture: no bias and no variance here, from 1 evaluation."


def test_recommends_enumeration_where_few_outcomes_leave_no_variance():
    problem = PROBLEMS[5]
    report = report_on(golden_objective(problem), problem["logits"], SCORE_FUNCTIONS, samples=5_000)
    assert report.recommended == "exact"
    assert "its 6 evaluations per row are affordable" in report.recommend()
    # Of REINFORCE with one baseline or another: the least variance x evaluations, 120 x 1 in the golden table.
    report = without(report, *(name for name in SCORE_FUNCTIONS if not name.startswith("reinforce")))
    assert report.recommended == "reinforce-value"
    assert "once its baseline is learned (reinforce-ema needs none" in report.recommend()


def test_recommends_enumeration_of_many_outcomes_only_where_sampling_needs_as_many():
    k = 300
    outputs = np.linspace(-2, 2, k).astype(np.float32)
    f = lambda w: (tf.linalg.matvec(w, outputs) - 0.7) ** 2  # noqa: E731
    names = ["exact", "reinforce-rloo", "reinforce-value", "soft-mixture"]
    # Uniform: each of K entries is estimated from its own visits, so that K samples are off by about 100%.
    flat = report_on(f, np.zeros(k), names, samples=5_000)
    assert flat.recommended == "exact" and "its 300 evaluations per row are worth it" in flat.recommend()
    # All but certain of two operations: two outcomes matter, and sampling finds them.
    logits = np.full(k, -12.0)
    logits[[3, 250]] = 0.0, 0.5
    peaked = report_on(f, logits, names, samples=5_000)
    assert peaked.recommended == "reinforce-value" and "300 evaluations of exact are not worth it" in peaked.recommend()


def test_recommends_sampling_where_enumeration_is_out_of_reach():
    costs = np.random.default_rng(1).normal(size=(10, 3))
    f = lambda w: (np.asarray(w) * costs).sum((1, 2)) ** 2  # noqa: E731
    report = report_on(f, np.zeros((10, 3)), samples=3_000)
    assert report.recommended in set(SCORE_FUNCTIONS) - {"exact"}
    assert report[report.recommended].work == min(report[n].work for n in SCORE_FUNCTIONS if n != "exact")
    assert "3**10 = 59049 outcomes are too many to enumerate" in report.recommend()


def test_mentions_a_slightly_biased_one_that_errs_less():
    costs = np.random.default_rng(2).normal(size=(10, 3)).astype(np.float32)

    def f(weights):
        total = tf.reduce_sum(weights * costs, [-2, -1])
        return total + 0.02 * total**2

    report = report_on(f, np.zeros((10, 3)), ["reinforce-rloo", "soft-mixture", "exact"], samples=3_000)
    assert report.recommended == "reinforce-rloo" and report["soft-mixture"].biased
    share = report["soft-mixture"].bias / report.gradient_norm
    assert 0.001 < share < 0.1
    assert "soft-mixture has a" in report.recommend() and f"a bias of {share:.2g} of the gradient" in report.recommend()


def test_mentions_one_that_differs_from_the_reference_by_its_error_only():
    costs = np.random.default_rng(3).normal(size=(10, 3)).astype(np.float32)

    def multilinear(weights):  # so the mixture is exact, but few samples can't tell
        chosen = tf.reduce_sum(weights * costs, -1)
        return tf.reduce_sum(chosen, -1) + tf.reduce_prod(1 + 0.5 * chosen, -1)

    report = report_on(multilinear, np.zeros((10, 3)), ["reinforce-rloo", "soft-mixture"], samples=200, seed=3)
    row = report["soft-mixture"]
    assert row.variance == 0 and 0 < row.bias < row.bias_se and row.bias_high > 0.05 * report.gradient_norm
    share = row.bias_high / report.gradient_norm
    assert report.recommended == "reinforce-rloo"
    assert f"soft-mixture has no variance here, but a bias of up to {share:.2g}" in report.recommend()


def test_says_when_there_is_nothing_to_recommend():
    costs = np.zeros((10, 3), np.float32)
    assert report_on(lambda w: tf.reduce_sum(w * costs, [1, 2]), costs, "exact", samples=500).recommended is None
    report = report_on(plain_numpy, np.zeros((2, 3)), "soft-mixture")
    assert report.recommend() == (
        "None of these estimators applies to objective: soft-mixture: needs a relaxation, but the objective has no"
        " gradient in the weights."
    )


def test_says_so_when_the_gradient_is_zero():
    report = report_on(lambda w: 0.5 + 0.0 * w[:, 0], np.zeros(3), ["exact", "reinforce"], samples=1_000)
    assert report.vanishing and "gradient is zero to within float32 rounding" in report.recommend()
    assert all(row.cosine is None for row in report.rows)
    # The optimum of a sampled problem: E sum = 0 by symmetry, known within a standard error.
    signs = tf.constant([-1.0, 1.0])
    square = lambda w: tf.reduce_prod(tf.linalg.matvec(w, signs), -1)  # noqa: E731
    report = report_on(square, np.zeros((13, 2)), ["reinforce-rloo"], samples=500)
    assert report.vanishing and "its standard error" in report.recommend()
    # Its size is lost in float32, not its direction.
    report = report_on(lambda w: 1e7 + w[:, 0], np.zeros(3), ["exact", "reinforce"], samples=100)
    assert report.vanishing and "losses less a constant" in report.recommend()


def test_a_variance_seen_in_two_samples_is_not_believed():
    f = lambda w: w[:, 0] ** 2  # noqa: E731
    report = report_on(f, [0.0, 1.0], samples=2)
    assert report["reinforce"].variance == 0 and report.recommended == "exact"  # both samples were the same operation
    report = without(report, *(name for name in ESTIMATORS if name != "reinforce"))
    assert report.recommended == "reinforce" and "2 samples are few" in report.recommend()


def test_warns_of_zeros_and_of_relaxations_alone():
    problem = PROBLEMS[0]
    report = report_on(golden_objective(problem), [6.0, 0.0, 0.0, 0.0], ["reinforce-rloo"])
    assert report["reinforce-rloo"].zero_share > 0.9 and "of its gradients are zero" in report.recommend()
    report = report_on(golden_objective(problem), problem["logits"], ["gumbel-softmax", "straight-through"])
    assert report.recommend().startswith("Use ") and "with care: none is known to be unbiased" in report.recommend()


# --- the result, and errors -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rows_print_and_are_plain_data():
    problem = PROBLEMS[0]
    report = gradient_report(golden_objective(problem), problem["logits"], samples=2_000, problem="golden")
    wanted = ["problem", "estimator", "bias", "bias_se", "variance", "evaluations", "cosine", "zero_share", "nan_share"]
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert {row["estimator"] for row in plain["rows"]} == set(ESTIMATORS)
    for row in plain["rows"]:
        assert all(row[name] is not None for name in wanted) and row["problem"] == "golden"
        assert 1 < row["microseconds"] < 1e6
    assert plain["recommendation"] == report.recommend()
    # The unbiased ones first, each part by variance x evaluations.
    keys = [(row.biased, row.work) for row in report.rows]
    assert keys == sorted(keys)
    console = rich.console.Console(width=80, record=True, file=io.StringIO())
    console.print(report)
    for text in (str(report), console.export_text()):
        assert all(name in text for name in ESTIMATORS)
        assert "golden: K=4, D=1; reference gradient of norm 2.097" in text.replace("\n", " ")
    lines = str(report).splitlines()
    assert len({len(line) for line in lines[1:12]}) == 1 and len(lines[1]) <= 80
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.rows[0].bias = 0.0
    with pytest.raises(KeyError, match="did you mean 'reinforce-rloo'"):
        report["reinforce-rlo"]


@pytest.mark.parametrize(
    ("losses", "shape", "message"),
    [
        (lambda w: w, (4,), r"losses of shape \(3, 4\) for weights \(3, 4\); they must be \[N\] = \(3,\)"),
        (lambda w: w[:, :1], (4,), r"losses of shape \(3, 1\)"),
        (lambda w: tf.reduce_sum(w), (2, 4), r"losses of shape \(\) for weights \(3, 2, 4\)"),
        (lambda w: tf.reduce_sum(w, -1), (2, 4), r"losses of shape \(3, 2\)"),
        (lambda w: tf.reduce_sum(w, [1, 2, 3]), (3, 2, 4), r"they must be \[N, B\] = \(5, 3\)"),
        (lambda w: np.asarray(w).sum(-1)[:2], (4,), r"losses of shape \(2,\)"),
    ],
)
def test_losses_of_the_wrong_shape(losses, shape, message):
    with pytest.raises(InvalidShapeError, match=message):
        report_on(losses, np.zeros(shape))


def test_wrong_arguments():
    f = lambda w: w[..., 0]  # noqa: E731
    with pytest.raises(InvalidShapeError, match=r"logits must be \[K\], \[D, K\] or \[B, D, K\], got shape \(\)"):
        report_on(f, 1.0)
    with pytest.raises(InvalidShapeError, match="at least K = 2 operations"):
        report_on(f, [[1.0], [2.0]])
    with pytest.raises(ValueError, match="logits must be finite, got inf"):
        report_on(f, [0.0, np.inf])
    with pytest.raises(ValueError, match="unknown estimator 'reinforce-loo'; did you mean 'reinforce-rloo'"):
        report_on(f, [0.0, 1.0], "reinforce-loo")
    with pytest.raises(ValueError, match="different names, got 'exact' twice"):
        report_on(f, [0.0, 1.0], ["exact", ESTIMATORS["exact"]])
    with pytest.raises(ValueError, match="at least one"):
        report_on(f, [0.0, 1.0], [])
    with pytest.raises(TypeError, match="names or Estimator instances"):
        report_on(f, [0.0, 1.0], [LeaveOneOut])
    with pytest.raises(ValueError, match="samples must be an integer >= 2, got 1"):
        report_on(f, [0.0, 1.0], samples=1)
    with pytest.raises(ValueError, match="seed must be an integer, got None"):
        report_on(f, [0.0, 1.0], seed=None)
    with pytest.raises(ValueError, match="cap must be an integer >= 1, got 0"):
        report_on(f, [0.0, 1.0], cap=0)
    with pytest.raises(TypeError, match="real losses, got dtype complex64"):
        report_on(lambda w: tf.cast(w[..., 0], tf.complex64), [0.0, 1.0])
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="different losses for the same weights"):
        report_on(lambda w: w[..., 0] + rng.normal(size=len(w)).astype(np.float32), [0.0, 1.0])


def test_an_estimator_that_fails_has_a_row():
    @dataclasses.dataclass(frozen=True)
    class Broken(OwnMean):
        def propose(self, logits, state, seed, *, decision=0):
            raise RuntimeError("not today")

    report = report_on(lambda w: w[:, 0], [0.0, 1.0], {"broken": Broken(), "fine": OwnMean()}, samples=100)
    assert report["broken"].reason == "failed with RuntimeError: not today" and report["fine"].reason is None
    assert report.rows[-1] is report["broken"]
