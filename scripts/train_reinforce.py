"""REINFORCE with a leave-one-out baseline on ScalarOp: which operation is right for which x?

uv run python scripts/train_reinforce.py
"""

from __future__ import annotations

import pathlib
import tempfile

import numpy as np

from opselect.experiments.config import RunConfig
from opselect.experiments.run import play, run
from opselect.learners import LEARNERS
from opselect.learners.loop import loop_for
from opselect_envs import TASKS


def main(steps: int = 1000) -> float:
    """Trains three seeds side by side and prints what the first one learned; returns its score."""
    task = TASKS["ScalarOp"]
    config = RunConfig("ScalarOp", task, LEARNERS["reinforce-rloo"], seeds=(0, 1, 2), steps=steps)
    with tempfile.TemporaryDirectory() as folder:
        result = run(config, pathlib.Path(folder), lambda done, hard: print(f"step {done:5}  score {hard:.3f}"))
    print("scores of the three seeds:", np.round(result.hard[:, -1], 4))

    # One replica is an ordinary Keras model from observations to logits.
    policy = loop_for(task, config.learner, 3, config.chunk).policy(0)
    chosen, rewards, _ = play(task, lambda observations: policy(observations).numpy(), task.held_out(1000))
    for region, right in enumerate(task.rule_indices()):
        inside = (task.held_out(1000).value >= task.edges[region]) & (
            task.held_out(1000).value < task.edges[region + 1]
        )
        picks = np.bincount(chosen[inside, 0], minlength=len(task.names))
        low, high = task.edges[region], task.edges[region + 1]
        print(f"x in [{low:5.2f}, {high:5.2f})  right: {task.names[right]:8} learned: {task.names[picks.argmax()]}")
    return float(task.score(rewards.mean(), 1000))


if __name__ == "__main__":
    main()
