"""What the consumers share: how their policies are scored, and the line of JSON that each prints last.

Needs no more than opselect_envs does.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys

from opselect_envs.suite import Policy, score

PASSING_SCORE = 0.3


def env_id(environment: str) -> str:
    """The id that also works in a process that has not imported opselect_envs."""
    return f"opselect_envs:opselect/{environment}-v0"


def arguments(document: str | None, steps: int) -> argparse.ArgumentParser:
    """The arguments all scripts have; `steps` is the default."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=steps, help="environment steps to train for")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def evaluate(choose: Policy, environment: str) -> float:
    """The score of a policy (observations, masks) -> actions: 0 is the uniform-random agent, 1 the oracle."""
    return score(env_id(environment), choose).score


def report(consumer: str, environment: str, algorithm: str, steps: int, seconds: float, reached: float) -> int:
    """Prints the line of JSON; returns what the process exits with: 1 for a score that is hardly above random.

    Args:
        consumer: the name of its distribution, whose version is looked up.
        environment: the name of the task.
        algorithm: what was trained, and through what.
        steps: environment steps.
        seconds: how long training took.
        reached: the score, as of `evaluate`.
    """
    line = {
        "consumer": consumer,
        "version": importlib.metadata.version(consumer),
        "environment": f"opselect/{environment}-v0",
        "algorithm": algorithm,
        "steps": int(steps),
        "seconds": round(seconds, 1),
        "score": round(reached, 3),
    }
    sys.stderr.flush()
    print(json.dumps(line), flush=True)
    if reached < PASSING_SCORE:
        print(f"not clearly better than random: {reached:.3f} is below {PASSING_SCORE}", file=sys.stderr)
        return 1
    return 0
