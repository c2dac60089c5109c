"""Trains a PPO written out in one file, in the manner of CleanRL, on opselect/OpChain-v0, with action masks.

    python -m pip install torch .
    python scripts/consumers/train_cleanrl_style.py [--steps N] [--seed N]

Only torch and our NumPy vector environment. Shapes: T steps of B rows, K operations.
"""

# pyright: reportMissingImports=false
# torch is in a virtual environment of its own.

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from common import arguments, env_id, evaluate, report
from torch import nn
from torch.distributions import Categorical

ENVIRONMENT = "OpChain"
ROWS, ROLLOUT, EPOCHS, MINIBATCH = 256, 16, 4, 1024
LEARNING_RATE, GAMMA, LAMBDA, CLIP, ENTROPY = 2e-3, 1.0, 0.95, 0.2, 0.01


class Agent(nn.Module):
    """A policy and a value, each with a network of its own."""

    def __init__(self, inputs: int, operations: int) -> None:
        super().__init__()
        self.actor, self.critic = network(inputs, operations, 0.01), network(inputs, 1, 1.0)

    def policy(self, observations: torch.Tensor, masks: torch.Tensor) -> Categorical:
        """Over the operations that the masks [..., K] bool allow."""
        return Categorical(logits=self.actor(observations).masked_fill(~masks, -1e8))

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        """[...]: the expected return from here."""
        return self.critic(observations).squeeze(-1)


def network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, outputs)]
    for layer in layers[::2]:
        nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def train(steps: int, seed: int) -> Agent:
    torch.manual_seed(seed)
    envs: Any = gym.make_vec(env_id(ENVIRONMENT), num_envs=ROWS)  # rows reset in the step that ends their episode
    size, operations = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    agent = Agent(size, operations)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)

    observations = torch.zeros(ROLLOUT, ROWS, size)
    masks = torch.zeros(ROLLOUT, ROWS, operations, dtype=torch.bool)
    actions = torch.zeros(ROLLOUT, ROWS, dtype=torch.long)
    log_probs, rewards, ended, values = (torch.zeros(ROLLOUT, ROWS) for _ in range(4))

    start, infos = envs.reset(seed=seed)
    observation, mask = torch.from_numpy(start), torch.from_numpy(infos["action_mask"] != 0)
    updates = steps // (ROWS * ROLLOUT)
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - update / updates)
        for t in range(ROLLOUT):
            observations[t], masks[t] = observation, mask
            with torch.no_grad():
                policy = agent.policy(observation, mask)
                actions[t] = policy.sample()
                log_probs[t], values[t] = policy.log_prob(actions[t]), agent.value(observation)
            following, reward, terminated, truncated, infos = envs.step(actions[t].numpy())
            rewards[t], ended[t] = torch.from_numpy(reward), torch.from_numpy(terminated | truncated)
            if truncated.any():  # such an episode could have gone on from its final observation
                final = torch.from_numpy(np.stack([*infos["final_obs"][truncated]]))
                with torch.no_grad():
                    rewards[t, truncated] += GAMMA * agent.value(final)
            observation, mask = torch.from_numpy(following), torch.from_numpy(infos["action_mask"] != 0)

        advantages, advantage = torch.zeros_like(rewards), torch.zeros(ROWS)
        with torch.no_grad():
            after = agent.value(observation)
        for t in reversed(range(ROLLOUT)):
            going = 1.0 - ended[t]
            advantage = rewards[t] + GAMMA * after * going - values[t] + GAMMA * LAMBDA * going * advantage
            advantages[t], after = advantage, values[t]
        returns = advantages + values

        batch = [a.flatten(0, 1) for a in (observations, masks, actions, log_probs, advantages, returns)]
        for _ in range(EPOCHS):
            for rows in torch.randperm(ROWS * ROLLOUT).split(MINIBATCH):
                seen, allowed, action, log_prob, gain, target = (a[rows] for a in batch)
                policy = agent.policy(seen, allowed)
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                ratio = (policy.log_prob(action) - log_prob).exp()
                policy_loss = -torch.min(gain * ratio, gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                value_loss = 0.5 * (agent.value(seen) - target).square().mean()
                loss = policy_loss + 0.5 * value_loss - ENTROPY * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
    return agent


def main() -> int:
    options = arguments(__doc__, steps=400_000).parse_args()

    torch.set_num_threads(1)  # such small networks only lose by more
    started = time.perf_counter()
    agent = train(options.steps, options.seed)
    seconds = time.perf_counter() - started

    @torch.no_grad()
    def choose(observations: np.ndarray, masks: np.ndarray) -> np.ndarray:
        policy = agent.policy(torch.from_numpy(observations), torch.from_numpy(masks).bool())
        return policy.probs.argmax(-1).numpy()

    score = evaluate(choose, ENVIRONMENT)
    steps = options.steps // (ROWS * ROLLOUT) * ROWS * ROLLOUT
    return report("torch", ENVIRONMENT, "PPO, gym.make_vec", steps, seconds, score)


if __name__ == "__main__":
    sys.exit(main())
