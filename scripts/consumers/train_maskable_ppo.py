"""Trains sb3-contrib's MaskablePPO on opselect/OpChain-v0: three decisions, only among the operations defined there.

python -m pip install torch sb3-contrib .
python scripts/consumers/train_maskable_ppo.py [--steps N] [--seed N]
"""

# pyright: reportMissingImports=false
# torch and sb3-contrib are in a virtual environment of their own.

from __future__ import annotations

import sys
import time

import torch
from common import arguments, env_id, evaluate, report
from sb3_contrib import MaskablePPO

from opselect_envs.sb3 import make_sb3_vec_env

ENVIRONMENT = "OpChain"


def main() -> int:
    options = arguments(__doc__, steps=400_000).parse_args()

    torch.set_num_threads(1)  # such small networks only lose by more
    model = MaskablePPO(
        "MlpPolicy",
        make_sb3_vec_env(env_id(ENVIRONMENT), num_envs=128),
        n_steps=16,
        batch_size=512,
        n_epochs=4,
        learning_rate=2e-3,
        ent_coef=0.01,
        gamma=1.0,  # the reward comes with the last decision
        policy_kwargs={"net_arch": [128, 128]},
        seed=options.seed,
        device="cpu",
    )
    started = time.perf_counter()
    model.learn(options.steps)
    seconds = time.perf_counter() - started

    score = evaluate(
        lambda observations, masks: model.predict(observations, action_masks=masks, deterministic=True)[0], ENVIRONMENT
    )
    return report("sb3-contrib", ENVIRONMENT, "MaskablePPO, make_sb3_vec_env", model.num_timesteps, seconds, score)


if __name__ == "__main__":
    sys.exit(main())
