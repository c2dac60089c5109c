"""REINFORCE on any gymnasium environment with discrete actions.

uv run python scripts/train_environment.py CartPole-v1
"""

from __future__ import annotations

import sys

from opselect.learners.environment import EnvironmentSettings, train_environment


def main(env_id: str = "CartPole-v1", steps: int = 100_000) -> float:
    """Trains with a learned value baseline; prints and returns the greedy policy's mean return over 100 episodes."""
    settings = EnvironmentSettings(rows=16, steps=steps, discount=0.99)
    trained = train_environment(env_id, "reinforce-value", seed=0, settings=settings)
    for done, mean_return in trained.history[:: max(1, len(trained.history) // 10)]:
        print(f"{done:8} steps  return {mean_return:.1f}")
    result = trained.evaluate(episodes=100, seed=1)
    print(f"return {result:.1f}")
    return result


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "CartPole-v1")
