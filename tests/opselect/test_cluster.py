"""Runs on a Ray cluster: the same bits as here, whatever happens to the workers."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from opselect.cli import Mistake, _engine
from opselect.comparison import curves, summarise
from opselect.estimators import LeaveOneOut
from opselect.experiments import cluster
from opselect.experiments.blocks import run_in_blocks
from opselect.experiments.cluster import ClusterError, run_on_ray
from opselect.experiments.config import RunConfig
from opselect.experiments.many import Interrupted, run_all
from opselect.experiments.results import RunResult
from opselect.experiments.watching import Silent
from opselect.learners import Learner
from opselect.learners.schedules import Schedule
from opselect_envs.operations import Operation
from opselect_envs.tasks import Task

TASK = Task(operations=("square", "log", "neg"), low=-2.0, high=2.0, regions=4, frequencies=1)
LEARNER = Learner("tiny", LeaveOneOut(2), "", hidden=(4,), rows=8)


def config(task=TASK, learner=LEARNER, name="small", **changes):
    settings = {"seeds": (0, 1), "steps": 20, "points": 2, "held_out": 50, "xla": False} | changes
    return RunConfig(name, task, learner, **settings)


def without_seconds(summary):
    """A summary without what depends on measured time."""
    if isinstance(summary, dict):
        return {name: without_seconds(value) for name, value in summary.items() if "seconds" not in name}
    return [without_seconds(value) for value in summary] if isinstance(summary, list) else summary


def assert_same(one: RunResult, other: RunResult):
    for name in ("step", "evaluations", "hard", "soft", "optimal"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for field in dataclasses.fields(one.picture):
        np.testing.assert_array_equal(getattr(one.picture, field.name), getattr(other.picture, field.name))
    assert one.config == other.config


def powers(exponent, pid=None):
    """A task with an operation of our own, a closure; with a pid, it raises in any other process."""

    def apply(xp, x):
        if pid is not None and os.getpid() != pid:
            raise RuntimeError("no luck\nat all")
        return x * x * exponent

    mine = Operation("mine", 1, apply, lambda xp, x: xp.abs(x) <= 1e3, 1.0, "mine({0})")
    return Task(operations=("neg", "log", mine), low=-2.0, high=2.0, regions=3, frequencies=1)


# --- without a cluster ---


def test_formulas_that_close_over_other_numbers_are_other_runs():
    assert len({config(powers(exponent)).folder for exponent in (0.5, 0.25)}) == 2
    assert config(powers(0.5)).folder == config(powers(0.5)).folder


def test_without_ray_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ClusterError, match=r"pip install 'opselect\[ray\]'"):
        run_on_ray([config()], tmp_path)


def test_the_command_line_says_so_before_anything_is_started(monkeypatch):
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Mistake, match=r"--engine ray: Ray is not installed; run: pip install 'opselect\[ray\]'"):
        _engine("ray", None)
    with pytest.raises(Mistake, match="--seeds-per-cell: must be from 1 to 1000, got 0"):
        _engine("local", None, 0)


def test_bad_arguments_are_named(tmp_path):
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        run_on_ray([], tmp_path, workers=0)
    with pytest.raises(ValueError, match="cpus_per_cell must be above 0, got 0"):
        run_on_ray([], tmp_path, cpus_per_cell=0)


def test_what_is_complete_needs_no_cluster(monkeypatch, tmp_path):
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    (here,), _ = run_all([config()], tmp_path)
    (there,), failures = run_on_ray([config()], tmp_path)
    assert_same(there, here)
    assert not failures
    stored = tmp_path / config().folder / "result.npz"
    stored.write_bytes(b"not a result")
    with pytest.raises(ClusterError):  # it is to be run again
        run_on_ray([config()], tmp_path)
    assert stored.with_name("result.npz.damaged").exists()


def test_an_address_where_nothing_answers(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(ClusterError, match="no Ray cluster answers at '127.0.0.1:1'"):
        run_on_ray([config()], tmp_path, address="127.0.0.1:1")
    with pytest.raises(ClusterError, match="got 'localhost'; try 'localhost:6379'"):
        run_on_ray([config()], tmp_path, address="localhost")


# --- on a cluster on this machine ---


@pytest.fixture(scope="module")
def ray():
    pytest.importorskip("ray")
    with cluster.connected(workers=2) as connected:
        yield connected


def processes(title: str) -> list[int]:
    """The processes whose title ends so; Ray gives its workers that of the task they run."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().rstrip(b"\0 ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if command.startswith("ray::") and command.endswith(title):
            found.append(int(path.parent.name))
    return found


class Killer(Silent):
    """Kills the worker of the first cell that says it has trained for some steps; notes what it is told."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.victim, self.said = folder, None, {}

    def progress(self, config, done, hard):
        self.said.setdefault(config.folder, []).append(done)
        if self.victim is None:
            self.victim = config
            (pid,) = processes(config.folder)
            assert pid != os.getpid()
            os.kill(pid, signal.SIGKILL)
            own = self.folder / ".blocks" / config.folder
            assert (own / "checkpoint.npz").exists()
            assert not (own / "result.npz").exists()


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/cmdline").exists(), reason="finds the worker in /proc")
def test_a_killed_worker_changes_nothing(ray, tmp_path):
    runs = [config(seeds=(0, 1, 2), steps=600, points=30)]
    here = run_in_blocks(runs, tmp_path / "here", seeds_per_cell=2)
    killer = Killer(tmp_path / "there")
    there = run_in_blocks(runs, killer.folder, killer, seeds_per_cell=2, engine=run_on_ray)
    assert killer.victim is not None
    told = killer.said[killer.victim.folder]
    assert told == sorted(set(told)) and told[-1] == 600  # what was done before its death was not done again
    assert without_seconds(summarise(*there)) == without_seconds(summarise(*here))
    assert curves(there[0]).equals(curves(here[0]))
    assert_same(there[0][0], here[0][0])
    assert there[0][0].config["seeds_per_cell"] == 2
    assert not list(killer.folder.rglob(".cluster-*"))


@dataclasses.dataclass(frozen=True)
class OwnEstimator(LeaveOneOut):
    """A user's estimator, in a module that workers do not have."""

    samples: int = 3

    def surrogate(self, losses, proposals, state):
        return super().surrogate(2.0 * losses, proposals, state)


@pytest.mark.slow
def test_failures_are_told_and_the_others_go_on(ray, tmp_path):
    """Without a shared folder: what comes back through Ray is what a run here leaves."""
    wild = dataclasses.replace(LEARNER, name="wild", learning_rate=Schedule(1e38, 1e38))
    own_learner = dataclasses.replace(LEARNER, estimator=OwnEstimator())
    good = [config(powers(0.5), own_learner, "own"), config(learner=wild, name="wild")]
    (here,), failed = run_all(good, tmp_path / "here")
    runs = [config(powers(0.25, os.getpid()), name="broken"), *good]
    (there,), failures = run_on_ray(runs, tmp_path / "there", shared=False)
    assert_same(there, here)
    assert failures["wild", "wild"] == failed["wild", "wild"]
    assert "was not finite in steps 0 to" in failures["wild", "wild"]
    assert failures["broken", "tiny"] == "broken: given up after 4 attempts: RuntimeError: no luck"
    own = good[0].folder
    left = [{p.name for p in (tmp_path / where / own).glob("[!.]*")} for where in ("here", "there")]
    assert left[0] == left[1] == {"config.json", "policy.keras", "result.npz"}
    assert {p.name for p in (tmp_path / "there").iterdir()} == {own}


@pytest.mark.slow
def test_rays_own_messages_are_not_printed(ray, capsys):
    """What it prints when a machine of the cluster is lost, which takes minutes to bring about."""
    import ray._private.worker as worker

    worker.print_to_stdstream({"lines": ["Raylet is terminated."], "pid": "raylet", "is_err": False}, False)
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done(ray, tmp_path):
    class Stops(Silent):
        def progress(self, config, done, hard):
            if config.name == "second":
                raise KeyboardInterrupt

    runs = [config(), config(name="second", steps=200, points=20)]
    with pytest.raises(Interrupted) as stopped:
        run_on_ray(runs, tmp_path, Stops(), workers=1)
    assert [r.task for r in stopped.value.results] == ["small"]
    results, _ = run_on_ray(runs, tmp_path)
    undisturbed, _ = run_all(runs, tmp_path / "undisturbed")
    for there, here in zip(results, undisturbed, strict=True):
        assert_same(there, here)


@pytest.mark.slow
def test_the_command_on_a_cluster_of_its_own(tmp_path):
    """Prints and writes what it does without a cluster, says nothing else, and leaves nothing in the home directory."""
    pytest.importorskip("ray")
    arguments = ["compare", "--tasks", "ScalarOp", "--learners", "exact", "--seeds", "2", "--steps", "20", "--quick"]
    here = _command([*arguments, "--seeds-per-cell", "1", "--out", "here"], tmp_path)
    there = _command([*arguments, "--seeds-per-cell", "1", "--engine", "ray", "--out", "there"], tmp_path)
    assert there.stderr == ""
    assert "exact" in there.stdout and len(there.stdout.splitlines()) == len(here.stdout.splitlines())
    summaries = [json.loads((tmp_path / d / "summary.json").read_text()) for d in ("here", "there")]
    assert without_seconds(summaries[0]) == without_seconds(summaries[1])
    assert summaries[1]["rows"][0]["seeds"] == 2
    assert (tmp_path / "there" / "curves.csv").read_bytes() == (tmp_path / "here" / "curves.csv").read_bytes()
    assert not (tmp_path / ".ray").exists()


def _command(arguments, folder):
    code = "from opselect.cli import main; main()"
    variables = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=variables | {"HOME": str(folder), "COLUMNS": "100", "NO_COLOR": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
