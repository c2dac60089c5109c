"""What training costs as it grows: twice the seeds, steps or rows take at most twice the time; and how much memory.

    python scripts/benchmarks/scaling.py [--whole]

The loop of the default learner, compiled once for each size; the sizes take turns, and the best of several rounds
counts, since other work can only slow one down. Memory is the peak of a process that runs `opselect compare` as it is
by default, but with 40 steps: the arrays of a step are the same in every step, and the results of a run grow by a few
numbers per look at the score, of which there are ten whatever the steps. What takes the memory is TensorFlow and the
loops, all of which this builds. ``--whole`` runs it with all its steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from opselect.learners import LEARNERS
from opselect.learners.loop import Loop
from opselect_envs.tasks import TASKS

TASK, LEARNER = TASKS["ScalarOp"], LEARNERS["reinforce-rloo"]
SEEDS, STEPS, ROWS = 8, 40, 256
ROUNDS = 12
MOST = 2.0 * 1.15
MOST_MEMORY = 2e9

# On Linux the peak of `resource` begins with that of the process which started this one.
_MEASURED = """
import resource
from opselect.__main__ import main
try:
    main()
except SystemExit as end:
    if end.code:
        raise
try:
    with open("/proc/self/status") as status:
        print(next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM")))
except FileNotFoundError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def prepared(seeds: int, steps: int, rows: int) -> Any:
    """A function that trains once and returns the seconds."""
    loop = Loop(TASK, dataclasses.replace(LEARNER, rows=rows), seeds, steps)
    numbers = list(range(seeds))
    loop.restart(numbers)

    def run() -> float:
        began = time.perf_counter()
        loop.run(TASK, numbers, 0, steps, steps)
        return time.perf_counter() - began

    run()
    return run


def times(rounds: int) -> dict[str, float]:
    """Prints the seconds of each size and returns how many times those of the first it takes."""
    sizes = {
        "": (SEEDS, STEPS, ROWS),
        "seeds": (2 * SEEDS, STEPS, ROWS),
        "steps": (SEEDS, 2 * STEPS, ROWS),
        "rows": (SEEDS, STEPS, 2 * ROWS),
    }
    runs = {name: prepared(*size) for name, size in sizes.items()}
    best = dict.fromkeys(sizes, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], run())
    print(f"{'seeds':>6}{'steps':>7}{'rows':>6}{'ms':>9}{'ratio':>8}")
    for name, size in sizes.items():
        print(f"{size[0]:>6}{size[1]:>7}{size[2]:>6}{1e3 * best[name]:9.1f}{best[name] / best['']:8.2f}")
    return {name: best[name] / best[""] for name in sizes if name}


def memory(*arguments: str) -> float:
    """The peak memory in bytes of `opselect compare` with these arguments."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _MEASURED, "compare", "--quiet", "--out", str(pathlib.Path(folder) / "out")]
        shown = subprocess.run([*command, *arguments], check=True, text=True, stdout=subprocess.PIPE).stdout
    return float(shown.splitlines()[-1])


def main(rounds: int = ROUNDS, *compare: str) -> tuple[dict[str, float], float]:
    """Prints everything; returns the ratios and the bytes."""
    ratios = times(rounds)
    print(f"largest ratio: {max(ratios.values()):.2f} (at most {MOST:.2f})")
    peak = memory(*compare)
    print(f"peak memory of opselect compare: {peak / 1e9:.2f} GB (at most {MOST_MEMORY / 1e9:.0f})")
    return ratios, peak


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="all the steps of the default comparison")
    main(ROUNDS, *([] if parser.parse_args().whole else ["--steps", "40"]))
