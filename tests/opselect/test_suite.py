"""The capability suite with our learners: which runs, what is made of them, and the words and files of the report."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from opselect.comparison.suite import AgentFileError, read_agents, summarise_suite
from opselect.experiments.run import run
from opselect.experiments.suite import SUITE_PRESETS, relaxed, suite_cells
from opselect.learners import LEARNERS
from opselect.report.suite import findings, print_suite, write_suite
from opselect_envs.challenges import AXES, CHALLENGES
from opselect_envs.tasks import Task

RLOO, SOFT = "reinforce-rloo", "soft-mixture"


@pytest.fixture
def outcome(make_result):
    """Scores (challenge, learner) -> hard score, and the summary of five seeds near them."""

    def of(scores, seeds=5, agents=(), inapplicable=None):
        results = []
        for (challenge, learner), score in scores.items():
            result = make_result(challenge, learner, seeds=range(seeds), parameters=_SMALL)
            near = score + 0.01 * np.linspace(-1, 1, seeds)
            result.hard[:, -1], result.soft[:, -1] = near, near + 0.2
            results.append(result)
        learners = list(dict.fromkeys(learner for _, learner in [*scores, *(inapplicable or {})]))
        return summarise_suite(results, inapplicable or {}, relaxed(learners), agents)

    return of


_SMALL = Task(("neg", "square", "exp", "tanh"), low=-2.0, high=2.0, regions=4, rule=0)


# --- which runs -------------------------------------------------------------------------------------------------------


def test_the_whole_suite():
    runs, inapplicable = suite_cells(None, None)
    assert {r.name for r in runs} == set(CHALLENGES)
    sparse = [c.name for c in CHALLENGES.values() if c.axis == "sparse"]
    relaxations = [n for n in SUITE_PRESETS["default"].learners if LEARNERS[n].estimator.needs_relaxation]
    assert set(inapplicable) == {(c, name) for c in sparse for name in relaxations}
    assert len(runs) == len(CHALLENGES) * 5 - len(inapplicable)
    assert {len(r.seeds) for r in runs} == {5}
    for r in runs:
        assert r.task == dataclasses.replace(CHALLENGES[r.name].task, shift_after=r.task.shift_after)
        assert r.task.shift_after == (400 if CHALLENGES[r.name].axis == "shifting" else 0)


def test_a_quick_look_has_one_challenge_per_axis():
    runs, _ = suite_cells(None, ["exact"], quick=True, seeds=2, steps=30)
    assert [CHALLENGES[r.name].axis for r in runs] == list(AXES)
    assert {r.steps for r in runs} == {30} and {r.seeds for r in runs} == {(0, 1)}
    runs, _ = suite_cells(["ties"], [SOFT])
    assert [r.name for r in runs] == ["ties-4", "ties-8", "ties-16"]


def test_the_rule_shifts_half_way(tmp_path):
    """Up to the shift the curve is that of the first rule alone; at the end the second rule is judged."""
    learner = dataclasses.replace(LEARNERS["exact"], rows=32, hidden=(16,))
    (config,), _ = suite_cells(["shifting"], ["exact"], quick=True, seeds=2, steps=43)
    config = dataclasses.replace(config, learner=learner, held_out=256)
    shifted = run(config, tmp_path / "shifted")
    assert shifted.step.tolist() == [11, 21, 32, 43]
    task = config.task
    first = dataclasses.replace(config, task=dataclasses.replace(task, rule_after=None, shift_after=0))
    steady = run(first, tmp_path / "steady")
    assert steady.step.tolist() == [11, 22, 33, 43]
    np.testing.assert_array_equal(shifted.hard[:, 0], steady.hard[:, 0])
    assert (shifted.hard[:, 1] > 0.4).all()  # what was learned of the first rule
    assert (shifted.hard[:, 2] < shifted.hard[:, 1]).all()
    np.testing.assert_array_equal(shifted.picture.target, task.at(43).held_out(256).target)
    # A run that is cut off and continued ends as one that is not.
    folder, calls = tmp_path / "resumed", []

    def stop(done, hard):
        calls.append(done)
        if done == 21:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, folder, stop)
    again = run(config, folder, lambda done, hard: calls.append(done))
    assert calls == [11, 21, 32, 43]
    np.testing.assert_array_equal(again.hard, shifted.hard)


# --- what is made of them ---------------------------------------------------------------------------------------------


def test_scores_per_axis(outcome):
    summary = outcome(
        {("ties-4", RLOO): 1.0, ("ties-8", RLOO): 0.9, ("ties-4", SOFT): 1.2, ("ties-8", SOFT): -0.4},
        inapplicable={("sparse-1", SOFT): "a sparse reward has no gradient to follow"},
    )
    axes = {(row["axis"], row["learner"]): row for row in summary["axes"]}
    assert axes["ties", RLOO]["score"] == pytest.approx(0.95) and axes["ties", RLOO]["outcome"] == "passes"
    assert axes["ties", SOFT]["score"] == pytest.approx(0.5)  # cut to [0, 1] before the mean
    assert (axes["ties", SOFT]["outcome"], axes["ties", SOFT]["relaxed"]) == ("fails", True)
    assert (axes["sparse", SOFT]["score"], axes["sparse", SOFT]["outcome"]) == (0.0, "fails")
    row = summary["challenges"][2]
    assert (row["challenge"], row["learner"], row["seeds"]) == ("ties-4", SOFT, 5)
    assert row["score"]["iqm"] == pytest.approx(1.2)
    assert row["score"]["low"] < 1.2 < row["score"]["high"]
    assert row["gap"]["iqm"] == pytest.approx(0.2)
    assert row["best_fixed"] == pytest.approx(0.5745, abs=1e-3)
    json.dumps(summary, allow_nan=False)


def test_findings_name_both_sides(outcome):
    said = findings(
        outcome(
            {("noise-98", RLOO): 0.5, ("noise-98", SOFT): 0.96, ("blending-40", RLOO): 1, ("blending-40", SOFT): 0.6}
        )
    )
    assert said == [
        "noise: soft-mixture (0.96) passes; reinforce-rloo (0.50) fails: a sampled reward that is mostly noise says"
        " little about the operation, while a relaxation differentiates the reward and keeps its slope wherever the"
        " noise left it.",
        "blending: reinforce-rloo (1.00) passes; soft-mixture (0.60) fails: a mixture fits the target better than any"
        " operation, so training ends at a mixture, and its argmax is whichever weighs most.",
    ]


def test_findings_of_the_other_outcomes(outcome):
    assert findings(outcome({("basic-4", RLOO): 1.0, ("basic-4", SOFT): 0.95})) == ["basic: everyone passes."]
    assert findings(outcome({("basic-4", RLOO): 0.8, ("basic-4", SOFT): 0.85})) == [
        "basic: nobody passes; best is soft-mixture (0.85)."
    ]
    assert findings(outcome({("basic-4", RLOO): 0.2}, seeds=4)) == ["basic: no verdict from fewer than 5 seeds."]
    assert "it asks to tell a few operations apart" in findings(outcome({("basic-4", RLOO): 0.2}))[0]


def test_every_reason_has_its_axis():
    from opselect.report.suite import _WHY

    assert {axis for axis, _ in _WHY} == set(AXES) - {"basic"}
    assert len(_WHY) == 2 * (len(AXES) - 1)


# --- other agents -----------------------------------------------------------------------------------------------------


def test_other_agents_stand_beside(outcome, tmp_path):
    path = tmp_path / "agents.jsonl"
    line = {"agent": "PPO", "challenge": "noise-98", "score": 0.97, "low": 0.95, "high": 0.98, "steps": 9}
    path.write_text(json.dumps(line) + "\n\n" + json.dumps(line | {"challenge": "opselect-suite/basic-4-v0"}) + "\n")
    agents = read_agents(path)
    assert [a["challenge"] for a in agents] == ["noise-98", "basic-4"]
    summary = outcome({("noise-98", RLOO): 0.5}, agents=agents)
    assert [row["learner"] for row in summary["challenges"]] == ["PPO", RLOO, "PPO"]
    assert "PPO (0.97) passes; reinforce-rloo (0.50) fails" in findings(summary)[1]


AGENT = '{"agent": "a", "challenge": "noise-98", "score": 0.5, "low": 0, "high": 1}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "line 1: needs an object .* missing: agent, challenge, score, low, high"),
        ("\n[1]", "line 2: needs an object"),
        ("not json", "line 1: is no JSON"),
        ("  \n", "is empty"),
        (AGENT.replace("noise", "nose"), "did you mean 'noise-98'"),
        (AGENT.replace("0.5", "NaN"), "score must be a finite number, got nan"),
        (AGENT.replace("0.5", "true"), "score must be a finite number, got True"),
        (AGENT.replace("0.5", "1.5"), r"low <= score <= high must hold, got 0\.0, 1\.5 and 1\.0"),
        (AGENT.replace('"a"', "3"), "agent must be a string, got 3"),
        (AGENT.replace('"a"', '"exact"'), "agent 'exact' has the name of a learner"),
        (AGENT + "\n" + AGENT.replace("0.5", "0.9"), "line 2: there is a line for agent 'a' and challenge 'noise-98'"),
    ],
)
def test_bad_files_of_agents(text, message, tmp_path):
    path = tmp_path / "agents.jsonl"
    path.write_text(text)
    with pytest.raises(AgentFileError, match=message):
        read_agents(path, taken=["exact"])
    with pytest.raises(AgentFileError, match="can't be read"):
        read_agents(tmp_path / "none.jsonl")


def test_too_few_seeds_are_no_verdict(outcome):
    agents = [{"agent": "mine", "challenge": "basic-4", "score": 0.5, "low": 0.4, "high": 0.6}]
    summary = outcome({("basic-4", RLOO): 0.99}, agents=agents, seeds=2)
    assert [row["outcome"] for row in summary["axes"]] == ["no verdict", "fails"]
    [said] = findings(summary)
    assert "nobody judged passes; best is mine (0.50)" in said and f"no verdict on {RLOO} from fewer than 5" in said


# --- files and words --------------------------------------------------------------------------------------------------


class _Balanced(HTMLParser):
    void = ("meta", "br", "path", "use", "rect", "link")

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.void:
            self.open.append(tag)
        for name, value in attrs:
            assert name not in ("src", "href") or (value or "").startswith(("#", "data:")), value

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_files(outcome, tmp_path):
    scores = {(n, learner): s for n in CHALLENGES for learner, s in ((RLOO, 0.95), (SOFT, 0.6)) if "1024" not in n}
    summary = outcome(scores, inapplicable={("operations-1024", SOFT): "<too> many"})
    write_suite(tmp_path, summary, "opselect suite --quick", {"opselect": "1"}, ["one & two"])
    told = json.loads((tmp_path / "suite.json").read_text())
    assert told["findings"] == findings(summary) and len(told["findings"]) == len(AXES)
    page = (tmp_path / "suite.html").read_text()
    parser = _Balanced()
    parser.feed(page)
    assert parser.open == []
    for expected in ("&lt;too&gt; many", "one &amp; two", "opselect suite --quick", "always the best fixed operation"):
        assert expected in page
    radar = re.search(r'aria-label="Mean score per axis. ([^"]*)"', page)
    assert radar is not None and "soft-mixture: basic 0.60, operations 0.48" in radar[1]
    for axis in AXES:
        assert f"<h3>{axis}</h3>" in page


def test_the_table_fits_a_terminal(outcome, capsys):
    scores = {(n, learner): 0.95 for n in ("basic-4", "noise-98") for learner in SUITE_PRESETS["default"].learners}
    print_suite(outcome(scores), Console(width=80))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("noise-98 ") and line.count("0.950") == 5 for line in lines)
