"""How fast the NumPy vector environment steps, on one core: against SyncVectorEnv of the same environment, in one run.

    python scripts/benchmarks/environments.py

Random actions, drawn beforehand; the SAME_STEP mode, so every step plays. Each figure is the best of several blocks:
the machine's other work can only slow one down.
"""

from __future__ import annotations

import os
import time
from typing import Any

if hasattr(os, "sched_setaffinity"):  # the claim is per core
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import opselect_envs  # noqa: F401  (registers the environments)

BLOCKS = 7
SECONDS = 0.5  # of each block
IDS = ("opselect/ScalarOp-v0", "opselect/ScalarOpGoal-v0", "opselect/OpChain-v0")


def steps_per_second(envs: Any) -> float:
    """Environment steps per second: the best block."""
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, envs.single_action_space.n, envs.num_envs) for _ in range(64)]
    envs.reset(seed=0)
    best = 0.0
    for _ in range(BLOCKS):
        steps, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < SECONDS:
            for action in actions[:8]:
                envs.step(action)
            steps += 8
        best = max(best, steps * envs.num_envs / passed)
    envs.close()
    return best


def single_steps_per_second(env: Any) -> float:
    """Environment steps per second of a plain loop over one environment: the best block."""
    actions = np.random.default_rng(0).integers(0, env.action_space.n, 1000).tolist()
    env.reset(seed=0)
    best = 0.0
    for _ in range(BLOCKS):
        steps, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < SECONDS:
            for action in actions:
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
            steps += len(actions)
        best = max(best, steps / passed)
    return best


def main() -> dict[str, float]:
    """Prints steps per second and ratios; returns those of ScalarOp: 1024 and 8192 rows, and the ratio to Sync."""
    print(f"{'environment':28}{'rows':>6}{'steps/s':>12}{'x Sync(64)':>12}")
    figures: dict[str, float] = {}
    for env_id in IDS:
        sync = SyncVectorEnv([lambda i=env_id: gym.make(i)] * 64, autoreset_mode=AutoresetMode.SAME_STEP)
        base = steps_per_second(sync)
        print(f"{'SyncVectorEnv ' + env_id[9:]:28}{64:>6}{base:>12,.0f}{1:>12.1f}", flush=True)
        loop = single_steps_per_second(gym.make(env_id))
        print(f"{'a loop over ' + env_id[9:]:28}{1:>6}{loop:>12,.0f}{loop / base:>12.1f}", flush=True)
        for rows in (64, 1024, 8192):
            rate = steps_per_second(gym.make_vec(env_id, num_envs=rows))
            print(f"{env_id[9:]:28}{rows:>6}{rate:>12,.0f}{rate / base:>12.1f}", flush=True)
            if env_id == IDS[0]:
                figures[str(rows)], figures["ratio"] = rate, rate / base
    return figures


if __name__ == "__main__":
    main()
