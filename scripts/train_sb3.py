"""Trains stable-baselines3's PPO on opselect/ScalarOp-v0, where no TensorFlow is installed.

    python -m pip install torch stable-baselines3 .
    python scripts/train_sb3.py [--steps N] [--seed N]

Prints the score of the trained policy: 0 is the uniform-random agent, 1 the oracle. Exits with 1 below 0.3.
"""

# pyright: reportMissingImports=false
# torch and stable-baselines3 are in a virtual environment of their own.

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import warnings

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env

from opselect_envs import TASKS

PASSING_SCORE = 0.3


def check_environments() -> None:
    """Runs stable-baselines3's checker on every environment, warnings being errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in TASKS:
            check_env(gym.make(f"opselect_envs:opselect/{name}-v0"))
            print(f"check_env accepts opselect/{name}-v0")


def train(steps: int, seed: int) -> PPO:
    """PPO with an entropy bonus: without it the policy is certain too early and stays wrong in some regions."""
    envs = make_vec_env("opselect_envs:opselect/ScalarOp-v0", n_envs=16, seed=seed)
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=2e-3,
        ent_coef=0.02,
        gamma=0.0,  # an episode is one decision
        seed=seed,
        device="cpu",
    )
    return model.learn(steps)


def evaluate(model: PPO, rows: int = 4096) -> float:
    """The deterministic policy's score over `rows` new episodes, side by side in our NumPy vector environment."""
    envs = gym.make_vec("opselect_envs:opselect/ScalarOp-v0", num_envs=rows)
    observations, _ = envs.reset(seed=1_000_000)
    actions, _ = model.predict(observations, deterministic=True)
    rewards = envs.step(actions)[1]
    return float(TASKS["ScalarOp"].score(np.mean(rewards)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps to train for")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.set_num_threads(1)  # such small networks only lose by more
    assert importlib.util.find_spec("tensorflow") is None, "this is to run where TensorFlow is not installed"
    check_environments()
    started = time.perf_counter()
    model = train(options.steps, options.seed)
    seconds = time.perf_counter() - started
    score = evaluate(model)
    assert "tensorflow" not in sys.modules

    print(f"PPO, {options.steps} steps in {seconds:.0f} s ({options.steps / seconds:.0f} steps/s)")
    print(f"score {score:.3f} (0: uniform random, 1: oracle)")
    if score < PASSING_SCORE:
        print(f"not clearly better than random: below {PASSING_SCORE}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
