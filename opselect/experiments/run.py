"""Runs one configuration: trains in chunks, evaluates between them, writes checkpoints, continues what was cut off."""

from __future__ import annotations

import contextlib
import json
import logging
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from opselect.experiments.config import RunConfig
from opselect.experiments.results import (
    RESULT,
    DamagedFileError,
    Picture,
    RunResult,
    config_hash,
    write_atomically,
)
from opselect.learners.loop import Loop, loop_for
from opselect_envs.dynamics import State, branches, observe, one_hot, options, reward, step
from opselect_envs.references import best_reward, can_enumerate
from opselect_envs.tasks import Task

__all__ = ["Progress", "finished", "play", "prepare", "run"]

Progress = Callable[[int, float], None]
"""Called after each chunk with the steps done and the mean hard score over seeds."""

_LOG = logging.getLogger("opselect")
CHECKPOINT = "checkpoint.npz"
POLICY = "policy.keras"


def play(
    task: Task, logits: Callable[[np.ndarray], np.ndarray], start: State
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Plays a policy greedily from `start` [N] with NumPy, without TensorFlow's graph.

    Args:
        task: the task.
        logits: observations [N, F] -> logits [N, K].
        start: the episodes.

    Returns:
        (choices [N, T], rewards [N], what the oracle would choose at its own states [N, T], -1 where
        its paths are too many to enumerate).
    """
    data, k = task.data(), len(task.ops)
    state, ideal = start, start
    chosen, right = [], []
    for decision in range(task.horizon):
        choices = options(np, task, data, state.value)
        scores = logits(observe(np, task, data, state, decision))
        if task.mask_actions:
            scores = np.where(choices.available > 0, scores, -np.inf)
        chosen.append(scores.argmax(-1))
        state = step(np, choices, state, one_hot(chosen[-1], k))

        choices = options(np, task, data, ideal.value)
        left = task.horizon - decision - 1
        if can_enumerate(task, left + 1):
            right.append(best_reward(task, data, branches(ideal, choices), left).argmax(-1))
        else:
            right.append(np.full(len(ideal.value), -1))
        ideal = step(np, choices, ideal, one_hot(right[-1], k))
    return np.stack(chosen, -1), reward(np, task, data, state), np.stack(right, -1)


def prepare(config: RunConfig) -> Loop:
    """The compiled loop of a configuration; while another one trains, a thread may call this ahead of `run`."""
    loop = loop_for(config.task, config.learner, len(config.seeds), config.chunk, config.xla)
    loop.warm(config.held_out)
    return loop


def run(config: RunConfig, folder: pathlib.Path, progress: Progress = lambda *_: None) -> RunResult:
    """Runs a configuration in its folder, or returns the result that is there already.

    A checkpoint is written after every chunk. A run that was cut off, at whatever moment, continues from it and ends as
    if it had not been: all randomness depends on the seed and the step alone. A file that is damaged, or belongs to
    another configuration, is renamed to ``*.damaged``, which the log says, and done again. Of several processes with
    one folder, one works and the others wait for its result.

    Raises:
        OSError: the disk is full, or the folder can't be written to; what was done before is kept.
        opselect.learners.base.TrainingDivergedError: a loss was not finite.
    """
    settings = config.to_dict()
    with contextlib.suppress(FileNotFoundError, DamagedFileError):
        result = RunResult.load(folder)
        if result.config == settings:
            return result
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        result = finished(folder, settings)  # another process may have been at work
        if result is not None:
            return result
        for left in folder.glob(".*.npz.*"):  # by a process that was killed while it wrote
            left.unlink(missing_ok=True)
        text = json.dumps(settings, indent=1, sort_keys=True).encode()
        write_atomically(folder / "config.json", lambda f: f.write(text))
        loop = prepare(config)
        with loop.in_use:
            return _train(config, settings, loop, folder, progress)


def finished(folder: pathlib.Path, settings: dict[str, Any]) -> RunResult | None:
    """The result that is there already, if it is whole and of this configuration; else it is set aside."""
    try:
        result = RunResult.load(folder)
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        _set_aside(folder / RESULT, str(error))
        return None
    if result.config != settings:
        _set_aside(folder / RESULT, "it is the result of another configuration")
        return None
    return result


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """Waits until no other process is at work in the folder. The system frees the lock of a process that is killed."""
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _LOG.warning("%s: another process is at work there; waiting for it", folder)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _train(
    config: RunConfig, settings: dict[str, Any], loop: Loop, folder: pathlib.Path, progress: Progress
) -> RunResult:
    """Trains to the end from the checkpoint, if there is one, and saves the policy and the result."""
    seeds, shift = config.seeds, config.task.shift_after
    compiling = loop.warm(config.held_out)
    began = time.perf_counter() - compiling  # wherever and whenever it was compiled, this run needed it
    identity = config_hash(settings)
    done, records, spent = _resume(loop, folder, seeds, identity)
    while done < config.steps:
        count = min(config.chunk, config.steps - done)
        if done < shift:
            count = min(count, shift - done)
        # A step is one episode of each row, so the rule shifts after as many steps. What was trained last is judged.
        task = config.task.at(done)
        loop.run(task, seeds, done, count, config.steps)
        done += count
        judged = loop.evaluate(task, seeds, done, config.steps, config.held_out)
        hard, soft = (task.score(r, config.held_out, noise=False) for r in (judged.hard, judged.soft))
        records.append((done, hard, soft, judged.optimal))
        seconds = spent + time.perf_counter() - began
        if done < config.steps:
            _checkpoint(loop, folder, records, seconds, identity)
        progress(done, float(np.mean(hard)))

    folder.joinpath(POLICY).unlink(missing_ok=True)
    loop.policy(0).save(folder / POLICY)
    result = RunResult(
        task=config.name,
        learner=config.learner.name,
        config=settings,
        operations=list(config.task.names),
        seeds=list(seeds),
        step=np.array([r[0] for r in records]),
        evaluations=np.array([r[0] * config.evaluations_per_step for r in records]),
        hard=np.stack([r[1] for r in records], -1),
        soft=np.stack([r[2] for r in records], -1),
        optimal=np.stack([r[3] for r in records], -1),
        seconds=round(spent + time.perf_counter() - began, 3),
        picture=_picture(config, loop),
    )
    result.save(folder)  # last: from now on the run counts as complete
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return result


def _picture(config: RunConfig, loop: Loop) -> Picture:
    task = config.task.at(config.steps - 1)
    start = task.held_out(config.held_out)

    def first_seed(observations: np.ndarray) -> np.ndarray:
        return loop.logits(np.broadcast_to(observations, (len(config.seeds), *observations.shape)))[0]

    choice, rewards, right = play(task, first_seed, start)
    return Picture(x=start.value, target=start.target, choice=choice, right=right, reward=rewards)


def _checkpoint(loop: Loop, folder: pathlib.Path, records: list[Any], seconds: float, identity: str) -> None:
    curves = {f"curve/{i}": np.stack([np.broadcast_to(r[i], r[1].shape) for r in records]) for i in range(4)}
    arrays: dict[str, Any] = loop.state() | curves | {"seconds": np.array(seconds), "config": np.array(identity)}
    write_atomically(folder / CHECKPOINT, lambda file: np.savez(file, **arrays), durable=False)


def _resume(loop: Loop, folder: pathlib.Path, seeds: tuple[int, ...], identity: str) -> tuple[int, list[Any], float]:
    """Sets the loop to its checkpoint, or to the start if there is no whole one: (steps done, records, seconds)."""
    path = folder / CHECKPOINT
    if path.exists():
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            seconds = float(arrays.pop("seconds"))
            if str(arrays.pop("config")) != identity:
                raise ValueError("checkpoint of another configuration")
            curves = [arrays.pop(f"curve/{i}") for i in range(4)]
            records = [(int(step[0]), hard, soft, optimal) for step, hard, soft, optimal in zip(*curves, strict=True)]
            done = records[-1][0]
            loop.load(arrays)
        except Exception as error:  # cut off, foreign or of another version: all mean starting again
            _set_aside(path, str(error))
        else:
            return done, records, seconds
    loop.restart(seeds)
    return 0, [], 0.0


def _set_aside(path: pathlib.Path, why: str) -> None:
    aside = path.with_name(path.name + ".damaged")
    number = 1
    while aside.exists():  # nothing is lost
        number += 1
        aside = path.with_name(f"{path.name}.damaged.{number}")
    path.replace(aside)
    _LOG.warning("%s can't be used (%s): it is now %s, and the run is done again", path, why, aside.name)
