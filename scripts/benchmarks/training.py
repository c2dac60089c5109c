"""How fast training is, against what one would pick instead; all in one run, on ScalarOp, with networks 13-32-32-10.

    python scripts/benchmarks/training.py [--rounds N] [--seeds N]

Ours is the default learner's loop: REINFORCE with 256 rows a step and 4 samples a row, each the others' baseline.
Against it: stable-baselines3's A2C and PPO with 16 environments, a CleanRL-style PPO with 1024 rows, and the same
REINFORCE written directly in JAX, for one, ten and 64 seeds side by side.

An env-step is one decision of one episode for which a reward is evaluated. Ours and JAX's evaluate the rewards of 4
choices for each input that they draw, and that counts as 4 env-steps; ``inputs/s`` has the inputs. For the others the
two are the same.

Everybody works in a process of its own, and they take turns, so that a busy machine slows all of them. The others need
virtual environments of their own; where there is none they are left out, with a word on how to make it. Speeds are the
best of several rounds, since other work can only slow one down. Seconds to a hard score of 0.95 are the median over
seeds; neither compiling nor judging counts in them: ``ready`` is how long a process compiles before it trains.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SAMPLES = 4
SCORE = 0.95
REPLICAS = (1, 10, 64)
INSTALL = {
    "torch": "torch stable-baselines3 gymnasium",
    "jax": "'jax[cpu]' gymnasium",
}


@dataclass
class Worker:
    """A process that trains in one way; see `training_common.serve`."""

    name: str
    environment: str | None
    script: str
    arguments: tuple[str, ...] = ()
    samples: int = 1
    speed: float = 0.0
    learned: list[tuple[float, int]] = field(default_factory=list)
    ready: float = 0.0
    process: Any = None

    @property
    def python(self) -> pathlib.Path:
        """The interpreter of its virtual environment."""
        if self.environment is None:
            return pathlib.Path(sys.executable)
        return ROOT / ".venvs" / self.environment / ("Scripts" if os.name == "nt" else "bin") / "python"

    def start(self) -> None:
        """Starts it, and waits until it has compiled."""
        self.process = subprocess.Popen(
            [str(self.python), str(HERE / self.script), *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # The packages of this checkout, whatever is installed there.
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(map(str, [ROOT, ROOT / "envs"])), "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        self.ready = self._answer()["ready"]

    def ask(self, command: str) -> dict[str, Any]:
        """Sends a command and waits for what it gives."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        """Ends it."""
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{self.name} ended with exit code {self.process.wait()}: see above")

    @property
    def seconds(self) -> float:
        """To the score: the median over seeds; infinite where it was given up."""
        return sorted(s for s, _ in self.learned)[len(self.learned) // 2] if self.learned else float("nan")


def present(workers: list[Worker]) -> list[Worker]:
    """Those whose virtual environment is there; says how to make the others."""
    missing = {w.environment for w in workers if w.environment and not w.python.exists()}
    for name in sorted(missing):
        print(f"left out: .venvs/{name} is missing. To make it:")
        print(f"    python3 -m venv .venvs/{name} && .venvs/{name}/bin/python -m pip install {INSTALL[name]}")
    return [w for w in workers if w.environment not in missing]


def measure(workers: list[Worker], rounds: int, seeds: int) -> list[Worker]:
    """Lets them take turns; prints a row for each, and returns those that were there."""
    workers = present(workers)
    try:
        for worker in workers:
            worker.start()
        for _ in range(rounds):
            for worker in workers:
                answer = worker.ask("speed")
                worker.speed = max(worker.speed, answer["steps"] / answer["seconds"])
        for seed in range(1, seeds + 1):
            for worker in workers:
                answer = worker.ask(f"learn {seed}")
                reached = answer["score"] >= SCORE
                worker.learned.append((answer["seconds"] if reached else float("inf"), answer["steps"]))
    finally:
        for worker in workers:
            if worker.process is not None:
                worker.stop()
    for w in workers:
        to_score = f"{w.seconds:14.3f}" if w.learned else f"{'':14}"
        print(f"{w.name:36}{w.speed:14,.0f}{w.speed / w.samples:14,.0f}{to_score}{w.ready:8.1f}", flush=True)
    return workers


def main(rounds: int = 12, seeds: int = 5, replicas: tuple[int, ...] = REPLICAS) -> dict[str, float]:
    """Prints the tables and the ratios; returns the ratios."""
    ratios: dict[str, float] = {}
    for r in replicas:
        label = "one seed" if r == 1 else f"{r} seeds"
        settings = (str(r), str(SAMPLES))
        workers = [
            Worker(f"opselect, {label}", None, "training_opselect.py", settings, SAMPLES),
            Worker(f"JAX, {label}", "jax", "training_jax.py", settings, SAMPLES),
            Worker(
                f"JAX, {label}, random.categorical", "jax", "training_jax.py", (*settings, "--categorical"), SAMPLES
            ),
        ]
        if r == 1:
            workers += [
                Worker("SB3 A2C, 16 environments", "torch", "training_torch.py", ("sb3-a2c",)),
                Worker("SB3 PPO, 16 environments", "torch", "training_torch.py", ("sb3-ppo",)),
                Worker("CleanRL-style PPO, 1024 rows", "torch", "training_torch.py", ("cleanrl-ppo",)),
            ]
        print(f"\n{'':36}{'env-steps/s':>14}{'inputs/s':>14}{'s to 0.95':>14}{'ready':>8}")
        ours, *others = measure(workers, rounds, seeds if r == 1 else 0)
        for other in others:
            ratios[other.name] = ours.speed / other.speed
            if other.learned:
                ratios[f"{other.name}: seconds"] = ours.seconds / other.seconds
    print(f"\n{'ours as a ratio to':36}{'env-steps/s':>14}{'s to 0.95':>14}")
    for name, ratio in ratios.items():
        if not name.endswith(": seconds"):
            seconds = ratios.get(f"{name}: seconds")
            print(f"{name:36}{ratio:14.2f}{'' if seconds is None else f'{seconds:14.3f}'}")
    return ratios


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="of measuring speed")
    parser.add_argument("--seeds", type=int, default=5, help="that learn to the score")
    options = parser.parse_args()
    main(options.rounds, options.seeds)
