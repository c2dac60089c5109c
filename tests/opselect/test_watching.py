"""Who is told how runs get on: bars, lines of JSON, TensorBoard."""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from opselect._tensorflow import tf
from opselect.experiments.config import RunConfig
from opselect.experiments.watching import Bars, Lines, Several, Silent, TensorBoard
from opselect.learners import LEARNERS
from opselect_envs.tasks import Task

TASK = Task(("neg", "square", "exp", "tanh"), low=-2.0, high=2.0, regions=4, rule=0)


@pytest.fixture
def runs():
    learners = [dataclasses.replace(LEARNERS[n], rows=16, hidden=(8,)) for n in ("exact", "reinforce")]
    return [RunConfig("Small", TASK, learner, (0, 1, 2), 100, points=4, held_out=64) for learner in learners]


@pytest.fixture
def results(runs, make_result):
    return [make_result("Small", c.learner.name, seeds=c.seeds, points=4, total=100, parameters=TASK) for c in runs]


def play(watcher, runs, results):
    watcher.planned(runs)
    for config, result in zip(runs, results, strict=True):
        watcher.started(config)
        for step, hard in zip(result.step.tolist(), result.hard.mean(0).tolist(), strict=True):
            watcher.progress(config, step, hard)
        watcher.finished(config, result)
    watcher.close()


def test_bars_tell_compilation_rate_and_the_time_left(runs, results):
    now = [0.0]
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    bars = Bars(console, clock=lambda: now[0])
    said = []

    def look():
        said.append([str(task.fields["note"]) for task in bars._bars.tasks])

    bars.planned(runs)
    bars.started(runs[0])
    look()
    now[0] = 5.0
    bars.progress(runs[0], 25, 0.25)
    now[0] = 10.0
    bars.progress(runs[0], 75, 0.5)
    look()
    bars.finished(runs[0], results[0])
    now[0] = 12.0
    bars.started(runs[1])
    look()
    bars.close()
    assert said[0] == ["time left not known yet", "compiling"]
    assert said[1][1] == "hard score 0.500, 10 steps/s"  # 50 steps in the 5 s since the first chunk was done
    # Three quarters of `exact`, which evaluates 4 operations where the other evaluates one: 3 of 5 parts in 10 s.
    assert said[1][0] == "about 0:07 left"
    assert said[2][0] == "about 0:03 left"  # 4 of 5 in 12 s


def test_lines_of_json(runs, results):
    lines = []
    play(Lines(lines.append), runs, results)
    told = [json.loads(line) for line in lines]
    assert [t["event"] for t in told] == ["planned", *["started", *["progress"] * 4, "finished"] * 2]
    assert told[0]["runs"] == 2 and all(t["seconds"] >= 0 for t in told)
    assert told[2] == {
        "event": "progress",
        "seconds": told[2]["seconds"],
        "task": "Small",
        "learner": "exact",
        "seeds": [0, 1, 2],
        "step": 25,
        "hard_score": pytest.approx(float(results[0].hard[:, 0].mean()), abs=1e-6),
    }
    lines.clear()
    Lines(lines.append).failed(runs[1], "diverged")
    assert json.loads(lines[0])["reason"] == "diverged"


def test_tensorboard_has_every_curve(runs, results, tmp_path):
    play(TensorBoard(tmp_path), runs, results)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["exact-Small", "reinforce-Small"]
    events = EventAccumulator(str(tmp_path / "exact-Small"), size_guidance={"tensors": 0})
    events.Reload()
    tags = events.Tags()["tensors"]
    expected = {f"Small/{n}/seed_{s}" for n in ("hard_score", "soft_score", "optimal") for s in (0, 1, 2)}
    assert set(tags) == expected | {"Small/hard_score"}

    def curve(tag):
        found = events.Tensors(tag)
        return [e.step for e in found], [float(tf.make_ndarray(e.tensor_proto)) for e in found]

    steps, values = curve("Small/soft_score/seed_2")
    assert steps == results[0].step.tolist() == [25, 50, 75, 100]
    np.testing.assert_allclose(values, results[0].soft[2], rtol=1e-6)
    np.testing.assert_allclose(curve("Small/hard_score")[1], results[0].hard.mean(0), rtol=1e-6)


def test_several_are_told_alike(runs, results):
    lines = [[], []]
    play(Several([Lines(lines[0].append), Silent(), Lines(lines[1].append)]), runs, results)
    first, second = ([{**json.loads(x), "seconds": 0} for x in some] for some in lines)
    assert first == second and len(first) == 13
