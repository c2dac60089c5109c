"""REINFORCE with a leave-one-out baseline on ScalarOp: learns which operation is right for which x.

uv run python scripts/train_reinforce.py
"""

from __future__ import annotations

import itertools
import pathlib
import tempfile

import numpy as np

from opselect._tensorflow import keras
from opselect.experiments.config import RunConfig
from opselect.experiments.run import play, run
from opselect.learners import LEARNERS
from opselect_envs import TASKS


def main(steps: int = 1000) -> float:
    """Trains three seeds side by side and prints what the first one learned; returns its score."""
    task = TASKS["ScalarOp"]
    config = RunConfig("ScalarOp", task, LEARNERS["reinforce-rloo"], seeds=(0, 1, 2), steps=steps)
    with tempfile.TemporaryDirectory() as folder:
        result = run(config, pathlib.Path(folder), lambda done, hard: print(f"step {done:5}  score {hard:.3f}"))
        # The first seed's policy is an ordinary Keras model from observations to logits.
        policy = keras.models.load_model(pathlib.Path(folder) / "policy.keras")
    print("scores of the three seeds:", np.round(result.hard[:, -1], 4))
    chosen, rewards, _ = play(task, lambda observations: policy(observations).numpy(), task.held_out(1000))
    x, right = task.held_out(1000).value, task.rule_indices()
    assert right is not None  # ScalarOp has a hidden rule
    for region, (low, high) in enumerate(itertools.pairwise(task.edges)):
        picks = np.bincount(chosen[(x >= low) & (x < high), 0], minlength=len(task.names))
        learned = task.names[picks.argmax()]
        print(f"x in [{low:5.2f}, {high:5.2f})  right: {task.names[right[region]]:8} learned: {learned}")
    return float(task.score(rewards.mean(), 1000))


if __name__ == "__main__":
    main()
