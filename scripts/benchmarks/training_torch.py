"""A worker of `training.py`: agents that run the gymnasium environments from outside, in PyTorch.

    python -m pip install torch stable-baselines3 gymnasium
    python scripts/benchmarks/training_torch.py sb3-a2c | sb3-ppo | cleanrl-ppo

stable-baselines3 with 16 environments, as its `make_vec_env` makes them; a PPO in one file, in the manner of CleanRL,
with 1024 rows of the NumPy vector environment.
"""

# pyright: reportMissingImports=false
# torch and stable-baselines3 are in a virtual environment of their own.

from __future__ import annotations

import itertools
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import training_common as common
from torch import nn
from torch.distributions import Categorical

ID = "opselect_envs:opselect/ScalarOp-v0"
ENVIRONMENTS = 16
ROWS, ROLLOUT, EPOCHS, MINIBATCH = 1024, 4, 4, 1024
BLOCK = 4096  # env-steps, of any of them


def network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """As CleanRL makes it: orthogonal kernels, biases of zero."""
    widths = [inputs, *common.HIDDEN, outputs]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        linear = nn.Linear(a, b)
        nn.init.orthogonal_(linear.weight, gain if len(layers) == 2 * len(common.HIDDEN) else 2**0.5)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class CleanRL:
    """PPO as in `train_cleanrl_style.py`, for episodes of one decision: the return is the reward."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.envs: Any = gym.make_vec(ID, num_envs=ROWS)
        self.actor = network(common.TASK.observation_size, len(common.TASK.ops), 0.01)
        self.critic = network(common.TASK.observation_size, 1, 1.0)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=2e-3, eps=1e-5)
        self.observation = torch.from_numpy(self.envs.reset(seed=seed)[0])

    def learn(self) -> int:
        """One rollout and its epochs; returns its env-steps."""
        played = []
        for _ in range(ROLLOUT):
            with torch.no_grad():
                policy = Categorical(logits=self.actor(self.observation))
                action = policy.sample()
                log_p, value = policy.log_prob(action), self.critic(self.observation).squeeze(-1)
            following, reward, *_ = self.envs.step(action.numpy())
            reward = torch.from_numpy(np.asarray(reward, np.float32))
            played.append((self.observation, action, log_p, reward - value, reward))
            self.observation = torch.from_numpy(following)
        batch = [torch.cat(arrays) for arrays in zip(*played, strict=True)]
        for _ in range(EPOCHS):
            for rows in torch.randperm(ROWS * ROLLOUT).split(MINIBATCH):
                seen, action, log_p, gain, returned = (a[rows] for a in batch)
                policy = Categorical(logits=self.actor(seen))
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                ratio = (policy.log_prob(action) - log_p).exp()
                policy_loss = -torch.min(gain * ratio, gain * ratio.clamp(0.8, 1.2)).mean()
                value_loss = 0.5 * (self.critic(seen).squeeze(-1) - returned).square().mean()
                loss = policy_loss + 0.5 * value_loss - 0.02 * policy.entropy().mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, 0.5)
                self.optimizer.step()
        return ROWS * ROLLOUT

    def logits(self) -> np.ndarray:
        """On the held-out episodes."""
        with torch.no_grad():
            return self.actor(torch.from_numpy(common.OBSERVATIONS)).numpy()


class StableBaselines:
    """PPO or A2C of stable-baselines3, with the settings of `train_sb3.py` for as many environments."""

    def __init__(self, algorithm: str, seed: int) -> None:
        from stable_baselines3 import A2C, PPO
        from stable_baselines3.common.env_util import make_vec_env

        envs: Any = make_vec_env(ID, n_envs=ENVIRONMENTS, seed=seed)
        shared: dict[str, Any] = {
            "policy_kwargs": {"net_arch": list(common.HIDDEN)},
            "ent_coef": 0.02,
            "gamma": 0.0,
            "seed": seed,
            "device": "cpu",
        }
        if algorithm == "sb3-ppo":
            steps = 2048 // ENVIRONMENTS
            self.model: Any = PPO(
                "MlpPolicy", envs, n_steps=steps, batch_size=256, n_epochs=4, learning_rate=2e-3, **shared
            )
        else:
            self.model = A2C("MlpPolicy", envs, learning_rate=3e-3, **shared)

    def learn(self) -> int:
        """A block; returns its env-steps."""
        before = self.model.num_timesteps
        self.model.learn(BLOCK, reset_num_timesteps=False)
        return self.model.num_timesteps - before

    def logits(self) -> np.ndarray:
        """On the held-out episodes."""
        with torch.no_grad():
            policy = self.model.policy.get_distribution(torch.from_numpy(common.OBSERVATIONS))
        return policy.distribution.logits.numpy()


def main(algorithm: str) -> None:
    """Serves."""
    torch.set_num_threads(1)  # such small networks only lose by more
    agent: Any = None

    def restart(seed: int) -> None:
        nonlocal agent
        agent = CleanRL(seed) if algorithm == "cleanrl-ppo" else StableBaselines(algorithm, seed)

    common.serve(restart, lambda short: agent.learn(), lambda: common.score_of(agent.logits()))


if __name__ == "__main__":
    main(sys.argv[1])
