"""The report holds what was measured, claims no more, and stands on its own."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from opselect.comparison import curves, summarise
from opselect.report import across, markdown, plots, print_table, verdict, write_files
from opselect.report.gradients import read_gradients
from opselect.report.html import render_report
from opselect.report.page import Origin
from opselect.report.tables import human
from opselect.report.verdict import describe
from opselect_envs.tasks import TASKS, Task

VOID = {"meta", "br", "link", "img", "hr", "input"}
NASTY = '<b onclick="x">&$a_b$</b>'


class Page(HTMLParser):
    """Collects text and attributes, and fails on tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.tags, self.ids = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def results(make_result):
    finals = {"exact": 0.99, "reinforce": 0.93, "soft-mixture": 0.85}
    return [
        make_result(task, learner, final=final, gap=0.1 if learner == "soft-mixture" else 0.0)
        for task in TASKS
        for learner, final in finals.items()
        if (task, learner) != ("OpChain", "exact")
    ]


def row(learner, hard, gap=(0.0, -0.01, 0.01), seeds=5, task="T"):
    """A row of a summary; hard and gap are (iqm, low, high)."""
    names = ("iqm", "low", "high")
    shift = [h + gap[0] for h in hard]
    return {
        "task": task, "learner": learner, "seeds": seeds, "hard_score": dict(zip(names, hard, strict=True)),
        "soft_score": dict(zip(names, shift, strict=True)), "gap": dict(zip(names, gap, strict=True)),
        "optimal_rate": 0.5, "evaluations": 1000, "steps_to_95": None, "seconds": 1.0,
    }  # fmt: skip


MEASURED = [
    {"problem": "quadratic", "estimator": name, "vary": None, "at": None, "reason": None, "bias": bias, "bias_se": 0.01,
     "variance": variance, "evaluations": 4, "biased": bias > 0.1}
    for name, bias, variance in (("exact", 0.0, 0.0), ("reinforce", 0.02, 9.0), ("mve", 0.5, 0.1))
]  # fmt: skip


def printed(summary, width=80):
    text = io.StringIO()
    print_table(summary, Console(width=width, file=text, force_terminal=True, color_system="standard"))
    return text.getvalue()


# --- the terminal -----------------------------------------------------------------------------------------------------


def test_table_fits_80_columns_and_shows_every_figure(results, make_result):
    results.append(make_result(learner="reinforce-self-critical", final=0.96))
    summary = summarise(results, {("OpChain", "exact"): "too many paths"})
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed(summary))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    for r in summary["rows"]:
        if r["hard_score"]["iqm"] is not None:
            hard = "{iqm:.3f} [{low:.3f},{high:.3f}]".format(**r["hard_score"])
            assert any(line.startswith(r["learner"]) and hard in line for line in lines)
    assert re.search(r"^exact +- +- +- +- +- +- +-$", text, re.MULTILINE)
    assert "exact: too many paths" in text
    assert "0 = uniform random, 1 = oracle" in text


def test_tables_over_all_tasks_and_the_verdict_fit_too(results):
    results = [*results, *(dataclasses.replace(r, learner="gapped-straight-through") for r in results[:1])]
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed(summarise(results, {("OpChain", "exact"): "too many paths"})))
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^All 3 tasks *$", text, re.MULTILINE)
    flat = " ".join(text.split())
    assert re.search(r"Over all 3 tasks reinforce has the highest hard score: 0\.9\d\d \[0\.9\d\d, 0\.9\d\d\]", flat)
    assert "reinforce beats soft-mixture on all 3 tasks, P = 1.00 [1.00, 1.00]." in flat
    assert "P: how probable it is" in flat


def test_markdown_has_the_same_figures_as_the_terminal(results):
    summary = summarise(results, {("OpChain", "exact"): "too many paths"})
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed(summary, width=200))
    text = markdown(summary, ["opselect compare"], ["a run diverged"])
    cells = {c.strip("* ") for line in text.splitlines() if line.startswith("| ") for c in line.split("|") if c.strip()}
    assert len(cells) > 60
    for cell in cells - {"---", "---:"}:
        assert cell in plain
    for sentence in across(summary):
        assert f"- {sentence}" in text
    assert "## What went wrong\n\n- a run diverged" in text
    assert "    opselect compare\n" in text


def test_markdown_takes_any_name(make_result):
    name = "[a](javascript:x) | `b` *c* <img>\n# d"
    text = markdown(summarise([dataclasses.replace(make_result(), learner=name, task=name)]), [f"run {name}"])
    assert "[a](" not in text.replace("    run ", "").split("## How")[0]
    assert "\n# d" not in text.replace("# Which", "")
    assert "<img>" not in text.replace("\\<img>", "").split("## How")[0]
    (line,) = (line for line in text.splitlines() if line.startswith("| **"))
    assert len(re.findall(r"(?<!\\)\|", line)) == 9


def test_the_best_hard_score_is_bold():
    text = printed({"rows": [row("low", (0.5, 0.4, 0.6)), row("high", (0.7, 0.6, 0.8)), row("mid", (0.6, 0.5, 0.7))]})
    bold = re.findall(r"\x1b\[1m(.*?)\x1b\[0m", text)
    assert "0.700 [0.600,0.800]" in bold
    assert not any("0.500" in b or "0.600 [" in b for b in bold)


def test_names_are_not_markup():
    assert "[red]x[/red]" in printed({"rows": [row("[red]x[/red]", (0.5, 0.4, 0.6))]})


def test_numbers_for_humans():
    shown = {512: "512", 1500: "1.5k", 12_000: "12k", 999_950: "1M", 1_280_000: "1.28M", 3e9: "3G", 0: "0"}
    assert {number: human(number) for number in shown} == shown
    assert human(None) == "-"


# --- the verdict ------------------------------------------------------------------------------------------------------


def pair(x, y, outcomes, chance=(0.9, 0.8, 0.97), few=()):
    """A pair of a summary; outcomes: task -> "x", "y" or None."""
    probability = dict(zip(("value", "low", "high"), chance, strict=True))
    by_task = [
        {"task": task, "difference": 0.1, "probability": probability, "p": 0.01, "better": better}
        for task, better in outcomes.items()
    ]
    return {"x": x, "y": y, "probability": probability, "by_task": by_task, "too_few_seeds": list(few)}


def test_verdict_names_the_best_and_says_what_is_noise():
    rows = [row("a", (0.9, 0.88, 0.92)), row("b", (0.8, 0.7, 0.87)), row("c", (0.5, 0.4, 0.6))]
    apart = verdict(rows, [pair("a", "b", {"T": "x"}), pair("c", "a", {"T": "y"})])
    assert "Best hard score: a, 0.900 (95% interval 0.880 to 0.920). It beats b and c." in apart
    some = verdict(rows, [pair("a", "b", {"T": None, "S": "x"}), pair("a", "c", {"T": "x"})])
    assert "The difference from b is within noise; it beats c." in some
    every = verdict(rows, [pair("a", "b", {"T": None}), pair("a", "c", {"T": None})])
    assert "No other learner's difference from it is beyond noise, so these seeds single out none." in every
    ranks = verdict(rows, [pair("a", "b", {"T": "y"}), pair("a", "c", {"T": "x"})])
    assert "But runs of b mostly score higher than its. It beats c." in ranks


def summary_of(scores, pairs, seeds=5, left_out=()):
    """A summary across two tasks: learner -> IQM."""
    names = ("iqm", "low", "high")
    tasks = ["S", "T", "U"]
    rows = [row(name, (v, v, v), seeds=seeds, task=task) for task in tasks for name, v in scores.items()]
    aggregate = [
        {"scope": "all", "learner": name, "seeds": seeds, "runs": 3 * seeds}
        | {key: dict(zip(names, (v, v - 0.01, v + 0.01), strict=True)) for key in ("iqm", "equal_evaluations")}
        | {"equal_seconds": dict.fromkeys(names) if name == "c" else dict(zip(names, (v, v, v), strict=True))}
        for name, v in scores.items()
        if name not in left_out
    ]
    learners = [name for name in scores if name not in left_out]
    scopes = {"all": {"tasks": tasks, "learners": learners}}
    return {"rows": rows, "aggregate": aggregate, "scopes": scopes, "pairs": pairs}


def test_the_verdict_across_tasks_says_who_beats_whom_where():
    pairs = [
        pair("b", "a", {"S": "x", "T": "x", "U": None}, (0.93, 0.9, 0.95)),
        pair("b", "c", {"S": "x", "T": "y", "U": "x"}),
        pair("a", "c", {"S": None, "T": None, "U": None}),
    ]
    said = across(summary_of({"a": 0.8, "b": 0.9, "c": 0.795}, pairs))
    assert said == [
        "Over all 3 tasks b has the highest hard score: 0.900 [0.890, 0.910], interquartile mean of 15 runs.",
        "b beats a on 2 of 3 tasks, P = 0.93 [0.90, 0.95]; the difference on U is within noise.",
        "b beats c on 2 of 3 tasks and loses to it on T, P = 0.90 [0.80, 0.97].",
        "After equally many reward evaluations (the most that all reached on a task) b leads, 0.900 [0.890, 0.910].",
        "After equal seconds (the most that all reached on a task) b leads, 0.900 [0.900, 0.900];"
        " c had no score that early.",
    ]


@pytest.mark.parametrize(
    ("outcomes", "chance", "expected"),
    [
        ({"S": "x", "T": "x"}, (1, 1, 1), "a beats b on all 2 tasks that both have, P = 1.00 [1.00, 1.00]."),
        (
            {"S": None, "T": None},
            (0.6, 0.4, 0.8),
            "The difference between a and b is within noise on all 2 tasks that both have",
        ),
        ({"S": None, "T": None}, (0.8, 0.6, 0.9), "No single task tells a and b apart, but over all 2 a tends to"),
        ({"S": None, "T": None}, (0.2, 0.1, 0.4), "No single task tells a and b apart, but over all 2 b tends to"),
        (
            {"S": "y", "T": None},
            (0.3, 0.1, 0.6),
            "a loses to b on 1 of 2 tasks that both have, P = 0.30 [0.10, 0.60]; the difference",
        ),
        ({"T": "x"}, (1, 1, 1), "a beats b on T, P = 1.00"),
        ({"T": None}, (0.6, 0.55, 0.8), "The difference between a and b is within noise on T, P = 0.60"),
    ],
)
def test_every_outcome_of_a_pair_has_its_sentence(outcomes, chance, expected):
    said = across(summary_of({"a": 0.9, "b": 0.8}, [pair("a", "b", outcomes, chance)]))
    assert said[1].startswith(expected)


def test_learners_beaten_everywhere_share_a_sentence():
    others = {"b": 0.8, "c": 0.7, "d": 0.6}
    pairs = [pair("a", name, dict.fromkeys("STU", "x"), (v, v, 1)) for name, v in others.items()]
    said = across(summary_of({"a": 0.9} | others, pairs))
    assert said[1] == "a beats b, c and d on every task that both have, P = 0.60 [0.60, 1.00] or more."


def test_nothing_is_claimed_across_tasks_from_few_seeds_or_one_task():
    few = across(summary_of({"a": 0.9, "b": 0.8}, [pair("a", "b", {}, few="STU")], seeds=4))
    assert few == ["No verdict across tasks: 4 seeds are too few to tell learners apart. Run at least 5 (--seeds 5)."]
    one = summary_of({"a": 0.9, "b": 0.8}, [])
    one["rows"] = [r for r in one["rows"] if r["task"] == "S"]
    assert across(one) == []
    apart = across({"rows": [row("a", (1, 1, 1), task="S"), row("b", (1, 1, 1), task="T")], "scopes": {}})
    assert apart[0].startswith("No verdict across tasks: no task has scores of all learners")


def test_a_learner_without_some_task_is_still_compared_where_both_have_scores():
    pairs = [pair("a", "b", {"S": "x", "T": None}), pair("a", "c", {"S": "x", "T": "x", "U": None})]
    said = across(summary_of({"a": 0.9, "b": 0.95, "c": 0.5}, pairs, left_out=["b"]))
    assert said[0].startswith("Over all 3 tasks a has the highest")
    assert (
        "a beats b on 1 of 2 tasks that both have, P = 0.90 [0.80, 0.97]; the difference on T is within noise." in said
    )
    assert said[-1] == "Not ranked over all 3 tasks, for want of scores on some: b."


def test_verdict_names_the_largest_gap_only_as_far_as_it_is_certain():
    rows = [row("a", (0.9, 0.88, 0.92), (0.01, 0.0, 0.02)), row("b", (0.7, 0.6, 0.8), (0.2, 0.1, 0.3))]
    said = "Largest gap: b, +0.200: what it trains scores 0.900, but the operations it picks score 0.700."
    assert said in verdict(rows)
    below = verdict([row("a", (0.9, 0.88, 0.92), (-0.05, -0.06, -0.04)), row("b", (0.7, 0.6, 0.8))])
    assert "Largest gap: a, -0.050: the operations it picks score 0.900, more than what it trains, 0.850." in below
    assert "not clearly different from 0" in verdict([row("a", (0.9, 0.88, 0.92), (0.05, -0.01, 0.2))])


def test_verdict_claims_nothing_from_few_seeds():
    assert verdict([row("a", (0.9, 0.9, 0.9), seeds=2), row("b", (0.1, 0.1, 0.1), seeds=4)]) == (
        "No verdict: 4 seeds are too few to tell learners apart. Run at least 5 (--seeds 5)."
    )
    mixed = verdict([row("a", (0.9, 0.8, 1.0), seeds=3), row("b", (0.1, -0.1, 0.2), seeds=5)])
    assert "Only b is judged" in mixed
    assert "Not judged, for fewer than 5 seeds: a." in mixed
    assert "Not clearly better than uniform random: b." in mixed


def test_verdict_without_scores():
    empty = {"iqm": None, "low": None, "high": None}
    assert verdict([row("a", (0, 0, 0)) | {"hard_score": empty, "seeds": 0}]) == "No learner has scores here."


def test_descriptions_tell_the_tasks_apart():
    said = [describe(task.to_dict()) for task in TASKS.values()]
    rule = "a hidden rule with 12 regions says which. Only x is shown."
    assert said[0] == f"Pick the right one of 10 operations for x in [-3, 3]; {rule}"
    assert "both are shown" in said[1]
    assert said[2].startswith("Apply 3 of 6 operations, one after the other")
    assert describe(None) == describe({"env": "CartPole-v1"}) == ""


# --- figures ----------------------------------------------------------------------------------------------------------


def test_runs_meet_halfway_and_cover_the_range():
    x = np.array([0.3, -0.9, 0.1, 0.7, -0.5], np.float32)
    runs = plots._runs(x, np.array([2, 1, 2, 4, 1]), (-1.0, 1.0))
    assert [value for *_, value in runs] == [1, 2, 4]
    assert [border for start, end, _ in runs for border in (start, end)] == pytest.approx(
        [-1.0, (-0.5 + 0.1) / 2, (-0.5 + 0.1) / 2, (0.3 + 0.7) / 2, (0.3 + 0.7) / 2, 1.0]
    )


def test_every_kind_of_task_has_its_picture(results):
    kinds = {r.task: plots.picture_kind(r) for r in results}
    assert kinds == {"ScalarOp": "strips", "ScalarOpGoal": "choices", "OpChain": "rewards"}


def test_on_target_accepts_any_operation_that_reaches_it(results):
    picture = results[0].picture
    same_value = picture.reward == 1.0
    assert plots.on_target(picture)[same_value].all()
    assert 0 < (~plots.on_target(picture)).sum() < len(picture.x)


def test_operations_keep_their_colours_apart(make_result):
    names = tuple(name for name in ("sin", "cos", "square", "exp", "log", "sqrt", "inv", "tanh", "neg", "asin", "abs",
                                    "cube", "sign", "floor", "relu") )  # fmt: skip
    task = Task(operations=names, low=-3.0, high=3.0, goal=True, rule=None)
    colours = plots.operation_colours([make_result("ScalarOpGoal", "exact", parameters=task, final=0.5, rows=512)])
    assert len(colours) > 10
    assert len(set(colours.values())) == len(colours)


def test_curves_show_the_worst_and_best_seed_and_the_threshold(results):
    some = [r for r in results if r.task == "ScalarOp"]
    svg = plots.learning_curves(some, {r.learner: i for i, r in enumerate(some)})
    assert "0.95" in svg
    assert all(f"var(--line-{i})" in svg for i in range(3))
    assert "var(--line-3)" not in svg


# --- the page and the files -------------------------------------------------------------------------------------------


def test_the_page_stands_on_its_own(results):
    summary = summarise(results, {("OpChain", "exact"): "too many paths"})
    sources = [Origin("opselect compare --seeds 5", {"numpy": "9.8.7"})]
    page = render_report(summary, results, sources, ["a run diverged"], gradients=MEASURED, notes=["a note"])
    parsed = Page(page)
    text = " ".join(parsed.text)
    for learner in ("exact", "reinforce", "soft-mixture"):
        assert learner in text
    for said in (
        "opselect compare --seeds 5",
        "9.8.7",
        "a run diverged",
        "too many paths",
        "a note",
        "task.value_limit",
        *TASKS,
    ):
        assert said in text
    assert "http" not in page and "//" not in re.sub(r"base64,[A-Za-z0-9+/=\s]+", "", page)
    for tag, attributes in parsed.tags:
        assert tag not in ("script", "link", "img", "iframe")
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png"))
    assert len(page) < 3_000_000
    assert len(set(parsed.ids)) == len(parsed.ids)
    used = set(re.findall(r'url\(#([^)]+)\)|xlink:href="#([^"]+)"', page))
    assert {a or b for a, b in used} <= set(parsed.ids)
    defined = set(re.findall(r"(--[\w-]+):", page))
    assert set(re.findall(r"var\((--[\w-]+)\)", page)) <= defined


def test_names_are_escaped(make_result):
    results = [dataclasses.replace(make_result(task), learner=NASTY, task=NASTY + task) for task in TASKS]
    page = render_report(
        summarise(results, {(NASTY, "other"): NASTY}), results,
        [Origin(f"run {NASTY}", {NASTY: NASTY}, NASTY)], [NASTY],
        gradients=[row | {"problem": NASTY, "estimator": NASTY + "2"} for row in MEASURED], notes=[NASTY],
    )  # fmt: skip
    assert "<b onclick" not in page
    parsed = Page(page)
    assert not any("onclick" in attributes for _, attributes in parsed.tags)
    assert " ".join(parsed.text).count(NASTY) > 10


def test_few_seeds_and_few_points_still_make_a_page(make_result):
    results = [make_result(task, "exact", seeds=(3,), points=1, rows=2) for task in TASKS]
    page = render_report(summarise(results), results, [])
    assert page.count("No verdict: 1 seed is too few") == 3
    assert "seed 3" in page


def test_a_page_of_nothing():
    assert "too many paths" in render_report(summarise([], {("A", "exact"): "too many paths"}), [], [])
    Page(render_report(summarise([]), [], []))


def test_files_hold_the_summary_and_are_the_same_each_time(results, tmp_path):
    reasons = {("OpChain", "exact"): "too many paths"}
    arguments = (results, reasons, "opselect compare", {"numpy": "9.8.7"}, [])
    summary = write_files(tmp_path / "new" / "a", *arguments)
    write_files(tmp_path / "b", *arguments)
    folder = tmp_path / "new" / "a"
    assert sorted(p.name for p in folder.iterdir()) == [
        "comparison.json", "curves.csv", "report.html", "summary.json", "summary.md"
    ]  # fmt: skip
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    assert json.loads((folder / "summary.json").read_text()) == summary == summarise(results, reasons)
    with (folder / "curves.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    table = curves(results)
    assert lines[0] == list(table)
    stored = [(*line[:2], *map(int, line[2:5]), *map(float, line[5:])) for line in lines[1:]]
    assert stored == list(table.itertuples(index=False, name=None))  # floats to the last bit


def test_figures_across_tasks_say_what_was_measured(results):
    summary = summarise(results)
    styles = {"exact": 0, "reinforce": 1, "soft-mixture": 2}
    shares = [row for row in summary["profiles"] if row["scope"] == "all"]
    assert "of reinforce, soft-mixture" in plots.profiles(shares, styles)
    curves_ = [row for row in summary["efficiency"]["evaluations"] if row["scope"] == "all"]
    svg = plots.efficiency_curves(curves_, styles, "reward evaluations")
    assert "200k" in svg and "500k" in svg and "var(--line-1)" in svg
    svg = plots.improvements([p for p in summary["pairs"] if p["x"] == "exact"], styles)
    assert "exact scores higher" in svg and "soft-mixture 1.00" in svg
    svg = plots.discretisation_gaps([r for r in summary["rows"] if r["task"] == "ScalarOp"], styles)
    soft = next(r for r in summary["rows"] if r["learner"] == "soft-mixture")["soft_score"]["iqm"]
    assert f"soft-mixture {soft:.2f} to" in svg


def test_round_numbers_on_a_logarithmic_axis():
    assert plots._round_numbers(5e3, 5e5) == [5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5]
    assert plots._round_numbers(1.0, 1e6) == [1, 10, 100, 1e3, 1e4, 1e5, 1e6]
    assert plots._round_numbers(6.1, 6.9) == [6.1, 6.9]
    assert len(plots._round_numbers(1.0, 3e9)) >= 7


def test_many_learners_differ_in_colour_or_marker():
    assert len({plots.line_style(index) for index in range(100)}) == 100


def test_a_page_with_more_learners_than_colours(make_result):
    results = [make_result(task, f"learner-{i}", final=0.5 + i / 60) for i in range(25) for task in ("ScalarOp",)]
    Page(render_report(summarise(results), results, []))


def test_scores_that_are_not_finite_leave_the_page_whole(results):
    hard = results[0].hard.copy()
    hard[0, -1] = np.nan
    broken = [dataclasses.replace(results[0], hard=hard), *results[1:]]
    assert "scores are not finite for seeds [0]" in render_report(summarise(broken), broken, [])


def test_gradients_beside_the_results_are_shown(results, tmp_path):
    (tmp_path / "gradients.json").write_text(json.dumps({"rows": MEASURED}))
    write_files(tmp_path, results, {}, "x", {}, [])
    page = (tmp_path / "report.html").read_text()
    assert "Variance against bias of exact, reinforce, mve" in page
    assert "What went wrong" not in page
    assert read_gradients(tmp_path / "gradients.json") == MEASURED
    for damaged in ("{", "[]", '{"rows": [{}]}', '{"rows": [3]}', json.dumps({"rows": [MEASURED[0] | {"bias": "x"}]})):
        (tmp_path / "gradients.json").write_text(damaged)
        write_files(tmp_path, results, {}, "x", {}, [])
        page = (tmp_path / "report.html").read_text()
        assert "gradients.json is not what `opselect gradients` writes" in page
        assert "Variance against bias" not in page
