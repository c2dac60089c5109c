"""Trains RLlib's PPO on opselect/ScalarOp-v0.

    python -m pip install torch "ray[rllib]" .
    python scripts/consumers/train_rllib.py [--steps N] [--seed N]

RLlib 2.60 wants gymnasium 1.2.2. The id names our package, because Ray makes environments in processes that import
nothing else; with `--runners` above 0 it does so here.
"""

# pyright: reportMissingImports=false
# torch and ray are in a virtual environment of their own.

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import torch
from common import arguments, env_id, evaluate, report

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported
import ray
from ray.rllib.algorithms.ppo import PPOConfig

ENVIRONMENT = "ScalarOp"
BATCH = 2048


def main() -> int:
    parser = arguments(__doc__, steps=10 * BATCH)
    parser.add_argument("--runners", type=int, default=1, help="processes that step environments; 0: this one")
    options = parser.parse_args()

    torch.set_num_threads(1)  # such small networks only lose by more
    ray.init(num_cpus=1 + options.runners, include_dashboard=False, log_to_driver=False)
    config = (
        PPOConfig()
        .environment(env_id(ENVIRONMENT))
        .env_runners(num_env_runners=options.runners, num_envs_per_env_runner=32)
        .training(
            train_batch_size_per_learner=BATCH,
            minibatch_size=256,
            num_epochs=4,
            lr=2e-3,
            gamma=0.0,  # an episode is one decision
            entropy_coeff=0.02,
        )
        .debugging(seed=options.seed)
    )
    algorithm = config.build_algo()
    started = time.perf_counter()
    steps = 0
    while steps < options.steps:
        steps = int(algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"])
    seconds = time.perf_counter() - started

    module: Any = algorithm.get_module()

    @torch.no_grad()
    def choose(observations: np.ndarray, _: np.ndarray) -> np.ndarray:
        logits = module.forward_inference({"obs": torch.from_numpy(observations)})["action_dist_inputs"]
        return logits.argmax(-1).numpy()

    score = evaluate(choose, ENVIRONMENT)
    algorithm.stop()
    ray.shutdown()
    return report("ray", ENVIRONMENT, "PPO", steps, seconds, score)


if __name__ == "__main__":
    sys.exit(main())
