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
from opselect.report import plots, print_table, verdict, write_files
from opselect.report.html import render_report
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


def test_verdict_names_the_best_and_says_when_intervals_overlap():
    apart = verdict([row("a", (0.9, 0.88, 0.92)), row("b", (0.8, 0.7, 0.87)), row("c", (0.5, 0.4, 0.6))])
    assert "Best hard score: a, 0.900 (95% interval 0.880 to 0.920)." in apart
    assert "No other interval overlaps it; the nearest is that of b." in apart
    some = verdict([row("a", (0.9, 0.86, 0.92)), row("b", (0.8, 0.7, 0.87)), row("c", (0.5, 0.4, 0.6))])
    assert "The interval of b overlaps it, so these seeds do not tell them apart; the other 1 lies below." in some
    every = verdict([row("a", (0.9, 0.5, 0.92)), row("b", (0.8, 0.7, 0.87)), row("c", (0.5, 0.4, 0.6))])
    assert "All other intervals overlap it" in every


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
    page = render_report(summary, results, "opselect compare --seeds 5", {"numpy": "9.8.7"}, ["a run diverged"])
    parsed = Page(page)
    text = " ".join(parsed.text)
    for learner in ("exact", "reinforce", "soft-mixture"):
        assert learner in text
    for said in ("opselect compare --seeds 5", "9.8.7", "a run diverged", "too many paths", "task.value_limit", *TASKS):
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
    page = render_report(summarise(results), results, f"run {NASTY}", {NASTY: NASTY}, [NASTY])
    assert "<b onclick" not in page
    parsed = Page(page)
    assert not any("onclick" in attributes for _, attributes in parsed.tags)
    assert " ".join(parsed.text).count(NASTY) > 10


def test_few_seeds_and_few_points_still_make_a_page(make_result):
    results = [make_result(task, "exact", seeds=(3,), points=1, rows=2) for task in TASKS]
    page = render_report(summarise(results), results, "x", {})
    assert page.count("No verdict: 1 seed is too few") == 3
    assert "seed 3" in page


def test_a_page_of_nothing():
    assert "too many paths" in render_report(summarise([], {("A", "exact"): "too many paths"}), [], "x", {})
    Page(render_report({"rows": []}, [], "x", {}))


def test_files_hold_the_summary_and_are_the_same_each_time(results, tmp_path):
    reasons = {("OpChain", "exact"): "too many paths"}
    arguments = (results, reasons, "opselect compare", {"numpy": "9.8.7"}, [])
    summary = write_files(tmp_path / "new" / "a", *arguments)
    write_files(tmp_path / "b", *arguments)
    folder = tmp_path / "new" / "a"
    assert sorted(p.name for p in folder.iterdir()) == ["curves.csv", "report.html", "summary.json"]
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    assert json.loads((folder / "summary.json").read_text()) == summary == summarise(results, reasons)
    with (folder / "curves.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    table = curves(results)
    assert lines[0] == list(table)
    stored = [(*line[:2], *map(int, line[2:5]), *map(float, line[5:])) for line in lines[1:]]
    assert stored == list(table.itertuples(index=False, name=None))  # floats to the last bit
