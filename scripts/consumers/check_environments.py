"""Runs the checkers of gymnasium and, where it is installed, of stable-baselines3 on every environment we register.

    python scripts/consumers/check_environments.py

Warnings are errors.
"""

# pyright: reportMissingImports=false
# stable-baselines3 is in a virtual environment of its own.

from __future__ import annotations

import importlib.util
import sys
import warnings

import gymnasium as gym
from gymnasium.utils.env_checker import check_env

import opselect_envs  # noqa: F401 - registers them


def main() -> int:
    checkers = {"gymnasium": check_env}
    if importlib.util.find_spec("stable_baselines3") is not None:
        from stable_baselines3.common.env_checker import check_env as check_env_for_sb3

        checkers["stable-baselines3"] = check_env_for_sb3
    ids = [name for name, spec in gym.registry.items() if str(spec.entry_point).startswith("opselect_envs.")]
    assert len(ids) >= 3
    for name in ids:
        for checker in checkers.values():
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                checker(gym.make(name).unwrapped)
    print(f"{' and '.join(checkers)} accept {len(ids)} environments under gymnasium {gym.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
