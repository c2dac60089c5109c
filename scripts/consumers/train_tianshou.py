"""Trains Tianshou's DQN on opselect/ScalarOpGoal-v0.

    python -m pip install torch tianshou .
    python scripts/consumers/train_tianshou.py [--steps N] [--seed N]

Tianshou steps single environments in vector environments of its own.
"""

# pyright: reportMissingImports=false
# torch and tianshou are in a virtual environment of their own.

from __future__ import annotations

import functools
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from common import arguments, env_id, evaluate, report
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

ENVIRONMENT = "ScalarOpGoal"
ROWS = 32


def train(steps: int, seed: int) -> Any:
    np.random.seed(seed)  # noqa: NPY002 - Tianshou draws its exploration from there
    torch.manual_seed(seed)
    make = functools.partial(gym.make, env_id(ENVIRONMENT))
    env: Any = make()
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=env.observation_space.shape, action_shape=env.action_space.n, hidden_sizes=[128, 128]),
        action_space=env.action_space,
        observation_space=env.observation_space,
        eps_training=0.3,
    )
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.0)  # an episode is one decision
    envs = DummyVectorEnv([make] * ROWS)
    envs.seed(seed)
    collector = Collector(algorithm, envs, VectorReplayBuffer(100_000, ROWS), exploration_noise=True)
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=steps,
            collection_step_num_env_steps=ROWS,
            update_step_num_gradient_steps_per_sample=1 / 16,
            batch_size=256,
            show_progress=False,
            verbose=False,
        )
    )
    return policy


def main() -> int:
    options = arguments(__doc__, steps=20_000).parse_args()

    torch.set_num_threads(1)  # such small networks only lose by more
    started = time.perf_counter()
    policy = train(options.steps, options.seed)
    seconds = time.perf_counter() - started

    @torch.no_grad()
    def choose(observations: np.ndarray, _: np.ndarray) -> np.ndarray:
        return policy(Batch(obs=observations, info=Batch())).act

    score = evaluate(choose, ENVIRONMENT)
    return report("tianshou", ENVIRONMENT, "DQN, DummyVectorEnv", options.steps, seconds, score)


if __name__ == "__main__":
    sys.exit(main())
