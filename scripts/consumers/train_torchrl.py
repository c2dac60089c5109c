"""Trains TorchRL's PPO on opselect/OpChain-v0, with action masks.

    python -m pip install torch torchrl .
    python scripts/consumers/train_torchrl.py [--steps N] [--seed N]

`GymWrapper` takes our vector environment in its modes SAME_STEP and DISABLED, and reads `action_mask` off its infos.
"""

# pyright: reportMissingImports=false
# torch and torchrl are in a virtual environment of their own.

from __future__ import annotations

import sys
import time

import gymnasium as gym
import numpy as np
import torch
from common import arguments, env_id, evaluate, report
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, MaskedCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

ENVIRONMENT = "OpChain"
ROWS, ROLLOUT, EPOCHS, MINIBATCH = 256, 16, 4, 1024


class Logits(nn.Module):
    """Logits of the operations, and the mask in the type that `MaskedCategorical` wants."""

    def __init__(self, inputs: int, operations: int) -> None:
        super().__init__()
        self.network = MLP(inputs, operations, num_cells=[128, 128], activation_class=nn.Tanh)

    def forward(self, observation: torch.Tensor, action_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.network(observation), action_mask.bool()


def train(steps: int, seed: int) -> ProbabilisticActor:
    torch.manual_seed(seed)
    env = GymWrapper(gym.make_vec(env_id(ENVIRONMENT), num_envs=ROWS), categorical_action_encoding=True)
    env.set_seed(seed)
    size, operations = env.observation_spec["observation"].shape[-1], env.action_spec.space.n
    actor = ProbabilisticActor(
        TensorDictModule(Logits(size, operations), in_keys=["observation", "action_mask"], out_keys=["logits", "mask"]),
        in_keys=["logits", "mask"],
        distribution_class=MaskedCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(size, 1, num_cells=[128, 128], activation_class=nn.Tanh))
    advantage = GAE(gamma=1.0, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.01, critic_coeff=0.5)
    optimizer = torch.optim.Adam(loss.parameters(), lr=2e-3, eps=1e-5)
    collector = Collector(
        env, actor, frames_per_batch=ROWS * ROLLOUT, total_frames=steps, auto_register_policy_transforms=False
    )
    for batch in collector:
        with torch.no_grad():
            advantage(batch)
        samples = batch.reshape(-1)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(samples)).split(MINIBATCH):
                parts = loss(samples[rows])
                optimizer.zero_grad()
                (parts["loss_objective"] + parts["loss_critic"] + parts["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
    collector.shutdown()
    return actor


def main() -> int:
    options = arguments(__doc__, steps=60 * ROWS * ROLLOUT).parse_args()

    torch.set_num_threads(1)  # such small networks only lose by more
    started = time.perf_counter()
    actor = train(options.steps, options.seed)
    seconds = time.perf_counter() - started

    @torch.no_grad()
    def choose(observations: np.ndarray, masks: np.ndarray) -> np.ndarray:
        seen = {"observation": torch.from_numpy(observations), "action_mask": torch.from_numpy(masks)}
        with set_exploration_type(ExplorationType.MODE):
            return actor(TensorDict(seen, [len(masks)]))["action"].numpy()

    score = evaluate(choose, ENVIRONMENT)
    return report("torchrl", ENVIRONMENT, "PPO, GymWrapper of gym.make_vec", options.steps, seconds, score)


if __name__ == "__main__":
    sys.exit(main())
