"""Trains an algorithm of stable-baselines3 on opselect/ScalarOp-v0, with our adapter or without it.

    python -m pip install torch stable-baselines3 .
    python scripts/consumers/train_sb3.py [--algorithm ppo] [--steps N] [--seed N]

`make_sb3_vec_env` steps all rows at once, in NumPy; `make_vec_env`, stable-baselines3's own, steps one after the other.
"""

# pyright: reportMissingImports=false
# torch and stable-baselines3 are in a virtual environment of their own.

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from common import arguments, env_id, evaluate, report
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.env_util import make_vec_env

from opselect_envs.sb3 import make_sb3_vec_env

ENVIRONMENT = "ScalarOp"  # an episode is one decision, hence gamma = 0


def ppo(seed: int, envs: Any, gamma: float = 0.0) -> PPO:
    """With an entropy bonus: without it the policy is certain too early and stays wrong in some regions."""
    return PPO(
        "MlpPolicy",
        envs,
        n_steps=2048 // envs.num_envs,
        batch_size=256,
        n_epochs=4,
        learning_rate=2e-3,
        ent_coef=0.02,
        gamma=gamma,
        seed=seed,
        device="cpu",
    )


def a2c(seed: int, envs: Any, gamma: float = 0.0) -> A2C:
    """Many rows make up for the one gradient step each sample is used for."""
    return A2C("MlpPolicy", envs, n_steps=1, learning_rate=3e-3, ent_coef=0.02, gamma=gamma, seed=seed, device="cpu")


def dqn(seed: int, envs: Any, gamma: float = 0.0) -> DQN:
    """With gamma 0, Q is the expected reward of each operation."""
    return DQN(
        "MlpPolicy",
        envs,
        learning_rate=1e-3,
        buffer_size=50_000,
        learning_starts=1000,
        batch_size=256,
        train_freq=1,
        gradient_steps=2,
        gamma=gamma,
        exploration_fraction=0.5,
        policy_kwargs={"net_arch": [64, 64]},
        seed=seed,
        device="cpu",
    )


ALGORITHMS = {"ppo": ppo, "a2c": a2c, "dqn": dqn}
STEPS = {"ppo": 100_000, "a2c": 400_000, "dqn": 60_000}
ROWS = {"ppo": 64, "a2c": 256, "dqn": 32}


def main() -> int:
    parser = arguments(__doc__, steps=0)
    parser.add_argument("--algorithm", choices=sorted(ALGORITHMS), default="ppo")
    parser.add_argument("--plain", action="store_true", help="make_vec_env instead of our adapter")
    options = parser.parse_args()
    steps = options.steps or STEPS[options.algorithm]

    torch.set_num_threads(1)  # such small networks only lose by more
    rows = ROWS[options.algorithm]
    if options.plain:
        envs: Any = make_vec_env(env_id(ENVIRONMENT), n_envs=rows, seed=options.seed)
    else:
        envs = make_sb3_vec_env(env_id(ENVIRONMENT), num_envs=rows)
    model: Any = ALGORITHMS[options.algorithm](options.seed, envs)
    started = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - started

    score = evaluate(lambda observations, _: model.predict(observations, deterministic=True)[0], ENVIRONMENT)
    through = "make_vec_env" if options.plain else "make_sb3_vec_env"
    return report(
        "stable-baselines3",
        ENVIRONMENT,
        f"{options.algorithm.upper()}, {through}",
        model.num_timesteps,
        seconds,
        score,
    )


if __name__ == "__main__":
    sys.exit(main())
