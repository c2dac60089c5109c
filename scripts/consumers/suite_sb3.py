"""Scores stable-baselines3's PPO, A2C and DQN on the capability suite, to be shown beside our learners.

    python -m pip install torch stable-baselines3 .
    python scripts/consumers/suite_sb3.py --out runs/agents.jsonl
    opselect suite --quick --beside runs/agents.jsonl

Without --challenges: one per axis. Each algorithm has the settings of train_sb3.py throughout.
"""

# pyright: reportMissingImports=false
# torch and stable-baselines3 are in a virtual environment of their own.

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from typing import Any

import torch
from train_sb3 import ALGORITHMS, ROWS, STEPS

from opselect_envs.naming import nearest
from opselect_envs.sb3 import make_sb3_vec_env
from opselect_envs.suite import CHALLENGES, score


def trained(algorithm: str, name: str, steps: int, seed: int) -> dict[str, Any]:
    """Trains on a challenge; what `opselect suite --beside` reads."""
    challenge, rows = CHALLENGES[name], ROWS[algorithm]
    horizon = challenge.task.horizon
    # Where the rule shifts, it does so half way through.
    shift = {"shift_after": steps // rows // 2} if challenge.task.rule_after is not None else {}
    envs = make_sb3_vec_env(f"opselect_envs:{challenge.id}", num_envs=rows, **shift)
    model: Any = ALGORITHMS[algorithm](seed, envs, gamma=0.0 if horizon == 1 else 1.0)
    began = time.perf_counter()
    model.learn(steps * horizon)
    seconds = time.perf_counter() - began
    found = score(challenge.id, lambda observations, _: model.predict(observations, deterministic=True)[0])
    return {
        "agent": f"SB3 {algorithm.upper()}",
        "challenge": name,
        "score": found.score,
        "low": found.low,
        "high": found.high,
        "episodes": steps,
        "seconds": round(seconds, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--challenges", nargs="*", default=[n for n, c in CHALLENGES.items() if c.quick])
    parser.add_argument("--algorithms", nargs="*", choices=sorted(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--episodes", type=int, default=0, help="to train for; default: as in train_sb3.py")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/agents.jsonl"))
    options = parser.parse_args()
    for name in options.challenges:
        if name not in CHALLENGES:
            near = nearest(name, CHALLENGES)
            parser.error(f"--challenges: unknown challenge {name!r}; did you mean {near!r}?")

    torch.set_num_threads(1)  # such small networks only lose by more
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w") as file:
        for name in options.challenges:
            for algorithm in options.algorithms:
                line = trained(algorithm, name, options.episodes or STEPS[algorithm], options.seed)
                file.write(json.dumps(line) + "\n")
                file.flush()
                print(f"{line['agent']:10} {name:16} {line['score']:6.3f} in {line['seconds']} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
