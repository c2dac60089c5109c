"""Nothing is lost: runs that are killed at any moment, full disks, damaged and foreign files, two processes at once."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from filelock import FileLock

from opselect.comparison import curves, summarise
from opselect.experiments import results as results_module
from opselect.experiments.config import RunConfig
from opselect.experiments.many import Interrupted, run_all
from opselect.experiments.run import run
from opselect.experiments.watching import Silent
from opselect.learners import LEARNERS
from opselect_envs.tasks import Task

SMALL = Task(("neg", "square", "exp", "tanh"), low=-2.0, high=2.0, regions=4, rule=0)


def small(name="reinforce-rloo", **changes):
    learner = dataclasses.replace(LEARNERS[name], rows=16, hidden=(8,))
    settings = {"seeds": (0, 1), "steps": 40, "points": 10, "held_out": 64, "xla": False} | changes
    return RunConfig("Small", SMALL, learner, **settings)


def summary_of(results):
    """What a comparison writes, without the wall time."""
    rows = summarise(results)["rows"]
    return json.dumps([{k: v for k, v in row.items() if k != "seconds"} for row in rows]), curves(results).to_csv()


# --- killed -----------------------------------------------------------------------------------------------------------

# One process imports TensorFlow and forks before anything is computed: each try then starts at once.
_SERVER = """
import dataclasses, os, pathlib, sys
from opselect.experiments.config import RunConfig
from opselect.experiments.many import run_all
from opselect.learners import LEARNERS
from opselect_envs.tasks import TASKS, Task

SMALL = Task(("neg", "square", "exp", "tanh"), low=-2.0, high=2.0, regions=4, rule=0)

def runs():
    for task, given in (("Small", SMALL), ("OpChain", TASKS["OpChain"])):
        for name in ("reinforce-ema", "gumbel-softmax"):
            learner = dataclasses.replace(
                LEARNERS[name], rows=16, hidden=(8,), chain_rows=8, chain_hidden=(8,)
            )
            yield RunConfig(task, given, learner, (0, 1, 2), 300, points=30, held_out=64, xla=False)

print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        run_all(list(runs()), pathlib.Path(line.strip()))
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Server:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self.process.stdout is not None and self.process.stdin is not None
        self.said, self.told = self.process.stdout, self.process.stdin
        assert self.said.readline() == "ready\n"

    def run(self, folder: pathlib.Path, kill_after: float | None = None) -> tuple[int, float]:
        """The exit status, negative for a signal, and the seconds it took."""
        self.told.write(f"{folder}\n")
        child, began = int(self.said.readline()), time.monotonic()
        if kill_after is not None and not select.select([self.said], [], [], kill_after)[0]:
            os.kill(child, signal.SIGKILL)
        return int(self.said.readline()), time.monotonic() - began


@pytest.mark.slow
def test_killed_at_twenty_random_moments(tmp_path):
    """SIGKILL after a random time, again and again; what comes out in the end is what an undisturbed process makes."""
    server, rng = Server(), np.random.default_rng()
    status, seconds = server.run(tmp_path / "whole")
    assert status == 0
    kills, round_ = 0, 0
    seen = {}
    while kills < 20:
        folder = tmp_path / f"killed-{round_}"
        round_ += 1
        for _ in range(5):
            delay = rng.uniform(0, 0.6 * seconds)
            status, _ = server.run(folder, delay)
            kills += status == -signal.SIGKILL
            assert status in (0, -signal.SIGKILL), status
            found = {p.suffix for p in folder.rglob("*") if p.is_file()}
            seen = seen | dict.fromkeys(found)
            assert not list(folder.rglob("*.damaged*"))
        assert server.run(folder)[0] == 0
        whole, again = (
            [results_module.RunResult.load(p.parent) for p in sorted((tmp_path / f).rglob("result.npz"))]
            for f in ("whole", folder.name)
        )
        assert len(whole) == len(again) == 4
        assert summary_of(again) == summary_of(whole)
        for a, b in zip(whole, again, strict=True):
            np.testing.assert_array_equal(a.hard, b.hard)
            np.testing.assert_array_equal(a.picture.choice, b.picture.choice)
        assert not list(folder.rglob(".*.npz.*"))  # what a killed process had begun to write
        shutil.rmtree(folder)
    server.process.kill()
    assert ".npz" in seen


def test_ctrl_c_keeps_what_is_done(tmp_path):
    class Stops(Silent):
        def progress(self, config, done, hard):
            if config.learner.name == "reinforce-ema" and done == 20:
                raise KeyboardInterrupt

    runs = [small("exact"), small("reinforce-ema")]
    with pytest.raises(Interrupted) as stopped:
        run_all(runs, tmp_path, Stops())
    assert [r.learner for r in stopped.value.results] == ["exact"]
    done = []
    results, failures = run_all(runs, tmp_path, _Steps(done))
    assert done[:2] == [24, 28] and failures == {}  # it goes on where the last checkpoint was
    undisturbed, _ = run_all(runs, tmp_path / "other")
    assert summary_of(results) == summary_of(undisturbed)


class _Steps(Silent):
    def __init__(self, steps):
        self.steps = steps

    def progress(self, config, done, hard):
        self.steps.append(done)


# --- the disk ---------------------------------------------------------------------------------------------------------


def test_a_full_disk_loses_no_more_than_a_chunk(tmp_path, monkeypatch):
    """Writing fails half way through a checkpoint; the one before it is whole, and the run goes on from there."""
    config, real, writes = small(), results_module.write_atomically, []

    def full(path, write, **options):
        def some(file):
            file.write(b"PK\x03\x04")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        writes.append(path.name)
        return real(path, some if writes.count("checkpoint.npz") == 4 else write, **options)

    monkeypatch.setattr("opselect.experiments.run.write_atomically", full)
    with pytest.raises(OSError, match="No space left"):
        run(config, tmp_path / "run")
    assert {p.name for p in (tmp_path / "run").iterdir()} == {".lock", "config.json", "checkpoint.npz"}
    monkeypatch.undo()
    steps = []
    result = run(config, tmp_path / "run", lambda done, hard: steps.append(done))
    assert steps[0] == 16  # three chunks of 4 had been kept
    assert summary_of([result]) == summary_of([run(config, tmp_path / "other")])


def test_damaged_and_foreign_files_are_named_and_kept(tmp_path, caplog):
    config, folder = small(), tmp_path / "run"
    first = run(config, folder)
    other = run(small(seeds=(5, 6)), tmp_path / "other")
    whole = (folder / "result.npz").read_bytes()
    for content, why in (
        (whole[: len(whole) // 2], "is not a whole result"),
        (b"", "is not a whole result"),
        ((tmp_path / "other" / "result.npz").read_bytes(), "it is the result of another configuration"),
    ):
        caplog.clear()
        (folder / "result.npz").write_bytes(content)
        again = run(config, folder)
        assert summary_of([again]) == summary_of([first])
        (record,) = caplog.records
        assert record.name == "opselect" and record.levelno == logging.WARNING
        assert str(folder / "result.npz") in record.getMessage() and why in record.getMessage()
    kept = sorted(folder.glob("result.npz.damaged*"))
    assert [p.name for p in kept] == ["result.npz.damaged", "result.npz.damaged.2", "result.npz.damaged.3"]
    assert kept[0].read_bytes() == whole[: len(whole) // 2]
    assert other.seeds == [5, 6]


def test_what_a_killed_process_was_writing_is_cleared_away(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".result.npz.123.abcdef01").write_bytes(b"half")
    (folder / "mine.txt").write_text("not ours")
    run(small(), folder)
    assert {p.name for p in folder.iterdir()} == {".lock", "config.json", "policy.keras", "result.npz", "mine.txt"}


# --- two at once ------------------------------------------------------------------------------------------------------


def test_a_second_process_waits_for_the_first(tmp_path, caplog):
    config, folder = small(), tmp_path / "run"
    done = run(config, tmp_path / "other")
    folder.mkdir()
    lock, found = FileLock(folder / ".lock"), []
    lock.acquire()
    second = threading.Thread(target=lambda: found.append(run(config, folder, lambda *_: found.append("trained"))))
    second.start()
    deadline = time.monotonic() + 60
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "another process is at work there; waiting for it" in caplog.records[0].getMessage()
    assert found == [] and not (folder / "result.npz").exists()
    shutil.copy(tmp_path / "other" / "result.npz", folder / "result.npz")  # what the first process ends with
    lock.release()
    second.join(60)
    assert len(found) == 1 and summary_of(found) == summary_of([done])  # read, not trained


@pytest.mark.slow
def test_two_processes_with_one_folder(tmp_path):
    """Both end well, with the same results, and no file is damaged."""
    servers = [Server(), Server()]
    for server in servers:
        server.told.write(f"{tmp_path / 'both'}\n")
    for server in servers:
        server.said.readline()
    assert [int(server.said.readline()) for server in servers] == [0, 0]
    servers[0].run(tmp_path / "one")
    both, one = (
        [results_module.RunResult.load(p.parent) for p in sorted((tmp_path / f).rglob("result.npz"))]
        for f in ("both", "one")
    )
    assert summary_of(both) == summary_of(one) and len(one) == 4
    assert not list((tmp_path / "both").rglob("*.damaged*"))
    for server in servers:
        server.process.kill()
