"""A comparison rebuilt from its files: the same bytes, several directories as one, and nothing wrong unnamed."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from opselect.comparison import summarise
from opselect.experiments.results import RESULT, config_hash
from opselect.report import rebuild, write_files
from opselect.report.gather import COMPARISON, gather

FILES = ("summary.json", "summary.md", "curves.csv", "report.html")
TASKS = ("ScalarOp", "OpChain")


def save(folder, results):
    for result in results:
        cell = folder / "cells" / f"{result.task}-{result.learner}-{config_hash(result.config)}"
        cell.mkdir(parents=True)
        result.save(cell)


def compared(folder, results, reasons=None, problems=(), command="opselect compare"):
    """As `opselect compare` leaves a directory."""
    save(folder, results)
    return write_files(folder, results, reasons or {}, command, {"numpy": "9.8.7", "processor": "abacus"}, problems)


@pytest.fixture
def results(make_result):
    return [make_result(task, learner, rows=64) for task in TASKS for learner in ("soft-mixture", "exact", "reinforce")]


def test_one_directory_gives_the_same_bytes(results, tmp_path):
    reasons = {("OpChain", "exact"): "it diverged"}
    some = [r for r in results if (r.task, r.learner) not in reasons]
    summary = compared(tmp_path / "a", some, reasons, ["OpChain: it diverged"])
    before = {name: (tmp_path / "a" / name).read_bytes() for name in FILES}
    again, found = rebuild([tmp_path / "a"], tmp_path / "b")
    assert again == summary
    assert found.problems == ["OpChain: it diverged"]
    assert {name: (tmp_path / "b" / name).read_bytes() for name in FILES} == before
    rebuild([tmp_path / "a"], tmp_path / "a")
    assert {name: (tmp_path / "a" / name).read_bytes() for name in FILES} == before
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == sorted(FILES)


def test_results_of_earlier_commands_are_left_out_and_said(results, tmp_path):
    compared(tmp_path, results)
    earlier = dataclasses.replace(results[0], config=results[0].config | {"steps": 7})
    save(tmp_path, [earlier])
    summary, found = rebuild([tmp_path], tmp_path)
    assert summary == summarise(results)
    assert found.problems == []
    assert found.notes == [f"{tmp_path} holds 1 other result of earlier commands, which this one does not show."]
    assert "1 other result of earlier commands" in (tmp_path / "report.html").read_text()


def test_directories_are_merged(results, make_result, tmp_path):
    """Other learners, other tasks, other seeds; a result in one where the other has only a reason."""
    first = [r for r in results if r.learner != "reinforce"]
    second = [r for r in results if r.learner == "reinforce"]
    compared(tmp_path / "a", first, {("OpChain", "reinforce"): "it diverged"}, ["OpChain: it diverged"], "first")
    compared(tmp_path / "b", second, command="second")
    summary, found = rebuild([tmp_path / "a", tmp_path / "b"], tmp_path / "c", "opselect report a b")
    assert summary["rows"] == summarise([*first, *second])["rows"]
    assert {(r["task"], r["learner"]) for r in summary["rows"]} == {(r.task, r.learner) for r in results}
    assert found.problems == ["OpChain: it diverged"]
    page, text = ((tmp_path / "c" / name).read_text() for name in ("report.html", "summary.md"))
    for said in ("first", "second", "opselect report a b", "abacus"):
        assert said in page
    assert "    first\n    second\n    opselect report a b\n" in text


def test_other_seeds_of_the_same_settings_stand_beside_the_first(make_result, tmp_path):
    whole = make_result(seeds=range(10))
    halves = []
    for seeds in (range(6), range(4, 10)):  # 4 and 5 are in both
        rows = list(seeds)
        part = {name: getattr(whole, name)[rows] for name in ("hard", "soft", "optimal")}
        config = whole.config | {"seeds": rows}
        halves.append(dataclasses.replace(whole, seeds=rows, config=config, seconds=3.0, **part))
    for name, half in zip("ab", halves, strict=True):
        compared(tmp_path / name, [half])
    summary, found = rebuild([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    assert summary["rows"] == summarise([dataclasses.replace(whole, seconds=3.0 + 3.0 * 4 / 6)])["rows"]
    assert found.results[0].seeds == list(range(10))
    assert "has seeds that were there before" in found.problems[0]
    assert "4 seeds of" in found.notes[0]


def test_the_same_result_twice_counts_once_and_another_one_is_named(results, tmp_path):
    compared(tmp_path / "a", results)
    compared(tmp_path / "b", results)
    summary, found = rebuild([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    assert summary == summarise(results)
    assert found.problems == []
    assert gather([tmp_path / "a", tmp_path / "a"]).results[0].seeds == results[0].seeds
    longer = dataclasses.replace(results[0], config=results[0].config | {"steps": 7})
    other = dataclasses.replace(results[1], hard=results[1].hard + 0.01)
    compared(tmp_path / "d", [longer, other])
    summary, found = rebuild([tmp_path / "a", tmp_path / "d"], tmp_path / "e")
    assert summary == summarise(results)
    assert [p.partition(": ")[2] for p in found.problems] == [
        "soft-mixture on ScalarOp was run before with other settings; left out",
        "exact on ScalarOp was run before with the same settings and other scores; left out",
    ]


def test_a_directory_of_an_older_layout_is_taken_whole(results, tmp_path):
    save(tmp_path, results)
    summary, found = rebuild([tmp_path], tmp_path)
    assert len(summary["rows"]) == len(results)
    assert "has no comparison.json" in found.notes[0]
    assert "Command unknown." in (tmp_path / "report.html").read_text()


def rewritten(path, **changes):
    """The stored result with some arrays or facts changed; None removes one."""
    with np.load(path) as stored:
        arrays = dict(stored)
    facts = json.loads(str(arrays["facts"]))
    for name, value in changes.items():
        name = name.replace("__", "/")
        where = facts if name in facts else arrays
        if value is None:
            del where[name]
        else:
            where[name] = value
    arrays["facts"] = np.array(json.dumps(facts))
    np.savez(path, **arrays)


DAMAGES = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:500]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not a result"),
    "one bit": lambda path: path.write_bytes(path.read_bytes()[:-2000] + b"\x55" * 100 + path.read_bytes()[-1900:]),
    "foreign arrays": lambda path: np.savez(path, a=np.arange(3)),
    "pickle": lambda path: np.savez(path, facts=np.array([{}], dtype=object)),
    "no picture": lambda path: rewritten(path, picture__x=None),
    "no learner": lambda path: rewritten(path, learner=None),
    "wrong shape": lambda path: rewritten(path, hard=np.zeros((5, 3))),
    "text for numbers": lambda path: rewritten(path, soft=np.full((5, 8), "x")),
    "steps go back": lambda path: rewritten(path, step=np.arange(8)[::-1] + 1),
    "no evaluations": lambda path: rewritten(path, evaluations=np.zeros(8, int)),
    "no time": lambda path: rewritten(path, seconds=0.0),
    "time is text": lambda path: rewritten(path, seconds="long"),
    "seeds are text": lambda path: rewritten(path, seeds=list("abcde")),
    "a number for a name": lambda path: rewritten(path, task=3),
    "an unknown operation": lambda path: rewritten(path, picture__choice=np.full((64, 1), 99)),
    "a picture of nothing": lambda path: rewritten(path, picture__x=np.zeros(0, np.float32)),
    "a foreign config": lambda path: rewritten(path, config=[1, 2]),
    "a foreign task": lambda path: rewritten(path, config={"task": {
        "operations": 3, "horizon": "many", "goal": False, "low": None, "high": "x", "rule": 1, "regions": []}}),
    "a task without width": lambda path: rewritten(path, config={"task": {
        "operations": ["a"], "horizon": 1, "goal": False, "low": 1.0, "high": 1.0}}),
}  # fmt: skip


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "older layout"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_result_is_named_and_skipped(damage, listed, results, tmp_path):
    results = results[:2]
    compared(tmp_path, results)
    if not listed:
        (tmp_path / COMPARISON).unlink()
    (path,) = (tmp_path / "cells").glob("ScalarOp-exact-*/result.npz")
    DAMAGES[damage](path)
    summary, found = rebuild([tmp_path], tmp_path)
    assert [r["learner"] for r in summary["rows"]] == ["soft-mixture"]
    assert any(str(path) in problem for problem in found.problems)
    assert all(len(problem.splitlines()) == 1 for problem in found.problems)
    page = (tmp_path / "report.html").read_text()
    assert "What went wrong" in page and str(path) in page
    assert str(path) in (tmp_path / "summary.md").read_text()
    if listed:
        assert f"{tmp_path}: the result of exact on ScalarOp is missing" in found.problems


def test_scores_that_are_not_finite_are_shown_as_such(results, tmp_path):
    compared(tmp_path, results)
    (path,) = (tmp_path / "cells").glob("ScalarOp-exact-*/result.npz")
    rewritten(path, hard=np.full((5, 8), np.nan))
    summary, _ = rebuild([tmp_path], tmp_path)
    (row,) = (r for r in summary["rows"] if (r["task"], r["learner"]) == ("ScalarOp", "exact"))
    assert row["why_not"].startswith("scores are not finite")


def test_what_is_no_run_is_named(results, tmp_path):
    compared(tmp_path, results)
    cells = tmp_path / "cells"
    (cells / "notes.txt").write_text("mine")
    (cells / "unfinished").mkdir()
    (cells / ".result.npz.1.abc").write_text("left by a crash")
    _, found = rebuild([tmp_path], tmp_path)
    assert found.problems == [
        f"{cells / 'notes.txt'}: skipped, it is no folder of a run",
        f"{cells / 'unfinished'}: skipped, the run in it is not finished",
    ]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "3", "{}", '{"runs": 1, "inapplicable": [], "command": "", "versions": {}, "problems": []}',
     '{"runs": [], "inapplicable": [], "command": 3, "versions": {}, "problems": []}',
     '{"runs": [{"task": "a"}], "inapplicable": [], "command": "", "versions": {}, "problems": []}',
     '{"runs": [], "inapplicable": [], "command": "", "versions": [], "problems": []}'],
)  # fmt: skip
def test_a_damaged_comparison_file_is_named_and_all_results_are_taken(text, results, tmp_path):
    compared(tmp_path, results)
    (tmp_path / COMPARISON).write_text(text)
    summary, found = rebuild([tmp_path], tmp_path)
    assert len(summary["rows"]) == len(results)
    assert "comparison.json is damaged" in found.problems[0]


def test_a_result_that_is_gone_is_named(results, tmp_path):
    compared(tmp_path, results)
    (cell,) = (tmp_path / "cells").glob("ScalarOp-exact-*")
    shutil.rmtree(cell)
    _, found = rebuild([tmp_path], tmp_path)
    assert found.problems == [f"{tmp_path}: the result of exact on ScalarOp is missing"]


def test_gradients_of_another_directory_are_shown(results, tmp_path):
    compared(tmp_path / "a", results)
    (tmp_path / "b").mkdir()
    row = {"problem": "quadratic", "estimator": "exact", "vary": None, "at": None, "reason": None, "bias": 0.1,
           "bias_se": 0.01, "variance": 2.0, "evaluations": 4, "biased": True}  # fmt: skip
    (tmp_path / "b" / "gradients.json").write_text(json.dumps({"rows": [row]}))
    _, found = rebuild([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    assert found.gradients == [row]
    assert found.problems == found.notes == []
    assert "Variance against bias of exact" in (tmp_path / "c" / "report.html").read_text()


def test_directories_without_results_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        rebuild([tmp_path / "nowhere"], tmp_path / "out")
    (tmp_path / "cells" / "a").mkdir(parents=True)
    (tmp_path / "cells" / "a" / RESULT).write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=r"no results under .*is not a whole result"):
        rebuild([tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rebuilding_starts_no_tensorflow(results, tmp_path):
    compared(tmp_path, results[:1])
    code = (
        "import sys; sys.argv = ['opselect', 'report', sys.argv[1]]\n"
        "from opselect.cli import main\n"
        "try: main()\n"
        "except SystemExit as e: assert not e.code, e\n"
        "print([m for m in ('tensorflow', 'keras', 'tf_keras') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
    assert done.stderr == ""
