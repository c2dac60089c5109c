"""A worker of `training.py`: this package's loop, with the default learner but a small network.

python scripts/benchmarks/training_opselect.py REPLICAS SAMPLES
"""

from __future__ import annotations

import dataclasses
import sys

import training_common as common

from opselect.estimators import LeaveOneOut, Reinforce
from opselect.learners import LEARNERS
from opselect.learners.loop import Loop


def main(replicas: int, samples: int) -> None:
    """Serves."""
    estimator = LeaveOneOut(samples) if samples > 1 else Reinforce()
    learner = dataclasses.replace(
        LEARNERS["reinforce-rloo"], estimator=estimator, hidden=common.HIDDEN, rows=common.ROWS
    )
    loop = Loop(common.TASK, learner, replicas, max(common.BLOCK, 500 // replicas))
    seeds, done = [0], 0

    def restart(seed: int) -> None:
        nonlocal seeds, done
        seeds, done = [*range(seed, seed + replicas)], 0
        loop.restart(seeds)

    def advance(short: bool) -> int:
        nonlocal done
        count = common.BLOCK if short else loop.chunk
        loop.run(common.TASK, seeds, done, count, common.UPDATES)
        done += count
        return count * replicas * common.ROWS * samples

    def score() -> float:
        judged = loop.evaluate(common.TASK, seeds, done, common.UPDATES, common.HELD_OUT)
        return float(common.TASK.score(judged.hard.mean(), common.HELD_OUT))

    common.serve(restart, advance, score)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
