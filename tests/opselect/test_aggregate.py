"""Statistics across tasks against enumeration of all resamples, SciPy's tests, closed forms and loops."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
import scipy.stats

from opselect.comparison import compare_pairs, pair_of, probability_of_improvement, profile, stratified_interval
from opselect.comparison.budgets import common_budget, efficiency, score_at, spent
from opselect.comparison.pairs import flipped, rank_test
from opselect.comparison.stratified import TAUS, improvement, iqm_over_tasks, mean_over_tasks, optimality_gap
from opselect.comparison.summary import summarise


def trimmed(values):
    """Sorted, without floor(n / 4) values at each end; the mean of what is left."""
    values = sorted(map(float, values))
    cut = len(values) // 4
    return sum(values[cut : len(values) - cut]) / (len(values) - 2 * cut)


def every_resample(strata):
    """All ways to draw each stratum's seeds again, with replacement: equally likely, each stratum by itself."""
    ways = [list(itertools.product(stratum, repeat=len(stratum))) for stratum in strata]
    return itertools.product(*ways)


def assert_percentiles(found, every):
    """The ends of a sampled interval lie between nearby percentiles of all resamples."""
    every = np.sort(every)
    for end, percent in (("low", 2.5), ("high", 97.5)):
        around = np.quantile(every, [(percent - 1.2) / 100, (percent + 1.2) / 100], method="inverted_cdf")
        assert around[0] - 1e-12 <= found[end] <= around[1] + 1e-12, end


def two_tasks(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(0.9, 0.03, 3), rng.normal(0.4, 0.2, 4)]


# --- stratified bootstrap ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statistic", "by_hand"),
    [
        (iqm_over_tasks, lambda tasks: trimmed([v for task in tasks for v in task])),
        (mean_over_tasks, lambda tasks: sum(sum(t) / len(t) for t in tasks) / len(tasks)),
        (optimality_gap, lambda tasks: sum(sum(max(0.0, 1 - v) for v in t) / len(t) for t in tasks) / len(tasks)),
    ],
    ids=["iqm", "mean", "optimality gap"],
)
def test_intervals_hold_the_middle_95_percent_of_all_resamples_within_tasks(statistic, by_hand):
    strata = two_tasks()
    strata[0][0] = 1.05  # better than the oracle by chance: no negative shortfall
    every = [by_hand(resample) for resample in every_resample(strata)]
    assert len(every) == 3**3 * 4**4
    found = stratified_interval(strata, statistic)
    assert found["value"] == pytest.approx(by_hand(strata), rel=1e-12)
    assert_percentiles(found, every)


def test_seeds_are_never_exchanged_between_tasks():
    """Two tasks far apart: pooled resampling would move the mean by their difference."""
    found = stratified_interval([np.array([0.0, 0.01, 0.02]), np.array([1.0, 1.01, 1.02])], mean_over_tasks)
    assert 0.5 <= found["low"] <= found["high"] <= 0.52


def test_a_stratified_mean_has_the_variance_of_the_textbook():
    """Var = sum_t s_t**2 / R_t / T**2 with the seeds' own (biased) variances, and near normal for many seeds."""
    rng = np.random.default_rng(3)
    strata = [rng.normal(0.5, 0.1, 60), rng.normal(0.2, 0.4, 80), rng.normal(0.9, 0.05, 40)]
    found = stratified_interval(strata, mean_over_tasks)
    deviation = np.sqrt(sum(np.var(s) / len(s) for s in strata)) / 3
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * deviation, rel=0.06)


def test_an_interval_of_a_curve_is_that_of_each_point():
    rng = np.random.default_rng(0)
    curves = [rng.random((4, 5)), rng.random((4, 3))]
    found = stratified_interval(curves, iqm_over_tasks)
    for point in range(4):
        alone = stratified_interval([c[point] for c in curves], iqm_over_tasks)
        assert {name: values[point] for name, values in found.items()} == pytest.approx(alone, rel=1e-12)


def test_one_seed_a_task_or_equal_seeds_leave_nothing_to_resample():
    found = stratified_interval([[0.25], [0.75]], mean_over_tasks)
    assert found == {"value": 0.5, "low": 0.5, "high": 0.5}
    mixed = stratified_interval([[0.25], [0.5, 1.0]], mean_over_tasks)
    assert mixed == {"value": 0.5, "low": 0.375, "high": 0.625}  # 1/4 of the resamples lie at each end


def test_resampling_is_reproducible():
    first, again = (stratified_interval(two_tasks(), iqm_over_tasks) for _ in range(2))
    assert first == again
    assert stratified_interval(two_tasks(), iqm_over_tasks, seed=1) != first


@pytest.mark.parametrize("strata", [[], [[]], [[0.1], []], [[np.nan, 1.0]], [0.5]])
def test_strata_without_numbers_are_refused(strata):
    with pytest.raises(ValueError, match="strata must"):
        stratified_interval(strata, mean_over_tasks)


# --- who is better ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_improvement_is_mann_whitneys_u_over_the_number_of_pairs(seed):
    rng = np.random.default_rng(seed)
    x, y = np.round(rng.random(7), 1), np.round(rng.random(5) * 0.8, 1)  # rounded, so that there are ties
    wins = sum((a > b) + 0.5 * (a == b) for a in x for b in y)
    assert improvement(x, y) == wins / 35
    assert improvement(x, y) == pytest.approx(scipy.stats.mannwhitneyu(x, y).statistic / 35, rel=1e-12)
    assert improvement(y, x) == pytest.approx(1 - improvement(x, y), rel=1e-12)


def test_probability_of_improvement_against_all_resamples():
    x, y = [np.array([0.5, 0.7, 0.9]), np.array([0.2, 0.6])], [np.array([0.6, 0.7]), np.array([0.1, 0.4, 0.6])]

    def by_hand(xs, ys):
        shares = [
            sum((a > b) + 0.5 * (a == b) for a in one for b in other) / (len(one) * len(other))
            for one, other in zip(xs, ys, strict=True)
        ]
        return sum(shares) / len(shares)

    every = [by_hand(drawn[:2], drawn[2:]) for drawn in every_resample([*x, *y])]
    found = probability_of_improvement(x, y)
    assert found["value"] == pytest.approx(by_hand(x, y), rel=1e-12)
    assert_percentiles(found, every)
    with pytest.raises(ValueError, match="same tasks"):
        probability_of_improvement(x, y[:1])


def test_the_rank_test_counts_all_arrangements():
    rng = np.random.default_rng(1)
    x, y = rng.random(5) + 0.3, rng.random(5)
    pool = np.concatenate([x, y])
    far = abs(improvement(x, y) - 0.5)
    picks = list(itertools.combinations(range(10), 5))
    as_far = sum(abs(improvement(pool[list(pick)], np.delete(pool, list(pick))) - 0.5) >= far - 1e-12 for pick in picks)
    assert rank_test(x, y) == pytest.approx(as_far / len(picks), rel=1e-9)
    assert rank_test([1.0] * 5, [1.0] * 5) == 1.0
    assert rank_test([1.0] * 5, np.arange(5) / 10) < 0.02  # ties: the asymptotic test


def test_a_difference_counts_after_adjusting_for_all_tests():
    rng = np.random.default_rng(5)
    tasks = [f"t{i}" for i in range(6)]
    lift = {"a": 0.0, "b": 0.05, "c": 0.2}
    scores = {(task, name): rng.normal(0.5 + by, 0.06, 6) for name, by in lift.items() for task in tasks}
    pairs = compare_pairs(scores)
    assert [(p["x"], p["y"]) for p in pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    raw = np.array(
        [rank_test(scores[t["task"], p["x"]], scores[t["task"], p["y"]]) for p in pairs for t in p["by_task"]]
    )
    # Benjamini and Hochberg: p_(i) m / i, made monotone from the largest down.
    order, m = np.argsort(raw), len(raw)
    adjusted, least = np.empty(m), 1.0
    for rank in range(m, 0, -1):
        least = min(least, raw[order[rank - 1]] * m / rank)
        adjusted[order[rank - 1]] = least
    assert [t["p"] for p in pairs for t in p["by_task"]] == pytest.approx(list(adjusted), rel=1e-12)
    outcomes = [t["better"] for p in pairs for t in p["by_task"]]
    assert outcomes == [
        None if q > 0.05 else "y" for q in adjusted
    ]  # the learners were made so that the later one is better
    assert 0 < outcomes.count(None) < len(outcomes)
    for pair in pairs:
        for on_task in pair["by_task"]:
            x, y = scores[on_task["task"], pair["x"]], scores[on_task["task"], pair["y"]]
            assert on_task["difference"] == pytest.approx(trimmed(x) - trimmed(y))


def test_nothing_differs_among_learners_that_are_the_same():
    """Of 300 differences between equals hardly any may be claimed."""
    claimed = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        pairs = compare_pairs({(f"t{t}", name): rng.random(5) for name in "ab" for t in range(15)})
        claimed += sum(t["better"] is not None for t in pairs[0]["by_task"])
    assert claimed <= 6


def test_pairs_seen_from_the_other_side():
    rng = np.random.default_rng(2)
    scores = {(t, n): rng.random(5) + (n == "a") * (t == "s") for t in "st" for n in "ab"}
    (pair,) = compare_pairs(scores)
    (other,) = compare_pairs({(t, n): scores[t, n] for n in "ba" for t in "st"})
    seen = pair_of([pair], "b", "a")
    assert seen["probability"]["value"] == pytest.approx(other["probability"]["value"])
    assert [t["better"] for t in seen["by_task"]] == [t["better"] for t in other["by_task"]] == ["y", None]
    assert [t["difference"] for t in seen["by_task"]] == [t["difference"] for t in other["by_task"]]
    assert flipped(seen)["by_task"][0]["better"] == "x"
    assert pair_of([pair], "a", "c") is None


def test_nothing_is_claimed_from_fewer_than_five_seeds():
    scores = {("s", "a"): np.arange(4) + 9.0, ("s", "b"): np.arange(9) * 1.0, ("t", "a"): np.ones(5)}
    (pair,) = compare_pairs(scores | {("t", "b"): np.zeros(5)})
    assert pair["too_few_seeds"] == ["s"]
    assert [t["task"] for t in pair["by_task"]] == ["t"]
    assert pair["probability"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    (none,) = compare_pairs(scores)
    assert none["by_task"] == []
    assert none["probability"] == {"value": None, "low": None, "high": None}


# --- performance profiles ---------------------------------------------------------------------------------------------


def test_profiles_are_shares_of_runs():
    strata = two_tasks(4)
    found = profile(strata)
    for tau, share in zip(TAUS, found["value"], strict=True):
        by_hand = sum(sum(v > tau for v in task) / len(task) for task in strata) / 2
        assert share == pytest.approx(by_hand, abs=1e-12)
    assert len(TAUS) == 101
    assert list(TAUS[[0, 50, 100]]) == [0.0, 0.5, 1.0]


def test_a_profiles_band_is_binomial():
    """Resampled, the number of seeds above tau is binomial; its quantiles are known exactly."""
    scores = np.arange(1, 21) / 20 - 0.005
    found = profile([scores])
    for place in (10, 30, 62, 85):
        share = float(np.mean(scores > TAUS[place]))
        for end, q in (("low", 0.025), ("high", 0.975)):
            around = scipy.stats.binom.ppf([q - 0.012, q + 0.012], 20, share) / 20
            assert around[0] - 1e-9 <= found[end][place] <= around[1] + 1e-9


# --- budgets ----------------------------------------------------------------------------------------------------------


def with_curve(result, evaluations, hard, seconds=4.0):
    hard = np.asarray(hard, np.float64)
    step = np.arange(1, hard.shape[1] + 1) * 10
    return dataclasses.replace(
        result, seeds=list(range(len(hard))), step=step, evaluations=np.asarray(evaluations), hard=hard,
        soft=hard, optimal=hard, seconds=seconds,
    )  # fmt: skip


def test_seconds_are_spread_over_the_steps(make_result):
    result = with_curve(make_result(), [100, 200, 300, 400], [[0, 1, 2, 3]], seconds=8.0)
    assert list(spent(result, "seconds")) == [2.0, 4.0, 6.0, 8.0]
    assert list(spent(result, "evaluations")) == [100, 200, 300, 400]


def test_scores_between_evaluations_and_after_the_last(make_result):
    result = with_curve(make_result(), [100, 200, 400], [[0.0, 0.4, 0.8], [0.2, 0.2, 0.6]])
    at = score_at(result, "evaluations", [100, 150, 300, 400, 9999])
    expected = [[0.0, 0.2], [0.2, 0.2], [0.6, 0.4], [0.8, 0.6], [0.8, 0.6]]
    assert at == pytest.approx(np.array(expected))
    with pytest.raises(ValueError, match="at least 100 evaluations"):
        score_at(result, "evaluations", 99)


def test_the_common_budget_is_what_all_reached(make_result):
    long = with_curve(make_result(), [100, 800], [[0.1, 0.9]], seconds=2.0)
    short = with_curve(make_result(), [10, 300], [[0.1, 0.9]], seconds=5.0)
    assert common_budget([long, short], "evaluations") == 300
    assert common_budget([long, short], "seconds") == 2.0


def test_efficiency_against_a_loop(make_result):
    rng = np.random.default_rng(0)
    one = with_curve(make_result(), [100, 200, 300], np.sort(rng.random((5, 3)), -1))
    other = with_curve(make_result(), [150, 300, 600], np.sort(rng.random((5, 3)), -1))
    curve = efficiency([one, other], "evaluations")
    assert curve["at"] == [150, 200, 300, 600]  # from where both have a score
    for at, value, low, high in zip(*(curve[name] for name in ("at", "iqm", "low", "high")), strict=True):
        pooled = []
        for result in (one, other):
            e = list(result.evaluations)
            for seed in result.hard:
                if at >= e[-1]:
                    pooled.append(seed[-1])
                    continue
                k = max(i for i in range(3) if e[i] <= at)
                pooled.append(seed[k] + (seed[k + 1] - seed[k]) * (at - e[k]) / (e[k + 1] - e[k]))
        assert value == pytest.approx(trimmed(pooled), rel=1e-12)
        assert low <= value <= high


def test_efficiency_has_at_most_fifty_points_and_both_ends(make_result):
    results = [make_result(task, points=40, total=total) for task, total in (("ScalarOp", 1000), ("OpChain", 777))]
    curve = efficiency(results, "evaluations")
    assert len(curve["at"]) == 50
    assert curve["at"][-1] == 1000 * 512
    assert curve["at"][0] == max(r.evaluations[0] for r in results)
    assert np.all(np.diff(curve["at"]) > 0)


# --- all of it in the summary -----------------------------------------------------------------------------------------


@pytest.fixture
def several(make_result):
    finals = {"exact": 0.97, "reinforce": 0.9, "soft-mixture": 0.6}
    return [
        make_result(task, learner, final=final - 0.1 * place)
        for place, task in enumerate(("ScalarOp", "ScalarOpGoal", "OpChain"))
        for learner, final in finals.items()
    ]


def test_the_summary_across_tasks(several):
    summary = summarise(several)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summarise(several) == summary
    tasks, learners = ["ScalarOp", "ScalarOpGoal", "OpChain"], ["exact", "reinforce", "soft-mixture"]
    assert summary["scopes"] == {"all": {"tasks": tasks, "learners": learners}}
    for row, learner in zip(summary["aggregate"], learners, strict=True):
        finals = [r.hard[:, -1] for r in several if r.learner == learner]
        assert (row["learner"], row["scope"], row["seeds"], row["runs"]) == (learner, "all", 5, 15)
        assert row["iqm"]["iqm"] == pytest.approx(trimmed(np.concatenate(finals)))
        assert row["mean"]["value"] == pytest.approx(np.mean(finals))
        assert row["optimality_gap"]["value"] == pytest.approx(np.mean(np.maximum(0, 1 - np.array(finals))))
        # All have the same budget here, so an equal budget is the whole of it.
        assert row["equal_evaluations"]["iqm"] == row["equal_seconds"]["iqm"] == row["iqm"]["iqm"]
    assert [len(p["by_task"]) for p in summary["pairs"]] == [3, 3, 3]
    assert all(p["probability"]["value"] > 0.9 for p in summary["pairs"])
    assert {len(p["value"]) for p in summary["profiles"]} == {101}


def test_equal_budgets_by_evaluations_and_by_seconds(several):
    """A learner with four evaluations per step is judged after a quarter of its steps, unless time is counted."""
    greedy = [
        dataclasses.replace(r, evaluations=r.evaluations * 4, seconds=2.5) if r.learner == "exact" else r
        for r in several
    ]
    summary = summarise(greedy)
    for kind, share, budget in (("evaluations", 0.25, 1000 * 512), ("seconds", 0.5, 1.25)):
        rows = [row for row in summary["budgets"][kind] if row["learner"] == "exact"]
        for row, result in zip(rows, [r for r in greedy if r.learner == "exact"], strict=True):
            assert row["budget"] == budget
            expected = [np.interp(share * 1000, result.step, seed) for seed in result.hard]
            assert row["score"]["iqm"] == pytest.approx(trimmed(expected))
    (exact,) = (row for row in summary["aggregate"] if row["learner"] == "exact")
    pooled = [np.interp(250, r.step, seed) for r in greedy if r.learner == "exact" for seed in r.hard]
    assert exact["equal_evaluations"]["iqm"] == pytest.approx(trimmed(pooled))


def test_a_learner_that_was_scored_later_than_the_budget_has_no_score_there(several):
    late = [dataclasses.replace(r, evaluations=r.evaluations * 99) if r.learner == "exact" else r for r in several]
    summary = summarise(late)
    rows = [row for row in summary["budgets"]["evaluations"] if row["learner"] == "exact"]
    assert all(row["score"]["iqm"] is None and "its first score came after" in row["why_not"] for row in rows)
    (exact,) = (row for row in summary["aggregate"] if row["learner"] == "exact")
    assert exact["equal_evaluations"] == {"iqm": None, "low": None, "high": None}
    assert exact["equal_seconds"]["iqm"] is not None


def test_learners_are_only_ranked_on_tasks_that_they_share(several):
    partly = [r for r in several if (r.task, r.learner) != ("OpChain", "exact")]
    summary = summarise(partly, {("OpChain", "exact"): "too many paths"})
    assert summary["scopes"] == {
        "all": {"tasks": ["ScalarOp", "ScalarOpGoal", "OpChain"], "learners": ["reinforce", "soft-mixture"]},
        "common": {"tasks": ["ScalarOp", "ScalarOpGoal"], "learners": ["exact", "reinforce", "soft-mixture"]},
    }
    assert [(row["scope"], row["learner"], row["runs"]) for row in summary["aggregate"]] == [
        ("all", "reinforce", 15), ("all", "soft-mixture", 15),
        ("common", "exact", 10), ("common", "reinforce", 10), ("common", "soft-mixture", 10),
    ]  # fmt: skip
    assert [t["task"] for t in pair_of(summary["pairs"], "exact", "reinforce")["by_task"]] == [
        "ScalarOp",
        "ScalarOpGoal",
    ]
    apart = summarise([several[0], several[4]])
    assert apart["scopes"] == {}
    assert apart["aggregate"] == []


def test_scores_that_are_not_finite_take_part_in_nothing(several):
    hard = several[0].hard.copy()
    hard[0, -1] = np.nan
    along = several[1].hard.copy()
    along[0, 2] = np.inf
    broken = [dataclasses.replace(several[0], hard=hard), dataclasses.replace(several[1], hard=along), *several[2:]]
    summary = summarise(broken)
    json.dumps(summary, allow_nan=False)
    assert "exact" not in summary["scopes"]["all"]["learners"]
    (row,) = (r for r in summary["budgets"]["seconds"] if (r["task"], r["learner"]) == ("ScalarOp", "reinforce"))
    assert row["why_not"] == "scores were not finite along the way"
    curves = [row["learner"] for row in summary["efficiency"]["evaluations"] if row["scope"] == "all"]
    assert curves == ["soft-mixture"]


def test_only_what_is_named_so_depends_on_measured_time(several):
    def without_seconds(value):
        if isinstance(value, dict):
            return {k: without_seconds(v) for k, v in value.items() if "seconds" not in k}
        return [without_seconds(v) for v in value] if isinstance(value, list) else value

    slower = [dataclasses.replace(r, seconds=r.seconds * (2 + i)) for i, r in enumerate(several)]
    assert summarise(slower) != summarise(several)
    assert without_seconds(summarise(slower)) == without_seconds(summarise(several))
