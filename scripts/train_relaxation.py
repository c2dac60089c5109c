"""A relaxation of your own settings, and the gap between what it trains and what it selects.

uv run python scripts/train_relaxation.py
"""

from __future__ import annotations

import pathlib
import tempfile

from opselect.estimators import GumbelSoftmaxStraightThrough, SoftMixture
from opselect.experiments.config import RunConfig
from opselect.experiments.run import run
from opselect.learners import Learner
from opselect.learners.schedules import Schedule
from opselect_envs import Task

TASK = Task(operations=("square", "exp", "sin", "log", "neg"), low=-2.0, high=2.0, regions=6, rule=3)

LEARNERS = (
    Learner("mixture", SoftMixture(), "soft to the end", entropy=Schedule(0.0, 0.0), row_clip=0.1),
    Learner(
        "annealed",
        GumbelSoftmaxStraightThrough(samples=2),
        "straight-through Gumbel samples, two per row",
        temperature=Schedule(2.0, 0.5, shape="geometric"),
        row_clip=0.1,
    ),
)


def main(steps: int = 600) -> None:
    """Trains both and prints the soft score (what was trained), the hard score (what is selected) and their gap."""
    for learner in LEARNERS:
        with tempfile.TemporaryDirectory() as folder:
            result = run(RunConfig("mine", TASK, learner, seeds=(0, 1, 2), steps=steps), pathlib.Path(folder))
        hard, soft = result.hard[:, -1].mean(), result.soft[:, -1].mean()
        print(f"{learner.name:10} soft {soft:.3f}  hard {hard:.3f}  gap {soft - hard:+.3f}")


if __name__ == "__main__":
    main()
