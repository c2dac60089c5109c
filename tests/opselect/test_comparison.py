"""The statistics of a comparison against independent formulas, by loops and by enumeration."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
import warnings

import numpy as np
import pytest

from opselect.comparison import curves, interval, iqm, steps_to, summarise


def iqm_by_hand(values):
    """Sorted, without floor(n / 4) values at each end."""
    values = sorted(float(v) for v in values)
    cut = len(values) // 4
    kept = values[cut : len(values) - cut]
    return sum(kept) / len(kept)


def replace(result, **changes):
    return dataclasses.replace(result, **changes)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 10, 13])
def test_iqm_is_the_mean_of_the_middle_half(count):
    values = np.random.default_rng(count).normal(3.0, 2.0, count)
    assert iqm(values) == pytest.approx(iqm_by_hand(values), rel=1e-12)


def test_iqm_of_known_numbers():
    assert iqm([9, 1, 2, 3, 100]) == pytest.approx((2 + 3 + 9) / 3)  # a fractional quarter of 5 drops one at each end
    assert iqm([1, 2, 3, 50]) == pytest.approx(2.5)
    assert iqm([1, 2, 60]) == pytest.approx(21.0)  # a quarter of 3 is less than one value


def test_iqm_along_an_axis():
    values = np.random.default_rng(0).random((6, 9))
    assert iqm(values, axis=0) == pytest.approx([iqm_by_hand(c) for c in values.T])
    assert iqm(values) == pytest.approx([iqm_by_hand(r) for r in values])


def test_iqm_of_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"got shape \(0,\)"):
        iqm([])


@pytest.mark.parametrize("count", [3, 4, 5])
def test_interval_holds_the_middle_95_percent_of_all_resamples(count):
    values = np.random.default_rng(count).normal(0.8, 0.1, count)
    every = np.sort([iqm_by_hand(values[list(picks)]) for picks in itertools.product(range(count), repeat=count)])
    found = interval(values)
    assert found["iqm"] == pytest.approx(iqm_by_hand(values))
    # A sample of the resamples: its percentiles lie between nearby percentiles of all of them.
    for end, percent in (("low", 2.5), ("high", 97.5)):
        around = np.quantile(every, [(percent - 0.6) / 100, (percent + 0.6) / 100], method="inverted_cdf")
        assert around[0] - 1e-12 <= found[end] <= around[1] + 1e-12


def test_interval_of_a_mean_is_about_normal():
    values = np.random.default_rng(5).normal(2.0, 0.5, 200)
    found = interval(values, lambda x, axis=-1: np.mean(x, axis=axis))
    half = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
    assert found["low"] == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found["high"] == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_interval_is_reproducible_and_depends_on_its_seed_alone():
    values = np.random.default_rng(1).random(10)
    first = interval(values)
    assert interval(values) == first
    assert interval(values, seed=1) != first


@pytest.mark.parametrize("values", [[0.1], [0.1] * 3, [0.7] * 10, [0.0] * 5])
def test_interval_without_spread_has_no_width_and_no_warning(values):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert interval(values) == {"iqm": values[0], "low": values[0], "high": values[0]}


@pytest.mark.parametrize("values", [[], [[1.0, 2.0]], [1.0, np.nan], [np.inf, 1.0]])
def test_interval_refuses_what_has_none(values):
    with pytest.raises(ValueError, match="values must"):
        interval(values)


@pytest.mark.parametrize(
    ("reached_at", "expected"),
    [
        ([0, 1, 3], 20),
        ([2, 2, 2, 2], 30),
        ([0, 1, 2, 3], 25),
        ([0, 2, None], 30),
        ([0, 1, None, None], None),
        ([0, None], None),
        ([None, None, None], None),
        ([0, 1, 3, None, None], 40),
    ],
)
def test_steps_to_is_the_median_first_crossing(make_result, reached_at, expected):
    hard = np.full((len(reached_at), 4), 0.5)
    for row, at in zip(hard, reached_at, strict=True):
        if at is not None:
            row[at] = 0.95  # once is enough, even if it falls again
    result = make_result(seeds=range(len(reached_at)), points=4)
    found = steps_to(replace(result, hard=hard, step=np.array([10, 20, 30, 40])))
    assert found == expected
    assert found is None or isinstance(found, int)


def test_steps_to_against_a_loop(make_result):
    result = make_result(seeds=range(6), points=40, final=0.96)
    firsts = []
    for row in result.hard:
        crossing = [step for step, score in zip(result.step, row, strict=True) if score >= 0.95]
        firsts.append(crossing[0] if crossing else float("inf"))
    middle = sorted(firsts)
    assert steps_to(result) == (middle[2] + middle[3]) / 2


def test_a_row_says_what_the_result_holds(make_result):
    result = make_result(seeds=(3, 4, 5, 6, 7), gap=0.2, final=0.8)
    (row,) = summarise([result])["rows"]
    assert list(row) == [
        "task", "learner", "seeds", "hard_score", "soft_score", "gap", "optimal_rate", "evaluations", "steps_to_95",
        "seconds",
    ]  # fmt: skip
    hard, soft = result.hard[:, -1], result.soft[:, -1]
    assert (row["task"], row["learner"], row["seeds"]) == ("ScalarOp", "exact", 5)
    assert row["hard_score"]["iqm"] == pytest.approx(iqm_by_hand(hard))
    assert row["soft_score"]["iqm"] == pytest.approx(iqm_by_hand(soft))
    assert row["gap"]["iqm"] == pytest.approx(iqm_by_hand(soft - hard))
    assert row["gap"]["low"] < row["gap"]["iqm"] < row["gap"]["high"]
    assert row["optimal_rate"] == pytest.approx(iqm_by_hand(result.optimal[:, -1]))
    assert row["evaluations"] == 1000 * 512
    assert row["seconds"] == 1.25


def test_summary_is_plain_json(make_result):
    results = [
        make_result(learner="exact"),
        make_result(learner="reinforce", seeds=(0,)),
        replace(make_result(learner="flat"), hard=np.full((5, 8), 0.25, np.float32), seconds=np.float32(2)),
    ]
    summary = summarise(results, {("OpChain", "exact"): "too many paths"})
    again = json.loads(json.dumps(summary, allow_nan=False))
    assert again == summary
    plain = (str, int, float, type(None))
    for row in summary["rows"]:
        for value in row.values():
            members = value.values() if isinstance(value, dict) else [value]
            assert all(type(member) in plain for member in members)


def test_rows_keep_the_order_given_and_dashes_stand_in_their_place(make_result):
    cells = (("B", "exact"), ("B", "soft"), ("A", "soft"))
    results = [replace(make_result(), task=task, learner=learner) for task, learner in cells]
    rows = summarise(results, {("A", "exact"): "too many paths", ("A", "last"): "no"})["rows"]
    assert [(r["task"], r["learner"]) for r in rows] == [
        ("B", "exact"),
        ("B", "soft"),
        ("A", "exact"),
        ("A", "soft"),
        ("A", "last"),
    ]
    missing = rows[2]
    assert missing["why_not"] == "too many paths"
    assert missing["hard_score"] == missing["soft_score"] == missing["gap"] == {"iqm": None, "low": None, "high": None}
    figures = ("optimal_rate", "evaluations", "steps_to_95", "seconds")
    assert [missing[name] for name in figures] == [None] * 4
    assert missing["seeds"] == 0
    assert "why_not" not in rows[3]


def test_scores_that_are_not_finite_become_a_dash_with_a_reason(make_result):
    result = make_result(seeds=(4, 5, 6))
    hard = result.hard.copy()
    hard[1, -1] = np.nan
    (row,) = summarise([replace(result, hard=hard)])["rows"]
    assert row["hard_score"]["iqm"] is None
    assert row["why_not"] == "scores are not finite for seeds [5]"
    json.dumps(row, allow_nan=False)


def test_two_results_for_one_cell_are_refused(make_result):
    with pytest.raises(ValueError, match="two for"):
        summarise([make_result(), make_result()])
    with pytest.raises(ValueError, match="two for"):
        summarise([make_result()], {("ScalarOp", "exact"): "no"})


def test_malformed_results_are_refused(make_result):
    result = make_result()
    with pytest.raises(ValueError, match=r"soft of 'exact' on 'ScalarOp' must have shape \[R, E\] = \[5, 8\]"):
        summarise([replace(result, soft=result.soft[:3])])


def test_curves_are_tidy(make_result):
    results = [make_result(learner="exact", seeds=(7, 9)), make_result("OpChain", "soft", seeds=(1,), points=3)]
    table = curves(results)
    assert list(table) == ["task", "learner", "seed", "step", "evaluations", "hard_score", "soft_score"]
    expected = [
        (r.task, r.learner, seed, r.step[e], r.evaluations[e], r.hard[i, e], r.soft[i, e])
        for r in results
        for i, seed in enumerate(r.seeds)
        for e in range(len(r.step))
    ]
    assert list(table.itertuples(index=False, name=None)) == expected
    assert len(table) == 2 * 8 + 3


def test_curves_of_nothing_have_the_columns():
    assert list(curves([])) == ["task", "learner", "seed", "step", "evaluations", "hard_score", "soft_score"]


def test_comparison_and_report_need_no_tensorflow():
    code = (
        "import sys, opselect.comparison, opselect.report; "
        "sys.exit(any(m.split('.')[0] in ('tensorflow', 'keras') or m == 'matplotlib.pyplot' for m in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
