"""What the workers of `training.py` share: the task, the size of everything, the score, and how they are driven.

A worker is a process with one way of training. Its first line says that it is ready; then it answers each line that it
is sent, ``speed`` or ``learn SEED``, with a line of JSON. So the ways can take turns, and only one of them works at a
time. Needs what opselect_envs needs, no more.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np

from opselect_envs.dynamics import observe, one_hot, options, reward, step
from opselect_envs.tasks import TASKS

TASK = TASKS["ScalarOp"]
HIDDEN = (32, 32)
ROWS = 256  # of the loops that draw their own episodes
SCORE = 0.95  # that a policy must reach: of its argmax, on the held-out episodes
UPDATES = 400  # of a whole training, over which the loops anneal their learning rate and entropy bonus
BLOCK = 25  # updates between two looks at the score
HELD_OUT = 2048
ENOUGH = 0.5  # seconds over which speed is measured

START = TASK.held_out(HELD_OUT)
OBSERVATIONS = observe(np, TASK, TASK.data(), START, 0)


def schedules(first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The learning rates and the weights of the entropy, both [count]: the default learner's."""
    progress = np.clip((first + np.arange(count)) / UPDATES, 0.0, 1.0)
    rates = 5e-5 + (1e-2 - 5e-5) * (1.0 + np.cos(np.pi * progress)) / 2
    return rates.astype(np.float32), (0.2 * np.clip(1.0 - progress / 0.7, 0.0, 1.0)).astype(np.float32)


def score_of(logits: np.ndarray) -> float:
    """The score of choices by logits [HELD_OUT, K]: 0 is the uniform-random agent, 1 the oracle."""
    choices = options(np, TASK, TASK.data(), START.value)
    weights = one_hot(np.asarray(logits).argmax(-1), len(TASK.ops))
    rewards = reward(np, TASK, TASK.data(), step(np, choices, START, weights))
    return float(TASK.score(rewards.mean(), HELD_OUT))


def serve(
    restart: Callable[[int], None],
    advance: Callable[[bool], int],
    score: Callable[[], float],
    limit: float = 300.0,
) -> None:
    """Answers what comes on the standard input until it ends.

    Args:
        restart: forgets everything, and starts from a seed.
        advance: trains for a block, a short one if so asked, and returns how many env-steps that were.
        score: of the present policy.
        limit: seconds after which learning is given up.
    """
    began = time.perf_counter()
    restart(0)
    for short in (False, True):  # compiles
        advance(short)
    print(json.dumps({"ready": time.perf_counter() - began}), flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        seconds, steps, reached = 0.0, 0, 0.0
        if command == "learn":
            restart(int(arguments[0]))
        while seconds < limit:
            before = time.perf_counter()
            steps += advance(command == "learn")
            seconds += time.perf_counter() - before
            if command == "speed":
                if seconds >= ENOUGH:
                    break
            elif (reached := score()) >= SCORE:  # judging is not training
                break
        print(json.dumps({"seconds": seconds, "steps": steps, "score": reached}), flush=True)
