"""Runs one configuration: trains in chunks, evaluates between them, writes checkpoints, continues what was cut off."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from opselect.experiments.config import RunConfig
from opselect.experiments.results import DamagedFileError, Picture, RunResult, write_atomically
from opselect.learners.loop import Loop, loop_for
from opselect_envs.tasks import State, Task, best_reward, observe, options, reward, step

__all__ = ["Progress", "play", "prepare", "run"]

Progress = Callable[[int, float], None]
"""Called after each chunk with the steps done and the mean hard score over seeds."""

CHECKPOINT = "checkpoint.npz"


def play(
    task: Task, logits: Callable[[np.ndarray], np.ndarray], start: State
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Plays a policy greedily from `start` [N] with NumPy, without TensorFlow's graph.

    Args:
        task: the task.
        logits: observations [N, F] -> logits [N, K].
        start: the episodes.

    Returns:
        (choices [N, T], rewards [N], what the oracle would choose at the task's own states [N, T]).
    """
    data, k = task.data(), np.arange(len(task.ops))
    state, ideal = start, start
    chosen, right = [], []
    for decision in range(task.horizon):
        choices = options(np, task, data, state.value)
        scores = logits(observe(np, task, data, state, decision))
        if task.mask_actions:
            scores = np.where(choices.available > 0, scores, -np.inf)
        chosen.append(scores.argmax(-1))
        state = step(np, choices, state, (chosen[-1][:, None] == k).astype(np.float32))

        choices = options(np, task, data, ideal.value)
        shape = choices.values.shape
        children = State(
            choices.values, np.broadcast_to(ideal.target[:, None], shape), ideal.alive[:, None] * choices.available
        )
        right.append(best_reward(task, data, children, task.horizon - decision - 1).argmax(-1))
        ideal = step(np, choices, ideal, (right[-1][:, None] == k).astype(np.float32))
    return np.stack(chosen, -1), reward(np, task, data, state), np.stack(right, -1)


def prepare(config: RunConfig) -> Loop:
    """The compiled loop of a configuration; while another one trains, a thread may call this ahead of `run`."""
    loop = loop_for(config.task, config.learner, len(config.seeds), config.chunk, config.xla)
    loop.warm(config.held_out)
    return loop


def run(config: RunConfig, folder: pathlib.Path, progress: Progress = lambda *_: None) -> RunResult:
    """Runs a configuration in its folder, or returns the result that is there already.

    A checkpoint is written after every chunk. A run that was cut off continues from it and ends as if it had not been:
    all randomness depends on the seed and the step alone. A damaged file is renamed to ``*.damaged`` and done again.

    Raises:
        opselect.learners.loop.TrainingDivergedError: a loss was not finite.
    """
    try:
        return RunResult.load(folder)
    except FileNotFoundError:
        pass
    except DamagedFileError:
        _set_aside(folder / "result.npz")
    folder.mkdir(parents=True, exist_ok=True)
    settings = config.to_dict()
    write_atomically(folder / "config.json", lambda f: f.write(json.dumps(settings, indent=1, sort_keys=True).encode()))

    task, seeds = config.task, config.seeds
    loop = prepare(config)
    compiling = loop.warm(config.held_out)
    began = time.perf_counter() - compiling  # wherever and whenever it was compiled, this run needed it
    loop.restart(seeds)
    done, records, spent = _resume(loop, folder)
    while done < config.steps:
        count = min(config.chunk, config.steps - done)
        loop.run(task, seeds, done, count, config.steps)
        done += count
        judged = loop.evaluate(task, seeds, done, config.steps, config.held_out)
        hard, soft = (task.score(r, config.held_out, noise=False) for r in (judged.hard, judged.soft))
        records.append((done, hard, soft, judged.optimal))
        seconds = spent + time.perf_counter() - began
        if done < config.steps:
            _checkpoint(loop, folder, records, seconds)
        progress(done, float(np.mean(hard)))

    result = RunResult(
        task=config.name,
        learner=config.learner.name,
        config=settings,
        operations=list(task.names),
        seeds=list(seeds),
        step=np.array([r[0] for r in records]),
        evaluations=np.array([r[0] * config.evaluations_per_step for r in records]),
        hard=np.stack([r[1] for r in records], -1),
        soft=np.stack([r[2] for r in records], -1),
        optimal=np.stack([r[3] for r in records], -1),
        seconds=round(spent + time.perf_counter() - began, 3),
        picture=_picture(config, loop),
    )
    result.save(folder)
    loop.policy(0).save(folder / "policy.keras")
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return result


def _picture(config: RunConfig, loop: Loop) -> Picture:
    start = config.task.held_out(config.held_out)

    def first_seed(observations: np.ndarray) -> np.ndarray:
        return loop.logits(np.broadcast_to(observations, (len(config.seeds), *observations.shape)))[0]

    choice, rewards, right = play(config.task, first_seed, start)
    return Picture(x=start.value, target=start.target, choice=choice, right=right, reward=rewards)


def _checkpoint(loop: Loop, folder: pathlib.Path, records: list[Any], seconds: float) -> None:
    curves = {f"curve/{i}": np.stack([np.broadcast_to(r[i], r[1].shape) for r in records]) for i in range(4)}
    arrays: dict[str, Any] = loop.state() | curves | {"seconds": np.array(seconds)}
    write_atomically(folder / CHECKPOINT, lambda file: np.savez(file, **arrays), durable=False)


def _resume(loop: Loop, folder: pathlib.Path) -> tuple[int, list[Any], float]:
    """Loads the checkpoint, if there is a whole one, into the loop: (steps done, records, seconds spent)."""
    path = folder / CHECKPOINT
    if not path.exists():
        return 0, [], 0.0
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        seconds = float(arrays.pop("seconds"))
        curves = [arrays.pop(f"curve/{i}") for i in range(4)]
        loop.load(arrays)
    except Exception:  # cut off, foreign or of another version: all mean starting again
        _set_aside(path)
        return 0, [], 0.0
    records = [(int(step[0]), hard, soft, optimal) for step, hard, soft, optimal in zip(*curves, strict=True)]
    return records[-1][0], records, seconds


def _set_aside(path: pathlib.Path) -> None:
    path.replace(path.with_name(path.name + ".damaged"))
